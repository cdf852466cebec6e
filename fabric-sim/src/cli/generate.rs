//! `ibfabric generate`: generates a fabric and writes its net file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::generate::{
    Common, Dragonfly, DragonflyPlus, FatTree, GenerateError, Grid, HyperX, Hypercube, RailTree,
    RandomGraph, Shape, SlimFly, generate,
};
use ib_mad::netlist::{LinkRate, LinkSpeed, Net, NodeKind};

const EXAMPLES: &str = "\
Examples:
  ibfabric generate fat-tree --levels 3 --radix 36 --hosts 648 --seed 1 -o NET
  ibfabric generate fat-tree --levels 2 --radix 40 --hosts 600 --oversubscription 3:1 -o NET
  ibfabric generate torus --dims 8x8x8 --hosts-per-switch 2 --missing-links 3 -o NET
  ibfabric generate hypercube --dimensions 6 --hosts-per-switch 4 -o NET
  ibfabric generate rail-tree --levels 2 --radix 64 --hosts 128 --rails 8 -o NET
  ibfabric generate hyperx --dims 8x8 --hosts-per-switch 6 -o NET
  ibfabric generate slim-fly --q 5 --hosts-per-switch 4 -o NET
  ibfabric generate dragonfly-plus --groups 5 --leaves 4 --spines 4 --hosts-per-leaf 4 \
    --global-links 4 -o NET
  ibfabric generate dragonfly --groups 9 --routers 4 --hosts-per-router 2 --global-links 2 -o NET
  ibfabric generate fat-tree --levels 2 --radix 144 --hosts 10368 --planes 4 --speed xdr -o NET
  ibfabric generate random --switches 50 --degree 4 --hosts 200 --speed ndr -o - | less

The file has the format of ibnetdiscover. Simulate it with 'ibfabric serve NET' or with stock ibsim:
'ibsim -s -n NET' (up to 2,048 nodes; raise the limits with -N, -S and -P).";

/// Generate a fabric and write its net file
///
/// Node names, GUIDs and device IDs resemble those of real fabrics. Equal options and seeds give
/// equal files. The switches are always connected; options that make this impossible are an error.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GenerateArgs {
    #[command(subcommand)]
    shape: ShapeArgs,
}

#[derive(Debug, Subcommand)]
enum ShapeArgs {
    /// Folded Clos network of leaves and spines, or of leaves, spines and cores
    FatTree(FatTreeArgs),
    /// Fat tree of hosts with several adapters, each on a leaf of its rail
    RailTree(RailTreeArgs),
    /// Grid of switches with rows closed to rings
    Torus(GridArgs),
    /// Grid of switches with open ends
    Mesh(GridArgs),
    /// 2^N switches, each linked to those whose number differs in one bit
    Hypercube(HypercubeArgs),
    /// Grid of switches, each linked to all others of its rows
    #[command(name = "hyperx")]
    HyperX(GridArgs),
    /// Groups of fully connected switches, with links between all groups
    Dragonfly(DragonflyArgs),
    /// Groups of leaves and spines, with links between the spines of all groups (Megafly)
    DragonflyPlus(DragonflyPlusArgs),
    /// 2q² switches that are at most two links apart, for a prime q
    SlimFly(SlimFlyArgs),
    /// Random connected graph of switches
    Random(RandomArgs),
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// Seed for GUIDs, missing links, switches and hosts, and random graphs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Remove this percentage of the links between switches, keeping switches connected
    #[arg(long, value_name = "PCT", default_value_t = 0.0)]
    missing_links: f64,
    /// Remove this percentage of the switches with their hosts, keeping the others connected
    #[arg(long, value_name = "PCT", default_value_t = 0.0)]
    missing_switches: f64,
    /// Remove this percentage of the hosts
    #[arg(long, value_name = "PCT", default_value_t = 0.0)]
    missing_hosts: f64,
    /// Planes: so many copies of the switches, with a port of each adapter in each (planarized
    /// fabrics, as of XDR: 4)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    planes: u8,
    /// Speed of all links, 4 lanes wide: sdr, ddr, qdr, fdr10, fdr, edr, hdr, ndr or xdr (stock
    /// ibsim 0.10 supports up to hdr and runs faster links at sdr)
    #[arg(long, default_value = "hdr")]
    speed: LinkSpeed,
    /// File to write; - for standard output
    #[arg(short, long, value_name = "NET")]
    output: PathBuf,
}

