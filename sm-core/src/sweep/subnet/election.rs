//! State of the election: this SM's state, the other SMs, and the master. Nothing here sends or
//! logs.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{SmInfo, SmState};

use super::demands::{Claims, Demands};
use super::handover::Handover;
use super::offers::Offers;
use crate::fabric::PortIndex;
use crate::mastership::{Decision, Mastership, RemoteSm};
use sm_config::Settings;

/// Maximum number of foreign SMs that are remembered, of those that are waited for, and others.
pub(in crate::sweep) const OTHERS_MAX: usize = 256;
/// Maximum number of ports remembered at which no SM answers although IsSM is set.
const UNRESPONSIVE_MAX: usize = 1 << 16;

/// This SM's SMInfo state, the other SMs, and the master among them.
#[derive(Debug)]
pub(in crate::sweep) struct Election {
    /// This SM's SMInfo state, and its answers to SMInfo requests.
    pub(in crate::sweep) own: Mastership,
    /// State of handovers.
    pub(in crate::sweep) handover: Handover,
    /// The other SMs found by the last discovery, with their ports.
    others: Vec<(PortIndex, RemoteSm)>,
    /// SMs that are ignored: they have another SM_Key, or are not allowed.
    foreign_sms: Vec<Foreign>,
    /// SMs that answered as inactive, by the GUIDs that they show; at most [`OTHERS_MAX`].
    pub(in crate::sweep) inactive: BTreeSet<Guid>,
    /// Port GUIDs of SMs that were or are waited for, with the time since when, until they are
    /// master; at most [`OTHERS_MAX`].
    awaited: HashMap<Guid, Instant>,
    /// Port GUIDs of SMs that were master, at most [`OTHERS_MAX`]: each of them may be waited for.
    proven: BTreeSet<Guid>,
    /// Port GUIDs of masters of lower rank that were or are to hand over, with the time since when;
    /// at most [`OTHERS_MAX`].
    outranked: HashMap<Guid, Outranked>,
    /// Ports of SMs that did not become master in time: they count in elections only as masters.
    idle: BTreeSet<PortIndex>,
    /// Number of SMInfo answers with another SM_Key.
    foreign_answers: u64,
    /// Port GUIDs of SMs that did not answer the last request, with the time when that was found,
    /// or when they were polled again.
    unresponsive: HashMap<Guid, Instant>,
    /// The port of the master that is polled in standby.
    master: Option<PortIndex>,
    /// The SM that is, or was last, polled in standby.
    polled: Option<Guid>,
    /// When another master was last heard from.
    master_seen: Option<Instant>,
    /// Polls in a row that failed.
    polls_missed: u32,
    /// Whether this SM does not become master beside another whose keys it lacks.
    pub(in crate::sweep) yields: bool,
    /// A master that is ignored, found by the last election: its place, and why it is.
    pub(in crate::sweep) ignored_master: Option<(String, &'static str)>,
    /// Port GUIDs of the SMs that count; all if it is empty.
    allowed: BTreeSet<Guid>,
    /// Demands of other SMs.
    pub(in crate::sweep) demands: Demands,
    /// Handovers that other SMs did not acknowledge.
    pub(in crate::sweep) offers: Offers,
    /// Port GUIDs of SMs whose ports are elsewhere than they were an hour ago.
    away: BTreeSet<Guid>,
    /// SMs that claimed to have handed over to this one during a discovery.
    pub(in crate::sweep) claims: Claims,
    /// Whether the current poll is sent in addition to the regular ones.
    pub(in crate::sweep) is_probing: bool,
}

/// Requests in a row that an ignored SM leaves unanswered before it counts as gone.
const FOREIGN_MISSED_MAX: u32 = 3;

/// An SM that is ignored.
#[derive(Debug)]
struct Foreign {
    /// Its port GUID.
    guid: Guid,
    /// Its place, as text.
    place: String,
    /// Why it is ignored.
    reason: &'static str,
    is_master: bool,
    /// Requests in a row that it left unanswered.
    missed: u32,
}

/// Changes found in the answer of an ignored SM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sweep) struct ForeignNews {
    /// It was not known.
    pub(in crate::sweep) is_new: bool,
    /// It became master, or is found as one.
    pub(in crate::sweep) became_master: bool,
    /// It was master.
    pub(in crate::sweep) ceased: bool,
}

