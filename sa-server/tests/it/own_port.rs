//! Answers that leave by the responder's own port though their requests came by the front door.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::common::{Chain, path_request, published, request};
use ib_mad::transport::udp::DIRECT;
use ib_mad::transport::{Address, Carrier, Grh, Packet, Transport};
use ib_mad::types::{Gid, Lid, Qpn, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_server::serve::own_port::{Egress, OwnPort};
use sa_server::serve::responder::{Responder, ResponderConfig};
use sa_server::serve::worker::{Worker, WorkerConfig};
use sa_server::sm::forward::Exchange;
use sa_server::stats::Stats;

/// The responder's own host.
const OWN: u16 = 3;

#[derive(Default)]
struct Queue {
    arriving: VecDeque<Packet>,
    sent: Vec<Packet>,
}

impl Transport for Queue {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let count = self.arriving.len().min(batch.len());
        batch.iter_mut().zip(self.arriving.drain(..count)).for_each(|(to, from)| *to = from);
        Ok(count)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        self.sent.extend_from_slice(batch);
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A responder with a worker at the front door and one at a port.
struct WorkerPool {
    door: Worker<Queue>,
    own: Worker<Queue>,
    port: Arc<OwnPort>,
}

impl WorkerPool {
    fn new() -> Self {
        let publisher = published(&Chain { switches: 2, hosts_each: 2 }.plane(|_| {}));
        let exchange = Exchange::new(2).unwrap();
        let port = OwnPort::new(Arc::clone(&exchange), 1);
        let worker = |egress| {
            let own_port = Some(Chain::host_guid(OWN));
            let config = ResponderConfig { own_port, ..ResponderConfig::default() };
            let stats = Arc::new(Stats::default());
            let responder = Responder::new(publisher.reader(), config, stats);
            Worker::new(Queue::default(), responder, WorkerConfig::default()).with_egress(egress)
        };
        let door = worker(Egress::By(Arc::clone(&port)));
        let own = worker(Egress::Owner(Arc::clone(&port)));
        port.set_open(true);
        Self { door, own, port }
    }

    /// Packets that leave by the front door and by the port, after `packet` arrived by the front
    /// door.
    fn pass(&mut self, packet: Packet) -> (Vec<Packet>, Vec<Packet>) {
        self.door.transport_mut().arriving.push_back(packet);
        self.door.turn(Instant::now).unwrap();
        self.own.turn(Instant::now).unwrap();
        let take = |worker: &mut Worker<Queue>| std::mem::take(&mut worker.transport_mut().sent);
        (take(&mut self.door), take(&mut self.own))
    }
}

fn direct(mut packet: Packet) -> Packet {
    packet.carrier.marks = DIRECT;
    packet.carrier.peer = Some("127.0.0.1:9".parse().unwrap());
    packet.address.path_bits = 1;
    packet
}

#[test]
fn an_answer_of_one_packet_leaves_by_the_port_to_the_lid_that_asked() {
    let mut pool = WorkerPool::new();
    let mut asked = direct(path_request(1, 1, 4, 7));
    asked.address.qpn = Qpn(0x77);
    let (by_door, by_port) = pool.pass(asked.clone());
    assert_eq!((by_door.len(), by_port.len()), (0, 1));
    let expected = Address { lid: Lid(1), qpn: Qpn(0x77), ..Address::default() };
    assert_eq!((by_port[0].address, by_port[0].carrier), (expected, Carrier::default()));
    assert_eq!(SaMad::new(&by_port[0].mad).header().status(), Status::OK);
    let stats = pool.door.responder().stats();
    assert_eq!((stats.responses(), stats.direct_answers.get()), (1, 1));
    assert!(stats.balances());
}

#[test]
fn the_answer_has_a_grh_if_and_only_if_the_request_had_one() {
    let mut pool = WorkerPool::new();
    let mut asked = direct(path_request(1, 1, 4, 7));
    let remote_gid = Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(1));
    let grh = Grh { remote_gid, local_gid: Gid([9; 16]), flow_label: 5, ..Grh::default() };
    asked.address.grh = Some(grh);
    let (_, by_port) = pool.pass(asked);
    let local_gid = Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(OWN));
    assert_eq!(by_port[0].address.grh, Some(Grh { local_gid, ..grh }), "from our own GID");
}

#[test]
fn what_must_or_can_not_leave_by_the_port_goes_back_by_the_door() {
    let mut pool = WorkerPool::new();
    let (by_door, by_port) = pool.pass(path_request(1, 1, 4, 7));
    assert_eq!((by_door.len(), by_port.len()), (1, 0), "it was not allowed");
    let table = request(1, Method::GET_TABLE, attribute::NODE_RECORD, 8, ComponentMask::NONE);
    let (by_door, by_port) = pool.pass(direct(table));
    assert_eq!(by_port.len(), 0, "a transfer is the front door's");
    assert!(by_door.iter().all(|packet| packet.carrier.peer.is_some()) && !by_door.is_empty());
    pool.port.set_open(false);
    let (by_door, by_port) = pool.pass(direct(path_request(1, 1, 4, 9)));
    assert_eq!((by_door.len(), by_port.len()), (1, 0), "the port is not attached");
}
