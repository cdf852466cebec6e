//! Tori, meshes and hypercubes: switches at the points of a grid.

use super::GenerateError;
use super::plan::{Plan, names, radix_for, within};

/// Parameters of a torus or mesh. In dimension d, counted from 0, port 2d+1 leads to the next
/// switch and port 2d+2 to the previous one; hosts use the ports after these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Switches in each dimension.
    pub dims: Vec<u16>,
    /// Whether the last switch of a row is cabled to the first. Rows of two are not cabled twice.
    pub wraps: bool,
    /// Hosts per switch.
    pub hosts_per_switch: u8,
    /// Ports per switch; the smallest common number that suffices if `None`.
    pub radix: Option<u8>,
}

/// Parameters of a hypercube. Port d+1 leads across dimension d; hosts use the ports after these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hypercube {
    /// Number of dimensions; there are 2^dimensions switches.
    pub dimensions: u8,
    /// Hosts per switch.
    pub hosts_per_switch: u8,
    /// Ports per switch; the smallest common number that suffices if `None`.
    pub radix: Option<u8>,
}

/// Limit of dimensions, beyond any real cabling; prevents overflow of products.
const DIMENSIONS_MAX: usize = 8;

/// Checks dimensions; returns them, and the number of switches.
pub(super) fn sizes(dims: &[u16]) -> Result<(Vec<usize>, usize), GenerateError> {
    let dims: Vec<usize> = dims.iter().copied().map(usize::from).collect();
    within("the number of --dims", dims.len(), 1, DIMENSIONS_MAX)?;
    let switches = dims.iter().try_fold(1usize, |product, &dim| {
        within("each of --dims", dim, 2, 0xBFFF)?;
        within("the number of switches", product * dim, 1, 0xBFFF)?;
        Ok(product * dim)
    })?;
    Ok((dims, switches))
}

impl Grid {
    pub(super) fn plan(&self) -> Result<Plan, GenerateError> {
        let (dims, switches) = sizes(&self.dims)?;
        let cables = 2 * dims.len();
        let radix = radix_for(cables + usize::from(self.hosts_per_switch), self.radix)?;
        let names = (0..switches).map(|index| name(index, &dims)).collect();
        let mut plan = Plan::new(names, radix);
        for switch in 0..switches {
            let mut stride = 1;
            for (d, &dim) in dims.iter().enumerate() {
                let place = switch / stride % dim;
                let next = switch - place * stride + (place + 1) % dim * stride;
                if place + 1 < dim || (self.wraps && dim > 2) {
                    let (port, back) = ((2 * d + 1) as u8, (2 * d + 2) as u8);
                    plan.links.push(((switch, port), (next, back)));
                }
                stride *= dim;
            }
            add_hosts(&mut plan, switch, cables, self.hosts_per_switch);
        }
        Ok(plan)
    }
}

impl Hypercube {
    pub(super) fn plan(&self) -> Result<Plan, GenerateError> {
        let dimensions = usize::from(self.dimensions);
        within("--dimensions", dimensions, 1, 15)?;
        let radix = radix_for(dimensions + usize::from(self.hosts_per_switch), self.radix)?;
        let mut plan = Plan::new(names("sw", 1 << dimensions).collect(), radix);
        for switch in 0..1 << dimensions {
            for d in 0..dimensions {
                let across = switch ^ (1 << d);
                if switch < across {
                    plan.links.push(((switch, (d + 1) as u8), (across, (d + 1) as u8)));
                }
            }
            add_hosts(&mut plan, switch, dimensions, self.hosts_per_switch);
        }
        Ok(plan)
    }
}

/// Attaches hosts to the ports of a switch after the first `first`.
pub(super) fn add_hosts(plan: &mut Plan, switch: usize, first: usize, hosts: u8) {
    for host in 1..=usize::from(hosts) {
        plan.add_host((switch, (first + host) as u8));
    }
}

/// Names a switch by its coordinates: `sw-2-0-7`.
pub(super) fn name(mut index: usize, dims: &[usize]) -> String {
    let mut name = String::from("sw");
    for dim in dims {
        name.push_str(&format!("-{}", index % dim));
        index /= dim;
    }
    name
}
