//! The subnet management agent of every node (IBA 14.2): checks an SMP and answers it.
//!
//! Each attribute or family of attributes has a module. Agents see only the state of the subnet, no
//! time, routes or clients; effects beyond their node are queued in [`Subnet::effects`].

pub(crate) mod congestion;
pub(crate) mod link;
pub(crate) mod mkey;
pub(crate) mod node;
pub(crate) mod performance;
pub(crate) mod port_info;
pub(crate) mod port_tables;
mod switch;
pub(crate) mod trap;
pub(crate) mod virtual_port;

use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::field::part_mut;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{self, CLASS_VERSION, SMP_DATA_LEN, Smp};

use crate::counters::DropReason;
use crate::subnet::{NodeIndex, PortIndex, Subnet};

/// Result of an SMP at an agent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Answered; the response has replaced the request in the buffer.
    Answered,
    /// For the subnet manager or a tool behind this port.
    ForHost,
    /// A TrapRepress() of the trap with this transaction id.
    Repressed(u64),
    /// Dropped without a response.
    Dropped(DropReason),
}

/// A Get() or Set() that passed the checks common to all attributes.
struct Query {
    /// The node addressed.
    node: NodeIndex,
    /// The port by which the request arrived.
    port: PortIndex,
    set: bool,
    modifier: u32,
    /// The requester showed the M_Key, or none is set.
    knows_key: bool,
}

/// Attribute data: the values to set, and the values of the response.
type Data = [u8; SMP_DATA_LEN];

const INVALID: Status = Status::INVALID_FIELD;
const UNSUPPORTED: Status = Status::UNSUPPORTED_METHOD_ATTRIBUTE;

/// Handles an SMP that arrived at its node by `port`, sent from `slid`.
pub(crate) fn receive(
    subnet: &mut Subnet,
    port: PortIndex,
    slid: Lid,
    mad: &mut [u8; MAD_LEN],
) -> Verdict {
    let request = Smp::of(mad);
    let (method, attribute) = (request.method(), request.attribute_id());
    if method.is_response() {
        return Verdict::ForHost;
    }
    if request.base_version() != 1 || request.class_version() != CLASS_VERSION {
        return refuse(mad, method, Status::BAD_VERSION);
    }
    match method {
        Method::TRAP => return Verdict::ForHost,
        Method::GET | Method::SET | Method::TRAP_REPRESS => {}
        _ => return refuse(mad, method, Status::UNSUPPORTED_METHOD),
    }
    if attribute == AttributeId::SM_INFO {
        return Verdict::ForHost;
    }
    let Some(knows_key) = mkey::check(subnet, port, slid, &request) else {
        return Verdict::Dropped(DropReason::BadMKey);
    };
    if method == Method::TRAP_REPRESS {
        return Verdict::Repressed(request.tid());
    }
    let query = Query {
        node: subnet[port].node,
        port,
        set: method == Method::SET,
        modifier: request.attribute_modifier(),
        knows_key,
    };
    let data: &mut Data = part_mut::<{ smp::DATA.start }, _, _>(mad);
    let status = match answer(subnet, &query, attribute, data) {
        Ok(()) => Status::OK,
        Err(status) => status,
    };
    smp::answer(mad, status);
    Verdict::Answered
}

/// Responds to an SMP that the agent leaves to the host, on a node without a host.
pub(crate) fn refuse_for_host(mad: &mut [u8; MAD_LEN]) -> bool {
    let request = Smp::of(mad);
    let asks = matches!(request.method(), Method::GET | Method::SET);
    if asks {
        smp::answer(mad, UNSUPPORTED);
    }
    asks
}

fn refuse(mad: &mut [u8; MAD_LEN], method: Method, status: Status) -> Verdict {
    // No response is sent to these, even if they are invalid.
    if matches!(method, Method::SEND | Method::TRAP | Method::TRAP_REPRESS) {
        return Verdict::Dropped(DropReason::Malformed);
    }
    smp::answer(mad, status);
    Verdict::Answered
}

fn answer(
    subnet: &mut Subnet,
    query: &Query,
    attribute: AttributeId,
    data: &mut Data,
) -> Result<(), Status> {
    match attribute {
        AttributeId::NODE_INFO => node::node_info(subnet, query, data),
        AttributeId::NODE_DESCRIPTION => node::node_description(subnet, query, data),
        AttributeId::LED_INFO => node::led_info(subnet, query, data),
        AttributeId::VENDOR_DIAG => node::vendor_diag(query, data),
        AttributeId::PORT_INFO => port_info::port_info(subnet, query, data),
        AttributeId::MLNX_EXT_PORT_INFO => port_info::mlnx_ext_port_info(subnet, query, data),
        AttributeId::GUID_INFO => port_tables::guid_info(subnet, query, data),
        AttributeId::PKEY_TABLE => port_tables::pkey_table(subnet, query, data),
        AttributeId::SL_TO_VL_MAPPING_TABLE => port_tables::sl_to_vl(subnet, query, data),
        AttributeId::VL_ARBITRATION_TABLE => port_tables::vl_arbitration(subnet, query, data),
        AttributeId::SWITCH_INFO => switch::switch_info(subnet, query, data),
        AttributeId::LINEAR_FORWARDING_TABLE => switch::linear_forwarding(subnet, query, data),
        AttributeId::MULTICAST_FORWARDING_TABLE => {
            switch::multicast_forwarding(subnet, query, data)
        }
        AttributeId::VIRTUALIZATION_INFO => virtual_port::virtualization_info(subnet, query, data),
        AttributeId::VPORT_INFO => virtual_port::vport_info(subnet, query, data),
        AttributeId::VNODE_INFO => virtual_port::vnode_info(subnet, query, data),
        AttributeId::VPORT_STATE => virtual_port::vport_state(subnet, query, data),
        AttributeId::VNODE_DESCRIPTION => virtual_port::vnode_description(subnet, query, data),
        AttributeId::VPORT_GUID_INFO => virtual_port::vport_guid_info(subnet, query, data),
        AttributeId::VPKEY_TABLE => virtual_port::vpkey_table(subnet, query, data),
        // RandomForwardingTable: all switches here are linear. Notice: nodes send traps and keep no
        // queue.
        _ => Err(UNSUPPORTED),
    }
}

impl Query {
    /// The port that a modifier selects on a switch; on other nodes the port that was addressed.
    fn port_of_switch(&self, subnet: &Subnet, number: u32) -> Result<PortIndex, Status> {
        if !subnet[self.node].is_switch() {
            return Ok(self.port);
        }
        let number = u8::try_from(number).map_err(|_| INVALID)?;
        subnet.port(self.node, number).ok_or(INVALID)
    }

    fn only_get(&self) -> Result<(), Status> {
        if self.set { Err(UNSUPPORTED) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
