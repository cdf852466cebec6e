use super::queue::POSITIONS;
use super::*;
use crate::transport::{Address, Interest, Packet, Transport, wait};
use crate::types::Lid;
use crate::wire::MAD_LEN;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// A separate path for each test.
fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    std::env::temp_dir().join(format!("ibsm-ring-test-{}-{number}", std::process::id()))
}

fn server(clients_max: usize) -> (RingServer, PathBuf) {
    let path = path();
    (RingServer::bind(&RingOptions { clients_max, ..RingOptions::new(&path) }).unwrap(), path)
}

/// Connects while `server` accepts.
fn connect(server: &mut RingServer, path: &std::path::Path) -> io::Result<RingClient> {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| RingClient::connect(path));
        while !client.is_finished() {
            server.descriptor().unwrap();
            server.receive(&mut []).unwrap();
        }
        client.join().unwrap()
    })
}

fn packets(count: u16) -> Vec<Packet> {
    (0..count).map(|i| Packet::new([i as u8; MAD_LEN], Address::gsi(Lid(i)))).collect()
}

fn sleep(transport: &impl Transport) {
    let mut interests = [Interest::read(transport.descriptor().unwrap())];
    assert_eq!(wait(&mut interests, Some(Duration::from_secs(60))).unwrap(), 1);
}

/// Echoes packets until stopped; then returns the server.
fn echo(mut server: RingServer, stop: &AtomicBool) -> RingServer {
    let mut batch = vec![Packet::default(); 64];
    while !stop.load(Relaxed) {
        let got = server.receive(&mut batch).unwrap();
        server.send(&batch[..got]).unwrap();
        if got == 0 {
            let mut interests = [Interest::read(server.descriptor().unwrap())];
            wait(&mut interests, Some(Duration::from_millis(20))).unwrap();
        }
    }
    server
}

/// A packet that arrives between the last check and sleeping wakes the sleeper.
#[test]
fn who_would_sleep_though_there_is_something_does_not() {
    let (mut server, path) = server(1);
    let mut client = connect(&mut server, &path).unwrap();
    assert_eq!(server.receive(&mut [Packet::default()]).unwrap(), 0);
    client.send(&packets(1)).unwrap();
    sleep(&server);
    assert_eq!(server.receive(&mut [Packet::default()]).unwrap(), 1);
    server.descriptor().unwrap();
    client.send(&packets(1)).unwrap();
    sleep(&server);
    assert_eq!(server.receive(&mut [Packet::default()]).unwrap(), 1);
}

/// Sends `count` requests, some at a time; panics unless every response is right.
fn ask(client: &mut RingClient, count: u16) {
    let (mut sent, mut got) = (0, 0);
    let requests = packets(count);
    let mut batch = vec![Packet::default(); 100];
    while got < requests.len() {
        let window = requests.len().min(got + SLOTS as usize);
        sent += client.send(&requests[sent..window]).unwrap();
        let received = client.receive(&mut batch).unwrap();
        for (answer, request) in batch[..received].iter().zip(&requests[got..]) {
            assert_eq!((answer.mad, answer.origin()), (request.mad, request.origin()));
        }
        got += received;
        if received == 0 {
            sleep(client);
        }
    }
}

#[test]
fn what_is_asked_is_answered_in_order_however_often_the_queues_turn_over() {
    let (mut server, path) = server(2);
    let mut clients = [0, 1].map(|_| connect(&mut server, &path).unwrap());
    let stop = AtomicBool::new(false);
    let counters = std::thread::scope(|scope| {
        let server = scope.spawn(|| echo(server, &stop));
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| ask(client, 20_000));
            }
        });
        stop.store(true, Relaxed);
        server.join().unwrap().counters()
    });
    assert_eq!(counters, RingCounters { accepted: 2, ..RingCounters::default() });
}

#[test]
fn sleepers_are_woken() {
    let (mut server, path) = server(1);
    let mut client = connect(&mut server, &path).unwrap();
    let client = std::thread::spawn(move || {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(client.send(&packets(1)).unwrap(), 1);
            let mut batch = [Packet::default()];
            while client.receive(&mut batch).unwrap() == 0 {
                sleep(&client);
            }
        }
    });
    for _ in 0..5 {
        let mut batch = vec![Packet::default(); 8];
        while server.receive(&mut batch).unwrap() == 0 {
            sleep(&server);
        }
        std::thread::sleep(Duration::from_millis(2));
        server.send(&batch[..1]).unwrap();
    }
    client.join().unwrap();
}

