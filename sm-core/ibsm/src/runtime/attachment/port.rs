//! The port that the subnet is managed from: of this host, or of a simulated fabric.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use ib_mad::transport::ibsim::{ClientId, Ibsim, IbsimError, IbsimOptions};
use ib_mad::transport::umad::{
    HostPort, IsSm, Planar, PlanarOptions, Umad, UmadError, UmadOptions, UmadPort,
};
use ib_mad::transport::{Packet, Transport};
use ib_mad::types::{Guid, Lid, PortNum};
use rustix::io::Errno;
use tracing::{debug, warn};

/// Why the fabric cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The simulator.
    #[error("{}", .0.with_origin(std::env::var("IBSIM_SOCKNAME").ok().as_deref()))]
    Ibsim(#[from] IbsimError),
    /// The port of this host.
    #[error("{0}")]
    Umad(#[from] UmadError),
    /// The socket at which responders of this host share the port.
    #[error("cannot listen at {}: {source}", path.display())]
    SaSocket {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The port to open.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// A node of a simulated fabric.
    Ibsim(IbsimOptions),
    /// A port of this host.
    Umad(WantedUmad),
}

/// A port of this host: by its GUID or, if that is 0, by device and number, as far as given.
#[derive(Clone, Debug)]
pub(super) struct WantedUmad {
    pub(super) guid: Guid,
    pub(super) device: Option<String>,
    pub(super) num: Option<PortNum>,
    /// See [`UmadOptions::answer_timeout`].
    pub(super) answer_timeout: Duration,
}

impl WantedUmad {
    fn find(&self) -> Result<UmadPort, UmadError> {
        match self.guid {
            Guid(0) => UmadPort::find(self.device.as_deref(), self.num),
            guid => UmadPort::find_by_guid(guid),
        }
    }
}

/// An open port. Of a manager, its IsSM bit is set while it is open.
pub(super) enum Port {
    /// A port of a simulated fabric.
    Ibsim(Box<Ibsim>),
    /// A port of this host.
    Umad {
        umad: Box<Umad>,
        /// Packets that the kernel refused, as logged last.
        logged: u64,
        _is_sm: Option<IsSm>,
    },
    /// A port of this host in the planes of a planarized fabric.
    Planar {
        planar: Box<Planar>,
        /// Packets that the kernel refused, as logged last.
        logged: u64,
        _is_sm: Vec<IsSm>,
    },
}

/// What a port is opened for besides managing the subnet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    /// SMPs by directed route.
    Smps,
    /// Counters of ports.
    Counters,
    /// Settings and logs of congestion control.
    Congestion,
}

impl Port {
    /// Opens the port.
    pub(super) fn open(wanted: &Wanted) -> Result<Self, AttachError> {
        match wanted {
            Wanted::Ibsim(options) => {
                let mut ibsim = Ibsim::connect(options)?;
                ibsim.set_is_sm(true)?;
                Ok(Self::Ibsim(Box::new(ibsim)))
            }
            Wanted::Umad(wanted) => {
                let timeout = wanted.answer_timeout;
                match wanted.find()?.with_planes()? {
                    HostPort::Single(port) => {
                        let is_sm = Some(IsSm::set(&port)?);
                        let umad = Umad::open(&UmadOptions::subnet_manager(port, timeout))?;
                        Ok(Self::Umad { umad: Box::new(umad), logged: 0, _is_sm: is_sm })
                    }
                    HostPort::Planar { gsi, planes } => {
                        let is_sm = planes.iter().map(IsSm::set).collect::<Result<_, _>>()?;
                        let options = PlanarOptions::subnet_manager(gsi, planes, timeout);
                        let planar = Box::new(Planar::open(&options)?);
                        Ok(Self::Planar { planar, logged: 0, _is_sm: is_sm })
                    }
                }
            }
        }
    }

    /// Opens the port without IsSM and without the requests of a manager.
    pub(super) fn open_to_read(wanted: &Wanted, what: Reading) -> Result<Self, AttachError> {
        match wanted {
            Wanted::Ibsim(options) => Ok(Self::Ibsim(Box::new(Ibsim::connect(options)?))),
            Wanted::Umad(wanted) => {
                let timeout = wanted.answer_timeout;
                let host_port = wanted.find()?.with_planes()?;
                let options = match (what, host_port) {
                    (Reading::Smps, HostPort::Planar { gsi, planes }) => {
                        let options = PlanarOptions::observer(gsi, planes, timeout);
                        let planar = Box::new(Planar::open(&options)?);
                        return Ok(Self::Planar { planar, logged: 0, _is_sm: Vec::new() });
                    }
                    (Reading::Smps, HostPort::Single(port)) => UmadOptions::observer(port, timeout),
                    (Reading::Counters, port) => UmadOptions::perf_client(port.gsi(), timeout),
                    (Reading::Congestion, port) => {
                        UmadOptions::congestion_client(port.gsi(), timeout)
                    }
                };
                let umad = Box::new(Umad::open(&options)?);
                Ok(Self::Umad { umad, logged: 0, _is_sm: None })
            }
        }
    }

    /// GUID of the port, which the transport knows without sending an SMP.
    pub(super) fn guid(&mut self) -> Option<Guid> {
        let local = match self {
            Self::Ibsim(ibsim) => ibsim.local_port().map_err(AttachError::from),
            Self::Umad { umad, .. } => umad.port().local().map_err(|e| UmadError::Io(e).into()),
            Self::Planar { planar, .. } => {
                planar.gsi().port().local().map_err(|e| UmadError::Io(e).into())
            }
        };
        match local {
            Ok(port) => Some(port.guid),
            Err(failure) => {
                debug!("cannot read the GUID of the local port: {failure}");
                None
            }
        }
    }

    /// Numbers of the ports by which it is in planes of the fabric; none if it is not planarized.
    pub(super) fn planes(&mut self) -> Vec<PortNum> {
        match self {
            Self::Ibsim(ibsim) => ibsim.planes().unwrap_or_else(|failure| {
                debug!("cannot read the planes of the local port: {failure}");
                Vec::new()
            }),
            Self::Umad { .. } => Vec::new(),
            Self::Planar { planar, .. } => planar.planes(),
        }
    }

    /// The port for QP1, if it is one of this host.
    pub(super) fn umad_port(&self) -> Option<&UmadPort> {
        match self {
            Self::Ibsim(_) => None,
            Self::Umad { umad, .. } => Some(umad.port()),
            Self::Planar { planar, .. } => Some(planar.gsi().port()),
        }
    }

    /// The identity at a simulator.
    pub(super) fn client_id(&self) -> Option<ClientId> {
        match self {
            Self::Ibsim(ibsim) => Some(ibsim.client_id()),
            Self::Umad { .. } | Self::Planar { .. } => None,
        }
    }

    /// Its base LID when it was read last.
    pub(super) fn local_lid(&self) -> Lid {
        match self {
            Self::Ibsim(ibsim) => ibsim.local_lid(),
            Self::Umad { umad, .. } => umad.local_lid(),
            Self::Planar { planar, .. } => planar.local_lid(),
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Ibsim(ibsim) => ibsim.descriptor(),
            Self::Umad { umad, .. } => umad.descriptor(),
            Self::Planar { planar, .. } => planar.descriptor(),
        }
    }

    pub(super) fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        match self {
            Self::Ibsim(ibsim) => ibsim.receive(batch),
            Self::Umad { umad, .. } => umad.receive(batch),
            Self::Planar { planar, .. } => planar.receive(batch),
        }
    }

    pub(super) fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        match self {
            Self::Ibsim(ibsim) => ibsim.send(batch),
            Self::Umad { umad, .. } => umad.send(batch),
            Self::Planar { planar, .. } => planar.send(batch),
        }
    }

    /// Reads the LIDs, P_Keys and GIDs again, by which packets are addressed. Fails if the port is
    /// gone.
    pub(super) fn refresh(&mut self) -> Result<(), AttachError> {
        match self {
            Self::Ibsim(ibsim) => match ibsim.local_port() {
                Ok(_) => Ok(()),
                Err(gone @ (IbsimError::NoServer { .. } | IbsimError::Io(_))) => Err(gone.into()),
                // A server may be slow, or delayed by another client.
                Err(failure) => {
                    debug!("cannot read the local port: {failure}");
                    Ok(())
                }
            },
            Self::Umad { umad, logged, .. } => {
                unless_short(umad.refresh()).map_err(UmadError::Io)?;
                let counters = umad.counters();
                log_refused(counters.refused, counters.refused_error, logged);
                Ok(())
            }
            Self::Planar { planar, logged, .. } => {
                unless_short(planar.refresh()).map_err(UmadError::Io)?;
                let (refused, error) = planar.refused();
                log_refused(refused, error, logged);
                Ok(())
            }
        }
    }
}

