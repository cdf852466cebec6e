//! Paths as OpenSM tells them and as we do: the same fat tree with a router, LMC, partitions, a QoS
//! policy, SLs that are dropped, a prefix route, brought up once by each; `saquery` must print the
//! same paths, apart from the LIDs that each has chosen.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, Sandbox, binary, can_interoperate, free_address};

/// What the subnet managers are given: LMC, and files by name.
struct Site {
    lmc: u8,
    config: &'static str,
    qos_policy: Option<&'static str>,
}

/// Two levels of switches, six hosts, the last of them a router.
fn write_net(sandbox: &Sandbox) -> Net {
    let path = sandbox.path("net.txt");
    let output = Command::new(binary("ibfabric"))
        .args(["generate", "fat-tree", "--levels", "2", "--radix", "8", "--hosts", "6"])
        .args(["--seed", "1", "--output"])
        .arg(&path)
        .output()
        .expect("ibfabric runs");
    assert!(output.status.success());
    let text = fs::read_to_string(&path).expect("it was written");
    let mut nodes: Vec<String> = text.split("\n\n").map(str::to_owned).collect();
    let router = nodes.iter_mut().rev().find(|node| node.contains("\nCa\t")).expect("a host");
    *router = router.replace("caguid=", "rtguid=").replace("\nCa\t", "\nRt\t");
    let text = nodes.join("\n\n");
    fs::write(&path, &text).expect("it can be changed");
    let guid = |line: &str| {
        let digits = line.strip_prefix("caguid=0x")?;
        u64::from_str_radix(digits.trim(), 16).ok().map(|guid| guid + 1)
    };
    let names = text.lines().filter(|line| line.starts_with("Ca\t"));
    Net {
        hosts: text.lines().filter_map(guid).collect(),
        names: names
            .filter_map(|line| line.split("# \"").nth(1)?.split('"').next())
            .map(str::to_owned)
            .collect(),
        path,
    }
}

struct Net {
    path: std::path::PathBuf,
    /// Port GUIDs of hosts.
    hosts: Vec<u64>,
    names: Vec<String>,
}

