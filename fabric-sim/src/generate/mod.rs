//! Fabrics made to order: fat trees, tori, meshes, hypercubes, dragonflies and random graphs.
//!
//! A shape ([`Shape`]) draws up a plan: switches, cables between them, and the switch ports that
//! hosts are plugged into. [`generate`] takes cables and hosts away if asked to, gives everything
//! GUIDs and names, and yields a [`Net`]. Equal parameters and seeds give equal nets, on every
//! machine and in every version that does not say otherwise in the changelog. What is not here:
//! the net file's format (`ib_mad::netlist`) and the command line (`cli::generate`).

mod dragonfly;
mod fat_tree;
mod grid;
mod guid;
mod plan;
mod random;
mod rng;

pub use dragonfly::Dragonfly;
pub use fat_tree::FatTree;
pub use grid::{Grid, Hypercube};
pub use random::RandomGraph;

use ib_mad::netlist::{LinkRate, Net, PORTS_MAX};
use rng::Rng;

/// Unicast LIDs of a subnet; every host port and every switch needs one.
pub const UNICAST_LIDS: usize = 0xBFFF;

/// How switches are joined, and where hosts are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is named as what it holds")]
pub enum Shape {
    FatTree(FatTree),
    Grid(Grid),
    Hypercube(Hypercube),
    Dragonfly(Dragonfly),
    Random(RandomGraph),
}

/// What all shapes have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    /// Decides GUIDs, which cables, switches and hosts are missing, and how a random graph looks.
    pub seed: u64,
    /// Per cent of the cables between switches that are taken away; the rest still connects all.
    pub missing_links: f64,
    /// Per cent of the switches that are taken away with their hosts; the rest stays connected.
    pub missing_switches: f64,
    /// Per cent of the hosts that are taken away.
    pub missing_hosts: f64,
    /// Rate of all links.
    pub rate: LinkRate,
}

impl Default for Common {
    fn default() -> Self {
        let rate = LinkRate { speed: ib_mad::netlist::LinkSpeed::Hdr, ..LinkRate::default() };
        Self { seed: 0, missing_links: 0.0, missing_switches: 0.0, missing_hosts: 0.0, rate }
    }
}

/// Why a fabric cannot be made as ordered.
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
    #[error("switches need {needed} ports, but --radix gives them {radix}")]
    Radix { needed: usize, radix: u8 },
    #[error("a switch would need {needed} ports; none has more than {PORTS_MAX}")]
    Ports { needed: usize },
    #[error("{what} must be {min} to {max}, not {value}")]
    Range { what: &'static str, min: usize, max: usize, value: usize },
    #[error(
        "{hosts} hosts and {switches} switches need more than the {UNICAST_LIDS} LIDs of a subnet"
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
        "--missing-links {percent} would take {missing} of {links} links away, but {needed} are \
         needed to keep the {switches} switches connected; ask for at most {max:.1}"
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
        "--missing-switches {percent} would take {missing} of {switches} switches away, but only {max} \
         can go if the others are to stay connected"
    )]
    MissingSwitches { percent: f64, missing: usize, switches: usize, max: usize },
    #[error("{what} must be 0 to 100 per cent, not {value}")]
    Percent { what: &'static str, value: f64 },
}

/// Makes a fabric. Its switches are connected to each other, all hosts to a switch.
pub fn generate(shape: &Shape, common: &Common) -> Result<Net, GenerateError> {
    let mut rng = Rng::new(common.seed);
    let mut plan = match shape {
        Shape::FatTree(tree) => tree.plan()?,
        Shape::Grid(grid) => grid.plan()?,
        Shape::Hypercube(cube) => cube.plan()?,
        Shape::Dragonfly(dragonfly) => dragonfly.plan()?,
        Shape::Random(graph) => graph.plan(&mut rng)?,
    };
    plan.check_size()?;
    plan.remove_links(common.missing_links, &mut rng)?;
    plan.remove_switches(common.missing_switches, &mut rng)?;
    plan.remove_hosts(common.missing_hosts, &mut rng)?;
    Ok(plan.build(common.rate, &mut rng))
}

#[cfg(test)]
mod tests;
