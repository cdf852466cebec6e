//! Episodes: what fails in each, how everything comes to rest after it, and how long clients wait
//! while one thing fails alone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fabric_sim::NodeIndex;
use ib_mad::types::Guid;
use ib_mad::wire::attribute::PortState;
use ibsm::node::SuccessionCounters;
use sa_proto::snapshot::RegistryVersion;

use super::{CALM, Event, Place, SETTLE_MAX, Summary, TICKS, World};
use crate::client::{ALIAS_INDEX, Client};
use crate::faults::Fault;
use crate::manager::Manager;
use crate::net::Proc;
use crate::responder::Responder;
use crate::violation::Violation;
use crate::waits;

/// How old the last confirmed contact with the master may be of a standby that says to be in step,
/// and some time for its answer.
const IN_STEP_MAX: Duration = Duration::from_secs(3);

/// For how long a manager vouches for its mastership, at most.
const VOUCHED_MAX: Duration = Duration::from_secs(4);
/// How long clients go on after a fault that may have changed the master: until that leads again.
const RETURN: Duration = Duration::from_secs(10);

/// What an episode consists of.
#[derive(Clone, Debug, Default)]
pub(super) struct Episode {
    /// Whether one thing fails alone.
    pub(super) is_single: bool,
    /// That thing, once it fails, and for how long it does.
    pub(super) fault: Option<(Fault, Duration)>,
    /// Whether the registry is in etcd, which is not empty: no takeover is incomplete.
    pub(super) is_shared: bool,
    /// Whether the disk of a manager failed.
    pub(super) disk_failed: bool,
    /// Whether a manager's process ended: the next one asks clients if it cannot tell whether
    /// another manager was master meanwhile.
    pub(super) manager_ended: bool,
    /// Whether two managers were master at once. Each sets at ports that it has the SA, of which
    /// clients are notified by a request to register again.
    pub(super) had_two_masters: bool,
    /// Whether it has begun: the first settling, before which all clients are asked, is over.
    pub(super) has_begun: bool,
}

/// Says what is not as it should be. Whether anything is, is asked often.
type Describe<'a> = Box<dyn FnOnce() -> String + 'a>;

fn because<'a>(describe: impl FnOnce() -> String + 'a) -> Option<Describe<'a>> {
    Some(Box::new(describe))
}

/// Totals of a manager's takeovers, if it runs.
fn succession_of(place: &Place<Manager>) -> Option<SuccessionCounters> {
    place.process.as_ref().map(Manager::succession)
}

impl World {
    /// Runs all episodes. Fails with what does not hold.
    pub fn run(&mut self) -> Result<Summary, Violation> {
        self.settle("at the start")?;
        for episode in 0..self.config.episodes {
            self.note(format_args!("episode {episode}: faults begin"));
            self.invents = true;
            if self.config.bursts {
                self.tick = TICKS[self.random.below(TICKS.len())];
            }
            let length = self.random.between(Duration::from_secs(3), Duration::from_secs(25));
            let end = self.now() + length;
            let is_single = self.config.single_faults && self.random.one_in(3);
            let is_shared = self.etcd.is_some();
            self.episode = Episode { is_single, is_shared, has_begun: true, ..Episode::default() };
            let faults = 2 * self.config.faults;
            let faults = match is_single {
                true => faults.min(1),
                false => faults.min(1 + self.random.below(faults.max(1))),
            };
            for _ in 0..faults {
                let first = self.random.between(Duration::ZERO, length / 2);
                let at = self.now() + first;
                self.schedule(at, Event::Fault);
            }
            self.run_until(end, |_| false)?;
            // Until it is over, and its master has returned.
            let over = self.episode.fault.as_ref().and_then(|(fault, lasts)| match fault {
                Fault::Hang(_) => Some(*lasts),
                _ if fault.may_change_master() => Some(*lasts + RETURN),
                _ => None,
            });
            if let Some(over) = over {
                let end = self.now() + over;
                self.run_until(end, |_| false)?;
            }
            self.note(format_args!("episode {episode}: faults end"));
            self.repair_all();
            self.settle(&format!("after episode {episode}"))?;
        }
        Ok(self.summary())
    }