#[derive(Debug, Args)]
struct FatTreeArgs {
    /// Levels of switches
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=3))]
    levels: u8,
    /// Ports of each switch
    #[arg(long, default_value_t = 36)]
    radix: u8,
    /// Number of hosts; the tree has only the switches that they need
    #[arg(long)]
    hosts: usize,
    /// Hosts to uplinks of a leaf; 1:1 is full bisection bandwidth
    #[arg(long, value_name = "A:B", default_value = "1:1", value_parser = parse_ratio)]
    oversubscription: (u8, u8),
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct GridArgs {
    /// Switches in each dimension, such as 8x8x8
    #[arg(long, value_parser = parse_dims)]
    dims: Dims,
    /// Hosts on each switch
    #[arg(long, default_value_t = 1)]
    hosts_per_switch: u8,
    /// Ports of each switch [default: the smallest common number that suffices, at least 36]
    #[arg(long)]
    radix: Option<u8>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct HypercubeArgs {
    /// Number of dimensions
    #[arg(long)]
    dimensions: u8,
    /// Hosts on each switch
    #[arg(long, default_value_t = 1)]
    hosts_per_switch: u8,
    /// Ports of each switch [default: the smallest common number that suffices, at least 36]
    #[arg(long)]
    radix: Option<u8>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct DragonflyArgs {
    /// Number of groups
    #[arg(long)]
    groups: u16,
    /// Switches in each group
    #[arg(long)]
    routers: u16,
    /// Hosts on each switch
    #[arg(long, default_value_t = 1)]
    hosts_per_router: u8,
    /// Ports of each switch for links to other groups; ports beyond an equal share stay unused
    #[arg(long, default_value_t = 1)]
    global_links: u8,
    /// Ports of each switch [default: the smallest common number that suffices, at least 36]
    #[arg(long)]
    radix: Option<u8>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct DragonflyPlusArgs {
    /// Number of groups
    #[arg(long)]
    groups: u16,
    /// Leaves in each group
    #[arg(long)]
    leaves: u16,
    /// Spines in each group
    #[arg(long)]
    spines: u16,
    /// Hosts on each leaf
    #[arg(long, default_value_t = 1)]
    hosts_per_leaf: u8,
    /// Ports of each spine for links to other groups; ports beyond an equal share stay unused
    #[arg(long, default_value_t = 1)]
    global_links: u8,
    /// Ports of each switch [default: the smallest common number that suffices, at least 36]
    #[arg(long)]
    radix: Option<u8>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct SlimFlyArgs {
    /// A prime above 2: (3q ± 1) / 2 links for each switch
    #[arg(long)]
    q: u8,
    /// Hosts on each switch
    #[arg(long, default_value_t = 1)]
    hosts_per_switch: u8,
    /// Ports of each switch [default: the smallest common number that suffices, at least 36]
    #[arg(long)]
    radix: Option<u8>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct RailTreeArgs {
    /// Levels of switches
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    levels: u8,
    /// Ports of each switch
    #[arg(long, default_value_t = 64)]
    radix: u8,
    /// Number of hosts; the tree has only the switches that they need
    #[arg(long)]
    hosts: usize,
    /// Adapters of each host, named HCA-1, HCA-2, ...
    #[arg(long, default_value_t = 8)]
    rails: u8,
    /// Adapters to uplinks of a leaf; 1:1 is full bisection bandwidth
    #[arg(long, value_name = "A:B", default_value = "1:1", value_parser = parse_ratio)]
    oversubscription: (u8, u8),
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct RandomArgs {
    /// Number of switches
    #[arg(long)]
    switches: usize,
    /// Links of each switch to others
    #[arg(long)]
    degree: u8,
    /// Number of hosts, spread evenly
    #[arg(long)]
    hosts: usize,
    /// Ports of each switch [default: the smallest common number that suffices, at least 36]
    #[arg(long)]
    radix: Option<u8>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Why no net file was written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum GenerateCommandError {
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
}

/// Runs the command; prints a summary to standard error.
pub fn run(args: &GenerateArgs) -> Result<(), GenerateCommandError> {
    let (shape, common_args) = args.shape.parts();
    let common = Common {
        seed: common_args.seed,
        missing_links: common_args.missing_links,
        missing_switches: common_args.missing_switches,
        missing_hosts: common_args.missing_hosts,
        rate: LinkRate { speed: common_args.speed, ..LinkRate::default() },
        planes: common_args.planes,
    };
    let net = generate(&shape, &common)?;
    let path = &common_args.output;
    write(path, &args.shape.title(), &common, &net)
        .map_err(|error| GenerateCommandError::Write { path: path.clone(), error })?;
    if path != Path::new("-") {
        let _ = writeln!(io::stderr(), "{}: {}", path.display(), inventory(&net));
    }
    Ok(())
}

fn write(path: &Path, title: &str, common: &Common, net: &Net) -> io::Result<()> {
    let to_stdout = path == Path::new("-");
    let sink: Box<dyn Write> =
        if to_stdout { Box::new(io::stdout().lock()) } else { Box::new(File::create(path)?) };
    let mut sink = BufWriter::new(sink);
    let written = writeln!(sink, "# {title} seed {}: {}", common.seed, inventory(net))
        .and_then(|()| write!(sink, "{net}"))
        .and_then(|()| sink.flush());
    // The reader, perhaps a pager, has exited.
    written.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe if to_stdout => Ok(()),
        _ => Err(error),
    })
}

fn inventory(net: &Net) -> String {
    let (hosts, switches) = (net.count(NodeKind::Ca), net.count(NodeKind::Switch));
    format!("{hosts} hosts, {switches} switches, {} links", net.links().count())
}

impl ShapeArgs {
    fn parts(&self) -> (Shape, &CommonArgs) {
        let grid = |args: &GridArgs, wraps| {
            Shape::Grid(Grid {
                dims: args.dims.0.clone(),
                wraps,
                hosts_per_switch: args.hosts_per_switch,
                radix: args.radix,
            })
        };
        match self {
            Self::FatTree(args) => {
                let shape = FatTree {
                    levels: args.levels,
                    radix: args.radix,
                    hosts: args.hosts,
                    oversubscription: args.oversubscription,
                };
                (Shape::FatTree(shape), &args.common)
            }
            Self::RailTree(args) => {
                let shape = RailTree {
                    levels: args.levels,
                    radix: args.radix,
                    hosts: args.hosts,
                    rails: args.rails,
                    oversubscription: args.oversubscription,
                };
                (Shape::RailTree(shape), &args.common)
            }
            Self::HyperX(args) => {
                let shape = HyperX {
                    dims: args.dims.0.clone(),
                    hosts_per_switch: args.hosts_per_switch,
                    radix: args.radix,
                };
                (Shape::HyperX(shape), &args.common)
            }
            Self::DragonflyPlus(args) => {
                let shape = DragonflyPlus {
                    groups: args.groups,
                    leaves: args.leaves,
                    spines: args.spines,
                    hosts_per_leaf: args.hosts_per_leaf,
                    global_links: args.global_links,
                    radix: args.radix,
                };
                (Shape::DragonflyPlus(shape), &args.common)
            }
            Self::SlimFly(args) => {
                let shape = SlimFly {
                    q: args.q,
                    hosts_per_switch: args.hosts_per_switch,
                    radix: args.radix,
                };
                (Shape::SlimFly(shape), &args.common)
            }
            Self::Torus(args) => (grid(args, true), &args.common),
            Self::Mesh(args) => (grid(args, false), &args.common),
            Self::Hypercube(args) => {
                let shape = Hypercube {
                    dimensions: args.dimensions,
                    hosts_per_switch: args.hosts_per_switch,
                    radix: args.radix,
                };
                (Shape::Hypercube(shape), &args.common)
            }
            Self::Dragonfly(args) => {
                let shape = Dragonfly {
                    groups: args.groups,
                    routers: args.routers,
                    hosts_per_router: args.hosts_per_router,
                    global_links: args.global_links,
                    radix: args.radix,
                };
                (Shape::Dragonfly(shape), &args.common)
            }
            Self::Random(args) => {
                let shape = RandomGraph {
                    switches: args.switches,
                    degree: args.degree,
                    hosts: args.hosts,
                    radix: args.radix,
                };
                (Shape::Random(shape), &args.common)
            }
        }
    }

    /// Name of the fabric in the first line of the file.
    fn title(&self) -> String {
        match self {
            Self::FatTree(args) => {
                let (down, up) = args.oversubscription;
                format!("fat tree, {} levels, radix {}, {down}:{up},", args.levels, args.radix)
            }
            Self::RailTree(args) => {
                format!(
                    "rail tree, {} levels, radix {}, {} rails,",
                    args.levels, args.radix, args.rails
                )
            }
            Self::HyperX(args) => format!("HyperX {}", args.dims),
            Self::DragonflyPlus(args) => format!(
                "Dragonfly+, {} groups of {} leaves and {} spines,",
                args.groups, args.leaves, args.spines
            ),
            Self::SlimFly(args) => format!("Slim Fly, q {},", args.q),
            Self::Torus(args) => format!("torus {}", args.dims),
            Self::Mesh(args) => format!("mesh {}", args.dims),
            Self::Hypercube(args) => format!("hypercube, {} dimensions,", args.dimensions),
            Self::Dragonfly(args) => {
                format!("dragonfly, {} groups of {} routers,", args.groups, args.routers)
            }
            Self::Random(args) => format!("random graph, degree {},", args.degree),
        }
    }
}

/// Dimensions of a grid. A separate type, since clap reads a `Vec` as a repeated option.
#[derive(Clone, Debug)]
struct Dims(Vec<u16>);

impl std::fmt::Display for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dims: Vec<String> = self.0.iter().map(u16::to_string).collect();
        f.write_str(&dims.join("x"))
    }
}

fn parse_dims(text: &str) -> Result<Dims, String> {
    let dims: Result<Vec<u16>, _> = text.split('x').map(str::parse).collect();
    dims.map(Dims).map_err(|_| "expected sizes joined by x, such as 8x8x8".to_owned())
}

fn parse_ratio(text: &str) -> Result<(u8, u8), String> {
    let parse = || {
        let (down, up) = text.split_once(':')?;
        Some((down.parse().ok()?, up.parse().ok()?))
    };
    let ratio = parse().filter(|&(down, up)| down > 0 && up > 0);
    ratio.ok_or_else(|| "expected hosts to uplinks, such as 2:1".to_owned())
}
