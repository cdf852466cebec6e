//! Options that go together, and the plan that they come to with the profile.

use sa_proto::trust::{ClientTrust, TlsFiles, TrustError};

use super::{CheckKind, Options, TransportKind};
use crate::check::Level;
use crate::plan::{Plan, PlanError};
use crate::profile::{
    ClosedTable, Id, Named, OpenTable, Profile, ProfileError, Rate, Share, Time, Whole,
};
use crate::scenario::pace::Arrivals;

/// Options that do not go together.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// A ring without its socket.
    #[error(
        "--transport ring needs the socket of a responder on this host: --target-ring PATH, as in \
         `ibsa --ring PATH`"
    )]
    NoRing,
    /// A ring's socket without a ring.
    #[error("--target-ring is for --transport ring")]
    RingOverOther,
    /// udp without an address.
    #[error("--transport udp needs the address of a responder: --target HOST:PORT")]
    NoTarget,
    /// Addresses without udp.
    #[error("--target is for --transport udp; over ibsim requests go to the SA's LID")]
    TargetOverFabric,
    /// The same.
    #[error(
        "--target is for --transport udp; over a ring requests go to the responder whose socket \
         --target-ring names"
    )]
    TargetOverRing,
    /// Addresses that one socket cannot reach.
    #[error("--target: IPv4 and IPv6 addresses do not mix in one storm")]
    MixedTargets,
    /// A capture of what is no fabric, or of several sockets.
    #[error("--capture is for --transport ibsim with one thread")]
    Capture,
    /// Nothing to ask about.
    #[error(
        "which ports to ask about? give --sm URL, to take them from an SM's snapshot, or --ports FILE"
    )]
    NoPorts,
    /// Nothing to compare paths with.
    #[error("--check=path compares answers with a snapshot: give --sm URL")]
    NoSnapshot,
    /// Registrations for ports that one is not.
    #[error("{0} has each port register for itself: ask responders directly, with --transport udp")]
    NotThatPort(&'static str),
    /// An option that the model has no use for.
    #[error("{0} is for {1}, not for {2}")]
    NotFor(&'static str, &'static str, &'static str),
    /// No such profile, or a wrong one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A profile that contradicts itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Options {
    /// Why SMs are trusted.
    pub fn trust(&self) -> Result<ClientTrust, TrustError> {
        let files = TlsFiles::of(
            self.tls_ca.as_deref(),
            self.tls_cert.as_deref(),
            self.tls_key.as_deref(),
        )?;
        Ok(ClientTrust::new(files, self.insecure))
    }

    /// Checks what clap cannot, and makes a plan of it.
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

    /// What the profile says, if there is one, and the other options in its place.
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

    /// How far answers are checked.
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
    fn a_storm_ends_after_ten_seconds_unless_told_otherwise() {
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
        // This one was told of ibsim and its LIDs.
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
