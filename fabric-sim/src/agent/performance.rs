//! The performance management agent (IBA 16.1), which shows the counters of ports.
//!
//! All attributes show the same counters, so clearing one in PortCounters clears it in
//! PortCountersExtended. A counter that exceeds the width of its field is shown as the field's
//! maximum. A Set() writes the given values to the selected counters.
//!
//! A port counts packets and multicast packets; unicast packets are their difference, and a Set()
//! does not write them.

use std::time::Instant;

use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::ClassPortInfoRepr;
use ib_mad::wire::field::part_mut;
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, Status};
use ib_mad::wire::perf;

use crate::subnet::PortCounter::{self, *};
use crate::subnet::{PortIndex, Subnet};

/// The attribute, in a request and its response.
type Data = [u8; perf::DATA.end - perf::DATA.start];

/// RespTimeValue: about 1 s, as devices report.
const RESP_TIME: u8 = 18;

/// Which counters a performance management agent offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CounterSupport {
    /// PortCounters only.
    Plain,
    /// PortCountersExtended without error counters, details and counters of FEC, too.
    Extended,
    /// All, with error counters of 64 bits.
    #[default]
    Additional,
}

/// A field with a counter: its first bit, its width, and the bit of the attribute's selection that
/// makes a Set() write it.
struct Place {
    counter: PortCounter,
    bit: usize,
    width: usize,
    select: u32,
}

const fn place(counter: PortCounter, bit: usize, width: usize, select: u32) -> Place {
    Place { counter, bit, width, select }
}

/// Bit 16 of a selection is the first of CounterSelect2.
const PORT_COUNTERS: [Place; 18] = [
    place(SymbolErrorCounter, 32, 16, 0),
    place(LinkErrorRecoveryCounter, 48, 8, 1),
    place(LinkDownedCounter, 56, 8, 2),
    place(PortRcvErrors, 64, 16, 3),
    place(PortRcvRemotePhysicalErrors, 80, 16, 4),
    place(PortRcvSwitchRelayErrors, 96, 16, 5),
    place(PortXmitDiscards, 112, 16, 6),
    place(PortXmitConstraintErrors, 128, 8, 7),
    place(PortRcvConstraintErrors, 136, 8, 8),
    place(LocalLinkIntegrityErrors, 152, 4, 9),
    place(ExcessiveBufferOverrunErrors, 156, 4, 10),
    place(Vl15Dropped, 176, 16, 11),
    place(PortXmitData, 192, 32, 12),
    place(PortRcvData, 224, 32, 13),
    place(PortXmitPkts, 256, 32, 14),
    place(PortRcvPkts, 288, 32, 15),
    place(PortXmitWait, 320, 32, 16),
    place(Qp1Dropped, 160, 16, 17),
];

const EXTENDED: [Place; 6] = [
    place(PortXmitData, 64, 64, 0),
    place(PortRcvData, 128, 64, 1),
    place(PortXmitPkts, 192, 64, 2),
    place(PortRcvPkts, 256, 64, 3),
    place(PortMulticastXmitPkts, 448, 64, 6),
    place(PortMulticastRcvPkts, 512, 64, 7),
];

/// Positions of the unicast counters, with those that they are the difference of.
const UNICAST: [(usize, PortCounter, PortCounter); 2] =
    [(320, PortXmitPkts, PortMulticastXmitPkts), (384, PortRcvPkts, PortMulticastRcvPkts)];

const ADDITIONAL: [Place; 14] = [
    place(SymbolErrorCounter, 576, 64, 16),
    place(LinkErrorRecoveryCounter, 640, 64, 17),
    place(LinkDownedCounter, 704, 64, 18),
    place(PortRcvErrors, 768, 64, 19),
    place(PortRcvRemotePhysicalErrors, 832, 64, 20),
    place(PortRcvSwitchRelayErrors, 896, 64, 21),
    place(PortXmitDiscards, 960, 64, 22),
    place(PortXmitConstraintErrors, 1024, 64, 23),
    place(PortRcvConstraintErrors, 1088, 64, 24),
    place(LocalLinkIntegrityErrors, 1152, 64, 25),
    place(ExcessiveBufferOverrunErrors, 1216, 64, 26),
    place(Vl15Dropped, 1280, 64, 27),
    place(PortXmitWait, 1344, 64, 28),
    place(Qp1Dropped, 1408, 64, 29),
];

const RCV_ERROR_DETAILS: [Place; 6] = [
    place(PortLocalPhysicalErrors, 32, 16, 0),
    place(PortMalformedPacketErrors, 48, 16, 1),
    place(PortBufferOverrunErrors, 64, 16, 2),
    place(PortDlidMappingErrors, 80, 16, 3),
    place(PortVlMappingErrors, 96, 16, 4),
    place(PortLoopingErrors, 112, 16, 5),
];

