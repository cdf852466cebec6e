//! The requests of a sweep, and what their answers contain.

use ib_mad::types::PortNum;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::ClassPortInfo;
use ib_mad::wire::field::part;
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ib_mad::wire::perf::{
    self, PortCounters, PortCountersExtended, PortExtendedSpeedsCounters, PortRcvErrorDetails,
    PortXmitDiscardDetails,
};

use super::Counter;
use super::agent::Support;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query {
    /// ClassPortInfo.
    Info,
    /// PortCounters of all ports.
    ShortSums,
    /// PortCountersExtended of all ports.
    LongSums,
    /// PortCountersExtended.
    Long,
    /// PortCounters.
    Short,
    /// PortRcvErrorDetails.
    RcvDetails,
    /// PortXmitDiscardDetails.
    XmitDetails,
    /// PortExtendedSpeedsCounters.
    Speeds,
    /// Clears the counters of PortCounters with these bits of CounterSelect, and from bit 16 on
    /// CounterSelect2.
    ClearShort(u32),
    /// Clears PortRcvErrorDetails.
    ClearRcvDetails,
    /// Clears PortXmitDiscardDetails.
    ClearXmitDetails,
    /// Clears PortExtendedSpeedsCounters.
    ClearSpeeds,
}

/// The counters of PortCounters by their bit of the selection, as in [`Query::ClearShort`].
pub(super) const SHORT: [Counter; 18] = [
    Counter::SymbolError,
    Counter::LinkErrorRecovery,
    Counter::LinkDowned,
    Counter::RcvErrors,
    Counter::RcvRemotePhysicalErrors,
    Counter::RcvSwitchRelayErrors,
    Counter::XmitDiscards,
    Counter::XmitConstraintErrors,
    Counter::RcvConstraintErrors,
    Counter::LocalLinkIntegrityErrors,
    Counter::ExcessiveBufferOverrunErrors,
    Counter::Vl15Dropped,
    Counter::XmitData,
    Counter::RcvData,
    Counter::XmitPkts,
    Counter::RcvPkts,
    Counter::XmitWait,
    Counter::Qp1Dropped,
];

pub(super) const RCV_DETAILS: [Counter; 6] = [
    Counter::LocalPhysicalErrors,
    Counter::MalformedPacketErrors,
    Counter::BufferOverrunErrors,
    Counter::DlidMappingErrors,
    Counter::VlMappingErrors,
    Counter::LoopingErrors,
];

pub(super) const XMIT_DETAILS: [Counter; 4] = [
    Counter::InactiveDiscards,
    Counter::NeighborMtuDiscards,
    Counter::SwLifetimeLimitDiscards,
    Counter::SwHoqLifetimeLimitDiscards,
];

pub(super) const SPEEDS: [Counter; 3] =
    [Counter::FecCorrectedBlocks, Counter::FecUncorrectableBlocks, Counter::FecCorrectedSymbols];

impl Query {
    pub(super) fn attribute(self) -> AttributeId {
        match self {
            Self::Info => AttributeId::CLASS_PORT_INFO,
            Self::ShortSums | Self::Short | Self::ClearShort(_) => perf::PORT_COUNTERS,
            Self::LongSums | Self::Long => perf::PORT_COUNTERS_EXTENDED,
            Self::RcvDetails | Self::ClearRcvDetails => perf::PORT_RCV_ERROR_DETAILS,
            Self::XmitDetails | Self::ClearXmitDetails => perf::PORT_XMIT_DISCARD_DETAILS,
            Self::Speeds | Self::ClearSpeeds => perf::PORT_EXTENDED_SPEEDS_COUNTERS,
        }
    }

    fn is_set(self) -> bool {
        matches!(
            self,
            Self::ClearShort(_)
                | Self::ClearRcvDetails
                | Self::ClearXmitDetails
                | Self::ClearSpeeds
        )
    }