/// How long an SM that did not become master in time counts in elections only as master.
const IDLE_FOR: Duration = Duration::from_secs(3_600);

/// A master of lower rank, which is to hand over.
#[derive(Clone, Copy, Debug)]
struct Outranked {
    since: Instant,
    /// Whether it may have a part of the fabric that this SM has not configured.
    is_merger: bool,
    is_reported: bool,
}

/// Whether to wait for a master of lower rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sweep) enum Patience {
    /// It was just found: wait.
    Begins,
    /// Wait.
    Lasts,
    /// Continue without waiting, or since the time is over, which is to be logged.
    Ends,
    /// Continue; that was logged before.
    Over,
}

/// Evaluation of an SMInfo received from another SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sweep) enum Answer {
    /// Its SMState is unknown.
    None,
    /// The SM has another SM_Key: it is ignored, and its GUID is not trusted.
    Foreign(RemoteSm),
    /// The SM belongs to this subnet.
    Peer(RemoteSm),
}

impl Election {
    pub(in crate::sweep) fn new(settings: &Settings) -> Self {
        let mut own = Mastership::new(settings.sm_priority, settings.sm_key);
        own.set_m_key(settings.m_key);
        if settings.sm_inactive {
            own.set_state(SmState::NotActive);
        }
        Self {
            own,
            handover: Handover::default(),
            others: Vec::new(),
            foreign_sms: Vec::new(),
            inactive: BTreeSet::new(),
            awaited: HashMap::new(),
            proven: BTreeSet::new(),
            outranked: HashMap::new(),
            idle: BTreeSet::new(),
            foreign_answers: 0,
            unresponsive: HashMap::new(),
            master: None,
            polled: None,
            master_seen: None,
            polls_missed: 0,
            yields: false,
            ignored_master: None,
            allowed: BTreeSet::new(),
            demands: Demands::default(),
            offers: Offers::default(),
            away: BTreeSet::new(),
            claims: Claims::default(),
            is_probing: false,
        }
    }

    /// This SM's state.
    pub(in crate::sweep) fn state(&self) -> SmState {
        self.own.state()
    }

    /// Whether this SM is master.
    pub(in crate::sweep) fn is_master(&self) -> bool {
        self.own.state() == SmState::Master
    }

    /// Number of this SM's current term as master, from 1.
    pub(in crate::sweep) fn tenure(&self) -> u32 {
        self.own.tenure()
    }

    /// The other SMs found by the last discovery, with their ports.
    pub(in crate::sweep) fn others(&self) -> &[(PortIndex, RemoteSm)] {
        &self.others
    }

    /// Records the other SMs for the answers to their demands. `is_present`: whether the fabric has
    /// the port with a GUID.
    pub(in crate::sweep) fn note_others(&mut self, is_present: impl Fn(Guid) -> bool) {
        let others: Vec<RemoteSm> = self.others.iter().map(|(_, sm)| *sm).collect();
        self.own.note_others(&others, is_present);
    }

    /// Decides by the state of the other SMs. While this SM is master, one that follows its
    /// registry and has higher precedence does not count: the caller hands over to it. Nor does one
    /// that did not acknowledge a handover, for some time.
    pub(in crate::sweep) fn decide(&self, now: Instant) -> Decision {
        let others = self.candidates().map(|(_, sm)| *sm);
        let counts = |sm: &RemoteSm| !self.is_prepared_by_caller(sm) && self.may_offer(now, sm);
        let others: Vec<RemoteSm> = others.filter(counts).collect();
        self.own.decide(&others)
    }

