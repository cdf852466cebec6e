//! The whole system in one process, one thread and one seed.
//!
//! A fabric, subnet managers, responders and clients run in virtual time. What decides is what
//! ships: the state machines of `sm-core`, `ibsm` and `sa-server`, their messages, and `redb` on a
//! disk in memory. What carries messages, packets and bytes is simulated, and fails by the seed.
//!
//! - [`world`]: the event loop. [`faults`]: what fails, and when. [`oracle`]: what must hold.
//! - [`manager`], [`responder`], [`client`], [`program`]: the processes.
//! - [`net`]: the management network. [`disk`]: disks. [`time`]: clocks.
//! - [`waits`]: how long clients may wait.
//! - [`trace`]: what happened. [`random`]: seeds.

pub mod client;
pub mod config;
pub mod disk;
pub mod faults;
pub mod manager;
pub mod net;
pub mod oracle;
pub mod program;
pub mod random;
pub mod responder;
pub mod time;
pub mod trace;
pub mod violation;
pub mod waits;
pub mod world;

/// Keeps everything that is computed in parallel on the calling thread.
pub fn use_one_thread() {
    // It fails where the thread belongs to a pool already, which then is this one.
    if let Ok(pool) = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build() {
        // The thread belongs to the pool for as long as it lives.
        std::mem::forget(pool);
    }
}
