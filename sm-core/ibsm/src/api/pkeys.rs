//! Partitions: the resources `pkeys`. Bodies are read without I/O.

use std::collections::{BTreeMap, HashMap};

use axum::Router;
use axum::body::Body as HttpBody;
use axum::extract::{Path, Query, State};
use axum::routing::{delete, get, post, put};
use ib_mad::text;
use ib_mad::types::{Guid, Mtu, PKey, Rate, Sl};
use ib_mad::wire::attribute::{NodeInfo, NodeType};
use sa_proto::proto::partition::Partition;
use sa_proto::snapshot::{Port, Snapshot};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Answer, Refusal, Shared, bad, not_found};
use crate::partitions::list;
use sm_config::parse_number;
use sm_core::registry::{Attributes, PartitionAction, PartitionOrder, Presence, WantedMember};

pub(super) fn routes() -> Router<Shared> {
    let all = || get(show_all).post(add).put(replace);
    Router::new()
        .route("/resources/pkeys", all())
        .route("/resources/pkeys/", all())
        .route("/resources/pkeys/add", post(create))
        .route("/resources/pkeys/qos_conf", put(configure))
        .route("/resources/pkeys/hosts", post(add_hosts))
        .route("/resources/pkeys/{pkey}", get(show).delete(remove_partition))
        .route("/resources/pkeys/{pkey}/guids/{guids}", delete(remove_guids))
        .route("/resources/pkeys/{pkey}/hosts/{names}", delete(remove_hosts))
        .route("/actions/remove_guids_from_pkey", post(remove))
}

#[derive(Deserialize)]
struct Wanted {
    guids_data: Option<String>,
    qos_conf: Option<String>,
}

/// Whether a query asks for something: `true`, also as Python writes it.
fn is_asked(value: Option<&String>) -> bool {
    value.is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// The body of an order; each call uses some of it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Body {
    pkey: Option<Value>,
    index0: bool,
    ip_over_ib: Option<bool>,
    membership: Option<String>,
    memberships: Vec<String>,
    guids: Option<Vec<String>>,
    hosts_names: Option<String>,
    mtu_limit: Option<u32>,
    service_level: Option<u32>,
    rate_limit: Option<f64>,
    partition_name: Option<String>,
}

impl Body {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        serde_json::from_slice(bytes).map_err(|failure| bad(format!("body: {failure}")))
    }

    fn pkey(&self) -> Result<PKey, Refusal> {
        match &self.pkey {
            Some(Value::String(text)) => pkey(text),
            Some(Value::Number(number)) => pkey(&number.to_string()),
            _ => Err(bad("pkey is missing")),
        }
    }

    fn attributes(&self) -> Result<Attributes, Refusal> {
        let mtu = self.mtu_limit.map(|kilobytes| match kilobytes {
            2 => Ok(Mtu::B2048),
            4 => Ok(Mtu::B4096),
            _ => Err(bad("mtu_limit is 2 or 4, in kilobytes")),
        });
        let rate = self.rate_limit.map(|limit| {
            let rate = Rate::BY_VALUE.into_iter().find(|rate| gbps(*rate) == limit);
            rate.ok_or_else(|| bad("rate_limit is no rate of InfiniBand, in Gb/s"))
        });
        let sl = self.service_level.map(|level| match u16::try_from(level) {
            Ok(level @ 0..16) => Ok(Sl::from_low_bits(level)),
            _ => Err(bad("service_level is 0 to 15")),
        });
        Ok(Attributes {
            name: self.partition_name.clone(),
            ipoib: self.ip_over_ib,
            mtu: mtu.transpose()?,
            rate: rate.transpose()?,
            sl: sl.transpose()?,
        })
    }

    fn member(&self, guid: Guid, membership: Option<&str>) -> Result<WantedMember, Refusal> {
        let (full, limited) = match membership.unwrap_or("full") {
            "full" => (true, false),
            "limited" => (false, true),
            "both" => (true, true),
            _ => return Err(bad("membership is full, limited or both")),
        };
        Ok(WantedMember { guid, full, limited, first: self.index0 })
    }

    /// The GUIDs, which must be given: a client that forgets them does not mean none.
    fn guids(&self) -> Result<&[String], Refusal> {
        self.guids.as_deref().ok_or_else(|| bad("guids is missing"))
    }

    /// The members; `each`: whether `memberships` counts.
    fn members(&self, each: bool) -> Result<Vec<WantedMember>, Refusal> {
        let guids = self.guids()?;
        let each = each && !self.memberships.is_empty();
        if each && self.memberships.len() != guids.len() {
            return Err(bad("guids and memberships differ in length"));
        }
        let members = guids.iter().enumerate().map(|(at, text)| {
            let membership = if each { self.memberships.get(at) } else { self.membership.as_ref() };
            self.member(guid(text)?, membership.map(String::as_str))
        });
        members.collect()
    }
}

