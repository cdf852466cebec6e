//! `ibsmctl mcast`: multicast groups with their members.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ib_mad::types::{Gid, Mtu, Rate};
use ib_mad::wire::record::{JoinState, McMemberRecord};
use sa_proto::proto::admin::{Group, GroupsRequest, Member};
use serde::Serialize;

use super::mgid::parse_mgid;
use super::port::{self, PortJson};
use super::{CtlError, Sm, to_json};

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only the group with this MGID, such as ff12:401b:ffff::1 or 0xff12401bffff0000:0x1.
    #[arg(short, long)]
    mgid: Option<String>,
    /// Only groups that ports of this node joined: a name, the beginning of one, GUID or LID.
    #[arg(long, value_name = "NODE")]
    of: Option<String>,
    /// One line a group, without members.
    #[arg(short, long)]
    summary: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Requests the groups and formats them.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let mgid = options.mgid.as_ref().map(|text| {
        parse_mgid(text).ok_or_else(|| CtlError::Argument {
            what: "--mgid",
            expected: "an MGID such as ff12:401b:8001::1 or 0xff12401b80010000:0x1",
            got: text.clone(),
        })
    });
    let mgid = mgid.transpose()?;
    let request = GroupsRequest {
        mgid: mgid.map(|mgid| mgid.0.to_vec()).unwrap_or_default(),
        node: options.of.clone().unwrap_or_default(),
        summary: options.summary,
    };
    let answer = sm.connect().await?.list_groups(request).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut groups = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| sm.refused(&status))? {
        join(&mut groups, message.groups);
    }
    if let (Some(mgid), None, true) = (mgid, &options.of, groups.is_empty()) {
        return Err(CtlError::NoGroup(mgid));
    }
    Ok(if options.json {
        to_json(&groups.iter().filter_map(GroupJson::of).collect::<Vec<_>>())
    } else if options.summary {
        summary(&groups)
    } else {
        text(&groups)
    })
}

/// Adds the groups of a message; the first may continue the members of the last group.
fn join(groups: &mut Vec<Group>, more: Vec<Group>) {
    for group in more {
        match groups.last_mut() {
            Some(last) if last.record == group.record => last.members.extend(group.members),
            _ => groups.push(group),
        }
    }
}

fn text(groups: &[Group]) -> String {
    if groups.is_empty() {
        return "no multicast groups\n".to_owned();
    }
    let mut text = String::new();
    for group in groups {
        let Ok(record) = McMemberRecord::new(&group.record[..]) else { continue };
        let mtu = Mtu::from_code(record.mtu()).map_or(0, Mtu::bytes);
        let rate = Rate::from_code(record.rate());
        let _ = writeln!(
            text,
            "{}  MLID {:#06x}, P_Key {:#06x}, SL {}, MTU {mtu}, rate {}, Q_Key {:#010x}{}; {}",
            record.mgid(),
            record.mlid().0,
            record.pkey().0,
            record.sl(),
            rate.map_or("unknown".to_owned(), |rate| rate.to_string()),
            record.qkey(),
            if group.predefined { ", predefined" } else { "" },
            match group.member_count {
                0 => "no members".to_owned(),
                1 => "1 member".to_owned(),
                count => format!("{count} members"),
            },
        );
        let width = group.members.iter().map(|member| name(member).chars().count()).max();
        let width = width.unwrap_or(0);
        for member in &group.members {
            let proxy = if member.proxy_join { ", by proxy" } else { "" };
            let _ = writeln!(
                text,
                "  {:<width$}  {}  {}{proxy}",
                name(member),
                port::gid(member.port.as_ref()),
                join_states(member.join_state).join(", "),
            );
        }
    }
    text
}

/// One line a group, and the sums.
fn summary(groups: &[Group]) -> String {
    if groups.is_empty() {
        return "no multicast groups\n".to_owned();
    }
    let mut text = String::from("MLID    P_KEY   MEMBERS  MGID\n");
    let mut mlids = BTreeSet::new();
    for group in groups {
        let Ok(record) = McMemberRecord::new(&group.record[..]) else { continue };
        mlids.insert(record.mlid().0);
        let predefined = if group.predefined { "  (predefined)" } else { "" };
        let _ = writeln!(
            text,
            "{:#06x}  {:#06x}  {:>7}  {}{predefined}",
            record.mlid().0,
            record.pkey().0,
            group.member_count,
            record.mgid(),
        );
    }
    let members: u64 = groups.iter().map(|group| u64::from(group.member_count)).sum();
    let (groups, mlids) = (groups.len(), mlids.len());
    let _ = writeln!(text, "groups: {groups}, MLIDs: {mlids}, members: {members}");
    text
}

fn name(member: &Member) -> String {
    port::name(member.port.as_ref())
}

/// Join states as text, one per bit.
fn join_states(bits: u32) -> Vec<&'static str> {
    let states = [
        (JoinState::FULL_MEMBER, "full"),
        (JoinState::NON_MEMBER, "non-member"),
        (JoinState::SEND_ONLY_NON_MEMBER, "send-only non-member"),
        (JoinState::SEND_ONLY_FULL_MEMBER, "send-only full"),
    ];
    let joined = JoinState(u8::try_from(bits).unwrap_or(0));
    states.into_iter().filter(|(state, _)| joined.contains(*state)).map(|(_, name)| name).collect()
}

