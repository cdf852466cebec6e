//! The connection to the SM.

use std::error::Error;
use std::time::Duration;

use sa_proto::proto::admin::admin_client::AdminClient;
use sa_proto::proto::partition::partitions_client::PartitionsClient;
use sa_proto::trust::{self, ClientTrust};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::CtlError;

/// Time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time to wait for the answer to an order: longer than the SM itself waits for its store.
const ORDER_PATIENCE: Duration = Duration::from_secs(15);

/// Address of an SM, and the certificates to use.
#[derive(Debug)]
pub(super) struct Sm {
    url: String,
    trust: ClientTrust,
}

impl Sm {
    pub(super) fn new(url: &str, trust: ClientTrust) -> Self {
        Self { url: url.to_owned(), trust }
    }

    /// The SM's address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Connects for streaming calls. The caller limits the wait for each message.
    pub(super) async fn connect_to_stay(&self) -> Result<AdminClient<Channel>, CtlError> {
        let endpoint = self.trust.endpoint(&self.url)?;
        let endpoint = endpoint.configure(|endpoint| endpoint.connect_timeout(PATIENCE));
        let channel = endpoint.connect().await.map_err(|failure| self.unreachable(&failure))?;
        Ok(AdminClient::new(channel))
    }

    /// The error for a stream without a message for too long.
    pub(super) fn silent(&self) -> CtlError {
        CtlError::Unreachable {
            address: self.url.clone(),
            reason: "connection open, but no message for too long".into(),
        }
    }

    /// Connects to the SM.
    pub(super) async fn connect(&self) -> Result<AdminClient<Channel>, CtlError> {
        let endpoint = self.trust.endpoint(&self.url)?;
        let set = |endpoint: Endpoint| endpoint.connect_timeout(PATIENCE).timeout(PATIENCE);
        let endpoint = endpoint.configure(set);
        let channel = endpoint.connect().await.map_err(|failure| self.unreachable(&failure))?;
        Ok(AdminClient::new(channel))
    }

    /// Connects for calls about partitions.
    pub(super) async fn partitions(&self) -> Result<PartitionsClient<Channel>, CtlError> {
        let endpoint = self.trust.endpoint(&self.url)?;
        let set = |endpoint: Endpoint| endpoint.connect_timeout(PATIENCE).timeout(ORDER_PATIENCE);
        let endpoint = endpoint.configure(set);
        let channel = endpoint.connect().await.map_err(|failure| self.unreachable(&failure))?;
        Ok(PartitionsClient::new(channel))
    }

    /// The error for a failed call.
    pub(super) fn refused(&self, status: &Status) -> CtlError {
        // A status with a cause was not sent by the SM: the connection broke.
        match status.source() {
            Some(_) => self.unreachable(status),
            None => CtlError::Refused {
                address: self.url.clone(),
                message: match (status.code(), status.message()) {
                    (Code::Unimplemented, "") => "its release does not support this command".into(),
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
