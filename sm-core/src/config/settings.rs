//! Settings, and what there is to know of each key.

use std::fmt::Write;

pub use super::keys::Settings;
use super::value::{EngineNames, PartEnforce};

/// Where keys are that OpenSM does not have.
const OWN_SECTION: &str = "IBSM OPTIONS";

/// Most SMPs ever on the wire at once; `max_wire_smps 0`, OpenSM's "no limit", means this.
pub const MAX_WIRE_SMPS_LIMIT: u32 = 4096;

/// Where OpenSM and we look for a QoS policy if no other file is named.
pub(super) const DEFAULT_QOS_POLICY_FILE: &str = "/etc/opensm/qos-policy.conf";
/// Where OpenSM and we look for partitions if no other file is named.
pub(super) const DEFAULT_PARTITION_FILE: &str = "/etc/opensm/partitions.conf";
/// Where OpenSM and we look for prefix routes if no other file is named.
pub(super) const DEFAULT_PREFIX_ROUTES_FILE: &str = "/etc/opensm/prefix-routes.conf";

/// Where OpenSM and we look for a torus if no other file is named.
pub(super) const DEFAULT_TORUS_CONFIG: &str = "/etc/opensm/torus-2QoS.conf";

/// Whether a key does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does what it says.
    Acts,
    /// It is taken, and changes nothing, for this reason.
    Idle(&'static str),
    /// Only its default is taken, for this reason.
    Refused(&'static str),
}

/// What there is to know of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The part of the file that it is in.
    pub section: &'static str,
    /// What it means, line by line.
    pub doc: &'static [&'static str],
    /// Whether it does something.
    pub effect: Effect,
    /// Whether a SIGHUP has it read again; other keys count from the start on.
    pub is_live: bool,
}

/// Makes [`Settings`] of the table of keys.
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
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($( $key: $default, )*)* }
            }
        }

        impl Settings {
            /// All keys, in the order of the template.
            pub const KEYS: &'static [$crate::config::Key] = &[$($( $crate::config::Key {
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
            ) -> Result<bool, $crate::config::ValueError> {
                use $crate::config::value::{Value, parse};
                match key {
                    $($( stringify!($key) => {
                        let range: Option<std::ops::RangeInclusive<u64>> =
                            None $( .or(Some($first..=$last)) )?;
                        let value = parse::<$type>(stringify!($key), text, range)?;
                        $( settings!(@check $effect, $reason, $key, value, $default); )?
                        Value::take(&mut self.$key, value);
                    } )*)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Takes what OpenSM would for a text that [`set`](Self::set) refused, if anything.
            pub(super) fn set_as_opensm(&mut self, key: &str, text: &str) -> bool {
                match key {
                    $($( stringify!($key) => {
                        $crate::config::value::as_opensm(&mut self.$key, text, $default)
                    } )*)*
                    _ => false,
                }
            }

            /// Gives `key` the value that it has in `from`.
            pub(super) fn copy(&mut self, key: &str, from: &Self) {
                match key {
                    $($( stringify!($key) => self.$key = from.$key.clone(), )*)*
                    _ => {}
                }
            }

            /// How a text is read that nobody would write who knew that.
            pub(super) fn slip(key: &str, text: &str) -> Option<&'static str> {
                use $crate::config::value::Value;
                match key {
                    $($( stringify!($key) => <$type as Value>::slip(text), )*)*
                    _ => None,
                }
            }

            /// How a text is read that is hardly what was meant, if it is taken.
            pub(super) fn reading(key: &str, text: &str) -> Option<&'static str> {
                use $crate::config::value::Value;
                match key {
                    $($( stringify!($key) => <$type as Value>::reading(text), )*)*
                    _ => None,
                }
            }

            /// What lines of the file would say of a key.
            pub(super) fn lines(&self, key: &str) -> Vec<String> {
                use $crate::config::value::Value;
                match key {
                    $($( stringify!($key) => self.$key.render_lines(), )*)*
                    _ => Vec::new(),
                }
            }

            /// Takes the keys of `new` that count while the program runs. Yields those that differ,
            /// but would count from the start on only.
            pub fn follow(&mut self, new: &Self) -> Vec<&'static str> {
                let mut waiting = Vec::new();
                $($( if self.$key != new.$key {
                    if settings!(@when $when) {
                        self.$key = new.$key.clone();
                    } else {
                        waiting.push(stringify!($key));
                    }
                } )*)*
                waiting
            }
        }
    };
    (@effect) => { $crate::config::Effect::Acts };
    (@effect idle($reason:literal)) => { $crate::config::Effect::Idle($reason) };
    (@effect refused($reason:literal)) => { $crate::config::Effect::Refused($reason) };
    (@when start) => { false };
    (@when sweep) => { true };
    (@check idle, $reason:literal, $key:ident, $value:ident, $default:expr) => {};
    (@check refused, $reason:literal, $key:ident, $value:ident, $default:expr) => {
        if $value != $default {
            let (key, reason) = (stringify!($key), $reason);
            return Err($crate::config::ValueError::Refused { key, reason });
        }
    };
}
pub(super) use settings;

