//! How many instructions does a query take? The rows of the benchmark `queries`, counted by
//! callgrind.
//!
//! Counts do not depend on other load of the machine, so they can be compared over time:
//! `benches/counts.json` has the accepted ones. They do depend on the compiler and on its
//! optimisation settings, so a build is compared only with the same kind of build. They do not
//! include waiting for memory, which `queries` measures.
//!
//! usage: instructions            compares; fails if a row's count grew by more than 5 %
//!        instructions --accept   writes the counts as the new baseline
//!
//! One run of valgrind counts all rows: collecting is on while a [`Subject`] answers, and the
//! collected counts are written and reset whenever [`row_ends`] returns. The fabric is brought up
//! outside valgrind, where it is fast.
//!
//! [`Subject`]: benches::subject::Subject

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use benches::fabrics::{FAT_TREE_1000, snapshot};
use benches::rows::{Ask, ROWS, Row, Stand};
use benches::subject::BATCH;
use sa_proto::snapshot::{FabricPlane, cache};
use serde_json::{Value, json};

/// Random variation: memory addresses, lengths of hash chains.
const TOLERANCE: f64 = 0.05;
/// Batches of a row whose answers are one MAD each.
const BATCHES: usize = 32;
/// Answers of a row that come in several segments.
const TRANSFERS: usize = 8;
/// Functions during which instructions are counted. Names without wildcards, because callgrind may
/// follow only one of several patterns.
const ANSWERING: [&str; 2] =
    ["benches::subject::Subject::answer", "benches::subject::Subject::fetch"];
/// The function after which the next row is counted.
const ROW_ENDS: &str = "instructions::row_ends";
/// The build profile.
const PROFILE: &str = if cfg!(debug_assertions) { "dev" } else { "release" };
/// The C library selects its copy routine by processor; this fixes the choice.
const PLAIN_COPIES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS,-FSRM";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => count().and_then(|counts| compare(&counts)),
        ["--accept"] => count().and_then(|counts| accept(&counts)),
        ["ask", file] => ask(Path::new(file)),
        _ => {
            eprintln!("usage: instructions [--accept]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Instructions per unit of each row.
type Counts = BTreeMap<String, f64>;
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Runs this program under callgrind.
fn count() -> Outcome<Counts> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("snapshot");
    cache::save(&file, &snapshot(FAT_TREE_1000.managed().plane(), 1))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .args(ANSWERING.map(|name| format!("--toggle-collect={name}")))
        .arg(format!("--dump-after={ROW_ENDS}"))
        .arg(format!("--callgrind-out-file={}", dir.path().join("counts").display()))
        .arg(env::current_exe()?)
        .args(["ask".as_ref(), file.as_os_str()])
        .env("GLIBC_TUNABLES", PLAIN_COPIES)
        .output()
        .map_err(|error| format!("cannot start valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let complaints = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind: {}\n{said}{complaints}", output.status).into());
    }
    said.lines()
        .enumerate()
        .map(|(nth, line)| {
            let (row, units) = line.split_once(' ').ok_or("a line is a row and its units")?;
            let file = dir.path().join(format!("counts.{}", nth + 1));
            let collected = fs::read_to_string(&file)?;
            let total = collected.lines().find_map(|line| line.strip_prefix("summary: "));
            let total: f64 = total.ok_or("callgrind printed no sum")?.trim().parse()?;
            if total == 0.0 {
                return Err(format!("{row}: callgrind did not find {ANSWERING:?}").into());
            }
            Ok((row.to_owned(), total / units.parse::<f64>()?))
        })
        .collect()
}

/// Runs under callgrind: queries all rows, and prints the number of units of each.
fn ask(file: &Path) -> Outcome<bool> {
    let loaded = cache::load(file)?.ok_or("no snapshot was written")?;
    for row in &ROWS {
        println!("{} {}", row.name, ask_row(loaded.fabric(), row));
    }
    Ok(true)
}

fn ask_row(plane: &FabricPlane, row: &Row) -> usize {
    let mut stand = Stand::new(plane, row, BATCHES * BATCH);
    let units = if let Ask::One(_) = row.ask {
        for _ in 0..BATCHES {
            stand.refill();
            stand.answer();
            stand.check();
        }
        BATCHES * BATCH
    } else {
        (0..TRANSFERS)
            .map(|_| {
                let mut request = stand.next_request();
                stand.fetch(&mut request)
            })
            .sum()
    };
    row_ends(units)
}

