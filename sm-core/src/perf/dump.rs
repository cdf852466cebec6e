//! The counters as text, in the formats of OpenSM's `event_db_dump_file` and console.

use std::fmt::Write;

use ib_mad::text::of_field;
use sa_proto::snapshot::Node;

use super::{Counter, PortView};

/// Appends the machine-readable form of a node's ports: an empty line, a header, and a line per
/// port; columns are separated by tabs. `time` writes seconds since 1970 as `ctime` does.
pub fn machine<'a>(
    text: &mut String,
    ports: impl Iterator<Item = PortView<'a>>,
    time: impl Fn(u32) -> String,
) {
    let mut ports = ports.filter(|port| port.is_known).peekable();
    if ports.peek().is_none() {
        return;
    }
    text.push_str("\nName\tGUID\tActive\tPort\tLast Reset\tLast Error Update\tLast Data Update");
    for &counter in columns() {
        let _ = write!(text, "\t{}", counter.name());
    }
    text.push('\n');
    for port in ports {
        let counts = port.counts;
        let active = if port.active { "TRUE" } else { "FALSE" };
        let _ = write!(
            text,
            "{}\t{:#x}\t{active}\t{}\t{}\t{}\t{}",
            name(port.node),
            port.node.guid.0,
            port.number.0,
            time(counts.last_reset_s),
            time(counts.last_error_update_s),
            time(counts.last_data_update_s),
        );
        for &counter in columns() {
            let _ = write!(text, "\t{}", counts.total(counter));
        }
        text.push('\n');
    }
}

/// Appends the form for people of one port; with `errors_only` its error counters that are not 0.
pub fn human(
    text: &mut String,
    port: &PortView<'_>,
    errors_only: bool,
    time: impl Fn(u32) -> String,
) {
    let counts = port.counts;
    let active = if port.active { "TRUE" } else { "FALSE" };
    let _ = writeln!(
        text,
        "\"{}\" {:#x} active {active} port {}",
        name(port.node),
        port.node.guid.0,
        port.number.0
    );
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "     {label:<21}: {value}");
    };
    line("Last Reset", time(counts.last_reset_s));
    line("Last Error Update", time(counts.last_error_update_s));
    let errors = Counter::OPENSM_ERRORS.all().iter().copied();
    for counter in errors.filter(|&counter| !errors_only || counts.total(counter) > 0) {
        let label = match counter {
            Counter::LocalLinkIntegrityErrors => "link_integrity_err",
            other => other.name(),
        };
        line(label, counts.total(counter).to_string());
    }
    if errors_only {
        return;
    }
    line("Last Data Update", time(counts.last_data_update_s));
    for &counter in data_columns() {
        let total = counts.total(counter);
        let scaled = match counter.is_data() {
            true => scaled(total.saturating_mul(4)) + "B",
            false => scaled(total),
        };
        line(counter.name(), format!("{total} ({scaled})"));
    }
}

/// The order of the columns: errors, then data.
fn columns() -> impl Iterator<Item = &'static Counter> {
    Counter::OPENSM_ERRORS.all().iter().chain(data_columns())
}

fn data_columns() -> impl Iterator<Item = &'static Counter> {
    Counter::DATA.all().iter()
}

/// A number by powers of 1,024: `1.500K`.
fn scaled(value: u64) -> String {
    let mut scaled = value as f64;
    let mut units = ["", "K", "M", "G", "T", "P", "E"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while scaled >= 1024.0 {
        let Some(next) = units.next() else { break };
        (scaled, unit) = (scaled / 1024.0, next);
    }
    format!("{scaled:.3}{unit}")
}

/// The name of a node, without control characters, which would look like columns or lines.
fn name(node: &Node) -> String {
    of_field(&node.description)
}
