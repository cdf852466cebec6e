//! Which sessions are held: one for each part of a fabric that is split.
//!
//! A higher session replaces a lower one if its fabric contains the port of the lower one's
//! manager: both manage the same fabric, and the higher epoch counts. If it does not, the fabric is
//! split, and each manager is the rightful master of its part. Both sessions are then held, each in
//! a lane of its own, and all that belongs to a session (tables, writes, events) stays in its lane.
//! A session that replaces another takes over its lane.
//!
//! A split is noticed first by the manager whose part does not contain the responder's own port.
//! Until the other part has a manager, its last snapshot with that port stays in its lane, without
//! a manager, and the session goes on in another lane.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, Session, Snapshot, Version};

/// Sessions held at a time; those of further managers are refused.
pub const SESSIONS_MAX: usize = 4;
/// Managers of a fabric that are remembered; later ones are not.
const MANAGERS_MAX: usize = 16;
/// How long a session is held after its manager was heard of last, if another one serves this
/// responder's own port: time for a restart of the manager.
pub(super) const LINGER: Duration = Duration::from_secs(60);

/// A session, and where it comes from.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) snapshot: Arc<Snapshot>,
    /// The link that feeds it; `None` if that broke, or the session ended.
    pub(super) link: Option<usize>,
    /// Since when there is no such link.
    silent_since: Option<Instant>,
    /// Whether its fabric contains the responder's own port.
    has_own_port: bool,
    /// Ports of the managers that its fabric has contained since it began.
    managers: Vec<Guid>,
    /// Whether its session goes on in another lane, without the responder's own port.
    is_left: bool,
}

impl Held {
    fn session(&self) -> Session {
        self.snapshot.version().session
    }

    fn new(snapshot: Arc<Snapshot>, link: Option<usize>) -> Self {
        let managers = Vec::new();
        let (silent_since, has_own_port, is_left) = (None, false, false);
        Self { snapshot, link, silent_since, has_own_port, managers, is_left }
    }

    /// Whether its fabric contains the port of this manager, or that manager is its own.
    fn covers(&self, sm_guid: Guid) -> bool {
        self.session().sm_guid == sm_guid || has_port(self.snapshot.fabric(), sm_guid)
    }

    /// The session that requests at the own port are answered from has the greatest of these.
    fn rank(&self) -> (bool, bool, Session) {
        (self.has_own_port, self.link.is_some(), self.session())
    }
}

/// A session that is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dropped {
    /// The link that fed it, whose manager is to be notified.
    pub(super) link: Option<usize>,
    /// The version that took its place.
    pub(super) by: Version,
}

/// Where a snapshot is held.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) lane: usize,
    /// Sessions that it replaced.
    pub(super) dropped: Vec<Dropped>,
    /// Whether the lane is that of a session which it does not continue.
    pub(super) has_evicted: bool,
    /// The lane that the session left, with its last snapshot that contains the own port.
    pub(super) left: Option<usize>,
}

/// The sessions held, by lane.
#[derive(Debug)]
pub(super) struct Sessions {
    own_port: Option<Guid>,
    lanes: Vec<Option<Held>>,
    /// When each lane became free, in the order of `frees`.
    freed: Vec<u64>,
    frees: u64,
}

impl Sessions {
    /// Room for `lanes` sessions. `own_port` is the GUID of the responder's port, if it has one.
    pub(super) fn new(own_port: Option<Guid>, lanes: usize) -> Self {
        let lanes = lanes.clamp(1, SESSIONS_MAX);
        let held = std::iter::repeat_with(|| None).take(lanes).collect();
        Self { own_port, lanes: held, freed: vec![0; lanes], frees: 0 }
    }

    /// Holds a snapshot that no manager feeds yet.
    pub(super) fn set_cached(&mut self, snapshot: Arc<Snapshot>, now: Instant) {
        let mut held = Held::new(snapshot, None);
        held.silent_since = Some(now);
        self.look_into(&mut held);
        self.lanes[0] = Some(held);
    }

