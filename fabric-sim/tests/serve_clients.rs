//! Native clients of a served fabric: several on a node, classes, clients that die or do not read.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric_sim::serve::Server;
use fabric_sim::{Fabric, Options};
use ib_mad::netlist::Net;
use ib_mad::transport::ibsim::protocol::{
    CONTROL_DATA_LEN, CONTROL_LEN, ConnectData, Control, ControlKind, socket_name,
};
use ib_mad::transport::ibsim::{Ibsim, IbsimError, IbsimOptions, Role};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::types::{Lid, PortNum, Qpn};
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, MgmtClass, Status};
use ib_mad::wire::smp::{self, Request, Smp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const PATIENCE: Duration = Duration::from_secs(20);

const NET: &str = "\
Switch 4 \"S\"
[1] \"H1\"[1]
[2] \"H2\"[1]

Hca 1 \"H1\"
[1] \"S\"[1]

Hca 1 \"H2\"
[1] \"S\"[2]
";

/// A fabric served by a thread of the test.
struct Bed {
    socket: String,
    server: Option<JoinHandle<()>>,
}

impl Bed {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = format!("serve-clients-{}-{number}", std::process::id());
        let options = Options { return_undelivered: true, ..Options::default() };
        let fabric = Fabric::new(&Net::parse("test", NET).unwrap(), options);
        let mut server = Server::bind(fabric, &socket).unwrap();
        let server = std::thread::spawn(move || server.run().unwrap());
        Self { socket, server: Some(server) }
    }

    fn client(&self, node: &str, role: Role) -> Result<Ibsim, IbsimError> {
        Ibsim::connect(&IbsimOptions {
            socket: self.socket.clone(),
            node: Some(node.to_owned()),
            role,
            qpn: None,
            stale_client: None,
            timeout: PATIENCE,
        })
    }

    fn command(&self, line: &str) -> String {
        let name = socket_name(&self.socket, "console");
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        writeln!(stream, "{line}").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn count(&self, name: &str) -> u64 {
        let status = self.command("status");
        let after = status.split(&format!("\"{name}\":")).nth(1).unwrap();
        after.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    }

    /// Assigns LIDs, tables and active links, from a client on H1.
    fn configure(&self, client: &mut Ibsim) {
        let set = |client: &mut Ibsim, path: &[u8], attribute, modifier, data: &[u8; 64]| {
            let mut packet = directed(Method::SET, attribute, modifier, path);
            packet.mad[smp::DATA].copy_from_slice(data);
            let answer = ask(client, &packet);
            assert_eq!(Smp::of(&answer.mad).status(), Status::OK, "{attribute}");
        };
        let ports: [(&[u8], u8, u16); 5] =
            [(&[], 1, 1), (&[1], 0, 2), (&[1, 2], 1, 3), (&[1], 1, 0), (&[1], 2, 0)];
        for state in [0, 3, 4] {
            for (path, port, lid) in ports {
                if state != 0 && port == 0 {
                    continue; // A switch's port 0 is always active.
                }
                let packet = directed(Method::GET, AttributeId::PORT_INFO, port.into(), path);
                let mut data = Smp::new(&ask(client, &packet).mad[..]).unwrap().data();
                data[16..18].copy_from_slice(&lid.to_be_bytes());
                data[18..20].copy_from_slice(&[0, 1]);
                data[32] = data[32] & 0xF0 | state;
                data[33] &= 0x0F;
                set(client, path, AttributeId::PORT_INFO, port.into(), &data);
            }
        }
        let mut info = [0; 64];
        info[6..8].copy_from_slice(&63u16.to_be_bytes());
        set(client, &[1], AttributeId::SWITCH_INFO, 0, &info);
        let mut block = [0xFF; 64];
        block[1..4].copy_from_slice(&[1, 0, 2]);
        set(client, &[1], AttributeId::LINEAR_FORWARDING_TABLE, 0, &block);
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(server) = self.server.take().filter(|_| !std::thread::panicking()) {
            self.command("quit");
            server.join().unwrap();
        }
    }
}

fn directed(method: Method, attribute: AttributeId, modifier: u32, path: &[u8]) -> Packet {
    let mut packet = Packet::default();
    packet.address.qpn = Qpn::SMI;
    packet.address.local_qpn = Qpn::SMI;
    let path: Vec<PortNum> = path.iter().copied().map(PortNum).collect();
    Request { method, attribute_id: attribute, attribute_modifier: modifier, tid: 77, m_key: 0 }
        .write_directed(&mut packet.mad, &path)
        .unwrap();
    packet
}

fn gmp(class: MgmtClass, method: Method, lid: u16) -> Packet {
    let mut packet = Packet::default();
    packet.address.lid = Lid(lid);
    MadHeader::of_mut(&mut packet.mad)
        .set_base_version(1)
        .set_class_version(2)
        .set_mgmt_class(class)
        .set_method(method)
        .set_tid(0x4242);
    packet
}

fn send(client: &mut Ibsim, packet: &Packet) {
    let deadline = Instant::now() + PATIENCE;
    while client.send(std::slice::from_ref(packet)).unwrap() == 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn receive(client: &mut Ibsim) -> Packet {
    let deadline = Instant::now() + PATIENCE;
    let mut batch = [Packet::default()];
    while client.receive(&mut batch).unwrap() == 0 {
        assert!(Instant::now() < deadline, "nothing came");
        let descriptor = client.descriptor().unwrap();
        wait(&mut [Interest::read(descriptor)], Some(Duration::from_millis(100))).unwrap();
    }
    let [packet] = batch;
    packet
}

fn ask(client: &mut Ibsim, packet: &Packet) -> Packet {
    send(client, packet);
    receive(client)
}

#[test]
fn manager_and_responder_share_a_node_and_each_gets_its_own() {
    let bed = Bed::new();
    let mut manager = bed.client("H1", Role::Manager { sa: false }).unwrap();
    let mut responder = bed.client("H1", Role::Responder).unwrap();
    bed.configure(&mut manager);
    let mut asker = bed.client("H2", Role::Client).unwrap();

    for method in [Method::GET, Method::REPORT] {
        send(&mut asker, &gmp(MgmtClass::SUBN_ADM, method, 1));
        let request = receive(&mut responder);
        assert_eq!((request.address.lid, request.address.qpn), (Lid(3), Qpn::GSI));
        let mut answer = request;
        MadHeader::of_mut(&mut answer.mad).set_method(method.response());
        send(&mut responder, &answer);
        let answer = receive(&mut asker);
        let header = MadHeader::of(&answer.mad);
        assert_eq!((answer.address.lid, header.method()), (Lid(1), method.response()));
        assert_eq!(header.tid() & 0xFFFF, 0x4242);
    }

    let sm_info = directed(Method::GET, AttributeId::SM_INFO, 0, &[1, 1]);
    send(&mut asker, &sm_info);
    let request = receive(&mut manager);
    assert_eq!(Smp::of(&request.mad).attribute_id(), AttributeId::SM_INFO);

    assert_eq!(bed.command("link-down S 2"), "ok\n");
    let trap = receive(&mut manager);
    assert_eq!(Smp::of(&trap.mad).method(), Method::TRAP);
}

#[test]
fn a_class_has_one_owner_on_a_node_until_that_dies() {
    let bed = Bed::new();
    let first = bed.client("H1", Role::Responder).unwrap();
    let refused = bed.client("H1", Role::Responder);
    assert!(matches!(refused, Err(IbsimError::Taken { .. })), "{:?}", refused.err());
    let other_node = bed.client("H2", Role::Responder).unwrap();
    drop(first);
    let mut second = bed.client("H1", Role::Manager { sa: true }).unwrap();
    assert_eq!(second.local_port().unwrap().num, PortNum(1));
    drop(other_node);
}

#[test]
fn a_method_of_a_class_has_one_owner_on_a_node_until_it_is_given_back() {
    let bed = Bed::new();
    let mut clients = [(); 2].map(|()| bed.client("H1", Role::Client).unwrap());
    let mut declare = |client: usize, methods: &[Method]| {
        let methods = methods.iter().fold(0, |all, method| all | 1 << method.0);
        clients[client].declare_methods(MgmtClass::SUBN_ADM, methods)
    };
    assert!(matches!(declare(0, &[Method::GET, Method::SET]), Ok(true)));
    assert!(matches!(declare(1, &[Method::REPORT, Method::SET]), Err(IbsimError::Taken { .. })));
    assert!(matches!(declare(1, &[Method::REPORT]), Ok(true)));
    assert!(matches!(declare(0, &[Method::GET]), Ok(true)));
    assert!(matches!(declare(1, &[Method::REPORT, Method::SET]), Ok(true)));
}

#[test]
fn what_cannot_be_delivered_comes_back_at_once() {
    let bed = Bed::new();
    let mut client = bed.client("H1", Role::Client).unwrap();
    let nowhere = directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 4]);
    let returned = ask(&mut client, &nowhere);
    assert_eq!((returned.carrier.undelivered, returned.address.lid), (110, Lid::PERMISSIVE));
    bed.configure(&mut client);
    let returned = ask(&mut client, &gmp(MgmtClass::SUBN_ADM, Method::GET, 3));
    assert_eq!((returned.carrier.undelivered, returned.address.lid), (110, Lid(3)), "no client");
    assert_eq!(bed.count("no_client"), 1);
}

