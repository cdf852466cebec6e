//! The answer that a client gets, and the rule behind it.

use ib_mad::types::{Gid, Guid, Lid};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::path::component;
use ib_mad::wire::record::{PathRecord, PathRecordRepr};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, attribute};
use sa_proto::snapshot::{QosRule, RegistryPlane, RuleOrigin};
use serde::Serialize;

use super::Request;
use super::ends::{Resolved, node_type};
use crate::query::pool::{Pool, PoolConfig};
use crate::query::redirect::Redirection;
use crate::query::{self, Found, NoPath, PathRequest, Query, Refusal, Scratch, rule, select};
use crate::tables::index::RegistryIndex;
use crate::tables::qos_match::{Criterion, LevelCounts, RuleNumber, node_type_bit};
use crate::tables::{EndPort, Tables};

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Its precedence: the lowest that accepts a request decides.
    pub index: u32,
    /// Name given by the operator.
    pub name: String,
    /// Where it comes from: `match_rule`, `ulp`, `default` or `virtual_fabric`.
    pub origin: &'static str,
    /// The level that it grants.
    pub level: Option<Level>,
}

/// A QoS level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Level {
    /// Its name.
    pub name: String,
    /// SL of the path.
    pub sl: Option<u8>,
    /// Greatest MTU, bytes.
    pub mtu_limit: Option<u16>,
    /// Greatest rate, Gb/s as it is called.
    pub rate_limit: Option<String>,
    /// Packet lifetime n; 4.096 µs × 2^n.
    pub packet_life: Option<u8>,
    /// P_Keys that the path may have, as ranges of their 15 bits; all if there are none.
    pub pkeys: Vec<(u16, u16)>,
}

/// A rule that did not decide on the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    /// Its precedence.
    pub index: u32,
    /// Name given by the operator.
    pub name: String,
    /// The first criterion that does not hold; `None` for a virtual fabric that accepts the request
    /// and has no path, if another one's is the answer.
    pub failing: Option<Criterion>,
}

/// The relevant fields of a PathRecord.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// DGID.
    pub dgid: String,
    /// SGID.
    pub sgid: String,
    /// DLID.
    pub dlid: u16,
    /// SLID.
    pub slid: u16,
    /// HopLimit.
    pub hop_limit: u8,
    /// P_Key.
    pub pkey: String,
    /// SL.
    pub sl: u8,
    /// MTU, bytes.
    pub mtu: u16,
    /// Rate, Gb/s as it is called.
    pub rate: String,
    /// Packet lifetime n; 4.096 µs × 2^n.
    pub packet_life: u8,
    /// Whether the reverse path exists, too.
    pub reversible: bool,
    /// All 64 bytes, as hexadecimal digits.
    pub bytes: String,
}

/// The answer with its reasons.
pub(super) struct Decided {
    pub(super) passed_over: Vec<PassedOver>,
    pub(super) rule: Option<Rule>,
    pub(super) no_path: Option<NoPath>,
    pub(super) no_way_back: Option<NoPath>,
    pub(super) status: u16,
    pub(super) record: Option<Record>,
    /// The LID that the path leads to.
    pub(super) dlid: Lid,
}

/// Runs the query of the source, and collects the decisions.
pub(super) fn ask(
    tables: &Tables,
    registry: &RegistryPlane,
    request: &Request,
    source: &Resolved<'_>,
    destination: &Resolved<'_>,
    off_subnet: Option<Gid>,
) -> Decided {
    let mut data = [0; DATA_LEN];
    let mask = write(tables, request, source, destination, off_subnet, &mut data);
    let redirection = Redirection::off();
    let index = RegistryIndex::new(registry);
    let query = Query {
        tables,
        registry,
        index: &index,
        mask,
        attribute_modifier: 0,
        record: &data,
        data: &data,
        is_rmpp: false,
        slid: source.port.lid,
        sgid: None,
        trusted: false,
        redirection: &redirection,
        levels: &LevelCounts::default(),
    };
    let (status, record) = answer(&query);
    let slid = record.as_ref().map_or(source.lid.unwrap_or(source.port.lid), |r| r.slid);
    let dlid = record.as_ref().map_or(destination.lid.unwrap_or(destination.port.lid), |r| r.dlid);

    let at = |port: &EndPort, lid: Lid| tables.end_ports.by_lid(lid).copied().unwrap_or(*port);
    let (from, to) = (at(source.port, slid), at(destination.port, dlid));
    let (from_class, to_class) = (tables.end_class(&from), tables.end_class(&to));
    let mut decided = Decided {
        passed_over: Vec::new(),
        rule: None,
        no_path: None,
        no_way_back: None,
        status: status.0,
        record: record.map(describe_record),
        dlid,
    };
    let Ok(request) = PathRequest::read(&query) else { return decided };
    let between = |level| {
        let (from, to) = ((&from, from_class), (&to, to_class));
        let wishes = request.constraints;
        let there = select(tables, &request, wishes, level, from, to, dlid).err();
        (there, select(tables, &request, wishes, level, to, from, slid).err())
    };
    let mut matched = rule(tables, &request, from_class, to_class);
    let mut no_path = between(None);
    if let (Some(_), Some(criteria), true) =
        (no_path.0, &request.criteria, decided.record.is_some())
    {
        // The path is that of another virtual fabric that accepts the request.
        let (groups, to_groups) = (from_class.groups, to_class.groups);
        let mut further = tables.qos.further(&request.asked, criteria, groups, to_groups);
        while let Some(level) = further.as_mut().and_then(Iterator::next) {
            let its = between(Some(level));
            if its.0.is_none() {
                (matched, no_path) = (further.map(|further| further.rule()), its);
                break;
            }
        }
    }
    (decided.no_path, decided.no_way_back) = no_path;
    for (number, row) in (0..).map(RuleNumber).zip(tables.qos.rows()) {
        if Some(number) == matched {
            decided.rule = Some(explained_rule(tables, number, row));
            break;
        }
        let failing = tables.qos.failing(
            number,
            &request.asked,
            |group| is_in_group(tables, &from, group),
            |group| is_in_group(tables, &to, group),
        );
        decided.passed_over.push(PassedOver { index: row.index, name: row.name.clone(), failing });
    }
    decided
}