    /// Whether an SM that this master ranks below may be offered a handover now.
    fn may_offer(&self, now: Instant, sm: &RemoteSm) -> bool {
        if !self.is_master() || self.own.outranks(sm) || self.handover.is_in_doubt {
            return true;
        }
        // Where managers are named, the GUID of one that is off is not enough.
        if !self.allowed.is_empty() && self.away.contains(&sm.guid) {
            return false;
        }
        let is_proven = self.proven.contains(&sm.guid) && sm.state != SmState::Master
            || self.handover.followers.contains(&sm.guid);
        self.offers.is_due(now, sm.guid, is_proven)
    }

    /// Whether the last discovery found as master an SM that claims to have handed over.
    pub(in crate::sweep) fn claimant_is_master(&self) -> bool {
        let mut masters = self.others.iter().filter(|(_, sm)| sm.state == SmState::Master);
        masters.any(|(_, sm)| self.claims.has(sm.guid))
    }

    /// Removes the claims. Returns the SM that handed over, if one of the claims is true.
    pub(in crate::sweep) fn settle_claims(&mut self) -> Option<(PortIndex, RemoteSm)> {
        let claims = std::mem::take(&mut self.claims);
        let is_true =
            |(_, sm): &&(PortIndex, RemoteSm)| sm.state != SmState::Master && claims.has(sm.guid);
        self.others.iter().find(is_true).copied()
    }

    /// The other SMs that count: masters, and those that did not fail to become master in time.
    fn candidates(&self) -> impl Iterator<Item = &(PortIndex, RemoteSm)> {
        let is_idle = |port, sm: &RemoteSm| sm.state != SmState::Master && self.idle.contains(port);
        self.others.iter().filter(move |(port, sm)| !is_idle(port, sm))
    }

    /// Records that this SM waits for the one at the port with this GUID to become master, or
    /// continues to.
    pub(in crate::sweep) fn wait_for(&mut self, now: Instant, guid: Guid) {
        if self.awaited.len() < OTHERS_MAX {
            self.awaited.entry(guid).or_insert(now);
        }
    }

    /// Records that the SM at the port with this GUID is master: it is not waited for any more.
    pub(in crate::sweep) fn note_master(&mut self, port: PortIndex, guid: Guid) {
        self.awaited.remove(&guid);
        self.idle.remove(&port);
        if self.proven.len() < OTHERS_MAX {
            self.proven.insert(guid);
        }
    }

    /// Records that the SM at the port with this GUID handed over, which a master does.
    pub(in crate::sweep) fn note_handed_over(&mut self, guid: Guid) {
        self.awaited.remove(&guid);
    }

    /// Whether to wait until the master of lower rank at the port with this GUID hands over: once
    /// an hour for `patience`, and only if it may be master of a part of the fabric that this SM
    /// has not configured (`is_merger`).
    pub(in crate::sweep) fn await_outranked(
        &mut self,
        now: Instant,
        guid: Guid,
        patience: Duration,
        is_merger: bool,
    ) -> Patience {
        self.outranked.retain(|_, entry| now < entry.since + patience + IDLE_FOR);
        let is_known = self.outranked.contains_key(&guid);
        if !is_known && self.outranked.len() >= OTHERS_MAX {
            return Patience::Over;
        }
        let new = Outranked { since: now, is_merger, is_reported: false };
        let entry = self.outranked.entry(guid).or_insert(new);
        if entry.is_merger && now < entry.since + patience {
            return if is_known { Patience::Lasts } else { Patience::Begins };
        }
        match std::mem::replace(&mut entry.is_reported, true) {
            false => Patience::Ends,
            true => Patience::Over,
        }
    }

