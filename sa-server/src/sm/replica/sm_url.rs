//! The URL where an SM publishes, and the settings of connections to it.

use std::str::FromStr;
use std::time::Duration;

use sa_proto::trust::{ClientTrust, SmEndpoint, TrustError};
use tonic::transport::Endpoint;

/// How often a silent connection is probed, and how long an answer may take: a dead SM is noticed
/// after the sum of both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes that an SM may send ahead: four messages.
const WINDOW_LEN: u32 = 1 << 20;

/// Where an SM publishes, such as `http://127.0.0.1:7471` or `https://sm1:7471`, and why to trust
/// it.
#[derive(Clone, Debug)]
pub struct SmUrl {
    pub(super) text: String,
    trust: ClientTrust,
}

/// Text that is not the URL of an SM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the URL of an SM; examples: http://127.0.0.1:7471, https://sm1:7471")]
pub struct ParseSmUrlError(pub String);

impl FromStr for SmUrl {
    type Err = ParseSmUrlError;

    fn from_str(text: &str) -> Result<Self, ParseSmUrlError> {
        let error = || ParseSmUrlError(text.to_owned());
        let endpoint = Endpoint::from_shared(text.to_owned()).map_err(|_| error())?;
        let uri = endpoint.uri();
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let has_port = uri.port_u16().is_some_and(|port| port != 0);
        let has_path = uri.path() != "/" || uri.query().is_some();
        if !is_known || !has_host || !has_port || has_path {
            return Err(error());
        }
        Ok(Self { text: text.to_owned(), trust: ClientTrust::default() })
    }
}

impl SmUrl {
    /// The same with this trust. Fails if no connection could ever succeed with it.
    pub fn with_trust(self, trust: ClientTrust) -> Result<Self, TrustError> {
        trust.endpoint(&self.text)?;
        Ok(Self { trust, ..self })
    }

    /// The endpoint to connect to; certificates are read each time.
    pub(super) fn endpoint(&self) -> Result<SmEndpoint, TrustError> {
        Ok(self.trust.endpoint(&self.text)?.configure(|endpoint| {
            endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(WINDOW_LEN)
                .initial_connection_window_size(WINDOW_LEN)
                .tcp_nodelay(true)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sm_url_has_scheme_host_and_port() {
        assert!("http://127.0.0.1:7471".parse::<SmUrl>().is_ok());
        assert!("https://sm1:7471".parse::<SmUrl>().is_ok());
        for text in [
            "127.0.0.1:7471",
            "http://host",
            "ftp://host:1",
            "",
            "http://",
            "http://:1",
            "http://h:0",
            "http://h:1/x",
        ] {
            let error = text.parse::<SmUrl>().unwrap_err();
            assert!(error.to_string().contains("http://127.0.0.1:7471"), "{error}");
        }
    }
}
