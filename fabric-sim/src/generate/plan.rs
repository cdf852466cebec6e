//! A fabric before GUIDs and names are assigned: switches, cables and positions of hosts.

use super::guid::Guids;
use super::rng::Rng;
use super::{GenerateError, UNICAST_LIDS};
use ib_mad::netlist::{LinkRate, LinkSpeed, Net, Node, NodeKind, PORTS_MAX, PortRef};

/// A switch port: index of the switch and port number.
pub(super) type SwitchPort = (usize, u8);

/// NVIDIA's VendorID, which is still Mellanox's OUI.
const VENDOR_ID: u32 = 0x2c9;

pub(super) struct Plan {
    /// Description of each switch.
    pub(super) switches: Vec<String>,
    /// Ports per switch.
    pub(super) radix: u8,
    pub(super) links: Vec<(SwitchPort, SwitchPort)>,
    /// Adapters by number of the host and of the adapter in it, from 1. They keep their numbers
    /// when others are removed.
    pub(super) hosts: Vec<((usize, u8), SwitchPort)>,
}

impl Plan {
    /// A plan without cables and hosts.
    pub(super) fn new(switches: Vec<String>, radix: u8) -> Self {
        Self { switches, radix, links: Vec::new(), hosts: Vec::new() }
    }

    /// Attaches the next host, which has one adapter, to a switch port.
    pub(super) fn add_host(&mut self, at: SwitchPort) {
        self.hosts.push(((self.hosts.len() + 1, 1), at));
    }

    /// Checks that each adapter and each switch of all planes can have a LID.
    pub(super) fn check_size(&self, planes: u8) -> Result<(), GenerateError> {
        let (hosts, switches) = (self.hosts.len(), self.switches.len() * usize::from(planes));
        if hosts + switches > UNICAST_LIDS {
            return Err(GenerateError::TooManyLids { hosts, switches });
        }
        Ok(())
    }

    /// Removes `percent` of the links, but none of a random spanning tree, so that the switches
    /// stay connected.
    pub(super) fn remove_links(
        &mut self,
        percent: f64,
        rng: &mut Rng,
    ) -> Result<(), GenerateError> {
        let missing = share("--missing-links", percent, self.links.len())?;
        if missing == 0 {
            return Ok(());
        }
        let (links, switches) = (self.links.len(), self.switches.len());
        let mut order: Vec<usize> = (0..links).collect();
        rng.shuffle(&mut order);
        let mut parts = Parts::new(switches);
        order.retain(|&link| {
            let ((a, _), (b, _)) = self.links[link];
            !parts.join(a, b)
        });
        if missing > order.len() {
            return Err(GenerateError::MissingLinks {
                percent,
                missing,
                links,
                needed: links - order.len(),
                switches,
                max: (order.len() as f64 * 1000.0 / links as f64).floor() / 10.0,
            });
        }
        let mut removed = vec![false; links];
        order[..missing].iter().for_each(|&link| removed[link] = true);
        let mut index = 0;
        self.links.retain(|_| {
            index += 1;
            !removed[index - 1]
        });
        Ok(())
    }

    /// Removes `percent` of the switches with their hosts, one after the other in random order,
    /// skipping those whose removal would partition the rest.
    pub(super) fn remove_switches(
        &mut self,
        percent: f64,
        rng: &mut Rng,
    ) -> Result<(), GenerateError> {
        let missing = share("--missing-switches", percent, self.switches.len())?;
        if missing == 0 {
            return Ok(());
        }
        let switches = self.switches.len();
        let mut order: Vec<usize> = (0..switches).collect();
        rng.shuffle(&mut order);
        let mut is_here = vec![true; switches];
        let mut removed = 0;
        for switch in order {
            if removed == missing {
                break;
            }
            is_here[switch] = false;
            if removed + 1 < switches && self.are_connected(&is_here) {
                removed += 1;
            } else {
                is_here[switch] = true;
            }
        }
        if removed < missing {
            return Err(GenerateError::MissingSwitches {
                percent,
                missing,
                switches,
                max: removed,
            });
        }
        let numbers = is_here.iter().scan(0, |next, &is_here| {
            let number = *next;
            *next += usize::from(is_here);
            Some(number)
        });
        let numbers: Vec<usize> = numbers.collect();
        let renumber =
            |(switch, port): SwitchPort| is_here[switch].then(|| (numbers[switch], port));
        let links = self.links.iter().filter_map(|&(a, b)| renumber(a).zip(renumber(b)));
        self.links = links.collect();
        let hosts = self.hosts.iter().filter_map(|&(host, at)| Some((host, renumber(at)?)));
        self.hosts = hosts.collect();
        let mut left = is_here.iter();
        self.switches.retain(|_| left.next().copied().unwrap_or(false));
        Ok(())
    }

    /// Whether some switches are connected by links among them alone.
    fn are_connected(&self, is_here: &[bool]) -> bool {
        let mut parts = Parts::new(is_here.len());
        let links = self.links.iter().filter(|((a, _), (b, _))| is_here[*a] && is_here[*b]);
        let joined = links.filter(|((a, _), (b, _))| parts.join(*a, *b)).count();
        joined + 1 == is_here.iter().filter(|&&is_here| is_here).count()
    }

