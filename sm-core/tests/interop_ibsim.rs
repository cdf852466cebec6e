//! `ibsm` against stock `ibsim`, looked at with stock tools from another node: what a user does.
//! Skipped, with a line that says so, where the programs are missing.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "/usr/share/doc/ibsim-utils/net-examples";
const PROGRAMS: [&str; 6] =
    ["ibsim", "ibsim-run", "ibnetdiscover", "iblinkinfo", "ibroute", "ibtracert"];

/// A simulator and what runs against it; all end with it.
struct Bed {
    socket: String,
    dir: tempfile::TempDir,
    children: Vec<Child>,
    /// Managers started so far; each has a log of its own.
    managers: usize,
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Bed {
    /// A simulator of `net`, or `None` if the programs are not there.
    fn new(net: &Path) -> Option<Self> {
        let missing = PROGRAMS.iter().find(|name| find(name).is_none());
        if let Some(name) = missing {
            eprintln!("skipped: {name} is not installed (ibsim-utils, infiniband-diags)");
            return None;
        }
        if !net.exists() {
            eprintln!("skipped: {} is not there", net.display());
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut bed = Self {
            socket: format!("sm-core-{}-{number}", std::process::id()),
            dir: tempfile::tempdir().unwrap(),
            children: Vec::new(),
            managers: 0,
        };
        let log = File::create(bed.dir.path().join("ibsim.log")).unwrap();
        let mut ibsim = bed.command("ibsim");
        ibsim.args(["-s", "-n"]).arg(net).stdout(log.try_clone().unwrap()).stderr(log);
        bed.children.push(ibsim.spawn().unwrap());
        bed.await_socket();
        Some(bed)
    }

    fn await_socket(&self) {
        let name = format!("@{}:ctl", self.socket);
        let end = Instant::now() + Duration::from_secs(20);
        while !std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name) {
            assert!(Instant::now() < end, "ibsim did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
        // libumad2sim leaves a directory of files behind where it runs.
        command.current_dir(self.dir.path());
        command.env("IBSIM_SOCKNAME", &self.socket).stdin(Stdio::null());
        command
    }

    /// `ibsm` on `node`, with a state directory of that name.
    fn ibsm(&self, node: &str) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_ibsm"));
        let state = self.dir.path().join(format!("state-{node}"));
        command.args(["--transport", "ibsim", "--publish", "127.0.0.1:0", "--node", node]);
        command.arg("--state-dir").arg(state).env_remove("RUST_LOG").env_remove("OSM_TMP_DIR");
        command
    }

    /// Starts `ibsm` on `node` and waits until the subnet is up. Yields its process.
    fn manage(&mut self, node: &str, arguments: &[&str]) -> Child {
        self.managers += 1;
        let log = self.dir.path().join(format!("ibsm-{}.log", self.managers));
        let mut ibsm = self.ibsm(node);
        ibsm.args(arguments).arg("-f").arg(&log).stdout(Stdio::null());
        let child = ibsm.spawn().unwrap();
        self.await_line(&log, "SUBNET UP");
        child
    }

    fn await_line(&self, log: &Path, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            if log.contains(text) {
                return;
            }
            assert!(Instant::now() < end, "no '{text}' in:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a stock tool prints, run on `node`.
    fn tool(&self, node: &str, words: &[&str]) -> String {
        let mut command = self.command("ibsim-run");
        let program = find(words[0]).unwrap();
        let output = command.arg(program).args(&words[1..]).env("SIM_HOST", node).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A program on the usual paths; the tools live in /usr/sbin, which not everyone searches.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/sbin", "/usr/bin", "/sbin"]);
    places.map(|place| Path::new(place).join(program)).find(|path| path.is_file())
}

fn example(name: &str) -> PathBuf {
    Path::new(EXAMPLES).join(name)
}

/// Base LIDs as `ibnetdiscover` shows them: of switches, and of other ports.
fn lids(topology: &str) -> (Vec<u16>, Vec<u16>) {
    let after = |line: &str, marker: &str| -> Option<u16> {
        line.split(marker).nth(1)?.split_whitespace().next()?.parse().ok()
    };
    let lines = || topology.lines();
    let switches = lines().filter_map(|line| after(line, "base port 0 lid ")).collect();
    let others = lines()
        .filter(|line| line.starts_with('[') && line.contains("# lid "))
        .filter_map(|line| after(line, "# lid "))
        .collect();
    (switches, others)
}

#[test]
fn every_example_net_comes_up_as_stock_tools_see_it() {
    for name in ["net", "net.1", "net.2sw2path", "net.2sw2path4hca", "net.2sw2path4hca2port"] {
        let Some(bed) = Bed::new(&example(name)) else { return };
        let output = bed.ibsm("Switch1").arg("-o").output().unwrap();
        let log = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && log.contains("SUBNET UP"), "{name}: {log}");

        let topology = bed.tool("Hca1", &["ibnetdiscover"]);
        let (switches, others) = lids(&topology);
        assert!(!switches.is_empty() && others.len() >= 2, "{name}: {topology}");
        let mut all = [&switches[..], &others[..]].concat();
        all.sort_unstable();
        assert_eq!(all, (1..=all.len() as u16).collect::<Vec<_>>(), "{name}: {topology}");

        let links = bed.tool("Hca1", &["iblinkinfo"]);
        let up: Vec<_> = links.lines().filter(|line| line.contains("LinkUp")).collect();
        assert!(!up.is_empty() && up.iter().all(|line| line.contains("Active/")), "{links}");

        for switch in &switches {
            let table = bed.tool("Hca1", &["ibroute", &switch.to_string()]);
            assert!(table.contains(&format!("{} valid lids dumped", all.len())), "{name}: {table}");
        }
        for (from, to) in others.iter().zip(others.iter().rev()).filter(|(a, b)| a != b) {
            let trace = bed.tool("Hca1", &["ibtracert", &from.to_string(), &to.to_string()]);
            assert!(trace.contains(&format!("lid {to}-{to}")), "{name}: {trace}");
            assert!(trace.lines().last().is_some_and(|line| line.starts_with("To ca")), "{trace}");
        }
    }
}

#[test]
fn a_running_manager_says_that_it_is_master_and_ends_cleanly() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    let mut ibsm = bed.manage("Hca1", &["-p", "9"]);
    let info = bed.tool("Hca2", &["sminfo"]);
    assert!(info.contains("priority 9 state 3 SMINFO_MASTER"), "{info}");
    let lid = info.split_whitespace().nth(3).unwrap().to_owned();
    let before = bed.tool("Hca2", &["smpquery", "portinfo", &lid]);
    assert!(before.contains("IsSM\n"), "{before}");

    signal(&ibsm, libc::SIGTERM);
    assert!(ibsm.wait().unwrap().success());
    let after = bed.tool("Hca2", &["smpquery", "portinfo", &lid]);
    assert!(after.contains("LinkState:.......................Active"), "{after}");
    assert!(!after.contains("IsSM\n"), "{after}");
}

#[test]
fn hup_sweeps_and_lids_survive_a_restart() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca2port")) else { return };
    let mut ibsm = bed.manage("Hca1", &[]);
    let before = lids(&bed.tool("Hca2", &["ibnetdiscover"]));
    signal(&ibsm, libc::SIGHUP);
    bed.await_line(&bed.dir.path().join("ibsm-1.log"), "HUP: heavy sweep");
    signal(&ibsm, libc::SIGTERM);
    ibsm.wait().unwrap();

    let state = bed.dir.path().join("state-Hca1").join("guid2lid");
    let kept = std::fs::read_to_string(state).unwrap();
    assert!(kept.contains("0x0000000000200000 0x00"), "{kept}");
    let mut ibsm = bed.manage("Hca1", &[]);
    assert_eq!(lids(&bed.tool("Hca2", &["ibnetdiscover"])), before);
    signal(&ibsm, libc::SIGTERM);
    ibsm.wait().unwrap();
}

/// The simulator keeps the slot of a client that was killed, and refuses another manager on its
/// node while it does.
#[test]
fn a_manager_comes_back_after_it_was_killed() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    for _ in 0..3 {
        let mut ibsm = bed.manage("Hca1", &[]);
        ibsm.kill().unwrap();
        ibsm.wait().unwrap();
    }
    let mut ibsm = bed.manage("Hca1", &[]);
    assert!(bed.tool("Hca2", &["sminfo"]).contains("SMINFO_MASTER"));
    ibsm.kill().unwrap();
    ibsm.wait().unwrap();
}

#[test]
fn a_second_manager_stands_by() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    let mut first = bed.manage("Hca1", &[]);
    let log = bed.dir.path().join("second.log");
    let mut second = bed.ibsm("Hca3");
    second.args(["-p", "15", "-f"]).arg(&log).stdout(Stdio::null());
    let mut second = second.spawn().unwrap();
    bed.await_line(&log, "standing by");
    let info = bed.tool("Hca2", &["sminfo"]);
    // One that is to end once the subnet is up does not wait for the master's end.
    let once = bed.ibsm("Hca4").arg("-o").output().unwrap();
    assert_eq!(once.status.code(), Some(1));
    let told = String::from_utf8_lossy(&once.stderr);
    assert!(told.contains("another subnet manager comes before us, at "), "{told}");
    for child in [&mut first, &mut second] {
        signal(child, libc::SIGTERM);
        child.wait().unwrap();
    }
    assert!(info.contains("priority 0 state 3 SMINFO_MASTER"), "{info}");
}

