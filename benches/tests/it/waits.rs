//! How long clients at the manager's LID wait for an answer while a link of a fabric of 10,000
//! hosts fails and other programs use the CPUs. For figures, not for CI:
//!
//! ```text
//! cargo test --release -p benches --test it waits -- --ignored --nocapture
//! ```

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::chaos_support::request;
use crate::support::hosts;
use crate::support::scrape::Scrape;
use benches::published;
use benches::sandbox::{Sandbox, binary, free_address};
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::sa::SaMad;

/// Links that fail one after the other.
const CUTS: u8 = 5;
const PERIOD: Duration = Duration::from_secs(4);
/// How long parts of the service loop took.
const PARTS: &str = "service_loop_longest_seconds";
/// The manager's LID: the first that it assigns.
const SM_LID: Lid = Lid(1);

#[test]
#[ignore = "for figures: takes minutes, and a release build"]
fn waits_for_writes_and_reads_while_links_fail() {
    let sandbox = Sandbox::new("waits");
    let net = sandbox.path("net");
    let generated = Command::new(binary("ibfabric"))
        .args(["generate", "fat-tree", "--levels", "3", "--radix", "36", "--hosts", "10000", "-o"])
        .arg(&net)
        .status();
    assert!(generated.expect("ibfabric runs").success());
    let _fabric = sandbox.ibfabric(&net);
    let publish = free_address().to_string();
    let url = format!("http://{publish}");
    let state = sandbox.path("state").display().to_string();
    let argv = ["--transport", "ibsim", "--socket", sandbox.socket(), "--node", "node00001 HCA-1"];
    let http = free_address().to_string();
    let more = ["--publish", &publish, "--state-dir", &state, "--http", &http];
    let ibsm = sandbox.ours("ibsm", "ibsm", &[&argv[..], &more[..]].concat());
    ibsm.wait_for("SUBNET UP");
    let argv = ["--sm", &url, "--transport", "udp", "--listen", "127.0.0.1:0"];
    let ibsa = sandbox.ours("ibsa", "ibsa", &argv);
    ibsa.wait_for("serving generation");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hosts = hosts(&runtime.block_on(published::snapshot(&url)));
    let options = IbsimOptions {
        socket: sandbox.socket().to_owned(),
        node: Some("node00018 HCA-1".to_owned()),
        ..IbsimOptions::default()
    };
    let mut transport = Ibsim::connect(&options).expect("the simulator serves");
    let own = transport.local_port().expect("it is attached").lid;
    let host = *hosts.iter().find(|host| host.lid == own).expect("it is in the fabric");
    let mut tid = 0;
    let mut ask = |mad: &dyn Fn(u64) -> [u8; 256]| {
        tid += 1;
        let packet = Packet::new(mad(tid), Address::gsi(SM_LID));
        transport.send(&[packet]).unwrap();
        let (begun, mut answer) = (Instant::now(), [Packet::default()]);
        loop {
            let descriptor = transport.descriptor().expect("a socket");
            wait(&mut [Interest::read(descriptor)], Some(Duration::from_secs(5))).unwrap();
            assert!(transport.receive(&mut answer).unwrap() > 0, "no answer within 5 s");
            let answer = SaMad::new(&answer[0].mad);
            if answer.header().tid() & 0xFFFF_FFFF == tid {
                assert_eq!(answer.header().status(), Status::OK);
                return begun.elapsed();
            }
        }
    };
    for burners in [0, 2, 4] {
        let stop = Arc::<AtomicBool>::default();
        let threads: Vec<_> = (0..burners)
            .map(|_| {
                let stop = stop.clone();
                thread::spawn(move || while !stop.load(Relaxed) {})
            })
            .collect();
        let mut longest = [Duration::ZERO; 2];
        for cut in 1..=CUTS {
            sandbox.control(&["link-down", "leaf003", &(18 + cut).to_string()]);
            let begun = Instant::now();
            while begun.elapsed() < PERIOD {
                let write = ask(&|tid| request::service(Method::SET, host, tid, tid % 50, 1));
                let read = ask(&|tid| request::service(Method::GET, host, tid, (tid - 1) % 50, 1));
                longest = [longest[0].max(write), longest[1].max(read)];
            }
            sandbox.control(&["link-up", "leaf003", &(18 + cut).to_string()]);
            thread::sleep(Duration::from_secs(2));
        }
        stop.store(true, Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        println!(
            "{burners} busy programs: longest wait of a write {:?}, of a read {:?}",
            longest[0], longest[1]
        );
        let parts = Scrape::of(&http).0.into_iter().filter(|(series, _)| series.contains(PARTS));
        let parts = parts.filter(|(_, seconds)| *seconds > 0.005);
        parts.for_each(|(series, seconds)| println!("    {series} {seconds}"));
    }
}
