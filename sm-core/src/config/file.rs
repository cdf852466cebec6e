//! `opensm.conf`: lines of a key and its value, `#` begins a comment.
//!
//! Keys that OpenSM knows and we have no use for yet are accepted and listed in one warning, so
//! that an existing file works; a key that nobody knows is an error with the nearest valid name.

use std::fmt::Write as _;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::settings::{Settings, ValueError};

/// Longest configuration file read, bytes. OpenSM's template has 30 kB.
const FILE_LEN_MAX: u64 = 4 << 20;

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The certificates.
    #[error(transparent)]
    Trust(#[from] sa_proto::trust::TrustError),
    /// Something would be open to other machines.
    #[error(transparent)]
    Exposure(#[from] super::ExposureError),
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file that `-F` names cannot be read.
    #[error("-F/--config: {}: {source}", path.display())]
    Named {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is too long to be a configuration.
    #[error("{}: longer than {FILE_LEN_MAX} bytes; is this a configuration file?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A value is refused.
    #[error("{}:{line}: {source}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Why.
        source: ValueError,
    },
    /// A key has no value.
    #[error("{}:{line}: {key} has no value", path.display())]
    NoValue {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// A key nobody knows.
    #[error("{}:{line}: unknown key '{key}'{}", path.display(), did_you_mean(*nearest))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The valid key nearest to it, if one is near.
        nearest: Option<&'static str>,
    },
    /// An option of the command line is refused.
    #[error(transparent)]
    Option(#[from] super::OptionError),
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean '{key}'?"))
}

/// A configuration file, read.
#[derive(Debug)]
pub struct Parsed {
    /// Defaults, with what the file sets.
    pub settings: Settings,
    /// One line that lists the keys without effect, if there are any.
    pub warning: Option<String>,
}

/// Reads the configuration file at `path`.
pub fn read(path: &Path) -> Result<Parsed, ConfigError> {
    let io = |source| ConfigError::Io { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(io)?.len() > FILE_LEN_MAX {
        return Err(ConfigError::TooLong { path: path.to_owned() });
    }
    parse(path, &String::from_utf8_lossy(&std::fs::read(path).map_err(io)?))
}

/// Writes the settings in force as a file that [`read`] takes back. It has keys of the subnet in it,
/// so it is for its owner's eyes only.
pub fn write_template(path: &Path, settings: &Settings) -> Result<(), ConfigError> {
    let text = format!(
        "# ibsm configuration. The keys are OpenSM's; an opensm.conf can be used as it is.\n\n{}",
        settings.render()
    );
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        // One that was there already keeps its mode. What is no file, such as a terminal, too.
        if file.metadata()?.is_file() {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        file.write_all(text.as_bytes())
    };
    write().map_err(|source| ConfigError::Io { path: path.to_owned(), source })
}

/// Parses the text of a configuration file; `path` is for messages.
pub fn parse(path: &Path, text: &str) -> Result<Parsed, ConfigError> {
    let mut settings = Settings::default();
    let mut without_effect: Vec<&'static str> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let content = line.split('#').next().unwrap_or_default().trim();
        let Some(key) = content.split_whitespace().next() else { continue };
        let value = unquote(content[key.len()..].trim());
        if let Some(known) = OPENSM_KEYS.iter().find(|known| **known == key) {
            if !without_effect.contains(known) {
                without_effect.push(known);
            }
            continue;
        }
        if value.is_empty() && Settings::KEYS.contains(&key) {
            let (path, key) = (path.to_owned(), key.to_owned());
            return Err(ConfigError::NoValue { path, line: line_number, key });
        }
        match settings.set(key, value) {
            Ok(true) => {}
            Ok(false) => {
                return Err(ConfigError::UnknownKey {
                    path: path.to_owned(),
                    line: line_number,
                    key: key.to_owned(),
                    nearest: nearest_key(key),
                });
            }
            Err(source) => {
                return Err(ConfigError::Value {
                    path: path.to_owned(),
                    line: line_number,
                    source,
                });
            }
        }
    }
    Ok(Parsed { settings, warning: warning(path, &without_effect) })
}

fn warning(path: &Path, keys: &[&str]) -> Option<String> {
    let (first, rest) = keys.split_first()?;
    let mut text = format!("{}: keys without effect so far: {first}", path.display());
    for key in rest {
        let _ = write!(text, ", {key}");
    }
    Some(text)
}

fn unquote(value: &str) -> &str {
    value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value)
}

/// The valid key nearest to `key` by edits, if at most a third of it differs.
fn nearest_key(key: &str) -> Option<&'static str> {
    nearest_of(key, Settings::KEYS.iter().chain(OPENSM_KEYS).copied())
}

/// Which of `candidates` is nearest to `word` by edits, if at most a third of it differs.
pub(super) fn nearest_of<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = (word.len() / 3).clamp(1, 4);
    candidates
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in bytes; keys are ASCII.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // No key has 64 characters; what is longer is near to none of them.
    if a.len().max(b.len()) > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Keys of OpenSM 3.3.24 that have no effect here so far.
