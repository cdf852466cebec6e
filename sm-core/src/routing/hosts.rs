//! Routes over changes of hosts alone, for engines that would route everything anew.
//!
//! A host that reboots changes what its switch is worth to engines that spread routes by hosts, and
//! with it routes and lanes of all others, whose connections go on with the SLs that they were
//! told. Here all others stay. A host that comes back gets the ways and lanes that it had; a LID that is
//! new takes those of another one at the same switch, of which fewest make use: packets then wait for
//! each other as they did before.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ib_mad::types::Lid;

use super::{Destination, Entries, HopMatrix, Lanes, NO_ROUTE, Previous, Routing, Topology};

/// LIDs of hosts that went whose ways are remembered: two bytes a switch each. Hosts that go when there
/// are so many are new ones when they come back.
const AWAY_MAX: usize = 4096;

/// Hosts that went since everything was routed, by base LID, with the ways to them.
#[derive(Clone, Debug, Default)]
pub struct Away(BTreeMap<Lid, Arc<AwayHost>>);

#[derive(Debug)]
struct AwayHost {
    to: Destination,
    /// Those of its LIDs, ascending.
    ways: Vec<Column>,
}

/// How all switches lead to a LID: its column in their tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Column {
    /// By switch: the egress port.
    ports: Vec<u8>,
    /// By switch: the layer; empty where lanes are not by LID.
    layers: Vec<u8>,
}

impl Column {
    /// The same but for the last step, which is each host's own.
    fn to(mut self, home: u16) -> Self {
        self.ports[usize::from(home)] = NO_ROUTE;
        self
    }
}

/// A routing that follows another over a change of hosts.
#[derive(Debug)]
pub struct Followed {
    /// The routing.
    pub routing: Routing,
    /// Hosts that are away.
    pub away: Away,
    /// Whether LIDs took the ways of others: links may have more routes than they need have.
    pub has_copies: bool,
}

/// The routing before, with hosts that came and went. `None` if more has changed than that, or a host
/// that is new came to a switch that had none: its routes have lanes with nobody's. `lanes` and `away`
/// are those before.
///
/// Takes time in proportion to the tables, to copy them.
pub fn follow(
    engine: &'static str,
    topology: &Topology,
    previous: &Previous<'_>,
    lanes: &Lanes,
    away: &Away,
) -> Option<Followed> {
    let then = previous.topology;
    let is_same = previous.is_of_same_switches(topology)
        && topology.switches().all(|switch| topology.links(switch) == then.links(switch));
    let hops = previous.hops.filter(|_| is_same)?;
    if matches!(lanes, Lanes::Torus(_)) {
        return None;
    }
    let before = Tables { topology: then, previous, lanes };
    let mut away = away.clone();
    let mut tables = before.of_len(topology.table_len());
    for to in then.destinations().iter().filter(|to| !stays(to, topology)) {
        away.note(to, || to.lids().map(|lid| before.ways(lid)).collect());
        to.lids().for_each(|lid| tables.clear(lid));
    }
    let mut new = Vec::new();
    for to in topology.destinations().iter().filter(|to| !stays(to, then)) {
        match away.0.get(&to.base_lid).filter(|host| host.to == *to) {
            Some(host) => to.lids().zip(&host.ways).for_each(|(lid, ways)| tables.set(lid, ways)),
            None => new.push(to),
        }
    }
    if !new.is_empty() {
        let mut models = Models::of(topology, &before, &away, &new);
        for to in &new {
            for lid in to.lids() {
                tables.set(lid, models.least_used(to.home)?);
            }
        }
    }
    // LIDs that somebody has again are nobody's who is away.
    away.0.retain(|_, host| host.to.lids().all(|lid| topology.owner(lid).is_none()));
    let mut unreachable = 0;
    for to in topology.destinations() {
        let hops = topology.switches().map(|switch| hops.row(switch)[usize::from(to.home)]);
        let cut_off = hops.filter(|&hops| hops == HopMatrix::UNREACHABLE).count();
        unreachable += cut_off as u64 * u64::from(to.lid_count);
        to.lids().for_each(|lid| tables.lfts[usize::from(to.home)].set(lid.index(), to.exit));
    }
    let NewTables { lfts, lanes } = tables;
    let routing =
        Routing { engine, lfts, hops: hops.clone(), lanes, unreachable, loads: Vec::new() };
    Some(Followed { routing, away, has_copies: !new.is_empty() })
}

/// Whether a destination is in another topology as well.
fn stays(to: &Destination, other: &Topology) -> bool {
    other.owner(to.base_lid) == Some(to)
}