    /// The request as a MAD.
    pub(super) fn write(self, tid: u32, port: PortNum, pm_key: u64) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        MadHeader::of_mut(&mut mad)
            .set_base_version(1)
            .set_mgmt_class(MgmtClass::PERF)
            .set_class_version(perf::CLASS_VERSION)
            .set_method(if self.is_set() { Method::SET } else { Method::GET })
            .set_tid(tid.into())
            .set_attribute_id(self.attribute());
        perf::set_pm_key(&mut mad, pm_key);
        const AT: usize = perf::DATA.start;
        match self {
            Self::Info => {}
            Self::ShortSums | Self::Short => {
                PortCounters::at_mut::<AT, _>(&mut mad)
                    .set_port_select(self.select(port))
                    .set_counter_select(0xFFFF)
                    .set_counter_select2(0xFF);
            }
            Self::ClearShort(mask) => {
                PortCounters::at_mut::<AT, _>(&mut mad)
                    .set_port_select(port)
                    .set_counter_select(mask as u16)
                    .set_counter_select2((mask >> 16) as u8);
            }
            Self::LongSums | Self::Long => {
                PortCountersExtended::at_mut::<AT, _>(&mut mad)
                    .set_port_select(self.select(port))
                    .set_counter_select(0xFF)
                    .set_counter_select2(0x3FFF);
            }
            Self::RcvDetails | Self::ClearRcvDetails => {
                PortRcvErrorDetails::at_mut::<AT, _>(&mut mad)
                    .set_port_select(port)
                    .set_counter_select(0xFFFF);
            }
            Self::XmitDetails | Self::ClearXmitDetails => {
                PortXmitDiscardDetails::at_mut::<AT, _>(&mut mad)
                    .set_port_select(port)
                    .set_counter_select(0xFFFF);
            }
            Self::Speeds | Self::ClearSpeeds => {
                PortExtendedSpeedsCounters::at_mut::<AT, _>(&mut mad)
                    .set_port_select(port)
                    .set_counter_select(u64::MAX);
            }
        }
        mad
    }

    fn select(self, port: PortNum) -> PortNum {
        match self {
            Self::ShortSums | Self::LongSums => perf::ALL_PORTS,
            _ => port,
        }
    }
}

/// ClassPortInfo in an answer.
pub(super) fn info(mad: &[u8; MAD_LEN]) -> ClassPortInfo<&[u8; 72]> {
    ClassPortInfo::of(part::<{ perf::DATA.start }, 72, _>(mad))
}

