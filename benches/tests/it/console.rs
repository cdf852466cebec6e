//! OpenSM's console, driven by a socket as scripts do.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use benches::sandbox::{binary, free_address};

use crate::support::Subnet;

const PROMPT: &str = "OpenSM $ ";
const PATIENCE: Duration = Duration::from_secs(20);

struct Client(TcpStream);

impl Client {
    fn connect(port: &str) -> Self {
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// What is sent until this text, which is left out.
    fn read_until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let mut byte = [0];
            assert_eq!(self.0.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&text));
            text.push(byte[0]);
        }
        text.truncate(text.len() - end.len());
        String::from_utf8(text).unwrap()
    }

    fn ask(&mut self, line: &str) -> String {
        self.0.write_all(format!("{line}\n").as_bytes()).unwrap();
        self.read_until(PROMPT)
    }

    /// Asks again until the answer contains this: the state is updated once a second.
    fn ask_until(&mut self, line: &str, expected: &str) -> String {
        let begun = Instant::now();
        loop {
            let answer = self.ask(line);
            if answer.contains(expected) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{line}: {answer}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_ok()
    }
}

fn managed(name: &str, more: &[&str]) -> (Subnet, benches::sandbox::Program, String) {
    let subnet = Subnet::new(name);
    let port = free_address().port().to_string();
    let console = ["--console", "loopback", "-C", &port];
    let ibsm = subnet.ibsm(&[&console, more].concat());
    ibsm.wait_for("SUBNET UP");
    (subnet, ibsm, port)
}

#[test]
fn scripts_read_the_subnet_and_give_orders() {
    let (_subnet, ibsm, port) = managed("console", &[]);
    let mut client = Client::connect(&port);
    assert_eq!(client.read_until(PROMPT), "");
    let status = client.ask_until("status", "   SM State             : Master     \n");
    assert!(status.contains("        SELF\n"), "{status}");
    client.ask_until("querylid 1", "Query results for LID 1\n   GUID                : 0x");
    let ports = client.ask("portstatus ca");
    assert!(ports.starts_with("\"Channel Adapter\" port status:\n   16 port(s) scanned on 16 "));
    assert!(client.ask("dump_conf").contains("\nconsole loopback\n"));
    assert_eq!(client.ask("resweep heavy"), "");
    ibsm.wait_for("starting a heavy sweep");
    assert_eq!(client.ask("reroute"), "");
    ibsm.wait_for("recomputing all routes");
    // Regression: a line of 100,000 characters ended the session.
    let long = client.ask(&"x".repeat(100_000));
    assert_eq!(long, "Line too long: at most 4096 bytes\n");
    client.0.write_all(b"quit\n").unwrap();
    assert!(client.is_closed());
}

