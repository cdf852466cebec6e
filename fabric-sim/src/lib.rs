//! A simulated InfiniBand subnet that real tools can attach to.
//!
//! - [`generate`]: generates nets ([`ib_mad::netlist`]) by topology and seed.
//! - [`Fabric`]: the simulated subnet, in process and in virtual time. The agents of its nodes
//!   answer SMPs as specified. Packets are forwarded by the tables that a manager programmed, so
//!   that wrong routing shows as lost packets.
//! - [`serve`]: serves a fabric to real tools, over ibsim's socket protocol.

pub mod cli;
pub mod generate;
pub mod serve;

mod agent;
mod check;
mod counters;
mod fabric;
mod fault;
mod forward;
mod subnet;
mod virtual_time;

pub use agent::virtual_port::VirtualPortView;
pub use check::{LostRoute, RouteCheck, RouteReport};
pub use counters::{Counters, DropReason};
pub use fabric::{
    AttachError, ClassTaken, ControlError, CounterSupport, Delivery, ENDPOINTS_MAX, Endpoint,
    Fabric, LinkView, NodeView, Options, PortView, UNDELIVERED,
};
pub use fault::{NotAProbability, Probability, Refusal};
pub use subnet::{NodeIndex, PortCounter};
pub use virtual_time::VirtualClock;
