//! `ibsmctl partition`: lists partitions, and makes and changes them beside `partitions.conf`.

use std::fmt::Write as _;

use ib_mad::types::{Guid, Mtu, Rate};
use sa_proto::proto::partition::{
    Attributes, Deletion, ListRequest, ListedMember, Member, MemberState, Members, Order,
    Partition, Presence, Removal, Set, order,
};
use serde::Serialize;
use sm_config::parse_number;
use sm_core::registry::ORDER_GUIDS_MAX;

use super::{CtlError, Sm, to_json};
use crate::partitions::list;

/// GUIDs in one order; more are ordered in turn, except to replace members.
const GUIDS_MAX: usize = ORDER_GUIDS_MAX;

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List all partitions: of operators' files and of programs.
    List {
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Show a partition with the members that programs added, and whether they are in force.
    Show {
        /// P_Key, such as 0x5.
        pkey: String,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Make a partition.
    Create {
        /// P_Key, 0x1 to 0x7ffe.
        pkey: String,
        #[command(flatten)]
        attributes: AttributeOptions,
        /// Change the attributes of a partition that a program made before, instead of failing.
        #[arg(long)]
        change: bool,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Add members, or change their membership. Makes the partition if it is absent.
    Add {
        /// P_Key.
        pkey: String,
        /// GUIDs of ports, or alias GUIDs. They need not be on the fabric.
        #[arg(required = true)]
        guids: Vec<String>,
        /// Membership: full, limited or both.
        #[arg(short, long, default_value = "full")]
        membership: Membership,
        /// Put the P_Key at index 0 of the ports' tables.
        #[arg(long)]
        index0: bool,
        #[command(flatten)]
        attributes: AttributeOptions,
        /// Remove all other members.
        #[arg(long)]
        replace: bool,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Remove members. GUIDs that are not members change nothing.
    Remove {
        /// P_Key.
        pkey: String,
        /// GUIDs of ports, or alias GUIDs.
        #[arg(required = true)]
        guids: Vec<String>,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Delete a partition that a program made, with its members.
    Delete {
        /// P_Key.
        pkey: String,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Print the partitions that programs made, with their members, as lines for partitions.conf.
    Dump {
        /// Print JSON instead.
        #[arg(short, long)]
        json: bool,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Membership {
    Full,
    Limited,
    Both,
}

#[derive(Debug, clap::Args)]
struct AttributeOptions {
    /// Name, for people.
    #[arg(long)]
    name: Option<String>,
    /// Give it a broadcast group for IP over InfiniBand (true or false).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    ipoib: Option<bool>,
    /// MTU of that group, as in partitions.conf: 1 to 5 for 256 to 4096 bytes.
    #[arg(long)]
    mtu: Option<u32>,
    /// Rate of that group, as in partitions.conf: 3 for 10 Gb/s and so on.
    #[arg(long)]
    rate: Option<u32>,
    /// SL, used only with QoS.
    #[arg(long)]
    sl: Option<u32>,
}

impl AttributeOptions {
    fn message(&self) -> Attributes {
        let Self { name, ipoib, mtu, rate, sl } = self;
        Attributes { name: name.clone(), ipoib: *ipoib, mtu: *mtu, rate: *rate, sl: *sl }
    }
}

/// Carries out the command.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    match &options.command {
        Command::List { json } => {
            let partitions = listed(sm, 0, true).await?;
            Ok(if *json { json_of(&partitions) } else { rows(&partitions) })
        }
        Command::Show { pkey, json } => {
            let partitions = listed(sm, number(pkey)?, false).await?;
            if partitions.is_empty() {
                return Err(CtlError::NoPartition(pkey.clone()));
            }
            Ok(if *json { json_of(&partitions) } else { rows(&partitions) + &members(&partitions) })
        }
        Command::Dump { json } => {
            let mut partitions = listed(sm, 0, false).await?;
            partitions.retain(|partition| partition.by_program);
            Ok(if *json { json_of(&partitions) } else { dump(&partitions) })
        }
        Command::Create { pkey, attributes, change, json } => {
            let presence = if *change { Presence::Either } else { Presence::Absent };
            let attributes = Some(attributes.message());
            let set = Set { presence: presence.into(), attributes };
            let pkey = number(pkey)?;
            Ok(stored(pkey, give(sm, pkey, order::Action::Set(set)).await?, *json))
        }
        Command::Add { pkey, guids, membership, index0, attributes, replace, json } => {
            let (full, limited) = match membership {
                Membership::Full => (true, false),
                Membership::Limited => (false, true),
                Membership::Both => (true, true),
            };
            let member = |guid| Member { guid, full, limited, first: *index0 };
            let all: Vec<Member> = read_guids(guids)?.into_iter().map(member).collect();
            let (pkey, mut sequence) = (number(pkey)?, 0);
            for action in additions(&all, &attributes.message(), *replace)? {
                sequence = give(sm, pkey, action).await?;
            }
            Ok(stored(pkey, sequence, *json))
        }
        Command::Remove { pkey, guids, json } => {
            let (pkey, mut sequence) = (number(pkey)?, 0);
            for part in read_guids(guids)?.chunks(GUIDS_MAX) {
                let removal = Removal { guids: part.to_vec(), deletes_empty: false };
                sequence = give(sm, pkey, order::Action::Remove(removal)).await?;
            }
            Ok(stored(pkey, sequence, *json))
        }
        Command::Delete { pkey, json } => {
            let pkey = number(pkey)?;
            Ok(stored(pkey, give(sm, pkey, order::Action::Delete(Deletion {})).await?, *json))
        }
    }
}

/// The orders that add members, or replace all by them. The latter is one order or none: between
/// two, members that are to stay would be missing.
fn additions(
    members: &[Member],
    attributes: &Attributes,
    replace: bool,
) -> Result<Vec<order::Action>, CtlError> {
    if replace && members.len() > GUIDS_MAX {
        return Err(CtlError::TooManyMembers { max: GUIDS_MAX, got: members.len() });
    }
    let order = |part: &[Member]| {
        let members = Members { members: part.to_vec(), attributes: Some(attributes.clone()) };
        match replace {
            true => order::Action::Replace(members),
            false => order::Action::Add(members),
        }
    };
    Ok(members.chunks(GUIDS_MAX).map(order).collect())
}

async fn listed(sm: &Sm, pkey: u32, brief: bool) -> Result<Vec<Partition>, CtlError> {
    let request = ListRequest { pkey, brief };
    let answer = sm.partitions().await?.list(request).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut partitions = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| sm.refused(&status))? {
        list::join(&mut partitions, message);
    }
    Ok(partitions)
}

/// Gives an order; returns the registry's sequence number with it.
async fn give(sm: &Sm, pkey: u32, action: order::Action) -> Result<u64, CtlError> {
    let order = Order { pkey, action: Some(action) };
    let answer = sm.partitions().await?.give(order).await;
    Ok(answer.map_err(|status| sm.refused(&status))?.into_inner().registry_sequence)
}

/// What is printed once the orders about a partition are stored.
fn stored(pkey: u32, sequence: u64, json: bool) -> String {
    match json {
        true => to_json(&serde_json::json!({
            "pkey": format!("{pkey:#06x}"),
            "registry_sequence": sequence,
        })),
        false => format!(
            "stored (registry {sequence}); in force within a second where the subnet is up\n"
        ),
    }
}

/// Reads a P_Key.
fn number(text: &str) -> Result<u32, CtlError> {
    let number = parse_number(text).and_then(|number| u16::try_from(number).ok());
    let pkey = number.map(|number| number & 0x7fff).filter(|pkey| *pkey != 0);
    pkey.map(u32::from).ok_or_else(|| CtlError::Argument {
        what: "PKEY",
        expected: "a P_Key, 0x1 to 0x7fff",
        got: text.to_owned(),
    })
}

/// Reads GUIDs: with `0x`, or 16 hexadecimal digits with or without colons.
fn read_guids(texts: &[String]) -> Result<Vec<u64>, CtlError> {
    let read = |text: &String| {
        let digits: String = text.chars().filter(|c| *c != ':').collect();
        let is_bare = digits.len() == 16 && digits.chars().all(|c| c.is_ascii_hexdigit());
        let guid = match is_bare {
            true => u64::from_str_radix(&digits, 16).ok(),
            false => parse_number(text).filter(|_| text.starts_with("0x")),
        };
        guid.ok_or_else(|| CtlError::Argument {
            what: "GUID",
            expected: "a GUID such as 0x0002c90300a1b2c3 or 00:02:c9:03:00:a1:b2:c3",
            got: text.clone(),
        })
    };
    texts.iter().map(read).collect()
}

fn origin(partition: &Partition) -> &'static str {
    if partition.by_program { "program" } else { "files" }
}

/// Attributes of a partition that a program made, as `partitions.conf` has them.
fn flags(partition: &Partition) -> String {
    let mut flags = String::new();
    if partition.ipoib {
        flags += ", ipoib";
    }
    for (name, value) in [("mtu", partition.mtu), ("rate", partition.rate), ("sl", partition.sl)] {
        if value != 0 {
            let _ = write!(flags, ", {name}={value}");
        }
    }
    flags
}

fn rows(partitions: &[Partition]) -> String {
    if partitions.is_empty() {
        return "no partitions\n".to_owned();
    }
    let mut text = String::new();
    for partition in partitions {
        let _ = writeln!(
            text,
            "{:#06x}  {}  {} ports; by {}{}",
            partition.pkey,
            partition.name,
            partition.ports,
            origin(partition),
            flags(partition),
        );
    }
    text
}

fn membership(member: &Member) -> &'static str {
    match (member.full, member.limited) {
        (true, true) => "both",
        (true, false) => "full",
        _ => "limited",
    }
}

fn state(listed: &ListedMember) -> &'static str {
    match listed.state() {
        MemberState::InForce => "in force",
        MemberState::Absent => "not on the fabric",
        MemberState::NotInForce => "not in force",
    }
}

fn members(partitions: &[Partition]) -> String {
    let mut text = String::new();
    for listed in partitions.iter().flat_map(|partition| &partition.members) {
        let Some(member) = &listed.member else { continue };
        let place = match &listed.node[..] {
            "" => String::new(),
            node => format!(", {}/P{}", node.escape_default(), listed.number),
        };
        let _ = writeln!(
            text,
            "    {}  {}{}, {}{place}",
            Guid(member.guid),
            membership(member),
            if member.first { ", index 0" } else { "" },
            state(listed),
        );
    }
    text
}

/// Lines for `partitions.conf`.
fn dump(partitions: &[Partition]) -> String {
    let mut text = String::new();
    for partition in partitions.iter().filter(|partition| partition.by_program) {
        let _ = write!(text, "{}={:#06x}{}:", partition.name, partition.pkey, flags(partition));
        let mut members =
            partition.members.iter().filter_map(|listed| listed.member.as_ref()).peekable();
        // One definition has one `indx0`.
        while let Some(member) = members.next() {
            let (guid, membership) = (Guid(member.guid), membership(member));
            let _ = write!(text, " {guid}={membership}");
            if members.peek().is_some() {
                text.push(',');
            }
        }
        text += " ;\n";
        let first: Vec<String> = (partition.members.iter())
            .filter_map(|listed| listed.member.as_ref())
            .filter(|member| member.first)
            .map(|member| format!("{}={}", Guid(member.guid), membership(member)))
            .collect();
        if !first.is_empty() {
            let name = &partition.name;
            let _ = writeln!(text, "{name}={:#06x}, indx0: {} ;", partition.pkey, first.join(", "));
        }
    }
    text
}

fn json_of(partitions: &[Partition]) -> String {
    to_json(&partitions.iter().map(PartitionJson::of).collect::<Vec<_>>())
}

/// A partition as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct PartitionJson<'a> {
    pkey: String,
    name: &'a str,
    by_program: bool,
    ports: u32,
    ipoib: bool,
    mtu: Option<u16>,
    rate: Option<String>,
    sl: u32,
    members: Vec<MemberJson<'a>>,
}

