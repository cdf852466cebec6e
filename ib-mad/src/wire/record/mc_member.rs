//! MCMemberRecord: a multicast group, or a port's membership in it.

use super::Selector;
use super::components;
use crate::types::{Gid, Lid, Lifetime, Mtu, PKey, Rate, Sl};
use crate::wire::field::layout;
use crate::wire::mad::open_code;
use std::fmt;
use std::ops::BitOr;

layout! {
    /// MCMemberRecord, 52 bytes (IBA 15.2.5.17).
    ///
    /// ```text
    ///  0 MGID (16)         16 PortGID (16)     32 Q_Key (4)
    /// 36 MLID (2)          38 MtuSelector:2 Mtu:6              39 TClass (1)
    /// 40 P_Key (2)         42 RateSelector:2 Rate:6            43 PktLifeSelector:2 PktLife:6
    /// 44 SL:4 FlowLabel:20 HopLimit:8
    /// 48 Scope:4 JoinState:4   49 ProxyJoin:1   50 reserved (2)
    /// ```
    pub struct McMemberRecord(McMemberRecordRepr): "MCMemberRecord", 52 bytes {
        /// GID of the group.
        mgid: Gid [0 .. 128],
        /// GID of the member; zero in the record of a group.
        port_gid: Gid [128 .. 256],
        /// Q_Key of the group.
        qkey: u32 [256 .. 288],
        /// LID of the group.
        mlid: Lid [288 .. 304],
        /// How the MTU is compared.
        mtu_selector: Selector [304 .. 306],
        /// MTU of the group.
        mtu: Mtu [306 .. 312],
        /// Traffic class of the GRH.
        tclass: u8 [312 .. 320],
        /// P_Key of the group.
        pkey: PKey [320 .. 336],
        /// How the rate is compared.
        rate_selector: Selector [336 .. 338],
        /// Rate of the group.
        rate: Rate [338 .. 344],
        /// How the lifetime is compared.
        packet_life_time_selector: Selector [344 .. 346],
        /// Maximum packet lifetime to any member.
        packet_life_time: Lifetime [346 .. 352],
        /// Service level.
        sl: Sl [352 .. 356],
        /// Flow label of the GRH.
        flow_label: u32 [356 .. 376],
        /// Hop limit of the GRH.
        hop_limit: u8 [376 .. 384],
        /// Scope of the MGID; in a request, the scope of an MGID that the SA assigns.
        scope: u8 [384 .. 388],
        /// Kinds of membership: those joined; in a Delete, those to leave.
        join_state: JoinState [388 .. 392],
        /// Set if another port of the same partition joined on behalf of PortGID.
        proxy_join: bool [392 .. 393],
    }
}

components! {
    MGID = 0, "MGID";
    PORT_GID = 1, "PortGID";
    QKEY = 2, "Q_Key";
    MLID = 3, "MLID";
    MTU_SELECTOR = 4, "MtuSelector";
    MTU = 5, "Mtu";
    TCLASS = 6, "TClass";
    PKEY = 7, "P_Key";
    RATE_SELECTOR = 8, "RateSelector";
    RATE = 9, "Rate";
    PACKET_LIFE_TIME_SELECTOR = 10, "PacketLifeTimeSelector";
    PACKET_LIFE_TIME = 11, "PacketLifeTime";
    SL = 12, "SL";
    FLOW_LABEL = 13, "FlowLabel";
    HOP_LIMIT = 14, "HopLimit";
    SCOPE = 15, "Scope";
    JOIN_STATE = 16, "JoinState";
    PROXY_JOIN = 17, "ProxyJoin";
}

/// JoinState: kinds of membership of a port in a group, as a set of four bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinState(pub u8);

open_code!(JoinState, u8);

impl JoinState {
    /// FullMember: sends and receives; the group exists as long as it has a full member.
    pub const FULL_MEMBER: Self = Self(1);
    /// NonMember: sends and receives, without keeping the group alive.
    pub const NON_MEMBER: Self = Self(2);
    /// SendOnlyNonMember: sends only, without keeping the group alive.
    pub const SEND_ONLY_NON_MEMBER: Self = Self(4);
    /// SendOnlyFullMember: sends only, and keeps the group alive.
    pub const SEND_ONLY_FULL_MEMBER: Self = Self(8);

    /// Whether this set has every kind of `other`.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for JoinState {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for JoinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (state, name) in [
            (Self::FULL_MEMBER, "FullMember"),
            (Self::NON_MEMBER, "NonMember"),
            (Self::SEND_ONLY_NON_MEMBER, "SendOnlyNonMember"),
            (Self::SEND_ONLY_FULL_MEMBER, "SendOnlyFullMember"),
        ] {
            if self.contains(state) {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for JoinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinState({self})")
    }
}
