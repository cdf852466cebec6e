//! The counters of a port, and what they are called.

/// Width of a counter's field where a saturating one is read.
const W4: u32 = 0xF;
const W8: u32 = 0xFF;
const W16: u32 = 0xFFFF;
const W32: u32 = u32::MAX;

macro_rules! counters {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident, $opensm:literal, $exporter:literal, $max:ident;
    )*) => {
        /// A counter of a port.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Counter {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Counter {
            /// All counters. Those that may be read with 64 bits are first.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in OpenSM's dump files; one in the same style for counters that OpenSM does
            /// not read.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $opensm,)* }
            }

            /// The name in metrics, between the prefix `infiniband_switch_port_` or
            /// `infiniband_hca_port_` and the suffix `_total`; data is in bytes.
            pub const fn metric(self) -> &'static str {
                match self { $(Self::$name => $exporter,)* }
            }

            /// The greatest value of its field in the attributes whose counters saturate.
            pub const fn max(self) -> u32 {
                match self { $(Self::$name => $max,)* }
            }
        }
    };
}

counters! {
    /// Words of 4 bytes sent.
    XmitData, "xmit_data", "transmit_data_bytes", W32;
    /// Words of 4 bytes received.
    RcvData, "rcv_data", "receive_data_bytes", W32;
    /// Packets sent.
    XmitPkts, "xmit_pkts", "transmit_packets", W32;
    /// Packets received.
    RcvPkts, "rcv_pkts", "receive_packets", W32;
    /// Unicast packets sent.
    UnicastXmitPkts, "unicast_xmit_pkts", "unicast_transmit_packets", W32;
    /// Unicast packets received.
    UnicastRcvPkts, "unicast_rcv_pkts", "unicast_receive_packets", W32;
    /// Multicast packets sent.
    MulticastXmitPkts, "multicast_xmit_pkts", "multicast_transmit_packets", W32;
    /// Multicast packets received.
    MulticastRcvPkts, "multicast_rcv_pkts", "multicast_receive_packets", W32;
    /// Errors on physical lanes.
    SymbolError, "symbol_err_cnt", "symbol_error", W16;
    /// Successful link error recoveries.
    LinkErrorRecovery, "link_err_recover", "link_error_recovery", W8;
    /// Times the link went down.
    LinkDowned, "link_downed", "link_downed", W8;
    /// Packets received with errors.
    RcvErrors, "rcv_err", "receive_errors", W16;
    /// Packets received that the sender marked bad.
    RcvRemotePhysicalErrors, "rcv_rem_phys_err", "receive_remote_physical_errors", W16;
    /// Packets received that the switch could not forward.
    RcvSwitchRelayErrors, "rcv_switch_relay_err", "receive_switch_relay_errors", W16;
    /// Packets dropped because the port could not send them.
    XmitDiscards, "xmit_discards", "transmit_discards", W16;
    /// Packets not sent because of partition or raw filters.
    XmitConstraintErrors, "xmit_constraint_err", "transmit_constraint_errors", W8;
    /// Packets dropped on arrival because of partition or raw filters.
    RcvConstraintErrors, "rcv_constraint_err", "receive_constraint_errors", W8;
    /// Times that the threshold of local physical errors was exceeded.
    LocalLinkIntegrityErrors, "link_int_err", "local_link_integrity_errors", W4;
    /// Times that the threshold of buffer overruns was exceeded.
    ExcessiveBufferOverrunErrors, "buf_overrun_err", "excessive_buffer_overrun_errors", W4;
    /// Packets on VL15 dropped.
    Vl15Dropped, "vl15_dropped", "vl15_dropped", W16;
    /// Ticks during which a packet waited for credits.
    XmitWait, "xmit_wait", "transmit_wait", W32;
    /// Packets to QP1 dropped.
    Qp1Dropped, "qp1_dropped", "qp1_dropped", W16;
    /// Of RcvErrors: CRC and other errors of the physical layer.
    LocalPhysicalErrors, "local_physical_err", "local_physical_errors", W16;
    /// Of RcvErrors: errors in header fields.
    MalformedPacketErrors, "malformed_packet_err", "malformed_packet_errors", W16;
    /// Of RcvErrors: no buffer was free.
    BufferOverrunErrors, "buffer_overrun_err", "buffer_overrun_errors", W16;
    /// Of RcvErrors: the forwarding table maps the DLID to no port.
    DlidMappingErrors, "dlid_mapping_err", "dli_mapping_errors", W16;
    /// Of RcvErrors: the SL maps to no VL.
    VlMappingErrors, "vl_mapping_err", "vl_mapping_errors", W16;
    /// Of RcvErrors: the output port is the input port.
    LoopingErrors, "looping_err", "looping_errors", W16;
    /// Of XmitDiscards: the port is not active.
    InactiveDiscards, "inactive_discards", "inactive_discards", W16;
    /// Of XmitDiscards: the packet is longer than the neighbour's MTU.
    NeighborMtuDiscards, "neighbor_mtu_discards", "neighbor_mtu_discards", W16;
    /// Of XmitDiscards: the packet's lifetime in the switch ended.
    SwLifetimeLimitDiscards, "sw_lifetime_limit_discards", "switch_lifetime_limit_discards", W16;
    /// Of XmitDiscards: the packet's lifetime at the head of a queue ended.
    SwHoqLifetimeLimitDiscards, "sw_hoq_lifetime_limit_discards",
        "switch_hoq_lifetime_limit_discards", W16;
    /// Blocks that forward error correction corrected.
    FecCorrectedBlocks, "fec_corrected_blocks", "fec_corrected_blocks", W32;
    /// Blocks beyond correction.
    FecUncorrectableBlocks, "fec_uncorrectable_blocks", "fec_uncorrectable_blocks", W32;
    /// Symbols that forward error correction corrected.
    FecCorrectedSymbols, "fec_corrected_symbols", "fec_corrected_symbols", W32;
}

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = Self::ALL.len();
    /// Number of counters that may be read with 64 bits: the first ones.
    pub const LONG_COUNT: usize = Self::Qp1Dropped as usize + 1;
    /// Data and packets.
    pub const DATA: Span = Span(Self::XmitData as usize, Self::MulticastRcvPkts as usize);
    /// The counters that OpenSM lists as errors, XmitWait among them, in its order.
    pub const OPENSM_ERRORS: Span = Span(Self::SymbolError as usize, Self::XmitWait as usize);

    /// Whether growth of it means that a cable, a port or a configuration is faulty. Forwarding
    /// errors (which multicast causes), drops of management packets, waiting, causes of other
    /// counters, and what FEC corrected are not counted as such.
    pub const fn is_fault(self) -> bool {
        use Counter::*;
        matches!(
            self,
            SymbolError
                | LinkErrorRecovery
                | LinkDowned
                | RcvErrors
                | RcvRemotePhysicalErrors
                | XmitDiscards
                | XmitConstraintErrors
                | RcvConstraintErrors
                | LocalLinkIntegrityErrors
                | ExcessiveBufferOverrunErrors
                | FecUncorrectableBlocks
        )
    }

    /// Whether it is a count of words of 4 bytes.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::XmitData | Self::RcvData)
    }
}

/// Counters in a row.
#[derive(Clone, Copy, Debug)]
pub struct Span(usize, usize);

impl Span {
    /// The counters.
    pub fn all(self) -> &'static [Counter] {
        &Counter::ALL[self.0..=self.1]
    }

    /// Whether `counter` is one of them.
    pub const fn contains(self, counter: Counter) -> bool {
        self.0 <= counter as usize && counter as usize <= self.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_numbered_in_order() {
        for (number, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(number, *counter as usize);
        }
        assert_eq!((Counter::DATA.all().len(), Counter::OPENSM_ERRORS.all().len()), (8, 13));
        assert!(Counter::OPENSM_ERRORS.contains(Counter::XmitWait));
    }
}
