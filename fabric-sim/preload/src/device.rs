//! The umad device of this process: one client of the server, shared by all ports that the process
//! opens, and a thread that serves the socket in the background, as the kernel would.
//!
//! One lock protects all of it. A program's threads hold it while a message is copied, the device
//! thread for one batch of packets, and a caller with a request to the server until the reply.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ib_mad::transport::ibsim::{Ibsim, IbsimError, IbsimOptions};
use ib_mad::transport::{Interest, Packet, Transport, WAIT_MAX, wait};
use ib_mad::wire::mad::MgmtClass;

use crate::info::Info;
use crate::issm::Issm;
use crate::keeper;
use crate::socket::{self, Read, Socket};
use crate::stack::{FileId, Registration, Stack};
use crate::umad::{Errno, Header};

/// Packets sent or received per step.
const BATCH: usize = 64;
/// How long methods may still be registered for a file that was closed.
const TAKEN_PATIENCE: Duration = Duration::from_millis(200);
/// How long the exit handler waits for the lock.
const DETACH_PATIENCE: Duration = Duration::from_millis(500);

/// A client of the server, with its open ports.
pub(crate) struct Device {
    pid: libc::pid_t,
    inner: Mutex<Inner>,
    /// Wakes the device thread.
    wake: OwnedFd,
    /// A duplicate of the client's data socket, for waiting on it without the lock.
    data: OwnedFd,
    issm: Issm,
    /// Id of the node.
    node: String,
    /// Whether the server delivers requests by declared methods: stock ibsim delivers all of a
    /// node's to one client.
    declares: bool,
    /// Files that this process opened and others serve.
    kept: Mutex<Vec<keeper::File>>,
}

struct Inner {
    /// `None` once detached.
    ibsim: Option<Ibsim>,
    stack: Stack,
    /// Open ports by their eventfd: the counter is non-zero while the port has a message to read.
    files: BTreeMap<FileId, OwnedFd>,
    /// Ports opened through the kernel's file interface, by our ends of their sockets.
    sockets: BTreeMap<FileId, Socket>,
    received: Box<[Packet]>,
    /// Packets that the socket did not accept because it was full.
    unsent: Vec<Packet>,
    /// When the device thread next wakes without input.
    planned: Option<Instant>,
    is_lost: bool,
}

/// The device of the process. A child attaches again after fork(2): it has no device thread, and
/// the client's slot belongs to the parent.
static CURRENT: Mutex<Option<&'static Device>> = Mutex::new(None);

