//! Properties of both engines.

use super::*;
use crate::transport::{Address, Carrier, Interest, Marks, wait};
use crate::types::{Lid, Qpn};
use std::time::Duration;

/// Runs each test on both engines.
macro_rules! on_both_engines {
    ($($(#[$doc:meta])* fn $name:ident($engine:ident: Engine) $body:block)*) => {
        $($(#[$doc])* fn $name($engine: Engine) $body)*

        mod mmsg_engine {
            use super::Engine;
            $(#[test] fn $name() { super::$name(Engine::Mmsg) })*
        }

        mod uring_engine {
            use super::Engine;
            $(#[test] fn $name() {
                if super::is_available() {
                    super::$name(Engine::Uring);
                }
            })*
        }
    };
}

/// Whether the kernel allows io_uring; prints a message if not.
fn is_available() -> bool {
    let socket = Udp::bind(&options(Engine::Auto, true)).unwrap();
    if let Some(reason) = socket.second_choice() {
        eprintln!("skipped: no io_uring here: {reason}");
    }
    socket.engine() == Engine::Uring
}

fn options(engine: Engine, trains: bool) -> UdpOptions {
    UdpOptions { engine, trains, ..UdpOptions::new("127.0.0.1:0".parse().unwrap()) }
}

fn socket(engine: Engine, trains: bool) -> Udp {
    Udp::bind(&options(engine, trains)).unwrap()
}

fn packets(count: u16, peer: SocketAddr) -> Vec<Packet> {
    (0..count)
        .map(|i| Packet {
            mad: [i as u8; MAD_LEN],
            address: Address::gsi(Lid(i)),
            carrier: Carrier { peer: Some(peer), ..Carrier::default() },
        })
        .collect()
}

fn lids(packets: &[Packet]) -> Vec<u16> {
    packets.iter().map(|packet| packet.address.lid.0).collect()
}

/// Waits for `count` packets, receiving `batch_len` at a time.
fn receive(socket: &mut Udp, count: usize, batch_len: usize) -> Vec<Packet> {
    let mut batch = vec![Packet::default(); batch_len];
    let mut all = Vec::new();
    while all.len() < count {
        let got = socket.receive(&mut batch).unwrap();
        all.extend_from_slice(&batch[..got]);
        if got < batch_len && all.len() < count {
            let mut interests = [Interest::read(socket.descriptor().unwrap())];
            assert_eq!(wait(&mut interests, Some(Duration::from_secs(60))).unwrap(), 1);
        }
    }
    all
}

/// Sends all of `batch`, which the socket may accept in several steps.
fn send(socket: &mut Udp, batch: &[Packet]) {
    let mut sent = 0;
    while sent < batch.len() {
        let taken = socket.send(&batch[sent..]).unwrap();
        sent += taken;
        if taken == 0 {
            let mut interests = [Interest::read_or_write(socket.descriptor().unwrap(), true)];
            wait(&mut interests, Some(Duration::from_secs(60))).unwrap();
        }
    }
}

on_both_engines! {
    /// Trains on neither side, on one, or on both, with either engine: the received packets are the
    /// same.
    fn packets_arrive_whole_and_in_order_with_and_without_trains(engine: Engine) {
        for (sender_trains, receiver_trains, other) in [
            (true, true, engine),
            (true, false, engine),
            (false, true, engine),
            (false, false, engine),
            (true, true, Engine::Mmsg),
            (false, false, Engine::Mmsg),
        ] {
            let (mut sender, mut receiver) =
                (socket(engine, sender_trains), socket(other, receiver_trains));
            let sent = packets(150, receiver.local_addr().unwrap());
            assert_eq!(sender.send(&sent).unwrap(), 150);
            let from = sender.local_addr().unwrap();
            let got = receive(&mut receiver, 150, 7);
            for (got, sent) in got.iter().zip(&sent) {
                assert_eq!(got.mad, sent.mad);
                let carrier = Carrier { peer: Some(from), ..sent.carrier };
                assert_eq!((got.address, got.carrier), (sent.address, carrier));
            }
            assert_eq!(receiver.counters().received, 150);
            assert_eq!((sender.counters().sent, sender.counters().sends), (150, 1));
        }
    }

    /// A socket that answers shows its own token, not that of the request that it answers.
    fn packets_have_the_token_of_the_socket_that_sent_them(engine: Engine) {
        let with = |token| Udp::bind(&UdpOptions { token, ..options(engine, true) }).unwrap();
        let (mut client, mut server) = (with(0xFFFF_FFFF_FFFF), with(0x1234_5678_9ABC));
        assert_eq!(client.send(&packets(20, server.local_addr().unwrap())).unwrap(), 20);
        let requests = receive(&mut server, 20, 7);
        assert!(requests.iter().all(|packet| packet.carrier.token == 0xFFFF_FFFF_FFFF));
        assert_eq!(server.send(&requests).unwrap(), 20);
        let answers = receive(&mut client, 20, 7);
        assert!(answers.iter().all(|packet| packet.carrier.token == 0x1234_5678_9ABC));
        // One without a token repeats none.
        let mut plain = socket(engine, true);
        assert_eq!(client.send(&packets(1, plain.local_addr().unwrap())).unwrap(), 1);
        let request = receive(&mut plain, 1, 1);
        assert_eq!(plain.send(&request).unwrap(), 1);
        assert_eq!(receive(&mut client, 1, 1)[0].carrier.token, 0);
    }

    /// More packets than any buffer of an engine holds, in either direction.
    fn long_batches_arrive_in_order(engine: Engine) {
        for trains in [true, false] {
            let (mut sender, mut receiver) = (socket(engine, trains), socket(engine, trains));
            let sent = packets(2000, receiver.local_addr().unwrap());
            let mut got = Vec::new();
            // No more at a time than the default socket buffer holds.
            for part in sent.chunks(400) {
                send(&mut sender, part);
                got.extend(receive(&mut receiver, part.len(), 300));
            }
            assert_eq!(lids(&got), lids(&sent));
        }
    }

    /// A socket that sends much and receives nothing meanwhile later finds what arrived.
    fn what_arrives_while_only_sending_is_not_lost(engine: Engine) {
        for trains in [true, false] {
            let (mut sender, mut receiver) = (socket(engine, false), socket(engine, trains));
            let sent = packets(400, receiver.local_addr().unwrap());
            assert_eq!(receiver.receive(&mut [Packet::default()]).unwrap(), 0);
            send(&mut sender, &sent);
            let aside = packets(1, sender.local_addr().unwrap());
            for _ in 0..100 {
                send(&mut receiver, &aside);
            }
            assert_eq!(lids(&receive(&mut receiver, 400, 64)), lids(&sent));
            let starved = receiver.counters().starved > 0;
            assert_eq!(starved, engine == Engine::Uring, "fewer buffers than datagrams");
        }
    }

    /// Regression: single datagrams after long trains were read a few at a time, and each such
    /// batch counted as the last one.
    fn what_waits_is_known_whatever_the_batch_has(engine: Engine) {
        let mut receiver = socket(engine, true);
        let (mut long, mut short) = (socket(engine, true), socket(engine, false));
        let peer = receiver.local_addr().unwrap();
        let mut batch = vec![Packet::default(); 64];
        for _ in 0..3 {
            send(&mut long, &packets(64, peer));
            receive(&mut receiver, 64, 64);
        }
        send(&mut short, &packets(40, peer));
        let mut got = 0;
        while got < 40 {
            assert!(got == 0 || !receiver.is_drained(), "{got} of 40");
            got += receiver.receive(&mut batch).unwrap();
        }
        assert_eq!((got, receiver.receive(&mut batch).unwrap()), (40, 0));
        assert!(receiver.is_drained());
    }

    fn an_answer_written_where_the_request_stood_goes_back(engine: Engine) {
        let (mut client, mut server) = (socket(engine, true), socket(engine, true));
        let mut request = packets(1, server.local_addr().unwrap());
        request[0].address.qpn = Qpn(77);
        client.send(&request).unwrap();
        let mut answer = receive(&mut server, 1, 8);
        answer[0].mad[3] = 0x81;
        server.send(&answer).unwrap();
        let answer = receive(&mut client, 1, 8);
        assert_eq!((answer[0].mad[3], answer[0].address.qpn), (0x81, Qpn(77)));
    }

    /// A batch may hold packets to many peers; a bad one must not delay the others.
    fn peers_may_be_mixed_and_bad_ones_are_counted(engine: Engine) {
        let mut sender = socket(engine, true);
        let mut receivers = [socket(engine, true), socket(engine, true)];
        let [a, b] = [0, 1].map(|i: usize| receivers[i].local_addr().unwrap());
        let mut batch = packets(9, a);
        for i in [2, 3, 7] {
            batch[i].carrier.peer = Some(b);
        }
        batch[0].carrier.peer = None;
        batch[4].carrier.peer = Some(SocketAddr::new(b.ip(), 0));
        batch[8].carrier.peer = Some("[::1]:9".parse().unwrap());
        assert_eq!(sender.send(&batch).unwrap(), 9);
        let counters = sender.counters();
        assert_eq!((counters.sent, counters.refused), (6, 3));
        assert!(sender.sends_trains(), "no fault of trains");
        assert_eq!(lids(&receive(&mut receivers[0], 3, 8)), [1, 5, 6]);
        assert_eq!(lids(&receive(&mut receivers[1], 3, 8)), [2, 3, 7]);
    }

    fn strange_datagrams_are_counted_and_passed_over(engine: Engine) {
        for trains in [true, false] {
            let mut receiver = socket(engine, trains);
            let to = receiver.local_addr().unwrap();
            let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
            let good = encode(&Address::default(), Marks::default());
            let mut datagram = [0; 4 * DATAGRAM_LEN];
            stranger.send_to(&datagram[..DATAGRAM_LEN], to).unwrap();
            datagram[..ENVELOPE_LEN].copy_from_slice(&good);
            let lens = [0, 1, DATAGRAM_LEN - 1, DATAGRAM_LEN + 1, 4 * DATAGRAM_LEN, DATAGRAM_LEN];
            for len in lens {
                stranger.send_to(&datagram[..len], to).unwrap();
            }
            assert_eq!(receive(&mut receiver, 1, 8).len(), 1);
            assert_eq!(receiver.malformed(), Malformed { length: 5, envelope: 1, stranger: 0 });
        }
    }

    /// Packets beyond the socket's buffer are lost; buffered ones arrive in order, followed by
    /// packets sent later.
    fn a_flood_costs_only_itself(engine: Engine) {
        let (mut sender, mut receiver) = (socket(engine, false), socket(engine, false));
        let flood = packets(u16::MAX, receiver.local_addr().unwrap());
        send(&mut sender, &flood);
        let mut batch = vec![Packet::default(); 64];
        let mut got = Vec::new();
        loop {
            let count = receiver.receive(&mut batch).unwrap();
            got.extend(lids(&batch[..count]));
            let mut interests = [Interest::read(receiver.descriptor().unwrap())];
            if count == 0 && wait(&mut interests, Some(Duration::ZERO)).unwrap() == 0 {
                break;
            }
        }
        assert!(!got.is_empty() && got.len() < flood.len(), "{}", got.len());
        assert!(got.is_sorted());
        send(&mut sender, &flood[..3]);
        assert_eq!(lids(&receive(&mut receiver, 3, 8)), [0, 1, 2]);
    }

    /// The descriptor becomes readable for packets that arrive while its owner sleeps.
    fn a_sleeper_is_woken(engine: Engine) {
        let mut receiver = socket(engine, true);
        let to = receiver.local_addr().unwrap();
        assert_eq!(receiver.receive(&mut [Packet::default()]).unwrap(), 0);
        let sender = std::thread::spawn(move || {
            let mut sender = socket(engine, true);
            for packet in packets(5, to) {
                std::thread::sleep(Duration::from_millis(2));
                send(&mut sender, &[packet]);
            }
        });
        assert_eq!(lids(&receive(&mut receiver, 5, 2)), [0, 1, 2, 3, 4]);
        sender.join().unwrap();
    }

    fn several_sockets_can_share_an_address(engine: Engine) {
        let shared = UdpOptions { share_port: true, ..options(engine, true) };
        let first = Udp::bind(&shared).unwrap();
        let listen = first.local_addr().unwrap();
        assert!(Udp::bind(&UdpOptions { listen, ..shared }).is_ok());
        assert!(Udp::bind(&UdpOptions { listen, ..options(engine, true) }).is_err());
    }

    /// A socket may be closed with requests in progress, also by another thread than the one that
    /// used it.
    fn a_socket_is_gone_once_dropped(engine: Engine) {
        let mut receiver = socket(engine, true);
        let to = receiver.local_addr().unwrap();
        assert_eq!(receiver.receive(&mut [Packet::default()]).unwrap(), 0);
        send(&mut socket(engine, true), &packets(100, to));
        drop(receiver);
        let mut receiver = Udp::bind(&UdpOptions { listen: to, ..options(engine, true) }).unwrap();
        let user = std::thread::spawn(move || {
            assert_eq!(receiver.receive(&mut [Packet::default()]).unwrap(), 0);
            receiver
        });
        drop(user.join().unwrap());
    }
}

/// The requested engine is the one in use, and the default one works everywhere.
#[test]
fn an_engine_can_be_chosen() {
    assert_eq!(socket(Engine::Mmsg, true).engine(), Engine::Mmsg);
    assert_ne!(socket(Engine::Auto, true).engine(), Engine::Auto);
    if is_available() {
        assert_eq!(socket(Engine::Uring, true).engine(), Engine::Uring);
    }
}

/// It must return a clear error, rather than fail obscurely or work by chance.
#[test]
fn a_ring_refuses_a_second_thread() {
    if is_available() {
        let mut receiver = socket(Engine::Uring, true);
        assert_eq!(receiver.receive(&mut [Packet::default()]).unwrap(), 0);
        let second = std::thread::scope(|scope| {
            scope.spawn(|| receiver.receive(&mut [Packet::default()])).join().unwrap()
        });
        assert!(second.unwrap_err().to_string().contains("another"));
    }
}

/// Datagrams that the kernel drops are never read, and would not be counted otherwise.
#[test]
fn a_limited_queue_counts_what_it_drops() {
    let listen = "127.0.0.1:0".parse().unwrap();
    let options = UdpOptions { trains: false, ..UdpOptions::new(listen) };
    let (mut sender, mut receiver) = (Udp::bind(&options).unwrap(), Udp::bind(&options).unwrap());
    let to = receiver.local_addr().unwrap();
    receiver.limit_queue(300);
    assert_eq!(sender.send(&packets(1000, to)).unwrap(), 1000);
    let lost = receiver.overflowed();
    assert!((500..1000).contains(&lost), "{lost} of 1,000 lost");
    assert_eq!(receive(&mut receiver, 1000 - lost as usize, 64).len() as u64, 1000 - lost);
    receiver.limit_queue(usize::MAX);
    assert_eq!(sender.send(&packets(150, to)).unwrap(), 150);
    assert_eq!((receive(&mut receiver, 150, 64).len(), receiver.overflowed()), (150, lost));
}
