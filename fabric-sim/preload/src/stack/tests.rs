//! Two programs, each with its own stack, in virtual time.

use std::time::Duration;

use ib_mad::transport::Grh;
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::rmpp::{RmppFlags, RmppType};
use proptest::prelude::*;

use super::*;
use crate::umad::HEADER_LEN;

const FILE: FileId = 7;
const ASKER: Lid = Lid(4);
const SERVER: Lid = Lid(9);
/// Value that ibsim writes to the top 16 bits of the requester's transaction ids.
const SLOT: u64 = 3;

const fn bit(method: Method) -> u128 {
    1 << method.0
}

fn registration(class: MgmtClass, methods: u128) -> Registration {
    let is_sa = class == MgmtClass::SUBN_ADM;
    Registration {
        class,
        class_version: if is_sa { 2 } else { 1 },
        methods,
        oui: 0,
        rmpp_version: u8::from(is_sa),
        user_rmpp: false,
    }
}

fn asking(class: MgmtClass) -> Registration {
    registration(class, 0)
}

/// Request methods that an SA registers for.
fn serving() -> Registration {
    let methods = [Method::GET, Method::SET, Method::GET_TABLE, Method::GET_MULTI];
    registration(MgmtClass::SUBN_ADM, methods.into_iter().map(bit).fold(0, |a, b| a | b))
}

fn header(agent: u32, to: Lid, timeout_ms: u32, retries: u32) -> Header {
    let mut header = Header::ZERO;
    header
        .set_agent_id(agent)
        .set_lid(to.0)
        .set_qpn(1)
        .set_timeout_ms(timeout_ms)
        .set_retries(retries);
    header
}

/// A message of the SA class with `data_len` data bytes, marked for RMPP if it is long.
fn message(method: Method, tid: u64, data_len: Option<usize>) -> Vec<u8> {
    let mut mad = [0; MAD_LEN];
    let mut view = SaMad::new(&mut mad);
    view.header_mut()
        .set_base_version(1)
        .set_mgmt_class(MgmtClass::SUBN_ADM)
        .set_class_version(2)
        .set_method(method)
        .set_tid(tid)
        .set_attribute_id(AttributeId::NODE_INFO);
    let Some(len) = data_len else { return mad.to_vec() };
    view.rmpp_mut().set_rmpp_version(1).set_rmpp_type(RmppType::DATA).set_flags(RmppFlags::ACTIVE);
    let mut long = mad[..sa::HEADER_LEN].to_vec();
    long.extend((0..len).map(|i| (i % 251) as u8));
    long
}

fn tid(mad: &[u8]) -> u64 {
    MadHeader::new(mad).unwrap().tid()
}

/// Reads one message with a buffer of any size; returns header and MAD.
fn read(stack: &mut Stack) -> Option<(Header, Vec<u8>)> {
    let mut buffer = vec![0; 1 << 20];
    let len = stack.receive(FILE, &mut buffer).ok()?;
    let header = Header(*buffer.first_chunk().unwrap());
    Some((header, buffer[HEADER_LEN..len].to_vec()))
}

struct Bench {
    now: Instant,
    asker: Stack,
    server: Stack,
    /// Decides which packets are lost.
    losses: Vec<bool>,
    sent: usize,
}

impl Bench {
    fn new() -> Self {
        let open = || {
            let mut stack = Stack::new(0);
            stack.open(FILE);
            stack
        };
        let mut bench = Self {
            now: Instant::now(),
            asker: open(),
            server: open(),
            losses: vec![false],
            sent: 0,
        };
        bench.asker.register(FILE, asking(MgmtClass::SUBN_ADM)).unwrap();
        bench.server.register(FILE, serving()).unwrap();
        bench
    }

    fn ask(&mut self, message: &[u8], timeout_ms: u32, retries: u32) {
        let header = header(0, SERVER, timeout_ms, retries);
        self.asker.send(self.now, FILE, header, message).unwrap();
    }

