//! MTU and rate limits of ports and links, encoded so that a plain minimum combines them.

use ib_mad::types::{Mtu, Rate};
use ib_mad::wire::attribute::{CapabilityMask, CapabilityMask2, NodeInfo, PortInfo};
use sa_proto::snapshot::{Subnet, limited_rate};

/// An MTU and a rate that a path may not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Code of the MTU, whose order is that of the sizes; 0 if nothing passes.
    pub mtu: u8,
    /// Rank of the rate by value; 0 if nothing passes.
    pub rate: u8,
}

impl Limit {
    /// No packet passes.
    pub const NONE: Self = Self { mtu: 0, rate: 0 };
    /// Everything passes.
    pub const ANY: Self = Self { mtu: Mtu::B4096.code(), rate: Rate::BY_VALUE.len() as u8 };

    /// Whether nothing passes.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.mtu == 0 || self.rate == 0
    }

    /// The lesser of both, each on its own.
    #[inline]
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { mtu: self.mtu.min(other.mtu), rate: self.rate.min(other.rate) }
    }

    /// Limits of a port by its PortInfo. `capability_mask` is that of port 0 for the external ports
    /// of a switch. A link without a valid rate counts as the slowest.
    pub(crate) fn of_port(
        info: &PortInfo<&[u8; PortInfo::LEN]>,
        capability_mask: CapabilityMask,
    ) -> Self {
        let mtu = Mtu::from_code(info.mtu_cap()).map_or(0, Mtu::code);
        let rate = info.active_rate(capability_mask).unwrap_or(Rate::Gbps2_5);
        Self { mtu, rate: rate.rank() }
    }

    /// Same with the rate as reported to requesters (`max_rate_enum`).
    #[must_use]
    pub(crate) fn reported(self, subnet: &Subnet) -> Self {
        let rate = usize::from(self.rate).checked_sub(1).and_then(|at| Rate::BY_VALUE.get(at));
        Self {
            rate: rate.map_or(self.rate, |rate| limited_rate(subnet.max_rate, *rate).rank()),
            ..self
        }
    }
}

/// Code of the MTU reported for paths from or to ports of a node, although more may pass:
/// InfiniHost adapters are faster with 1,024 bytes, which OpenSM knows as a quirk.
pub(crate) fn quirk_mtu(subnet: &Subnet, node: &NodeInfo<&[u8; NodeInfo::LEN]>) -> Option<u8> {
    /// InfiniHost (MT23108).
    const DEVICE_ID: u16 = 23108;
    /// Vendors: Mellanox, Topspin, SilverStorm and Voltaire.
    const VENDOR_IDS: [u32; 4] = [0x0002C9, 0x0005AD, 0x00066A, 0x0008F1];
    let is_infinihost = node.device_id() == DEVICE_ID && VENDOR_IDS.contains(&node.vendor_id());
    (subnet.quirks && is_infinihost).then_some(Mtu::B1024.code())
}

/// Which of the newer rate codes a port understands. Other ports must not receive them: an HCA from
/// before 2x and HDR takes them for reserved values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RateSupport(u8);

impl RateSupport {
    const EXTENDED: u8 = 1;
    const WIDTH_2X: u8 = 2;
    const HDR: u8 = 4;
    const NDR: u8 = 8;

