//! A replacement for libibumad, loaded with LD_PRELOAD. It gives unmodified programs (`saquery`,
//! `osmtest`, `opensm`, `ibnetdiscover`) a umad device that is a port of a simulated fabric, and
//! does the kernel's part for them, mainly RMPP.
//!
//! `ibfabric exec` sets it up. `IBSIM_SOCKNAME` names the server, `SIM_HOST` the node, as for
//! ibsim's own preload.
//!
//! - [`stack`]: agents, transactions and RMPP; decides and does no I/O.
//! - [`umad`]: the header before each MAD.
//! - `device`: the socket, its thread and the lock. `issm`: the file that makes a process an SM.
//! - `export`: libibumad's functions, except those that return names of codes; and the device's
//!   file and sysfs, for programs without libibumad, such as ours. `socket`: such an open file;
//!   `keeper`: the process that serves it.

mod device;
pub mod export;
mod info;
mod issm;
mod keeper;
mod socket;
#[cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
pub mod stack;
#[cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
pub mod umad;
