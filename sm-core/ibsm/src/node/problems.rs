//! What is wrong with this SM and its fabric, as conditions for the list of problems. Those that
//! the published fabric and the responders' reports show are found by `observe`.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{PortErrorDetails, SmNotice, SmState, TrapNumber};

use super::Node;
use crate::cli::sa_key_warning;
use crate::observe::given_name;
use crate::observe::problem::{Condition, Flaps, Kind, PortErrors, Subject};
use crate::observe::topology::End;
use crate::observe::words::count;
use sm_core::fabric::{Fabric, PortIndex};
use sm_core::manage::home::VIRTUAL;
use sm_core::manage::isolation::{AbsentGuids, Isolated};
use sm_core::sweep::{Duplicate, Report, TrapNotice};

/// Subnet managers with another SM_Key that are listed.
const FOREIGN_MAX: usize = 8;
/// What to do if the SM's own port has another M_Key.
const M_KEY_REMEDY: &str =
    "set m_key to the key of the port, or add it to guid2mkey in the state directory";
/// How long a step of the registry's thread may take.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(10);
/// Ports with virtual ports that are not set up that are listed.
const VIRTUAL_PORTS_MAX: usize = 256;
/// Largest number of duplicate GUIDs remembered.
const DUPLICATES_MAX: usize = 256;

/// What is known of problems from sweeps and traps.
#[derive(Debug, Default)]
pub(super) struct Findings {
    flaps: Flaps,
    errors: PortErrors,
    /// GUIDs found twice, by the last sweep of the whole fabric and those since. Those whose link
    /// is not left out any more are over.
    duplicates: Vec<Duplicate>,
    /// What partitions leave out, as of the last sweep or change of partitions.
    partitions: Vec<Condition>,
    /// Sweeps given up or with errors, for the text.
    failed_in_a_row: u32,
}

impl Findings {
    /// Takes a sweep that has ended.
    pub(super) fn note_sweep(&mut self, now: Instant, report: &Report, failed_in_a_row: u32) {
        report.returned.iter().for_each(|&link| self.flaps.note(now, link));
        // Without a place, they are found again by each discovery.
        self.duplicates.retain(|known| !report.full && known.place.is_some());
        for duplicate in &report.duplicates {
            self.duplicates.retain(|known| known.guid != duplicate.guid);
            if self.duplicates.len() < DUPLICATES_MAX {
                self.duplicates.push(duplicate.clone());
            }
        }
        self.failed_in_a_row = failed_in_a_row;
    }
}

impl Node {
    /// Looks for what the partitions in force leave out.
    pub(super) fn note_partitions(&mut self) {
        let (absent, isolated) = (self.sweeper.absent_guids(), self.sweeper.isolated_hosts());
        let file = self.sweeper.settings().partition_config_file.clone().unwrap_or_default();
        let found = [absent_text(&absent, &file), isolated_text(&isolated)];
        let kinds = [Kind::PartitionGuids, Kind::HostsIsolated];
        let condition = |(kind, text): (Kind, Option<String>)| {
            Some(Condition::new(kind, Subject::subnet(), text?))
        };
        self.status.findings_mut().partitions =
            kinds.into_iter().zip(found).filter_map(condition).collect();
    }

    /// Records a trap that reports errors of a port, if it came from that port's node: any host
    /// could accuse others.
    pub(super) fn note_error_trap(&mut self, now: Instant, trap: &TrapNotice) {
        let Ok(notice) = SmNotice::new(&trap.notice[..]) else { return };
        let number = notice.trap_number();
        let is_error = [
            TrapNumber::LOCAL_LINK_INTEGRITY,
            TrapNumber::EXCESSIVE_BUFFER_OVERRUN,
            TrapNumber::FLOW_CONTROL_UPDATE,
        ]
        .contains(&number);
        let details = notice.data_details();
        let Ok(details) = PortErrorDetails::new(&details[..]) else { return };
        let (lid, num) = (details.lid(), details.port_num());
        if !is_error || !notice.is_generic() || trap.lid != lid {
            return;
        }
        if let Some(guid) = self.registry.port_guid(lid) {
            self.status.findings_mut().errors.note(now, (guid, num), number);
        }
    }

