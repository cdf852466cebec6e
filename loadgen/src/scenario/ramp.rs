//! Ramp: the rate of an open loop is raised step by step until the responder does not keep up,
//! then the limit is closed in on. The *knee* is the highest rate that was kept up with.

use std::time::Duration;

/// Steps at most.
const STEPS_MAX: usize = 200;
/// A generator that begins less of its schedule than this did not keep it, what is chance aside.
const KEPT: f64 = 0.95;
/// Times that a rate is measured again that the generator did not keep: something else may have
/// had its core.
const AGAIN_MAX: u32 = 2;

/// How the rate is raised, and what keeping up means.
#[derive(Clone, Copy, Debug)]
pub struct RampOptions {
    /// The first rate, queries a second.
    pub from: f64,
    /// The highest.
    pub to: f64,
    /// Each rate is so many times the one before.
    pub factor: f64,
    /// How long one rate is measured.
    pub step: Duration,
    /// How long one waits before.
    pub settle: Duration,
    /// Least share of the queries that is resolved, 0 to 1.
    pub goodput: f64,
    /// Longest 99th percentile of latencies.
    pub p99: Duration,
    /// Steps that close in on the knee, each halving what is left.
    pub refine: u32,
}

/// What was measured at one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// How long.
    pub time: Duration,
    /// Queries begun.
    pub queries: u64,
    /// Resolved.
    pub resolved: u64,
    /// Packets sent.
    pub sent: u64,
    /// Latencies from when queries were due: 50th, 99th and 99.9th percentile.
    pub latencies: [Duration; 3],
    /// 99th percentile of how late queries were sent.
    pub lag: Duration,
}

/// Whether a rate was kept up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Yes.
    Kept,
    /// Too few queries were resolved.
    Goodput,
    /// Too many took too long.
    Latency,
    /// The generator did not send as much as it was to, or too late: nothing is said about the
    /// responder.
    Generator,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Rate asked for, queries a second.
    pub rate: f64,
    /// What was measured.
    pub measured: Measured,
    /// What that means.
    pub finding: Finding,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Ramp {
    options: RampOptions,
    rate: f64,
    /// The lowest rate that was not kept up with.
    too_much: Option<f64>,
    refined: u32,
    /// Times that the present rate has been measured again.
    again: u32,
    steps: Vec<Step>,
}

impl Ramp {
    /// Begins with the first rate.
    pub fn new(options: RampOptions) -> Self {
        Self {
            rate: options.from,
            options,
            too_much: None,
            refined: 0,
            again: 0,
            steps: Vec::new(),
        }
    }

    /// The rate to run at.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// How it is raised.
    pub fn options(&self) -> &RampOptions {
        &self.options
    }

    /// Takes what was measured at the present rate; yields the next, or `None` at the end.
    pub fn handle_step(&mut self, measured: Measured) -> Option<f64> {
        let rate = self.rate;
        let finding = self.judge(&measured);
        self.steps.push(Step { rate, measured, finding });
        if finding == Finding::Generator && self.again < AGAIN_MAX {
            self.again += 1;
            return Some(rate);
        }
        self.again = 0;
        if finding != Finding::Kept {
            self.too_much = Some(self.too_much.map_or(rate, |known| known.min(rate)));
        }
        let next = match (self.too_much, self.knee()) {
            (None, _) if rate >= self.options.to => return None,
            (None, _) => (rate * self.options.factor).min(self.options.to),
            (Some(_), None) => return None,
            (Some(too_much), Some(knee)) => {
                self.refined += 1;
                (knee * too_much).sqrt()
            }
        };
        if self.refined > self.options.refine || self.steps.len() >= STEPS_MAX {
            return None;
        }
        self.rate = next;
        Some(next)
    }

    fn judge(&self, measured: &Measured) -> Finding {
        let seconds = measured.time.as_secs_f64();
        let due = self.rate * seconds;
        // So many that come at random may be fewer by a few times the square root.
        if (measured.queries as f64) < KEPT * due - 4.0 * due.sqrt() {
            Finding::Generator
        } else if (measured.resolved as f64) < self.options.goodput * measured.queries as f64 {
            Finding::Goodput
        } else if measured.latencies[1] > self.options.p99 {
            // What was sent late is answered late.
            let is_late = measured.lag > self.options.p99 / 2;
            if is_late { Finding::Generator } else { Finding::Latency }
        } else {
            Finding::Kept
        }
    }

