//! Parses virtual fabrics from an `opafm.xml`, the file of Omni-Path's fabric manager.
//!
//! The parser reads the Applications, DeviceGroups, QOSGroups, VirtualFabrics and MulticastGroups
//! of the `Common` section and of the subnet's `Fm` instance. All other sections belong to another
//! program, and are remarked on. [`OpaFm`] is checked as far as a file can be checked by itself:
//! references resolve, numbers are within range, nothing includes itself. The ports of a device
//! group depend on the fabric; `manage::vfabric` determines them.
//!
//! - [`parse`] returns an [`OpaFm`], or an [`OpaFmError`] with the line and the reason.
//! - [`bandwidth`] divides the bandwidth among virtual fabrics.
//! - `xml`: the text as a tree with line numbers; `instance`: the `Fm` to use; `section`: its
//!   sections; `unread`: those that are not read; `value`: values; `check`: references;
//!   `predefined`: applications and groups that need no definition.

pub mod bandwidth;
mod check;
mod error;
mod instance;
mod pattern;
mod predefined;
mod section;
#[cfg(test)]
mod tests;
mod unread;
mod value;
mod xml;

use std::path::Path;

use ib_mad::types::{Gid, Guid, Mtu, PKey, Rate, Sl};
use sa_proto::snapshot::IdMatch;

pub use error::{OpaFmError, Reason};
pub use instance::Instance;
pub use pattern::NodePattern;

/// Largest number of enabled virtual fabrics, and of applications, device groups, QoS groups and
/// multicast groups each.
pub const ENTRIES_MAX: usize = 1000;

/// Largest nesting depth of applications and of device groups.
pub const NESTING_MAX: usize = 32;

/// HOQLife of packets that are never dropped; all greater codes mean the same (IBA 14.2.5.6).
pub const HOQ_LIFE_INFINITE: u8 = 20;

/// Longest HOQLife that is not infinite, as its code n: 4.096 µs × 2^n.
pub const HOQ_LIFE_LAST: u8 = 19;

/// The virtual fabrics of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpaFm {
    /// Virtual fabrics that are enabled, in the order of the file.
    pub virtual_fabrics: Vec<VirtualFabric>,
    /// Device groups, including the predefined ones.
    pub device_groups: Vec<DeviceGroup>,
    /// Multicast groups to be created in advance.
    pub multicast_groups: Vec<MulticastGroup>,
}

impl OpaFm {
    /// Whether a virtual fabric that passes traffic has `Bandwidth` or `HighPriority`, so that the
    /// file decides how ports arbitrate between VLs.
    pub fn arbitrates(&self) -> bool {
        let qos = self.virtual_fabrics.iter().filter(|each| !each.standby);
        qos.filter_map(|each| each.qos.as_ref()).any(|qos| qos.bandwidth != Bandwidth::Rest)
    }
}

/// A set of devices and applications, and the properties of paths between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualFabric {
    /// Its name, case-sensitive.
    pub name: String,
    /// Line number of its start, from 1.
    pub line: usize,
    /// Whether it is defined but passes no traffic for now.
    pub standby: bool,
    /// P_Key without the membership bit; if `None`, the manager chooses one.
    pub pkey: Option<PKey>,
    /// Whether limited members cannot reach each other, and ports outside cannot reach any member.
    pub security: bool,
    /// Quality of service; `None` if it has no QoS section.
    pub qos: Option<Qos>,
    /// Largest MTU; `None` is unlimited.
    pub mtu_max: Option<Mtu>,
    /// Largest rate; `None` is unlimited.
    pub rate_max: Option<Rate>,
    /// Full members: device groups, by index.
    pub members: Vec<usize>,
    /// Limited members: device groups, by index.
    pub limited_members: Vec<usize>,
    /// Names of its applications, and of those that they include.
    pub applications: Vec<String>,
    /// The traffic of all these applications.
    pub traffic: Traffic,
}

/// Quality of service of a virtual fabric, or of several that share a QOSGroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qos {
    /// QOSGroup it comes from. All virtual fabrics of a group have the same SLs.
    pub group: Option<String>,
    /// SL of unicast traffic; if `None`, the manager chooses one.
    pub base_sl: Option<Sl>,
    /// SL of multicast traffic, if separate.
    pub multicast_sl: Option<Sl>,
    /// Packet lifetimes in path records are multiplied by 2^n.
    pub lifetime_shift: u8,
    /// Its share of the bandwidth. All virtual fabrics of a group have it together.
    pub bandwidth: Bandwidth,
    /// Time that a packet may be at the head of a queue, as its code n: 4.096 µs × 2^n; infinite
    /// from [`HOQ_LIFE_INFINITE`] on.
    pub hoq_life: Option<u8>,
}

/// A share of the bandwidth of every link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bandwidth {
    /// An equal part of what others leave.
    #[default]
    Rest,
    /// At least this much of what high priority leaves.
    Percent {
        /// Percent, 1 to 100.
        percent: u8,
        /// Line number where the file states it, from 1.
        line: usize,
    },
    /// Its packets precede others.
    High,
}

/// Properties that identify the traffic of applications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Service IDs.
    pub service_ids: Vec<IdMatch>,
    /// MGIDs, as value and mask: an MGID matches if it equals the value in the bits of the mask.
    pub mgids: Vec<(Gid, Gid)>,
    /// Whether Service IDs that no virtual fabric lists are included.
    pub unmatched_service_ids: bool,
    /// Whether MGIDs that no virtual fabric lists are included.
    pub unmatched_mgids: bool,
    /// Whether it includes queries to the SA.
    pub sa: bool,
    /// Whether it includes performance management.
    pub pm: bool,
}

/// A set of ports, given by their properties.
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
    /// Groups whose ports are included, by index. No group includes itself.
    pub includes: Vec<usize>,
}

/// Kinds of ports that a device group includes.
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
    /// Ports that may manage (`AllMgmtAllowed`); here the ports on which an SM runs.
    pub management: bool,
}

/// A multicast group to create in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// Line number of its start, from 1.
    pub line: usize,
    /// Index of the virtual fabric that it is for. With neither this nor a P_Key it is for all
    /// virtual fabrics whose applications include the MGID.
    pub virtual_fabric: Option<usize>,
    /// P_Key, without the membership bit, of the virtual fabrics that it is for.
    pub pkey: Option<PKey>,
    /// MGIDs; if empty, those that IPoIB uses for IPv4 and IPv6.
    pub mgids: Vec<Gid>,
    /// MTU.
    pub mtu: Mtu,
    /// Rate.
    pub rate: Rate,
    /// SL; `None`: that of the virtual fabric.
    pub sl: Option<Sl>,
    /// Q_Key.
    pub qkey: u32,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub tclass: u8,
}

/// Parses the text of the file, of which `instance` is used besides `Common`; `path` is for
/// messages. Calls `remark` with the line number and text of each oddity that is not an error.
pub fn parse(
    path: &Path,
    text: &str,
    instance: &Instance<'_>,
    remark: &mut dyn FnMut(usize, &str),
) -> Result<OpaFm, OpaFmError> {
    let located = |(line, reason)| OpaFmError { path: path.to_owned(), line, reason };
    let root = xml::parse(text).map_err(located)?;
    if root.name != "Config" {
        return Err(located((root.line, Reason::Root(root.name))));
    }
    let fm = instance::select(&root, instance, remark).map_err(located)?;
    let raw = section::config(&root, fm, remark).map_err(located)?;
    check::resolve(raw, remark).map_err(located)
}
