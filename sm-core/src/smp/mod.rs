//! SMPs of the sweep: requests of 8 bytes, the window of outstanding ones, and how
//! lost ones are repeated.

mod exchange;
mod loss;
mod request;

pub use exchange::{Counters, Exchange, Passed, Timing, Transmit};
pub use request::{ALL_IN_PORTS, ALL_OUT_PORTS, Kind, Owner, Request};
