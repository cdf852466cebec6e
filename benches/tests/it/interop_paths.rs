//! Paths from OpenSM and from us: the same fat tree with a router, LMC, partitions, a QoS policy,
//! SLs that are dropped, a prefix route, brought up once by each; `saquery` must print the same
//! paths, apart from the LIDs that each assigned.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, Sandbox, binary, can_interoperate, free_address};
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions};
use ib_mad::transport::{Packet, Transport};
use ib_mad::types::{Gid, Guid, Lid, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::multi_path::{component as multi, write_gids};
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{MultiPathRecord, PathRecord, Selector};
use ib_mad::wire::rmpp::{RmppFlags, RmppType, VERSION};
use ib_mad::wire::sa::{ComponentMask, SA_HEADER_LEN, SaMad, attribute};

/// The settings of the subnet managers: LMC, and files by name.
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
    // Two InfiniHosts, one of them from another vendor.
    let hosts = nodes.iter_mut().filter(|node| node.contains("\nCa\t"));
    for (host, vendor) in hosts.skip(1).take(2).zip(["0x2c9", "0x8f1"]) {
        *host = host.replace("vendid=0x2c9", &format!("vendid={vendor}"));
        let devid = host.lines().find(|line| line.starts_with("devid=")).expect("a device ID");
        *host = host.replace(&devid.to_owned(), "devid=0x5a44");
    }
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

fn under_opensm<T>(site: &Site, ask: impl Fn(&Sandbox, &Net, u8) -> T) -> T {
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
    ask(&sandbox, &net, site.lmc)
}

fn under_ibsm<T>(site: &Site, ask: impl Fn(&Sandbox, &Net, u8) -> T) -> T {
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
    ibsa.wait_for("serving generation");
    ask(&sandbox, &net, site.lmc)
}

/// All queries, and the output of `saquery` with LIDs replaced by their ports.
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
        let report = |block: &str| block.lines().map(name).collect::<Vec<_>>().join("\n");
        let mut records: Vec<String> = text.split("PathRecord dump:").map(report).collect();
        records.sort();
        records
    };
    let mut reported = BTreeMap::new();
    let mut ask = |args: &[&str]| {
        let asked: Vec<&str> = [&["PR"], args].concat();
        reported.insert(args.join(" "), named(&saquery(&asked)));
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
    reported
}

fn compare(site: &Site) {
    if !can_interoperate(&["opensm", "saquery"]) {
        return;
    }
    let (ours, theirs) = (under_ibsm(site, paths), under_opensm(site, paths));
    assert_eq!(ours.len(), theirs.len());
    let records: usize = theirs.values().map(Vec::len).sum();
    assert!(records > 200, "only {records} records were compared");
    for (asked, theirs) in &theirs {
        assert_eq!(&ours[asked], theirs, "saquery PR {asked}");
    }
}

/// All MTU selections, incomplete ones included, for paths between two InfiniHosts and another
/// adapter, by PathRecord and MultiPathRecord, at a site that sets `enable_quirks`.
#[test]
fn mtus_with_quirks_are_those_of_opensm() {
    if !can_interoperate(&["opensm"]) {
        return;
    }
    let site = Site { lmc: 0, config: "enable_quirks TRUE\n", qos_policy: None };
    let ask = |sandbox: &Sandbox, net: &Net, _| mtus(sandbox, net);
    let (ours, theirs) = (under_ibsm(&site, ask), under_opensm(&site, ask));
    assert_eq!(ours.len(), theirs.len());
    let reported = |mtu: u8| theirs.values().filter(|(_, reported)| *reported == Some(mtu)).count();
    assert!(reported(3) > 100 && reported(4) > 100, "{} and {} of each", reported(3), reported(4));
    for (asked, theirs) in &theirs {
        assert_eq!(&ours[asked], theirs, "{asked}");
    }
}

/// The answers by request: status, and MTU of the first path.
type Mtus = BTreeMap<String, (Status, Option<u8>)>;

