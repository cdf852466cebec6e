//! Compares a link's active width and speed with the best that both of its ports have enabled.

use super::{
    ActiveLink, CapabilityMask, LinkSpeeds, LinkSpeedsExt, LinkSpeedsExt2, LinkWidths, PortInfo,
};

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

/// Supported, enabled and active width and speed of a port. FDR10, which PortInfo cannot express,
/// counts as QDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEnd {
    active: ActiveLink,
    supported: Abilities,
    /// What is both supported and enabled.
    enabled: Abilities,
}

/// Widths and speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Abilities {
    widths: u8,
    /// One bit for each of [`SPEEDS`].
    speeds: u16,
}

impl Abilities {
    fn and(self, other: Self) -> Self {
        Self { widths: self.widths & other.widths, speeds: self.speeds & other.speeds }
    }

    /// Places of the widest width and of the fastest speed; `None` unless there are both.
    fn best(self) -> Option<(usize, usize)> {
        let width = WIDTHS.iter().rposition(|(width, _)| self.widths & width.0 != 0)?;
        Some((width, 15usize.checked_sub(self.speeds.leading_zeros() as usize)?))
    }

    fn best_names(self) -> Option<(&'static str, &'static str)> {
        let (width, speed) = self.best()?;
        Some((WIDTHS[width].1, SPEEDS[speed]))
    }
}

impl LinkEnd {
    /// Reads a PortInfo; see [`PortInfo::active_link`] for `capability_mask`.
    pub fn new<T: AsRef<[u8]>>(info: &PortInfo<T>, capability_mask: CapabilityMask) -> Self {
        let is_extended = capability_mask.contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED);
        let speeds = |slow: LinkSpeeds, fast: LinkSpeedsExt, faster: LinkSpeedsExt2| {
            let slow = u16::from(slow.0 & 0b111);
            let fast = u16::from(fast.0 & 0xF) << 3 | u16::from(faster.0 & 1) << 7;
            if is_extended { slow | fast } else { slow }
        };
        let supported = Abilities {
            widths: info.link_width_supported().0,
            speeds: speeds(
                info.link_speed_supported(),
                info.link_speed_ext_supported(),
                info.link_speed_ext_supported2(),
            ),
        };
        let enabled = Abilities {
            widths: info.link_width_enabled().0,
            speeds: speeds(
                info.link_speed_enabled(),
                info.link_speed_ext_enabled(),
                info.link_speed_ext_enabled2(),
            ),
        };
        let active = info.active_link(capability_mask);
        Self { active, supported, enabled: enabled.and(supported) }
    }

    /// Active width and speed.
    pub fn active(self) -> ActiveLink {
        self.active
    }

    /// Name of the active width; `None` if it is none, or not single.
    pub fn width_name(self) -> Option<&'static str> {
        WIDTHS.iter().find(|(width, _)| *width == self.active.width).map(|(_, name)| *name)
    }

    /// The widest width and fastest speed that the port supports; `None` if the fields do not say.
    pub fn supported(self) -> Option<(&'static str, &'static str)> {
        self.supported.best_names()
    }

    /// The widest width and fastest speed of these that it has enabled.
    pub fn enabled(self) -> Option<(&'static str, &'static str)> {
        self.enabled.best_names()
    }

    /// The widest width and fastest speed that both ends have enabled, if the link is narrower or
    /// slower than that; `None` if it is not, or if the fields do not say.
    pub fn shortfall(self, far: Self) -> Option<(&'static str, &'static str)> {
        let (width, speed) = self.enabled.and(far.enabled).best()?;
        let has_width = WIDTHS.iter().position(|(width, _)| *width == self.active.width)?;
        let name = self.active.speed_name()?;
        let has_speed = SPEEDS.iter().position(|speed| *speed == name)?;
        (has_width < width || has_speed < speed).then_some((WIDTHS[width].1, SPEEDS[speed]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let limited = port(x4, fdr, fdr);
        assert_eq!(slow.shortfall(limited), None, "the other end is not to be faster");
        assert_eq!(limited.supported(), Some(("4x", "EDR")));
        assert_eq!(limited.enabled(), Some(("4x", "FDR")));
        let unknown = port(LinkWidths::NONE, both, edr);
        assert_eq!(unknown.shortfall(unknown), None);
    }
}
