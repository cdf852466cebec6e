//! `ibsm plan`: what each routing engine would make of a fabric that a file describes.
//!
//! A file becomes a [`site`]; engines have a [`trial`] on it one by one, and after each of the
//! [`failures`] that are asked for, steered by [`wishes`]. What comes of it is shown as a [`table`], as [`json`], and as
//! dumps in OpenSM's formats ([`crate::dump`]). No fabric is touched, and nothing of a running
//! subnet manager is looked at. Files are read and written here and in [`output`], nowhere else.

pub mod args;
pub mod broadcast;
mod clock;
pub mod failures;
pub mod json;
mod output;
mod progress;
pub mod site;
pub mod survey;
pub mod table;
pub mod trial;
pub mod wishes;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ib_mad::netlist::{Net, NetError};

use args::Failing;
pub use args::Options;
use failures::{Choice, Steer, Tally};
use progress::Progress;
use site::{Site, SiteError};
use trial::Trial;
use wishes::{WishError, Wishes};

use crate::pages;
use crate::routing::TopologyError;

/// Data VLs if nobody tells: what switches of the last fifteen years have at least.
const DATA_LANES: u8 = 8;
/// Entries of tables from which on memory comes in huge pages, if the system has such.
const HUGE_PAGES_MIN: usize = 64 << 20;

/// Why nothing can be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The file, which is named with the line.
    #[error(transparent)]
    Net(#[from] NetError),
    /// What the file describes.
    #[error("{}: {source}", .net.display())]
    Site {
        /// The file.
        net: PathBuf,
        /// What is wrong.
        source: SiteError,
    },
    /// What steers engines.
    #[error(transparent)]
    Wishes(#[from] WishError),
    /// What is left of it after a failure.
    #[error(transparent)]
    Rest(#[from] TopologyError),
    /// A file or directory.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Threads.
    #[error("--threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl PlanError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// A comparison.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The file.
    pub net: &'a Path,
    /// What it describes.
    pub site: Site,
    /// Data VLs that engines were told of.
    pub data_lanes: u8,
    /// What of operators' files is odd or without effect.
    pub remarks: Vec<String>,
    /// What engines made of it, in the order in which they were named.
    pub trials: Vec<Tried>,
}

/// What one engine made of the site, whole and with parts missing.
#[derive(Debug)]
pub struct Tried {
    /// Of the whole. Its tables are not kept.
    pub trial: Trial,
    /// By kind of failure.
    pub failures: Vec<Tally>,
}

/// Compares, and shows what came of it.
pub fn main(options: &Options) -> ExitCode {
    match run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("ibsm plan: {failure}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Whether some engine routes the fabric.
fn run(options: &Options) -> Result<bool, PlanError> {
    let net = read(&options.net)?;
    let site = Site::new(&net, options.lmc)
        .map_err(|source| PlanError::Site { net: options.net.clone(), source })?;
    drop(net);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(options.threads.get()).build()?;
    // Huge pages are faster to use and slower to get: they pay where tables are much larger than caches.
    if site.topology.switch_count() * site.topology.table_len() < HUGE_PAGES_MIN {
        pages::use_small_ones();
    }
    let data_lanes = options.vls.or(site.data_lanes).unwrap_or(DATA_LANES);
    let wishes = Wishes::load(options.config.as_ref(), &options.set, options.engines.names())?;
    let mut remarks = wishes.remarks.clone();
    remarks.extend(wishes.steer(&site, data_lanes).remarks);
    let steer = |site: &Site| wishes.steer(site, data_lanes).steering;
    let mut plan = threads.install(|| compare(options, site, data_lanes, &steer))?;
    for tried in &mut plan.trials {
        if let Some(reason) = wishes.refusal(tried.trial.engine) {
            tried.trial.outcome = Err(reason.to_owned());
            tried.failures.clear();
        }
    }
    if let Some(engine) = in_force(&plan.trials, wishes.wanted()) {
        let wanted = wishes.wanted().join(",");
        remarks.push(format!("routing_engine {wanted} would route by {engine}"));
    }
    plan.remarks = remarks;
    output::show(&plan, options.json.as_deref())?;
    Ok(plan.trials.iter().any(|tried| tried.trial.outcome.is_ok()))
}

/// The engine that a manager would use that is to try those `wanted`: the first whose tables are right
/// and free of deadlocks, else the first whose tables are right; `None` if that is not among those
/// compared.
fn in_force(trials: &[Tried], wanted: &[String]) -> Option<&'static str> {
    if wanted.is_empty() {
        return None;
    }
    let last = if wanted.iter().any(|name| name == "no_fallback") { None } else { Some("minhop") };
    let names = wanted.iter().map(String::as_str).chain(last);
    let mut right = None;
    for name in names.filter(|&name| name != "no_fallback") {
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
    // Descriptions may hold any bytes.
    Ok(Net::parse(name, &String::from_utf8_lossy(&bytes))?)
}

/// Has each engine route the site, as `steer` asks, and what is left of it after failures.
pub fn compare<'a>(
    options: &'a Options,
    site: Site,
    data_lanes: u8,
    steer: Steer<'_>,
) -> Result<Plan<'a>, PlanError> {
    let max = options.failures_max.get();
    let choices: Vec<Choice> = [(Failing::Links, false), (Failing::Switches, true)]
        .into_iter()
        .filter(|(kind, _)| options.failures == *kind || options.failures == Failing::All)
        .map(|(_, of_switches)| Choice::of(&site, of_switches, max))
        .collect();
    let mut progress = Progress::new();
    let mut trials = Vec::new();
    for engine in options.engines.engines() {
        progress.tell(|| format!("{} routes", engine.name()));
        let mut trial = Trial::run(&*engine, &site, &steer(&site));
        let mut failures = Vec::new();
        if let Ok(made) = &trial.outcome {
            if let Some(directory) = &options.dump {
                progress.tell(|| format!("writing tables of {}", engine.name()));
                output::dump(&site, made, &directory.join(engine.name()))?;
            }
            for choice in &choices {
                let whole = (&site, made);
                failures.push(failures::tally(&*engine, whole, choice, steer, &mut progress)?);
            }
        }
        if let Ok(made) = &mut trial.outcome {
            // Tables of all engines at once would be gigabytes.
            made.routing.lfts = Vec::new();
        }
        trials.push(Tried { trial, failures });
    }
    progress.clear();
    Ok(Plan { net: &options.net, site, data_lanes, remarks: Vec::new(), trials })
}

#[cfg(test)]
mod tests;
