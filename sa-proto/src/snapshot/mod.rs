//! A snapshot: everything that SA queries are answered from, at one instant. It never changes.
//!
//! Two planes, each with a generation of its own: the fabric plane changes with a sweep, the
//! registry plane with every write. Rows are keyed by GUID and hold attributes as they are on the
//! wire, so that no index has to survive from one snapshot to the next; a responder builds its own
//! indexed tables.

mod fabric;

pub use fabric::{FabricPlane, Lft, Node, Port, Subnet};
