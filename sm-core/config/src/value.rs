//! Types of settings, parsed and rendered as in OpenSM's `opensm.conf`.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use ib_mad::types::Guid;

use sm_routing::engines;
use sm_routing::text::leading_number;

/// In which direction switches check P_Keys on links to end ports (IBA 10.9.3.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartEnforce {
    /// Packets in both directions.
    Both,
    /// Packets into the switch.
    In,
    /// Packets out of the switch.
    Out,
    /// No check.
    Off,
}

impl PartEnforce {
    /// Whether packets into the switch are checked.
    pub fn inbound(self) -> bool {
        matches!(self, Self::Both | Self::In)
    }

    /// Whether packets out of the switch are checked.
    pub fn outbound(self) -> bool {
        matches!(self, Self::Both | Self::Out)
    }
}

/// Why a value is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The value is not of the key's type.
    #[error("{key} takes {expected}, not '{got}'")]
    Malformed {
        /// The key.
        key: &'static str,
        /// A description of the type.
        expected: &'static str,
        /// The text found.
        got: String,
    },
    /// The value has an effect in OpenSM and none in ibsm, and that must not go unnoticed.
    #[error("{key} supports only its default: {reason}")]
    Refused {
        /// The key.
        key: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The number is out of range.
    #[error("{key} must be {first} to {last}, not {got}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Smallest valid value.
        first: u64,
        /// Largest valid value.
        last: u64,
        /// The number found.
        got: u64,
    },
}

/// A type of a setting.
pub(super) trait Value: Sized {
    const EXPECTED: &'static str;
    /// Describes the type, for messages.
    fn expected() -> &'static str {
        Self::EXPECTED
    }
    fn parse(text: &str) -> Option<Self>;
    fn render(&self) -> String;
    /// The value as a number to compare with the key's range.
    fn number(&self) -> Option<u64>;
    /// The value that OpenSM would use for a text that is rejected, if any.
    fn salvage(_text: &str) -> Option<Self> {
        None
    }
    /// Describes how an accepted text is read if its author probably meant something else.
    fn reading(_text: &str) -> Option<&'static str> {
        None
    }
    /// Describes how a text is read where that is certainly a mistake.
    fn slip(_text: &str) -> Option<&'static str> {
        None
    }
    /// Merges the value of another line of the same key.
    fn take(&mut self, by: Self) {
        *self = by;
    }
    /// The values, one per line of the file.
    fn render_lines(&self) -> Vec<String> {
        vec![self.render()]
    }
}

/// Parses a number as C's `strtoul` with base 0 does: a sign, `0x` hexadecimal, leading 0 octal. A
/// negative number is its two's complement. `None` if text follows, or if the number is too large.
pub fn parse_number(text: &str) -> Option<u64> {
    let (number, rest) = leading_number(text);
    number.filter(|_| rest.is_empty() && !text.is_empty())
}

macro_rules! integer_value {
    ($($type:ty),*) => {$(
        impl Value for $type {
            const EXPECTED: &'static str = "a number";
            fn parse(text: &str) -> Option<Self> {
                parse_number(text)?.try_into().ok()
            }
            fn render(&self) -> String {
                self.to_string()
            }
            fn number(&self) -> Option<u64> {
                Some(u64::from(*self))
            }
        }
    )*};
}
integer_value!(u8, u16, u32);