impl Device {
    /// Returns the device; attaches it on first use. Errors with the reason if that fails.
    pub(crate) fn get() -> Result<&'static Self, Errno> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = *current
            && device.pid == process_id()
        {
            return Ok(device);
        }
        match Self::attach() {
            Ok(device) => {
                *current = Some(device);
                Ok(device)
            }
            Err(error) => {
                say(format_args!("{error}"));
                Err(Errno(libc::ENODEV))
            }
        }
    }

    /// Attaches to the server as a new client, without a thread that serves it.
    pub(crate) fn connect() -> Result<Self, IbsimError> {
        let mut ibsim = Ibsim::connect(&IbsimOptions::default())?;
        let info = Info::read(&mut ibsim)?;
        let mut stack = Stack::new(ibsim.client_id().number);
        stack.set_port(&info.pkeys, info.gid());
        let data = ibsim.descriptor().map(|data| data.try_clone_to_owned());
        let declares = ibsim.declare_methods(MgmtClass::SUBN_ADM, 0)?;
        Ok(Self {
            pid: process_id(),
            wake: event_descriptor()?,
            data: data.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))?,
            issm: Issm::new()?,
            node: ibsim.node().to_owned(),
            declares,
            kept: Mutex::default(),
            inner: Mutex::new(Inner {
                ibsim: Some(ibsim),
                stack,
                files: BTreeMap::new(),
                sockets: BTreeMap::new(),
                received: vec![Packet::default(); BATCH].into_boxed_slice(),
                unsent: Vec::new(),
                planned: None,
                is_lost: false,
            }),
        })
    }

    fn attach() -> Result<&'static Self, IbsimError> {
        // Once per process.
        let device: &'static Self = Box::leak(Box::new(Self::connect()?));
        spawn_without_signals(|| device.run(None))?;
        // SAFETY: `detach` is a function of this library, which is never unloaded.
        unsafe { libc::atexit(detach) };
        Ok(device)
    }

    /// NodeInfo and PortInfo as the server reports them.
    pub(crate) fn info(&self) -> Result<Info, Errno> {
        self.with(|inner| {
            let info = inner.ask(Info::read)?;
            inner.stack.set_port(&info.pkeys, info.gid());
            Ok(info)
        })
    }

    /// Path of the issm file: opening it makes the process a subnet manager.
    pub(crate) fn issm_path(&self) -> String {
        self.issm.path()
    }

    /// Opens the port; returns a descriptor that becomes readable when a message waits.
    pub(crate) fn open(&self) -> Result<FileId, Errno> {
        self.with(|inner| {
            let event = event_descriptor().map_err(|error| errno(&error))?;
            let file = event.as_raw_fd();
            inner.files.insert(file, event);
            inner.stack.open(file);
            Ok(file)
        })
    }

    /// Closes a descriptor that `open` returned.
    pub(crate) fn close(&self, file: FileId) -> Result<(), Errno> {
        self.with(|inner| {
            inner.files.remove(&file).ok_or(Errno(libc::EBADF))?;
            for class in inner.stack.close(file) {
                inner.declare(class)?;
            }
            Ok(())
        })
    }

    /// Attaches this process to the server, and serves a file that another process has opened.
    fn serve_file(socket: Socket, control: &OwnedFd) {
        match Self::connect() {
            Ok(device) => device.keep(socket, control),
            Err(_) => keeper::answer(control, -libc::ENODEV),
        }
    }

    /// Serves a file that another process has opened, and its requests on the control socket, until
    /// all descriptors of the file are closed or the server ends.
    fn keep(&self, socket: Socket, control: &OwnedFd) {
        let id = socket.id();
        {
            let mut inner = self.lock();
            inner.stack.open(id);
            inner.sockets.insert(id, socket);
        }
        keeper::answer(control, 0);
        self.run(Some((id, control)));
        // Detaches from the server.
        drop(self.lock().ibsim.take());
    }

    /// Registers an agent for a file that this process keeps. The process of a file whose last
    /// owner has just died may still have the methods; in the kernel they are free at once.
    fn register_kept(&self, file: FileId, registration: Registration) -> Result<u32, Errno> {
        let until = Instant::now() + TAKEN_PATIENCE;
        loop {
            match self.register(file, registration) {
                Err(Errno(libc::EINVAL)) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                done => return done,
            }
        }
    }

    /// The node's id.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Opens the port as a file for reading and writing messages: one end of a socket pair. It is
    /// served by a separate process, so that it may be passed to another process that outlives
    /// this one; where the server cannot deliver requests to it there, by this process.
    pub(crate) fn open_socket(&self) -> Result<RawFd, Errno> {
        if self.declares {
            let (theirs, file) = keeper::File::open(&self.node, Self::serve_file)?;
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.retain(keeper::File::is_served);
            kept.push(file);
            return Ok(theirs.into_raw_fd());
        }
        let (socket, theirs) = Socket::pair().map_err(|error| errno(&error))?;
        let opened = self.with(|inner| {
            inner.stack.open(socket.id());
            inner.sockets.insert(socket.id(), socket);
            Ok(theirs.into_raw_fd())
        });
        // The device's thread does not wait for it yet.
        set(&self.wake);
        opened
    }

    /// Registers an agent for a program's end of a socket pair; returns its id.
    pub(crate) fn register_socket(
        &self,
        theirs: RawFd,
        registration: Registration,
    ) -> Result<u32, Errno> {
        let inode = socket::inode(theirs).map_err(|error| errno(&error))?;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = kept.iter().find(|file| file.is_of(inode)) {
            return file.register(registration);
        }
        drop(kept);
        let found = {
            let inner = self.lock();
            inner.sockets.values().find(|socket| socket.is_of(inode)).map(Socket::id)
        };
        self.register(found.ok_or(Errno(libc::ENOTTY))?, registration)
    }

    /// Registers an agent; returns its id.
    pub(crate) fn register(&self, file: FileId, registration: Registration) -> Result<u32, Errno> {
        self.with(|inner| {
            let agent = inner.stack.register(file, registration)?;
            if registration.methods != 0
                && let Err(error) = inner.declare(registration.class)
            {
                let _ = inner.stack.unregister(file, agent);
                return Err(error);
            }
            Ok(agent)
        })
    }

    /// Unregisters an agent.
    pub(crate) fn unregister(&self, file: FileId, agent: u32) -> Result<(), Errno> {
        self.with(|inner| {
            let class = inner.stack.unregister(file, agent)?;
            inner.declare(class)
        })
    }

    /// Sends a message.
    pub(crate) fn send(&self, file: FileId, header: Header, message: &[u8]) -> Result<(), Errno> {
        self.with(|inner| {
            if inner.is_lost {
                return Err(Errno(libc::EIO));
            }
            inner.stack.send(Instant::now(), file, header, message)
        })
    }

    /// Reads a message; see [`Stack::receive`].
    pub(crate) fn receive(&self, file: FileId, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut inner = self.lock();
        let received = inner.stack.receive(file, buffer);
        inner.signal();
        received
    }

    /// Runs `act` on the device, then sends the queued packets and wakes readers.
    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut inner = self.lock();
        let done = act(&mut inner);
        inner.step(Instant::now());
        let due = inner.stack.poll_timeout();
        let sooner = due.is_some_and(|due| inner.planned.is_none_or(|planned| due < planned));
        if sooner || !inner.unsent.is_empty() {
            set(&self.wake);
        }
        done
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device thread's loop. `kept`: the file that this process exists for, and its control
    /// socket.
    fn run(&self, kept: Option<(FileId, &OwnedFd)>) {
        let mut control = kept.map(|(_, control)| control);
        loop {
            if let (Some(open), Some((id, _))) = (control, kept)
                && !keeper::take_request(open, |registration| self.register_kept(id, registration))
            {
                control = None;
            }
            let (timeout, is_full, sockets) = {
                let mut inner = self.lock();
                if inner.ibsim.is_none() || inner.is_lost {
                    return;
                }
                if let Some(is_open) = self.issm.poll()
                    && inner.ask(|ibsim| ibsim.set_is_sm(is_open)).is_err()
                {
                    say(format_args!("cannot set IsSM to {is_open}"));
                }
                let now = Instant::now();
                inner.step(now);
                if kept.is_some() && inner.sockets.is_empty() {
                    return;
                }
                inner.planned = inner.stack.poll_timeout();
                let timeout = inner.planned.map(|due| due.saturating_duration_since(now));
                (timeout, !inner.unsent.is_empty(), inner.socket_descriptors())
            };
            let mut interests = vec![
                Interest::read_or_write(self.data.as_fd(), is_full),
                Interest::read(self.wake.as_fd()),
                Interest::read(self.issm.descriptor()),
            ];
            interests.extend(control.map(|control| Interest::read(control.as_fd())));
            let waited = sockets.iter().take(WAIT_MAX - interests.len());
            interests.extend(
                waited.map(|(socket, is_full)| Interest::read_or_write(socket.as_fd(), *is_full)),
            );
            if wait(&mut interests, timeout).is_err() {
                return;
            }
            if interests[1].is_readable() {
                clear(&self.wake);
            }
        }
    }
}

