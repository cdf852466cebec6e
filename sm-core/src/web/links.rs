//! What the ports of a link could be together, and whether they are.

use ib_mad::types::Mtu;
use ib_mad::wire::attribute::{CapabilityMask, LinkWidths, PortInfo, PortPhysState, PortState};
use sa_proto::snapshot::{Node, Port};

/// Names of speeds, by their place in a set of them.
const SPEEDS: [&str; 8] = ["SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR", "XDR"];
/// Widths and how many lanes they have, the widest last.
const WIDTHS: [(LinkWidths, &str); 5] = [
    (LinkWidths::X1, "1x"),
    (LinkWidths::X2, "2x"),
    (LinkWidths::X4, "4x"),
    (LinkWidths::X8, "8x"),
    (LinkWidths::X12, "12x"),
];

/// An end of a link.
pub(super) struct End<'a> {
    info: PortInfo<&'a [u8]>,
    capabilities: CapabilityMask,
}

impl<'a> End<'a> {
    /// A port of `node`; `None` if its PortInfo is none.
    pub(super) fn new(node: &'a Node, port: &'a Port) -> Option<Self> {
        let info = PortInfo::new(&port.info[..]).ok()?;
        // Of a switch's external ports the mask is reserved: port 0 has it.
        let with_mask = node.switch_info.and_then(|_| node.ports.first()).unwrap_or(port);
        let capabilities = PortInfo::new(&with_mask.info[..]).ok()?.capability_mask();
        Some(Self { info, capabilities })
    }

    pub(super) fn info(&self) -> &PortInfo<&'a [u8]> {
        &self.info
    }

    pub(super) fn is_active(&self) -> bool {
        self.info.port_state() == PortState::Active.code()
    }

    pub(super) fn state(&self) -> String {
        let state = PortState::from_code(self.info.port_state());
        state.map_or_else(|| "reserved".to_owned(), |state| state.to_string())
    }

    pub(super) fn physical_state(&self) -> String {
        let state = PortPhysState::from_code(self.info.port_physical_state());
        state.map_or_else(|| "reserved".to_owned(), |state| state.to_string())
    }

    /// MTU of the link, bytes.
    pub(super) fn mtu(&self) -> Option<u16> {
        Mtu::from_code(self.info.neighbor_mtu()).map(Mtu::bytes)
    }

    /// Width and speed as they are: `4x NDR`.
    pub(super) fn active(&self) -> String {
        let link = self.info.active_link(self.capabilities);
        let width = WIDTHS.iter().find(|(width, _)| *width == link.width).map(|(_, name)| *name);
        format!("{} {}", width.unwrap_or("?"), link.speed_name().unwrap_or("?"))
    }

    /// Rate as it is, Gb/s.
    pub(super) fn gbps(&self) -> Option<f64> {
        let rate = self.info.active_rate(self.capabilities)?;
        Some(rate.mbps() as f64 / 1e3)
    }

    /// Widths that it may have.
    fn widths(&self) -> u8 {
        self.info.link_width_supported().0 & self.info.link_width_enabled().0
    }

    /// Speeds that it may have, a bit each of [`SPEEDS`].
    fn speeds(&self) -> u16 {
        let info = &self.info;
        let slow = info.link_speed_supported().0 & info.link_speed_enabled().0 & 0b111;
        if !self.capabilities.contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED) {
            return slow.into();
        }
        let fast = info.link_speed_ext_supported().0 & info.link_speed_ext_enabled().0 & 0xF;
        let faster = info.link_speed_ext_supported2().0 & info.link_speed_ext_enabled2().0 & 1;
        u16::from(slow) | u16::from(fast) << 3 | u16::from(faster) << 7
    }

    fn active_speed(&self) -> Option<usize> {
        let name = self.info.active_link(self.capabilities).speed_name()?;
        SPEEDS.iter().position(|speed| *speed == name)
    }
}

/// What a link should be and is not, if both ends may be better than what they have agreed on:
/// `4x NDR`.
pub(super) fn shortfall(a: &End<'_>, b: &End<'_>) -> Option<String> {
    let widths = a.widths() & b.widths();
    let width = WIDTHS.iter().rev().find(|(width, _)| widths & width.0 != 0)?;
    let speeds = a.speeds() & b.speeds();
    let speed = 15usize.checked_sub(speeds.leading_zeros() as usize)?;
    let active = a.info.link_width_active();
    let active_width = WIDTHS.iter().position(|(width, _)| *width == active)?;
    let best_width = WIDTHS.iter().position(|(other, _)| *other == width.0)?;
    let is_short = active_width < best_width || a.active_speed()? < speed;
    is_short.then(|| format!("{} {}", width.1, SPEEDS[speed]))
}
