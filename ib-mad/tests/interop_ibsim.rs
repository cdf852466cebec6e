//! The ibsim transport against Debian's `ibsim`: two clients on one of its example nets.

#![cfg(feature = "transport")]

#[path = "skip/mod.rs"]
mod skip;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ib_mad::transport::ibsim::{ClientId, Ibsim, IbsimError, IbsimOptions, Role};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use skip::skip;

const NET: &str = "/usr/share/doc/ibsim-utils/net-examples/net.2sw2path4hca";
const LIMIT: Duration = Duration::from_secs(60);

/// A child process, killed when dropped.
struct Process(Child);

impl Process {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A running ibsim process.
struct Simulator {
    socket: String,
    process: Process,
}

/// Starts ibsim, or returns the reason to skip the test.
fn start(test: &str) -> Option<Simulator> {
    let socket = format!("ib-mad-{test}-{}", std::process::id());
    let child = Command::new("ibsim")
        .args(["-s", "-n", NET])
        .env("IBSIM_SOCKNAME", &socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match child.map(Process) {
        Ok(process) if std::path::Path::new(NET).exists() => Some(Simulator { socket, process }),
        _ => {
            skip("ibsim or its example nets are not installed (Debian: ibsim-utils)");
            None
        }
    }
}

impl Simulator {
    fn options(&self, node: &str, role: Role) -> IbsimOptions {
        IbsimOptions { socket: self.socket.clone(), ..options_at(node, role) }
    }

    /// Attaches, waiting until the server is ready.
    fn connect(&self, options: &IbsimOptions) -> Ibsim {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Ibsim::connect(options) {
                Err(IbsimError::NoServer { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other.unwrap(),
            }
        }
    }
}

fn options_at(node: &str, role: Role) -> IbsimOptions {
    IbsimOptions {
        node: Some(node.to_owned()),
        role,
        qpn: None,
        stale_client: None,
        timeout: Duration::from_secs(20),
        ..IbsimOptions::default()
    }
}

/// A directed-route Get(attribute) along `route`, whose first entry is the local port's.
fn directed_get(attribute: AttributeId, tid: u64, route: &[u8]) -> Packet {
    let address = Address::smi(Lid::PERMISSIVE);
    let mut packet = Packet::to(address);
    let mut header = MadHeader::of_mut(&mut packet.mad);
    header
        .set_base_version(1)
        .set_mgmt_class(MgmtClass::SUBN_DIRECTED_ROUTE)
        .set_class_version(1)
        .set_method(Method::GET)
        .set_class_specific(route.len() as u16)
        .set_tid(tid)
        .set_attribute_id(attribute);
    packet.mad[32..36].fill(0xFF);
    packet.mad[129..129 + route.len()].copy_from_slice(route);
    packet
}

fn exchange(client: &mut Ibsim, request: Packet) -> Packet {
    assert_eq!(client.send(&[request]).unwrap(), 1);
    receive(client)
}

fn receive(client: &mut Ibsim) -> Packet {
    let mut batch = [Packet::default()];
    while client.receive(&mut batch).unwrap() == 0 {
        let fd = client.descriptor().unwrap();
        assert_eq!(wait(&mut [Interest::read(fd)], Some(LIMIT)).unwrap(), 1, "no answer");
    }
    let [packet] = batch;
    packet
}

fn node_guid(packet: &Packet) -> u64 {
    u64::from_be_bytes(packet.mad[64 + 12..64 + 20].try_into().unwrap())
}

#[test]
fn smps_walk_a_stock_ibsim() {
    let Some(simulator) = start("walk") else { return };
    let mut manager = simulator.connect(&simulator.options("Hca1", Role::Manager { sa: true }));
    assert_eq!(manager.node(), "Hca1");
    let port = manager.local_port().unwrap();

    let own =
        exchange(&mut manager, directed_get(AttributeId::NODE_INFO, 0xFFFF_0000_0000_0007, &[]));
    let header = MadHeader::of(&own.mad);
    assert_eq!(header.method(), Method::GET_RESP);
    let slot = u64::from(manager.client_id().slot);
    assert_eq!(header.tid(), slot << 48 | 7, "the top 16 bits are the client's slot");
    assert_eq!((own.mad[64 + 2], own.address.lid), (1, Lid::PERMISSIVE), "a channel adapter");
    assert_eq!(port.guid.0, node_guid(&own) + 1);

    let next = exchange(&mut manager, directed_get(AttributeId::NODE_INFO, 8, &[1]));
    assert_eq!(next.carrier.undelivered, 0);
    assert_eq!(next.mad[64 + 2], 2, "one hop further is a switch");
    assert_ne!(node_guid(&next), node_guid(&own));

    let nowhere = exchange(&mut manager, directed_get(AttributeId::NODE_INFO, 9, &[1, 200]));
    assert_eq!(nowhere.carrier.undelivered, 110);
    assert_eq!(MadHeader::of(&nowhere.mad).tid() as u32, 9);
}

/// SMInfo requests are the only SMPs that ibsim delivers to a client.
#[test]
fn requests_reach_the_manager_of_another_node_and_answers_return() {
    let Some(simulator) = start("requests") else { return };
    let mut manager = simulator.connect(&simulator.options("Hca1", Role::Manager { sa: true }));
    let mut client = simulator.connect(&simulator.options("Hca2", Role::Client));
    // Hca1 and Hca2 are on neighbouring switches.
    let manager_guid =
        node_guid(&exchange(&mut manager, directed_get(AttributeId::NODE_INFO, 1, &[])));
    let route = (1..=8)
        .flat_map(|port| (1..=8).map(move |next| [1, port, next]))
        .find(|route| {
            let answer = exchange(&mut client, directed_get(AttributeId::NODE_INFO, 2, route));
            answer.carrier.undelivered == 0 && node_guid(&answer) == manager_guid
        })
        .expect("three hops lead to the manager");

    assert_eq!(client.send(&[directed_get(AttributeId::SM_INFO, 3, &route)]).unwrap(), 1);
    let mut request = receive(&mut manager);
    assert_eq!(MadHeader::of(&request.mad).attribute_id(), AttributeId::SM_INFO);
    // The response is sent back along the recorded route: ibsim requires the direction bit, and
    // ignores the hop pointer.
    MadHeader::of_mut(&mut request.mad).set_method(Method::GET_RESP);
    request.mad[4] = 0x80;
    request.mad[64] = 0x5A;
    assert_eq!(manager.send(&[request]).unwrap(), 1);
    let answer = receive(&mut client);
    assert_eq!((answer.carrier.undelivered, answer.mad[64]), (0, 0x5A));
}

const HOLDER_SOCKET: &str = "IB_MAD_TEST_HOLDER_SOCKET";

/// Not a test: the process that the next test kills. Attaches, prints its client id and waits.
#[test]
#[ignore = "run by one_responder_a_node_and_a_killed_one_is_thrown_out"]
#[allow(clippy::print_stdout, reason = "the test reads it")]
fn holder() {
    let Ok(socket) = std::env::var(HOLDER_SOCKET) else { return };
    let options = IbsimOptions { socket, ..options_at("Hca3", Role::Responder) };
    let client = Ibsim::connect(&options).unwrap();
    println!("\nholding {}", client.client_id());
    std::thread::sleep(2 * LIMIT);
}

#[test]
fn one_responder_a_node_and_a_killed_one_is_thrown_out() {
    let Some(simulator) = start("stale") else { return };
    // The slot before the holder's belongs to another client, as it may after a server restart.
    let bystander = simulator.connect(&simulator.options("Hca1", Role::Responder));
    let holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .env(HOLDER_SOCKET, &simulator.socket)
        .stdout(Stdio::piped())
        .spawn();
    let mut holder = Process(holder.unwrap());
    let stale: ClientId = BufReader::new(holder.0.stdout.take().unwrap())
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("holding ").map(str::to_owned))
        .expect("the holder attached")
        .parse()
        .unwrap();

    let options = simulator.options("Hca3", Role::Responder);
    let error = Ibsim::connect(&options).err().unwrap();
    assert_eq!(error.to_string(), "another SM/SA is attached to node Hca3");
    // While its holder is alive, it is not stale.
    let takeover = IbsimOptions { stale_client: Some(stale), ..options.clone() };
    assert!(matches!(Ibsim::connect(&takeover), Err(IbsimError::Taken { .. })));

    holder.kill();
    assert!(matches!(Ibsim::connect(&options), Err(IbsimError::Taken { .. })));
    // An id whose slot belongs to a client of another node by now has no effect.
    let passed = ClientId { slot: bystander.client_id().slot, number: stale.number };
    let options = IbsimOptions { stale_client: Some(passed), ..options };
    assert!(matches!(Ibsim::connect(&options), Err(IbsimError::Taken { .. })));
    let second = Ibsim::connect(&takeover).unwrap();
    assert_eq!(second.node(), "Hca3");
    let options = simulator.options("Hca1", Role::Responder);
    assert!(matches!(Ibsim::connect(&options), Err(IbsimError::Taken { .. })));
}

#[test]
fn errors_say_what_is_wrong() {
    let Some(simulator) = start("errors") else { return };
    let first = simulator.connect(&simulator.options("Hca1", Role::Client));
    let error = Ibsim::connect(&simulator.options("nobody", Role::Client)).err().unwrap();
    assert_eq!(error.to_string(), "node 'nobody' is not in the net file");

    let options = simulator.options("Hca1", Role::Client);
    let clients: Vec<_> = (0..9).map(|_| Ibsim::connect(&options).unwrap()).collect();
    let error = Ibsim::connect(&options).err().unwrap();
    assert!(matches!(error, IbsimError::NoSlot { .. }), "{error}");
    drop(clients);
    drop(first);
    // Slots are freed.
    let deadline = Instant::now() + LIMIT;
    while Ibsim::connect(&options).is_err() {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn a_server_that_has_gone_is_an_error() {
    let Some(mut simulator) = start("gone") else { return };
    let mut client = simulator.connect(&simulator.options("Hca1", Role::Client));
    simulator.process.kill();
    assert!(client.send(&[directed_get(AttributeId::NODE_INFO, 1, &[])]).is_err());
    assert!(matches!(client.local_port(), Err(IbsimError::NoServer { .. })));
    // And its arrival wakes a waiting client.
    let fd = client.descriptor().unwrap();
    let mut interests = [Interest::read_or_write(fd, true)];
    assert_eq!(wait(&mut interests, Some(LIMIT)).unwrap(), 1);
}
