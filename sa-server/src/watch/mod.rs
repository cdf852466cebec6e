//! The view of a running responder for operators.
//!
//! - [`metrics`]: the Prometheus metrics; [`http`] serves them.
//! - [`figures`]: the report that the manager receives once a second; [`top_requesters`]: the
//!   requesters that ask most.
//! - `refusals`: logs queries whose answers exceed a limit.
//! - [`explain`]: why a path query gets the answer it gets, for `ibsmctl explain`.

pub mod explain;
pub mod figures;
pub mod http;
pub mod metrics;
pub(crate) mod refusals;
pub mod top_requesters;
