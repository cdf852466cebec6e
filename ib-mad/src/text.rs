//! Names that the fabric reports, as text that is safe to show: any host chooses its own.

/// Text without characters that change how a terminal shows it or what surrounds it: control
/// characters, and those that turn the direction of writing or are invisible. Each becomes a dot.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_harmless(c) { c } else { '.' }).collect()
}

/// The text in a field of fixed length, up to its first zero, as [`printable`] text; invalid UTF-8
/// is replaced.
pub fn of_field(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    printable(&String::from_utf8_lossy(&field[..end]))
}

/// As much of a text as fits in `len_max` bytes, cut between characters.
pub fn cut(text: &str, len_max: usize) -> &str {
    let mut len = text.len().min(len_max);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}

fn is_harmless(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{AD}'
            | '\u{61C}'
            | '\u{180E}'
            | '\u{200B}'..='\u{200F}'
            | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}'
            | '\u{FEFF}'
            | '\u{FFF9}'..='\u{FFFB}'
            | '\u{E0000}'..='\u{E007F}'
    );
    !c.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_replaced() {
        assert_eq!(printable("sw1 \u{1b}[2J\u{7}\u{9b}31m\n"), "sw1 .[2J..31m.");
        assert_eq!(printable("a\u{202e}b\u{200b}c"), "a.b.c");
        assert_eq!(printable("Knoten Süd 三"), "Knoten Süd 三");
    }

    #[test]
    fn a_field_ends_at_its_first_zero() {
        assert_eq!(of_field(b"hca-1\0rest"), "hca-1");
        assert_eq!(of_field(b"full"), "full");
        assert_eq!(of_field(b"\xFFx\0"), "\u{FFFD}x");
    }
}
