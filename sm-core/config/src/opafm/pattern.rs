//! Matches NodeDescriptions against wild cards: `rack[1-2]node[01-12]*:[1-2]`.

/// Longest pattern, bytes.
const LEN_MAX: usize = 128;

/// A pattern for NodeDescriptions.
///
/// `*` matches any number, `?` none or one, of letters, digits and `-,=._`; `[1-4]` matches a
/// number, of the written width if it begins with 0; `:[1-4]` at the end restricts port numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePattern {
    text: String,
    pieces: Vec<Piece>,
    /// First and last port number, if restricted.
    ports: Option<(u8, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Byte(u8),
    Any,
    Optional,
    /// First, last, and number of digits if fixed.
    Number(u64, u64, Option<usize>),
}

impl NodePattern {
    /// Parses a pattern; `None` if a range in it is invalid.
    pub fn read(text: &str) -> Option<Self> {
        if text.is_empty() || text.len() > LEN_MAX {
            return None;
        }
        let (name, ports) = match text.strip_suffix(']').and_then(|rest| rest.rsplit_once(":[")) {
            Some((name, range)) => (name, Some(ports(range)?)),
            None => (text, None),
        };
        let mut pieces = Vec::new();
        let mut rest = name;
        while let Some(&first) = rest.as_bytes().first() {
            rest = match first {
                b'[' => {
                    let (range, after) = rest[1..].split_once(']')?;
                    pieces.push(number(range)?);
                    after
                }
                _ => {
                    pieces.push(match first {
                        b'*' => Piece::Any,
                        b'?' => Piece::Optional,
                        byte => Piece::Byte(byte),
                    });
                    // Multi-byte characters are matched byte by byte.
                    match rest.char_indices().nth(1) {
                        Some((next, _)) => {
                            pieces.extend(rest.as_bytes()[1..next].iter().map(|&b| Piece::Byte(b)));
                            &rest[next..]
                        }
                        None => {
                            pieces.extend(rest.as_bytes()[1..].iter().map(|&b| Piece::Byte(b)));
                            ""
                        }
                    }
                }
            };
        }
        Some(Self { text: text.to_owned(), pieces, ports })
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern matches port `port` of a node with this description.
    pub fn matches(&self, description: &str, port: u8) -> bool {
        if self.ports.is_some_and(|(first, last)| !(first..=last).contains(&port)) {
            return false;
        }
        let text = description.as_bytes();
        // Which prefixes of the description the pieces so far match. The cost of any pattern is at
        // most pieces × length.
        let mut reached = vec![false; text.len() + 1];
        reached[0] = true;
        for piece in &self.pieces {
            reached = step(piece, text, &reached);
        }
        reached[text.len()]
    }
}

fn step(piece: &Piece, text: &[u8], reached: &[bool]) -> Vec<bool> {
    let mut next = vec![false; reached.len()];
    for at in (0..reached.len()).filter(|&at| reached[at]) {
        match *piece {
            Piece::Byte(byte) => {
                if text.get(at) == Some(&byte) {
                    next[at + 1] = true;
                }
            }
            Piece::Optional => {
                next[at] = true;
                if text.get(at).copied().is_some_and(is_wild) {
                    next[at + 1] = true;
                }
            }
            Piece::Any => {
                next[at] = true;
                for (offset, _) in text[at..].iter().take_while(|&&b| is_wild(b)).enumerate() {
                    next[at + offset + 1] = true;
                }
            }
            Piece::Number(first, last, width) => {
                let digits = text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let mut value: u64 = 0;
                for len in 1..=digits.min(18) {
                    value = value * 10 + u64::from(text[at + len - 1] - b'0');
                    let wide = match width {
                        Some(width) => len == width,
                        None => len == 1 || text[at] != b'0',
                    };
                    if wide && (first..=last).contains(&value) {
                        next[at + len] = true;
                    }
                }
            }
        }
    }
    next
}

/// Whether wild cards match this character.
fn is_wild(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-,=._".contains(&byte)
}

fn range(text: &str) -> Option<(&str, u64, u64)> {
    let (first, last) = text.split_once('-')?;
    let digits = |text: &str| {
        (!text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit()))
            .then(|| text.parse::<u64>().ok())
            .flatten()
    };
    let (low, high) = (digits(first)?, digits(last)?);
    (low <= high).then_some((first, low, high))
}

fn number(text: &str) -> Option<Piece> {
    let (first, low, high) = range(text)?;
    let width = (first.len() > 1 && first.starts_with('0')).then_some(first.len());
    Some(Piece::Number(low, high, width))
}

fn ports(text: &str) -> Option<(u8, u8)> {
    let (_, low, high) = range(text)?;
    Some((low.try_into().ok()?, high.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, description: &str) -> bool {
        NodePattern::read(pattern).unwrap().matches(description, 1)
    }

    #[test]
    fn wild_cards_match_as_documented() {
        for (pattern, yes, no) in [
            ("Some Name", &["Some Name"][..], &["Some Name2", "some name", "Some"][..]),
            ("SWITCH*", &["SWITCH", "SWITCH-1,a=b._"], &["ASWITCH", "SWITCH 1"]),
            ("*Rack1*", &["Rack1", "a-Rack1.b"], &["Rack2", "a Rack1"]),
            ("HFI?", &["HFI", "HFI1"], &["HFI12", "HFI "]),
            ("node[1-4]", &["node1", "node4"], &["node0", "node5", "node01", "node"]),
            ("node[06-10]", &["node06", "node10"], &["node6", "node010", "node11"]),
            ("rack[1-2]node[01-02]", &["rack2node01"], &["rack3node01", "rack1node1"]),
            ("n[1-200]0", &["n10", "n1990"], &["n0", "n2010"]),
            ("knoten-ü*", &["knoten-üx"], &["knoten-u"]),
        ] {
            for text in yes {
                assert!(matches(pattern, text), "{pattern} {text}");
            }
            for text in no {
                assert!(!matches(pattern, text), "{pattern} {text}");
            }
        }
    }

    #[test]
    fn port_numbers_may_count() {
        let pattern = NodePattern::read("?SWITCH[0-1]:[2-3]").unwrap();
        assert!(pattern.matches("aSWITCH0", 2) && pattern.matches("SWITCH1", 3));
        assert!(!pattern.matches("SWITCH1", 1) && !pattern.matches("SWITCH2", 2));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for bad in ["", "a[1", "a[1-]", "a[4-1]", "a[x-y]", "a:[1-300]", "a[1]"] {
            assert_eq!(NodePattern::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn no_pattern_takes_long() {
        let pattern = NodePattern::read(&"*".repeat(LEN_MAX)).unwrap();
        assert!(!pattern.matches(&("a".repeat(63) + "!"), 1));
    }
}
