//! The performance management agent (IBA 16.1): PortCounters, PortCountersExtended, ClassPortInfo.
//!
//! Both attributes show the same counters, so clearing one clears the other. A Set() writes the
//! given values to the selected counters.

use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::ClassPortInfoRepr;
use ib_mad::wire::field::part_mut;
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, Status};
use ib_mad::wire::perf::{
    ALL_PORT_SELECT, ALL_PORTS, CLASS_VERSION, DATA, IS_EXTENDED_WIDTH_SUPPORTED, PORT_COUNTERS,
    PORT_COUNTERS_EXTENDED, PortCounters, PortCountersExtended,
};

use crate::subnet::{PortIndex, Subnet, Traffic};

/// The attribute, in a request and its response.
type Data = [u8; DATA.end - DATA.start];

/// RespTimeValue: about 1 s, as devices report.
const RESP_TIME: u8 = 18;

/// Answers a performance request that reached its node by `port`; false if it is not one.
pub(crate) fn receive(subnet: &mut Subnet, port: PortIndex, mad: &mut [u8; MAD_LEN]) -> bool {
    let header = MadHeader::of(mad);
    let (method, attribute) = (header.method(), header.attribute_id());
    let version_known = header.base_version() == 1 && header.class_version() == CLASS_VERSION;
    if method.is_response() || matches!(method, Method::SEND | Method::TRAP) {
        return false;
    }
    let data = part_mut::<{ DATA.start }, _, _>(mad);
    let result = match (version_known, method, attribute) {
        (false, ..) => Err(Status::BAD_VERSION),
        (_, Method::GET, AttributeId::CLASS_PORT_INFO) => class_port_info(data),
        (_, Method::GET | Method::SET, PORT_COUNTERS) => {
            port_counters(subnet, port, method == Method::SET, data)
        }
        (_, Method::GET | Method::SET, PORT_COUNTERS_EXTENDED) => {
            port_counters_extended(subnet, port, method == Method::SET, data)
        }
        (_, Method::GET | Method::SET, _) => Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE),
        _ => Err(Status::UNSUPPORTED_METHOD),
    };
    MadHeader::of_mut(mad)
        .set_method(method.response())
        .set_status(result.err().unwrap_or(Status::OK));
    true
}

fn class_port_info(data: &mut Data) -> Result<(), Status> {
    data.fill(0);
    let info = ClassPortInfoRepr {
        base_version: 1,
        class_version: CLASS_VERSION,
        capability_mask: ALL_PORT_SELECT | IS_EXTENDED_WIDTH_SUPPORTED,
        capability_mask2: 0,
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
    };
    data[..72].copy_from_slice(&info.to_bytes());
    Ok(())
}

/// The ports that a request selects.
fn selected(subnet: &Subnet, port: PortIndex, select: u8) -> Result<Vec<PortIndex>, Status> {
    let node = subnet[port].node;
    if select == ALL_PORTS.0 {
        return Ok(subnet.ports_of(node).collect());
    }
    subnet.port(node, select).map(|port| vec![port]).ok_or(Status::INVALID_FIELD)
}

fn sum(subnet: &Subnet, ports: &[PortIndex]) -> Traffic {
    let mut sum = Traffic::default();
    for &port in ports {
        sum.add(&subnet[port].traffic);
    }
    sum
}

fn port_counters(
    subnet: &mut Subnet,
    port: PortIndex,
    set: bool,
    data: &mut Data,
) -> Result<(), Status> {
    let asked = PortCounters::of(data);
    let (select, mask) = (asked.port_select(), asked.counter_select());
    let ports = selected(subnet, port, select.0)?;
    if set {
        let has = |bit: u16| mask & 1 << bit != 0;
        for &port in &ports {
            let traffic = &mut subnet[port].traffic;
            let mut write16 = |bit, counter: fn(&mut Traffic) -> &mut u16, value| {
                if has(bit) {
                    *counter(traffic) = value;
                }
            };
            write16(3, |at| &mut at.rcv_errors, asked.port_rcv_errors());
            write16(5, |at| &mut at.rcv_switch_relay_errors, asked.port_rcv_switch_relay_errors());
            write16(6, |at| &mut at.xmit_discards, asked.port_xmit_discards());
            if has(2) {
                traffic.link_downed = asked.link_downed_counter();
            }
            let mut write = |bit, counter: fn(&mut Traffic) -> &mut u64, value: u32| {
                if has(bit) {
                    *counter(traffic) = value.into();
                }
            };
            write(12, |at| &mut at.xmit_words, asked.port_xmit_data());
            write(13, |at| &mut at.rcv_words, asked.port_rcv_data());
            write(14, |at| &mut at.xmit_packets, asked.port_xmit_pkts());
            write(15, |at| &mut at.rcv_packets, asked.port_rcv_pkts());
        }
    }
    let traffic = sum(subnet, &ports);
    let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    data.fill(0);
    PortCounters::of_mut(data)
        .set_port_select(select)
        .set_counter_select(mask)
        .set_link_downed_counter(traffic.link_downed)
        .set_port_rcv_errors(traffic.rcv_errors)
        .set_port_rcv_switch_relay_errors(traffic.rcv_switch_relay_errors)
        .set_port_xmit_discards(traffic.xmit_discards)
        .set_port_xmit_data(short(traffic.xmit_words))
        .set_port_rcv_data(short(traffic.rcv_words))
        .set_port_xmit_pkts(short(traffic.xmit_packets))
        .set_port_rcv_pkts(short(traffic.rcv_packets));
    Ok(())
}

fn port_counters_extended(
    subnet: &mut Subnet,
    port: PortIndex,
    set: bool,
    data: &mut Data,
) -> Result<(), Status> {
    let asked = PortCountersExtended::of(data);
    let (select, mask) = (asked.port_select(), asked.counter_select());
    let ports = selected(subnet, port, select.0)?;
    if set {
        for &port in &ports {
            let traffic = &mut subnet[port].traffic;
            let counters = [
                (&mut traffic.xmit_words, asked.port_xmit_data()),
                (&mut traffic.rcv_words, asked.port_rcv_data()),
                (&mut traffic.xmit_packets, asked.port_xmit_pkts()),
                (&mut traffic.rcv_packets, asked.port_rcv_pkts()),
            ];
            for (bit, (counter, value)) in counters.into_iter().enumerate() {
                if mask & 1 << bit != 0 {
                    *counter = value;
                }
            }
        }
    }
    let traffic = sum(subnet, &ports);
    data.fill(0);
    PortCountersExtended::of_mut(data)
        .set_port_select(select)
        .set_counter_select(mask)
        .set_port_xmit_data(traffic.xmit_words)
        .set_port_rcv_data(traffic.rcv_words)
        .set_port_xmit_pkts(traffic.xmit_packets)
        .set_port_rcv_pkts(traffic.rcv_packets)
        .set_port_unicast_xmit_pkts(traffic.xmit_packets)
        .set_port_unicast_rcv_pkts(traffic.rcv_packets);
    Ok(())
}
