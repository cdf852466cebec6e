//! Requests as real clients send them, and checks of their responses.
//!
//! - [`registration`]: joins, subscriptions and services.
//! - [`inventory`]: lists of nodes and ports, as `srp_daemon` queries them to find targets.
//! - [`malformed`]: malformed requests.
//!
//! Path requests are in [`workload`](crate::workload), checks of their responses in
//! [`check`](crate::check), the timing of requests in [`scenario`](crate::scenario).

pub mod inventory;
pub mod malformed;
pub mod registration;

use std::fmt;

use ib_mad::types::{Gid, Lid};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::field::part_mut;
use ib_mad::wire::mad::{AttributeId, Method, MgmtClass, Status};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, HEADER_LEN, SaMad, attribute};

use self::malformed::Form;
use self::registration::{Group, Like};
use crate::check::{Checker, Fault, Level, Verdict, describe};
use crate::fabric::{Expected, Fabric};
use crate::ports::EndPort;
use crate::workload::{By, Workload};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ask {
    /// Get(PathRecord) for a drawn pair of ports.
    Path {
        /// Index of the pair.
        pair: u32,
        /// How the query names the path.
        by: By,
    },
    /// Get(PathRecord) from the requesting port to a LID, as [`By::Srp`].
    PathTo(Lid),
    /// Get(ClassPortInfo).
    ClassPortInfo,
    /// Set(MCMemberRecord), with the parameters of a group joined earlier.
    Join(Group, Option<Like>),
    /// Delete(MCMemberRecord).
    Leave(Group),
    /// Set(InformInfo): subscribes to a trap.
    Subscribe(u16),
    /// Set(InformInfo): ends such a subscription.
    Unsubscribe(u16),
    /// Set(ServiceRecord): registers the port's service of this number.
    SetService(u16),
    /// Delete(ServiceRecord).
    DeleteService(u16),
    /// GetTable(NodeRecord): all nodes.
    Nodes,
    /// Get(NodeRecord) by LID.
    Node(Lid),
    /// GetTable(PortInfoRecord): all ports with device management.
    Targets,
    /// Get(PortInfoRecord) by LID.
    Port(Lid),
    /// A malformed request for a drawn pair.
    Malformed {
        /// The kind of malformation.
        form: Form,
        /// Index of the pair.
        pair: u32,
        /// Seed of the random bytes.
        salt: u32,
    },
}

