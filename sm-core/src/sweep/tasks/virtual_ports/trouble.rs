//! Why virtual ports are not set up.

use std::fmt;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::PortState;
use ib_mad::wire::mad::Status;

use crate::fabric::{INDICES_MAX, PortIndex, VIRTUAL_PORTS_MAX, VirtualPort};
use crate::smp::Kind;
use crate::sweep::subnet::Subnet;

/// Why a port, or some of its virtual ports, is not set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The reason.
    pub what: What,
    /// Index of the first virtual port concerned; 0 if the port is.
    pub first: u16,
    /// How many virtual ports are concerned; 0 if the port is.
    pub count: usize,
}

/// What prevents the setup of virtual ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A request was not answered.
    Silent(Kind),
    /// A request was refused.
    Refused(Kind, Status),
    /// A response shows other values than were set.
    NotTaken(Kind),
    /// A response has a reserved value.
    Malformed(Kind),
    /// The port has another revision of these attributes.
    Revision(u8),
    /// The port has more virtual ports than are managed.
    TooManyOfPort,
    /// The fabric has more virtual ports than are managed.
    TooManyOfFabric,
    /// Another port has the GUID, or it is none that a port can have.
    GuidTaken,
    /// A virtual port needs a LID of its own.
    NeedsLid,
    /// The P_Key table is too small.
    ShortTable,
    /// A virtual port did not become Active.
    NotActive,
}

impl What {
    /// Whether another pass may mend it.
    pub(super) fn is_retried(self) -> bool {
        match self {
            Self::Silent(_)
            | Self::Refused(..)
            | Self::NotTaken(_)
            | Self::Malformed(_)
            | Self::NotActive => true,
            Self::Revision(_)
            | Self::TooManyOfPort
            | Self::TooManyOfFabric
            | Self::GuidTaken
            | Self::NeedsLid
            | Self::ShortTable => false,
        }
    }
}

impl Trouble {
    /// Of the port, not of a virtual port.
    pub(super) fn of_port(what: What) -> Self {
        Self { what, first: 0, count: 0 }
    }

    /// Of one virtual port.
    pub(super) fn of_one(what: What, index: u16) -> Self {
        Self { what, first: index, count: 1 }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            0 => {}
            1 => write!(f, "virtual port {}: ", self.first)?,
            count => write!(f, "{count} virtual ports from index {} on: ", self.first)?,
        }
        match self.what {
            What::Silent(kind) => write!(f, "no answer to {}", kind.name()),
            What::Refused(kind, status) => write!(f, "{} was refused: {status}", kind.name()),
            What::NotTaken(kind) => write!(f, "{} had no effect", kind.name()),
            What::Malformed(kind) => {
                write!(f, "the answer to {} has a reserved value", kind.name())
            }
            What::Revision(revision) => {
                write!(f, "revision {revision} of their attributes is not supported")
            }
            What::TooManyOfPort => {
                write!(f, "not managed, since a port can have at most {INDICES_MAX}")
            }
            What::TooManyOfFabric => {
                write!(f, "not managed, since all ports can have at most {VIRTUAL_PORTS_MAX}")
            }
            What::GuidTaken => {
                f.write_str("not set up, since another port has the GUID, or it is 0 or reserved")
            }
            What::NeedsLid => {
                f.write_str("not set up, since LIDs of their own (LIDRequired) are not supported")
            }
            What::ShortTable => f.write_str("the P_Key table is too small for all P_Keys"),
            What::NotActive => f.write_str("not Active"),
        }
    }
}

/// What prevents the use of virtual ports of a port, although it answers.
pub(super) fn of_virtual_ports(subnet: &Subnet, host: PortIndex) -> Option<Trouble> {
    let ports = subnet.fabric.virtual_ports(host)?;
    let is_active = subnet.fabric.port(host).state() == Some(PortState::Active);
    let short = &subnet.partitions.plan.short_virtual;
    let what = |index: u16, port: &VirtualPort| {
        if port.lacks_guid() {
            // A virtual port without a GUID is not in use yet.
            Some(What::GuidTaken).filter(|_| port.guid() != Guid(0))
        } else if !port.is_usable() {
            None
        } else if port.needs_lid() {
            Some(What::NeedsLid)
        } else if short.contains_key(&(host, index)) {
            Some(What::ShortTable)
        } else {
            Some(What::NotActive).filter(|_| is_active && port.state != PortState::Active)
        }
    };
    let mut found: Option<Trouble> = None;
    for (index, port) in ports.iter() {
        let Some(what) = what(index, port) else { continue };
        match &mut found {
            None => found = Some(Trouble::of_one(what, index)),
            Some(found) if found.what == what => found.count += 1,
            Some(_) => {}
        }
    }
    found
}