/// A number that may be -1 for "not set".
impl Value for i16 {
    const EXPECTED: &'static str = "a number from -1 to 255";
    fn parse(text: &str) -> Option<Self> {
        let number = i16::try_from(parse_number(text)?.cast_signed()).ok()?;
        Some(number).filter(|number| (-1..=255).contains(number))
    }
    /// Parses the number at the start; -1 if it is out of range.
    fn salvage(text: &str) -> Option<Self> {
        let number = leading_number(text).0.and_then(|n| u8::try_from(n).ok());
        Some(number.map_or(-1, i16::from))
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// A 64-bit identifier or key, written in hexadecimal.
impl Value for u64 {
    const EXPECTED: &'static str = "a 64-bit number such as 0xfe80000000000000";
    fn parse(text: &str) -> Option<Self> {
        parse_number(text)
    }
    fn render(&self) -> String {
        format!("{self:#018x}")
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Value for Guid {
    const EXPECTED: &'static str = "a GUID such as 0x0002c90300000001";
    fn parse(text: &str) -> Option<Self> {
        parse_number(text).map(Self).or_else(|| text.parse().ok())
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "TRUE or FALSE";
    /// As in OpenSM, everything but TRUE is FALSE.
    fn parse(text: &str) -> Option<Self> {
        Some(text == "TRUE")
    }
    fn slip(text: &str) -> Option<&'static str> {
        (!["TRUE", "FALSE"].contains(&text))
            .then_some("is read as FALSE, as OpenSM does; write TRUE or FALSE")
    }
    fn render(&self) -> String {
        if *self { "TRUE" } else { "FALSE" }.to_owned()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Text; OpenSM writes `(null)` for none. The empty text is none, too.
impl Value for Option<String> {
    const EXPECTED: &'static str = "text";
    fn parse(text: &str) -> Option<Self> {
        Some((!text.is_empty() && text != "(null)").then(|| text.to_owned()))
    }
    /// Quoted where the text would not read back without quotes.
    fn render(&self) -> String {
        match self {
            Some(text) if unquote(text.trim()) != text => format!("\"{text}\""),
            Some(text) => text.clone(),
            None => "(null)".to_owned(),
        }
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Removes the quotes around a text, if there are any.
pub(super) fn unquote(text: &str) -> &str {
    let within = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

/// Names of routing engines, separated by commas. All are engines that OpenSM has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineNames(String);

impl EngineNames {
    /// Whether a character may separate two names.
    pub fn is_separator(c: char) -> bool {
        c == ',' || c.is_whitespace()
    }
}

impl std::ops::Deref for EngineNames {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

/// No name is the default, as are `none` and `null`.
impl Value for Option<EngineNames> {
    const EXPECTED: &'static str = "names of routing engines, separated by commas";
    fn expected() -> &'static str {
        static EXPECTED: LazyLock<String> = LazyLock::new(|| {
            let names: Vec<_> = engines::names().collect();
            let last = engines::NO_FALLBACK;
            format!("names among {} and {last}, separated by commas", names.join(", "))
        });
        &EXPECTED
    }
    fn parse(text: &str) -> Option<Self> {
        if ["", "none", "null", "(null)"].iter().any(|none| text.eq_ignore_ascii_case(none)) {
            return Some(None);
        }
        let is_known = |name: &str| name.is_empty() || engines::is_word(name);
        let text = text.trim_matches(EngineNames::is_separator);
        let names = text.split(EngineNames::is_separator);
        names.into_iter().all(is_known).then(|| Some(EngineNames(text.to_owned())))
    }
    /// Keeps the valid names; `None` if there are none.
    fn salvage(text: &str) -> Option<Self> {
        let is_known = |name: &&str| <Option<EngineNames>>::parse(name).flatten().is_some();
        let names: Vec<_> = text.split(EngineNames::is_separator).filter(is_known).collect();
        Some((!names.is_empty()).then(|| EngineNames(names.join(","))))
    }
    fn render(&self) -> String {
        self.as_deref().unwrap_or("(null)").to_owned()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Value for PartEnforce {
    const EXPECTED: &'static str = "both, in, out or off";
    fn parse(text: &str) -> Option<Self> {
        match text {
            "both" => Some(Self::Both),
            "in" => Some(Self::In),
            "out" => Some(Self::Out),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
    fn salvage(_text: &str) -> Option<Self> {
        Some(Self::Both)
    }
    fn render(&self) -> String {
        match self {
            Self::Both => "both",
            Self::In => "in",
            Self::Out => "out",
            Self::Off => "off",
        }
        .to_owned()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Parses the value of `key`, and checks its range.
pub(super) fn parse<V: Value>(
    key: &'static str,
    text: &str,
    range: Option<RangeInclusive<u64>>,
) -> Result<V, ValueError> {
    let malformed = || ValueError::Malformed { key, expected: V::expected(), got: text.to_owned() };
    let out_of_range = |range: &RangeInclusive<u64>, got| ValueError::OutOfRange {
        key,
        first: *range.start(),
        last: *range.end(),
        got,
    };
    let Some(value) = V::parse(text) else {
        // A number too large for the type is out of range rather than malformed.
        let number = parse_number(text).filter(|_| !text.starts_with('-'));
        return Err(match (&range, number) {
            (Some(range), Some(got)) if !range.contains(&got) => out_of_range(range, got),
            _ => malformed(),
        });
    };
    match (&range, value.number()) {
        (Some(range), Some(got)) if !range.contains(&got) => Err(out_of_range(range, got)),
        _ => Ok(value),
    }
}

/// Sets `field` to the value that OpenSM would use for a rejected text: its own reading of the
/// text, or the default for a number that is out of range. Returns `false` if the previous value
/// stays.
pub(super) fn as_opensm<V: Value>(field: &mut V, text: &str, default: V) -> bool {
    let instead = V::salvage(text).or_else(|| V::parse(text).map(|_| default));
    let is_replaced = instead.is_some();
    instead.into_iter().for_each(|value| *field = value);
    is_replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_strtoul_reads_them() {
        for (text, number) in [
            ("0x1F", Some(31)),
            ("010", Some(8)),
            ("+5", Some(5)),
            ("-1", Some(u64::MAX)),
            ("0", Some(0)),
            ("", None),
            ("0x", None),
            ("08", None),
            ("5 6", None),
            ("0x+5", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(parse_number(text), number, "{text}");
        }
    }

    #[test]
    fn other_texts_are_read_as_opensm_reads_them() {
        assert_eq!(i16::salvage("10x"), Some(10));
        assert_eq!((i16::salvage("300"), i16::salvage("-7")), (Some(-1), Some(-1)));
        assert_eq!(PartEnforce::salvage("inbound"), Some(PartEnforce::Both));
        let engines = |text| <Option<EngineNames>>::salvage(text).unwrap();
        assert_eq!(engines("ftre, updn").as_deref(), Some("updn"));
        assert_eq!(engines("bogus"), None);
    }
}
