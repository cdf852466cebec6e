//! Host facilities of the responder.
//!
//! - [`options`]: the command line.
//! - `umad_port`, `verbs_port`: an InfiniBand port of this host.
//! - [`handover`]: keeps the port's file descriptor open across restarts.
//! - [`placement`]: the CPUs that threads run on.

pub mod handover;
pub mod options;
pub mod placement;
pub(crate) mod umad_port;
#[cfg(feature = "verbs")]
pub(crate) mod verbs_port;
