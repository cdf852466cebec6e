//! `ibsmctl vfabric`: lists virtual fabrics, for operators and job schedulers.

use std::fmt::Write as _;

use ib_mad::types::{Mtu, Rate};
use sa_proto::proto::admin::{VirtualFabric, VirtualFabricsRequest};
use serde::Serialize;

use super::mgid::parse_mgid;
use super::{CtlError, Sm, to_json};
use sm_config::parse_number;

/// Options of the command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ibsmctl vfabric                                        all of them\n  \
    ibsmctl vfabric --application Lustre                   those that have it\n  \
    ibsmctl vfabric --service-id 0x00000000010603db        the one that paths for it fall under\n  \
    ibsmctl vfabric --member node7                         those that a port is a member of\n  \
    eval \"$(ibsmctl vfabric --name Compute --shell)\"       IBSM_VF_PKEY, IBSM_VF_SL and others\n\
    \nThe exit status is 1 if there is none.")]
pub struct Options {
    /// Only the one with this name.
    #[arg(short, long)]
    name: Option<String>,
    /// Only those with this application.
    #[arg(short, long)]
    application: Option<String>,
    /// Only the one with this Service ID, else the one for unassigned Service IDs.
    #[arg(short = 'i', long, value_name = "ID")]
    service_id: Option<String>,
    /// Only the one with this MGID, else the one for unassigned MGIDs.
    #[arg(short, long)]
    mgid: Option<String>,
    /// Only those with this P_Key; its membership bit is ignored.
    #[arg(short, long, value_name = "P_KEY")]
    pkey: Option<String>,
    /// Only those with this SL, for unicast or multicast.
    #[arg(long, value_name = "SL")]
    sl: Option<u32>,
    /// Only the one at this position in the file, from 0; those not enabled do not count.
    #[arg(long, value_name = "N")]
    index: Option<u32>,
    /// Only those with this member, and its membership. An end port, by GUID, LID or name.
    #[arg(long, value_name = "PORT")]
    member: Option<String>,
    /// Print JSON.
    #[arg(short, long, conflicts_with = "shell")]
    json: bool,
    /// Print shell variable assignments; if several match, the first.
    #[arg(long)]
    shell: bool,
}

/// Requests the virtual fabrics and formats those that match.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let query = Query::parse(options)?;
    let request = VirtualFabricsRequest { member: query.member.clone().unwrap_or_default() };
    let answer = sm.connect().await?.list_virtual_fabrics(request).await;
    let all = answer.map_err(|status| sm.refused(&status))?.into_inner().fabrics;
    let found = query.select(&all);
    if found.is_empty() {
        return Err(CtlError::NoVirtualFabric(query.to_string()));
    }
    Ok(match (options.json, options.shell) {
        (true, _) => to_json(&found.iter().map(|fabric| Json::of(fabric)).collect::<Vec<_>>()),
        (_, true) => found.first().map_or_else(String::new, |fabric| shell(fabric)),
        _ => text(&found),
    })
}

/// Selection criteria; all of them must match.
#[derive(Debug, Default)]
struct Query {
    name: Option<String>,
    application: Option<String>,
    service_id: Option<u64>,
    mgid: Option<u128>,
    /// Without the membership bit.
    pkey: Option<u32>,
    sl: Option<u32>,
    index: Option<u32>,
    member: Option<String>,
}

