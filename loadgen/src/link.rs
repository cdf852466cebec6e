//! How requests travel: one thread's socket, and where its requests go.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use ib_mad::transport::capture::Capture;
use ib_mad::transport::ibsim::{Ibsim, IbsimError, IbsimOptions};
use ib_mad::transport::ring::RingClient;
use ib_mad::transport::udp::{Udp, UdpOptions, encode};
use ib_mad::transport::{Address, Packet, Transport};
use ib_mad::types::Lid;

use crate::driver::Destination;
use crate::options::{Options, Redirects, TransportKind};
use crate::scenario::Patience;
use crate::workload::Workload;

/// Longest capture file.
const CAPTURE_MAX: u64 = 100_000_000;
/// How long to wait for a target to refuse.
const PROBE_PATIENCE: Duration = Duration::from_millis(200);

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No simulator, or not that node.
    #[error(transparent)]
    Ibsim(#[from] IbsimError),
    /// The port does not know an SA.
    #[error(
        "the port of {0} has no MasterSMLID; start ibsm and wait for SUBNET UP, or set --sa-lid"
    )]
    NoSa(String),
    /// A socket or a file.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> LinkError {
    move |error| LinkError::Io(what, error)
}

/// A socket and where its requests go.
pub type Link = (Box<dyn Transport>, Destination);

/// Opens one thread's socket.
pub fn open(options: &Options) -> Result<Link, LinkError> {
    match options.transport {
        TransportKind::Udp => {
            // Who asks responders on this machine only need not be reached from others.
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
            let ring = RingClient::connect(path).map_err(io_error("ring (--target-ring)"))?;
            Ok((Box::new(ring), Destination::Peers(Vec::new())))
        }
        TransportKind::Ibsim => {
            let defaults = IbsimOptions::default();
            // An empty environment variable is one that is not set.
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
            let mut capture = capture.map_err(io_error("capture file"))?;
            capture.set_local_lid(port.lid);
            Ok((Box::new(capture), destination))
        }
    }
}

/// Whether the far end says that nobody listens at an address. Asks one query from a connected
/// socket, which unlike the storm's hears of refusals.
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
        let mut datagram = encode(&packet.address).to_vec();
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

    #[test]
    fn a_closed_port_is_told_from_a_silent_one() {
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
        // Port 1 is tcpmux's, which nobody has run by UDP.
        assert!(is_closed("127.0.0.1:1".parse().unwrap(), &workload, 1));
    }
}
