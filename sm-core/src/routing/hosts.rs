//! Routes over changes of hosts alone, for engines that would route everything anew.
//!
//! A host that reboots changes what its switch is worth to engines that spread routes by hosts, and
//! with it routes and lanes of all others, whose connections go on with the SLs that they were
//! told. Here all others stay, and a LID that is new takes the ways and lanes of another one at the
//! same switch: packets then wait for each other as they did before.

use std::collections::HashMap;

use ib_mad::types::Lid;

use super::{Destination, HopMatrix, Lanes, NO_ROUTE, Previous, Routing, Topology};

/// The routing before, with hosts that came and went. `None` if more has changed than that, or a host
/// came to a switch that had none: its routes have lanes with nobody's. `lanes` are those before.
///
/// Takes time in proportion to the tables, to copy them.
pub fn follow(
    engine: &'static str,
    topology: &Topology,
    previous: &Previous<'_>,
    lanes: &Lanes,
) -> Option<Routing> {
    let then = previous.topology;
    let is_same = previous.is_of_same_switches(topology)
        && topology.switches().all(|switch| topology.links(switch) == then.links(switch));
    let hops = previous.hops.filter(|_| is_same)?;
    let models = Models::of(topology, then)?;
    let lanes = match lanes {
        Lanes::Free => Lanes::Free,
        Lanes::Layers(layers) => {
            Lanes::Layers(layers.with_lids(topology.table_len(), &models.of_new))
        }
        Lanes::Torus(_) => return None,
    };
    let table = |switch: u16| {
        let before = previous.lft(switch);
        let mut lft = before[..before.len().min(topology.table_len())].to_vec();
        lft.resize(topology.table_len(), NO_ROUTE);
        for lid in &models.gone {
            lft.get_mut(lid.index()).into_iter().for_each(|entry| *entry = NO_ROUTE);
        }
        for &(lid, model) in &models.of_new {
            lft[lid.index()] = before.get(model.index()).copied().unwrap_or(NO_ROUTE);
        }
        lft
    };
    let mut lfts: Vec<Vec<u8>> = topology.switches().map(table).collect();
    let mut unreachable = 0;
    for to in topology.destinations() {
        let cut_off =
            hops_to(hops, topology, to.home).filter(|&hops| hops == HopMatrix::UNREACHABLE);
        unreachable += cut_off.count() as u64 * u64::from(to.lid_count);
        to.lids().for_each(|lid| lfts[usize::from(to.home)][lid.index()] = to.exit);
    }
    Some(Routing { engine, lfts, hops: hops.clone(), lanes, unreachable, loads: Vec::new() })
}

fn hops_to<'a>(
    hops: &'a HopMatrix,
    topology: &'a Topology,
    home: u16,
) -> impl Iterator<Item = u8> + 'a {
    topology.switches().map(move |switch| hops.row(switch)[usize::from(home)])
}

/// What LIDs are to be routed like.
#[derive(Default)]
struct Models {
    /// LIDs that were there, and are not, or elsewhere.
    gone: Vec<Lid>,
    /// New LIDs, each with one of then at the same switch.
    of_new: Vec<(Lid, Lid)>,
}

impl Models {
    /// `None` if a host came to a switch that had none.
    fn of(topology: &Topology, then: &Topology) -> Option<Self> {
        let stays = |to: &Destination, all: &Topology| all.owner(to.base_lid) == Some(to);
        let gone = then.destinations().iter().filter(|to| !stays(to, topology));
        let gone = gone.flat_map(Destination::lids).collect();
        let mut at_home: HashMap<u16, Vec<&Destination>> = HashMap::new();
        for to in then.destinations().iter().filter(|to| to.is_host()) {
            at_home.entry(to.home).or_default().push(to);
        }
        let mut models = Self { gone, of_new: Vec::new() };
        for to in topology.destinations().iter().filter(|to| !stays(to, then)) {
            let hosts = at_home.get(&to.home)?;
            // In turn, so that several do not all go the same way.
            let model = hosts[usize::from(to.exit) % hosts.len()];
            if model.lid_count < to.lid_count {
                return None;
            }
            models.of_new.extend(to.lids().zip(model.lids()));
        }
        Some(models)
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
                let Some(new) = follow(old.engine, &after, &previous, &old.lanes) else { continue };
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
            }
        }
    }

    #[test]
    fn more_than_hosts_is_not_followed() {
        let whole = testing::topology(&testing::torus(&[4, 4], 2), 0);
        let old = Lash.route(&whole, &steering(), None).unwrap();
        let follow = |topology: &Topology, then: &Topology, old: &Routing| {
            follow("lash", topology, &Previous::same_switches(then, old), &old.lanes).is_some()
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
}
