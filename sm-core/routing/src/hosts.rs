//! Keeps routes when only hosts change, for engines that would otherwise route everything from
//! scratch.
//!
//! A host that reboots changes the number of hosts on its switch. Engines that spread routes by
//! hosts would then move routes and lanes of other hosts, whose connections continue to use the SLs
//! of their path records. This module keeps all other routes. A host that returns gets its former
//! routes and lanes. A new LID gets the routes of another LID at the same switch, the one that the
//! fewest LIDs share: dependencies between channels then stay the same. Both LIDs are at the same
//! place among those of their ports, as engines may route the first LIDs of ports by other rules.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use ib_mad::types::Lid;

use super::{Destination, Entries, HopMatrix, Lanes, NO_ROUTE, Previous, Routing, Topology};

/// Largest number of LIDs of departed hosts whose routes are remembered, at two bytes per switch
/// each. Beyond that, a departed host is treated as new when it returns.
const AWAY_MAX: usize = 4096;

/// Hosts that left since the last full routing, by base LID, with the routes to them.
#[derive(Clone, Debug, Default)]
pub struct Away(BTreeMap<Lid, Arc<AwayHost>>);

#[derive(Debug)]
struct AwayHost {
    to: Destination,
    /// Routes to each of its LIDs, ascending.
    routes: Vec<Column>,
}

/// The routes to a LID: its column in the tables of all switches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Column {
    /// By switch: the egress port.
    ports: Vec<u8>,
    /// By switch: the layer; empty if layers are not assigned by LID.
    layers: Vec<u8>,
}

impl Column {
    /// Returns this column with the last step removed, as each host has its own exit port.
    fn to(mut self, egress_switch: u16) -> Self {
        self.ports[usize::from(egress_switch)] = NO_ROUTE;
        self
    }
}

/// A routing derived from a previous one after a change of hosts.
#[derive(Debug)]
pub struct Followed {
    /// The routing.
    pub routing: Routing,
    /// Hosts that are away.
    pub away: Away,
    /// Whether new LIDs took the routes of others: links may be more loaded than necessary.
    pub has_copies: bool,
}

/// Adapts the previous routing to the current hosts. Returns `None` if anything but hosts changed,
/// or if a new host is on a switch that had none, so that there are no routes to copy. `lanes` and
/// `away` are the previous ones.
///
/// Takes time proportional to the tables, to copy them.
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
        away.note(to, || to.lids().map(|lid| before.routes(lid)).collect());
        to.lids().for_each(|lid| tables.clear(lid));
    }
    let mut new = Vec::new();
    for to in topology.destinations().iter().filter(|to| !stays(to, then)) {
        match away.0.get(&to.base_lid).filter(|host| host.to == *to) {
            Some(host) => {
                to.lids().zip(&host.routes).for_each(|(lid, routes)| tables.set(lid, routes));
            }
            None => new.push(to),
        }
    }
    if !new.is_empty() {
        let mut models = Models::of(topology, &before, &away, &new);
        for to in &new {
            for (lid, offset) in to.lids().zip(0..) {
                tables.set(lid, models.least_used((to.egress_switch, offset))?);
            }
        }
    }
    // LIDs that are in use again no longer belong to an absent host.
    away.0.retain(|_, host| host.to.lids().all(|lid| topology.owner(lid).is_none()));
    let mut unreachable = 0;
    for to in topology.destinations() {
        let hops =
            topology.switches().map(|switch| hops.row(switch)[usize::from(to.egress_switch)]);
        let cut_off = hops.filter(|&hops| hops == HopMatrix::UNREACHABLE).count();
        unreachable += cut_off as u64 * u64::from(to.lid_count);
        to.lids()
            .for_each(|lid| tables.lfts[usize::from(to.egress_switch)].set(lid.index(), to.exit));
    }
    let NewTables { lfts, lanes } = tables;
    let routing = Routing {
        engine,
        lfts,
        hops: hops.clone(),
        lanes,
        unreachable,
        loads: Vec::new(),
        tree: None,
    };
    Some(Followed { routing, away, has_copies: !new.is_empty() })
}

/// Whether a destination is in another topology as well.
fn stays(to: &Destination, other: &Topology) -> bool {
    other.owner(to.base_lid) == Some(to)
}

impl Away {
    /// Remembers a departed host if there is room.
    fn note(&mut self, to: &Destination, routes: impl FnOnce() -> Vec<Column>) {
        let lids: usize = self.0.values().map(|host| host.routes.len()).sum();
        if to.is_host() && lids + usize::from(to.lid_count) <= AWAY_MAX {
            self.0.insert(to.base_lid, Arc::new(AwayHost { to: *to, routes: routes() }));
        }
    }
}

/// The previous tables and lanes.
struct Tables<'a> {
    topology: &'a Topology,
    previous: &'a Previous<'a>,
    lanes: &'a Lanes,
}

impl Tables<'_> {
    fn routes(&self, lid: Lid) -> Column {
        let port = |switch| self.previous.lft(switch).get(lid.index()).copied().unwrap_or(NO_ROUTE);
        let layers = match self.lanes {
            Lanes::Layers(layers) => layers.of_lid(lid),
            _ => Vec::new(),
        };
        Column { ports: self.topology.switches().map(port).collect(), layers }
    }

    /// Copies them into tables of `len` entries.
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

/// Tables and lanes under construction.
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

    fn set(&mut self, lid: Lid, routes: &Column) {
        for (lft, &port) in self.lfts.iter_mut().zip(&routes.ports) {
            lft.set(lid.index(), port);
        }
        if let Lanes::Layers(layers) = &mut self.lanes {
            layers.set_lid(lid, &routes.layers);
        }
    }
}

