//! Generators of fabrics: fat trees, tori, meshes, hypercubes, HyperX, dragonflies, Dragonfly+,
//! Slim Flies and random graphs.
//!
//! A shape ([`Shape`]) produces a plan: switches, the cables between them, and the switch ports of
//! hosts. [`generate`] removes cables, switches and hosts as requested, assigns GUIDs and names,
//! and returns a [`Net`]. Equal parameters and seeds give equal nets, on every machine and in every
//! version unless the changelog says otherwise. The net file's format is in `ib_mad::netlist`, the
//! command line in `cli::generate`. A planarized fabric is the shape once for each plane.

mod dragonfly;
mod dragonfly_plus;
mod fat_tree;
mod grid;
mod guid;
mod hyperx;
mod plan;
mod random;
mod rng;
mod slim_fly;

pub use dragonfly::Dragonfly;
pub use dragonfly_plus::DragonflyPlus;
pub use fat_tree::{FatTree, RailTree};
pub use grid::{Grid, Hypercube};
pub use hyperx::HyperX;
pub use random::RandomGraph;
pub use slim_fly::SlimFly;

use ib_mad::netlist::{LinkRate, Net, PORTS_MAX};
use rng::Rng;

/// Unicast LIDs of a subnet; every host port and every switch needs one.
pub const UNICAST_LIDS: usize = 0xBFFF;

/// Topology and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is named as what it holds")]
pub enum Shape {
    FatTree(FatTree),
    RailTree(RailTree),
    Grid(Grid),
    Hypercube(Hypercube),
    HyperX(HyperX),
    Dragonfly(Dragonfly),
    DragonflyPlus(DragonflyPlus),
    SlimFly(SlimFly),
    Random(RandomGraph),
}

/// Parameters common to all shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    /// Determines GUIDs, which cables, switches and hosts are missing, and the edges of a random
    /// graph.
    pub seed: u64,
    /// Percentage of the cables between switches to remove; the switches stay connected.
    pub missing_links: f64,
    /// Percentage of the switches to remove with their hosts; the others stay connected.
    pub missing_switches: f64,
    /// Percentage of the hosts to remove.
    pub missing_hosts: f64,
    /// Rate of all links.
    pub rate: LinkRate,
    /// Planes, 1 to [`PLANES_MAX`]: so many equal copies of the switches and their cables, with a
    /// port of each adapter in each; all ports of an adapter have one port GUID.
    pub planes: u8,
}

/// Limit of planes. XDR adapters have four.
pub const PLANES_MAX: u8 = 8;

impl Default for Common {
    fn default() -> Self {
        let rate = LinkRate { speed: ib_mad::netlist::LinkSpeed::Hdr, ..LinkRate::default() };
        Self {
            seed: 0,
            missing_links: 0.0,
            missing_switches: 0.0,
            missing_hosts: 0.0,
            rate,
            planes: 1,
        }
    }
}

/// Why a fabric cannot be generated as requested.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum GenerateError {
    #[error(
        "a {levels}-level fat tree of switches with {radix} ports holds at most {max} hosts, not \
         {hosts}; raise --radix or --oversubscription, or add a level"
    )]
    TooManyHosts { levels: u8, radix: u8, max: usize, hosts: usize },
    #[error("a {levels}-level fat tree needs at least {min} hosts, not {hosts}")]
    TooFewHosts { levels: u8, min: usize, hosts: usize },
    #[error("fat trees have 2 or 3 levels, not {levels}")]
    Levels { levels: u8 },
    #[error("switches need {needed} ports, but --radix is {radix}")]
    Radix { needed: usize, radix: u8 },
    #[error("a switch would need {needed} ports; the limit is {PORTS_MAX}")]
    Ports { needed: usize },
    #[error("--q must be a prime, such as 5, 7, 11 or 13, not {value}")]
    NoPrime { value: usize },
    #[error("{what} must be {min} to {max}, not {value}")]
    Range { what: &'static str, min: usize, max: usize, value: usize },
    #[error(
        "{hosts} hosts and {switches} switches exceed the {UNICAST_LIDS} unicast LIDs of a subnet"
    )]
    TooManyLids { hosts: usize, switches: usize },
    #[error(
        "each group needs a link to each of the {others} others, but {routers} routers with \
         {global_links} global links have only {available}; raise --routers or --global-links"
    )]
    GlobalLinks { others: usize, routers: usize, global_links: usize, available: usize },
    #[error(
        "{switches} switches cannot be connected with {degree} links each; use a --degree of at \
         least {min}"
    )]
    Degree { switches: usize, degree: usize, min: usize },
    #[error(
        "--missing-links {percent} would remove {missing} of {links} links, but {needed} are \
         needed to keep the {switches} switches connected; use at most {max:.1}"
    )]
    MissingLinks {
        percent: f64,
        missing: usize,
        links: usize,
        needed: usize,
        switches: usize,
        max: f64,
    },
    #[error(
        "--missing-switches {percent} would remove {missing} of {switches} switches, but at most \
         {max} can be removed if the others are to stay connected"
    )]
    MissingSwitches { percent: f64, missing: usize, switches: usize, max: usize },
    #[error("{what} must be 0 to 100 percent, not {value}")]
    Percent { what: &'static str, value: f64 },
}

/// Generates a fabric. All switches are connected, and every host is on a switch.
pub fn generate(shape: &Shape, common: &Common) -> Result<Net, GenerateError> {
    let mut rng = Rng::new(common.seed);
    plan::within("--planes", common.planes.into(), 1, PLANES_MAX.into())?;
    let mut plan = match shape {
        Shape::FatTree(tree) => tree.plan()?,
        Shape::RailTree(tree) => tree.plan()?,
        Shape::Grid(grid) => grid.plan()?,
        Shape::Hypercube(cube) => cube.plan()?,
        Shape::HyperX(grid) => grid.plan()?,
        Shape::Dragonfly(dragonfly) => dragonfly.plan()?,
        Shape::DragonflyPlus(dragonfly) => dragonfly.plan()?,
        Shape::SlimFly(fly) => fly.plan()?,
        Shape::Random(graph) => graph.plan(&mut rng)?,
    };
    plan.check_size(common.planes)?;
    plan.remove_links(common.missing_links, &mut rng)?;
    plan.remove_switches(common.missing_switches, &mut rng)?;
    plan.remove_hosts(common.missing_hosts, &mut rng)?;
    Ok(plan.build(common.rate, common.planes, &mut rng))
}

#[cfg(test)]
mod tests;
