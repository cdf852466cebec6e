//! Passes requests and their outcomes to their owners.

use std::time::Instant;

use super::Sweeper;
use super::reach::Probe;
use crate::smp::{Owner, Request};
use crate::sweep::stages::Stage;
use crate::sweep::stages::configure::addresses::Addresses;
use crate::sweep::stages::election::OtherManagers;
use crate::sweep::stages::fdr10::Fdr10;
use crate::sweep::stages::handover::HandoverMessages;
use crate::sweep::stages::partitions::PKeyTables;
use crate::sweep::stages::qos::VlArbitration;
use crate::sweep::stages::sl_maps::SlMaps;
use crate::sweep::subnet::owner::{Call, Step};

impl Sweeper {
    /// Passes a step of a request to its owner. Returns the AttributeModifier if the request is to
    /// be sent, `None` otherwise. Requests of a stage that is not under way are dropped; there are
    /// none, since a stage ends after its requests.
    pub(super) fn pass_to_owner(
        &mut self,
        now: Instant,
        request: Request,
        step: Step<'_>,
    ) -> Option<u32> {
        let stage = &mut self.sweep.stage;
        let call = Call { subnet: &mut self.subnet, now, request, step };
        match request.kind.owner() {
            Owner::Discovery(kind) => {
                let Stage::Discover(discovery) = stage else { return None };
                call.to(&mut **discovery, kind)
            }
            Owner::LightSweep(kind) => {
                let Stage::Light(light) = stage else { return None };
                call.to(light, kind)
            }
            Owner::Inheritance(kind) => {
                let Stage::Inherit(inheriting) = stage else { return None };
                call.to(inheriting, kind)
            }
            Owner::ForwardingTables(kind) => {
                let Stage::Tables(programming) = stage else { return None };
                call.to(programming, kind)
            }
            Owner::Links(kind) => {
                let Stage::Links(links) = stage else { return None };
                call.to(links, kind)
            }
            Owner::TakeOver(kind) => {
                let Stage::TakeOver(take_over) = stage else { return None };
                call.to(take_over, kind)
            }
            Owner::Election(kind) => call.to(&mut OtherManagers, kind),
            Owner::Reach(kind) => call.to(&mut Probe, kind),
            Owner::Handover(kind) => call.to(&mut HandoverMessages, kind),
            Owner::Addresses(kind) => call.to(&mut Addresses, kind),
            Owner::PKeyTables(kind) => call.to(&mut PKeyTables, kind),
            Owner::SlMaps(kind) => call.to(&mut SlMaps, kind),
            Owner::VlArbitration(kind) => call.to(&mut VlArbitration, kind),
            Owner::Fdr10(kind) => call.to(&mut Fdr10, kind),
            Owner::DisabledPorts(kind) => call.to(&mut self.disabled_ports, kind),
            Owner::BabblingPorts(kind) => call.to(&mut self.babbling, kind),
            Owner::Multicast(kind) => call.to(&mut self.multicast, kind),
            Owner::Reregistration(kind) => call.to(&mut self.reregistration, kind),
            Owner::AliasGuids(kind) => call.to(&mut self.aliases, kind),
            Owner::VirtualPorts(kind) => call.to(&mut self.virtual_ports, kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use sm_config::Settings;

    use super::*;
    use crate::fabric::PortIndex;
    use crate::manage::lid::LidTable;
    use crate::smp::Kind;

    #[test]
    fn requests_of_a_stage_that_is_not_under_way_are_dropped() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let (now, port) = (Instant::now(), PortIndex::from_bits(0));
        let kinds = [
            Kind::PortInfo,
            Kind::PortChange,
            Kind::Forwarding,
            Kind::SetForwarding,
            Kind::Arm,
            Kind::MoveAddress,
        ];
        for request in kinds.map(|kind| Request::new(kind, port)) {
            let mut data = [0; 64];
            assert_eq!(sweeper.pass_to_owner(now, request, Step::Encode(&mut data)), None);
            sweeper.pass_to_owner(now, request, Step::Answered(&data));
            sweeper.pass_to_owner(now, request, Step::Silent);
            assert!(sweeper.subnet.exchange.is_idle() && sweeper.faults().is_empty());
        }
    }
}