fn mtus(sandbox: &Sandbox, net: &Net) -> Mtus {
    let mut client = Client::new(sandbox, &net.names[1]);
    let gid = |host: usize| Gid::new(SUBNET_PREFIX_DEFAULT, Guid(net.hosts[host]));
    let mut reported = Mtus::new();
    for (from, to) in [(2, 1), (2, 3), (2, 2), (1, 4), (4, 1), (3, 4)] {
        for selector in 0..4 {
            for mtu in 1..=5u8 {
                for (has_selector, has_mtu) in [(true, true), (true, false), (false, true)] {
                    let wish = selector << 6 | mtu;
                    let name =
                        |what| format!("{what} {from}-{to} {wish:#04x} {has_selector} {has_mtu}");
                    let mut mask = path::SGID | path::DGID;
                    let mut data = vec![0; PathRecord::LEN];
                    PathRecord::new(&mut data[..]).unwrap().set_sgid(gid(from)).set_dgid(gid(to));
                    data[54] = wish;
                    let parts = [(has_selector, path::MTU_SELECTOR), (has_mtu, path::MTU)];
                    parts.iter().filter(|(has, _)| *has).for_each(|(_, part)| mask |= *part);
                    let answer = client.ask(Method::GET, attribute::PATH_RECORD, mask, &data);
                    reported.insert(name("PathRecord"), answer);

                    let mut mask = multi::SGID_COUNT | multi::DGID_COUNT;
                    let mut data = vec![0; MultiPathRecord::LEN + 32];
                    write_gids(&mut data, &[gid(from)], &[gid(to)]).unwrap();
                    let mut record = MultiPathRecord::new(&mut data[..]).unwrap();
                    record.set_mtu(mtu).set_mtu_selector(Selector::from_low_bits(selector));
                    let parts = [(has_selector, multi::MTU_SELECTOR), (has_mtu, multi::MTU)];
                    parts.iter().filter(|(has, _)| *has).for_each(|(_, part)| mask |= *part);
                    let about = attribute::MULTI_PATH_RECORD;
                    reported.insert(
                        name("MultiPathRecord"),
                        client.ask(Method::GET_MULTI, about, mask, &data),
                    );
                }
            }
        }
    }
    reported
}

/// A client of the subnet administration.
struct Client {
    ibsim: Ibsim,
    sm_lid: Lid,
    tid: u64,
}

impl Client {
    fn new(sandbox: &Sandbox, node: &str) -> Self {
        let options = IbsimOptions {
            socket: sandbox.socket().to_owned(),
            node: Some(node.to_owned()),
            ..IbsimOptions::default()
        };
        let mut ibsim = Ibsim::connect(&options).expect("the fabric has room");
        let sm_lid = ibsim.local_port().expect("a port").sm_lid;
        Self { ibsim, sm_lid, tid: 0 }
    }

    fn ask(
        &mut self,
        method: Method,
        about: AttributeId,
        mask: ComponentMask,
        data: &[u8],
    ) -> (Status, Option<u8>) {
        self.tid += 1;
        let mut packet = Packet::default();
        let mut mad = SaMad::new(&mut packet.mad);
        mad.write_request(method, about, self.tid, mask);
        if method == Method::GET_MULTI {
            mad.rmpp_mut()
                .set_rmpp_version(VERSION)
                .set_rmpp_type(RmppType::DATA)
                .set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST)
                .set_segment(1)
                .set_payload_len((SA_HEADER_LEN + data.len()) as u32);
        }
        mad.data_mut()[..data.len()].copy_from_slice(data);
        packet.address.lid = self.sm_lid;
        let deadline = Instant::now() + PATIENCE;
        let mut answers = vec![Packet::default(); 8];
        let mut asked = None;
        loop {
            if asked.is_none_or(|asked: Instant| asked.elapsed() > Duration::from_secs(2)) {
                assert_eq!(self.ibsim.send(std::slice::from_ref(&packet)).unwrap(), 1);
                asked = Some(Instant::now());
            }
            let count = self.ibsim.receive(&mut answers).unwrap();
            for answer in &answers[..count] {
                let mad = SaMad::new(&answer.mad);
                let (header, rmpp) = (mad.header(), mad.rmpp());
                let is_data = !rmpp.is_active() || rmpp.rmpp_type() == RmppType::DATA;
                if header.tid() & 0xFFFF_FFFF != self.tid
                    || !header.method().is_response()
                    || !is_data
                {
                    continue;
                }
                let has_record = header.status() == Status::OK
                    && (!rmpp.is_active() || rmpp.payload_len() as usize > SA_HEADER_LEN);
                let record = PathRecord::new(&mad.data()[..]).unwrap();
                return (header.status(), has_record.then(|| record.mtu()));
            }
            assert!(Instant::now() < deadline, "the SA answers");
            std::thread::sleep(Duration::from_millis(1));
        }
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
