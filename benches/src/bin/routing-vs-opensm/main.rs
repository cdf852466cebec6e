//! Compares our tables with those of stock OpenSM on the same fabric.
//!
//! Each fabric is a net file. OpenSM brings it up under stock ibsim once per engine and dumps its
//! tables; our engines get the same fabric with the same steering files; and the same code judges
//! both: the hops of routes between hosts, and how many of them use a link between switches. Each
//! of our figures that is more than 2 % worse is marked, and makes the program fail.
//!
//! `scripts/routing-vs-opensm.sh` generates fabrics of all kinds and runs this on them.

#![allow(clippy::print_stdout, reason = "the table is printed there")]

mod judge;
mod opensm;
mod torus;

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ib_mad::netlist::{Net, NodeKind};
use ib_mad::types::Guid;
use ibsm::plan::site::Site;
use judge::Judgement;
use opensm::Order;
use sm_routing::torus::{self as torus_engine, Config};
use sm_routing::{CommonOptions, Engine, FTree, Steering, Torus2Qos, UpDown, engines, updn};

const USAGE: &str = "\
usage: routing-vs-opensm [OPTION...] NET...

Compares OpenSM's tables with ours on fabrics in the format of ibnetdiscover. Wants opensm and
ibsim (Debian: opensm ibsim-utils). Fails if anything of ours is more than 2 % worse.

  --engines LIST   comma-separated [default: all that both have]
  --vls N          data VLs for both, 1, 2, 4 or 8 [default: 8]
  --lmc N          2^N LIDs for each host [default: 0]
  --timeout S      seconds for OpenSM to route a fabric [default: 100]
  --ours           runs only ours
  --stock DIR      keeps OpenSM's tables there, and takes them from there another time

Where OpenSM's updn, dnup or ftree can deadlock and ours cannot, ours are not counted as worse.

updn and ftree get switch 1 as root where nothing but a tree would have one. torus-2QoS is
tried where switches are called sw-X-Y or sw-X-Y-Z by their places.

Marks: HOPS, FAR, WORST, LANES: mean hops, the most hops, routes on the worst link, lanes are more
than theirs; LOST: hosts cannot reach each other; REFUSES: they route it, we do not.";

const ENGINES: &str = "minhop,updn,dnup,ftree,lash,dor,torus-2QoS,sssp,dfsssp,nue";

/// By how much our figures may be worse.
const TOLERANCE: f64 = 1.02;

/// The settings of the command line.
struct Options {
    engines: Vec<String>,
    vls: u8,
    lmc: u8,
    patience: Duration,
    stock: Option<PathBuf>,
    is_ours_only: bool,
    nets: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let options = match parse(env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("routing-vs-opensm: {error}; see --help");
            return ExitCode::from(2);
        }
    };
    println!(
        "{:24} {:10} {:>5} {:>5} {:>3} {:>3} {:>8} {:>8} {:>6} {:>8} {:>8} {:>2} {:>2} {:>6}  mark",
        "",
        "hops:",
        "ours",
        "stock",
        "max",
        "",
        "worst",
        "link",
        "ratio",
        "mean",
        "link",
        "VL",
        "",
        "ours s"
    );
    let mut worse = 0;
    for net in &options.nets {
        match compare(net, &options) {
            Ok(found) => worse += found,
            Err(error) => {
                eprintln!("routing-vs-opensm: {}: {error}", net.display());
                worse += 1;
            }
        }
    }
    println!("{worse} worse than OpenSM's");
    if worse == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Options>, Box<dyn Error>> {
    let mut engines = ENGINES.to_owned();
    let (mut vls, mut lmc, mut timeout_s, mut is_ours_only, mut stock) = (8, 0, 100, false, None);
    let mut nets = Vec::new();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} requires a value"));
        match &*word {
            "--help" | "-h" => return Ok(None),
            "--engines" => engines = value()?,
            "--vls" => vls = value()?.parse()?,
            "--lmc" => lmc = value()?.parse()?,
            "--timeout" => timeout_s = value()?.parse()?,
            "--stock" => stock = Some(value()?.into()),
            "--ours" => is_ours_only = true,
            option if option.starts_with('-') => {
                return Err(format!("unknown option {option}").into());
            }
            net => nets.push(net.into()),
        }
    }
    if nets.is_empty() {
        return Err("no net file is named".into());
    }
    if !matches!(vls, 1 | 2 | 4 | 8) {
        return Err(format!("--vls must be 1, 2, 4 or 8, not {vls}").into());
    }
    let engines: Vec<String> = engines.split(',').map(str::to_owned).collect();
    if let Some(name) = engines.iter().find(|name| engines::find(name).is_none()) {
        return Err(format!("unknown engine {name}").into());
    }
    let patience = Duration::from_secs(timeout_s);
    Ok(Some(Options { engines, vls, lmc, patience, stock, is_ours_only, nets }))
}