    /// How many lanes there are.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    pub(super) fn get(&self, lane: usize) -> Option<&Held> {
        self.lanes.get(lane)?.as_ref()
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &Held)> {
        self.lanes.iter().enumerate().filter_map(|(lane, held)| Some((lane, held.as_ref()?)))
    }

    /// Those whose session does not go on in another lane.
    fn current(&self) -> impl Iterator<Item = (usize, &Held)> {
        self.iter().filter(|(_, held)| !held.is_left)
    }

    /// The lane of a session.
    pub(super) fn lane_of(&self, session: Session) -> Option<usize> {
        self.current().find(|(_, held)| held.session() == session).map(|(lane, _)| lane)
    }

    /// The lane of the last session of the manager whose port has this GUID.
    pub(super) fn lane_of_manager(&self, sm_guid: Guid) -> Option<usize> {
        let of_manager = self.current().filter(|(_, held)| held.session().sm_guid == sm_guid);
        of_manager.max_by_key(|(_, held)| held.session()).map(|(lane, _)| lane)
    }

    /// The lane that a link feeds.
    pub(super) fn lane_of_link(&self, link: usize) -> Option<usize> {
        self.iter().find(|(_, held)| held.link == Some(link)).map(|(lane, _)| lane)
    }

    /// The version held of a higher session that replaces `session`.
    pub(super) fn replacing(&self, session: Session) -> Option<Version> {
        let higher = self.current().filter(|(_, held)| held.session() > session);
        let replacing = higher.filter(|(_, held)| held.covers(session.sm_guid));
        replacing.map(|(_, held)| held.snapshot.version()).max_by_key(|version| version.session)
    }

    /// The lane that requests at the responder's own port are answered from, and all others that
    /// come through no manager's front door: of the session whose fabric contains that port, first
    /// those whose manager is connected, then the highest.
    pub(super) fn own(&self, is_served: impl Fn(usize) -> bool) -> Option<usize> {
        let served = self.iter().filter(|(lane, _)| is_served(*lane));
        served.max_by_key(|(_, held)| held.rank()).map(|(lane, _)| lane)
    }

    /// The lane whose registry is reported to a manager that becomes master, and whose port has
    /// this GUID: that of the highest session, but not of one that has never covered the manager's
    /// part of the fabric.
    pub(super) fn asked_by(&self, sm_guid: Guid) -> Option<usize> {
        let of_asker = self.iter().filter(|(_, held)| {
            // One without a manager may have covered the fabric before the asker's port was up.
            let is_any = sm_guid == Guid(0) || held.link.is_none();
            is_any || held.covers(sm_guid) || held.managers.contains(&sm_guid)
        });
        let newest = |(_, held): &(usize, &Held)| held.snapshot.version().registry();
        of_asker.max_by_key(newest).map(|(lane, _)| lane)
    }

    /// Holds a snapshot that came by `link` and that no held session replaces. `None` if there is
    /// no room.
    pub(super) fn place(&mut self, link: usize, snapshot: Arc<Snapshot>) -> Option<Placed> {
        let known = self.lane_of(snapshot.version().session);
        let before = known.and_then(|lane| self.get(lane));
        let is_new_fabric =
            before.is_none_or(|held| !Arc::ptr_eq(held.snapshot.fabric(), snapshot.fabric()));
        let mut held = Held::new(snapshot, Some(link));
        if let Some(before) = before {
            held.managers.clone_from(&before.managers);
            held.has_own_port = before.has_own_port;
        }
        let mut replaced = Vec::new();
        // Searching for ports takes long: only a changed fabric can replace another session.
        if is_new_fabric {
            self.look_into(&mut held);
            replaced = self.replaced_by(&held, known);
        }
        let left = known.filter(|&lane| self.is_left_by(lane, &held));
        let next = left.and_then(|_| self.free_lane());
        let left = left.filter(|_| next.is_some());
        let lane = next.or(known).or_else(|| self.lane_for_new(&replaced))?;
        let is_continued = known.is_some() || replaced.contains(&lane);
        let has_evicted = !is_continued && self.lanes[lane].is_some();
        if let Some(left) = left.and_then(|left| self.lanes[left].as_mut()) {
            (left.link, left.is_left) = (None, true);
        }
        let by = held.snapshot.version();
        let mut dropped = Vec::new();
        for from in replaced {
            let gone = self.lanes[from].take();
            dropped.extend(gone.map(|gone| Dropped { link: gone.link, by }));
            if from != lane {
                self.note_free(from);
            }
        }
        self.lanes[lane] = Some(held);
        Some(Placed { lane, dropped, has_evicted, left })
    }

    /// Whether `next`, which follows the snapshot in `lane`, has lost the responder's own port,
    /// which no other session has.
    fn is_left_by(&self, lane: usize, next: &Held) -> bool {
        let has_it = |at: usize| self.get(at).is_some_and(|held| held.has_own_port);
        let mut others = (0..self.lanes.len()).filter(|&at| at != lane);
        has_it(lane) && !next.has_own_port && !others.any(has_it)
    }

    /// Lanes of the sessions that `next` replaces, the one whose lane it takes over first.
    fn replaced_by(&self, next: &Held, known: Option<usize>) -> Vec<usize> {
        let session = next.session();
        let others = self.iter().filter(|(lane, _)| Some(*lane) != known);
        let replaced = others.filter(|(_, held)| {
            if held.is_left {
                return next.has_own_port;
            }
            // A manager that has just lost its connection may go on in a part of its own.
            let is_gone = held.link.is_none() && known.is_none();
            let is_gone = is_gone && next.has_own_port >= held.has_own_port;
            held.session() < session && (is_gone || next.covers(held.session().sm_guid))
        });
        let mut lanes: Vec<usize> = replaced.map(|(lane, _)| lane).collect();
        let own = self.own(|_| true);
        lanes.sort_by_key(|&lane| Some(lane) != own);
        lanes
    }

    /// A lane for a new session: that of one which it replaces, else a free one, else that of one
    /// without a manager.
    fn lane_for_new(&self, replaced: &[usize]) -> Option<usize> {
        let own = self.own(|_| true);
        let without = self.iter().filter(|(lane, held)| held.link.is_none() && Some(*lane) != own);
        let replaced = replaced.first().copied().or_else(|| self.free_lane());
        replaced.or_else(|| without.min_by_key(|(_, held)| held.session()).map(|(lane, _)| lane))
    }

    /// The lane that has been free for longest: what is late for the session before in that lane
    /// must not reach the next one.
    fn free_lane(&self) -> Option<usize> {
        let free = (0..self.lanes.len()).filter(|&lane| self.lanes[lane].is_none());
        free.min_by_key(|&lane| self.freed[lane])
    }

    /// The snapshot of `lane` has been confirmed by `link`.
    pub(super) fn confirm(&mut self, lane: usize, link: usize) {
        if let Some(held) = &mut self.lanes[lane] {
            (held.link, held.silent_since) = (Some(link), None);
        }
    }

    /// A link broke, or its manager is not master any more.
    pub(super) fn silence(&mut self, link: usize, now: Instant) {
        for held in self.lanes.iter_mut().flatten().filter(|held| held.link == Some(link)) {
            (held.link, held.silent_since) = (None, Some(now));
        }
    }

    /// Drops sessions without a manager that lingered long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        let own = self.own(|_| true);
        for lane in 0..self.lanes.len() {
            let is_over = self.get(lane).and_then(|held| held.silent_since);
            let is_over = is_over.is_some_and(|since| now >= since + LINGER);
            if is_over && Some(lane) != own {
                self.lanes[lane] = None;
                self.note_free(lane);
            }
        }
    }

    fn note_free(&mut self, lane: usize) {
        self.frees += 1;
        self.freed[lane] = self.frees;
    }

    /// Finds out which ports a fabric contains.
    fn look_into(&self, held: &mut Held) {
        let fabric = held.snapshot.fabric();
        held.has_own_port = self.own_port.is_some_and(|guid| has_port(fabric, guid));
        for manager in &fabric.subnet_managers {
            if held.managers.len() < MANAGERS_MAX && !held.managers.contains(&manager.port_guid) {
                held.managers.push(manager.port_guid);
            }
        }
    }
}

