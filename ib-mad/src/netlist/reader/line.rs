//! Parsers of parts of a line: node lines, port lines, numbers and GUIDs.

use std::ops::RangeInclusive;

use crate::text::cut;
use crate::types::Guid;

use super::super::{
    LinkRate, LinkSpeed, NAME_LEN_MAX, NODE_ID_LEN_MAX, NodeKind, PORTS_MAX, Problem,
};

/// VLCap code of 15 data VLs, the maximum.
const VL_CAP_MAX: u8 = 5;

/// A node's line: `Switch 36 "S-0002c90200000001" # "leaf001" enhanced port 0 lid 3 lmc 0`.
pub(super) struct NodeLine<'a> {
    pub(super) ports: u8,
    pub(super) id: &'a str,
    pub(super) description: Option<&'a str>,
    pub(super) enhanced_port0: bool,
    pub(super) lid: u16,
    pub(super) lmc: u8,
}

/// A port's line: `[1](2c90300000002) "S-0002c90200000001"[4] # lid 5 lmc 0 "leaf001" lid 3 4xHDR`.
pub(super) struct PortLine<'a> {
    pub(super) is_alias: bool,
    /// Not parsed yet, so that an error can show it.
    pub(super) number: &'a str,
    pub(super) guid: Option<Guid>,
    pub(super) peer: &'a str,
    /// Not parsed yet; empty if the file omits it.
    pub(super) peer_port: &'a str,
    pub(super) peer_guid: Option<Guid>,
    pub(super) rate: Option<LinkRate>,
    pub(super) lid: u16,
    pub(super) lmc: u8,
    pub(super) vl_cap: u8,
}

/// Parses the keyword of a node line: returns the node type, the keyword for errors, and the rest.
pub(super) fn node_keyword(line: &str) -> Option<(NodeKind, &'static str, &str)> {
    let keywords = [
        ("Switch", NodeKind::Switch),
        ("Ca", NodeKind::Ca),
        ("Hca", NodeKind::Ca),
        ("Rt", NodeKind::Router),
    ];
    keywords.into_iter().find_map(|(keyword, kind)| {
        let rest = line.strip_prefix(keyword)?;
        let ends = rest.is_empty() || rest.starts_with([' ', '\t']);
        ends.then_some((kind, keyword, rest))
    })
}

impl<'a> NodeLine<'a> {
    pub(super) fn parse(keyword: &'static str, rest: &'a str) -> Result<Self, Problem> {
        let missing = |missing| Problem::NodeLine { keyword, missing };
        let rest = rest.trim_start();
        let end = rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len());
        let (count, rest) = rest.split_at(end);
        if count.is_empty() {
            return Err(missing("the number of ports"));
        }
        let ports = count.parse().ok().filter(|ports| (1..=PORTS_MAX).contains(ports));
        let ports = ports.ok_or_else(|| Problem::PortCount { text: count.to_owned() })?;
        let (id, rest) = quoted(rest).ok_or_else(|| missing("the quoted id"))?;
        if id.is_empty() || id.len() > NODE_ID_LEN_MAX || id.contains(['#', '@']) {
            return Err(Problem::NodeId { id: id.to_owned() });
        }
        let mut line = Self { ports, id, description: None, enhanced_port0: false, lid: 0, lmc: 0 };
        let Some((_, comment)) = rest.split_once('#') else { return Ok(line) };
        let (description, tail) = description(comment.trim_start());
        // That a name is longer makes no topology invalid: any host chooses its own, and so do
        // operators in a map of names.
        let description = cut(description, NAME_LEN_MAX);
        line.description = Some(description).filter(|text| !text.is_empty());
        line.enhanced_port0 = tail.contains("enhanced port 0");
        (line.lid, line.lmc) = lid_and_lmc(tail)?;
        Ok(line)
    }
}

/// Splits a node line's comment into the description and the rest. An unquoted description ends at
/// the first item that `ibnetdiscover` writes after it.
fn description(comment: &str) -> (&str, &str) {
    if let Some(open) = comment.strip_prefix('"') {
        // The last quote, since a description may contain some.
        return match open.rfind('"') {
            Some(close) => (&open[..close], &open[close + 1..]),
            None => (open, ""),
        };
    }
    let ends = [" enhanced port ", " base port ", " lid ", " lmc "];
    let end = ends.iter().filter_map(|end| comment.find(end)).min().unwrap_or(comment.len());
    (comment[..end].trim_end(), &comment[end..])
}

impl<'a> PortLine<'a> {
    /// Parses a port line; `default` is the rate of a port whose line states none.
    pub(super) fn parse(line: &'a str, kind: NodeKind, default: LinkRate) -> Result<Self, Problem> {
        let missing = |missing| Problem::PortLine { missing };
        let is_alias = line.starts_with('@');
        let line = line.trim_start_matches('@');
        let (number, rest) = bracketed(line).ok_or_else(|| missing("the ']'"))?;
        let (guid, rest) = after_port(rest);
        let (peer, rest) = quoted(rest).ok_or_else(|| missing("the peer's id in quotes"))?;
        let (peer_port, rest) = bracketed(rest.trim_start()).unwrap_or(("", rest));
        let (peer_guid, rest) = after_port(rest);
        let (options, comment) = rest.split_once('#').unwrap_or((rest, ""));
        // The peer's description may contain anything, quotes too.
        let (head, tail) = match (comment.find('"'), comment.rfind('"')) {
            (Some(first), Some(last)) => (&comment[..first], &comment[last + 1..]),
            _ => ("", comment),
        };
        let (lid, lmc) = if kind == NodeKind::Switch { (0, 0) } else { lid_and_lmc(head)? };
        let rate = match rate_of_options(options, default)? {
            Some(rate) => Some(rate),
            None => annotated_rate(tail)?,
        };
        let vl_cap = annotated_vl_cap(tail)?;
        Ok(Self { is_alias, number, guid, peer, peer_port, peer_guid, rate, lid, lmc, vl_cap })
    }
}

