//! Generates `sa-proto/src/generated` from `sa-proto/proto`:
//!
//! ```sh
//! cargo run -p sa-proto-codegen
//! ```
//!
//! The result is checked in, so that a build of the programs needs no protobuf compiler, whose
//! dependencies take more than a minute of CPU time to build. A test fails if the two differ.

use std::error::Error;
use std::path::{Path, PathBuf};

const PROTOS: [&str; 4] = ["snapshot.proto", "registry.proto", "event.proto", "admin.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    generate(&checked_in())
}

/// Writes one file per protobuf package to `directory`. Messages need `prost` only; services need
/// feature `rpc`.
fn generate(directory: &Path) -> Result<(), Box<dyn Error>> {
    const RPC: &str = "#[cfg(feature = \"rpc\")]";
    let descriptors = protox::compile(PROTOS, [sa_proto().join("proto")])?;
    tonic_prost_build::configure()
        .bytes(".ibsa.snapshot.v1")
        .bytes(".ibsa.registry.v1")
        .bytes(".ibsa.event.v1")
        .client_mod_attribute(".", RPC)
        .server_mod_attribute(".", RPC)
        .emit_rerun_if_changed(false)
        .out_dir(directory)
        .compile_fds(descriptors)?;
    Ok(())
}

/// The directory of the checked-in code.
fn checked_in() -> PathBuf {
    sa_proto().join("src/generated")
}

fn sa_proto() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
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
        let fresh = tempfile::tempdir().unwrap();
        generate(fresh.path()).unwrap();
        let (expected, found) = (files(fresh.path()), files(&checked_in()));
        assert!(expected.keys().eq(found.keys()), "{:?} != {:?}", expected.keys(), found.keys());
        for (name, code) in &expected {
            // Not assert_eq, which would print both files.
            assert!(found[name] == *code, "{name} is out of date: cargo run -p sa-proto-codegen");
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
