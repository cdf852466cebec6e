//! Recommends an engine for a goal, with the reason in words.
//!
//! Only engines whose tables are right and free of credit loops count. Of those within
//! [`ALIKE`] of the best figure, the choice is the one without credit loops of replies, then the
//! one with the best figures of the other goals and of first LIDs, then the one that needs the
//! fewest VLs.
//!
//! Where ports have several LIDs, bandwidth is that of flows divided among them: an LMC is of use
//! only to traffic that uses all LIDs. The reason also has that of first LIDs.

use super::{Plan, Tried};
use crate::cli::Goal;
use sm_routing::measure::{Figures, Quality};

/// Figures that differ by less than this share count as alike.
const ALIKE: f64 = 0.01;

/// An engine, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// The goal.
    pub goal: Goal,
    /// The engine; `None` if none is suitable.
    pub engine: Option<&'static str>,
    /// The reason, in words.
    pub reason: String,
}

/// The name of a goal, as on the command line.
pub fn name(goal: Goal) -> &'static str {
    match goal {
        Goal::AllToAll => "all-to-all",
        Goal::Pairs => "pairs",
        Goal::Stable => "stable",
    }
}

/// Recommendations for the goal of a plan, or for each that it has figures of.
pub fn all(plan: &Plan<'_>) -> Vec<Recommendation> {
    let goals = [Goal::AllToAll, Goal::Pairs, Goal::Stable].into_iter();
    let has_figures =
        |goal| goal != Goal::Stable || plan.trials.iter().any(|tried| !tried.failures.is_empty());
    goals
        .filter(|&goal| plan.goal.map_or_else(|| has_figures(goal), |wanted| wanted == goal))
        .map(|goal| of(plan, goal))
        .collect()
}

/// An engine's figure for a goal; larger is better.
fn figure(tried: &Tried, goal: Goal) -> Option<f64> {
    let made = tried.trial.outcome.as_ref().ok()?;
    let quality = made.quality.divided.as_ref().unwrap_or(&made.quality.base);
    match goal {
        Goal::AllToAll | Goal::Pairs => felt(quality, goal).map(|figures| figures.bandwidth),
        Goal::Stable => {
            let (forced, changed) =
                tried.failures.iter().fold((0, 0), |(forced, changed), kind| {
                    (forced + kind.forced, changed + kind.changed)
                });
            let is_refused = tried.failures.iter().any(|kind| kind.refused > 0);
            // Of all entries that change, those that must.
            (!tried.failures.is_empty() && !is_refused)
                .then(|| if changed == 0 { 1.0 } else { forced as f64 / changed as f64 })
        }
    }
}

/// The figures of the patterns of a goal, if it has any.
fn felt(quality: &Quality, goal: Goal) -> Option<&Figures> {
    match goal {
        Goal::AllToAll => Some(&quality.shifts),
        Goal::Pairs => Some(&quality.matchings),
        Goal::Stable => None,
    }
}

/// Why an engine must not be used; `None` if it may be.
fn flaw(tried: &Tried) -> Option<&'static str> {
    match &tried.trial.outcome {
        Err(_) => Some("refused"),
        Ok(made) if !made.deliveries.is_sound() || made.survey.lost > 0 => Some("wrong"),
        Ok(made) if !made.loops.is_free() => Some("can deadlock"),
        Ok(_) => None,
    }
}