    /// Carries packets both ways until both sides are silent; returns their number.
    fn carry(&mut self) -> usize {
        let before = self.sent;
        loop {
            let packet = self.asker.poll_transmit(self.now);
            if let Some(mut packet) = packet {
                self.fly(true, &mut packet);
                continue;
            }
            let Some(mut packet) = self.server.poll_transmit(self.now) else { break };
            self.fly(false, &mut packet);
        }
        self.sent - before
    }

    fn fly(&mut self, to_server: bool, packet: &mut Packet) {
        let lost = self.losses[self.sent % self.losses.len()];
        self.sent += 1;
        if lost {
            return;
        }
        packet.address.lid = if to_server { ASKER } else { SERVER };
        if to_server {
            let mut header = MadHeader::new(&mut packet.mad).unwrap();
            let tid = header.tid() << 16 >> 16 | SLOT << 48;
            header.set_tid(tid);
        }
        let to = if to_server { &mut self.server } else { &mut self.asker };
        to.handle_packet(self.now, packet);
    }

    /// Advances time to the next timeout.
    fn wait(&mut self) -> bool {
        let due = [self.asker.poll_timeout(), self.server.poll_timeout()];
        let Some(due) = due.into_iter().flatten().min() else { return false };
        self.now = due;
        self.asker.handle_timeout(due);
        self.server.handle_timeout(due);
        true
    }

    /// The server reads a request and answers it with `data_len` bytes by RMPP.
    fn answer(&mut self, method: Method, data_len: usize) -> Result<(), Errno> {
        let (mut header, request) = read(&mut self.server).expect("a request");
        header.set_timeout_ms(0).set_retries(3);
        let answer = message(method.response(), tid(&request), Some(data_len));
        self.server.send(self.now, FILE, header, &answer)
    }
}

#[test]
fn a_request_bears_its_agents_number_and_the_answer_finds_it() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET, 0xFFFF_FFFF_0000_0077, None), 100, 0);
    bench.carry();
    let (mut header, mut mad) = read(&mut bench.server).unwrap();
    assert_eq!((header.lid(), header.status(), header.length()), (ASKER.0, 0, 320));
    assert_eq!(tid(&mad), SLOT << 48 | 0x0001_0000_0077);
    MadHeader::new(&mut mad[..]).unwrap().set_method(Method::GET_RESP);
    header.set_timeout_ms(0);
    bench.server.send(bench.now, FILE, header, &mad).unwrap();
    bench.carry();
    let (header, mad) = read(&mut bench.asker).unwrap();
    assert_eq!((header.agent_id(), header.status(), tid(&mad) as u32), (0, 0, 0x77));
    // A duplicate matches no request.
    let mut again = Packet::new(*mad.first_chunk().unwrap(), Address::default());
    again.address.lid = SERVER;
    bench.asker.handle_packet(bench.now, &again);
    assert_eq!((read(&mut bench.asker), bench.asker.counters().unmatched), (None, 1));
}

#[test]
fn an_answer_from_another_port_is_none() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET, 0x77, None), 100, 0);
    let mut packet = bench.asker.poll_transmit(bench.now).unwrap();
    MadHeader::new(&mut packet.mad).unwrap().set_method(Method::GET_RESP);
    packet.address.lid = Lid(SERVER.0 + 1);
    bench.asker.handle_packet(bench.now, &packet);
    assert_eq!(read(&mut bench.asker), None);
    packet.address.lid = SERVER;
    bench.asker.handle_packet(bench.now, &packet);
    assert!(read(&mut bench.asker).is_some());
}

#[test]
fn silence_is_reported_after_the_last_retry() {
    let mut bench = Bench::new();
    let start = bench.now;
    bench.losses = vec![true];
    bench.ask(&message(Method::GET, 0x77, None), 200, 3);
    for _ in 0..4 {
        assert_eq!((bench.carry(), bench.asker.poll_readable()), (1, None));
        assert!(bench.wait());
    }
    assert_eq!(bench.now - start, Duration::from_millis(800));
    assert_eq!(bench.asker.poll_readable(), Some((FILE, true)));
    let (header, mad) = read(&mut bench.asker).unwrap();
    assert_eq!((header.status(), header.agent_id()), (libc::ETIMEDOUT as u32, 0));
    assert_eq!((mad.len(), tid(&mad)), (REPORT_LEN, 0x1_0000_0077));
    assert_eq!(bench.asker.poll_readable(), Some((FILE, false)));
    // The id is free again.
    bench.ask(&message(Method::GET, 0x77, None), 200, 0);
}