    /// Removes `percent` of the hosts; the others keep their ports and numbers.
    pub(super) fn remove_hosts(
        &mut self,
        percent: f64,
        rng: &mut Rng,
    ) -> Result<(), GenerateError> {
        let missing = share("--missing-hosts", percent, self.hosts.len())?;
        if missing > 0 {
            rng.shuffle(&mut self.hosts);
            self.hosts.truncate(self.hosts.len() - missing);
            self.hosts.sort_unstable();
        }
        Ok(())
    }

    /// Converts the plan to a net: hosts first, then the switches of each plane. Port n of an
    /// adapter is in plane n.
    pub(super) fn build(&self, rate: LinkRate, planes: u8, rng: &mut Rng) -> Net {
        let mut net = Net::new();
        let (ca_device, switch_device) = device_ids(rate.speed);
        let mut guids = Guids::new(0x10);
        for ((number, adapter), _) in &self.hosts {
            let mut node = Node::new(NodeKind::Ca, guids.next(rng), planes, rate);
            let port_guid = node.port(1).map(|port| port.guid);
            for plane in 2..=planes {
                if let (Some(port), Some(guid)) = (node.port_mut(plane), port_guid) {
                    port.guid = guid;
                }
            }
            node.description = format!("node{number:05} HCA-{adapter}");
            (node.vendor_id, node.device_id) = (VENDOR_ID, ca_device);
            net.add_node(node);
        }
        let mut guids = guids.with_step(0x40);
        for plane in 1..=planes {
            for name in &self.switches {
                let mut node = Node::new(NodeKind::Switch, guids.next(rng), self.radix, rate);
                node.description.clone_from(name);
                if planes > 1 {
                    node.description += &format!("-p{plane}");
                }
                (node.vendor_id, node.device_id) = (VENDOR_ID, switch_device);
                node.enhanced_port0 = true;
                net.add_node(node);
            }
        }
        for plane in 1..=planes {
            let first = self.hosts.len() + usize::from(plane - 1) * self.switches.len();
            let switch_port =
                |(switch, port): SwitchPort| PortRef { node: (first + switch) as u32, port };
            let cables = self.links.iter().map(|&(a, b)| (switch_port(a), switch_port(b)));
            let plugs = self
                .hosts
                .iter()
                .zip(0..)
                .map(|(&(_, at), node)| (PortRef { node, port: plane }, switch_port(at)));
            for (a, b) in cables.chain(plugs) {
                net.connect(a, b).expect("a plan uses each port once and none that does not exist");
            }
        }
        net
    }
}

/// Disjoint sets (union-find with path halving).
pub(super) struct Parts {
    parent: Vec<usize>,
}

impl Parts {
    pub(super) fn new(count: usize) -> Self {
        Self { parent: (0..count).collect() }
    }

    fn root(&mut self, mut item: usize) -> usize {
        while self.parent[item] != item {
            self.parent[item] = self.parent[self.parent[item]];
            item = self.parent[item];
        }
        item
    }

    /// Merges the sets of `a` and `b`; false if they were one already.
    pub(super) fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a] = b;
        a != b
    }
}

/// Numbered names, padded so that they sort: `leaf001` to `leaf1200` would not.
pub(super) fn names(prefix: &str, count: usize) -> impl Iterator<Item = String> + '_ {
    let width = count.to_string().len().max(3);
    (1..=count).map(move |number| format!("{prefix}{number:0width$}"))
}

/// The radix of switches that need `needed` ports: as requested, or else that of the smallest
/// common switch with enough ports.
pub(super) fn radix_for(needed: usize, ordered: Option<u8>) -> Result<u8, GenerateError> {
    if let Some(radix) = ordered {
        return if needed <= usize::from(radix) {
            Ok(radix)
        } else {
            Err(GenerateError::Radix { needed, radix })
        };
    }
    let radix =
        [36, 40, 64, 128, PORTS_MAX].into_iter().find(|&ports| needed <= usize::from(ports));
    radix.ok_or(GenerateError::Ports { needed })
}

/// Errors unless `value` is within bounds.
pub(super) fn within(
    what: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), GenerateError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(GenerateError::Range { what, min, max, value })
    }
}

fn share(what: &'static str, percent: f64, count: usize) -> Result<usize, GenerateError> {
    if !(0.0..=100.0).contains(&percent) {
        return Err(GenerateError::Percent { what, value: percent });
    }
    Ok((count as f64 * percent / 100.0).round() as usize)
}

/// DeviceID of an adapter and a switch of the first generation with a given speed.
fn device_ids(speed: LinkSpeed) -> (u16, u16) {
    match speed {
        LinkSpeed::Sdr | LinkSpeed::Ddr | LinkSpeed::Qdr => (0x673c, 0xbd36),
        LinkSpeed::Fdr10 | LinkSpeed::Fdr => (0x1003, 0xc738),
        LinkSpeed::Edr => (0x1017, 0xcf08),
        LinkSpeed::Hdr => (0x101b, 0xd2f0),
        LinkSpeed::Ndr => (0x1021, 0xd2f2),
        // XDR; newer speeds need their own entries.
        _ => (0x1023, 0xd2f4),
    }
}
