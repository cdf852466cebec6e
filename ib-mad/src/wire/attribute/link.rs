//! Width and speed of links as encoded in PortInfo, and the resulting rate.

use super::capability::bit_set;
use crate::types::Rate;
use crate::wire::mad::open_code;

bit_set! {
    /// Set of link widths, one bit each; LinkWidthActive holds exactly one (IBA 14.2.5.6).
    pub struct LinkWidths(u8);
    /// One lane.
    X1 = 0, "1x";
    /// Four lanes.
    X4 = 1, "4x";
    /// Eight lanes.
    X8 = 2, "8x";
    /// Twelve lanes.
    X12 = 3, "12x";
    /// Two lanes.
    X2 = 4, "2x";
}

impl LinkWidths {
    /// In LinkWidthEnabled of a Set(): enable all supported widths.
    pub const SET_TO_SUPPORTED: Self = Self(0xFF);

    /// Number of lanes, if this is a single width.
    pub const fn lanes(self) -> Option<u8> {
        match self {
            Self::X1 => Some(1),
            Self::X2 => Some(2),
            Self::X4 => Some(4),
            Self::X8 => Some(8),
            Self::X12 => Some(12),
            _ => None,
        }
    }
}

bit_set! {
    /// Set of link speeds up to QDR; LinkSpeedActive holds one, or none while an extended speed
    /// is active (IBA 14.2.5.6).
    pub struct LinkSpeeds(u8);
    /// 2.5 Gb/s per lane.
    SDR = 0, "SDR";
    /// 5 Gb/s per lane.
    DDR = 1, "DDR";
    /// 10 Gb/s per lane.
    QDR = 2, "QDR";
}

impl LinkSpeeds {
    /// In LinkSpeedEnabled of a Set(): enable all supported speeds.
    pub const SET_TO_SUPPORTED: Self = Self(0xF);
}

bit_set! {
    /// Set of extended link speeds; valid if the port has
    /// [`IS_EXTENDED_SPEEDS_SUPPORTED`](super::CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED).
    pub struct LinkSpeedsExt(u8);
    /// 14 Gb/s per lane.
    FDR = 0, "FDR";
    /// 25 Gb/s per lane.
    EDR = 1, "EDR";
    /// 50 Gb/s per lane.
    HDR = 2, "HDR";
    /// 100 Gb/s per lane.
    NDR = 3, "NDR";
}

impl LinkSpeedsExt {
    /// In LinkSpeedExtEnabled of a Set(): no extended speed.
    pub const DISABLE: Self = Self(30);
    /// In LinkSpeedExtEnabled of a Set(): enable all supported speeds.
    pub const SET_TO_SUPPORTED: Self = Self(31);
}

bit_set! {
    /// Set of extended link speeds beyond NDR, in bits that release 1.5 of the specification
    /// still reserves.
    pub struct LinkSpeedsExt2(u8);
    /// 200 Gb/s per lane.
    XDR = 0, "XDR";
}

bit_set! {
    /// Set of link speeds in [`MlnxExtPortInfo`](super::MlnxExtPortInfo).
    pub struct MlnxLinkSpeeds(u8);
    /// 10 Gb/s per lane with 64b/66b encoding: the data rate of four-lane FDR10 is 40 Gb/s.
    FDR10 = 0, "FDR10";
}

/// Active width and speed of one link.
///
/// Speed fields that the port does not support must be set to none: this depends on the
/// CapabilityMask, see [`PortInfo::active_link`](super::PortInfo::active_link).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActiveLink {
    /// LinkWidthActive.
    pub width: LinkWidths,
    /// LinkSpeedActive.
    pub speed: LinkSpeeds,
    /// LinkSpeedExtActive.
    pub speed_ext: LinkSpeedsExt,
    /// LinkSpeedExtActive2.
    pub speed_ext2: LinkSpeedsExt2,
    /// LinkSpeedActive of MlnxExtPortInfo.
    pub mlnx_speed: MlnxLinkSpeeds,
}

