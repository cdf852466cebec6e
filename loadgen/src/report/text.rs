//! The report as text.

use std::fmt;
use std::time::Duration;

use super::{PERCENTILES, Report, Setting, a_second, grouped, short};
use crate::ask::Kind;
use crate::check::Fault;
use crate::histogram::Latencies;
use crate::scenario::ramp::{Finding, Knee};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in &self.shown {
            writeln!(f, "{path}")?;
        }
        if !self.shown.is_empty() {
            writeln!(f)?;
        }
        let Setting { to, query, load, ports, check, .. } = &self.setting;
        writeln!(f, "{query} to {to}; {load}")?;
        writeln!(f, "{ports}; {check}\n")?;
        self.write_counts(f)?;
        writeln!(f)?;
        for example in &self.examples {
            writeln!(f, "  wrong: {example}")?;
        }
        self.write_milestones(f)?;
        self.write_garbage(f)?;
        self.write_steps(f)?;
        self.write_latencies(f)?;
        self.write_generator(f)
    }
}

impl Report {
    fn write_counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        let mut row = |name: &str, count: u64, note: &str| {
            writeln!(f, "  {name:<12}{:>15}   {note}", grouped(count)).map(drop)
        };
        let note = format!(
            "{} packets sent, {} of them retries",
            grouped(counts.sent),
            grouped(counts.retries)
        );
        row("queries", counts.queries, &note)?;
        let note = match counts.answered {
            0 => String::new(),
            answered => format!(
                "{} a second over {}",
                grouped(self.a_second(answered).round() as u64),
                seconds(self.elapsed)
            ),
        };
        row("answered", counts.answered, &note)?;
        let note = match self.packets_per(counts.settled()).filter(|&packets| packets > 1.005) {
            Some(packets) => format!(
                "goodput {} a second, {packets:.2} packets each",
                grouped(self.a_second(counts.settled()).round() as u64)
            ),
            None => String::new(),
        };
        row("resolved", counts.resolved, &note)?;
        let rows = [
            ("no path", counts.no_path, "expected: the snapshot has none"),
            ("abandoned", counts.abandoned, "outstanding when the storm was stopped"),
            ("unsent", self.summary.unsent, "still waiting for a window at the end"),
            ("late", counts.late, "answers after the last retry, and duplicates"),
            ("undelivered", counts.undelivered, "requests that the fabric returned"),
            ("strange", counts.strange, "packets that match no query"),
            ("redirected", counts.redirected, "answers that redirect to another port"),
            ("dropped", counts.dropped_tables, "tables beyond the reassembly limit of ibstorm"),
            ("garbage", counts.answered_garbage, "malformed requests answered, included above"),
            ("garbage", counts.silent_garbage, "malformed requests not answered"),
        ];
        for (name, count, note) in rows.into_iter().filter(|&(_, count, _)| count > 0) {
            row(name, count, note)?;
        }
        if !self.asked.is_empty() {
            let lids: Vec<String> = self.asked.iter().map(u16::to_string).collect();
            row("asked", self.asked.len() as u64, &format!("LIDs {}", lids.join(", ")))?;
        }
        row("timed out", counts.timed_out, "")?;
        for (status, count) in counts.errors.iter() {
            row("errors", count, &status.to_string())?;
        }
        for (fault, count) in Fault::ALL.iter().zip(counts.wrong).filter(|&(_, count)| count > 0) {
            row("wrong", count, &fault.to_string())?;
        }
        if counts.errors.total() + counts.wrong_total() == 0 {
            row("wrong", 0, "")?;
        }
        Ok(())
    }

    fn write_milestones(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milestones = &self.summary.milestones;
        if milestones.is_empty() {
            return Ok(());
        }
        write!(f, "  {:<30}{:>10}{:>10}", "since start", "expected", "reached")?;
        writeln!(f, "{:>13}{:>13}{:>13}", "50 %", "99 %", "100 %")?;
        for milestone in milestones {
            let (expected, reached) = (grouped(milestone.expected), grouped(milestone.at.len()));
            write!(f, "  {:<30}{expected:>10}{reached:>10}", milestone.name)?;
            for percent in [50.0, 99.0, 100.0] {
                // Events missing at the end of the storm might have come later.
                let reached = milestone.reached(percent).map_or("not reached".to_owned(), short);
                write!(f, "{reached:>13}")?;
            }
            match milestone.no_path {
                0 => writeln!(f)?,
                refused => writeln!(f, "   {} refused as expected", grouped(refused))?,
            }
        }
        writeln!(f)
    }

    fn write_garbage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.summary.malformed.is_empty() {
            return Ok(());
        }
        writeln!(f, "  {:<18}{:>10}{:>10}   answered", "garbage", "sent", "silent")?;
        for form in &self.summary.malformed {
            let mut answers: Vec<String> = form
                .refused
                .iter()
                .map(|(status, count)| format!("{status} {}", grouped(count)))
                .collect();
            if form.accepted > 0 {
                answers.insert(0, format!("OK {}", grouped(form.accepted)));
            }
            if form.aborted > 0 {
                answers.push(format!("ABORT {}", grouped(form.aborted)));
            }
            writeln!(
                f,
                "  {:<18}{:>10}{:>10}   {}",
                form.form.name(),
                grouped(form.sent),
                grouped(form.silent),
                answers.join(", ")
            )?;
        }
        writeln!(f)
    }

    fn write_steps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ramp) = &self.ramp else { return Ok(()) };
        write!(f, "  {:>12}{:>12}{:>10}", "rate/s", "goodput/s", "goodput")?;
        writeln!(f, "{:>10}{:>10}{:>10}{:>10}   ", "p50", "p99", "p99.9", "lag p99")?;
        for step in ramp.steps() {
            let measured = &step.measured;
            let settled = a_second(measured.settled(), measured.time);
            let share = measured.settled() as f64 / measured.queries.max(1) as f64;
            write!(
                f,
                "  {:>12}{:>12}{:>8.2} %",
                grouped(step.rate.round() as u64),
                grouped(settled.round() as u64),
                share.min(1.0) * 100.0
            )?;
            for latency in measured.latencies.iter().chain([&measured.lag]) {
                write!(f, "{:>10}", short(*latency))?;
            }
            writeln!(f, "   {}", finding(step.finding))?;
        }
        writeln!(f, "\n  knee: {}\n", knee(ramp.knee()))
    }

    fn write_latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.due.is_empty() {
            return writeln!(f, "  No answers received.");
        }
        write_line(f, "latency", &self.due)?;
        let kinds = self.kinds().filter(|&(kind, ..)| kind != Kind::Malformed).count();
        if kinds < 2 {
            return Ok(());
        }
        write!(f, "\n  {:<18}{:>12}{:>12}", "by kind", "queries", "resolved")?;
        write!(f, "{:>9}{:>9}", "no path", "failed")?;
        writeln!(f, "{:>10}{:>10}{:>10}{:>10}", "silent", "p50", "p99", "max")?;
        for (kind, counts, measured) in self.kinds() {
            write!(
                f,
                "  {:<18}{:>12}{:>12}{:>9}{:>9}{:>10}",
                kind.name(),
                grouped(counts.queries),
                grouped(counts.resolved),
                grouped(counts.no_path),
                grouped(counts.failed),
                grouped(counts.timed_out)
            )?;
            if let Some(due) = measured.map(|measured| &measured.due).filter(|due| !due.is_empty())
            {
                for time in [due.percentile(50.0), due.percentile(99.0), due.max()] {
                    write!(f, "{:>10}", short(time))?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// CPU use and delays of the generator, which may limit the figures.
    fn write_generator(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.service.is_empty() {
            write_line(f, "service", &self.service)?;
        }
        let busy: Vec<String> =
            self.shares.iter().map(|share| format!("{:.0} %", share.cpu * 100.0)).collect();
        write!(f, "  generator {} of a core", busy.join(", "))?;
        if self.timings.lag.is_empty() {
            writeln!(f)?;
        } else {
            let [p50, p99] = [50.0, 99.0].map(|p| short(self.timings.lag.percentile(p)));
            let max = short(self.timings.lag.max());
            let late = match self.setting.has_windows {
                true => "waited for windows:",
                false => "sent late by",
            };
            writeln!(f, "; {late} p50 {p50}, p99 {p99}, max {max}")?;
        }
        match self.generator_limit() {
            Some(why) => {
                writeln!(
                    f,
                    "\n  These figures may show the limits of ibstorm, not of the responder: {why}."
                )
            }
            None => Ok(()),
        }
    }
}

fn write_line(f: &mut fmt::Formatter<'_>, name: &str, latencies: &Latencies) -> fmt::Result {
    write!(f, "  {name}")?;
    for (name, percentile) in PERCENTILES {
        write!(f, "   {name} {}", short(latencies.percentile(percentile)))?;
    }
    writeln!(f, "   max {}", short(latencies.max()))
}

/// The result of a ramp.
fn knee(knee: Knee) -> String {
    let rate = |rate: f64| grouped(rate.round() as u64);
    match knee {
        Knee::Found(kept) => format!("{} queries a second", rate(kept)),
        Knee::Below(first) => format!("below the first rate, {} queries a second", rate(first)),
        Knee::Above(last) => {
            format!(
                "above the highest rate, {} queries a second, which the responder sustained",
                rate(last)
            )
        }
        Knee::Generator(None) => "unknown; ibstorm did not keep its schedule".to_owned(),
        Knee::Generator(Some(kept)) => format!(
            "unknown; the responder sustained {} queries a second, beyond that ibstorm did not \
             keep its schedule",
            rate(kept)
        ),
        Knee::CutShort { kept, too_much } => {
            let kept = match kept {
                Some(kept) => {
                    format!("the highest sustained rate was {} queries a second", rate(kept))
                }
                None => "no rate was sustained".to_owned(),
            };
            let too_much = too_much.map(|many| format!("; {} was not sustained", rate(many)));
            let too_much = too_much.unwrap_or_default();
            format!("not found, the ramp was stopped early; {kept}{too_much}")
        }
    }
}

/// Formats a time in seconds; a very short one in a smaller unit.
fn seconds(time: Duration) -> String {
    match time < Duration::from_millis(10) {
        true => short(time),
        false => format!("{:.2} s", time.as_secs_f64()),
    }
}

fn finding(finding: Finding) -> &'static str {
    match finding {
        Finding::Kept => "",
        Finding::Goodput => "goodput too low",
        Finding::Latency => "too slow",
        Finding::Generator => "ibstorm did not keep its schedule",
    }
}
