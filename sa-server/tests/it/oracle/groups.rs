//! MCMemberRecord, which is not like the others: groups for some, members for others, and
//! components that are not compared bit by bit.

use ib_mad::types::{Gid, Mtu, PKey, Rate};
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::mc_member::component as mc_member;
use ib_mad::wire::record::{JoinState, McMemberRecord, Selector};

use super::records::Record;
use super::world::World;
use super::{Request, is_equal};

/// Components that the plain comparison does not know.
const SPECIAL: &[&str] = &[
    "PortGID",
    "P_Key",
    "MtuSelector",
    "Mtu",
    "RateSelector",
    "Rate",
    "PacketLifeTimeSelector",
    "PacketLifeTime",
];

/// Records of all members, and of all groups as such.
pub(crate) fn templates(world: &World) -> Vec<Record> {
    let mut all: Vec<Record> = Vec::new();
    for group in world.registry.groups.iter() {
        let view = McMemberRecord::new(&group.record[..]).unwrap();
        let of_group = |bytes: Vec<u8>| Record {
            bytes,
            public: group.record.to_vec(),
            partition: Some(view.pkey()),
            ..Record::default()
        };
        for member in world.registry.members.iter().filter(|row| row.rid.mgid == group.mgid) {
            let mut bytes = group.record.to_vec();
            McMemberRecord::new(&mut bytes[..])
                .unwrap()
                .set_port_gid(member.rid.port_gid)
                .set_join_state(JoinState(member.join_state))
                .set_proxy_join(member.proxy_join);
            all.push(of_group(bytes));
        }
        // Compared as if it were a full member without a name.
        let mut bytes = group.record.to_vec();
        McMemberRecord::new(&mut bytes[..]).unwrap().set_join_state(JoinState::FULL_MEMBER);
        all.push(of_group(bytes));
    }
    all
}

pub(crate) fn expected(
    world: &World,
    request: &Request,
    visible: impl Fn(&Record) -> bool,
) -> Result<Vec<Vec<u8>>, Status> {
    let asked = McMemberRecord::new(&request.bytes[..]).unwrap();
    let has = |component| request.mask.contains(component);
    let by_mtu = has(mc_member::MTU_SELECTOR | mc_member::MTU);
    let by_rate = has(mc_member::RATE_SELECTOR | mc_member::RATE);
    let by_life = has(mc_member::PACKET_LIFE_TIME_SELECTOR | mc_member::PACKET_LIFE_TIME);
    let is_unknown = (by_mtu && Mtu::from_code(asked.mtu()).is_none())
        || (by_rate && Rate::from_code(asked.rate()).is_none());
    if is_unknown {
        return Err(Status::SA_REQ_INVALID);
    }
    let mbps = |code| Rate::from_code(code).map(Rate::mbps);
    let mut found = Vec::new();
    for record in templates(world) {
        let view = McMemberRecord::new(&record.bytes[..]).unwrap();
        let is_member = view.port_gid() != Gid::ZERO;
        let wants_members = request.trusted || has(mc_member::PORT_GID);
        let talks = |a: PKey, b: PKey| a.matches(b);
        let fits = is_member == wants_members
            && (!has(mc_member::PORT_GID) || asked.port_gid().guid() == view.port_gid().guid())
            && (!has(mc_member::PKEY) || talks(asked.pkey(), view.pkey()))
            && (!by_mtu || compare(asked.mtu_selector(), view.mtu(), asked.mtu()))
            && (!by_rate || compare(asked.rate_selector(), mbps(view.rate()), mbps(asked.rate())))
            && (!by_life
                || compare(
                    asked.packet_life_time_selector(),
                    view.packet_life_time().code(),
                    asked.packet_life_time().code(),
                ));
        if fits && is_equal(request, &record.bytes, SPECIAL) && visible(&record) {
            found.push(if request.trusted { record.bytes } else { record.public });
        }
    }
    found.sort();
    Ok(found)
}

fn compare<T: PartialOrd>(selector: Selector, have: T, asked: T) -> bool {
    match selector {
        Selector::Greater => have > asked,
        Selector::Less => have < asked,
        Selector::Exactly => have == asked,
        Selector::Largest => true,
    }
}
