//! Ports of this host that can send MADs, from sysfs.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::pairing::{self, Pairing, PortFacts};
use super::{ABI_VERSION, UmadError};
use crate::transport::LocalPort;
use crate::types::{Gid, Guid, Lid, PKey, PortNum, Sl};
use crate::wire::attribute::{CapabilityMask, PortState};

/// Directory of the device classes in sysfs.
const SYSFS: &str = "/sys/class";
/// Directory of the device files.
const DEVICES: &str = "/dev/infiniband";

/// A port, and the umad file of its QP1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UmadPort {
    /// Name of the umad file, `umad0`.
    pub umad: String,
    /// Name of the RDMA device, `mlx5_0`.
    pub device: String,
    /// Port number on the device.
    pub num: PortNum,
    sysfs: PathBuf,
}

/// A port of this host as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPort {
    /// An ordinary port.
    Single(UmadPort),
    /// A port of a planarized fabric.
    Planar {
        /// The port for QP1.
        gsi: UmadPort,
        /// The ports for SMPs, one for each plane.
        planes: Vec<UmadPort>,
    },
}

impl HostPort {
    /// The port for QP1.
    pub fn gsi(self) -> UmadPort {
        match self {
            Self::Single(port) | Self::Planar { gsi: port, .. } => port,
        }
    }
}

impl fmt::Display for UmadPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {} ({})", self.device, self.num, self.umad)
    }
}

impl UmadPort {
    /// All ports of this host, ordered by umad number.
    pub fn all() -> Result<Vec<Self>, UmadError> {
        Self::all_at(Path::new(SYSFS))
    }

    /// Port `num` of the device or umad file called `name`. Without a name, the first active port;
    /// if none is active, the first with a link, or else the first.
    pub fn find(name: Option<&str>, num: Option<PortNum>) -> Result<Self, UmadError> {
        Self::find_at(Path::new(SYSFS), name, num)
    }

    /// All ports of the device or umad file called `name`, and with port number `num`, as far as
    /// given.
    pub fn fitting(name: Option<&str>, num: Option<PortNum>) -> Result<Vec<Self>, UmadError> {
        let mut ports = Self::all()?;
        ports.retain(|port| port.fits(name, num));
        Ok(ports)
    }

    /// Whether it is a port of the device or umad file called `name`, and has number `num`.
    fn fits(&self, name: Option<&str>, num: Option<PortNum>) -> bool {
        let name = name.map(|name| name.strip_prefix("/dev/infiniband/").unwrap_or(name));
        name.is_none_or(|name| self.device == name || self.umad == name)
            && num.is_none_or(|num| self.num == num)
    }

    /// This port with those that have its GUID, if it is planarized ([`pair`](pairing::pair)).
    pub fn with_planes(&self) -> Result<HostPort, UmadError> {
        let Ok(guid) = self.local().map(|local| local.guid) else {
            return Ok(HostPort::Single(self.clone()));
        };
        let is_same = |port: &Self| port.local().is_ok_and(|local| local.guid == guid);
        let mut ports = Self::all_at(&self.sysfs)?;
        ports.retain(is_same);
        let facts: Vec<PortFacts> = ports.iter().map(|port| port.facts(guid)).collect();
        let pairing = pairing::pair(&facts).into_iter().next();
        match pairing {
            Some(Pairing { gsi: Some(gsi), smi, .. })
                if !smi.is_empty() && smi != [gsi] && smi.len() <= pairing::PLANES_MAX =>
            {
                let planes = smi.iter().map(|&at| ports[at].clone()).collect();
                Ok(HostPort::Planar { gsi: ports[gsi].clone(), planes })
            }
            Some(pairing) if pairing.is_planarized() => Err(UmadError::NotPlanarized {
                guid,
                ports: ports.iter().map(Self::to_string).collect(),
            }),
            _ => Ok(HostPort::Single(self.clone())),
        }
    }

    fn facts(&self, guid: Guid) -> PortFacts {
        // A kernel that does not show it has no planarized ports.
        let capabilities = fs::read_to_string(self.attribute("cap_mask")).unwrap_or_default();
        let digits = capabilities.trim().trim_start_matches("0x");
        let capabilities = CapabilityMask(u32::from_str_radix(digits, 16).unwrap_or(0));
        PortFacts { guid, capabilities }
    }