/// Parses what may follow a port number: a chassis's external port, `[ext 3]`, and the port GUID.
fn after_port(text: &str) -> (Option<Guid>, &str) {
    let text = text.trim_start();
    let outer = if text.starts_with("[ext") { bracketed(text) } else { None };
    let text = outer.map_or(text, |(_, rest)| rest.trim_start());
    match parenthesised_guid(text) {
        Some((guid, rest)) => (Some(guid), rest),
        None => (None, text),
    }
}

/// The masks `w=`, `s=` and `e=` after a port's peer.
fn rate_of_options(options: &str, default: LinkRate) -> Result<Option<LinkRate>, Problem> {
    let mut rate = default;
    let (mut speed, mut extended) = (None, None);
    let mut given = false;
    for (key, value) in options.split_whitespace().filter_map(|option| option.split_once('=')) {
        given = true;
        match key {
            "w" => rate.width = super::width_mask(value)?,
            // 0 means the fastest speed of this mask.
            "s" => speed = Some(mask("speed", value, 0..=7)?).map(|s| if s == 0 { 7 } else { s }),
            "e" => extended = Some(mask("extspeed", value, 0..=31)?),
            _ => {}
        }
    }
    if speed.is_some() || extended.is_some() {
        let speed = speed.unwrap_or(default.speed.mask_up_to());
        let extended = extended.unwrap_or(default.speed.extended_mask_up_to());
        rate.speed = LinkSpeed::fastest_of(speed, extended).unwrap_or(default.speed);
    }
    Ok(given.then_some(rate))
}

/// The rate in `lid 3 4xHDR`, which ends a port line of `ibnetdiscover`.
fn annotated_rate(tail: &str) -> Result<Option<LinkRate>, Problem> {
    let mut words = tail.split_whitespace();
    let is_annotation = words.next() == Some("lid")
        && words.next().is_some_and(|lid| lid.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(text) = words.next().filter(|_| is_annotation) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| Problem::Rate { text: text.to_owned() })
}

/// The code in `lid 3 4xHDR s=4 w=2 v=4`, as `ibnetdiscover -f` writes it; 0 without one.
fn annotated_vl_cap(tail: &str) -> Result<u8, Problem> {
    let Some(text) = tail.split_whitespace().find_map(|word| word.strip_prefix("v=")) else {
        return Ok(0);
    };
    let code = text.parse().ok().filter(|&code: &u8| code <= VL_CAP_MAX);
    let max = VL_CAP_MAX.into();
    code.ok_or_else(|| Problem::Hint { what: "VLCap", text: text.to_owned(), max })
}

/// The numbers after the words `lid` and `lmc`; 0 for missing ones.
fn lid_and_lmc(text: &str) -> Result<(u16, u8), Problem> {
    let value = |key: &str, what, max: u16| {
        let mut words = text.split_whitespace().skip_while(|&word| word != key).skip(1);
        let Some(word) = words.next() else { return Ok(0) };
        let value = word.parse().ok().filter(|&value: &u16| value <= max);
        value.ok_or_else(|| Problem::Hint { what, text: word.to_owned(), max })
    };
    Ok((value("lid", "unicast LID", 0xBFFF)?, value("lmc", "LMC", 7)? as u8))
}

/// The text between the first two double quotes, and the rest.
pub(super) fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once('"')?;
    rest.split_once('"')
}

/// The text in brackets at the start, and the rest.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let (inner, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((inner.trim(), rest))
}

/// The GUID in parentheses at the start, and the rest.
pub(super) fn parenthesised_guid(text: &str) -> Option<(Guid, &str)> {
    let (inner, rest) = text.strip_prefix('(')?.split_once(')')?;
    Some((inner.trim().parse().ok()?, rest))
}

/// The hexadecimal number at the start, and the rest.
pub(super) fn leading_guid(text: &str) -> Option<(u64, &str)> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    Some((u64::from_str_radix(&digits[..end], 16).ok()?, digits[end..].trim_start()))
}

/// A number of at most `bits` bits, decimal or with `0x`.
pub(super) fn number(key: &str, value: &str, bits: u32) -> Result<u32, Problem> {
    let parsed = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    };
    let fits = parsed.filter(|number| number >> bits == 0);
    fits.ok_or_else(|| Problem::Number { key: key.to_owned(), value: value.to_owned(), bits })
}

/// A mask within `range`.
pub(super) fn mask(
    key: &'static str,
    value: &str,
    range: RangeInclusive<u8>,
) -> Result<u8, Problem> {
    let parsed = number(key, value, 8).ok().map(|mask| mask as u8);
    let valid = parsed.filter(|mask| range.contains(mask));
    valid.ok_or_else(|| Problem::Mask { key, value: value.to_owned() })
}
