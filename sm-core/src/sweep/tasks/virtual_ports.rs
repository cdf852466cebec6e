//! Virtual ports of adapters (SR-IOV): reads them, gives them their P_Keys, and takes them to
//! Active. The settings decide (`virt_enabled`): 0 ignores them, 1 disables them, 2 manages them.
//!
//! A *pass* over a port takes the [`Step`]s in order. It follows a sweep that found the port, or a
//! trap 144 of the port; a change of partitions leads to one that begins with the P_Keys. Steps of
//! many ports run together, in rounds of limited size, and sweeps go first. A port that does not
//! answer is tried again at growing intervals.
//!
//! `steps`: the requests of a step. `answers`: what answers change. `trouble`: why a port or a
//! virtual port is not set up.

mod answers;
mod steps;
pub(in crate::sweep) mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::PortState;
use tracing::{info, warn};

use super::Task;
use crate::fabric::{PortIndex, VirtualPorts};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::report::LINES_MAX;
use crate::sweep::subnet::schedule::Cause;
use steps::Step;
use trouble::{Trouble, What};

/// Ports that have a pass at one time.
const HOSTS_MAX: usize = 64;
/// Requests of a round: agents that are silent delay a sweep by a few windows of requests at most.
const ROUND_MAX: usize = 256;
/// Least time between the starts of two passes over a port, other than for its P_Keys.
const PAUSE: Duration = Duration::from_secs(1);
/// Passes in a row after which that time doubles with each.
const PASSES_IN_A_ROW: u32 = 8;
/// How often that time, and the delay of a retry, double at most.
const DOUBLINGS: u32 = 6;
/// Time without a pass after which they are no longer in a row.
const CALM: Duration = Duration::from_secs(120);
/// Delay before a port that refused something or did not answer is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// LIDs of trap 144 that are kept until the next round; more lead to a pass over all ports.
const LIDS_MAX: usize = 1024;
/// Passes in a row without an answer, or refused, after which a port whose virtual ports were never
/// read counts as having none. Until then the switch admits the P_Keys that it admitted before.
const UNREAD_MAX: u32 = 3;
/// While passes go on, changes are published at this interval.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// `virt_enabled`: virtual ports are disabled.
const DISABLED: u8 = 1;
/// `virt_enabled`: virtual ports are enabled and managed.
const MANAGED: u8 = 2;

/// The task that sets up virtual ports.
#[derive(Debug, Default)]
pub(in crate::sweep) struct VirtualPortSetup {
    /// Ports that can have virtual ports, by GUID.
    hosts: BTreeMap<Guid, Host>,
    /// Ports that were reset: what is known of their virtual ports is outdated.
    reset: BTreeSet<Guid>,
    /// Senders of trap 144.
    announced: BTreeSet<Lid>,
    /// Whether there were more senders than are kept.
    has_more_announced: bool,
    due: Option<Instant>,
    /// Whether requests of a round are outstanding.
    is_round: bool,
    /// Whether GUIDs are to be settled, and P_Key tables computed.
    is_plan_stale: bool,
    /// Whether something changed that is to be published.
    has_changed: bool,
    published: Option<Instant>,
    counters: Counters,
}

/// Counters of the setup of virtual ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Passes over ports that ended.
    pub passes: u64,
    /// Passes that ended early since the port did not answer.
    pub silent: u64,
    /// Requests that a port refused.
    pub refused: u64,
}

/// A port that can have virtual ports.
#[derive(Debug)]
struct Host {
    port: PortIndex,
    pass: Option<Pass>,
    /// When the next pass is to begin.
    next: Option<Instant>,
    /// When the last one began.
    began: Option<Instant>,
    /// How many began in a row.
    passes: u32,
    /// How many ended in a row without an answer, or refused.
    failures: u32,
    /// Whether its P_Key tables are to be set after this pass.
    wants_keys: bool,
    /// Whether all of its virtual ports are to be read.
    is_outdated: bool,
    /// Whether its clients are to register again: this manager has not set it up before.
    is_new: bool,
    /// Whether no pass has ended yet.
    is_awaited: bool,
    /// Whether its first pass goes before those of others: a partition that it belongs to changed.
    is_urgent: bool,
    /// Why it, or one of its virtual ports, is not set up.
    trouble: Option<Trouble>,
}

