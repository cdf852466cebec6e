//! `opensm.conf`: lines of a key and its value, `#` begins a comment.
//!
//! Whatever a file says to OpenSM it says here: keys that nobody knows are passed over, and a value
//! that cannot be gives way to what OpenSM has instead; while others are in force, these stay. Each
//! is told as a mistake, with its place and what is used. Values by which a subnet would be left
//! unprotected or be another one are errors
//! ([decision 36](../../../docs/decisions/0036-mistakes-in-opensm-conf.md)).

use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::engines;
use super::settings::{Effect, Settings};
use super::value::{ValueError, unquote};

/// Longest configuration file read, bytes. OpenSM's template has 30 kB.
const FILE_LEN_MAX: u64 = 4 << 20;
/// Remarks kept on a file, and as many mistakes.
const REMARKS_MAX: usize = 50;
/// Longest line that OpenSM reads as one, bytes.
const LINE_MAX: usize = 1022;

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
    /// The file has mistakes, and none were to be there.
    #[error("{}\n--strict takes no settings with mistakes", mistakes.join("\n"))]
    Mistakes {
        /// Each with its place and what would be used without `--strict`.
        mistakes: Vec<String>,
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
    /// What is odd about it, in lines for the log.
    pub remarks: Vec<String>,
    /// What is wrong with it and was passed over or replaced, in lines for the log.
    pub mistakes: Vec<String>,
    /// Keys that keep the value in force, as theirs could not be taken and the file does not set
    /// them elsewhere. None at a start.
    pub kept: Vec<&'static str>,
}

/// Reads the configuration file at `path`: at a start, or while others `are_in_force`, which stay
/// where it is mistaken.
pub fn read(path: &Path, are_in_force: bool) -> Result<Parsed, ConfigError> {
    let io = |source| ConfigError::Io { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(io)?.len() > FILE_LEN_MAX {
        return Err(ConfigError::TooLong { path: path.to_owned() });
    }
    parse(path, &String::from_utf8_lossy(&std::fs::read(path).map_err(io)?), are_in_force)
}

/// Writes the settings in force as a file that [`read`] takes back. It has keys of the subnet in it,
/// so it is for its owner's eyes only.
pub fn write_template(path: &Path, settings: &Settings) -> Result<(), ConfigError> {
    let text = format!(
        "# ibsm configuration. The keys are OpenSM's; an opensm.conf can be used as it is.\n{}",
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

/// Parses the text of a configuration file, as [`read`] does; `path` is for messages.
pub fn parse(path: &Path, text: &str, are_in_force: bool) -> Result<Parsed, ConfigError> {
    let mut reader = Reader {
        path,
        line: 0,
        are_in_force,
        settings: Settings::default(),
        remarks: Vec::new(),
        mistakes: Vec::new(),
        set: Vec::new(),
        kept: Vec::new(),
    };
    for (line, content) in (1..).zip(text.split('\n')) {
        reader.line = line;
        if content.len() > LINE_MAX {
            reader.remark(format!("OpenSM cuts lines at {LINE_MAX} bytes; this one is read whole"));
        }
        let content = content.split('#').next().unwrap_or_default();
        let content = content.trim_start_matches([' ', '\t']);
        let end = content.find([' ', '\t']).unwrap_or(content.len());
        let (word, value) = content.split_at(end);
        match word.trim_end() {
            "" => {}
            key if key != word => reader.mistake(format!("{key} has no value, and is passed over")),
            key => reader.take(key, unquote(value.trim()))?,
        }
    }
    Ok(Parsed {
        settings: reader.settings,
        remarks: reader.remarks,
        mistakes: reader.mistakes,
        kept: reader.kept.into_iter().filter(|key| !reader.set.contains(key)).collect(),
    })
}

/// What was read of a file so far.
struct Reader<'a> {
    path: &'a Path,
    line: usize,
    are_in_force: bool,
    settings: Settings,
    remarks: Vec<String>,
    mistakes: Vec<String>,
    set: Vec<&'static str>,
    kept: Vec<&'static str>,
}

impl Reader<'_> {
    /// Takes a line.
    fn take(&mut self, word: &str, value: &str) -> Result<(), ConfigError> {
        if let Some((_, why)) = GONE.iter().find(|(gone, _)| *gone == word) {
            self.remark(format!("{word} is a key no more: {why}"));
            return Ok(());
        }
        let renamed = RENAMED.iter().find(|(old, _)| *old == word);
        let name = renamed.map_or(word, |&(_, new)| new);
        if let Some((old, new)) = renamed {
            self.remark(format!("{old} is called {new} now"));
        }
        let Some(key) = Settings::key(name) else {
            if MELLANOX.contains(&name) {
                self.mistake(format!(
                    "'{name}' is a key of Mellanox's OpenSM without a meaning here, and passed over"
                ));
                return Ok(());
            }
            let hint = did_you_mean(nearest_key(name));
            self.mistake(format!("'{name}' is no key of OpenSM or ours, and passed over{hint}"));
            return Ok(());
        };
        if let Some(slip) = Settings::slip(name, value) {
            let slip = format!("{name} '{value}' {slip}");
            if self.keep(key.name, &slip) {
                return Ok(());
            }
            self.mistake(slip);
        }
        match self.settings.set(name, value) {
            Ok(_) => {
                self.set.push(key.name);
                if let Some(reading) = Settings::reading(name, value) {
                    self.remark(format!("{name} '{value}' {reading}"));
                }
            }
            Err(source) if is_fatal(&source) => {
                return Err(ConfigError::Value {
                    path: self.path.to_owned(),
                    line: self.line,
                    source,
                });
            }
            Err(error) => self.take_mistaken(key.name, value, &error),
        }
        Ok(())
    }

    /// Takes what OpenSM has in place of a value that was refused. At a start: what is in force is
    /// better than that.
    fn take_mistaken(&mut self, key: &'static str, value: &str, error: &ValueError) {
        if self.keep(key, error) {
            return;
        }
        let is_number = matches!(error, ValueError::OutOfRange { .. });
        let replaced = REPLACED.iter().find(|(replaced, _)| is_number && *replaced == key);
        let is_replaced = match replaced {
            Some((_, instead)) => self.settings.set(key, instead).is_ok(),
            None => self.settings.set_as_opensm(key, value),
        };
        let used = if !is_replaced {
            "the line is passed over".to_owned()
        } else if key == "routing_engine" {
            engines::instead(&self.settings, value)
        } else {
            format!("{} is used", self.settings.lines(key).join(", "))
        };
        if is_replaced {
            self.set.push(key);
        }
        self.mistake(format!("{error}; {used}"));
    }

    /// Leaves a key the value in force, if there is one, or what another line says.
    fn keep(&mut self, key: &'static str, why: &dyn fmt::Display) -> bool {
        if self.are_in_force {
            self.kept.push(key);
            self.mistake(format!("{why}; the value in force stays, or another line's"));
        }
        self.are_in_force
    }

    fn remark(&mut self, what: String) {
        add(&mut self.remarks, self.path, self.line, &what);
    }

    fn mistake(&mut self, what: String) {
        add(&mut self.mistakes, self.path, self.line, &what);
    }
}

fn add(lines: &mut Vec<String>, path: &Path, line: usize, what: &str) {
    if lines.len() < REMARKS_MAX {
        lines.push(format!("{}:{line}: {what}", path.display()));
    }
}

/// Whether a start is better than no start: not if the effect of a key would be missed in silence,
/// nor if keys of the subnet or what it is would be others than were meant.
fn is_fatal(error: &ValueError) -> bool {
    match error {
        ValueError::Refused { .. } => true,
        ValueError::Malformed { key, .. } => GUARDED.contains(key),
        ValueError::OutOfRange { .. } => false,
    }
}

/// What to tell about keys that are set and change nothing: a line for each reason.
pub(super) fn idle_keys(settings: &Settings) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for key in settings.idle_keys() {
        let (Effect::Idle(why) | Effect::Refused(why)) = key.effect else { continue };
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, keys)) => keys.push(key.name),
            None => reasons.push((why, vec![key.name])),
        }
    }
    let line =
        |(why, keys): (&str, Vec<&str>)| format!("without effect: {}: {why}", keys.join(", "));
    reasons.into_iter().map(line).collect()
}

