//! Layouts of MADs and their content: views that read borrowed bytes, and checked owned forms
//! (`…Repr`).
//!
//! Every layout is declared once, with the [`layout!`](crate::layout) macro: bit ranges in
//! the specification's order, most significant bit first. No sockets, clocks or threads here.

pub mod attribute;
pub mod congestion;
pub mod field;
pub mod mad;
pub mod pattern;
pub mod perf;
pub mod record;
pub mod rmpp;
pub mod sa;
pub mod smp;

pub use field::{DecodeError, FieldInfo};

/// Length of every MAD on the wire in bytes (IBA 13.4.2).
pub const MAD_LEN: usize = 256;
