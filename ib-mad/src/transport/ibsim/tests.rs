//! The client against a scripted server. The interop test uses the real one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::protocol::{
    CONTROL_LEN, ConnectData, Control, PACKET_LEN, SimHeader, SimHeaderRepr, classes_accepted,
    declared_classes, socket_name,
};
use super::*;
use crate::transport::{Address, Carrier, Interest, wait};
use crate::types::Qpn;
use crate::wire::mad::Method;

/// Extensions that the server supports beyond stock ibsim.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Stock,
    Declarations,
    ClassesTaken,
}

struct Server {
    base: String,
    out: UnixDatagram,
    thread: Option<JoinHandle<Vec<Control>>>,
}

fn bind(base: &str, suffix: &str) -> UnixDatagram {
    let name = SocketAddr::from_abstract_name(socket_name(base, suffix)).unwrap();
    UnixDatagram::bind_addr(&name).unwrap()
}

fn unique_base() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("ib-mad-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A server with one slot, 3, whose only node is "Hca-1", LID 20, LMC 2. It records its requests
/// and ends with the last DISCONNECT of `clients` connections.
fn serve(kind: Kind, clients: usize) -> Server {
    let base = unique_base();
    let control = bind(&base, "ctl");
    let out = bind(&base, "out3");
    let out_of_thread = out.try_clone().unwrap();
    let base_of_thread = base.clone();
    let thread = std::thread::spawn(move || {
        let base = base_of_thread;
        let mut requests = Vec::new();
        let mut left = clients;
        while left > 0 {
            let mut bytes = [0; CONTROL_LEN];
            let (len, from) = control.recv_from(&mut bytes).unwrap();
            let mut message = Control::from_bytes(&bytes[..len]).unwrap();
            requests.push(message.clone());
            match message.kind {
                ControlKind::CONNECT => {
                    let mut connect = ConnectData::from_bytes(&message.data);
                    if !matches!(&connect.node[..], b"" | b"Hca-1") {
                        message.kind = ControlKind::ERROR;
                    } else {
                        let name = socket_name(&base, &format!("in{}", connect.id));
                        let name = SocketAddr::from_abstract_name(name).unwrap();
                        out_of_thread.connect_addr(&name).unwrap();
                        connect.id = 3;
                        connect.node = b"Hca-1".to_vec();
                        message.data = connect.to_bytes();
                    }
                }
                ControlKind::DISCONNECT => left -= 1,
                ControlKind::GET_PORTINFO => {
                    message.data = [0; CONTROL_DATA_LEN];
                    message.data[17] = 20;
                    message.data[28] = 1;
                    message.data[34] = 2;
                }
                ControlKind::DECLARE_CLASSES => match kind {
                    Kind::Stock => {}
                    Kind::Declarations => {
                        let classes = declared_classes(&message.data).unwrap();
                        message.data = classes_accepted(classes.len());
                    }
                    Kind::ClassesTaken => message.kind = ControlKind::ERROR,
                },
                _ => {}
            }
            let _ = control.send_to_addr(&message.to_bytes(), &from);
        }
        requests
    });
    Server { base, out, thread: Some(thread) }
}

impl Server {
    fn options(&self, role: Role) -> IbsimOptions {
        IbsimOptions {
            socket: self.base.clone(),
            node: Some("Hca-1".to_owned()),
            role,
            qpn: None,
            stale_client: None,
            timeout: Duration::from_secs(60),
        }
    }

    fn requests(mut self) -> Vec<ControlKind> {
        let requests = self.thread.take().unwrap().join().unwrap();
        requests.iter().map(|request| request.kind).collect()
    }

    fn deliver(&self, header: SimHeaderRepr, method: Method) {
        let mut packet = [0; PACKET_LEN];
        packet[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        packet[HEADER_LEN] = 1;
        packet[HEADER_LEN + 3] = method.0;
        self.out.send(&packet).unwrap();
    }
}

fn receive_one(client: &mut Ibsim) -> Packet {
    let mut batch = vec![Packet::default(); 4];
    loop {
        let fd = client.descriptor().unwrap();
        wait(&mut [Interest::read(fd)], Some(Duration::from_secs(60))).unwrap();
        match client.receive(&mut batch).unwrap() {
            0 => {}
            1 => return batch[0].clone(),
            more => panic!("{more} packets"),
        }
    }
}

const REQUEST_TO_US: SimHeaderRepr = SimHeaderRepr {
    dlid: Lid(22),
    slid: Lid(7),
    dqp: Qpn(1),
    sqp: Qpn(5),
    status: 0,
    plane: PortNum(0),
    length: 256,
};

#[test]
fn classes_are_declared_where_the_server_knows_declarations() {
    let server = serve(Kind::Declarations, 1);
    let client = Ibsim::connect(&server.options(Role::Responder)).unwrap();
    assert_eq!((client.node(), client.client_id().slot), ("Hca-1", 3));
    drop(client);
    use ControlKind as K;
    let expected =
        [K::CONNECT, K::DECLARE_CLASSES, K::GET_PORTINFO, K::GET_NODEINFO, K::DISCONNECT];
    assert_eq!(server.requests(), expected);
}

#[test]
fn an_echoed_declaration_makes_it_connect_again_as_a_manager() {
    let server = serve(Kind::Stock, 2);
    drop(Ibsim::connect(&server.options(Role::Manager { sa: true })).unwrap());
    let requests = { server }.thread.take().unwrap().join().unwrap();
    let connects: Vec<bool> = requests
        .iter()
        .filter(|request| request.kind == ControlKind::CONNECT)
        .map(|request| ConnectData::from_bytes(&request.data).is_sm)
        .collect();
    assert_eq!(connects, [false, true]);
}

#[test]
fn refusals_name_their_reason() {
    let server = serve(Kind::ClassesTaken, 1);
    let error = Ibsim::connect(&server.options(Role::Responder)).err().unwrap();
    assert_eq!(error.to_string(), "another SM/SA is attached to node Hca-1");

    let server = serve(Kind::Stock, 1);
    let mut options = server.options(Role::Client);
    options.node = Some("nobody".to_owned());
    let error = Ibsim::connect(&options).err().unwrap();
    assert_eq!(error.to_string(), "node 'nobody' is not in the net file");

    let options = IbsimOptions { socket: unique_base(), ..options };
    let error = Ibsim::connect(&options).err().unwrap();
    assert!(matches!(error, IbsimError::NoServer { .. }), "{error}");
}

#[test]
fn a_silent_server_is_given_up_in_time() {
    let base = unique_base();
    let _silent = bind(&base, "ctl");
    let options = IbsimOptions {
        socket: base,
        timeout: Duration::from_millis(20),
        ..serve(Kind::Stock, 0).options(Role::Client)
    };
    let error = Ibsim::connect(&options).err().unwrap();
    assert!(matches!(error, IbsimError::NoAnswer { .. }), "{error}");
}

#[test]
fn packets_are_addressed_as_seen_from_here() {
    let server = serve(Kind::Declarations, 1);
    let mut client = Ibsim::connect(&server.options(Role::Responder)).unwrap();
    server.deliver(REQUEST_TO_US, Method::GET);
    let packet = receive_one(&mut client);
    let expected = Address { lid: Lid(7), qpn: Qpn(5), path_bits: 2, ..Address::default() };
    assert_eq!((packet.address, packet.carrier), (expected, Carrier::default()));

    // The response goes to the requester, from the LID that the request was sent to.
    assert_eq!(client.send(&[packet]).unwrap(), 1);
    let mut bytes = [0; PACKET_LEN + 1];
    assert_eq!(server.out.recv(&mut bytes).unwrap(), PACKET_LEN);
    let sent = SimHeaderRepr::parse(&SimHeader::of(&bytes)).unwrap();
    let SimHeaderRepr { dlid, slid, dqp, sqp, .. } = REQUEST_TO_US;
    let expected = SimHeaderRepr { dlid: slid, slid: dlid, dqp: sqp, sqp: dqp, ..REQUEST_TO_US };
    assert_eq!(sent, expected);
    drop(client);
    server.requests();
}

#[test]
fn what_comes_back_undelivered_bears_the_address_it_was_sent_to() {
    let server = serve(Kind::Declarations, 1);
    let mut client = Ibsim::connect(&server.options(Role::Client)).unwrap();
    let (dlid, slid) = (Lid(9), Lid(20));
    let back = SimHeaderRepr { dlid, slid, status: 110, ..REQUEST_TO_US };
    server.deliver(back, Method::GET);
    let Packet { address, carrier, .. } = receive_one(&mut client);
    assert_eq!((address.lid, address.qpn, carrier.undelivered), (Lid(9), Qpn(1), 110));

    // An undeliverable response to us has its addresses the other way round.
    let back = SimHeaderRepr { dlid: slid, slid: dlid, status: 110, ..REQUEST_TO_US };
    server.deliver(back, Method::GET_RESP);
    let address = receive_one(&mut client).address;
    assert_eq!((address.lid, address.qpn), (Lid(9), Qpn(5)));
    assert_eq!(client.counters().undelivered, 2);
    drop(client);
    server.requests();
}

#[test]
fn datagrams_of_another_length_are_counted_and_passed_over() {
    let server = serve(Kind::Declarations, 1);
    let mut client = Ibsim::connect(&server.options(Role::Client)).unwrap();
    server.out.send(&[0; PACKET_LEN - 1]).unwrap();
    server.out.send(&[0; PACKET_LEN + 1]).unwrap();
    server.deliver(REQUEST_TO_US, Method::GET);
    assert_eq!(receive_one(&mut client).address.lid, Lid(7));
    let expected = IbsimCounters { received: 1, malformed: 2, ..IbsimCounters::default() };
    assert_eq!(client.counters(), expected);
    drop(client);
    server.requests();
}

/// A server that cannot deliver a packet blocks, so the client must also receive packets while it
/// waits for a control response, and must not lose them.
#[test]
fn packets_that_meet_a_control_request_are_kept() {
    let server = serve(Kind::Declarations, 1);
    let mut client = Ibsim::connect(&server.options(Role::Client)).unwrap();
    for _ in 0..5 {
        server.deliver(REQUEST_TO_US, Method::GET);
    }
    client.set_is_sm(true).unwrap();
    let mut batch = vec![Packet::default(); 3];
    let mut total = 0;
    while total < 5 {
        total += client.receive(&mut batch).unwrap();
    }
    assert_eq!((total, client.receive(&mut batch).unwrap()), (5, 0));
    drop(client);
    server.requests();
}

#[test]
fn a_client_that_cannot_send_says_so_and_loses_nothing() {
    let server = serve(Kind::Declarations, 1);
    let mut client = Ibsim::connect(&server.options(Role::Client)).unwrap();
    let batch = vec![Packet::default(); 8192];
    let taken = client.send(&batch).unwrap();
    assert!((1..batch.len()).contains(&taken), "{taken} taken: the socket's buffer is smaller");
    assert_eq!(client.send(&batch).unwrap(), 0);
    let mut bytes = [0; PACKET_LEN];
    for _ in 0..taken {
        server.out.recv(&mut bytes).unwrap();
    }
    assert!(client.send(&batch).unwrap() > 0);
    drop(client);
    server.requests();
}

#[test]
fn client_ids_are_kept_as_text() {
    let id = ClientId { slot: 3, number: 77_123 };
    assert_eq!(format!("{id}\n").parse(), Ok(id));
    assert!("3".parse::<ClientId>().is_err());
}

#[test]
fn errors_name_the_source_of_a_dead_socket() {
    let at = |socket: &str, variable| {
        IbsimError::NoServer { socket: socket.to_owned() }.with_origin(variable)
    };
    assert!(at("sim", None).contains("the default, since IBSIM_SOCKNAME is not set"));
    assert!(at("a", Some("a")).contains("from IBSIM_SOCKNAME"));
    assert!(at("a", Some("b")).contains("though IBSIM_SOCKNAME is 'b'"));
    assert!(at("a", None).starts_with("no ibsim answers at socket 'a'"));
}
