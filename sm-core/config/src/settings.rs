//! Checked settings, and the description of each key.

use std::fmt::Write;
use std::sync::LazyLock;

use super::engine_keys;
pub use super::keys::Settings;
use super::value::{EngineNames, PartEnforce};
use sm_routing::engines;

/// Section of keys that OpenSM does not have.
pub(super) const OWN_SECTION: &str = "IBSM OPTIONS";

/// Largest number of SMPs on the wire at once; `max_wire_smps 0`, OpenSM's "no limit", selects
/// this.
pub const MAX_WIRE_SMPS_LIMIT: u32 = 4096;

/// Default QoS policy file, as in OpenSM.
pub(super) const DEFAULT_QOS_POLICY_FILE: &str = "/etc/opensm/qos-policy.conf";
/// Default partition file, as in OpenSM.
pub(super) const DEFAULT_PARTITION_FILE: &str = "/etc/opensm/partitions.conf";
/// Default file of prefix routes, as in OpenSM.
pub(super) const DEFAULT_PREFIX_ROUTES_FILE: &str = "/etc/opensm/prefix-routes.conf";

/// Default torus configuration, as in OpenSM.
pub(super) const DEFAULT_TORUS_CONFIG: &str = "/etc/opensm/torus-2QoS.conf";

/// Whether a key has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The key has the described effect.
    Acts,
    /// The key is accepted but has no effect, for this reason.
    Idle(&'static str),
    /// Only the default is accepted, for this reason.
    Refused(&'static str),
}

/// The description of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The section of the file that contains it.
    pub section: &'static str,
    /// Its meaning, line by line.
    pub doc: &'static [&'static str],
    /// Whether it has an effect.
    pub effect: Effect,
    /// Whether a SIGHUP reads it again; other keys are read only at start.
    pub is_live: bool,
}

/// Defines [`Settings`] from the table of keys.
macro_rules! settings {
    ($(
        section $section:literal {$(
            $(#[doc = $doc:literal])+
            $key:ident: $type:ty = $default:expr, $when:ident
            $(, $first:literal..=$last:expr)? $(, $effect:ident($reason:literal))?;
        )*}
    )*) => {
        /// Checked settings of the subnet manager, named as in `opensm.conf`.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {
            $($( $(#[doc = $doc])+ pub $key: $type, )*)*
            /// Settings of single routing engines, by the keys that the engines declare.
            pub engines: sm_routing::engines::EngineSettings,
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($( $key: $default, )*)* engines: Default::default() }
            }
        }

        impl Settings {
            /// The keys of this table, in its order.
            pub(super) const TABLE: &'static [$crate::Key] = &[$($( $crate::Key {
                name: stringify!($key),
                section: $section,
                doc: &[$( $doc ),+],
                effect: settings!(@effect $($effect($reason))?),
                is_live: settings!(@when $when),
            }, )*)*];

            /// Sets `key` from text. `Ok(false)` if there is no such key.
            pub fn set(
                &mut self,
                key: &str,
                text: &str,
            ) -> Result<bool, $crate::ValueError> {
                use $crate::value::{Value, parse};
                match key {
                    $($( stringify!($key) => {
                        let range: Option<std::ops::RangeInclusive<u64>> =
                            None $( .or(Some($first..=$last)) )?;
                        let value = parse::<$type>(stringify!($key), text, range)?;
                        $( settings!(@check $effect, $reason, $key, value, $default); )?
                        Value::take(&mut self.$key, value);
                    } )*)*
                    _ => return $crate::engine_keys::set(&mut self.engines, key, text),
                }
                Ok(true)
            }

            /// Sets `key` to the value that OpenSM would use for a text that [`set`](Self::set)
            /// rejected; returns whether there is one.
            pub fn set_as_opensm(&mut self, key: &str, text: &str) -> bool {
                match key {
                    $($( stringify!($key) => {
                        $crate::value::as_opensm(&mut self.$key, text, $default)
                    } )*)*
                    _ => $crate::engine_keys::set_as_opensm(&mut self.engines, key, text),
                }
            }

            /// Sets `key` to its value in `from`.
            pub fn copy(&mut self, key: &str, from: &Self) {
                match key {
                    $($( stringify!($key) => self.$key = from.$key.clone(), )*)*
                    _ => $crate::engine_keys::copy(&mut self.engines, key, &from.engines),
                }
            }

            /// Describes how a text is read where that is certainly a mistake.
            pub(super) fn slip(key: &str, text: &str) -> Option<&'static str> {
                use $crate::value::Value;
                match key {
                    $($( stringify!($key) => <$type as Value>::slip(text), )*)*
                    _ => $crate::engine_keys::slip(key, text),
                }
            }

            /// Describes how an accepted text is read if its author probably meant something else.
            pub(super) fn reading(key: &str, text: &str) -> Option<&'static str> {
                use $crate::value::Value;
                match key {
                    $($( stringify!($key) => <$type as Value>::reading(text), )*)*
                    _ => None,
                }
            }

            /// The values of a key, as the file would have them, one per line.
            pub(super) fn lines(&self, key: &str) -> Vec<String> {
                use $crate::value::Value;
                match key {
                    $($( stringify!($key) => self.$key.render_lines(), )*)*
                    _ => $crate::engine_keys::lines(&self.engines, key),
                }
            }

            /// Whether `key` has the same value in `other`.
            pub(super) fn is_same(&self, key: &str, other: &Self) -> bool {
                match key {
                    $($( stringify!($key) => self.$key == other.$key, )*)*
                    _ => self.engines.get(key) == other.engines.get(key),
                }
            }
        }
    };
    (@effect) => { $crate::Effect::Acts };
    (@effect idle($reason:literal)) => { $crate::Effect::Idle($reason) };
    (@effect refused($reason:literal)) => { $crate::Effect::Refused($reason) };
    (@when start) => { false };
    (@when sweep) => { true };
    (@check idle, $reason:literal, $key:ident, $value:ident, $default:expr) => {};
    (@check refused, $reason:literal, $key:ident, $value:ident, $default:expr) => {
        if $value != $default {
            let (key, reason) = (stringify!($key), $reason);
            return Err($crate::ValueError::Refused { key, reason });
        }
    };
}
pub(super) use settings;

impl Settings {
    /// All keys, in the order of the template.
    pub fn keys() -> &'static [Key] {
        static KEYS: LazyLock<Vec<Key>> =
            LazyLock::new(|| engine_keys::with_engines(Settings::TABLE));
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
                Effect::Refused(why) => text.extend(["# Must keep its default: ", why, ".\n"]),
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
