//! Compares a link's active width and speed with the best that both of its ports have enabled.

use super::{ActiveLink, CapabilityMask, LinkWidths, PortInfo};

/// Names of speeds, by their bit in a set.
const SPEEDS: [&str; 8] = ["SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR", "XDR"];
/// Widths by number of lanes, widest last.
const WIDTHS: [(LinkWidths, &str); 5] = [
    (LinkWidths::X1, "1x"),
    (LinkWidths::X2, "2x"),
    (LinkWidths::X4, "4x"),
    (LinkWidths::X8, "8x"),
    (LinkWidths::X12, "12x"),
];

/// Enabled and active width and speed of a port. FDR10, which PortInfo cannot express, counts as
/// QDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEnd {
    active: ActiveLink,
    /// Widths that are both supported and enabled.
    widths: u8,
    /// Speeds that are both supported and enabled, one bit for each of [`SPEEDS`].
    speeds: u16,
}

impl LinkEnd {
    /// Reads a PortInfo; see [`PortInfo::active_link`] for `capability_mask`.
    pub fn new<T: AsRef<[u8]>>(info: &PortInfo<T>, capability_mask: CapabilityMask) -> Self {
        let slow = info.link_speed_supported().0 & info.link_speed_enabled().0 & 0b111;
        let mut speeds = u16::from(slow);
        if capability_mask.contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED) {
            let fast = info.link_speed_ext_supported().0 & info.link_speed_ext_enabled().0 & 0xF;
            let faster = info.link_speed_ext_supported2().0 & info.link_speed_ext_enabled2().0 & 1;
            speeds |= u16::from(fast) << 3 | u16::from(faster) << 7;
        }
        Self {
            active: info.active_link(capability_mask),
            widths: info.link_width_supported().0 & info.link_width_enabled().0,
            speeds,
        }
    }

    /// Active width and speed.
    pub fn active(self) -> ActiveLink {
        self.active
    }

    /// Name of the active width; `None` if it is none, or not single.
    pub fn width_name(self) -> Option<&'static str> {
        WIDTHS.iter().find(|(width, _)| *width == self.active.width).map(|(_, name)| *name)
    }

    /// The widest width and fastest speed that both ends have enabled, if the link is narrower or
    /// slower than that; `None` if it is not, or if the fields do not say.
    pub fn shortfall(self, far: Self) -> Option<(&'static str, &'static str)> {
        let widths = self.widths & far.widths;
        let width = WIDTHS.iter().rposition(|(width, _)| widths & width.0 != 0)?;
        let speeds = self.speeds & far.speeds;
        let speed = 15usize.checked_sub(speeds.leading_zeros() as usize)?;
        let has_width = WIDTHS.iter().position(|(width, _)| *width == self.active.width)?;
        let name = self.active.speed_name()?;
        let has_speed = SPEEDS.iter().position(|speed| *speed == name)?;
        (has_width < width || has_speed < speed).then_some((WIDTHS[width].1, SPEEDS[speed]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::attribute::{LinkSpeeds, LinkSpeedsExt};

    /// A port that supports 4x EDR, with this active width and these enabled and active speeds.
    fn port(width: LinkWidths, enabled: LinkSpeedsExt, active: LinkSpeedsExt) -> LinkEnd {
        let mut info = PortInfo::new([0; 64]).unwrap();
        info.set_link_width_supported(LinkWidths(3))
            .set_link_width_enabled(LinkWidths(3))
            .set_link_width_active(width)
            .set_link_speed_supported(LinkSpeeds(7))
            .set_link_speed_enabled(LinkSpeeds(7))
            .set_link_speed_active(LinkSpeeds::QDR)
            .set_link_speed_ext_supported(LinkSpeedsExt(3))
            .set_link_speed_ext_enabled(enabled)
            .set_link_speed_ext_active(active);
        LinkEnd::new(&info, CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED)
    }

    #[test]
    fn a_link_falls_short_of_what_both_ends_have_enabled() {
        let (x1, x4, both) = (LinkWidths::X1, LinkWidths::X4, LinkSpeedsExt(3));
        let (fdr, edr) = (LinkSpeedsExt::FDR, LinkSpeedsExt::EDR);
        let good = port(x4, both, edr);
        assert_eq!((good.shortfall(good), good.width_name()), (None, Some("4x")));
        let slow = port(x4, both, fdr);
        assert_eq!(slow.shortfall(slow), Some(("4x", "EDR")));
        let narrow = port(x1, both, edr);
        assert_eq!(narrow.shortfall(narrow), Some(("4x", "EDR")));
        assert_eq!(slow.shortfall(port(x4, fdr, fdr)), None, "the other end is not to be faster");
        let unknown = port(LinkWidths::NONE, both, edr);
        assert_eq!(unknown.shortfall(unknown), None);
    }
}