/// The valid key nearest to `key` by edits, if at most a third of it differs.
fn nearest_key(key: &str) -> Option<&'static str> {
    let renamed = RENAMED.iter().map(|(old, _)| *old);
    nearest_of(key, Settings::KEYS.iter().map(|key| key.name).chain(renamed))
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

/// Keys whose values must be read: by their defaults the subnet would be open, or another one.
const GUARDED: [&str; 7] = [
    "guid",
    "m_key",
    "m_key_lease_period",
    "m_key_protection_level",
    "sm_key",
    "sa_key",
    "subnet_prefix",
];

/// What OpenSM has, or we, in place of numbers out of range, where that is not the default.
const REPLACED: &[(&str, &str)] = &[
    ("m_key_protection_level", "2"),
    ("transaction_retries", "100"),
    ("transaction_timeout", "3600000"),
];

/// Keys of Mellanox's OpenSM that are near to others of ours and mean something else.
const MELLANOX: &[&str] =
    &["adv_routing_engine", "pgrp_policy_file", "topo_policy_file", "sadb_dump_file"];

/// Keys of old OpenSMs, and what they are called now.
const RENAMED: &[(&str, &str)] = &[
    ("consolodate_ipv6_snm_req", "consolidate_ipv6_snm_req"),
    ("dimn_ports_file", "port_search_ordering_file"),
    ("event_db_plugin", "event_plugin_name"),
    ("no_multicast_option", "disable_multicast"),
    ("ucast_dump_file", "lfts_file"),
    ("updn_guid_file", "root_guid_file"),
];

/// Why Mellanox's manager of adaptive routing is not here.
const AR: &str = "switches choose no ports by themselves unless their maker's tools have them do so; \
                  routes are ours, and proved";

/// Keys of old OpenSMs, or of Mellanox's, that are no more, and why nothing is lost.
const GONE: &[(&str, &str)] = &[
    ("ar", AR),
    ("ar_config_file", AR),
    ("max_port_profile", "routes are dealt by what each link carries already"),
    ("no_qos", "QoS is off unless 'qos TRUE' turns it on"),
    ("per_module_logging", "per_module_logging_file names a file of log levels by module"),
];

#[cfg(test)]
mod tests;
