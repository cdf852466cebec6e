//! Benchmarks and whole-system tests. Imports every crate and is imported by none.
//!
//! [`fabrics`] brings stated fabrics up in process, [`requests`] asks about them, [`cpu`] and
//! [`figures`] measure and tell. [`rows`] are the queries that every change is measured by: of a
//! [`subject`], a responder with nothing around it, under a [`policy`]. [`sandbox`] runs the real
//! programs, ours and others', on a simulated fabric of their own; [`published`] reads what a manager
//! there tells responders.

pub mod cpu;
pub mod fabrics;
pub mod figures;
pub mod policy;
pub mod published;
pub mod requests;
pub mod rows;
pub mod sandbox;
pub mod subject;
