//! What the loop and the registry's thread tell each other: the fabric and events one way, who
//! belongs to which multicast group and relayed traps the other.

use std::time::Instant;

use ib_mad::types::Lid;
use tracing::debug;

use super::Service;
use crate::config::Settings;
use crate::fabric::SubnetParameters;
use crate::manage::partition;
use crate::notice::{Event, Issuer};
use crate::registry::{self, Ports, PredefinedGroup};
use crate::sweep::{PortsChanged, TrapNotice};

impl Service {
    /// Takes what the registry's thread has for us; whether there was anything.
    pub(super) fn exchange_registry(&mut self, now: Instant) -> bool {
        let membership = self.registry.changed_membership();
        let mut any = !membership.is_empty();
        self.sweeper.put_members(membership);
        let blocks = self.registry.changed_guid_blocks();
        if !blocks.is_empty() {
            any = true;
            self.sweeper.put_guid_blocks(now, &blocks);
        }
        while let Some(trap) = self.registry.next_trap() {
            any = true;
            let (lid, sl) = (trap.address.lid, trap.address.sl);
            // What stops its repetition is sent by us: the M_Key stays here.
            if let Some(repress) = self.sweeper.handle_relayed_trap(now, &trap.mad, lid, sl) {
                self.answers.push(&repress);
            }
        }
        any
    }

    /// Tells the registry what a sweep left.
    pub(super) fn tell_registry(&mut self, parameters: &SubnetParameters) {
        let settings = registry_settings(self.sweeper.settings());
        let ports = Ports::of(self.sweeper.fabric(), parameters, settings);
        self.ports = Some(ports.clone());
        self.registry.fabric_changed(ports, self.predefined_groups(), self.issuer());
    }

    /// Groups that are there without anybody creating them.
    fn predefined_groups(&self) -> Vec<PredefinedGroup> {
        let settings = self.sweeper.settings();
        let (partitions, memberships) = (self.sweeper.partitions(), self.sweeper.memberships());
        let groups = partition::groups(partitions, memberships, settings, settings.qos);
        groups.iter().map(PredefinedGroup::from).collect()
    }

    fn issuer(&self) -> Issuer {
        let fabric = self.sweeper.fabric();
        let home = fabric.home().map(|home| fabric.port(home));
        Issuer {
            prefix: self.sweeper.settings().subnet_prefix,
            sm_lid: home.map_or(Lid::NONE, |port| port.base_lid()),
            sm_port_guid: home.map(|port| port.guid).unwrap_or_default(),
        }
    }

    /// What subscribers may hear of ports that came and went.
    pub(super) fn events_of_ports(&self, changed: &PortsChanged) -> Vec<Event> {
        let issuer = self.issuer();
        let went =
            changed.went.iter().map(|(port, pkeys)| issuer.port_out_of_service(*port, pkeys));
        let came = changed.came.iter().map(|(port, pkeys)| issuer.port_in_service(*port, pkeys));
        went.chain(came).collect()
    }

    /// What subscribers may hear of a trap, if it is known who sent it.
    pub(super) fn event_of_trap(&self, trap: &TrapNotice) -> Option<Event> {
        let issuer = self.issuer();
        // Our own agent may not know its LID yet.
        let source = match trap.lid {
            Lid::NONE => Some(issuer.sm_port_guid),
            lid => self.ports.as_ref()?.by_lid(lid).map(|port| port.guid),
        };
        if source.is_none() {
            debug!("a trap from LID {}, where no port is known", trap.lid);
        }
        source.map(|source| issuer.trap(&trap.notice, source))
    }
}

fn registry_settings(settings: &Settings) -> registry::Settings {
    registry::Settings {
        consolidate_ipv6_snm_req: settings.consolidate_ipv6_snm_req,
        mcgroup_join_validation: settings.mcgroup_join_validation,
        ipoib_mcgroup_creation_validation: settings.ipoib_mcgroup_creation_validation,
        allow_both_pkeys: settings.allow_both_pkeys,
        max_rate: settings.max_rate_enum,
        sm_assigned_guid: settings.sm_assigned_guid,
        ..registry::Settings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_site_says_of_the_registry_reaches_it() {
        let site = Settings {
            consolidate_ipv6_snm_req: true,
            mcgroup_join_validation: false,
            ipoib_mcgroup_creation_validation: false,
            allow_both_pkeys: true,
            max_rate_enum: 18,
            sm_assigned_guid: 0xA5,
            ..Settings::default()
        };
        let expected = registry::Settings {
            consolidate_ipv6_snm_req: true,
            mcgroup_join_validation: false,
            ipoib_mcgroup_creation_validation: false,
            allow_both_pkeys: true,
            max_rate: 18,
            sm_assigned_guid: 0xA5,
            ..registry::Settings::default()
        };
        assert_eq!(registry_settings(&site), expected);
    }
}
