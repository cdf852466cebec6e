//! Runs `ibsm` against stock `ibsim` and examines the fabric with stock tools from another node, as
//! a user would. Skipped with a message where the programs are missing.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::ibsim::{Bed, example, signal};
use rustix::process::{Pid, Signal, kill_process};

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
fn every_example_net_comes_up_according_to_stock_tools() {
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
fn a_fatal_error_ends_the_program_unless_it_must_stay() {
    let Some(bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    let ended = bed.ibsm("Hca1").args(["-g", "0x1234"]).output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && errors.contains("port 0x0000000000001234 (-g)"), "{errors}");

    let log = bed.dir.path().join("stays.log");
    let mut ibsm = bed.ibsm("Hca1");
    ibsm.args(["-g", "0x1234", "-y", "-s", "1", "-f"]).arg(&log).stdout(Stdio::null());
    let mut child = ibsm.spawn().unwrap();
    // It finds the same fault again, so it continued after the first time.
    let end = Instant::now() + Duration::from_secs(60);
    while std::fs::read_to_string(&log).unwrap_or_default().matches("is not the local port").count()
        < 2
    {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
    signal(&child, libc::SIGTERM);
    child.wait().unwrap();
}

#[test]
fn hup_sweeps_and_lids_survive_a_restart() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca2port")) else { return };
    let mut ibsm = bed.manage("Hca1", &[]);
    let before = lids(&bed.tool("Hca2", &["ibnetdiscover"]));
    let sweeps = "ibsm_sweeps_total{kind=\"full\"}";
    let full = bed.metric("Hca1", sweeps).unwrap();
    signal(&ibsm, libc::SIGHUP);
    bed.await_metric("Hca1", sweeps, |count| count > full);
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

#[test]
fn hup_reads_log_and_file_settings_again() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca2port")) else { return };
    let config = bed.dir.path().join("sm.conf");
    std::fs::write(&config, "log_prefix one\n").unwrap();
    let mut ibsm = bed.manage("Hca1", &["-F", config.to_str().unwrap()]);
    let state = bed.dir.path().join("state-Hca1");
    assert!(!state.join("opensm-sa.dump").exists());
    let text = "log_prefix two\nlog_max_size 1\naccum_log_file FALSE\nsa_db_dump TRUE\n\
                max_wire_smps 8\nsm_inactive FALSE\nfsync_high_avail_files FALSE\n";
    std::fs::write(&config, text).unwrap();
    signal(&ibsm, libc::SIGHUP);
    let log = bed.dir.path().join("ibsm-1.log");
    bed.await_line(&log, "\ntwo: ");
    let end = Instant::now() + Duration::from_secs(60);
    while !state.join("opensm-sa.dump").exists() {
        assert!(Instant::now() < end, "{}", std::fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("one: ") && !text.contains("at the next start"), "{text}");
    signal(&ibsm, libc::SIGUSR1);
    bed.await_line(&log, "log file reopened");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("SUBNET UP"), "accum_log_file FALSE empties it: {text}");
    signal(&ibsm, libc::SIGTERM);
    ibsm.wait().unwrap();
}

/// At first neither the epoch nor the LIDs can be written; then they can, and nothing else happens
/// in the fabric. Regression: the master stayed without an SA, and a
/// restart assigned other LIDs.
#[test]
fn state_that_cannot_be_written_is_written_once_possible() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    let state = bed.dir.path().join("state-Hca1");
    // A directory in place of a file prevents even root from writing it.
    for name in ["epoch", "guid2lid.new"] {
        std::fs::create_dir_all(state.join(name).join("in-the-way")).unwrap();
    }
    let mut ibsm = bed.manage("Hca1", &[]);
    bed.await_metric("Hca1", "ibsm_session_refused", |refused| refused == 1.0);
    bed.await_metric("Hca1", "ibsm_state_files_behind", |files| files >= 1.0);
    let status = bed.await_status("Hca1", &[], "a status", |_| true);
    assert_eq!(status["epoch"], 0, "no session begins: {status}");
    assert!(!status["warnings"].as_array().unwrap().is_empty(), "{status}");
    for name in ["epoch", "guid2lid.new"] {
        std::fs::remove_dir_all(state.join(name)).unwrap();
    }
    bed.await_metric("Hca1", "ibsm_session_refused", |refused| refused == 0.0);
    bed.await_metric("Hca1", "ibsm_state_files_behind", |files| files == 0.0);
    bed.await_status("Hca1", &[], "a session", |status| status["epoch"] != 0);
    assert!(state.join("guid2lid").is_file() && state.join("epoch").is_file());
    signal(&ibsm, libc::SIGTERM);
    ibsm.wait().unwrap();
}

