//! Parses words and numbers as OpenSM does: numbers by C's `strtoul`, keywords by any prefix.

/// Parses a number at the start of `text`, as `strtoul` with base 0 does: `0x` is hexadecimal, a
/// leading 0 octal, and a number that is too large becomes the largest. Returns it and the rest of
/// the text; `None` if there is no number.
pub(crate) fn number(text: &str) -> Option<(u64, &str)> {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let hex = hex.filter(|hex| hex.starts_with(|c: char| c.is_ascii_hexdigit()));
    let (radix, digits) = match hex {
        Some(hex) => (16, hex),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    // All characters are digits, so only the size can be wrong.
    let value = u64::from_str_radix(&digits[..end], radix).unwrap_or(u64::MAX);
    Some((if negative { value.wrapping_neg() } else { value }, &digits[end..]))
}

/// Whether `word` is a prefix of `keyword`; the empty word is one.
pub(super) fn abbreviates(word: &str, keyword: &str) -> bool {
    keyword.starts_with(word)
}

/// Splits `name[=value]`, and trims both.
pub(super) fn name_and_value(token: &str) -> (&str, Option<&str>) {
    match token.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (token.trim(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_strtoul_does() {
        let cases = [
            ("0x7fff", Some((0x7fff, ""))),
            (" 12,", Some((12, ","))),
            ("012", Some((10, ""))),
            ("08", Some((0, "8"))),
            ("0c42", Some((0, "c42"))),
            ("0x", Some((0, "x"))),
            ("-1", Some((u64::MAX, ""))),
            ("0x12345678123456781", Some((u64::MAX, ""))),
            ("", None),
            ("high", None),
        ];
        for (text, expected) in cases {
            assert_eq!(number(text), expected, "{text}");
        }
    }
}
