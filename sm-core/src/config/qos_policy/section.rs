//! The sections of the file, one function each.

use ib_mad::types::{Lifetime, Mtu, Rate, Sl};

use super::super::ranges::Ranges;
use super::cursor::{Cursor, Fault, Line, is_section_word};
use super::value::{Name, names, nearest, number, pkeys, port_name, ranges};
use super::{
    GROUPS_MAX, Level, MatchRule, NodeTypes, PortGroup, QosPolicy, RULES_MAX, Reason, setup, ulp,
};

const TOP: &[&str] = &["port-groups", "qos-setup", "qos-levels", "qos-match-rules", "qos-ulps"];

/// The whole file, or all that is wrong with it.
pub(super) fn policy(text: &str) -> Result<QosPolicy, Vec<Fault>> {
    let mut cursor = Cursor::new(text);
    let read = sections(&mut cursor);
    match read {
        Ok(policy) if cursor.faults() == 0 => Ok(policy),
        read => Err(cursor.into_faults(read.err())),
    }
}

/// The sections. Only if nothing was noted at the cursor, all of it counts.
fn sections(cursor: &mut Cursor<'_>) -> Result<QosPolicy, Fault> {
    let mut policy = QosPolicy::default();
    let mut rules: Vec<NamedRule> = Vec::new();
    while let Some(line) = cursor.next() {
        let opened = line.number;
        match line.text.as_str() {
            "port-groups" => {
                let place = Place::new("port-groups", &["port-group"], opened);
                while let Some(at) = place.next_of(cursor, "port-group")? {
                    policy.port_groups.extend(port_group(cursor, at)?);
                    limit(policy.port_groups.len(), GROUPS_MAX, at)?;
                }
            }
            "qos-levels" => {
                let place = Place::new("qos-levels", &["qos-level"], opened);
                while let Some(at) = place.next_of(cursor, "qos-level")? {
                    policy.levels.extend(level(cursor, at)?);
                    limit(policy.levels.len(), GROUPS_MAX, at)?;
                }
            }
            "qos-match-rules" => {
                let place = Place::new("qos-match-rules", &["qos-match-rule"], opened);
                while let Some(at) = place.next_of(cursor, "qos-match-rule")? {
                    rules.extend(match_rule(cursor, at)?);
                    limit(rules.len() + policy.ulps.len(), RULES_MAX, at)?;
                }
            }
            "qos-ulps" => {
                let place = Place::new("qos-ulps", ulp::EXPECTED, opened);
                while let Some(line) = place.next(cursor)? {
                    let parsed = ulp::parse(&line).map_err(|reason| (line.number, reason));
                    match cursor.note(parsed)? {
                        Some(ulp::Parsed::Default(sl)) => policy.default_sl = Some(sl),
                        Some(ulp::Parsed::Rule(rule)) => policy.ulps.push(rule),
                        None => {}
                    }
                    limit(rules.len() + policy.ulps.len(), RULES_MAX, line.number)?;
                }
            }
            "qos-setup" => setup::section(cursor, opened)?,
            _ => return Err((opened, Reason::keyword(&line.text, "the file", TOP))),
        }
    }
    // Groups and levels may stand behind the rules that name them.
    for rule in rules {
        let rule = rule.resolve(cursor, &policy)?;
        policy.rules.push(rule);
    }
    Ok(policy)
}

impl Reason {
    /// The refusal of a line that begins with no keyword of `place`.
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

fn limit(count: usize, most: usize, line: usize) -> Result<(), Fault> {
    if count > most { Err((line, Reason::TooMany)) } else { Ok(()) }
}

/// A section that is open.
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

    /// The line of the next section `word` within this one; `None` when this one is closed.
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

    pub(super) fn refuse(&self, line: &Line) -> Fault {
        if is_section_word(&line.text) && !self.expected.contains(&line.text.as_str()) {
            // What begins here belongs elsewhere, so this section should have ended.
            let (place, opened) = (self.name, self.opened);
            return (line.number, Reason::NotClosed { place, opened });
        }
        (line.number, Reason::keyword(&line.text, self.name, self.expected))
    }