/// Calls `found` with the counters of an answer to `query`, of an agent with this support.
pub(super) fn read(
    query: Query,
    support: Support,
    mad: &[u8; MAD_LEN],
    mut found: impl FnMut(Counter, u64),
) {
    const AT: usize = perf::DATA.start;
    match query {
        Query::Short | Query::ShortSums => {
            let at = PortCounters::of(part::<AT, 44, _>(mad));
            let errors = [
                (Counter::SymbolError, at.symbol_error_counter()),
                (Counter::LinkErrorRecovery, at.link_error_recovery_counter().into()),
                (Counter::LinkDowned, at.link_downed_counter().into()),
                (Counter::RcvErrors, at.port_rcv_errors()),
                (Counter::RcvRemotePhysicalErrors, at.port_rcv_remote_physical_errors()),
                (Counter::RcvSwitchRelayErrors, at.port_rcv_switch_relay_errors()),
                (Counter::XmitDiscards, at.port_xmit_discards()),
                (Counter::XmitConstraintErrors, at.port_xmit_constraint_errors().into()),
                (Counter::RcvConstraintErrors, at.port_rcv_constraint_errors().into()),
                (Counter::LocalLinkIntegrityErrors, at.local_link_integrity_errors().into()),
                (
                    Counter::ExcessiveBufferOverrunErrors,
                    at.excessive_buffer_overrun_errors().into(),
                ),
                (Counter::Vl15Dropped, at.vl15_dropped()),
            ];
            errors.into_iter().for_each(|(counter, value)| found(counter, value.into()));
            if support.qp1_dropped {
                found(Counter::Qp1Dropped, at.qp1_dropped().into());
            }
            if support.xmit_wait {
                found(Counter::XmitWait, at.port_xmit_wait().into());
            }
            if !support.extended {
                found(Counter::XmitData, at.port_xmit_data().into());
                found(Counter::RcvData, at.port_rcv_data().into());
                found(Counter::XmitPkts, at.port_xmit_pkts().into());
                found(Counter::RcvPkts, at.port_rcv_pkts().into());
            }
        }
        Query::Long | Query::LongSums => {
            let at = PortCountersExtended::of(part::<AT, 184, _>(mad));
            found(Counter::XmitData, at.port_xmit_data());
            found(Counter::RcvData, at.port_rcv_data());
            found(Counter::XmitPkts, at.port_xmit_pkts());
            found(Counter::RcvPkts, at.port_rcv_pkts());
            if support.by_cast {
                found(Counter::UnicastXmitPkts, at.port_unicast_xmit_pkts());
                found(Counter::UnicastRcvPkts, at.port_unicast_rcv_pkts());
                found(Counter::MulticastXmitPkts, at.port_multicast_xmit_pkts());
                found(Counter::MulticastRcvPkts, at.port_multicast_rcv_pkts());
            }
            if support.additional {
                found(Counter::SymbolError, at.symbol_error_counter());
                found(Counter::LinkErrorRecovery, at.link_error_recovery_counter());
                found(Counter::LinkDowned, at.link_downed_counter());
                found(Counter::RcvErrors, at.port_rcv_errors());
                found(Counter::RcvRemotePhysicalErrors, at.port_rcv_remote_physical_errors());
                found(Counter::RcvSwitchRelayErrors, at.port_rcv_switch_relay_errors());
                found(Counter::XmitDiscards, at.port_xmit_discards());
                found(Counter::XmitConstraintErrors, at.port_xmit_constraint_errors());
                found(Counter::RcvConstraintErrors, at.port_rcv_constraint_errors());
                found(Counter::LocalLinkIntegrityErrors, at.local_link_integrity_errors());
                found(Counter::ExcessiveBufferOverrunErrors, at.excessive_buffer_overrun_errors());
                found(Counter::Vl15Dropped, at.vl15_dropped());
                found(Counter::XmitWait, at.port_xmit_wait());
                found(Counter::Qp1Dropped, at.qp1_dropped());
            }
        }
        Query::RcvDetails => {
            let at = PortRcvErrorDetails::of(part::<AT, 16, _>(mad));
            let values = [
                at.port_local_physical_errors(),
                at.port_malformed_packet_errors(),
                at.port_buffer_overrun_errors(),
                at.port_dlid_mapping_errors(),
                at.port_vl_mapping_errors(),
                at.port_looping_errors(),
            ];
            RCV_DETAILS.into_iter().zip(values).for_each(|(at, value)| found(at, value.into()));
        }
        Query::XmitDetails => {
            let at = PortXmitDiscardDetails::of(part::<AT, 12, _>(mad));
            let values = [
                at.port_inactive_discards(),
                at.port_neighbor_mtu_discards(),
                at.port_sw_lifetime_limit_discards(),
                at.port_sw_hoq_lifetime_limit_discards(),
            ];
            XMIT_DETAILS.into_iter().zip(values).for_each(|(at, value)| found(at, value.into()));
        }
        Query::Speeds => {
            let at = PortExtendedSpeedsCounters::of(part::<AT, 152, _>(mad));
            let mut blocks = [
                at.port_fec_correctable_block_counter(),
                at.port_fec_uncorrectable_block_counter(),
            ];
            let symbols = at.port_fec_corrected_symbol_counter();
            if blocks == [0, 0] && symbols == 0 {
                // Fire code FEC counts by lane. With RS-FEC, the lanes are 0 if all of these are.
                blocks =
                    [lanes(&at.fec_correctable_by_lane()), lanes(&at.fec_uncorrectable_by_lane())];
            }
            let values = [blocks[0], blocks[1], symbols];
            SPEEDS.into_iter().zip(values).for_each(|(at, value)| found(at, value.into()));
        }
        Query::Info
        | Query::ClearShort(_)
        | Query::ClearRcvDetails
        | Query::ClearXmitDetails
        | Query::ClearSpeeds => {}
    }
}

/// The sum of counters by lane, 32 bits each.
fn lanes(counters: &[u8; 48]) -> u32 {
    let (words, _) = counters.as_chunks::<4>();
    words.iter().fold(0, |sum, word| u32::saturating_add(sum, u32::from_be_bytes(*word)))
}