impl ActiveLink {
    /// Name of the active speed, the fastest if several fields hold one; `None` if none does.
    pub const fn speed_name(self) -> Option<&'static str> {
        if self.speed_ext2.contains(LinkSpeedsExt2::XDR) {
            return Some("XDR");
        }
        match (self.speed_ext, self.mlnx_speed, self.speed) {
            (LinkSpeedsExt::NDR, ..) => Some("NDR"),
            (LinkSpeedsExt::HDR, ..) => Some("HDR"),
            (LinkSpeedsExt::EDR, ..) => Some("EDR"),
            (LinkSpeedsExt::FDR, ..) => Some("FDR"),
            (_, MlnxLinkSpeeds::FDR10, _) => Some("FDR10"),
            (.., LinkSpeeds::QDR) => Some("QDR"),
            (.., LinkSpeeds::DDR) => Some("DDR"),
            (.., LinkSpeeds::SDR) => Some("SDR"),
            _ => None,
        }
    }

    /// The rate of the link; `None` if width or speed is none, reserved or not single, or if their
    /// product has no rate code (8x and 12x of XDR).
    pub const fn rate(self) -> Option<Rate> {
        use Rate::*;
        let Some(lanes) = self.width.lanes() else { return None };
        let Some(speed) = self.speed_name() else { return None };
        // By lanes: 1, 2, 4, 8, 12.
        let rates: [Option<Rate>; 5] = match speed.as_bytes() {
            b"SDR" => [Some(Gbps2_5), Some(Gbps5), Some(Gbps10), Some(Gbps20), Some(Gbps30)],
            b"DDR" => [Some(Gbps5), Some(Gbps10), Some(Gbps20), Some(Gbps40), Some(Gbps60)],
            b"QDR" | b"FDR10" => {
                [Some(Gbps10), Some(Gbps20), Some(Gbps40), Some(Gbps80), Some(Gbps120)]
            }
            b"FDR" => [Some(Gbps14), Some(Gbps28), Some(Gbps56), Some(Gbps112), Some(Gbps168)],
            b"EDR" => [Some(Gbps25), Some(Gbps50), Some(Gbps100), Some(Gbps200), Some(Gbps300)],
            b"HDR" => [Some(Gbps50), Some(Gbps100), Some(Gbps200), Some(Gbps400), Some(Gbps600)],
            b"NDR" => [Some(Gbps100), Some(Gbps200), Some(Gbps400), Some(Gbps800), Some(Gbps1200)],
            b"XDR" => [Some(Gbps200), Some(Gbps400), Some(Gbps800), None, None],
            _ => return None,
        };
        match lanes {
            1 => rates[0],
            2 => rates[1],
            4 => rates[2],
            8 => rates[3],
            _ => rates[4],
        }
    }

    /// What the link can carry after line coding, in Mb/s: of SDR, DDR and QDR (8b/10b) 4/5 of the
    /// rate, of FDR (14.0625 Gb/s per lane, 64b/66b) 3/110 less than the rate. The names of the
    /// other speeds are data rates. `None` where [`rate`](Self::rate) is.
    pub const fn data_mbps(self) -> Option<u32> {
        let Some(rate) = self.rate() else { return None };
        let Some(speed) = self.speed_name() else { return None };
        Some(match speed.as_bytes() {
            b"SDR" | b"DDR" | b"QDR" => rate.mbps() / 5 * 4,
            b"FDR" => rate.mbps() - rate.mbps() / 110 * 3,
            _ => rate.mbps(),
        })
    }

    /// What the link carries on the wire, line coding and error correction included, in Mb/s:
    /// 10.3125 Gb/s per lane with FDR10, 14.0625 with FDR, 25.78125 with EDR, 53.125 with HDR, and
    /// twice that with each later speed. `None` where [`rate`](Self::rate) is.
    pub const fn raw_mbps(self) -> Option<u32> {
        let Some(rate) = self.rate() else { return None };
        let Some(speed) = self.speed_name() else { return None };
        Some(match speed.as_bytes() {
            b"SDR" | b"DDR" | b"QDR" => rate.mbps(),
            b"FDR10" | b"EDR" => rate.mbps() * 33 / 32,
            b"FDR" => rate.mbps() * 225 / 224,
            _ => rate.mbps() * 17 / 16,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: [LinkWidths; 5] =
        [LinkWidths::X1, LinkWidths::X2, LinkWidths::X4, LinkWidths::X8, LinkWidths::X12];

    /// Every rate is the number of lanes times the rate per lane, rounded as in the names of the
    /// rates.
    #[test]
    fn line_coding_leaves_less_than_the_rate_of_older_speeds() {
        let four = ActiveLink { width: LinkWidths::X4, ..ActiveLink::default() };
        let qdr = ActiveLink { speed: LinkSpeeds::QDR, ..four };
        let fdr10 = ActiveLink { mlnx_speed: MlnxLinkSpeeds::FDR10, ..qdr };
        let fdr = ActiveLink { speed_ext: LinkSpeedsExt::FDR, ..qdr };
        let ndr = ActiveLink { speed_ext: LinkSpeedsExt::NDR, ..qdr };
        let capacities = [qdr, fdr10, fdr, ndr].map(ActiveLink::data_mbps);
        // 4 × 14.0625 Gb/s × 64/66 is 54.5 Gb/s.
        assert_eq!(capacities, [Some(32_000), Some(40_000), Some(54_473), Some(400_000)]);
        let edr = ActiveLink { speed_ext: LinkSpeedsExt::EDR, ..qdr };
        let raw = [qdr, fdr10, fdr, edr, ndr].map(ActiveLink::raw_mbps);
        let expected = [40_000, 41_250, 56_250, 103_125, 425_000];
        assert_eq!(raw, expected.map(Some));
        assert_eq!(ActiveLink { speed: LinkSpeeds(0), ..four }.data_mbps(), None);
    }

    #[test]
    fn rates_are_lanes_times_speed() {
        let speed = |speed, speed_ext, speed_ext2| ActiveLink {
            speed,
            speed_ext,
            speed_ext2,
            ..ActiveLink::default()
        };
        let (none, none2) = (LinkSpeedsExt::NONE, LinkSpeedsExt2::NONE);
        let lanes = [
            (2_500, speed(LinkSpeeds::SDR, none, none2)),
            (5_000, speed(LinkSpeeds::DDR, none, none2)),
            (10_000, speed(LinkSpeeds::QDR, none, none2)),
            (14_000, speed(LinkSpeeds::NONE, LinkSpeedsExt::FDR, none2)),
            (25_000, speed(LinkSpeeds::NONE, LinkSpeedsExt::EDR, none2)),
            (50_000, speed(LinkSpeeds::NONE, LinkSpeedsExt::HDR, none2)),
            (100_000, speed(LinkSpeeds::NONE, LinkSpeedsExt::NDR, none2)),
            (200_000, speed(LinkSpeeds::NONE, none, LinkSpeedsExt2::XDR)),
        ];
        let mut seen = 0;
        for (lane, link) in lanes {
            for width in WIDTHS {
                let link = ActiveLink { width, ..link };
                let expected = lane * u32::from(width.lanes().unwrap());
                match link.rate() {
                    Some(rate) => assert_eq!(rate.to_string(), gbps(expected), "{link:?}"),
                    None => assert!(expected > 1_200_000, "{link:?}"),
                }
                seen += usize::from(link.rate().is_some());
            }
        }
        assert_eq!(seen, 38);
    }

    fn gbps(mbps: u32) -> String {
        match mbps {
            2_500 => "2.5 Gb/s".to_owned(),
            other => format!("{} Gb/s", other / 1000),
        }
    }

    /// Ports at an extended speed may leave LinkSpeedActive at its value before.
    #[test]
    fn the_extended_speed_counts_where_both_are_active() {
        let link = ActiveLink {
            width: LinkWidths::X4,
            speed: LinkSpeeds::QDR,
            speed_ext: LinkSpeedsExt::EDR,
            ..ActiveLink::default()
        };
        assert_eq!((link.speed_name(), link.rate()), (Some("EDR"), Some(Rate::Gbps100)));
    }

    #[test]
    fn fdr10_keeps_the_rate_of_qdr() {
        let link = ActiveLink {
            width: LinkWidths::X4,
            speed: LinkSpeeds::QDR,
            mlnx_speed: MlnxLinkSpeeds::FDR10,
            ..ActiveLink::default()
        };
        assert_eq!((link.speed_name(), link.rate()), (Some("FDR10"), Some(Rate::Gbps40)));
    }

    #[test]
    fn no_width_or_several_speeds_make_no_rate() {
        let link = ActiveLink { speed: LinkSpeeds::QDR, ..ActiveLink::default() };
        assert_eq!(link.rate(), None);
        let both = LinkWidths::X1 | LinkWidths::X4;
        assert_eq!(ActiveLink { width: both, ..link }.rate(), None);
        let speed = LinkSpeeds::QDR | LinkSpeeds::SDR;
        assert_eq!(ActiveLink { width: LinkWidths::X4, speed, ..link }.rate(), None);
    }
}
