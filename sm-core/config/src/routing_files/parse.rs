//! Parses lines of routing files as OpenSM does.
//!
//! A line has a GUID and its values; `#` begins a comment, and any further text is ignored. Numbers
//! are written as for C's `strtoull` with base 0. A GUID without `0x` that is not such a number, at
//! which OpenSM would stop reading, is read as hexadecimal.

use std::path::Path;
use std::sync::Arc;

use ib_mad::types::Guid;

use super::super::remarks::Remarks;
use super::{GuidLine, Malformed, PortWeight};
use sm_routing::file::{Dump, HopDump};
use sm_routing::torus;

type Parsed<T> = Result<(T, String), Malformed>;

/// Parses GUIDs without values.
pub(super) fn guids(path: &Path, text: &str, remarks: &mut Remarks) -> Parsed<Vec<GuidLine>> {
    lines(path, text, remarks, |_| Ok(()))
}

/// Parses GUIDs of switches and the numbers that replace them.
pub(super) fn ids(path: &Path, text: &str, remarks: &mut Remarks) -> Parsed<Vec<GuidLine<u64>>> {
    lines(path, text, remarks, |rest| {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        match &rest[..end] {
            "" => Ok(0),
            word => number(word).ok_or_else(|| {
                Fault::File(format!("'{word}' is not an id; add a number after the GUID"))
            }),
        }
    })
}

/// Parses GUIDs of switches, ports, and weights of these.
pub(super) fn hop_weights(
    path: &Path,
    text: &str,
    remarks: &mut Remarks,
) -> Parsed<Vec<GuidLine<PortWeight>>> {
    lines(path, text, remarks, |rest| {
        let (port, rest) = port(rest)?;
        // Any single character may separate them.
        let mut rest = rest.chars();
        rest.next();
        let weight = leading_number(rest.as_str().trim_start())
            .and_then(|(weight, _)| u8::try_from(weight).ok().filter(|&weight| weight > 0));
        let wrong = "no weight; add one from 1 to 255 after the port";
        Ok(PortWeight { port, weight: weight.ok_or_else(|| Fault::Line(wrong.to_owned()))? })
    })
}

/// Parses GUIDs of switches, and their ports in order of preference.
pub(super) fn port_orders(
    path: &Path,
    text: &str,
    remarks: &mut Remarks,
) -> Parsed<Vec<GuidLine<Vec<u8>>>> {
    lines(path, text, remarks, |mut rest| {
        let mut ports = Vec::new();
        while !rest.is_empty() && !rest.starts_with('#') {
            let (port, after) = port(rest)?;
            if ports.contains(&port) {
                return Err(Fault::Line(format!("port {port} is listed twice")));
            }
            ports.push(port);
            rest = after.trim_start();
        }
        if ports.is_empty() {
            return Err(Fault::Line("no port".to_owned()));
        }
        Ok(ports)
    })
}

/// Parses GUIDs of switches, and a port of each.
pub(super) fn ignored_ports(
    path: &Path,
    text: &str,
    remarks: &mut Remarks,
) -> Parsed<Vec<GuidLine<u8>>> {
    lines(path, text, remarks, |rest| Ok(port(rest)?.0))
}

/// Parses forwarding tables by switch.
pub(super) fn lfts(_: &Path, text: &str, _: &mut Remarks) -> Parsed<Dump> {
    let dump = Dump::parse(text)
        .map_err(|error| (error.line, format!("{}; {}", error.wrong, error.right)))?;
    let count = dump.switches.len().to_string();
    Ok((dump, count))
}

/// Parses hop counts by switch.
pub(super) fn hops(_: &Path, text: &str, _: &mut Remarks) -> Parsed<HopDump> {
    let dump = HopDump::parse(text)
        .map_err(|error| (error.line, format!("{}; {}", error.wrong, error.right)))?;
    let count = dump.switches.len().to_string();
    Ok((dump, count))
}

/// Parses a torus; the summary has its shape as in the file (`m`: not a ring) and the number of
/// seeds.
pub(super) fn torus(path: &Path, text: &str, remarks: &mut Remarks) -> Parsed<Arc<torus::Config>> {
    let mut report = |line, odd: &str| remarks.add(path, Some(line), odd);
    let config = torus::Config::parse_and_report(text, &mut report)
        .map_err(|error| (error.line, error.reason.to_string()))?;
    let axis = |axis: usize| {
        let way = if config.shape.wraps(axis) { "" } else { "m" };
        format!("{}{way}", config.shape.radix(axis))
    };
    let what = format!("{} {} {}, seeds: {}", axis(0), axis(1), axis(2), config.seeds.len());
    Ok((Arc::new(config), what))
}

/// An error in a line.
enum Fault {
    /// OpenSM ignores the line.
    Line(String),
    /// OpenSM stops reading.
    File(String),
}

fn lines<T>(
    path: &Path,
    text: &str,
    remarks: &mut Remarks,
    mut value: impl FnMut(&str) -> Result<T, Fault>,
) -> Parsed<Vec<GuidLine<T>>> {
    let mut all = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let end = content.find(|c: char| c.is_whitespace() || c == '#').unwrap_or(content.len());
        let (word, rest) = content.split_at(end);
        let guid = guid(word).ok_or_else(|| {
            let reason = format!(
                "'{word}' is not a GUID; the line must begin with one, such as 0x0002c90300000001"
            );
            (line, reason)
        })?;
        if !is_hexadecimal(word) {
            let reading = format!("'{word}' has no 0x and is read as GUID {guid}, as by OpenSM");
            remarks.add(path, Some(line), &reading);
        }
        match value(rest.trim_start()) {
            Ok(value) => all.push(GuidLine { line, guid, value }),
            Err(Fault::Line(reason)) => {
                remarks.pass_over(path, line, &reason);
            }
            Err(Fault::File(reason)) => return Err((line, reason)),
        }
    }
    let count = all.len().to_string();
    Ok((all, count))
}

fn guid(word: &str) -> Option<Guid> {
    let bare = || u64::from_str_radix(word, 16).ok().filter(|_| !word.starts_with('+'));
    number(word).or_else(bare).map(Guid)
}

/// Whether a GUID as written is unambiguously hexadecimal.
fn is_hexadecimal(word: &str) -> bool {
    word.starts_with("0x") || word.starts_with("0X") || number(word).is_none()
}

/// Parses a word that is a number as a whole.
fn number(word: &str) -> Option<u64> {
    leading_number(word).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number)
}

/// Parses a port number, which must not be 0; returns it and the rest of the text.
fn port(text: &str) -> Result<(u8, &str), Fault> {
    let port = leading_number(text);
    let port = port.and_then(|(port, rest)| Some((u8::try_from(port).ok()?, rest)));
    port.filter(|&(port, _)| port > 0).ok_or_else(|| {
        let word = text.split_whitespace().next().unwrap_or("");
        Fault::Line(format!("'{word}' is not a port number (1 to 254)"))
    })
}

/// Parses the number at the start of a text; returns it and the rest.
fn leading_number(text: &str) -> Option<(u64, &str)> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let hex = hex.filter(|digits| digits.starts_with(|c: char| c.is_ascii_hexdigit()));
    let (digits, radix) = match hex {
        Some(digits) => (digits, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    Some((u64::from_str_radix(&digits[..end], radix).ok()?, &digits[end..]))
}
