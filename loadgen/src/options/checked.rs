//! Checks combinations of options and derives the plan from options and profile.

use sa_proto::trust::{ClientTrust, TlsFiles, TrustError};

use super::{Options, TransportKind};
use crate::check::{CheckKind, Level};
use crate::plan::{Plan, PlanError};
use crate::profile::{
    ClosedTable, Id, Named, OpenTable, Profile, ProfileError, Rate, Share, Time, Whole,
};
use crate::scenario::pace::Arrivals;

/// Options that exclude or require others.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// Transport ring without its socket.
    #[error(
        "--transport ring requires --target-ring PATH, the socket of a responder on this host \
         (`ibsa --ring PATH`)"
    )]
    NoRing,
    /// A ring's socket without transport ring.
    #[error("--target-ring requires --transport ring")]
    RingOverOther,
    /// Transport udp without an address.
    #[error("--transport udp requires the address of a responder: --target HOST:PORT")]
    NoTarget,
    /// Addresses with transport ibsim.
    #[error("--target requires --transport udp; with ibsim, requests go to the LID of the SA")]
    TargetOverFabric,
    /// Addresses with transport ring.
    #[error("--target requires --transport udp; with ring, requests go to --target-ring")]
    TargetOverRing,
    /// Addresses that one socket cannot reach.
    #[error("--target: IPv4 and IPv6 addresses cannot be mixed")]
    MixedTargets,
    /// A capture without a fabric, or of several sockets.
    #[error("--capture requires --transport ibsim and one thread")]
    Capture,
    /// No source of ports.
    #[error("no ports to query: give --sm URL to take them from an SM's snapshot, or --ports FILE")]
    NoPorts,
    /// No snapshot to compare paths with.
    #[error("--check=path compares answers with a snapshot and requires --sm URL")]
    NoSnapshot,
    /// Registrations for many ports over a transport that sends from one port.
    #[error("profile {0} registers every port under its own LID: use --transport udp")]
    NotThatPort(&'static str),
    /// An option that does not apply to the model.
    #[error("{0} applies to {1}, not to {2}")]
    NotFor(&'static str, &'static str, &'static str),
    /// The profile does not exist, or is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The profile contradicts itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Options {
    /// Trust configuration for connections to SMs.
    pub fn trust(&self) -> Result<ClientTrust, TrustError> {
        let files = TlsFiles::of(
            self.tls_ca.as_deref(),
            self.tls_cert.as_deref(),
            self.tls_key.as_deref(),
        )?;
        Ok(ClientTrust::new(files, self.insecure).with_sm_user(self.sm_user))
    }

    /// Checks combinations of options, and derives the plan.
    pub fn checked(self) -> Result<(Self, Plan), OptionsError> {
        match (self.transport, self.target_ring.is_some(), self.target.is_empty()) {
            (TransportKind::Udp | TransportKind::Ibsim, true, _) => {
                return Err(OptionsError::RingOverOther);
            }
            (TransportKind::Udp, _, true) => return Err(OptionsError::NoTarget),
            (TransportKind::Ibsim, _, false) => return Err(OptionsError::TargetOverFabric),
            (TransportKind::Ring, _, false) => return Err(OptionsError::TargetOverRing),
            (TransportKind::Ring, false, _) => return Err(OptionsError::NoRing),
            _ => {}
        }
        if self.target.windows(2).any(|pair| pair[0].is_ipv4() != pair[1].is_ipv4()) {
            return Err(OptionsError::MixedTargets);
        }
        if self.capture.is_some() && (self.threads > 1 || self.transport != TransportKind::Ibsim) {
            return Err(OptionsError::Capture);
        }
        if self.sm.is_empty() && self.ports.is_none() {
            return Err(OptionsError::NoPorts);
        }
        let plan = self.plan()?;
        if plan.check == Some(CheckKind::Path) && self.sm.is_empty() {
            return Err(OptionsError::NoSnapshot);
        }
        if plan.registers() && self.transport == TransportKind::Ibsim {
            return Err(OptionsError::NotThatPort(plan.name));
        }
        Ok((self, plan))
    }

    /// The profile, if one was named, with the other options applied.
    fn plan(&self) -> Result<Plan, OptionsError> {
        let mut profile = match &self.profile {
            Some(name) => Profile::load(name, &self.set)?,
            None => Profile::default(),
        };
        let model = profile.models().into_iter().find(|(_, is_there)| *is_there);
        let model = model.map(|(name, _)| name);
        let named = self.profile.is_some();
        if let Some(rate) = self.rate.map(Rate) {
            let arrivals = self.poisson.then_some(Arrivals::Poisson);
            match (&mut profile.open, &mut profile.linux_client, &mut profile.malformed) {
                (Some(open), ..) => {
                    open.rate = Some(rate);
                    open.arrivals = arrivals.or(open.arrivals);
                }
                (_, Some(clients), _) => {
                    clients.rate = Some(rate);
                    clients.arrivals = arrivals.or(clients.arrivals);
                }
                (.., Some(flood)) => {
                    flood.rate = Some(rate);
                    flood.arrivals = arrivals.or(flood.arrivals);
                }
                (open, ..) if !named => *open = Some(OpenTable { rate: Some(rate), arrivals }),
                _ => {
                    let models = "open, linux-client and malformed";
                    return Err(OptionsError::NotFor("--rate", models, model.unwrap_or_default()));
                }
            }
        } else if !named {
            profile.closed = Some(ClosedTable::default());
        }
        if let Some(concurrency) = self.concurrency {
            let Some(closed) = &mut profile.closed else {
                let model = model.unwrap_or_default();
                return Err(OptionsError::NotFor("--concurrency", "closed", model));
            };
            closed.concurrency = Some(Whole(concurrency.into()));
        }
        let query = &mut profile.query;
        query.by = self.by.map(Named).or(query.by);
        query.service_id = self.service_id.map(Id).or(query.service_id);
        query.pkey = self.pkey.map(|pkey| Id(pkey.0.into())).or(query.pkey);
        query.pairs = self.pairs.map(|pairs| Whole(pairs.into())).or(query.pairs);
        let retry = &mut profile.retry;
        retry.timeout = self.timeout.map(Time).or(retry.timeout);
        retry.retries = self.retries.map(|retries| Whole(retries.into())).or(retry.retries);
        profile.seed = self.seed.or(profile.seed);
        profile.check = self.check.or(profile.check);
        profile.check_sample = self.check_sample.map(Share).or(profile.check_sample);
        if self.duration.is_some() || self.queries.is_some() {
            profile.duration = self.duration.map(Time);
            profile.queries = self.queries.map(Whole);
        }
        let concurrency = match self.transport {
            TransportKind::Udp | TransportKind::Ring => 256,
            TransportKind::Ibsim => 32,
        };
        Ok(Plan::new(&profile, concurrency)?)
    }

    /// How thoroughly responses are checked.
    pub fn level(&self, plan: &Plan) -> Level {
        match plan.check {
            Some(CheckKind::None) => Level::Status,
            Some(CheckKind::Echo) => Level::Echo,
            Some(CheckKind::Path) => Level::Path,
            None if self.sm.is_empty() => Level::Echo,
            None => Level::Path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::parse;
    use crate::plan::Model;
    use crate::workload::By;
    use std::time::Duration;

    fn plan(line: &str) -> Plan {
        parse(line).checked().unwrap_or_else(|error| panic!("{line}: {error}")).1
    }

    #[test]
    fn a_storm_lasts_ten_seconds_by_default() {
        let base = "ibstorm --target 127.0.0.1:1 --sm http://x";
        assert_eq!(plan(base).duration, Some(Duration::from_secs(10)));
        assert_eq!(plan(&format!("{base} --queries 5")).duration, None);
        let both = plan(&format!("{base} --queries 5 --duration 90s"));
        assert_eq!((both.duration, both.queries), (Some(Duration::from_secs(90)), Some(5)));
        let short = plan(&format!("{base} --profile linux-client --duration 2s"));
        assert_eq!(short.duration, Some(Duration::from_secs(2)));
    }

    #[test]
    fn options_take_precedence_over_the_profile() {
        let base = "ibstorm --target 127.0.0.1:1 --sm http://x";
        let line = format!("{base} --profile linux-client --rate 5 --by lid --seed 9 --timeout 1s");
        let plan = plan(&line);
        let Model::LinuxClient { rate: Some(rate), window: 16, .. } = plan.model else { panic!() };
        assert_eq!((rate, plan.workload.by, plan.workload.seed), (5.0, By::Lid, 9));
        assert_eq!(plan.patience.timeout, Duration::from_secs(1));
        assert_eq!(plan.patience.retries, 1, "two tries in the deadline of two seconds");
    }

    #[test]
    fn loads_without_a_profile_are_loops() {
        let base = "ibstorm --target 127.0.0.1:1 --sm http://x";
        assert!(matches!(plan(base).model, Model::Closed(256)));
        let fabric = plan("ibstorm --transport ibsim --sm http://x");
        assert!(matches!(fabric.model, Model::Closed(32)));
        let open = plan(&format!("{base} --rate 7 --poisson"));
        assert!(matches!(open.model, Model::Open(rate, Arrivals::Poisson) if rate == 7.0));
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        use OptionsError as Error;
        macro_rules! refused {
            ($line:expr, $error:pat) => {
                let error = parse($line).checked().err();
                assert!(matches!(error, Some($error)), "{}: {error:?}", $line);
            };
        }
        refused!("ibstorm --sm http://x", Error::NoTarget);
        let line = "ibstorm --transport ibsim --target 127.0.0.1:1 --sm http://x";
        refused!(line, Error::TargetOverFabric);
        // The error was about ibsim and its LIDs.
        let line = "ibstorm --transport ring --target-ring x --target 127.0.0.1:1 --sm http://x";
        refused!(line, Error::TargetOverRing);
        refused!("ibstorm --transport ring --sm http://x", Error::NoRing);
        refused!("ibstorm --target-ring x --sm http://x", Error::RingOverOther);
        refused!("ibstorm --target 127.0.0.1:1 --ports x --check", Error::NoSnapshot);
        refused!("ibstorm --target 127.0.0.1:1", Error::NoPorts);
        refused!("ibstorm --target 127.0.0.1:1 --ports x --capture y", Error::Capture);
        refused!("ibstorm --target 127.0.0.1:1,[::1]:1 --ports x", Error::MixedTargets);
        let line = "ibstorm --transport ibsim --ports x --profile reboot";
        refused!(line, Error::NotThatPort("reboot"));
        let line = "ibstorm --target 127.0.0.1:1 --ports x --profile job-start --rate 5";
        refused!(line, Error::NotFor("--rate", _, "job-start"));
        let line = "ibstorm --target 127.0.0.1:1 --ports x --profile job-start --concurrency 5";
        refused!(line, Error::NotFor("--concurrency", "closed", "job-start"));
        refused!("ibstorm --target 127.0.0.1:1 --ports x --profile nix", Error::Profile(_));
    }
}
