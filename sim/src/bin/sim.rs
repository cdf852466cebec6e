//! Runs the simulation, seed after seed, for a time.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sim::world::{Config, Plant, World};

const USAGE: &str = "usage: sim [--seconds N] [--seed S] [--runs N] [--episodes N] [--faults N]
           [--small] [--managers N] [--plant DEFECT]
           [--sync | --no-sync] [--trace] [--log] [--quiet]";

/// A change of what is simulated.
type Change = Box<dyn Fn(&mut Config)>;

struct Options {
    seconds: u64,
    seed: u64,
    runs: u64,
    change: Vec<Change>,
    small: bool,
    quiet: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seconds: u64::MAX,
        seed: 1,
        runs: u64::MAX,
        change: Vec::new(),
        small: false,
        quiet: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u64, String> {
            let text = args.next().ok_or(format!("{arg} needs a number"))?;
            text.parse().map_err(|_| format!("{arg}: '{text}' is not a number"))
        };
        match arg.as_str() {
            "--seconds" => options.seconds = number()?,
            "--seed" => options.seed = number()?,
            "--runs" => options.runs = number()?,
            "--episodes" => {
                let count = number()? as u32;
                options.change.push(Box::new(move |config| config.episodes = count));
            }
            "--faults" => {
                let count = number()? as usize;
                options.change.push(Box::new(move |config| config.faults = count));
            }
            "--managers" => {
                let count = number()? as usize;
                options.change.push(Box::new(move |config| config.managers = count));
            }
            "--plant" => {
                let name = args.next().unwrap_or_default();
                let plant = Plant::ALL.iter().find(|(known, _)| *known == name);
                let (_, plant) = *plant.ok_or(format!("unknown defect '{name}'"))?;
                options.change.push(Box::new(move |config| config.plant = Some(plant)));
            }
            "--small" => options.small = true,
            "--quiet" => options.quiet = true,
            "--sync" => options.change.push(Box::new(|config| config.sync = true)),
            "--no-sync" => options.change.push(Box::new(|config| config.sync = false)),
            "--trace" => options.change.push(Box::new(|config| config.prints = true)),
            "--log" => log(),
            _ => return Err(format!("unknown option {arg}\n{USAGE}")),
        }
    }
    if options.seconds == u64::MAX && options.runs == u64::MAX {
        options.runs = 1;
    }
    Ok(options)
}

fn log() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).without_time().init();
}

/// Lines of the trace shown of a seed that fails.
const TAIL: usize = 60;

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "{reason}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout();
    sim::use_one_thread();
    let began = Instant::now();
    let (mut seeds, mut simulated, mut answers) = (0, Duration::ZERO, 0);
    let mut faults = std::collections::BTreeMap::new();
    for seed in options.seed.. {
        if seeds >= options.runs || began.elapsed().as_secs() >= options.seconds {
            break;
        }
        let mut config = if options.small { Config::small(seed) } else { Config::full(seed) };
        options.change.iter().for_each(|change| change(&mut config));
        let mut world = match World::new(config) {
            Ok(world) => world,
            Err(reason) => {
                let _ = writeln!(out, "{reason}");
                return ExitCode::FAILURE;
            }
        };
        let begun = Instant::now();
        match world.run() {
            Ok(summary) => {
                let took = begun.elapsed().as_secs_f64();
                if !options.quiet {
                    let _ = writeln!(
                        out,
                        "seed {seed}: {:.1} s simulated in {took:.2} s ({:.0} x), answers {:?}, \
                         trace {:016x} of {} events",
                        summary.simulated.as_secs_f64(),
                        summary.simulated.as_secs_f64() / took,
                        summary.totals,
                        summary.hash,
                        summary.events,
                    );
                }
                simulated += summary.simulated;
                answers += summary.totals[0] + summary.totals[1];
                for (name, count) in summary.faults {
                    *faults.entry(name).or_insert(0u64) += count;
                }
            }
            Err(violation) => {
                for line in world.trace.tail(TAIL) {
                    let _ = writeln!(out, "{line}");
                }
                let _ = writeln!(out, "seed {seed} FAILED: {}", violation.0);
                for line in world.describe() {
                    let _ = writeln!(out, "  {line}");
                }
                return ExitCode::FAILURE;
            }
        }
        seeds += 1;
    }
    let took = began.elapsed().as_secs_f64();
    let _ = writeln!(
        out,
        "{seeds} seeds, {:.2} hours simulated in {took:.0} s ({:.0} x), {answers} answers",
        simulated.as_secs_f64() / 3600.0,
        simulated.as_secs_f64() / took.max(0.001),
    );
    for (name, count) in faults {
        let _ = writeln!(out, "  {count:>6} {name}");
    }
    ExitCode::SUCCESS
}