#[test]
fn a_send_without_a_time_out_is_never_heard_of_again() {
    let mut bench = Bench::new();
    bench.losses = vec![true];
    bench.ask(&message(Method::GET, 0x77, None), 0, 5);
    bench.ask(&message(Method::GET, 0x77, None), 0, 5);
    assert_eq!((bench.carry(), bench.wait()), (2, false));
    assert_eq!(read(&mut bench.asker), None);
}

#[test]
fn the_id_of_a_request_that_waits_cannot_be_used_again() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET, 0x77, None), 100, 0);
    let header = header(0, SERVER, 100, 0);
    let again = message(Method::GET, 0xABCD_0000_0077, None);
    assert_eq!(bench.asker.send(bench.now, FILE, header, &again), Err(Errno(libc::EINVAL)));
}

#[test]
fn what_the_kernel_refuses_is_refused() {
    let mut bench = Bench::new();
    let sent = |bench: &mut Bench, header: Header, mad: &[u8]| {
        bench.asker.send(bench.now, FILE, header, mad).map_err(|error| error.0)
    };
    let good = header(0, SERVER, 0, 0);
    let mad = message(Method::GET, 1, None);
    assert_eq!(sent(&mut bench, header(5, SERVER, 0, 0), &mad), Err(libc::EIO));
    assert_eq!(sent(&mut bench, good, &mad[..55]), Err(libc::EINVAL));
    assert_eq!(sent(&mut bench, good, &[mad.clone(), mad.clone()].concat()), Err(libc::EINVAL));
    assert_eq!(sent(&mut bench, *{ good }.set_pkey_index(1), &mad), Err(libc::EINVAL));
    assert_eq!(sent(&mut bench, good, &mad[..56]), Ok(()));
}

#[test]
fn p_key_and_global_route_go_out_and_come_in_by_index() {
    let mut bench = Bench::new();
    let ours = Gid::new(0xFE80 << 48, Guid(0x11));
    bench.asker.set_port(&[PKey(0x7FFF), PKey(0x8005)], ours);
    let grh = Grh { remote_gid: Gid([6; 16]), hop_limit: 7, flow_label: 0x12345, ..Grh::default() };
    let mut header = header(0, SERVER, 100, 0);
    header.set_grh(Some(&grh)).set_pkey_index(1).set_sl_and_path_bits(4, 1);
    bench.asker.send(bench.now, FILE, header, &message(Method::GET, 1, None)).unwrap();
    let mut packet = bench.asker.poll_transmit(bench.now).unwrap();
    assert_eq!((packet.address.pkey, packet.address.path_bits), (PKey(0x8005), 1));
    assert_eq!(packet.address.grh, Some(Grh { local_gid: ours, ..grh }));
    MadHeader::new(&mut packet.mad).unwrap().set_method(Method::GET_RESP);
    packet.address.pkey = PKey(0x0005);
    bench.asker.handle_packet(bench.now, &packet);
    let (header, _) = read(&mut bench.asker).unwrap();
    assert_eq!((header.pkey_index(), header.sl(), header.grh_present()), (1, 4, true));
    assert_eq!((header.flow_label(), &header.0[36..52]), (0x12345, &[6; 16][..]));
}

