//! Host facilities of the responder.
//!
//! - [`options`]: the command line. [`config_file`]: the configuration file beneath it.
//! - `umad_port`, `verbs_port`: an InfiniBand port of this host. `sm_port`: the SM's, shared with
//!   it; `gate`: whether its requests are read.
//! - [`handover`]: keeps the port's file descriptor open across restarts.
//! - [`placement`]: the CPUs that threads run on.

pub mod config_file;
pub(crate) mod gate;
pub mod handover;
pub mod options;
pub mod placement;
pub(crate) mod sm_port;
pub(crate) mod umad_port;
#[cfg(feature = "verbs")]
pub(crate) mod verbs_port;
