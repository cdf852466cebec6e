//! A simulated InfiniBand subnet that real tools can attach to.

pub mod netlist;
