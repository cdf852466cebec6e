//! Tori and meshes with parts missing, whose switches are numbered in no particular order.

use std::fmt;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};

use super::super::{AXES, Config, Options, Seed, Shape, Torus2Qos};
use crate::lanes::torus::Place;
use crate::{
    CommonOptions, Destination, Engine, Routing, RoutingError, Steering, Topology, TopologyBuilder,
};

/// A torus or mesh, and its configuration.
pub(super) struct Fabric {
    pub(super) topology: Topology,
    pub(super) config: Config,
    pub(super) data_lanes: u8,
    /// By switch: the number of its place.
    numbers: Vec<usize>,
    plan: Plan,
}

#[derive(Clone, Debug)]
struct Plan {
    radix: [u8; AXES],
    wraps: [bool; AXES],
    /// Parallel links.
    cables: u8,
    hosts: u8,
    lmc: u8,
    /// Numbers of places without a switch.
    missing: Vec<usize>,
    /// Links that are cut, as a place and the axis along which they lead up.
    cut: Vec<(Place, usize)>,
    /// Place numbers of seeds.
    seeds: Vec<usize>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt(f)
    }
}

pub(super) fn routed(fabric: &Fabric) -> Result<Routing, RoutingError> {
    Torus2Qos.route(&fabric.topology, &fabric.steering(), None)
}

impl Fabric {
    pub(super) fn new(radix: [u8; AXES], wraps: [bool; AXES]) -> Self {
        Self::built(radix, wraps, 1, 1, 0)
    }

    pub(super) fn built(
        radix: [u8; AXES],
        wraps: [bool; AXES],
        cables: u8,
        hosts: u8,
        lmc: u8,
    ) -> Self {
        let count: usize = radix.iter().copied().map(usize::from).product();
        // Two distant seeds, which share no switch if the torus is large enough.
        let (missing, cut, seeds) =
            (vec![], vec![], vec![0, count / 2 + usize::from(radix[0]) / 2]);
        Plan { radix, wraps, cables, hosts, lmc, missing, cut, seeds }.build()
    }

    /// Sets the place numbers of seeds.
    pub(super) fn seeded_at(self, seeds: &[usize]) -> Self {
        Plan { seeds: seeds.to_vec(), ..self.plan }.build()
    }

    pub(super) fn without_switch(mut self, number: usize) -> Self {
        self.plan.missing.push(number);
        self.plan.build()
    }

    pub(super) fn without_link(mut self, from: Place, axis: usize) -> Self {
        self.plan.cut.push((from, axis));
        self.plan.build()
    }

    /// Links, as a place and the axis along which they lead up.
    pub(super) fn links(&self) -> Vec<(Place, usize)> {
        self.plan.links().map(|(from, _, axis)| (from, axis)).collect()
    }

    /// The real place of a switch.
    pub(super) fn place(&self, switch: u16) -> Place {
        self.plan.place(self.numbers[usize::from(switch)])
    }

    /// The first host's port on each switch.
    pub(super) fn host_port(&self) -> u8 {
        self.plan.cables * 6 + 1
    }

    pub(super) fn steering(&self) -> Steering {
        let config = Some(Arc::new(self.config.clone()));
        Steering {
            common: CommonOptions {
                switch_ids: self.numbers.iter().map(|&number| guid(number).0).collect(),
                data_lanes: self.data_lanes,
                ..CommonOptions::default()
            },
            torus: Options { config, ..Options::default() },
            ..Steering::default()
        }
    }
}

fn guid(number: usize) -> Guid {
    Guid(0x0002_c903_0000_0000 + number as u64)
}

impl Plan {
    fn place(&self, number: usize) -> Place {
        let [x, y, _] = self.radix.map(usize::from);
        [(number % x) as u8, (number / x % y) as u8, (number / x / y) as u8]
    }

    fn number(&self, [x, y, z]: Place) -> usize {
        let [rx, ry, _] = self.radix.map(usize::from);
        usize::from(x) + rx * (usize::from(y) + ry * usize::from(z))
    }

