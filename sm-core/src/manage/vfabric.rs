//! Virtual fabrics on a fabric: their P_Keys, SLs and members, and the rules and groups that they
//! define.
//!
//! [`VirtualFabrics::resolve`] is a pure function of the file, the end ports and the P_Keys that
//! `partitions.conf` has: equal inputs give equal P_Keys and SLs. Where virtual fabrics overlap,
//! the one that stands first in the file decides.
//!
//! - `members`: device groups as ports; `assign`: P_Keys and SLs where the file has none.
//! - `rows`: rules for path queries; `groups`: partitions and groups for `manage::partition`.
//! - [`by_mgid`]: which virtual fabric a multicast group belongs to.
//! - [`arbitration`]: the bandwidth of each at a port.

pub mod arbitration;
mod assign;
pub mod by_mgid;
mod groups;
mod members;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use ib_mad::types::{Guid, Mtu, PKey, Rate, Sl};
use ib_mad::wire::attribute::NodeType;

use super::end_port::EndPort;
use arbitration::Arbitration;
use members::Members;
use sm_config::opafm::{MulticastGroup, OpaFm, Traffic};

/// Virtual fabrics, resolved against the ports of the moment.
#[derive(Clone, Debug, Default)]
pub struct VirtualFabrics {
    fabrics: Vec<VirtualFabric>,
    /// Members of device groups, by their position in the file.
    members: Vec<Members>,
    /// Names of device groups.
    group_names: Vec<String>,
    /// End ports: GUID and kind of node, as `members` refer to them.
    ports: Vec<(Guid, NodeType)>,
    /// Groups to be created in advance.
    multicast_groups: Vec<MulticastGroup>,
    arbitration: Option<Arbitration>,
    /// Longest HoqLife of the virtual fabrics of an end port, by its GUID, as codes.
    hoq_lives: HashMap<Guid, u8>,
    /// Longest HoqLife of all.
    hoq_life: Option<u8>,
    warnings: Vec<String>,
}

/// A virtual fabric with all that the file may leave open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFabric {
    /// Name.
    pub name: String,
    /// Line where it is defined.
    pub line: usize,
    /// Whether it passes no traffic for now.
    pub standby: bool,
    /// Whether limited members cannot reach each other.
    pub security: bool,
    /// P_Key without the membership bit.
    pub pkey: PKey,
    /// Whether it has its own SLs.
    pub qos: bool,
    /// SL of unicast paths.
    pub base_sl: Sl,
    /// SL of multicast groups.
    pub multicast_sl: Sl,
    /// Packet lifetimes in answers are multiplied by 2^n.
    pub lifetime_shift: u8,
    /// Greatest MTU.
    pub mtu_max: Option<Mtu>,
    /// Greatest rate.
    pub rate_max: Option<Rate>,
    /// Names of its applications.
    pub applications: Vec<String>,
    /// Criteria that identify these applications.
    pub traffic: Traffic,
    /// Device groups that are full members, by position; without security all are.
    full: Vec<usize>,
    /// Device groups that are limited members.
    limited: Vec<usize>,
}

impl VirtualFabrics {
    /// Resolves the file for these end ports. `taken` are the P_Keys of `partitions.conf`, which no
    /// virtual fabric gets unless it names one.
    pub fn resolve(file: &OpaFm, ports: &[EndPort], taken: &[PKey]) -> Self {
        let mut warnings = Vec::new();
        let pkeys = assign::pkeys(&file.virtual_fabrics, taken, &mut warnings);
        let sls = assign::sls(&file.virtual_fabrics, &mut warnings);
        let arbitration = Arbitration::new(file, &sls);
        let settled = pkeys.into_iter().zip(sls);
        let fabrics = file.virtual_fabrics.iter().zip(settled).map(|(fabric, (pkey, sls))| {
            let all = || fabric.members.iter().chain(&fabric.limited_members).copied();
            let (full, limited) = match fabric.security {
                true => (fabric.members.clone(), fabric.limited_members.clone()),
                false => (all().collect(), Vec::new()),
            };
            VirtualFabric {
                name: fabric.name.clone(),
                line: fabric.line,
                standby: fabric.standby,
                security: fabric.security,
                pkey,
                qos: fabric.qos.is_some(),
                base_sl: sls.0,
                multicast_sl: sls.1,
                lifetime_shift: fabric.qos.as_ref().map_or(0, |qos| qos.lifetime_shift),
                mtu_max: fabric.mtu_max,
                rate_max: fabric.rate_max,
                applications: fabric.applications.clone(),
                traffic: fabric.traffic.clone(),
                full,
                limited,
            }
        });
        let mut all = Self {
            fabrics: fabrics.collect(),
            members: members::resolve(&file.device_groups, ports),
            group_names: file.device_groups.iter().map(|group| group.name.clone()).collect(),
            ports: ports.iter().map(|port| (port.guid, port.kind)).collect(),
            multicast_groups: file.multicast_groups.clone(),
            arbitration,
            hoq_lives: HashMap::new(),
            hoq_life: None,
            warnings,
        };
        all.hoq_lives = all.longest_hoq_lives(file);
        let active = file.virtual_fabrics.iter().filter(|fabric| !fabric.standby);
        all.hoq_life = active.filter_map(|fabric| fabric.qos.as_ref()?.hoq_life).max();
        all
    }

    fn longest_hoq_lives(&self, file: &OpaFm) -> HashMap<Guid, u8> {
        let mut lives = HashMap::new();
        for (at, fabric) in self.active() {
            let qos = file.virtual_fabrics.get(at).and_then(|each| each.qos.as_ref());
            let Some(life) = qos.and_then(|qos| qos.hoq_life) else { continue };
            for port in self.ports_of(&fabric.full).chain(self.ports_of(&fabric.limited)) {
                let longest = lives.entry(self.ports[port].0).or_insert(life);
                *longest = life.max(*longest);
            }
        }
        lives
    }

    /// How ports arbitrate between VLs; `None` if virtual fabrics leave that open.
    pub fn arbitration(&self) -> Option<&Arbitration> {
        self.arbitration.as_ref()
    }

    /// HOQLife of a link to an end port, as its code: the longest HoqLife of the virtual fabrics
    /// that it is a member of.
    pub fn hoq_life_to(&self, end_port: Guid) -> Option<u8> {
        self.hoq_lives.get(&end_port).copied()
    }

    /// HOQLife of links that packets of all virtual fabrics may take.
    pub fn hoq_life(&self) -> Option<u8> {
        self.hoq_life
    }

    /// The virtual fabrics, in the order of the file.
    pub fn fabrics(&self) -> &[VirtualFabric] {
        &self.fabrics
    }

    /// Warnings for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Virtual fabrics that pass traffic, with their positions.
    fn active(&self) -> impl Iterator<Item = (usize, &VirtualFabric)> {
        self.fabrics.iter().enumerate().filter(|(_, fabric)| !fabric.standby)
    }

    /// Positions of end ports that are in one of these device groups.
    fn ports_of(&self, groups: &[usize]) -> impl Iterator<Item = usize> {
        let kinds = groups.iter().fold(0, |kinds, &group| kinds | self.members[group].node_types);
        (0..self.ports.len()).filter(move |&at| {
            kinds & members::bit(self.ports[at].1) != 0
                || groups.iter().any(|&group| self.members[group].ports.contains(&at))
        })
    }
}
