//! `ibsa agent`: answers the path queries of a compute node's kernel from memory.
//!
//! The kernel asks over netlink (RDMA_NL_LS) before it sends a PathRecord query to the SA, and asks
//! the SA itself if the agent cannot answer. The agent follows the paths of each port of its host
//! at a responder ([`crate::node`]), and answers while what it holds is what the responder answers.
//!
//! - [`netlink`]: the kernel's messages and the answers, as bytes.
//! - [`table`]: the paths of one port.
//! - [`ping`]: when the manager was asked for a confirmation, in this host's time.
//! - [`port`]: what is known of one port, how current it is, and which requests it answers.
//! - [`choice`]: which responder a port follows.
//! - [`host`]: the ports of the host; from a datagram of requests to one of answers.
//! - [`runtime`]: sockets, files and clocks.
//!
//! Everything but `runtime` decides without I/O.

pub mod choice;
pub mod host;
pub mod netlink;
pub mod ping;
pub mod port;
pub mod runtime;
pub mod table;
