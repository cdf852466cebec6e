//! The kinds of events: labels, and OpenSM's numbers.

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
        assert!(ids.iter().all(|id| (3..=10).contains(id)), "0 to 2 are counters");
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
