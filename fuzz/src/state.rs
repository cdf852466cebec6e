//! Target for a master's state as a standby receives and keeps it: any messages are a state or are
//! refused, what was received can be sent on, and any text of a state file can be taken over, and
//! reads the same when it is written again.

use std::collections::BTreeMap;

use ib_mad::types::Guid;
use sa_proto::prost::Message;
use sa_proto::proto::snapshot as proto;
use sa_proto::snapshot::Session;
use sa_proto::state::{Decoder, Document, Documents, Encoder, Kind, StateVersion};
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{MKeyTable, Neighbours};

use crate::policy;

/// Names of the state files, in the order of their kinds.
const STATE_FILES: [&str; 3] = ["guid2lid", "guid2mkey", "neighbors"];
/// Keys of operators' files that the target `policy` reads, with its kinds.
const OPERATORS_FILES: [(&str, u8); 5] = [
    ("partition_config_file", 0),
    ("qos_policy_file", 1),
    ("vfabric_config_file", 2),
    ("prefix_routes_file", 3),
    ("settings", 5),
];
/// The kind of an input that is a sequence of messages.
const MESSAGES: u8 = 3;

/// The target: byte 0 selects a state file, the rest is its text; or the rest is messages, each
/// after its length.
pub fn run(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    match kind % 4 {
        MESSAGES => receive(rest),
        kind => take_over(STATE_FILES[usize::from(kind)], &String::from_utf8_lossy(rest)),
    }
}

/// Hands messages to a decoder, which may be in the middle of a state, or hold one.
fn receive(mut messages: &[u8]) {
    let mut decoder = Decoder::default();
    while !messages.is_empty() {
        let Ok(message) = proto::State::decode_length_delimited(&mut messages) else { return };
        match decoder.handle(message) {
            Ok(None) => {}
            Ok(Some((version, documents))) => keep(version, &documents),
            // The connection is closed.
            Err(_) => return,
        }
    }
}

/// A standby sends on what it has received, once it is master, and reads it.
fn keep(version: StateVersion, documents: &Documents) {
    let mut decoder = Decoder::default();
    let mut last = None;
    for message in Encoder::new(version, documents, &BTreeMap::new(), true) {
        assert!(last.is_none(), "the end is last");
        last = decoder.handle(message).expect("what was received can be sent on");
    }
    assert_eq!(last, Some((version, documents.clone())));
    for (name, document) in documents {
        assert_eq!(*name, document.name);
        let text = document.text.as_deref().unwrap_or_default();
        match document.kind {
            Kind::StateFile => take_over(name, &String::from_utf8_lossy(text)),
            Kind::OperatorsFile => {
                let known = OPERATORS_FILES.iter().find(|(key, _)| key == name);
                known.iter().for_each(|(_, kind)| policy::run(&[&[*kind], text].concat()));
            }
        }
    }
}

/// A standby that has other entries takes over those of the master.
fn take_over(name: &str, text: &str) {
    match name {
        "guid2lid" => {
            let (master, _) = LidTable::parse(text);
            let (again, rejected) = LidTable::parse(&master.render());
            assert!(rejected.is_empty() && again == master, "{}", master.render());
            let (mut own, _) = LidTable::parse("0x1 0x1 0x1\n0x2 0x4 0x7\n0x3 0xBFFF 0xBFFF");
            own.follow(&master);
            assert!(master.guids().all(|guid| own.get(guid) == master.get(guid)));
            assert!(!own.follow(&master));
            let (again, rejected) = LidTable::parse(&own.render());
            assert!(rejected.is_empty() && again == own, "a LID twice: {}", own.render());
        }
        "guid2mkey" => {
            let (master, _) = MKeyTable::parse(text);
            assert_eq!(MKeyTable::parse(&master.render()), (master.clone(), 0));
            let (mut own, _) = MKeyTable::parse("0x1 0x1\n0x2 0x0");
            own.follow(&master);
            assert!(!own.follow(&master));
        }
        "neighbors" => {
            let (master, _) = Neighbours::parse(text);
            assert_eq!(Neighbours::parse(&master.render()), (master.clone(), 0));
            let links = "0x1:1 0x2:1\n0x2:1 0x1:1\n0x3:1 0x3:1\n0x3:2 0x3:3\n0x3:3 0x3:2";
            let (mut own, left_out) = Neighbours::parse(links);
            assert_eq!(left_out, 0);
            own.follow(&master);
            assert!(!own.follow(&master));
            // Both ends of each link are known.
            assert_eq!(Neighbours::parse(&own.render()), (own.clone(), 0));
        }
        _ => {}
    }
}

/// Text of each state file, a whole state, and a change of it.
pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "0x0002c90300000001 0x0001 0x0001\n\n0x2 0x4 0x7 # two bits\n0x3 8 8\n",
        "0x0002c90300000001 0x00000000deadbeef\n\n0x2 0x0\n",
        "0x1:1 0x2:3\n\n0x2:3 0x1:1\n0x3:1 0x4:1\n0x4:1 0x3:1\n",
    ];
    let operators = [
        ("partition_config_file", "Default=0x7fff,ipoib:ALL=full;\n"),
        ("prefix_routes_file", "* 0x2\n"),
        ("settings", "lmc 1\nqos TRUE\n"),
    ];
    let files = STATE_FILES.iter().zip(texts).map(|(name, text)| (Kind::StateFile, *name, text));
    let files = files.chain(operators.map(|(name, text)| (Kind::OperatorsFile, name, text)));
    let documents = files.map(|(kind, name, text)| Document::new(kind, name, text));
    let documents = documents.chain([Document::absent("root_guid_file")]);
    let mut all: Documents =
        documents.map(|document| (document.name.clone(), document.into())).collect();
    let version = |number| StateVersion { session: Session { epoch: 5, sm_guid: Guid(1) }, number };
    let mut messages: Vec<_> = Encoder::new(version(1), &all, &BTreeMap::new(), true).collect();
    let whole = delimited(&messages);
    let held = all.values().map(|document| (document.name.clone(), document.hash)).collect();
    let changed = Document::new(Kind::StateFile, STATE_FILES[2], "0x1:1 0x1:1\n0x3:1 0x2:1\n");
    all.insert(changed.name.clone(), changed.into());
    all.remove("settings");
    messages.extend(Encoder::new(version(2), &all, &held, true));
    let texts = texts.iter().zip(0..).map(|(text, kind)| [&[kind], text.as_bytes()].concat());
    texts.chain([whole, delimited(&messages)]).collect()
}

fn delimited(messages: &[proto::State]) -> Vec<u8> {
    let mut input = vec![MESSAGES];
    messages.iter().for_each(|message| input.extend(message.encode_length_delimited_to_vec()));
    input
}
