//! Parses dumps of forwarding tables, in both text forms that OpenSM writes.
//!
//! ```text
//! Unicast lids [0x0-0x1c] of switch Lid 5 guid 0x0002c90000000005 (spine):    opensm-lfts.dump,
//! 0x0001 001 : (Channel Adapter portguid 0x0002c90000000101: 'host 1')        dump_lfts.sh,
//!                                                                             ibroute
//!
//! dump_ucast_routes: Switch 0x0002c90000000005                                opensm.fdbs
//! 0x0001 : 001  : 02   : yes
//! 0x0002 : UNREACHABLE
//! ```
//!
//! Lines that begin neither a switch section nor with a LID are headings. Comments begin with `#`.

use ib_mad::types::{Guid, Lid};

/// The forwarding tables of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Sections in the order of the text, one per switch.
    pub switches: Vec<Section<Entry>>,
}

/// The section of a dump for one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section<E> {
    /// The switch's node GUID.
    pub guid: Guid,
    /// Entries in the order of the text.
    pub entries: Vec<E>,
}

/// A forwarding entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Line number in the text, from 1.
    pub line: usize,
    /// The LID when the dump was written.
    pub lid: Lid,
    /// The egress port.
    pub port: u8,
    /// GUID of the port that had the LID; `None` if the dump does not contain it.
    pub port_guid: Option<Guid>,
}

/// An error in a dump, and the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {wrong}; {right}")]
pub struct DumpError {
    /// Line number, from 1.
    pub line: usize,
    /// The fault on the line.
    pub wrong: String,
    /// The expected form.
    pub right: String,
}

impl DumpError {
    pub(super) fn new(line: usize, wrong: impl Into<String>, right: impl Into<String>) -> Self {
        Self { line, wrong: wrong.into(), right: right.into() }
    }
}

const SWITCH_WANTED: &str = "a switch begins with `Unicast lids ... guid 0x0002c90000000005` or \
                             `dump_ucast_routes: Switch 0x0002c90000000005`";
const ENTRY_WANTED: &str = "a route is a LID and a port, as `0x001A 003 :` or `0x001A : 003  :`";

impl Dump {
    /// Parses a dump. If a switch occurs twice, the later table is used.
    pub fn parse(text: &str) -> Result<Self, DumpError> {
        Ok(Self { switches: sections(text, SWITCH_WANTED, begins, entry)? })
    }
}

/// Returns the text that starts with a switch's GUID, if a line begins a table.
fn begins(line: &str, number: usize) -> Result<Option<&str>, DumpError> {
    if line.starts_with("Multicast mlids") {
        let wrong = "this is a dump of multicast tables";
        return Err(DumpError::new(number, wrong, SWITCH_WANTED));
    }
    if line.starts_with("Unicast lids") {
        return Ok(Some(line.split_once(" guid ").map_or("", |(_, guid)| guid)));
    }
    Ok(line.strip_prefix("dump_ucast_routes: Switch "))
}

/// Parses a text into sections per switch; if a switch occurs twice, the later entries are used.
/// `begins` returns the text that starts with a switch's GUID if a line begins a section, `entry`
/// parses a line that starts with a LID, and `wanted` describes how a section begins.
pub(super) fn sections<E>(
    text: &str,
    wanted: &str,
    begins: fn(&str, usize) -> Result<Option<&str>, DumpError>,
    entry: impl Fn(&str, usize) -> Result<Option<E>, DumpError>,
) -> Result<Vec<Section<E>>, DumpError> {
    let mut switches: Vec<Section<E>> = Vec::new();
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        if let Some(guid) = begins(line, number)? {
            let guid = guid_at_start(guid)
                .ok_or_else(|| DumpError::new(number, format!("no GUID in `{line}`"), wanted))?;
            switches.retain(|switch| switch.guid != guid);
            switches.push(Section { guid, entries: Vec::new() });
        } else if line.starts_with("0x") {
            let entry = entry(line, number)?;
            let Some(switch) = switches.last_mut() else {
                let wrong = format!("`{line}` belongs to no switch");
                return Err(DumpError::new(number, wrong, wanted));
            };
            switch.entries.extend(entry);
        }
    }
    Ok(switches)
}

/// Parses the LID at the start of a line; `wrong` creates the error from the expected kind and the
/// word.
pub(super) fn lid(word: &str, wrong: impl Fn(&str, &str) -> DumpError) -> Result<Lid, DumpError> {
    let value = u16::from_str_radix(word.trim_start_matches("0x"), 16).ok().map(Lid);
    value.filter(|lid| lid.is_unicast()).ok_or_else(|| wrong("unicast LID", word))
}

/// Parses an entry; `None` if the line states that there is no route.
fn entry(line: &str, number: usize) -> Result<Option<Entry>, DumpError> {
    let wrong = |what: &str, word: &str| {
        DumpError::new(number, format!("`{word}` is not a {what}"), ENTRY_WANTED)
    };
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let lid = lid(word, wrong)?;
    let rest = rest.trim_start().trim_start_matches(':').trim_start();
    let word = rest.split(|c: char| c.is_whitespace() || c == ':').next().unwrap_or("");
    if word == "UNREACHABLE" {
        return Ok(None);
    }
    let port = word.parse().ok().filter(|&port| port < 255);
    let port = port.ok_or_else(|| wrong("port (0 to 254)", word))?;
    let port_guid = rest.split_once(" portguid ").or_else(|| rest.split_once("(portguid "));
    let port_guid = port_guid.and_then(|(_, guid)| guid_at_start(guid)).filter(|guid| guid.0 != 0);
    Ok(Some(Entry { line: number, lid, port, port_guid }))
}

/// Parses `0x` and hexadecimal digits, after which other text may follow.
pub(super) fn guid_at_start(text: &str) -> Option<Guid> {
    let digits = text.trim_start().strip_prefix("0x")?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    u64::from_str_radix(&digits[..end], 16).ok().map(Guid)
}
