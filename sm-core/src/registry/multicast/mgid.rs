//! MGIDs: which a client may request (IBA o15-0.1.5, 4.1.1), which belong to an IPoIB broadcast
//! group, and MGIDs that the SA generates.

use ib_mad::types::Gid;

/// Signature of IPv4 over InfiniBand, bytes 2 and 3 (RFC 4391).
const IPV4: [u8; 2] = [0x40, 0x1B];
/// Signature of IPv6 over InfiniBand.
const IPV6: [u8; 2] = [0x60, 0x1B];
/// Signature of SA-generated MGIDs.
const MADE: [u8; 2] = [0xA0, 0x1B];

/// Link-local scope: the group does not leave the subnet.
const LINK_LOCAL: u8 = 2;

/// Number of MGIDs tried before a group is refused.
const TRIES_MAX: u32 = 1000;

/// Whether a client may create a group with this MGID: multicast, no reserved flags, and not in the
/// SA-generated range. IPoIB MGIDs are checked against their broadcast group instead.
pub(super) fn may_be_asked_for(mgid: Gid) -> bool {
    let [first, flags_scope, signature @ ..] = mgid.0;
    let is_made = signature[..2] == MADE && flags_scope & 0x0F == LINK_LOCAL;
    first == 0xFF && (is_ipoib(mgid) || (flags_scope & 0xE0 == 0 && !is_made))
}

/// The broadcast group whose parameters a group with this MGID must have: that of the same P_Key
/// and scope. `None` for MGIDs other than IPoIB, and for broadcast groups themselves.
pub(super) fn broadcast_of(mgid: Gid) -> Option<Gid> {
    let mut broadcast =
        [0xFF, 0x10, IPV4[0], IPV4[1], 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF];
    broadcast[1] |= mgid.0[1] & 0x0F;
    broadcast[4..6].copy_from_slice(&mgid.0[4..6]);
    (is_ipoib(mgid) && broadcast != mgid.0).then_some(Gid(broadcast))
}

fn is_ipoib(mgid: Gid) -> bool {
    mgid.0[2..4] == IPV4 || mgid.0[2..4] == IPV6
}

/// Generates an MGID for a group whose creator left the choice to the SA: the first from `start` on
/// that is not taken.
///
/// ```text
/// ff 1S a0 1b <subnet prefix, 8> <number, 4>    S scope
/// ```
pub(super) fn make(
    scope: Option<u8>,
    prefix: u64,
    start: u64,
    is_taken: impl Fn(Gid) -> bool,
) -> Option<Gid> {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&[0xFF, 0x10 | scope.unwrap_or(LINK_LOCAL), MADE[0], MADE[1]]);
    bytes[4..12].copy_from_slice(&prefix.to_be_bytes());
    (0..TRIES_MAX).find_map(|tried| {
        let number = (start as u32).wrapping_add(tried);
        bytes[12..].copy_from_slice(&number.to_be_bytes());
        Some(Gid(bytes)).filter(|&mgid| !is_taken(mgid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        text.parse().unwrap()
    }

    /// IBA o15-0.1.5.
    #[test]
    fn reserved_flags_and_our_own_range_are_refused() {
        for fine in ["ff12::1", "ff02::1", "ff1e:a01b::1", "ff3f:401b::1", "ff12:a01c::1"] {
            assert!(may_be_asked_for(gid(fine)), "{fine}");
        }
        for refused in ["fe80::1", "ff22::1", "fff2::1", "ff12:a01b::1", "::"] {
            assert!(!may_be_asked_for(gid(refused)), "{refused}");
        }
    }

    #[test]
    fn the_broadcast_group_has_the_same_partition_and_scope() {
        let broadcast = gid("ff15:401b:8001::ffff:ffff");
        assert_eq!(broadcast_of(gid("ff15:401b:8001::16")), Some(broadcast));
        assert_eq!(broadcast_of(gid("ff15:601b:8001::1")), Some(broadcast));
        assert_eq!(broadcast_of(broadcast), None);
        assert_eq!(broadcast_of(gid("ff12:a01b:8001::1")), None);
        // Different flags do not name a second broadcast group.
        assert_eq!(broadcast_of(gid("ff35:401b:8001::ffff:ffff")), Some(broadcast));
    }

    #[test]
    fn a_made_mgid_is_not_taken_and_says_where_it_is_from() {
        let taken = [gid("ff12:a01b:fe80::7"), gid("ff12:a01b:fe80::8")];
        let made = |scope| make(scope, 0xFE80 << 48, 7, |mgid| taken.contains(&mgid));
        assert_eq!(made(None), Some(gid("ff12:a01b:fe80::9")));
        assert_eq!(made(Some(5)), Some(gid("ff15:a01b:fe80::7")));
        assert_eq!(make(None, 0, 0, |_| true), None);
    }
}
