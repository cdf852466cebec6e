//! `ibsm plan`: compares routing engines on a fabric that a file describes.
//!
//! A file becomes a [`site`]. Each engine has a [`trial`] on it, also after each of the requested
//! [`failures`], with the options from [`settings`]. The results are shown as a [`table`], as
//! [`json`], and as dumps in OpenSM's formats ([`sm_core::dump`]). `plan` touches neither a fabric
//! nor a running subnet manager. Files are read and written here and in [`output`] only.

pub mod broadcast;
mod clock;
pub mod failures;
pub mod json;
mod lanes;
mod output;
mod progress;
pub mod recommend;
pub mod settings;
pub mod site;
pub mod survey;
pub mod table;
pub mod trial;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ib_mad::netlist::{Net, NetError};

use failures::{Choice, Steer, Tally};
use progress::Progress;
use settings::{EngineSettings, SettingsError};
use site::{Site, SiteError};
use trial::{Traffic, Trial};

use crate::cli::{Failing, Goal, PlanOptions};
use crate::host_order::HostOrder;
use crate::pages;
use sm_routing::measure::Effort;
use sm_routing::{TopologyError, engines};

/// Default number of data VLs: the smallest of the switches of the last fifteen years.
const DATA_LANES: u8 = 8;
/// How many times fewer patterns are measured after each failure.
const LESS_EFFORT: u32 = 10;
/// Number of table entries from which on huge pages are used, if the system has them.
const HUGE_PAGES_MIN: usize = 64 << 20;

/// Reports why the comparison failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The net file is invalid; the error has the line.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The fabric that the file describes cannot be routed.
    #[error("{}: {source}", .net.display())]
    Site {
        /// The file.
        net: PathBuf,
        /// The reason.
        source: SiteError,
    },
    /// The engines' options are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The fabric after a failure is not a valid topology.
    #[error(transparent)]
    Rest(#[from] TopologyError),
    /// A file or directory cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Threads cannot be started.
    #[error("--threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl PlanError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// A comparison of engines.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The net file.
    pub net: &'a Path,
    /// The fabric that it describes.
    pub site: Site,
    /// Number of data VLs passed to the engines.
    pub data_lanes: u8,
    /// Number of traffic patterns of each kind.
    pub patterns: u32,
    /// The goal to recommend an engine for; `None`: each.
    pub goal: Option<Goal>,
    /// Remarks on operators' files.
    pub remarks: Vec<String>,
    /// Results per engine, in the order in which they were listed.
    pub trials: Vec<Tried>,
}

/// Results of one engine on the whole site and after failures.
#[derive(Debug)]
pub struct Tried {
    /// Result on the whole site. Its tables are not kept.
    pub trial: Trial,
    /// Results by kind of failure.
    pub failures: Vec<Tally>,
}