/// Regression: what was set was shown only once the service loop had looked for orders and updated
/// its status, each once a second: scripts that set and check failed.
#[test]
fn what_was_set_is_shown_at_once() {
    let (subnet, _ibsm, port) = managed("console_at_once", &[]);
    let mut client = Client::connect(&port);
    client.read_until(PROMPT);
    client.ask_until("status", "   SM State             : Master     \n");
    let ctl = |words: &[&str]| {
        let url = subnet.url();
        let output = Command::new(binary("ibsmctl")).args(["--sm", &url]).args(words).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for (round, number) in (1..).zip([9, 3, 11]) {
        let begun = Instant::now();
        client.ask(&format!("priority {number}"));
        assert_eq!(client.ask("priority"), format!("Current sm-priority is {number}\n"));
        client.ask(&format!("loglevel {number:#x}"));
        assert_eq!(client.ask("loglevel"), format!("Current log level is {number:#x}\n"));
        let sweeping = u8::from(round % 2 == 0);
        client.ask(["sweep off", "sweep on"][usize::from(sweeping)]);
        let flag = format!("   Sweeping enabled               : {sweeping}\n");
        assert!(client.ask("status").contains(&flag), "{flag}");
        // Three orders would take as many seconds.
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        let number = (number - 1).to_string();
        ctl(&["priority", &number]);
        assert_eq!(ctl(&["priority"]), format!("{number}\n"));
        ctl(&["log-level", &number]);
        assert_eq!(ctl(&["log-level"]), format!("{:#x}\n", number.parse::<u32>().unwrap()));
        ctl(&["sweeping", "on"]);
        assert_eq!(ctl(&["sweeping"]), "sweeps are on\n");
        ctl(&["sweeping", "off"]);
        assert!(ctl(&["sweeping"]).starts_with("sweeps are off"));
        assert!(ctl(&["status"]).contains("\nsweeps          off: "));
    }
}

/// The words of the console are commands, too.
#[test]
fn commands_have_the_words_of_the_console() {
    let (subnet, ibsm, port) = managed("console_commands", &[]);
    let mut client = Client::connect(&port);
    client.read_until(PROMPT);
    let run = |words: &[&str]| {
        let url = subnet.url();
        let output = Command::new(binary("ibsmctl")).args(["--sm", &url]).args(words).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let lid = client.ask_until("querylid 2", "Query results for LID 2\n");
    assert_eq!(lid, format!("Query results for LID 2\n{}", run(&["querylid", "2"])));
    assert_eq!(client.ask("switchbalance verbose"), run(&["switchbalance", "--verbose"]));
    assert_eq!(client.ask("dump_conf"), run(&["dump-conf"]));
    let json: serde_json::Value = serde_json::from_str(&run(&["portstatus", "--json"])).unwrap();
    assert_eq!((&json["type"], &json["down"]), (&"ALL".into(), &0.into()), "{json}");
    assert_eq!(run(&["lidbalance"]), "no port is unbalanced\n");
    run(&["sweeping", "off"]);
    ibsm.wait_for("sweeps turned off on request");
    run(&["sweep"]);
    ibsm.wait_for("sweep requested");
    // A sweep takes less, if it does not wait.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(ibsm.log().matches("SUBNET UP").count(), 1);
    run(&["sweeping", "on"]);
    ibsm.wait_for_nth("SUBNET UP", 2);
    run(&["priority", "9"]);
    ibsm.wait_for("priority 9 requested");
    assert_eq!(client.ask("priority"), "Current sm-priority is 9\n");
    assert_eq!(lid, format!("Query results for LID 2\n{}", run(&["querylid", "0x2"])));
    assert_eq!(run(&["log-level"]), "0x3\n");
    let url = subnet.url();
    let refused = Command::new(binary("ibsmctl")).args(["--sm", &url, "querylid", "999"]).output();
    let refused = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(refused.contains("no port has LID 999"), "{refused}");
}

#[test]
fn commands_list_the_fabric_and_wait_for_sweeps() {
    let (subnet, _ibsm, _port) = managed("console_lists", &[]);
    let ctl = |words: &[&str]| {
        let url = subnet.url();
        let output = Command::new(binary("ibsmctl")).args(["--sm", &url]).args(words).output();
        let output = output.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let run = |words: &[&str]| {
        let (is_done, out, err) = ctl(words);
        assert!(is_done, "{words:?}: {err}");
        out
    };
    let json = |words: &[&str]| -> serde_json::Value {
        serde_json::from_str(&run(&[words, &["--json"]].concat())).unwrap()
    };
    // The subnet is published after it is up.
    let deadline = Instant::now() + Duration::from_secs(60);
    let hosts = loop {
        let hosts = json(&["nodes", "--type", "ca"]);
        if hosts.as_array().unwrap().len() == 16 {
            break hosts;
        }
        assert!(Instant::now() < deadline, "{hosts}");
        thread::sleep(Duration::from_millis(20));
    };
    let name = hosts[3]["name"].as_str().unwrap();
    let host = name.split(' ').next().unwrap();
    // By each of its names.
    let guid = hosts[3]["guid"].as_str().unwrap();
    let lid = hosts[3]["lids"][0].to_string();
    for called in [name, host, guid, &lid] {
        assert_eq!(json(&["nodes", called])[0], hosts[3], "{called}");
    }
    assert!(run(&["nodes", host]).contains(&format!("{name}  ca    {guid}  {lid:<3}  1/1\n")));
    // A link is the same from both ends, and listed once.
    let port = &json(&["ports", host])[0];
    let links = json(&["links", host]);
    assert_eq!(links.as_array().unwrap().len(), 1, "{links}");
    assert_eq!((&links[0]["link"], &port["state"]), (&port["link"], &"active".into()));
    assert!([&links[0]["from"], &links[0]["to"]].contains(&&port["peer"]), "{links} {port}");
    let all = json(&["links"]).as_array().unwrap().len();
    assert_eq!(json(&["ports"]).as_array().unwrap().len(), 2 * all);
    // A name that no node has, and one that several have.
    let (is_done, _, words) = ctl(&["ports", &format!("x{host}")]);
    assert!(!is_done && words.contains(&format!("did you mean '{host}'?")), "{words}");
    let (is_done, _, words) = ctl(&["ports", &host[..3]]);
    assert!(!is_done && words.contains("nodes match"), "{words}");
    assert!(ctl(&["switchbalance", host]).2.contains("is no switch"));
    // What waits, ends after the sweep that it requested.
    let ended = run(&["sweep", "--wait"]);
    assert!(ended.contains("full sweep in ") && ended.contains(": requested"), "{ended}");
    assert!(run(&["reroute", "--wait"]).contains("full sweep in "));
    assert!(run(&["reload", "--wait"]).contains("full sweep in "));
    for words in [["sweep", "--wait"], ["reroute", "--wait"], ["reload", "--wait"]] {
        let ended = json(&words);
        assert_eq!(ended["ended"], true, "{words:?}: {ended}");
        let last = ended["events"].as_array().unwrap().last().unwrap();
        assert_eq!(last["kind"], "sweep_end", "{ended}");
    }
    let expected: [(&[&str], &str, serde_json::Value); _] = [
        (&["priority", "5"], "priority", 5.into()),
        (&["priority"], "priority", 5.into()),
        (&["log-level", "0x7"], "log_level", 7.into()),
        (&["log-level"], "log_level", 7.into()),
        (&["reload"], "ordered", "reload".into()),
        (&["reroute"], "ordered", "reroute".into()),
        (&["sweep"], "ordered", "heavy_sweep".into()),
        (&["sweep", "--light"], "ordered", "light_sweep".into()),
        (&["dump-conf"], "console", "loopback".into()),
        (&["partition", "create", "0x5", "--name", "blue"], "pkey", "0x0005".into()),
        (&["partition", "add", "0x5", guid], "pkey", "0x0005".into()),
        (&["partition", "remove", "5", guid], "pkey", "0x0005".into()),
        (&["partition", "delete", "0x5"], "pkey", "0x0005".into()),
        (&["baseline", "clear"], "was_set", false.into()),
        (&["sweeping"], "sweeping", true.into()),
        (&["sweeping", "off"], "sweeping", false.into()),
        (&["sweep"], "sweeping", false.into()),
    ];
    for (words, key, value) in expected {
        assert_eq!(json(words)[key], value, "{words:?}");
    }
    assert_eq!(json(&["partition", "dump"]), serde_json::json!([]));
    // Regression: with sweeps off, they waited for ten minutes without a word.
    for words in [["sweep", "--wait"], ["reroute", "--wait"], ["reload", "--wait"]] {
        let (is_done, _, err) = ctl(&words);
        assert!(!is_done && err.contains("sweeps are off"), "{words:?}: {err}");
    }
    assert!(run(&["sweep"]).contains("once sweeps are on again"));
    assert_eq!(json(&["sweeping", "on"])["sweeping"], true);
    assert!(run(&["mcast", "--summary"]).ends_with("groups: 1, MLIDs: 1, members: 0\n"));
    assert_eq!(run(&["mcast", "--of", host]), "no multicast groups\n");
}

/// As with OpenSM, and a client that does nothing cannot keep others out.
#[test]
fn a_second_client_may_end_the_session_of_the_first() {
    let (_subnet, _ibsm, port) = managed("console_second", &[]);
    let mut first = Client::connect(&port);
    first.read_until(PROMPT);
    let asked = "OpenSM Console connection already in use\n   kill other session (y/n)? ";
    let mut second = Client::connect(&port);
    second.read_until(asked);
    second.0.write_all(b"n\n").unwrap();
    assert!(second.is_closed());
    assert!(first.ask("version").starts_with("ibsm "), "it goes on");
    let mut third = Client::connect(&port);
    third.read_until(asked);
    third.0.write_all(b"y\n").unwrap();
    third.read_until(PROMPT);
    assert!(first.is_closed());
    assert!(third.ask("version").starts_with("ibsm "));
}

#[test]
fn another_user_of_the_host_has_its_role_at_the_console() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let ask = |port: &str, line: &str| {
        let script =
            format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{line}\\nquit\\n' >&3; cat <&3");
        let output = Command::new("bash").args(["-c", &script]).uid(65534).gid(65534).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let (_subnet, _ibsm, port) = managed("console_stranger", &[]);
    assert!(ask(&port, "status").starts_with("permission denied"));
    let (_subnet, _ibsm, port) = managed("console_viewer", &["--local-role", "65534=viewer"]);
    let begun = Instant::now();
    while !ask(&port, "status").contains("   SA State             : Ready\n") {
        assert!(begun.elapsed() < PATIENCE);
    }
    for order in ["reroute", "dump_conf", "dump_portguid file /tmp/x ."] {
        assert!(ask(&port, order).contains("permission denied"), "{order}");
    }
}
