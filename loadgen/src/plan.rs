//! The plan of a storm, derived from a profile: a model with all its settings, and each thread's
//! part of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::PKey;

use crate::ask::malformed::Form;
use crate::check::CheckKind;
use crate::profile::{Profile, RampTable, RetryTable, Time, Whole};
use crate::report::grouped;
use crate::scenario::acm::{Acm, AcmOptions};
use crate::scenario::closed::Closed;
use crate::scenario::job_start::{JobStart, JobStartOptions};
use crate::scenario::linux_client::LinuxClient;
use crate::scenario::malformed::Flood;
use crate::scenario::open::Open;
use crate::scenario::pace::{Arrivals, Bounds, Dial, Schedule};
use crate::scenario::ramp::RampOptions;
use crate::scenario::reboot::{Reboot, RebootOptions};
use crate::scenario::srp::{Srp, SrpOptions};
use crate::scenario::{Part, Patience, Scenario};
use crate::workload::{By, Draw, Pattern, Workload, WorkloadOptions};

/// Number of ports: all.
const ALL: usize = usize::MAX;

/// A storm, as far as it does not depend on the fabric.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the model.
    pub name: &'static str,
    /// The model and its settings.
    pub model: Model,
    /// The workload.
    pub workload: WorkloadOptions,
    /// Timeout and retries of queries.
    pub patience: Patience,
    /// Duration of the storm.
    pub duration: Option<Duration>,
    /// Limit of queries.
    pub queries: Option<u64>,
    /// How thoroughly responses are checked; `None` for the default.
    pub check: Option<CheckKind>,
}

/// A model of clients; see [`scenario`](crate::scenario).
#[derive(Clone, Debug)]
pub enum Model {
    /// A constant number of outstanding queries.
    Closed(usize),
    /// A constant rate, queries a second.
    Open(f64, Arrivals),
    /// A rising rate, queries a second.
    Ramp(RampOptions, Arrivals),
    /// Ports with windows.
    LinuxClient {
        /// Number of ports.
        ports: usize,
        /// Outstanding queries per port.
        window: u16,
        /// Callers a second; `None` keeps all windows full.
        rate: Option<f64>,
        /// Distribution of the callers over time.
        arrivals: Arrivals,
    },
    /// All ports query their peers at once.
    JobStart(JobStartOptions),
    /// All ports come up and register.
    Reboot(RebootOptions),
    /// ibacm.
    Acm(AcmOptions),
    /// srp_daemon.
    Srp(SrpOptions),
    /// Malformed among valid queries.
    Malformed {
        /// Queries a second.
        rate: f64,
        /// Distribution over time.
        arrivals: Arrivals,
        /// Share of malformed queries.
        share: f64,
        /// Kinds of malformation.
        forms: Vec<Form>,
    },
}

/// Why a profile is inconsistent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An invalid P_Key.
    #[error("query.pkey: expected a P_Key from 0x0001 to 0xffff other than 0x8000, such as 0xffff")]
    PKey,
    /// A ramp that does not rise.
    #[error("ramp: from = {0} exceeds to = {1}")]
    Ramp(String, String),
    /// No form of query.
    #[error("acm.by: expected at least one of acm, acm-gid, acm-lid")]
    NoWay,
    /// No kind of malformation.
    #[error("malformed.forms: expected at least one form; omit the key to use all")]
    NoForms,
}