impl Away {
    /// Remembers a host that goes, if there is room.
    fn note(&mut self, to: &Destination, ways: impl FnOnce() -> Vec<Column>) {
        let lids: usize = self.0.values().map(|host| host.ways.len()).sum();
        if to.is_host() && lids + usize::from(to.lid_count) <= AWAY_MAX {
            self.0.insert(to.base_lid, Arc::new(AwayHost { to: *to, ways: ways() }));
        }
    }
}

/// Tables and lanes before.
struct Tables<'a> {
    topology: &'a Topology,
    previous: &'a Previous<'a>,
    lanes: &'a Lanes,
}

impl Tables<'_> {
    fn ways(&self, lid: Lid) -> Column {
        let port = |switch| self.previous.lft(switch).get(lid.index()).copied().unwrap_or(NO_ROUTE);
        let layers = match self.lanes {
            Lanes::Layers(layers) => layers.of_lid(lid),
            _ => Vec::new(),
        };
        Column { ports: self.topology.switches().map(port).collect(), layers }
    }

    /// The same in tables of so many entries.
    fn of_len(&self, len: usize) -> NewTables {
        let table = |switch| {
            let mut lft = self.previous.entries(switch).cloned().unwrap_or_default();
            lft.resize(len, NO_ROUTE);
            lft
        };
        let lanes = match self.lanes {
            Lanes::Layers(layers) => Lanes::Layers(layers.of_len(len)),
            other => other.clone(),
        };
        NewTables { lfts: self.topology.switches().map(table).collect(), lanes }
    }
}

/// Tables and lanes that are made.
struct NewTables {
    lfts: Vec<Entries>,
    lanes: Lanes,
}

impl NewTables {
    fn clear(&mut self, lid: Lid) {
        for lft in self.lfts.iter_mut().filter(|lft| lid.index() < lft.len()) {
            lft.set(lid.index(), NO_ROUTE);
        }
    }

    fn set(&mut self, lid: Lid, ways: &Column) {
        for (lft, &port) in self.lfts.iter_mut().zip(&ways.ports) {
            lft.set(lid.index(), port);
        }
        if let Lanes::Layers(layers) = &mut self.lanes {
            layers.set_lid(lid, &ways.layers);
        }
    }
}

/// Columns that new LIDs may take, by the switch that they lead to, and how many LIDs take each.
struct Models(HashMap<u16, Vec<(usize, Column)>>);

impl Models {
    /// Those of hosts that are there, or away, on the switches of `new`.
    fn of(topology: &Topology, before: &Tables<'_>, away: &Away, new: &[&Destination]) -> Self {
        let mut users: HashMap<u16, BTreeMap<Lid, (usize, Column)>> =
            new.iter().map(|to| (to.home, BTreeMap::new())).collect();
        for to in before.topology.destinations().iter().filter(|to| to.is_host()) {
            let Some(models) = users.get_mut(&to.home) else { continue };
            let is_there = usize::from(stays(to, topology));
            models.extend(to.lids().map(|lid| (lid, (is_there, before.ways(lid).to(to.home)))));
        }
        for host in away.0.values() {
            let Some(models) = users.get_mut(&host.to.home) else { continue };
            let is_back = usize::from(stays(&host.to, topology));
            let ways = host.ways.iter().map(|ways| (is_back, ways.clone().to(host.to.home)));
            models.extend(host.to.lids().zip(ways));
        }
        // LIDs that share their ways are one model; in the order of LIDs, so that the choice is the
        // same each time.
        let distinct = |models: BTreeMap<Lid, (usize, Column)>| {
            let mut places: HashMap<Column, usize> = HashMap::new();
            let mut distinct: Vec<(usize, Column)> = Vec::new();
            for (count, ways) in models.into_values() {
                match places.get(&ways) {
                    Some(&at) => distinct[at].0 += count,
                    None => {
                        places.insert(ways.clone(), distinct.len());
                        distinct.push((count, ways));
                    }
                }
            }
            distinct
        };
        Self(users.into_iter().map(|(home, models)| (home, distinct(models))).collect())
    }