/// Kinds of requests, reported separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Get(PathRecord), in the order of [`By::ALL`].
    PathByGid,
    /// By LIDs.
    PathByLid,
    /// As RDMA CM.
    PathByGidService,
    /// As IPoIB.
    PathByIpoib,
    /// As ibacm.
    PathByAcm,
    /// As ibacm with GIDs.
    PathByAcmGid,
    /// As ibacm with LIDs.
    PathByAcmLid,
    /// As srp_daemon.
    PathBySrp,
    /// Get(ClassPortInfo).
    ClassPortInfo,
    /// Set(MCMemberRecord).
    Join,
    /// Delete(MCMemberRecord).
    Leave,
    /// Set(InformInfo).
    Subscribe,
    /// Set(InformInfo) that unsubscribes.
    Unsubscribe,
    /// Set(ServiceRecord).
    SetService,
    /// Delete(ServiceRecord).
    DeleteService,
    /// GetTable(NodeRecord).
    Nodes,
    /// Get(NodeRecord).
    Node,
    /// GetTable(PortInfoRecord).
    Targets,
    /// Get(PortInfoRecord).
    Port,
    /// Malformed requests.
    Malformed,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 20] = [
        Self::PathByGid,
        Self::PathByLid,
        Self::PathByGidService,
        Self::PathByIpoib,
        Self::PathByAcm,
        Self::PathByAcmGid,
        Self::PathByAcmLid,
        Self::PathBySrp,
        Self::ClassPortInfo,
        Self::Join,
        Self::Leave,
        Self::Subscribe,
        Self::Unsubscribe,
        Self::SetService,
        Self::DeleteService,
        Self::Nodes,
        Self::Node,
        Self::Targets,
        Self::Port,
        Self::Malformed,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PathByGid => "path-gid",
            Self::PathByLid => "path-lid",
            Self::PathByGidService => "path-gid-service",
            Self::PathByIpoib => "path-ipoib",
            Self::PathByAcm => "path-acm",
            Self::PathByAcmGid => "path-acm-gid",
            Self::PathByAcmLid => "path-acm-lid",
            Self::PathBySrp => "path-srp",
            Self::ClassPortInfo => "class-port-info",
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Subscribe => "subscribe",
            Self::Unsubscribe => "unsubscribe",
            Self::SetService => "set-service",
            Self::DeleteService => "delete-service",
            Self::Nodes => "table-nodes",
            Self::Node => "node",
            Self::Targets => "table-targets",
            Self::Port => "port-info",
            Self::Malformed => "malformed",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Ask {
    /// The kind that it is reported as.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Path { by, .. } => Kind::ALL[*by as usize],
            Self::PathTo(_) => Kind::PathBySrp,
            Self::ClassPortInfo => Kind::ClassPortInfo,
            Self::Join(..) => Kind::Join,
            Self::Leave(_) => Kind::Leave,
            Self::Subscribe(_) => Kind::Subscribe,
            Self::Unsubscribe(_) => Kind::Unsubscribe,
            Self::SetService(_) => Kind::SetService,
            Self::DeleteService(_) => Kind::DeleteService,
            Self::Nodes => Kind::Nodes,
            Self::Node(_) => Kind::Node,
            Self::Targets => Kind::Targets,
            Self::Port(_) => Kind::Port,
            Self::Malformed { .. } => Kind::Malformed,
        }
    }

    /// Whether the response is a table.
    pub fn is_table(&self) -> bool {
        matches!(self, Self::Nodes | Self::Targets)
    }

    /// Writes the request of port number `port`.
    #[inline]
    pub fn write(&self, port: u32, workload: &Workload, tid: u64, mad: &mut [u8; MAD_LEN]) {
        if let Self::Path { pair, by } = *self {
            return workload.write_request(workload.pair(pair), by, tid, mad);
        }
        let end = workload.ports().get(port);
        let pkey = workload.pkey();
        match *self {
            Self::Path { .. } => {}
            Self::PathTo(lid) => inventory::write_path(end, lid, pkey, tid, mad),
            Self::ClassPortInfo => {
                let info = AttributeId::CLASS_PORT_INFO;
                SaMad::new(mad).write_request(Method::GET, info, tid, ComponentMask::NONE);
            }
            Self::Join(group, like) => group.write_join(end, like, pkey, tid, mad),
            Self::Leave(group) => group.write_leave(end, pkey, tid, mad),
            Self::Subscribe(trap) => registration::write_inform(trap, true, tid, mad),
            Self::Unsubscribe(trap) => registration::write_inform(trap, false, tid, mad),
            Self::SetService(n) => {
                registration::write_service(Method::SET, n, end, pkey, tid, mad);
            }
            Self::DeleteService(n) => {
                registration::write_service(Method::DELETE, n, end, pkey, tid, mad);
            }
            Self::Nodes => inventory::write_nodes(tid, mad),
            Self::Node(lid) => inventory::write_node(lid, tid, mad),
            Self::Targets => inventory::write_targets(tid, mad),
            Self::Port(lid) => inventory::write_port(lid, tid, mad),
            Self::Malformed { form, pair, salt } => {
                workload.write_request(workload.pair(pair), workload.by(), tid, mad);
                form.spoil(salt, mad);
            }
        }
    }

    /// Method and attribute of the response.
    fn answer(&self) -> (Method, AttributeId) {
        match self {
            Self::Path { .. } | Self::PathTo(_) | Self::Malformed { .. } => {
                (Method::GET_RESP, attribute::PATH_RECORD)
            }
            Self::ClassPortInfo => (Method::GET_RESP, AttributeId::CLASS_PORT_INFO),
            Self::Join(..) => (Method::GET_RESP, attribute::MC_MEMBER_RECORD),
            Self::Leave(_) => (Method::DELETE_RESP, attribute::MC_MEMBER_RECORD),
            Self::Subscribe(_) | Self::Unsubscribe(_) => {
                (Method::GET_RESP, AttributeId::INFORM_INFO)
            }
            Self::SetService(_) => (Method::GET_RESP, attribute::SERVICE_RECORD),
            Self::DeleteService(_) => (Method::DELETE_RESP, attribute::SERVICE_RECORD),
            Self::Nodes => (Method::GET_TABLE_RESP, attribute::NODE_RECORD),
            Self::Node(_) => (Method::GET_RESP, attribute::NODE_RECORD),
            Self::Targets => (Method::GET_TABLE_RESP, attribute::PORT_INFO_RECORD),
            Self::Port(_) => (Method::GET_RESP, attribute::PORT_INFO_RECORD),
        }
    }
}

/// Checks responses, and formats them as text.
pub struct Judge<'a> {
    /// The ports, and the requests' pairs.
    pub workload: &'a Workload,
    /// The fabric, if known.
    pub fabric: Option<&'a Fabric>,
    /// How thoroughly to check.
    pub level: Level,
}