/// Failures to read a port's tables that say something of the port: not that this process, or the
/// host, has no descriptors or memory left. What was read before is kept then.
pub(in crate::runtime) fn unless_short<T>(read: io::Result<T>) -> io::Result<()> {
    let Err(error) = read else { return Ok(()) };
    let shortage = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(|errno| errno.raw_os_error());
    if error.raw_os_error().is_some_and(|errno| shortage.contains(&errno)) {
        debug!("cannot read the tables of the port: {error}");
        return Ok(());
    }
    Err(error)
}

/// Logs that the kernel refused packets since `logged` was counted.
fn log_refused(count: u64, error: i32, logged: &mut u64) {
    let refused = count - std::mem::replace(logged, count);
    if refused > 0 {
        let last = io::Error::from_raw_os_error(error);
        warn!("the kernel refused to send {refused} packets; last error: {last}");
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ibsim(ibsim) => write!(f, "node {}", ibsim.node()),
            Self::Umad { umad, .. } => write!(f, "{}", umad.port()),
            Self::Planar { planar, .. } => {
                let planes = planar.planes().len();
                write!(f, "{}, {planes} planes", planar.gsi().port())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `ibsm` without a free descriptor gave up its files of the port.
    #[test]
    fn a_host_without_descriptors_or_memory_has_not_lost_its_port() {
        let read = |errno: Errno| unless_short::<()>(Err(errno.into()));
        assert!([Errno::MFILE, Errno::NFILE, Errno::NOMEM].into_iter().all(|it| read(it).is_ok()));
        for gone in [Errno::NOENT, Errno::NODEV, Errno::IO] {
            assert_eq!(read(gone).unwrap_err().raw_os_error(), Some(gone.raw_os_error()));
        }
    }
}
