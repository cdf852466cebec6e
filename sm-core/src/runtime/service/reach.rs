//! Which ports of responders clients are led to.

use std::collections::BTreeMap;
use std::time::Instant;

use ib_mad::types::{Gid, Guid, PKey, Qpn, Sl};
use ib_mad::wire::attribute::PortState;
use tracing::warn;

use super::Service;
use crate::fabric::PortIndex;
use crate::front_door::Target;
use crate::manage::shard::{Candidate, PortUse, TakeOver};
use crate::sweep::Start;

/// The port of a responder that serves.
struct Serving {
    id: u64,
    qpn: Qpn,
    usage: PortUse,
}

impl Service {
    /// Tells those who lead clients to responders which of them there are.
    pub(super) fn lead_clients(&mut self, now: Instant) {
        let serving = self.serving();
        let (targets, candidates) = self.led_to(&serving);
        self.door.set_targets(targets, self.sweeper.sls_of_paths());
        if self.config.reach.shard.is_none() {
            return;
        }
        let wanted = self.seats.follow(now, &candidates, self.config.reach.lid_takeover);
        if let Some(what) = wanted
            && self.sweeper.take_over(now, what) == Start::Impossible
        {
            warn!("no port can take over from port {}", what.old);
            self.seats.give_up(what);
        }
        self.sweeper.spread_clients(now, &self.seats.list());
    }

    pub(super) fn taken_over(&mut self, what: TakeOver, done: bool) {
        if done {
            self.seats.taken_over(what);
        } else {
            self.seats.give_up(what);
        }
    }

    /// Ports of responders that serve, by GUID.
    fn serving(&self) -> BTreeMap<Guid, Serving> {
        let responders = self.publisher.responders();
        let responders = responders.load();
        let serving = responders.iter().filter(|entry| entry.serving.is_some());
        serving
            .filter_map(|entry| {
                let (guid, qpn) = entry.port?;
                Some((guid, Serving { id: entry.id, qpn, usage: entry.usage }))
            })
            .collect()
    }

    /// Those of them that everybody can ask: to be redirected to, ascending by the responder's
    /// identity, and to be found by MasterSMLID.
    fn led_to(&self, serving: &BTreeMap<Guid, Serving>) -> (Vec<Target>, Vec<Candidate>) {
        let (mut targets, mut candidates) = (Vec::new(), Vec::new());
        if serving.is_empty() {
            return (targets, candidates);
        }
        let (fabric, settings) = (self.sweeper.fabric(), self.sweeper.settings());
        let usual = Sl::from_low_bits(u16::from(settings.sm_sl));
        let sl = self.sweeper.sl_between_hosts().unwrap_or(usual);
        for port in fabric.end_ports().filter(|&port| self.can_be_asked(port)) {
            let entry = fabric.port(port);
            let Some(&Serving { id, qpn, usage }) = serving.get(&entry.guid) else { continue };
            // What waits for another's LID is found by that.
            let is_seat = self.seats.list().iter().any(|seat| seat.port == entry.guid);
            if usage != PortUse::Spare || is_seat {
                targets.push(Target {
                    id,
                    lid: entry.base_lid(),
                    gid: Gid::new(settings.subnet_prefix, entry.guid),
                    pkey: PKey::DEFAULT_FULL,
                    qpn,
                    sl,
                });
            }
            // By MasterSMLID QP1 is asked, and no other.
            if qpn == Qpn::GSI {
                candidates.push(Candidate { port: entry.guid, usage });
            }
        }
        targets.sort_unstable_by_key(|target| target.id);
        (targets, candidates)
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
