//! `--history`: what is kept of the past.

use std::path::{Path, PathBuf};

use clap::Args;

/// Name of the directory in the state directory.
const DIRECTORY: &str = "history";
/// Least size, bytes: a few files, each with a topology.
const BYTES_MIN: u64 = 1 << 20;

/// Where the history is kept, and how much of it.
#[derive(Args, Clone, Debug)]
pub struct HistoryOptions {
    /// Directory of the history: events, and the topology as it changed, over restarts (ibsmctl
    /// events, ibsmctl history, ibsmctl diff) [default: history in --state-dir].
    #[arg(long, value_name = "DIR")]
    pub history: Option<PathBuf>,
    /// Largest size of the history, such as 2G; the oldest part is removed. 0 keeps none: the last
    /// 4,096 events are in memory.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub history_max: u64,
}

impl HistoryOptions {
    /// The directory and the largest size in bytes; `None` if nothing is kept.
    pub fn place(&self, state_dir: &Path) -> Option<(PathBuf, u64)> {
        let directory = self.history.clone().unwrap_or_else(|| state_dir.join(DIRECTORY));
        (self.history_max > 0).then_some((directory, self.history_max))
    }
}

/// A size: bytes, or with the unit K, M, G or T, powers of 1,024.
fn size(text: &str) -> Result<u64, String> {
    let refused = || format!("'{text}' is no size: give 0, or at least 1M, such as 512M or 2G");
    let (digits, shift) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        Some('T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let count: u64 = digits.trim().parse().map_err(|_| refused())?;
    let bytes = count.checked_mul(1 << shift).ok_or_else(refused)?;
    if (1..BYTES_MIN).contains(&bytes) {
        return Err(refused());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_a_minimum() {
        let sizes = ["2G", "512m", "1048576", "0", "1T"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [2 << 30, 512 << 20, 1 << 20, 0, 1 << 40]);
        for text in ["", "G", "1K", "-1", "99999999999G", "1.5G", "é"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn by_default_it_is_in_the_state_directory() {
        let options = |history: Option<&str>, history_max| HistoryOptions {
            history: history.map(PathBuf::from),
            history_max,
        };
        let state = Path::new("/var/lib/ibsm");
        let place = options(None, 7).place(state).unwrap();
        assert_eq!(place, (PathBuf::from("/var/lib/ibsm/history"), 7));
        assert_eq!(options(Some("/h"), 7).place(state).unwrap().0, Path::new("/h"));
        assert_eq!(options(Some("/h"), 0).place(state), None);
    }
}
