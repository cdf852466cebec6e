//! SMInfo: identity, priority and state of a subnet manager.

use std::fmt;

use crate::types::Guid;
use crate::wire::field::{code_field, layout};

/// SMState (IBA 14.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SmState {
    /// Not active: disabled by another subnet manager.
    NotActive = 0,
    /// Discovering: reads the subnet, and looks for other managers.
    Discovering = 1,
    /// Standby: polls the master.
    Standby = 2,
    /// Master of the subnet.
    Master = 3,
}

impl SmState {
    /// The state of a code; `None` if reserved.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::NotActive),
            1 => Some(Self::Discovering),
            2 => Some(Self::Standby),
            3 => Some(Self::Master),
            _ => None,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for SmState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotActive => "not active",
            Self::Discovering => "discovering",
            Self::Standby => "standby",
            Self::Master => "master",
        })
    }
}

code_field!(SmState);

layout! {
    /// SMInfo, 21 bytes (IBA 14.2.5.13). The modifier of a Set() is a command, see [`SmControl`].
    ///
    /// ```text
    /// 0 GUID (8)   8 SM_Key (8)   16 ActCount (4)   20 Priority:4 SMState:4
    /// ```
    pub struct SmInfo(SmInfoRepr): "SMInfo", 21 bytes {
        /// GUID of the subnet manager's port.
        guid: Guid [0 .. 64],
        /// SM_Key; 0 unless the requester is trusted.
        sm_key: u64 [64 .. 128],
        /// ActCount: incremented with the subnet manager's activity.
        act_count: u32 [128 .. 160],
        /// Priority; 15 is the highest. Among equals the lowest GUID wins.
        priority: u8 [160 .. 164],
        /// Its state.
        sm_state: SmState [164 .. 168],
    }
}

/// Command of a Set(SMInfo), in its modifier (IBA 14.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum SmControl {
    /// HANDOVER: become master.
    Handover = 1,
    /// ACKNOWLEDGE: the handover is complete.
    Acknowledge = 2,
    /// DISABLE: become not active.
    Disable = 3,
    /// STANDBY: become standby.
    Standby = 4,
    /// DISCOVER: start discovering.
    Discover = 5,
}

impl SmControl {
    /// The command of a modifier; `None` if reserved.
    pub const fn from_modifier(modifier: u32) -> Option<Self> {
        match modifier {
            1 => Some(Self::Handover),
            2 => Some(Self::Acknowledge),
            3 => Some(Self::Disable),
            4 => Some(Self::Standby),
            5 => Some(Self::Discover),
            _ => None,
        }
    }
}
