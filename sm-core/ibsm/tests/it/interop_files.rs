//! Compares how ibsm and stock `opensm` read odd files other than `opensm.conf`, on a simulated
//! fabric. Skipped with a message where the programs are missing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::ibsim::{Bed, await_end, find};
use crate::skip::skip;
use ib_mad::types::{Guid, PortNum};
use sm_config::{Remarks, partitions, prefix_routes, qos_policy};
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{MKeyTable, Neighbours};
use sm_routing::torus;

/// How both treat a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// Both accept it.
    Taken,
    /// Both reject it.
    Refused,
    /// Only ibsm accepts it. The reason is in decisions 10 and 11, and beside the file here.
    TakenByUs,
    /// Only OpenSM accepts it.
    RefusedByUs,
}
use Made::{Refused, RefusedByUs, Taken, TakenByUs};

const PARTITIONS: &[(&str, Made)] = &[
    ("Default=0x7fff, ipoib : ALL=full ;\n", Taken),
    ("\t Default = 0x7FFF ,\tipoib\t: ALL = full\t;", Taken),
    // In OpenSM, a carriage return begins a definition.
    ("Default=0x7fff, ipoib : ALL=full ;\r\n", TakenByUs),
    ("Default=0x7fff, ipoib : ALL=full ;\n; ", TakenByUs),
    // OpenSM reports an error; the resulting configuration is the same.
    ("# nothing but this\n\n", TakenByUs),
    ("A=0x10 : ALL=full ;\nA=0x11 : ALL ; B=0x10 : SELF ;\n", Taken),
    ("A=0x10 : ALL=full ; trailing\n", Refused),
    ("A=0x10 : 0xZ ;\n", Refused),
    ("A=0x10 : 0xABCDEF, 0XabCdef=limited ;\n", Taken),
    ("A=0x10 : ALL=full\nB=0x11 : ALL=full ;\n", Refused),
    ("A=0x1g : ALL=full ;\n", Refused),
    ("A=0x10, bogus=3, ipoib : ALL=fully, SELF ;\n", Taken),
    ("A=0x10, ipoib : ALL,, SELF, ;\n", Taken),
    ("A=0x10 : mgid=fe80::1 ;\n", Taken),
    ("no definition\n", Refused),
];

const QOS: &[(&str, Made)] = &[
    ("qos-ulps\n  default : 0\nend-qos-ulps\n", Taken),
    // In OpenSM, a carriage return is not a blank.
    ("qos-ulps\r\n  default : 0\r\nend-qos-ulps\r\n", TakenByUs),
    ("# c\n\n\tqos-ulps\t\n\tdefault\t:\t1 # behind\n\tend-qos-ulps", Taken),
    ("qos-ulps\n  default : 0\n", Refused),
    ("qos-ulps\n  default : 0\nend-qos-ulps\nbogus\n", Refused),
    ("qos-ulps\n  default : 16\nend-qos-ulps\n", Refused),
    // OpenSM requires `default`; in ibsm, requests that match no rule are not restricted.
    ("qos-ulps\n  sdp : 1\nend-qos-ulps\n", TakenByUs),
    ("QOS-ULPS\n  DEFAULT : 0\nEND-QOS-ULPS\n", Refused),
    ("qos-ulps\n default : 0\n sdp, port-num 10000-0X4E20: 1\nend-qos-ulps\n", Taken),
    ("qos-ulps\n default : 0\n default : 1\nend-qos-ulps\n", Taken),
];

