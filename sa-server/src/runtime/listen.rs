//! The front door's sockets.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use ib_mad::transport::udp::{Engine, Udp, UdpOptions};

use super::StartError;
use crate::host::options::Options;

/// How long to retry while the address is in use: after a process was killed, the kernel releases
/// the socket of an io_uring late.
const LISTEN_PATIENCE: Duration = Duration::from_secs(3);
/// How often it is tried meanwhile.
const LISTEN_RETRY: Duration = Duration::from_millis(10);

/// The sockets of the front door, one a worker, all at one address and with this token.
pub(super) fn listen(options: &Options, token: u64) -> Result<Vec<Udp>, StartError> {
    let bind = |listen: SocketAddr| {
        let share_port = options.workers > 1;
        let engine = Engine::from(options.io);
        let options = UdpOptions { share_port, engine, token, ..UdpOptions::new(listen) };
        let due = Instant::now() + LISTEN_PATIENCE;
        loop {
            match Udp::bind(&options) {
                Err(source)
                    if source.kind() == io::ErrorKind::AddrInUse && Instant::now() < due =>
                {
                    thread::sleep(LISTEN_RETRY);
                }
                bound => {
                    return bound.map_err(|source| StartError::Listen { address: listen, source });
                }
            }
        }
    };
    let mut sockets = vec![bind(options.listen)?];
    if let Some(reason) = sockets[0].second_choice() {
        tracing::info!(%reason, "io_uring is not available; using recvmmsg and sendmmsg");
    }
    let address = sockets[0].local_addr()?;
    for _ in 1..options.workers {
        sockets.push(bind(address)?);
    }
    Ok(sockets)
}