    /// Finds the SMs that did not become master within `patience`, or ten times that if they are
    /// discovering the fabric. Each counts as such for [`IDLE_FOR`], even if it was away meanwhile.
    /// All that never were master share twice that time: a port can show another GUID each time.
    /// Returns those that are new. `guid_of` returns the GUID of a port.
    pub(in crate::sweep) fn find_idle(
        &mut self,
        now: Instant,
        patience: Duration,
        guid_of: impl Fn(PortIndex) -> Guid,
    ) -> Vec<PortIndex> {
        self.awaited.retain(|_, since| now < *since + patience.saturating_mul(10) + IDLE_FOR);
        let first = self.awaited.values().min();
        let is_full = self.awaited.len() >= OTHERS_MAX;
        let is_idle = |(port, sm): &&(PortIndex, RemoteSm)| {
            let (patience, of_all) = match sm.state {
                SmState::Master => return false,
                SmState::Discovering => (patience.saturating_mul(10), patience.saturating_mul(10)),
                _ => (patience, patience.saturating_mul(2)),
            };
            let guid = guid_of(*port);
            let is_over = |since: &Instant, patience| now >= *since + patience;
            let is_known =
                self.proven.contains(&guid) || self.handover.followers.contains(&sm.guid);
            self.awaited.get(&guid).is_some_and(|since| is_over(since, patience))
                || !is_known && (is_full || first.is_some_and(|first| is_over(first, of_all)))
        };
        let found = self.others.iter().filter(is_idle).map(|(port, _)| *port).collect();
        let before = std::mem::replace(&mut self.idle, found);
        self.idle.difference(&before).copied().collect()
    }

    /// Ports of SMs that did not become master in time.
    pub(in crate::sweep) fn idle(&self) -> impl Iterator<Item = PortIndex> {
        self.idle.iter().copied()
    }

    fn is_prepared_by_caller(&self, sm: &RemoteSm) -> bool {
        let Handover { followers, is_in_doubt, .. } = &self.handover;
        let replaces_us = *is_in_doubt && sm.state == SmState::Master;
        self.is_master() && followers.contains(&sm.guid) && !self.own.outranks(sm) && !replaces_us
    }

    /// The SM to hand over to once it has stored this SM's registry.
    pub(in crate::sweep) fn handover_candidate(&self) -> Option<Guid> {
        let others = self.candidates().map(|(_, sm)| sm);
        let standing_by = others.filter(|sm| sm.state == SmState::Standby);
        let candidates = standing_by.filter(|sm| self.is_prepared_by_caller(sm));
        candidates.max_by_key(|sm| (sm.priority, std::cmp::Reverse(sm.guid))).map(|sm| sm.guid)
    }

    pub(in crate::sweep) fn set_in_doubt(&mut self, in_doubt: bool) {
        self.handover.is_in_doubt = in_doubt;
        self.own.set_refuses_handover(in_doubt || self.handover.awaits_copy);
    }

    /// Returns the earlier value.
    pub(in crate::sweep) fn set_awaits_copy(&mut self, awaits: bool) -> bool {
        let before = std::mem::replace(&mut self.handover.awaits_copy, awaits);
        self.own.set_refuses_handover(awaits || self.handover.is_in_doubt);
        before
    }

    /// Port of one of the other SMs.
    pub(in crate::sweep) fn place_of(&self, sm: RemoteSm) -> Option<PortIndex> {
        self.others.iter().find(|(_, other)| *other == sm).map(|(port, _)| *port)
    }

    /// Sets the port GUIDs of the SMs that count; all do if there are none.
    pub(in crate::sweep) fn allow_only(&mut self, guids: BTreeSet<Guid>) {
        self.allowed = guids;
    }

    /// Whether the operator named the SM at the port with this GUID.
    pub(in crate::sweep) fn is_named(&self, guid: Guid) -> bool {
        self.allowed.contains(&guid)
    }

    /// Whether an SM at the port with this GUID counts.
    pub(in crate::sweep) fn is_allowed(&self, guid: Guid) -> bool {
        self.allowed.is_empty() || self.allowed.contains(&guid)
    }

