//! What is done with checked settings: comparing, taking over, writing as a file.

use std::fmt::Write;
use std::sync::LazyLock;

use super::key::{Effect, Key, OWN_SECTION};
pub use super::keys::Settings;
use super::value::{EngineNames, PartEnforce};
use sm_routing::engines::{self, EngineSettings};

/// Largest number of SMPs on the wire at once; `max_wire_smps 0`, OpenSM's "no limit", selects
/// this.
pub const MAX_WIRE_SMPS_LIMIT: u32 = 4096;

impl Settings {
    /// All keys, in the order of the template.
    pub fn keys() -> &'static [Key] {
        static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| with_engines(Settings::TABLE));
        &KEYS
    }

    /// Adopts the keys of `new` that may change while the program runs. Returns those that differ
    /// but take effect only at the next start.
    pub fn follow(&mut self, new: &Self) -> Vec<&'static str> {
        let mut waiting = Vec::new();
        for key in Self::keys() {
            if self.is_same(key.name, new) {
                continue;
            } else if key.is_live {
                self.copy(key.name, new);
            } else {
                waiting.push(key.name);
            }
        }
        waiting
    }

    /// Lists the differences from `before`, one per key: `sm_priority 3 > 9`. Values of secret keys
    /// are not shown.
    pub fn changes(&self, before: &Self) -> Vec<String> {
        let value = |settings: &Self, key: &Key| settings.lines(key.name).join(", ");
        let changed =
            Self::keys().iter().filter(|key| self.lines(key.name) != before.lines(key.name));
        changed
            .map(|key| match key.name.ends_with("_key") {
                true => key.name.to_owned(),
                false => format!("{} {} > {}", key.name, value(before, key), value(self, key)),
            })
            .collect()
    }

    /// The names of the routing engines to try, including `no_fallback` if the fallback is
    /// disabled.
    pub fn engine_names(&self) -> String {
        let names = self.routing_engine.as_deref().unwrap_or_default();
        match self.no_default_routing {
            true => format!("{names},{}", engines::NO_FALLBACK),
            false => names.to_owned(),
        }
    }

    /// Returns the description of a key.
    pub fn key(name: &str) -> Option<&'static Key> {
        Self::keys().iter().find(|key| key.name == name)
    }

    /// Keys that differ from their default but have no effect.
    pub fn idle_keys(&self) -> impl Iterator<Item = &'static Key> + '_ {
        let default = Self::default();
        Self::keys().iter().filter(move |key| {
            key.effect != Effect::Acts && self.lines(key.name) != default.lines(key.name)
        })
    }

    /// Renders the settings as a file that reads back to the same settings, in OpenSM too. Keys
    /// that only ibsm has are comments unless they are set.
    pub fn render(&self) -> String {
        let default = Self::default();
        let (mut text, mut section) = (String::new(), "");
        for key in Self::keys() {
            if key.section != section {
                section = key.section;
                let _ = write!(text, "#\n# {section}\n#\n");
            }
            key.doc.iter().for_each(|line| text.extend(["#", line, "\n"]));
            if key.is_live {
                text += "# A HUP reads it again.\n";
            }
            match key.effect {
                Effect::Acts => {}
                Effect::Idle(why) => text.extend(["# No effect: ", why, ".\n"]),
            }
            let lines = self.lines(key.name);
            let is_comment = section == OWN_SECTION && lines == default.lines(key.name);
            for line in lines {
                let _ = writeln!(text, "{}{} {line}", if is_comment { "#" } else { "" }, key.name);
            }
            text.push('\n');
        }
        text
    }

    /// The P_Key enforcement that switches must apply, from either key.
    pub fn enforcement(&self) -> PartEnforce {
        if self.no_partition_enforcement { PartEnforce::Off } else { self.part_enforce }
    }

    /// Whether an engine of this name is among those to try.
    pub fn tries_engine(&self, name: &str) -> bool {
        let names = self.routing_engine.as_deref().unwrap_or("");
        names.split(EngineNames::is_separator).any(|each| each.eq_ignore_ascii_case(name))
    }

    /// The log file, if it is not standard output, to which the log is always written.
    pub fn log_path(&self) -> Option<&str> {
        self.log_file.as_deref().filter(|name| !["stdout", "-"].contains(name))
    }

    /// Milliseconds to wait for the response to a request for all ports of a switch: at most an
    /// hour, and at least as long as for other requests.
    pub fn long_timeout(&self) -> u32 {
        self.long_transaction_timeout.min(3_600_000).max(self.transaction_timeout)
    }

    /// Number of SMPs on the wire at once; 0 means the limit.
    pub fn window(&self) -> usize {
        match self.max_wire_smps {
            0 => MAX_WIRE_SMPS_LIMIT as usize,
            n => n.min(MAX_WIRE_SMPS_LIMIT) as usize,
        }
    }
}

/// `table` with the keys of engines: each after the key that it follows in OpenSM's template, or at
/// the end if OpenSM does not have it.
fn with_engines(table: &[Key]) -> Vec<Key> {
    let mut all = table.to_vec();
    for key in EngineSettings::default().keys() {
        let before = key.follows.and_then(|name| all.iter().position(|other| other.name == name));
        let (at, section) = match before {
            Some(before) => (before + 1, all[before].section),
            None => (all.len(), OWN_SECTION),
        };
        let engines::settings::Key { name, doc, is_live, .. } = *key;
        all.insert(at, Key { name, section, doc, effect: Effect::Acts, is_live });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_c_reads_them() {
        let mut settings = Settings::default();
        for (text, value) in [("0x12", 18), ("022", 18), ("18", 18), ("0", 0)] {
            assert_eq!(settings.set("subnet_timeout", text), Ok(true));
            assert_eq!(settings.subnet_timeout, value, "{text}");
        }
        assert_eq!(settings.set("routing_engine", "(null)"), Ok(true));
        assert_eq!(settings.routing_engine, None);
    }

    #[test]
    fn changes_are_listed_with_values_except_secret_keys() {
        let before = Settings::default();
        let mut after = before.clone();
        assert!(after.changes(&before).is_empty());
        (after.sm_priority, after.m_key) = (9, 0xABCD);
        let changes = after.changes(&before);
        let priority = format!("sm_priority {} > 9", before.sm_priority);
        assert_eq!(changes.len(), 2);
        assert!(
            changes.contains(&priority) && changes.contains(&"m_key".to_owned()),
            "{changes:?}"
        );
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let mut settings = Settings::default();
        let error = settings.set("lmc", "8").unwrap_err();
        assert_eq!(error.to_string(), "lmc must be 0 to 7, not 8");
        let error = settings.set("lmc", "300").unwrap_err();
        assert_eq!(error.to_string(), "lmc must be 0 to 7, not 300");
        let error = settings.set("lmc", "two").unwrap_err();
        assert_eq!(error.to_string(), "lmc takes a number, not 'two'");
        assert_eq!(settings, Settings::default(), "a refused value changes nothing");
    }
}
