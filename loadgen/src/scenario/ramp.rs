//! Ramp: raises the rate of an open loop step by step until the responder falls behind, then
//! narrows down the limit. The *knee* is the highest rate that was sustained.

use std::time::Duration;

/// Limit of steps.
const STEPS_MAX: usize = 200;
/// Below this share of its schedule, random variation aside, the generator did not keep the rate.
const KEPT: f64 = 0.95;
/// Times that a rate which the generator did not keep is measured again: another program may have
/// used its core.
const AGAIN_MAX: u32 = 2;

/// Settings of a ramp, and the criteria of sustaining a rate.
#[derive(Clone, Copy, Debug)]
pub struct RampOptions {
    /// The first rate, queries a second.
    pub from: f64,
    /// The highest rate, queries a second.
    pub to: f64,
    /// Ratio of each rate to the one before.
    pub factor: f64,
    /// Time one rate is measured.
    pub step: Duration,
    /// Time at a rate before measuring.
    pub settle: Duration,
    /// Minimum share of queries resolved or correctly refused, 0 to 1.
    pub goodput: f64,
    /// Maximum 99th percentile of latency.
    pub p99: Duration,
    /// Steps to narrow down the knee, each by half.
    pub refine: u32,
}

/// Measurements at one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Duration.
    pub time: Duration,
    /// Queries started.
    pub queries: u64,
    /// Resolved.
    pub resolved: u64,
    /// Correct responses without a path.
    pub no_path: u64,
    /// Packets sent.
    pub sent: u64,
    /// Latencies from when queries were scheduled: 50th, 99th and 99.9th percentile.
    pub latencies: [Duration; 3],
    /// 99th percentile of how late queries were sent.
    pub lag: Duration,
}

impl Measured {
    /// Queries that are settled for their clients.
    pub fn settled(&self) -> u64 {
        self.resolved + self.no_path
    }
}

/// Whether a rate was sustained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Yes.
    Kept,
    /// Too few queries were resolved or correctly refused.
    Goodput,
    /// Too many took too long.
    Latency,
    /// The generator sent too few queries or too late: no conclusion about the responder.
    Generator,
}

/// One step of a ramp.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Rate set, queries a second.
    pub rate: f64,
    /// Measurements.
    pub measured: Measured,
    /// Verdict.
    pub finding: Finding,
}

/// Result of a ramp, in queries a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Knee {
    /// This rate was sustained, and one slightly above it was not.
    Found(f64),
    /// Even the first rate, this one, was not sustained.
    Below(f64),
    /// Even the last rate, this one, was sustained.
    Above(f64),
    /// The generator did not keep a rate. The highest sustained rate; `None` if it did not keep
    /// even the first.
    Generator(Option<f64>),
    /// The ramp was not finished.
    CutShort {
        /// The highest sustained rate so far.
        kept: Option<f64>,
        /// The lowest rate that was not sustained.
        too_much: Option<f64>,
    },
}

/// See the [module](self).
#[derive(Debug)]
pub struct Ramp {
    options: RampOptions,
    rate: f64,
    /// The lowest rate that was not sustained.
    too_much: Option<f64>,
    refined: u32,
    /// Times that the present rate has been measured again.
    again: u32,
    /// Whether the ramp has ended.
    finished: bool,
    steps: Vec<Step>,
}

impl Ramp {
    /// Starts with the first rate.
    pub fn new(options: RampOptions) -> Self {
        Self {
            rate: options.from,
            options,
            too_much: None,
            refined: 0,
            again: 0,
            finished: false,
            steps: Vec::new(),
        }
    }

    /// The present rate.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Settings of the ramp.
    pub fn options(&self) -> &RampOptions {
        &self.options
    }

    /// Evaluates the measurements at the present rate; returns the next rate, or `None` at the end.
    pub fn handle_step(&mut self, measured: Measured) -> Option<f64> {
        let next = self.next_rate(measured);
        match next {
            Some(rate) => self.rate = rate,
            None => self.finished = true,
        }
        next
    }

    fn next_rate(&mut self, measured: Measured) -> Option<f64> {
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
        let next = match (self.too_much, self.kept()) {
            (None, _) if rate >= self.options.to => return None,
            (None, _) => (rate * self.options.factor).min(self.options.to),
            (Some(_), None) => return None,
            (Some(too_much), Some(kept)) => {
                self.refined += 1;
                (kept * too_much).sqrt()
            }
        };
        if self.refined > self.options.refine || self.steps.len() >= STEPS_MAX {
            return None;
        }
        Some(next)
    }