    /// Runs until everything is as it should be without faults, checks that, and watches for a
    /// while longer.
    fn settle(&mut self, when: &str) -> Result<(), Violation> {
        self.invents = false;
        if let Some(reason) = self.run_until_settled(Duration::from_millis(250))? {
            return Err(Violation(format!(
                "{when}: not settled {} s after faults stopped: {reason}",
                SETTLE_MAX.as_secs()
            )));
        }
        self.check(when)?;
        let running = self.managers.iter().map(succession_of);
        self.oracle.forget_takeovers(running);
        self.note(format_args!("{when}: settled"));
        self.invents = true;
        (self.has_moved, self.was_split) = (false, false);
        self.episode = Episode { has_begun: true, ..Episode::default() };
        self.sources.clear();
        self.calm_since = Some(self.now());
        let end = self.now() + CALM;
        self.run_until(end, |_| false)?;
        self.invents = false;
        if let Some(reason) = self.run_until_settled(Duration::from_millis(10))? {
            return Err(Violation(format!(
                "{when}: no longer settled {} s after nothing failed: {reason}",
                SETTLE_MAX.as_secs()
            )));
        }
        self.check(when)
    }

    /// Runs until everything is as it should be, which is looked at in this interval; returns what
    /// is not after [`SETTLE_MAX`].
    fn run_until_settled(&mut self, interval: Duration) -> Result<Option<String>, Violation> {
        let end = self.now() + SETTLE_MAX;
        let mut next_look = self.now();
        self.run_until(end, |world| {
            let now = world.now();
            if now < next_look {
                return false;
            }
            next_look = now + interval;
            world.unsettled().is_none()
        })?;
        Ok(self.unsettled().map(|describe| describe()))
    }

