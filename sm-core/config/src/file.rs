//! Parses `opensm.conf`. A line has a key and its value; `#` begins a comment.
//!
//! A file has the meaning that OpenSM gives it: unknown keys are ignored, and an invalid value is
//! replaced by the one that OpenSM would use; on a reread, the value in force stays. Each such line
//! is reported as a mistake, with its place and the value used. Invalid values that would leave the
//! subnet unprotected, or make it a different subnet, are errors
//! ([decision 36](../../../docs/decisions/0036-mistakes-in-opensm-conf.md)).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::ReadFile;
use super::engines;
use super::key::Effect;
use super::settings::Settings;
use super::value::{ValueError, unquote};

/// Longest configuration file read, bytes. OpenSM's template has 30 kB.
const FILE_LEN_MAX: u64 = 4 << 20;
/// Largest number of remarks kept per file, and of mistakes.
const REMARKS_MAX: usize = 50;
/// Longest line that OpenSM reads as one, bytes.
const LINE_MAX: usize = 1022;
/// Longest word that is compared with names for a suggestion, bytes.
const NAME_LEN_MAX: usize = 64;

/// Reports why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is too long to be a configuration.
    #[error("{}: longer than {FILE_LEN_MAX} bytes; not a configuration file?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A value is rejected.
    #[error("{}:{line}: {source}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The reason.
        source: ValueError,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean '{key}'?"))
}

/// A parsed configuration file.
#[derive(Debug)]
pub struct Parsed {
    /// The defaults, overridden by the file.
    pub settings: Settings,
    /// Remarks on the file, as log lines.
    pub remarks: Vec<String>,
    /// Mistakes that were ignored or replaced, as log lines.
    pub mistakes: Vec<String>,
    /// Keys that keep the value in force, because their new value is invalid and the file does not
    /// set them elsewhere. Empty at start.
    pub kept: Vec<&'static str>,
}

/// Reads the configuration file at `path`. On a reread other settings `are_in_force`, and stay
/// where the file has mistakes.
pub fn read(path: &Path, are_in_force: bool, read: ReadFile) -> Result<Parsed, FileError> {
    parse(path, &text_of(path, read)?, are_in_force)
}

/// Reads the configuration file at `path` at a start, and does not stop at a value that is
/// rejected: it is one of the mistakes.
pub fn read_all(path: &Path, read: ReadFile) -> Result<Parsed, FileError> {
    parse_all(path, &text_of(path, read)?, false, |_| Ok(()))
}

fn text_of(path: &Path, read: ReadFile) -> Result<String, FileError> {
    let bytes = read(path, FILE_LEN_MAX).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => FileError::TooLong { path: path.to_owned() },
        _ => FileError::Io { path: path.to_owned(), source },
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses the text of a configuration file, as [`read`] does; `path` is for messages.
pub fn parse(path: &Path, text: &str, are_in_force: bool) -> Result<Parsed, FileError> {
    parse_all(path, text, are_in_force, Err)
}

/// Parses a text; `rejected` decides on a value that is rejected.
fn parse_all(
    path: &Path,
    text: &str,
    are_in_force: bool,
    rejected: fn(FileError) -> Result<(), FileError>,
) -> Result<Parsed, FileError> {
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
            reader.remark(format!(
                "line is longer than {LINE_MAX} bytes; OpenSM would truncate it, ibsm reads it all"
            ));
        }
        let content = content.split('#').next().unwrap_or_default();
        let content = content.trim_start_matches([' ', '\t']);
        let end = content.find([' ', '\t']).unwrap_or(content.len());
        let (word, value) = content.split_at(end);
        match word.trim_end() {
            "" => {}
            key if key != word => {
                reader.mistake(format!("{key} has no value; the line is ignored"));
            }
            key => {
                if let Err(failure) = reader.take(key, unquote(value.trim())) {
                    let text = failure.to_string();
                    rejected(failure)?;
                    reader.mistakes.push(text);
                }
            }
        }
    }
    Ok(Parsed {
        settings: reader.settings,
        remarks: reader.remarks,
        mistakes: reader.mistakes,
        kept: reader.kept.into_iter().filter(|key| !reader.set.contains(key)).collect(),
    })
}

