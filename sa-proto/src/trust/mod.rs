//! Mutual TLS between the processes: certificate files (`--tls-ca`, `--tls-cert`, `--tls-key`),
//! roles in certificates, and the client side of a connection. Without TLS, on one host: the roles
//! of its users.
//!
//! Each end presents a certificate signed by a CA that the other trusts. The [`Role`] in a client's
//! certificate determines which requests it may send. The server side is in
//! [`serve`](crate::serve).

mod client;
mod files;
pub mod local;
mod local_server;
mod revocation;
mod sock_diag;
mod words;

use std::io;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;

pub use client::{ClientTrust, Insecure, SmEndpoint, is_loopback};
pub use files::{Credentials, TlsFiles, TrustError, Usage};
pub use local_server::{LocalServer, Program};
pub use words::{reason, reason_of_break, reason_of_status};

/// A random token of 48 bits, not 0, for the envelopes that a UDP socket sends: the other end
/// learns it by gRPC.
pub fn token() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let filled = ring::default_provider().secure_random.fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok((u64::from_ne_bytes(bytes) >> 16).max(1))
}

/// Role of a certificate or a local user: the requests that its holder may send to an SM or a
/// responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Responder: receives snapshots and events, forwards writes and traps, reports statistics.
    Responder,
    /// Admin: sends operators' requests. Such a certificate receives no snapshot and writes
    /// nothing.
    Admin,
    /// Viewer, such as a monitoring system or a scheduler: reads what an admin may read, and
    /// changes nothing.
    Viewer,
    /// Agent on a compute node: follows paths at a responder. An SM grants it nothing.
    Agent,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Responder, Self::Admin, Self::Viewer, Self::Agent];
    /// Those that may do something at an SM.
    pub const OF_SM: [Self; 3] = [Self::Responder, Self::Admin, Self::Viewer];

    /// URI of the role in a certificate's subject alternative names.
    pub const fn uri(self) -> &'static str {
        match self {
            Self::Responder => "urn:ibsm:role:responder",
            Self::Admin => "urn:ibsm:role:admin",
            Self::Viewer => "urn:ibsm:role:viewer",
            Self::Agent => "urn:ibsm:role:agent",
        }
    }

    /// Name for log lines and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Responder => "responder",
            Self::Admin => "admin",
            Self::Viewer => "viewer",
            Self::Agent => "agent",
        }
    }

    /// The role with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The roles in a certificate; none if it cannot be parsed.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Vec<Self> {
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
            return Vec::new();
        };
        let uris: Vec<&str> = certificate.valid_uri_names().collect();
        Self::ALL.into_iter().filter(|role| uris.contains(&role.uri())).collect()
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::testing::Ca;
    use super::*;

    #[test]
    fn a_certificate_gives_the_roles_that_it_names_and_no_others() {
        let ca = Ca::new("test");
        let roles = |uris: &[&str]| Role::of_certificate(ca.issue(&["host"], uris).0.der());
        assert_eq!(roles(&["urn:ibsm:role:responder"]), [Role::Responder]);
        let both = ["urn:ibsm:role:admin", "https://example.org/", "urn:ibsm:role:responder"];
        assert_eq!(roles(&both), [Role::Responder, Role::Admin]);
        assert_eq!(roles(&["urn:ibsm:role:agent"]), [Role::Agent]);
        assert_eq!(roles(&["urn:ibsm:role:administrator"]), []);
        assert_eq!(roles(&[]), []);
        assert_eq!(Role::of_certificate(&CertificateDer::from_slice(b"rubbish")), []);
    }
}
