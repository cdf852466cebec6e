//! Responders that serve agents of compute nodes, and agents with the kernel's end of their socket.

use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, free_address};
use ib_mad::transport::udp::{DATAGRAM_LEN, encode};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Gid, Lid, PKey};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::sa::{SaMad, attribute};
use sa_proto::trust::ClientTrust;
use sa_server::agent::host::Name;
use sa_server::agent::netlink::kernel::{self, Taken};
use sa_server::agent::netlink::{PathUse, Request};
use sa_server::agent::runtime::{KernelSocket, SharedHost, Source, share, work};

use super::Subnet;
use super::scrape::Scrape;

/// A responder that serves agents.
pub(crate) struct Served {
    _program: Program,
    front_door: UdpSocket,
    http: String,
    pub(crate) agents: String,
}

impl Served {
    pub(crate) fn start(subnet: &Subnet) -> Self {
        Self::start_below(subnet, &subnet.url())
    }

    /// One that reaches the manager at `url`.
    pub(crate) fn start_below(subnet: &Subnet, url: &str) -> Self {
        let (http, agents) = (free_address().to_string(), free_address().to_string());
        let mut args = vec!["--sm", url, "--transport", "udp", "--listen", "127.0.0.1:0"];
        args.extend(["--http", &http, "--agents", &agents]);
        let program = subnet.sandbox.ours("ibsa", "ibsa", &args);
        program.wait_for("serving generation");
        let log = program.wait_for("ready for queries");
        let (_, rest) = log.split_once("front_door=").expect("the line has its address");
        let front_door = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = rest.split_whitespace().next().expect("an address");
        front_door.connect(address).expect("it is on loopback");
        front_door.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        Self { _program: program, front_door, http, agents: format!("http://{agents}") }
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        Scrape::of(&self.http).sum(name)
    }

    pub(crate) fn requests(&self) -> u64 {
        Scrape::of(&self.http).sum("ibsa_requests_total")
    }

    /// What it answers to the query that the kernel sends for a request.
    pub(crate) fn answer(&self, from: Lid, asked: &Request<'_>) -> Option<[u8; 64]> {
        let packet = query(from, asked);
        let datagram = [&encode(&packet.address, packet.carrier.marks)[..], &packet.mad].concat();
        self.front_door.send(&datagram).expect("it is sent");
        let mut answer = [0; DATAGRAM_LEN];
        let len = self.front_door.recv(&mut answer).expect("it answers");
        let mad = SaMad::new(answer[len - 256..len].first_chunk::<256>().expect("a MAD"));
        let is_ok = mad.header().status() == Status::OK;
        is_ok.then(|| *mad.data().first_chunk().expect("a record"))
    }
}

/// The query that the kernel sends for a request that no agent answers.
pub(crate) fn query(from: Lid, asked: &Request<'_>) -> Packet {
    let mask = path::DGID | path::SGID | path::NUMB_PATH | path::REVERSIBLE | path::PKEY;
    let mut packet = Packet::to(Address::gsi(from));
    let mut mad = SaMad::new(&mut packet.mad);
    mad.write_request(Method::GET, attribute::PATH_RECORD, 77, mask);
    PathRecord::new(&mut packet.mad[56..])
        .unwrap()
        .set_dgid(asked.dgid.unwrap())
        .set_sgid(asked.sgid.unwrap())
        .set_numb_path(1)
        .set_reversible(asked.path_use == PathUse::Reversible)
        .set_pkey(asked.pkey.unwrap());
    packet
}

/// The agent on a thread, with the kernel's end of its socket.
pub(crate) struct Agent {
    kernel: UnixDatagram,
    pub(crate) host: SharedHost,
    pub(crate) sequence: u32,
}

impl Agent {
    pub(crate) fn start(from: &[&str], gid: Gid) -> Self {
        let trust = ClientTrust::default();
        let sources: Vec<_> =
            from.iter().map(|url| Source::new(url, &trust).expect("loopback")).collect();
        let (kernel, own) = UnixDatagram::pair().expect("a pair of sockets");
        kernel.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let host = share(vec![(Name { device: "mlx5_0".into(), port: 1 }, gid.guid())]);
        let shared = SharedHost::clone(&host);
        std::thread::spawn(move || -> io::Error {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let socket = KernelSocket::of(own.into()).expect("a datagram socket");
                work(socket, &sources, &shared).await
            })
        });
        Self { kernel, host, sequence: 0 }
    }

    pub(crate) fn send(&mut self, asked: &Request<'_>) -> u32 {
        self.sequence += 1;
        self.kernel.send(&kernel::request(self.sequence, asked)).expect("the agent listens");
        self.sequence
    }

    /// Answers that arrive together.
    pub(crate) fn receive(&self) -> Vec<(u32, Taken)> {
        let mut buffer = [0; 64 << 10];
        let len = self.kernel.recv(&mut buffer).expect("every request is answered");
        kernel::take(&buffer[..len], PathUse::Reversible)
    }

    pub(crate) fn ask(&mut self, asked: &Request<'_>) -> Taken {
        let sequence = self.send(asked);
        let answers = self.receive();
        assert_eq!((answers.len(), answers[0].0), (1, sequence));
        answers[0].1
    }

    /// Asks until the answer fits.
    pub(crate) fn ask_until(&mut self, asked: &Request<'_>, fits: impl Fn(Taken) -> bool) -> Taken {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let taken = self.ask(asked);
            if fits(taken) {
                return taken;
            }
            assert!(Instant::now() < deadline, "{taken:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub(crate) fn request(from: Gid, to: Gid) -> Request<'static> {
    Request {
        device: b"mlx5_0",
        port: 1,
        path_use: PathUse::Reversible,
        service_id: None,
        dgid: Some(to),
        sgid: Some(from),
        pkey: Some(PKey::DEFAULT_FULL),
        qos_class: None,
        tclass: None,
    }
}

pub(crate) fn is_path(taken: Taken) -> bool {
    matches!(taken, Taken::Path(_))
}