impl Settings {
    /// What differs from `before`, a key each: `sm_priority 3 > 9`. Of keys that are secret not what
    /// they were or are.
    pub(crate) fn changes(&self, before: &Self) -> Vec<String> {
        let value = |settings: &Self, key: &Key| settings.lines(key.name).join(", ");
        let changed =
            Self::KEYS.iter().filter(|key| self.lines(key.name) != before.lines(key.name));
        changed
            .map(|key| match key.name.ends_with("_key") {
                true => key.name.to_owned(),
                false => format!("{} {} > {}", key.name, value(before, key), value(self, key)),
            })
            .collect()
    }

    /// Names of the routing engines to try, `no_fallback` among them if none may stand in.
    pub(crate) fn engine_names(&self) -> String {
        let names = self.routing_engine.as_deref().unwrap_or_default();
        if self.no_default_routing { format!("{names},no_fallback") } else { names.to_owned() }
    }

    /// What there is to know of a key.
    pub fn key(name: &str) -> Option<&'static Key> {
        Self::KEYS.iter().find(|key| key.name == name)
    }

    /// Keys that are set to something other than their default, and change nothing by that.
    pub fn idle_keys(&self) -> impl Iterator<Item = &'static Key> + '_ {
        let default = Self::default();
        Self::KEYS.iter().filter(move |key| {
            key.effect != Effect::Acts && self.lines(key.name) != default.lines(key.name)
        })
    }

    /// The settings as a file that reads back to the same, with OpenSM, too. Keys of ours alone are
    /// comments unless they are set.
    pub fn render(&self) -> String {
        let default = Self::default();
        let (mut text, mut section) = (String::new(), "");
        for key in Self::KEYS {
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
                Effect::Refused(why) => text.extend(["# Only as it is: ", why, ".\n"]),
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

    /// What switches are to check, by either key.
    pub fn enforcement(&self) -> PartEnforce {
        if self.no_partition_enforcement { PartEnforce::Off } else { self.part_enforce }
    }

    /// Whether an engine of this name is among those to be tried.
    pub fn tries_engine(&self, name: &str) -> bool {
        let names = self.routing_engine.as_deref().unwrap_or("");
        names.split(EngineNames::is_separator).any(|each| each.eq_ignore_ascii_case(name))
    }

    /// The log file, if it is not standard output, where the log goes in any case.
    pub fn log_path(&self) -> Option<&str> {
        self.log_file.as_deref().filter(|name| !["stdout", "-"].contains(name))
    }

    /// Milliseconds to wait for the answer to a request for all ports of a switch: an hour at most,
    /// and no less than for another's.
    pub fn long_timeout(&self) -> u32 {
        self.long_transaction_timeout.min(3_600_000).max(self.transaction_timeout)
    }

    /// SMPs on the wire at once, with 0 taken as the limit.
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
    fn changes_are_told_with_values_but_those_of_keys() {
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
