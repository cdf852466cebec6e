//! The answer to `ibsmctl status`.

use std::time::{Instant, SystemTime};

use sa_proto::proto::admin;
use sa_proto::snapshot::Version;
use sa_proto::state::StateVersion;

use super::{Shared, certificate_end};
use crate::observe::problem::{Condition, Kind, Problem, Subject};
use crate::observe::{CopyStatus, Follower, Responder};
use sm_core::sweep::Peer;

impl Shared {
    /// Problems that the publisher knows of.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let subnet = |kind, text| Condition::new(kind, Subject::subnet(), text);
        let sync = self.sync_warning().map(|text| subnet(Kind::NoFollower, text));
        let state = self.state.warning().map(|text| subnet(Kind::StateTooLong, text));
        let certificate = self.certificate.load().as_deref().cloned();
        let perf = self.perf.conditions(self.clock.now());
        let congestion = self.congestion.conditions();
        let responders = self.responders.load();
        let of_responder = |one| certificate_end::of_responder(one, SystemTime::now());
        let of_responders: Vec<Condition> = responders.iter().filter_map(of_responder).collect();
        let own = sync.into_iter().chain(state).chain(certificate).chain(of_responders);
        own.chain(perf).chain(congestion).collect()
    }

    /// The list of problems.
    pub(super) fn problems(&self, now: Instant) -> admin::Problems {
        let problems = self.problems.load();
        admin::Problems {
            problems: problems.listed.iter().map(|one| problem(one, now)).collect(),
            unlisted: problems.unlisted() as u64,
        }
    }

    /// Whether this SM publishes as master.
    pub(super) fn is_master(&self) -> bool {
        self.announced.borrow().fabric_generation != 0
    }

    /// A warning while writes should wait for a standby, and none is in step.
    fn sync_warning(&self) -> Option<String> {
        let (awaited, _) = self.sync.counts().filter(|_| self.is_master())?;
        (awaited == 0).then(|| {
            "--follow-sync: no standby is in step; registrations are acknowledged without a copy"
                .to_owned()
        })
    }

    /// The answer to `ibsmctl status`.
    pub(super) fn status(&self) -> admin::Status {
        let latest = self.history().latest().clone();
        let (version, fabric) = (latest.version(), latest.fabric());
        let sm = self.sm.load();
        let counter = |(name, value): (&str, u64)| admin::Counter { name: name.into(), value };
        let named = |(name, value): &(String, u64)| counter((name, *value));
        let responders = self.responders.load();
        let state = StateVersion { session: version.session, number: self.state.number() };
        let own = self.conditions();
        let sa_guid = |responder: &Responder| {
            let (port, _) = responder.port?;
            let at = sm.sa_guids.binary_search_by_key(&port, |(guid, _)| *guid).ok()?;
            Some(sm.sa_guids[at].1.name())
        };
        admin::Status {
            sm_state: sm.state.clone(),
            software: concat!("ibsm ", env!("CARGO_PKG_VERSION")).into(),
            sm_guid: sm.guid.unwrap_or(version.session.sm_guid).0,
            epoch: version.session.epoch,
            fabric_generation: version.fabric_generation,
            registry_sequence: version.registry_sequence,
            nodes: fabric.nodes.len() as u32,
            switches: fabric.nodes.iter().filter(|node| node.switch_info.is_some()).count() as u32,
            ports: fabric.nodes.iter().map(|node| node.ports.len() as u32).sum(),
            followers: responders
                .iter()
                .filter_map(|entry| Some(follower(entry, entry.follower?, version, state)))
                .collect(),
            responders: responders
                .iter()
                .filter(|responder| responder.follower.is_none())
                .map(|responder| admin::Responder {
                    id: responder.id,
                    name: responder.name.to_string(),
                    software: responder.software.to_string(),
                    front_door: responder.front_door.iter().map(|a| a.to_string()).collect(),
                    port_guid: responder.port.map_or(0, |(guid, _)| guid.0),
                    qpn: responder.port.map_or(0, |(_, qpn)| qpn.0),
                    current: responder.serving == Some(version),
                    epoch: responder.serving.map_or(0, |serving| serving.session.epoch),
                    fabric_generation: responder.serving.map_or(0, |v| v.fabric_generation),
                    registry_sequence: responder.serving.map_or(0, |v| v.registry_sequence),
                    connected_s: responder.since.elapsed().as_secs(),
                    counters: responder.stats.iter().map(named).collect(),
                    sa_guid: sa_guid(responder).unwrap_or_default().to_owned(),
                })
                .collect(),
            counters: sm
                .counters
                .iter()
                .map(named)
                .chain(self.counted().into_iter().map(|(name, _, value)| counter((name, value))))
                .collect(),
            uptime_s: self.started.elapsed().as_secs(),
            subnet_up: sm.subnet_up,
            warnings: sm.warnings.iter().cloned().chain(own.iter().map(Condition::text)).collect(),
            routing_engine: sm.routing_engine.clone(),
            engines_passed_over: sm.engines_passed_over.clone(),
            priority: sm.priority.into(),
            peers: sm.peers.iter().map(peer).collect(),
            following: sm.copy.as_ref().map(CopyStatus::to_string).unwrap_or_default(),
            registry_copy: sm.copy.as_ref().map(copy),
            sa_port: sm.sa_port.clone(),
            store: sm.store.clone(),
            takes_over_after_ms: sm.takes_over_after.as_millis() as u64,
            sm_lid: sm.lid.0.into(),
            lmc: sm.lmc.into(),
            subnet_prefix: sm.subnet_prefix,
            problems: Some(self.problems(self.clock.now())),
            sweeping: (!sm.state.is_empty()).then_some(sm.sweeping),
        }
    }
}

