//! A port that is only read from: its IsSM bit stays as it is, and requests of others are left to a
//! manager that may run there.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ib_mad::transport::Packet;
use ib_mad::transport::ibsim::Role;
use ib_mad::transport::umad::{UmadOptions, UmadPort};
use ib_mad::types::Guid;

use super::port::{AttachError, Port, Wanted};
use super::wanted;
use crate::cli::Config;

/// An open port.
pub(in crate::runtime) struct Observer {
    port: Port,
    guid: Guid,
}

impl Observer {
    /// Opens the port that the configuration names, to send SMPs by directed route.
    pub(in crate::runtime) fn open(config: &Config) -> Result<Self, AttachError> {
        Self::open_for(config, UmadOptions::observer)
    }

    /// Opens the port that the configuration names, to read counters.
    pub(in crate::runtime) fn open_for_counters(config: &Config) -> Result<Self, AttachError> {
        Self::open_for(config, UmadOptions::perf_client)
    }

    /// Opens the port that the configuration names, to set up congestion control.
    pub(in crate::runtime) fn open_for_congestion(config: &Config) -> Result<Self, AttachError> {
        Self::open_for(config, UmadOptions::congestion_client)
    }

    fn open_for(
        config: &Config,
        options: fn(UmadPort, Duration) -> UmadOptions,
    ) -> Result<Self, AttachError> {
        let mut wanted = wanted(config, None);
        if let Wanted::Ibsim(options) = &mut wanted {
            options.role = Role::Client;
        }
        let mut port = Port::open_to_read(&wanted, options)?;
        let guid = port.guid().unwrap_or_default();
        Ok(Self { port, guid })
    }

    /// The port or node, as text.
    pub(in crate::runtime) fn place(&self) -> String {
        self.port.to_string()
    }

    /// GUID of the port; 0 if it is unknown.
    pub(in crate::runtime) fn port_guid(&self) -> Guid {
        self.guid
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
