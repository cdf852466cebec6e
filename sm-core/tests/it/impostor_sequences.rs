//! Any sequence of events with any impostors: hosts that answer with the GUIDs of other hosts and of
//! switches, alone, together and behind each other, while links fail, switches are off and the
//! manager restarts. What is there and was not touched keeps its place after each event.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::Bed;
use fabric_sim::NodeIndex;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::PortState;
use proptest::prelude::*;
use sm_config::Settings;
use sm_core::manage::mkey::MKeyTable;

/// The fabric: kind, GUID and number of ports. The first two are the manager's switch and host.
const NODES: [(NodeKind, u64, u8); 9] = [
    (NodeKind::Switch, 0x20, 8),
    (NodeKind::Ca, 0x1000, 1),
    (NodeKind::Ca, 0x3000, 1),
    (NodeKind::Switch, 0x21, 8),
    (NodeKind::Ca, 0x4000, 1),
    (NodeKind::Ca, 0x4100, 2),
    (NodeKind::Switch, 0x60, 8),
    (NodeKind::Switch, 0x61, 8),
    (NodeKind::Ca, 0x4200, 1),
];

/// Its links, by places in [`NODES`] and port numbers.
const LINKS: [((usize, u8), (usize, u8)); 10] = [
    ((0, 1), (1, 1)),
    ((0, 3), (2, 1)),
    ((0, 5), (6, 2)),
    ((0, 6), (7, 2)),
    ((3, 1), (4, 1)),
    ((3, 2), (5, 1)),
    ((3, 5), (6, 4)),
    ((3, 6), (7, 4)),
    ((0, 7), (5, 2)),
    ((7, 8), (8, 1)),
];

/// Ports of the fabric's switches at which impostors are.
const PLACES: [(usize, u8); 4] = [(0, 2), (0, 4), (3, 3), (7, 1)];

/// A node that reports the GUID of another one.
#[derive(Clone, Debug)]
struct Impostor {
    kind: NodeKind,
    /// Whose GUID, by its place in [`NODES`].
    victim: usize,
    /// Number of ports, in place of the victim's.
    ports: Option<u8>,
    /// Its port with the link.
    port: u8,
    /// Whether its port GUID is its own.
    own_port_guid: bool,
    /// Whether it is behind the impostor before it, in place of at one of [`PLACES`].
    is_behind: bool,
}

#[derive(Clone, Debug)]
enum Event {
    /// The link of an impostor comes, or goes.
    Impostor(usize, bool),
    /// A node of the fabric is switched off, or on.
    Power(usize, bool),
    /// A link of the fabric fails, or returns.
    Link(usize, bool),
    /// The manager restarts, or another one takes over with what is stored. Impostors may come
    /// meanwhile.
    Restart(Vec<usize>),
    Sweep,
}

fn impostor() -> impl Strategy<Value = Impostor> {
    let kind = prop_oneof![
        3 => Just(None),
        1 => prop::sample::select(vec![NodeKind::Switch, NodeKind::Ca, NodeKind::Router]).prop_map(Some),
    ];
    let ports = prop_oneof![3 => Just(None), 1 => (1u8..9).prop_map(Some)];
    (kind, 0..NODES.len(), ports, 1u8..9, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(kind, victim, ports, port, own_port_guid, is_behind)| {
            let kind = kind.unwrap_or(NODES[victim].0);
            let count = ports.unwrap_or(NODES[victim].2);
            let port = (port - 1) % count + 1;
            Impostor { kind, victim, ports, port, own_port_guid, is_behind }
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0usize..3, any::<bool>()).prop_map(|(which, up)| Event::Impostor(which, up)),
        3 => (2..NODES.len(), any::<bool>()).prop_map(|(which, up)| Event::Power(which, up)),
        1 => (1..LINKS.len(), any::<bool>()).prop_map(|(which, up)| Event::Link(which, up)),
        2 => prop::collection::vec(0usize..3, 0..3).prop_map(Event::Restart),
        1 => Just(Event::Sweep),
    ]
}

struct Site {
    bed: Bed,
    /// Links of impostors: the switch of the fabric or the impostor before, and its port.
    impostors: Vec<(usize, u8)>,
    who: Vec<Impostor>,
    off: BTreeSet<usize>,
    failed: BTreeSet<usize>,
    present: BTreeSet<usize>,
}

