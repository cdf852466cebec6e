//! Which engine made the tables that switches hold, and when they are made anew instead of kept.
//!
//! A new master keeps what it finds, unless it knows that another engine, or one with other wishes of
//! operators, made it. Whoever made it: some time after, what is in force is held against what
//! the engine would make of the fabric from nothing; so are routes kept over changes of a fabric that
//! is too large to be routed twice at each. If the worst link has more than 2 % more
//! routes than it would have then, all is routed anew, and the log says why.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::Sweeper;
use super::routing::{BalanceCheck, BalanceFinding, KeptRoutes, is_balanced};
use super::schedule::Cause;
use super::subnet::Subnet;

/// How long the subnet runs by what another subnet manager left before its routes are made anew.
pub const CORRECTION_DELAY: Duration = Duration::from_secs(60);

/// Who made the tables in force, to be known again by the next run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Name of the engine.
    pub engine: String,
    /// Hash of what operators asked of it.
    pub options_hash: u64,
}

impl Origin {
    /// Reads what [`render`](Self::render) wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.map(str::trim)
        };
        let options_hash = u64::from_str_radix(value("wishes")?.strip_prefix("0x")?, 16).ok()?;
        Some(Self { engine: value("engine")?.to_owned(), options_hash })
    }

    /// As lines of a file.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "engine {}\nwishes {:#x}", self.engine, self.options_hash);
        text
    }
}

impl Sweeper {
    /// States which engine made the tables that switches hold, as an earlier run of ours left it.
    pub fn set_origin(&mut self, origin: Option<Origin>) {
        self.subnet.routing.set_origin(origin);
    }

    /// Which engine made the tables in force, once there are any.
    pub fn origin(&self) -> Option<Origin> {
        self.subnet.routing.made().map(|made| made.origin())
    }

    /// Has all routes made anew by a heavy sweep, as soon as none is under way.
    pub fn reroute(&mut self, now: Instant) {
        self.subnet.routing.keep_nothing();
        self.request_heavy_sweep(now);
    }

    /// The look at kept routes that is due, if any. What came of it goes to
    /// [`handle_balance`](Self::handle_balance).
    pub fn poll_balance_check(&mut self) -> Option<BalanceCheck> {
        if !self.sweep.is_idle() || !self.subnet.state.up {
            return None;
        }
        self.subnet.routing.poll_balance_check(&self.subnet.fabric)
    }

    /// Takes what a [`BalanceCheck`] found.
    pub fn handle_balance(&mut self, now: Instant, finding: &BalanceFinding) {
        let is_current = self.subnet.routing.is_in_force(&finding.made);
        let Some((found, fresh)) = finding.worst.filter(|_| is_current) else { return };
        let engine = finding.made.engine();
        let which = match finding.kept {
            KeptRoutes::Inherited => "that were found",
            KeptRoutes::OverChanges => "kept over changes of the fabric",
        };
        let is_balanced = is_balanced(found, fresh);
        let is_news = self.subnet.routing.balance_known(now, is_balanced, CORRECTION_DELAY);
        match finding.kept {
            _ if is_news => {
                let seconds = CORRECTION_DELAY.as_secs();
                warn!(
                    "the routes {which} have {found} routes to hosts on the worst link, {engine} from \
                     nothing {fresh}: in {seconds} s all are made anew, if we run that long \
                     (keep_found_routes TRUE keeps them)"
                );
            }
            KeptRoutes::Inherited if is_balanced => info!(
                "the routes {which} are kept: the worst link has {found} routes to hosts, by \
                 {engine} from nothing {fresh}"
            ),
            _ => debug!("the worst link has {found} routes to hosts, from nothing {fresh}"),
        }
    }
}

impl Subnet {
    /// When inherited routes are to be made anew, if they are.
    pub(super) fn correction_due(&self) -> Option<Instant> {
        self.routing.correction_due()
    }

    /// Has inherited routes made anew, if that is due.
    pub(super) fn correct_routes(&mut self, now: Instant) {
        if self.routing.take_correction(now) {
            self.schedule.request(now, Cause::Asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_reads_back_and_what_is_none_is_not_taken_for_one() {
        let origin = Origin { engine: "torus-2QoS".into(), options_hash: u64::MAX };
        assert_eq!(Origin::parse(&origin.render()), Some(origin));
        for text in ["", "engine ftree\n", "engine ftree\nwishes 12\n", "wishes 0x1\n"] {
            assert_eq!(Origin::parse(text), None, "{text:?}");
        }
    }
}
