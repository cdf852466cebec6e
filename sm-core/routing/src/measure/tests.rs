//! Figures of fabrics small enough to count by hand, and of trees whose figures are known.

use std::collections::HashMap;

use proptest::prelude::*;

use super::cuts::Cuts;
use super::meter::Felt;
use super::*;
use crate::testing::{cabled, fat_tree, pair, part, topology, topology_without, torus};
use crate::{Destination, Engine, FTree, MinHop, NO_ROUTE, Routing, Steering};

fn route(engine: &dyn Engine, topology: &Topology) -> Routing {
    engine.route(topology, &Steering::default(), None).unwrap()
}

fn quality(topology: &Topology, routing: &Routing, plane: Plane, patterns: u32) -> Quality {
    let effort = Effort { patterns, seed: 1 };
    Quality::of(topology, &routing.tables(), &by_lid(topology), plane, effort)
}

/// The shifts by 1, 2 and 3 places send 1, 2 and 1 flows from each switch to the other.
#[test]
fn a_shared_link_halves_the_bandwidth_of_those_that_share_it() {
    let topology = pair(1, 2, 1);
    let made = quality(&topology, &route(&MinHop, &topology), Plane::Base, 100);
    let shifts = made.shifts;
    assert_eq!((shifts.patterns, shifts.flows, shifts.lost), (3, 12, 0));
    assert_eq!((shifts.bandwidth, shifts.bound), (2.5 / 3.0, 2.5 / 3.0));
    assert_eq!((shifts.congestion_mean, shifts.congestion_max), (4.0 / 3.0, 2));
    // Of three rounds of two pairs, two send both pairs over the link.
    assert_eq!((made.rounds.patterns, made.rounds.bad_pairs), (3, 4.0 / 6.0));
    assert_eq!(made.rounds.bandwidth, 2.0 / 3.0);
    // Four flows on the link, three at a host; two hosts at either end.
    assert_eq!((made.all_to_all, made.contention), (0.75, 2.0));
}

#[test]
fn links_without_routes_count_as_links_without_contention() {
    let topology = pair(2, 2, 1);
    let mut routing = route(&MinHop, &topology);
    let spread = quality(&topology, &routing, Plane::Base, 100);
    assert_eq!((spread.shifts.bandwidth, spread.all_to_all), (1.0, 1.0));
    assert_eq!(spread.contention, 1.0);
    for (switch, lid) in [(0, 3), (0, 4), (1, 1), (1, 2)] {
        routing.lfts[switch][lid] = 1;
    }
    let joined = quality(&topology, &routing, Plane::Base, 100);
    assert_eq!((joined.contention, joined.all_to_all), (1.0, 0.75));
    assert_eq!((joined.shifts.bandwidth, joined.shifts.bound), (2.5 / 3.0, 1.0));
}

/// Two hosts on each of two switches, two cables, and two LIDs a host: first LIDs over the first
/// cable, second LIDs over the second.
#[test]
fn a_divided_flow_has_the_mean_bandwidth_of_its_parts() {
    let topology = pair(2, 2, 2);
    let mut routing = route(&MinHop, &topology);
    for to in topology.destinations() {
        for (lid, port) in to.lids().zip(1..) {
            routing.lfts[usize::from(1 - to.egress_switch)].set(lid.index(), port);
        }
    }
    let felt = |routing: &Routing, plane| quality(&topology, routing, plane, 100);
    assert_eq!(felt(&routing, Plane::Base).shifts.bandwidth, 2.5 / 3.0);
    // Two flows between the switches, half of each on either cable.
    let divided = felt(&routing, Plane::Divided);
    assert_eq!((divided.shifts.bandwidth, divided.shifts.congestion_max), (1.0, 1));
    assert_eq!((divided.rounds.bad_pairs, divided.all_to_all, divided.contention), (0.0, 1.0, 2.0));
    // Of a half that does not arrive nothing remains; the other is unaffected.
    routing.lfts[0][7] = NO_ROUTE;
    let half = felt(&routing, Plane::Divided).shifts;
    assert_eq!((half.lost, half.bandwidth), (0, 11.0 / 12.0));
}

#[test]
fn flows_that_do_not_arrive_are_lost_and_have_no_bandwidth() {
    let topology = pair(2, 2, 1);
    let mut routing = route(&MinHop, &topology);
    routing.lfts[0][4] = NO_ROUTE;
    let made = quality(&topology, &routing, Plane::Base, 100);
    // To LID 4, from both hosts of switch 0; the third is on its own switch.
    assert_eq!(made.shifts.lost, 2);
    assert!((made.shifts.bandwidth - 10.0 / 12.0).abs() < 1e-9);
    assert_eq!(made.rounds.bad_pairs, 2.0 / 6.0);
    // A loop ends, too.
    (routing.lfts[0][4], routing.lfts[1][4]) = (1, 1);
    assert_eq!(quality(&topology, &routing, Plane::Base, 100).shifts.lost, 3);
}

