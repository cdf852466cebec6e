//! Parses values: numbers, lists of ranges, names.

use super::super::ranges::Ranges;
use super::super::value::parse_number;
use super::{PortName, Reason};

/// Largest number of ranges in one list.
const RANGES_MAX: usize = 1 << 16;

/// Describes a list of ranges.
pub(super) const RANGES: &str = "numbers and ranges such as 7-9,0x10";

/// A name in a policy file.
///
/// OpenSM drops blanks and tabs outside of quotes, so that `vs1 HCA-1` is read as `vs1HCA-1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    text: String,
    written: String,
}

impl Name {
    /// Parses a name: `"quoted parts"` keep their blanks, other parts lose them.
    pub fn read(text: &str) -> Self {
        let mut name = Self::default();
        let mut rest = text.trim();
        while let Some(first) = rest.chars().next() {
            let quoted = rest.strip_prefix('"').and_then(|inner| inner.split_once('"'));
            if let Some((inner, after)) = quoted {
                name.text.push_str(inner);
                name.written.push_str(inner);
                rest = after;
                continue;
            }
            if !matches!(first, ' ' | '\t') {
                name.text.push(first);
            }
            name.written.push(first);
            rest = &rest[first.len_utf8()..];
        }
        name.text = name.text.trim().to_owned();
        name
    }

    /// The name as OpenSM reads it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name as written, without quotes.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// Whether the name is empty.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether the name equals `other`, ignoring case.
    pub fn is(&self, other: &str) -> bool {
        self.text.eq_ignore_ascii_case(other)
    }

    /// Whether it refers to the same group or level as `other`.
    pub fn same(&self, other: &Self) -> bool {
        self.is(&other.text)
    }
}

/// Splits a list at commas into names.
pub(super) fn names(key: &'static str, text: &str) -> Result<Vec<Name>, Reason> {
    let names: Vec<Name> = split_outside_quotes(text).map(Name::read).collect();
    if names.iter().any(Name::is_empty) {
        let expected = "names separated by commas";
        return Err(Reason::Malformed { key, expected, got: text.to_owned() });
    }
    Ok(names)
}

fn split_outside_quotes(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
}

/// Parses a port name. The last slash separates the NodeDescription from the port number.
pub(super) fn port_name(line: usize, name: &Name) -> Result<PortName, Reason> {
    let split = |text: &str| -> Option<(String, u8)> {
        let (node, port) = text.rsplit_once('/')?;
        let number = port.trim().strip_prefix(['P', 'p'])?;
        Some((node.trim().to_owned(), parse_number(number)?.try_into().ok()?))
    };
    match (split(name.as_str()), split(name.written())) {
        (Some((text, port)), Some((written, _))) if !text.is_empty() => {
            Ok(PortName { node: Name { text, written }, port, line })
        }
        _ => Err(Reason::Malformed {
            key: "port-name",
            expected: "node descriptions with port numbers, such as \"vs1 HCA-1/P1\"",
            got: name.written().to_owned(),
        }),
    }
}

/// Parses one number within `first..=last`.
pub(super) fn number(
    key: &'static str,
    text: &str,
    range: std::ops::RangeInclusive<u64>,
    expected: &'static str,
) -> Result<u64, Reason> {
    let malformed = || Reason::Malformed { key, expected, got: text.to_owned() };
    let value = parse_number(text).ok_or_else(malformed)?;
    if !range.contains(&value) {
        return Err(Reason::OutOfRange { key, expected, got: value });
    }
    Ok(value)
}

/// Parses a list of numbers and ranges up to `last`. As in OpenSM, either end of a range may come
/// first.
pub(super) fn ranges(
    key: &'static str,
    text: &str,
    last: u64,
    expected: &'static str,
) -> Result<Ranges, Reason> {
    let mut all = Vec::new();
    for item in text.split(',') {
        let item = item.trim();
        let malformed = || Reason::Malformed { key, expected: RANGES, got: item.to_owned() };
        let (a, b) = item.split_once('-').unwrap_or((item, item));
        let a = parse_number(a.trim()).ok_or_else(malformed)?;
        let b = parse_number(b.trim()).ok_or_else(malformed)?;
        if a.max(b) > last {
            return Err(Reason::OutOfRange { key, expected, got: a.max(b) });
        }
        all.push((a, b));
        if all.len() > RANGES_MAX {
            return Err(Reason::TooMany);
        }
    }
    Ok(all.into_iter().collect())
}

/// Parses a list of P_Keys. Their membership bit is ignored.
pub(super) fn pkeys(key: &'static str, text: &str) -> Result<Ranges, Reason> {
    let mut all = Ranges::default();
    for item in text.split(',') {
        // The bit is cleared before the ends are put in order, so each range is parsed separately.
        let (a, b) = item.split_once('-').unwrap_or((item, item));
        let end = |end: &str| ranges(key, end, 0xFFFF, "P_Keys of 16 bits, such as 0x8001");
        let (a, b) = (end(a)?, end(b)?);
        let base = |end: &Ranges| end.iter().next().map_or(0, |(value, _)| value & 0x7FFF);
        all.extend(&Ranges::of(base(&a), base(&b)));
    }
    Ok(all)
}

/// The one of `names` nearest to `name`, if one is near.
pub(super) fn nearest<'a>(name: &Name, names: impl Iterator<Item = &'a Name>) -> Option<String> {
    super::super::file::nearest_of(name.as_str(), names.map(Name::as_str)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_outside_of_quotes_are_dropped_as_opensm_does() {
        let name = Name::read(" vs1 HCA-1/P1 ");
        assert_eq!((name.as_str(), name.written()), ("vs1HCA-1/P1", "vs1 HCA-1/P1"));
        assert_eq!(Name::read("\"vs1 HCA-1/P1\"").as_str(), "vs1 HCA-1/P1");
        assert_eq!(Name::read("\"vs1 HCA-1\"/P1").as_str(), "vs1 HCA-1/P1");
        assert_eq!(Name::read("\"open").as_str(), "\"open");
    }

    #[test]
    fn the_last_slash_of_a_port_name_counts() {
        let port = port_name(3, &Name::read("\"rack 1/node 2/p0x10\"")).unwrap();
        assert_eq!((port.node.as_str(), port.port), ("rack 1/node 2", 16));
        for bad in ["node", "node/1", "node/P", "node/Px", "node/P256", "/P1"] {
            assert!(port_name(1, &Name::read(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn pkeys_lose_their_membership_bit_before_ranges_are_made() {
        assert_eq!(pkeys("pkey", "0x8001").unwrap(), Ranges::of(1, 1));
        assert_eq!(
            pkeys("pkey", "0x8005-0x0002, 0xffff").unwrap().iter().collect::<Vec<_>>(),
            [(2, 5), (0x7FFF, 0x7FFF)]
        );
        assert!(pkeys("pkey", "0x10000").is_err());
    }
}