#[test]
fn a_message_stays_until_the_buffer_is_long_enough() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET_TABLE, 0x77, None), 1000, 0);
    bench.carry();
    bench.answer(Method::GET_TABLE, 10_240).unwrap();
    bench.carry();
    let whole = HEADER_LEN + sa::HEADER_LEN + 10_240;
    let mut read = |len: usize| {
        let mut buffer = vec![0xEE; len];
        (bench.asker.receive(FILE, &mut buffer), buffer)
    };
    assert_eq!(read(HEADER_LEN + MAD_LEN - 1).0, Err(Errno(libc::EINVAL)));
    let (result, buffer) = read(HEADER_LEN + MAD_LEN);
    assert_eq!(result, Err(Errno(libc::ENOSPC)));
    assert_eq!(Header(*buffer.first_chunk().unwrap()).length() as usize, whole);
    assert_eq!(
        buffer[HEADER_LEN + sa::HEADER_LEN..][..200],
        message(Method::GET, 0, Some(200))[56..]
    );
    assert_eq!(read(whole - 1).0, Err(Errno(libc::ENOSPC)));
    assert_eq!(read(whole).0, Ok(whole));
    assert_eq!(read(whole).0, Err(Errno(libc::EAGAIN)));
}

#[test]
fn a_table_arrives_as_one_message_with_one_ack_a_window() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET_TABLE, 0x77, None), 1000, 0);
    bench.carry();
    bench.answer(Method::GET_TABLE, 200 * 130).unwrap();
    // ACKs of segment 1, 65, 129 and the last.
    assert_eq!(bench.carry(), 130 + 4);
    let (header, mad) = read(&mut bench.asker).unwrap();
    assert_eq!((header.status(), mad.len()), (0, 56 + 200 * 130));
    assert_eq!(mad[56..], message(Method::GET, 0, Some(200 * 130))[56..]);
    // The sender receives no report.
    assert_eq!(read(&mut bench.server), None);
}

#[test]
fn a_long_request_arrives_whole_and_its_answer_comes_back_whole() {
    let mut bench = Bench::new();
    let request = message(Method::GET_MULTI, 0x77, Some(450));
    bench.ask(&request, 1000, 0);
    bench.carry();
    let (_, arrived) = bench.server.files.get_mut(&FILE).map_or_else(
        || unreachable!(),
        |inbox| {
            let mut buffer = vec![0; 4096];
            let len = inbox.read(&mut buffer).unwrap();
            (len, buffer[HEADER_LEN..len].to_vec())
        },
    );
    assert_eq!(arrived[56..], request[56..]);
    let mut header = header(0, ASKER, 0, 3);
    header.set_qpn(1);
    let answer = message(Method::GET_MULTI_RESP, tid(&arrived), Some(3000));
    bench.server.send(bench.now, FILE, header, &answer).unwrap();
    bench.carry();
    let (_, mad) = read(&mut bench.asker).unwrap();
    assert_eq!((mad.len(), tid(&mad) as u32), (3056, 0x77));
}

#[test]
fn an_unanswered_long_request_is_reported_and_not_resent() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET_MULTI, 0x77, Some(450)), 300, 3);
    let start = bench.now;
    bench.carry();
    while read(&mut bench.server).is_some() {}
    while bench.now - start < Duration::from_millis(300) {
        assert!(bench.wait());
    }
    assert_eq!(bench.carry(), 0);
    assert_eq!(read(&mut bench.asker).unwrap().0.status(), libc::ETIMEDOUT as u32);
}

#[test]
fn a_long_request_without_acks_is_reported_after_its_retries() {
    let mut bench = Bench::new();
    bench.losses = vec![true];
    bench.ask(&message(Method::GET_MULTI, 0x77, Some(450)), 300, 3);
    let start = bench.now;
    let mut sent = bench.carry();
    while bench.now - start < Duration::from_millis(1200) {
        assert!(bench.wait());
        sent += bench.carry();
    }
    // The first segment each time, and no ABORT.
    assert_eq!(sent, 4);
    assert_eq!(read(&mut bench.asker).unwrap().0.status(), libc::ETIMEDOUT as u32);
}

