//! An open section of the file, and its lines: `keyword: value`.

use super::super::ranges::Ranges;
use super::Reason;
use super::cursor::{Cursor, Fault, Line, is_section_word};
use super::value::{Name, names, number, pkeys, ranges};

/// An open section.
#[derive(Clone, Copy)]
pub(super) struct Place {
    name: &'static str,
    expected: &'static [&'static str],
    opened: usize,
}

impl Place {
    pub(super) fn new(
        name: &'static str,
        expected: &'static [&'static str],
        opened: usize,
    ) -> Self {
        Self { name, expected, opened }
    }

    /// The next line of this section; `None` when it is closed.
    pub(super) fn next(&self, cursor: &mut Cursor<'_>) -> Result<Option<Line>, Fault> {
        let not_closed = Reason::NotClosed { place: self.name, opened: self.opened };
        let Some(line) = cursor.next() else { return Err((cursor.last(), not_closed)) };
        match line.text.strip_prefix("end-") {
            Some(ended) if ended == self.name => Ok(None),
            Some(_) if is_section_word(&line.text) => Err((line.number, not_closed)),
            _ => Ok(Some(line)),
        }
    }

    /// The line number of the next section `word` within this one; `None` when this one is closed.
    pub(super) fn next_of(
        &self,
        cursor: &mut Cursor<'_>,
        word: &str,
    ) -> Result<Option<usize>, Fault> {
        while let Some(line) = self.next(cursor)? {
            if line.text == word {
                return Ok(Some(line.number));
            }
            cursor.note::<()>(Err(self.refuse(&line)))?;
        }
        Ok(None)
    }

    /// The next `keyword: value`; `None` when the section is closed.
    pub(super) fn next_entry(&self, cursor: &mut Cursor<'_>) -> Result<Option<Entry>, Fault> {
        while let Some(line) = self.next(cursor)? {
            let entry = self.entry(&line);
            if let Some(entry) = cursor.note(entry)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn entry(&self, line: &Line) -> Result<Entry, Fault> {
        let (word, value) = line.text.split_once(':').unwrap_or((&line.text, ""));
        let Some(key) = self.expected.iter().find(|key| **key == word.trim_end()) else {
            return Err(self.refuse(line));
        };
        let entry = Entry { key, value: value.trim().to_owned(), line: line.number };
        if entry.value.is_empty() {
            let expected = expected_value(key);
            return Err((line.number, Reason::NoValue { key, expected }));
        }
        Ok(entry)
    }

    /// The error of a line that is not valid in this section.
    pub(super) fn refuse(&self, line: &Line) -> Fault {
        if is_section_word(&line.text) && !self.expected.contains(&line.text.as_str()) {
            // This keyword belongs to another section, so an `end-` line is missing.
            let (place, opened) = (self.name, self.opened);
            return (line.number, Reason::NotClosed { place, opened });
        }
        (line.number, Reason::keyword(&line.text, self.name, self.expected))
    }

    /// Records that `key` is missing, unless a line of this section was rejected that may have been
    /// it: there were `before` faults when the section began.
    pub(super) fn missing(
        &self,
        cursor: &mut Cursor<'_>,
        before: usize,
        key: &'static str,
    ) -> Result<(), Fault> {
        if cursor.faults() > before {
            return Ok(());
        }
        let fault = (self.opened, Reason::Missing { key, place: self.name });
        cursor.note::<()>(Err(fault)).map(drop)
    }

    /// Sets a value that may occur only once.
    pub(super) fn once<T>(
        &self,
        slot: &mut Option<T>,
        entry: &Entry,
        value: T,
    ) -> Result<(), Fault> {
        if slot.replace(value).is_some() {
            return Err((entry.line, Reason::Repeated { key: entry.key, place: self.name }));
        }
        Ok(())
    }
}

/// `keyword: value`.
pub(super) struct Entry {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) line: usize,
}

impl Entry {
    pub(super) fn at<T>(&self, result: Result<T, Reason>) -> Result<T, Fault> {
        result.map_err(|reason| (self.line, reason))
    }

    pub(super) fn number(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, Fault> {
        self.at(number(self.key, &self.value, range, expected_value(self.key)))
    }

    pub(super) fn ranges(&self, last: u64) -> Result<Ranges, Fault> {
        self.at(ranges(self.key, &self.value, last, expected_value(self.key)))
    }

    pub(super) fn pkeys(&self) -> Result<Ranges, Fault> {
        self.at(pkeys(self.key, &self.value))
    }

    pub(super) fn names(&self) -> Result<Vec<Name>, Fault> {
        self.at(names(self.key, &self.value))
    }

    /// Parses one name, which must not contain an unquoted comma.
    pub(super) fn name(&self) -> Result<Name, Fault> {
        let mut names = self.names()?;
        let malformed = |got: &str| Reason::Malformed {
            key: self.key,
            expected: "one name; in quotes it may have commas and blanks",
            got: got.to_owned(),
        };
        match (names.pop(), names.is_empty()) {
            (Some(name), true) => Ok(name),
            _ => Err((self.line, malformed(&self.value))),
        }
    }
}

/// Describes the value that a keyword takes.
pub(super) fn expected_value(key: &str) -> &'static str {
    match key {
        "name" | "qos-level-name" => "a name",
        "use" => "a description",
        "port-guid" => "GUIDs and ranges such as 0x2c903000001-0x2c9030000ff",
        "port-name" => "node descriptions with port numbers, such as \"vs1 HCA-1/P1\"",
        "partition" => "names of partitions",
        "node-type" => "CA, SWITCH, ROUTER, ALL, SELF, separated by commas",
        "sl" => "a service level of 0 to 15",
        "mtu-limit" => "an MTU code: 1 is 256, 2 512, 3 1024, 4 2048, 5 4096 bytes",
        "rate-limit" => "a rate code of 2 (2.5 Gb/s) to 24, as in PathRecord",
        "packet-life" => "a lifetime code of 0 to 63, 4.096 us * 2^n",
        "qos-class" => "QoS classes of 12 bits, such as 7-9,11",
        "source" | "destination" | "group" | "across" | "across-to" | "across-from" => {
            "names of port groups"
        }
        "pkey" => "P_Keys and ranges such as 0x8001,0x10-0x1F",
        _ => super::value::RANGES,
    }
}

impl Reason {
    /// The error of a line that begins with no keyword of `place`.
    pub(super) fn keyword(
        text: &str,
        place: &'static str,
        expected: &'static [&'static str],
    ) -> Self {
        let word = text.split([':', ' ', '\t', ',']).next().unwrap_or_default();
        let got = if word.is_empty() { text } else { word };
        Self::Keyword { got: got.chars().take(64).collect(), place, expected }
    }
}
