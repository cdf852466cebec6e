//! What the managers of a subnet should have in common: settings, and files that settings name.
//!
//! A standby compares them with the master's, or uses the master's in place of its own. Keys that
//! concern one host or one start are not compared, nor are secrets: M_Key, SM_Key, SA_Key, PM_Key
//! and the key of congestion control.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::key::{
    DEFAULT_PARTITION_FILE, DEFAULT_PREFIX_ROUTES_FILE, DEFAULT_QOS_POLICY_FILE,
    DEFAULT_TORUS_CONFIG, Effect,
};
use super::settings::Settings;

/// The name of the settings among the files that managers compare.
pub const SETTINGS: &str = "settings";

/// Keys that are secret.
const SECRETS: [&str; 5] = ["m_key", "sm_key", "sa_key", "cc_key", "pm_key"];

/// Keys that concern one host, one start, or files of one host.
const OF_ONE_HOST: [&str; 26] = [
    "guid",
    "sm_priority",
    "sm_inactive",
    "ignore_other_sm",
    "honor_guid2lid_file",
    "reassign_lids",
    "reassign_lfts",
    "daemon",
    "fsync_high_avail_files",
    "exit_on_fatal",
    "sa_db_file",
    "sa_db_dump",
    "node_name_map_name",
    "dump_files_dir",
    "event_db_dump_file",
    "log_flags",
    "force_log_flush",
    "log_file",
    "log_max_size",
    "accum_log_file",
    "log_prefix",
    "per_module_logging_file",
    "force_heavy_sweep",
    "event_plugin_name",
    "event_plugin_options",
    "event_plugin_kinds",
];

/// A key that names an operator's file, and its default.
type FileKey = (&'static str, fn(&mut Settings) -> &mut Option<String>, Option<&'static str>);

/// Operators' files that configure the subnet.
const FILES: [FileKey; 15] = [
    ("partition_config_file", |s| &mut s.partition_config_file, Some(DEFAULT_PARTITION_FILE)),
    ("prefix_routes_file", |s| &mut s.prefix_routes_file, Some(DEFAULT_PREFIX_ROUTES_FILE)),
    ("qos_policy_file", |s| &mut s.qos_policy_file, Some(DEFAULT_QOS_POLICY_FILE)),
    ("vfabric_config_file", |s| &mut s.vfabric_config_file, None),
    ("root_guid_file", |s| &mut s.root_guid_file, None),
    ("cn_guid_file", |s| &mut s.cn_guid_file, None),
    ("io_guid_file", |s| &mut s.io_guid_file, None),
    ("ids_guid_file", |s| &mut s.ids_guid_file, None),
    ("guid_routing_order_file", |s| &mut s.guid_routing_order_file, None),
    ("hop_weights_file", |s| &mut s.hop_weights_file, None),
    ("port_search_ordering_file", |s| &mut s.port_search_ordering_file, None),
    ("port_prof_ignore_file", |s| &mut s.port_prof_ignore_file, None),
    ("lfts_file", |s| &mut s.lfts_file, None),
    ("lid_matrix_dump_file", |s| &mut s.lid_matrix_dump_file, None),
    ("torus_config", |s| &mut s.torus_config, Some(DEFAULT_TORUS_CONFIG)),
];

impl Settings {
    /// Whether managers of a subnet should agree on a key.
    fn is_shared(name: &str) -> bool {
        let acts = Self::key(name).is_some_and(|key| key.effect == Effect::Acts);
        let is_file = FILES.iter().any(|(key, ..)| *key == name);
        acts && !is_file && !SECRETS.contains(&name) && !OF_ONE_HOST.contains(&name)
    }

