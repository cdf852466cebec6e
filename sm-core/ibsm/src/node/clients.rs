//! Which ports of responders clients are led to, by redirection and sharding.

use std::collections::BTreeMap;
use std::time::Instant;

use ib_mad::types::{Gid, Guid, PKey, Qpn, Sl};
use ib_mad::wire::attribute::PortState;
use tracing::warn;

use super::Node;
use crate::cli::SaAccess;
use crate::front_door::Target;
use sm_core::fabric::PortIndex;
use sm_core::manage::shard::{Candidate, PortUse, SaLids, TakeOver};
use sm_core::sweep::TakeOverStart;

/// How clients are distributed over responders.
pub(super) struct Clients {
    /// Whether they are sharded.
    shards: bool,
    /// Whether the LID of a failed responder's port moves to a spare one.
    lid_takeover: bool,
    /// LIDs that clients query instead of the SM's.
    sa_lids: SaLids,
}

impl Clients {
    pub(super) fn new(access: &SaAccess) -> Self {
        Self {
            shards: access.shard.is_some(),
            lid_takeover: access.lid_takeover,
            sa_lids: SaLids::default(),
        }
    }

    /// A takeover of a LID has ended.
    pub(super) fn taken_over(&mut self, what: TakeOver, done: bool) {
        if done {
            self.sa_lids.taken_over(what);
        } else {
            self.sa_lids.give_up(what);
        }
    }
}

/// The port of a responder that serves.
struct Serving {
    id: u64,
    qpn: Qpn,
    usage: PortUse,
}

impl Node {
    /// Makes ports of new responders full members of the default partition.
    pub(super) fn follow_responders(&mut self, now: Instant) {
        let responders = self.responders.load();
        let ports: Vec<_> = responders.iter().filter_map(|entry| Some(entry.port?.0)).collect();
        if self.sweeper.set_responder_ports(ports) {
            self.sweeper.request_heavy_sweep(now);
        }
    }

    /// Updates the targets of redirection and sharding with the responders that serve.
    pub(super) fn lead_clients(&mut self, now: Instant) {
        let serving = self.serving();
        let (targets, candidates) = self.led_to(&serving);
        self.door.set_targets(targets, self.sweeper.sls_of_paths());
        if !self.clients.shards {
            return;
        }
        let Clients { sa_lids, lid_takeover, .. } = &mut self.clients;
        let wanted = sa_lids.follow(now, &candidates, *lid_takeover);
        if let Some(what) = wanted
            && self.sweeper.take_over(now, what) == TakeOverStart::Impossible
        {
            warn!("no spare responder port can take over the LID of port {}", what.old);
            self.clients.sa_lids.give_up(what);
        }
        // A responder may be absent for a moment; spare ports have it before they take over.
        let seats = self.clients.sa_lids.list();
        let ports = seats.iter().map(|seat| seat.port);
        let ports = ports.chain(candidates.iter().map(|candidate| candidate.port));
        self.sweeper.set_sa_ports(now, ports);
        self.sweeper.spread_clients(now, &seats);
    }

    /// Ports of responders that serve this SM's session, by GUID.
    fn serving(&self) -> BTreeMap<Guid, Serving> {
        let Some(session) = self.publication.feed().session() else { return BTreeMap::new() };
        let responders = self.responders.load();
        let serving = responders.iter().filter(|entry| entry.serves(session));
        serving
            .filter_map(|entry| {
                let (guid, qpn) = entry.port?;
                Some((guid, Serving { id: entry.id, qpn, usage: entry.usage }))
            })
            .collect()
    }

    /// Of these, the responders that every client can query: redirection targets, ascending by
    /// responder id, and candidates for MasterSMLID.
    fn led_to(&self, serving: &BTreeMap<Guid, Serving>) -> (Vec<Target>, Vec<Candidate>) {
        let (mut targets, mut candidates) = (Vec::new(), Vec::new());
        if serving.is_empty() {
            return (targets, candidates);
        }
        let (fabric, settings) = (self.sweeper.fabric(), self.sweeper.settings());
        let usual = Sl::from_low_bits(u16::from(settings.sm_sl));
        let sl = self.sweeper.sl_between_hosts().unwrap_or(usual);
        for port in fabric.end_ports().filter(|&port| self.can_be_queried(port)) {
            let entry = fabric.port(port);
            let Some(&Serving { id, qpn, usage }) = serving.get(&entry.guid) else { continue };
            // A spare port that took over a LID is queried by that LID.
            let is_seat =
                self.clients.sa_lids.list().iter().any(|sa_lid| sa_lid.port == entry.guid);
            if usage != PortUse::Spare || is_seat {
                targets.push(Target {
                    id,
                    lid: fabric.lids_of(port).0,
                    gid: Gid::new(settings.subnet_prefix, entry.guid),
                    pkey: PKey::DEFAULT_FULL,
                    qpn,
                    sl,
                });
            }
            // Queries to MasterSMLID arrive at QP1 only.
            if qpn == Qpn::GSI {
                candidates.push(Candidate { port: entry.guid, usage });
            }
        }
        targets.sort_unstable_by_key(|target| target.id);
        (targets, candidates)
    }

    /// Whether every client can query the port: it is up, has a LID that is not the SM's, and is a
    /// full member of the default partition.
    fn can_be_queried(&self, port: PortIndex) -> bool {
        let fabric = self.sweeper.fabric();
        let entry = fabric.port(port);
        entry.state() == Some(PortState::Active)
            && fabric.lids_of(port).0.is_unicast()
            && Some(port) != fabric.sm_port()
            && fabric.pkeys_of(port).contains(&PKey::DEFAULT_FULL)
    }
}