    /// The highest rate that was kept up with, below all that were not.
    pub fn knee(&self) -> Option<f64> {
        let limit = self.too_much.unwrap_or(f64::INFINITY);
        let kept = self.steps.iter().filter(|step| step.finding == Finding::Kept);
        kept.map(|step| step.rate).filter(|&rate| rate < limit).max_by(f64::total_cmp)
    }

    /// Whether the responder was seen to fall behind: if not, the knee lies higher.
    pub fn is_found(&self) -> bool {
        let failed = |step: &Step| matches!(step.finding, Finding::Goodput | Finding::Latency);
        self.knee().is_some() && self.steps.iter().any(failed)
    }

    /// Whether the generator ended the search.
    pub fn is_generators(&self) -> bool {
        self.steps.last().is_some_and(|step| step.finding == Finding::Generator)
    }

    /// Steps so far.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> RampOptions {
        RampOptions {
            from: 1000.0,
            to: 1e6,
            factor: 2.0,
            step: Duration::from_secs(1),
            settle: Duration::ZERO,
            goodput: 0.95,
            p99: Duration::from_millis(10),
            refine: 6,
        }
    }

    /// A responder that answers up to `capacity` a second, the rest late or never.
    fn measured(rate: f64, capacity: f64, generator: f64) -> Measured {
        let begun = rate.min(generator);
        let latency = Duration::from_millis(if begun > capacity { 200 } else { 1 });
        Measured {
            time: Duration::from_secs(1),
            queries: begun as u64,
            resolved: begun.min(capacity) as u64,
            sent: begun as u64,
            latencies: [latency; 3],
            lag: Duration::ZERO,
        }
    }

    fn run(options: RampOptions, capacity: f64, generator: f64) -> Ramp {
        let mut ramp = Ramp::new(options);
        while ramp.handle_step(measured(ramp.rate(), capacity, generator)).is_some() {}
        ramp
    }

    #[test]
    fn the_knee_is_closed_in_on() {
        let ramp = run(options(), 50_000.0, f64::INFINITY);
        let knee = ramp.knee().unwrap();
        assert!((49_000.0..=50_000.0).contains(&knee), "{knee}");
        assert!(ramp.is_found());
        assert_eq!(ramp.steps().len(), 13, "six doublings and one too much, six to close in");
        assert_eq!(ramp.steps()[6].finding, Finding::Goodput);
    }

    #[test]
    fn late_answers_are_not_kept_up_with() {
        let options = RampOptions { goodput: 0.0, ..options() };
        let ramp = run(options, 50_000.0, f64::INFINITY);
        assert_eq!(ramp.steps()[6].finding, Finding::Latency);
        let mut ramp = Ramp::new(options);
        let lag = Duration::from_millis(6);
        ramp.handle_step(Measured { lag, ..measured(1000.0, 10.0, 1e9) });
        assert_eq!(ramp.steps()[0].finding, Finding::Generator, "sent late, answered late");
    }

    /// Nothing is said about a responder by a generator that could not send more.
    #[test]
    fn a_generator_at_its_limit_finds_no_knee() {
        let ramp = run(options(), 1e9, 50_000.0);
        assert!(!ramp.is_found());
        assert_eq!(ramp.steps()[6].finding, Finding::Generator);
        let rates: Vec<_> = ramp.steps()[6..9].iter().map(|step| step.rate).collect();
        assert_eq!(rates, [64_000.0; 3], "it is given another chance, and one more");
        assert!(ramp.steps()[9].rate < 64_000.0);
    }

    #[test]
    fn it_ends_at_the_highest_rate_and_at_once_if_the_first_is_too_much() {
        let ramp = run(options(), 1e9, f64::INFINITY);
        assert_eq!((ramp.knee(), ramp.is_found()), (Some(1e6), false));
        let ramp = run(options(), 10.0, f64::INFINITY);
        assert_eq!((ramp.knee(), ramp.steps().len()), (None, 1));
    }
}
