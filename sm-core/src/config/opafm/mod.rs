//! Virtual fabrics as an `opafm.xml` of Omni-Path's fabric manager has them.
//!
//! Read are the Applications, DeviceGroups, QOSGroups, VirtualFabrics and MulticastGroups of the
//! `Common` section and of the first `Fm` instance; all other sections are another program's
//! business. [`OpaFm`] is checked as far as a file can be by itself: names that refer to something
//! do, numbers are within range, nothing includes itself. What ports a device group has depends on
//! the fabric and is `manage::vfabric`'s business.
//!
//! - [`parse`] makes an [`OpaFm`]; [`OpaFmError`] says in which line and why not.
//! - `xml`: the text as a tree with line numbers; `section`: its sections; `value`: its values;
//!   `check`: what refers to what; `predefined`: applications and groups that need no definition.

mod check;
mod error;
mod pattern;
mod predefined;
mod section;
#[cfg(test)]
mod tests;
mod value;
mod xml;

use std::path::Path;

use ib_mad::types::{Gid, Guid, Mtu, PKey, Rate, Sl};
use sa_proto::snapshot::IdMatch;

pub use error::{OpaFmError, Reason};
pub use pattern::NodePattern;

/// Most virtual fabrics that are enabled, and most applications, device groups, QoS groups and
/// multicast groups each.
pub const ENTRIES_MAX: usize = 1000;

/// How deep applications and device groups may include each other.
pub const NESTING_MAX: usize = 32;

/// What a file says of virtual fabrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpaFm {
    /// Virtual fabrics that are enabled, in the order of the file.
    pub virtual_fabrics: Vec<VirtualFabric>,
    /// Device groups, those that are predefined included.
    pub device_groups: Vec<DeviceGroup>,
    /// Multicast groups to be created in advance.
    pub multicast_groups: Vec<MulticastGroup>,
}

/// Devices and applications, and what paths between them get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFabric {
    /// Its name, case-sensitive.
    pub name: String,
    /// Line where it begins.
    pub line: usize,
    /// Whether it is defined but passes no traffic for now.
    pub standby: bool,
    /// P_Key without the membership bit; chosen by the manager if there is none.
    pub pkey: Option<PKey>,
    /// Whether limited members cannot reach each other, and nobody else any of them.
    pub security: bool,
    /// Quality of service; `None` if it has none of its own.
    pub qos: Option<Qos>,
    /// Greatest MTU; `None` is unlimited.
    pub mtu_max: Option<Mtu>,
    /// Greatest rate; `None` is unlimited.
    pub rate_max: Option<Rate>,
    /// Full members: device groups, by index.
    pub members: Vec<usize>,
    /// Limited members: device groups, by index.
    pub limited_members: Vec<usize>,
    /// Names of its applications, and of those that they include.
    pub applications: Vec<String>,
    /// What these applications are, all together.
    pub traffic: Traffic,
}

/// Quality of service of a virtual fabric, or of several that share a QOSGroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qos {
    /// QOSGroup it comes from. All virtual fabrics of one have the same SLs.
    pub group: Option<String>,
    /// SL of unicast traffic; chosen by the manager if there is none.
    pub base_sl: Option<Sl>,
    /// SL of multicast traffic, if it is to have one of its own.
    pub multicast_sl: Option<Sl>,
    /// Packet lifetimes told are 2^n times as long.
    pub lifetime_shift: u8,
}

/// What applications can be told by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Service IDs.
    pub service_ids: Vec<IdMatch>,
    /// MGIDs: those that equal the first in the bits of the second.
    pub mgids: Vec<(Gid, Gid)>,
    /// Whether Service IDs that no virtual fabric names are taken.
    pub unmatched_service_ids: bool,
    /// Whether MGIDs that no virtual fabric names are taken.
    pub unmatched_mgids: bool,
    /// Whether it is for queries to the SA.
    pub sa: bool,
    /// Whether it is for performance management.
    pub pm: bool,
}

/// Ports by what they can be told by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceGroup {
    /// Its name, case-sensitive.
    pub name: String,
    /// SystemImageGUIDs of nodes.
    pub system_images: Vec<Guid>,
    /// GUIDs of nodes.
    pub nodes: Vec<Guid>,
    /// GUIDs of ports.
    pub ports: Vec<Guid>,
    /// Descriptions of nodes.
    pub descriptions: Vec<NodePattern>,
    /// Kinds of ports.
    pub select: Select,
    /// Groups whose ports are in it too, by index. Nothing includes itself.
    pub includes: Vec<usize>,
}

/// Kinds of ports that a device group has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Select {
    /// All ports.
    pub all: bool,
    /// The port that the SM runs on.
    pub own: bool,
    /// Ports of channel adapters and routers (`FI`).
    pub interfaces: bool,
    /// Port 0 of switches (`SW`).
    pub switches: bool,
    /// Enhanced ports 0 of switches (`SWE0`).
    pub enhanced_port0: bool,
    /// Ports with a device management agent (`TFIs`).
    pub targets: bool,
    /// Ports linked to each other without a switch (`HFIDirectConnect`).
    pub direct: bool,
    /// Ports that may manage (`AllMgmtAllowed`); here those that an SM runs on.
    pub management: bool,
}

/// A multicast group to be created in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// Line where it begins.
    pub line: usize,
    /// Virtual fabric that it is for, by index. With neither this nor a P_Key it is for all whose
    /// applications have the MGID.
    pub virtual_fabric: Option<usize>,
    /// P_Key of the virtual fabrics that it is for, without the membership bit.
    pub pkey: Option<PKey>,
    /// MGIDs; if there are none, those that IPoIB uses for IPv4 and IPv6.
    pub mgids: Vec<Gid>,
    /// MTU.
    pub mtu: Mtu,
    /// Rate.
    pub rate: Rate,
    /// SL; that of the virtual fabric if there is none.
    pub sl: Option<Sl>,
    /// Q_Key.
    pub qkey: u32,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub tclass: u8,
}

/// Parses the text of the file; `path` is for messages. `remark` is told of what is odd but no
/// error, with its line.
pub fn parse(
    path: &Path,
    text: &str,
    remark: &mut dyn FnMut(usize, &str),
) -> Result<OpaFm, OpaFmError> {
    let located = |(line, reason)| OpaFmError { path: path.to_owned(), line, reason };
    let root = xml::parse(text).map_err(located)?;
    let raw = section::config(&root, remark).map_err(located)?;
    check::resolve(raw, remark).map_err(located)
}
