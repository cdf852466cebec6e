//! Serves the [console](crate::console) on a TCP port, or on standard input and output.
//!
//! One session is open at a time; a second client may end it. On loopback the user at the other end
//! decides what is permitted, as for gRPC; other hosts may only read, unless `--insecure` is given.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use sa_proto::crowd::{Share, host_of};
use sa_proto::log_limit::LogLimit;
use sa_proto::trust::Role;
use sa_proto::trust::local::{LocalRoles, tcp_owner};
use tracing::{info, warn};

use super::perf::write_dump;
use crate::console::{
    Answer, Effect, IN_USE, PROMPT, RESERVED, SaTotals, Session, View, carry_out_perf,
};
use crate::publish::Publisher;

/// Length of a line in bytes, its end included; a longer one is refused.
const LINE_LEN_MAX: usize = 4096;
/// Clients that are asked whether to end the open session: so many operators of this host, and so
/// many others.
const WAITING_MAX: usize = 4;
/// The same of one host.
const WAITING_OF_HOST_MAX: usize = 2;
/// Clients that are given the reason of their refusal at a time.
const REFUSED_MAX: usize = 8;
/// Refusals, and sessions of clients that are not operators, are logged at most once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for that answer, and for a client that reads nothing of what is printed.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may take to read all that a line prints.
const PATIENCE_IN_ALL: Duration = Duration::from_secs(120);
/// How long a client may take to close its end.
const PARTING: Duration = Duration::from_secs(2);
/// How often `status loop` prints.
const LOOP_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Size of the file of log levels that is printed, bytes.
const MODULES_LEN_MAX: u64 = 64 << 10;

/// What sessions read and change.
pub(super) struct Desk {
    pub(super) publisher: Arc<Publisher>,
    /// Where counters are written on request.
    pub(super) counters_file: PathBuf,
    /// Roles of this host's users.
    pub(super) local: LocalRoles,
    /// Whether other hosts may do what this host's operators may.
    pub(super) insecure: bool,
}

impl Desk {
    fn view(&self) -> View {
        let responders = self.publisher.responders().load();
        let sum = |name: &str| {
            let stats = responders.iter().flat_map(|responder| responder.stats.iter());
            stats.filter(|(known, _)| known == name).map(|(_, count)| count).sum()
        };
        let sa = SaTotals {
            received: sum("requests"),
            answered: sum("responses"),
            dropped: sum("dropped"),
        };
        let observatory = self.publisher.observatory();
        View {
            fabric: observatory.fabric_view(),
            perf: self.publisher.perf(),
            sm: observatory.sm(),
            settings: observatory.settings(),
            sa,
        }
    }

    /// Has an effect, unless that is to close the session. Returns what is printed of it.
    fn apply(&self, effect: Effect) -> String {
        match effect {
            Effect::PrintModules(path) => return print_modules(&path),
            Effect::WriteFile(path, text) => {
                return failure_to_write(&path, write_file(&path, &text));
            }
            Effect::Perf(order) => {
                return carry_out_perf(order, Instant::now(), &self.publisher.perf());
            }
            Effect::DumpCounters { machine } => {
                let (path, board) = (&self.counters_file, self.publisher.perf());
                if board.is_on() {
                    return failure_to_write(path, write_dump(&board, path, machine));
                }
            }
            Effect::ClearCounters => {
                self.publisher.perf().clear(Instant::now(), |_| true);
            }
            Effect::ReadCounters => {
                self.publisher.perf().with(|manager| manager.sweep_now(Instant::now()));
            }
            Effect::HeavySweep => self.publisher.order(|orders| orders.sweep = true),
            Effect::LightSweep => self.publisher.order(|orders| orders.light_sweep = true),
            Effect::Reroute => self.publisher.order(|orders| orders.reroute = true),
            Effect::Sweeping(is_on) => {
                self.publisher.order(|orders| orders.sweeping = Some(is_on));
            }
            Effect::Priority(priority) => {
                self.publisher.order(|orders| orders.priority = Some(priority));
            }
            Effect::LogFlags(flags) => {
                self.publisher.order(|orders| orders.log_flags = Some(flags));
            }
            Effect::Close => {}
        }
        String::new()
    }