/// Places are limited; a client too many gets an error, and gets a place after another has
/// disconnected.
#[test]
fn clients_beyond_the_limit_are_refused_until_one_leaves() {
    let (mut server, path) = server(1);
    let first = connect(&mut server, &path).unwrap();
    let refusal = connect(&mut server, &path).err().unwrap();
    assert!(refusal.to_string().contains("limit of ring clients"), "{refusal}");
    assert_eq!((server.counters().accepted, server.counters().refused), (1, 1));
    drop(first);
    let mut second = connect(&mut server, &path).unwrap();
    second.send(&packets(3)).unwrap();
    let mut batch = vec![Packet::default(); 8];
    assert_eq!(server.receive(&mut batch).unwrap(), 3);

    // A response to a client that has disconnected is not given to its successor in the same place.
    drop(second);
    let mut third = connect(&mut server, &path).unwrap();
    assert_eq!(server.send(&batch[..3]).unwrap(), 3);
    assert_eq!((server.counters().dropped, server.overflowed()), (3, 0));
    assert_eq!(third.receive(&mut batch).unwrap(), 0);
    drop(server);
    assert_eq!(third.receive(&mut batch).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// A client that sends requests and does not read loses responses; other clients do not.
#[test]
fn a_client_that_makes_no_room_loses_answers() {
    let (mut server, path) = server(2);
    let mut deaf = connect(&mut server, &path).unwrap();
    let mut other = connect(&mut server, &path).unwrap();
    let mut batch = vec![Packet::default(); SLOTS as usize];
    for _ in 0..2 {
        assert_eq!(deaf.send(&packets(SLOTS as u16 + 1)).unwrap(), SLOTS as usize, "it is full");
        let got = server.receive(&mut batch).unwrap();
        assert_eq!(server.send(&batch[..got]).unwrap(), got);
    }
    let RingCounters { dropped, overflowed, .. } = server.counters();
    assert_eq!((dropped, overflowed, server.overflowed()), ([u64::from(SLOTS); 3]).into());
    other.send(&packets(1)).unwrap();
    let got = server.receive(&mut batch).unwrap();
    server.send(&batch[..got]).unwrap();
    assert_eq!(other.receive(&mut batch).unwrap(), 1);
}

#[test]
fn positions_that_cannot_be_end_the_ring() {
    let (mut server, path) = server(2);
    let mut client = connect(&mut server, &path).unwrap();
    client.requests.scribble(POSITIONS[0], SLOTS + 1);
    assert_eq!(server.receive(&mut [Packet::default()]).unwrap(), 0);
    assert_eq!(server.counters().expelled, 1);
    assert_eq!(
        client.receive(&mut [Packet::default()]).unwrap_err().kind(),
        io::ErrorKind::ConnectionReset
    );
}

/// With any contents of the shared memory at any moment, the server survives, and other clients are
/// answered.
#[test]
fn a_client_that_scribbles_harms_only_itself() {
    let (mut server, path) = server(2);
    let mut good = connect(&mut server, &path).unwrap();
    let (stop, enough) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| echo(server, &stop));
        let hostile = scope.spawn(|| {
            let (mut random, mut rings) = (1u64, 0);
            while !enough.load(Relaxed) || rings == 0 {
                let Ok(mut client) = RingClient::connect(&path) else { continue };
                rings += 1;
                for _ in 0..200 {
                    // Errors are counted for clients that violate the protocol.
                    let _ = client.send(&packets(3));
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Every other word is a position.
                    let (at, any) = ((random >> 41) as usize, random >> 40 & 1 == 0);
                    let word = if any { at } else { POSITIONS[at % POSITIONS.len()] };
                    client.requests.scribble(word, (random >> 20) as u32 % 700);
                }
            }
            rings
        });
        ask(&mut good, 20_000);
        enough.store(true, Relaxed);
        let rings: u64 = hostile.join().unwrap();
        stop.store(true, Relaxed);
        assert!(server.join().unwrap().counters().accepted > rings);
    });
}

#[test]
fn the_socket_is_this_users_and_replaces_what_is_left_of_another() {
    let (first, path) = server(1);
    let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = RingServer::bind(&RingOptions::new(&path)).err().unwrap();
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    drop(first);
    // Left behind by a process that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(RingServer::bind(&RingOptions::new(&path)).unwrap());
    // Not a socket: must not be removed.
    fs::write(&path, "precious").unwrap();
    assert!(RingServer::bind(&RingOptions::new(&path)).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
}
