//! The fuzz targets, each a function of bytes that panics if something is wrong, and their seeds.
//!
//! The targets run in two ways: under libFuzzer, guided by coverage (`fuzz_targets/`, needs a
//! nightly toolchain and `cargo-fuzz`), and in a plain loop of mutations (`examples/mutate.rs`).

pub mod agent;
pub mod api;
pub mod golden;
pub mod history;
pub mod mad;
pub mod netlist;
pub mod policy;
pub mod query;
pub mod rmpp;
pub mod sequence;
pub mod state;
pub mod write;

// The responder's own tests read the whole recording; the query target starts from the same code.
#[path = "../../sa-server/tests/it/golden_support/mod.rs"]
mod golden_support;
// And its reference for queries.
#[path = "../../sa-server/tests/it/common/mod.rs"]
mod common;
#[path = "../../sa-server/tests/it/oracle/mod.rs"]
mod oracle;

/// One target.
pub struct Target {
    /// Name, also that of its libFuzzer binary.
    pub name: &'static str,
    /// Panics if `input` reveals an error.
    pub run: fn(input: &[u8]),
    /// Seeds.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "mad", run: mad::run, seeds: mad::seeds },
    Target { name: "rmpp", run: rmpp::run, seeds: rmpp::seeds },
    Target { name: "query", run: query::run, seeds: query::seeds },
    Target { name: "netlist", run: netlist::run, seeds: netlist::seeds },
    Target { name: "sequence", run: sequence::run, seeds: sequence::seeds },
    Target { name: "policy", run: policy::run, seeds: policy::seeds },
    Target { name: "history", run: history::run, seeds: history::seeds },
    Target { name: "write", run: write::run, seeds: write::seeds },
    Target { name: "api", run: api::run, seeds: api::seeds },
    Target { name: "state", run: state::run, seeds: state::seeds },
    Target { name: "agent", run: agent::run, seeds: agent::seeds },
];

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn requests_in_any_order_keep_the_laws(input in vec(any::<u8>(), 0..4000)) {
            sequence::run(&input);
        }
    }

    #[test]
    fn every_seed_passes() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            for seed in seeds {
                (target.run)(&seed);
            }
        }
    }
}
