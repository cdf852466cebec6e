//! The kinds of problems: label, severity, and what to do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How bad a problem is. Ordered from the worst.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Traffic, queries or registrations fail now.
    Critical,
    /// Something does not work, or would not survive the next failure.
    #[default]
    Warning,
    /// An operator should know.
    Notice,
}

impl Severity {
    /// The word that users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Notice => "notice",
        }
    }
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident, $label:literal, $severity:ident, $patience:literal,
        $remedy:literal;)*) => {
        /// A kind of problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[doc = $doc])+ $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Name in metrics, JSON and commands. Names do not change.
            pub fn label(self) -> &'static str {
                match self { $(Self::$kind => $label,)* }
            }

            /// How bad problems of this kind are.
            pub fn severity(self) -> Severity {
                match self { $(Self::$kind => Severity::$severity,)* }
            }

            /// How long a condition must hold before it is a problem: what passes by itself sooner
            /// is none.
            pub fn patience(self) -> Duration {
                Duration::from_secs(match self { $(Self::$kind => $patience,)* })
            }

            /// What to do about what is missing if there is a baseline: there,
            /// nothing is forgotten.
            pub fn remedy_by_expectation(self) -> &'static str {
                match self {
                    Self::SwitchMissing | Self::HostMissing => {
                        "repair it, or take another baseline"
                    }
                    Self::LinkMissing => "check the cable, or take another baseline",
                    _ => self.remedy(),
                }
            }

            /// What to do, as a sentence without a full stop.
            pub fn remedy(self) -> &'static str {
                match self { $(Self::$kind => $remedy,)* }
            }
        }
    };
}