/// Writes the site's files; options for either subnet manager.
fn write_site(sandbox: &Sandbox, site: &Site, net: &Net) -> Vec<String> {
    let [a, b, c, d, ..] = net.hosts[..] else { panic!("five hosts") };
    let partitions = format!(
        "Default=0x7fff, ipoib : ALL=full ;\n\
         Compute=0x0001, ipoib, sl=1, defmember=full : {a:#x}, {b:#x}, {c:#x} ;\n\
         Storage=0x0002, ipoib : {b:#x}=limited, {c:#x}=full, {d:#x}=both, {a:#x}=full ;\n\
         Admin=0x0003, sl=2, defmember=limited : ALL, {b:#x}=full ;\n"
    );
    let file = |name: &str, text: &str| {
        let path = sandbox.path(name);
        fs::write(&path, text).expect("the sandbox can be written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let mut options = vec![
        "-F".to_owned(),
        file("opensm.conf", site.config),
        "-l".to_owned(),
        site.lmc.to_string(),
        "-P".to_owned(),
        file("partitions.conf", &partitions),
        "--prefix_routes_file".to_owned(),
        file("prefix-routes.conf", "0x20010db800000001 *\n"),
    ];
    if let Some(policy) = site.qos_policy {
        let policy = policy.replace("{b}", &format!("{b:#x}")).replace("{c}", &format!("{c:#x}"));
        options.extend(["-Q".to_owned(), "-Y".to_owned(), file("qos-policy.conf", &policy)]);
    }
    options
}

/// A program on the simulated fabric, with the kernel's RMPP.
fn on_fabric(sandbox: &Sandbox, node: &str, argv: &[&str]) -> Vec<String> {
    let exec = ["exec", "--socket", sandbox.socket(), "--node", node, "--"];
    exec.iter().chain(argv).map(|&part| part.to_owned()).collect()
}

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn under_opensm(site: &Site) -> BTreeMap<String, Vec<String>> {
    let sandbox = Sandbox::new("paths-opensm");
    let net = write_net(&sandbox);
    let _fabric = sandbox.ibfabric(&net.path);
    let options = write_site(&sandbox, site, &net);
    let dir = sandbox.path("");
    let (cache, tmp) =
        (format!("OSM_CACHE_DIR={}", dir.display()), format!("OSM_TMP_DIR={}", dir.display()));
    let log = sandbox.path("messages.log");
    let log_name = log.to_str().expect("UTF-8");
    let mut argv = vec!["env", &cache, &tmp, "opensm", "-f", log_name, "-d", "2"];
    argv.extend(strs(&options));
    let argv = on_fabric(&sandbox, &net.names[0], &argv);
    let _opensm = sandbox.ours("ibfabric", "opensm", &strs(&argv));
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_to_string(&log).unwrap_or_default().contains("SUBNET UP") {
        assert!(Instant::now() < deadline, "OpenSM brings the fabric up");
        std::thread::sleep(Duration::from_millis(20));
    }
    paths(&sandbox, &net, site.lmc)
}

fn under_ibsm(site: &Site) -> BTreeMap<String, Vec<String>> {
    let sandbox = Sandbox::new("paths-ibsm");
    let net = write_net(&sandbox);
    let _fabric = sandbox.ibfabric(&net.path);
    let options = write_site(&sandbox, site, &net);
    let (publish, state) = (free_address().to_string(), sandbox.path("state"));
    let state = state.to_str().expect("UTF-8");
    let mut args = vec!["--transport", "ibsim", "--node", &net.names[0], "--publish", &publish];
    args.extend(["--state-dir", state]);
    args.extend(strs(&options));
    let ibsm: Program = sandbox.ours("ibsm", "ibsm", &args);
    ibsm.wait_for("SUBNET UP");
    let sm = format!("http://{publish}");
    let args = ["--sm", &sm, "--transport", "udp", "--listen", "127.0.0.1:0"];
    let ibsa = sandbox.ours("ibsa", "ibsa", &args);
    ibsa.wait_for("serving");
    paths(&sandbox, &net, site.lmc)
}

/// Everything that is asked, and what `saquery` prints, LIDs replaced by whose they are.
fn paths(sandbox: &Sandbox, net: &Net, lmc: u8) -> BTreeMap<String, Vec<String>> {
    let saquery = |args: &[&str]| -> String {
        let mut argv = vec!["saquery"];
        argv.extend(args);
        let argv = on_fabric(sandbox, &net.names[1], &argv);
        let output = Command::new("timeout")
            .arg("60")
            .arg(binary("ibfabric"))
            .args(&argv)
            .current_dir(sandbox.path(""))
            .output()
            .expect("coreutils' timeout runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    };
    // A responder may serve before it has the first snapshot.
    let deadline = Instant::now() + PATIENCE;
    let nodes = loop {
        let nodes = saquery(&["NR"]);
        if nodes.contains("NodeRecord dump:") {
            break nodes;
        }
        assert!(Instant::now() < deadline, "{nodes}");
    };
    let field = |block: &str, name: &str| -> Option<u64> {
        let line = block.lines().find(|line| line.trim_start().starts_with(name))?;
        let value = line.trim_start().trim_start_matches(name).trim_start_matches('.');
        match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => value.parse().ok(),
        }
    };
    let mut owners: BTreeMap<u64, String> = BTreeMap::new();
    let mut guids = Vec::new();
    for block in nodes.split("NodeRecord dump:").skip(1) {
        let (lid, guid) = (field(block, "lid").unwrap(), field(block, "port_guid").unwrap());
        let lids = if block.contains("Switch") { 1 } else { 1 << lmc };
        owners.extend((0..lids).map(|at| (lid + at, format!("<{guid:x}+{at}>"))));
        guids.push(guid);
    }
    guids.sort_unstable();
    assert_eq!(guids.len(), net.hosts.len() + 1 + 3, "hosts, the router, switches");

    let gid = |guid: u64| {
        let part = |at: u32| guid >> at & 0xFFFF;
        format!("fe80::{:x}:{:x}:{:x}:{:x}", part(48), part(32), part(16), part(0))
    };
    let named = |text: &str| -> Vec<String> {
        let name = |line: &str| {
            let line = line.trim();
            let end = ["dlid", "slid"].iter().find(|name| line.starts_with(**name));
            match end.and_then(|name| Some((name, field(line, name)?))) {
                Some((name, lid)) => format!("{name} {}", owners.get(&lid).map_or("?", |o| o)),
                None => line.to_owned(),
            }
        };
        let tell = |block: &str| block.lines().map(name).collect::<Vec<_>>().join("\n");
        let mut records: Vec<String> = text.split("PathRecord dump:").map(tell).collect();
        records.sort();
        records
    };
    let mut told = BTreeMap::new();
    let mut ask = |args: &[&str]| {
        let asked: Vec<&str> = [&["PR"], args].concat();
        told.insert(args.join(" "), named(&saquery(&asked)));
    };
    let (first, others) = (gid(guids[0]), &guids[1..]);
    for &guid in others {
        ask(&["--sgid", &first, "--dgid", &gid(guid)]);
        for filter in [
            ["--qos_class", "5"],
            ["--qos_class", "7"],
            ["--service_id", "0x10001"],
            ["--pkey", "0x8001"],
            ["--pkey", "0x0002"],
            ["--sl", "1"],
            ["--sl", "4"],
        ] {
            let ends = ["--sgid", &gid(guid), "--dgid", &first];
            ask(&[&ends[..], &filter[..]].concat());
        }
        ask(&["--sgid", &gid(guid), "--dgid", "2001:db8:0:1::77"]);
        ask(&["--sgid", &gid(guid), "--dgid", "2001:db8:0:2::77"]);
    }
    ask(&[]);
    ask(&["--dgid", "2001:db8:0:1::77"]);
    told
}

fn compare(site: &Site) {
    if !can_interoperate(&["opensm", "saquery"]) {
        return;
    }
    let (ours, theirs) = (under_ibsm(site), under_opensm(site));
    assert_eq!(ours.len(), theirs.len());
    let records: usize = theirs.values().map(Vec::len).sum();
    assert!(records > 200, "only {records} records were compared");
    for (asked, theirs) in &theirs {
        assert_eq!(&ours[asked], theirs, "saquery PR {asked}");
    }
}

#[test]
fn paths_between_lid_ranges_of_partitions_are_those_of_opensm() {
    compare(&Site { lmc: 1, config: "", qos_policy: None });
}

#[test]
fn paths_where_ports_may_be_full_and_limited_members_are_those_of_opensm() {
    compare(&Site { lmc: 0, config: "allow_both_pkeys TRUE\n", qos_policy: None });
}

#[test]
fn paths_under_a_qos_policy_are_those_of_opensm() {
    compare(&Site {
        lmc: 1,
        config: "qos TRUE\nqos_max_vls 8\nqos_sl2vl 0,1,2,3,15,5,6,7,0,1,2,3,4,5,15,7\n",
        qos_policy: Some(POLICY),
    });
}

const POLICY: &str = "\
port-groups
    port-group
        name: Two
        port-guid: {b}, {c}
    end-port-group
    port-group
        name: Switches
        node-type: SWITCH
    end-port-group
end-port-groups
qos-levels
    qos-level
        name: DEFAULT
        sl: 0
    end-qos-level
    qos-level
        name: Small
        sl: 1
        mtu-limit: 2
        packet-life: 12
    end-qos-level
    qos-level
        name: Compute
        sl: 3
        rate-limit: 3
        pkey: 0x0001
    end-qos-level
    qos-level
        name: Dropped
        sl: 4
    end-qos-level
end-qos-levels
qos-match-rules
    qos-match-rule
        use: dropped
        qos-class: 7
        qos-level-name: Dropped
    end-qos-match-rule
    qos-match-rule
        use: service
        service-id: 0x10000-0x1FFFF
        qos-level-name: Small
    end-qos-match-rule
    qos-match-rule
        use: two
        source: Two
        qos-class: 5
        qos-level-name: Compute
    end-qos-match-rule
    qos-match-rule
        use: switches
        destination: Switches
        qos-level-name: Small
    end-qos-match-rule
end-qos-match-rules
";