/// Writes the request that the source would send.
fn write(
    tables: &Tables,
    request: &Request,
    source: &Resolved<'_>,
    destination: &Resolved<'_>,
    off_subnet: Option<Gid>,
    data: &mut [u8; DATA_LEN],
) -> ComponentMask {
    let prefix = tables.subnet.prefix;
    let mut mask = component::SGID | component::DGID;
    let mut record = PathRecord::of_mut(data);
    record
        .set_sgid(Gid::new(prefix, source.port.guid))
        .set_dgid(off_subnet.unwrap_or(Gid::new(prefix, destination.port.guid)));
    if let Some(lid) = source.lid {
        record.set_slid(lid);
        mask |= component::SLID;
    }
    if let Some(lid) = destination.lid {
        record.set_dlid(lid);
        mask |= component::DLID;
    }
    if let Some(service_id) = request.service_id {
        record.set_service_id(service_id);
        mask |= component::SERVICE_ID;
    }
    if let Some(qos_class) = request.qos_class {
        record.set_qos_class(qos_class);
        mask |= component::QOS_CLASS;
    }
    if let Some(pkey) = request.pkey {
        record.set_pkey(pkey);
        mask |= component::PKEY;
    }
    mask
}

/// The result of the query.
fn answer(query: &Query<'_>) -> (Status, Option<PathRecordRepr>) {
    let mut scratch = Scratch::new();
    let mut pool = Pool::new(PoolConfig::default());
    let mut found = Found::new(&mut scratch, &mut pool, PathRecord::LEN, true);
    let family = query::family(attribute::PATH_RECORD).expect("PathRecord is a served attribute");
    let searched = family.find(Method::GET, query, &mut found);
    let count = found.finish().count;
    match searched {
        Err(Refusal::Status(status)) => (status, None),
        Err(Refusal::Unheard(_)) => (Status::SA_REQ_INVALID, None),
        Ok(()) if count == 0 => (Status::SA_NO_RECORDS, None),
        Ok(()) => {
            let view = PathRecord::of(&scratch.records);
            (Status::OK, PathRecordRepr::parse(&view).ok())
        }
    }
}

fn describe_record(record: PathRecordRepr) -> Record {
    let bytes = record.to_bytes();
    Record {
        dgid: record.dgid.to_string(),
        sgid: record.sgid.to_string(),
        dlid: record.dlid.0,
        slid: record.slid.0,
        hop_limit: record.hop_limit,
        pkey: record.pkey.to_string(),
        sl: record.sl.get(),
        mtu: record.mtu.bytes(),
        rate: record.rate.to_string(),
        packet_life: record.packet_life_time.code(),
        reversible: record.reversible,
        bytes: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn explained_rule(tables: &Tables, number: RuleNumber, row: &QosRule) -> Rule {
    let level = tables.qos.level(number).map(|level| {
        let row = level.row();
        Level {
            name: row.name.clone(),
            sl: row.sl.map(|sl| sl.get()),
            mtu_limit: row.mtu_limit.map(|mtu| mtu.bytes()),
            rate_limit: row.rate_limit.map(|rate| rate.to_string()),
            packet_life: row.packet_life.map(|life| life.code()),
            pkeys: row.pkeys.clone(),
        }
    });
    let origin = match row.origin {
        RuleOrigin::MatchRule => "match_rule",
        RuleOrigin::Ulp => "ulp",
        RuleOrigin::Default => "default",
        RuleOrigin::VirtualFabric => "virtual_fabric",
    };
    Rule { index: row.index, name: row.name.clone(), origin, level }
}

/// Whether a port is in a port group.
fn is_in_group(tables: &Tables, end: &EndPort, group: u32) -> bool {
    let groups = &tables.plane.port_groups;
    let Ok(at) = groups.binary_search_by_key(&group, |row| row.index) else { return false };
    let Some((node, port)) = tables.node_and_port(end) else { return false };
    let guid: Guid = port.guid;
    groups[at].node_types & node_type_bit(node_type(node)) != 0
        || groups[at].ports.binary_search(&guid).is_ok()
}
