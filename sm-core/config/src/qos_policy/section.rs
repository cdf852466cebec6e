//! Parses the sections of the file, one function each.

use ib_mad::types::{Lifetime, Mtu, Rate, Sl};

use super::super::ranges::Ranges;
use super::cursor::{Cursor, Fault};
use super::place::{Entry, Place, expected_value};
use super::value::{Name, nearest, port_name};
use super::{
    GROUPS_MAX, Level, MatchRule, NodeTypes, PortGroup, QosPolicy, RULES_MAX, Reason, setup, ulp,
};

const TOP: &[&str] = &["port-groups", "qos-setup", "qos-levels", "qos-match-rules", "qos-ulps"];

/// Parses the whole file; the error lists all faults.
pub(super) fn policy(text: &str) -> Result<QosPolicy, Vec<Fault>> {
    let mut cursor = Cursor::new(text);
    let read = sections(&mut cursor);
    match read {
        Ok(policy) if cursor.faults() == 0 => Ok(policy),
        read => Err(cursor.into_faults(read.err())),
    }
}

/// Parses all sections. The result is valid only if no fault was recorded at the cursor.
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
    // Groups and levels may be defined after the rules that refer to them.
    for rule in rules {
        let rule = rule.resolve(cursor, &policy)?;
        policy.rules.push(rule);
    }
    Ok(policy)
}

fn limit(count: usize, most: usize, line: usize) -> Result<(), Fault> {
    if count > most { Err((line, Reason::TooMany)) } else { Ok(()) }
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
        // The level is kept, for the rules that refer to it.
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

/// A rule whose groups and level are still names, with line numbers.
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
    /// Resolves the rule's names; names that refer to nothing are recorded as faults and left out.
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

/// Finds the first of `names` that equals `name`; returns its index.
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
