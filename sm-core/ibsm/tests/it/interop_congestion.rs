//! Congestion control beside OpenSM's, `ibccquery` and `ibccconfig`.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ib_mad::transport::ibsim::{Ibsim, IbsimOptions, Role};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::congestion as cc;
use ib_mad::wire::mad::{MadHeader, Method, MgmtClass};

use crate::ibsim::{Bed, example, find, signal};
use crate::interop_opensm::Running;
use crate::skip::skip;

/// Settings with something in every attribute; the table has two blocks.
fn settings() -> String {
    let table: Vec<String> = (0..70).map(|n| format!("{}:{n}", n % 4)).collect();
    format!(
        "congestion_control TRUE\ncc_key 0x1122334455667788\n\
         cc_sw_cong_setting_control_map 0x1f\ncc_sw_cong_setting_victim_mask 0x102\n\
         cc_sw_cong_setting_credit_mask 0x30000000000000000\ncc_sw_cong_setting_threshold 0xd\n\
         cc_sw_cong_setting_packet_size 8\ncc_sw_cong_setting_credit_starvation_threshold 0x9\n\
         cc_sw_cong_setting_credit_starvation_return_delay 2:300\n\
         cc_sw_cong_setting_marking_rate 1000\ncc_ca_cong_setting_port_control 1\n\
         cc_ca_cong_setting_control_map 0xffff\ncc_ca_cong_setting_ccti_timer 0 150\n\
         cc_ca_cong_setting_ccti_increase 0 1\ncc_ca_cong_setting_trigger_threshold 0 2\n\
         cc_ca_cong_setting_ccti_min 0 3\ncc_ca_cong_setting_ccti_timer 15 65535\ncc_cct {}\n",
        table.join(",")
    )
}

fn bed(programs: &[&str]) -> Option<Bed> {
    if let Some(program) = programs.iter().find(|program| find(program).is_none()) {
        skip(format_args!("{program} is not installed"));
        return None;
    }
    Bed::on_ibfabric(&example("net.2sw2path4hca"))
}

