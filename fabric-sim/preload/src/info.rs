//! Node and port attributes that programs query about the device. Read from the server each time,
//! as the kernel's sysfs files would be.

use std::io;

use ib_mad::transport::LocalPort;
use ib_mad::transport::ibsim::{Ibsim, IbsimError};
use ib_mad::types::{Gid, Guid, PKey, PortNum};
use ib_mad::wire::attribute::{NodeInfo, PortInfo};

/// Name of the device, the same as in ibsim's preload library.
pub(crate) const CA_NAME: &str = "ibsim0";

/// The device and its port.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    /// NodeType code.
    pub(crate) node_type: u8,
    /// GUID of the node.
    pub(crate) node_guid: Guid,
    /// SystemImageGUID.
    pub(crate) system_guid: Guid,
    /// Hardware revision.
    pub(crate) revision: u32,
    /// LIDs and state.
    pub(crate) port: LocalPort,
    /// PortState code.
    pub(crate) state: u8,
    /// PortPhysicalState code.
    pub(crate) physical_state: u8,
    /// Data rate in Gb/s, rounded down.
    pub(crate) rate_gbps: u32,
    /// PortInfo's CapabilityMask.
    pub(crate) capability_mask: u32,
    /// The P_Key table, of the length that NodeInfo reports, at most 32 entries.
    pub(crate) pkeys: Vec<PKey>,
}

impl Info {
    /// Queries the server.
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

    /// Port number on the device.
    pub(crate) fn port_num(&self) -> PortNum {
        self.port.num
    }
}
