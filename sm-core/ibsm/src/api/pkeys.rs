//! Partitions: the resources `pkeys`. Bodies are read without I/O.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

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
use crate::export::hostlist::expanded;
use crate::partitions::list;
use sm_core::registry::{
    Attributes, ORDER_GUIDS_MAX, PartitionAction, PartitionOrder, Presence, WantedMember,
};

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
            Some(Value::Number(_)) => {
                Err(bad("pkey is a number; it is text with hexadecimal digits, such as \"0x14\""))
            }
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

    /// A member; `host`: the name that it is added by.
    fn member(
        &self,
        guid: Guid,
        membership: Option<&str>,
        host: Option<String>,
    ) -> Result<WantedMember, Refusal> {
        let (full, limited) = match membership.unwrap_or("full") {
            "full" => (true, false),
            "limited" => (false, true),
            "both" => (true, true),
            _ => return Err(bad("membership is full, limited or both")),
        };
        Ok(WantedMember { guid, full, limited, first: self.index0, host })
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
            self.member(guid(text)?, membership.map(String::as_str), None)
        });
        members.collect()
    }
}

/// A rate in Gb/s.
fn gbps(rate: Rate) -> f64 {
    let text = format!("{rate:?}");
    text.trim_start_matches("Gbps").replace('_', ".").parse().unwrap_or(0.0)
}

/// Reads a P_Key. It is hexadecimal with and without `0x`, as UFM's clients write it: `0032` and
/// `32` are 0x32.
fn pkey(text: &str) -> Result<PKey, Refusal> {
    let digits = hexadecimal(text);
    let number = digits.and_then(|digits| u16::from_str_radix(&digits, 16).ok());
    let base = number.map(PKey).filter(|pkey| (1..=0x7fff).contains(&pkey.0));
    base.ok_or_else(|| bad(format!("'{text}' is no P_Key: 0x1 to 0x7fff, in hexadecimal digits")))
}

/// Digits of a GUID. With fewer it would be another one, if digits were lost on the way.
const GUID_DIGITS: RangeInclusive<usize> = 16..=20;

/// Reads a GUID: 16 hexadecimal digits, also with `0x` or colons, or up to 20 with leading zeros.
fn guid(text: &str) -> Result<Guid, Refusal> {
    let digits = hexadecimal(&text.replace(':', ""));
    let digits = digits.filter(|digits| GUID_DIGITS.contains(&digits.len()));
    let number = digits.and_then(|digits| u64::from_str_radix(&digits, 16).ok());
    number.map(Guid).ok_or_else(|| bad(format!("'{text}' is no GUID: 16 hexadecimal digits")))
}

/// The digits of a hexadecimal number, of which there is one at least.
fn hexadecimal(text: &str) -> Option<String> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    // A number that is read by Rust may have a sign.
    let is_hex = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| digits.to_owned())
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
    served.order(body, |body| body.add()).await
}

async fn replace(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body| body.replace()).await
}

async fn create(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body| body.set(Presence::Absent)).await
}

async fn configure(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body| body.set(Presence::Present)).await
}

async fn remove(State(served): State<Shared>, body: HttpBody) -> Answer {
    served.order(body, |body| body.remove()).await
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
        let (guids, hosts) = (guids?, Vec::new());
        let action = PartitionAction::Remove { guids, hosts, deletes_empty: false };
        Ok(PartitionOrder { pkey: self.pkey()?, action })
    }

    fn add_hosts(&self, snapshot: &Snapshot) -> Result<PartitionOrder, Refusal> {
        let names = self.hosts_names.as_deref().ok_or_else(|| bad("hosts_names is missing"))?;
        let membership = self.membership.as_deref();
        let mut members = Vec::new();
        for (host, ports) in ports_of(snapshot, names)? {
            for guid in ports {
                members.push(self.member(guid, membership, Some(host.clone()))?);
            }
        }
        let action = PartitionAction::Add { members, attributes: self.attributes()? };
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
    let (guids, hosts) = (guids(&list)?, Vec::new());
    let action = PartitionAction::Remove { guids, hosts, deletes_empty: true };
    served.give(PartitionOrder { pkey: pkey(&text)?, action }).await
}

async fn remove_partition(State(served): State<Shared>, Path(text): Path<String>) -> Answer {
    served.give(PartitionOrder { pkey: pkey(&text)?, action: PartitionAction::Delete }).await
}

async fn add_hosts(State(served): State<Shared>, body: HttpBody) -> Answer {
    let fabric = served.clone();
    served.order(body, move |body| body.add_hosts(&*fabric.snapshot()?)).await
}

/// Removes hosts, also those that are away: members that were added by these names, and the ports
/// that hosts of these names have now. Like a GUID that is no member, a name that neither has is no
/// error: a job's epilog, or its repetition, must clean up after a host that crashed.
async fn remove_hosts(
    State(served): State<Shared>,
    Path((text, names)): Path<(String, String)>,
) -> Answer {
    let (pkey, hosts) = (pkey(&text)?, named(&names)?);
    let snapshot = served.snapshot()?;
    let action = served.made(move || {
        let known = hosts_of(&snapshot);
        let adapters = hosts.iter().filter_map(|name| known.get(name)).flatten();
        let guids = adapters.flat_map(|(_, ports)| ports.iter().map(|port| port.guid)).collect();
        PartitionAction::Remove { guids, hosts, deletes_empty: true }
    });
    let action = action.await?;
    served.give(PartitionOrder { pkey, action }).await
}

/// Adapters by the name of their host, the first word of their NodeDescription, each with the
/// description.
fn hosts_of(snapshot: &Snapshot) -> HashMap<String, Vec<(String, &[Port])>> {
    let mut hosts: HashMap<String, Vec<(String, &[Port])>> = HashMap::new();
    for node in &snapshot.fabric().nodes {
        if NodeType::from_code(NodeInfo::of(&node.info).node_type()) == Some(NodeType::Ca) {
            let description = text::of_field(&node.description);
            let name = description.split(' ').next().unwrap_or_default().to_owned();
            hosts.entry(name).or_default().push((description, &node.ports));
        }
    }
    hosts
}

/// The names in a list with commas, or as Slurm abbreviates it: `node[1-3]`.
fn named(names: &str) -> Result<Vec<String>, Refusal> {
    expanded(names, ORDER_GUIDS_MAX).map_err(bad)
}

/// Hosts by name, each with its port GUIDs. A host may have several adapters, each with a
/// description of its own; a description that two adapters have is refused, since one of them may
/// be another host's that took the name.
fn ports_of(snapshot: &Snapshot, names: &str) -> Result<Vec<(String, Vec<Guid>)>, Refusal> {
    let hosts = hosts_of(snapshot);
    let mut found = Vec::new();
    for name in named(names)? {
        let adapters =
            hosts.get(&name).ok_or_else(|| not_found(format!("no host is named {name}")))?;
        let mut descriptions: Vec<&str> = adapters.iter().map(|(text, _)| text.as_str()).collect();
        descriptions.sort_unstable();
        if let Some(pair) = descriptions.windows(2).find(|pair| pair[0] == pair[1]) {
            let reason = format!("several adapters have the description '{}'", pair[0]);
            return Err(bad(format!("{reason}: add ports by their GUIDs instead")));
        }
        let ports = adapters.iter().flat_map(|(_, ports)| ports.iter().map(|port| port.guid));
        found.push((name, ports.collect()));
    }
    Ok(found)
}
