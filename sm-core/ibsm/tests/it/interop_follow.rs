//! Runs two `ibsm` on stock `ibsim`: the standby keeps a copy of the registrations of the master's
//! clients. Skipped with a message where the programs are missing.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ibsim::{Bed, example, find};
use crate::skip::skip;

/// A group whose member is the port of Hca4, in the format of opensm-sa.dump.
const DUMP: &str = "MC Group 0xc001 : mgid=0xff12401bffff0000:0x00000000deadbeef \
    port_gid=0x0000000000000000:0x0000000000000000 qkey=0x00000b1b mlid=0xc001 mtu=0x84 \
    tclass=0x00 pkey=0xffff rate=0x83 pkt_life=0x92 sl_flow_hop=0x00000000 scope_state=0x20 \
    proxy_join=0x0\n\nmcm_port: port_gid=0xfe80000000000000:0x000000000010000a scope_state=0x21 \
    proxy_join=0x0\n\n";
const MGID: &str = "ff12:401b:ffff::dead:beef";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Certificates of a test bed, by role.
struct Certificates(PathBuf);

impl Certificates {
    /// Creates them as an operator would; `None` if that fails.
    fn make(dir: &Path) -> Option<Self> {
        if find("openssl").is_none() {
            skip("openssl is not installed");
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/make-certs.sh");
        let made = Command::new("bash").arg(script).arg(dir).stdout(Stdio::null()).status();
        assert!(made.unwrap().success());
        Some(Self(dir.to_owned()))
    }

    fn options(&self, role: &str) -> Vec<String> {
        let file = |name: &str| self.0.join(name).to_str().unwrap().to_owned();
        let (cert, key) = (file(&format!("{role}.pem")), file(&format!("{role}.key")));
        vec![
            "--tls-ca".to_owned(),
            file("ca.pem"),
            "--tls-cert".to_owned(),
            cert,
            "--tls-key".to_owned(),
            key,
        ]
    }
}

/// TLS options for `role`, if there are certificates.
fn options(tls: Option<&Certificates>, role: &str) -> Vec<String> {
    tls.map(|tls| tls.options(role)).unwrap_or_default()
}

/// Address of the feed of the ibsm on this node.
fn feed_of(bed: &Bed, node: &str, tls: Option<&Certificates>) -> String {
    let scheme = if tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{}", bed.address(node, "publish"))
}

/// What a manager logs that asks clients to register again. Stock ibsim does not count these
/// requests. One of the tests expects the line, so that it cannot be reworded unnoticed.
const ASKED: &str = "asking all clients to register again";

/// Waits until the second of these nodes has all that the first publishes.
fn await_copy(bed: &Bed, [master, standby]: [&str; 2], tls: &[String]) {
    let published = bed.await_status(master, tls, "a status", |_| true);
    let published = published["registry_sequence"].as_u64().unwrap();
    bed.await_status(standby, tls, "a copy of the registry", |status| {
        let copy = &status["registry_copy"];
        copy["in_step"] == true && copy["registry_sequence"].as_u64() >= Some(published)
    });
}

/// Asserts that a standby took over with a complete registry and asked no client.
fn assert_took_over_with_all(bed: &Bed, node: &str, log: &Path) {
    let takeovers = |copy| bed.metric(node, &format!("ibsm_takeovers_total{{copy=\"{copy}\"}}"));
    // Metrics are updated once a second.
    let end = Instant::now() + Duration::from_secs(30);
    while [takeovers("complete"), takeovers("incomplete")].iter().flatten().sum::<f64>() < 1.0 {
        assert!(Instant::now() < end, "no takeover was counted");
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = std::fs::read_to_string(log).unwrap();
    assert_eq!((takeovers("complete"), takeovers("incomplete")), (Some(1.0), Some(0.0)), "{text}");
    assert!(!text.contains(ASKED), "{text}");
}

/// The groups registered with the manager with this feed.
fn groups(feed: &str, tls: Option<&Certificates>) -> String {
    let mut ibsmctl = Command::new(env!("CARGO_BIN_EXE_ibsmctl"));
    let output = ibsmctl.args(options(tls, "admin")).args(["--sm", feed, "mcast"]).output();
    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
}

fn await_group(feed: &str, tls: Option<&Certificates>) {
    let end = Instant::now() + Duration::from_secs(30);
    while !groups(feed, tls).contains(MGID) {
        assert!(Instant::now() < end, "no {MGID} in: {}", groups(feed, tls));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Groups whose members are all four hosts, in the format of opensm-sa.dump.
fn many(groups: u32) -> String {
    use std::fmt::Write as _;
    let mut dump = String::new();
    for number in 0..groups {
        let mlid = 0xC001 + number;
        let _ = writeln!(
            dump,
            "MC Group {mlid:#06x} : mgid=0xff12401bffff0000:0x00000000{:08x} \
             port_gid=0x0000000000000000:0x0000000000000000 qkey=0x00000b1b mlid={mlid:#06x} \
             mtu=0x84 tclass=0x00 pkey=0xffff rate=0x83 pkt_life=0x92 sl_flow_hop=0x00000000 \
             scope_state=0x20 proxy_join=0x0\n",
            0xDEAD_0000 + number
        );
        for guid in HOSTS {
            let _ = writeln!(
                dump,
                "mcm_port: port_gid=0xfe80000000000000:{guid:#018x} scope_state=0x21 \
                 proxy_join=0x0\n"
            );
        }
    }
    dump
}

/// Port GUIDs of the hosts of `net.2sw2path4hca`.
const HOSTS: [u64; 4] = [0x0010_0001, 0x0010_0004, 0x0010_0007, 0x0010_000A];

#[test]
fn a_standby_that_follows_takes_over_with_what_was_registered() {
    let Some(bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    succeed(bed, None);
}

/// After a failover everything is unchanged for clients: none is asked to register again, and each
/// of thousands of records is as before.
#[test]
fn thousands_of_records_outlive_the_master() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    let file = |name: &str| bed.dir.path().join(name);
    let (dump, config, log) = (file("opensm-sa.dump"), file("ibsm.conf"), file("standby.log"));
    std::fs::write(&dump, many(500)).unwrap();
    std::fs::write(&config, "sminfo_polling_timeout 200\npolling_retry_number 2\n").unwrap();
    let master = Running(bed.manage("Hca1", &["-p", "9", "-S", dump.to_str().unwrap()]));
    let feed = feed_of(&bed, "Hca1", None);
    let is_whole = |text: &str| text.matches("ff12:401b:ffff::dead:").count() == 500;
    let end = Instant::now() + Duration::from_secs(30);
    let before = loop {
        let text = groups(&feed, None);
        if is_whole(&text) {
            break text;
        }
        assert!(Instant::now() < end, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let memberships = |text: &str| text.matches("fe80::10:a ").count();
    assert!(memberships(&before) >= 500, "{before}");

    let mut ibsm = bed.ibsm("Hca3");
    ibsm.args(["-p", "3", "--follow", &feed, "-F"]).arg(&config).arg("-f").arg(&log);
    let _standby = Running(ibsm.stdout(Stdio::null()).spawn().unwrap());
    await_copy(&bed, ["Hca1", "Hca3"], &[]);
    drop(master);
    bed.await_line(&log, "SUBNET UP");
    assert_took_over_with_all(&bed, "Hca3", &log);
    // The subnet is up a moment before the registry is published; responders wait for both.
    let (feed, end) = (feed_of(&bed, "Hca3", None), Instant::now() + Duration::from_secs(30));
    while groups(&feed, None) != before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(groups(&feed, None), before);
}

/// Regression: a manager's certificate was valid for a server only, so that
/// no manager could follow another.
#[test]
fn a_standby_that_follows_takes_over_with_certificates() {
    let Some(bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    let Some(tls) = Certificates::make(&bed.dir.path().join("tls")) else { return };
    succeed(bed, Some(&tls));
}

fn succeed(mut bed: Bed, tls: Option<&Certificates>) {
    let file = |name: &str| bed.dir.path().join(name);
    let (dump, config, log) = (file("opensm-sa.dump"), file("ibsm.conf"), file("standby.log"));
    std::fs::write(&dump, DUMP).unwrap();
    std::fs::write(&config, "sminfo_polling_timeout 200\npolling_retry_number 2\n").unwrap();
    let mut arguments = options(tls, "sm");
    arguments.extend(["-p", "9", "-S", dump.to_str().unwrap()].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let master = Running(bed.manage("Hca1", &arguments));
    let feed = feed_of(&bed, "Hca1", tls);
    await_group(&feed, tls);

    let standby = |node: &str, log: &Path, arguments: &[&str]| {
        let mut ibsm = bed.ibsm(node);
        ibsm.arg("-F").arg(&config).arg("-f").arg(log).stdout(Stdio::null());
        Running(ibsm.args(options(tls, "sm")).args(arguments).spawn().unwrap())
    };
    let following = standby("Hca3", &log, &["-p", "3", "--follow", &feed]);
    await_copy(&bed, ["Hca1", "Hca3"], &options(tls, "admin"));
    drop(master);
    bed.await_line(&log, "SUBNET UP");
    assert_took_over_with_all(&bed, "Hca3", &log);
    await_group(&feed_of(&bed, "Hca3", tls), tls);

    // A standby that does not follow must ask clients to register again.
    let other = bed.dir.path().join("other.log");
    let alone = standby("Hca2", &other, &["-p", "2"]);
    let is_standby = |status: &Value| status["sm_state"] == "standby";
    bed.await_status("Hca2", &options(tls, "admin"), "standby", is_standby);
    drop(following);
    bed.await_line(&other, "SUBNET UP");
    bed.await_line(&other, ASKED);
    assert!(!groups(&feed_of(&bed, "Hca2", tls), tls).contains(MGID));
    drop(alone);
}