impl Site {
    fn new(impostors: &[Impostor]) -> Self {
        let mut net = Net::new();
        for (i, &(kind, guid, ports)) in NODES.iter().enumerate() {
            let mut node = Node::new(kind, Guid(guid), ports, LinkRate::default());
            node.id = format!("node{i}");
            if kind == NodeKind::Ca {
                for port in 1..=ports {
                    node.port_mut(port).unwrap().guid = port_guid(guid, port);
                }
            }
            net.add_node(node);
        }
        for ((a, at), (b, to)) in LINKS {
            let end = |node, port| PortRef { node: node as u32, port };
            net.connect(end(a, at), end(b, to)).unwrap();
        }
        let mut ends = Vec::new();
        for (i, one) in impostors.iter().enumerate() {
            let guid = NODES[one.victim].1;
            let ports = one.ports.unwrap_or(NODES[one.victim].2).max(one.port);
            let mut node = Node::new(one.kind, Guid(guid), ports, LinkRate::default());
            node.id = format!("impostor{i}");
            if one.kind != NodeKind::Switch {
                for port in 1..=ports {
                    let own = Guid(0x7000 + (i as u64) * 16 + u64::from(port));
                    node.port_mut(port).unwrap().guid =
                        if one.own_port_guid { own } else { port_guid(guid, port) };
                }
            }
            net.add_node(node);
            let before = i.checked_sub(1).filter(|_| one.is_behind).map(|before| {
                let port = impostors[before].port;
                let count = impostors[before].ports.unwrap_or(NODES[impostors[before].victim].2);
                (NODES.len() + before, port % count.max(port) + 1)
            });
            let is_free = |&(node, port): &(usize, u8)| {
                i > 0 && port != impostors[i - 1].port && node >= NODES.len()
            };
            let (node, port) = before.filter(is_free).unwrap_or(PLACES[i]);
            let here = PortRef { node: (NODES.len() + i) as u32, port: one.port };
            let end = match net.connect(PortRef { node: node as u32, port }, here) {
                Ok(_) => (node, port),
                Err(_) => {
                    let (node, port) = PLACES[i];
                    net.connect(PortRef { node: node as u32, port }, here).unwrap();
                    (node, port)
                }
            };
            ends.push(end);
        }
        let bed = Bed::with_manager(&net, Settings::default());
        let mut site = Self {
            bed,
            impostors: ends,
            who: impostors.to_vec(),
            off: BTreeSet::new(),
            failed: BTreeSet::new(),
            present: (0..impostors.len()).collect(),
        };
        for which in 0..impostors.len() {
            site.set_impostor(which, false);
        }
        // What the impostors did in the first seconds is forgotten: nothing was known then.
        let host = site.node(1);
        site.bed.crash(0);
        site.bed.manage(host, Settings::default(), Default::default());
        site.pass();
        site.sweep();
        site
    }

    fn node(&self, place: usize) -> NodeIndex {
        self.bed.fabric.nodes().nth(place).unwrap()
    }

    fn set_port(&mut self, (node, port): (usize, u8), up: bool) {
        let (node, now) = (self.node(node), self.bed.clock.now());
        match up {
            true => self.bed.fabric.link_up(now, node, port).unwrap(),
            false => self.bed.fabric.link_down(now, node, port).unwrap(),
        };
    }

    fn set_impostor(&mut self, which: usize, up: bool) {
        if up != self.present.contains(&which) {
            self.set_port(self.impostors[which], up);
            if up {
                self.present.insert(which)
            } else {
                self.present.remove(&which)
            };
        }
    }

    /// Sets the links of the fabric as they should be.
    fn set_links(&mut self, change: impl FnOnce(&mut Self)) {
        let before: Vec<bool> = (0..LINKS.len()).map(|link| self.is_up(link)).collect();
        change(self);
        for (link, was_up) in before.into_iter().enumerate() {
            let is_up = self.is_up(link);
            if is_up != was_up {
                self.set_port(LINKS[link].0, is_up);
            }
        }
    }