    /// What a client may do. A user of this host is one also if it connected to an address that
    /// other hosts can reach.
    fn rights(&self, stream: &TcpStream, peer: SocketAddr) -> io::Result<Rights> {
        let Some(user) = tcp_owner(stream.local_addr()?, peer)? else {
            let is_local = peer.ip().to_canonical().is_loopback();
            return Ok(if is_local { Rights::None } else { Rights::OtherHost(self.insecure) });
        };
        // If it has been disconnected meanwhile, another socket may have the address.
        stream.peer_addr()?;
        let roles = self.local.of(user, rustix::process::geteuid().as_raw());
        Ok(match () {
            () if Share::User(user).is_own() => Rights::Owner,
            () if roles.contains(&Role::Admin) => Rights::Operator,
            () if roles.contains(&Role::Viewer) => Rights::Viewer,
            () => Rights::None,
        })
    }
}

/// The file of log levels by module; nothing if there is none.
fn print_modules(path: &Path) -> String {
    let read = || {
        let mut text = Vec::new();
        std::fs::File::open(path)?.take(MODULES_LEN_MAX).read_to_end(&mut text)?;
        io::Result::Ok(String::from_utf8_lossy(&text).into_owned())
    };
    let path = path.display();
    match read() {
        Ok(text) => format!("Per module logging file: {path}\n{text}\n"),
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => format!("fopen({path}) failed: {error}\n"),
    }
}

/// What is printed of a file that was to be written.
fn failure_to_write(path: &Path, written: io::Result<()>) -> String {
    written.err().map_or_else(String::new, |error| {
        format!("Could not open file {}: {error}\n", path.display())
    })
}

/// Writes a file of which the name came from a client: a link is not followed.
fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options.open(path)?.write_all(text.as_bytes())
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// Everything, including to write files: root and the user of this process.
    Owner,
    /// What concerns the subnet: an operator of this host.
    Operator,
    /// Read.
    Viewer,
    /// On another host: read, and what operators may if this is set.
    OtherHost(bool),
    /// Nothing.
    None,
}

impl Rights {
    fn is_operator(self) -> bool {
        self.is_operator_here() || self == Self::OtherHost(true)
    }

    fn is_operator_here(self) -> bool {
        matches!(self, Self::Owner | Self::Operator)
    }
}

/// Clients that are asked whether to end the open session. Those of other hosts and viewers keep no
/// operator of this host out.
#[derive(Debug, Default)]
struct Waiting {
    operators: usize,
    others: Vec<IpAddr>,
}

impl Waiting {
    /// Takes a place; `false` if there is none.
    fn enter(&mut self, rights: Rights, host: IpAddr) -> bool {
        if rights.is_operator_here() {
            self.operators += 1;
            if self.operators > WAITING_MAX {
                self.operators -= 1;
                return false;
            }
            return true;
        }
        let of_host = self.others.iter().filter(|other| **other == host).count();
        let is_free = self.others.len() < WAITING_MAX && of_host < WAITING_OF_HOST_MAX;
        if is_free {
            self.others.push(host);
        }
        is_free
    }

    fn leave(&mut self, rights: Rights, host: IpAddr) {
        if rights.is_operator_here() {
            self.operators -= 1;
        } else if let Some(at) = self.others.iter().position(|other| *other == host) {
            self.others.swap_remove(at);
        }
    }
}

/// The session that is open.
#[derive(Default)]
struct Open {
    number: u64,
    stream: Option<TcpStream>,
    /// Whether it is an operator's, which only operators may end.
    is_operators: bool,
}

impl Open {
    /// Whether a client may open another session, which ends this one.
    fn admits(&self, rights: Rights) -> bool {
        self.stream.is_none() || !self.is_operators || rights.is_operator()
    }
}

struct Served {
    desk: Desk,
    open: Mutex<Open>,
    waiting: Mutex<Waiting>,
    /// Clients that are being refused.
    refused: AtomicUsize,
    log: LogLimit,
}