    pub(crate) fn of_port(info: &PortInfo<&[u8; PortInfo::LEN]>) -> Self {
        let (mask, mask2) = (info.capability_mask(), info.capability_mask2());
        let has_mask2 = mask.contains(CapabilityMask::IS_CAPABILITY_MASK2_SUPPORTED);
        let mut bits = 0;
        if mask.contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED) {
            bits |= Self::EXTENDED;
        }
        for (capability, bit) in [
            (CapabilityMask2::IS_LINK_WIDTH_2X_SUPPORTED, Self::WIDTH_2X),
            (CapabilityMask2::IS_LINK_SPEED_HDR_SUPPORTED, Self::HDR),
            (CapabilityMask2::IS_LINK_SPEED_NDR_SUPPORTED, Self::NDR),
        ] {
            if has_mask2 && mask2.contains(capability) {
                bits |= bit;
            }
        }
        Self(bits)
    }

    /// The fastest rate up to `rate` whose code this port understands.
    #[inline(always)]
    pub fn fit(self, rate: Rate) -> Rate {
        FITTING[usize::from(self.0) % SUPPORTS][rate as usize % RATE_CODES]
    }

    const fn has_any(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    /// The inputs of [`FITTING`].
    const fn fitting(self, rate: Rate) -> Rate {
        match rate {
            Rate::Gbps28 if !self.has_any(Self::WIDTH_2X) => {
                if self.has_any(Self::EXTENDED) {
                    Rate::Gbps25
                } else {
                    Rate::Gbps20
                }
            }
            Rate::Gbps50 if !self.has_any(Self::WIDTH_2X | Self::HDR) => Rate::Gbps40,
            Rate::Gbps400 | Rate::Gbps600 if !self.has_any(Self::HDR | Self::NDR) => Rate::Gbps300,
            Rate::Gbps800 | Rate::Gbps1200 if !self.has_any(Self::NDR) => {
                if self.has_any(Self::HDR) { Rate::Gbps600 } else { Rate::Gbps300 }
            }
            other => other,
        }
    }
}

/// Sets of the four bits of [`RateSupport`].
const SUPPORTS: usize = 16;
/// More than the greatest code of a rate.
const RATE_CODES: usize = 32;

/// Rates that fit, by the requester's support and by rate code: every path reports one or two.
static FITTING: [[Rate; RATE_CODES]; SUPPORTS] = {
    let mut table = [[Rate::Gbps2_5; RATE_CODES]; SUPPORTS];
    let mut at = 0;
    while at < SUPPORTS * Rate::BY_VALUE.len() {
        let (bits, rate) = (at % SUPPORTS, Rate::BY_VALUE[at / SUPPORTS]);
        table[bits][rate as usize] = RateSupport(bits as u8).fitting(rate);
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::attribute::{LinkSpeeds, LinkSpeedsExt, LinkWidths};

    fn port(extended: LinkSpeedsExt) -> [u8; 64] {
        let mut bytes = [0; 64];
        PortInfo::new(&mut bytes[..])
            .unwrap()
            .set_mtu_cap(Mtu::B2048)
            .set_link_width_active(LinkWidths::X4)
            .set_link_speed_active(LinkSpeeds::QDR)
            .set_link_speed_ext_active(extended);
        bytes
    }

    #[test]
    fn extended_speeds_count_only_where_the_node_has_them() {
        let bytes = port(LinkSpeedsExt::HDR);
        let info = PortInfo::of(&bytes);
        let rate = |mask| Rate::BY_VALUE[usize::from(Limit::of_port(&info, mask).rate) - 1];
        assert_eq!(rate(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED), Rate::Gbps200);
        assert_eq!(rate(CapabilityMask::NONE), Rate::Gbps40);
        assert_eq!(Limit::of_port(&info, CapabilityMask::NONE).mtu, Mtu::B2048.code());
    }

    #[test]
    fn a_port_without_link_counts_as_the_slowest() {
        let bytes = [0; 64];
        let info = PortInfo::of(&bytes);
        assert_eq!(Limit::of_port(&info, CapabilityMask::NONE), Limit { mtu: 0, rate: 1 });
    }

    #[test]
    fn new_rates_shrink_to_what_an_old_port_understands() {
        let (none, extended) = (RateSupport(0), RateSupport(RateSupport::EXTENDED));
        let hdr = RateSupport(RateSupport::EXTENDED | RateSupport::HDR);
        assert_eq!(none.fit(Rate::Gbps28), Rate::Gbps20);
        assert_eq!(extended.fit(Rate::Gbps28), Rate::Gbps25);
        assert_eq!((none.fit(Rate::Gbps50), hdr.fit(Rate::Gbps50)), (Rate::Gbps40, Rate::Gbps50));
        assert_eq!(extended.fit(Rate::Gbps600), Rate::Gbps300);
        assert_eq!(hdr.fit(Rate::Gbps1200), Rate::Gbps600);
        assert_eq!(none.fit(Rate::Gbps200), Rate::Gbps200, "a code that all ports know");
    }
}