impl Query {
    fn parse(options: &Options) -> Result<Self, CtlError> {
        let bad =
            |what, expected, got: &str| CtlError::Argument { what, expected, got: got.to_owned() };
        let service_id = |text: &String| {
            let expected = "a Service ID such as 0x00000000010603db";
            parse_number(text).ok_or_else(|| bad("--service-id", expected, text))
        };
        let mgid = |text: &String| {
            let mgid = parse_mgid(text).map(|mgid| u128::from_be_bytes(mgid.0));
            let expected = "an MGID such as ff12:401b:8001::1 or 0xff12401b80010000:0x1";
            mgid.ok_or_else(|| bad("--mgid", expected, text))
        };
        let pkey = |text: &String| {
            let pkey = parse_number(text).and_then(|pkey| u16::try_from(pkey).ok());
            let pkey = pkey.map(|pkey| u32::from(pkey & 0x7FFF)).filter(|&pkey| pkey != 0);
            pkey.ok_or_else(|| bad("--pkey", "a P_Key such as 0x8002", text))
        };
        if let Some(sl) = options.sl.filter(|&sl| sl > 15) {
            return Err(bad("--sl", "a service level of 0 to 15", &sl.to_string()));
        }
        if options.member.as_ref().is_some_and(|member| member.trim().is_empty()) {
            return Err(bad("--member", "a port's GUID, LID or name", ""));
        }
        Ok(Self {
            pkey: options.pkey.as_ref().map(pkey).transpose()?,
            sl: options.sl,
            index: options.index,
            member: options.member.clone(),
            name: options.name.clone(),
            application: options.application.clone(),
            service_id: options.service_id.as_ref().map(service_id).transpose()?,
            mgid: options.mgid.as_ref().map(mgid).transpose()?,
        })
    }

    /// Returns the matching virtual fabrics, by precedence. For a Service ID or MGID that is the
    /// first that contains it, else the first that includes unassigned ones; those in standby match
    /// none.
    fn select<'a>(&self, all: &'a [VirtualFabric]) -> Vec<&'a VirtualFabric> {
        let mut found: Vec<&VirtualFabric> = all.iter().collect();
        if let Some(name) = &self.name {
            found.retain(|fabric| fabric.name == *name);
        }
        if let Some(application) = &self.application {
            found.retain(|fabric| fabric.applications.contains(application));
        }
        if let Some(pkey) = self.pkey {
            found.retain(|fabric| fabric.pkey == pkey);
        }
        if let Some(sl) = self.sl {
            found.retain(|fabric| [fabric.base_sl, fabric.multicast_sl].contains(&sl));
        }
        if let Some(index) = self.index {
            found.retain(|fabric| fabric.index == index);
        }
        if self.member.is_some() {
            // A manager of an earlier release does not know this criterion.
            found.retain(|fabric| fabric.is_full_member.is_some());
        }
        if let Some(id) = self.service_id {
            let unmatched = |fabric: &VirtualFabric| fabric.unmatched_service_ids;
            found = first(&found, |fabric| has_service_id(fabric, id), unmatched);
        }
        if let Some(mgid) = self.mgid {
            let unmatched = |fabric: &VirtualFabric| fabric.unmatched_mgids;
            found = first(&found, |fabric| has_mgid(fabric, mgid), unmatched);
        }
        found
    }
}

impl std::fmt::Display for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            self.name.as_ref().map(|name| format!("is named {name}")),
            self.application.as_ref().map(|name| format!("has application {name}")),
            self.service_id.map(|id| format!("takes Service ID {id:#018x}")),
            self.mgid.map(|mgid| format!("takes MGID {}", std::net::Ipv6Addr::from(mgid))),
            self.pkey.map(|pkey| format!("has P_Key {pkey:#06x}")),
            self.sl.map(|sl| format!("has SL {sl}")),
            self.index.map(|index| format!("has index {index}")),
            self.member.as_ref().map(|member| format!("has member {member}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            return f.write_str("is defined; define them in a file for ibsm --vfabrics");
        }
        f.write_str(&parts.join(" and "))
    }
}

fn first<'a>(
    fabrics: &[&'a VirtualFabric],
    has: impl Fn(&VirtualFabric) -> bool,
    takes: impl Fn(&VirtualFabric) -> bool,
) -> Vec<&'a VirtualFabric> {
    let active = || fabrics.iter().copied().filter(|fabric| !fabric.standby);
    let found = active().find(|fabric| has(fabric)).or_else(|| active().find(|f| takes(f)));
    found.into_iter().collect()
}

fn has_service_id(fabric: &VirtualFabric, id: u64) -> bool {
    fabric.service_ids.iter().any(|ids| match ids.mask {
        Some(mask) => (id ^ ids.first) & mask == 0,
        None => (ids.first..=ids.last).contains(&id),
    })
}