#[test]
fn a_transfer_ended_by_the_peer_is_not_reported() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET_MULTI, 0x77, Some(450)), 300, 3);
    let mut packet = bench.asker.poll_transmit(bench.now).unwrap();
    SaMad::new(&mut packet.mad).rmpp_mut().set_rmpp_type(RmppType::ABORT);
    MadHeader::new(&mut packet.mad).unwrap().set_method(Method::GET_MULTI_RESP);
    bench.asker.handle_packet(bench.now, &packet);
    assert_eq!((bench.carry(), bench.wait(), read(&mut bench.asker)), (0, false, None));
}

#[test]
fn an_answer_to_an_earlier_request_of_the_same_name_does_not_stand_in_the_way() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET_TABLE, 0x77, None), 100, 0);
    bench.carry();
    // The response comes after the request timed out.
    assert!(bench.wait());
    bench.answer(Method::GET_TABLE, 500).unwrap();
    bench.carry();
    assert_eq!(read(&mut bench.asker).unwrap().0.status(), libc::ETIMEDOUT as u32);
    assert_eq!(read(&mut bench.asker), None);
    bench.ask(&message(Method::GET_TABLE, 0x77, None), 100, 0);
    bench.carry();
    bench.answer(Method::GET_TABLE, 500).unwrap();
    bench.carry();
    assert_eq!(read(&mut bench.asker).unwrap().1.len(), 556);
}

/// Regression: Completed transfers are remembered for some time and were counted as active: the
/// 4,097th table within ten seconds was never received.
#[test]
fn a_quick_asker_gets_every_table() {
    let mut bench = Bench::new();
    for tid in 1..10_000 {
        bench.ask(&message(Method::GET_TABLE, tid, None), 100, 0);
        bench.carry();
        bench.answer(Method::GET_TABLE, 72).unwrap();
        bench.carry();
        assert!(read(&mut bench.asker).is_some(), "table {tid}");
    }
    while bench.wait() {}
    assert!(bench.asker.poll_timeout().is_none());
}

/// Regression: osmtest, run twice within ten seconds, sent GetMulti() with the same transaction
/// ids: they were acknowledged as repeats, and not answered.
#[test]
fn a_program_run_again_is_not_taken_for_its_predecessor() {
    let mut bench = Bench::new();
    for seed in [0x1234_5678, 0x0777_0001] {
        bench.asker = Stack::new(seed);
        bench.asker.open(FILE);
        bench.asker.register(FILE, asking(MgmtClass::SUBN_ADM)).unwrap();
        bench.ask(&message(Method::GET_MULTI, 0x77, Some(40)), 1000, 0);
        bench.carry();
        assert!(read(&mut bench.server).is_some(), "{seed:#x}");
    }
}

#[test]
fn an_answer_under_way_cannot_be_sent_twice() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET_TABLE, 0x77, None), 1000, 0);
    bench.carry();
    let answer = message(Method::GET_TABLE_RESP, SLOT << 48 | 0x1_0000_0077, Some(500));
    let header = header(0, ASKER, 0, 3);
    bench.server.send(bench.now, FILE, header, &answer).unwrap();
    let again = bench.server.send(bench.now, FILE, header, &answer);
    assert_eq!(again, Err(Errno(libc::EINVAL)));
}

#[test]
fn agents_share_a_class_by_method_and_overlap_is_refused() {
    let mut stack = Stack::new(0);
    stack.open(FILE);
    stack.open(FILE + 1);
    let sa = MgmtClass::SUBN_ADM;
    assert_eq!(stack.register(FILE, serving()), Ok(0));
    assert_eq!(stack.register(FILE + 1, registration(sa, bit(Method::REPORT))), Ok(0));
    let overlapping = registration(sa, bit(Method::REPORT) | bit(Method::TRAP));
    assert_eq!(stack.register(FILE, overlapping), Err(Errno(libc::EINVAL)));
    assert_eq!(stack.register(FILE, asking(sa)), Ok(1));
    assert_eq!(stack.methods(sa) & bit(Method::REPORT), bit(Method::REPORT));
    assert_eq!(stack.close(FILE + 1), [sa]);
    assert_eq!(stack.methods(sa) & bit(Method::REPORT), 0);
    assert_eq!(stack.register(FILE, overlapping), Ok(2));
    assert_eq!(stack.unregister(FILE, 0), Ok(sa));
    assert_eq!(stack.unregister(FILE, 0), Err(Errno(libc::EINVAL)));
    assert_eq!(stack.register(FILE, serving()), Ok(0));
    let no_rmpp = Registration { rmpp_version: 1, ..asking(MgmtClass::PERF) };
    assert_eq!(stack.register(FILE, no_rmpp), Err(Errno(libc::EINVAL)));
}