fn has_port(fabric: &FabricPlane, guid: Guid) -> bool {
    fabric.nodes.iter().any(|node| node.ports.iter().any(|port| port.guid == guid))
}

#[cfg(test)]
pub(super) mod tests {
    use ib_mad::types::{Lid, PortNum};
    use sa_proto::snapshot::{Node, Port, RegistryPlane, SubnetManager};

    use super::*;

    const OWN: Guid = Guid(0xF00);

    /// A snapshot of the manager at port `sm`, whose fabric has these ports.
    pub(in super::super) fn snapshot(
        epoch: u64,
        sm: u64,
        generation: u64,
        ports: &[u64],
    ) -> Arc<Snapshot> {
        let port = |guid: u64| Port {
            num: PortNum(1),
            guid: Guid(guid),
            info: [0; 64],
            pkeys: Arc::from([]),
            peer: None,
        };
        let node = |&guid: &u64| {
            Arc::new(Node {
                guid: Guid(guid),
                info: [0; 40],
                description: [0; 64],
                switch_info: None,
                ports: vec![port(guid)],
            })
        };
        let fabric = FabricPlane { nodes: ports.iter().map(node).collect(), ..Default::default() };
        let session = Session { epoch, sm_guid: Guid(sm) };
        let registry = RegistryPlane::default();
        Arc::new(Snapshot::build(session, generation, fabric, registry).unwrap())
    }

