//! `opensm-sa.dump`: registered records in the text format that `opensm` writes after sweeps and
//! reads at startup (`-S`, `sa_db_file`), so that a site can migrate without its clients
//! registering again.
//!
//! Converts text to rows and back; the caller does the file I/O. A line is a record; blank lines
//! and those that begin with `#` are ignored:
//!
//! ```text
//! GUIDInfo Record: base_guid=0x… lid=0x… block_num=0x… guid0=0x… … guid7=0x…
//! MC Group 0x<mlid> [ (well known)]: mgid=0x…:0x… port_gid=0x…:0x… qkey=0x… mlid=0x… mtu=0x…
//!     tclass=0x… pkey=0x… rate=0x… pkt_life=0x… sl_flow_hop=0x… scope_state=0x… proxy_join=0x…
//! mcm_port: port_gid=0x…:0x… scope_state=0x… proxy_join=0x…             (of the group above it)
//! InformInfo Record: subscriber_gid=0x…:0x… subscriber_enum=0x… InformInfo: gid=0x…:0x… …
//! Service Record: id=0x… gid=0x…:0x… pkey=0x… lease=0x… key=0x…:0x… name='…' data8=0x…:0x… …
//! ```
//!
//! The text has fewer fields than the rows. Reading fills in safe defaults: a subscription
//! is trusted only if it selects a trap that requires trust, and its reports are sent without
//! a GRH.

mod read;
mod write;

use ib_mad::types::{Guid, Lid, PKey};

pub use read::{DumpError, Problem, read};
pub use write::write;

/// Context that the text needs in addition to the rows.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Registry time, in seconds.
    pub now_s: u64,
    /// Wall clock, in seconds since 1970: the text has OpenSM's time.
    pub wall_s: u64,
    /// P_Key table of the SM's port: the text names P_Keys by their index in it.
    pub pkeys: &'a [PKey],
    /// Base LID of a port, and the size of its GUID table (GUIDCap).
    pub port: &'a dyn Fn(Guid) -> Option<(Lid, u8)>,
}

#[cfg(test)]
mod tests;