/// Runs the comparison and shows the results.
pub fn main(options: &PlanOptions) -> ExitCode {
    match run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("ibsm plan: {failure}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Returns whether any engine routes the fabric.
fn run(options: &PlanOptions) -> Result<bool, PlanError> {
    let net = read(&options.net)?;
    let site = Site::new(&net, options.lmc)
        .map_err(|source| PlanError::Site { net: options.net.clone(), source })?;
    drop(net);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(options.threads.get()).build()?;
    // Huge pages are faster to use and slower to allocate: they pay where tables are much larger
    // than caches.
    if site.topology.switch_count() * site.topology.table_len() < HUGE_PAGES_MIN {
        pages::use_small_ones();
    }
    let data_lanes = options.vls.or(site.data_lanes).unwrap_or(DATA_LANES);
    let settings =
        EngineSettings::load(options.config.as_ref(), &options.set, options.engines.names())?;
    let mut remarks = settings.remarks.clone();
    remarks.extend(settings.steer(&site, data_lanes).remarks);
    let steer = |site: &Site| settings.steer(site, data_lanes).steering;
    let listed = match &options.hosts {
        HostOrder::File(path) => std::fs::read_to_string(path).map_err(PlanError::io(path))?,
        HostOrder::Name | HostOrder::Random | HostOrder::Rail => String::new(),
    };
    remarks.extend(site.traffic(&options.hosts, &listed).1);
    let mut plan = threads.install(|| compare(options, site, data_lanes, &steer, &listed))?;
    for tried in &mut plan.trials {
        if let Some(reason) = settings.refusal(tried.trial.engine) {
            tried.trial.outcome = Err(reason.to_owned());
            tried.failures.clear();
        }
    }
    if let Some(engine) = in_force(&plan.trials, settings.engine_names()) {
        let wanted = settings.engine_names().join(",");
        remarks.push(format!("with routing_engine {wanted}, ibsm would use {engine}"));
    }
    plan.remarks = remarks;
    output::show(&plan, options.json.as_deref())?;
    Ok(plan.trials.iter().any(|tried| tried.trial.outcome.is_ok()))
}

/// The engine that a manager configured with `wanted` would use: the first with correct tables
/// without credit loops, else the first with correct tables; `None` if it is not among those
/// compared.
fn in_force(trials: &[Tried], wanted: &[String]) -> Option<&'static str> {
    if wanted.is_empty() {
        return None;
    }
    let has_fallback = !wanted.iter().any(|name| name == engines::NO_FALLBACK);
    let last = has_fallback.then(|| engines::fallback().name());
    let names = wanted.iter().map(String::as_str).chain(last);
    let mut right = None;
    for name in names.filter(|&name| name != engines::NO_FALLBACK) {
        let tried = trials.iter().find(|tried| tried.trial.engine.eq_ignore_ascii_case(name))?;
        let Ok(made) = &tried.trial.outcome else { continue };
        if !made.deliveries.is_sound() {
            continue;
        }
        if made.loops.is_free() {
            return Some(tried.trial.engine);
        }
        right = right.or(Some(tried.trial.engine));
    }
    right
}

fn read(path: &Path) -> Result<Net, PlanError> {
    if path != Path::new("-") {
        return Ok(Net::read(path)?);
    }
    let mut bytes = Vec::new();
    let name = "standard input";
    io::stdin().lock().read_to_end(&mut bytes).map_err(PlanError::io(Path::new(name)))?;
    // NodeDescriptions may contain any bytes.
    Ok(Net::parse(name, &String::from_utf8_lossy(&bytes))?)
}

/// Routes the site with each engine, with the options from `steer`, whole and after failures.
/// `listed` is the file of hosts, if the options name one.
pub fn compare<'a>(
    options: &'a PlanOptions,
    site: Site,
    data_lanes: u8,
    steer: Steer<'_>,
    listed: &str,
) -> Result<Plan<'a>, PlanError> {
    let patterns = options.patterns.get();
    let traffic = |site: &Site, patterns| Traffic {
        hosts: site.traffic(&options.hosts, listed).0,
        effort: Effort { patterns, ..Effort::default() },
    };
    let whole = traffic(&site, patterns);
    let less = |site: &Site| traffic(site, patterns.div_ceil(LESS_EFFORT));
    let max = options.failures_max.get();
    let choices: Vec<Choice> = [(Failing::Links, false), (Failing::Switches, true)]
        .into_iter()
        .filter(|(kind, _)| options.failures == *kind || options.failures == Failing::All)
        .map(|(_, of_switches)| Choice::of(&site, of_switches, max))
        .collect();
    let mut progress = Progress::new();
    let mut trials = Vec::new();
    for engine in options.engines.engines() {
        progress.show(|| format!("{} routes", engine.name()));
        let mut trial = Trial::run(&*engine, &site, &steer(&site), &whole);
        let mut failures = Vec::new();
        if let Ok(made) = &trial.outcome {
            if let Some(directory) = &options.dump {
                progress.show(|| format!("writing tables of {}", engine.name()));
                output::dump(&site, made, data_lanes, &directory.join(engine.name()))?;
            }
            for choice in &choices {
                let whole = (&site, made);
                let (traffic, progress) = (&less, &mut progress);
                failures.push(failures::tally(&*engine, whole, choice, steer, traffic, progress)?);
            }
        }
        if let Ok(made) = &mut trial.outcome {
            // The tables of all engines together could take gigabytes.
            made.routing.lfts = Vec::new();
        }
        trials.push(Tried { trial, failures });
    }
    progress.clear();
    let (patterns, goal) = (patterns, options.goal);
    Ok(Plan { net: &options.net, site, data_lanes, patterns, goal, remarks: Vec::new(), trials })
}

#[cfg(test)]
mod tests;