fn has_mgid(fabric: &VirtualFabric, mgid: u128) -> bool {
    let bits = |bytes: &[u8]| bytes.try_into().map(u128::from_be_bytes).ok();
    fabric.mgids.iter().any(|mgids| match (bits(&mgids.value), bits(&mgids.mask)) {
        (Some(value), Some(mask)) => (mgid ^ value) & mask == 0,
        _ => false,
    })
}

/// How the requested port is a member.
fn membership(fabric: &VirtualFabric) -> Option<&'static str> {
    fabric.is_full_member.map(|is_full| if is_full { "full" } else { "limited" })
}

/// Largest MTU in bytes; `None` is unlimited.
fn mtu(fabric: &VirtualFabric) -> Option<Mtu> {
    u8::try_from(fabric.mtu_max).ok().and_then(Mtu::from_code)
}

/// Largest rate; `None` is unlimited.
fn rate(fabric: &VirtualFabric) -> Option<Rate> {
    u8::try_from(fabric.rate_max).ok().and_then(Rate::from_code)
}

/// Formats a rate in Gb/s: `100`, `2.5`.
fn gigabits(rate: Rate) -> String {
    (f64::from(rate.mbps()) / 1000.0).to_string()
}

fn text(fabrics: &[&VirtualFabric]) -> String {
    let mut text = String::new();
    for fabric in fabrics {
        let standby = if fabric.standby { ", in standby" } else { "" };
        let _ = writeln!(text, "{}{standby}", fabric.name);
        let sl = match fabric.qos {
            true if fabric.multicast_sl != fabric.base_sl => {
                format!("SL {}, multicast SL {}", fabric.base_sl, fabric.multicast_sl)
            }
            true => format!("SL {}", fabric.base_sl),
            false => "no SL of its own".to_owned(),
        };
        let mtu = mtu(fabric).map_or("unlimited".to_owned(), |mtu| mtu.bytes().to_string());
        let rate =
            rate(fabric).map_or("unlimited".to_owned(), |rate| format!("{} Gb/s", gigabits(rate)));
        let security = if fabric.security { "security" } else { "no security" };
        let _ = writeln!(
            text,
            "  index {}, P_Key {:#06x}, {sl}, MTU {mtu}, rate {rate}, {security}",
            fabric.index, fabric.pkey
        );
        if let Some(membership) = membership(fabric) {
            let _ = writeln!(text, "  membership       {membership}");
        }
        let _ = writeln!(text, "  applications     {}", fabric.applications.join(", "));
        let _ = writeln!(text, "  members          {}", fabric.members.join(", "));
        if !fabric.limited_members.is_empty() {
            let _ = writeln!(text, "  limited members  {}", fabric.limited_members.join(", "));
        }
    }
    text
}

/// Variable assignments for a shell; unlimited values are empty.
fn shell(fabric: &VirtualFabric) -> String {
    let (mtu, rate) = (mtu(fabric), rate(fabric));
    let or_empty = |value: Option<String>| value.unwrap_or_default();
    let variables = [
        ("NAME", fabric.name.clone()),
        ("PKEY", format!("{:#06x}", fabric.pkey)),
        ("SL", fabric.base_sl.to_string()),
        ("MULTICAST_SL", fabric.multicast_sl.to_string()),
        ("MTU", or_empty(mtu.map(|mtu| mtu.bytes().to_string()))),
        ("MTU_CODE", or_empty(mtu.map(|mtu| mtu.code().to_string()))),
        ("RATE", or_empty(rate.map(gigabits))),
        ("RATE_CODE", or_empty(rate.map(|rate| rate.code().to_string()))),
    ];
    let quote = |value: &str| format!("'{}'", value.replace('\'', "'\\''"));
    variables.iter().map(|(name, value)| format!("IBSM_VF_{name}={}\n", quote(value))).collect()
}

