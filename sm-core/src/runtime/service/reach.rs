//! Which ports of responders clients are led to.

use std::collections::BTreeMap;

use ib_mad::types::{Gid, Guid, PKey, Qpn, Sl};
use ib_mad::wire::attribute::PortState;

use super::Service;
use crate::fabric::PortIndex;
use crate::front_door::Target;

impl Service {
    /// Tells those who lead clients to responders which of them there are.
    pub(super) fn lead_clients(&mut self) {
        let targets = self.targets();
        self.door.set_targets(targets);
    }

    /// Ports of responders that serve, ascending by the responder's identity.
    fn targets(&self) -> Vec<Target> {
        let responders = self.publisher.responders();
        let responders = responders.load();
        let serving: BTreeMap<Guid, (u64, Qpn)> = responders
            .iter()
            .filter(|entry| entry.serving.is_some())
            .filter_map(|entry| entry.port.map(|(guid, qpn)| (guid, (entry.id, qpn))))
            .collect();
        if serving.is_empty() {
            return Vec::new();
        }
        let (fabric, settings) = (self.sweeper.fabric(), self.sweeper.settings());
        let mut targets: Vec<Target> = fabric
            .end_ports()
            .filter(|&port| self.can_be_asked(port))
            .filter_map(|port| {
                let entry = fabric.port(port);
                let &(id, qpn) = serving.get(&entry.guid)?;
                Some(Target {
                    id,
                    lid: entry.base_lid(),
                    gid: Gid::new(settings.subnet_prefix, entry.guid),
                    pkey: PKey::DEFAULT_FULL,
                    qpn,
                    sl: Sl::from_low_bits(u16::from(settings.sm_sl)),
                })
            })
            .collect();
        targets.sort_unstable_by_key(|target| target.id);
        targets
    }

    /// Whether everybody can ask the port: it is up, has a LID that is not the SM's, and is a full
    /// member of the default partition.
    fn can_be_asked(&self, port: PortIndex) -> bool {
        let fabric = self.sweeper.fabric();
        let entry = fabric.port(port);
        entry.state() == Some(PortState::Active)
            && entry.base_lid().is_unicast()
            && Some(port) != fabric.home()
            && entry.pkeys.contains(&PKey::DEFAULT_FULL)
    }
}
