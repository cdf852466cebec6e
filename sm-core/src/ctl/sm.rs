//! The SM that is asked.

use std::error::Error;
use std::time::Duration;

use sa_proto::proto::admin::admin_client::AdminClient;
use sa_proto::trust::{self, ClientTrust};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::CtlError;

/// Time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where an SM is, and why to trust it.
#[derive(Debug)]
pub(super) struct Sm {
    url: String,
    trust: ClientTrust,
}

impl Sm {
    pub(super) fn new(url: &str, trust: ClientTrust) -> Self {
        Self { url: url.to_owned(), trust }
    }

    /// Where it is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// A connection to it for calls that go on. Each of their messages is waited for by itself.
    pub(super) async fn connect_to_stay(&self) -> Result<AdminClient<Channel>, CtlError> {
        let endpoint = self.trust.endpoint(&self.url)?.connect_timeout(PATIENCE);
        let channel = endpoint.connect().await.map_err(|failure| self.unreachable(&failure))?;
        Ok(AdminClient::new(channel))
    }

    /// That it said nothing for too long, or no more.
    pub(super) fn silent(&self) -> CtlError {
        CtlError::Unreachable { address: self.url.clone(), reason: "it fell silent".into() }
    }

    /// A connection to it.
    pub(super) async fn connect(&self) -> Result<AdminClient<Channel>, CtlError> {
        let endpoint = self.trust.endpoint(&self.url)?;
        let endpoint = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE);
        let channel = endpoint.connect().await.map_err(|failure| self.unreachable(&failure))?;
        Ok(AdminClient::new(channel))
    }

    /// That it did not do as asked.
    pub(super) fn refused(&self, status: &Status) -> CtlError {
        // A status with a cause was not sent by it: the connection broke.
        match status.source() {
            Some(_) => self.unreachable(status),
            None => CtlError::Refused {
                address: self.url.clone(),
                message: match (status.code(), status.message()) {
                    (Code::Unimplemented, "") => {
                        "it is of a release that cannot be asked this".into()
                    }
                    (code, "") => code.to_string(),
                    (_, message) => message.to_owned(),
                },
            },
        }
    }

    fn unreachable(&self, failure: &(dyn Error + 'static)) -> CtlError {
        CtlError::Unreachable { address: self.url.clone(), reason: trust::reason(failure) }
    }
}