impl Plan {
    /// Derives the plan of a profile. `concurrency` is the default for a closed loop.
    pub fn new(profile: &Profile, concurrency: usize) -> Result<Self, PlanError> {
        let models = profile.models().into_iter().find(|(_, is_there)| *is_there);
        let name = models.map_or("closed", |(name, _)| name);
        let draw = Draw::Any(or(profile.query.pairs, 65_536));
        let seconds = Duration::from_secs;
        let linux = Patience::RDMA_CM;
        let (model, by, draw, patience, duration) = if let Some(open) = &profile.open {
            let model = Model::Open(rate(open.rate, 100_000.0), open.arrivals.unwrap_or_default());
            (model, By::Gid, draw, linux, Some(seconds(10)))
        } else if let Some(table) = &profile.ramp {
            let model = Model::Ramp(ramp(table)?, table.arrivals.unwrap_or_default());
            (model, By::Gid, draw, linux, None)
        } else if let Some(table) = &profile.linux_client {
            let model = Model::LinuxClient {
                ports: or(table.ports, ALL),
                window: or(table.outstanding, 16) as u16,
                rate: table.rate.map(|rate| rate.0),
                arrivals: table.arrivals.unwrap_or(Arrivals::Poisson),
            };
            let draw = per_port(table.destinations, 64, table.pattern);
            (model, By::GidService, draw, linux, Some(seconds(10)))
        } else if let Some(table) = &profile.job_start {
            let patience = patience(linux, &profile.retry);
            let options = JobStartOptions {
                ports: or(table.ports, ALL),
                within: time(table.within, seconds(1)),
                window: or(table.outstanding, 16) as u16,
                persist: table.persist.unwrap_or(true),
                patience,
            };
            let draw = per_port(table.peers, 16, table.pattern);
            (Model::JobStart(options), By::GidService, draw, linux, Some(seconds(60)))
        } else if let Some(table) = &profile.reboot {
            let options = RebootOptions {
                ports: or(table.ports, ALL),
                within: time(table.within, seconds(5)),
                window: or(table.outstanding, 16) as u16,
                services: or(table.services, 1) as u16,
                stay: time(table.stay, seconds(2)),
                leave: table.leave.unwrap_or(true),
                patience: patience(linux, &profile.retry),
            };
            (Model::Reboot(options), By::Gid, Draw::Any(1), linux, Some(seconds(300)))
        } else if let Some(table) = &profile.acm {
            let mix = [By::Acm, By::AcmGid, By::AcmLid];
            let by = table
                .by
                .as_ref()
                .map_or(mix.to_vec(), |named| named.iter().map(|by| by.0).collect());
            let Some(&first) = by.first() else { return Err(PlanError::NoWay) };
            let options = AcmOptions {
                ports: or(table.ports, ALL),
                within: time(table.within, seconds(1)),
                depth: or(table.depth, 1) as u16,
                by,
                patience: patience(Patience::ACM, &profile.retry),
            };
            let draw = per_port(table.destinations, 32, table.pattern);
            (Model::Acm(options), first, draw, Patience::ACM, Some(seconds(60)))
        } else if let Some(table) = &profile.srp {
            let options = SrpOptions {
                ports: or(table.ports, ALL),
                within: time(table.within, seconds(1)),
                listing: table.listing.unwrap_or_default(),
                scans: or(table.scans, 1) as u32,
                rescan: time(table.rescan, seconds(60)),
                patience: patience(Patience::SRP, &profile.retry),
            };
            (Model::Srp(options), By::Srp, Draw::Any(1), Patience::SRP, Some(seconds(60)))
        } else if let Some(table) = &profile.malformed {
            let forms = table.forms.clone().unwrap_or(Form::ALL.to_vec());
            if forms.is_empty() {
                return Err(PlanError::NoForms);
            }
            let model = Model::Malformed {
                rate: rate(table.rate, 50_000.0),
                arrivals: table.arrivals.unwrap_or_default(),
                share: table.share.map_or(0.5, |share| share.0),
                forms,
            };
            (model, By::Gid, draw, linux, Some(seconds(10)))
        } else {
            let given = profile.closed.as_ref().and_then(|closed| closed.concurrency);
            (Model::Closed(or(given, concurrency)), By::Gid, draw, linux, Some(seconds(10)))
        };
        let pkey = match profile.query.pkey {
            Some(id) => id.pkey().ok_or(PlanError::PKey)?,
            None => PKey::DEFAULT_FULL,
        };
        let queries = profile.queries.map(|queries| queries.0);
        Ok(Self {
            name,
            model,
            workload: WorkloadOptions {
                by: profile.query.by.map_or(by, |by| by.0),
                draw,
                seed: profile.seed.unwrap_or(1),
                service_id: profile.query.service_id.map_or(0x0106_1B58, |id| id.0),
                pkey,
                sample: profile.check_sample.map_or(1.0, |share| share.0),
            },
            patience: self::patience(patience, &profile.retry),
            // A limit of queries replaces the default duration.
            duration: profile
                .duration
                .map(|duration| duration.0)
                .or(duration.filter(|_| queries.is_none())),
            queries,
            check: profile.check,
        })
    }

    /// Whether each port sends under its own LID, which is impossible from a single port of a
    /// fabric.
    pub fn registers(&self) -> bool {
        matches!(self.model, Model::Reboot(_) | Model::Acm(_) | Model::Srp(_))
    }

    /// The settings of a ramp, if the model is one.
    pub fn ramp(&self) -> Option<RampOptions> {
        match &self.model {
            Model::Ramp(options, _) => Some(*options),
            _ => None,
        }
    }

    /// Queries a second of an open loop.
    pub fn offered(&self) -> Option<f64> {
        match self.model {
            Model::Open(rate, _) | Model::Malformed { rate, .. } => Some(rate),
            Model::LinuxClient { rate, .. } => rate,
            _ => None,
        }
    }

