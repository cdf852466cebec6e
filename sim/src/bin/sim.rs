//! Runs the simulation, seed after seed, for a time.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, builder::PossibleValuesParser};
use mimalloc::MiMalloc;
use sim::config::{Config, Plant};
use sim::violation::Violation;
use sim::world::{Summary, World};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Simulates fabric, subnet managers, responders and clients in one thread, seed after seed.
///
/// Ends with status 1 at the first seed that fails, unless --keep is given.
#[derive(Parser)]
#[command(after_help = "Examples:
  sim --seconds 60                       seed after seed for a minute
  sim --seconds 28800 --keep failures    for 8 hours, past seeds that fail
  sim --seed 7 --runs 1 --trace --log    all of one seed")]
struct Options {
    /// Begin no further seed after this time, in seconds of real time.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Number of seeds; 1 if --seconds is not given.
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// 6 switches, 16 hosts, 2 responders and 8 clients, in place of 40, 128, 4 and 64.
    #[arg(long)]
    small: bool,
    /// Episodes of faults in each seed.
    #[arg(long, value_name = "N")]
    episodes: Option<u32>,
    /// Faults in each episode.
    #[arg(long, value_name = "N")]
    faults: Option<usize>,
    /// Subnet managers.
    #[arg(long, value_name = "N")]
    managers: Option<usize>,
    /// Requests of all clients per second of virtual time; 0: they are silent, and no program
    /// orders partitions.
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Writes wait for standbys that are in step (--follow-sync). By default with even seeds.
    #[arg(long, conflicts_with = "no_sync")]
    sync: bool,
    /// Writes do not wait for standbys.
    #[arg(long)]
    no_sync: bool,
    /// Managers share a registry in etcd. By default in about every third seed.
    #[arg(long, conflicts_with = "files")]
    etcd: bool,
    /// Each manager has a registry of its own in a file.
    #[arg(long)]
    files: bool,
    /// Split the fabric between managers, too. By default with every other pair of seeds.
    #[arg(long, conflicts_with = "no_splits")]
    splits: bool,
    /// Never split the fabric.
    #[arg(long)]
    no_splits: bool,
    /// Plant this defect.
    #[arg(long, value_name = "DEFECT",
          value_parser = PossibleValuesParser::new(Plant::ALL.map(|(name, _)| name)))]
    plant: Option<String>,
    /// Write the trace of each seed that fails to a file in DIR, and go on with the next.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print the trace.
    #[arg(long)]
    trace: bool,
    /// Print the logs of all processes to standard error.
    #[arg(long)]
    log: bool,
    /// Print no line for a seed that passes.
    #[arg(long)]
    quiet: bool,
}

impl Options {
    fn config(&self, seed: u64) -> Config {
        let mut config = if self.small { Config::small(seed) } else { Config::full(seed) };
        config.episodes = self.episodes.unwrap_or(config.episodes);
        config.faults = self.faults.unwrap_or(config.faults);
        config.managers = self.managers.unwrap_or(config.managers);
        config.rate = self.rate.unwrap_or(config.rate);
        config.orders &= config.rate > 0;
        config.sync = (config.sync || self.sync) && !self.no_sync;
        config.etcd = self.etcd || !self.files && shares_registry(seed);
        config.splits = (config.splits || self.splits) && !self.no_splits;
        let plant = Plant::ALL.into_iter().find(|(name, _)| Some(*name) == self.plant.as_deref());
        config.plant = plant.map(|(_, plant)| plant);
        config.prints = self.trace;
        config
    }

    fn runs(&self) -> u64 {
        self.runs.unwrap_or(if self.seconds.is_some() { u64::MAX } else { 1 })
    }
}

/// Whether managers share a registry by default: in about every third seed, independent of the
/// remainders that select the rest.
fn shares_registry(seed: u64) -> bool {
    (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).is_multiple_of(3)
}

/// Lines of the trace shown of a seed that fails.
const TAIL: usize = 60;