#[test]
fn what_cannot_work_is_said_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ibsm"))
            .args(["--publish", "127.0.0.1:0", "--state-dir"])
            .arg(dir.path())
            .args(arguments)
            .env("IBSIM_SOCKNAME", format!("nobody-{}", std::process::id()))
            .output()
            .unwrap();
        assert!(!output.status.success());
        let (log, told) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        let reason = told.trim_start_matches("ibsm: ").trim_end();
        assert!(!String::from_utf8_lossy(&log).contains(reason), "it is told once: {reason}");
        told
    };
    let text = run(&[]);
    assert!(text.contains("no ibsim answers") && text.contains("ibfabric serve"), "{text}");
    let text = run(&["-l", "9"]);
    assert!(text.contains("lmc must be 0 to 7, not 9"), "{text}");
    let config = dir.path().join("sm.conf");
    std::fs::write(&config, "lmc 1\nsweep_intervall 3\n").unwrap();
    let text = run(&["-F", config.to_str().unwrap()]);
    assert!(text.contains("sm.conf:2: unknown key") && text.contains("sweep_interval"), "{text}");
}

#[test]
fn the_template_written_by_c_is_taken_by_f() {
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("ibsm.conf");
    let run = |option: &str, more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_ibsm"))
            .arg(option)
            .arg(&template)
            .args(more)
            .output()
            .unwrap()
    };
    assert!(run("-c", &["-l", "3"]).status.success());
    let text = std::fs::read_to_string(&template).unwrap();
    assert!(text.contains("\nlmc 3\n"), "{text}");
    // Written once more from what it was read to.
    let second = dir.path().join("second.conf");
    assert!(run("-F", &["-c", second.to_str().unwrap()]).status.success());
    assert_eq!(std::fs::read_to_string(&second).unwrap(), text);
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: kill takes any process id; this one is a child of ours that was not waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, signal) };
}
