//! `opensm-sa.dump`: what clients registered, as the text that `opensm` writes after sweeps and
//! reads at its start (`-S`, `sa_db_file`), so that a site can change over without its clients
//! having to register again.
//!
//! Text in, rows out, and back; files are the caller's. A line is a record, blank lines and those
//! that begin with `#` mean nothing:
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
//! The text says less than the rows. Reading assumes for the rest what is harmless: a subscription
//! is trusted only if it is for a trap that an untrusted one cannot be for, and is answered without
//! a GRH.

mod read;
mod write;

use ib_mad::types::{Guid, Lid, PKey};

pub use read::{DumpError, Problem, read};
pub use write::write;

/// What the text needs to know besides the rows.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Seconds since 1970.
    pub now_s: u64,
    /// P_Key table of the SM's port: the text names P_Keys by their index in it.
    pub pkeys: &'a [PKey],
    /// Base LID of a port, and how many GUIDs its table holds (GuidCap).
    pub port: &'a dyn Fn(Guid) -> Option<(Lid, u8)>,
}

#[cfg(test)]
mod tests;
