//! What other users of the SM's host can do: processes of another user against a subnet of real
//! programs. Needs root, to become another user.

use std::fs::{self, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use benches::sandbox::{binary, free_address};

use crate::support::Subnet;

/// A user without any rights.
const OTHER_USER: u32 = 65534;

/// Programs in a directory that another user can read.
struct Strangers(tempfile::TempDir);

impl Strangers {
    /// `None` if this process cannot become another user.
    fn new() -> Option<Self> {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            eprintln!("skipped: only root can become another user");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        for program in ["ibsa", "ibsm", "ibsmctl", "ibstorm"] {
            let (from, to) = (binary(program), directory.path().join(program));
            fs::hard_link(&from, &to).or_else(|_| fs::copy(from, to).map(drop)).unwrap();
        }
        Some(Self(directory))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.path(program));
        command.args(args).uid(OTHER_USER).gid(OTHER_USER).current_dir(self.0.path()).env_clear();
        command
    }

    /// Runs a program to its end.
    fn run(&self, program: &str, args: &[&str]) -> Output {
        self.command(program, args).output().unwrap()
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Regression: any user read `sa_key`, gave orders, and registered as a responder.
#[test]
fn another_user_of_the_host_has_no_role() {
    let Some(strangers) = Strangers::new() else { return };
    let subnet = Subnet::new("another_user_of_the_host");
    let ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let url = subnet.url();
    for order in ["status", "reroute", "sweep", "services"] {
        let output = strangers.run("ibsmctl", &["--sm", &url, order]);
        assert!(!output.status.success(), "{order}");
        let shown = text(&output);
        assert!(shown.contains("user 65534 of this host has no role"), "{order}: {shown}");
    }
    let listen = free_address().to_string();
    let cache = strangers.path("cache");
    let mut ibsa = strangers
        .command("ibsa", &["--sm", &url, "--transport", "udp", "--listen", &listen])
        .args(["--cache-dir", cache.to_str().unwrap()])
        .stderr(fs::File::create(strangers.path("log")).unwrap())
        .stdout(fs::File::create(strangers.path("out")).unwrap())
        .spawn()
        .unwrap();
    ibsm.wait_for("gRPC call refused");
    std::thread::sleep(Duration::from_millis(500));
    let status = Command::new(binary("ibsmctl")).args(["--sm", &url, "status", "--json"]).output();
    let _ = ibsa.kill();
    let _ = ibsa.wait();
    let status: serde_json::Value = serde_json::from_slice(&status.unwrap().stdout).unwrap();
    assert_eq!(status["responders"].as_array().map(Vec::len), Some(0), "{status}");
}

/// A monitoring system sees and does not change.
#[test]
fn a_user_has_the_role_that_the_operator_gave() {
    let Some(strangers) = Strangers::new() else { return };
    let subnet = Subnet::new("a_user_has_the_role");
    let ibsm = subnet.ibsm(&["--local-role", "65534=viewer"]);
    ibsm.wait_for("SUBNET UP");
    let url = subnet.url();
    let output = strangers.run("ibsmctl", &["--sm", &url, "status"]);
    assert!(output.status.success(), "{}", text(&output));
    let output = strangers.run("ibsmctl", &["--sm", &url, "reroute"]);
    assert!(text(&output).contains("has the role viewer"), "{}", text(&output));
}

/// Regression: a responder answered, and forwarded writes of, any program of its host.
#[test]
fn another_user_of_the_host_queries_no_responder_by_envelopes() {
    let Some(strangers) = Strangers::new() else { return };
    let subnet = Subnet::new("another_user_queries");
    let ibsm = subnet.ibsm(&["--local-role", "65534=responder"]);
    ibsm.wait_for("SUBNET UP");
    let listen = free_address().to_string();
    let url = subnet.url();
    let cache = subnet.sandbox.path("cache");
    let args = ["--sm", &url, "--transport", "udp", "--listen", &listen];
    let args = [&args[..], &["--cache-dir", cache.to_str().unwrap()]].concat();
    let ibsa = subnet.sandbox.ours("ibsa", "ibsa", &args);
    ibsa.wait_for("serving generation");
    let storm = ["--transport", "udp", "--target", &listen, "--sm", &url, "--duration", "1"];
    let own = Command::new(binary("ibstorm")).args(storm).output().unwrap();
    assert!(own.status.success(), "{}", text(&own));
    let theirs = strangers.run("ibstorm", &storm);
    assert!(!theirs.status.success(), "{}", text(&theirs));
    ibsa.wait_for("dropping envelopes from an untrusted sender");
}

/// Regression: silent connections kept operators and responders out, and used all descriptors.
#[test]
fn silent_connections_shut_out_no_other() {
    let subnet = Subnet::new("silent_connections");
    let ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let url = subnet.url();
    let address = url.strip_prefix("http://").unwrap();
    let silent: Vec<_> = (0..400).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begun = Instant::now();
    let status = Command::new(binary("ibsmctl")).args(["--sm", &url, "status"]).output().unwrap();
    assert!(status.status.success(), "{}", text(&status));
    // With room for 64 at a time it would take half a minute.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // They are closed.
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(std::io::Read::read(&mut stream, &mut [0]).unwrap(), 0);
    }
}

/// Regression: while ibsm did not run, another user could listen at its address, and programs of
/// root followed him.
#[test]
fn another_user_of_the_host_is_not_taken_for_the_manager() {
    let Some(strangers) = Strangers::new() else { return };
    let subnet = Subnet::new("another_user_as_manager");
    let url = subnet.url();
    let address = url.strip_prefix("http://").unwrap();
    let state = strangers.path("state");
    let mut rival = Command::new(strangers.path("ibsm"))
        .args(["--publish", address, "--node", "node00001 HCA-1"])
        .args(["--socket", subnet.sandbox.socket(), "--state-dir", state.to_str().unwrap()])
        .uid(OTHER_USER)
        .gid(OTHER_USER)
        .current_dir(strangers.0.path())
        .stderr(fs::File::create(strangers.path("log")).unwrap())
        .stdout(fs::File::create(strangers.path("out")).unwrap())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "the rival does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = |more: &[&str]| {
        let mut command = Command::new(binary("ibsmctl"));
        text(&command.args(["--sm", &url]).args(more).arg("status").output().unwrap())
    };
    let refused = status(&[]);
    let args = ["--sm", &url, "--transport", "udp"];
    let ibsa = subnet.sandbox.ours("ibsa", "ibsa", &args);
    let line = ibsa.wait_for("cannot connect to SM");
    let accepted = status(&["--sm-user", "65534"]);
    let _ = rival.kill();
    let _ = rival.wait();
    for shown in [&refused, &line] {
        assert!(shown.contains("is of user 65534") && shown.contains("--sm-user"), "{shown}");
    }
    assert!(accepted.starts_with("subnet manager "), "{accepted}");
}
