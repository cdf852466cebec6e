//! Determines the revision that `--version` prints: that of `IBSM_REVISION` if it is set, otherwise
//! git's. Debug builds have none, so that a commit does not have all programs built again.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=IBSM_REVISION");
    let given = std::env::var("IBSM_REVISION").ok().filter(|revision| !revision.is_empty());
    // Cargo's word for every profile that inherits `release`.
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let revision = given.or_else(|| is_release.then(of_git).flatten());
    let suffix = revision.map_or_else(String::new, |revision| format!(" ({revision})"));
    println!("cargo::rustc-env=IBSM_REVISION_SUFFIX={suffix}");
}

/// The commit of the work tree that this package is in, if there is one.
fn of_git() -> Option<String> {
    // Git appends to this file with every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