#[test]
fn base_lids_and_spread_lids_are_measured_apart() {
    let topology = pair(4, 2, 4);
    let mut routing = route(&MinHop, &topology);
    // All base LIDs over one link, the others by their offset over others.
    for (switch, host) in [(0, 3), (0, 4), (1, 1), (1, 2)] {
        (0..4).for_each(|offset| routing.lfts[switch][4 * host + offset] = 1 + offset as u8);
    }
    let all = Qualities::of(&topology, &routing.tables(), &by_lid(&topology), Effort::default());
    let spread = all.spread.unwrap();
    assert_eq!((all.base.all_to_all, spread.all_to_all), (0.75, 1.0));
    assert_eq!((all.base.contention, spread.contention), (0.5, 2.0));
    assert!(all.base.matchings.bandwidth < spread.matchings.bandwidth);
    let single = pair(1, 2, 1);
    let routing = route(&MinHop, &single);
    let one = Qualities::of(&single, &routing.tables(), &by_lid(&single), Effort::default());
    assert_eq!(one.spread, None);
}

/// The figures that the definitions are checked against: 648 hosts on two levels have an eBB of
/// 0.66 and full bandwidth in shifts in the order of the tree.
#[test]
fn an_intact_tree_has_the_known_figures() {
    let topology = topology(&fat_tree(2, 36, 648), 0);
    let made = quality(&topology, &route(&FTree, &topology), Plane::Base, 40);
    assert!((made.matchings.bandwidth - 0.662).abs() < 0.01, "{made:?}");
    assert_eq!((made.shifts.bandwidth, made.shifts.congestion_max), (1.0, 1));
    assert_eq!((made.shifts.bound, made.matchings.bound), (1.0, 1.0));
    assert_eq!(made.all_to_all, 1.0);
    assert!((made.permutations.bandwidth - made.matchings.bandwidth).abs() < 0.01, "{made:?}");
}

/// A damaged tree has a bound below 1, which no routing exceeds; pods count as leaves do.
#[test]
fn no_routing_exceeds_the_bound() {
    for net in [fat_tree(2, 8, 32), fat_tree(3, 6, 54), torus(&[4, 4], 2)] {
        let topology = topology_without(&net, 0, |link| link % 9 == 4);
        let made = quality(&topology, &route(&MinHop, &topology), Plane::Base, 100);
        for figures in [made.shifts, made.matchings, made.permutations, made.rounds] {
            assert!(figures.bound < 1.0 || topology.switch_count() == 16, "{figures:?}");
            assert!(figures.bandwidth <= figures.bound + 1e-9, "{figures:?}");
        }
    }
    // Without three of the nine links of a pod, six of nine hosts can leave it at once.
    let net = fat_tree(3, 6, 54);
    let whole = topology(&net, 0);
    let ranks = |switch: u16| {
        let hosts = whole.hosts_on();
        let near = |link: &crate::Link| hosts[usize::from(link.peer)] > 0;
        hosts[usize::from(switch)] > 0 || whole.links(switch).iter().any(near)
    };
    let top: Vec<u16> = whole.switches().filter(|&switch| !ranks(switch)).collect();
    assert_eq!(top.len(), 9);
    let (rest, _) = part(&whole, |switch| !top[..3].contains(&switch), |_| true, |_| true);
    let made = quality(&rest, &route(&MinHop, &rest), Plane::Base, 100);
    // A shift by nine, one pod, sends all hosts out of their pods.
    let cuts = Cuts::of(&rest, &by_lid(&rest));
    let hosts = &by_lid(&rest)[0];
    let flows: Vec<_> = (0..54).map(|at| (hosts[at], hosts[(at + 9) % 54])).collect();
    let bound = cuts.bound(&flows, rest.destinations(), &mut Default::default());
    assert!((bound / 54.0 - 6.0 / 9.0).abs() < 1e-9, "{bound}");
    assert!(made.shifts.bound < 1.0 && made.shifts.bandwidth <= made.shifts.bound);
}

#[test]
fn figures_do_not_depend_on_the_number_of_threads() {
    let topology = topology(&torus(&[4, 5], 2), 1);
    let routing = route(&MinHop, &topology);
    let measure = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let hosts = by_lid(&topology);
        pool.install(|| Qualities::of(&topology, &routing.tables(), &hosts, Effort::default()))
    };
    assert_eq!(measure(1), measure(3));
}

