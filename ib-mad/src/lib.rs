//! InfiniBand management datagrams (MADs): the vocabulary that the subnet manager, the subnet
//! administration responders, the load generator and the simulator share.
//!
//! - [`types`]: LIDs, GUIDs, GIDs, P_Keys and the encoded quantities (MTU, rate, lifetime).
//! - [`wire`]: views that borrow bytes, and checked owned forms, of every MAD, SM attribute and SA
//!   record we speak.
//! - [`rmpp`], [`transaction`]: sans-IO state machines; they never send, sleep or read a clock.
//! - [`dissect`]: one MAD as readable text.
//! - [`netlist`]: subnets as files describe them, those of `ibsim` and of `ibnetdiscover`.
//! - [`transport`] (feature `transport`): sockets behind one batch interface.
//!
//! Layouts follow the InfiniBand Architecture Specification, volume 1, release 1.5; section
//! numbers stand beside each type.

pub mod dissect;
pub mod netlist;
pub mod rmpp;
pub mod transaction;
#[cfg(feature = "transport")]
pub mod transport;
pub mod types;
pub mod wire;