    /// Problems that the status lists as warnings.
    pub(super) fn warnings(&self, now: Instant) -> Vec<Condition> {
        let subnet = |kind, text: String| Condition::new(kind, Subject::subnet(), text);
        let mut found = Vec::new();
        for (file, text) in self.site.refused().warnings() {
            found.push(Condition::new(Kind::FileRefused, Subject::named(file), text));
        }
        found.extend(self.no_responder().map(|text| subnet(Kind::NoResponder, text)));
        found.extend(
            sa_key_warning(self.site.settings()).map(|text| subnet(Kind::UnsafeSetting, text)),
        );
        let unread = self.status.port_service().warning();
        found.extend(unread.map(|text| subnet(Kind::SaPortUnread, text)));
        let refused = self.publication.session().warning();
        found.extend(refused.map(|text| subnet(Kind::SessionRefused, text)));
        let busy_since = self.registry.link().busy_since();
        if busy_since.is_some_and(|since| now > since + REGISTRY_PATIENCE) {
            let text = "registrations are not acknowledged: the registry's thread has been busy \
                        for 10 s or more, most likely with a write to the disk of --state-dir";
            found.push(subnet(Kind::RegistryHangs, text.to_owned()));
        }
        found.extend(
            self.files.warnings().map(|(file, text)| {
                Condition::new(Kind::StateFileBehind, Subject::named(file), text)
            }),
        );
        found.extend(self.sweeper.foreign_sms().take(FOREIGN_MAX).map(|(place, reason)| {
            let text = format!("it is excluded from the election: it {reason}");
            let subject = Subject::named(format!("subnet manager at {place}"));
            Condition::new(Kind::ForeignManager, subject, text)
        }));
        found.extend(
            self.sweeper
                .multicast_warnings()
                .into_iter()
                .map(|text| Condition::new(Kind::Multicast, Subject::named("multicast"), text)),
        );
        found.extend(self.sweeper.pkey_warning().map(|text| subnet(Kind::PkeysLeftOut, text)));
        let conflicts = self.sweeper.partition_conflicts();
        if let Some(first) = conflicts.first.first() {
            let more = match conflicts.len() - 1 {
                0 => String::new(),
                more => {
                    let more = count(more as u64, "more conflict", "more conflicts");
                    format!("; {more}, see the log")
                }
            };
            found.push(subnet(Kind::PartitionConflict, format!("{first}{more}")));
        }
        let (waiting, rate) =
            (self.sweeper.clients_to_ask(), self.site.settings().client_rereg_rate);
        if waiting > 0 {
            let clients = count(waiting as u64, "client remains", "clients remain");
            let text = format!("{clients} to be asked to register again, {rate} per second");
            found.push(subnet(Kind::ClientsToAsk, text));
        }
        let avoided = self.sweeper.avoided_switches();
        if avoided > 0 {
            let switches = count(avoided as u64, "switch does", "switches do");
            let text = format!("{switches} not accept all forwarding tables; routes avoid them");
            found.push(subnet(Kind::SwitchesAvoided, text));
        }
        let throttled = self.sweeper.throttled_links();
        if throttled > 0 {
            let links = count(throttled as u64, "link", "links");
            let text = format!(
                "{links} between switches below the speed or width that the ends support; routes \
                 avoid such links"
            );
            found.push(subnet(Kind::LinksAvoided, text));
        }
        found
    }

    /// What `--quarantine` keeps out, and why it keeps out nothing.
    fn kept_out(&self) -> Vec<Condition> {
        let (sweeper, fabric) = (&self.sweeper, self.sweeper.fabric());
        let mut found = Vec::new();
        let off = match (self.lacks_baseline, sweeper.quarantine_is_foreign()) {
            (true, _) => Some("--quarantine is given, and there is no baseline"),
            (_, true) => Some("the switch at the SM's port is not in the baseline"),
            _ => None,
        };
        found.extend(off.map(|reason| {
            let text = format!("{reason}: nothing is kept out");
            Condition::new(Kind::QuarantineOff, Subject::named("quarantine"), text)
        }));
        for ((guid, port), link) in sweeper.kept_out() {
            let name = fabric.find(guid).map(|node| fabric.node(node).name());
            let name = name.as_deref().unwrap_or_default().trim_end();
            let what = if link.is_node { "node" } else { "link" };
            let (kind, (far, far_port)) = (link.kind, link.far);
            // Its description is not read.
            let known = given_name(far).map_or_else(String::new, |name| format!("'{name}' "));
            let text = format!(
                "the {what} behind it, {kind} {known}{far} port {far_port}, is not in the baseline \
                 and is kept out"
            );
            found.push(Condition::new(Kind::Quarantined, Subject::port(name, guid, port), text));
        }
        found
    }

