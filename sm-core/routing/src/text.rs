//! Parses numbers in text files as OpenSM does.

/// Parses the number at the start of `text` by the rules of C's `strtoull` with base 0. Returns it
/// with the rest of the text. The number is 0 without digits, and `None` beyond 64 bits.
pub fn leading_number(text: &str) -> (Option<u64>, &str) {
    let start = text.trim_start();
    let digits = start.strip_prefix(['-', '+']).unwrap_or(start);
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (base, digits) = match hex.filter(|hex| hex.starts_with(|c: char| c.is_ascii_hexdigit())) {
        Some(hex) => (16, hex),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    if end == 0 {
        return (Some(0), text);
    }
    let number = u64::from_str_radix(&digits[..end], base).ok();
    let is_negative = start.starts_with('-');
    (number.map(|n| if is_negative { n.wrapping_neg() } else { n }), &digits[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_at_the_first_character_that_is_no_digit() {
        assert_eq!(leading_number("12, 3"), (Some(12), ", 3"));
        assert_eq!(leading_number("0x1fg"), (Some(31), "g"));
        assert_eq!(leading_number("x"), (Some(0), "x"));
    }
}
