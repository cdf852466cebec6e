//! Tests that are skipped because a program or file of another project is missing. The tests of all
//! crates include this file by its path.

use std::fmt::Display;

/// Prints that a test is skipped, which `scripts/test.sh` lists.
///
/// # Panics
/// If the environment requires these tests (`IBSM_REQUIRE_INTEROP`), as CI does.
#[allow(clippy::print_stdout, reason = "scripts/test.sh lists it")]
pub(crate) fn skip(reason: impl Display) {
    assert!(std::env::var_os("IBSM_REQUIRE_INTEROP").is_none(), "{reason}");
    println!("skipped: {reason}");
}
