//! Problems that only a counter shows: one is reported while its counter grew lately.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Condition, Kind, Subject};

/// How long a counter must not have grown until its problem is over.
const QUIET_AFTER: Duration = Duration::from_secs(60);

/// A counter whose growth is a problem: its name, the kind, and what happened.
type Watched = (&'static str, Kind, &'static str);

const WATCHED: [Watched; 12] = [
    ("registry_commit_failures", Kind::RegistryCannotCommit, "commits of the registry failed"),
    ("registry_refused_not_stored", Kind::RegistryCannotCommit, "writes could not be stored"),
    ("calls_refused", Kind::AccessRefused, "calls of ibsmctl or responders without the role"),
    ("tls_connections_turned_away", Kind::AccessRefused, "TLS handshakes failed"),
    ("tls_connections_revoked", Kind::AccessRefused, "connections whose certificate is invalid"),
    ("connections_crowded", Kind::AccessRefused, "connections beyond the limit"),
    ("connections_of_unknown_users", Kind::AccessRefused, "connections of unknown users"),
    ("feed_updates_refused", Kind::SessionRejected, "updates refused for a higher session"),
    ("feed_epochs_implausible", Kind::SessionRejected, "implausible sessions reported"),
    ("feed_updates_unusable", Kind::UpdateUnusable, "updates that responders could not use"),
    ("traps_dropped", Kind::TrapStorm, "traps did not reach subscribers"),
    ("error_traps_forged", Kind::TrapStorm, "error traps came from other ports"),
];

/// The watched counters.
#[derive(Debug, Default)]
pub(in crate::observe) struct Growth {
    seen: HashMap<&'static str, Seen>,
}

#[derive(Debug)]
struct Seen {
    value: u64,
    /// The value before the growth that is reported, and when it last grew.
    growing: Option<(u64, Instant)>,
}

impl Growth {
    /// The conditions, given these totals since this SM started.
    pub(in crate::observe) fn conditions<'a>(
        &mut self,
        now: Instant,
        totals: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Vec<Condition> {
        for (name, value) in totals {
            let Some((name, ..)) = WATCHED.iter().find(|(watched, ..)| *watched == name) else {
                continue;
            };
            let seen = self.seen.entry(name).or_insert(Seen { value: 0, growing: None });
            if value > seen.value {
                let from = seen.growing.map_or(seen.value, |(from, _)| from);
                seen.growing = Some((from, now));
                seen.value = value;
            }
            let is_quiet = |at: Instant| now.saturating_duration_since(at) >= QUIET_AFTER;
            seen.growing = seen.growing.filter(|(_, at)| !is_quiet(*at));
        }
        let growing = WATCHED.iter().filter_map(|&(name, kind, what)| {
            let seen = self.seen.get(name)?;
            let (from, _) = seen.growing?;
            let detail = format!("{what}: {} lately", seen.value - from);
            Some(Condition::new(kind, Subject::named(name), detail))
        });
        growing.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_a_problem_until_the_counter_has_been_still() {
        let (mut growth, start) = (Growth::default(), Instant::now());
        let mut look = |second: u64, value| {
            let totals = [("registry_commit_failures", value), ("smps_sent", second)];
            growth.conditions(start + Duration::from_secs(second), totals)
        };
        assert!(look(0, 0).is_empty());
        let found = look(1, 3);
        assert_eq!((found.len(), found[0].kind), (1, Kind::RegistryCannotCommit));
        assert_eq!(found[0].detail, "commits of the registry failed: 3 lately");
        assert_eq!(look(50, 5)[0].detail, "commits of the registry failed: 5 lately");
        assert_eq!(look(50 + 59, 5).len(), 1);
        // Regression: the problem was over 5 minutes after the disk had room again.
        assert!(look(50 + 60, 5).is_empty());
        assert_eq!(look(900, 6)[0].detail, "commits of the registry failed: 1 lately");
    }
}