/// An egress switch, and the place of a LID among those of its port.
type Spot = (u16, u16);

/// Columns that new LIDs may copy, and how many LIDs use each.
struct Models(HashMap<Spot, Vec<(usize, Column)>>);

impl Models {
    /// Collects the columns of present and departed hosts on the switches of `new`.
    fn of(topology: &Topology, before: &Tables<'_>, away: &Away, new: &[&Destination]) -> Self {
        let spots = |to: &Destination| {
            let egress_switch = to.egress_switch;
            (0..to.lid_count).map(move |offset| (egress_switch, offset))
        };
        let mut users: HashMap<Spot, BTreeMap<Lid, (usize, Column)>> =
            new.iter().flat_map(|to| spots(to)).map(|spot| (spot, BTreeMap::new())).collect();
        let mut add = |to: &Destination, spot: Spot, lid: Lid, routes: Column| {
            if let Some(models) = users.get_mut(&spot) {
                let uses = usize::from(stays(to, topology));
                models.insert(lid, (uses, routes.to(to.egress_switch)));
            }
        };
        let switches: HashSet<u16> = new.iter().map(|to| to.egress_switch).collect();
        let hosts = before.topology.destinations().iter().filter(|to| to.is_host());
        for to in hosts.filter(|to| switches.contains(&to.egress_switch)) {
            to.lids().zip(spots(to)).for_each(|(lid, spot)| add(to, spot, lid, before.routes(lid)));
        }
        for AwayHost { to, routes } in away.0.values().map(|host| &**host) {
            let columns = to.lids().zip(spots(to)).zip(routes);
            columns.for_each(|((lid, spot), routes)| add(to, spot, lid, routes.clone()));
        }
        // LIDs that share their paths are one model. The order of LIDs makes the choice
        // deterministic.
        let distinct = |models: BTreeMap<Lid, (usize, Column)>| {
            let mut places: HashMap<Column, usize> = HashMap::new();
            let mut distinct: Vec<(usize, Column)> = Vec::new();
            for (count, routes) in models.into_values() {
                match places.get(&routes) {
                    Some(&at) => distinct[at].0 += count,
                    None => {
                        places.insert(routes.clone(), distinct.len());
                        distinct.push((count, routes));
                    }
                }
            }
            distinct
        };
        Self(users.into_iter().map(|(spot, models)| (spot, distinct(models))).collect())
    }

    /// Returns the routes of a spot that the fewest LIDs share, and counts one more LID for them;
    /// `None` if no LID has routes to it.
    fn least_used(&mut self, spot: Spot) -> Option<&Column> {
        let model = self.0.get_mut(&spot)?.iter_mut().min_by_key(|(users, _)| *users)?;
        model.0 += 1;
        Some(&model.1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Dfsssp, Dla, Engine, Lash, LayeredPaths, Nue, Steering, testing, verify};
    use super::*;

    const ENGINES: [&dyn Engine; 5] = [&Lash, &Nue, &Dfsssp, &LayeredPaths, &Dla];

    fn steering() -> Steering {
        testing::on_lanes(8)
    }

    fn without(whole: &Topology, each: u16) -> Topology {
        let stays =
            |host: &Destination| !(host.base_lid.0 / host.lid_count + 1).is_multiple_of(each);
        testing::part(whole, |_| true, |_| true, stays).0
    }

    proptest! {
        /// When hosts reboot, the routing stays correct and free of loops, and no other routes or
        /// lanes change.
        #[test]
        fn hosts_come_and_go_without_effect_on_others(
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
                    let lids = |s| to.lids().map(move |lid| (s, lid));
                    for (switch, lid) in after.switches().flat_map(lids) {
                        prop_assert_eq!(new.port(switch, lid), old.port(switch, lid));
                        let sl = |lanes: &Lanes| lanes.sl(switch, to.egress_switch, lid);
                        prop_assert_eq!(sl(&new.lanes), sl(&old.lanes));
                    }
                }
                // Departed hosts return, and new hosts leave again.
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
        let (bare, _) = testing::part(&whole, |_| true, |_| true, |host| host.egress_switch != 3);
        let of_bare = Lash.route(&bare, &steering(), None).unwrap();
        assert!(follow(&bare, &whole, &old), "the last host of a switch may go");
        assert!(!follow(&whole, &bare, &of_bare), "and is no first one when it comes back");
    }
    /// Regression: all new hosts of a switch took the paths of one existing
    /// host.
    #[test]
    fn new_hosts_take_paths_in_turn() {
        let whole = testing::topology(&testing::torus(&[4, 4], 6), 0);
        let two = |host: &Destination| host.egress_switch != 3 || host.exit.is_multiple_of(3);
        let (before, _) = testing::part(&whole, |_| true, |_| true, two);
        let old = Dfsssp.route(&before, &steering(), None).unwrap();
        let routes = |topology: &Topology, routing: &Routing| {
            let mut routes: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
            let at_egress_switch =
                topology.destinations().iter().filter(|to| to.egress_switch == 3 && to.is_host());
            for to in at_egress_switch {
                let port = |switch| if switch == 3 { 0 } else { routing.port(switch, to.base_lid) };
                *routes.entry(topology.switches().map(port).collect()).or_default() += 1;
            }
            routes.into_values().collect::<Vec<_>>()
        };
        assert_eq!(routes(&before, &old), [1, 1]);
        let previous = Previous::same_switches(&before, &old);
        let new = follow("dfsssp", &whole, &previous, &old.lanes, &Away::default()).unwrap();
        assert!(new.has_copies);
        assert_eq!(routes(&whole, &new.routing), [3, 3]);
    }
}