    /// Ports whose GUIDs belong elsewhere.
    fn moved_guids(&self) -> Vec<Condition> {
        let fabric = self.sweeper.fabric();
        let listed = self.sweeper.listed_newcomers().filter(|(port, ..)| {
            // It may have gone since.
            fabric.node_of(*port).present
        });
        let condition = |(port, guid, home): (PortIndex, Guid, End)| {
            let text = format!(
                "its GUID {guid} belongs to {}, which is away: it has a LID and the P_Keys of any \
                 port, and gets its own and what is registered for it within 10 min",
                home_text(fabric, home)
            );
            Condition::new(Kind::GuidMoved, Subject::of(fabric, port), text)
        };
        listed.map(condition).collect()
    }

    /// Problems of the fabric that the published snapshot does not show.
    pub(super) fn conditions(&self, now: Instant) -> Vec<Condition> {
        let subnet = |kind, text: &str| Condition::new(kind, Subject::subnet(), text);
        let sweeper = &self.sweeper;
        let mut found = Vec::new();
        found.extend(sweeper.cut_off().map(|text| {
            let condition = subnet(Kind::CutOff, text);
            match sweeper.lacks_own_m_key() {
                true => condition.with_remedy(M_KEY_REMEDY),
                false => condition,
            }
        }));
        if sweeper.sm_state() != SmState::Master {
            return found;
        }
        let overwritten = sweeper.overwritten(now);
        found.extend(overwritten.map(|text| subnet(Kind::PortsOverwritten, &text)));
        if !sweeper.is_up() {
            found.push(subnet(Kind::SubnetDown, "the subnet is not up"));
        }
        let fabric = sweeper.fabric();
        let at = |kind, ports: &[PortIndex], text: &str| -> Vec<Condition> {
            let of_port = |&port| Condition::new(kind, Subject::of(fabric, port), text);
            ports.iter().map(of_port).collect()
        };
        let findings = self.status.findings();
        let fault = match findings.failed_in_a_row {
            0 | 1 => "the last sweep could not read or set all attributes of the port".to_owned(),
            n => format!("the last {n} sweeps could not read or set all attributes of ports"),
        };
        found.extend(at(Kind::SweepFault, sweeper.faults(), &fault));
        let silent = "it has a link, and what is behind it does not answer";
        found.extend(at(Kind::NoAnswer, sweeper.unanswered(), silent));
        let out = "new nodes behind it are left out: there are too many at once";
        found.extend(at(Kind::NodesLeftOut, sweeper.put_off(), out));
        let out = "its link is not used: it leads to a GUID that another port has, or back to its \
                   own node";
        let end = |port: PortIndex| (fabric.node_of(port).guid, fabric.port(port).num);
        let left_out: HashSet<End> = sweeper.left_out().iter().map(|&port| end(port)).collect();
        let is_there =
            |found: &&Duplicate| found.place.is_none_or(|place| left_out.contains(&place));
        found.extend(findings.duplicates.iter().filter(is_there).map(|found| {
            let subject = Subject::node("GUID", found.guid);
            Condition::new(Kind::DuplicateGuid, subject, found.text.clone())
        }));
        found.extend(self.moved_guids());
        // Those behind which such a GUID is, or what does not belong, are that problem.
        let kept_out = sweeper.kept_out().map(|(near, _)| near);
        let places = findings.duplicates.iter().filter_map(|it| it.place);
        let places: HashSet<End> = places.chain(kept_out).collect();
        let others = sweeper.left_out().iter().copied();
        let others: Vec<PortIndex> = others.filter(|port| !places.contains(&end(*port))).collect();
        found.extend(at(Kind::Loopback, &others, out));
        found.extend(self.kept_out());
        let subject = |(guid, port)| match fabric.find(guid) {
            Some(node) => Subject::port(fabric.node(node).name().trim_end(), guid, port),
            None => Subject::port("", guid, port),
        };
        found.extend(findings.partitions.iter().cloned());
        let troubles = sweeper.virtual_port_troubles().take(VIRTUAL_PORTS_MAX);
        found.extend(troubles.map(|(port, trouble)| {
            let text = format!("virtual ports: {trouble}");
            Condition::new(Kind::VirtualPorts, Subject::of(fabric, port), text)
        }));
        let to = |(guid, num)| {
            let port = fabric.find(guid).and_then(|node| fabric.port_of(node, num));
            let far = port.and_then(|port| fabric.port(port).peer())?;
            let name = fabric.node_of(far).name();
            Some(format!("'{}' port {}", name.trim_end(), fabric.port(far).num))
        };
        found.extend(findings.flaps.conditions(now, subject, to));
        if !findings.errors.is_empty() {
            let ends =
                fabric.end_ports().map(|port| (fabric.port(port).guid, fabric.node_of(port)));
            let nodes: HashMap<Guid, &sm_core::fabric::Node> = ends.collect();
            let subject = |(guid, port)| match nodes.get(&guid) {
                Some(node) => Subject::port(node.name().trim_end(), node.guid, port),
                None => Subject::port("", guid, port),
            };
            found.extend(findings.errors.conditions(now, subject));
        }
        if !sweeper.is_loop_free() {
            let text = "the routing has credit loops: traffic can deadlock";
            found.push(subnet(Kind::CreditLoop, text));
        } else if !sweeper.are_replies_loop_free() {
            let text = "replies on the SL of their request can deadlock";
            found.push(subnet(Kind::CreditLoop, text));
        }
        let inactive = sweeper.inactive_managers();
        if inactive > 0 {
            let managers = "other subnet manager is";
            let text = count(inactive as u64, managers, "other subnet managers are") + " inactive";
            found.push(subnet(Kind::InactiveManager, &text));
        }
        found.extend(sweeper.rival_masters().take(FOREIGN_MAX).map(|place| {
            let text = "it is master, too, and has not handed over to this one, which outranks it";
            let subject = Subject::named(format!("subnet manager at {place}"));
            Condition::new(Kind::ForeignManager, subject, text)
        }));
        found.extend(sweeper.idle_managers().take(FOREIGN_MAX).map(|place| {
            let text = "it was to become master, and did not: it is ignored in elections until it \
                        does";
            let subject = Subject::named(format!("subnet manager at {place}"));
            Condition::new(Kind::InactiveManager, subject, text)
        }));
        found
    }
}

