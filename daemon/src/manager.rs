//! Notifications to the service manager (sd_notify(3)) and its watchdog (sd_watchdog_enabled(3)).
//!
//! The environment names the address, so nothing is sent by a program that was started otherwise.
//! [Decision 40](../../../docs/decisions/0040-own-code-in-place-of-a-library.md) has the reasons
//! for not using a library.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use ib_mad::transport::local;
use rustix::net::SocketAddrUnix;
use rustix::time::{ClockId, clock_gettime};

/// The service manager that started this process.
#[derive(Clone, Debug)]
pub struct ServiceManager {
    address: SocketAddrUnix,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The service manager that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`,
    /// `WATCHDOG_PID`), if there is one.
    pub fn of_environment() -> Option<Self> {
        let variable = |name| std::env::var(name).ok();
        Self::of_variables(
            std::env::var_os("NOTIFY_SOCKET")?.as_os_str(),
            variable("WATCHDOG_USEC").as_deref(),
            variable("WATCHDOG_PID").as_deref(),
            std::process::id(),
        )
    }

    /// The service manager at `address`, as `NOTIFY_SOCKET` has it: a path, or an abstract name
    /// behind an `@`. The watchdog is for the process `watchdog_pid`, or for any.
    pub fn of_variables(
        address: &OsStr,
        watchdog_us: Option<&str>,
        watchdog_pid: Option<&str>,
        pid: u32,
    ) -> Option<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
            path => SocketAddrUnix::new(path),
        };
        let is_ours = watchdog_pid.is_none_or(|watched| watched.parse() == Ok(pid));
        let watchdog = watchdog_us.and_then(|text| text.parse().ok()).map(Duration::from_micros);
        let watchdog = watchdog.filter(|watchdog| is_ours && !watchdog.is_zero());
        Some(Self { address: address.ok()?, watchdog })
    }

    /// The longest time between two [`alive`](Self::alive), if the service manager watches. It
    /// kills a process that exceeds it.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The process is ready: units that wait for it are started. Ends a
    /// [reload](Self::reloading), too.
    pub fn ready(&self, status: &str) {
        self.notify(&format!("READY=1\nSTATUS={}", in_one_line(status)));
    }

    /// The process reads its configuration again, until it is [ready](Self::ready).
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// The process ends.
    pub fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=stopping");
    }

    /// What the process does, for people.
    pub fn status(&self, status: &str) {
        self.notify(&format!("STATUS={}", in_one_line(status)));
    }

    /// The process is alive.
    pub fn alive(&self) {
        self.notify("WATCHDOG=1");
    }

    /// Sends a message, with a descriptor if there is one.
    pub fn send(&self, message: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        // The service manager may be stopped or overloaded; no main loop waits for it.
        socket.set_nonblocking(true)?;
        local::send_to(&socket, &self.address, message, descriptor)
    }

    fn notify(&self, message: &str) {
        if let Err(error) = self.send(message.as_bytes(), None) {
            let what = message.lines().next().unwrap_or_default();
            tracing::warn!(%error, "cannot notify the service manager of {what}");
        }
    }
}

/// A message has one assignment per line.
fn in_one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// The watchdog, as a main loop feeds it.
#[derive(Debug)]
pub struct Watchdog {
    manager: ServiceManager,
    interval: Duration,
    due: Instant,
}

impl Watchdog {
    /// The watchdog of `manager`, if it watches. It is fed three times in the time that it allows.
    pub fn of(manager: Option<&ServiceManager>, now: Instant) -> Option<Self> {
        let manager = manager?;
        Some(Self { interval: manager.watchdog()? / 3, due: now, manager: manager.clone() })
    }

    /// When it is to be fed next.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Feeds it if that is due. Called in each turn of the loop whose standstill is to be noticed,
    /// and nowhere else.
    pub fn turn(&mut self, now: Instant) {
        if now >= self.due {
            self.due = now + self.interval;
            self.manager.alive();
        }
    }

    /// How often it is fed.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service manager's socket, and the process's view of it.
    fn started(watchdog_us: Option<&str>) -> (tempfile::TempDir, UnixDatagram, ServiceManager) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager = ServiceManager::of_variables(path.as_os_str(), watchdog_us, None, 42);
        (directory, socket, manager.unwrap())
    }

    fn next(socket: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 500];
        let len = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }

    #[test]
    fn each_state_is_a_message() {
        let (_directory, socket, manager) = started(None);
        manager.ready("at port 1\nREADY=0");
        manager.reloading();
        manager.status("standby");
        manager.stopping();
        assert_eq!(next(&socket).unwrap(), "READY=1\nSTATUS=at port 1 READY=0");
        let reloading = next(&socket).unwrap();
        let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.parse::<u64>().unwrap() > 0, "{reloading}");
        assert_eq!(next(&socket).unwrap(), "STATUS=standby");
        assert_eq!(next(&socket).unwrap(), "STOPPING=1\nSTATUS=stopping");
    }

    #[test]
    fn a_service_manager_may_have_an_abstract_address() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("daemon-test-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let variable = format!("@{name}");
        let manager = ServiceManager::of_variables(variable.as_ref(), None, None, 42).unwrap();
        manager.alive();
        assert_eq!(next(&socket).unwrap(), "WATCHDOG=1");
    }

    #[test]
    fn the_watchdog_is_that_of_this_process() {
        let watchdog = |time, pid| {
            ServiceManager::of_variables("/x".as_ref(), time, pid, 42).unwrap().watchdog()
        };
        let minute = Some(Duration::from_secs(60));
        assert_eq!(watchdog(Some("60000000"), Some("42")), minute);
        assert_eq!(watchdog(Some("60000000"), None), minute);
        assert_eq!(watchdog(Some("60000000"), Some("41")), None);
        assert_eq!((watchdog(Some("0"), None), watchdog(Some("x"), None)), (None, None));
        assert_eq!(watchdog(None, None), None);
    }

    #[test]
    fn the_watchdog_is_fed_in_turns_that_are_due() {
        let (_directory, socket, manager) = started(Some("30000000"));
        let start = Instant::now();
        let mut watchdog = Watchdog::of(Some(&manager), start).unwrap();
        let mut fed = |seconds| {
            watchdog.turn(start + Duration::from_secs(seconds));
            next(&socket).is_some()
        };
        assert_eq!([0, 9, 10, 11, 20, 29].map(&mut fed), [true, false, true, false, true, false]);
        assert_eq!(watchdog.due(), start + Duration::from_secs(30));
    }

    #[test]
    fn without_a_service_manager_nothing_is_watched() {
        assert!(Watchdog::of(None, Instant::now()).is_none());
        let (_directory, _socket, manager) = started(None);
        assert!(Watchdog::of(Some(&manager), Instant::now()).is_none());
    }
}
