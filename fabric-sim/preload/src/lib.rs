//! A stand-in for libibumad, to be preloaded: it gives unchanged programs (`saquery`, `osmtest`,
//! `opensm`, `ibnetdiscover`) a umad device that is a port of a simulated fabric, and does for
//! them what the kernel does behind a real one, RMPP above all.
//!
//! `ibfabric exec` sets it up. `IBSIM_SOCKNAME` names the server, `SIM_HOST` the node, as for
//! ibsim's own preload.
//!
//! - [`stack`]: agents, transactions and RMPP; decides and does no I/O.
//! - [`umad`]: the header before each MAD.
//! - `device`: the socket, the thread that serves it, the lock. `issm`: becoming a subnet manager.
//! - `export`: libibumad's calls, all of them but those that give codes names; and the device's
//!   file and sysfs, for programs that do without libibumad, as ours do. `socket`: such a file.

mod device;
pub mod export;
mod info;
mod issm;
mod socket;
pub mod stack;
pub mod umad;