/// Where a GUID belongs: behind a port of a switch, or to a virtual port.
fn home_text(fabric: &Fabric, (guid, num): End) -> String {
    if num == VIRTUAL {
        return format!("a virtual port of {guid}");
    }
    let name = fabric.find(guid).map(|node| fabric.node(node).name());
    let name = name.map_or_else(String::new, |name| format!("'{}' ", name.trim_end()));
    format!("the node at {name}{guid} port {num}")
}

/// GUIDs that no port has, with the lines of the partition file.
fn absent_text(absent: &AbsentGuids, file: &str) -> Option<String> {
    let one = |&(guid, line): &(Guid, Option<usize>)| match line {
        Some(line) => format!("{guid} ({file}:{line})"),
        None => format!("{guid} (not of the file)"),
    };
    let first: Vec<String> = absent.first.iter().map(one).collect();
    (absent.count > 0).then(|| {
        let more = more(absent.count - first.len());
        format!(
            "no port has {} of the GUIDs in partitions: {}{more}",
            absent.count,
            first.join(", ")
        )
    })
}

/// Hosts that reach no other host.
fn isolated_text(isolated: &Isolated) -> Option<String> {
    let Isolated { count, limited, first } = isolated;
    let named: Vec<String> = first.iter().map(|(guid, name)| format!("'{name}' {guid}")).collect();
    let more = more(count - named.len());
    let why = match limited == count {
        true => "limited members of the default partition 0x7fff",
        false => "in no partition with a full member",
    };
    (*count > 0).then(|| {
        format!("{count} hosts are {why} and reach no other host: {}{more}", named.join(", "))
    })
}

fn more(count: usize) -> String {
    if count > 0 { format!(" and {count} more") } else { String::new() }
}
