//! Stock OpenSM's tables of a fabric: brought up once under stock ibsim, and read from its dump.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use benches::sandbox::Sandbox;
use ib_mad::types::Guid;
use ibsm::plan::site::Site;
use sm_routing::file::Dump;
use sm_routing::{HopMatrix, Lanes, Routing};

use crate::hex;

/// A run of OpenSM.
pub(crate) struct Order<'a> {
    pub net: &'a Path,
    pub engine: &'a str,
    pub vls: u8,
    pub lmc: u8,
    /// Time for OpenSM to route.
    pub patience: Duration,
    /// Directory for its output.
    pub kept: Option<&'a Path>,
    /// The node on which it runs.
    pub host: &'a str,
    /// The root for engines that need one.
    pub root: Option<Guid>,
    /// Content of `torus-2QoS.conf`.
    pub torus: Option<&'a str>,
}

/// Its tables, in the numbering of a site.
pub(crate) struct Stock {
    pub routing: Routing,
    /// Virtual lanes that it needs according to its log; 0 if not logged.
    pub lanes: u8,
}

/// ibsim's limits: switches, hosts, ports in all and LIDs.
const LIMITS: [&str; 8] = ["-S", "8192", "-N", "24576", "-P", "262144", "-L", "49151"];

/// Runs it on a fabric, or returns why it did not route. Output of an earlier run is read from the
/// order's directory, and new output is kept there.
pub(crate) fn route(order: &Order<'_>, site: &Site) -> Result<Stock, String> {
    let name = order.net.file_stem().unwrap_or_default().to_string_lossy();
    let Order { engine, vls, lmc, .. } = order;
    let kept = order.kept.map(|kept| kept.join(format!("{name}.{engine}.vls{vls}.lmc{lmc}")));
    let before = kept.as_ref().and_then(|kept| Said::read(kept).ok());
    let said = match before {
        Some(said) => said,
        None => {
            let said = run(order)?;
            if let Some(kept) = kept {
                said.write(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
            }
            said
        }
    };
    let made = format!("{} tables configured on all switches", order.engine);
    if !said.log.to_lowercase().contains(&made.to_lowercase()) {
        return Err(complaint(&said.log));
    }
    let Said { log, dump: text } = said;
    let dump = Dump::parse(&text).map_err(|error| error.to_string())?;
    let topology = &site.topology;
    let switches = site.roster.switches.iter().map(|switch| switch.guid).zip(0u16..);
    let switches: HashMap<Guid, u16> = switches.collect();
    let ends = site.roster.ends.iter().map(|end| end.guid).zip(topology.destinations());
    let ends: HashMap<Guid, _> = ends.collect();
    let resolved = dump.resolve(
        topology,
        |guid| switches.get(&guid).copied(),
        |guid| ends.get(&guid).copied(),
    );
    let mut lfts = resolved.map_err(|error| error.to_string())?;
    lfts.iter_mut().for_each(|lft| lft.resize(topology.table_len(), u8::MAX));
    Ok(Stock {
        routing: Routing {
            loads: Vec::new(),
            tree: None,
            engine: "opensm",
            lfts,
            hops: HopMatrix::compute(topology).ok_or("too many switches")?,
            lanes: Lanes::Free,
            unreachable: 0,
        },
        lanes: lanes(&log),
    })
}

/// OpenSM's output.
struct Said {
    log: String,
    /// `opensm-lfts.dump`; empty if it did not route.
    dump: String,
}

impl Said {
    fn read(directory: &Path) -> io::Result<Self> {
        let read = |name: &str| fs::read_to_string(directory.join(name));
        Ok(Self { log: read("opensm.log")?, dump: read("opensm-lfts.dump")? })
    }

    fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        fs::write(directory.join("opensm-lfts.dump"), &self.dump)?;
        fs::write(directory.join("opensm.log"), &self.log)
    }
}

fn run(order: &Order<'_>) -> Result<Said, String> {
    let resolved = |error: io::Error| error.to_string();
    let sandbox = Sandbox::new("routing-vs-opensm");
    let path = |name: &str| sandbox.path(name).display().to_string();
    let words = command_line(order, &sandbox).map_err(resolved)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let net = fs::canonicalize(order.net).map_err(resolved)?;
    let _ibsim = sandbox.ibsim_with(&net, &LIMITS);
    let opensm = sandbox.umad_program("opensm", order.host, &words);
    let deadline = Instant::now() + order.patience;
    let log = || String::from_utf8_lossy(&fs::read(path("opensm.log")).unwrap_or_default()).into();
    loop {
        let log: String = log();
        if log.contains("SUBNET UP") {
            opensm.wait();
            break;
        }
        // It would retry forever.
        if log.contains("No routing engine able to") {
            drop(opensm);
            break;
        }
        if Instant::now() > deadline {
            let late = format!(" ERR -> not done after {} s", order.patience.as_secs());
            return Ok(Said { log: late, dump: String::new() });
        }
        thread::sleep(Duration::from_millis(20));
    }
    let dump = fs::read_to_string(path("opensm-lfts.dump")).unwrap_or_default();
    Ok(Said { log: log(), dump })
}

/// Its arguments. Writes the files that they name.
fn command_line(order: &Order<'_>, sandbox: &Sandbox) -> io::Result<Vec<String>> {
    let file = |name: &str, text: &str| {
        let path = sandbox.path(name);
        fs::write(&path, text).map(|()| path.display().to_string())
    };
    let path = |name: &str| sandbox.path(name).display().to_string();
    // Codes of OperationalVLs: 1 to 4 for 1, 2, 4 and 8 lanes.
    let conf = file("opensm.conf", &format!("max_op_vls {}\n", order.vls.ilog2() + 1))?;
    let (vls, lmc) = (order.vls.to_string(), order.lmc.to_string());
    let engine = format!("{},no_fallback", order.engine);
    let mut words = vec!["opensm", "-F", &conf, "-o", "-R", &engine, "-l", &lmc, "-D", "0x43"];
    let (log, directory) = (path("opensm.log"), path(""));
    words.extend(["-f", &log, "--dump_files_dir", &directory]);
    let (root, torus);
    match order.engine {
        "nue" => words.extend(["--nue_max_num_vls", &vls]),
        "updn" | "ftree" if order.root.is_some() => {
            root = file("roots", &order.root.map(hex).unwrap_or_default())?;
            words.extend(["-a", &root]);
        }
        "torus-2QoS" => {
            torus = file("torus-2QoS.conf", order.torus.unwrap_or_default())?;
            words.extend(["-Q", "--torus_config", &torus]);
        }
        _ => {}
    }
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// The first error that it logged.
fn complaint(log: &str) -> String {
    let error = log.lines().find(|line| line.contains(" ERR ") && !line.contains("ERR 5411"));
    let text = error.and_then(|line| line.split_once("-> ")).map_or("no reason logged", |(_, t)| t);
    text.chars().take(90).collect()
}

/// Number of lanes from its log; `lash` logs it.
fn lanes(log: &str) -> u8 {
    let needed = log.lines().find_map(|line| Some(line.split_once("Lanes needed: ")?.1));
    let number = needed.and_then(|rest| rest.split(',').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
