//! A port that is only read from: its IsSM bit stays as it is, and requests of others are left to a
//! manager that may run there.

use std::io;
use std::os::fd::BorrowedFd;

use ib_mad::transport::Packet;
use ib_mad::transport::ibsim::Role;
use ib_mad::types::{Guid, PortNum};

use super::port::{AttachError, Port, Reading, Wanted};
use super::wanted;
use crate::cli::Config;

/// An open port.
pub(in crate::runtime) struct Observer {
    port: Port,
    guid: Guid,
    planes: Vec<PortNum>,
}

impl Observer {
    /// Opens the port that the configuration names, to send SMPs by directed route.
    pub(in crate::runtime) fn open(config: &Config) -> Result<Self, AttachError> {
        Self::open_for(config, Reading::Smps)
    }

    /// Opens the port that the configuration names, to read counters.
    pub(in crate::runtime) fn open_for_counters(config: &Config) -> Result<Self, AttachError> {
        Self::open_for(config, Reading::Counters)
    }

    /// Opens the port that the configuration names, to set up congestion control.
    pub(in crate::runtime) fn open_for_congestion(config: &Config) -> Result<Self, AttachError> {
        Self::open_for(config, Reading::Congestion)
    }

    fn open_for(config: &Config, what: Reading) -> Result<Self, AttachError> {
        let mut wanted = wanted(config, None);
        if let Wanted::Ibsim(options) = &mut wanted {
            options.role = Role::Client;
        }
        let mut port = Port::open_to_read(&wanted, what)?;
        let (guid, planes) = (port.guid().unwrap_or_default(), port.planes());
        Ok(Self { port, guid, planes })
    }

    /// The port or node, as text.
    pub(in crate::runtime) fn place(&self) -> String {
        self.port.to_string()
    }

    /// GUID of the port; 0 if it is unknown.
    pub(in crate::runtime) fn port_guid(&self) -> Guid {
        self.guid
    }

    /// Numbers of the ports by which it is in planes of the fabric; none if it is not planarized.
    pub(in crate::runtime) fn planes(&self) -> Vec<PortNum> {
        self.planes.clone()
    }

    /// Reads the port's LIDs and P_Keys again, by which packets are addressed.
    pub(in crate::runtime) fn refresh(&mut self) -> Result<(), AttachError> {
        self.port.refresh()
    }

    /// Receives packets.
    pub(in crate::runtime) fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        self.port.receive(batch)
    }

    /// Sends as many packets as the transport accepts; returns their number.
    pub(in crate::runtime) fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        self.port.send(batch)
    }

    pub(in crate::runtime) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}
