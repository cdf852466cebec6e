//! Hops from a file (`lid_matrix_file`), in the form of OpenSM's `opensm-lid-matrix.dump`.
//!
//! ```text
//! Switch: guid 0x0002c90000000005
//! 0x0001: 01 ff 01 03 # portguid 0x0002c90000000006
//! ```
//!
//! A line tells the hops to a LID: the least, and those by each port from 1 on, `ff` where a port
//! does not lead there. OpenSM writes lines for LIDs of switches only. Hops of single ports are not
//! looked at, as those of the neighbours tell the same; lines for LIDs of hosts are passed over.
//! Comments begin with `#`, but for the GUID of the port that has the LID.
//!
//! Unlike OpenSM, which takes what it reads, a file is refused if a way that it tells of cannot be
//! gone: from each switch a link must lead to another with one hop less.

use ib_mad::types::{Guid, Lid};

use super::super::{Destination, HopMatrix, Topology};
use super::DumpError;
use super::parse::{Section, guid_at_start, lid, sections};

/// Hops of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HopDump {
    /// Each switch once, in the order of the text.
    pub switches: Vec<Section<HopEntry>>,
}

/// Hops to one LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopEntry {
    /// Where it is in the text, from 1.
    pub line: usize,
    /// The LID when the dump was written.
    pub lid: Lid,
    /// The least hops: up to [`HopMatrix::HOPS_MAX`].
    pub hops: u8,
    /// Whose LID it was; `None` if the dump does not tell.
    pub port_guid: Option<Guid>,
}

const SWITCH_WANTED: &str = "a switch begins with `Switch: guid 0x0002c90000000005`";
const ENTRY_WANTED: &str = "hops to a LID are two hexadecimal digits for each port from 0 on, as \
                            `0x0001: 01 ff 01 03`";

impl HopDump {
    /// Reads a dump. A switch that comes twice has the later hops.
    pub fn parse(text: &str) -> Result<Self, DumpError> {
        Ok(Self { switches: sections(text, SWITCH_WANTED, begins, entry)? })
    }

    /// The hops between a topology's switches: row a switch, column that which they lead to.
    /// `switch` tells the number of a switch, and `place` what has a port's LIDs now. What is not
    /// here is passed over; pairs that the dump does not tell of count as not joined.
    ///
    /// # Errors
    ///
    /// If there are more switches than a matrix is made for, or a way cannot be gone: lines tell of
    /// it, or are missing.
    pub fn resolve<'a>(
        &self,
        topology: &Topology,
        switch: impl Fn(Guid) -> Option<u16>,
        place: impl Fn(Guid) -> Option<&'a Destination>,
    ) -> Result<HopMatrix, DumpError> {
        let switches = topology.switch_count();
        if switches > HopMatrix::SWITCHES_MAX {
            let wrong = format!("there are {switches} switches");
            let right = format!("hops are told of up to {}", HopMatrix::SWITCHES_MAX);
            return Err(DumpError::new(1, wrong, right));
        }
        let mut matrix = HopMatrix::unreachable(switches);
        topology.switches().for_each(|switch| matrix.row_mut(switch)[usize::from(switch)] = 0);
        let mut told = Vec::new();
        for from in &self.switches {
            let number = switch(from.guid).filter(|&number| usize::from(number) < switches);
            let Some(number) = number else { continue };
            for entry in &from.entries {
                let now = entry.port_guid.and_then(&place);
                let now = now.or_else(|| topology.owner(entry.lid));
                let Some(to) = now.filter(|to| !to.is_host()) else { continue };
                if to.home != number {
                    matrix.row_mut(number)[usize::from(to.home)] = entry.hops;
                    told.push((number, to.home, entry, from.guid));
                }
            }
        }
        for (number, home, entry, guid) in told {
            let column = usize::from(home);
            // A later line may have told otherwise.
            let hops = matrix.row(number)[column];
            let leads =
                |peer: u16| matrix.row(peer)[column].checked_add(1).is_some_and(|way| way == hops);
            if !topology.links(number).iter().any(|link| leads(link.peer)) {
                let wrong = format!("switch {guid} has {hops} hops to LID {}", entry.lid);
                let right = match hops.checked_sub(1) {
                    Some(less) => format!("a switch linked with it must have {less}"),
                    None => "only its own LID is 0 hops away".to_owned(),
                };
                return Err(DumpError::new(entry.line, wrong, right));
            }
        }
        Ok(matrix)
    }
}

/// What a switch's GUID is at the start of, if a line begins a switch.
#[expect(clippy::unnecessary_wraps, reason = "as with tables")]
fn begins(line: &str, _: usize) -> Result<Option<&str>, DumpError> {
    let rest = line.strip_prefix("Switch");
    Ok(rest.map(|rest| rest.split_once(" guid ").map_or("", |(_, guid)| guid)))
}

/// Reads hops to a LID; `None` if the line says that no way leads there.
fn entry(line: &str, number: usize) -> Result<Option<HopEntry>, DumpError> {
    let wrong = |what: &str, word: &str| {
        DumpError::new(number, format!("`{word}` is no {what}"), ENTRY_WANTED)
    };
    let (told, comment) = line.split_once('#').unwrap_or((line, ""));
    let end = told.find(|c: char| c == ':' || c.is_whitespace()).unwrap_or(told.len());
    let (word, rest) = told.split_at(end);
    let lid = lid(word, wrong)?;
    let mut least = None;
    for word in rest.trim_start_matches([':', ' ', '\t']).split_whitespace() {
        let hops = u8::from_str_radix(word, 16).ok();
        let hops = hops.filter(|&hops| hops <= HopMatrix::HOPS_MAX || hops == u8::MAX);
        let hops =
            hops.ok_or_else(|| wrong("number of hops, which is from 00 to fd, or ff", word))?;
        least = least.min(Some(hops)).or(Some(hops));
    }
    let hops = least.ok_or_else(|| wrong("number of hops", ""))?;
    let port_guid = comment.split_once("portguid ").and_then(|(_, guid)| guid_at_start(guid));
    let port_guid = port_guid.filter(|guid| guid.0 != 0);
    Ok((hops != u8::MAX).then_some(HopEntry { line: number, lid, hops, port_guid }))
}

#[cfg(test)]
mod tests;
