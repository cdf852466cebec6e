//! A simulated InfiniBand subnet that real tools can attach to.

pub mod cli;
pub mod generate;
pub mod netlist;