/// A client in place of a node's agent: answers every request with what it was sent, and keeps
/// Set()s.
struct Recorder {
    sets: Arc<Mutex<Vec<[u8; MAD_LEN]>>>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    fn at(bed: &Bed, node: &str) -> Self {
        assert_eq!(bed.console(&["congestion-class", node, "off"]).trim(), "ok");
        let options = IbsimOptions {
            socket: bed.socket.clone(),
            node: Some(node.to_owned()),
            role: Role::Client,
            ..IbsimOptions::default()
        };
        let mut client = Ibsim::connect(&options).unwrap();
        let methods = 1 << Method::GET.0 | 1 << Method::SET.0;
        assert!(client.declare_methods(MgmtClass::CONGESTION, methods).unwrap());
        let (sets, end) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(AtomicBool::new(false)));
        let (kept, ends) = (sets.clone(), end.clone());
        let thread = std::thread::spawn(move || {
            let mut batch = vec![Packet::default(); 16];
            while !ends.load(Relaxed) {
                let received = client.receive(&mut batch).unwrap();
                for packet in &mut batch[..received] {
                    if MadHeader::of(&packet.mad).method() == Method::SET {
                        kept.lock().unwrap().push(packet.mad);
                    }
                    MadHeader::of_mut(&mut packet.mad).set_method(Method::GET_RESP);
                }
                client.send(&batch[..received]).unwrap();
                if received == 0 {
                    let mut interests: Vec<_> =
                        client.descriptor().into_iter().map(Interest::read).collect();
                    wait(&mut interests, Some(Duration::from_millis(50))).unwrap();
                }
            }
        });
        Self { sets, end, thread: Some(thread) }
    }

    /// The first `count` Set()s, by attribute and modifier, without transaction ids; forgets them.
    fn take(&self, count: usize) -> Vec<[u8; MAD_LEN]> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.sets.lock().unwrap().len() < count {
            assert!(Instant::now() < deadline, "{:?}", self.sets.lock().unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut sets = std::mem::take(&mut *self.sets.lock().unwrap());
        sets.iter_mut().for_each(|mad| mad[8..16].fill(0));
        sets.sort_unstable();
        sets.dedup();
        sets
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn start_opensm(bed: &Bed, file: &str) -> Running {
    let dir = bed.dir.path().join("opensm");
    std::fs::create_dir_all(&dir).unwrap();
    let mut command = bed.command("ibsim-run");
    command.current_dir(&dir).env("SIM_HOST", "Hca1").stdout(Stdio::null()).stderr(Stdio::null());
    command.env("OSM_CACHE_DIR", &dir).env("OSM_TMP_DIR", &dir);
    command.arg(find("opensm").unwrap()).arg("-f").arg(dir.join("opensm.log")).args(["-F", file]);
    Running(command.spawn().unwrap())
}

fn lid_of(bed: &Bed, node: &str) -> String {
    let text = bed.console(&["node", node]);
    let number = text.split("\"lid\":").nth(1).unwrap();
    number.chars().take_while(char::is_ascii_digit).collect()
}

/// What `ibccquery` shows of a node, without its LID.
fn query(bed: &Bed, what: &str, node: &str) -> String {
    let key = "0x1122334455667788";
    let text = bed.tool("Hca4", &["ibccquery", "-c", key, what, &lid_of(bed, node)]);
    text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

fn await_text(
    what: &str,
    mut text: impl FnMut() -> String,
    found: impl Fn(&str) -> bool,
) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = text();
        if found(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "no {what}: {seen}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// IBA A10.4.3.6 to A10.4.3.9.
#[test]
fn set_requests_are_those_of_opensm() {
    let Some(mut bed) = bed(&["opensm", "ibccquery"]) else { return };
    let file = bed.dir.path().join("cc.conf").to_str().unwrap().to_owned();
    std::fs::write(&file, settings()).unwrap();
    let recorder = Recorder::at(&bed, "Hca2");
    let marks = |text: &str| text.contains("Marking_Rate:....................1000\n");
    let of_switch = |bed: &Bed| query(bed, "SwitchCongestionSetting", "Switch1");
    let of_host = |bed: &Bed| {
        let setting = query(bed, "CACongestionSetting", "Hca3");
        setting + &query(bed, "CongestionControlTable", "Hca3")
    };

    let opensm = start_opensm(&bed, &file);
    let theirs = recorder.take(3);
    let their_switch = await_text("settings", || of_switch(&bed), marks);
    let full =
        |text: &str| text.contains("CCTI_Min:........................3") && text.contains("69");
    let their_host = await_text("settings", || of_host(&bed), full);
    opensm.end();
    for node in ["Switch1", "Switch2", "Hca3"] {
        bed.console(&["reboot", node]);
    }

    let ibsm = Running(bed.manage("Hca1", &["-F", &file]));
    assert_eq!(recorder.take(3), theirs);
    assert_eq!(theirs.len(), 3);
    assert!(theirs.iter().all(|mad| cc::cc_key(mad) == 0x1122_3344_5566_7788));
    assert_eq!(await_text("settings", || of_switch(&bed), marks), their_switch);
    assert_eq!(await_text("settings", || of_host(&bed), full), their_host);
    ibsm.end();
}

/// IBA A10.4.3.4, A10.4.3.5.
#[test]
fn settings_keys_and_hot_spots_are_seen_by_the_operator() {
    let Some(mut bed) = bed(&["ibccquery", "ibccconfig"]) else { return };
    let file = bed.dir.path().join("cc.conf").to_str().unwrap().to_owned();
    let write = |text: &str| std::fs::write(&file, settings() + text).unwrap();
    write("cc_log_interval_s 1\n");
    bed.console(&["congestion-class", "Hca4", "off"]);
    let ibsm = Running(bed.manage("Hca1", &["-F", &file]));
    let url = format!("http://{}", bed.address("Hca1", "publish"));
    let ctl = |words: &[&str]| {
        let mut ibsmctl = Command::new(env!("CARGO_BIN_EXE_ibsmctl"));
        let output = ibsmctl.args(["--sm", &url]).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let overview = || ctl(&["congestion"]);
    await_text("settings", overview, |text| {
        text.contains("5 of 6 agents have the settings (2 switches, 4 ports of adapters)")
            && text.contains("the others: 1 do not answer")
    });
    let leaf = ctl(&["congestion", "Switch1"]);
    assert!(leaf.contains("  threshold: 13\n") && leaf.contains("CC_Key: none"), "{leaf}");
    let host = ctl(&["congestion", "Hca3", "--json"]);
    assert!(host.contains("timer 150, increase 1, trigger threshold 2, least index 3"), "{host}");

    // HUP changes the settings.
    write("cc_log_interval_s 1\ncc_sw_cong_setting_threshold 0x3\n");
    signal(&ibsm.0, libc::SIGHUP);
    await_text(
        "other settings",
        || ctl(&["congestion", "Switch1"]),
        |text| text.contains("threshold: 3\n"),
    );
    let stock = query(&bed, "SwitchCongestionSetting", "Switch1");
    assert!(stock.contains("\nThreshold:.......................0x03\n"), "{stock}");

    // A port that keeps marking packets.
    await_text(
        "a hot spot",
        || {
            let answer = bed.console(&["congest", "Switch1", "1", "7", "Hca3", "Hca1"]);
            assert_eq!(answer.trim(), "ok");
            ctl(&["problems"])
        },
        |text| text.contains("congestion_hot_spot"),
    );
    let shown = overview();
    assert!(shown.contains("'Hca3' to 'Hca1' with SL 0"), "{shown}");
    let events = "ibsm_congestion_events_total{by=\"switch\"}";
    bed.await_metric("Hca1", events, |events| events >= 21.0);

    // Somebody else sets a key, and the node restarts.
    let lid = lid_of(&bed, "Hca3");
    let words = ["ibccconfig", "CongestionKeyInfo", &lid, "0x99", "1", "0", "0"];
    bed.tool("Hca2", &words);
    write("cc_log_interval_s 1\ncc_key 0x5\n");
    signal(&ibsm.0, libc::SIGHUP);
    await_text("a key that differs", || ctl(&["problems"]), |text| text.contains("cc_key_refused"));
    let series = "ibsm_congestion_agents{state=\"key_refused\"}";
    bed.await_metric("Hca1", series, |count| count == 1.0);
    assert!(ctl(&["congestion", "Hca3"]).contains("has another CC_Key"));
    write("cc_log_interval_s 1\ncc_key 0x99\n");
    signal(&ibsm.0, libc::SIGHUP);
    bed.await_metric("Hca1", series, |count| count == 0.0);

    // Off.
    std::fs::write(&file, "congestion_control FALSE\n").unwrap();
    signal(&ibsm.0, libc::SIGHUP);
    await_text("the end", overview, |text| text.contains("is off"));
    ibsm.end();
}