/// Sums over all seeds.
#[derive(Default)]
struct Sums {
    seeds: u64,
    simulated: Duration,
    answers: u64,
    faults: BTreeMap<&'static str, u64>,
    waits: BTreeMap<&'static str, Duration>,
    failed: Vec<u64>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.log {
        tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).without_time().init();
    }
    sim::use_one_thread();
    match simulate(&options, &mut io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            let _ = writeln!(io::stderr(), "sim: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all seeds; returns whether none failed.
fn simulate(options: &Options, out: &mut impl Write) -> Result<bool, String> {
    let cannot_print = |error: io::Error| format!("cannot print: {error}");
    let began = Instant::now();
    let mut sums = Sums::default();
    for seed in (options.seed..).take(usize::try_from(options.runs()).unwrap_or(usize::MAX)) {
        if options.seconds.is_some_and(|seconds| began.elapsed().as_secs() >= seconds) {
            break;
        }
        let mut world = World::new(options.config(seed))?;
        let begun = Instant::now();
        let result = world.run();
        let summary = world.summary();
        sums.add(&summary);
        match result {
            Ok(_) if options.quiet => {}
            Ok(_) => {
                let name = name(options, seed);
                print_seed(out, &name, &summary, begun.elapsed()).map_err(cannot_print)?;
            }
            Err(violation) => {
                sums.failed.push(seed);
                let name = name(options, seed);
                print_failure(out, &name, &world, &violation, TAIL).map_err(cannot_print)?;
                let Some(directory) = &options.keep else { break };
                keep(directory, &name, &world, &violation)?;
            }
        }
    }
    sums.print(out, began.elapsed()).map_err(cannot_print)?;
    Ok(sums.failed.is_empty())
}

/// A seed, and the options without which it is another simulation.
fn name(options: &Options, seed: u64) -> String {
    let size = if options.small { " --small" } else { "" };
    let store = if options.config(seed).etcd { " --etcd" } else { "" };
    format!("seed {seed}{size}{store}")
}

fn print_seed(
    out: &mut impl Write,
    name: &str,
    summary: &Summary,
    took: Duration,
) -> io::Result<()> {
    let (simulated, took) = (summary.simulated.as_secs_f64(), took.as_secs_f64());
    let [ok, refused, given_up] = summary.totals;
    writeln!(
        out,
        "{name}: {simulated:.1} s simulated in {took:.2} s ({:.0} x), {ok} OK, {refused} \
         refused, {given_up} given up; trace {:016x} of {} events",
        simulated / took.max(0.001),
        summary.hash,
        summary.events,
    )
}

fn print_failure(
    out: &mut impl Write,
    name: &str,
    world: &World,
    violation: &Violation,
    lines: usize,
) -> io::Result<()> {
    for line in world.trace.tail(lines) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{name} FAILED: {}", violation.0)?;
    for line in world.describe() {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// Writes what is known of a seed that failed to a file.
fn keep(directory: &Path, name: &str, world: &World, violation: &Violation) -> Result<(), String> {
    let path = directory.join(format!("{}.txt", name.replace(" --", "-").replace(' ', "-")));
    let write = || {
        fs::create_dir_all(directory)?;
        let mut file = io::BufWriter::new(fs::File::create(&path)?);
        print_failure(&mut file, name, world, violation, usize::MAX)?;
        file.flush()
    };
    write().map_err(|error| format!("cannot write {}: {error}", path.display()))
}

impl Sums {
    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.simulated += summary.simulated;
        self.answers += summary.totals[0] + summary.totals[1];
        for (name, count) in &summary.faults {
            *self.faults.entry(name).or_default() += count;
        }
        for (name, waited) in &summary.waits {
            let longest = self.waits.entry(name).or_default();
            *longest = (*waited).max(*longest);
        }
    }

    fn print(&self, out: &mut impl Write, took: Duration) -> io::Result<()> {
        writeln!(
            out,
            "{} seeds, {:.2} hours simulated in {:.0} s ({:.0} x), {} answers",
            self.seeds,
            self.simulated.as_secs_f64() / 3600.0,
            took.as_secs_f64(),
            self.simulated.as_secs_f64() / took.as_secs_f64().max(0.001),
            self.answers,
        )?;
        for (name, count) in &self.faults {
            writeln!(out, "  {count:>6} {name}")?;
        }
        for (name, waited) in &self.waits {
            writeln!(out, "  {:>6.1} s is the longest wait, {name} alone", waited.as_secs_f64())?;
        }
        if !self.failed.is_empty() {
            writeln!(out, "failed: {:?}", self.failed)?;
        }
        Ok(())
    }
}
