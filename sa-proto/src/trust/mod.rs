//! Trust between the processes: the certificates of one (`--tls-ca`, `--tls-cert`, `--tls-key`), the
//! roles that they give, and what a client needs to connect by them.
//!
//! Both ends of a connection show a certificate that the CA of the other has signed. What a client
//! may ask follows from the [`Role`] in its certificate. Serving is not here.

mod client;
mod files;
mod words;

use tokio_rustls::rustls::pki_types::CertificateDer;

pub use client::{ClientTrust, Insecure, is_loopback};
pub use files::{Credentials, TlsFiles, TrustError, Usage};
pub use words::{reason, reason_of_break, reason_of_status};

/// What the holder of a certificate may ask an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read snapshots, pass on writes and traps, hear of events, report statistics.
    Responder,
    /// Ask what operators ask. Such a certificate reads no snapshot and writes nothing.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 2] = [Self::Responder, Self::Admin];

    /// The URI that gives the role, among a certificate's subject alternative names.
    pub const fn uri(self) -> &'static str {
        match self {
            Self::Responder => "urn:ibsm:role:responder",
            Self::Admin => "urn:ibsm:role:admin",
        }
    }

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Responder => "responder",
            Self::Admin => "admin",
        }
    }

    /// The roles that a certificate gives; none if it cannot be read.
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
        assert_eq!(roles(&both), Role::ALL);
        assert_eq!(roles(&["urn:ibsm:role:administrator"]), []);
        assert_eq!(roles(&[]), []);
        assert_eq!(Role::of_certificate(&CertificateDer::from_slice(b"rubbish")), []);
    }
}
