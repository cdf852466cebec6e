//! Certificates, and what may be open to other machines without them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use sa_proto::trust::{TlsFiles, TrustError};

/// Where the certificates of a process are.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsOptions {
    /// Certificates of the CAs that must have signed those of peers, in PEM. With --tls-cert and
    /// --tls-key, connections have TLS, and both ends show a certificate.
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CA", global = true, help_heading = "TLS")]
    pub tls_ca: Option<PathBuf>,
    /// Our certificate, in PEM.
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CERT", global = true, help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM.
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_KEY", global = true, help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,
}

impl TlsOptions {
    /// The files, if they were given.
    pub fn files(&self) -> Result<Option<TlsFiles>, TrustError> {
        TlsFiles::of(self.tls_ca.as_deref(), self.tls_cert.as_deref(), self.tls_key.as_deref())
    }
}

/// An address that other machines reach, and nothing that protects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExposureError {
    /// That of the feed.
    #[error(
        "--publish {0} is open to other machines: whoever connects would be sent the subnet's \
         sa_key, could write in clients' names, and be passed their queries. Give --tls-ca, \
         --tls-cert and --tls-key (scripts/make-certs.sh makes them for a test bed), or say \
         --insecure if every machine that can reach it is trusted"
    )]
    Publish(SocketAddr),
    /// That of the front door.
    #[error(
        "--front-door {0} is open to other machines, and its datagrams are not authenticated: \
         whoever can send from a responder's address could answer clients in the SA's name. Say \
         --insecure if every machine that can reach it is trusted"
    )]
    FrontDoor(SocketAddr),
}

/// What may be open to other machines. The value holds warnings about what is.
pub(super) fn check(
    publish: SocketAddr,
    front_door: SocketAddr,
    tls: bool,
    insecure: bool,
) -> Result<Vec<String>, ExposureError> {
    let is_open = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    let mut warnings = Vec::new();
    if is_open(publish) && !tls {
        if !insecure {
            return Err(ExposureError::Publish(publish));
        }
        warnings.push(format!(
            "--publish {publish} is open to other machines, without authentication or encryption: \
             whoever connects is sent the subnet's sa_key in clear, and may register as a \
             responder that clients' queries are passed to; let none but responders reach it"
        ));
    }
    if is_open(front_door) {
        if !insecure {
            return Err(ExposureError::FrontDoor(front_door));
        }
        warnings.push(format!(
            "--front-door {front_door} is open to other machines, without authentication: whoever \
             can send from a responder's address can answer clients in the SA's name; let none \
             but responders reach it"
        ));
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(
        publish: &str,
        front_door: &str,
        tls: bool,
        insecure: bool,
    ) -> Result<Vec<String>, ExposureError> {
        check(publish.parse().unwrap(), front_door.parse().unwrap(), tls, insecure)
    }

    #[test]
    fn what_stays_on_this_machine_needs_nothing() {
        assert_eq!(checked("127.0.0.1:7471", "[::1]:0", false, false), Ok(vec![]));
        assert_eq!(checked("[::ffff:127.0.0.1]:7471", "127.0.0.2:0", false, false), Ok(vec![]));
    }

    #[test]
    fn a_feed_open_to_other_machines_needs_tls_or_that_it_is_meant() {
        let (open, here) = ("0.0.0.0:7471", "127.0.0.1:0");
        let refusal = checked(open, here, false, false).unwrap_err();
        assert!(matches!(refusal, ExposureError::Publish(_)));
        assert!(refusal.to_string().contains("sa_key"));
        assert_eq!(checked(open, here, true, false), Ok(vec![]));
        let warnings = checked(open, here, false, true).unwrap();
        assert!(warnings[0].starts_with("--publish 0.0.0.0:7471") && warnings.len() == 1);
    }

    #[test]
    fn tls_does_not_protect_the_front_door() {
        let (here, open) = ("127.0.0.1:7471", "192.0.2.1:0");
        let refusal = checked(here, open, true, false).unwrap_err();
        assert!(matches!(refusal, ExposureError::FrontDoor(_)));
        let warnings = checked(here, open, true, true).unwrap();
        assert!(warnings[0].starts_with("--front-door 192.0.2.1:0") && warnings.len() == 1);
    }
}
