//! The client side of a connection to an SM.

use std::net::IpAddr;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};

use super::files::{TlsFiles, TrustError, Usage};
use super::local::UserId;
use super::local_server::{LocalServer, Program};

/// Whether connections to other hosts may be without TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Insecure {
    /// TLS is required.
    #[default]
    Refused,
    /// Allowed by the operator (`--insecure`).
    Allowed,
}

/// How a client authenticates SMs and itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTrust {
    /// Our certificates, for `https://`.
    pub files: Option<TlsFiles>,
    /// Whether `http://` may be used for another host, and for programs of any user of this one.
    pub insecure: Insecure,
    /// The program that is expected.
    pub program: Program,
    /// The user of this host that it runs as, besides root and our own.
    pub sm_user: Option<UserId>,
}

/// Where an SM is, and which program is accepted there.
#[derive(Clone, Debug)]
pub struct SmEndpoint {
    endpoint: Endpoint,
    /// Set for `http://` on this host.
    local: Option<LocalServer>,
}

impl SmEndpoint {
    /// The same with other settings of connections.
    #[must_use]
    pub fn configure(self, set: impl FnOnce(Endpoint) -> Endpoint) -> Self {
        Self { endpoint: set(self.endpoint), ..self }
    }

    /// Connects. Fails if a program of another user of this host is there.
    pub async fn connect(&self) -> Result<Channel, Error> {
        match &self.local {
            Some(local) => self.endpoint.connect_with_connector(local.clone()).await,
            None => self.endpoint.connect().await,
        }
    }
}

impl ClientTrust {
    /// Creates it from a client's options.
    pub fn new(files: Option<TlsFiles>, insecure: bool) -> Self {
        let insecure = if insecure { Insecure::Allowed } else { Insecure::Refused };
        Self { files, insecure, ..Self::default() }
    }

    /// The same for another program than an SM.
    #[must_use]
    pub fn of(self, program: Program) -> Self {
        Self { program, ..self }
    }

    /// The same with an SM that runs as this user, if one is given.
    #[must_use]
    pub fn with_sm_user(self, sm_user: Option<UserId>) -> Self {
        Self { sm_user, ..self }
    }

    /// The endpoint of the SM at `url`, `http://HOST:PORT` or `https://HOST:PORT`. Certificate
    /// files are read at each call: an endpoint created for every connection attempt uses renewed
    /// certificates.
    pub fn endpoint(&self, url: &str) -> Result<SmEndpoint, TrustError> {
        let not_a_url = || TrustError::Url(url.to_owned());
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| not_a_url())?;
        let uri = endpoint.uri();
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(not_a_url)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        match uri.scheme_str() {
            Some("https") => {
                let files = self.files.as_ref().ok_or_else(|| TrustError::NoFiles(url.into()))?;
                let [ca, cert, key] = files.read(Usage::Client)?.pem;
                let tls = ClientTlsConfig::new()
                    .ca_certificate(Certificate::from_pem(ca))
                    .identity(Identity::from_pem(cert, key))
                    .domain_name(host);
                let endpoint = endpoint.tls_config(tls);
                let endpoint = endpoint.map_err(|error| TrustError::Tls(super::reason(&error)))?;
                Ok(SmEndpoint { endpoint, local: None })
            }
            Some("http") if self.files.is_some() => Err(TrustError::NotUsed(url.to_owned())),
            Some("http") if self.insecure == Insecure::Allowed => {
                Ok(SmEndpoint { endpoint, local: None })
            }
            Some("http") if is_loopback(&host) => {
                let local = LocalServer::new(self.program, self.sm_user);
                Ok(SmEndpoint { endpoint, local: Some(local) })
            }
            Some("http") => Err(TrustError::Insecure(url.to_owned())),
            _ => Err(not_a_url()),
        }
    }
}

/// Whether a host name or address is the loopback of this host.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::super::testing::Ca;
    use super::*;

    fn refusal(trust: &ClientTrust, url: &str) -> TrustError {
        trust.endpoint(url).unwrap_err()
    }

    #[test]
    fn without_tls_only_loopback_is_allowed_unless_insecure_is_given() {
        let trust = ClientTrust::default();
        for url in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"] {
            assert!(trust.endpoint(url).is_ok(), "{url}");
        }
        for url in ["http://192.0.2.1:1", "http://sm1:1", "http://[2001:db8::1]:1"] {
            assert!(matches!(refusal(&trust, url), TrustError::Insecure(of) if of == url));
            assert!(ClientTrust::new(None, true).endpoint(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn https_needs_certificates_and_certificates_need_https() {
        let trust = ClientTrust::default();
        let url = "https://sm1:1";
        assert!(matches!(refusal(&trust, url), TrustError::NoFiles(of) if of == url));
        let directory = tempfile::tempdir().unwrap();
        let files = Ca::new("test").write(directory.path(), "a", &[], &[]);
        let trust = ClientTrust::new(Some(files), false);
        assert!(trust.endpoint(url).is_ok());
        assert!(trust.endpoint("https://[::1]:1").is_ok());
        let url = "http://127.0.0.1:1";
        assert!(matches!(refusal(&trust, url), TrustError::NotUsed(of) if of == url));
    }

    #[test]
    fn invalid_urls_are_refused() {
        for url in ["sm1:7471", "ftp://sm1:1", "", "http://", "https://"] {
            let refusal = refusal(&ClientTrust::default(), url);
            assert!(matches!(&refusal, TrustError::Url(of) if of == url), "{refusal}");
        }
    }
}