/// A rate in Gb/s.
fn gbps(rate: Rate) -> f64 {
    let text = format!("{rate:?}");
    text.trim_start_matches("Gbps").replace('_', ".").parse().unwrap_or(0.0)
}

fn pkey(text: &str) -> Result<PKey, Refusal> {
    let number = parse_number(text.trim()).and_then(|number| u16::try_from(number).ok());
    let base = number.map(|number| PKey(number & 0x7fff)).filter(|pkey| pkey.0 != 0);
    base.ok_or_else(|| bad(format!("'{text}' is no P_Key: 0x1 to 0x7fff")))
}

/// Reads a GUID: 16 hexadecimal digits, also with `0x` or colons.
fn guid(text: &str) -> Result<Guid, Refusal> {
    let digits = text.trim().trim_start_matches("0x").replace(':', "");
    let is_hex = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u64::from_str_radix(&digits, 16).ok().filter(|_| is_hex);
    number.map(Guid).ok_or_else(|| bad(format!("'{text}' is no GUID: 16 hexadecimal digits")))
}

fn guids(text: &str) -> Result<Vec<Guid>, Refusal> {
    text.split(',').map(guid).collect()
}

async fn show_all(State(served): State<Shared>, Query(wanted): Query<Wanted>) -> Answer {
    let site = served.desk.site();
    let make = move |snapshot: &Snapshot| {
        let brief = !is_asked(wanted.guids_data.as_ref());
        let all = list::all(snapshot, &site, None, brief);
        let rows = all.iter();
        let rows = rows.map(|row| (format!("{:#x}", row.pkey), shown(row, &wanted, false)));
        Ok(rows.collect::<BTreeMap<String, Value>>())
    };
    served.document(make).await
}

async fn show(
    State(served): State<Shared>,
    Path(text): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Answer {
    let pkey = pkey(&text)?;
    let site = served.desk.site();
    let make = move |snapshot: &Snapshot| {
        let brief = !is_asked(wanted.guids_data.as_ref());
        let all = list::all(snapshot, &site, Some(pkey), brief);
        let partition = all.first().ok_or_else(|| not_found(format!("no P_Key {text}")))?;
        Ok(shown(partition, &wanted, true))
    };
    served.document(make).await
}

fn shown(partition: &Partition, wanted: &Wanted, one: bool) -> Value {
    let name = match partition.pkey {
        0x7fff => "management",
        _ => &partition.name,
    };
    let mut shown = Map::new();
    shown.insert("partition".to_owned(), name.into());
    shown.insert("ip_over_ib".to_owned(), partition.ipoib.into());
    if one {
        shown.insert("membership".to_owned(), "full".into());
    }
    if is_asked(wanted.guids_data.as_ref()) {
        let members = partition.members.iter().filter_map(|listed| listed.member.as_ref());
        let guids: Vec<Value> = members
            .map(|member| {
                let membership = match (member.full, member.limited) {
                    (true, true) => "both",
                    (true, false) => "full",
                    _ => "limited",
                };
                let guid = format!("{:016x}", member.guid);
                json!({ "guid": guid, "index0": member.first, "membership": membership })
            })
            .collect();
        shown.insert("guids".to_owned(), guids.into());
    }
    if is_asked(wanted.qos_conf.as_ref()) {
        let code = |code: u32| u8::try_from(code).unwrap_or(0);
        let mtu = Mtu::from_code(code(partition.mtu)).unwrap_or(Mtu::B2048);
        let rate = Rate::from_code(code(partition.rate)).unwrap_or(Rate::Gbps10);
        let qos = json!({
            "mtu_limit": mtu.bytes() / 1024,
            "service_level": partition.sl,
            "rate_limit": number(gbps(rate)),
        });
        shown.insert("qos_conf".to_owned(), qos);
    }
    shown.into()
}

/// A whole number without a decimal point.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 { (value as u64).into() } else { value.into() }
}

async fn add(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body, _| body.add()).await
}

async fn replace(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body, _| body.replace()).await
}

async fn create(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body, _| body.set(Presence::Absent)).await
}

async fn configure(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body, _| body.set(Presence::Present)).await
}

async fn remove(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body, _| body.remove()).await
}

impl Body {
    fn add(&self) -> Result<PartitionOrder, Refusal> {
        let (members, attributes) = (self.members(false)?, self.attributes()?);
        let action = PartitionAction::Add { members, attributes };
        Ok(PartitionOrder { pkey: self.pkey()?, action })
    }