/// A pass over a port.
#[derive(Debug)]
struct Pass {
    step: Step,
    /// The next index of a virtual port in this step.
    cursor: u16,
    /// Virtual ports as they were before.
    before: Option<VirtualPorts>,
    /// Virtual ports that are to be read.
    reading: BTreeSet<u16>,
    /// Those of which something could not be read.
    unread: BTreeSet<u16>,
    /// Whether all answers about them have arrived.
    has_read: bool,
    /// Whether the port left a request unanswered: nothing more is sent to it.
    is_silent: bool,
    trouble: Option<Trouble>,
}

impl Pass {
    fn new(step: Step, before: Option<VirtualPorts>) -> Self {
        Self {
            step,
            cursor: 0,
            before,
            reading: BTreeSet::new(),
            unread: BTreeSet::new(),
            has_read: step >= Step::Keys,
            is_silent: false,
            trouble: None,
        }
    }

    /// Records the first trouble of the pass.
    fn note(&mut self, trouble: Trouble) {
        self.trouble.get_or_insert(trouble);
    }
}

impl Host {
    fn new(port: PortIndex) -> Self {
        Self {
            port,
            pass: None,
            next: None,
            began: None,
            passes: 0,
            failures: 0,
            wants_keys: false,
            is_outdated: false,
            is_new: true,
            is_awaited: true,
            is_urgent: false,
            trouble: None,
        }
    }

    /// Plans a pass, as soon as the last one is long enough ago.
    fn want(&mut self, now: Instant) {
        if self.began.is_none_or(|began| now >= began + CALM) {
            self.passes = 0;
        }
        let doublings = self.passes.saturating_sub(PASSES_IN_A_ROW).min(DOUBLINGS);
        let at = self.began.map_or(now, |began| now.max(began + PAUSE * (1 << doublings)));
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// When it is to be continued.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.pass.is_some() { Some(now) } else { self.next }
    }
}

impl VirtualPortSetup {
    /// A sweep ended; `full`: it has read the whole fabric. Plans passes over the ports that it
    /// found.
    pub(in crate::sweep) fn end_sweep(&mut self, subnet: &mut Subnet, now: Instant, full: bool) {
        if subnet.settings.virt_enabled == 0 {
            return self.ignore_all(subnet, now);
        }
        let mut hosts = std::mem::take(&mut self.hosts);
        let known_so_far = &*subnet;
        let fabric = &known_so_far.fabric;
        for port in fabric.end_ports().filter(|&port| fabric.can_have_virtual_ports(port)) {
            let guid = fabric.port(port).guid;
            let known = hosts.remove(&guid).filter(|host| host.port == port);
            let is_new = known.is_none();
            let mut host = known.unwrap_or_else(|| Host::new(port));
            if self.reset.contains(&guid) {
                host.is_outdated = true;
                host.want(now);
            } else if full || is_new || host.next.is_none() && is_unfinished(known_so_far, port) {
                host.want(now);
            }
            self.hosts.insert(guid, host);
        }
        self.reset.clear();
        // What the sweep set concerns all ports: none goes first.
        subnet.partitions.rewritten_hosts.clear();
        // Those that are left can have none any more, or are gone.
        let gone: Vec<PortIndex> = subnet
            .fabric
            .virtual_hosts()
            .map(|(port, _)| port)
            .filter(|&port| !subnet.fabric.can_have_virtual_ports(port))
            .collect();
        self.has_changed |= !gone.is_empty();
        self.is_plan_stale |= !gone.is_empty();
        gone.into_iter().for_each(|port| subnet.fabric.remove_virtual_ports(port));
        self.note_awaited(subnet);
        self.rearm(now);
    }

