//! Redirection by ClassPortInfo: which responder a requester should use instead.
//!
//! It is off unless targets are configured, and applies only to requests from the front door: a
//! responder must not redirect requests that were redirected to it.

use std::str::FromStr;

use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};

/// A responder to be redirected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its LID: always filled in, for clients that know no other way.
    pub lid: Lid,
    /// Its GID; zero if the LID is enough.
    pub gid: Gid,
    /// P_Key to ask by.
    pub pkey: PKey,
    /// QP to ask.
    pub qpn: Qpn,
    /// Service level towards it.
    pub sl: Sl,
}

/// The responders that requesters are spread over.
#[derive(Clone, Debug, Default)]
pub struct Redirection {
    targets: Vec<Target>,
}

impl Redirection {
    /// No redirection.
    pub fn off() -> Self {
        Self::default()
    }

    /// Redirects every requester to one of `targets`; to none if the list is empty.
    pub fn to(targets: Vec<Target>) -> Self {
        Self { targets }
    }

    /// The target of this requester, by rendezvous hashing: it changes only if that target comes or
    /// goes.
    #[inline]
    pub fn target(&self, requester: Lid) -> Option<&Target> {
        self.targets.iter().max_by_key(|target| {
            let pair = u64::from(requester.0) << 16 | u64::from(target.lid.0);
            let product =
                u128::from(pair + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
            ((product >> 64) as u64 ^ product as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93)
        })
    }
}

/// Text that is not a redirection target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a redirection target; use LID, LID:QP or LID:QP:P_KEY, such as 17:1:0xffff")]
pub struct ParseTargetError(String);

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, ParseTargetError> {
        let parse = |part: &str| match part.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => part.parse().ok(),
        };
        let mut parts = text.split(':').map(parse);
        let error = || ParseTargetError(text.to_owned());
        let mut next = |default: Option<u32>, max: u32| match parts.next() {
            Some(value) => value.filter(|&value| value <= max).ok_or_else(error),
            None => default.ok_or_else(error),
        };
        let lid = Lid(next(None, u32::from(Lid::UNICAST_LAST.0))? as u16);
        let qpn = Qpn(next(Some(Qpn::GSI.0), 0xFF_FFFF)?);
        let pkey = PKey(next(Some(u32::from(PKey::DEFAULT_FULL.0)), 0xFFFF)? as u16);
        if !lid.is_unicast() || parts.next().is_some() {
            return Err(error());
        }
        Ok(Self { lid, gid: Gid::ZERO, pkey, qpn, sl: Sl::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(lids: &[u16]) -> Redirection {
        Redirection::to(lids.iter().map(|lid| lid.to_string().parse().unwrap()).collect())
    }

    #[test]
    fn targets_are_read_from_text() {
        let target: Target = "17:0x12:0x8001".parse().unwrap();
        assert_eq!((target.lid, target.qpn, target.pkey), (Lid(17), Qpn(0x12), PKey(0x8001)));
        assert_eq!("17".parse::<Target>().unwrap().qpn, Qpn::GSI);
        for text in ["", "0", "49152", "17:", "17:1:1:1", "x", "17:16777216"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn requesters_are_spread_and_stay_where_they_are() {
        let (two, three) = (targets(&[5, 6]), targets(&[5, 6, 7]));
        let mut counts = [0; 3];
        for requester in (1..=3000).map(Lid) {
            let before = two.target(requester).unwrap().lid;
            let after = three.target(requester).unwrap().lid;
            assert!(after == before || after == Lid(7), "moved only to the new one");
            counts[usize::from(after.0 - 5)] += 1;
        }
        assert!(counts.iter().all(|&count| (700..1300).contains(&count)), "{counts:?}");
        assert_eq!(Redirection::off().target(Lid(1)), None);
    }
}