fn of(plan: &Plan<'_>, goal: Goal) -> Recommendation {
    let suitable = || {
        let figures = plan.trials.iter().filter(|tried| flaw(tried).is_none());
        figures.filter_map(|tried| Some((tried, figure(tried, goal)?)))
    };
    let Some(best) = suitable().map(|(_, figure)| figure).max_by(f64::total_cmp) else {
        return Recommendation { goal, engine: None, reason: why_none(plan, goal) };
    };
    let others = [Goal::AllToAll, Goal::Pairs].into_iter().filter(|&other| other != goal);
    let others: Vec<Goal> = others.collect();
    let rank = |tried: &Tried| {
        let made = tried.trial.outcome.as_ref().ok();
        let others = others.iter().filter_map(|&other| figure(tried, other));
        let first = made.and_then(|made| felt(&made.quality.base, goal));
        let sum = others.sum::<f64>() + first.map_or(0.0, |figures| figures.bandwidth);
        // In steps, so that chance differences do not decide over VLs.
        let steps = (sum / ALIKE).round() as i64;
        let lanes = made.map_or(u8::MAX, |made| made.lanes_needed);
        (made.is_some_and(|made| made.only_replies_deadlock()), -steps, lanes)
    };
    let alike: Vec<&Tried> = suitable()
        .filter(|&(_, figure)| figure >= best * (1.0 - ALIKE))
        .map(|(tried, _)| tried)
        .collect();
    // The first of equals, in the order of the list.
    let chosen = alike.iter().min_by_key(|tried| rank(tried)).copied();
    let engine = chosen.map(|tried| tried.trial.engine);
    let reason = chosen.map_or_else(String::new, |chosen| {
        let mut reason = in_words(chosen, goal);
        let beside: Vec<&str> = alike
            .iter()
            .filter(|tried| tried.trial.engine != chosen.trial.engine)
            .map(|tried| tried.trial.engine)
            .collect();
        let is_behind = |&(_, figure): &(&Tried, f64)| figure < best * (1.0 - ALIKE);
        let next = suitable().filter(is_behind).max_by(|a, b| a.1.total_cmp(&b.1));
        if !beside.is_empty() {
            reason += &format!("; alike: {}", beside.join(", "));
        }
        if let Some((next, _)) = next {
            reason += &format!("; next is {}: {}", next.trial.engine, in_words(next, goal));
        }
        if chosen.trial.outcome.as_ref().is_ok_and(|made| made.only_replies_deadlock()) {
            reason += "; replies on the SL of their request can deadlock";
        }
        let dropped: Vec<&str> = plan
            .trials
            .iter()
            .filter(|tried| flaw(tried) == Some("can deadlock"))
            .filter(|tried| figure(tried, goal).is_some_and(|figure| figure > best))
            .map(|tried| tried.trial.engine)
            .collect();
        if !dropped.is_empty() {
            reason += &format!("; better, but can deadlock: {}", dropped.join(", "));
        }
        reason
    });
    Recommendation { goal, engine, reason }
}

/// An engine's figure in words.
fn in_words(tried: &Tried, goal: Goal) -> String {
    let Ok(made) = &tried.trial.outcome else { return String::new() };
    let bandwidth = |what: &str, goal: Goal| {
        let Some(first) = felt(&made.quality.base, goal) else { return String::new() };
        let divided = made.quality.divided.as_ref().and_then(|quality| felt(quality, goal));
        let Figures { bandwidth, bound, .. } = divided.unwrap_or(first);
        let further = match divided {
            None => String::new(),
            Some(_) => format!(", divided among LIDs ({:.3} to first LIDs)", first.bandwidth),
        };
        format!("{what} have {bandwidth:.3} of at most {bound:.3}{further}")
    };
    match goal {
        Goal::AllToAll => bandwidth("shifts", goal),
        Goal::Pairs => bandwidth("matchings", goal),
        Goal::Stable => {
            let sum = |figure: &dyn Fn(&super::Tally) -> f64| -> f64 {
                tried.failures.iter().map(figure).sum()
            };
            let changed = sum(&|kind| kind.changed_mean()).round();
            let forced = sum(&|kind| kind.forced_mean()).round();
            format!("{changed} entries change per failure, {forced} had to")
        }
    }
}

fn why_none(plan: &Plan<'_>, goal: Goal) -> String {
    if goal == Goal::Stable && plan.trials.iter().all(|tried| tried.failures.is_empty()) {
        return "no failures were tried; add --failures".to_owned();
    }
    let flaws = plan.trials.iter().map(|tried| {
        let why = flaw(tried).unwrap_or("refused after a failure");
        format!("{} ({why})", tried.trial.engine)
    });
    format!("no engine is suitable: {}", flaws.collect::<Vec<_>>().join(", "))
}