    fn is_up(&self, link: usize) -> bool {
        let ((a, _), (b, _)) = LINKS[link];
        !self.failed.contains(&link) && !self.off.contains(&a) && !self.off.contains(&b)
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Impostor(which, up) if *which < self.impostors.len() => {
                self.set_impostor(*which, *up);
            }
            Event::Impostor(..) | Event::Sweep => {}
            Event::Power(node, true) => self.set_links(|site| _ = site.off.remove(node)),
            Event::Power(node, false) => self.set_links(|site| _ = site.off.insert(*node)),
            Event::Link(link, true) => self.set_links(|site| _ = site.failed.remove(link)),
            Event::Link(link, false) => self.set_links(|site| _ = site.failed.insert(*link)),
            Event::Restart(comers) => {
                let host = self.node(1);
                let mut before = self.bed.crash(0);
                let neighbours = before.sweeper.neighbours().clone();
                let count = self.impostors.len();
                for which in comers.iter().filter(|which| **which < count) {
                    self.set_impostor(*which, true);
                }
                self.bed.manage(host, Settings::default(), before.sweeper.lids().clone());
                self.bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours);
            }
        }
        self.pass();
        if matches!(event, Event::Sweep) {
            self.sweep();
        }
    }

    fn pass(&mut self) {
        self.bed.run_for(Duration::from_secs(25));
        // The program stores them after each sweep.
        self.bed.managers[0].sweeper.neighbours();
    }

    fn sweep(&mut self) {
        for _ in 0..2 {
            let now = self.bed.clock.now();
            self.bed.managers[0].sweeper.request_heavy_sweep(now);
            self.pass();
        }
    }

    /// Nodes of the fabric that the manager's host reaches.
    fn reached(&self) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([0, 1]);
        loop {
            let up = (0..LINKS.len()).filter(|link| self.is_up(*link)).map(|link| LINKS[link]);
            // Adapters forward nothing.
            let through =
                |node: usize| reached.contains(&node) && NODES[node].0 == NodeKind::Switch;
            let next: BTreeSet<usize> = up
                .flat_map(|((a, _), (b, _))| [(a, b), (b, a)])
                .filter(|(a, _)| through(*a))
                .map(|(_, b)| b)
                .chain(reached.iter().copied())
                .collect();
            if next.len() == reached.len() {
                return reached;
            }
            reached = next;
        }
    }

    /// What is wrong: a link of the fabric that is not found, a host that is not served, or an
    /// impostor's link that is used although its victim is there.
    fn faults(&self) -> Vec<String> {
        let fabric = self.bed.sweeper().fabric();
        let behind = |(node, num): (usize, u8)| {
            let guid = Guid(NODES[node].1);
            let port = fabric.port_of(fabric.find(guid)?, PortNum(num))?;
            let peer = fabric.port(port).peer()?;
            Some((fabric.node_of(peer).guid, fabric.port(peer).num.0))
        };
        let reached = self.reached();
        let mut faults = Vec::new();
        for (link, &(a, b)) in LINKS.iter().enumerate() {
            if !self.is_up(link) || !reached.contains(&a.0) {
                continue;
            }
            let found = behind(a);
            if found != Some((Guid(NODES[b.0].1), b.1)) {
                faults.push(format!("{a:?} leads to {found:x?} in place of {b:?}"));
            }
            let port = self.bed.fabric.port(self.node(b.0), b.1).unwrap();
            let is_served = port.state == PortState::Active && port.lid.is_unicast();
            if NODES[b.0].0 == NodeKind::Ca && !is_served {
                faults.push(format!("{b:?} is {} with LID {}", port.state, port.lid));
            }
        }
        for (&end, who) in self.impostors.iter().zip(&self.who) {
            let is_found = reached.contains(&end.0) && behind(end).is_some();
            if is_found && self.has_rival(who, &reached) {
                faults.push(format!("{end:?}: the impostor of {} is used", who.victim));
            }
        }
        faults
    }

    /// Whether two impostors answer as the ports that they are at: this looks like a cable.
    fn has_pretended_cable(&self) -> bool {
        let ends = || self.impostors.iter().zip(&self.who);
        ends().any(|(&end, who)| {
            ends().any(|(&far, other)| {
                far == (who.victim, who.port) && end == (other.victim, other.port)
            })
        })
    }

    /// Whether what an impostor pretends to be is there. Another port of an adapter that is there
    /// may be that adapter's.
    fn has_rival(&self, who: &Impostor, reached: &BTreeSet<usize>) -> bool {
        let (kind, _, ports) = NODES[who.victim];
        let is_alike = who.kind == NodeKind::Ca && kind == who.kind;
        if !is_alike || who.ports.is_some_and(|count| count != ports) {
            return reached.contains(&who.victim);
        }
        let here = (who.victim, who.port);
        (0..LINKS.len()).any(|link| {
            let (a, b) = LINKS[link];
            b == here && self.is_up(link) && reached.contains(&a.0)
        })
    }
}

fn port_guid(node: u64, port: u8) -> Guid {
    Guid(node + u64::from(port))
}

proptest! {
    // `PROPTEST_CASES` sets another number than 256.
    #![proptest_config(ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_there_keeps_its_place(
        impostors in prop::collection::vec(impostor(), 1..=3),
        events in prop::collection::vec(event(), 1..12),
    ) {
        let mut site = Site::new(&impostors);
        prop_assume!(!site.has_pretended_cable());
        prop_assert_eq!(site.faults(), Vec::<String>::new(), "before");
        for (at, event) in events.iter().enumerate() {
            site.happens(event);
            let faults = site.faults();
            prop_assert!(faults.is_empty(), "after event {at}, {event:?}: {faults:#?}");
        }
        // All that is the fabric's comes back.
        site.set_links(|site| { site.off.clear(); site.failed.clear(); });
        site.pass();
        site.sweep();
        let faults = site.faults();
        prop_assert!(faults.is_empty(), "at the end: {faults:#?}");
    }
}

/// Regression: the link of a host that was where it belongs, behind a switch that was not, was
/// evidence for that switch.
#[test]
fn what_is_behind_an_impostor_does_not_vouch_for_it() {
    let impostor = |kind, victim, is_behind| Impostor {
        kind,
        victim,
        ports: None,
        port: 1,
        own_port_guid: false,
        is_behind,
    };
    let impostors = [impostor(NodeKind::Switch, 3, false), impostor(NodeKind::Ca, 5, true)];
    let mut site = Site::new(&impostors);
    site.happens(&Event::Power(3, false));
    site.happens(&Event::Impostor(1, true));
    for up in [true, false, true] {
        site.happens(&Event::Impostor(0, up));
    }
    site.happens(&Event::Power(3, true));
    site.sweep();
    assert_eq!(site.faults(), Vec::<String>::new());
    site.happens(&Event::Restart(Vec::new()));
    assert_eq!(site.faults(), Vec::<String>::new());
}
