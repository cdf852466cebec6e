//! Tests the rules of keeping routes, for all engines that keep them.

use proptest::prelude::*;

use super::super::deal::Shortest;
use super::super::engines::updn::{Labels, Order};
use super::super::verify;
use super::super::{
    Dfsssp, Dor, Engine, FTree, Lash, Link, MinHop, NO_ROUTE, Routing, Sssp, Steering, UpDown,
    testing, updn,
};
use super::*;

/// All engines that route most fabrics without a configuration of their own.
const ENGINES: [&dyn Engine; 8] =
    [&MinHop, &UpDown::FromRoots, &UpDown::FromHosts, &FTree, &Dor, &Sssp, &Dfsssp, &Lash];

/// Faults of a fabric: a switch, every n-th cable and every n-th host may be missing.
#[derive(Clone, Copy, Debug)]
struct Holes {
    switch: Option<u16>,
    cables: usize,
    hosts: u16,
}

impl Holes {
    const NONE: Self = Self { switch: None, cables: usize::MAX, hosts: u16::MAX };

    fn any() -> impl Strategy<Value = Self> {
        let few = prop_oneof![3 => Just(usize::MAX), 1 => 5usize..60];
        let gone = prop_oneof![3 => Just(u16::MAX), 1 => 2u16..20];
        let switch = prop_oneof![3 => Just(None), 1 => any::<u16>().prop_map(Some)];
        (switch, few, gone).prop_map(|(switch, cables, hosts)| Self { switch, cables, hosts })
    }

    fn of(self, whole: &Topology) -> (Topology, Vec<u16>) {
        let gone = self.switch.map(|switch| switch % whole.switch_count() as u16);
        testing::part(
            whole,
            |switch| gone != Some(switch) || whole.switch_count() == 1,
            |link| (link + 1) % self.cables != 0,
            |host| (host.base_lid.0 + 1) % self.hosts != 0,
        )
    }
}

/// Returns a fabric before and after a change, and for each switch after it its number before.
fn change(whole: &Topology, before: Holes, after: Holes) -> (Topology, Topology, Vec<Option<u16>>) {
    let (before, origins) = before.of(whole);
    let (after, now) = after.of(whole);
    let number = |origin| origins.binary_search(origin).ok().map(|number| number as u16);
    (before, after, now.iter().map(number).collect())
}

fn previous<'a>(
    topology: &'a Topology,
    routing: &'a Routing,
    switches: &[Option<u16>],
) -> Previous<'a> {
    Previous { switches: switches.to_vec(), ..Previous::same_switches(topology, routing) }
}

fn steering() -> Steering {
    rooted(0)
}

fn rooted(root: u16) -> Steering {
    let updn = updn::Options { roots: vec![root] };
    Steering { updn, ..testing::on_lanes(8) }
}

/// Checks that repaired tables keep all promises of their engine.
fn check(engine: &dyn Engine, topology: &Topology, routing: &Routing) -> Result<(), TestCaseError> {
    testing::check(topology, routing)?;
    if !routing.loads.is_empty() {
        prop_assert_eq!(&routing.loads, &LinkLoads::count(topology, routing).to_hosts);
    }
    if ["updn", "dnup", "ftree"].contains(&engine.name()) {
        let loops = verify::credit_loops(topology, &routing.tables());
        prop_assert_eq!((loops.traffic, loops.looping), (verify::Traffic::All, 0));
    }
    if ["dfsssp", "lash"].contains(&engine.name()) {
        let loops = verify::credit_loops_on_lanes(topology, routing);
        prop_assert!(loops.is_free(), "{}", loops);
    }
    Ok(())
}

