//! What a dry run would change, as a table for people and as JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use sm_core::sweep::{Change, Changes, Report};

/// Changes in the table; JSON has all.
const ROWS_MAX: usize = 100;

/// Format version of the JSON. Raised when a field is removed or changes its meaning; fields may be
/// added without.
const FORMAT: u32 = 1;

/// The result of a dry run.
pub(super) struct Shown {
    /// The port that it ran on.
    pub(super) place: String,
    pub(super) report: Report,
    pub(super) changes: Changes,
}

#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    /// Whether everything was read; otherwise changes may be missing.
    complete: bool,
    /// The first reasons if not.
    faults: &'a [String],
    port: &'a str,
    switches: usize,
    hosts: usize,
    links: usize,
    routing_engine: &'a str,
    /// Ports whose MasterSMLID or MasterSMSL names another manager. These are no changes.
    ports_of_another_master: u32,
    /// Number of changes by attribute.
    totals: BTreeMap<&'a str, usize>,
    changes: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    node_guid: String,
    node: &'a str,
    /// `null` for attributes of a switch.
    port: Option<u8>,
    attribute: &'a str,
    /// Blocks of a table that would be written, and entries in them that differ; 0 if the attribute
    /// is no table.
    blocks: u32,
    entries: u32,
    /// Fields of an attribute that is no table.
    fields: Vec<Field<'a>>,
}

#[derive(Serialize)]
struct Field<'a> {
    field: &'a str,
    is: &'a str,
    would_be: &'a str,
}

impl Shown {
    /// Whether everything was read.
    pub(super) fn is_complete(&self) -> bool {
        self.report.errors == 0 && self.report.unanswered == 0
    }

    fn totals(&self) -> BTreeMap<&str, usize> {
        let mut totals = BTreeMap::new();
        for change in &self.changes.changes {
            *totals.entry(change.attribute).or_default() += 1;
        }
        totals
    }

    pub(super) fn json(&self) -> String {
        let document = Document {
            format: FORMAT,
            complete: self.is_complete(),
            faults: &self.report.faults,
            port: &self.place,
            switches: self.report.switches,
            hosts: self.report.hosts,
            links: self.report.links,
            routing_engine: &self.report.engine,
            ports_of_another_master: self.changes.readdressed,
            totals: self.totals(),
            changes: self.changes.changes.iter().map(row).collect(),
        };
        let text = serde_json::to_string_pretty(&document);
        text.expect("strings and numbers are valid JSON") + "\n"
    }

    pub(super) fn table(&self) -> String {
        let Report { switches, hosts, links, engine, errors, unanswered, .. } = &self.report;
        let mut text = format!(
            "Dry run at {}: {switches} switches, {hosts} hosts, {links} links, routed by {engine}. \
             Nothing was set.\n",
            self.place
        );
        let changes = &self.changes.changes;
        let rows: Vec<[String; 4]> = changes.iter().take(ROWS_MAX).map(cells).collect();
        if !rows.is_empty() {
            let head = ["NODE", "PORT", "ATTRIBUTE", "CHANGE"].map(str::to_owned);
            let all: Vec<&[String; 4]> = std::iter::once(&head).chain(&rows).collect();
            let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max();
            let widths = [0, 1, 2].map(|column| width(column).unwrap_or(0));
            for [node, port, attribute, change] in all {
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{node:<0$}  {port:>1$}  {attribute:<2$}  {change}",
                    widths[0], widths[1], widths[2]
                );
            }
        }
        if changes.len() > ROWS_MAX {
            let more = changes.len() - ROWS_MAX;
            let _ = writeln!(text, "… and {more} more; --json lists all");
        }
        let totals: Vec<_> =
            self.totals().iter().map(|(attribute, count)| format!("{count} {attribute}")).collect();
        let _ = match changes.len() {
            0 => writeln!(text, "No changes."),
            count => writeln!(text, "Would change: {count} ({}).", totals.join(", ")),
        };
        if self.changes.readdressed > 0 {
            let _ = writeln!(
                text,
                "{} ports name another manager (MasterSMLID) and would name this one; that is not \
                 counted.",
                self.changes.readdressed
            );
        }
        if !self.is_complete() {
            let _ = writeln!(
                text,
                "Incomplete: {errors} attributes could not be read, and behind {unanswered} links \
                 no node answers; changes may be missing."
            );
            self.report.faults.iter().for_each(|fault| _ = writeln!(text, "  {fault}"));
        }
        text
    }
}