    /// What is not yet as it should be.
    fn unsettled(&self) -> Option<Describe<'_>> {
        let processes = (0..self.managers.len()).map(Proc::Manager);
        let mut processes = processes.chain((0..self.responders.len()).map(Proc::Responder));
        if let Some(process) = processes.find(|process| !self.is_running(*process)) {
            return because(move || format!("{process:?} is not running"));
        }
        let publishing: Vec<_> = self.running().filter(|manager| manager.is_publishing()).collect();
        let [master] = publishing[..] else {
            return because(move || format!("{} managers publish", publishing.len()));
        };
        if !master.is_up() {
            return because(move || format!("the subnet is not up: {}", master.describe()));
        }
        for (index, place) in self.responders.iter().enumerate() {
            let serving = place.process.as_ref().into_iter().flat_map(Responder::serving);
            let mut versions = serving.map(|snapshot| snapshot.version());
            if !versions.any(|version| version == master.version()) {
                return because(move || {
                    format!(
                        "responder {index} does not serve {}, which is published",
                        master.version()
                    )
                });
            }
            let own = place.process.as_ref().and_then(Responder::serving_own);
            let own = own.map(|snapshot| snapshot.version().session);
            if self.config.own_ports && own != Some(master.version().session) {
                return because(move || {
                    format!("responder {index} answers its own port from {own:?}")
                });
            }
        }
        if let Some(client) = self.clients.iter().find(|client| !client.is_settled()) {
            let Client { index, open, known, .. } = client;
            return because(move || format!("client {index} waits: {open:?} {known:?}"));
        }
        let served = self.responders.iter().filter_map(|place| place.process.as_ref());
        let mut served = served.flat_map(Responder::serving);
        let current = served.find(|snapshot| snapshot.version() == master.version());
        // A link may have come back just now.
        let ports = current.into_iter().flat_map(|snapshot| &snapshot.fabric().nodes);
        let ports: BTreeSet<Guid> =
            ports.flat_map(|node| node.ports.iter().map(|port| port.guid)).collect();
        if let Some(client) = self.clients.iter().find(|client| !ports.contains(&client.guid)) {
            return because(move || {
                format!("the port of client {} is not published", client.index)
            });
        }
        let is_published = |host: &NodeIndex| {
            self.fabric.port(*host, 1).is_some_and(|port| ports.contains(&port.guid))
        };
        let mut on = self.spares.iter().filter(|(_, is_on)| *is_on).map(|(host, _)| host);
        if let Some(host) = on.find(|host| !is_published(host)) {
            return because(move || format!("the port of host {host:?} is not published"));
        }
        if !self.program.is_settled() {
            return because(move || format!("the program waits: {:?}", self.program));
        }
        let alias = |client: &&Client| {
            let guids = self.fabric.guids(self.client_hosts[client.index], 1);
            let wanted = client.alias_wanted();
            wanted.is_some() && guids.is_none_or(|guids| wanted != Some(guids[ALIAS_INDEX]))
        };
        if let Some(client) = self.clients.iter().find(alias) {
            let (index, wanted) = (client.index, client.alias_wanted());
            return because(move || {
                format!("the port of client {index} does not have the alias {wanted:?}")
            });
        }
        let routes = self.fabric.check_routes();
        if routes.is_whole() {
            return None;
        }
        because(move || format!("routes do not deliver: {routes:?}"))
    }

    /// Checks what must hold while everything is settled.
    fn check(&mut self, when: &str) -> Result<(), Violation> {
        let Some(master) = self.running().find(|manager| manager.is_publishing()) else {
            return Ok(());
        };
        let incomplete = self.had_incomplete_takeover() || (self.was_split && self.etcd.is_none());
        let (plane, now) = (master.plane(), self.now());
        let at = |Violation(what): Violation| Violation(format!("{when}: {what}"));
        for client in &self.clients {
            self.oracle.check_client(now, client, &plane, incomplete).map_err(at)?;
        }
        if !incomplete {
            self.program.check(&plane).map_err(Violation).map_err(at)?;
        }
        if incomplete {
            self.program.accept(now, &plane);
            self.clients.iter_mut().for_each(|client| client.handle_return(&plane));
        }
        let hosts = self.client_hosts.iter().chain(&self.responder_hosts).copied();
        let hosts = hosts.chain(self.setups.iter().map(|setup| setup.host));
        let spares = self.spares.iter().filter(|(_, is_on)| *is_on).map(|(host, _)| *host);
        for host in hosts.chain(spares) {
            let port = self.fabric.port(host, 1).filter(|port| port.state == PortState::Active);
            if let Some(port) = port {
                self.oracle.check_lid(port.guid, port.lid).map_err(at)?;
            }
        }
        Ok(())
    }

    /// A client has had no answer for a while.
    pub(super) fn check_wait(&mut self, index: usize) -> Result<(), Violation> {
        let now = self.now();
        let Some(since) = self.clients[index].waits_since else { return Ok(()) };
        let Some((fault, lasts)) = &self.episode.fault else { return Ok(()) };
        let waited = now.saturating_duration_since(since);
        self.oracle.note_wait(fault.name(), waited);
        let limit = waits::limit(&self.config, &self.setups[0].settings, fault, *lasts);
        let mut is_late = waited > limit;
        if let Some(since) = self.clients[index].reads_since()
            && waits::leaves_responders(fault)
        {
            let waited = now.saturating_duration_since(since);
            self.oracle.note_wait("reads at responders' ports, a manager", waited);
            is_late |= waited > waits::READ;
        }
        if is_late {
            return Err(Violation(format!(
                "client {index} has waited {waited:?} for an answer, while {fault:?} failed alone \
                 for {lasts:?}: {limit:?} is permitted"
            )));
        }
        Ok(())
    }

    /// Two managers acknowledge writes at once.
    pub(super) fn note_rival(&mut self, index: usize) -> Result<(), Violation> {
        let changes = |(fault, _): &(Fault, Duration)| fault.may_change_master();
        // With etcd, one that lost the fence learns it with its next commit, which fails.
        let is_permitted = match self.etcd {
            Some(_) => !self.episode.fault.as_ref().is_some_and(changes),
            // One that is cut off from the fabric alone may have been elected just before.
            None => {
                let now = self.now();
                let was_apart = self.joined.is_some_and(|joined| now < joined + VOUCHED_MAX);
                self.was_split || was_apart || self.is_split()
            }
        };
        if is_permitted {
            return Ok(());
        }
        Err(Violation(format!(
            "manager {index} acknowledges writes while another one does, and the fabric was not \
             split"
        )))
    }

    /// Notes what a master that acknowledges has on its disk.
    pub(super) fn note_acknowledging(&mut self, held: RegistryVersion) {
        let now = self.now();
        if self.acknowledged.back().is_none_or(|(_, last)| *last != held) {
            self.acknowledged.push_back((now, held));
        }
        // The last one of before is still to be compared with.
        while self.acknowledged.get(1).is_some_and(|(at, _)| now >= *at + IN_STEP_MAX) {
            self.acknowledged.pop_front();
        }
    }

    /// A standby that says to be in step must have what was acknowledged a while ago.
    pub(super) fn check_in_step(&mut self, index: usize) -> Result<(), Violation> {
        let now = self.now();
        // Otherwise what was acknowledged may be lost, as documented.
        if self.etcd.is_some() || self.was_split || self.had_incomplete_takeover() {
            return Ok(());
        }
        let Some(&(at, held)) = self.acknowledged.front() else { return Ok(()) };
        let Some(manager) = &mut self.managers[index].process else { return Ok(()) };
        let own = manager.held();
        // One that cannot read its disk any more has no contact from then on.
        let is_unreadable = manager.stored().is_none();
        // One whose service loop hangs says nothing.
        let says_nothing = is_unreadable || manager.hangs() || manager.is_publishing();
        if now < at + IN_STEP_MAX || own >= held || says_nothing {
            return Ok(());
        }
        if manager.is_in_step() {
            return Err(Violation(format!(
                "standby {index} says to be in step and holds {own}; {held} was acknowledged {:?} \
                 ago",
                now.saturating_duration_since(at)
            )));
        }
        Ok(())
    }

    /// Whether a takeover since everything was settled counts as incomplete.
    pub(super) fn had_incomplete_takeover(&self) -> bool {
        self.oracle.had_incomplete_takeover(self.managers.iter().map(succession_of))
    }

    /// A client is asked to register again.
    pub(super) fn check_request(&self, client: usize) -> Result<(), Violation> {
        if !self.episode.has_begun
            || self.had_incomplete_takeover()
            || self.has_moved
            || self.was_split
            || self.episode.disk_failed
            || self.episode.manager_ended
            || self.episode.had_two_masters
        {
            return Ok(());
        }
        Err(Violation(format!(
            "client {client} is asked to register again, and nothing can have been lost"
        )))
    }

    /// A host without clients is switched off, or on.
    pub(super) fn switch_host(&mut self, now: Instant, index: usize) {
        let Some((host, is_on)) = self.spares.get_mut(index) else { return };
        *is_on = !*is_on;
        let _ = match *is_on {
            true => self.fabric.node_up(now, *host),
            false => self.fabric.node_down(now, *host),
        };
    }

    /// All responders are killed, one after the other starts again.
    pub(super) fn kill_responders(&mut self) {
        for index in 0..self.responders.len() {
            let after = self.random.between(Duration::from_millis(100), Duration::from_secs(3));
            self.kill(Proc::Responder(index), after);
        }
    }
}