    /// Evaluates an SMInfo of a port that holds this M_Key.
    pub(in crate::sweep) fn read(&self, data: &[u8; 64], m_key: u64) -> Answer {
        let Ok(info) = SmInfo::new(data) else { return Answer::None };
        let Some(state) = SmState::from_code(info.sm_state()) else { return Answer::None };
        let sm = RemoteSm { guid: info.guid(), priority: info.priority(), state };
        match self.own.keys().accept(info.sm_key(), m_key) {
            true => Answer::Peer(sm),
            false => Answer::Foreign(sm),
        }
    }

    /// Records that an SM with a valid SM_Key answered at this port GUID: it is not foreign.
    pub(in crate::sweep) fn note_accepted(&mut self, guid: Guid) {
        self.foreign_sms.retain(|foreign| foreign.guid != guid);
    }

    /// Records the SMInfo of another SM. `is_away`: whether its port is elsewhere than it was an
    /// hour ago.
    pub(in crate::sweep) fn put(&mut self, port: PortIndex, sm: RemoteSm, is_away: bool) {
        self.forget(port);
        self.others.push((port, sm));
        match is_away {
            true => self.away.insert(sm.guid),
            false => self.away.remove(&sm.guid),
        };
    }

    /// The SM with our SM_Key at `port`, as it answered last.
    pub(in crate::sweep) fn manager_at(&self, port: PortIndex) -> Option<RemoteSm> {
        self.others.iter().find(|(at, _)| *at == port).map(|(_, sm)| *sm)
    }

    /// Whether a known SM may be one that hands over to this master: it answered as master, or this
    /// SM replaced it. The latter stands by when it sends HANDOVER, so that what it wrote is
    /// overwritten.
    pub(in crate::sweep) fn may_hand_over(&self, sm: RemoteSm) -> bool {
        sm.state == SmState::Master || self.own.replaced() == Some(sm.guid)
    }

    /// Removes the SM at `port`.
    pub(in crate::sweep) fn forget(&mut self, port: PortIndex) {
        self.others.retain(|(at, _)| *at != port);
    }

    /// Forgets the others: the next discovery finds them again.
    pub(in crate::sweep) fn forget_others(&mut self) {
        self.ignored_master = None;
        self.others.clear();
        self.away.clear();
    }

    /// Removes everything that refers to indices of the fabric.
    pub(in crate::sweep) fn forget_ports(&mut self) {
        self.others.clear();
        self.idle.clear();
        self.master = None;
    }

    /// Records that an SM that is ignored answered at the port with this GUID, described by
    /// `place`.
    pub(in crate::sweep) fn put_foreign(
        &mut self,
        guid: Guid,
        is_master: bool,
        reason: &'static str,
        place: impl FnOnce() -> String,
    ) -> ForeignNews {
        self.foreign_answers += 1;
        if let Some(known) = self.foreign_sms.iter_mut().find(|known| known.guid == guid) {
            let was_master = std::mem::replace(&mut known.is_master, is_master);
            (known.missed, known.reason) = (0, reason);
            return ForeignNews {
                is_new: false,
                became_master: is_master && !was_master,
                ceased: was_master && !is_master,
            };
        }
        if self.foreign_sms.len() == OTHERS_MAX {
            return ForeignNews::default();
        }
        self.foreign_sms.push(Foreign { guid, place: place(), reason, is_master, missed: 0 });
        ForeignNews { is_new: true, became_master: is_master, ceased: false }
    }

    /// The ignored SM at the port with this GUID did not answer. After [`FOREIGN_MISSED_MAX`] times
    /// it is gone: returns its place, and whether it was master.
    pub(in crate::sweep) fn miss_foreign(&mut self, guid: Guid) -> Option<(String, bool)> {
        let at = self.foreign_sms.iter().position(|known| known.guid == guid)?;
        self.foreign_sms[at].missed += 1;
        if self.foreign_sms[at].missed < FOREIGN_MISSED_MAX {
            return None;
        }
        let gone = self.foreign_sms.remove(at);
        Some((gone.place, gone.is_master))
    }

