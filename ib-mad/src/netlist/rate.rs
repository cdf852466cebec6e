//! Link widths and speeds, as written in net files (`4xHDR`) and as bit masks of PortInfo.

use std::fmt;
use std::str::FromStr;

/// Number of lanes of a link, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each name is the number of lanes")]
#[non_exhaustive]
pub enum LinkWidth {
    X1,
    X2,
    X4,
    X8,
    X12,
}

/// Signalling rate of a lane, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each name is the speed's usual one")]
#[non_exhaustive]
pub enum LinkSpeed {
    Sdr,
    Ddr,
    Qdr,
    Fdr10,
    Fdr,
    Edr,
    Hdr,
    Ndr,
    Xdr,
}

/// Width and speed of a link, or the maximum that a port supports. The default, 4xSDR, is what
/// `ibsim` assigns to ports whose rate a file does not state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkRate {
    /// Link width.
    pub width: LinkWidth,
    /// Speed of each lane.
    pub speed: LinkSpeed,
}

impl LinkWidth {
    /// All widths, narrowest first.
    pub const ALL: [Self; 5] = [Self::X1, Self::X2, Self::X4, Self::X8, Self::X12];

    /// Number of lanes.
    pub const fn lanes(self) -> u8 {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
        }
    }

    /// The bit of this width in PortInfo's LinkWidthSupported, LinkWidthEnabled and
    /// LinkWidthActive.
    pub const fn bit(self) -> u8 {
        match self {
            Self::X1 => 1,
            Self::X4 => 2,
            Self::X8 => 4,
            Self::X12 => 8,
            Self::X2 => 16,
        }
    }

    /// This width and all narrower ones, as bits.
    pub fn mask_up_to(self) -> u8 {
        Self::ALL.iter().filter(|&&width| width <= self).fold(0, |mask, width| mask | width.bit())
    }

    /// The widest width of a mask; `None` for 0 or undefined bits only.
    pub fn widest_of(mask: u8) -> Option<Self> {
        let known = Self::ALL.iter().fold(0, |bits, width| bits | width.bit());
        if mask & !known != 0 {
            return None;
        }
        Self::ALL.iter().rev().copied().find(|width| mask & width.bit() != 0)
    }
}

impl LinkSpeed {
    /// All speeds, slowest first.
    pub const ALL: [Self; 9] = [
        Self::Sdr,
        Self::Ddr,
        Self::Qdr,
        Self::Fdr10,
        Self::Fdr,
        Self::Edr,
        Self::Hdr,
        Self::Ndr,
        Self::Xdr,
    ];

    /// The name in upper case, as tools print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sdr => "SDR",
            Self::Ddr => "DDR",
            Self::Qdr => "QDR",
            Self::Fdr10 => "FDR10",
            Self::Fdr => "FDR",
            Self::Edr => "EDR",
            Self::Hdr => "HDR",
            Self::Ndr => "NDR",
            Self::Xdr => "XDR",
        }
    }

    /// LinkSpeed bits of PortInfo for this speed and all slower ones: SDR 1, DDR 2, QDR 4.
    pub const fn mask_up_to(self) -> u8 {
        match self {
            Self::Sdr => 1,
            Self::Ddr => 3,
            _ => 7,
        }
    }

    /// LinkSpeedExt bits of PortInfo for this speed and all slower ones: FDR 1, EDR 2, HDR 4, NDR
    /// 8, and for XDR 16, which newer ports report in a separate field.
    pub const fn extended_mask_up_to(self) -> u8 {
        match self {
            Self::Sdr | Self::Ddr | Self::Qdr | Self::Fdr10 => 0,
            Self::Fdr => 1,
            Self::Edr => 3,
            Self::Hdr => 7,
            Self::Ndr => 15,
            Self::Xdr => 31,
        }
    }

    /// The fastest speed in a LinkSpeed and a LinkSpeedExt mask; `None` if neither has a defined
    /// bit.
    pub fn fastest_of(mask: u8, extended: u8) -> Option<Self> {
        if mask & !7 != 0 || extended & !31 != 0 {
            return None;
        }
        let by_extended = [Self::Fdr, Self::Edr, Self::Hdr, Self::Ndr, Self::Xdr];
        let by_mask = [Self::Sdr, Self::Ddr, Self::Qdr];
        let top = |bits: u8| (bits != 0).then(|| bits.ilog2() as usize);
        top(extended).map(|bit| by_extended[bit]).or_else(|| top(mask).map(|bit| by_mask[bit]))
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Text that is not a link speed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a link speed; use one of sdr, ddr, qdr, fdr10, fdr, edr, hdr, ndr, xdr")]
pub struct ParseSpeedError(pub String);

impl FromStr for LinkSpeed {
    type Err = ParseSpeedError;

    fn from_str(text: &str) -> Result<Self, ParseSpeedError> {
        let found = Self::ALL.into_iter().find(|speed| speed.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| ParseSpeedError(text.to_owned()))
    }
}

impl LinkRate {
    /// The negotiated rate of two ports: the narrower width and the slower speed.
    pub fn agreed(self, peer: Self) -> Self {
        Self { width: self.width.min(peer.width), speed: self.speed.min(peer.speed) }
    }

    /// Megabits per second, as in the names of rates.
    pub const fn mbps(self) -> u32 {
        let lane = match self.speed {
            LinkSpeed::Sdr => 2_500,
            LinkSpeed::Ddr => 5_000,
            LinkSpeed::Qdr | LinkSpeed::Fdr10 => 10_000,
            LinkSpeed::Fdr => 14_000,
            LinkSpeed::Edr => 25_000,
            LinkSpeed::Hdr => 50_000,
            LinkSpeed::Ndr => 100_000,
            LinkSpeed::Xdr => 200_000,
        };
        lane * self.width.lanes() as u32
    }

    /// What the link can carry after line coding, Mb/s: see
    /// [`ActiveLink::data_mbps`](crate::wire::attribute::ActiveLink::data_mbps).
    pub const fn data_mbps(self) -> u32 {
        match self.speed {
            LinkSpeed::Sdr | LinkSpeed::Ddr | LinkSpeed::Qdr => self.mbps() / 5 * 4,
            LinkSpeed::Fdr => self.mbps() - self.mbps() / 110 * 3,
            _ => self.mbps(),
        }
    }
}

impl Default for LinkRate {
    fn default() -> Self {
        Self { width: LinkWidth::X4, speed: LinkSpeed::Sdr }
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width.lanes(), self.speed)
    }
}