/// State while a file is parsed.
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
    /// Applies one line.
    fn take(&mut self, word: &str, value: &str) -> Result<(), FileError> {
        if let Some((_, why)) = GONE.iter().find(|(gone, _)| *gone == word) {
            self.remark(format!("{word} is obsolete: {why}"));
            return Ok(());
        }
        let renamed = RENAMED.iter().find(|(old, _)| *old == word);
        let name = renamed.map_or(word, |&(_, new)| new);
        if let Some((old, new)) = renamed {
            self.remark(format!("{old} was renamed to {new}"));
        }
        let Some(key) = Settings::key(name) else {
            if MELLANOX.contains(&name) {
                self.mistake(format!(
                    "'{name}' is a key of Mellanox's OpenSM that ibsm does not support; ignored"
                ));
                return Ok(());
            }
            let hint = did_you_mean(nearest_key(name));
            self.mistake(format!("unknown key '{name}'; ignored{hint}"));
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
                return Err(FileError::Value {
                    path: self.path.to_owned(),
                    line: self.line,
                    source,
                });
            }
            Err(error) => self.replace_invalid(key.name, value, &error),
        }
        Ok(())
    }

    /// Replaces an invalid value by the one that OpenSM would use. On a reread the value in force
    /// stays instead.
    fn replace_invalid(&mut self, key: &'static str, value: &str, error: &ValueError) {
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
            "the line is ignored".to_owned()
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

    /// On a reread, keeps the value in force or that of another line; returns whether it did.
    fn keep(&mut self, key: &'static str, why: &dyn fmt::Display) -> bool {
        if self.are_in_force {
            self.kept.push(key);
            self.mistake(format!("{why}; keeping the value in force (or that of another line)"));
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

/// Whether ibsm must not start with this mistake: the subnet would get other keys or another prefix
/// than intended.
fn is_fatal(error: &ValueError) -> bool {
    match error {
        ValueError::Malformed { key, .. } => GUARDED.contains(key),
        ValueError::Refused { .. } => true,
        ValueError::OutOfRange { .. } => false,
    }
}

/// Log lines about keys that are set and have no effect, one line per reason.
pub fn idle_keys(settings: &Settings) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for key in settings.idle_keys() {
        let Effect::Idle(why) = key.effect else { continue };
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, keys)) => keys.push(key.name),
            None => reasons.push((why, vec![key.name])),
        }
    }
    let line = |(why, keys): (&str, Vec<&str>)| format!("no effect: {}: {why}", keys.join(", "));
    reasons.into_iter().map(line).chain(settings.event_plugin_remark()).collect()
}

/// The valid key nearest to `key` by edit distance, if at most a third of it differs.
fn nearest_key(key: &str) -> Option<&'static str> {
    let renamed = RENAMED.iter().map(|(old, _)| *old);
    nearest_of(key, Settings::keys().iter().map(|key| key.name).chain(renamed))
}

/// The one of `candidates` nearest to `word` by edit distance, if at most a third of it differs.
pub fn nearest_of<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.len() / 3).clamp(1, 4);
    // A name has at most 64 characters, so no name is near to a longer word.
    if word.len() > NAME_LEN_MAX {
        return None;
    }
    candidates
        .filter(|candidate| candidate.len() <= NAME_LEN_MAX)
        .map(|candidate| (strsim::levenshtein(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Keys whose value must be valid: with the default, the subnet would be unprotected or a different
/// one.
const GUARDED: [&str; 8] = [
    "guid",
    "m_key",
    "m_key_lease_period",
    "m_key_protection_level",
    "sm_key",
    "sa_key",
    "pm_key",
    "subnet_prefix",
];

/// Replacements for numbers out of range that differ from the default.
const REPLACED: &[(&str, &str)] = &[
    ("m_key_protection_level", "2"),
    ("transaction_retries", "100"),
    ("transaction_timeout", "3600000"),
];

/// Keys of Mellanox's OpenSM that resemble keys of ibsm but have another meaning.
const MELLANOX: &[&str] =
    &["adv_routing_engine", "pgrp_policy_file", "topo_policy_file", "sadb_dump_file"];

/// Keys of older OpenSM releases, and their current names.
const RENAMED: &[(&str, &str)] = &[
    ("consolodate_ipv6_snm_req", "consolidate_ipv6_snm_req"),
    ("dimn_ports_file", "port_search_ordering_file"),
    ("event_db_plugin", "event_plugin_name"),
    ("no_multicast_option", "disable_multicast"),
    ("ucast_dump_file", "lfts_file"),
    ("updn_guid_file", "root_guid_file"),
];

/// Why Mellanox's adaptive routing manager has no equivalent.
const AR: &str = "adaptive routing is not supported; routes are static and verified. Switches \
    choose ports themselves only if their vendor's tools enabled it";

/// Obsolete keys of older OpenSM releases or of Mellanox's, and what replaces them.
const GONE: &[(&str, &str)] = &[
    ("ar", AR),
    ("ar_config_file", AR),
    ("max_port_profile", "routes are balanced by the number of routes per link"),
    ("no_qos", "QoS is off unless 'qos TRUE' turns it on"),
    ("per_module_logging", "per_module_logging_file names a file of log levels by module"),
];

#[cfg(test)]
mod tests;
