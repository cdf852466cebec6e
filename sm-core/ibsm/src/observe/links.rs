//! Active width and speed of links, compared with what both ends support.

use ib_mad::types::Mtu;
use ib_mad::wire::attribute::{LinkEnd, PortInfo, PortPhysState, PortState};
use sa_proto::snapshot::{Node, Port};

/// One end of a link.
pub(crate) struct End<'a> {
    info: PortInfo<&'a [u8]>,
    link: LinkEnd,
}

impl<'a> End<'a> {
    /// A port of `node`; `None` if its PortInfo is invalid.
    pub(crate) fn new(node: &'a Node, port: &'a Port) -> Option<Self> {
        let info = PortInfo::new(&port.info[..]).ok()?;
        // The CapabilityMask of a switch's external ports is reserved: port 0's applies.
        let with_mask = node.switch_info.and_then(|_| node.ports.first()).unwrap_or(port);
        let capabilities = PortInfo::new(&with_mask.info[..]).ok()?.capability_mask();
        Some(Self { link: LinkEnd::new(&info, capabilities), info })
    }

    pub(crate) fn info(&self) -> &PortInfo<&'a [u8]> {
        &self.info
    }

    pub(crate) fn is_active(&self) -> bool {
        self.info.port_state() == PortState::Active.code()
    }

    pub(crate) fn state(&self) -> String {
        let state = PortState::from_code(self.info.port_state());
        state.map_or_else(|| "reserved".to_owned(), |state| state.to_string())
    }

    pub(crate) fn physical_state(&self) -> String {
        let state = PortPhysState::from_code(self.info.port_physical_state());
        state.map_or_else(|| "reserved".to_owned(), |state| state.to_string())
    }

    /// MTU of the link in bytes.
    pub(crate) fn mtu(&self) -> Option<u16> {
        Mtu::from_code(self.info.neighbor_mtu()).map(Mtu::bytes)
    }

    /// Active width and speed: `4x NDR`.
    pub(crate) fn active(&self) -> String {
        let (width, speed) = (self.link.width_name(), self.link.active().speed_name());
        format!("{} {}", width.unwrap_or("?"), speed.unwrap_or("?"))
    }

    /// Widest width and fastest speed that the port supports: `4x NDR`.
    pub(crate) fn supported(&self) -> Option<String> {
        self.link.supported().map(|(width, speed)| format!("{width} {speed}"))
    }

    /// Widest width and fastest speed of these that it has enabled.
    pub(crate) fn enabled(&self) -> Option<String> {
        self.link.enabled().map(|(width, speed)| format!("{width} {speed}"))
    }

    /// What the link can carry, in bytes per second.
    pub(crate) fn capacity(&self) -> Option<f64> {
        Some(f64::from(self.link.active().data_mbps()?) * 1e6 / 8.0)
    }

    /// What the link carries on the wire, line coding included, in bytes per second.
    pub(crate) fn raw_rate(&self) -> Option<f64> {
        Some(f64::from(self.link.active().raw_mbps()?) * 1e6 / 8.0)
    }

    /// Active rate in Gb/s.
    pub(crate) fn gbps(&self) -> Option<f64> {
        let rate = self.link.active().rate()?;
        Some(rate.mbps() as f64 / 1e3)
    }
}

/// The width and speed that both ends have enabled, if the link is narrower or slower: `4x NDR`.
pub(crate) fn shortfall(a: &End<'_>, b: &End<'_>) -> Option<String> {
    let (width, speed) = a.link.shortfall(b.link)?;
    Some(format!("{width} {speed}"))
}
