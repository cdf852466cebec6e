//! The contract between the subnet manager and its SA responders: immutable snapshots of all that
//! the SA answers from, the deltas between them, and the gRPC services that carry both.

pub use prost;

pub mod metrics;
pub mod snapshot;
pub mod trust;

/// An error with those that led to it, in words.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        // Messages that embed their cause have said it.
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    text
}

/// Messages and services as defined in `proto/`, generated.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code")]
pub mod proto {
    /// The snapshot feed (`snapshot.proto`).
    pub mod snapshot {
        tonic::include_proto!("ibsa.snapshot.v1");
    }
    /// Writes of clients, passed on to the SM (`registry.proto`).
    pub mod registry {
        tonic::include_proto!("ibsa.registry.v1");
    }
    /// Traps and notices (`event.proto`).
    pub mod event {
        tonic::include_proto!("ibsa.event.v1");
    }
    /// What an operator asks the SM (`admin.proto`).
    pub mod admin {
        tonic::include_proto!("ibsa.admin.v1");
    }
}