#[test]
fn who_unregisters_hears_nothing_more() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET, 0x77, None), 100, 0);
    bench.ask(&message(Method::GET_MULTI, 0x78, Some(1000)), 100, 0);
    bench.asker.unregister(FILE, 0).unwrap();
    assert_eq!((bench.carry(), bench.wait(), read(&mut bench.asker)), (0, false, None));
}

#[test]
fn an_unclaimed_get_is_answered_and_a_get_table_is_not() {
    let mut bench = Bench::new();
    bench.server.close(FILE);
    bench.ask(&message(Method::GET_TABLE, 0x76, None), 100, 0);
    bench.ask(&message(Method::GET, 0x77, None), 100, 0);
    bench.carry();
    let (_, mad) = read(&mut bench.asker).unwrap();
    let header = MadHeader::new(&mad[..]).unwrap();
    assert_eq!(header.status(), Status::UNSUPPORTED_METHOD_ATTRIBUTE);
    assert_eq!((header.tid() as u32, read(&mut bench.asker)), (0x77, None));
}

#[test]
fn a_program_that_does_rmpp_itself_gets_every_segment() {
    let mut bench = Bench::new();
    let user = Registration { user_rmpp: true, ..asking(MgmtClass::SUBN_ADM) };
    let agent = bench.asker.register(FILE, user).unwrap();
    let header = header(agent, SERVER, 1000, 0);
    let request = message(Method::GET_TABLE, 0x77, None);
    bench.asker.send(bench.now, FILE, header, &request).unwrap();
    bench.carry();
    bench.answer(Method::GET_TABLE, 500).unwrap();
    bench.carry();
    let (_, segment) = read(&mut bench.asker).unwrap();
    assert_eq!(segment.len(), MAD_LEN);
    assert_eq!(read(&mut bench.asker), None, "no ACK, no second segment");
}

#[test]
fn what_comes_back_undelivered_changes_nothing() {
    let mut bench = Bench::new();
    bench.ask(&message(Method::GET, 0x77, None), 100, 0);
    let mut packet = bench.asker.poll_transmit(bench.now).unwrap();
    packet.carrier.undelivered = 110;
    bench.asker.handle_packet(bench.now, &packet);
    assert_eq!((read(&mut bench.asker), bench.asker.counters().bounced), (None, 1));
    assert!(bench.wait() && read(&mut bench.asker).is_some());
}

proptest! {
    /// With a tenth of all packets lost, whichever they are, the table arrives complete and once.
    #[test]
    fn a_table_survives_loss(
        losses in prop::collection::vec(prop::bool::weighted(0.1), 2000..2001)
    ) {
        let mut bench = Bench::new();
        bench.losses = losses;
        bench.ask(&message(Method::GET_TABLE, 0x77, None), 40_000, 20);
        let mut tables = 0;
        for _ in 0..500 {
            bench.carry();
            while let Some((mut header, request)) = read(&mut bench.server) {
                header.set_timeout_ms(0).set_retries(20);
                let answer =
                    message(Method::GET_TABLE_RESP, tid(&request), Some(200 * 150));
                // A repeated request finds the response to the first one still being sent.
                let _ = bench.server.send(bench.now, FILE, header, &answer);
                bench.carry();
            }
            while let Some((header, mad)) = read(&mut bench.asker) {
                prop_assert_eq!((header.status(), mad.len()), (0, 56 + 200 * 150));
                tables += 1;
            }
            if tables > 0 || !bench.wait() {
                break;
            }
        }
        prop_assert_eq!(tables, 1);
    }
}
