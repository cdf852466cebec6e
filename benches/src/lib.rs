//! Benchmarks and whole-system tests. Imports every crate and is imported by none.
//!
//! [`fabrics`] brings stated fabrics up in process, [`requests`] asks about them, [`cpu`] and
//! [`figures`] measure and tell. [`sandbox`] runs the real programs, ours and others', on a simulated fabric of their own.

pub mod cpu;
pub mod fabrics;
pub mod figures;
pub mod requests;
pub mod sandbox;
