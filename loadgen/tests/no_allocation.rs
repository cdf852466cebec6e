//! The driver allocates during setup, and not for the queries it sends.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::types::PKey;
use ib_mad::wire::mad::Status;
use ib_mad::wire::sa::SaMad;
use loadgen::check::Level;
use loadgen::driver::{Destination, Outcome, drive};
use loadgen::histogram::Ledger;
use loadgen::ports::Ports;
use loadgen::requester::{Requester, RequesterOptions};
use loadgen::scenario::Patience;
use loadgen::scenario::closed::Closed;
use loadgen::scenario::pace::Bounds;
use loadgen::workload::{By, Draw, Workload, WorkloadOptions};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts allocations per thread.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the requirements of the system's allocator are the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn socket() -> Udp {
    Udp::bind(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap()
}

/// Answers all queries until the stop flag is set.
fn respond(mut socket: Udp, stop: &AtomicBool) {
    let mut batch = vec![Packet::default(); 64];
    while !stop.load(Ordering::Relaxed) {
        let got = socket.receive(&mut batch).unwrap();
        for packet in &mut batch[..got] {
            SaMad::new(&mut packet.mad).make_response(Status::OK);
        }
        let mut sent = 0;
        while sent < got {
            sent += socket.send(&batch[sent..got]).unwrap();
        }
        if got == 0 {
            let mut interests = [Interest::read(socket.descriptor().unwrap())];
            wait(&mut interests, Some(Duration::from_millis(20))).unwrap();
        }
    }
}

/// Allocations of this thread while it drives this number of queries.
fn allocations(destination: &Destination, workload: &Arc<Workload>, queries: u64) -> u64 {
    let (ledger, stop) = (Ledger::default(), AtomicBool::new(false));
    let mut socket = socket();
    let start = Instant::now();
    let patience = Patience { timeout: Duration::from_secs(30), retries: 0 };
    let bounds = Bounds::new(start, None, Some(queries));
    let requester = Requester::new(RequesterOptions {
        scenario: Box::new(Closed::new(Arc::clone(workload), 0, 32, patience, bounds)),
        workload: Arc::clone(workload),
        fabric: None,
        level: Level::Status,
        show: 0,
        tid_seed: 1,
    });
    let before = ALLOCATIONS.get();
    let outcome = drive(requester, &mut socket, destination, start, &ledger, &stop);
    let after = ALLOCATIONS.get();
    let Outcome { counts, .. } = outcome.unwrap();
    assert_eq!((counts.answered, counts.resolved), (queries, queries));
    after - before
}

#[test]
fn queries_cost_no_allocation() {
    let responder = socket();
    let destination = Destination::Peers(vec![responder.local_addr().unwrap()]);
    let options = WorkloadOptions {
        by: By::GidService,
        draw: Draw::Any(1_000),
        seed: 1,
        service_id: 7,
        pkey: PKey::DEFAULT_FULL,
        sample: 1.0,
    };
    let ports = Ports::parse("1 fe80::1\n2 fe80::2\n3 fe80::3\n").unwrap();
    let workload = Arc::new(Workload::draw(&options, ports, None).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| respond(responder, &stop));
        let few = allocations(&destination, &workload, 100);
        let many = allocations(&destination, &workload, 20_000);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(few, many);
    });
}
