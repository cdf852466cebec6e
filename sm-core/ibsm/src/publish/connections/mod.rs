//! Connections to the gRPC server: who may connect, how many, and what each may call.
//!
//! - `accept`: accepts connections, and determines who is at the other end: by a certificate, or by
//!   the user of this host who owns the socket.
//! - `gate`: the limits of connections, in all and for each peer.
//! - `caller`: a connection with its caller.
//! - `roles`: which role may call which service.
//! - `tls`: the certificates of this SM.

mod accept;
mod caller;
mod gate;
mod roles;
mod tls;

pub(super) use accept::{Acceptor, accept};
pub(super) use caller::Caller;
pub(super) use gate::Gate;
pub(super) use roles::Roles;
pub(super) use tls::Identity;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Refusals are logged at most once in this time; all are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Limits how often refusals are logged.
#[derive(Debug, Default)]
struct LogLimit(Mutex<Option<Instant>>);

impl LogLimit {
    /// Whether one may be logged now.
    fn permits(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}