    pub(super) fn all_at(sysfs: &Path) -> Result<Vec<Self>, UmadError> {
        let class = sysfs.join("infiniband_mad");
        let Ok(version) = read::<u32>(&class.join("abi_version")) else {
            return Err(UmadError::NoModule);
        };
        if version != ABI_VERSION {
            return Err(UmadError::Abi(version));
        }
        let mut ports = Vec::new();
        for entry in fs::read_dir(&class)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(number) = name.strip_prefix("umad").and_then(|n| n.parse::<u32>().ok()) else {
                continue;
            };
            // A device that disappears meanwhile is skipped.
            let (Ok(device), Ok(num)) =
                (read::<String>(&entry.path().join("ibdev")), read(&entry.path().join("port")))
            else {
                continue;
            };
            let port = Self { umad: name, device, num: PortNum(num), sysfs: sysfs.to_owned() };
            ports.push((number, port));
        }
        ports.sort_by_key(|(number, _)| *number);
        Ok(ports.into_iter().map(|(_, port)| port).collect())
    }

    pub(super) fn find_at(
        sysfs: &Path,
        name: Option<&str>,
        num: Option<PortNum>,
    ) -> Result<Self, UmadError> {
        let ports = Self::all_at(sysfs)?;
        // Ports without a readable state come last; equal ones keep their order.
        let remoteness = |port: &&Self| match port.local().ok().and_then(|local| local.state) {
            Some(PortState::Active) => 0,
            Some(PortState::Initialize | PortState::Armed) => 1,
            _ => 2,
        };
        match ports.iter().filter(|port| port.fits(name, num)).min_by_key(remoteness) {
            Some(port) => Ok(port.clone()),
            None => Err(UmadError::UnknownPort {
                wanted: match (name, num) {
                    (Some(name), Some(num)) => format!("{name} port {num}"),
                    (Some(name), None) => name.to_owned(),
                    (None, Some(num)) => format!("port {num}"),
                    (None, None) => "any".to_owned(),
                },
                have: ports.iter().map(Self::to_string).collect(),
            }),
        }
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        Path::new(DEVICES).join(&self.umad)
    }

    /// The issm file, which the port's subnet manager holds open. It has the same number as the
    /// umad file.
    pub fn issm_path(&self) -> PathBuf {
        let number = self.umad.strip_prefix("umad").unwrap_or(&self.umad);
        Path::new(DEVICES).join(format!("issm{number}"))
    }

    /// The port with this GUID.
    pub fn find_by_guid(guid: Guid) -> Result<Self, UmadError> {
        let ports = Self::all()?;
        let found = ports.iter().find(|port| port.local().is_ok_and(|local| local.guid == guid));
        found.cloned().ok_or_else(|| UmadError::UnknownPort {
            wanted: format!("port GUID {guid}"),
            have: ports.iter().map(Self::described).collect(),
        })
    }

    /// Device, port number and GUID, for messages.
    fn described(&self) -> String {
        match self.local() {
            Ok(local) => format!("{self} {}", local.guid),
            Err(_) => self.to_string(),
        }
    }

    /// LIDs, state and GUID. LIDs are 0 on RoCE ports.
    pub fn local(&self) -> io::Result<LocalPort> {
        let gid = self.gid(0)?;
        Ok(LocalPort {
            guid: gid.guid(),
            num: self.num,
            gid_prefix: gid.prefix(),
            lid: self.lid()?,
            lmc: self.number("lid_mask_count")? as u8,
            sm_lid: Lid(self.number("sm_lid")?),
            sm_sl: Sl::from_low_bits(self.number("sm_sl")?),
            state: PortState::from_code(self.number("state")? as u8),
        })
    }

    /// The base LID.
    pub fn lid(&self) -> io::Result<Lid> {
        self.number("lid").map(Lid)
    }

    /// An entry of the GID table; `Gid::ZERO` if absent.
    pub fn gid(&self, index: u8) -> io::Result<Gid> {
        match read(&self.attribute(&format!("gids/{index}"))) {
            Ok(gid) => Ok(gid),
            // Beyond the table's end, or an empty entry of a RoCE port.
            Err(error) if index > 0 && is_absent(&error) => Ok(Gid::ZERO),
            Err(error) => Err(error),
        }
    }

    /// The P_Key table.
    pub fn pkeys(&self) -> io::Result<Vec<PKey>> {
        let mut pkeys = Vec::new();
        for index in 0..=u16::MAX {
            match read_number(&self.attribute(&format!("pkeys/{index}"))) {
                Ok(pkey) => pkeys.push(PKey(pkey)),
                Err(error) if index > 0 && error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        Ok(pkeys)
    }

    fn attribute(&self, name: &str) -> PathBuf {
        let Self { sysfs, device, num, .. } = self;
        sysfs.join(format!("infiniband/{device}/ports/{num}/{name}"))
    }

    fn number(&self, name: &str) -> io::Result<u16> {
        read_number(&self.attribute(name))
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
}

/// Value of an attribute.
fn read<T: FromStr>(path: &Path) -> io::Result<T> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| misread(path, &text))
}

/// The leading number of an attribute: `0x1f`, `12`, `4: ACTIVE`.
fn read_number(path: &Path) -> io::Result<u16> {
    let text = fs::read_to_string(path)?;
    let number = text.trim().split(':').next().unwrap_or_default();
    let number = match number.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => number.parse(),
    };
    number.map_err(|_| misread(path, &text))
}

fn misread(path: &Path, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} says '{text}'", path.display()))
}
