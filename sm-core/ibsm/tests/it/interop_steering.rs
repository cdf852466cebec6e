//! Compares how ibsm and stock `opensm` read routing files, including odd ones, on the same fabric:
//! ibsm's routes are as long as OpenSM's, or shorter. Skipped with a message where the programs are
//! missing. `dnup` is left out: OpenSM's takes shorter routes that can deadlock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use fabric_sim::generate::{Common, RandomGraph, Shape, generate};
use ib_mad::netlist::{Net, NodeKind};
use ib_mad::types::Guid;

use crate::ibsim::{Bed, await_end, find};
use crate::skip::skip;

/// An engine, the key of a file, and its text, in which `S1` and so on represent switches' GUIDs.
type Case = (&'static str, &'static str, &'static str);

const CASES: &[Case] = &[
    ("minhop", "hop_weights_file", "# none\n"),
    ("minhop", "hop_weights_file", "S1 1 4\nS1 2 7\nS4 3,0x3 # dear\nS8 010 2 9\n"),
    // Port 0 and weights of 0 or 256 are invalid; unknown GUIDs do no harm.
    ("minhop", "hop_weights_file", "S1 0 4\nS2 1 0\nS3 1 256\nS5 1\nS6\n0x77 1 5\nS7 1 3\n"),
    // Of two weights of a port the last applies.
    ("minhop", "hop_weights_file", "# weights\n\n\tS1\t1\t9\nS1 1 2\nS1#none\n"),
    ("updn", "root_guid_file", "S5\n"),
    ("updn", "root_guid_file", "  S1 a corner\n# the other\nS9#\nS9\n0x77\n"),
    ("updn", "root_guid_file", "0x77\nS3\r\n"),
    // Ids decide which of two switches of equal rank is up.
    ("updn", "ids_guid_file", "S1 9\nS9 0x1\nS5 010 five\nS2\n"),
];

/// Smallest number of these cases whose route lengths must differ.
const DIFFERENT: usize = 6;

/// Hops by switch and the GUID of the destination port.
type Lengths = BTreeMap<(Guid, Guid), u32>;
/// The egress port by switch and the GUID of the destination port.
type Lfts = BTreeMap<(Guid, Guid), u8>;

#[test]
fn routes_are_as_long_as_those_of_opensm() {
    if find("opensm").is_none() {
        return skip("opensm is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let graph = RandomGraph { switches: 9, degree: 3, hosts: 18, radix: Some(8) };
    let net = generate(&Shape::Random(graph), &Common::default()).unwrap();
    let of_kind = |kind| net.nodes().iter().filter(move |node| node.kind == kind);
    let switches: Vec<Guid> = of_kind(NodeKind::Switch).map(|node| node.guid).collect();
    let host = of_kind(NodeKind::Ca).next().unwrap().description.clone();
    let path = dir.path().join("net");
    std::fs::write(&path, net.to_string()).unwrap();
    let Some(bed) = Bed::on_ibfabric(&path) else { return };

    let mut counted = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let (engine, key, text) = case;
        let mut text = (*text).to_owned();
        for (number, guid) in (1..).zip(&switches) {
            text = text.replace(&format!("S{number}"), &format!("{:#x}", guid.0));
        }
        let at = bed.dir.path().join(number.to_string());
        std::fs::create_dir(&at).unwrap();
        let file = at.join("file");
        let config = format!("routing_engine {engine}\n{key} {}\n", file.display());
        std::fs::write(file, &text).unwrap();
        std::fs::write(at.join("opensm.conf"), config).unwrap();
        let weights = if *key == "hop_weights_file" { weights(&text) } else { BTreeMap::new() };
        let length = |lfts: &Lfts| lengths(&net, lfts, &weights);
        let theirs = length(&lfts(&at.join("theirs"), opensm(&bed, &at, &host)));
        let ours = length(&lfts(&at.join("ours"), ibsm(&bed, &at, &host)));
        assert_eq!(ours.len(), switches.len() * (3 * switches.len() - 1));
        assert!(theirs.len() > ours.len() / 2, "{case:?}: {} routes", theirs.len());
        for (ends, length) in &ours {
            // Without `connect_roots` OpenSM leaves some routes from roots out, and some of its
            // routes are longer than up/down routing requires.
            let Some(theirs) = theirs.get(ends) else {
                assert_eq!(*key, "root_guid_file", "{case:?}, only we have a way: {ends:x?}");
                continue;
            };
            let is_fine = if *engine == "minhop" { length == theirs } else { length <= theirs };
            assert!(is_fine, "{case:?}, {ends:x?}: {length} hops, {theirs} of OpenSM's");
        }
        counted.push(ours);
    }
    // The files must have an effect on routes.
    let seen: BTreeSet<&Lengths> = counted.iter().collect();
    assert!(seen.len() >= DIFFERENT, "{} of {} differ", seen.len(), counted.len());
}

/// Weights of ports in the text, by C's rules for numbers.
fn weights(text: &str) -> BTreeMap<(Guid, u8), u32> {
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if word.starts_with('0') => u64::from_str_radix(word, 8).ok(),
        None => word.parse().ok(),
    };
    let line = |line: &str| {
        let mut words = line.split([' ', '\t', ',']).filter(|word| !word.is_empty()).map(number);
        let (guid, port, weight) = (words.next()??, words.next()??, words.next()??);
        let is_one = (1..=8).contains(&port) && (1..256).contains(&weight);
        is_one.then_some(((Guid(guid), port as u8), weight as u32))
    };
    text.lines().filter_map(line).collect()
}

/// Lengths of routes between all switches, and from switches to hosts. A port without a weight
/// counts 1.
fn lengths(net: &Net, lfts: &Lfts, weights: &BTreeMap<(Guid, u8), u32>) -> Lengths {
    let number = |guid| net.nodes().iter().position(|node| node.guid == guid);
    let length = |(&(from, to), _): (&(Guid, Guid), &u8)| {
        let (mut at, mut length) = (number(from).unwrap(), 0);
        loop {
            let node = &net.nodes()[at];
            if node.guid == to || node.kind == NodeKind::Ca {
                return (length > 0).then_some(((from, to), length));
            }
            let port = lfts[&(node.guid, to)];
            length += weights.get(&(node.guid, port)).copied().unwrap_or(1);
            assert!(length < 256 * 32, "a route from {from} to {to} does not end");
            at = node.port(port).and_then(|port| port.peer).unwrap().node as usize;
        }
    };
    lfts.iter().filter_map(length).collect()
}

/// The forwarding tables that a program wrote to a directory.
fn lfts(dir: &Path, mut command: Command) -> Lfts {
    std::fs::create_dir(dir).unwrap();
    let mut child = command.spawn().unwrap();
    await_end(&mut child, &format!("{command:?}"));
    let guid = |text: &str| {
        let digits = text.strip_prefix("0x")?.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        u64::from_str_radix(digits, 16).ok().map(Guid)
    };
    let text = std::fs::read_to_string(dir.join("opensm-lfts.dump")).unwrap();
    let (mut lfts, mut switch) = (Lfts::new(), None);
    for line in text.lines() {
        if let Some((_, after)) = line.split_once(" guid ") {
            switch = guid(after);
        } else if let Some((head, tail)) = line.split_once(" # ")
            && let Some((_, port)) = head.split_once(' ')
            && let Some((_, to)) = tail.split_once("portguid ")
        {
            lfts.insert((switch.unwrap(), guid(to).unwrap()), port.trim().parse().unwrap());
        }
    }
    lfts
}

fn opensm(bed: &Bed, at: &Path, host: &str) -> Command {
    let mut command = bed.command("ibsim-run");
    command.current_dir(at).env("SIM_HOST", host).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("OSM_CACHE_DIR", at).env("OSM_TMP_DIR", at.join("theirs"));
    command.arg(find("opensm").unwrap()).args(["-o", "-D", "0x43", "-f"]).arg(at.join("log"));
    command.arg("-F").arg(at.join("opensm.conf")).arg("--pidfile").arg(at.join("pid"));
    command
}

fn ibsm(bed: &Bed, at: &Path, host: &str) -> Command {
    let mut command = bed.ibsm(host);
    command.args(["-o", "-D", "0x43", "-f"]).arg(at.join("log-ours")).stdout(Stdio::null());
    command.arg("-F").arg(at.join("opensm.conf")).arg("--dump_files_dir").arg(at.join("ours"));
    command
}