const XMIT_DISCARD_DETAILS: [Place; 4] = [
    place(PortInactiveDiscards, 32, 16, 0),
    place(PortNeighborMtuDiscards, 48, 16, 1),
    place(PortSwLifetimeLimitDiscards, 64, 16, 2),
    place(PortSwHoqLifetimeLimitDiscards, 80, 16, 3),
];

/// Of PortExtendedSpeedsCounters, those of RS-FEC. Any bit of the selection selects all.
const EXTENDED_SPEEDS: [Place; 3] = [
    place(PortFecCorrectableBlockCtr, 1120, 32, 0),
    place(PortFecUncorrectableBlockCtr, 1152, 32, 0),
    place(PortFecCorrectedSymbolCtr, 1184, 32, 0),
];

/// Answers a performance request that reached its node by `port`; false if it is not one.
pub(crate) fn receive(
    subnet: &mut Subnet,
    now: Instant,
    port: PortIndex,
    mad: &mut [u8; MAD_LEN],
) -> bool {
    let header = MadHeader::of(mad);
    let (method, attribute) = (header.method(), header.attribute_id());
    let version_known = header.base_version() == 1 && header.class_version() == perf::CLASS_VERSION;
    if method.is_response() || matches!(method, Method::SEND | Method::TRAP) {
        return false;
    }
    let data = part_mut::<{ perf::DATA.start }, _, _>(mad);
    let result = match (version_known, method, attribute) {
        (false, ..) => Err(Status::BAD_VERSION),
        (_, Method::GET, AttributeId::CLASS_PORT_INFO) => class_port_info(subnet, data),
        (_, Method::GET | Method::SET, attribute) => {
            counters(subnet, now, port, attribute, method == Method::SET, data)
        }
        _ => Err(Status::UNSUPPORTED_METHOD),
    };
    MadHeader::of_mut(mad)
        .set_method(method.response())
        .set_status(result.err().unwrap_or(Status::OK));
    true
}

fn class_port_info(subnet: &Subnet, data: &mut Data) -> Result<(), Status> {
    data.fill(0);
    let support = subnet.counter_support;
    let mut capability_mask =
        perf::ALL_PORT_SELECT | perf::IS_PORT_XMIT_WAIT_SUPPORTED | perf::IS_QP1_DROPPED_SUPPORTED;
    if support >= CounterSupport::Extended {
        capability_mask |= perf::IS_EXTENDED_WIDTH_SUPPORTED;
    }
    let capability_mask2 = match support {
        CounterSupport::Additional => perf::IS_ADDITIONAL_PORT_COUNTERS_EXTENDED_SUPPORTED,
        CounterSupport::Plain | CounterSupport::Extended => 0,
    };
    let info = class_port_info_of(perf::CLASS_VERSION, capability_mask, capability_mask2);
    data[..72].copy_from_slice(&info.to_bytes());
    Ok(())
}

/// ClassPortInfo of an agent that does not redirect and sends no traps.
pub(super) fn class_port_info_of(
    class_version: u8,
    capability_mask: u16,
    capability_mask2: u32,
) -> ClassPortInfoRepr {
    ClassPortInfoRepr {
        base_version: 1,
        class_version,
        capability_mask,
        capability_mask2,
        resp_time_value: RESP_TIME,
        redirect_gid: Gid::ZERO,
        redirect_tc: 0,
        redirect_sl: Sl::default(),
        redirect_fl: 0,
        redirect_lid: Lid::NONE,
        redirect_pkey: PKey(0),
        redirect_qp: Qpn(0),
        redirect_qkey: 0,
        trap_gid: Gid::ZERO,
        trap_tc: 0,
        trap_sl: Sl::default(),
        trap_fl: 0,
        trap_lid: Lid::NONE,
        trap_pkey: PKey(0),
        trap_hl: 0,
        trap_qp: Qpn(0),
        trap_qkey: 0,
    }
}

/// The ports that a request selects.
fn selected(subnet: &Subnet, port: PortIndex, select: u8) -> Result<Vec<PortIndex>, Status> {
    let node = subnet[port].node;
    if select == perf::ALL_PORTS.0 {
        return Ok(subnet.ports_of(node).collect());
    }
    subnet.port(node, select).map(|port| vec![port]).ok_or(Status::INVALID_FIELD)
}