proptest! {
    #[test]
    fn nothing_moves_while_nothing_changes(topology in testing::any_topology()) {
        for engine in ENGINES {
            let Ok(routing) = engine.route(&topology, &steering(), None) else { continue };
            let previous = Previous::same_switches(&topology, &routing);
            let again = engine.route(&topology, &steering(), Some(&previous));
            prop_assert_eq!(again.as_ref(), Ok(&routing), "{}", engine.name());
            if ["minhop", "updn", "dnup", "dor", "sssp", "dfsssp"].contains(&engine.name()) {
                let again = again.unwrap();
                let mut tables = again.lfts.iter().zip(&routing.lfts);
                prop_assert!(tables.all(|(new, old)| new.is_shared_with(old)), "no copy is made");
            }
        }
    }

    /// Cables, switches and hosts leave and return, twice, so that kept routes are kept again.
    #[test]
    fn all_engines_deliver_after_a_change(
        whole in testing::any_topology(), first in Holes::any(), second in Holes::any(),
    ) {
        let (before, between, then) = change(&whole, first, second);
        let (_, after, now) = change(&whole, second, Holes::NONE);
        for engine in ENGINES {
            let Ok(old) = engine.route(&before, &steering(), None) else { continue };
            let kept = previous(&before, &old, &then);
            let Ok(new) = engine.route(&between, &steering(), Some(&kept)) else { continue };
            check(engine, &between, &new)?;
            prop_assert_eq!(&engine.route(&between, &steering(), Some(&kept)).unwrap(), &new);
            // Counting from the previous loads gives the same as counting everything.
            let uncounted = Previous { loads: &[], ..kept };
            prop_assert_eq!(&engine.route(&between, &steering(), Some(&uncounted)).unwrap(), &new);
            let kept = previous(&between, &new, &now);
            let Ok(last) = engine.route(&after, &steering(), Some(&kept)) else { continue };
            check(engine, &after, &last)?;
        }
    }

    /// An incremental proof finds every fault that a full proof finds.
    #[test]
    fn a_proof_builds_on_the_one_before(
        whole in testing::any_topology(), first in Holes::any(), second in Holes::any(),
        breakages in prop::collection::vec((any::<u16>(), any::<u16>(), any::<u8>()), 0..4),
    ) {
        let (before, after, switches) = change(&whole, first, second);
        for engine in ENGINES {
            let Ok(old) = engine.route(&before, &steering(), None) else { continue };
            if !verify::deliveries(&before, &old).is_whole() {
                continue;
            }
            let kept = previous(&before, &old, &switches);
            let Ok(mut new) = engine.route(&after, &steering(), Some(&kept)) else { continue };
            for &(switch, lid, port) in &breakages {
                let count = new.lfts.len();
                let lft = &mut new.lfts[usize::from(switch) % count];
                let len = lft.len();
                lft[usize::from(lid) % len] = if port > 250 { NO_ROUTE } else { port % 8 };
                // Hops come from the engine, which may be wrong as well.
                if port % 5 == 0 {
                    let row = new.hops.row_mut(switch % count as u16);
                    row[usize::from(lid) % count] = port;
                }
            }
            let found = verify::deliveries_since(&after, &new, &kept);
            prop_assert_eq!(found, verify::deliveries(&after, &new));
        }
    }

    /// Examining only where links or hops changed finds all that examining everything does.
    #[test]
    fn examining_only_changes_finds_everything(
        whole in testing::any_topology(), first in Holes::any(), second in Holes::any(),
    ) {
        let (before, after, switches) = change(&whole, first, second);
        let old = MinHop.route(&before, &Steering::default(), None).unwrap();
        let previous = previous(&before, &old, &switches);
        let hops = HopMatrix::compute(&after).unwrap();
        let [changed, all] = [Scope::Changed, Scope::All].map(|scope| {
            let (now, then) = (Labelled::by_hops(&hops), Labelled::by_hops(&old.hops));
            repair(&after, now, &previous, then, |_| Shortest, scope)
        });
        let tables = |repaired: Option<Repaired>| {
            let dealt = repaired.map(|repaired| repaired.dealt);
            dealt.map(|dealt| (dealt.lfts, dealt.unreachable, dealt.loads))
        };
        prop_assert_eq!(tables(changed), tables(all));
    }

    /// The same for routes that go up and then down, where hops alone do not show all changes.
    #[test]
    fn examining_only_changed_labels_finds_everything(
        whole in testing::any_topology(), first in Holes::any(), second in Holes::any(),
        root in any::<u16>(),
    ) {
        let gone = |holes| Holes { switch: None, ..holes };
        let (before, after, switches) = change(&whole, gone(first), gone(second));
        let steering = rooted(root % whole.switch_count() as u16);
        let old = UpDown::FromRoots.route(&before, &steering, None).unwrap();
        let previous = previous(&before, &old, &switches);
        let [then, now] = [&before, &after]
            .map(|topology| Order::below(topology, &steering.common, &steering.updn.roots))
            .map(|order| order.switches);
        prop_assume!(then == now);
        let [then, now] = [&before, &after].map(|topology| {
            let order = Order::below(topology, &steering.common, &steering.updn.roots);
            Labels::compute(topology, &order)
        });
        let [changed, all] = [Scope::Changed, Scope::All].map(|scope| {
            let labelled = |labels| {
                let labels: &Labels = labels;
                Labelled { hops: &labels.hops, phases: labels.all_phases() }
            };
            let rules = |egress_switch| now.path_rules(egress_switch);
            repair(&after, labelled(&now), &previous, labelled(&then), rules, scope)
        });
        let tables = |repaired: Option<Repaired>| {
            let dealt = repaired.map(|repaired| repaired.dealt);
            dealt.map(|dealt| (dealt.lfts, dealt.unreachable, dealt.loads))
        };
        prop_assert_eq!(tables(changed), tables(all));
    }
}