const OPENSM_KEYS: &[&str] = &[
    "avoid_throttled_links",
    "babbling_port_policy",
    "cc_ca_cong_setting_ccti_increase",
    "cc_ca_cong_setting_ccti_min",
    "cc_ca_cong_setting_ccti_timer",
    "cc_ca_cong_setting_control_map",
    "cc_ca_cong_setting_port_control",
    "cc_ca_cong_setting_trigger_threshold",
    "cc_cct",
    "cc_key",
    "cc_max_outstanding_mads",
    "cc_sw_cong_setting_control_map",
    "cc_sw_cong_setting_credit_mask",
    "cc_sw_cong_setting_credit_starvation_return_delay",
    "cc_sw_cong_setting_credit_starvation_threshold",
    "cc_sw_cong_setting_marking_rate",
    "cc_sw_cong_setting_packet_size",
    "cc_sw_cong_setting_threshold",
    "cc_sw_cong_setting_victim_mask",
    "congestion_control",
    "console",
    "console_port",
    "daemon",
    "dimn_ports_file",
    "disable_multicast",
    "drop_event_subscriptions",
    "enable_quirks",
    "event_db_dump_file",
    "event_plugin_name",
    "event_plugin_options",
    "fdr10",
    "force_link_speed",
    "force_link_speed_ext",
    "force_link_width",
    "force_log_flush",
    "guid_routing_order_no_scatter",
    "honor_guid2lid_file",
    "lid_matrix_dump_file",
    "log_max_size",
    "log_prefix",
    "long_transaction_timeout",
    "m_key_lookup",
    "max_msg_fifo_timeout",
    "max_rate_enum",
    "max_smps_timeout",
    "max_wire_smps2",
    "node_name_map_name",
    "nue_include_switches",
    "nue_max_num_vls",
    "per_module_logging_file",
    "perfmgr",
    "perfmgr_ignore_cas",
    "perfmgr_log_errors",
    "perfmgr_max_outstanding_queries",
    "perfmgr_query_cpi",
    "perfmgr_redir",
    "perfmgr_rm_nodes",
    "perfmgr_sweep_time_s",
    "perfmgr_xmit_wait_log",
    "perfmgr_xmit_wait_threshold",
    "port_profile_switch_nodes",
    "port_shifting",
    "quasi_ftree_indexing",
    "scatter_ports",
    "single_thread",
    "sm_inactive",
    "suppress_sl2vl_mad_status_errors",
    "use_mfttop",
    "use_optimized_slvl",
    "use_original_extended_sa_rates_only",
    "use_ucast_cache",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<Parsed, ConfigError> {
        parse(Path::new("sm.conf"), text)
    }

    #[test]
    fn a_template_reads_back_to_the_settings_it_was_written_from() {
        let settings = Settings {
            lmc: 2,
            subnet_prefix: 0xfec0_0000_0000_0001,
            log_file: Some("/var/log/my sm.log".to_owned()),
            sweep_on_trap: false,
            ..Settings::default()
        };
        let parsed = parse_text(&settings.render()).unwrap();
        assert_eq!((parsed.settings, parsed.warning), (settings, None));
    }

    #[test]
    fn a_template_is_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let (new, old) = (directory.path().join("new"), directory.path().join("old"));
        std::fs::write(&old, "what anybody could read").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        for path in [&new, &old] {
            write_template(path, &Settings::default()).unwrap();
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(read(path).unwrap().settings, Settings::default());
        }
    }

    #[test]
    fn keys_of_opensm_without_effect_are_listed_once() {
        let parsed = parse_text("lmc 1 # two LIDs\n\ncc_key 1\nconsole off\ncc_key 2\n").unwrap();
        assert_eq!(parsed.settings.lmc, 1);
        assert_eq!(
            parsed.warning.as_deref(),
            Some("sm.conf: keys without effect so far: cc_key, console")
        );
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_place_and_the_nearest_name() {
        let error = parse_text("# head\nsweep_intervall 3\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "sm.conf:2: unknown key 'sweep_intervall'; did you mean 'sweep_interval'?"
        );
        let error = parse_text("frobnicate 3\n").unwrap_err();
        assert_eq!(error.to_string(), "sm.conf:1: unknown key 'frobnicate'");
    }

    #[test]
    fn a_refused_value_is_an_error_with_its_place() {
        let error = parse_text("sm_priority 16\n").unwrap_err();
        assert_eq!(error.to_string(), "sm.conf:1: sm_priority must be 0 to 15, not 16");
        let error = parse_text("lmc\n").unwrap_err();
        assert_eq!(error.to_string(), "sm.conf:1: lmc has no value");
    }

    #[test]
    fn no_key_is_both_in_force_and_without_effect() {
        for key in OPENSM_KEYS {
            assert!(!Settings::KEYS.contains(key), "{key}");
        }
    }
}
