//! Malformed among valid queries, by a schedule. A responder may answer malformed requests with an
//! error or drop and count them; the valid queries must still be resolved.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::open::{OUTSTANDING_MAX, Open};
use super::{Malformed, Outcome, Patience, Query, Scenario, Summary};
use crate::ask::Ask;
use crate::ask::malformed::Form;

use crate::histogram::Errors;
use ib_mad::wire::mad::Status;
use ib_mad::wire::rmpp::RmppType;
use ib_mad::wire::sa::{HEADER_LEN, SaMad};

/// Timeout of malformed requests; most are not answered.
const PATIENCE: Patience = Patience { timeout: Duration::from_millis(500), retries: 0 };

/// See the [module](self).
pub struct Flood {
    queries: Open,
    /// Share of malformed queries, 0 to 1.
    share: f64,
    forms: Vec<Malformed>,
    random: SmallRng,
}

impl Flood {
    /// Replaces a random share of the queries of `queries` by malformed ones of these kinds.
    pub fn new(queries: Open, share: f64, forms: &[Form], seed: u64) -> Self {
        let forms = forms.iter().map(|&form| Malformed {
            form,
            sent: 0,
            accepted: 0,
            refused: Errors::default(),
            aborted: 0,
            silent: 0,
        });
        let random = SmallRng::seed_from_u64(seed);
        Self { queries, share, forms: forms.collect(), random }
    }
}

impl Scenario for Flood {
    fn poll_query(&mut self, now: Instant, outstanding: usize) -> Option<Query> {
        let query = self.queries.poll_query(now, outstanding)?;
        let Ask::Path { pair, .. } = query.ask else { return Some(query) };
        if self.forms.is_empty() || self.random.random::<f64>() >= self.share {
            return Some(query);
        }
        let at = self.random.random_range(0..self.forms.len());
        let form = &mut self.forms[at];
        form.sent += 1;
        let ask = Ask::Malformed { form: form.form, pair, salt: self.random.random() };
        Some(Query { ask, patience: PATIENCE, ..query })
    }

    fn handle_outcome(&mut self, _: Instant, query: &Query, outcome: &Outcome<'_>) {
        let Ask::Malformed { form, .. } = query.ask else { return };
        let Some(count) = self.forms.iter_mut().find(|count| count.form == form) else { return };
        match outcome {
            Outcome::Silent => count.silent += 1,
            Outcome::Answered { message, .. } => {
                let mut mad = [0; ib_mad::wire::MAD_LEN];
                let len = message.len().min(HEADER_LEN);
                mad[..len].copy_from_slice(&message[..len]);
                let mad = SaMad::new(&mad);
                match mad.header().status() {
                    // An ABORT has the status that it reports.
                    _ if mad.rmpp().is_active() && mad.rmpp().rmpp_type() == RmppType::ABORT => {
                        count.aborted += 1;
                    }
                    Status::OK => count.accepted += 1,
                    status => count.refused.add(status, 1),
                }
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.queries.poll_timeout()
    }

    fn is_over(&self, now: Instant) -> bool {
        self.queries.is_over(now)
    }

    fn capacity(&self) -> usize {
        OUTSTANDING_MAX
    }

    fn summary(&self) -> Summary {
        Summary { malformed: self.forms.clone(), ..Summary::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::tests::workload;
    use crate::check::Verdict;
    use crate::scenario::pace::{Arrivals, Bounds, Schedule};
    use crate::scenario::tests::due;
    use crate::workload::{By, Draw};
    use ib_mad::wire::rmpp::RmppFlags;
    use std::sync::Arc;

    #[test]
    fn a_share_of_the_queries_is_spoilt_and_what_comes_of_it_counted() {
        let start = Instant::now();
        let workload = Arc::new(workload(By::Gid, Draw::Any(3)));
        let schedule = Schedule::new(Arrivals::Constant, 1000.0, start, 1);
        let bounds = Bounds::new(start, None, None);
        let open = Open::new(workload, 0, schedule, Patience::RDMA_CM, bounds);
        let mut flood = Flood::new(open, 0.3, &[Form::Class, Form::Random], 1);
        let queries = due(&mut flood, start + Duration::from_secs(1));
        let garbage: Vec<_> =
            queries.iter().filter(|q| matches!(q.ask, Ask::Malformed { .. })).collect();
        assert!((250..350).contains(&garbage.len()), "{}", garbage.len());
        assert!(garbage.iter().all(|query| query.patience == PATIENCE));
        let mut answer = [0; 256];
        SaMad::new(&mut answer).header_mut().set_status(Status::BAD_VERSION);
        let answered = Outcome::Answered { verdict: Verdict::Resolved, message: &answer };
        flood.handle_outcome(start, garbage[0], &answered);
        SaMad::new(&mut answer).header_mut().set_status(Status::OK);
        let mut mad = SaMad::new(&mut answer);
        mad.rmpp_mut().set_rmpp_type(RmppType::ABORT).set_flags(RmppFlags::ACTIVE);
        let answered = Outcome::Answered { verdict: Verdict::Resolved, message: &answer };
        flood.handle_outcome(start, garbage[1], &answered);
        garbage[2..].iter().for_each(|query| flood.handle_outcome(start, query, &Outcome::Silent));
        let counts = flood.summary().malformed;
        assert_eq!(counts.iter().map(|form| form.sent).sum::<u64>(), garbage.len() as u64);
        assert_eq!(counts.iter().map(|form| form.refused.total()).sum::<u64>(), 1);
        assert_eq!(counts.iter().map(|form| form.aborted).sum::<u64>(), 1);
        assert!(counts.iter().all(|form| form.accepted == 0));
        let known = |form: &Malformed| form.refused.total() + form.aborted + form.silent;
        assert!(counts.iter().all(|form| form.sent == known(form)));
    }
}
