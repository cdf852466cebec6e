//! SMPs as the sweep sends them: requests of a few bytes, a window of them on the wire, and how
//! each becomes a MAD.

mod exchange;
mod loss;
mod request;

pub use exchange::{Counters, Exchange, Passed, Timing, Transmit};
pub use request::{ALL_IN_PORTS, ALL_OUT_PORTS, Kind, Request};