    /// Notes that `key` is not there, unless a line of this section was refused that may have been
    /// it: there were `before` faults ahead of it.
    fn missing(
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

    /// Sets what may be set once.
    fn once<T>(&self, slot: &mut Option<T>, entry: &Entry, value: T) -> Result<(), Fault> {
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
    fn at<T>(&self, result: Result<T, Reason>) -> Result<T, Fault> {
        result.map_err(|reason| (self.line, reason))
    }

    fn number(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, Fault> {
        self.at(number(self.key, &self.value, range, expected_value(self.key)))
    }

    fn ranges(&self, last: u64) -> Result<Ranges, Fault> {
        self.at(ranges(self.key, &self.value, last, expected_value(self.key)))
    }

    fn pkeys(&self) -> Result<Ranges, Fault> {
        self.at(pkeys(self.key, &self.value))
    }

    fn names(&self) -> Result<Vec<Name>, Fault> {
        self.at(names(self.key, &self.value))
    }

    /// One name. A comma has no place in it.
    fn name(&self) -> Result<Name, Fault> {
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

/// What a keyword takes, in words.
fn expected_value(key: &str) -> &'static str {
    match key {
        "name" | "qos-level-name" => "a name",
        "use" => "a description",
        "port-guid" => "GUIDs and ranges such as 0x2c903000001-0x2c9030000ff",
        "port-name" => "node descriptions with port numbers, such as \"vs1 HCA-1/P1\"",
        "partition" => "names of partitions",
        "node-type" => "CA, SWITCH, ROUTER, ALL, SELF, with commas between",
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

fn port_group(cursor: &mut Cursor<'_>, opened: usize) -> Result<Option<PortGroup>, Fault> {
    const KEYS: &[&str] =
        &["name", "use", "port-guid", "port-name", "pkey", "partition", "node-type"];
    let place = Place::new("port-group", KEYS, opened);
    let (mut name, mut usage) = (None, None);
    let mut group = PortGroup { line: opened, ..PortGroup::default() };
    let before = cursor.faults();
    while let Some(entry) = place.next_entry(cursor)? {
        let mut take = || -> Result<(), Fault> {
            match entry.key {
                "name" => place.once(&mut name, &entry, entry.name()?)?,
                "use" => place.once(&mut usage, &entry, description(&entry.value))?,
                "port-guid" => group.port_guids.extend(&entry.ranges(u64::MAX)?),
                "port-name" => {
                    for name in entry.names()? {
                        group.port_names.push(entry.at(port_name(entry.line, &name))?);
                    }
                }
                "pkey" => group.pkeys.extend(&entry.pkeys()?),
                "partition" => group.partitions.extend(entry.names()?),
                _ => node_types(&entry, &mut group.node_types)?,
            }
            Ok(())
        };
        cursor.note(take())?;
    }
    let Some(name) = name else { return place.missing(cursor, before, "name").map(|()| None) };
    group.name = name;
    group.usage = usage.unwrap_or_default();
    Ok(Some(group))
}

fn description(text: &str) -> String {
    text.replace('"', "").trim().to_owned()
}

fn node_types(entry: &Entry, types: &mut NodeTypes) -> Result<(), Fault> {
    for word in entry.value.split(',') {
        match word.trim().to_ascii_uppercase().as_str() {
            "CA" => types.ca = true,
            "SWITCH" => types.switch = true,
            "ROUTER" => types.router = true,
            "SELF" => types.sm = true,
            "ALL" => (types.ca, types.switch, types.router) = (true, true, true),
            _ => {
                let (key, expected) = (entry.key, expected_value(entry.key));
                let got = word.trim().to_owned();
                return Err((entry.line, Reason::Malformed { key, expected, got }));
            }
        }
    }
    Ok(())
}

fn level(cursor: &mut Cursor<'_>, opened: usize) -> Result<Option<Level>, Fault> {
    const KEYS: &[&str] =
        &["name", "use", "sl", "mtu-limit", "rate-limit", "packet-life", "path-bits", "pkey"];
    let place = Place::new("qos-level", KEYS, opened);
    let (mut name, mut usage, mut sl) = (None, None, None);
    let (mut mtu_limit, mut rate_limit, mut packet_life) = (None, None, None);
    let (mut path_bits, mut pkeys) = (Ranges::default(), Ranges::default());
    let before = cursor.faults();
    while let Some(entry) = place.next_entry(cursor)? {
        let mut take = || -> Result<(), Fault> {
            match entry.key {
                "name" => place.once(&mut name, &entry, entry.name()?)?,
                "use" => place.once(&mut usage, &entry, description(&entry.value))?,
                "sl" => place.once(&mut sl, &entry, entry.number(0..=15)?)?,
                "mtu-limit" => {
                    let code = entry.number(1..=5)? as u8;
                    place.once(&mut mtu_limit, &entry, Mtu::from_code(code))?;
                }
                "rate-limit" => {
                    let code = entry.number(2..=24)? as u8;
                    place.once(&mut rate_limit, &entry, Rate::from_code(code))?;
                }
                "packet-life" => {
                    let code = entry.number(0..=63)? as u8;
                    place.once(&mut packet_life, &entry, Lifetime::from_low_bits(code))?;
                }
                "path-bits" => path_bits.extend(&entry.ranges(u64::from(u32::MAX))?),
                _ => pkeys.extend(&entry.pkeys()?),
            }
            Ok(())
        };
        cursor.note(take())?;
    }
    let Some(name) = name else { return place.missing(cursor, before, "name").map(|()| None) };
    if sl.is_none() {
        // The level is there all the same, for the rules that name it.
        place.missing(cursor, before, "sl")?;
    }
    Ok(Some(Level {
        name,
        usage: usage.unwrap_or_default(),
        line: opened,
        sl: Sl::from_low_bits(sl.unwrap_or_default() as u16),
        mtu_limit: mtu_limit.flatten(),
        rate_limit: rate_limit.flatten(),
        packet_life,
        path_bits,
        pkeys,
    }))
}

/// A rule whose groups and level are names yet, with the lines where they stand.
struct NamedRule {
    usage: String,
    line: usize,
    qos_classes: Ranges,
    sources: Vec<(usize, Name)>,
    destinations: Vec<(usize, Name)>,
    service_ids: Ranges,
    pkeys: Ranges,
    level: (usize, Name),
}

fn match_rule(cursor: &mut Cursor<'_>, opened: usize) -> Result<Option<NamedRule>, Fault> {
    const KEYS: &[&str] =
        &["use", "qos-class", "qos-level-name", "source", "destination", "service-id", "pkey"];
    let place = Place::new("qos-match-rule", KEYS, opened);
    let (mut usage, mut level) = (None, None);
    let (mut sources, mut destinations) = (Vec::new(), Vec::new());
    let mut qos_classes = Ranges::default();
    let (mut service_ids, mut pkeys) = (Ranges::default(), Ranges::default());
    let before = cursor.faults();
    while let Some(entry) = place.next_entry(cursor)? {
        let numbered = |names: Vec<Name>| names.into_iter().map(|name| (entry.line, name));
        let mut take = || -> Result<(), Fault> {
            match entry.key {
                "use" => place.once(&mut usage, &entry, description(&entry.value))?,
                "qos-level-name" => place.once(&mut level, &entry, (entry.line, entry.name()?))?,
                "source" => sources.extend(numbered(entry.names()?)),
                "destination" => destinations.extend(numbered(entry.names()?)),
                "qos-class" => qos_classes.extend(&entry.ranges(0xFFF)?),
                "service-id" => service_ids.extend(&entry.ranges(u64::MAX)?),
                _ => pkeys.extend(&entry.pkeys()?),
            }
            Ok(())
        };
        cursor.note(take())?;
    }
    let Some(level) = level else {
        return place.missing(cursor, before, "qos-level-name").map(|()| None);
    };
    Ok(Some(NamedRule {
        usage: usage.unwrap_or_default(),
        line: opened,
        qos_classes,
        sources,
        destinations,
        service_ids,
        pkeys,
        level,
    }))
}

impl NamedRule {
    /// The rule with what its names stand for; those that stand for nothing are noted and left out.
    fn resolve(self, cursor: &mut Cursor<'_>, policy: &QosPolicy) -> Result<MatchRule, Fault> {
        let groups = || policy.port_groups.iter().map(|group| &group.name);
        let levels = || policy.levels.iter().map(|level| &level.name);
        let mut all = |names: &[(usize, Name)]| {
            let mut places = Vec::with_capacity(names.len());
            for (line, name) in names {
                places.extend(cursor.note(find("port group", *line, name, groups))?);
            }
            Ok::<_, Fault>(places)
        };
        let (sources, destinations) = (all(&self.sources)?, all(&self.destinations)?);
        let level = cursor.note(find("qos-level", self.level.0, &self.level.1, levels))?;
        Ok(MatchRule {
            sources,
            destinations,
            level: level.unwrap_or_default(),
            usage: self.usage,
            line: self.line,
            qos_classes: self.qos_classes,
            service_ids: self.service_ids,
            pkeys: self.pkeys,
        })
    }
}

/// The first of `names` that is `name`, by index.
fn find<'a, I: Iterator<Item = &'a Name>>(
    kind: &'static str,
    line: usize,
    name: &Name,
    names: impl Fn() -> I,
) -> Result<usize, Fault> {
    names().position(|known| known.same(name)).ok_or_else(|| {
        let nearest = nearest(name, names());
        (line, Reason::Unknown { kind, name: name.written().to_owned(), nearest })
    })
}