    fn manager(guid: u64) -> Arc<SubnetManager> {
        Arc::new(SubnetManager { port_guid: Guid(guid), lid: Lid(1), info: [0; 21] })
    }

    fn place(sessions: &mut Sessions, link: usize, snapshot: Arc<Snapshot>) -> usize {
        sessions.place(link, snapshot).expect("there is room").lane
    }

    fn epochs(sessions: &Sessions) -> Vec<u64> {
        sessions.iter().map(|(_, held)| held.session().epoch).collect()
    }

    #[test]
    fn a_higher_session_of_the_same_fabric_takes_over_the_lane() {
        let mut sessions = Sessions::new(None, 2);
        assert_eq!(place(&mut sessions, 0, snapshot(5, 1, 1, &[1, 2])), 0);
        let placed = sessions.place(1, snapshot(6, 2, 1, &[1, 2])).unwrap();
        assert_eq!((placed.lane, placed.dropped[0].link), (0, Some(0)));
        assert_eq!(epochs(&sessions), [6]);
        let lower = Session { epoch: 5, sm_guid: Guid(1) };
        assert_eq!(sessions.replacing(lower).unwrap().session.epoch, 6);
    }

    /// The higher session alone was held, and the lower part of the fabric got no answers.
    #[test]
    fn each_part_of_a_split_fabric_keeps_its_session_and_the_own_port_has_that_of_its_part() {
        let mut sessions = Sessions::new(Some(OWN), 2);
        place(&mut sessions, 0, snapshot(5, 1, 1, &[1, 2, OWN.0]));
        place(&mut sessions, 1, snapshot(6, 2, 1, &[2]));
        assert_eq!(epochs(&sessions), [5, 6]);
        assert_eq!(sessions.own(|_| true), Some(0), "the other part does not contain the port");
        assert_eq!(sessions.own(|lane| lane == 1), Some(1), "unless it cannot be answered from");
        place(&mut sessions, 0, snapshot(5, 1, 2, &[1, OWN.0]));
        assert!(sessions.replacing(Session { epoch: 5, sm_guid: Guid(1) }).is_none());
        // The parts are joined: the higher one has found the manager of the other one.
        let placed = sessions.place(1, snapshot(6, 2, 2, &[1, 2, OWN.0])).unwrap();
        assert_eq!((placed.lane, placed.dropped[0].link), (1, Some(0)));
        assert_eq!((epochs(&sessions), sessions.own(|_| true)), (vec![6], Some(1)));
    }

    #[test]
    fn both_parts_contain_the_port_until_the_split_is_noticed_and_the_higher_one_has_it() {
        let mut sessions = Sessions::new(Some(OWN), 2);
        place(&mut sessions, 0, snapshot(5, 1, 1, &[1, 2, OWN.0]));
        place(&mut sessions, 1, snapshot(6, 2, 1, &[2, OWN.0]));
        assert_eq!(sessions.own(|_| true), Some(1));
        // A manager that is not master any more leaves the port to one that is.
        sessions.silence(1, Instant::now());
        assert_eq!(sessions.own(|_| true), Some(0));
    }

    /// The host of the master is gone, and its port with it.
    #[test]
    fn a_session_whose_manager_is_gone_is_replaced_though_its_port_is_gone_too() {
        let mut sessions = Sessions::new(None, 2);
        place(&mut sessions, 0, snapshot(5, 1, 1, &[1, 2]));
        sessions.silence(0, Instant::now());
        assert_eq!(place(&mut sessions, 1, snapshot(6, 2, 1, &[2])), 0);
        assert_eq!(epochs(&sessions), [6]);
    }

    #[test]
    fn a_part_whose_manager_restarts_is_remembered_for_a_while() {
        let (mut sessions, now) = (Sessions::new(Some(OWN), 3), Instant::now());
        place(&mut sessions, 0, snapshot(5, 1, 1, &[1]));
        place(&mut sessions, 1, snapshot(6, 2, 1, &[2, OWN.0]));
        sessions.silence(0, now);
        place(&mut sessions, 1, snapshot(6, 2, 2, &[2, OWN.0]));
        sessions.expire(now + LINGER - Duration::from_secs(1));
        assert_eq!(sessions.asked_by(Guid(1)), Some(0), "its registry is that of the part");
        assert_eq!(sessions.asked_by(Guid(2)), Some(1));
        sessions.expire(now + LINGER);
        assert_eq!((epochs(&sessions), sessions.asked_by(Guid(1))), (vec![6], None));
        // The one that the own port is answered from stays, however long its manager is gone.
        sessions.silence(1, now);
        sessions.expire(now + LINGER * 9);
        assert_eq!(epochs(&sessions), [6]);
    }

