//! Predefined groups of configuration files: they exist without members, and otherwise behave like
//! client-created groups.

use std::collections::HashSet;

use ib_mad::types::{Gid, Lid};
use ib_mad::wire::record::{JoinState, Selector};
use sa_proto::snapshot::MulticastGroup;

use super::parameters::{Record, edit, view};
use super::{Class, Core, Ports, Room, choose_mlid, empty, members_of};
use crate::manage::partition;

/// A group of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredefinedGroup {
    /// MCMemberRecord in wire format, without PortGID, JoinState and ProxyJoin. MLID is
    /// requested, and used if free; 0 leaves the choice to the registry. Selectors are "exactly".
    pub record: [u8; 52],
}

impl From<&partition::PredefinedGroup> for PredefinedGroup {
    fn from(group: &partition::PredefinedGroup) -> Self {
        let mut record = [0; 52];
        edit(&mut record)
            .set_mgid(group.mgid)
            .set_qkey(group.qkey)
            .set_mtu_selector(Selector::Exactly)
            .set_mtu(group.mtu)
            .set_tclass(group.tclass)
            .set_pkey(group.pkey)
            .set_rate_selector(Selector::Exactly)
            .set_rate(group.rate)
            .set_packet_life_time_selector(Selector::Exactly)
            .set_packet_life_time(group.lifetime)
            .set_sl(group.sl)
            .set_flow_label(group.flow_label)
            .set_hop_limit(group.hop_limit)
            .set_scope(group.scope);
        Self { record }
    }
}

/// Replaces the predefined groups by `groups`.
pub(in crate::registry) fn set_predefined(
    core: &mut Core,
    ports: &Ports,
    groups: &[PredefinedGroup],
) {
    let of = |group: &PredefinedGroup| {
        let mut record = group.record;
        edit(&mut record)
            .set_port_gid(Gid::ZERO)
            .set_join_state(JoinState::default())
            .set_proxy_join(false);
        (view(&record).mgid(), record)
    };
    let named: HashSet<Gid> = groups.iter().map(|group| of(group).0).collect();
    let dropped = core.groups.rows().iter().filter(|group| group.predefined);
    let dropped = dropped.filter(|group| !named.contains(&group.mgid));
    for group in dropped.cloned().collect::<Vec<_>>() {
        core.groups.put(MulticastGroup { predefined: false, ..MulticastGroup::clone(&group) });
        if !core.multicast.keepers.contains_key(&group.mgid) {
            empty(core, group.mgid);
        }
    }
    for (mgid, record) in groups.iter().map(of) {
        match core.groups.get(mgid).cloned() {
            Some(group) => {
                let group = MulticastGroup { predefined: true, ..MulticastGroup::clone(&group) };
                core.groups.put(group.clone());
                if members_of(core, mgid).next().is_none() {
                    refresh(core, ports, &group, record);
                }
            }
            None => {
                let asked = view(&record).mlid();
                let Ok(mlid) = choose_mlid(core, ports, &record, asked, Room::Own) else {
                    continue;
                };
                put(core, record, mlid);
            }
        }
    }
}

/// Updates a group without members to the parameters in the configuration file.
fn refresh(core: &mut Core, ports: &Ports, group: &MulticastGroup, record: Record) {
    let mlid = view(&group.record).mlid();
    let mut unchanged = record;
    edit(&mut unchanged).set_mlid(mlid);
    if unchanged == group.record {
        return;
    }
    core.multicast.mlids.release(mlid);
    // Keeps its MLID, unless that is shared with groups of another class now.
    match choose_mlid(core, ports, &record, mlid, Room::Own) {
        Ok(mlid) => put(core, record, mlid),
        Err(_) => core.multicast.mlids.hold(mlid, Class::of(&group.record)),
    }
}

fn put(core: &mut Core, mut record: Record, mlid: Lid) {
    edit(&mut record).set_mlid(mlid);
    core.groups.put(MulticastGroup { mgid: view(&record).mgid(), record, predefined: true });
}