    /// Whether an SM at the port with this GUID is ignored.
    pub(in crate::sweep) fn is_foreign(&self, guid: Guid) -> bool {
        self.foreign_sms.iter().any(|known| known.guid == guid)
    }

    /// Removes ignored and unresponsive SMs whose ports are no longer present. Returns the place of
    /// one of those that were masters.
    pub(in crate::sweep) fn keep_known(
        &mut self,
        is_there: impl Fn(Guid) -> bool,
    ) -> Option<String> {
        self.unresponsive.retain(|guid, _| is_there(*guid));
        let mut gone = self.foreign_sms.extract_if(.., |known| !is_there(known.guid));
        gone.by_ref().filter(|known| known.is_master).last().map(|known| known.place)
    }

    /// Records that the SM at this port GUID did not answer, or is being polled again.
    pub(in crate::sweep) fn mark_unresponsive(&mut self, now: Instant, guid: Guid) {
        if self.unresponsive.len() < UNRESPONSIVE_MAX || self.unresponsive.contains_key(&guid) {
            self.unresponsive.insert(guid, now);
        }
    }

    /// When the SM at this port GUID stopped answering, or was last polled.
    pub(in crate::sweep) fn unresponsive_since(&self, guid: Guid) -> Option<Instant> {
        self.unresponsive.get(&guid).copied()
    }

    /// Whether any SM does not answer.
    pub(in crate::sweep) fn has_unresponsive(&self) -> bool {
        !self.unresponsive.is_empty()
    }

    /// Marks the SMs at these ports as responsive: the ports answered, or their links were
    /// retrained.
    pub(in crate::sweep) fn mark_responsive(&mut self, node_answered: impl Fn(Guid) -> bool) {
        self.unresponsive.retain(|guid, _| !node_answered(*guid));
    }

    /// Places of the SMs that are ignored, as text, and why they are.
    pub(in crate::sweep) fn foreign_sms(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.foreign_sms.iter().map(|known| (&*known.place, known.reason))
    }

    /// Number of SMInfo answers with another SM_Key.
    pub(in crate::sweep) fn foreign_answers(&self) -> u64 {
        self.foreign_answers
    }

    /// Starts to stand by for the SM at `port`, which is or becomes master.
    pub(in crate::sweep) fn stand_by(&mut self, now: Instant, port: PortIndex) {
        self.own.set_state(SmState::Standby);
        self.master = Some(port);
        self.polled = self.others.iter().find(|(at, _)| *at == port).map(|(_, sm)| sm.guid);
        self.master_lives(now);
        self.handover.settle();
        self.handover.follows_another = true;
        self.handover.stood_by = true;
    }

    /// Port of the master that is, or was last, polled.
    pub(in crate::sweep) fn master(&self) -> Option<PortIndex> {
        self.master
    }

    /// When another master was last heard from.
    pub(in crate::sweep) fn master_seen(&self) -> Option<Instant> {
        self.master_seen
    }

    /// The master answered a poll.
    pub(in crate::sweep) fn master_lives(&mut self, now: Instant) {
        self.master_seen = Some(now);
        self.polls_missed = 0;
    }

    /// Records that the other SM is no longer master.
    pub(in crate::sweep) fn master_is_gone(&mut self) {
        self.master = None;
    }

    /// Counts a failed poll; returns whether the limit is reached: then the master counts as gone.
    pub(in crate::sweep) fn miss_poll(&mut self, polls_max: u32) -> bool {
        self.polls_missed += 1;
        let is_gone = self.polls_missed >= polls_max;
        if is_gone {
            self.master = None;
        }
        is_gone
    }

    /// Polls in a row that failed.
    pub(in crate::sweep) fn polls_missed(&self) -> u32 {
        self.polls_missed
    }

    /// Records that another SM was master and no longer is: it handed over, or is no longer found.
    /// The next election decides.
    pub(in crate::sweep) fn follow_another(&mut self, now: Instant) {
        self.handover.settle();
        self.handover.follows_another = true;
        self.master_seen = Some(now);
    }

