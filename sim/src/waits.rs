//! How long clients may wait for an answer while one thing fails alone, as `docs/operating.md` has
//! it for each way to run managers.

use std::time::Duration;

use sm_config::Settings;

use crate::config::Config;
use crate::faults::Fault;
use crate::net::Proc;

/// What a takeover takes once the master counts as gone: a sweep, the questions to responders, a
/// handover, and the first repeat of a request after it.
const TAKEOVER: Duration = Duration::from_secs(9);
/// For how long the fence in etcd is held by a manager that was killed.
const FENCE: Duration = Duration::from_secs(4);
/// What a takeover takes once the master counts as gone and the fence is free: no responder is
/// asked.
const SHARED: Duration = Duration::from_secs(5);
/// How long a manager may hang before it gives up prolonging the fence's lease.
const HANG: Duration = Duration::from_secs(5);
/// Until another member of etcd answers, and the next request of a client.
const NEXT_MEMBER: Duration = Duration::from_secs(8);
/// For reads at a responder's port: the manager does not answer it for a second, and then it
/// answers from what it holds.
pub const READ: Duration = Duration::from_secs(4);

/// Whether responders go on without a manager.
pub fn leaves_responders(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Kill(Proc::Manager(_)) | Fault::PowerLoss(_) | Fault::Stop(Proc::Manager(_))
    )
}

/// The longest wait that is permitted while `fault` fails alone, for the time `lasts`.
pub fn limit(config: &Config, settings: &Settings, fault: &Fault, lasts: Duration) -> Duration {
    let polls = settings.sminfo_polling_timeout * settings.polling_retry_number;
    let polls = Duration::from_millis(polls.into());
    let takeover = polls + TAKEOVER;
    match fault {
        Fault::EtcdMember(_) => NEXT_MEMBER,
        Fault::Hang(_) if config.etcd => takeover + FENCE + HANG,
        Fault::Hang(_) if config.managers > 1 => takeover,
        // The master gives the fence back when it has heard nothing for so long, or goes on.
        Fault::OwnLink(_) | Fault::Stop(Proc::Manager(_)) if config.etcd => takeover + FENCE,
        _ if fault.may_change_master() && config.etcd => polls.max(FENCE) + SHARED,
        _ if fault.may_change_master() && config.managers > 1 => takeover,
        _ => lasts + takeover,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_takeover_ends_the_wait_for_a_master_that_stays_away() {
        let (settings, config) = (Settings::default(), Config::small(2));
        let away = Duration::from_secs(3600);
        let limit = |config: &Config, fault| limit(config, &settings, &fault, away);
        let kill = || Fault::Kill(Proc::Manager(0));
        assert!(limit(&config, kill()) < Duration::from_secs(60));
        assert!(limit(&Config { etcd: true, ..config.clone() }, kill()) < Duration::from_secs(60));
        assert!(limit(&Config { managers: 1, ..config.clone() }, kill()) > away);
        assert!(limit(&config, Fault::EtcdDown) > away);
        let etcd = Config { etcd: true, ..config.clone() };
        assert!(limit(&config, Fault::Hang(0)) < limit(&etcd, Fault::Hang(0)));
        assert!(limit(&etcd, Fault::Hang(0)) < Duration::from_secs(70));
        assert!(limit(&config, Fault::EtcdMember(1)) < Duration::from_secs(60));
    }
}