/// Text that is not a link rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a link rate; write width and speed, such as 4xHDR")]
pub struct ParseRateError(pub String);

impl FromStr for LinkRate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        let parse = || {
            let (lanes, speed) = text.split_once('x')?;
            let lanes: u8 = lanes.parse().ok()?;
            let width = LinkWidth::ALL.into_iter().find(|width| width.lanes() == lanes)?;
            Some(Self { width, speed: speed.parse().ok()? })
        };
        parse().ok_or_else(|| ParseRateError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_back_as_they_are_written() {
        for width in LinkWidth::ALL {
            for speed in LinkSpeed::ALL {
                let rate = LinkRate { width, speed };
                assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }
        for text in ["", "4x", "xHDR", "3xHDR", "4 xHDR", "4xundefined"] {
            assert!(text.parse::<LinkRate>().is_err(), "{text}");
        }
    }

    #[test]
    fn masks_hold_what_they_were_made_of() {
        for width in LinkWidth::ALL {
            assert_eq!(LinkWidth::widest_of(width.mask_up_to()), Some(width));
        }
        for speed in LinkSpeed::ALL.into_iter().filter(|&speed| speed != LinkSpeed::Fdr10) {
            let (mask, extended) = (speed.mask_up_to(), speed.extended_mask_up_to());
            assert_eq!(LinkSpeed::fastest_of(mask, extended), Some(speed));
        }
        assert_eq!(
            LinkWidth::widest_of(LinkWidth::X2.bit() | LinkWidth::X4.bit()),
            Some(LinkWidth::X4)
        );
        assert_eq!((LinkWidth::widest_of(0), LinkWidth::widest_of(32)), (None, None));
        assert_eq!((LinkSpeed::fastest_of(0, 0), LinkSpeed::fastest_of(8, 0)), (None, None));
    }

    #[test]
    fn line_coding_takes_what_it_takes_of_an_active_link() {
        use crate::wire::attribute::{ActiveLink, LinkSpeeds, LinkSpeedsExt, LinkWidths};
        let active = ActiveLink { width: LinkWidths::X4, ..ActiveLink::default() };
        let of_speed = |speed| ActiveLink { speed, ..active };
        let extended = |speed_ext| ActiveLink { speed_ext, ..of_speed(LinkSpeeds::QDR) };
        for (rate, active) in [
            ("4xSDR", of_speed(LinkSpeeds::SDR)),
            ("4xDDR", of_speed(LinkSpeeds::DDR)),
            ("4xQDR", of_speed(LinkSpeeds::QDR)),
            ("4xFDR", extended(LinkSpeedsExt::FDR)),
            ("4xNDR", extended(LinkSpeedsExt::NDR)),
        ] {
            let mbps = rate.parse::<LinkRate>().unwrap().data_mbps();
            assert_eq!(Some(mbps), active.data_mbps(), "{rate}");
        }
    }

    #[test]
    fn two_ports_agree_on_what_both_can_do() {
        let a: LinkRate = "12xEDR".parse().unwrap();
        let b: LinkRate = "4xNDR".parse().unwrap();
        assert_eq!(a.agreed(b).to_string(), "4xEDR");
    }
}
