//! The contract between the subnet manager and its SA responders: immutable snapshots of the data
//! that SA queries are answered from, the deltas between them, and the gRPC services that carry
//! both.
//!
//! Feature `rpc`, on by default, adds everything that does I/O: gRPC services, TLS certificates,
//! the cache file and process metrics. Without it the crate is a pure data model.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub use prost;

#[cfg(feature = "rpc")]
pub mod crowd;
#[cfg(feature = "rpc")]
pub mod descriptors;
pub mod front_door;
#[cfg(feature = "rpc")]
pub mod log_limit;
pub mod metrics;
#[cfg(feature = "rpc")]
pub mod quota;
pub mod rate_limit;
pub mod rendezvous;
#[cfg(feature = "rpc")]
pub mod serve;
pub mod snapshot;
pub mod state;
#[cfg(feature = "rpc")]
pub mod trust;

/// The text of an error and its causes, separated by colons.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let cause_text = inner.to_string();
        // Skip causes that the text already contains.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        cause = inner.source();
    }
    text
}

/// Messages and services as defined in `proto/`. The code is generated and checked in, so that a
/// build needs no protobuf compiler; `cargo run -p sa-proto-codegen` generates it again.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code")]
pub mod proto {
    /// The snapshot feed (`snapshot.proto`).
    pub mod snapshot {
        include!("generated/ibsa.snapshot.v1.rs");
    }
    /// Client writes that responders forward to the SM (`registry.proto`).
    pub mod registry {
        include!("generated/ibsa.registry.v1.rs");
    }
    /// Traps and notices (`event.proto`).
    pub mod event {
        include!("generated/ibsa.event.v1.rs");
    }
    /// Operators' requests to the SM (`admin.proto`).
    pub mod admin {
        include!("generated/ibsa.admin.v1.rs");
    }
    /// Partitions that programs make (`partition.proto`).
    pub mod partition {
        include!("generated/ibsa.partition.v1.rs");
    }
    /// The paths of a port, for agents on compute nodes (`node.proto`).
    pub mod node {
        include!("generated/ibsa.node.v1.rs");
    }
}
