//! What the programs `ibsm` and `ibsa` share as services of a host.
//!
//! - [`kept`]: files of the directories that they keep.
//! - [`manager`]: notifications to the service manager, and its watchdog.
//! - [`pidfile`]: the pid file.
//!
//! What a program does, and when it is ready, is its own business.

pub mod kept;
pub mod manager;
pub mod pidfile;

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What `--version` prints: the version of the package and, in a release built from git, the
/// commit. It contains no time, so that equal sources give equal programs.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("IBSM_REVISION_SUFFIX"));

/// When the commit of [`VERSION`] was made, or what the builder stated (`SOURCE_DATE_EPOCH`), in
/// seconds since 1970 as text; 0 if that is unknown, as in debug builds.
pub const REVISION_TIME: &str = env!("IBSM_REVISION_TIME");

/// Whether root or the user of this process owns a file.
pub fn is_ours(file: &Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&file.uid())
}

/// Whether another user, who is not root, put a link there: it may lead to any file of ours. The
/// kernel refuses that in directories such as `/tmp` only.
pub fn is_anothers_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink() && !is_ours(&there))
}
