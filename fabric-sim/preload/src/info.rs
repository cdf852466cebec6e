//! What programs ask about the device: the node, and the port that it is attached to. Read from
//! the server anew each time, as a kernel's files would be.

use std::io;

use ib_mad::transport::LocalPort;
use ib_mad::transport::ibsim::{Ibsim, IbsimError};
use ib_mad::types::{Gid, Guid, PKey, PortNum};
use ib_mad::wire::attribute::{NodeInfo, PortInfo};

/// Name of the one device, as ibsim's own preload has it.
pub(crate) const CA_NAME: &str = "ibsim0";

/// The device and its port.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    /// Code of the node's type.
    pub(crate) node_type: u8,
    /// GUID of the node.
    pub(crate) node_guid: Guid,
    /// GUID of its enclosure.
    pub(crate) system_guid: Guid,
    /// Revision of the device.
    pub(crate) revision: u32,
    /// LIDs and state.
    pub(crate) port: LocalPort,
    /// Code of the logical state.
    pub(crate) state: u8,
    /// Code of the physical state.
    pub(crate) physical_state: u8,
    /// Data rate, Gb/s rounded down.
    pub(crate) rate_gbps: u32,
    /// PortInfo's CapabilityMask.
    pub(crate) capability_mask: u32,
    /// The P_Key table, as long as the node says, 32 entries at most.
    pub(crate) pkeys: Vec<PKey>,
}

impl Info {
    /// Asks the server.
    pub(crate) fn read(ibsim: &mut Ibsim) -> Result<Self, IbsimError> {
        let (node, port) = (ibsim.node_info()?, ibsim.port_info(PortNum(0))?);
        let local = ibsim.local_port()?;
        let pkeys = ibsim.pkeys()?;
        let node = NodeInfo::new(&node[..]).map_err(io::Error::other)?;
        let port = PortInfo::new(&port[..]).map_err(io::Error::other)?;
        let count = usize::from(node.partition_cap()).clamp(1, pkeys.len());
        Ok(Self {
            node_type: node.node_type(),
            node_guid: node.node_guid(),
            system_guid: node.system_image_guid(),
            revision: node.revision(),
            port: local,
            state: port.port_state(),
            physical_state: port.port_physical_state(),
            rate_gbps: port
                .active_rate(port.capability_mask())
                .map_or(0, |rate| rate.mbps() / 1000),
            capability_mask: port.capability_mask().0,
            pkeys: pkeys[..count].to_vec(),
        })
    }

    /// The port's first GID.
    pub(crate) fn gid(&self) -> Gid {
        Gid::new(self.port.gid_prefix, self.port.guid)
    }

    /// Its number among the device's ports.
    pub(crate) fn port_num(&self) -> PortNum {
        self.port.num
    }
}
