//! A planarized port of this host: a file for QP1, and one for the SMPs of each plane.
//!
//! SMPs leave by the plane that [`Carrier::plane`](crate::transport::Carrier::plane) names, with
//! which received ones are marked, so that answers return the way their requests came. Everything
//! else takes the file for QP1.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::{AgentSpec, Device, Rmpp, Umad, UmadError, UmadOptions, UmadPort};
use crate::transport::{LocalPort, Malformed, Packet, Transport};
use crate::types::{Lid, PortNum, Qpn};

/// The files of a planarized port.
#[derive(Clone, Debug)]
pub struct PlanarOptions {
    /// The port for QP1, if any class of it is wanted.
    pub gsi: UmadOptions,
    /// The ports for SMPs, one for each plane.
    pub planes: Vec<UmadOptions>,
}

impl PlanarOptions {
    /// Manages the subnet, as [`UmadOptions::subnet_manager`] does at an ordinary port.
    pub fn subnet_manager(gsi: UmadPort, planes: Vec<UmadPort>, answer_timeout: Duration) -> Self {
        let smi = vec![AgentSpec::SM_DIRECTED, AgentSpec::SM_BY_LID];
        let plane = |port| UmadOptions { port, agents: smi.clone(), answer_timeout };
        let agents = vec![AgentSpec::sa_client(Rmpp::Owner)];
        Self {
            gsi: UmadOptions { port: gsi, agents, answer_timeout },
            planes: planes.into_iter().map(plane).collect(),
        }
    }

    /// Sends SMPs by directed route, and receives the answers only.
    pub fn observer(gsi: UmadPort, planes: Vec<UmadPort>, answer_timeout: Duration) -> Self {
        let plane = |port| UmadOptions::observer(port, answer_timeout);
        Self {
            gsi: UmadOptions { port: gsi, agents: Vec::new(), answer_timeout },
            planes: planes.into_iter().map(plane).collect(),
        }
    }
}

/// A planarized port.
#[derive(Debug)]
pub struct Planar<D = OwnedFd> {
    pub(super) gsi: Umad<D>,
    /// Ascending by port number.
    pub(super) planes: Vec<Umad<D>>,
    /// Readable if any of the files is.
    ready: OwnedFd,
    /// The file that is read first next time, so that none is starved.
    turn: usize,
    is_drained: bool,
}

impl Planar {
    /// Opens the files and registers the agents.
    pub fn open(options: &PlanarOptions) -> Result<Self, UmadError> {
        let gsi = Umad::open(&options.gsi)?;
        let planes = options.planes.iter().map(Umad::open).collect::<Result<_, _>>()?;
        Ok(Self::new(gsi, planes)?)
    }
}

impl<D: Device> Planar<D> {
    pub(super) fn new(gsi: Umad<D>, mut planes: Vec<Umad<D>>) -> io::Result<Self> {
        planes.sort_by_key(|plane| plane.port().num);
        // SAFETY: no pointers are passed.
        let ready = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if ready < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open and has no other owner.
        let ready = unsafe { OwnedFd::from_raw_fd(ready) };
        for umad in planes.iter().chain([&gsi]) {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            let file = umad.device.as_fd().as_raw_fd();
            // SAFETY: both descriptors are open, and the event outlives the call.
            let added = unsafe {
                libc::epoll_ctl(ready.as_raw_fd(), libc::EPOLL_CTL_ADD, file, &mut event)
            };
            if added < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { gsi, planes, ready, turn: 0, is_drained: false })
    }

    /// The port for QP1.
    pub fn gsi(&self) -> &Umad<D> {
        &self.gsi
    }

    /// Numbers of the ports of planes, ascending.
    pub fn planes(&self) -> Vec<PortNum> {
        self.planes.iter().map(|plane| plane.port().num).collect()
    }

    /// Reads the P_Keys, GIDs and LIDs of the port again.
    pub fn refresh(&mut self) -> io::Result<LocalPort> {
        for plane in &mut self.planes {
            plane.refresh()?;
        }
        self.gsi.refresh()
    }

    /// Packets that the kernel refused to send so far, and the latest such error.
    pub fn refused(&self) -> (u64, i32) {
        let all = self.planes.iter().chain([&self.gsi]).map(Umad::counters);
        all.fold((0, 0), |(count, error), counters| {
            let last = if counters.refused > 0 { counters.refused_error } else { error };
            (count + counters.refused, last)
        })
    }

    /// The file that a packet leaves by.
    fn file_for(&mut self, packet: &Packet) -> &mut Umad<D> {
        if packet.address.local_qpn != Qpn::SMI {
            return &mut self.gsi;
        }
        let named = |plane: &Umad<D>| plane.port().num == packet.carrier.plane;
        let at = self.planes.iter().position(named).unwrap_or(0);
        self.planes.get_mut(at).unwrap_or(&mut self.gsi)
    }
}

impl<D: Device> Transport for Planar<D> {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let files = self.planes.len() + 1;
        let first = self.turn;
        self.turn = (self.turn + 1) % files;
        let mut filled = 0;
        self.is_drained = false;
        for place in (0..files).map(|place| (first + place) % files) {
            let room = &mut batch[filled..];
            if room.is_empty() {
                return Ok(filled);
            }
            let (umad, plane) = match self.planes.get_mut(place) {
                Some(umad) => {
                    let num = umad.port().num;
                    (umad, num)
                }
                None => (&mut self.gsi, PortNum(0)),
            };
            let got = match umad.receive(room) {
                Ok(got) => got,
                // It recurs at the next call.
                Err(_) if filled > 0 => return Ok(filled),
                Err(error) => return Err(error),
            };
            room[..got].iter_mut().for_each(|packet| packet.carrier.plane = plane);
            filled += got;
        }
        self.is_drained = self.planes.iter().chain([&self.gsi]).all(Transport::is_drained);
        Ok(filled)
    }

    fn is_drained(&self) -> bool {
        self.is_drained
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        for (taken, packet) in batch.iter().enumerate() {
            match self.file_for(packet).send(std::slice::from_ref(packet)) {
                Ok(1..) => {}
                Ok(0) => return Ok(taken),
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn local_lid(&self) -> Lid {
        self.gsi.local_lid()
    }

    fn malformed(&self) -> Malformed {
        let all = self.planes.iter().chain([&self.gsi]).map(Umad::malformed);
        Malformed { length: all.map(|malformed| malformed.length).sum(), ..Malformed::default() }
    }
}