/// Reads or writes the counters of an attribute.
fn counters(
    subnet: &mut Subnet,
    now: Instant,
    port: PortIndex,
    attribute: AttributeId,
    set: bool,
    data: &mut Data,
) -> Result<(), Status> {
    let support = subnet.counter_support;
    let mut select = u32::from(u16::from_be_bytes([data[2], data[3]]));
    // Bytes of the request that the response repeats: port and selections.
    let (tables, kept): (&[&[Place]], &[usize]) = match attribute {
        perf::PORT_COUNTERS => {
            select |= u32::from(data[18]) << 16;
            (&[&PORT_COUNTERS], &[1, 2, 3, 18])
        }
        perf::PORT_COUNTERS_EXTENDED if support >= CounterSupport::Extended => {
            select |= (u32::from(data[6]) << 8 | u32::from(data[7])) << 16;
            let tables: &[&[Place]] = match support {
                CounterSupport::Additional => &[&EXTENDED, &ADDITIONAL],
                CounterSupport::Plain | CounterSupport::Extended => &[&EXTENDED],
            };
            (tables, &[1, 2, 3, 4, 5, 6, 7])
        }
        perf::PORT_RCV_ERROR_DETAILS if support >= CounterSupport::Extended => {
            (&[&RCV_ERROR_DETAILS], &[1, 2, 3])
        }
        perf::PORT_XMIT_DISCARD_DETAILS if support >= CounterSupport::Extended => {
            (&[&XMIT_DISCARD_DETAILS], &[1, 2, 3])
        }
        perf::PORT_EXTENDED_SPEEDS_COUNTERS if support >= CounterSupport::Extended => {
            select = u32::from(data[8..16] != [0; 8]);
            (&[&EXTENDED_SPEEDS], &[1, 8, 9, 10, 11, 12, 13, 14, 15])
        }
        _ => return Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE),
    };
    let ports = selected(subnet, port, data[1])?;
    for &port in &ports {
        subnet.accrue(now, port);
    }
    let mut answer: Data = [0; _];
    for &byte in kept {
        answer[byte] = data[byte];
    }
    for place in tables.iter().copied().flatten() {
        if set && select & 1 << place.select != 0 {
            let value = read(data, place.bit, place.width);
            ports.iter().for_each(|&port| subnet.set_counter(port, place.counter, value));
        }
        write(&mut answer, place.bit, place.width, sum(subnet, &ports, place.counter));
    }
    if attribute == perf::PORT_COUNTERS_EXTENDED {
        for (bit, all, multicast) in UNICAST {
            let value = sum(subnet, &ports, all).saturating_sub(sum(subnet, &ports, multicast));
            write(&mut answer, bit, 64, value);
        }
    }
    *data = answer;
    Ok(())
}

fn sum(subnet: &Subnet, ports: &[PortIndex], counter: PortCounter) -> u64 {
    ports.iter().fold(0, |sum, &port| sum.saturating_add(subnet.counter(port, counter)))
}

/// Reads `width` bits from `bit` on: whole bytes, or half a byte.
fn read(data: &Data, bit: usize, width: usize) -> u64 {
    let bytes = &data[bit / 8..(bit + width).div_ceil(8)];
    let value = bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
    if width == 4 { value >> (4 - bit % 8) & 0xF } else { value }
}

/// Writes `value`, or the field's maximum if it is greater.
fn write(data: &mut Data, bit: usize, width: usize, value: u64) {
    let value = value.min(u64::MAX >> (64 - width));
    if width == 4 {
        data[bit / 8] |= (value as u8) << (4 - bit % 8);
        return;
    }
    data[bit / 8..(bit + width) / 8].copy_from_slice(&value.to_be_bytes()[8 - width / 8..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::field::Layout;

    fn snake(name: &str) -> String {
        name.chars().filter(|letter| *letter != '_').collect::<String>().to_ascii_lowercase()
    }

    /// IBA 16.1.3.5, 16.1.4.2, 16.1.4.3, 16.1.4.11, 16.1.4.12.
    #[test]
    fn counters_stand_where_their_layouts_have_them() {
        let tables: [(Layout, &[Place]); 6] = [
            (perf::PortCounters::LAYOUT, &PORT_COUNTERS),
            (perf::PortCountersExtended::LAYOUT, &EXTENDED),
            (perf::PortCountersExtended::LAYOUT, &ADDITIONAL),
            (perf::PortRcvErrorDetails::LAYOUT, &RCV_ERROR_DETAILS),
            (perf::PortXmitDiscardDetails::LAYOUT, &XMIT_DISCARD_DETAILS),
            (perf::PortExtendedSpeedsCounters::LAYOUT, &EXTENDED_SPEEDS),
        ];
        for (layout, table) in tables {
            for place in table {
                let name = snake(place.counter.name());
                let is_same = |found: &str| {
                    snake(found) == name || snake(found) == name.replace("ctr", "counter")
                };
                let field = layout.fields.iter().find(|field| is_same(field.name));
                let field = field.unwrap_or_else(|| panic!("{}.{name}", layout.name));
                assert_eq!((place.bit, place.width), (field.bit, field.width), "{name}");
            }
        }
    }

    #[test]
    fn a_counter_saturates_at_the_width_of_its_field() {
        let mut data: Data = [0; _];
        write(&mut data, 152, 4, 99);
        write(&mut data, 156, 4, 3);
        write(&mut data, 32, 16, 0x1_0000);
        assert_eq!((data[19], &data[4..6]), (0xF3, &[0xFF, 0xFF][..]));
        assert_eq!((read(&data, 152, 4), read(&data, 156, 4)), (15, 3));
    }
}
