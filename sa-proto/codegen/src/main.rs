//! Generates `sa-proto/src/generated` from `sa-proto/proto`, and `sm-core/ibsm/src/generated` from
//! `sm-core/ibsm/proto`:
//!
//! ```sh
//! cargo run -p sa-proto-codegen
//! ```
//!
//! The result is checked in, so that a build of the programs needs no protobuf compiler, whose
//! dependencies take more than a minute of CPU time to build. A test fails if the two differ.

use std::error::Error;
use std::path::{Path, PathBuf};

const PROTOS: [&str; 6] = [
    "snapshot.proto",
    "registry.proto",
    "event.proto",
    "admin.proto",
    "partition.proto",
    "node.proto",
];

/// Where to generate from and to, and how.
struct Target {
    /// Directory of the crate, in the workspace.
    package: &'static str,
    generate: fn(&Path) -> Result<(), Box<dyn Error>>,
}

const TARGETS: [Target; 2] = [
    Target { package: "sa-proto", generate: generate_sa_proto },
    Target { package: "sm-core/ibsm", generate: generate_etcd },
];

fn main() -> Result<(), Box<dyn Error>> {
    TARGETS.iter().try_for_each(|target| (target.generate)(&target.checked_in()))
}

/// Writes one file per protobuf package to `directory`. Messages need `prost` only; services need
/// feature `rpc`.
fn generate_sa_proto(directory: &Path) -> Result<(), Box<dyn Error>> {
    const RPC: &str = "#[cfg(feature = \"rpc\")]";
    let descriptors = protox::compile(PROTOS, [workspace().join("sa-proto/proto")])?;
    tonic_prost_build::configure()
        .bytes(".ibsa.snapshot.v1")
        .bytes(".ibsa.registry.v1")
        .bytes(".ibsa.event.v1")
        .bytes(".ibsa.node.v1")
        .client_mod_attribute(".", RPC)
        .server_mod_attribute(".", RPC)
        .emit_rerun_if_changed(false)
        .out_dir(directory)
        .compile_fds(descriptors)?;
    Ok(())
}

/// Writes the client of etcd to `directory`.
fn generate_etcd(directory: &Path) -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(["etcd.proto"], [workspace().join("sm-core/ibsm/proto")])?;
    tonic_prost_build::configure()
        .bytes(".etcdserverpb")
        .build_server(false)
        .emit_rerun_if_changed(false)
        .out_dir(directory)
        .compile_fds(descriptors)?;
    Ok(())
}

impl Target {
    /// The directory of the checked-in code.
    fn checked_in(&self) -> PathBuf {
        workspace().join(self.package).join("src/generated")
    }
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    /// The checked-in code must match the `.proto` files, or programs would use a different
    /// protocol.
    #[test]
    fn the_checked_in_code_matches_the_proto_files() {
        for target in &TARGETS {
            let fresh = tempfile::tempdir().unwrap();
            (target.generate)(fresh.path()).unwrap();
            let (expected, found) = (files(fresh.path()), files(&target.checked_in()));
            assert!(
                expected.keys().eq(found.keys()),
                "{:?} != {:?}",
                expected.keys(),
                found.keys()
            );
            for (name, code) in &expected {
                // Not assert_eq, which would print both files.
                assert!(
                    found[name] == *code,
                    "{name} is out of date: cargo run -p sa-proto-codegen"
                );
            }
        }
    }

    fn files(directory: &Path) -> BTreeMap<String, String> {
        let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
        entries
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap())
            })
            .collect()
    }
}
