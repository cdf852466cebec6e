//! Operation of a running simulator: commands, signals and its error messages.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const IBFABRIC: &str = env!("CARGO_BIN_EXE_ibfabric");

/// Ends the program with the test, regardless of its result.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn neither_a_closed_log_nor_a_hangup_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let net = directory.path().join("net");
    std::fs::write(&net, "Switch 4 \"S1\"\n[1] \"H1\"[1]\n\nHca 1 \"H1\"\n[1] \"S1\"[1]\n")
        .unwrap();
    let socket = format!("operation-{}", std::process::id());
    let (reader, writer) = std::io::pipe().unwrap();
    let child = Command::new(IBFABRIC)
        .args(["serve", "--loss", "5%", "--socket", &socket])
        .arg(&net)
        .env("RUST_LOG", "info")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    let ready =
        BufReader::new(reader).lines().map(Result::unwrap).find(|line| line.contains("ready"));
    assert!(ready.is_some());
    // The reader is gone: standard error is closed. SAFETY: no pointers are passed, and the child
    // has not been waited for.
    assert_eq!(unsafe { libc::kill(child.0.id() as libc::pid_t, libc::SIGHUP) }, 0);
    let ctl = |words: &[&str]| {
        let output =
            Command::new(IBFABRIC).args(["ctl", "--socket", &socket]).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(ctl(&["loss", "0.05"]), "ok\n");
    assert!(ctl(&["check"]).contains("\"whole\":false"));
    assert_eq!(ctl(&["quit"]), "ok\n");
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn a_net_file_that_is_missing_is_named_once() {
    let output = Command::new(IBFABRIC).args(["serve", "/no/such.net"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        text,
        "ibfabric: cannot read /no/such.net: No such file or directory (os error 2)\n"
    );
    assert_eq!(output.status.code(), Some(1));
}
