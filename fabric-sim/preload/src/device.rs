//! The device of this process: one client of the server, shared by all ports that the process
//! opens, and a thread that serves it while the program does something else, as a kernel would.
//!
//! Everything happens under one lock: a program's threads hold it for a copy of a message, the
//! thread of the device for a batch of packets, and whoever asks the server something until it has
//! answered.

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
use crate::socket::{self, Read, Socket};
use crate::stack::{FileId, Registration, Stack};
use crate::umad::{Errno, Header};

/// Packets that one step moves.
const BATCH: usize = 64;
/// How long the end of the process waits for the device to be free.
const DETACH_PATIENCE: Duration = Duration::from_millis(500);

/// A client of the server with everything that is open on it.
pub(crate) struct Device {
    pid: libc::pid_t,
    inner: Mutex<Inner>,
    /// Wakes the thread of the device.
    wake: OwnedFd,
    /// The client's data socket once more, to wait for it without the lock.
    data: OwnedFd,
    issm: Issm,
}

struct Inner {
    /// `None` once detached.
    ibsim: Option<Ibsim>,
    stack: Stack,
    /// Open ports by their descriptors: counters that are not 0 while something can be read.
    files: BTreeMap<FileId, OwnedFd>,
    /// Ports that are open by the kernel's own interface, by our ends of their sockets.
    sockets: BTreeMap<FileId, Socket>,
    received: Box<[Packet]>,
    /// Packets that the socket did not take.
    unsent: Vec<Packet>,
    /// When the thread of the device wakes by itself.
    planned: Option<Instant>,
    is_lost: bool,
}

/// The device of the process. A child after fork(2) attaches anew: the parent's thread is not
/// there, and its slot is the parent's.
static CURRENT: Mutex<Option<&'static Device>> = Mutex::new(None);

impl Device {
    /// The device, attached if it was not yet. Says why if it cannot be.
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

    fn attach() -> Result<&'static Self, IbsimError> {
        let mut ibsim = Ibsim::connect(&IbsimOptions::default())?;
        let info = Info::read(&mut ibsim)?;
        let mut stack = Stack::new(ibsim.client_id().number);
        stack.set_port(&info.pkeys, info.gid());
        let data = ibsim.descriptor().map(|data| data.try_clone_to_owned());
        let device = Self {
            pid: process_id(),
            wake: event_descriptor()?,
            data: data.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))?,
            issm: Issm::new()?,
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
        };
        // One a process, as long as the process.
        let device: &'static Self = Box::leak(Box::new(device));
        spawn_without_signals(|| device.run())?;
        // SAFETY: `detach` is a function of this library, which is never unloaded.
        unsafe { libc::atexit(detach) };
        Ok(device)
    }

    /// What the server says about node and port.
    pub(crate) fn info(&self) -> Result<Info, Errno> {
        self.with(|inner| {
            let info = inner.ask(Info::read)?;
            inner.stack.set_port(&info.pkeys, info.gid());
            Ok(info)
        })
    }

    /// Path of the file that makes its opener a subnet manager.
    pub(crate) fn issm_path(&self) -> String {
        self.issm.path()
    }

    /// Opens the port; yields a descriptor that can be read when a message waits.
    pub(crate) fn open(&self) -> Result<FileId, Errno> {
        self.with(|inner| {
            let event = event_descriptor().map_err(|error| errno(&error))?;
            let file = event.as_raw_fd();
            inner.files.insert(file, event);
            inner.stack.open(file);
            Ok(file)
        })
    }

    /// Closes what `open` yielded.
    pub(crate) fn close(&self, file: FileId) -> Result<(), Errno> {
        self.with(|inner| {
            inner.files.remove(&file).ok_or(Errno(libc::EBADF))?;
            for class in inner.stack.close(file) {
                inner.declare(class)?;
            }
            Ok(())
        })
    }

    /// Opens the port as a file that messages are read from and written to: one end of a socket.
    pub(crate) fn open_socket(&self) -> Result<RawFd, Errno> {
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

    /// Registers an agent of a program's end of a socket; yields its id.
    pub(crate) fn register_socket(
        &self,
        theirs: RawFd,
        registration: Registration,
    ) -> Result<u32, Errno> {
        let inode = socket::inode(theirs).map_err(|error| errno(&error))?;
        let found = {
            let inner = self.lock();
            inner.sockets.values().find(|socket| socket.is_of(inode)).map(Socket::id)
        };
        self.register(found.ok_or(Errno(libc::ENOTTY))?, registration)
    }

    /// Registers an agent; yields its id.
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

    /// Takes an agent away.
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

    /// Does something, and then what follows from it.
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

    /// The thread of the device.
    fn run(&self) {
        loop {
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
                inner.planned = inner.stack.poll_timeout();
                let timeout = inner.planned.map(|due| due.saturating_duration_since(now));
                (timeout, !inner.unsent.is_empty(), inner.socket_descriptors())
            };
            let mut interests = vec![
                Interest::read_or_write(self.data.as_fd(), is_full),
                Interest::read(self.wake.as_fd()),
                Interest::read(self.issm.descriptor()),
            ];
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
    /// A question to the server.
    fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut Ibsim) -> Result<T, IbsimError>,
    ) -> Result<T, Errno> {
        let ibsim = self.ibsim.as_mut().ok_or(Errno(libc::ENODEV))?;
        ask(ibsim).map_err(|error| match error {
            // As the kernel has it of a method that is taken.
            IbsimError::Taken { .. } => Errno(libc::EINVAL),
            other => {
                say(format_args!("{other}"));
                Errno(libc::EIO)
            }
        })
    }

    /// Tells the server what requests of a class are wanted here. Stock ibsim knows no such thing:
    /// there, whoever has the file of `issm` open gets all.
    fn declare(&mut self, class: MgmtClass) -> Result<(), Errno> {
        let methods = self.stack.methods(class);
        self.ask(|ibsim| ibsim.declare_methods(class, methods)).map(|_known| ())
    }

    /// Our ends of the sockets, and whether they are to be waited for to have room.
    fn socket_descriptors(&self) -> Vec<(OwnedFd, bool)> {
        let sockets = self.sockets.values();
        let copies = sockets.filter_map(|socket| Some((socket.descriptor()?, socket.is_full())));
        copies.collect()
    }

    /// Takes what programs have written to sockets, and forgets those that they have closed.
    fn take_written(&mut self, now: Instant) {
        let mut closed = Vec::new();
        for (&file, socket) in &mut self.sockets {
            loop {
                match socket.read() {
                    // What is wrong with a message, only a write of the kernel's tells.
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

    /// Takes what has arrived, does what is due, sends what is to be sent and tells the readers.
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

    /// Makes descriptors readable that have something to read, and the others not.
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

/// Leaves the server when the process ends: stock ibsim would keep the slot.
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

/// Starts a thread that leaves signals to those of the program.
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

/// Tells whoever runs the program. Nobody may read it.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "umad-preload: {what}");
}

fn process_id() -> libc::pid_t {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

fn event_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}

fn set(event: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // A counter that is full is not 0, which is all that matters.
    // SAFETY: `one` is readable for its length.
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
