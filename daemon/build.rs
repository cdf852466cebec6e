//! Determines the revision that `--version` prints: that of `IBSM_REVISION` if it is set; otherwise
//! the commit, which is in the file `revision` in an archive that git made, and else in the work
//! tree. Debug builds have none, so that a commit does not have all programs built again. Its time
//! is that of the commit, or `SOURCE_DATE_EPOCH`: not that of the build, so that equal sources give
//! equal programs.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Digits of the commit: as many wherever the source is from, other than git's abbreviations.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-env-changed=IBSM_REVISION");
    println!("cargo::rerun-if-changed=revision");
    let given = std::env::var("IBSM_REVISION").ok().filter(|revision| !revision.is_empty());
    // Cargo's word for every profile that inherits `release`.
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = || of_archive().or_else(of_git);
    let revision = given.or_else(|| is_release.then(commit).flatten());
    let suffix = revision.map_or_else(String::new, |revision| format!(" ({revision})"));
    println!("cargo::rustc-env=IBSM_REVISION_SUFFIX={suffix}");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|time| number(&time));
    let time = given.or_else(|| is_release.then(time_of_commit).flatten()).unwrap_or(0);
    println!("cargo::rustc-env=IBSM_REVISION_TIME={time}");
}

/// When the commit was made, seconds since 1970.
fn time_of_commit() -> Option<u64> {
    let of_archive = || number(fs::read_to_string("revision").ok()?.split(' ').nth(1)?);
    let of_git = || {
        of_git()?;
        number(&git(&["show", "-s", "--format=%ct", "HEAD"])?)
    };
    of_archive().or_else(of_git)
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The commit that `git archive` wrote into the file `revision`.
fn of_archive() -> Option<String> {
    shortened(fs::read_to_string("revision").ok()?.split(' ').next()?)
}

/// The commit of the work tree whose top is the workspace. A work tree further up is another
/// project's, which contains a copy of this one.
fn of_git() -> Option<String> {
    let top = fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if top != fs::canonicalize("..").ok()? {
        return None;
    }
    // Git appends to this file with every commit and checkout. A file that is missing would have
    // the program built each time.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    shortened(&git(&["rev-parse", "HEAD"])?)
}

fn shortened(commit: &str) -> Option<String> {
    let digits = commit.get(..DIGITS)?;
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| digits.to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