/// Compares all engines on a fabric; returns how many of ours are worse.
fn compare(path: &Path, options: &Options) -> Result<u32, Box<dyn Error>> {
    let net = Net::read(path)?;
    let site = Site::new(&net, Some(options.lmc))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let torus = torus::config(&net);
    // A tree has names of its own for its levels.
    let is_tree = net.nodes().iter().any(|node| node.description.starts_with("leaf"));
    let root = site.roster.switches.first().filter(|_| !is_tree).map(|switch| switch.guid);
    let mut steering = Steering {
        common: CommonOptions {
            data_lanes: options.vls,
            switch_ids: site.roster.switches.iter().map(|switch| switch.guid.0).collect(),
            ..CommonOptions::default()
        },
        updn: updn::Options { roots: root.map(|_| 0).into_iter().collect() },
        torus: torus_engine::Options {
            config: torus.as_deref().map(Config::parse).transpose()?.map(Into::into),
            switch_guids: site.roster.switches.iter().map(|switch| switch.guid).collect(),
        },
        ..Steering::default()
    };
    steering.settings.nue.lanes_max = 0;
    let host = net.nodes().iter().find(|node| node.kind == NodeKind::Ca);
    let host = host.ok_or("there is no host for OpenSM to run on")?;
    let mut worse = 0;
    for engine in &options.engines {
        if engine == Torus2Qos.name() && torus.is_none() {
            continue;
        }
        let order = Order {
            net: path,
            engine,
            vls: options.vls,
            lmc: options.lmc,
            patience: options.patience,
            kept: options.stock.as_deref(),
            host: &host.id,
            root,
            torus: torus.as_deref(),
        };
        let stock = if options.is_ours_only {
            Err("not asked".to_owned())
        } else {
            opensm::route(&order, &site)
                .map(|stock| Judgement::of(&site, &stock.routing, stock.lanes))
        };
        let start = Instant::now();
        let ours = judge::route(engine, &site, &steering);
        let seconds = start.elapsed().as_secs_f64();
        let ours = ours.map(|routing| {
            let lanes = judge::lanes_needed(engine, &site, &steering);
            Judgement::of(&site, &routing, lanes)
        });
        worse += u32::from(report(&name, engine, &ours, &stock, seconds));
    }
    Ok(worse)
}

/// Prints a row; returns whether ours is worse.
fn report(
    net: &str,
    engine: &str,
    ours: &Result<Judgement, String>,
    stock: &Result<Judgement, String>,
    seconds: f64,
) -> bool {
    let (ours, stock) = match (ours, stock) {
        (Ok(ours), stock) => (ours, stock),
        (Err(reason), Ok(_)) => {
            println!("{net:24} {engine:10} REFUSES: {reason}");
            return true;
        }
        (Err(_), Err(_)) => return false,
    };
    let theirs = |report: fn(&Judgement) -> String| stock.as_ref().map_or("-".to_owned(), report);
    let ratio = |stock: &Judgement| f64::from(ours.worst) / f64::from(stock.worst.max(1));
    let (marks, is_worse) = marks(engine, ours, stock.as_ref());
    println!(
        "{net:24} {engine:10} {:5.2} {:>5} {:3} {:>3} {:8} {:>8} {:>6} {:8.1} {:>8} {:2} {:>2} \
         {seconds:6.2}  {marks}",
        ours.mean_hops,
        theirs(|stock| format!("{:.2}", stock.mean_hops)),
        ours.most_hops,
        theirs(|stock| stock.most_hops.to_string()),
        ours.worst,
        theirs(|stock| stock.worst.to_string()),
        stock.as_ref().map_or("-".to_owned(), |stock| format!("{:.3}", ratio(stock))),
        ours.mean_load,
        theirs(|stock| format!("{:.1}", stock.mean_load)),
        ours.lanes,
        theirs(|stock| stock.lanes.to_string()),
    );
    is_worse
}

/// The remarks on ours compared with OpenSM's, and whether ours is worse.
fn marks(engine: &str, ours: &Judgement, stock: Result<&Judgement, &String>) -> (String, bool) {
    let mut marks = Vec::new();
    if ours.lost > 0 {
        marks.push("LOST".to_owned());
    }
    let stock = match stock {
        Ok(stock) => stock,
        Err(reason) => {
            marks.push(format!("only ours: {reason}"));
            return (marks.join(" "), ours.lost > 0);
        }
    };
    let exceeds = |ours: f64, stock: f64| ours > stock * TOLERANCE;
    let worse = [
        ("HOPS", exceeds(ours.mean_hops, stock.mean_hops)),
        ("FAR", ours.most_hops > stock.most_hops),
        ("WORST", exceeds(ours.worst.into(), stock.worst.into())),
        ("LANES", stock.lanes > 0 && ours.lanes > stock.lanes),
    ];
    marks.extend(worse.iter().filter(|mark| mark.1).map(|mark| mark.0.to_owned()));
    // Tables with deadlocks can easily be shorter and better balanced; do not compare these where
    // the engine is meant to avoid deadlocks.
    let is_proof =
        [UpDown::FromRoots.name(), UpDown::FromHosts.name(), FTree.name()].contains(&engine);
    let is_fair = !is_proof || !stock.deadlocks || ours.deadlocks;
    let is_worse = ours.lost > 0 || is_fair && !marks.is_empty();
    if !is_fair {
        marks.push("(OpenSM's can deadlock)".to_owned());
    }
    if stock.lost > 0 {
        marks.push(format!("(OpenSM's lose {} routes)", stock.lost));
    }
    (marks.join(" "), is_worse)
}

/// A GUID as written in configuration files.
fn hex(guid: Guid) -> String {
    format!("0x{:016x}", guid.0)
}