impl Judge<'_> {
    /// Checks the response to `ask` by port number `port`. `message` is the response, headers
    /// first; for a table, all of it.
    #[inline]
    pub fn judge(&self, ask: &Ask, port: u32, message: &[u8]) -> Verdict {
        let Some(first) = first_mad(message) else { return Verdict::Wrong(Fault::Attribute) };
        let answer = SaMad::new(&first);
        let said = (answer.header().method(), answer.header().attribute_id());
        if let Ask::Malformed { .. } = ask {
            // Any response is accepted, and counted by status.
            return Verdict::Resolved;
        }
        if said != ask.answer() {
            // Clients read only the status of an error.
            return match answer.header().status() {
                Status::OK => Verdict::Wrong(Fault::Attribute),
                status => Verdict::Error(status),
            };
        }
        if let Ask::Path { pair, by } = *ask {
            let Self { workload, fabric, level } = *self;
            let pair = workload.pair(pair);
            return Checker { workload, fabric, level }.check(pair, by, &first);
        }
        if let (Ask::PathTo(lid), Some(fabric), Level::Path) = (ask, self.fabric, self.level) {
            let expected = fabric.expect_to(port, *lid, self.workload.pkey());
            match (answer.header().status(), expected) {
                (Status::OK, Expected::NoPath) => return Verdict::Wrong(Fault::Invented),
                // By such errors srp_daemon learns which P_Keys it does not share with a target.
                (Status::SA_NO_RECORDS, Expected::NoPath) => return Verdict::NoPath,
                (Status::SA_NO_RECORDS, _) => return Verdict::Wrong(Fault::Refused),
                _ => {}
            }
        }
        match answer.header().status() {
            Status::OK => {}
            // No such port; a table may also be empty.
            Status::SA_NO_RECORDS if ask.is_table() => return Verdict::NoPath,
            // A switch has several ports at its LID: srp_daemon then continues with the next node.
            Status::SA_TOO_MANY_RECORDS if matches!(ask, Ask::Port(_)) => return Verdict::NoPath,
            status => return Verdict::Error(status),
        }
        if self.level == Level::Status {
            return Verdict::Resolved;
        }
        let end = self.workload.ports().get(port);
        let is_right = match *ask {
            Ask::Path { .. } | Ask::Malformed { .. } | Ask::ClassPortInfo => true,
            Ask::PathTo(lid) => inventory::is_path_to(end, lid, answer.data()),
            Ask::Join(group, _) => {
                group.is_answer(end, self.workload.pkey(), answer.data())
                    && Like::of(&first).is_some()
            }
            Ask::Leave(group) => group.is_answer(end, self.workload.pkey(), answer.data()),
            Ask::Subscribe(trap) | Ask::Unsubscribe(trap) => {
                registration::is_inform_answer(trap, answer.data())
            }
            Ask::SetService(n) | Ask::DeleteService(n) => {
                registration::is_service_answer(n, end, answer.data())
            }
            Ask::Node(lid) | Ask::Port(lid) => inventory::is_about(lid, answer.data()),
            Ask::Nodes | Ask::Targets => inventory::lids(message).is_some(),
        };
        if is_right { Verdict::Resolved } else { Verdict::Wrong(Fault::Record) }
    }

    /// Formats the response.
    pub fn describe(&self, ask: &Ask, port: u32, message: &[u8]) -> String {
        let Some(first) = first_mad(message) else { return "a cut answer".to_owned() };
        if let Ask::Path { pair, .. } = *ask {
            return describe(self.workload, self.workload.pair(pair), &first);
        }
        let (name, answer) = (self.workload.ports().name(port), SaMad::new(&first));
        format!("{name}, {}: {}", ask.kind(), answer.header().status())
    }
}

/// The headers, and as much data as fits into one MAD.
fn first_mad(message: &[u8]) -> Option<[u8; MAD_LEN]> {
    if let Ok(whole) = message.try_into() {
        return Some(whole);
    }
    let mut mad = [0; MAD_LEN];
    let part = &message[..message.len().min(MAD_LEN)];
    mad[..part.len()].copy_from_slice(part);
    (part.len() >= ib_mad::wire::sa::HEADER_LEN).then_some(mad)
}

/// Whether this MAD is a response of the SA class. A Linux client matches by this and the
/// transaction id.
#[inline]
pub fn is_answer(mad: &[u8; MAD_LEN]) -> bool {
    let mad = SaMad::new(mad);
    let header = mad.header();
    header.mgmt_class() == MgmtClass::SUBN_ADM && header.method().is_response()
}

