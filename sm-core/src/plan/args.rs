//! The command line of `ibsm plan`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::routing::{Engine, catalog};

/// What to compare, and how.
#[derive(Clone, Debug, Args)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
pub struct Options {
    /// What ibnetdiscover printed, a topology file of ibsim or what ibfabric generated; - for
    /// standard input.
    pub net: PathBuf,
    /// Routing engines to compare, separated by commas, by the names of -R; or all.
    #[arg(long, value_name = "NAMES", default_value = "all", value_parser = engines)]
    pub engines: EngineNames,
    /// Data VLs that all ports between switches have, 1 to 15 [default: the least that the file
    /// tells, as ibnetdiscover -f has it; else 8].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub vls: Option<u8>,
    /// Steer engines by FILE, an opensm.conf, and by the files that it names (root_guid_file,
    /// torus_config, lfts_file and so on). None is read unless it is named here.
    #[arg(short = 'F', long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Steer engines by a setting of opensm.conf, over those of -F; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// 2^LMC LIDs a host port [default: what the file tells, else 0].
    #[arg(long, value_name = "LMC", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub lmc: Option<u8>,
    /// Also take away each link between switches, or each switch, by itself, and tell what becomes
    /// of the rest. Each has all engines route once more.
    #[arg(long, value_enum, default_value = "none")]
    pub failures: Failing,
    /// The most links, and the most switches, to take away; if there are more, they are picked at
    /// equal distances.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub failures_max: NonZeroUsize,
    /// Write the comparison to FILE as JSON, - for standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write each engine's tables to DIR/ENGINE, as OpenSM's opensm.fdbs and opensm-lfts.dump.
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
    /// Threads that route and prove. CPU times are those of all of them.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub threads: NonZeroUsize,
}

/// What is taken away, one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Failing {
    /// Nothing.
    #[default]
    None,
    /// Links between switches.
    Links,
    /// Switches, with all hosts on them.
    Switches,
    /// Links, then switches.
    All,
}

/// Names of engines that there are, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineNames(Vec<&'static str>);

impl EngineNames {
    /// The names.
    pub fn names(&self) -> &[&'static str] {
        &self.0
    }

    /// The engines.
    pub fn engines(&self) -> Vec<Box<dyn Engine>> {
        self.0.iter().filter_map(|name| catalog::find(name)).collect()
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, as root_guid_file=roots")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

fn engines(text: &str) -> Result<EngineNames, String> {
    let there: Vec<_> = catalog::all().iter().map(|engine| engine.name()).collect();
    let names = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty());
    let mut chosen = Vec::new();
    for name in names {
        let found: Vec<&'static str> = match name.eq_ignore_ascii_case("all") {
            true => there.clone(),
            false => {
                let unknown = || format!("no engine is called '{name}'; {}", there.join(", "));
                vec![catalog::find(name).ok_or_else(unknown)?.name()]
            }
        };
        for name in found {
            if !chosen.contains(&name) {
                chosen.push(name);
            }
        }
    }
    if chosen.is_empty() {
        return Err(format!("name engines, or all: {}", there.join(", ")));
    }
    Ok(EngineNames(chosen))
}

const EXAMPLES: &str = "\
Examples:
  ibnetdiscover -f > fabric.net                           the fabric as it is, with its VLs
  ibsm plan fabric.net                                    all engines on it
  ibsm plan fabric.net --engines ftree,updn --failures links
                                                          what either does when a link fails
  ibsm plan fabric.net --vls 4 --engines lash,dfsssp      do 4 data VLs suffice?
  ibsm plan fabric.net --engines updn --set root_guid_file=roots
  ibsm plan fabric.net --engines torus-2QoS --set torus_config=/etc/opensm/torus-2QoS.conf
  ibsm plan fabric.net --set lfts_file=opensm.fdbs        file: what another manager has in force
  ibsm plan fabric.net --dump tables                      tables/minhop/opensm.fdbs and so on
  ibfabric generate fat-tree --levels 3 --radix 36 --hosts 648 -o - | ibsm plan -
                                                          a fabric that is yet to be bought

The table has a line an engine:
  routes    all: every host reaches every LID of every other; otherwise what is wrong
  hops      links between switches on a route between hosts: on average, and on the longest
  busiest   routes on the link with the most, and how many times the average of used links that is
  VLs       data VLs that routes take, and the fewest with which the engine still routes
  deadlock  none: no packets can wait for each other in circles; YES: they can, as is told below
  route     CPU time of routing;  proof: of proving that routes arrive and cannot deadlock

With --failures, of each failure by itself:
  refused   failures after which the engine cannot route; another one of routing_engine would
  lost      routes between hosts that links still join, but the tables do not
  changed   entries of forwarding tables that differ afterwards: on average, and at most
  VLs       the most data VLs that routes then take (do 4 suffice? --vls 4 and see what is refused)
  deadlock  failures after which packets can wait in circles

Exit status: 0 if some engine routes the fabric, 1 if none does or the file is wrong, 2 for a wrong
command line.";