/// A member as JSON.
#[derive(Serialize)]
struct MemberJson<'a> {
    guid: String,
    membership: &'static str,
    index0: bool,
    state: &'static str,
    port_guid: Option<String>,
    node: &'a str,
    port: u32,
}

impl<'a> PartitionJson<'a> {
    fn of(partition: &'a Partition) -> Self {
        let code = |code: u32| u8::try_from(code).ok();
        let member = |listed: &'a ListedMember| {
            let member = listed.member?;
            Some(MemberJson {
                guid: Guid(member.guid).to_string(),
                membership: membership(&member),
                index0: member.first,
                state: state(listed),
                port_guid: (listed.port_guid != 0).then(|| Guid(listed.port_guid).to_string()),
                node: &listed.node,
                port: listed.number,
            })
        };
        Self {
            pkey: format!("{:#06x}", partition.pkey),
            name: &partition.name,
            by_program: partition.by_program,
            ports: partition.ports,
            ipoib: partition.ipoib,
            mtu: code(partition.mtu).and_then(Mtu::from_code).map(Mtu::bytes),
            rate: code(partition.rate).and_then(Rate::from_code).map(|rate| rate.to_string()),
            sl: partition.sl,
            members: partition.members.iter().filter_map(member).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sm_config::{Remarks, partitions};

    use super::*;

    fn listed(guid: u64, full: bool, limited: bool, state: MemberState) -> ListedMember {
        let first = guid == 1;
        let member = Some(Member { guid, full, limited, first });
        let (node, number) = if state == MemberState::Absent { ("", 0) } else { ("host1", 1) };
        let port_guid = if number == 0 { 0 } else { guid };
        ListedMember { member, state: state.into(), port_guid, node: node.into(), number }
    }

    fn partition() -> Partition {
        Partition {
            pkey: 5,
            name: "blue".into(),
            ipoib: true,
            mtu: 5,
            by_program: true,
            ports: 2,
            members: vec![
                listed(1, true, false, MemberState::InForce),
                listed(2, false, true, MemberState::NotInForce),
                listed(3, true, true, MemberState::Absent),
            ],
            ..Partition::default()
        }
    }

    #[test]
    fn a_partition_is_shown_with_what_became_of_its_members() {
        let file =
            Partition { pkey: 0x7fff, name: "Default".into(), ports: 9, ..Default::default() };
        let text = rows(&[partition(), file]) + &members(&[partition()]);
        assert_eq!(
            text,
            "0x0005  blue  2 ports; by program, ipoib, mtu=5\n\
             0x7fff  Default  9 ports; by files\n    \
             0x0000000000000001  full, index 0, in force, host1/P1\n    \
             0x0000000000000002  limited, not in force, host1/P1\n    \
             0x0000000000000003  both, not on the fabric\n"
        );
        assert_eq!(rows(&[]), "no partitions\n");
    }

    #[test]
    fn a_dump_is_a_partition_file_with_the_same_effect() {
        let text = dump(&[partition(), Partition { pkey: 6, name: "p".into(), ..partition() }]);
        let mut remarks = Remarks::default();
        let file = partitions::parse(Path::new("p"), &text, &mut remarks).unwrap();
        let read = file.partition(ib_mad::types::PKey(5)).unwrap();
        assert_eq!(read.name, "blue");
        let rules: Vec<_> = file.rules().iter().filter(|rule| rule.pkey.0 == 5).collect();
        let guids: Vec<_> = rules.iter().map(|rule| rule.ports).collect();
        let port = |guid| partitions::Ports::Guid(Guid(guid));
        assert_eq!(guids, [port(1), port(2), port(3), port(1)]);
        let memberships: Vec<_> = rules.iter().map(|rule| rule.membership).collect();
        use partitions::Membership::{Both, Full, Limited};
        assert_eq!(memberships, [Full, Limited, Both, Full]);
        assert!(rules[3].first && !rules[0].first);
        let group = file.groups().iter().find(|group| group.pkey.0 == 5).unwrap();
        assert_eq!(group.mtu, Mtu::B4096);
    }

    /// Regression: `--replace` with many members was several orders, of which the first removed
    /// those that the others were to keep.
    #[test]
    fn members_are_replaced_by_one_order_or_not_at_all() {
        let members = |count: usize| -> Vec<Member> {
            let member = |guid| Member { guid, full: true, limited: false, first: false };
            (1..=count as u64).map(member).collect()
        };
        let orders =
            |count, replace| additions(&members(count), &Attributes::default(), replace).ok();
        assert!(matches!(orders(GUIDS_MAX, true).unwrap()[..], [order::Action::Replace(_)]));
        assert_eq!(orders(GUIDS_MAX + 1, true), None);
        assert_eq!(orders(GUIDS_MAX + 1, false).unwrap().len(), 2);
        let failure = additions(&members(GUIDS_MAX + 1), &Attributes::default(), true).unwrap_err();
        assert!(failure.to_string().contains("16384"), "{failure}");
    }

    #[test]
    fn guids_are_read_in_the_forms_that_tools_print() {
        let read = |text: &str| read_guids(&[text.to_owned()]).map(|guids| guids[0]).ok();
        for text in ["0x2c9000000000001", "0002c90000000001", "00:02:c9:00:00:00:00:01"] {
            let expected =
                if text == "0x2c9000000000001" { 0x2c9_0000_0000_0001 } else { 0x2_c900_0000_0001 };
            assert_eq!(read(text), Some(expected), "{text}");
        }
        for text in ["17", "2c9", "0xg", "", "0x1ffffffffffffffff"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(
            [number("0x8005").ok(), number("5").ok(), number("0x8000").ok()],
            [Some(5), Some(5), None]
        );
    }
}
