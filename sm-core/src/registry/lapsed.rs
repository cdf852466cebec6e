//! Ports that have lost registrations because they left the fabric: a new master asks them to
//! register again, also if they came back before it was master.

use ib_mad::types::Guid;
use sa_proto::snapshot::LapsedPort;

use super::Core;

/// Ports that are remembered. Further ones are counted and forgotten: a new master does not ask
/// them.
pub(super) const LAPSED_PORTS_MAX: usize = 1 << 16;

/// A port that left the fabric has lost something.
pub(super) fn lapse(core: &mut Core, port_guid: Guid) {
    if core.lapsed_ports.len() < LAPSED_PORTS_MAX || core.lapsed_ports.get(port_guid).is_some() {
        core.lapsed_ports.put(LapsedPort { port_guid });
    } else {
        core.counters.lapses_forgotten += 1;
    }
}

/// Ports were asked to register again, and have answered.
pub(super) fn asked(core: &mut Core, ports: &[Guid]) {
    for port_guid in ports {
        core.lapsed_ports.remove(*port_guid);
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::{Gid, PKey, SUBNET_PREFIX_DEFAULT};
    use ib_mad::wire::mad::{Method, Status};
    use ib_mad::wire::record::mc_member::component as mc;
    use ib_mad::wire::record::{JoinState, McMemberRecord};
    use ib_mad::wire::sa::{ComponentMask, attribute};

    use super::*;
    use crate::registry::testing::{GUIDS, NOW_S, end_ports, gid, ports, request};
    use crate::registry::{Ports, Registry, Request};

    fn lapsed(registry: &Registry) -> Vec<Guid> {
        registry.plane().lapsed_ports.iter().map(|row| row.port_guid).collect()
    }

    fn without(lid: u16) -> Ports {
        let there = end_ports().into_iter().filter(|port| port.lid.0 != lid).collect();
        Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], there)
    }

    fn join(slid: u16) -> Request {
        let mut mgid = Gid([0; 16]);
        (mgid.0[0], mgid.0[1], mgid.0[15]) = (0xFF, 0x12, 1);
        let mut record = [0; 52];
        McMemberRecord::of_mut(&mut record)
            .set_mgid(mgid)
            .set_port_gid(gid(slid))
            .set_pkey(PKey::DEFAULT_FULL)
            .set_join_state(JoinState(1));
        let mask =
            [mc::PORT_GID, mc::JOIN_STATE, mc::QKEY, mc::TCLASS, mc::PKEY, mc::FLOW_LABEL, mc::SL];
        let mask = mask.into_iter().fold(mc::MGID, ComponentMask::union);
        request(slid, Method::SET, attribute::MC_MEMBER_RECORD, mask, &record)
    }

    /// Regression: with a store that managers share, a port that had lost its memberships with a
    /// link, and was back before a takeover, was never asked to register again.
    #[test]
    fn a_port_that_lost_memberships_is_remembered_until_it_is_asked() {
        let mut registry = Registry::default();
        for lid in [2, 3] {
            let reply = registry.write(NOW_S, &ports(), &join(lid));
            assert_eq!(reply.status, Status::OK);
        }
        registry.fabric_changed(&without(4));
        assert_eq!(lapsed(&registry), [], "it had registered nothing");
        registry.fabric_changed(&without(2));
        assert_eq!(lapsed(&registry), [GUIDS[1]]);
        registry.fabric_changed(&ports());
        // It does not know yet what it has lost.
        assert_eq!(registry.write(NOW_S, &ports(), &join(2)).status, Status::OK);
        let mut restored = Registry::restore(&registry.plane(), []);
        assert_eq!(lapsed(&restored), [GUIDS[1]]);
        restored.ports_asked(&GUIDS[1..3]);
        assert_eq!(lapsed(&restored), []);
    }
}