const LINKS: &str = "xp_link 0x1 0x2\nyp_link 0x1 0x3\nzp_link 0x1 0x4\n";
const TORUS: &[(&str, Made)] = &[
    ("torus 3 3 3\n", Taken),
    ("torus 3 3 3\r\n\r\n# c\r\n", Taken),
    ("\t torus\t3  3t 3m # behind", Taken),
    ("torus 3 3 3 trailing 7\nmax_changes few\nportgroup_max_ports 0x10\n", Taken),
    ("torus 3x 0x3 3tm\n", Taken),
    ("torus 3 3 3\nTORUS 3 3 3\n", Refused),
    ("torus 3 3 3\ntorus 3 3 3\n", Refused),
    ("torus 3 3\n", Refused),
    ("torus 3 3 3\nxp_link 0x1\n", Refused),
    ("torus 3 3 3\nxp_link 0X1 0X2\nxp_link 1 2\n", Taken),
    ("torus 3 3 3\nx_dateline 3\n", Refused),
    ("torus 3 3 3\nx_dateline -0x2\nport_order 7 7 x 256\n", Taken),
    ("x_dateline 0\ntorus 3 3 3\n", Refused),
    ("torus 3 3 3\nbogus 3\n", Refused),
    // Links may precede the shape.
    ("xp_link 0x1 0x2\nmesh 3 3 3\n", Taken),
    // OpenSM detects only later that this is not a torus.
    ("torus 3 0 3\n", RefusedByUs),
];

/// Lines of prefix routes, and the numbers of those that both ignore.
const PREFIXES: &[(&str, &[usize])] = &[
    ("0xfec0000000000001 0x2c9\nFEC0000000000002 * # any\n\n* 2C9# all\n", &[]),
    ("fec0::1 *\n* any\n0x1\n0x1 0x2 0x3\n", &[1, 2, 3]),
    ("  # c\n\t0x1\t0X2\n*x 0x2\n0x1z 0x2\n0x1 2z", &[3, 4, 5]),
];

/// Log messages of OpenSM about rejected files.
const GIVEN_UP: [&str; 3] = ["Partition configuration in error", "QoS policy file (", "ERR 4E13"];