kinds! {
    /// This manager is master, and has not brought the subnet up.
    SubnetDown, "subnet_down", Critical, 10,
        "read the log of ibsm: it names what cannot be read or set";
    /// The SM's own port has no link, or nothing answers behind it.
    CutOff, "cut_off", Critical, 0,
        "check the cable and the switch at the SM's port";
    /// No responder answers queries of this manager's clients.
    NoResponder, "no_responder", Critical, 5,
        "start ibsa";
    /// A responder does not report, and has not disconnected by itself.
    ResponderHung, "responder_hung", Critical, 0,
        "look at the log and the CPU of that ibsa, and restart it";
    /// A responder has gone, and no other took its place.
    ResponderDown, "responder_down", Warning, 10,
        "start it again, unless it was stopped for good: it is forgotten after 15 minutes";
    /// A responder answers from an old snapshot.
    ResponderBehind, "responder_behind", Warning, 5,
        "its log has the reason: too little CPU, a slow network, or tables that cannot be built";
    /// A responder has no snapshot.
    ResponderWaiting, "responder_waiting", Warning, 10,
        "its log says why it cannot use what it received";
    /// A responder follows the session of another manager.
    ResponderElsewhere, "responder_elsewhere", Warning, 5,
        "if the fabric is not split, stop one of the two masters";
    /// No process reads SA requests at the SM's port.
    SaPortUnread, "sa_port_unread", Critical, 5,
        "start ibsa --at-sm-port on this host";
    /// Nothing is published, since the epoch of a session cannot be saved.
    SessionRefused, "session_refused", Critical, 0,
        "make room, or make --state-dir writable; ibsm retries automatically";
    /// Registrations cannot be written to the store.
    StoreUnavailable, "store_unavailable", Critical, 5,
        "restore etcd, or find which manager holds the fence";
    /// The registry could not commit to its file.
    RegistryCannotCommit, "registry_cannot_commit", Critical, 0,
        "make room on the disk of --state-dir, and see the log";
    /// The registry's thread does not end what it does.
    RegistryHangs, "registry_hangs", Critical, 0,
        "look at the disk of --state-dir; if it does not recover, stop ibsm: a standby takes over";
    /// With `--follow-sync`, registrations are acknowledged without a copy.
    NoFollower, "no_follower", Warning, 10,
        "start the standby, or repair its disk or network";
    /// A file of the state directory, or what etcd has of it, could not be written.
    StateFileBehind, "state_file_behind", Warning, 0,
        "make room on the disk of --state-dir, or in etcd: a restart would know less";
    /// A state file is too long for standbys.
    StateTooLong, "state_too_long", Warning, 0,
        "shorten the file: standbys do without it";
    /// The history cannot be written.
    HistoryUnwritable, "history_unwritable", Warning, 0,
        "make room on the disk of --history, or make it writable; ibsm retries automatically";
    /// A file of the operator's is refused.
    FileRefused, "file_refused", Warning, 0,
        "correct the file and send SIGHUP";
    /// A setting leaves the subnet open.
    UnsafeSetting, "unsafe_setting", Notice, 0,
        "change the setting";
    /// A certificate has expired or is about to, or cannot be read any more.
    Certificate, "certificate", Warning, 0,
        "put a new certificate in place of the file: it is read again for each connection";
    /// A subnet manager that does not belong to this subnet.
    ForeignManager, "foreign_manager", Warning, 0,
        "stop it, give it this subnet's sm_key, or list its port in --sm-allow";
    /// Another manager wrote its settings over those of this one.
    PortsOverwritten, "ports_overwritten", Critical, 0,
        "stop the other manager; ibsm restores its settings, less often while the other one writes";
    /// A subnet manager that would take nothing over, or did not become master when it should.
    InactiveManager, "inactive_manager", Warning, 0,
        "restart it, find who disabled it, or exclude it by --sm-allow";
    /// Peers were turned away.
    AccessRefused, "access_refused", Warning, 0,
        "the log of ibsm has peer and reason";
    /// A responder refused this manager's session, or reported an implausible one.
    SessionRejected, "session_rejected", Warning, 0,
        "two managers act as master, or a responder is damaged: the log names it";
    /// A responder could not use what it received.
    UpdateUnusable, "update_unusable", Warning, 0,
        "the log of that ibsa has the reason; report it";
    /// A GUID is present twice.
    DuplicateGuid, "duplicate_guid", Warning, 0,
        "change the GUID of one of the two";
    /// A port has a GUID that belongs elsewhere, and not yet what belongs to the GUID.
    GuidMoved, "guid_moved", Notice, 0,
        "if the host was moved, ibsmctl admit GUID; otherwise wait, or find who uses the GUID";
    /// A link leads to its own node, or to a GUID that another port has, and is not used.
    Loopback, "loopback", Notice, 0,
        "remove the plug or the cable, or change the GUID";
    /// A port has a link, and what is behind it does not answer.
    NoAnswer, "no_answer", Warning, 0,
        "reset or replace the node behind the port, or set m_key if it has one";
    /// A port could not be read or configured.
    SweepFault, "sweep_fault", Warning, 0,
        "the log of ibsm has the request that failed; it is retried";
    /// New nodes are left out.
    NodesLeftOut, "nodes_left_out", Warning, 10,
        "the log of ibsm names the port behind which too many appeared";
    /// A link is slower or narrower than both ends support.
    LinkDegraded, "link_degraded", Warning, 0,
        "reseat or replace the cable";
    /// A link whose ends are not both Active.
    LinkInactive, "link_inactive", Warning, 10,
        "see the log of the last sweep; reset the port";
    /// A link came and went several times.
    LinkFlapping, "link_flapping", Warning, 0,
        "replace the cable, or disable the port";
    /// A port reports errors.
    PortErrors, "port_errors", Warning, 0,
        "replace the cable, or disable the port";
    /// A node has another CC_Key than this manager shows.
    CcKeyRefused, "cc_key_refused", Warning, 0,
        "set cc_key to the key of the node and send SIGHUP, or restart the node";
    /// A node does not take a setting of congestion control.
    CongestionSetting, "congestion_setting", Warning, 0,
        "change the keys cc_* to what the node supports, and send SIGHUP";
    /// A port of a switch keeps marking packets as congested.
    CongestionHotSpot, "congestion_hot_spot", Notice, 0,
        "ibsmctl congestion shows between which nodes; spread that traffic, or check routing";
    /// A switch is missing.
    SwitchMissing, "switch_missing", Critical, 0,
        "repair it; if it is gone for good, wait a day or take a baseline";
    /// A host is missing.
    HostMissing, "host_missing", Notice, 0,
        "repair it; if it is gone for good, wait a day or take a baseline";
    /// A link is missing whose ends are both present.
    LinkMissing, "link_missing", Warning, 0,
        "check the cable; if it is gone for good, wait a day or take a baseline";
    /// A cable leads elsewhere than in the baseline, or two cables were swapped.
    CableMoved, "cable_moved", Warning, 0,
        "connect it as expected, or take another baseline";
    /// A node that is not in the baseline.
    NodeUnexpected, "node_unexpected", Notice, 0,
        "remove it, or take another baseline";
    /// A link that is not in the baseline.
    LinkUnexpected, "link_unexpected", Notice, 0,
        "remove it, or take another baseline";
    /// A node or link that is not in the baseline, and is kept out.
    Quarantined, "quarantined", Warning, 0,
        "remove it, or take a baseline with it: ibsmctl baseline clear, then take";
    /// Nothing is kept out although that is wanted.
    QuarantineOff, "quarantine_off", Warning, 0,
        "take a baseline of this fabric, or correct the file of --expected-topology";
    /// A link of another width or speed than in the baseline.
    LinkChanged, "link_changed", Warning, 0,
        "reseat or replace the cable, or take another baseline";
    /// Routes avoid switches that do not accept their forwarding tables.
    SwitchesAvoided, "switches_avoided", Warning, 0,
        "reset or replace these switches; the log of ibsm names them";
    /// Routes avoid slow links.
    LinksAvoided, "links_avoided", Warning, 0,
        "reseat or replace their cables; the log of ibsm names them";
    /// The routing can deadlock.
    CreditLoop, "credit_loop", Warning, 0,
        "use another engine, or repair the topology";
    /// Multicast trees that can deadlock, or switches without room for them.
    Multicast, "multicast", Warning, 0,
        "use another engine or SL, fewer groups, or repair the topology";
    /// A program and the operator's file disagree about a partition.
    PartitionConflict, "partition_conflict", Notice, 0,
        "change one of the two; the file applies";
    /// Partitions name GUIDs that no port has.
    PartitionGuids, "partition_guids", Notice, 0,
        "correct the GUIDs and send SIGHUP, unless these hosts are away";
    /// Hosts whose partitions let them reach no other host.
    HostsIsolated, "hosts_isolated", Warning, 0,
        "make them, or what they are to reach, full members of a partition (partitions.conf)";
    /// P_Keys did not fit into tables of ports.
    PkeysLeftOut, "pkeys_left_out", Warning, 0,
        "put these ports into fewer partitions";
    /// Virtual ports that are not set up.
    VirtualPorts, "virtual_ports", Warning, 10,
        "see docs/operating.md, Virtual functions; a port that does not answer is tried again";
    /// Clients have yet to register again.
    ClientsToAsk, "clients_to_ask", Notice, 60,
        "none, if the number falls; otherwise look for ports that do not answer";
    /// Traps that could not be passed on.
    TrapStorm, "trap_storm", Warning, 0,
        "find the port in the log of ibsm";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_differ_and_every_kind_is_documented_with_what_to_do() {
        let labels: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|k| k.label()).collect();
        assert_eq!(labels.len(), Kind::ALL.len());
        assert!(Kind::ALL.iter().all(|kind| !kind.remedy().ends_with('.')));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/problems.md");
        let documented = std::fs::read_to_string(path).unwrap();
        for kind in Kind::ALL {
            let (label, severity) = (kind.label(), kind.severity().name());
            let row = documented
                .lines()
                .find(|line| line.starts_with(&format!("| `{label}` | {severity} |")));
            assert!(row.is_some_and(|row| row.contains(kind.remedy())), "{label}");
        }
        assert!(Severity::Critical < Severity::Warning && Severity::Warning < Severity::Notice);
    }

    /// Regression: alerts on warnings waited for 5 minutes, and none came within a minute; those
    /// of some kinds were the same as of all others.
    #[test]
    fn every_kind_has_one_alert_and_none_waits_for_long() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana/alerts.yml");
        let rules = std::fs::read_to_string(path).unwrap();
        let (mut own, mut left_out) = (Vec::new(), Vec::new());
        let of_problems = |rule: &&str| rule.contains("ibsm_problems{");
        for rule in rules.split("- alert: ").filter(of_problems) {
            let after = |word: &'static str| {
                rule.split(word).skip(1).map(|rest| rest.split('"').next().unwrap_or_default())
            };
            let kinds = |words: &'static str| after(words).flat_map(|list| list.split('|'));
            let is_generic = rule.starts_with("Problem\n") || rule.starts_with("CriticalProblem\n");
            if is_generic {
                left_out.push(kinds("kind!~\"").collect::<Vec<_>>());
            }
            own.extend(kinds("kind=\"").chain(kinds("kind=~\"")));
            let wait =
                rule.split("for: ").nth(1).map_or("0s", |rest| rest.split('\n').next().unwrap());
            let wait: u32 = wait.strip_suffix('s').unwrap().parse().unwrap();
            let is_critical = rule.contains("severity: critical }");
            assert!(wait <= if is_critical { 15 } else { 30 }, "{rule}");
        }
        assert_eq!(left_out, [own.clone(), own.clone()], "what has its own alert, and only that");
        let is_kind = |label: &&str| Kind::ALL.iter().any(|kind| kind.label() == *label);
        assert!(own.iter().all(is_kind), "{own:?}");
        own.sort_unstable();
        assert!(own.windows(2).all(|two| two[0] != two[1]), "{own:?}");
    }
}
