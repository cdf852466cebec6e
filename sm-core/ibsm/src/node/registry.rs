//! Exchange with the registry: it gets the fabric and events, and returns members of multicast
//! groups, GUID blocks and relayed traps.

use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::{Guid, Lid};
use tracing::debug;

use super::transmit::TransmitQueue;
use super::{Node, RegistryLink};
use sm_config::Settings;
use sm_core::fabric::SubnetParameters;
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::manage::partition;
use sm_core::notice::{Event, Issuer};
use sm_core::registry::{self, Ports, PredefinedGroup};
use sm_core::sweep::{ImportedRegistry, PortsChanged, Sweeper, TrapNotice};

/// The registry, and the data last sent to it.
pub(super) struct RegistryExchange {
    link: Arc<dyn RegistryLink>,
    /// Ports by LID as of the last sweep, for traps, which name their sender by LID.
    ports: Option<Ports>,
    /// Partitions that programs made, as last passed to the sweep.
    partitions: Option<Arc<ApiPartitions>>,
}

impl RegistryExchange {
    pub(super) fn new(link: Arc<dyn RegistryLink>) -> Self {
        Self { link, ports: None, partitions: None }
    }

    pub(super) fn link(&self) -> &dyn RegistryLink {
        &*self.link
    }

    /// GUID of the port with a LID, as of the last sweep.
    pub(super) fn port_guid(&self, lid: Lid) -> Option<Guid> {
        self.ports.as_ref()?.by_lid(lid).map(|port| port.guid)
    }

    /// State of the SA database that the registry begins with.
    pub(super) fn imported(&self) -> ImportedRegistry {
        self.link.imported()
    }

    /// Sequence number of the registry that is published.
    pub(super) fn sequence(&self) -> u64 {
        self.link.sequence()
    }

    /// Accepts writes from now on, or refuses them.
    pub(super) fn set_open(&self, open: bool) {
        self.link.set_open(open);
    }

    /// Lets writes be acknowledged until this time; `None`: they wait.
    pub(super) fn acknowledge_until(&self, until: Option<Instant>) {
        self.link.acknowledge_until(until);
    }

    /// Reports events to subscribers.
    pub(super) fn notify(&self, events: Vec<Event>) {
        self.link.notify(events);
    }

    /// Passes partitions of programs to the sweep, if they changed; returns whether they did.
    pub(super) fn pass_partitions(&mut self, now: Instant, sweeper: &mut Sweeper) -> bool {
        let partitions = self.link.api_partitions();
        let is_same = match (&partitions, &self.partitions) {
            (Some(new), Some(known)) => Arc::ptr_eq(new, known),
            (new, known) => new.is_none() && known.is_none(),
        };
        if !is_same {
            self.partitions.clone_from(&partitions);
            sweeper.put_api_partitions(now, partitions);
        }
        !is_same
    }

    /// Takes changes of the registry; returns whether there were any.
    pub(super) fn exchange(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        transmit: &mut TransmitQueue,
    ) -> bool {
        let membership = self.link.changed_membership();
        let mut any = !membership.is_empty();
        any |= self.pass_partitions(now, sweeper);
        sweeper.put_members(membership);
        let blocks = self.link.changed_guid_blocks();
        if !blocks.is_empty() {
            any = true;
            sweeper.put_guid_blocks(now, &blocks);
        }
        while let Some(trap) = self.link.next_trap() {
            any = true;
            let (lid, sl) = (trap.address.lid, trap.address.sl);
            // TrapRepress is sent from here, not by the responder: the M_Key stays here.
            if let Some(repress) = sweeper.handle_relayed_trap(now, &trap.mad, lid, sl) {
                transmit.push_answer(&repress);
            }
        }
        any
    }
}

impl Node {
    /// Sends the registry the ports that a sweep found.
    pub(super) fn update_registry(&mut self, parameters: &SubnetParameters) {
        let settings = registry_settings(self.sweeper.settings());
        let mut ports = Ports::of(self.sweeper.fabric(), parameters, settings);
        ports.set_known(self.sweeper.known_guids());
        self.registry.ports = Some(ports.clone());
        let link = self.registry.link();
        link.fabric_changed(ports, self.predefined_groups(), self.issuer());
    }

    /// Groups that exist without a request of a client.
    fn predefined_groups(&self) -> Vec<PredefinedGroup> {
        let settings = self.sweeper.settings();
        let (partitions, memberships) = (self.sweeper.partitions(), self.sweeper.memberships());
        let groups = partition::groups(partitions, memberships, settings, settings.qos);
        groups.iter().map(PredefinedGroup::from).collect()
    }

    fn issuer(&self) -> Issuer {
        let fabric = self.sweeper.fabric();
        let sm_port = fabric.sm_port();
        Issuer {
            prefix: self.sweeper.settings().subnet_prefix,
            sm_lid: sm_port.map_or(Lid::NONE, |port| fabric.lids_of(port).0),
            sm_port_guid: sm_port.map(|port| fabric.port(port).guid).unwrap_or_default(),
        }
    }

    /// Events for subscribers: ports that came and went.
    pub(super) fn events_of_ports(&self, changed: &PortsChanged) -> Vec<Event> {
        let issuer = self.issuer();
        let went =
            changed.went.iter().map(|(port, pkeys)| issuer.port_out_of_service(*port, pkeys));
        let came = changed.came.iter().map(|(port, pkeys)| issuer.port_in_service(*port, pkeys));
        went.chain(came).collect()
    }

    /// The event for subscribers of a trap, if its sender is known.
    pub(super) fn event_of_trap(&self, trap: &TrapNotice) -> Option<Event> {
        let issuer = self.issuer();
        // The agent of the own port may not know its LID yet.
        let source = match trap.lid {
            Lid::NONE => Some(issuer.sm_port_guid),
            lid => self.registry.ports.as_ref()?.by_lid(lid).map(|port| port.guid),
        };
        if source.is_none() {
            debug!("trap from LID {} dropped: no port has this LID", trap.lid);
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
        drop_event_subscriptions: settings.drop_event_subscriptions,
        sa_key: Some(settings.sa_key),
        max_rate: settings.max_rate_enum,
        sm_assigned_guid: settings.sm_assigned_guid,
        ..registry::Settings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_registry_reach_it() {
        let site = Settings {
            consolidate_ipv6_snm_req: true,
            mcgroup_join_validation: false,
            ipoib_mcgroup_creation_validation: false,
            allow_both_pkeys: true,
            drop_event_subscriptions: true,
            sa_key: 0x5EC,
            max_rate_enum: 18,
            sm_assigned_guid: 0xA5,
            ..Settings::default()
        };
        let expected = registry::Settings {
            consolidate_ipv6_snm_req: true,
            mcgroup_join_validation: false,
            ipoib_mcgroup_creation_validation: false,
            allow_both_pkeys: true,
            drop_event_subscriptions: true,
            sa_key: Some(0x5EC),
            max_rate: 18,
            sm_assigned_guid: 0xA5,
            ..registry::Settings::default()
        };
        assert_eq!(registry_settings(&site), expected);
    }
}