/// Switches with these links between them, and hosts on these switches, LIDs from 1 on.
fn small(switches: u16, links: &[(u16, u16)], hosts: &[u16]) -> Topology {
    let mut ports = vec![0; usize::from(switches)];
    let mut end = |switch: u16| {
        ports[usize::from(switch)] += 1;
        (switch, ports[usize::from(switch)])
    };
    let cables: Vec<_> = links.iter().map(|&(a, b)| (end(a), end(b))).collect();
    cabled(switches, cables, hosts.iter().copied(), 1)
}

/// All routes from one switch to another that visit none twice, as links.
fn routes(topology: &Topology, from: u16, to: u16) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    let mut left = vec![(from, vec![from], Vec::new())];
    while let Some((at, visited, route)) = left.pop() {
        if at == to {
            found.push(route);
            continue;
        }
        for link in topology.links(at).iter().filter(|link| !visited.contains(&link.peer)) {
            let number = topology.link_at(at, link.port).unwrap() as u32;
            let more = |list: &[u16]| [list, &[link.peer]].concat();
            left.push((link.peer, more(&visited), [&route[..], &[number]].concat()));
        }
    }
    found
}

/// The largest sum of bandwidths that any choice of routes gives these flows.
fn best(topology: &Topology, flows: &[(u32, u32)]) -> f64 {
    let egress = |host: u32| topology.destinations()[host as usize].egress_switch;
    let choices: Vec<_> =
        flows.iter().map(|&(from, to)| routes(topology, egress(from), egress(to))).collect();
    let choices: Vec<_> = choices.into_iter().filter(|routes| !routes.is_empty()).collect();
    let count = choices.iter().map(Vec::len).product();
    let tried = |number: usize| {
        let mut rest = number;
        let chosen: Vec<_> = choices
            .iter()
            .map(|routes| {
                let route = &routes[rest % routes.len()];
                rest /= routes.len();
                route
            })
            .collect();
        let mut load: HashMap<u32, u32> = HashMap::new();
        chosen.iter().flat_map(|route| route.iter()).for_each(|&link| {
            *load.entry(link).or_default() += 1;
        });
        let congestion = |route: &Vec<u32>| route.iter().map(|link| load[link]).max().unwrap_or(1);
        chosen.iter().map(|route| 1.0 / f64::from(congestion(route))).sum::<f64>()
    };
    (0..count).map(tried).fold(0.0, f64::max)
}

fn bound(topology: &Topology, flows: &[(u32, u32)]) -> f64 {
    let cuts = Cuts::of(topology, &by_lid(topology));
    cuts.bound(flows, topology.destinations(), &mut Default::default())
}