    /// Virtual ports are not to be managed any more.
    fn ignore_all(&mut self, subnet: &mut Subnet, now: Instant) {
        let hosts: Vec<PortIndex> = subnet.fabric.virtual_hosts().map(|(port, _)| port).collect();
        let counters = self.counters;
        *self = Self { counters, ..Self::default() };
        if !hosts.is_empty() {
            hosts.into_iter().for_each(|port| subnet.fabric.remove_virtual_ports(port));
            (self.has_changed, self.is_plan_stale) = (true, true);
            self.due = Some(now);
        }
        subnet.fabric.set_awaits_virtual_ports(false);
    }

    /// A port was reset: what is known of its virtual ports is outdated.
    pub(in crate::sweep) fn forget(&mut self, port: Guid) {
        if self.hosts.contains_key(&port) {
            self.reset.insert(port);
        }
    }

    /// Another subnet manager may have written to any port, or all ports have other numbers.
    pub(in crate::sweep) fn forget_all(&mut self) {
        self.reset = self.hosts.keys().copied().collect();
        let counters = self.counters;
        let reset = std::mem::take(&mut self.reset);
        *self = Self { counters, reset, has_changed: self.has_changed, ..Self::default() };
    }

    /// A trap 144 of the port with this LID arrived.
    pub(in crate::sweep) fn trap_arrived(&mut self, now: Instant, sender: Lid) {
        if self.hosts.is_empty() {
            return;
        }
        if self.announced.len() < LIDS_MAX {
            self.announced.insert(sender);
        } else {
            self.has_more_announced = true;
        }
        self.due = Some(now);
    }

