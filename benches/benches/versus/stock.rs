//! Debian's OpenSM, unmodified, with requests passed in at libibumad's interface.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, Sandbox};
use ib_mad::types::Lid;
use umad_feed::book::Book;
use umad_feed::clock;
use umad_feed::order::{Order, Report, SOCKET_VARIABLE};

use crate::books::Host;
use crate::measure::Sa;

/// `opensm` on a fabric.
pub(crate) struct Stock<'a> {
    sandbox: &'a Sandbox,
    pub(crate) program: Program,
    stream: BufReader<UnixStream>,
    log: PathBuf,
    pub(crate) up: Duration,
    books: u32,
}

impl<'a> Stock<'a> {
    /// Starts it on `node` and waits until the subnet is up.
    pub(crate) fn start(sandbox: &'a Sandbox, node: &str, policy: Option<&Path>) -> Self {
        let socket = sandbox.path("feed");
        let listener = UnixListener::bind(&socket).expect("a socket in a scratch directory");
        let log = sandbox.path("opensm.out");
        let (log_argument, policy) = (text(&log), policy.map(text));
        // -d 2: flush the log at every message, since the benchmark waits for SUBNET UP there.
        let mut argv = vec!["opensm", "-f", &log_argument, "-d", "2"];
        if let Some(policy) = &policy {
            argv.extend(["-Q", "-Y", policy]);
        }
        let begin = Instant::now();
        let variables = [(SOCKET_VARIABLE, &*socket)];
        let libraries = ["libumad_feed.so"];
        let program = sandbox.preloaded_program("opensm", node, &libraries, &variables, &argv);
        let stream = BufReader::new(accept(&listener, &program));
        let mut stock = Self { sandbox, program, stream, log, up: Duration::ZERO, books: 0 };
        stock.wait_for_up(1);
        stock.up = begin.elapsed();
        stock
    }

    /// Waits until it has logged for the `nth` time that the subnet is up.
    pub(crate) fn wait_for_up(&self, nth: usize) {
        let deadline = Instant::now() + PATIENCE * 3;
        while !self.has_been_up(nth) {
            assert!(Instant::now() < deadline, "opensm did not log SUBNET UP:\n{}", self.said());
            assert!(self.is_alive(), "opensm has ended:\n{}", self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it has logged this.
    pub(crate) fn has_been_up(&self, nth: usize) -> bool {
        let log = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        text.matches("SUBNET UP").count() >= nth
    }

    fn is_alive(&self) -> bool {
        Path::new(&format!("/proc/{}/exe", self.program.pid())).exists()
    }

    fn said(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        format!("{}\n{}", self.program.log(), String::from_utf8_lossy(&log))
    }

    /// The hosts, with the LIDs that it assigned.
    pub(crate) fn hosts(&self, hosts: &[Host]) -> Vec<Host> {
        let file = self.sandbox.path("guid2lid");
        let text = fs::read_to_string(&file).expect("opensm writes LIDs to a file");
        let entry = |line: &str| {
            let mut words = line.split_whitespace();
            Some((parse_hex(words.next()?)?, u16::try_from(parse_hex(words.next()?)?).ok()?))
        };
        let lids: HashMap<u64, u16> = text.lines().filter_map(entry).collect();
        let host = |host: &Host| {
            let lid = lids.get(&host.gid.guid().0).copied();
            Host { lid: Lid(lid.expect("every host has a LID")), ..*host }
        };
        hosts.iter().map(host).collect()
    }

    /// Starts feeding; [`report`](Self::report) returns the result.
    pub(crate) fn order(&mut self, order: &Order) {
        let line = format!("{order}\n");
        self.stream.get_mut().write_all(line.as_bytes()).expect("opensm accepts orders");
    }

    /// The result of the last order.
    pub(crate) fn report(&mut self) -> Report {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        assert!(read.is_ok_and(|len| len > 0), "opensm has ended:\n{}", self.said());
        line.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes a book to a file that it can read.
    pub(crate) fn file(&mut self, book: &Book) -> PathBuf {
        self.books += 1;
        let path = self.sandbox.path(&format!("book{}", self.books));
        book.write(&path).expect("the scratch directory is writable");
        path
    }

    /// Restricts all its threads to one core, or allows all again.
    fn pin(&self, to_one: bool) {
        for (tid, _) in clock::threads(self.program.pid()) {
            // SAFETY: all-zero is an empty set, the cores are within it, and the call only reads
            // the set. A thread that has ended is harmless.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                let cores = if to_one { 0..1 } else { 0..libc::CPU_SETSIZE as usize };
                cores.for_each(|core| libc::CPU_SET(core, &mut set));
                libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &set);
            }
        }
    }
}

impl Sa for Stock<'_> {
    type Book = PathBuf;

    fn load(&mut self, book: &Book) -> PathBuf {
        self.file(book)
    }

    fn run(&mut self, book: &PathBuf, total: u64, window: u64) -> Report {
        self.order(&Order {
            total,
            window,
            fabric: false,
            pause_ms: 0,
            echo: false,
            book: book.clone(),
        });
        self.report()
    }

    fn echo(&mut self, book: &PathBuf, total: u64, window: u64) -> Report {
        let book = book.clone();
        self.order(&Order { total, window, fabric: false, pause_ms: 0, echo: true, book });
        self.report()
    }

    fn set_cores(&mut self, one: bool) {
        self.pin(one);
    }
}

fn accept(listener: &UnixListener, program: &Program) -> UnixStream {
    listener.set_nonblocking(true).expect("a socket");
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("a socket");
                return stream;
            }
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
        let is_alive = Path::new(&format!("/proc/{}/exe", program.pid())).exists();
        assert!(is_alive && Instant::now() < deadline, "opensm:\n{}", program.log());
    }
}

fn parse_hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}
