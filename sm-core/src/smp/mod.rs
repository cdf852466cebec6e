//! SMPs of the sweep: the table of requests, the window of outstanding ones, and how lost ones are
//! repeated.

mod exchange;
mod loss;
mod request;

pub use exchange::{Counters, Exchange, Passed, Timing, Transmit};
pub use request::{
    ALL_IN_PORTS, ALL_OUT_PORTS, Destination, Kind, Owner, Request, kinds, of_virtual_block,
    virtual_block,
};
