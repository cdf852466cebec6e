//! The comparison as a text table, one line per engine.

use std::fmt::Write as _;
use std::time::Duration;

use super::failures::Tally;
use super::site::Site;
use super::trial::{Made, Trial};
use super::{Plan, Tried, recommend};
use sm_routing::DisplayWith;
use sm_routing::measure::{Figures, Quality};
use sm_routing::verify::CreditLoops;

/// Maximum number of links printed of a credit loop.
const CYCLE_HOPS_MAX: usize = 8;

/// Renders the whole report.
pub fn render(plan: &Plan<'_>) -> String {
    let mut text = heading(plan);
    plan.remarks.iter().for_each(|remark| text += &format!("{remark}\n"));
    let header = [
        "engine",
        "routes",
        "hops mean/max",
        "busiest link",
        "VLs/needed",
        "deadlock",
        "route",
        "proof",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(plan.trials.iter().map(|tried| row(&tried.trial)));
    text.push('\n');
    text += &aligned(&rows);
    text += &felt(plan);
    text += &recommended(plan);
    let notes = [
        ("Refused:", plan.trials.iter().filter_map(|tried| refusal(&tried.trial)).collect()),
        ("Credit loops, as links named by the sending port, each waiting for the next:", {
            plan.trials.iter().filter_map(|tried| deadlock(&plan.site, &tried.trial)).collect()
        }),
        ("Credit loops of replies, which Linux sends on the SL of the request:", {
            plan.trials.iter().filter_map(|tried| replies(&plan.site, &tried.trial)).collect()
        }),
        ("Also:", plan.trials.iter().flat_map(|tried| notes(&plan.site, &tried.trial)).collect()),
    ];
    notes.iter().for_each(|(title, rows)| listed(&mut text, title, rows));
    let kinds = plan.trials.iter().map(|tried| tried.failures.len()).max().unwrap_or(0);
    for kind in 0..kinds {
        text.push('\n');
        text += &after_failures(plan, kind);
    }
    text
}

/// What applications feel, one line per engine and kind of LIDs, with the bound first.
fn felt(plan: &Plan<'_>) -> String {
    let made = plan.trials.iter().filter_map(|tried| {
        let made = tried.trial.outcome.as_ref().ok()?;
        Some((tried.trial.engine, &made.quality))
    });
    let mut rows = Vec::new();
    for (engine, quality) in made {
        if rows.is_empty() {
            rows = felt_head(&quality.base);
        }
        rows.push(felt_row(engine, &quality.base));
        let further = [("+", &quality.spread), ("/", &quality.divided)];
        for (sign, quality) in further {
            rows.extend(quality.iter().map(|found| felt_row(&format!("{engine} {sign}"), found)));
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let patterns = grouped(plan.patterns.into());
    format!("\nWhat applications feel ({patterns} patterns of each kind)\n\n{}", aligned(&rows))
}

/// The titles of [`felt_row`], and the row of bounds.
pub(crate) fn felt_head(quality: &Quality) -> Vec<Vec<String>> {
    let titles = ["engine", "eBB", "shift", "random", "bad pairs", "all2all", "contend"];
    let [ebb, shift, random] = [&quality.matchings, &quality.shifts, &quality.permutations]
        .map(|figures| format!("{:.3}", figures.bound));
    let bounds = ["bound", &ebb, &shift, &random, "", "", ""];
    vec![titles.map(str::to_owned).to_vec(), bounds.map(str::to_owned).to_vec()]
}

/// Measures, as a row of the table under this name.
pub(crate) fn felt_row(name: &str, quality: &Quality) -> Vec<String> {
    let Quality { matchings, shifts, permutations, rounds, all_to_all, contention } = quality;
    let congested = |figures: &Figures| {
        let Figures { bandwidth, congestion_mean, congestion_max, .. } = figures;
        format!("{bandwidth:.3} ({congestion_mean:.1}, {congestion_max})")
    };
    vec![
        name.to_owned(),
        format!("{:.3}", matchings.bandwidth),
        congested(shifts),
        congested(permutations),
        format!("{:.1} %", rounds.bad_pairs * 100.0),
        format!("{all_to_all:.3}"),
        format!("{contention:.1}"),
    ]
}

fn recommended(plan: &Plan<'_>) -> String {
    let given = recommend::all(plan);
    let line = |given: &recommend::Recommendation| {
        let engine = given.engine.unwrap_or("none");
        format!("  {}: {engine}: {}\n", recommend::name(given.goal), given.reason)
    };
    let lines: String = given.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\nRecommended for\n{lines}") }
}

fn heading(plan: &Plan<'_>) -> String {
    let Plan { net, site, data_lanes, .. } = plan;
    let topology = &site.topology;
    let lids: u64 = topology.destinations().iter().map(|to| u64::from(to.lid_count)).sum();
    let mut text = format!(
        "{}: {} switches, {} links between them, {} hosts, {} LIDs, {data_lanes} data VLs\n",
        net.display(),
        grouped(topology.switch_count() as u64),
        grouped(topology.link_count() as u64 / 2),
        grouped(site.hosts() as u64),
        grouped(lids),
    );
    if site.moved > 0 {
        let _ = writeln!(
            text,
            "{} ports get other LIDs than in the file: those are already assigned, or not \
             multiples of 2^LMC",
            grouped(site.moved as u64)
        );
    }
    if let Some(line) = apart(&site.apart) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Describes the nodes that are not connected to the rest.
fn apart((switches, hosts): &(Vec<String>, Vec<String>)) -> Option<String> {
    let some = |names: &[String], one: &str, many: &str| {
        let listed: Vec<String> =
            names.iter().take(APART_MAX).map(|name| format!("'{name}'")).collect();
        let more = if names.len() > APART_MAX { ", …" } else { "" };
        let what = if names.len() == 1 { one } else { many };
        format!("{} {what} ({}{more})", grouped(names.len() as u64), listed.join(", "))
    };
    let all: Vec<String> = [(switches, "switch", "switches"), (hosts, "host", "hosts")]
        .into_iter()
        .filter(|(names, ..)| !names.is_empty())
        .map(|(names, one, many)| some(names, one, many))
        .collect();
    let is_one = switches.len() + hosts.len() == 1;
    let are = if is_one { "is" } else { "are" };
    (!all.is_empty()).then(|| format!("{} {are} not connected to the rest", all.join(" and ")))
}

/// Maximum number of names listed per kind.
const APART_MAX: usize = 4;

fn row(trial: &Trial) -> Vec<String> {
    let name = trial.engine.to_owned();
    let Ok(made) = &trial.outcome else {
        let route = seconds(trial.route_time);
        return [name.as_str(), "refused", "-", "-", "-", "-", &route, "-"]
            .map(str::to_owned)
            .to_vec();
    };
    let Made { deliveries, loops, survey, spread, lanes, lanes_needed, .. } = made;
    let routes = if !deliveries.is_sound() {
        "WRONG".to_owned()
    } else if survey.lost > 0 {
        format!("{} lost", grouped(survey.lost))
    } else if survey.parted > 0 {
        "all connected".to_owned()
    } else {
        "all".to_owned()
    };
    vec![
        name,
        routes,
        format!("{:.2} / {}", survey.mean(), survey.hops_max),
        format!("{} ({:.2}x)", grouped(spread.max.into()), spread.ratio()),
        format!("{lanes} / {lanes_needed}"),
        match loops.is_free() {
            false => "YES",
            true if made.only_replies_deadlock() => "replies",
            true => "none",
        }
        .to_owned(),
        seconds(trial.route_time),
        seconds(made.proof_time),
    ]
}

/// Notes below a table: an engine, and a text about it.
type Notes = Vec<(&'static str, String)>;

/// Adds notes under a title, if there are any.
fn listed(text: &mut String, title: &str, notes: &Notes) {
    let Some(width) = notes.iter().map(|(engine, _)| engine.len()).max() else { return };
    let _ = writeln!(text, "\n{title}");
    for (engine, note) in notes {
        let _ = writeln!(text, "  {engine:<width$}  {note}");
    }
}

fn refusal(trial: &Trial) -> Option<(&'static str, String)> {
    trial.outcome.as_ref().err().map(|reason| (trial.engine, reason.clone()))
}

fn deadlock(site: &Site, trial: &Trial) -> Option<(&'static str, String)> {
    let made = trial.outcome.as_ref().ok().filter(|made| !made.loops.is_free())?;
    Some((trial.engine, cycle(site, &made.loops)))
}

fn replies(site: &Site, trial: &Trial) -> Option<(&'static str, String)> {
    let made = trial.outcome.as_ref().ok().filter(|made| made.only_replies_deadlock())?;
    Some((trial.engine, cycle(site, made.reply_loops.as_ref()?)))
}

/// Details that do not fit in the row.
fn notes(site: &Site, trial: &Trial) -> Notes {
    let Ok(Made { deliveries, survey, broadcast, .. }) = &trial.outcome else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if let Some(defect) = deliveries.defects.first() {
        let label = |switch| site.switch_label(switch);
        let (count, defect) = (grouped(deliveries.defective), defect.display_with(&label));
        notes.push((trial.engine, format!("{count} wrong entries, first: {defect}")));
    }
    if survey.longer > 0 {
        let share = survey.longer as f64 / survey.routes.max(1) as f64 * 100.0;
        let count = grouped(survey.longer);
        notes.push((
            trial.engine,
            format!("{count} routes ({share:.1} %) are longer than the shortest path"),
        ));
    }
    if survey.parted > 0 {
        let count = grouped(survey.parted);
        notes.push((
            trial.engine,
            format!("{count} pairs of host and LID are not connected by links"),
        ));
    }
    if let Some(fault) = broadcast.as_ref().and_then(|tree| tree.fault.as_ref()) {
        let cycle = links(site, &fault.cycle, "");
        notes.push((trial.engine, format!("every broadcast tree has a credit loop: {cycle}")));
    }
    notes
}

/// A cycle, as text with names.
fn cycle(site: &Site, loops: &CreditLoops) -> String {
    let lane = loops.lane.map_or_else(String::new, |lane| format!(" on VL {lane}"));
    links(site, &loops.example, &lane)
}

fn links(site: &Site, cycle: &[(u16, u8)], lane: &str) -> String {
    let name = |&(switch, port): &(u16, u8)| site.port_name(switch, port);
    let hops: Vec<_> = cycle.iter().take(CYCLE_HOPS_MAX).map(name).collect();
    let more = match cycle.len().saturating_sub(CYCLE_HOPS_MAX) {
        0 => String::new(),
        more => format!(" > {more} more"),
    };
    let count = cycle.len();
    format!("{count} links{lane}: {}{more} > (back to the first)", hops.join(" > "))
}

fn after_failures(plan: &Plan<'_>, kind: usize) -> String {
    let all = || plan.trials.iter().filter_map(|tried| Some((tried, tried.failures.get(kind)?)));
    let Some((_, first)) = all().next() else { return String::new() };
    let what = if first.of_switches { "switch" } else { "link between switches" };
    let (tried, total) = (grouped(first.tried as u64), grouped(first.total as u64));
    let mut text = if first.tried == first.total {
        format!("If one {what} fails (all {total} tried, one at a time)\n\n")
    } else {
        format!("If one {what} fails ({tried} of {total} tried, evenly spaced)\n\n")
    };
    let header = [
        "engine",
        "refused",
        "lost",
        "changed mean/max",
        "forced",
        "eBB mean/min",
        "shift mean/min",
        "VLs",
        "deadlock",
        "route mean",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(all().map(|(engine, tally)| failure_row(engine, tally)));
    text += &aligned(&rows);
    let parted = all().map(|(_, tally)| tally.parted).max().unwrap_or(0);
    if parted > 0 {
        let count = grouped(parted);
        let _ = writeln!(
            text,
            "\nSome failures partition the fabric: {count} pairs of host and LID disconnected in \
             total."
        );
    }
    let notes = all().flat_map(|(tried, tally)| failure_notes(&plan.site, tried, tally)).collect();
    listed(&mut text, "Examples:", &notes);
    text
}

fn failure_row(engine: &Tried, tally: &Tally) -> Vec<String> {
    let per_failure = tally.route_time / u32::try_from(tally.tried.max(1)).unwrap_or(u32::MAX);
    let mean = tally.changed_mean().round() as u64;
    vec![
        engine.trial.engine.to_owned(),
        grouped(tally.refused as u64),
        grouped(tally.lost),
        format!("{} / {}", grouped(mean), grouped(tally.changed_max)),
        grouped(tally.forced_mean().round() as u64),
        format!("{:.3} / {:.3}", tally.matchings.mean(), tally.matchings.min),
        format!("{:.3} / {:.3}", tally.shifts.mean(), tally.shifts.min),
        tally.lanes_max.to_string(),
        grouped(tally.looping as u64),
        seconds(per_failure),
    ]
}

fn failure_notes(site: &Site, engine: &Tried, tally: &Tally) -> Notes {
    let name = engine.trial.engine;
    let was_free = engine.trial.outcome.as_ref().is_ok_and(|made| made.loops.is_free());
    let mut notes = Vec::new();
    if let Some((failure, reason)) = &tally.refusal {
        notes.push((name, format!("refuses without {}: {reason}", site.describe(*failure))));
    }
    if let Some((failure, lost)) = &tally.worst {
        let (count, at) = (grouped(*lost), site.describe(*failure));
        notes.push((name, format!("loses {count} routes without {at}")));
    }
    if let Some(failure) = tally.loops.filter(|_| was_free) {
        notes.push((name, format!("can deadlock without {}", site.describe(failure))));
    }
    notes
}

/// Aligns columns: the first to the left, numbers to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => text += &format!("{cell:<width$}"),
                _ => text += &format!("  {cell:>width$}"),
            }
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// A duration in a suitable unit.
fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.1} s"),
    }
}

/// A count with commas.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unconnected_nodes_are_listed_in_one_line() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let said = |switches: &[&str], hosts: &[&str]| apart(&(names(switches), names(hosts)));
        let both = "1 switch ('island') and 1 host ('lost') are not connected to the rest";
        assert_eq!(said(&["island"], &["lost"]).as_deref(), Some(both));
        assert_eq!(said(&["a"], &[]).unwrap(), "1 switch ('a') is not connected to the rest");
        let many = said(&[], &["a", "b", "c", "d", "e"]).unwrap();
        assert_eq!(many, "5 hosts ('a', 'b', 'c', 'd', …) are not connected to the rest");
        assert_eq!(said(&[], &[]), None);
    }
}
