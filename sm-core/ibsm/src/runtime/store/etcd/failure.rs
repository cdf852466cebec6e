//! Why a request to etcd has no result.

use tonic::Status;

/// Why a request has no result.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The member did not answer, or cannot: the request may or may not have taken effect, or will
    /// later.
    Unreachable(String),
    /// The cluster refuses the request.
    Refused(Status),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(reason) => f.write_str(reason),
            Self::Refused(status) => write!(f, "{}", status.message()),
        }
    }
}