/// Writes the headers of a request; returns its first `len` data bytes, which hold the record.
fn request(
    mad: &mut [u8; MAD_LEN],
    method: Method,
    attribute: AttributeId,
    tid: u64,
    mask: ComponentMask,
) -> &mut [u8; DATA_LEN] {
    SaMad::new(&mut *mad).write_request(method, attribute, tid, mask);
    part_mut::<HEADER_LEN, _, _>(mad)
}

/// Whether the identities of two ports agree, as far as both are known.
fn fits(known: &EndPort, gid: Gid) -> bool {
    known.gid == Gid::ZERO || known.gid == gid
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fabric;
    use crate::ports::Ports;
    use crate::workload::{Draw, WorkloadOptions};
    use ib_mad::types::PKey;
    use std::sync::Arc;

    /// Three ports with LIDs 1 to 3 and GIDs.
    pub(crate) fn workload(by: By, draw: Draw) -> Workload {
        let list: String = (1..=3).map(|n| format!("{n} fe80::2c9:300:ab:cd0{n}\n")).collect();
        let options = WorkloadOptions {
            by,
            draw,
            seed: 1,
            service_id: 7,
            pkey: PKey::DEFAULT_FULL,
            sample: 1.0,
        };
        Workload::draw(&options, Ports::parse(&list).unwrap(), None).unwrap()
    }

    /// Regression: srp_daemon queries every node of a list, including those that it shares no P_Key
    /// with: the refusal was counted as an error, though the snapshot has no such path.
    #[test]
    fn a_path_to_a_lid_is_rightly_refused_where_no_partition_is_shared() {
        let fabric = Fabric::new(Arc::new(fabric::tests::plane()));
        let judge = |pkey, ask: Ask, status| {
            let options = WorkloadOptions {
                by: By::Srp,
                draw: Draw::Any(1),
                seed: 1,
                service_id: 7,
                pkey,
                sample: 1.0,
            };
            let ports = fabric.ports().clone();
            let workload = Workload::draw(&options, ports, Some(&fabric)).unwrap();
            let mut mad = [0; MAD_LEN];
            ask.write(0, &workload, 1, &mut mad);
            SaMad::new(&mut mad).make_response(status);
            let judge = |fabric, level| Judge { workload: &workload, fabric, level };
            let known = judge(Some(&fabric), Level::Path).judge(&ask, 0, &mad);
            (known, judge(None, Level::Echo).judge(&ask, 0, &mad))
        };
        let (none, there) = (Status::SA_NO_RECORDS, Ask::PathTo(Lid(2)));
        let unchecked = Verdict::Error(none);
        assert_eq!(judge(PKey(0x8001), there, none), (Verdict::NoPath, unchecked));
        let refused = Verdict::Wrong(Fault::Refused);
        assert_eq!(judge(PKey::DEFAULT_FULL, there, none), (refused, unchecked));
        let invented = Verdict::Wrong(Fault::Invented);
        assert_eq!(judge(PKey(0x8001), there, Status::OK), (invented, Verdict::Resolved));
        let both = (Verdict::Resolved, Verdict::Resolved);
        assert_eq!(judge(PKey::DEFAULT_FULL, there, Status::OK), both);
    }

    #[test]
    fn kinds_are_numbered_as_listed() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
        for by in By::ALL {
            let kind = Ask::Path { pair: 0, by }.kind();
            assert_eq!(kind.name(), format!("path-{by}"));
        }
    }

    /// Only the status of an error is checked, and a response to another request is not accepted.
    #[test]
    fn answers_to_something_else_are_found() {
        let workload = workload(By::Gid, Draw::Any(1));
        let judge = Judge { workload: &workload, fabric: None, level: Level::Echo };
        let mut mad = [0; MAD_LEN];
        let ask = Ask::Node(Lid(2));
        ask.write(0, &workload, 1, &mut mad);
        SaMad::new(&mut mad).make_response(Status::OK);
        assert_eq!(judge.judge(&ask, 0, &mad), Verdict::Resolved);
        assert_eq!(judge.judge(&Ask::Node(Lid(3)), 0, &mad), Verdict::Wrong(Fault::Record));
        let other = judge.judge(&Ask::Port(Lid(2)), 0, &mad);
        assert_eq!(other, Verdict::Wrong(Fault::Attribute));
        SaMad::new(&mut mad).header_mut().set_status(Status::BUSY);
        assert_eq!(judge.judge(&Ask::Port(Lid(2)), 0, &mad), Verdict::Error(Status::BUSY));
        assert_eq!(judge.judge(&ask, 0, &mad), Verdict::Error(Status::BUSY));
    }
}