    /// Ports of which something is not set up, with the reason.
    pub(in crate::sweep) fn troubles(&self) -> impl Iterator<Item = (PortIndex, Trouble)> + '_ {
        self.hosts.values().filter_map(|host| Some((host.port, host.trouble?)))
    }

    /// Counters so far.
    pub(in crate::sweep) fn counters(&self) -> Counters {
        self.counters
    }

    /// Plans passes over the ports that sent trap 144.
    fn follow_traps(&mut self, subnet: &Subnet, now: Instant) {
        let announced = std::mem::take(&mut self.announced);
        let all = std::mem::take(&mut self.has_more_announced);
        if announced.is_empty() {
            return;
        }
        for (guid, host) in &mut self.hosts {
            let range = subnet.lids.get(*guid);
            let has_sent =
                range.is_some_and(|lids| announced.range(lids.first..=lids.last).next().is_some());
            if all || has_sent {
                host.want(now);
            }
        }
    }

    /// Sets the P_Keys of virtual ports that partitions changed.
    fn follow_partitions(&mut self, subnet: &mut Subnet) {
        for port in std::mem::take(&mut subnet.partitions.wrong_virtual_hosts) {
            let Some(host) = self.hosts.get_mut(&subnet.fabric.port(port).guid) else { continue };
            match &host.pass {
                Some(pass) if pass.step <= Step::Keys && pass.cursor == 0 => {}
                Some(_) => host.wants_keys = true,
                None => host.begin_with_keys(subnet),
            }
        }
    }

    /// Ports whose partitions changed before they were ever read are read next: the first pass over
    /// all ports of a large fabric takes minutes.
    fn bring_forward(&mut self, subnet: &mut Subnet, now: Instant) {
        for port in std::mem::take(&mut subnet.partitions.rewritten_hosts) {
            let host = self.hosts.get_mut(&subnet.fabric.port(port).guid);
            if let Some(host) = host.filter(|host| host.is_awaited) {
                host.is_urgent = true;
                if host.pass.is_none() {
                    host.next = Some(now);
                }
            }
        }
    }

    /// Records whether some port was never read. Once none is, what registrations stand for is
    /// known.
    fn note_awaited(&mut self, subnet: &mut Subnet) {
        let is_awaited = self.hosts.values().any(|host| host.is_awaited);
        self.has_changed |= subnet.fabric.awaits_virtual_ports() && !is_awaited;
        subnet.fabric.set_awaits_virtual_ports(is_awaited);
    }

    /// When there is something to do.
    fn rearm(&mut self, now: Instant) {
        let waits = !self.announced.is_empty() || self.is_round || self.is_plan_stale;
        let next = self.hosts.values().filter_map(|host| host.due(now)).min();
        self.due = if waits { Some(now) } else { next };
    }

    /// Removes ports that are gone.
    fn drop_absent(&mut self, subnet: &Subnet) {
        let fabric = &subnet.fabric;
        self.hosts.retain(|guid, host| {
            fabric.is_end_port(host.port) && fabric.port(host.port).guid == *guid
        });
    }

    /// The ports of the next round: urgent ones, those under way, then those that are due.
    fn chosen(&self, now: Instant) -> Vec<Guid> {
        let is_due = |host: &Host| host.pass.is_none() && host.next.is_some_and(|at| at <= now);
        let urgent = self
            .hosts
            .iter()
            .filter(|(_, host)| host.is_urgent && (host.pass.is_some() || is_due(host)));
        let others = || self.hosts.iter().filter(|(_, host)| !host.is_urgent);
        let under_way = others().filter(|(_, host)| host.pass.is_some());
        let waiting = others().filter(|(_, host)| is_due(host));
        urgent.chain(under_way).chain(waiting).map(|(&guid, _)| guid).take(HOSTS_MAX).collect()
    }

    /// Publishes changes, unless a pass is under way.
    fn publish(&mut self, subnet: &mut Subnet, now: Instant) {
        self.note_awaited(subnet);
        let is_under_way = self.hosts.values().any(|host| host.pass.is_some());
        let waits =
            is_under_way && self.published.is_some_and(|last| now < last + PUBLISH_INTERVAL);
        if self.has_changed && !waits {
            self.has_changed = false;
            self.published = Some(now);
            subnet.events.push(Event::PKeysWritten);
        }
    }

    /// Ends a pass: reports what is new about the port.
    fn end_pass(&mut self, subnet: &mut Subnet, now: Instant, guid: Guid, logged: &mut usize) {
        let Some(host) = self.hosts.get_mut(&guid) else { return };
        let Some(pass) = host.pass.take() else { return };
        (host.is_awaited, host.is_urgent) = (false, false);
        self.counters.passes += 1;
        self.counters.silent += u64::from(pass.is_silent);
        self.has_changed |= pass.before.as_ref() != subnet.fabric.virtual_ports(host.port);
        let trouble = pass.trouble.or_else(|| trouble::of_virtual_ports(subnet, host.port));
        if trouble != host.trouble {
            let place = subnet.place(host.port);
            *logged += 1;
            match trouble {
                _ if *logged > LINES_MAX => {}
                Some(trouble) => warn!("virtual ports of {place}: {trouble}"),
                None => info!("virtual ports of {place}: all are set up"),
            }
        }
        host.trouble = trouble;
        host.is_outdated &= pass.is_silent;
        let is_retried = trouble.is_some_and(|trouble| trouble.what.is_retried());
        let is_given_up = trouble.is_some() && (!is_retried || host.failures + 1 >= UNREAD_MAX);
        if is_given_up && subnet.fabric.virtual_ports(host.port).is_none() {
            subnet.fabric.with_virtual_ports(host.port, |all, _| all.is_known = true);
            self.is_plan_stale = true;
        }
        if is_retried {
            let delay = RETRY_DELAY * (1 << host.failures.min(DOUBLINGS));
            host.failures += 1;
            host.next = Some(host.next.map_or(now + delay, |next| next.max(now + delay)));
        } else {
            (host.failures, host.is_new) = (0, false);
        }
        if std::mem::take(&mut host.wants_keys) && !pass.is_silent {
            host.begin_with_keys(subnet);
        }
    }

    /// Settles GUIDs and recomputes P_Key tables.
    fn plan(&mut self, subnet: &mut Subnet, now: Instant) {
        self.is_plan_stale = false;
        subnet.settle_virtual_guids();
        subnet.settle_newcomers(now);
        if subnet.disown_newcomers() {
            // What has such a GUID is to be left out.
            subnet.schedule.request(now, Cause::Asked);
        }
        subnet.set_pkeys();
        self.follow_partitions(subnet);
    }
}

