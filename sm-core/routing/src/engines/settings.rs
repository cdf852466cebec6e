//! Settings of single engines. An engine declares its own with [`settings!`], and `engines.rs`
//! lists them; `sm-config` reads them from `opensm.conf`, describes them in its template, and
//! includes them in the hash of what operators configure.

use std::ops::RangeInclusive;

/// The value of a setting, of the type that its engine declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// TRUE or FALSE.
    Flag(bool),
    /// A number up to 255.
    U8(u8),
    /// A number up to 65,535.
    U16(u16),
    /// A number of 32 bits.
    U32(u32),
}

/// A value is not of the type of the setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

macro_rules! convert {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }

        impl TryFrom<Value> for $type {
            type Error = WrongType;
            fn try_from(value: Value) -> Result<Self, WrongType> {
                match value {
                    Value::$variant(value) => Ok(value),
                    _ => Err(WrongType),
                }
            }
        }
    )*};
}
convert!(bool => Flag, u8 => U8, u16 => U16, u32 => U32);

/// Describes a setting of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name in `opensm.conf`.
    pub name: &'static str,
    /// Its meaning, line by line.
    pub doc: &'static [&'static str],
    /// Whether a SIGHUP reads it again; other settings are read only at start.
    pub is_live: bool,
    /// The values it may have.
    pub range: Option<RangeInclusive<u64>>,
    /// The key that it follows in OpenSM's template; `None` if OpenSM does not have it.
    pub follows: Option<&'static str>,
}

/// The settings of one engine.
pub(super) trait Group {
    /// Describes them.
    fn keys(&self) -> &'static [Key];
    /// The value of a key; `None` if it is not one of them.
    fn get(&self, key: &str) -> Option<Value>;
    /// Sets a key. Returns `false` if it is not one of them, or of another type.
    fn set(&mut self, key: &str, value: Value) -> bool;
}

/// Declares the settings of an engine: a field each, with its type and default, the name of its
/// key, when a change takes effect (`start`, or before the next `sweep`), and, if it has them, its
/// range, and the key that it comes `after` in OpenSM's template.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct Settings {$(
            $(#[doc = $doc:literal])+
            $field:ident: $type:ty = $default:expr, key $key:literal, $when:ident
            $(, $first:literal..=$last:literal)? $(, after $before:literal)?;
        )+}
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {$(
            $(#[doc = $doc])+
            #[doc = concat!("(`", $key, "`)")]
            pub $field: $type,
        )+}

        impl Default for Settings {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        impl $crate::engines::settings::Group for Settings {
            fn keys(&self) -> &'static [$crate::engines::settings::Key] {
                const KEYS: &[$crate::engines::settings::Key] = &[$(
                    $crate::engines::settings::Key {
                        name: $key,
                        doc: &[$( $doc ),+],
                        is_live: $crate::engines::settings::settings!(@when $when),
                        range: $crate::engines::settings::settings!(
                            @optional $($first..=$last)?
                        ),
                        follows: $crate::engines::settings::settings!(@optional $($before)?),
                    },
                )+];
                KEYS
            }

            fn get(&self, key: &str) -> Option<$crate::engines::settings::Value> {
                match key {
                    $( $key => Some(self.$field.into()), )+
                    _ => None,
                }
            }

            fn set(&mut self, key: &str, value: $crate::engines::settings::Value) -> bool {
                match key {
                    $( $key => {
                        <$type>::try_from(value).map(|value| self.$field = value).is_ok()
                    } )+
                    _ => false,
                }
            }
        }
    };
    (@when start) => { false };
    (@when sweep) => { true };
    (@optional) => { None };
    (@optional $some:expr) => { Some($some) };
}
pub(super) use settings;

/// Lists the settings of all engines, by the module that declares them.
macro_rules! engine_settings {
    ($( $(#[doc = $doc:literal])+ $engine:ident ),* $(,)?) => {
        /// The settings of single engines, as operators write them: numbers and flags, none of
        /// which depends on a topology.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct EngineSettings {$(
            $(#[doc = $doc])+
            pub $engine: $engine::Settings,
        )*}

        impl EngineSettings {
            /// Describes all settings, in the order of the engines.
            pub fn keys(&self) -> impl Iterator<Item = &'static settings::Key> {
                let groups = [$( settings::Group::keys(&self.$engine) ),*];
                groups.into_iter().flatten()
            }

            /// The description of a key; `None` if no engine has it.
            pub fn key(&self, key: &str) -> Option<&'static settings::Key> {
                self.keys().find(|each| each.name == key)
            }

            /// The value of a key; `None` if no engine has it.
            pub fn get(&self, key: &str) -> Option<settings::Value> {
                None $( .or_else(|| settings::Group::get(&self.$engine, key)) )*
            }

            /// Sets a key. Returns `false` if no engine has it, or with another type.
            pub fn set(&mut self, key: &str, value: settings::Value) -> bool {
                false $( || settings::Group::set(&mut self.$engine, key, value) )*
            }
        }
    };
}
pub(super) use engine_settings;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::EngineSettings;

    #[test]
    fn every_key_belongs_to_one_engine_and_takes_values_of_its_type_only() {
        let mut settings = EngineSettings::default();
        let mut names: Vec<_> = settings.keys().map(|key| key.name).collect();
        for name in &names {
            let value = settings.get(name).unwrap();
            assert!(settings.set(name, value), "{name}");
            let other = if value == Value::Flag(false) { Value::U32(1) } else { Value::Flag(true) };
            assert!(!settings.set(name, other), "{name} takes {other:?}");
        }
        assert_eq!(settings, EngineSettings::default());
        assert!(!settings.set("routing_engine", Value::Flag(true)));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