    /// Otherwise the writes that another manager acknowledged last would be missing.
    #[test]
    fn a_manager_gets_the_newest_registry_if_its_owner_is_gone() {
        let mut sessions = Sessions::new(None, 2);
        place(&mut sessions, 0, snapshot(6, 2, 1, &[2]));
        assert_eq!((sessions.asked_by(Guid(1)), sessions.asked_by(Guid(0))), (None, Some(0)));
        sessions.silence(0, Instant::now());
        assert_eq!(sessions.asked_by(Guid(1)), Some(0));
    }

    #[test]
    fn a_free_lane_is_used_again_as_late_as_possible_and_beyond_the_last_there_is_no_room() {
        let mut sessions = Sessions::new(None, 3);
        for (link, sm) in [(0, 1), (1, 2), (2, 3)] {
            assert_eq!(place(&mut sessions, link, snapshot(5 + sm, sm, 1, &[sm])), link);
        }
        assert!(sessions.place(3, snapshot(9, 4, 1, &[4])).is_none());
        // One that covers two others frees a lane.
        place(&mut sessions, 2, snapshot(8, 3, 2, &[1, 2, 3]));
        assert_eq!(epochs(&sessions), [8]);
        assert_eq!(place(&mut sessions, 0, snapshot(9, 5, 1, &[5])), 0);
        sessions.silence(0, Instant::now());
        place(&mut sessions, 1, snapshot(4, 6, 1, &[6]));
        let placed = sessions.place(3, snapshot(7, 7, 1, &[7])).unwrap();
        assert_eq!((placed.lane, placed.has_evicted), (0, true));
    }

    /// Clients at the port were refused for good until their part had a manager.
    #[test]
    fn the_own_port_keeps_the_snapshot_of_its_part_until_that_has_a_manager() {
        let mut sessions = Sessions::new(Some(OWN), 2);
        place(&mut sessions, 0, snapshot(5, 1, 1, &[1, 2, OWN.0]));
        let placed = sessions.place(0, snapshot(5, 1, 2, &[1])).unwrap();
        assert_eq!((placed.lane, placed.left), (1, Some(0)));
        assert_eq!(sessions.own(|_| true), Some(0));
        assert!(sessions.get(0).unwrap().link.is_none(), "no manager decides on its writes");
        let first = Session { epoch: 5, sm_guid: Guid(1) };
        assert_eq!((sessions.lane_of(first), sessions.lane_of_link(0)), (Some(1), Some(1)));
        sessions.expire(Instant::now() + LINGER * 9);
        // The manager of its part takes over the lane, and what waits in it.
        let placed = sessions.place(1, snapshot(6, 2, 1, &[2, OWN.0])).unwrap();
        assert_eq!((placed.lane, placed.has_evicted), (0, false));
        assert_eq!(epochs(&sessions), [6, 5]);
    }

    #[test]
    fn the_own_port_returns_to_the_session_that_finds_it_again() {
        let mut sessions = Sessions::new(Some(OWN), 2);
        place(&mut sessions, 0, snapshot(5, 1, 1, &[1, OWN.0]));
        assert_eq!(place(&mut sessions, 0, snapshot(5, 1, 2, &[1])), 1);
        let placed = sessions.place(0, snapshot(5, 1, 3, &[1, OWN.0])).unwrap();
        assert_eq!((placed.lane, placed.dropped.len()), (1, 1));
        assert_eq!((epochs(&sessions), sessions.own(|_| true)), (vec![5], Some(1)));
    }

    /// Its session no longer contained the port of the manager that takes over the other part.
    #[test]
    fn a_manager_of_a_part_gets_the_registry_of_the_whole() {
        let whole = |generation, managers: &[u64]| {
            let mut fabric = FabricPlane::clone(snapshot(5, 1, 1, &[1]).fabric());
            fabric.subnet_managers = managers.iter().map(|&guid| manager(guid)).collect();
            let session = Session { epoch: 5, sm_guid: Guid(1) };
            let registry = RegistryPlane::default();
            Arc::new(Snapshot::build(session, generation, fabric, registry).unwrap())
        };
        let mut sessions = Sessions::new(None, 2);
        place(&mut sessions, 0, whole(1, &[1, 2]));
        place(&mut sessions, 0, whole(2, &[1]));
        assert_eq!((sessions.asked_by(Guid(2)), sessions.asked_by(Guid(3))), (Some(0), None));
    }
}