    fn shared_keys() -> impl Iterator<Item = &'static str> {
        Self::keys().iter().map(|key| key.name).filter(|name| Self::is_shared(name))
    }

    /// The shared settings that differ from their defaults, one `key value` per line.
    pub fn shared_text(&self) -> String {
        let default = Self::default();
        let mut text = String::new();
        for key in Self::shared_keys() {
            let lines = self.lines(key);
            if lines != default.lines(key) {
                lines.iter().for_each(|line| _ = writeln!(text, "{key} {line}"));
            }
        }
        text
    }

    /// Takes all shared settings from such a text. Returns lines that were ignored, with reasons:
    /// an unknown key, as of a later release, or a value that is refused.
    pub fn take_shared(&mut self, text: &str) -> Vec<String> {
        let default = Self::default();
        Self::shared_keys().for_each(|key| self.copy(key, &default));
        let mut ignored = Vec::new();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            if !Self::is_shared(key) {
                ignored.push(format!("{key}: not a setting that managers share"));
            } else if let Err(error) = self.set(key, value) {
                ignored.push(format!("{key}: {error}"));
            }
        }
        ignored
    }

    /// Operators' files that the settings name: the key, and the path unless it is unset.
    pub fn operators_files(&self) -> Vec<(&'static str, Option<PathBuf>)> {
        let mut settings = self.clone();
        let path = |(key, path, default): &FileKey| {
            let path = path(&mut settings).take().or_else(|| default.map(str::to_owned));
            (*key, path.map(PathBuf::from))
        };
        FILES.iter().map(path).collect()
    }

    /// Names another path for a file of [`operators_files`](Self::operators_files).
    pub fn set_operators_file(&mut self, key: &str, path: Option<&Path>) {
        if let Some((_, field, _)) = FILES.iter().find(|(name, ..)| *name == key) {
            *field(self) = path.map(|path| path.to_string_lossy().into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_what_concerns_one_host_are_not_shared() {
        let mut settings = Settings { m_key: 0xdead, sm_key: 0xdead, ..Settings::default() };
        (settings.sa_key, settings.sm_priority, settings.reassign_lids) = (0xdead, 9, true);
        settings.log_file = Some("/var/log/ibsm-1".to_owned());
        settings.partition_config_file = Some("/etc/p.conf".to_owned());
        assert_eq!(settings.shared_text(), "");
        let all = SECRETS.iter().chain(&OF_ONE_HOST).chain(FILES.iter().map(|(key, ..)| key));
        for name in all {
            assert!(Settings::key(name).is_some(), "{name}");
        }
    }

    #[test]
    fn shared_settings_are_taken_whole_and_the_others_stay() {
        let mut theirs = Settings { lmc: 2, subnet_timeout: 19, ..Settings::default() };
        theirs.set("routing_engine", "ftree, updn").unwrap();
        theirs.set("qos_vlarb_high", "0:4,1:8").unwrap();
        theirs.sm_priority = 3;
        let mut ours = Settings { m_key: 7, sm_priority: 9, ..Settings::default() };
        (ours.max_op_vls, ours.subnet_timeout) = (2, 20);
        assert!(ours.take_shared(&theirs.shared_text()).is_empty());
        let expected = Settings { m_key: 7, sm_priority: 9, ..theirs };
        assert_eq!(ours, expected);
    }

    #[test]
    fn what_cannot_be_taken_is_reported() {
        let mut ours = Settings::default();
        let ignored = ours.take_shared("lmc 9\nm_key 0x1\nno_such 1\nsubnet_timeout 19\n");
        assert_eq!((ignored.len(), ours.subnet_timeout, ours.m_key), (3, 19, 0), "{ignored:?}");
        assert!(ignored[0].starts_with("lmc: lmc must be 0 to 7"), "{ignored:?}");
    }

    #[test]
    fn operators_files_are_known_by_key_and_may_be_elsewhere() {
        let mut settings = Settings::default();
        let path = |settings: &Settings, key: &str| {
            let files = settings.operators_files();
            files.into_iter().find(|(name, _)| *name == key).unwrap().1
        };
        let partitions = "partition_config_file";
        assert_eq!(path(&settings, partitions), Some(DEFAULT_PARTITION_FILE.into()));
        assert_eq!(path(&settings, "root_guid_file"), None);
        settings.set_operators_file(partitions, Some(Path::new("/copy")));
        assert_eq!(path(&settings, partitions), Some("/copy".into()));
    }
}
