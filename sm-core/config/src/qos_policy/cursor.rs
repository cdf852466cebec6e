//! Splits the file into logical lines.

use super::Reason;

/// A line number, from 1, and the error there.
pub(super) type Fault = (usize, Reason);

/// Number of errors after which parsing stops: the file is not a policy at all.
const FAULTS_MAX: usize = 1000;

/// Keywords that open or close a section. Several may share a line with each other and with the
/// text that follows.
const SECTION_WORDS: &[&str] = &[
    "qos-ulps",
    "end-qos-ulps",
    "port-groups",
    "end-port-groups",
    "port-group",
    "end-port-group",
    "qos-setup",
    "end-qos-setup",
    "vlarb-tables",
    "end-vlarb-tables",
    "vlarb-scope",
    "end-vlarb-scope",
    "sl2vl-tables",
    "end-sl2vl-tables",
    "sl2vl-scope",
    "end-sl2vl-scope",
    "qos-levels",
    "end-qos-levels",
    "qos-level",
    "end-qos-level",
    "qos-match-rules",
    "end-qos-match-rules",
    "qos-match-rule",
    "end-qos-match-rule",
];

/// Whether `word` opens or closes a section.
pub(super) fn is_section_word(word: &str) -> bool {
    SECTION_WORDS.contains(&word)
}

/// A logical line: trimmed and without comment, joined with the next ones where it ends in a comma;
/// or one section keyword of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Number of its first line, from 1.
    pub(super) number: usize,
    /// Its text, never empty.
    pub(super) text: String,
}

/// Iterates over the logical lines of a file, and collects errors.
pub(super) struct Cursor<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    /// The rest of a line that began with a section keyword.
    rest: Option<Line>,
    /// Number of lines read so far.
    last: usize,
    /// Errors so far.
    faults: Vec<Fault>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { lines: text.lines().enumerate(), rest: None, last: 1, faults: Vec::new() }
    }

    /// Records an error so that parsing can continue with the rest of the file. Errors that leave
    /// open where the rest belongs are returned instead.
    pub(super) fn note<T>(&mut self, result: Result<T, Fault>) -> Result<Option<T>, Fault> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err((_, Reason::NotClosed { .. } | Reason::TooMany)) => result.map(Some),
            Err(fault) if self.faults.len() >= FAULTS_MAX => Err(fault),
            Err(fault) => {
                self.faults.push(fault);
                Ok(None)
            }
        }
    }

    /// Number of errors so far.
    pub(super) fn faults(&self) -> usize {
        self.faults.len()
    }

    /// All errors in the order of lines; `end` is the error that ended parsing.
    pub(super) fn into_faults(self, end: Option<Fault>) -> Vec<Fault> {
        let mut faults = self.faults;
        // A section open at the end may lack an `end-` line only because that line was rejected.
        let follows = matches!(end, Some((_, Reason::NotClosed { .. }))) && !faults.is_empty();
        faults.extend(end.filter(|_| !follows));
        faults.sort_by_key(|(line, _)| *line);
        faults
    }

    /// The next logical line.
    pub(super) fn next(&mut self) -> Option<Line> {
        let mut line = match self.rest.take() {
            Some(rest) => rest,
            None => self.logical()?,
        };
        let end = line.text.find([' ', '\t']).unwrap_or(line.text.len());
        let rest = line.text[end..].trim();
        if is_section_word(&line.text[..end]) && !rest.is_empty() && !rest.starts_with(':') {
            self.rest = Some(Line { number: line.number, text: rest.to_owned() });
            line.text.truncate(end);
        }
        Some(line)
    }

    /// Number of the line read last.
    pub(super) fn last(&self) -> usize {
        self.last
    }

    fn logical(&mut self) -> Option<Line> {
        let mut line = self.physical()?;
        while line.text.ends_with(',') && !is_description(&line.text) {
            let Some(next) = self.physical() else { break };
            line.text.push(' ');
            line.text.push_str(&next.text);
        }
        Some(line)
    }

    fn physical(&mut self) -> Option<Line> {
        for (index, line) in self.lines.by_ref() {
            self.last = index + 1;
            let text = without_comment(line).trim();
            if !text.is_empty() {
                return Some(Line { number: index + 1, text: text.to_owned() });
            }
        }
        None
    }
}

/// Whether a line is `use: text`, which may end in a comma without being continued.
fn is_description(text: &str) -> bool {
    text.split_once(':').is_some_and(|(key, _)| key.trim_end() == "use")
}

/// The text before the `#` that begins a comment; a `#` within quotes does not.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            // A quote that is never closed is an ordinary character.
            b'"' => quoted = !quoted && line[at + 1..].contains('"'),
            b'#' if !quoted => return &line[..at],
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(usize, String)> {
        let mut cursor = Cursor::new(text);
        std::iter::from_fn(|| cursor.next()).map(|line| (line.number, line.text)).collect()
    }

    #[test]
    fn comments_and_blanks_say_nothing() {
        let text = "# a\n\n\t name: x # y\n  name: \"a # b\" # c\nname: \"a # b";
        let expected = [(3, "name: x"), (4, "name: \"a # b\""), (5, "name: \"a")];
        assert_eq!(lines(text), expected.map(|(number, text)| (number, text.to_owned())));
    }

    #[test]
    fn a_list_goes_on_after_a_comma_but_a_description_does_not() {
        let text = "port-guid: 1, # one\n\n 2,\n3\nuse: a, b,\nend-port-group";
        let expected = [(1, "port-guid: 1, 2, 3"), (5, "use: a, b,"), (6, "end-port-group")];
        assert_eq!(lines(text), expected.map(|(number, text)| (number, text.to_owned())));
    }

    #[test]
    fn sections_may_share_a_line() {
        let text = "qos-levels qos-level name: x\nend-qos-level end-qos-levels";
        let texts: Vec<String> = lines(text).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            texts,
            ["qos-levels", "qos-level", "name: x", "end-qos-level", "end-qos-levels"]
        );
    }
}