/// A client that never reads must not affect others, and its queue must be bounded.
#[test]
fn a_client_that_does_not_read_is_dropped_to_and_others_are_served() {
    let bed = Bed::new();
    let mut lazy = bed.client("H1", Role::Client).unwrap();
    let request = directed(Method::GET, AttributeId::NODE_INFO, 0, &[1]);
    let deadline = Instant::now() + PATIENCE;
    while bed.count("backlog_dropped") == 0 {
        assert!(Instant::now() < deadline, "{}", bed.command("status"));
        for _ in 0..1000 {
            send(&mut lazy, &request);
        }
    }
    let mut other = bed.client("H2", Role::Client).unwrap();
    let answer = ask(&mut other, &directed(Method::GET, AttributeId::NODE_INFO, 0, &[1]));
    assert_eq!(answer.carrier.undelivered, 0);
    // The queued packets are delivered, and then the client works as any other.
    let mut batch = vec![Packet::default(); 64];
    let mut got = 0;
    while got < 8192 {
        assert!(Instant::now() < deadline);
        got += lazy.receive(&mut batch).unwrap();
    }
}

/// Stock clients die without disconnecting; a client that takes over the name must not be refused.
#[test]
fn a_dead_client_holds_neither_its_node_nor_its_names() {
    let bed = Bed::new();
    let bind = |suffix: String| {
        let address = SocketAddr::from_abstract_name(socket_name(&bed.socket, &suffix));
        UnixDatagram::bind_addr(&address.unwrap()).unwrap()
    };
    let connect = |number: u32| {
        let (control, data) = (bind(format!("ctl{number}")), bind(format!("in{number}")));
        let server = SocketAddr::from_abstract_name(socket_name(&bed.socket, "ctl")).unwrap();
        control.connect_addr(&server).unwrap();
        control.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello =
            ConnectData { id: number, qpn: Qpn(0), is_sm: true, node: b"H1".to_vec() }.to_bytes();
        control
            .send(&Control { client: 0, kind: ControlKind::CONNECT, data: hello }.to_bytes())
            .unwrap();
        let mut answer = [0; CONTROL_LEN];
        assert_eq!(control.recv(&mut answer).unwrap(), CONTROL_LEN);
        (Control::from_bytes(&answer).unwrap(), control, data)
    };
    let (first, control, data) = connect(1);
    assert_eq!(first.kind, ControlKind::CONNECT);
    let (refused, ..) = connect(2);
    assert_eq!(refused.kind, ControlKind::ERROR, "the node has a manager");
    drop((control, data));
    let (again, control, _data) = connect(1);
    assert_eq!(again.kind, ControlKind::CONNECT);
    assert_eq!(ConnectData::from_bytes(&again.data).id, ConnectData::from_bytes(&first.data).id);

    // A late disconnect of a client that was already detached as dead does not detach its
    // successor.
    let place = ConnectData::from_bytes(&again.data).id;
    let server = SocketAddr::from_abstract_name(socket_name(&bed.socket, "ctl")).unwrap();
    let ask = |by: &UnixDatagram, kind| {
        let request = Control { client: place, kind, data: [0; CONTROL_DATA_LEN] };
        by.send_to_addr(&request.to_bytes(), &server).unwrap();
        let mut answer = [0; CONTROL_LEN];
        by.recv(&mut answer).unwrap();
        Control::from_bytes(&answer).unwrap().kind
    };
    assert_eq!(ask(&bind("ctl77".to_owned()), ControlKind::DISCONNECT), ControlKind::DISCONNECT);
    assert_eq!(ask(&control, ControlKind::GET_NODEINFO), ControlKind::GET_NODEINFO);
    assert_eq!(ask(&control, ControlKind::DISCONNECT), ControlKind::DISCONNECT);
    assert_eq!(ask(&control, ControlKind::GET_NODEINFO), ControlKind::ERROR);

    // Unknown requests are returned unchanged, as ibsim does.
    let unknown =
        Control { client: 0, kind: ControlKind(99), data: [0x5A; CONTROL_DATA_LEN] }.to_bytes();
    control.send(&unknown).unwrap();
    let mut answer = [0; CONTROL_LEN];
    control.recv(&mut answer).unwrap();
    assert_eq!(answer, unknown);
    // A malformed message is counted and not answered.
    control.send(b"hello?").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while bed.count("bad_datagrams") == 0 {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn wrong_console_lines_are_explained() {
    let bed = Bed::new();
    assert_eq!(bed.command("frobnicate"), "error: unknown command 'frobnicate'; try help\n");
    assert_eq!(
        bed.command("link-down S9 1"),
        "error: no node 'S9'; use its id, description or GUID (0x...)\n"
    );
    assert!(bed.command("node H1").contains("\"state\":\"Initialize\""));
    assert!(bed.command("node 0x0000000000100000").contains("H1"), "by GUID");
    // A check is done in slices; later commands are answered after it.
    let replies = bed.command("check\nfrobnicate\ncheck");
    let replies: Vec<&str> = replies.lines().collect();
    assert_eq!(replies.len(), 3);
    assert!(replies[0].contains("\"whole\":false") && replies[0] == replies[2]);
    assert!(replies[1].starts_with("error: unknown command"));
    // An overlong line closes the operator's connection.
    let address = SocketAddr::from_abstract_name(socket_name(&bed.socket, "console")).unwrap();
    let mut endless = UnixStream::connect_addr(&address).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while endless.write_all(&[b'x'; 500]).is_ok() {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(bed.command("node-down H2\nnode H2").matches("Down").count(), 1);
}

/// The server keeps serving after any bytes at its sockets.
#[test]
fn random_datagrams_do_no_harm() {
    let bed = Bed::new();
    let mut client = bed.client("H1", Role::Manager { sa: true }).unwrap();
    bed.configure(&mut client);
    let stranger = UnixDatagram::unbound().unwrap();
    let address =
        |suffix: &str| SocketAddr::from_abstract_name(socket_name(&bed.socket, suffix)).unwrap();
    stranger.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut rng = SmallRng::seed_from_u64(1);
    let mut batch = vec![Packet::default(); 64];
    for round in 0..20_000 {
        let mut packet = Packet::default();
        rng.fill(&mut packet.mad[..]);
        // Half of them look like MADs of a class that a client handles.
        if rng.random_bool(0.5) {
            packet.mad[0] = 1;
            packet.mad[1] = [0x01, 0x81, 0x03, 0x04][rng.random_range(0..4usize)];
            packet.mad[2] = 1;
            packet.mad[3] = [1, 2, 5, 7, 0x81, 0x12][rng.random_range(0..6usize)];
            packet.mad[6..8].copy_from_slice(&[0, rng.random_range(..4)]);
            packet.mad[16] = 0;
        }
        packet.address.lid = Lid([0, 1, 2, 3, 4, 0xC000, 0xFFFF][rng.random_range(0..7usize)]);
        packet.address.qpn = Qpn(rng.random_range(..3));
        send(&mut client, &packet);
        if round % 8 == 0 {
            let mut bytes = [0; CONTROL_LEN];
            rng.fill(&mut bytes[..]);
            let data = bytes[16..].try_into().unwrap();
            // From another sender: the client stays attached.
            let (slot, kind) = (rng.random_range(1..100), rng.random_range(..70));
            let control = Control { client: slot, kind: ControlKind(kind), data }.to_bytes();
            let bytes = if rng.random_bool(0.5) { &control[..] } else { &bytes[..] };
            stranger.send_to_addr(bytes, &address("ctl")).unwrap();
        }
        while client.receive(&mut batch).unwrap() != 0 {}
    }
    while client.receive(&mut batch).unwrap() != 0 {}
    let other = bed.client("H2", Role::Client);
    drop(other.expect("the server takes clients"));
    let report = bed.command("status");
    assert!(report.contains("\"sent\""), "{report}");
    assert!(bed.count("bad_datagrams") > 0);
}
