//! Ports whose agents report errors by traps 129 to 131: local link integrity, excessive buffer
//! overruns, and flow control (IBA 14.2.5.1). Other counters of errors are not read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::wire::attribute::TrapNumber;

use super::{Condition, Kind, Subject};
use crate::observe::topology::End;
use crate::observe::words;

/// How long a port must have reported no error until its problem is over.
const QUIET_AFTER: Duration = Duration::from_secs(600);
/// Largest number of ports remembered. Further ones are not until others have been quiet.
const PORTS_MAX: usize = 4096;

/// The ports that reported errors lately.
#[derive(Debug, Default)]
pub struct PortErrors {
    ports: HashMap<(End, u16), (u64, Instant)>,
}

impl PortErrors {
    /// Records a trap about a port, by the GUID of the port that reported it and the number.
    pub fn note(&mut self, now: Instant, port: End, trap: TrapNumber) {
        self.ports.retain(|_, (_, last)| !is_quiet(now, *last));
        if self.ports.len() < PORTS_MAX || self.ports.contains_key(&(port, trap.0)) {
            let (count, last) = self.ports.entry((port, trap.0)).or_insert((0, now));
            (*count, *last) = (*count + 1, now);
        }
    }

    /// Whether no port is remembered.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// The ports that reported errors. `subject` names a port.
    pub fn conditions<'a>(
        &'a self,
        now: Instant,
        subject: impl Fn(End) -> Subject + 'a,
    ) -> impl Iterator<Item = Condition> + 'a {
        let recent = self.ports.iter().filter(move |(_, (_, last))| !is_quiet(now, *last));
        recent.map(move |(&(port, trap), &(count, _))| {
            let name = TrapNumber(trap).name().unwrap_or("errors");
            let often = words::count(count, "time", "times");
            let detail = format!("it reports '{name}' (trap {trap}), {often} lately");
            Condition::new(Kind::PortErrors, subject(port), detail)
        })
    }
}

fn is_quiet(now: Instant, last: Instant) -> bool {
    now.saturating_duration_since(last) >= QUIET_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::{Guid, PortNum};

    #[test]
    fn a_port_is_reported_until_it_was_quiet_for_ten_minutes() {
        let (mut errors, start) = (PortErrors::default(), Instant::now());
        let port = (Guid(7), PortNum(3));
        let subject = |(guid, port)| Subject::port("s", guid, port);
        errors.note(start, port, TrapNumber::LOCAL_LINK_INTEGRITY);
        errors.note(start, port, TrapNumber::LOCAL_LINK_INTEGRITY);
        let found: Vec<_> = errors.conditions(start, subject).collect();
        assert!(found[0].detail.ends_with("(trap 129), 2 times lately"), "{found:?}");
        assert_eq!(errors.conditions(start + QUIET_AFTER, subject).count(), 0);
        for guid in 0..2 * PORTS_MAX as u64 {
            errors.note(start, (Guid(guid), PortNum(1)), TrapNumber::FLOW_CONTROL_UPDATE);
        }
        assert_eq!(errors.ports.len(), PORTS_MAX);
    }
}