    /// The ways to a switch that fewest LIDs take, for one more to take them; `None` if nobody's lead
    /// there.
    fn least_used(&mut self, home: u16) -> Option<&Column> {
        let model = self.0.get_mut(&home)?.iter_mut().min_by_key(|(users, _)| *users)?;
        model.0 += 1;
        Some(&model.1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Dfsssp, Engine, Lash, Nue, Steering, testing, verify};
    use super::*;

    const ENGINES: [&dyn Engine; 3] = [&Lash, &Nue, &Dfsssp];

    fn steering() -> Steering {
        Steering { data_lanes: 8, nue_lanes_max: 0, ..Steering::default() }
    }

    fn without(whole: &Topology, each: u16) -> Topology {
        let stays =
            |host: &Destination| !(host.base_lid.0 / host.lid_count + 1).is_multiple_of(each);
        testing::part(whole, |_| true, |_| true, stays).0
    }

    proptest! {
        /// Hosts reboot: what they leave behind is sound and free of loops, and nobody else's routes
        /// or lanes change.
        #[test]
        fn hosts_come_and_go_and_others_notice_nothing(
            whole in testing::any_topology(), gone in 2u16..20, other in 2u16..20,
        ) {
            let (before, after) = (without(&whole, gone), without(&whole, other));
            for engine in ENGINES {
                let Ok(old) = engine.route(&before, &steering(), None) else { continue };
                let previous = Previous::same_switches(&before, &old);
                let followed = follow(old.engine, &after, &previous, &old.lanes, &Away::default());
                let Some(Followed { routing: new, away, .. }) = followed else { continue };
                testing::check(&after, &new)?;
                let loops = verify::credit_loops_on_lanes(&after, &new);
                if !matches!(new.lanes, Lanes::Free) {
                    prop_assert!(loops.is_free(), "{}: {}", engine.name(), loops);
                }
                let stays = |to: &&Destination| before.owner(to.base_lid) == Some(to);
                for to in after.destinations().iter().filter(stays) {
                    for (switch, lid) in after.switches().flat_map(|s| to.lids().map(move |l| (s, l))) {
                        prop_assert_eq!(new.port(switch, lid), old.port(switch, lid));
                        let sl = |lanes: &Lanes| lanes.sl(switch, to.home, lid);
                        prop_assert_eq!(sl(&new.lanes), sl(&old.lanes));
                    }
                }
                // Those that went come back, and those that came go again.
                let previous = Previous::same_switches(&after, &new);
                let back = follow(old.engine, &before, &previous, &new.lanes, &away).unwrap();
                prop_assert_eq!(&back.routing.lfts, &old.lfts);
                let sls = |lanes: &Lanes| -> Vec<_> {
                    before.switches().map(|switch| lanes.sls_from(&before, switch)).collect()
                };
                prop_assert_eq!(sls(&back.routing.lanes), sls(&old.lanes));
                prop_assert!(!back.has_copies);
            }
        }
    }

    #[test]
    fn more_than_hosts_is_not_followed() {
        let whole = testing::topology(&testing::torus(&[4, 4], 2), 0);
        let old = Lash.route(&whole, &steering(), None).unwrap();
        let follow = |topology: &Topology, then: &Topology, old: &Routing| {
            let previous = Previous::same_switches(then, old);
            follow("lash", topology, &previous, &old.lanes, &Away::default()).is_some()
        };
        assert!(follow(&without(&whole, 3), &whole, &old));
        let (cut, _) = testing::part(&whole, |_| true, |cable| cable != 0, |_| true);
        assert!(!follow(&cut, &whole, &old), "a cable is gone");
        // Switch 3 had no hosts.
        let (bare, _) = testing::part(&whole, |_| true, |_| true, |host| host.home != 3);
        let of_bare = Lash.route(&bare, &steering(), None).unwrap();
        assert!(follow(&bare, &whole, &old), "the last host of a switch may go");
        assert!(!follow(&whole, &bare, &of_bare), "and is no first one when it comes back");
    }
    /// All hosts that came to a switch had the ways of one that was there.
    #[test]
    fn hosts_that_come_take_ways_in_turn() {
        let whole = testing::topology(&testing::torus(&[4, 4], 6), 0);
        let two = |host: &Destination| host.home != 3 || host.exit.is_multiple_of(3);
        let (before, _) = testing::part(&whole, |_| true, |_| true, two);
        let old = Dfsssp.route(&before, &steering(), None).unwrap();
        let ways = |topology: &Topology, routing: &Routing| {
            let mut ways: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
            let at_home = topology.destinations().iter().filter(|to| to.home == 3 && to.is_host());
            for to in at_home {
                let port = |switch| if switch == 3 { 0 } else { routing.port(switch, to.base_lid) };
                *ways.entry(topology.switches().map(port).collect()).or_default() += 1;
            }
            ways.into_values().collect::<Vec<_>>()
        };
        assert_eq!(ways(&before, &old), [1, 1]);
        let previous = Previous::same_switches(&before, &old);
        let new = follow("dfsssp", &whole, &previous, &old.lanes, &Away::default()).unwrap();
        assert!(new.has_copies);
        assert_eq!(ways(&whole, &new.routing), [3, 3]);
    }
}