/// A group as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct GroupJson<'a> {
    mgid: String,
    mlid: String,
    pkey: String,
    sl: u8,
    mtu: u16,
    rate_mbps: u32,
    qkey: String,
    tclass: u8,
    flow_label: u32,
    hop_limit: u8,
    scope: u8,
    packet_life: u8,
    predefined: bool,
    member_count: u32,
    members: Vec<MemberJson<'a>>,
}

#[derive(Serialize)]
struct MemberJson<'a> {
    #[serde(flatten)]
    port: PortJson<'a>,
    join_states: Vec<&'static str>,
    proxy: bool,
}

impl<'a> GroupJson<'a> {
    fn of(group: &'a Group) -> Option<Self> {
        let record = McMemberRecord::new(&group.record[..]).ok()?;
        let mgid: Gid = record.mgid();
        Some(Self {
            mgid: mgid.to_string(),
            mlid: format!("{:#06x}", record.mlid().0),
            pkey: format!("{:#06x}", record.pkey().0),
            sl: record.sl().get(),
            mtu: Mtu::from_code(record.mtu()).map_or(0, Mtu::bytes),
            rate_mbps: Rate::from_code(record.rate()).map_or(0, |rate| rate.mbps()),
            qkey: format!("{:#010x}", record.qkey()),
            tclass: record.tclass(),
            flow_label: record.flow_label(),
            hop_limit: record.hop_limit(),
            scope: record.scope(),
            packet_life: record.packet_life_time().code(),
            predefined: group.predefined,
            member_count: group.member_count,
            members: group
                .members
                .iter()
                .map(|member| MemberJson {
                    port: PortJson::of(member.port.as_ref()),
                    join_states: join_states(member.join_state),
                    proxy: member.proxy_join,
                })
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::{Guid, Lid, PKey, Sl};
    use sa_proto::proto::admin::Port;

    use super::*;

    fn group(members: Vec<Member>) -> Group {
        let mut record = vec![0; 52];
        let mut view = McMemberRecord::new(&mut record[..]).unwrap();
        view.set_mgid("ff12:401b:ffff::1".parse().unwrap())
            .set_mlid(Lid(0xC001))
            .set_pkey(PKey(0xFFFF))
            .set_sl(Sl::from_low_bits(2))
            .set_mtu(Mtu::B2048)
            .set_rate(Rate::Gbps10)
            .set_qkey(0xB1B);
        let member_count = members.len() as u32;
        Group { record, predefined: true, members, member_count }
    }

    fn member(guid: u64, node: &str, join_state: u32) -> Member {
        let gid = Gid::new(0xFE80 << 48, Guid(guid)).0.to_vec();
        let number = u32::from(!node.is_empty());
        let port = Some(Port { gid, node: node.to_owned(), number });
        Member { port, join_state, proxy_join: join_state == 4 }
    }

    const TEXT: &str = "\
ff12:401b:ffff::1  MLID 0xc001, P_Key 0xffff, SL 2, MTU 2048, rate 10 Gb/s, Q_Key 0x00000b1b, \
predefined; 3 members
  host-1/P1          fe80::1  full
  a node/P1          fe80::2  non-member, send-only full
  not in the fabric  fe80::3  send-only non-member, by proxy
";

    #[test]
    fn groups_are_shown_with_their_members() {
        let members = vec![member(1, "host-1", 1), member(2, "a node", 10), member(3, "", 4)];
        assert_eq!(text(&[group(members)]), TEXT);
        assert_eq!(text(&[]), "no multicast groups\n");
    }

    #[test]
    fn a_summary_has_a_line_for_each_group_and_sums() {
        let groups =
            [group(vec![member(1, "a", 1)]), group(vec![member(1, "a", 1), member(2, "b", 1)])];
        let expected = "\
MLID    P_KEY   MEMBERS  MGID
0xc001  0xffff        1  ff12:401b:ffff::1  (predefined)
0xc001  0xffff        2  ff12:401b:ffff::1  (predefined)
groups: 2, MLIDs: 1, members: 3
";
        assert_eq!(summary(&groups), expected);
        assert_eq!(summary(&[]), "no multicast groups\n");
    }

    #[test]
    fn a_group_that_came_in_parts_is_one() {
        let mut groups = Vec::new();
        join(&mut groups, vec![group(vec![member(1, "a", 1)])]);
        join(&mut groups, vec![group(vec![member(2, "b", 1)])]);
        assert_eq!((groups.len(), groups[0].members.len()), (1, 2));
    }

    #[test]
    fn json_has_all_fields_under_stable_keys() {
        let json = GroupJson::of(&group(vec![member(3, "", 9)])).map(serde_json::to_value);
        let json = json.unwrap().unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys.join(" "),
            "flow_label hop_limit member_count members mgid mlid mtu packet_life pkey predefined \
             qkey rate_mbps scope sl tclass"
        );
        let member = &json["members"][0];
        assert_eq!(member["join_states"], serde_json::json!(["full", "send-only full"]));
        assert_eq!(member["gid"], "fe80::3");
        assert!(member["node"].is_null() && member["port"].is_null());
    }
}