#[test]
fn opensm_accepts_and_rejects_the_same_files() {
    let Some((bed, _)) = bed(4) else { return };
    let rounds = PARTITIONS.len().max(QOS.len()).max(TORUS.len());
    let dir = bed.dir.path().join("opensm");
    std::fs::create_dir_all(&dir).unwrap();
    let mut wrong = Vec::new();
    for round in 0..rounds {
        let odd = [PARTITIONS, QOS, TORUS].map(|all| all.get(round).unwrap_or(&all[0]));
        let texts = [odd[0].0, odd[1].0, &format!("{}\n{LINKS}", odd[2].0)];
        let files = ["partitions", "qos", "torus"].map(|name| dir.join(name));
        files.iter().zip(texts).for_each(|(file, text)| std::fs::write(file, text).unwrap());
        let [partitions, qos, torus] = files.each_ref().map(|file| file.display());
        let (prefixes, passed_over) = PREFIXES[round % PREFIXES.len()];
        let routes = dir.join("routes");
        std::fs::write(&routes, prefixes).unwrap();
        let config = format!(
            "qos TRUE\nprefix_routes_file {routes}\npartition_config_file \
             {partitions}\nqos_policy_file {qos}\n\
             torus_config {torus}\nrouting_engine torus-2QoS\n",
            routes = routes.display()
        );
        let log = opensm(&bed, &dir, &config);
        let ours = [
            partitions::parse(&files[0], texts[0], &mut Remarks::default()).is_err(),
            qos_policy::parse(&files[1], texts[1]).is_err(),
            torus::Config::parse(texts[2]).is_err(),
        ];
        let number = |line: &str| -> Option<usize> {
            line.split_once(&format!("{}:", routes.display()))?.1.split_once(':')?.0.parse().ok()
        };
        let is_bad = |line: &&str| line.contains("illegal") || line.contains("missing GUID");
        let theirs: BTreeSet<usize> = log.lines().filter(is_bad).filter_map(number).collect();
        let mut remarks = Remarks::default();
        prefix_routes::parse(&routes, prefixes, &mut remarks);
        let remarks = remarks.into_lines();
        let is_bad = |line: &&String| line.contains("line ignored: ");
        let ours_too: BTreeSet<usize> =
            remarks.iter().filter(is_bad).filter_map(|line| number(line)).collect();
        let passed_over: BTreeSet<usize> = passed_over.iter().copied().collect();
        assert_eq!((&theirs, &ours_too), (&passed_over, &passed_over), "{prefixes:?}");
        for kind in 0..3 {
            let is = |line: &str| {
                line.contains(GIVEN_UP[kind]) && (kind != 1 || !line.contains("Loading"))
            };
            let theirs = log.lines().any(is);
            let made = match (ours[kind], theirs) {
                (false, false) => Taken,
                (true, true) => Refused,
                (false, true) => TakenByUs,
                (true, false) => RefusedByUs,
            };
            if made != odd[kind].1 {
                wrong.push(format!("{:?} is {made:?}, not {:?}", odd[kind].0, odd[kind].1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Text after a host's GUID; whether OpenSM can then access the host; and whether ibsm can. `K` is
/// the M_Key of all ports.
const M_KEYS: &[(&str, bool, bool)] = &[
    ("G 0x0000000000000008\n\n", true, true),
    ("G 8\n\n", true, true),
    ("G 010\n\n", true, true),
    ("G\t 0x8 trailing\n\n", true, true),
    ("G 0x8\r\n\n", true, true),
    ("G 0x8\n\nG 0x9\n\n", true, true),
    ("G 0x9\n\nG 0x8\n\n", false, false),
    ("G key\n\n", false, false),
    ("G\n\n", false, false),
    // OpenSM searches for GUIDs in the form in which it writes them.
    ("U 0x8\n\n", false, true),
    // OpenSM joins all lines up to an empty one, including numbers that then touch.
    ("G 0x8\nG 0x9\n\n", false, true),
    ("# a comment\nG 0x8\n\n", false, true),
    ("G 0x8", true, true),
];

#[test]
fn an_odd_guid2mkey_gives_access_to_the_same_hosts_as_with_opensm() {
    let Some((bed, hosts)) = keyed_bed(M_KEYS.len()) else { return };
    let dir = bed.dir.path().join("opensm");
    let (keys, neighbors) = remembered(&bed);
    // The switch and ibsm's own host are unchanged, the others as in the table.
    let own = keys.split("\n\n").filter(|line| {
        line.split(' ').next().is_some_and(|guid| hosts.iter().all(|host| guid != host.to_string()))
    });
    let mut text: String =
        own.filter(|line| !line.is_empty()).map(|l| format!("{l}\n\n")).collect();
    for (host, (line, ..)) in hosts.iter().zip(M_KEYS) {
        text += &line.replace('G', &host.to_string()).replace('U', &upper(*host));
    }
    let opened = opened(&bed, &dir, &text, &neighbors);
    let ours = MKeyTable::parse(&text).0;
    for (host, (line, by_opensm, by_us)) in hosts.iter().zip(M_KEYS) {
        assert_eq!(opened.contains(host), *by_opensm, "OpenSM, {line:?}");
        assert_eq!(ours.get(*host) == Some(KEY), *by_us, "we, {line:?}");
    }
}

/// The same for `neighbors`: lines from the switch's port `P`, `S`, to a host, `G`.
const NEIGHBORS: &[(&str, bool, bool)] = &[
    ("S:P G:1\n\nG:1 S:P\n\n", true, true),
    ("S:P G:01\n\nG:1 S:P\n\n", true, true),
    ("S:P\tG:1 trailing\n\nG:1 S:P\n\n", true, true),
    ("S:P G:1\r\n\nG:1 S:P\r\n\n", true, true),
    // An entry without the reverse entry is ignored, and so is port 0.
    ("S:P G:1\n\n", false, false),
    ("S:P G:0\n\nG:0 S:P\n\n", false, false),
    ("S:P G:1\n\nS:P G:2\n\nG:1 S:P\n\n", true, true),
    ("S:P G:1\nG:1 S:P\n\n", false, true),
    ("S:P G:1\n\nG:1 S:P", true, true),
];

#[test]
fn odd_neighbors_lead_where_they_lead_opensm() {
    let Some((bed, hosts)) = keyed_bed(NEIGHBORS.len()) else { return };
    let dir = bed.dir.path().join("opensm");
    let (keys, neighbors) = remembered(&bed);
    let table = Neighbours::parse(&neighbors).0;
    let far = |host: &Guid| table.get((*host, PortNum(1))).unwrap();
    let is_own = |line: &&str| hosts.iter().all(|host| !line.contains(&host.to_string()));
    let own = neighbors.split("\n\n").filter(is_own).filter(|line| !line.is_empty());
    let mut text: String = own.map(|line| format!("{line}\n\n")).collect();
    for (host, (line, ..)) in hosts.iter().zip(NEIGHBORS) {
        let (switch, port) = far(host);
        let line = line.replace('S', &switch.to_string()).replace('P', &port.0.to_string());
        text += &line.replace('G', &host.to_string());
    }
    let opened = opened(&bed, &dir, &keys, &text);
    let ours = Neighbours::parse(&text).0;
    for (host, (line, by_opensm, by_us)) in hosts.iter().zip(NEIGHBORS) {
        assert_eq!(opened.contains(host), *by_opensm, "OpenSM, {line:?}");
        let led = ours.get(far(host)) == Some((*host, PortNum(1)));
        assert_eq!(led, *by_us, "we, {line:?}");
    }
}

/// Lines of `guid2lid` about a host, `G`, that should get the LID `L`; whether it does from OpenSM,
/// and from ibsm.
const LIDS: &[(&str, bool, bool)] = &[
    ("G L L\n\n", true, true),
    ("G\tL\tL trailing\n\n", true, true),
    ("G D D\n\n", true, true),
    ("G O O\n\n", true, true),
    ("G L L\r\n\n", true, true),
    ("G L L\n\nG 0x0020 0x0020\n\n", true, true),
    ("G 0x0020 0x0020\n\nG L L\n\n", false, false),
    ("G L\n\n", false, false),
    ("G L 0x0001\n\n", false, false),
    ("G 0xc001 0xc001\n\n", false, false),
    ("U L L\n\n", false, true),
    ("# a comment\nG L L\n\n", false, true),
    ("G L L", true, true),
];

#[test]
fn odd_lines_of_guid2lid_give_the_lids_that_opensm_gives() {
    let Some((bed, hosts)) = bed(LIDS.len()) else { return };
    let dir = bed.dir.path().join("opensm");
    std::fs::create_dir_all(&dir).unwrap();
    let wanted = |host: usize| 0x100 + host as u16;
    let mut text = String::new();
    for (at, (host, (line, ..))) in hosts.iter().zip(LIDS).enumerate() {
        let lid = wanted(at);
        let line = line.replace('L', &format!("{lid:#06x}")).replace('U', &upper(*host));
        let line = line.replace('D', &lid.to_string()).replace('O', &format!("0{lid:o}"));
        text += &line.replace('G', &host.to_string());
    }
    std::fs::write(dir.join("guid2lid"), &text).unwrap();
    opensm(&bed, &dir, "");
    let ours = LidTable::parse(&text).0;
    // It writes the LIDs that it assigned, along with lines that it did not understand.
    let written = std::fs::read_to_string(dir.join("guid2lid")).unwrap();
    let is_its_own = |line: &&str| !line.contains(|c: char| c.is_ascii_uppercase());
    let given: Vec<&str> = written.lines().filter(is_its_own).collect();
    let given = LidTable::parse(&given.join("\n")).0;
    for (at, (host, (line, by_opensm, by_us))) in hosts.iter().zip(LIDS).enumerate() {
        let has =
            |table: &LidTable| table.get(*host).is_some_and(|lids| lids.first.0 == wanted(at));
        assert_eq!(has(&given), *by_opensm, "OpenSM, {line:?}");
        assert_eq!(has(&ours), *by_us, "we, {line:?}");
    }
}

/// The M_Key of all ports of a [`keyed_bed`].
const KEY: u64 = 8;

/// A simulator of one switch with `count` hosts and one more, H0, on which ibsm runs; and the port
/// GUIDs of the others.
fn bed(count: usize) -> Option<(Bed, Vec<Guid>)> {
    if find("opensm").is_none() {
        skip("opensm is not installed");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut net = String::new();
    let guid = |host: usize| 0xabc0_0000 + 16 * host as u64;
    for host in 0..=count {
        let (at, own) = (guid(host), guid(host) + 1);
        net += &format!("caguid=0x{at:x}\nCa 1 \"H-{at:016x}\" # \"H{host}\"\n");
        net += &format!("[1](0x{own:x}) \"S-00000000000abcde\"[{}]\n\n", host + 1);
    }
    net += &format!(
        "switchguid=0xabcde(abcde)\nSwitch {} \"S-00000000000abcde\" # \"Sw\"\n",
        count + 1
    );
    for host in 0..=count {
        net += &format!("[{}] \"H-{:016x}\"[1]\n", host + 1, guid(host));
    }
    let path = dir.path().join("net");
    std::fs::write(&path, net).unwrap();
    let bed = Bed::on_ibfabric(&path)?;
    Some((bed, (1..=count).map(|host| Guid(guid(host) + 1)).collect()))
}

/// The same, with [`KEY`] on all ports, which do not respond without it.
fn keyed_bed(count: usize) -> Option<(Bed, Vec<Guid>)> {
    let (bed, hosts) = bed(count)?;
    let config = bed.dir.path().join("keyed.conf");
    let text = format!("m_key {KEY}\nm_key_protection_level 2\nm_key_lease_period 0\n");
    std::fs::write(&config, text).unwrap();
    let mut ibsm = bed.ibsm("H0");
    let done = ibsm.arg("-o").arg("-F").arg(config).stdout(Stdio::null()).status().unwrap();
    assert!(done.success());
    Some((bed, hosts))
}

/// The files that this `ibsm` wrote: `guid2mkey` and `neighbors`.
fn remembered(bed: &Bed) -> (String, String) {
    let state = bed.dir.path().join("state-H0");
    let read = |name| std::fs::read_to_string(state.join(name)).unwrap();
    (read("guid2mkey"), read("neighbors"))
}

fn upper(guid: Guid) -> String {
    format!("0x{:016X}", guid.0)
}

/// Hosts that `opensm`, configured with another M_Key, can access by these files.
fn opened(bed: &Bed, dir: &Path, keys: &str, neighbors: &str) -> BTreeSet<Guid> {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("guid2mkey"), keys).unwrap();
    std::fs::write(dir.join("neighbors"), neighbors).unwrap();
    // An SMP to a port that does not respond occupies a place on the wire forever.
    let config = "m_key 0x7777\nm_key_protection_level 2\nmax_wire_smps 100\n";
    let mut child = start_opensm(bed, dir, config, &["-D", "0x0f", "-g", "0xabc00001"]);
    // The simulator's library has no timeouts, so opensm waits for the other ports forever.
    let (log, mut found, mut since) = (dir.join("opensm.log"), BTreeSet::new(), Instant::now());
    while child.try_wait().unwrap().is_none() && since.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(200));
        let now = nodes_found(&std::fs::read_to_string(&log).unwrap_or_default());
        if now != found {
            (found, since) = (now, Instant::now());
        }
    }
    let _ = child.kill();
    child.wait().unwrap();
    found
}

/// Ports whose NodeInfo was received, from the log of `opensm -D 0x0f`.
fn nodes_found(log: &str) -> BTreeSet<Guid> {
    let lines = log.lines().filter(|line| line.contains("port_guid"));
    let guid = |line: &str| u64::from_str_radix(line.rsplit("0x").next()?.trim(), 16).ok();
    lines.filter_map(guid).map(Guid).collect()
}

/// The log of `opensm -o` with these settings and its files in `dir`.
fn opensm(bed: &Bed, dir: &Path, config: &str) -> String {
    let mut child = start_opensm(bed, dir, config, &[]);
    await_end(&mut child, &format!("opensm with {config}"));
    std::fs::read_to_string(dir.join("opensm.log")).unwrap()
}

/// Starts `opensm -o` on H0.
fn start_opensm(bed: &Bed, dir: &Path, config: &str, arguments: &[&str]) -> Child {
    let (file, log) = (dir.join("opensm.conf"), dir.join("opensm.log"));
    std::fs::write(&file, format!("force_log_flush TRUE\n{config}")).unwrap();
    let _ = std::fs::remove_file(&log);
    let mut command = bed.command("ibsim-run");
    command.current_dir(dir).env("SIM_HOST", "H0").stdout(Stdio::null()).stderr(Stdio::null());
    command.env("OSM_CACHE_DIR", dir).env("OSM_TMP_DIR", dir);
    command.arg(find("opensm").unwrap()).arg("-o").arg("-f").arg(&log).arg("-F").arg(file);
    command.arg("--pidfile").arg(dir.join("pid")).args(arguments);
    command.spawn().unwrap()
}