impl Inner {
    /// Sends a control request to the server.
    fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut Ibsim) -> Result<T, IbsimError>,
    ) -> Result<T, Errno> {
        let ibsim = self.ibsim.as_mut().ok_or(Errno(libc::ENODEV))?;
        ask(ibsim).map_err(|error| match error {
            // The kernel's error for a method that another agent has registered.
            IbsimError::Taken { .. } => Errno(libc::EINVAL),
            other => {
                say(format_args!("{other}"));
                Errno(libc::EIO)
            }
        })
    }

    /// Declares to the server which requests of a class this client receives. Stock ibsim does not
    /// support this: there, the process with the `issm` file open receives all requests.
    fn declare(&mut self, class: MgmtClass) -> Result<(), Errno> {
        let methods = self.stack.methods(class);
        self.ask(|ibsim| ibsim.declare_methods(class, methods)).map(|_known| ())
    }

    /// Our ends of the socket pairs, and whether each is also polled for writability.
    fn socket_descriptors(&self) -> Vec<(OwnedFd, bool)> {
        let sockets = self.sockets.values();
        let copies = sockets.filter_map(|socket| Some((socket.descriptor()?, socket.is_full())));
        copies.collect()
    }

    /// Reads the messages in the programs' sockets, and drops sockets that they closed.
    fn take_written(&mut self, now: Instant) {
        let mut closed = Vec::new();
        for (&file, socket) in &mut self.sockets {
            loop {
                match socket.read() {
                    // Only a write(2) to the kernel's file can report a malformed message.
                    Read::Message(header, mad) => {
                        let _ = self.stack.send(now, file, header, &mad);
                    }
                    Read::Nothing => break,
                    Read::End => {
                        closed.push(file);
                        break;
                    }
                }
            }
        }
        for file in closed {
            self.sockets.remove(&file);
            for class in self.stack.close(file) {
                let _ = self.declare(class);
            }
        }
    }

    /// Receives packets, handles timeouts, sends pending packets and wakes readers.
    fn step(&mut self, now: Instant) {
        self.take_written(now);
        if let Err(error) = self.receive(now).and_then(|()| {
            self.stack.handle_timeout(now);
            self.flush(now)
        }) && !std::mem::replace(&mut self.is_lost, true)
        {
            say(format_args!("the server of the simulated fabric is gone: {error}"));
        }
        self.signal();
    }

    fn receive(&mut self, now: Instant) -> io::Result<()> {
        let Some(ibsim) = &mut self.ibsim else { return Ok(()) };
        loop {
            let got = ibsim.receive(&mut self.received)?;
            for packet in &self.received[..got] {
                self.stack.handle_packet(now, packet);
            }
            if got < self.received.len() {
                return Ok(());
            }
        }
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        let Some(ibsim) = &mut self.ibsim else { return Ok(()) };
        loop {
            while self.unsent.len() < BATCH
                && let Some(packet) = self.stack.poll_transmit(now)
            {
                self.unsent.push(packet);
            }
            if self.unsent.is_empty() {
                return Ok(());
            }
            let sent = ibsim.send(&self.unsent)?;
            self.unsent.drain(..sent);
            if sent == 0 {
                return Ok(());
            }
        }
    }

    /// Makes the eventfd of each port readable if the port has a message to read, and not
    /// otherwise.
    fn signal(&mut self) {
        while let Some((file, is_readable)) = self.stack.poll_readable() {
            if let Some(event) = self.files.get(&file) {
                if is_readable { set(event) } else { clear(event) }
            }
        }
        for (&file, socket) in &mut self.sockets {
            socket.fill(|buffer| self.stack.receive(file, buffer));
        }
    }
}