    fn judge(&self, measured: &Measured) -> Finding {
        let seconds = measured.time.as_secs_f64();
        let due = self.rate * seconds;
        // The number of random arrivals may be lower by a few times its square root.
        if (measured.queries as f64) < KEPT * due - 4.0 * due.sqrt() {
            Finding::Generator
        } else if (measured.settled() as f64) < self.options.goodput * measured.queries as f64 {
            Finding::Goodput
        } else if measured.latencies[1] > self.options.p99 {
            // Queries sent late are answered late.
            let is_late = measured.lag > self.options.p99 / 2;
            if is_late { Finding::Generator } else { Finding::Latency }
        } else {
            Finding::Kept
        }
    }

    /// The highest sustained rate below all that were not.
    pub fn kept(&self) -> Option<f64> {
        let limit = self.too_much.unwrap_or(f64::INFINITY);
        let kept = self.steps.iter().filter(|step| step.finding == Finding::Kept);
        kept.map(|step| step.rate).filter(|&rate| rate < limit).max_by(f64::total_cmp)
    }

    /// The lowest rate not sustained, by the responder or by the generator.
    pub fn too_much(&self) -> Option<f64> {
        self.too_much
    }

    /// The result so far.
    pub fn knee(&self) -> Knee {
        let (kept, too_much) = (self.kept(), self.too_much);
        if !self.finished {
            return Knee::CutShort { kept, too_much };
        }
        let is_generators = |rate| {
            let mut steps = self.steps.iter().filter(|step| step.rate == rate);
            !steps.any(|step| matches!(step.finding, Finding::Goodput | Finding::Latency))
        };
        match (kept, too_much) {
            (_, Some(rate)) if is_generators(rate) => Knee::Generator(kept),
            (Some(kept), Some(_)) => Knee::Found(kept),
            (Some(kept), None) => Knee::Above(kept),
            (None, _) => Knee::Below(self.options.from),
        }
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

    /// A responder that answers up to `capacity` queries a second, and the rest late or never.
    fn measured(rate: f64, capacity: f64, generator: f64) -> Measured {
        let begun = rate.min(generator);
        let latency = Duration::from_millis(if begun > capacity { 200 } else { 1 });
        Measured {
            time: Duration::from_secs(1),
            queries: begun as u64,
            resolved: begun.min(capacity) as u64,
            no_path: 0,
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
        let Knee::Found(knee) = ramp.knee() else { panic!("{:?}", ramp.knee()) };
        assert!((49_000.0..=50_000.0).contains(&knee), "{knee}");
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

    #[test]
    fn rightful_refusals_are_kept_up_with() {
        let mut ramp = Ramp::new(options());
        ramp.handle_step(Measured { resolved: 10, no_path: 990, ..measured(1000.0, 1e9, 1e9) });
        assert_eq!((ramp.steps()[0].finding, ramp.kept()), (Finding::Kept, Some(1000.0)));
    }

    /// A generator that could not send more allows no conclusion about the responder.
    #[test]
    fn a_generator_at_its_limit_finds_no_knee() {
        let ramp = run(options(), 1e9, 50_000.0);
        let Knee::Generator(Some(kept)) = ramp.knee() else { panic!("{:?}", ramp.knee()) };
        assert!((49_000.0..=54_000.0).contains(&kept), "{kept}");
        assert_eq!(ramp.steps()[6].finding, Finding::Generator);
        let rates: Vec<_> = ramp.steps()[6..9].iter().map(|step| step.rate).collect();
        assert_eq!(rates, [64_000.0; 3], "it is given another chance, and one more");
        assert!(ramp.steps()[9].rate < 64_000.0);
    }

    #[test]
    fn it_ends_at_the_highest_rate_and_at_once_if_the_first_is_too_much() {
        let ramp = run(options(), 1e9, f64::INFINITY);
        assert_eq!(ramp.knee(), Knee::Above(1e6));
        let ramp = run(options(), 10.0, f64::INFINITY);
        assert_eq!((ramp.knee(), ramp.steps().len()), (Knee::Below(1000.0), 1));
        let ramp = run(options(), 1e9, 10.0);
        assert_eq!((ramp.knee(), ramp.steps().len()), (Knee::Generator(None), 3));
    }

    /// Regression: a ramp stopped before its first step ended was reported with the knee below its
    /// first rate: neither has a sustained rate.
    #[test]
    fn a_ramp_that_is_cut_short_finds_nothing() {
        let mut ramp = Ramp::new(options());
        assert_eq!(ramp.knee(), Knee::CutShort { kept: None, too_much: None });
        while ramp.steps().len() < 8 {
            let kept = ramp.kept();
            assert_eq!(ramp.knee(), Knee::CutShort { kept, too_much: ramp.too_much() });
            ramp.handle_step(measured(ramp.rate(), 50_000.0, f64::INFINITY));
        }
        let Knee::CutShort { kept: Some(kept), too_much: Some(too_much) } = ramp.knee() else {
            panic!("{:?}", ramp.knee());
        };
        assert!(kept < 50_000.0 && 50_000.0 < too_much, "{kept} {too_much}");
    }
}