fn problem(problem: &Problem, now: Instant) -> admin::Problem {
    admin::Problem {
        id: problem.id.clone(),
        kind: problem.kind.label().to_owned(),
        severity: problem.severity().name().to_owned(),
        name: problem.subject.name.clone(),
        guid: problem.subject.guid.map_or(0, |guid| guid.0),
        port: problem.subject.port.map(|port| port.0.into()),
        detail: problem.detail.clone(),
        text: problem.text(),
        remedy: problem.remedy.to_owned(),
        since_ms: problem.since_ms,
        for_s: now.saturating_duration_since(problem.since).as_secs(),
        count: problem.count,
    }
}

fn follower(
    entry: &Responder,
    follower: Follower,
    published: Version,
    state: StateVersion,
) -> admin::Follower {
    let Follower { sm_guid, stored, state: has, in_step, since, awaited, .. } = follower;
    let stored = stored.unwrap_or_default();
    let is_of_session = stored.session == published.session;
    let had = if is_of_session { stored.sequence } else { 0 };
    admin::Follower {
        port_guid: sm_guid.0,
        name: entry.name.to_string(),
        in_step,
        since_s: since.elapsed().as_secs(),
        epoch: stored.session.epoch,
        registry_sequence: stored.sequence,
        lag: published.registry_sequence.saturating_sub(had),
        awaited,
        has_state: has == Some(state),
        files: entry.files_differ.as_deref().map(comparison),
    }
}

fn comparison(different: &[String]) -> admin::FileComparison {
    admin::FileComparison { different: different.to_vec() }
}

fn copy(copy: &CopyStatus) -> admin::RegistryCopy {
    admin::RegistryCopy {
        in_step: copy.in_step,
        since_s: copy.since.as_secs(),
        epoch: copy.stored.session.epoch,
        registry_sequence: copy.stored.sequence,
        lag: copy.lag,
        contact_ms: copy.contact.map(|ago| ago.as_millis() as u64),
        has_state: copy.has_state,
        files: copy.files_differ.as_deref().map(comparison),
        follows_config: copy.follows_config,
    }
}

fn peer(peer: &Peer) -> admin::Peer {
    admin::Peer {
        port_guid: peer.port_guid.0,
        place: peer.place.clone(),
        lid: peer.lid.0.into(),
        sm_state: peer.state.to_string(),
        priority: peer.priority.into(),
        answered_ms: peer.answered.map(|ago| ago.as_millis() as u64),
        polls_missed: peer.polls_missed,
    }
}
