//! Opens the socket of a thread, and determines the destination of its requests.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ib_mad::transport::capture::Capture;
use ib_mad::transport::ibsim::{Ibsim, IbsimError, IbsimOptions};
use ib_mad::transport::ring::{RingClient, RingOptions};
use ib_mad::transport::udp::{Udp, UdpOptions, encode};
use ib_mad::transport::{Address, Packet, Transport};
use ib_mad::types::Lid;

use crate::driver::Destination;
use crate::options::{Options, Redirects, TransportKind};
use crate::scenario::Patience;
use crate::workload::Workload;

/// Size limit of a capture file.
const CAPTURE_MAX: u64 = 100_000_000;
/// How long to wait for an ICMP error from a target.
const PROBE_PATIENCE: Duration = Duration::from_millis(200);

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No simulator answers, or it has no such node.
    #[error(transparent)]
    Ibsim(#[from] IbsimError),
    /// The port has no MasterSMLID yet.
    #[error(
        "the port of node {0} has no MasterSMLID; start ibsm and wait for SUBNET UP, or give \
         --sa-lid"
    )]
    NoSa(String),
    /// The ring's socket cannot be used.
    #[error("--target-ring {path}: {error}{}", ring_advice(.path, .error))]
    Ring {
        /// The socket.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The responder has reached its limit of ring clients.
    #[error(
        "--target-ring {path}: the responder has reached its limit of {clients_max} clients; each \
         of {threads} threads is a client: stop other clients or use fewer threads"
    )]
    RingFull {
        /// The socket.
        path: PathBuf,
        /// The responder's limit.
        clients_max: usize,
        /// Clients that this storm needs.
        threads: u32,
    },
    /// A socket or a file.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> LinkError {
    move |error| LinkError::Io(what, error)
}

fn ring_error(path: &Path, threads: u32, error: io::Error) -> LinkError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::QuotaExceeded => {
            let clients_max = RingOptions::new(&path).clients_max;
            LinkError::RingFull { path, clients_max, threads }
        }
        _ => LinkError::Ring { path, error },
    }
}

fn ring_advice(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("; check that `ibsa --ring {}` is running", path.display())
        }
        _ => String::new(),
    }
}

/// A socket and the destination of its requests.
pub type Link = (Box<dyn Transport>, Destination);

/// Opens one thread's socket.
pub fn open(options: &Options) -> Result<Link, LinkError> {
    match options.transport {
        TransportKind::Udp => {
            // With responders on this host only, bind to loopback.
            let any = match options.target.first().map(SocketAddr::ip) {
                Some(ip) if ip.is_loopback() => ip,
                Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
                _ => Ipv4Addr::UNSPECIFIED.into(),
            };
            let udp = UdpOptions::new(SocketAddr::new(any, 0));
            let udp = Udp::bind(&UdpOptions { trains: !options.no_trains, ..udp });
            let udp = udp.map_err(io_error("UDP socket"))?;
            Ok((Box::new(udp), Destination::Peers(options.target.clone())))
        }
        TransportKind::Ring => {
            let path = options.target_ring.as_deref().unwrap_or(Path::new(""));
            let ring = RingClient::connect(path)
                .map_err(|error| ring_error(path, options.threads, error))?;
            Ok((Box::new(ring), Destination::Peers(Vec::new())))
        }
        TransportKind::Ibsim => {
            let defaults = IbsimOptions::default();
            // Treat an empty environment variable as unset.
            let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
            let mut ibsim = Ibsim::connect(&IbsimOptions {
                socket: given(&options.socket).unwrap_or(defaults.socket),
                node: given(&options.node),
                ..IbsimOptions::default()
            })?;
            let port = ibsim.local_port()?;
            let lid = options.sa_lid.map_or(port.sm_lid, Lid);
            if !lid.is_unicast() {
                return Err(LinkError::NoSa(ibsim.node().to_owned()));
            }
            let address = Address { lid, sl: port.sm_sl, ..Address::default() };
            let timeout = options.timeout.unwrap_or(Patience::RDMA_CM.timeout);
            let follow = (options.redirects == Redirects::Follow).then_some(timeout);
            let destination = Destination::Fabric { address, follow };
            let Some(path) = &options.capture else { return Ok((Box::new(ibsim), destination)) };
            let capture = Capture::create(ibsim, path, CAPTURE_MAX);
            let capture = capture.map_err(io_error("capture file"))?;
            Ok((Box::new(capture), destination))
        }
    }
}

/// Whether an address refuses datagrams. Sends one query from a connected socket, since only
/// connected sockets receive the ICMP error.
pub fn is_closed(target: SocketAddr, workload: &Workload, tid: u64) -> bool {
    let probe = || {
        let any: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        socket.connect(target)?;
        socket.set_read_timeout(Some(PROBE_PATIENCE))?;
        let mut packet = Packet::default();
        let pair = workload.pair(0);
        workload.write_request(pair, workload.by(), tid, &mut packet.mad);
        packet.address.lid = workload.ports().get(pair.source).lid;
        let mut datagram = encode(&packet.address, packet.carrier.marks).to_vec();
        datagram.extend_from_slice(&packet.mad);
        socket.send(&datagram)?;
        socket.recv(&mut datagram)
    };
    probe().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Ports;
    use crate::workload::{By, Draw, WorkloadOptions};
    use ib_mad::transport::ring::RingServer;

    /// Regression: the error did not name the path, nor the limit of clients.
    #[test]
    fn a_ring_that_cannot_be_had_is_named() {
        use clap::Parser;
        let line = "ibstorm --transport ring --target-ring /no/such --sm http://x --threads 3";
        let options = Options::try_parse_from(line.split_whitespace()).unwrap();
        match open(&options).err().unwrap() {
            LinkError::Ring { path, error } => {
                assert_eq!(path, Path::new("/no/such"));
                assert_eq!(error.kind(), io::ErrorKind::NotFound);
                assert!(ring_advice(&path, &error).contains("/no/such"));
            }
            other => panic!("{other}"),
        }

        let path = std::env::temp_dir().join(format!("ibstorm-ring-{}", std::process::id()));
        let room = RingOptions { clients_max: 1, ..RingOptions::new(&path) };
        let mut server = RingServer::bind(&room).unwrap();
        let options = Options { target_ring: Some(path.clone()), ..options };
        let asking = std::thread::spawn(move || {
            let _first = open(&options).ok().unwrap();
            open(&options).err().unwrap()
        });
        while !asking.is_finished() {
            server.receive(&mut [Packet::default()]).unwrap();
        }
        match asking.join().unwrap() {
            LinkError::RingFull { path: named, clients_max: 16, threads: 3 } => {
                assert_eq!(named, path);
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_closed_port_differs_from_a_silent_one() {
        let ports = Ports::parse("1 a\n2 b\n").unwrap();
        let options = WorkloadOptions {
            by: By::Lid,
            draw: Draw::Any(1),
            seed: 1,
            service_id: 0,
            pkey: ib_mad::types::PKey::DEFAULT_FULL,
            sample: 1.0,
        };
        let workload = Workload::draw(&options, ports, None).unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!is_closed(silent.local_addr().unwrap(), &workload, 1));
        // Port 1 is tcpmux, which does not exist over UDP.
        assert!(is_closed("127.0.0.1:1".parse().unwrap(), &workload, 1));
    }
}