/// The counts collected until this returns belong to one row.
#[inline(never)]
fn row_ends(units: usize) -> usize {
    black_box(units)
}

/// The properties that must be equal for counts to be comparable.
fn build() -> Outcome<String> {
    let compiler = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into())).arg("-V").output();
    let compiler = String::from_utf8(compiler?.stdout)?;
    Ok(format!("{}, {}, {PROFILE}", compiler.trim(), env::consts::ARCH))
}

fn baseline() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("counts.json")
}

fn accept(counts: &Counts) -> Outcome<bool> {
    let counts: Counts =
        counts.iter().map(|(row, count)| (row.clone(), (count * 10.0).round() / 10.0)).collect();
    let text = format!("{:#}\n", json!({ "build": build()?, "instructions": counts }));
    fs::write(baseline(), text)?;
    print!("{}", table(&Counts::new(), &counts));
    Ok(true)
}

fn compare(counts: &Counts) -> Outcome<bool> {
    let text = fs::read_to_string(baseline())?;
    let accepted: Value = serde_json::from_str(&text)?;
    let (ours, theirs) = (build()?, accepted["build"].as_str().unwrap_or_default());
    if ours != theirs {
        print!("{}", table(&Counts::new(), counts));
        println!("skipped: counts.json is of another build ({theirs}; this is {ours})");
        return Ok(true);
    }
    let accepted: Counts = serde_json::from_value(accepted["instructions"].clone())?;
    print!("{}", table(&accepted, counts));
    let changes = changes(&accepted, counts);
    changes.iter().for_each(|change| println!("{change}"));
    let is_good = changes.iter().all(|change| change.starts_with("cheaper: "));
    if !changes.is_empty() {
        println!("to accept these: cargo run -p benches --bin instructions -- --accept");
    }
    Ok(is_good)
}

/// Old and new count of every row.
fn table(accepted: &Counts, counts: &Counts) -> String {
    let line = |(row, count): (&String, &f64)| {
        let old = accepted.get(row).map_or("-".to_owned(), |old| format!("{old:.1}"));
        format!("{row:<28}{old:>10}{count:>10.1}\n")
    };
    let title = format!("{:<28}{:>10}{:>10}\n", "instructions", "accepted", "now");
    title + &counts.iter().map(line).collect::<String>()
}

/// Differences beyond random variation, one line each.
fn changes(accepted: &Counts, counts: &Counts) -> Vec<String> {
    let mut changes = Vec::new();
    for (row, &count) in counts {
        let Some(&old) = accepted.get(row) else {
            changes.push(format!("new: {row}, {count:.1} instructions"));
            continue;
        };
        let percent = (count / old - 1.0) * 100.0;
        if percent.abs() > TOLERANCE * 100.0 {
            let became = if percent > 0.0 { "dearer" } else { "cheaper" };
            changes.push(format!("{became}: {row}, {old:.1} to {count:.1} ({percent:+.1} %)"));
        }
    }
    let gone = accepted.keys().filter(|row| !counts.contains_key(*row));
    changes.extend(gone.map(|row| format!("gone: {row}")));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_significant_differences_are_reported() {
        let counts = |counts: [(&str, f64); 3]| counts.map(|(row, n)| (row.to_owned(), n)).into();
        let accepted = counts([("lids", 1000.0), ("gids", 1000.0), ("nodes", 1000.0)]);
        let now = counts([("lids", 1051.0), ("gids", 960.0), ("paths", 10.0)]);
        let reported = [
            "dearer: lids, 1000.0 to 1051.0 (+5.1 %)",
            "new: paths, 10.0 instructions",
            "gone: nodes",
        ];
        assert_eq!(changes(&accepted, &now), reported);
        let now = counts([("lids", 949.0), ("gids", 1049.0), ("nodes", 1000.0)]);
        assert_eq!(changes(&accepted, &now), ["cheaper: lids, 1000.0 to 949.0 (-5.1 %)"]);
    }
}
