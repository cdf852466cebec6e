//! Reads hop counts from a file (`lid_matrix_file`) in the form of OpenSM's
//! `opensm-lid-matrix.dump`.
//!
//! ```text
//! Switch: guid 0x0002c90000000005
//! 0x0001: 01 ff 01 03 # portguid 0x0002c90000000006
//! ```
//!
//! A line has the hop counts to a LID: the smallest, then those by each port from 1 on, `ff` where
//! a port does not lead to it. OpenSM writes lines for LIDs of switches only. Hop counts by single
//! ports are ignored, as they follow from the neighbours' lines; lines for LIDs of hosts are
//! skipped. Comments begin with `#`, except for the GUID of the port that has the LID.
//!
//! OpenSM does not check these files. This module rejects a file whose hop counts do not describe
//! paths: from each switch, a link must lead to another switch with one hop less.

use ib_mad::types::{Guid, Lid};

use super::DumpError;
use super::parse::{Section, guid_at_start, lid, sections};
use crate::{Destination, HopMatrix, Topology};

/// The hop counts of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HopDump {
    /// Sections in the order of the text, one per switch.
    pub switches: Vec<Section<HopEntry>>,
}

/// Hop count to one LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopEntry {
    /// Line number in the text, from 1.
    pub line: usize,
    /// The LID when the dump was written.
    pub lid: Lid,
    /// The smallest hop count, up to [`HopMatrix::HOPS_MAX`].
    pub hops: u8,
    /// GUID of the port that had the LID; `None` if the dump does not contain it.
    pub port_guid: Option<Guid>,
}

const SWITCH_WANTED: &str = "a switch begins with `Switch: guid 0x0002c90000000005`";
const ENTRY_WANTED: &str = "hops to a LID are two hexadecimal digits for each port from 0 on, as \
                            `0x0001: 01 ff 01 03`";

impl HopDump {
    /// Parses a dump. If a switch occurs twice, the later hop counts are used.
    pub fn parse(text: &str) -> Result<Self, DumpError> {
        Ok(Self { switches: sections(text, SWITCH_WANTED, begins, entry)? })
    }

    /// Returns the hop counts between a topology's switches: rows are sources, columns the switches
    /// they lead to. `switch` maps a GUID to a switch number, and `place` returns the destination
    /// that has a port's LIDs now. Unknown switches and ports are skipped; pairs that are not in
    /// the dump count as not connected.
    ///
    /// # Errors
    ///
    /// If there are more switches than a matrix supports, or if hop counts do not form a path
    /// because lines are wrong or missing.
    pub fn resolve<'a>(
        &self,
        topology: &Topology,
        switch: impl Fn(Guid) -> Option<u16>,
        place: impl Fn(Guid) -> Option<&'a Destination>,
    ) -> Result<HopMatrix, DumpError> {
        let switches = topology.switch_count();
        if switches > HopMatrix::SWITCHES_MAX {
            let wrong = format!("there are {switches} switches");
            let right = format!("the largest supported number is {}", HopMatrix::SWITCHES_MAX);
            return Err(DumpError::new(1, wrong, right));
        }
        let mut matrix = HopMatrix::unreachable(switches);
        topology.switches().for_each(|switch| matrix.row_mut(switch)[usize::from(switch)] = 0);
        let mut stated = Vec::new();
        for from in &self.switches {
            let number = switch(from.guid).filter(|&number| usize::from(number) < switches);
            let Some(number) = number else { continue };
            for entry in &from.entries {
                let now = entry.port_guid.and_then(&place);
                let now = now.or_else(|| topology.owner(entry.lid));
                let Some(to) = now.filter(|to| !to.is_host()) else { continue };
                if to.egress_switch != number {
                    matrix.row_mut(number)[usize::from(to.egress_switch)] = entry.hops;
                    stated.push((number, to.egress_switch, entry, from.guid));
                }
            }
        }
        for (number, egress_switch, entry, guid) in stated {
            let column = usize::from(egress_switch);
            // A later line may have replaced this one.
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

/// Returns the text that starts with a switch's GUID, if a line begins a switch.
#[expect(clippy::unnecessary_wraps, reason = "same signature as for tables")]
fn begins(line: &str, _: usize) -> Result<Option<&str>, DumpError> {
    let rest = line.strip_prefix("Switch");
    Ok(rest.map(|rest| rest.split_once(" guid ").map_or("", |(_, guid)| guid)))
}

/// Parses the hops to a LID; `None` if the line states that no path leads there.
fn entry(line: &str, number: usize) -> Result<Option<HopEntry>, DumpError> {
    let wrong = |what: &str, word: &str| {
        DumpError::new(number, format!("`{word}` is not a {what}"), ENTRY_WANTED)
    };
    let (stated, comment) = line.split_once('#').unwrap_or((line, ""));
    let end = stated.find(|c: char| c == ':' || c.is_whitespace()).unwrap_or(stated.len());
    let (word, rest) = stated.split_at(end);
    let lid = lid(word, wrong)?;
    let mut least = None;
    for word in rest.trim_start_matches([':', ' ', '\t']).split_whitespace() {
        let hops = u8::from_str_radix(word, 16).ok();
        let hops = hops.filter(|&hops| hops <= HopMatrix::HOPS_MAX || hops == u8::MAX);
        let hops = hops.ok_or_else(|| wrong("number of hops (00 to fd, or ff)", word))?;
        least = least.min(Some(hops)).or(Some(hops));
    }
    let hops = least.ok_or_else(|| wrong("number of hops", ""))?;
    let port_guid = comment.split_once("portguid ").and_then(|(_, guid)| guid_at_start(guid));
    let port_guid = port_guid.filter(|guid| guid.0 != 0);
    Ok((hops != u8::MAX).then_some(HopEntry { line: number, lid, hops, port_guid }))
}

#[cfg(test)]
mod tests;