/// Regression: each flow was given its share of the links of each leaf. Where two leaves share a
/// flow, routes that give their links to the other flows do better.
#[test]
fn leaves_that_share_a_flow_have_more_together_than_the_shares_of_each() {
    // Three flows leave switch 0 by two links, two of them to switch 1, which has one.
    let hosts = [0, 0, 0, 1, 1, 2, 2];
    let topology = small(4, &[(0, 3), (0, 3), (1, 3), (2, 3), (2, 3)], &hosts);
    let flows = [(0, 5), (1, 6), (2, 3)];
    assert_eq!(best(&topology, &flows), 2.0);
    assert_eq!(bound(&topology, &flows), 2.0);
    let flows = [(0, 5), (1, 3), (2, 4)];
    assert_eq!((best(&topology, &flows), bound(&topology, &flows)), (2.0, 2.0));
    let hosts = [0, 0, 0, 1, 1, 2, 2, 2];
    let topology = small(4, &[(0, 3), (0, 3), (1, 3), (2, 3), (2, 3)], &hosts);
    let flows = [(0, 5), (1, 6), (2, 3), (7, 4)];
    assert_eq!((best(&topology, &flows), bound(&topology, &flows)), (2.5, 3.0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// No choice of routes exceeds the bound, in fabrics small enough to try all.
    #[test]
    fn the_best_of_all_choices_of_routes_stays_within_the_bound(
        links in prop::collection::vec((0u16..5, 0u16..5), 1..7),
        hosts in prop::collection::vec(0u16..5, 2..8),
        order in Just((0u32..7).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let links: Vec<_> = links.into_iter().filter(|(a, b)| a != b).collect();
        let topology = small(5, &links, &hosts);
        let count = hosts.len() as u32;
        let to: Vec<u32> = order.into_iter().filter(|&host| host < count).collect();
        let mut flows: Vec<_> = (0..).zip(to).filter(|(from, to)| from != to).collect();
        let egress = |host: u32| hosts[host as usize];
        let mut choices = 1;
        flows.retain(|&(from, to)| {
            choices *= routes(&topology, egress(from), egress(to)).len().max(1);
            choices < 20_000
        });
        let (best, bound) = (best(&topology, &flows), bound(&topology, &flows));
        prop_assert!(best <= bound + 1e-9, "{best} of {bound}: {flows:?}");
    }
}

/// Figures as they are defined, flow by flow.
fn by_definition(
    topology: &Topology,
    lfts: &[&[u8]],
    hosts: &Groups,
    plane: Plane,
    effort: Effort,
    pattern: Pattern,
) -> Figures {
    let all = topology.destinations();
    let cuts = Cuts::of(topology, hosts);
    let count = pattern.count(hosts, effort.patterns);
    let outcome = |number| {
        let mut flows = Vec::new();
        pattern.fill((number, count), hosts, effort.seed, &mut Vec::new(), &mut flows);
        let route = |source: &Destination, to: &Destination, lid: usize| {
            let (mut at, mut links) = (source.egress_switch, Vec::new());
            while at != to.egress_switch && links.len() < topology.switch_count() {
                let Some(link) = topology.link_at(at, lfts[usize::from(at)][lid]) else { break };
                links.push(link);
                at = topology.link(link).peer;
            }
            let arrives = at == to.egress_switch && lfts[usize::from(at)][lid] == to.exit;
            (links, arrives)
        };
        let routes = |&(from, to): &(u32, u32)| -> Vec<(Vec<usize>, bool)> {
            let (source, to_host) = (&all[from as usize], &all[to as usize]);
            let lids: Vec<usize> = to_host.lids().map(|lid| lid.index()).collect();
            let pair = u64::from(from) << 32 | u64::from(to);
            let lids = match plane {
                Plane::Base => vec![lids[0]],
                Plane::Spread => {
                    let mut random = random::Random::new(effort.seed, pair);
                    vec![lids[random.below(to_host.lid_count.into()) as usize]]
                }
                Plane::Divided => lids,
            };
            lids.into_iter().map(|lid| route(source, to_host, lid)).collect()
        };
        let routes: Vec<_> = flows.iter().map(routes).collect();
        let mut load = vec![0.0; topology.link_count()];
        for parts in &routes {
            let links = parts.iter().flat_map(|(links, _)| links);
            links.for_each(|&link| load[link] += 1.0 / parts.len() as f64);
        }
        let felt = |parts: &Vec<(Vec<usize>, bool)>| {
            let arriving = parts.iter().filter(|(_, arrives)| *arrives);
            let most =
                arriving.map(|(links, _)| links.iter().map(|&l| load[l]).fold(1.0, f64::max));
            let most: Vec<f64> = most.collect();
            Felt {
                bandwidth: most.iter().map(|most| 1.0 / most).sum::<f64>() / parts.len() as f64,
                congestion: most.iter().copied().fold(0.0, f64::max).ceil() as u32,
            }
        };
        let by_flow: Vec<Felt> = routes.iter().map(felt).collect();
        let bound = cuts.bound(&flows, all, &mut Default::default());
        Outcome { bound, ..Outcome::of(&by_flow) }
    };
    Figures::of(&(0..count).map(outcome).collect::<Vec<_>>())
}

/// Patterns are measured several at a time and by LID. Each figure is the one of the definition,
/// to the last bit.
#[test]
fn figures_are_those_of_the_definition() {
    let kinds = [Pattern::Matching, Pattern::Shift, Pattern::Permutation, Pattern::Round];
    for (net, lmc) in [(fat_tree(3, 6, 54), 0), (torus(&[4, 5], 2), 2)] {
        let topology = topology_without(&net, lmc, |link| link % 9 == 4);
        let mut routing = route(&MinHop, &topology);
        let switches = topology.switch_count();
        // A route that ends and one that loops.
        let host = |at: usize| topology.destinations()[by_lid(&topology)[0][at] as usize];
        for (a, b) in host(3).lids().zip(host(7).lids()) {
            (0..switches).step_by(3).for_each(|switch| routing.lfts[switch][a.index()] = NO_ROUTE);
            routing.lfts.iter_mut().for_each(|lft| lft[b.index()] = 1);
        }
        let lfts = routing.tables();
        let mut hosts = by_lid(&topology);
        let others = hosts[0].split_off(20);
        hosts.push(others);
        let effort = Effort { patterns: 70, seed: 3 };
        let planes = [Plane::Base, Plane::Spread, Plane::Divided];
        for (pattern, plane) in kinds.into_iter().flat_map(|kind| planes.map(|plane| (kind, plane)))
        {
            let made = Figures::measure(&topology, &lfts, &hosts, plane, effort, pattern);
            let wanted = by_definition(&topology, &lfts, &hosts, plane, effort, pattern);
            assert_eq!(made, wanted, "{pattern:?} {plane:?}");
            assert!(made.lost > 0 && made.flows > made.lost);
        }
    }
}
