//! The requests to an agent, as MADs.

use ib_mad::wire::MAD_LEN;
use ib_mad::wire::congestion as cc;
use ib_mad::wire::mad::{AttributeId, MadHeader, Method};

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query {
    /// CongestionInfo.
    Info,
    /// CongestionKeyInfo.
    Key,
    /// Writes CongestionKeyInfo.
    SetKey,
    /// SwitchCongestionSetting or CACongestionSetting.
    Setting,
    /// Writes it.
    SetSetting,
    /// A block of SwitchPortCongestionSetting.
    Ports(u8),
    /// Writes it.
    SetPorts(u8),
    /// A block of CongestionControlTable.
    Table(u8),
    /// Writes it.
    SetTable(u8),
    /// CongestionLog.
    Log,
}

impl Query {
    pub(super) fn attribute(self, is_switch: bool) -> AttributeId {
        match self {
            Self::Info => cc::CONGESTION_INFO,
            Self::Key | Self::SetKey => cc::CONGESTION_KEY_INFO,
            Self::Setting | Self::SetSetting if is_switch => cc::SWITCH_CONGESTION_SETTING,
            Self::Setting | Self::SetSetting => cc::CA_CONGESTION_SETTING,
            Self::Ports(_) | Self::SetPorts(_) => cc::SWITCH_PORT_CONGESTION_SETTING,
            Self::Table(_) | Self::SetTable(_) => cc::CONGESTION_CONTROL_TABLE,
            Self::Log => cc::CONGESTION_LOG,
        }
    }

    pub(super) fn is_set(self) -> bool {
        matches!(self, Self::SetKey | Self::SetSetting | Self::SetPorts(_) | Self::SetTable(_))
    }

    fn modifier(self) -> u32 {
        match self {
            Self::Ports(block)
            | Self::SetPorts(block)
            | Self::Table(block)
            | Self::SetTable(block) => block.into(),
            _ => 0,
        }
    }

    /// The request as a MAD, with the CC_Key `key`, and the attribute to write.
    pub(super) fn write(
        self,
        tid: u32,
        is_switch: bool,
        key: u64,
        attribute: &[u8],
    ) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        MadHeader::of_mut(&mut mad)
            .set_base_version(1)
            .set_mgmt_class(cc::CLASS)
            .set_class_version(cc::CLASS_VERSION)
            .set_method(if self.is_set() { Method::SET } else { Method::GET })
            .set_tid(tid.into())
            .set_attribute_id(self.attribute(is_switch))
            .set_attribute_modifier(self.modifier());
        cc::set_cc_key(&mut mad, key);
        mad[cc::DATA][..attribute.len()].copy_from_slice(attribute);
        mad
    }
}
