//! What a key of `opensm.conf` has besides its value, and the macro that defines `Settings` from a
//! table of keys. Not here: the table (`keys`), and what is done with settings (`settings`).

/// Section of keys that OpenSM does not have.
pub(super) const OWN_SECTION: &str = "IBSM OPTIONS";

/// Whether a key has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The key has the described effect.
    Acts,
    /// The key is accepted but has no effect, for this reason.
    Idle(&'static str),
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

/// Default QoS policy file, as in OpenSM.
pub(super) const DEFAULT_QOS_POLICY_FILE: &str = "/etc/opensm/qos-policy.conf";
/// Default partition file, as in OpenSM.
pub(super) const DEFAULT_PARTITION_FILE: &str = "/etc/opensm/partitions.conf";
/// Default file of prefix routes, as in OpenSM.
pub(super) const DEFAULT_PREFIX_ROUTES_FILE: &str = "/etc/opensm/prefix-routes.conf";

/// Default torus configuration, as in OpenSM.
pub(super) const DEFAULT_TORUS_CONFIG: &str = "/etc/opensm/torus-2QoS.conf";

/// Defines `Settings` from the table of keys.
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
    (@when start) => { false };
    (@when sweep) => { true };
    (@check idle, $reason:literal, $key:ident, $value:ident, $default:expr) => {};
}
pub(super) use settings;
