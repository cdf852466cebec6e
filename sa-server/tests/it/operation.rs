//! What an operator may do to a running responder.

use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ends the program when the test ends, also if it fails.
pub(crate) struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a responder; returns its log, standard output and error together.
pub(crate) fn start(arguments: &[&str]) -> (Ended, BufReader<PipeReader>) {
    let (reader, writer) = std::io::pipe().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_ibsa"))
        .args(["--sm", "http://127.0.0.1:1", "--transport", "udp"])
        .args(arguments)
        .env("RUST_LOG", "info")
        .stdin(Stdio::null())
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    (Ended(child), BufReader::new(reader))
}

/// The word of the log that follows `before`.
pub(crate) fn logged<'a>(log: &'a str, before: &str) -> &'a str {
    log.split_once(before).unwrap().1.split([' ', '/', '\n']).next().unwrap()
}

/// The log until it is ready for queries, and what follows.
pub(crate) fn ready(mut log: BufReader<PipeReader>) -> (String, BufReader<PipeReader>) {
    let mut text = String::new();
    while !text.contains("ready for queries") {
        assert_ne!(log.read_line(&mut text).unwrap(), 0, "{text}");
    }
    (text, log)
}

#[test]
fn datagrams_that_are_no_queries_show_in_the_metrics() {
    let (_child, log) = start(&["--http", "127.0.0.1:0"]);
    let (text, _log) = ready(log);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for garbage in [&b"garbage"[..], &[0xee; ib_mad::transport::udp::DATAGRAM_LEN]] {
        socket.send_to(garbage, logged(&text, "front_door=")).unwrap();
    }
    let wanted = ["length", "envelope"].map(|wrong| {
        format!("ibsa_malformed_datagrams_total{{worker=\"udp-0\",wrong=\"{wrong}\"}} 1\n")
    });
    // A worker takes what has arrived in its own time.
    let shown = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let mut connection = TcpStream::connect(logged(&text, "metrics at http://")).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut metrics = String::new();
        connection.read_to_string(&mut metrics).unwrap();
        wanted.iter().all(|line| metrics.contains(line))
    });
    assert!(shown, "{wanted:?}");
}

#[test]
fn neither_a_closed_log_nor_a_hangup_ends_it() {
    let (mut child, log) = start(&[]);
    // Signals are taken before the first SM is tried.
    let reported = log
        .lines()
        .map(Result::unwrap)
        .find(|line| line.contains("http://127.0.0.1:1: Connection refused"));
    assert!(reported.is_some(), "an unreachable SM is reported at once");
    // The reader is gone: what is logged from here on cannot be written.
    let pid = child.0.id() as libc::pid_t;
    // SAFETY: plain system calls, to a child that has not been waited for.
    unsafe {
        assert_eq!(libc::kill(pid, libc::SIGHUP), 0);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(libc::kill(pid, libc::SIGTERM), 0);
    }
    assert!(child.0.wait().unwrap().success());
}
