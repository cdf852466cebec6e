//! How long does it take to compute the trees of thousands of groups, and to repair the trees that
//! used a cut cable?
//!
//! A manager brings a subnet up and receives 5,000 groups: most with a few hosts, some with
//! hundreds, and one with all. Reported are CPU time of all cores and wall time in milliseconds,
//! for the job that computes the trees on its own thread and for the loop's work with its result;
//! the number of table blocks that are written; and the depth of the trees, compared with OpenSM's
//! rule: rooted at the first of the switches with the fewest hops to all members, along shortest
//! paths.

use std::collections::BTreeMap;
use std::time::Instant;

use benches::cpu::ProcessClock;
use benches::fabrics::{FAT_TREE_1000, FAT_TREE_10000, Managed, Stated, middle_cable};
use benches::figures::{is_benchmark_run, is_wanted, report_figure, report_load};
use ib_mad::types::{Guid, Lid};
use sm_routing::PortMask;
use sm_routing::multicast::{Audience, Membership};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const GROUPS: u16 = 5_000;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    for fabric in [FAT_TREE_1000, FAT_TREE_10000] {
        if is_wanted(fabric.name) {
            measure(fabric);
        }
    }
    report_load();
}

fn measure(fabric: Stated) {
    let name = |what: &str| format!("multicast/{what}/{}", fabric.name);
    let mut managed = fabric.managed();
    let hosts = managed.host_ports();
    let groups = groups(&hosts);
    let members: usize = groups.values().map(|group| group.ports.len()).sum();
    report_figure(&name("members"), members, "in 5,000 groups");

    managed.make_multicast_room(GROUPS);
    managed.sweeper_mut().put_members(groups.clone());
    compute_trees(&name("from_nothing"), &mut managed);
    depths(&name("depth"), &managed, &groups);

    // One more member of one group.
    let mlid = Lid(0xC000 + 17);
    let mut ports = groups[&mlid].ports.to_vec();
    let newcomer = hosts.iter().find(|host| ports.binary_search(host).is_err());
    ports.extend(newcomer);
    ports.sort_unstable();
    managed.sweeper_mut().put_members([(mlid, Audience::new(ports, 0))].into());
    compute_trees(&name("join"), &mut managed);

    let before = trees(&managed);
    managed.cut(middle_cable(&fabric.net()));
    compute_trees(&name("link_cut"), &mut managed);
    let after = trees(&managed);
    let moved = before.iter().filter(|(mlid, tree)| after.get(mlid) != Some(tree)).count();
    report_figure(&name("link_cut"), moved, "trees changed");
    if let Some(job) = managed.sweeper_mut().poll_multicast_proof() {
        let (wall, mut cpu) = (Instant::now(), ProcessClock::start());
        let outcome = job.run();
        let (wall, cpu) = (wall.elapsed(), cpu.lap());
        report_figure(&name("looked_at_again"), format!("{wall:.1?}, {cpu:.1?} of CPU"), "");
        managed.handle_multicast(outcome);
    }
    report_figure(&name("deadlocks"), managed.sweeper().multicast_loops(), "trees");
}

/// Computes the pending trees, has them written, and reports the cost.
fn compute_trees(name: &str, managed: &mut Managed) {
    let (wall, mut cpu) = (Instant::now(), ProcessClock::start());
    let job = managed.poll_multicast().expect("trees are pending");
    let asked = (wall.elapsed(), cpu.lap());
    let groups = job.len();
    let wall = Instant::now();
    let outcome = job.run();
    let computed = (wall.elapsed(), cpu.lap());
    let wall = Instant::now();
    managed.handle_multicast(outcome);
    let taken = (wall.elapsed(), cpu.lap());
    let sent = managed.multicast_blocks();
    managed.write_multicast();
    let blocks = managed.multicast_blocks() - sent;
    report_figure(
        name,
        format!("{:.1?}, {:.1?} of CPU", computed.0, computed.1),
        "to compute the trees",
    );
    let on_loop = (asked.0 + taken.0, asked.1 + taken.1);
    report_figure(name, format!("{:.1?}, {:.1?} of CPU", on_loop.0, on_loop.1), "on the loop");
    report_figure(name, format!("{groups} groups, {blocks}"), "blocks written");
}