    /// Whether due queries wait for their port's window, in which case the delay is not the
    /// generator's.
    pub fn has_windows(&self) -> bool {
        matches!(
            self.model,
            Model::LinuxClient { rate: Some(_), .. } | Model::JobStart(_) | Model::Reboot(_)
        )
    }

    /// Creates the scenario of one thread. `dial` sets the rate of a ramp.
    pub fn scenario(
        &self,
        workload: &Arc<Workload>,
        part: Part,
        start: Instant,
        dial: &Arc<Dial>,
    ) -> Box<dyn Scenario> {
        let queries = self.queries.map(|all| part.share(all));
        let bounds = Bounds::new(start, self.duration, queries);
        let first = part.number * workload.len() / part.of;
        let share = 1.0 / part.of as f64;
        let seed = self.workload.seed.wrapping_mul(0x9E37_79B9).wrapping_add(part.number as u64);
        let (patience, own) = (self.patience, Arc::clone(workload));
        let all = workload.ports().len();
        let open = |schedule| Open::new(Arc::clone(workload), first, schedule, patience, bounds);
        match &self.model {
            Model::Closed(concurrency) => {
                // At least one query per thread of a closed loop.
                let concurrency = part.share(*concurrency as u64).max(1) as usize;
                Box::new(Closed::new(own, first, concurrency, patience, bounds))
            }
            &Model::Open(rate, arrivals) => {
                Box::new(open(Schedule::new(arrivals, rate * share, start, seed)))
            }
            &Model::Ramp(_, arrivals) => {
                let dial = Arc::clone(dial);
                Box::new(open(Schedule::following(dial, share, arrivals, start, seed)))
            }
            &Model::LinuxClient { ports, window, rate, arrivals } => {
                let schedule = rate.map(|rate| Schedule::new(arrivals, rate * share, start, seed));
                let size = (ports.min(all), window);
                let client = LinuxClient::new(own, part, size, schedule, patience, bounds, seed);
                Box::new(client)
            }
            Model::JobStart(options) => {
                let options = JobStartOptions { ports: options.ports.min(all), ..*options };
                Box::new(JobStart::new(own, part, options, start, bounds, seed))
            }
            Model::Reboot(options) => {
                let options = RebootOptions { ports: options.ports.min(all), ..*options };
                Box::new(Reboot::new(part, options, start, bounds, seed))
            }
            Model::Acm(options) => {
                let options = AcmOptions { ports: options.ports.min(all), ..options.clone() };
                Box::new(Acm::new(own, part, options, start, bounds, seed))
            }
            Model::Srp(options) => {
                let options = SrpOptions { ports: options.ports.min(all), ..*options };
                Box::new(Srp::new(part, options, start, bounds, seed))
            }
            Model::Malformed { rate, arrivals, share: garbage, forms } => {
                let open = open(Schedule::new(*arrivals, rate * share, start, seed));
                Box::new(Flood::new(open, *garbage, forms, seed))
            }
        }
    }

    /// Describes the queries, for the head of a report.
    pub fn query(&self) -> String {
        match &self.model {
            Model::Reboot(_) => "Registrations".to_owned(),
            Model::Acm(_) => "Requests of ibacm".to_owned(),
            Model::Srp(_) => "Requests of srp_daemon".to_owned(),
            _ => format!("PathRecord by {}", self.workload.by),
        }
    }

    /// Describes the load, for the head of a report.
    pub fn load(&self) -> String {
        let a_second = |rate: f64| format!("{} a second", grouped(rate.round() as u64));
        let ports = |ports: usize| match ports {
            ALL => "all ports".to_owned(),
            ports => format!("{} ports", grouped(ports as u64)),
        };
        match &self.model {
            Model::Closed(concurrency) => {
                format!("closed loop of {}", grouped(*concurrency as u64))
            }
            Model::Open(rate, Arrivals::Constant) => format!("open loop of {}", a_second(*rate)),
            Model::Open(rate, Arrivals::Poisson) => {
                format!("open loop of {} at random", a_second(*rate))
            }
            Model::Ramp(options, _) => {
                format!("ramp from {}", a_second(options.from))
            }
            Model::LinuxClient { ports: count, window, rate, .. } => {
                let callers = match rate {
                    Some(rate) => format!("{} callers", a_second(*rate)),
                    None => "every window full".to_owned(),
                };
                format!("Linux clients on {}, windows of {window}, {callers}", ports(*count))
            }
            Model::JobStart(options) => {
                format!("{} within {:?}", ports(options.ports), options.within)
            }
            Model::Reboot(options) => {
                format!("{} within {:?}", ports(options.ports), options.within)
            }
            Model::Acm(options) => format!("{} within {:?}", ports(options.ports), options.within),
            Model::Srp(options) => format!("{} within {:?}", ports(options.ports), options.within),
            Model::Malformed { rate, share, .. } => {
                format!("{}, {:.0} % of them malformed", a_second(*rate), share * 100.0)
            }
        }
    }
}

