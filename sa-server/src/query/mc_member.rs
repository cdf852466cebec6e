//! MCMemberRecord: groups, and for trusted requesters their members.
//!
//! An untrusted requester sees groups: one record each, without PortGID, JoinState and ProxyJoin
//! (IBA 15.2.5.17.2). With a PortGID it sees the groups that this port has joined. A trusted
//! requester sees members. Both see only groups of their partitions.

use std::ops::ControlFlow;

use ib_mad::types::{Gid, Mtu, Rate};
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::mc_member::component as mc_member;
use ib_mad::wire::record::{JoinState, McMemberRecord, Selector};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, attribute};
use sa_proto::snapshot::{MulticastGroup, MulticastMember, MulticastMemberRid};

use super::{Family, Found, Query, Refusal};
use ib_mad::wire::pattern::{Component, Pattern};

pub(super) const FAMILY: Family =
    Family::readable(attribute::MC_MEMBER_RECORD, McMemberRecord::LEN, find)
        .writable()
        .of_registry();

/// Components with equal values in all records of a group, without P_Key, MTU, rate and lifetime,
/// which are not compared bit by bit.
const GROUP_COMPONENTS: &[Component] = &[
    of(mc_member::MGID, "mgid"),
    of(mc_member::QKEY, "qkey"),
    of(mc_member::MLID, "mlid"),
    of(mc_member::TCLASS, "tclass"),
    of(mc_member::SL, "sl"),
    of(mc_member::FLOW_LABEL, "flow_label"),
    of(mc_member::HOP_LIMIT, "hop_limit"),
    of(mc_member::SCOPE, "scope"),
];

const MEMBER_COMPONENTS: &[Component] =
    &[of(mc_member::JOIN_STATE, "join_state"), of(mc_member::PROXY_JOIN, "proxy_join")];

const fn of(mask: ComponentMask, field: &str) -> Component {
    Component::of(mask, McMemberRecord::FIELDS, field, 0)
}

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let request = McMemberRecord::of(query.record);
    let terms = Terms::read(query, &request)?;
    let requester = query.requester()?;
    let pattern = Pattern::new(GROUP_COMPONENTS, query.mask, query.record);
    let mut offer = |group: &MulticastGroup| {
        let view = McMemberRecord::of(&group.record);
        if pattern.matches(&group.record)
            && terms.accept(&view)
            && query.may_see_partition(requester, view.pkey())
        {
            offer_group(query, &request, group, found)?;
        }
        found.step()
    };
    let groups = &query.registry.groups;
    let _: ControlFlow<()> = if query.mask.contains(mc_member::MGID) {
        groups.find(request.mgid()).map_or(ControlFlow::Continue(()), |row| offer(row))
    } else if query.mask.contains(mc_member::PORT_GID) {
        let joined = query.index.groups_of(request.port_gid().guid());
        joined.filter_map(|mgid| groups.find(mgid)).try_for_each(|row| offer(row))
    } else {
        groups.iter().try_for_each(|row| offer(row))
    };
    Ok(())
}

/// Yields the records of a group that was found to fit.
fn offer_group(
    query: &Query<'_>,
    request: &McMemberRecord<&[u8; DATA_LEN]>,
    group: &MulticastGroup,
    found: &mut Found<'_>,
) -> ControlFlow<()> {
    let pattern = Pattern::new(MEMBER_COMPONENTS, query.mask, query.record);
    let members = &query.registry.members;
    let mut offer = |member: &MulticastMember| {
        let record = shown(group, member);
        if pattern.matches(&record) {
            found.push(if query.trusted { &record } else { &group.record })?;
        }
        found.step()
    };
    let mgid = group.mgid;
    if query.mask.contains(mc_member::PORT_GID) {
        // A member is known by its GUID: GIDs of this subnet have its prefix.
        let port_gid = Gid::new(query.tables.subnet.prefix, request.port_gid().guid());
        return match members.find(MulticastMemberRid { mgid, port_gid }) {
            Some(member) => offer(member),
            None => ControlFlow::Continue(()),
        };
    }
    if query.trusted {
        return members
            .range(MulticastMemberRid { mgid, port_gid: Gid::ZERO }..)
            .take_while(|member| member.rid.mgid == mgid)
            .try_for_each(|row| offer(row));
    }
    // The group itself: full members only, and no proxy join.
    let rid = MulticastMemberRid::default();
    offer(&MulticastMember { rid, join_state: JoinState::FULL_MEMBER.0, proxy_join: false })
}

/// A member's record, in full.
fn shown(group: &MulticastGroup, member: &MulticastMember) -> [u8; McMemberRecord::LEN] {
    let mut record = group.record;
    McMemberRecord::of_mut(&mut record)
        .set_port_gid(member.rid.port_gid)
        .set_join_state(JoinState(member.join_state))
        .set_proxy_join(member.proxy_join);
    record
}

/// Criteria other than equality of fields.
struct Terms {
    /// P_Key of the partition: either this one or the group's must have the full-member bit.
    pkey: Option<ib_mad::types::PKey>,
    mtu: Option<(Selector, u8)>,
    /// By rank.
    rate: Option<(Selector, u8)>,
    lifetime: Option<(Selector, u8)>,
}

impl Terms {
    /// A value without its selector, or a selector without its value, constrains nothing.
    fn read(query: &Query<'_>, request: &McMemberRecord<&[u8; DATA_LEN]>) -> Result<Self, Refusal> {
        let constraint = |components, selector, value: Option<u8>| {
            if !query.mask.contains(components) {
                return Ok(None);
            }
            let value = value.ok_or(Refusal::Status(Status::SA_REQ_INVALID))?;
            Ok(Some((selector, value)))
        };
        Ok(Self {
            pkey: query.mask.contains(mc_member::PKEY).then(|| request.pkey()),
            mtu: constraint(
                mc_member::MTU_SELECTOR | mc_member::MTU,
                request.mtu_selector(),
                Mtu::from_code(request.mtu()).map(Mtu::code),
            )?,
            rate: constraint(
                mc_member::RATE_SELECTOR | mc_member::RATE,
                request.rate_selector(),
                Rate::from_code(request.rate()).map(Rate::rank),
            )?,
            lifetime: constraint(
                mc_member::PACKET_LIFE_TIME_SELECTOR | mc_member::PACKET_LIFE_TIME,
                request.packet_life_time_selector(),
                Some(request.packet_life_time().code()),
            )?,
        })
    }

    fn accept(&self, group: &McMemberRecord<&[u8; McMemberRecord::LEN]>) -> bool {
        let rank = Rate::from_code(group.rate()).map_or(0, Rate::rank);
        self.pkey.is_none_or(|pkey| pkey.matches(group.pkey()))
            && fits(self.mtu, group.mtu())
            && fits(self.rate, rank)
            && fits(self.lifetime, group.packet_life_time().code())
    }
}

fn fits(constraint: Option<(Selector, u8)>, have: u8) -> bool {
    let Some((selector, value)) = constraint else { return true };
    match selector {
        Selector::Greater => have > value,
        Selector::Less => have < value,
        Selector::Exactly => have == value,
        Selector::Largest => true,
    }
}
