//! The server side of gRPC connections, of an SM and of a responder: who may connect, how many, and
//! what each may call.
//!
//! - `accept`: accepts connections, and determines who is at the other end: by a certificate, or by
//!   the user of this host who owns the socket.
//! - `gate`: the limits of connections, in all and for each peer.
//! - `caller`: a connection with its caller.
//! - `certified`: open connections of peers with certificates.
//! - `calls`: the limits of calls.
//! - `roles`: checks which role may call which service.
//! - `tls`: the certificates of the server.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this module is a server: sockets, certificate files and clocks"
)]

mod accept;
mod authorities;
mod caller;
mod calls;
mod certified;
mod gate;
mod roles;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Refusals are logged at most once in this time; all are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

pub use accept::{Accepted, Acceptor, accept};
pub use caller::{Caller, Connection, Grounds};
pub use calls::Calls;
pub use gate::Gate;
pub use roles::{Access, Call, Roles};
pub use tls::{Followed, Identity};

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident => $label:literal,)*) => {
        /// Counts connections and calls that were refused.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $doc] pub $name: AtomicU64,)*
        }

        impl Counters {
            /// The name, the description and the value of each.
            pub fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(($label, $doc.trim_ascii(), self.$name.load(Relaxed))),*]
            }
        }
    };
}
counters! {
    /// Connections whose TLS handshake failed
    turned_away => "tls_connections_turned_away",
    /// TLS connections closed because the client's certificate is no longer accepted
    revoked => "tls_connections_revoked",
    /// Connections refused because there were too many, in all or of their host or user
    crowded => "connections_crowded",
    /// Connections closed because the peer sent nothing
    silent => "connections_silent",
    /// Connections from this host refused because their user could not be determined
    unknown => "connections_of_unknown_users",
    /// Calls refused because the caller did not have the role
    calls_refused => "calls_refused",
    /// Calls refused because too many were open, in all or of their host or user
    calls_crowded => "calls_crowded",
}