/// Cables of a tree are cut and come back.
#[test]
fn kept_routes_are_balanced_as_well_as_new_ones() {
    let whole = testing::topology(&testing::fat_tree(3, 12, 432), 0);
    let leaf = whole.hosts_on().iter().position(|&hosts| hosts > 0).unwrap() as u16;
    let at_leaf = whole.link_range(leaf).start;
    let above = whole.link_range(whole.link(at_leaf).peer).end - 1;
    for engine in [&MinHop as &dyn Engine, &UpDown::FromRoots, &FTree, &Sssp] {
        let steering = Steering::default();
        let route = |topology: &Topology, previous: Option<&Previous<'_>>| {
            engine.route(topology, &steering, previous).unwrap()
        };
        let most = |topology: &Topology, routing: &Routing| {
            f64::from(testing::spread(topology, routing).max)
        };
        let first = route(&whole, None);
        for gone in [vec![at_leaf], vec![above], vec![at_leaf, at_leaf + 2, above]] {
            let is_here = |link: usize| {
                let Link { peer, peer_port, .. } = whole.link(link);
                let back = whole.link_at(peer, peer_port).unwrap();
                !gone.contains(&link) && !gone.contains(&back)
            };
            let (cut, _) = testing::part(&whole, |_| true, is_here, |_| true);
            let during = route(&cut, Some(&Previous::same_switches(&whole, &first)));
            let again = route(&whole, Some(&Previous::same_switches(&cut, &during)));
            let (kept, fresh) = (most(&cut, &during), most(&cut, &route(&cut, None)));
            assert!(kept <= fresh * 1.02, "{}: {kept}, recomputed {fresh}", engine.name());
            let (kept, fresh) = (most(&whole, &again), most(&whole, &first));
            assert!(kept <= fresh * 1.02, "{}: {kept}, recomputed {fresh}", engine.name());
            for (from, to) in [(&first, &during), (&during, &again)] {
                let moved = from.lfts.iter().flatten().zip(to.lfts.iter().flatten());
                let moved = moved.filter(|(a, b)| a != b).count();
                assert!(moved * 50 < first.lfts.len() * 432, "{}: {moved} moved", engine.name());
            }
        }
    }
}

/// Every seventh cable, switch or host of fabrics of all kinds leaves and returns: the worst link
/// has at most 2 % more routes than by routing from scratch.
#[test]
fn kept_routes_are_balanced_within_two_per_cent() {
    use fabric_sim::generate::{Common, Dragonfly, Grid, Hypercube, RandomGraph, Shape, generate};
    let mesh = Grid { dims: vec![4, 5], wraps: false, hosts_per_switch: 3, radix: None };
    let cube = Hypercube { dimensions: 5, hosts_per_switch: 2, radix: None };
    let dragonfly =
        Dragonfly { groups: 7, routers: 4, hosts_per_router: 3, global_links: 2, radix: None };
    let random = RandomGraph { switches: 30, degree: 5, hosts: 90, radix: None };
    let of = |shape| testing::topology(&testing::net(shape), 0);
    let holes = Common { missing_links: 4.0, missing_hosts: 9.0, seed: 3, ..Common::default() };
    let tree = fabric_sim::generate::FatTree {
        levels: 3,
        radix: 12,
        hosts: 300,
        oversubscription: (1, 1),
    };
    let shapes = [
        ("tree 2", testing::topology(&testing::fat_tree(2, 16, 128), 0)),
        ("tree 3", testing::topology(&testing::fat_tree(3, 12, 432), 0)),
        ("holes", testing::topology(&generate(&Shape::FatTree(tree), &holes).unwrap(), 0)),
        ("torus 2", testing::topology(&testing::torus(&[6, 5], 2), 0)),
        ("torus 3", testing::topology(&testing::torus(&[4, 4, 5], 1), 1)),
        ("mesh", of(Shape::Grid(mesh))),
        ("cube", of(Shape::Hypercube(cube))),
        ("dragonfly", of(Shape::Dragonfly(dragonfly))),
        ("random", of(Shape::Random(random))),
    ];
    let mut worse = Vec::new();
    for (name, whole) in &shapes {
        for engine in
            [&MinHop as &dyn Engine, &UpDown::FromRoots, &UpDown::FromHosts, &FTree, &Sssp]
        {
            let steering = steering();
            let Ok(first) = engine.route(whole, &steering, None) else { continue };
            for gone in (0..whole.link_count()).step_by(whole.link_count() / 7 + 1) {
                let Link { peer, peer_port, .. } = whole.link(gone);
                let back = whole.link_at(peer, peer_port).unwrap();
                let is_here = |link: usize| link != gone && link != back;
                let (cut, _) = testing::part(whole, |_| true, is_here, |_| true);
                let kept = Previous::same_switches(whole, &first);
                let Ok(during) = engine.route(&cut, &steering, Some(&kept)) else { continue };
                let fresh = engine.route(&cut, &steering, None).unwrap();
                let kept = Previous::same_switches(&cut, &during);
                let again = engine.route(whole, &steering, Some(&kept)).unwrap();
                let most =
                    |topology: &Topology, routing: &Routing| testing::spread(topology, routing).max;
                for (when, kept, fresh) in [
                    ("gone", most(&cut, &during), most(&cut, &fresh)),
                    ("back", most(whole, &again), most(whole, &first)),
                ] {
                    if f64::from(kept) > f64::from(fresh) * 1.02 {
                        worse.push(format!(
                            "{name} {} {when} {gone}: {kept}/{fresh}",
                            engine.name()
                        ));
                    }
                }
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
