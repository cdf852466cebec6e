//! Whether this SM does its work: the answer to probes of service managers.

use sa_proto::snapshot::Version;

use super::SmStatus;

/// Whether this SM does the work of its state. A standby is ready: what it does is wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is ready: the reason in words.
    Ready(String),
    /// It is not: the reason.
    NotReady(String),
}

impl Readiness {
    /// The readiness of an SM with this status; `announced` is what it has published in its
    /// session, if it has one.
    pub fn of(sm: &SmStatus, announced: Version) -> Self {
        match &sm.state[..] {
            "" => Self::NotReady("starting".to_owned()),
            "master" if !sm.subnet_up => Self::NotReady("master; the subnet is not up".to_owned()),
            "master" if announced == Version::NONE => {
                Self::NotReady("master; nothing is published to responders".to_owned())
            }
            "master" => Self::Ready("master; the subnet is up".to_owned()),
            "standby" => Self::Ready("standby".to_owned()),
            state => Self::NotReady(state.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_ready_once_it_has_published_and_a_standby_is() {
        let published = Version { fabric_generation: 1, ..Version::NONE };
        let is_ready = |state: &str, subnet_up, announced| {
            let sm = SmStatus { state: state.to_owned(), subnet_up, ..SmStatus::default() };
            matches!(Readiness::of(&sm, announced), Readiness::Ready(_))
        };
        assert!(is_ready("master", true, published));
        assert!(!is_ready("master", false, published));
        assert!(!is_ready("master", true, Version::NONE));
        assert!(is_ready("standby", false, Version::NONE));
        assert!(!is_ready("discovering", false, Version::NONE) && !is_ready("", false, published));
    }
}