    /// Becomes master; returns whether another SM was master in between.
    pub(in crate::sweep) fn become_master(&mut self) -> bool {
        let replaces_another = self.handover.follows_another;
        match replaces_another {
            true => self.own.replace_master(),
            false => self.own.set_state(SmState::Master),
        }
        self.own.set_replaced(self.polled.filter(|_| replaces_another));
        self.handover.begin_tenure();
        replaces_another
    }

    /// Records that `sm` took over after a handover by this SM.
    pub(in crate::sweep) fn note_taken_over(&mut self, sm: RemoteSm) -> RemoteSm {
        let rules = RemoteSm { state: SmState::Master, ..sm };
        self.others.iter_mut().filter(|(_, known)| *known == sm).for_each(|entry| entry.1 = rules);
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 0x5EC2E7;

    fn election() -> Election {
        let settings = Settings { sm_key: KEY, sm_priority: 3, ..Settings::default() };
        let mut election = Election::new(&settings);
        election.own.set_guid(Guid(10));
        election
    }

    fn port(number: u32) -> PortIndex {
        PortIndex::from_bits(number)
    }

    fn sm(guid: u64, priority: u8, state: SmState) -> RemoteSm {
        RemoteSm { guid: Guid(guid), priority, state }
    }

    fn shown(sm: RemoteSm, key: u64) -> [u8; 64] {
        let mut data = [0; 64];
        let mut info = SmInfo::new(&mut data[..]).unwrap();
        info.set_guid(sm.guid).set_priority(sm.priority).set_sm_state(sm.state).set_sm_key(key);
        data
    }

    /// Regression: a port that showed another GUID each time was waited for again and again, and
    /// the subnet had no master meanwhile.
    #[test]
    fn managers_that_never_were_master_share_the_time_for_which_one_waits() {
        const PATIENCE: Duration = Duration::from_secs(40);
        let (mut election, start) = (election(), Instant::now());
        let mut is_ignored = |seconds: u64, sm: RemoteSm| {
            let now = start + Duration::from_secs(seconds);
            election.others = vec![(port(1), sm)];
            election.find_idle(now, PATIENCE, |_| sm.guid);
            let is_ignored = election.candidates().next().is_none();
            if !is_ignored && sm.state != SmState::Master {
                election.wait_for(now, sm.guid);
            }
            is_ignored
        };
        let standby = |guid| sm(guid, 15, SmState::Standby);
        assert!(!is_ignored(0, standby(20)) && is_ignored(41, standby(20)));
        assert!(!is_ignored(42, standby(21)), "another one");
        for (guid, second) in (22..).zip(80..200) {
            assert!(is_ignored(second, standby(guid)), "{guid} after {second} s");
        }
        assert!(!is_ignored(200, sm(30, 15, SmState::Master)), "it is what it says");
        election.note_master(port(1), Guid(30));
        election.others = vec![(port(1), standby(30))];
        election.find_idle(start + Duration::from_secs(201), PATIENCE, |_| Guid(30));
        assert!(election.candidates().next().is_some(), "it was master");
    }

    #[test]
    fn who_shows_another_key_is_foreign_unless_any_will_do() {
        let other = sm(20, 5, SmState::Master);
        let answers = [KEY, 1].map(|key| election().read(&shown(other, key), 0));
        assert_eq!(answers, [Answer::Peer(other), Answer::Foreign(other)]);
        let open = Election::new(&Settings { sm_key: 0, ..Settings::default() });
        assert_eq!(open.read(&shown(other, 1), 0), Answer::Peer(other));
        assert_eq!(open.read(&[0xFF; 64], 0), Answer::None);
    }

    #[test]
    fn a_foreign_one_is_news_once_until_it_shows_our_key_or_goes() {
        let mut election = election();
        let place = || "there".to_owned();
        let is_news = |election: &mut Election, guid| {
            election.put_foreign(Guid(guid), false, "why", place).is_new
        };
        assert!(is_news(&mut election, 1) && !is_news(&mut election, 1));
        election.note_accepted(Guid(1));
        assert_eq!(election.foreign_sms().count(), 0);
        assert!(is_news(&mut election, 1) && is_news(&mut election, 2));
        assert_eq!(election.keep_known(|guid| guid == Guid(2)), None, "it was no master");
        assert!(is_news(&mut election, 1) && !is_news(&mut election, 2));
        assert_eq!(election.foreign_answers(), 6);
        (3..9999).for_each(|guid| {
            is_news(&mut election, guid);
        });
        assert_eq!(election.foreign_sms().count(), OTHERS_MAX);
    }

    #[test]
    fn a_foreign_master_that_ceases_or_goes_is_news() {
        let mut election = election();
        let place = || "there".to_owned();
        let news = |is_new, became_master, ceased| ForeignNews { is_new, became_master, ceased };
        let mut put = |is_master| election.put_foreign(Guid(1), is_master, "why", place);
        assert_eq!(
            [true, true].map(&mut put),
            [news(true, true, false), news(false, false, false)]
        );
        assert_eq!(
            [false, true].map(&mut put),
            [news(false, false, true), news(false, true, false)]
        );
        let missed = [(); 3].map(|()| election.miss_foreign(Guid(1)));
        assert_eq!(missed, [None, None, Some(("there".to_owned(), true))]);
        assert_eq!((election.miss_foreign(Guid(1)), election.is_foreign(Guid(1))), (None, false));
        election.put_foreign(Guid(1), true, "why", place);
        assert_eq!(election.keep_known(|_| false), Some("there".to_owned()));
    }

    #[test]
    fn a_master_that_misses_polls_in_a_row_is_looked_for_no_more() {
        let (mut election, now) = (election(), Instant::now());
        election.stand_by(now, port(4));
        assert_eq!((election.state(), election.master()), (SmState::Standby, Some(port(4))));
        assert!(!election.miss_poll(2));
        election.master_lives(now);
        assert!(!election.miss_poll(2), "those before it answered count no more");
        assert!(election.miss_poll(2));
        assert_eq!(election.master(), None);
        assert_eq!(election.master_seen(), Some(now));
    }

    #[test]
    fn what_an_other_says_last_counts() {
        let mut election = election();
        election.put(port(1), sm(20, 9, SmState::Standby), false);
        let now = sm(20, 1, SmState::Standby);
        election.put(port(1), now, false);
        assert_eq!(election.others(), [(port(1), now)]);
        let decided = |election: &Election| election.decide(Instant::now());
        assert_eq!((election.place_of(now), decided(&election)), (Some(port(1)), Decision::Master));
        let rules = election.note_taken_over(now);
        assert_eq!(decided(&election), Decision::StandBy(rules));
        election.forget(port(1));
        assert_eq!(decided(&election), Decision::Master);
    }

    /// Regression: a port that had the GUID of a manager whose host was off was handed the subnet.
    #[test]
    fn a_named_manager_gets_the_subnet_only_where_its_port_was() {
        let mut election = election();
        let (now, preferred) = (Instant::now(), sm(20, 15, SmState::Standby));
        assert!(!election.become_master());
        election.put(port(1), preferred, true);
        assert_eq!(election.decide(now), Decision::HandOver(preferred), "all are allowed");
        election.allow_only([Guid(20)].into());
        assert_eq!(election.decide(now), Decision::Master);
        election.put(port(1), preferred, false);
        assert_eq!(election.decide(now), Decision::HandOver(preferred));
    }

    #[test]
    fn who_stood_by_follows_another_once() {
        let mut election = election();
        assert!(!election.become_master());
        election.stand_by(Instant::now(), port(4));
        assert!(election.become_master());
        assert!(!election.become_master(), "that was settled");
        assert_eq!(election.tenure(), 2);
        election.follow_another(Instant::now());
        assert!(election.become_master(), "two were master");
        assert_eq!(election.tenure(), 3);
    }
}
