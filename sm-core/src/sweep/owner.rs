//! Owners of requests.
//!
//! Each kind of request has one owner, which the table in `smp::request` names: the part of the
//! manager that sends it, writes its data and handles its outcome. An owner sees the [`Subnet`] and
//! its own data: the stage under way, a field of the [`Sweeper`], or none.

use std::time::Instant;

use ib_mad::wire::mad::Status;

use super::Sweeper;
use super::configure::Addresses;
use super::current::Stage;
use super::election::OtherManagers;
use super::fdr10::Fdr10;
use super::handover::HandoverMessages;
use super::partitions::PKeyTables;
use super::qos::VlArbitration;
use super::sl_maps::SlMaps;
use super::subnet::Subnet;
use crate::smp::{Owner, Request};

/// A request, with its kind among those of its owner.
pub(super) struct OwnedRequest<K> {
    pub(super) kind: K,
    pub(super) request: Request,
    /// The time of the call.
    pub(super) now: Instant,
}

/// A part of the manager that sends requests. Each of its requests comes back to it exactly once:
/// by [`answered`](Self::answered), [`refused`](Self::refused) or [`silent`](Self::silent), unless
/// all requests are cancelled.
pub(super) trait RequestOwner {
    /// Its kinds of requests.
    type Kind;

    /// Returns the AttributeModifier, and writes what a Set() sets into `data`, which holds zeros.
    /// `None` if there is no longer anything to set. Called for every attempt.
    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32>;

    /// Handles the attribute of a response with status 0.
    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]);

    /// Handles a response with another status. By default, reports it.
    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        subnet.report_refusal(owned.request, status);
    }

    /// Handles a request that got no response after all attempts. By default, reports it.
    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        subnet.report_silence(owned.request);
    }
}

/// A step in the life of a request, which its owner handles.
pub(super) enum Step<'a> {
    /// The request is about to be sent: fill in this data.
    Encode(&'a mut [u8; 64]),
    /// A response with status 0 arrived, with this attribute.
    Answered(&'a [u8; 64]),
    /// A response with another status arrived.
    Refused(Status),
    /// No response arrived after all attempts.
    Silent,
}

/// A step of a request on its way to the owner.
struct Call<'a> {
    subnet: &'a mut Subnet,
    now: Instant,
    request: Request,
    step: Step<'a>,
}

impl Call<'_> {
    fn to<O: RequestOwner>(self, owner: &mut O, kind: O::Kind) -> Option<u32> {
        let Self { subnet, now, request, step } = self;
        let owned = OwnedRequest { kind, request, now };
        match step {
            Step::Encode(data) => return owner.encode(subnet, owned, data),
            Step::Answered(data) => owner.answered(subnet, owned, data),
            Step::Refused(status) => owner.refused(subnet, owned, status),
            Step::Silent => owner.silent(subnet, owned),
        }
        None
    }
}

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