/// The simulator keeps the slot of a client that was killed, and refuses another manager on its
/// node meanwhile.
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
fn a_second_manager_goes_to_standby() {
    let Some(mut bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    let mut first = bed.manage("Hca1", &["-p", "15"]);
    let log = bed.dir.path().join("second.log");
    let mut second = bed.ibsm("Hca3");
    second.args(["-p", "9", "-f"]).arg(&log).stdout(Stdio::null());
    let mut second = second.spawn().unwrap();
    bed.await_status("Hca3", &[], "standby", |status| status["sm_state"] == "standby");
    let info = bed.tool("Hca2", &["sminfo"]);
    // A manager that ends once the subnet is up does not wait for the master's end.
    let once = bed.ibsm("Hca4").arg("-o").output().unwrap();
    assert_eq!(once.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&once.stderr);
    assert!(errors.contains("another subnet manager is master, at "), "{errors}");
    for child in [&mut first, &mut second] {
        signal(child, libc::SIGTERM);
        child.wait().unwrap();
    }
    assert!(info.contains("priority 15 state 3 SMINFO_MASTER"), "{info}");
}

/// The log is rotated as logrotate does: moved away, then SIGUSR1.
#[test]
fn in_the_background_it_has_a_pidfile_and_its_log_is_rotated() {
    let Some(bed) = Bed::new(&example("net.2sw2path4hca")) else { return };
    let file = |name: &str| bed.dir.path().join(name);
    let (log, pidfile) = (file("ibsm.log"), file("ibsm.pid"));
    // A pidfile left by a killed manager; the process that has its number now does not matter.
    std::fs::write(&pidfile, "1\n").unwrap();
    let ibsm = |node: &str| {
        let mut ibsm = bed.ibsm(node);
        ibsm.args(["-B", "--log_prefix", "rail1 ", "--pidfile"]).arg(&pidfile).arg("-f").arg(&log);
        ibsm
    };
    assert!(ibsm("Hca1").status().unwrap().success(), "the caller must not wait");
    bed.await_line(&log, "SUBNET UP");
    assert!(std::fs::read_to_string(&log).unwrap().lines().all(|line| line.starts_with("rail1: ")));
    let pid = std::fs::read_to_string(&pidfile).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let second = bed.ibsm("Hca3").arg("--pidfile").arg(&pidfile).output().unwrap();
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(errors.contains(&format!("in use by process {}", pid.as_raw_nonzero())), "{errors}");

    std::fs::rename(&log, file("ibsm.log.1")).unwrap();
    kill_process(pid, Signal::USR1).unwrap();
    // It writes to a new file of this name.
    bed.await_line(&log, "rail1: ");
    kill_process(pid, Signal::TERM).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while pidfile.exists() {
        assert!(Instant::now() < end, "the pidfile must be removed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn startup_errors_state_the_remedy() {
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
        let (log, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        let reason = errors.trim_start_matches("ibsm: ").trim_end();
        assert!(
            !String::from_utf8_lossy(&log).contains(reason),
            "it must be reported once: {reason}"
        );
        errors
    };
    let text = run(&[]);
    assert!(text.contains("no ibsim answers") && text.contains("ibfabric serve"), "{text}");
    let text = run(&["-l", "9"]);
    assert!(text.contains("lmc must be 0 to 7, not 9"), "{text}");
    let config = dir.path().join("sm.conf");
    std::fs::write(&config, "lmc 1\nsweep_intervall 3\n").unwrap();
    let text = run(&["-F", config.to_str().unwrap(), "--strict"]);
    assert!(
        text.contains("sm.conf:2: unknown key 'sweep_intervall'")
            && text.contains("did you mean 'sweep_interval'"),
        "{text}"
    );
    // Covers all files that are read at start, including those whose mistakes are otherwise only
    // logged.
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        format!("{name} {}\n", path.display())
    };
    let keys = write("prefix_routes_file", "* any\n")
        + &write("node_name_map_name", "spine1\n")
        + &write("per_module_logging_file", "sweeep 0x3\n");
    std::fs::write(&config, keys).unwrap();
    let text = run(&["-F", config.to_str().unwrap(), "--strict"]);
    for mistake in ["_file:1: line ignored: 'any'", "name:1: 'spine1'", "file:1: 'sweeep'"] {
        assert!(text.contains(mistake), "{text}");
    }
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
    let errors = String::from_utf8(run("-c", &["-A"]).stderr).unwrap();
    assert!(errors.contains("no effect: use_ucast_cache"), "remarks must be printed: {errors}");
    assert!(run("-c", &["-l", "3"]).status.success());
    // Writes the template again from the values that were read.
    let second = dir.path().join("second.conf");
    assert!(run("-F", &["-c", second.to_str().unwrap()]).status.success());
    assert_eq!(std::fs::read_to_string(&second).unwrap(), text);
}
