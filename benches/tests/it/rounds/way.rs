//! How requests of clients reach the SA: at responders directly, or through the fabric.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use benches::sandbox::Sandbox;
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions, Role};
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;

/// How long a client relies on the LID of the SM that it has read from its port.
const SM_LID_AGE: Duration = Duration::from_millis(200);

pub(super) enum Way {
    /// One socket, and where responders listen.
    Direct(Udp, [SocketAddr; 2]),
    /// The port of each host, from which it asks the LID of its SM.
    Fabric(Vec<Port>),
}

pub(super) struct Port {
    transport: Ibsim,
    sm_lid: Lid,
    read_at: Instant,
}

impl Way {
    pub(super) fn direct(responders: [SocketAddr; 2]) -> Self {
        let socket = Udp::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into()));
        Self::Direct(socket.expect("loopback"), responders)
    }

    /// From these nodes, in the order of the hosts.
    pub(super) fn fabric(sandbox: &Sandbox, nodes: impl Iterator<Item = String>) -> Self {
        let port = |node| {
            let options = IbsimOptions {
                socket: sandbox.socket().to_owned(),
                node: Some(node),
                role: Role::Responder,
                ..IbsimOptions::default()
            };
            let transport = Ibsim::connect(&options).expect("the simulator is there");
            Port { transport, sm_lid: Lid(0), read_at: Instant::now() - SM_LID_AGE }
        };
        Self::Fabric(nodes.map(port).collect())
    }

    /// Sends a request of a host; directly, to this responder.
    pub(super) fn send(&mut self, host: usize, lid: Lid, responder: usize, mad: [u8; MAD_LEN]) {
        // An error of an earlier packet: its responder is not there.
        let _ = match self {
            Self::Direct(socket, responders) => {
                let mut packet = Packet::new(mad, Address::gsi(lid));
                packet.carrier.peer = Some(responders[responder]);
                socket.send(&[packet])
            }
            Self::Fabric(ports) => {
                let port = &mut ports[host];
                if port.read_at.elapsed() >= SM_LID_AGE {
                    let own = port.transport.local_port();
                    port.sm_lid = own.expect("the simulator is there").sm_lid;
                    port.read_at = Instant::now();
                }
                port.transport.send(&[Packet::new(mad, Address::gsi(port.sm_lid))])
            }
        };
    }

    /// Waits for answers for a moment, and yields those that are there.
    pub(super) fn receive(&mut self, patience: Duration) -> Vec<[u8; MAD_LEN]> {
        match self {
            Self::Direct(socket, _) => {
                let descriptor = socket.descriptor().expect("a socket");
                wait(&mut [Interest::read(descriptor)], Some(patience)).expect("a socket");
                drain(socket)
            }
            Self::Fabric(ports) => {
                thread::sleep(Duration::from_millis(1));
                ports.iter_mut().flat_map(|port| drain(&mut port.transport)).collect()
            }
        }
    }
}

fn drain(transport: &mut impl Transport) -> Vec<[u8; MAD_LEN]> {
    let mut answers = Vec::new();
    let mut batch = vec![Packet::default(); 64];
    loop {
        let count = transport.receive(&mut batch).unwrap_or(0);
        let arrived = batch[..count].iter().filter(|packet| packet.carrier.undelivered == 0);
        answers.extend(arrived.map(|packet| packet.mad));
        if count < batch.len() {
            return answers;
        }
    }
}