/// Starts the console of these settings. Returns the address of its port, if it has one.
pub(super) fn start(desk: Desk) -> io::Result<Option<SocketAddr>> {
    let settings = desk.publisher.observatory().settings();
    let port = settings.console_port;
    let address = match settings.console.as_deref() {
        Some("local") => {
            thread::Builder::new().name("console".to_owned()).spawn(move || serve_local(&desk))?;
            return Ok(None);
        }
        Some("loopback") => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        Some("socket") => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        _ => return Ok(None),
    };
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    info!("console at {address}");
    let served = Served {
        desk,
        open: Mutex::default(),
        waiting: Mutex::default(),
        refused: AtomicUsize::new(0),
        log: LogLimit::new("clients of the console", 1, LOG_INTERVAL),
    };
    let served = Arc::new(served);
    thread::Builder::new().name("console".to_owned()).spawn(move || accept(&listener, &served))?;
    Ok(Some(address))
}

fn accept(listener: &TcpListener, served: &Arc<Served>) {
    loop {
        let (mut stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                if served.log.permits() {
                    warn!(%error, "cannot accept connections to the console; retrying");
                }
                thread::sleep(PAUSE);
                continue;
            }
        };
        let rights = match served.desk.rights(&stream, peer) {
            Ok(Rights::None) => {
                if served.log.permits() {
                    warn!(
                        "console: {peer} refused: its user has neither the role admin nor viewer"
                    );
                }
                refuse(
                    served,
                    stream,
                    "permission denied: --local-role gives users of this host a role",
                );
                continue;
            }
            Ok(rights) => rights,
            Err(error) => {
                // A client that left is no news.
                if error.kind() != ErrorKind::NotConnected && served.log.permits() {
                    warn!(%peer, %error, "console: cannot determine the user of a client");
                }
                continue;
            }
        };
        let host = host_of(peer.ip());
        if !served.waiting().enter(rights, host) {
            if served.log.permits() {
                warn!("console: {peer} refused: too many clients wait");
            }
            refuse(served, stream, "too many clients wait for the console");
            continue;
        }
        let entering = served.clone();
        let started = thread::Builder::new().name("console client".to_owned());
        let started = started.spawn(move || {
            // A client that has left is no news.
            let _ = enter(&entering, &mut stream, peer, rights).and_then(|()| part(&mut stream));
        });
        if let Err(error) = started {
            served.waiting().leave(rights, host);
            if served.log.permits() {
                warn!(%error, "cannot serve a client of the console");
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Closes a connection. The client gets the reason, unless too many are being refused.
fn refuse(served: &Arc<Served>, mut stream: TcpStream, reason: &'static str) {
    if served.refused.fetch_add(1, Relaxed) >= REFUSED_MAX {
        served.refused.fetch_sub(1, Relaxed);
        return;
    }
    let counted = served.clone();
    let refusal = move || {
        let _ = writeln!(stream, "{reason}").and_then(|()| part(&mut stream));
        counted.refused.fetch_sub(1, Relaxed);
    };
    if thread::Builder::new().name("console refusal".to_owned()).spawn(refusal).is_err() {
        served.refused.fetch_sub(1, Relaxed);
    }
}

/// Opens a session, after the other one has been ended if there is one.
fn enter(
    served: &Served,
    stream: &mut TcpStream,
    peer: SocketAddr,
    rights: Rights,
) -> io::Result<()> {
    let entered = ask(served, stream, rights);
    served.waiting().leave(rights, host_of(peer.ip()));
    let Some(number) = entered? else { return Ok(()) };
    // Other hosts, and viewers, can open thousands a second.
    let is_logged = rights.is_operator() || served.log.permits();
    if is_logged {
        info!("console: session of {peer} opened");
    }
    let result = converse(served, stream, rights);
    if is_logged {
        info!("console: session of {peer} closed");
    }
    let mut open = served.open();
    if open.number == number {
        open.stream = None;
    }
    result
}

/// Ends the connection so that the client gets all that was sent: with lines of it unread, closing
/// would reset the connection.
fn part(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(PARTING))?;
    let begun = Instant::now();
    while begun.elapsed() < PARTING && stream.read(&mut [0; 1024])? > 0 {}
    Ok(())
}

/// The number of a new session; `None` if the client does not end the other one, or may not.
fn ask(served: &Served, stream: &mut TcpStream, rights: Rights) -> io::Result<Option<u64>> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (is_taken, may_enter) = {
        let open = served.open();
        (open.stream.is_some(), open.admits(rights))
    };
    if !may_enter {
        stream.write_all(RESERVED.as_bytes())?;
        return Ok(None);
    }
    if is_taken {
        stream.write_all(IN_USE.as_bytes())?;
        let line = read_within(stream, PATIENCE)?;
        if !line.starts_with(b"y") && !line.starts_with(b"Y") {
            return Ok(None);
        }
    }
    let mut open = served.open();
    if !open.admits(rights) {
        drop(open);
        stream.write_all(RESERVED.as_bytes())?;
        return Ok(None);
    }
    if let Some(other) = open.stream.take() {
        let _ = other.shutdown(Shutdown::Both);
    }
    open.number += 1;
    open.is_operators = rights.is_operator();
    open.stream = Some(stream.try_clone()?);
    Ok(Some(open.number))
}

impl Served {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers lines until the client leaves.
fn converse(served: &Served, stream: &mut TcpStream, rights: Rights) -> io::Result<()> {
    let mut lines = Lines::new(stream.try_clone()?);
    let mut session = Session::default();
    stream.set_nodelay(true)?;
    stream.write_all(PROMPT.as_bytes())?;
    loop {
        stream.set_read_timeout(session.is_looping().then_some(LOOP_INTERVAL))?;
        let line = match lines.next() {
            Ok(Line::Text(line)) => line,
            Ok(Line::TooLong) => {
                write(stream, &too_long())?;
                continue;
            }
            Ok(Line::End) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                write(stream, &session.repeat(&served.desk.view()))?;
                continue;
            }
            Err(error) => return Err(error),
        };
        if is_http(&line) {
            if served.log.permits() {
                warn!("console: an HTTP request, perhaps of a web page, was refused");
            }
            return Ok(());
        }
        let Some(text) = answer(&served.desk, &mut session, &line, rights) else {
            return Ok(());
        };
        write(stream, &text)?;
    }
}

/// Sends what a line prints.
fn write(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    write_within(stream, text.as_bytes(), PATIENCE, PATIENCE_IN_ALL)
}

/// Sends all of `bytes`; fails if the client reads nothing for `stall`, or not all within `in_all`.
fn write_within(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    stall: Duration,
    in_all: Duration,
) -> io::Result<()> {
    let end = Instant::now() + in_all;
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(stall.min(left_until(end)?)))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a line without its end, or its beginning if it is too long; nothing beyond it. Fails if it
/// does not come within `limit`.
fn read_within(stream: &mut TcpStream, limit: Duration) -> io::Result<Vec<u8>> {
    let end = Instant::now() + limit;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < LINE_LEN_MAX {
        stream.set_read_timeout(Some(left_until(end)?))?;
        match stream.read(&mut byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

/// The time until `end`; an error if there is none.
fn left_until(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Whether a line is one of an HTTP request. A web page can have a browser send one to any port of
/// its host, with words of the console as the body.
fn is_http(line: &str) -> bool {
    let line = line.trim_end().to_ascii_lowercase();
    let is_request = |version: &str| line.strip_suffix(version).is_some_and(|it| it.contains(' '));
    [" http/1.0", " http/1.1"].into_iter().any(is_request) || line.starts_with("host:")
}

/// What is printed after a line, with the prompt; `None` if the session ends.
fn answer(desk: &Desk, session: &mut Session, line: &str, rights: Rights) -> Option<String> {
    let answer = session.handle_line(line, &desk.view());
    let mut text = match (refusal(&answer, rights), answer.effect) {
        (Some(reason), _) => format!("permission denied: {reason}\n"),
        (None, Some(Effect::Close)) => return None,
        (None, Some(effect)) => answer.text + &desk.apply(effect),
        (None, None) => answer.text,
    };
    if !session.is_looping() {
        text += PROMPT;
    }
    Some(text)
}

/// Why a client with these rights may not have an answer; `None` if it may.
fn refusal(answer: &Answer, rights: Rights) -> Option<&'static str> {
    if answer.is_operators() && !rights.is_operator() {
        return Some("this needs the role admin");
    }
    // A file of that name is overwritten, with all rights of this process.
    let writes = matches!(answer.effect, Some(Effect::WriteFile(..)));
    (writes && rights != Rights::Owner).then_some("only root and the user of ibsm write files")
}

/// What a stream of lines has next.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// A line with its end.
    Text(String),
    /// A line that was longer than permitted, and was skipped.
    TooLong,
    /// The end; a line without an end is none.
    End,
}

/// What is printed after a line that is too long.
fn too_long() -> String {
    format!("Line too long: at most {LINE_LEN_MAX} bytes\n{PROMPT}")
}

/// Lines of a stream. A time-out of reading keeps what was read of a line.
struct Lines<R> {
    stream: BufReader<R>,
    line: Vec<u8>,
    /// The present line is too long: the rest of it is skipped.
    is_skipping: bool,
}

impl<R: Read> Lines<R> {
    fn new(stream: R) -> Self {
        Self { stream: BufReader::new(stream), line: Vec::new(), is_skipping: false }
    }

    /// The next line.
    fn next(&mut self) -> io::Result<Line> {
        loop {
            let room = LINE_LEN_MAX.saturating_sub(self.line.len()) as u64;
            (&mut self.stream).take(room).read_until(b'\n', &mut self.line)?;
            let has_ended = self.line.ends_with(b"\n");
            if !has_ended && self.line.len() < LINE_LEN_MAX {
                return Ok(Line::End);
            }
            let line = std::mem::take(&mut self.line);
            if !has_ended {
                self.is_skipping = true;
                continue;
            }
            if std::mem::take(&mut self.is_skipping) {
                return Ok(Line::TooLong);
            }
            // Answers repeat words, and a terminal would obey control characters in them.
            let is_control = |letter: char| letter.is_control() && !letter.is_ascii_whitespace();
            return Ok(Line::Text(String::from_utf8_lossy(&line).replace(is_control, "\u{FFFD}")));
        }
    }
}

/// The console of the terminal that the program was started from. Its user is an operator.
fn serve_local(desk: &Desk) {
    let mut session = Session::default();
    let (mut lines, mut output) = (Lines::new(io::stdin().lock()), io::stdout());
    let mut text = PROMPT.to_owned();
    loop {
        let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
        if written.is_err() {
            return;
        }
        text = match lines.next() {
            // OpenSM's does not end, either.
            Ok(Line::Text(line)) => answer(desk, &mut session, &line, Rights::Owner)
                .unwrap_or_else(|| PROMPT.to_owned()),
            Ok(Line::TooLong) => too_long(),
            Ok(Line::End) | Err(_) => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::RecvTimeoutError;

    /// Regression: viewers, and all other hosts, ended the session of an operator.
    #[test]
    fn only_operators_end_an_operators_session() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut open = Open::default();
        let admitted = |open: &Open| {
            [Rights::Viewer, Rights::OtherHost(false), Rights::OtherHost(true), Rights::Operator]
                .map(|rights| open.admits(rights))
        };
        assert_eq!(admitted(&open), [true; 4]);
        open.stream = Some(stream);
        assert_eq!(admitted(&open), [true; 4], "a viewer's");
        open.is_operators = true;
        assert_eq!(admitted(&open), [false, false, true, true]);
        open.stream = None;
        assert_eq!(admitted(&open), [true; 4]);
    }

    /// Regression: a user with the role admin had any file overwritten as the user of ibsm.
    #[test]
    fn only_root_and_our_own_user_write_files() {
        let may = |effect: Effect| {
            let mut answer = Answer::default();
            answer.effect = Some(effect);
            let all = [Rights::Viewer, Rights::Operator, Rights::OtherHost(true), Rights::Owner];
            all.map(|rights| refusal(&answer, rights).is_none())
        };
        let write = Effect::WriteFile("/etc/passwd".into(), String::new());
        assert_eq!(may(write), [false, false, false, true]);
        assert_eq!(may(Effect::HeavySweep), [false, true, true, true]);
        assert_eq!(may(Effect::Close), [true; 4]);
    }

    /// Regression: a line of 100,000 characters ended the session; at the terminal its pieces were
    /// commands.
    #[test]
    fn a_line_that_is_too_long_is_skipped_as_a_whole() {
        let long = format!("{}\n", "sweep off ".repeat(10_000));
        let fits = format!("{}\n", "x".repeat(LINE_LEN_MAX - 1));
        let exceeds = format!("{}\n", "x".repeat(LINE_LEN_MAX));
        let text = format!("status\n{long}{fits}{exceeds}\nquit\nno end");
        let mut lines = Lines::new(text.as_bytes());
        let mut next = || lines.next().unwrap();
        assert_eq!(next(), Line::Text("status\n".to_owned()));
        assert_eq!(next(), Line::TooLong);
        assert_eq!(next(), Line::Text(fits));
        assert_eq!(next(), Line::TooLong);
        assert_eq!(next(), Line::Text("\n".to_owned()));
        assert_eq!(next(), Line::Text("quit\n".to_owned()));
        assert_eq!(next(), Line::End);
        assert!(lines.line.capacity() <= 2 * LINE_LEN_MAX, "{}", lines.line.capacity());
    }

    /// The two ends of a connection.
    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    const NEVER: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(300);

    /// Regression: a client that read a byte now and then kept the session, with all that was to be
    /// printed, for as long as it liked.
    #[test]
    fn what_is_printed_must_be_read_in_time() {
        let text = vec![b'x'; 64 << 20];
        let (_silent, mut stream) = connected();
        assert!(write_within(&mut stream, &text, SHORT, NEVER).is_err(), "it reads nothing");
        let (mut slow, mut stream) = connected();
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let writing = thread::spawn(move || {
            let written = write_within(&mut stream, &text, NEVER, SHORT);
            drop(ended);
            written
        });
        while end.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
            slow.read_exact(&mut [0; 64]).unwrap();
        }
        assert!(writing.join().unwrap().is_err(), "it reads too slowly");
        let (mut client, mut stream) = connected();
        let reading = thread::spawn(move || client.read_to_end(&mut Vec::new()).unwrap());
        write_within(&mut stream, &[0; 1 << 20], NEVER, NEVER).unwrap();
        drop(stream);
        assert_eq!(reading.join().unwrap(), 1 << 20);
    }

    /// Regression: a client that sent a byte now and then kept its place among those that wait.
    #[test]
    fn an_answer_must_come_in_time() {
        let (mut client, mut stream) = connected();
        client.write_all(b"yes\nstatus\n").unwrap();
        assert_eq!(read_within(&mut stream, NEVER).unwrap(), b"yes");
        assert_eq!(read_within(&mut stream, NEVER).unwrap(), b"status", "nothing is lost");
        let reading = thread::spawn(move || read_within(&mut stream, SHORT));
        let begun = Instant::now();
        while !reading.is_finished() {
            // Once the other end is closed this fails.
            let _ = client.write_all(b"y");
            thread::sleep(SHORT / 20);
            assert!(begun.elapsed() < SHORT * 100, "it keeps its place");
        }
        assert!(reading.join().unwrap().is_err());
    }

    /// Regression: answers had the control characters of words.
    #[test]
    fn control_characters_are_no_part_of_words() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"priority\t\x1b]0;x\x07 9\r\n").unwrap();
        let mut lines = Lines::new(listener.accept().unwrap().0);
        let line = "priority\t\u{FFFD}]0;x\u{FFFD} 9\r\n".to_owned();
        assert_eq!(lines.next().unwrap(), Line::Text(line));
    }

    /// Regression: the body of a request was read as words.
    #[test]
    fn http_is_recognized() {
        for line in ["POST / HTTP/1.1\r\n", "GET /x http/1.0\n", "Host: sm1\r\n"] {
            assert!(is_http(line), "{line}");
        }
        for line in ["priority 9\n", "help priority\n", " HTTP/1.1\n", "\n"] {
            assert!(!is_http(line), "{line}");
        }
    }

    /// Regression: four silent clients of another user kept operators out.
    #[test]
    fn clients_that_wait_keep_no_operator_out() {
        let host = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut waiting = Waiting::default();
        let other = Rights::OtherHost(false);
        let entered = (0..9).filter(|_| waiting.enter(other, host(1))).count();
        assert_eq!(entered, WAITING_OF_HOST_MAX, "of one host");
        assert!(waiting.enter(Rights::Viewer, host(2)) && waiting.enter(other, host(3)));
        assert!(!waiting.enter(other, host(4)), "of all");
        assert!(waiting.enter(Rights::Operator, host(1)));
        waiting.leave(other, host(3));
        assert!(waiting.enter(other, host(4)));
        waiting.leave(Rights::Operator, host(1));
        assert_eq!((waiting.operators, waiting.others.len()), (0, WAITING_MAX));
    }
}