fn row(change: &Change) -> Row<'_> {
    let fields = change.fields.iter();
    Row {
        node_guid: change.node_guid.to_string(),
        node: &change.node,
        port: change.port.map(|port| port.0),
        attribute: change.attribute,
        blocks: change.blocks,
        entries: change.entries,
        fields: fields
            .map(|change| Field { field: change.field, is: &change.is, would_be: &change.would_be })
            .collect(),
    }
}

fn cells(change: &Change) -> [String; 4] {
    let what = match (change.blocks, change.entries) {
        (0, _) => {
            let fields = change.fields.iter();
            let fields = fields.map(|f| format!("{} {} > {}", f.field, f.is, f.would_be));
            fields.collect::<Vec<_>>().join(", ")
        }
        (blocks, entries) => {
            let (s, ies) =
                (if blocks == 1 { "" } else { "s" }, if entries == 1 { "y" } else { "ies" });
            format!("{entries} entr{ies} in {blocks} block{s}")
        }
    };
    let port = change.port.map_or_else(|| "-".to_owned(), |port| port.to_string());
    let node = format!("'{}' {}", change.node, change.node_guid);
    [node, port, change.attribute.to_owned(), what]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::{Guid, PortNum};
    use sm_core::sweep::FieldChange;

    fn shown(tables: u64) -> Shown {
        let field = |field, is: &str, would_be: &str| FieldChange {
            field,
            is: is.to_owned(),
            would_be: would_be.to_owned(),
        };
        let host = Change {
            node_guid: Guid(0x10),
            node: "host1".to_owned(),
            port: Some(PortNum(1)),
            attribute: "PortInfo",
            blocks: 0,
            entries: 0,
            fields: vec![field("base_lid", "0", "4"), field("subnet_time_out", "18", "20")],
        };
        let switch = |n| Change {
            node_guid: Guid(0x20 + n),
            node: format!("leaf{n}"),
            port: None,
            attribute: "LinearForwardingTable",
            blocks: 2,
            entries: 9,
            fields: Vec::new(),
        };
        let changes = std::iter::once(host).chain((0..tables).map(switch)).collect();
        let engine = "minhop".to_owned();
        Shown {
            place: "node host1".to_owned(),
            report: Report { switches: 2, hosts: 2, links: 3, engine, ..Report::default() },
            changes: Changes { changes, readdressed: 4 },
        }
    }

    #[test]
    fn people_get_a_table() {
        assert_eq!(
            shown(1).table(),
            "\
Dry run at node host1: 2 switches, 2 hosts, 3 links, routed by minhop. Nothing was set.
NODE                        PORT  ATTRIBUTE              CHANGE
'host1' 0x0000000000000010     1  PortInfo               base_lid 0 > 4, subnet_time_out 18 > 20
'leaf0' 0x0000000000000020     -  LinearForwardingTable  9 entries in 2 blocks
Would change: 2 (1 LinearForwardingTable, 1 PortInfo).
4 ports name another manager (MasterSMLID) and would name this one; that is not counted.
"
        );
        let long = shown(ROWS_MAX as u64 + 5).table();
        assert!(long.contains("\n… and 6 more; --json lists all\n"), "{long}");
    }

    #[test]
    fn programs_get_all_changes() {
        let shown = shown(150);
        let json: serde_json::Value = serde_json::from_str(&shown.json()).unwrap();
        assert_eq!(json["changes"].as_array().unwrap().len(), 151);
        assert_eq!(
            (&json["totals"]["LinearForwardingTable"], &json["complete"]),
            (&150.into(), &true.into())
        );
        let host = &json["changes"][0];
        assert_eq!((&host["port"], &host["fields"][1]["would_be"]), (&1.into(), &"20".into()));
        assert_eq!(json["changes"][1]["port"], serde_json::Value::Null);
    }

    #[test]
    fn what_was_not_read_is_reported() {
        let mut shown = shown(0);
        shown.changes = Changes::default();
        assert!(shown.is_complete() && shown.table().ends_with("No changes.\n"));
        (shown.report.errors, shown.report.faults) =
            (1, vec!["'leaf1' does not answer".to_owned()]);
        let text = shown.table();
        assert!(!shown.is_complete() && text.contains("Incomplete: 1 attributes"), "{text}");
        assert!(text.ends_with("  'leaf1' does not answer\n"), "{text}");
    }
}
