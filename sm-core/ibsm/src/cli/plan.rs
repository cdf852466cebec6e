//! The command line of `ibsm plan`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::host_order::HostOrder;
use sm_routing::{Engine, engines};

/// Options of `ibsm plan`.
#[derive(Clone, Debug, Args)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
pub struct PlanOptions {
    /// Output of ibnetdiscover, a net file of ibsim, or output of ibfabric generate; - reads
    /// standard input.
    pub net: PathBuf,
    /// Routing engines to compare, separated by commas, by the names of -R; or all.
    #[arg(long, value_name = "NAMES", default_value = "all", value_parser = engines)]
    pub engines: EngineNames,
    /// Data VLs of all ports between switches, 1 to 15 [default: the smallest number in the file,
    /// if written by ibnetdiscover -f; else 8].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub vls: Option<u8>,
    /// Read engine settings from FILE, an opensm.conf, and from the files that it names
    /// (root_guid_file, torus_config, lfts_file and so on). There is no default file.
    #[arg(short = 'F', long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set a key of opensm.conf; overrides -F; repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// LMC of host ports: 2^LMC LIDs per port [default: that of the file, else 0].
    #[arg(long, value_name = "LMC", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub lmc: Option<u8>,
    /// Also remove each link between switches, or each switch, one at a time, and report the
    /// effect. All engines route again for each of them.
    #[arg(long, value_enum, default_value = "none")]
    pub failures: Failing,
    /// Maximum number of links, and of switches, to remove; of more, an evenly spaced sample is
    /// used.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub failures_max: NonZeroUsize,
    /// Order of hosts in traffic patterns: name, random, rail (each rail by itself), or a FILE with
    /// a host's name or port GUID per line; hosts that it does not list send nothing.
    #[arg(long, value_name = "ORDER", default_value = "name")]
    pub hosts: HostOrder,
    /// Number of traffic patterns of each kind; a tenth of it after each failure.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub patterns: NonZeroU32,
    /// Recommend an engine for this goal only [default: for each].
    #[arg(long, value_enum)]
    pub goal: Option<Goal>,
    /// Write the comparison to FILE as JSON; - writes it to standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write each engine's forwarding tables to DIR/ENGINE, in the formats of OpenSM's opensm.fdbs
    /// and opensm-lfts.dump, the SLs of paths (ibsm-path-sls.dump), and the SL-to-VL maps of ports
    /// (opensm-sl2vl.dump).
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
    /// Threads for routing and verification. CPU times are sums over all threads.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub threads: NonZeroUsize,
}

/// The elements to remove, one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Failing {
    /// No failures are tried.
    #[default]
    None,
    /// Links between switches.
    Links,
    /// Switches, with all hosts on them.
    Switches,
    /// Links, then switches.
    All,
}

/// What an engine is recommended for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// Collectives of all hosts: the bandwidth of shifts.
    AllToAll,
    /// Pairs of hosts that send independently: the bandwidth of random matchings.
    Pairs,
    /// Few changes of routes when something fails; needs --failures.
    Stable,
}

/// Names of known engines, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineNames(Vec<&'static str>);

impl EngineNames {
    /// The names.
    pub fn names(&self) -> &[&'static str] {
        &self.0
    }

    /// The engines.
    pub fn engines(&self) -> Vec<Box<dyn Engine>> {
        self.0.iter().filter_map(|name| engines::find(name)).collect()
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or("expected KEY=VALUE, such as root_guid_file=roots")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

fn engines(text: &str) -> Result<EngineNames, String> {
    let there: Vec<_> = engines::all().iter().map(|engine| engine.name()).collect();
    let names = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty());
    let mut chosen = Vec::new();
    for name in names {
        let found: Vec<&'static str> = match name.eq_ignore_ascii_case("all") {
            true => there.clone(),
            false => {
                let unknown =
                    || format!("unknown engine '{name}'; known engines: {}", there.join(", "));
                vec![engines::find(name).ok_or_else(unknown)?.name()]
            }
        };
        for name in found {
            if !chosen.contains(&name) {
                chosen.push(name);
            }
        }
    }
    if chosen.is_empty() {
        return Err(format!("no engine given; use 'all' or some of: {}", there.join(", ")));
    }
    Ok(EngineNames(chosen))
}

const EXAMPLES: &str = "\
Examples:
  ibnetdiscover -f > fabric.net                       Record this fabric with its VLs.
  ibsm plan fabric.net                                Compare all engines on it.
  ibsm plan fabric.net --engines ftree,updn --failures links
                                                      Show the effect of link failures.
  ibsm plan fabric.net --vls 4 --engines lash,dfsssp  Check whether 4 data VLs suffice.
  ibsm plan fabric.net --engines updn --set root_guid_file=roots
  ibsm plan fabric.net --engines torus-2QoS --set torus_config=/etc/opensm/torus-2QoS.conf
  ibsm plan fabric.net --set lfts_file=opensm.fdbs    Include another SM's tables (engine 'file').
  ibsm plan fabric.net --dump tables                  Write tables/minhop/opensm.fdbs and so on.
  ibfabric generate fat-tree --levels 3 --radix 36 --hosts 648 -o - | ibsm plan -
                                                      Plan a fabric that does not exist yet.

The table has one line per engine:
  routes    all: every host reaches every LID of every other host; otherwise the defect
  hops      links between switches on a route between hosts: mean, and maximum
  busiest   routes on the busiest link, and the ratio to the mean of all links
  VLs       data VLs that the routes use, and the least number with which the engine can route
  deadlock  none: no credit loop; YES: credit loop, listed below the table
  route     CPU time of routing;  proof: CPU time of verifying delivery and absence of credit loops

A second table has what applications feel. The congestion of a flow is the largest number of flows
on a link of its path while a traffic pattern lasts, its bandwidth the reciprocal; 'bound' is what
the links allow with any routing. Rows with '+' spread flows over all LIDs of ports (LMC).
  eBB       bandwidth of random matchings, mean
  shift     bandwidth of shift permutations, mean (and largest congestion: mean, maximum)
  random    the same of random permutations
  bad pairs pairs that share a link in rounds in which all meet, as ClusterKit tests them
  all2all   bandwidth if all send to all at once, by the busiest link
  contend   mean over links of the smaller of the numbers of senders and receivers

With --failures, each failure by itself:
  refused   failures after which the engine cannot route (the next of routing_engine would be used)
  lost      routes missing between hosts that are still connected
  changed   forwarding table entries that change: mean, and maximum
  forced    of these, entries that led over what failed: mean
  eBB, shift  as above: mean, and minimum
  VLs       maximum of data VLs used (to check a limit, give --vls and look at 'refused')
  deadlock  failures after which the routing has a credit loop

Exit status: 0 if an engine routes the fabric, 1 if none does or the file is invalid, 2 for a
command line error.";
