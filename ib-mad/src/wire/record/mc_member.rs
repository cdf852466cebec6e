//! MCMemberRecord: a multicast group, or a port's membership of it.

use super::Selector;
use super::components;
use crate::types::{Gid, Lid, Lifetime, Mtu, PKey, Rate, Sl};
use crate::wire::field::layout;
use crate::wire::mad::open_code;
use std::fmt;
use std::ops::BitOr;

layout! {
    /// MCMemberRecord, 52 bytes (15.2.5.17).
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
        /// GID of the member; zero where the record stands for the group.
        port_gid: Gid [128 .. 256],
        /// Q_Key of the group.
        qkey: u32 [256 .. 288],
        /// LID of the group.
        mlid: Lid [288 .. 304],
        /// How the MTU is meant.
        mtu_selector: Selector [304 .. 306],
        /// MTU of the group.
        mtu: Mtu [306 .. 312],
        /// Traffic class of the GRH.
        tclass: u8 [312 .. 320],
        /// P_Key of the group.
        pkey: PKey [320 .. 336],
        /// How the rate is meant.
        rate_selector: Selector [336 .. 338],
        /// Rate of the group.
        rate: Rate [338 .. 344],
        /// How the lifetime is meant.
        packet_life_time_selector: Selector [344 .. 346],
        /// Longest time a packet takes to any member.
        packet_life_time: Lifetime [346 .. 352],
        /// Service level.
        sl: Sl [352 .. 356],
        /// Flow label of the GRH.
        flow_label: u32 [356 .. 376],
        /// Hop limit of the GRH.
        hop_limit: u8 [376 .. 384],
        /// Scope of the MGID; asked for where the SA makes one.
        scope: u8 [384 .. 388],
        /// What the port joined as; what it leaves in a Delete.
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

/// In which ways a port belongs to a group; a set, four bits wide.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinState(pub u8);

open_code!(JoinState, u8);

impl JoinState {
    /// Sends and receives; the group lives as long as it has one of these.
    pub const FULL_MEMBER: Self = Self(1);
    /// Sends and receives without keeping the group alive.
    pub const NON_MEMBER: Self = Self(2);
    /// Sends only, without keeping the group alive.
    pub const SEND_ONLY_NON_MEMBER: Self = Self(4);
    /// Sends only, and keeps the group alive.
    pub const SEND_ONLY_FULL_MEMBER: Self = Self(8);

    /// Whether every way of `other` is among these.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether this is no membership at all.
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