/// A virtual fabric as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    index: u32,
    pkey: String,
    sl: u32,
    multicast_sl: u32,
    mtu: Option<u16>,
    mtu_code: Option<u8>,
    rate_gbps: Option<f64>,
    rate_code: Option<u8>,
    security: bool,
    qos: bool,
    standby: bool,
    applications: &'a [String],
    service_ids: Vec<String>,
    unmatched_service_ids: bool,
    mgids: Vec<String>,
    unmatched_mgids: bool,
    members: &'a [String],
    limited_members: &'a [String],
    membership: Option<&'static str>,
}

impl<'a> Json<'a> {
    fn of(fabric: &'a VirtualFabric) -> Self {
        let (mtu, rate) = (mtu(fabric), rate(fabric));
        let halves = |bytes: &[u8]| {
            let bits = bytes.try_into().map_or(0, u128::from_be_bytes);
            format!("{:#018x}:{:#018x}", (bits >> 64) as u64, bits as u64)
        };
        let service_ids = fabric.service_ids.iter().map(|ids| match ids.mask {
            Some(mask) => format!("{:#018x}*{mask:#018x}", ids.first),
            None if ids.first == ids.last => format!("{:#018x}", ids.first),
            None => format!("{:#018x}-{:#018x}", ids.first, ids.last),
        });
        let mgids =
            fabric.mgids.iter().map(|m| format!("{}*{}", halves(&m.value), halves(&m.mask)));
        Self {
            name: &fabric.name,
            pkey: format!("{:#06x}", fabric.pkey),
            sl: fabric.base_sl,
            multicast_sl: fabric.multicast_sl,
            mtu: mtu.map(Mtu::bytes),
            mtu_code: mtu.map(Mtu::code),
            rate_gbps: rate.map(|rate| f64::from(rate.mbps()) / 1000.0),
            rate_code: rate.map(Rate::code),
            security: fabric.security,
            qos: fabric.qos,
            standby: fabric.standby,
            applications: &fabric.applications,
            service_ids: service_ids.collect(),
            unmatched_service_ids: fabric.unmatched_service_ids,
            mgids: mgids.collect(),
            unmatched_mgids: fabric.unmatched_mgids,
            members: &fabric.members,
            limited_members: &fabric.limited_members,
            index: fabric.index,
            membership: membership(fabric),
        }
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::proto::admin::{Mgids, ServiceIds};

    use super::*;

    fn fabrics() -> Vec<VirtualFabric> {
        let fabric = |name: &str, pkey, application: &str| VirtualFabric {
            name: name.to_owned(),
            pkey,
            applications: vec![application.to_owned()],
            members: vec!["All".to_owned()],
            ..VirtualFabric::default()
        };
        vec![
            VirtualFabric {
                standby: true,
                service_ids: vec![ServiceIds { first: 1, last: 9, mask: None }],
                ..fabric("Asleep", 1, "Storage")
            },
            VirtualFabric {
                service_ids: vec![ServiceIds { first: 5, last: 6, mask: None }],
                mgids: vec![Mgids { value: vec![0xFF; 16], mask: vec![0xFF; 16] }],
                mtu_max: 4,
                rate_max: 16,
                qos: true,
                base_sl: 3,
                multicast_sl: 4,
                limited_members: vec!["AllFIs".to_owned()],
                ..fabric("Bob's", 5, "Storage")
            },
            VirtualFabric {
                service_ids: vec![ServiceIds { first: 0x100, last: 0x1FF, mask: Some(0xF00) }],
                unmatched_service_ids: true,
                unmatched_mgids: true,
                ..fabric("Others", 6, "AllOthers")
            },
        ]
    }

    fn select(query: &Query) -> Vec<u32> {
        query.select(&fabrics()).iter().map(|fabric| fabric.pkey).collect()
    }

    #[test]
    fn a_service_id_or_mgid_selects_the_first_that_contains_it() {
        let id = |id| select(&Query { service_id: Some(id), ..Query::default() });
        assert_eq!((id(5), id(0xF1FF), id(0x9999)), (vec![5], vec![6], vec![6]));
        let mgid = |mgid| select(&Query { mgid: Some(mgid), ..Query::default() });
        assert_eq!((mgid(u128::MAX), mgid(7)), (vec![5], vec![6]));
        let application = Some("Storage".to_owned());
        assert_eq!(select(&Query { application, ..Query::default() }), [1, 5]);
        let name = Some("Nobody".to_owned());
        assert!(select(&Query { name, ..Query::default() }).is_empty());
        assert_eq!(select(&Query::default()), [1, 5, 6]);
    }

    #[test]
    fn pkey_sl_index_and_member_select_those_that_have_them() {
        let mut all = fabrics();
        for (fabric, (index, full)) in all.iter_mut().zip([(0, None), (1, Some(true)), (2, None)]) {
            (fabric.index, fabric.is_full_member) = (index, full);
        }
        let parse = |arguments: &[&str]| {
            #[derive(clap::Parser)]
            struct Line {
                #[command(flatten)]
                options: Options,
            }
            let line = <Line as clap::Parser>::try_parse_from([&["x"], arguments].concat());
            Query::parse(&line.unwrap().options)
        };
        let found = |arguments: &[&str]| -> Vec<u32> {
            let query = parse(arguments).unwrap();
            query.select(&all).iter().map(|fabric| fabric.index).collect()
        };
        assert_eq!(found(&["--pkey", "0x8005"]), [1]);
        assert_eq!(found(&["--pkey", "0x0005"]), [1]);
        assert_eq!(found(&["--sl", "4"]), [1], "the multicast SL");
        assert_eq!(found(&["--sl", "3"]), [1]);
        assert_eq!(found(&["--index", "2"]), [2]);
        assert_eq!(found(&["--member", "node1"]), [1]);
        assert_eq!(found(&["--member", "node1", "--pkey", "6"]), [0; 0]);
        for bad in [["--pkey", "0x8000"], ["--pkey", "x"], ["--sl", "16"], ["--member", " "]] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
        let query = parse(&["--pkey", "5", "--sl", "1", "--index", "7", "--member", "n"]).unwrap();
        let expected = "has P_Key 0x0005 and has SL 1 and has index 7 and has member n";
        assert_eq!(query.to_string(), expected);
        assert!(text(&[&all[1]]).contains("  membership       full\n"));
    }

    #[test]
    fn shells_can_evaluate_whatever_the_name_is() {
        let all = fabrics();
        let expected = "IBSM_VF_NAME='Bob'\\''s'\nIBSM_VF_PKEY='0x0005'\nIBSM_VF_SL='3'\n\
                        IBSM_VF_MULTICAST_SL='4'\nIBSM_VF_MTU='2048'\nIBSM_VF_MTU_CODE='4'\n\
                        IBSM_VF_RATE='100'\nIBSM_VF_RATE_CODE='16'\n";
        assert_eq!(shell(&all[1]), expected);
        assert!(shell(&all[2]).contains("IBSM_VF_MTU=''\n"));
    }

    #[test]
    fn text_has_what_schedulers_and_operators_need() {
        let all = fabrics();
        let text = text(&all.iter().collect::<Vec<_>>());
        assert!(text.contains("Asleep, in standby\n"), "{text}");
        assert!(text.contains(
            "  index 0, P_Key 0x0005, SL 3, multicast SL 4, MTU 2048, rate 100 Gb/s, no security\n"
        ));
        assert!(text.contains("P_Key 0x0006, no SL of its own, MTU unlimited, rate unlimited"));
        assert!(text.contains("limited members  AllFIs\n"));
    }

    #[test]
    fn json_has_all_fields_under_stable_keys() {
        let all = fabrics();
        let json: serde_json::Value = serde_json::from_str(&to_json(&Json::of(&all[1]))).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "applications index limited_members members membership mgids mtu mtu_code \
                        multicast_sl name pkey qos rate_code rate_gbps security service_ids sl standby \
                        unmatched_mgids unmatched_service_ids";
        assert_eq!(keys.join(" "), expected);
        assert_eq!(json["service_ids"][0], "0x0000000000000005-0x0000000000000006");
        assert!(serde_json::to_value(Json::of(&all[2])).unwrap()["mtu"].is_null());
    }
}