    fn replace(&self) -> Result<PartitionOrder, Refusal> {
        let (members, attributes) = (self.members(true)?, self.attributes()?);
        let action = PartitionAction::Replace { members, attributes };
        Ok(PartitionOrder { pkey: self.pkey()?, action })
    }

    fn set(&self, presence: Presence) -> Result<PartitionOrder, Refusal> {
        let action = PartitionAction::Set { presence, attributes: self.attributes()? };
        Ok(PartitionOrder { pkey: self.pkey()?, action })
    }

    fn remove(&self) -> Result<PartitionOrder, Refusal> {
        let guids: Result<Vec<Guid>, Refusal> =
            self.guids()?.iter().map(|text| guid(text)).collect();
        let action = PartitionAction::Remove { guids: guids?, deletes_empty: false };
        Ok(PartitionOrder { pkey: self.pkey()?, action })
    }

    fn add_hosts(&self, snapshot: &Snapshot) -> Result<PartitionOrder, Refusal> {
        let names = self.hosts_names.as_deref().ok_or_else(|| bad("hosts_names is missing"))?;
        let ports = ports_of(snapshot, names)?;
        let membership = self.membership.as_deref();
        let members: Result<Vec<_>, _> =
            ports.into_iter().map(|guid| self.member(guid, membership)).collect();
        let action = PartitionAction::Add { members: members?, attributes: self.attributes()? };
        Ok(PartitionOrder { pkey: self.pkey()?, action })
    }
}

/// Reads the order in the body of a call.
type Call = fn(&Body) -> Result<PartitionOrder, Refusal>;

/// The orders that calls make of a body, or the status of the refusal of each.
pub fn orders(body: &[u8]) -> Vec<Result<PartitionOrder, u16>> {
    let calls: [Call; 5] = [
        Body::add,
        Body::replace,
        |body| body.set(Presence::Absent),
        |body| body.set(Presence::Present),
        Body::remove,
    ];
    let order = |call: &Call| {
        let read: Result<PartitionOrder, Refusal> = Body::read(body).and_then(|body| call(&body));
        read.map_err(|Refusal(status, _)| status.as_u16())
    };
    calls.iter().map(order).collect()
}

async fn remove_guids(
    State(served): State<Shared>,
    Path((text, list)): Path<(String, String)>,
) -> Answer {
    let action = PartitionAction::Remove { guids: guids(&list)?, deletes_empty: true };
    served.give(PartitionOrder { pkey: pkey(&text)?, action }).await
}

async fn remove_partition(State(served): State<Shared>, Path(text): Path<String>) -> Answer {
    served.give(PartitionOrder { pkey: pkey(&text)?, action: PartitionAction::Delete }).await
}

async fn add_hosts(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body, snapshot| body.add_hosts(snapshot)).await
}

async fn remove_hosts(
    State(served): State<Shared>,
    Path((text, names)): Path<(String, String)>,
) -> Answer {
    let pkey = pkey(&text)?;
    let snapshot = served.snapshot()?;
    let guids = served.made(move || ports_of(&snapshot, &names)).await??;
    let action = PartitionAction::Remove { guids, deletes_empty: true };
    served.give(PartitionOrder { pkey, action }).await
}

/// Port GUIDs of hosts by name, the first word of their NodeDescription. A host may have several
/// adapters, each with a description of its own; a description that two adapters have is refused,
/// since one of them may be another host's that took the name.
fn ports_of(snapshot: &Snapshot, names: &str) -> Result<Vec<Guid>, Refusal> {
    let mut hosts: HashMap<String, Vec<(String, &[Port])>> = HashMap::new();
    for node in &snapshot.fabric().nodes {
        if NodeType::from_code(NodeInfo::of(&node.info).node_type()) == Some(NodeType::Ca) {
            let description = text::of_field(&node.description);
            let name = description.split(' ').next().unwrap_or_default().to_owned();
            hosts.entry(name).or_default().push((description, &node.ports));
        }
    }
    let mut ports = Vec::new();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let adapters =
            hosts.get(name).ok_or_else(|| not_found(format!("no host is named {name}")))?;
        let mut descriptions: Vec<&str> = adapters.iter().map(|(text, _)| text.as_str()).collect();
        descriptions.sort_unstable();
        if let Some(pair) = descriptions.windows(2).find(|pair| pair[0] == pair[1]) {
            let reason = format!("several adapters have the description '{}'", pair[0]);
            return Err(bad(format!("{reason}: add ports by their GUIDs instead")));
        }
        ports.extend(adapters.iter().flat_map(|(_, ports)| ports.iter().map(|port| port.guid)));
    }
    Ok(ports)
}
