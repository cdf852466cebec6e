//! Benchmarks and whole-system tests. Depends on every crate; no crate depends on it.
//!
//! [`fabrics`] brings up fabrics in process, [`requests`] builds queries about them, [`cpu`] and
//! [`figures`] measure and print. [`rows`] are the queries by which every change is measured,
//! answered by a [`subject`], a responder without transport, under a [`policy`]. [`sandbox`] runs
//! real programs, ours and others', each on a simulated fabric of its own, [`etcd`] a cluster of
//! etcd; [`small_disk`] and [`wall_clock`] are what can fail below a program, [`system_calls`] ends
//! one in the middle; [`published`] reads the snapshot that a manager there publishes.

pub mod cpu;
pub mod etcd;
pub mod fabrics;
pub mod figures;
pub mod policy;
pub mod published;
pub mod requests;
pub mod rows;
pub mod sandbox;
pub mod small_disk;
pub mod subject;
pub mod system_calls;
pub mod wall_clock;
