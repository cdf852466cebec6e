//! The contract between the subnet manager and its SA responders: immutable snapshots of all that
//! the SA answers from, the deltas between them, and the gRPC services that carry both.

pub mod snapshot;