    fn count(&self) -> usize {
        self.radix.iter().copied().map(usize::from).product()
    }

    /// Both ends of each link, and the axis along which the second is further up.
    fn links(&self) -> impl Iterator<Item = (Place, Place, usize)> {
        (0..self.count()).flat_map(move |number| {
            (0..AXES).filter_map(move |axis| {
                let from = self.place(number);
                let mut to = from;
                to[axis] += 1;
                if to[axis] == self.radix[axis] {
                    if !self.wraps[axis] || self.radix[axis] <= 2 {
                        return None;
                    }
                    to[axis] = 0;
                }
                Some((from, to, axis))
            })
        })
    }

    fn build(self) -> Fabric {
        let count = self.count();
        // A step that is coprime to the count yields an order unrelated to places.
        let mut numbers: Vec<usize> = (0..count).map(|index| (index * 7919 + 3) % count).collect();
        numbers.retain(|number| !self.missing.contains(number));
        let mut switch_of = vec![None; count];
        let mut builder = TopologyBuilder::new();
        let ports = self.cables * 6 + self.hosts;
        for &number in &numbers {
            switch_of[number] = Some(builder.add_switch(ports).unwrap());
        }
        for (from, to, axis) in
            self.links().filter(|(from, _, axis)| !self.cut.contains(&(*from, *axis)))
        {
            let ends = (switch_of[self.number(from)], switch_of[self.number(to)]);
            let (Some(a), Some(b)) = ends else { continue };
            for cable in 0..self.cables {
                let port = |way: u8| 6 * cable + 2 * axis as u8 + way;
                builder.add_link((a, port(1)), (b, port(2))).unwrap();
            }
        }
        let mut next = 1;
        for egress_switch in 0..numbers.len() as u16 {
            for host in 0..=self.hosts {
                let (exit, lid_count) = match host {
                    0 => (0, 1),
                    _ => (self.cables * 6 + host, 1 << self.lmc),
                };
                next = u16::next_multiple_of(next, lid_count);
                let destination =
                    Destination { base_lid: Lid(next), lid_count, egress_switch, exit };
                builder.add_destination(destination).unwrap();
                next += lid_count;
            }
        }
        let config = self.config();
        let topology = builder.build().unwrap();
        Fabric { topology, config, data_lanes: 8, numbers, plan: self }
    }

    /// The configuration that an operator would write.
    fn config(&self) -> Config {
        let radix = |axis: usize| {
            format!("{}{}", self.radix[axis], if self.wraps[axis] { 't' } else { 'm' })
        };
        let mut text = format!("torus {} {} {}\n", radix(0), radix(1), radix(2));
        for &seed in &self.seeds {
            text += "next_seed\n";
            let from = self.place(seed);
            for (axis, name) in ['x', 'y', 'z'].into_iter().enumerate() {
                let radix = self.radix[axis];
                if radix == 1 {
                    continue;
                }
                let closes = self.wraps[axis] && radix > 2;
                let up = (closes || from[axis] + 1 < radix).then(|| (from[axis] + 1) % radix);
                let down = (closes || from[axis] > 0).then(|| (from[axis] + radix - 1) % radix);
                for (sign, to) in [('p', up), ('m', down)] {
                    let Some(to) = to.filter(|_| sign == 'p' || radix == 4 || up.is_none()) else {
                        continue;
                    };
                    let mut there = from;
                    there[axis] = to;
                    let (from, to) = (guid(seed), guid(self.number(there)));
                    text += &format!("{name}{sign}_link {from} {to}\n");
                }
                text += &format!("{name}_dateline -{}\n", from[axis]);
            }
        }
        Config::parse(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
    }
}

impl Fabric {
    /// The seeds as they were parsed.
    pub(super) fn seeds(&self) -> &[Seed] {
        &self.config.seeds
    }

    pub(super) fn shape(&self) -> Shape {
        self.config.shape
    }
}