impl Subnet {
    /// Chooses one port for each GUID of virtual ports. GUIDs that physical ports have or had, and
    /// aliases, are not for virtual ports of others.
    fn settle_virtual_guids(&mut self) {
        let Self { fabric, lids, m_keys, alias_owners, .. } = self;
        fabric.settle_virtual_guids(|guid, host| {
            let is_physical =
                || lids.get(guid).is_some() || m_keys.neighbours.links_of(guid).next().is_some();
            let alias_owner = alias_owners.get(&guid);
            guid != host && is_physical() || alias_owner.is_some_and(|&owner| owner != host)
        });
    }
}

/// Whether a port is active, and a virtual port of it that can be is not.
fn is_unfinished(subnet: &Subnet, port: PortIndex) -> bool {
    let ports = subnet.fabric.virtual_ports(port).into_iter().flat_map(VirtualPorts::iter);
    let is_active = subnet.fabric.port(port).state() == Some(PortState::Active);
    let mut usable = ports.filter(|(_, port)| port.is_usable() && !port.needs_lid());
    is_active && usable.any(|(_, port)| port.state != PortState::Active)
}

impl Host {
    fn begin_with_keys(&mut self, subnet: &Subnet) {
        let before = subnet.fabric.virtual_ports(self.port).cloned();
        self.pass = Some(Pass::new(Step::Keys, before));
    }

    fn begin(&mut self, subnet: &Subnet, now: Instant) {
        let before = subnet.fabric.virtual_ports(self.port).cloned();
        self.pass = Some(Pass::new(Step::Ask, before));
        self.began = Some(now);
        self.passes = self.passes.saturating_add(1);
        self.next = None;
    }
}

impl Task for VirtualPortSetup {
    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn yields_to_sweeps(&self) -> bool {
        true
    }

    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant) {
        self.due = None;
        if !subnet.state.up {
            // The end of the sweep that brings the subnet up wakes this task.
            return;
        }
        self.drop_absent(subnet);
        self.follow_traps(subnet, now);
        self.bring_forward(subnet, now);
        self.is_round = true;
        let (mut room, mut logged) = (ROUND_MAX, 0);
        let mut waiting = Vec::new();
        for guid in self.chosen(now) {
            if let Some(host) = self.hosts.get_mut(&guid).filter(|host| host.pass.is_none()) {
                host.begin(subnet, now);
            }
            if !self.advance(subnet, guid, &mut room) {
                self.end_pass(subnet, now, guid, &mut logged);
            } else if self.is_plan_stale && self.is_at(guid, Step::Keys) {
                waiting.push(guid);
            }
        }
        // What is known of virtual ports changed: one computation for all of them.
        let is_read = |host: &Host| host.pass.as_ref().is_none_or(|pass| pass.step > Step::Keys);
        if self.is_plan_stale && (!waiting.is_empty() || self.hosts.values().all(is_read)) {
            self.plan(subnet, now);
            for guid in waiting {
                if !self.advance(subnet, guid, &mut room) {
                    self.end_pass(subnet, now, guid, &mut logged);
                }
            }
        }
        if logged > LINES_MAX {
            warn!(
                "the state of virtual ports changed on {} more ports; see `ibsmctl vports`",
                logged - LINES_MAX
            );
        }
        if subnet.exchange.is_idle() {
            self.settled(subnet, now);
        }
    }

    fn settled(&mut self, subnet: &mut Subnet, now: Instant) {
        if !subnet.partitions.wrong_virtual_hosts.is_empty() {
            self.follow_partitions(subnet);
            self.rearm(now);
        }
        if std::mem::take(&mut self.is_round) {
            self.publish(subnet, now);
            self.rearm(now);
        }
    }
}
