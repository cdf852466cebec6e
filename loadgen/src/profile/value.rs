//! Deserializers of a profile's values, with range checks.

use std::time::Duration;

use ib_mad::types::PKey;
use serde::Deserialize;
use toml::Value;

/// A time such as "200ms".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Time(pub Duration);

impl TryFrom<Value> for Time {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        let wrong = "a time is a number with us, ms, s, m or h in quotes, such as \"200ms\"";
        let text = value.as_str().ok_or_else(|| format!("{wrong}, not {value}"))?;
        crate::values::duration(text).map(Self).map_err(|_| format!("{wrong}, not {value}"))
    }
}

/// An integer within limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Whole<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> TryFrom<Value> for Whole<MIN, MAX> {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        let limit = match MAX {
            u64::MAX => format!("of at least {MIN}"),
            _ => format!("from {MIN} to {MAX}"),
        };
        number.map(Self).ok_or_else(|| format!("a whole number {limit}, not {value}"))
    }
}

fn between(value: &Value, min: f64, max: f64, what: &str) -> Result<f64, String> {
    let number = value.as_float().or(value.as_integer().map(|number| number as f64));
    number
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("{what} is a number from {min} to {max}, not {value}"))
}

/// Queries a second.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Rate(pub f64);

impl TryFrom<Value> for Rate {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        between(&value, 1e-3, 1e9, "a rate, queries a second,").map(Self)
    }
}

/// A share, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Share(pub f64);

impl TryFrom<Value> for Share {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        between(&value, 0.0, 1.0, "a share").map(Self)
    }
}

/// The factor by which a rate grows.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Factor(pub f64);

impl TryFrom<Value> for Factor {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        between(&value, 1.01, 100.0, "a factor").map(Self)
    }
}

/// A number such as 0xffff; quoted where it is too large for TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Id(pub u64);

impl TryFrom<Value> for Id {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        let given = match &value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::String(text) => crate::values::number(text).ok(),
            _ => None,
        };
        given.map(Self).ok_or_else(|| format!("a number such as 0x01061b58, not {value}"))
    }
}

impl Id {
    /// The number as a P_Key; `None` if it is not a valid one.
    pub fn pkey(self) -> Option<PKey> {
        u16::try_from(self.0).ok().map(PKey).filter(|pkey| pkey.is_valid())
    }
}

/// One of several names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value", bound = "T: std::str::FromStr<Err = String>")]
pub struct Named<T>(pub T);

impl<T: std::str::FromStr<Err = String>> TryFrom<Value> for Named<T> {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        let text = value.as_str().ok_or_else(|| format!("a word in quotes, not {value}"))?;
        text.parse().map(Self).map_err(|right| format!("{right}, not {value}"))
    }
}