fn ramp(table: &RampTable) -> Result<RampOptions, PlanError> {
    let ms = Duration::from_millis;
    let options = RampOptions {
        from: rate(table.from, 10_000.0),
        to: rate(table.to, 20_000_000.0),
        factor: table.factor.map_or(1.5, |factor| factor.0),
        step: time(table.step, ms(2000)),
        settle: time(table.settle, ms(300)),
        goodput: table.goodput.map_or(0.98, |share| share.0),
        p99: time(table.p99, ms(10)),
        refine: or(table.refine, 5) as u32,
    };
    if options.from > options.to {
        return Err(PlanError::Ramp(options.from.to_string(), options.to.to_string()));
    }
    Ok(options)
}

fn or<const MIN: u64, const MAX: u64>(given: Option<Whole<MIN, MAX>>, otherwise: usize) -> usize {
    given.map_or(otherwise, |whole| whole.0 as usize)
}

fn rate(given: Option<crate::profile::Rate>, otherwise: f64) -> f64 {
    given.map_or(otherwise, |rate| rate.0)
}

fn time(given: Option<Time>, otherwise: Duration) -> Duration {
    given.map_or(otherwise, |time| time.0)
}

fn per_port<const MAX: u64>(
    given: Option<Whole<1, MAX>>,
    otherwise: usize,
    pattern: Option<Pattern>,
) -> Draw {
    Draw::PerPort(or(given, otherwise), pattern.unwrap_or_default())
}

fn patience(usual: Patience, table: &RetryTable) -> Patience {
    let given = Patience {
        timeout: time(table.timeout, usual.timeout),
        retries: table.retries.map_or(usual.retries, |retries| retries.0 as u32),
    };
    given.until(table.deadline.map(|deadline| deadline.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::tests::workload;
    use crate::profile::READY;

    fn plan(text: &str) -> Result<Plan, PlanError> {
        Plan::new(&Profile::parse("test", text).unwrap(), 32)
    }

    /// Every built-in profile produces queries.
    #[test]
    fn every_ready_profile_makes_a_storm() {
        for ready in &READY {
            let plan = plan(ready.text).unwrap();
            let workload = Arc::new(workload(plan.workload.by, plan.workload.draw));
            let start = Instant::now();
            let dial = Arc::new(Dial::default());
            dial.set(1000.0);
            let later = start + Duration::from_secs(6);
            let mut asked = 0;
            for number in 0..2 {
                let part = Part { number, of: 2 };
                let mut scenario = plan.scenario(&workload, part, start, &dial);
                asked += usize::from(scenario.poll_query(later, 0).is_some());
                assert!(scenario.capacity() > 0, "{}", ready.name);
            }
            assert_eq!(asked, 2, "{}", ready.name);
            assert!(!plan.query().is_empty() && !plan.load().is_empty());
        }
    }

    #[test]
    fn defaults_are_those_of_the_real_clients() {
        let linux = plan("[linux-client]\n[retry]\ndeadline = \"2s\"\n").unwrap();
        assert_eq!((linux.workload.by, linux.patience.retries), (By::GidService, 9));
        let Model::LinuxClient { window: 16, rate: None, .. } = linux.model else { panic!() };
        assert_eq!(plan("[acm]").unwrap().patience, Patience::ACM);
        assert_eq!(plan("[srp]").unwrap().patience, Patience::SRP);
        let closed = plan("queries = 5\n[closed]").unwrap();
        assert!(matches!(closed.model, Model::Closed(32)) && closed.duration.is_none());
        assert_eq!(plan("[closed]").unwrap().duration, Some(Duration::from_secs(10)));
        assert_eq!(plan("[ramp]").unwrap().duration, None, "it ends when it has found the knee");
    }

    #[test]
    fn contradictory_settings_are_refused() {
        assert_eq!(plan("[query]\npkey = 0x8000\n[closed]").err(), Some(PlanError::PKey));
        let ramp = plan("[ramp]\nfrom = 5000\nto = 10").err();
        assert_eq!(ramp, Some(PlanError::Ramp("5000".into(), "10".into())));
        assert_eq!(plan("[acm]\nby = []").err(), Some(PlanError::NoWay));
        assert_eq!(plan("[malformed]\nforms = []").err(), Some(PlanError::NoForms));
    }
}