/// Groups of hosts, the same in each run: 4 to 19 hosts, every 50th group 200, and the first all.
fn groups(hosts: &[Guid]) -> Membership {
    let mut state = 1u64;
    let mut next = |max: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % max
    };
    let mut group = |number: u16| {
        let count = match number {
            0 => return hosts.to_vec(),
            number if number % 50 == 0 => 200,
            _ => 4 + next(16),
        };
        let mut ports: Vec<Guid> = (0..count).map(|_| hosts[next(hosts.len())]).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    };
    (0..GROUPS).map(|number| (Lid(0xC000 + number), Audience::new(group(number), 0))).collect()
}

type Trees = BTreeMap<Lid, Vec<(Guid, PortMask)>>;

/// The ports of each switch by MLID.
fn trees(managed: &Managed) -> Trees {
    let fabric = managed.sweeper().fabric();
    let mut trees = Trees::new();
    for (_, switch) in fabric.switches() {
        let guid = fabric.node(switch.node).guid;
        for (mlid, mask) in switch.mft.masks() {
            trees.entry(mlid).or_default().push((guid, mask));
        }
    }
    trees
}

/// The longest path between two members of each group, in links between switches, and that of
/// OpenSM's rule.
fn depths(name: &str, managed: &Managed, groups: &Membership) {
    let plane = managed.plane();
    let topology = benches::fabrics::topology(&plane);
    let hops = sm_routing::HopMatrix::compute(&topology).expect("few enough switches");
    let places = benches::fabrics::places(&plane);
    let trees = trees(managed);
    let numbers: BTreeMap<Guid, u16> =
        plane.lfts.iter().zip(0..).map(|(lft, number)| (lft.switch, number)).collect();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (mlid, audience) in groups {
        let members: Vec<u16> = audience.ports.iter().map(|port| places[port]).collect();
        let masks: BTreeMap<u16, PortMask> =
            trees[mlid].iter().map(|(guid, mask)| (numbers[guid], *mask)).collect();
        let root = |switch: &u16| -> u64 {
            members.iter().map(|&home| u64::from(hops.row(home)[usize::from(*switch)])).sum()
        };
        let root = topology.switches().min_by_key(root).expect("switches");
        let far = members.iter().map(|&home| hops.row(root)[usize::from(home)]).max();
        theirs.push(u32::from(far.unwrap_or(0)));
        // The centre of our tree: half of the longest path, rounded up.
        let (end, _) = furthest(&topology, &masks, members[0], &members);
        let (_, longest) = furthest(&topology, &masks, end, &members);
        ours.push(longest.div_ceil(2));
    }
    for (whose, depths) in [("ours", ours), ("OpenSM's rule", theirs)] {
        let sum: u32 = depths.iter().sum();
        let mean = f64::from(sum) / depths.len() as f64;
        let max = depths.iter().max().copied().unwrap_or(0);
        report_figure(name, format!("mean {mean:.3}, maximum {max}"), whose);
    }
}

/// The member's switch farthest from a switch along a tree, and its distance.
fn furthest(
    topology: &sm_routing::Topology,
    masks: &BTreeMap<u16, PortMask>,
    from: u16,
    members: &[u16],
) -> (u16, u32) {
    let mut best = (from, 0);
    let mut waiting = vec![(from, None, 0u32)];
    while let Some((switch, came_by, far)) = waiting.pop() {
        if far > best.1 && members.contains(&switch) {
            best = (switch, far);
        }
        for port in masks[&switch].ports().filter(|&port| Some(port) != came_by) {
            if let Some(link) = topology.link_at(switch, port).map(|link| topology.link(link)) {
                waiting.push((link.peer, Some(link.peer_port), far + 1));
            }
        }
    }
    best
}
