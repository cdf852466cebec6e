//! The kinds of events: labels, OpenSM's numbers, and which of them a reader wants.

use sm_config::nearest_of;
use sm_core::perf::Group;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident, $label:literal, $opensm:expr;)*) => {
        /// A kind of event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind {
            $($(#[doc = $doc])+ $kind,)*
        }

        impl EventKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Name in JSON, metrics and commands. Names do not change.
            pub fn label(self) -> &'static str {
                match self { $(Self::$kind => $label,)* }
            }

            /// The id that OpenSM passes to event plug-ins (`osm_epi_event_id_t`), if it has one.
            pub fn opensm_id(self) -> Option<u8> {
                match self { $(Self::$kind => $opensm,)* }
            }
        }
    };
}

kinds! {
    /// Error counters of a port grew between two readings.
    PortErrors, "port_errors", Some(0);
    /// Counters of data and packets of a port grew.
    PortDataCounters, "port_data_counters", Some(1);
    /// The time in which packets of a port waited grew.
    PortSelect, "port_select", Some(2);
    /// This program started.
    Started, "started", None;
    /// This program ends.
    Stopped, "stopped", None;
    /// The state of this SM in the election changed.
    Mastership, "mastership", Some(8);
    /// A heavy sweep started: it reads the whole fabric.
    SweepStart, "sweep_start", Some(5);
    /// A sweep that read or wrote something ended.
    SweepEnd, "sweep_end", Some(6);
    /// The subnet is up, after a sweep that changed something.
    SubnetUp, "subnet_up", Some(4);
    /// Routes were computed.
    RoutingDone, "routing_done", Some(7);
    /// Forwarding tables were written to switches.
    TablesChanged, "tables_changed", Some(10);
    /// A node was found.
    NodeCame, "node_came", None;
    /// A node is gone.
    NodeWent, "node_went", None;
    /// A node has another name.
    NodeRenamed, "node_renamed", None;
    /// A link came up between nodes that were there.
    LinkCame, "link_came", None;
    /// A link between nodes that are still there is gone.
    LinkWent, "link_went", None;
    /// A link has another width or speed, or a cable another end.
    LinkChanged, "link_changed", None;
    /// An agent of the fabric sent a trap.
    Trap, "trap", Some(3);
    /// A problem was opened.
    ProblemOpened, "problem_opened", None;
    /// A problem is over.
    ProblemClosed, "problem_closed", None;
    /// A responder or a standby connected.
    ResponderCame, "responder_came", None;
    /// A responder or a standby is not connected any more.
    ResponderWent, "responder_went", None;
    /// The registry was written to `opensm-sa.dump`.
    RegistryDumped, "registry_dumped", Some(9);
    /// Settings or files of the operator's were read again, or a baseline was taken or cleared.
    Configuration, "configuration", None;
}

impl EventKind {
    /// The kind with a label.
    pub fn of_label(label: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.label() == label)
    }

    /// The counters whose growth it reports. Such events have no number, are not kept, and are made
    /// only for those that ask for them.
    pub fn group(self) -> Option<Group> {
        match self {
            Self::PortErrors => Some(Group::Errors),
            Self::PortDataCounters => Some(Group::Data),
            Self::PortSelect => Some(Group::Waiting),
            _ => None,
        }
    }

    /// The kind that reports growth of these counters.
    pub fn of_group(group: Group) -> Self {
        match group {
            Group::Errors => Self::PortErrors,
            Group::Data => Self::PortDataCounters,
            Group::Waiting => Self::PortSelect,
        }
    }
}

/// The label that stands for all kinds whose events have numbers.
const ALL_LABEL: &str = "all";

/// The kinds that a reader wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds {
    listed: Vec<EventKind>,
    /// Whether those whose events have numbers are wanted, too.
    is_all: bool,
}

impl Kinds {
    /// The kinds with these labels, of which `all` stands for those whose events have numbers; the
    /// same without labels. Fails with a label that is unknown.
    pub fn of<'a>(labels: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut kinds = Self { listed: Vec::new(), is_all: false };
        for label in labels {
            match EventKind::of_label(label) {
                Some(kind) => kinds.listed.push(kind),
                None if label == ALL_LABEL => kinds.is_all = true,
                None => return Err(label.to_owned()),
            }
        }
        kinds.is_all |= kinds.listed.is_empty();
        Ok(kinds)
    }

    /// What is reported about an unknown label: the kind that may be meant, and all kinds.
    pub fn unknown(label: &str) -> String {
        let labels =
            || std::iter::once(ALL_LABEL).chain(EventKind::ALL.iter().map(|of| of.label()));
        let meant = nearest_of(label, labels());
        let meant = meant.map_or_else(String::new, |meant| format!(" (did you mean {meant}?)"));
        let known: Vec<_> = labels().collect();
        format!("no kind of events '{label}'{meant}; the kinds are {}", known.join(", "))
    }

    /// Whether events with this label are wanted.
    pub fn takes(&self, label: &str) -> bool {
        let is_listed = self.listed.iter().any(|kind| kind.label() == label);
        let is_counted = || EventKind::of_label(label).is_some_and(|kind| kind.group().is_some());
        is_listed || (self.is_all && !is_counted())
    }

    /// The counters that are wanted, by the number of their group.
    pub fn groups(&self) -> [bool; Group::ALL.len()] {
        Group::ALL.map(|group| self.listed.contains(&EventKind::of_group(group)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn labels_and_numbers_differ() {
        let labels: BTreeSet<_> = EventKind::ALL.iter().map(|kind| kind.label()).collect();
        assert_eq!(labels.len(), EventKind::ALL.len());
        let ids: Vec<_> = EventKind::ALL.iter().filter_map(|kind| kind.opensm_id()).collect();
        let distinct: BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        assert!(distinct.into_iter().copied().eq(0..=10), "all of OpenSM's: {ids:?}");
    }

    #[test]
    fn counters_are_taken_only_if_they_are_named() {
        let of = |labels: &[&str]| Kinds::of(labels.iter().copied()).unwrap();
        for all in [of(&[]), of(&["all"])] {
            assert!(all.takes("trap") && all.takes("of a later release"));
            assert_eq!((all.takes("port_errors"), all.groups()), (false, [false; 3]));
        }
        let errors = of(&["port_errors", "trap"]);
        assert!(errors.takes("trap") && !errors.takes("node_came"));
        assert_eq!(errors.groups(), [true, false, false]);
        let with_data = of(&["all", "port_data_counters", "port_select"]);
        assert!(with_data.takes("node_came"));
        assert_eq!(with_data.groups(), [false, true, true]);
        assert_eq!(Kinds::of(["trap", "link_wnt"]).err(), Some("link_wnt".into()));
        let unknown = Kinds::unknown("link_wnt");
        assert!(unknown.starts_with("no kind of events 'link_wnt' (did you mean link_went?); the"));
        assert!(unknown.contains(" kinds are all, port_errors, ") && unknown.contains(", trap, "));
    }

    #[test]
    fn every_kind_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md");
        let documented = std::fs::read_to_string(path).unwrap();
        for kind in EventKind::ALL {
            let id = kind.opensm_id().map_or_else(String::new, |id| id.to_string());
            let row = format!("| `{}` | {id} |", kind.label()).replace("|  |", "| |");
            assert!(documented.contains(&row), "{row}");
        }
    }
}