/// Detaches from the server at process exit: stock ibsim would keep the slot.
extern "C" fn detach() {
    let current = CURRENT.try_lock().ok().and_then(|current| *current);
    let Some(device) = current.filter(|device| device.pid == process_id()) else { return };
    let end = Instant::now() + DETACH_PATIENCE;
    loop {
        match device.inner.try_lock() {
            Ok(mut inner) => return drop(inner.ibsim.take()),
            Err(TryLockError::Poisoned(inner)) => return drop(inner.into_inner().ibsim.take()),
            Err(TryLockError::WouldBlock) if Instant::now() > end => return,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Starts a thread with all signals blocked, so that the program's own threads receive them.
fn spawn_without_signals(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: both sets are written before they are read, and outlive the calls.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let spawned = std::thread::Builder::new().name("umad".to_owned()).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        spawned.map(drop)
    }
}

/// Prints a line on standard error, ignoring errors.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "umad-preload: {what}");
}

fn process_id() -> libc::pid_t {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

fn event_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}

fn set(event: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // Fails only if the counter is full, and then it is not 0, as required. SAFETY: `one` is
    // readable for its length.
    unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

fn clear(event: &OwnedFd) {
    let mut count = [0u8; 8];
    // SAFETY: `count` is writable for its length.
    unsafe { libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

fn errno(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}
