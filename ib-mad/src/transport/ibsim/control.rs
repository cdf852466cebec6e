//! The client's control socket: one request and one response at a time, with a time limit.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use super::IbsimError;
use super::protocol::{
    CONTROL_DATA_LEN, CONTROL_LEN, Control, ControlKind, PACKET_LEN, socket_name,
};
use crate::transport::wait::{Interest, wait};

/// How many numbers are tried for the client's socket names.
const NUMBER_ATTEMPTS: usize = 32;

/// A client's pair of sockets; only the control socket is used here.
pub(super) struct Sockets {
    pub(super) data: UnixDatagram,
    control: UnixDatagram,
    base: String,
    /// The number in both names.
    pub(super) number: u32,
    timeout: Duration,
}

impl Sockets {
    /// Binds a pair of unused names and connects to the server.
    pub(super) fn open(base: &str, timeout: Duration) -> Result<Self, IbsimError> {
        for _ in 0..NUMBER_ATTEMPTS {
            let number = random_number();
            let Some(control) = bind(base, &format!("ctl{number}"))? else { continue };
            let Some(data) = bind(base, &format!("in{number}"))? else { continue };
            data.set_nonblocking(true)?;
            control.set_write_timeout(Some(timeout))?;
            control.connect_addr(&address(base, "ctl")?).map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => no_server(base),
                _ => error.into(),
            })?;
            return Ok(Self { data, control, base: base.to_owned(), number, timeout });
        }
        Err(io::Error::from(io::ErrorKind::AddrInUse).into())
    }

    /// Connects the data socket to the server's socket of `slot`.
    pub(super) fn connect_data(&self, slot: u32) -> Result<(), IbsimError> {
        Ok(self.data.connect_addr(&address(&self.base, &format!("out{slot}"))?)?)
    }

    /// Whether the socket names with `number` are unused.
    pub(super) fn is_abandoned(&self, number: u32) -> bool {
        matches!(bind(&self.base, &format!("in{number}")), Ok(Some(_)))
    }

    /// Sends a request and waits for the response; `None` if the server refused. `drain` is called
    /// whenever a packet waits at the data socket: ibsim blocks while it cannot deliver one.
    pub(super) fn request(
        &self,
        client: u32,
        kind: ControlKind,
        data: [u8; CONTROL_DATA_LEN],
        mut drain: impl FnMut(),
    ) -> Result<Option<[u8; CONTROL_DATA_LEN]>, IbsimError> {
        let deadline = Instant::now() + self.timeout;
        self.send(client, kind, data)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(IbsimError::NoAnswer { socket: self.base.clone() });
            }
            let mut interests =
                [Interest::read(self.control.as_fd()), Interest::read(self.data.as_fd())];
            wait(&mut interests, Some(left))?;
            let [control, data] = interests.map(|interest| interest.is_readable());
            if data {
                drain();
            }
            if control && let Some(answer) = self.receive()? {
                // Skip responses to earlier requests that timed out.
                if answer.kind == ControlKind::ERROR {
                    return Ok(None);
                }
                if answer.kind == kind {
                    return Ok(Some(answer.data));
                }
            }
        }
    }

    /// Sends a request without waiting for the response.
    pub(super) fn send(
        &self,
        client: u32,
        kind: ControlKind,
        data: [u8; CONTROL_DATA_LEN],
    ) -> Result<(), IbsimError> {
        match self.control.send(&Control { client, kind, data }.to_bytes()) {
            Ok(_) => Ok(()),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected => {
                    no_server(&self.base)
                }
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    IbsimError::NoAnswer { socket: self.base.clone() }
                }
                _ => error.into(),
            }),
        }
    }

    fn receive(&self) -> Result<Option<Control>, IbsimError> {
        let mut bytes = [0; CONTROL_LEN + 1];
        let len = self.control.recv(&mut bytes)?;
        Ok(Control::from_bytes(&bytes[..len]))
    }

    /// Discards packets at the data socket.
    pub(super) fn discard_data(&self) {
        let mut packet = [0; PACKET_LEN];
        while self.data.recv(&mut packet).is_ok() {}
    }
}

fn no_server(base: &str) -> IbsimError {
    IbsimError::NoServer { socket: base.to_owned() }
}

fn address(base: &str, suffix: &str) -> Result<SocketAddr, IbsimError> {
    SocketAddr::from_abstract_name(socket_name(base, suffix))
        .map_err(|_| IbsimError::SocketName { socket: base.to_owned() })
}

/// Binds a socket to this name; `None` if the name is in use.
fn bind(base: &str, suffix: &str) -> Result<Option<UnixDatagram>, IbsimError> {
    match UnixDatagram::bind_addr(&address(base, suffix)?) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A random number from 1 to 2^31 - 1: ibsim stores it in an `int`, and 0 means a free slot.
fn random_number() -> u32 {
    // The standard library seeds its hashers randomly.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (random as u32 & 0x7FFF_FFFF).max(1)
}
