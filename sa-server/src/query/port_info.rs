//! PortInfoRecord: one per visible port, external switch ports included.
//!
//! Clients that do not request the extended record may not know the extended link speeds. For them
//! an active extended speed is reported as QDR, as OpenSM does.

use std::ops::ControlFlow;

use ib_mad::wire::attribute::{LinkSpeeds, PortInfo};
use ib_mad::wire::record::PortInfoRecord;
use ib_mad::wire::record::port_info::{CAPABILITY_MASK_MATCH_ANY, component as port_info};
use ib_mad::wire::sa::{ComponentMask, attribute};

use super::{Family, Found, Query, Refusal};
use crate::tables::NodeRows;
use ib_mad::wire::pattern::{Component, Pattern};

pub(super) const FAMILY: Family =
    Family::readable(attribute::PORT_INFO_RECORD, PortInfoRecord::LEN, find);

const PORT_INFO: usize = 4;
const OPTION_EXTENDED: u8 = 0x80;

/// CapabilityMask and CapabilityMask2 are not here: how they compare depends on the request.
const COMPONENTS: &[Component] = &[
    Component::of(port_info::PORT_NUM, PortInfoRecord::FIELDS, "port_num", 0),
    of(port_info::M_KEY, "m_key"),
    of(port_info::GID_PREFIX, "gid_prefix"),
    of(port_info::BASE_LID, "base_lid"),
    of(port_info::MASTER_SM_LID, "master_sm_lid"),
    of(port_info::DIAG_CODE, "diag_code"),
    of(port_info::M_KEY_LEASE_PERIOD, "m_key_lease_period"),
    of(port_info::LOCAL_PORT_NUM, "local_port_num"),
    of(port_info::LINK_WIDTH_ENABLED, "link_width_enabled"),
    of(port_info::LINK_WIDTH_SUPPORTED, "link_width_supported"),
    of(port_info::LINK_WIDTH_ACTIVE, "link_width_active"),
    of(port_info::LINK_SPEED_SUPPORTED, "link_speed_supported"),
    of(port_info::PORT_STATE, "port_state"),
    of(port_info::PORT_PHYSICAL_STATE, "port_physical_state"),
    of(port_info::LINK_DOWN_DEFAULT_STATE, "link_down_default_state"),
    of(port_info::M_KEY_PROTECT_BITS, "m_key_protect_bits"),
    of(port_info::LMC, "lmc"),
    of(port_info::LINK_SPEED_ACTIVE, "link_speed_active"),
    of(port_info::LINK_SPEED_ENABLED, "link_speed_enabled"),
    of(port_info::NEIGHBOR_MTU, "neighbor_mtu"),
    of(port_info::MASTER_SM_SL, "master_sm_sl"),
    of(port_info::VL_CAP, "vl_cap"),
    of(port_info::INIT_TYPE, "init_type"),
    of(port_info::VL_HIGH_LIMIT, "vl_high_limit"),
    of(port_info::VL_ARBITRATION_HIGH_CAP, "vl_arbitration_high_cap"),
    of(port_info::VL_ARBITRATION_LOW_CAP, "vl_arbitration_low_cap"),
    of(port_info::INIT_TYPE_REPLY, "init_type_reply"),
    of(port_info::MTU_CAP, "mtu_cap"),
    of(port_info::VL_STALL_COUNT, "vl_stall_count"),
    of(port_info::HOQ_LIFE, "hoq_life"),
    of(port_info::OPERATIONAL_VLS, "operational_vls"),
    of(port_info::PARTITION_ENFORCEMENT_INBOUND, "partition_enforcement_inbound"),
    of(port_info::PARTITION_ENFORCEMENT_OUTBOUND, "partition_enforcement_outbound"),
    of(port_info::FILTER_RAW_INBOUND, "filter_raw_inbound"),
    of(port_info::FILTER_RAW_OUTBOUND, "filter_raw_outbound"),
    of(port_info::M_KEY_VIOLATIONS, "m_key_violations"),
    of(port_info::P_KEY_VIOLATIONS, "p_key_violations"),
    of(port_info::Q_KEY_VIOLATIONS, "q_key_violations"),
    of(port_info::GUID_CAP, "guid_cap"),
    of(port_info::CLIENT_REREGISTER, "client_reregister"),
    of(port_info::SUBNET_TIMEOUT, "subnet_time_out"),
    of(port_info::RESP_TIME_VALUE, "resp_time_value"),
    of(port_info::LOCAL_PHY_ERRORS, "local_phy_errors"),
    of(port_info::OVERRUN_ERRORS, "overrun_errors"),
    of(port_info::MAX_CREDIT_HINT, "max_credit_hint"),
    of(port_info::LINK_ROUND_TRIP_LATENCY, "link_round_trip_latency"),
];

/// Compared only where the node has extended link speeds; otherwise ignored.
const EXTENDED_COMPONENTS: &[Component] = &[
    of(port_info::LINK_SPEED_EXT_ACTIVE, "link_speed_ext_active"),
    of(port_info::LINK_SPEED_EXT_SUPPORTED, "link_speed_ext_supported"),
    of(port_info::LINK_SPEED_EXT_ENABLED, "link_speed_ext_enabled"),
];

const fn of(mask: ComponentMask, field: &str) -> Component {
    Component::of(mask, PortInfo::FIELDS, field, PORT_INFO)
}

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let sight = query.sight(query.requester()?);
    let (records, mask) = (&query.tables.records, query.mask);
    let request = PortInfoRecord::of(query.record);
    let info = PortInfo::at::<PORT_INFO, _>(query.record);
    let capabilities = Capabilities::new(query, &info);
    let extended_record =
        mask.contains(port_info::OPTIONS) && request.options() & OPTION_EXTENDED != 0;

    let mut pattern = Pattern::new(COMPONENTS, mask, query.record);
    let extended = Pattern::new(EXTENDED_COMPONENTS, mask, query.record);
    let mut nodes = records.all_nodes();
    if mask.contains(port_info::LID) {
        let Some(base) = query.tables.end_ports.by_lid(request.lid()) else { return Ok(()) };
        pattern.require_bytes(0, &base.lid.0.to_be_bytes());
        nodes = records.node_by_lid(request.lid()).map_or(&[], std::slice::from_ref);
    }
    let _ = nodes.iter().try_for_each(|node: &NodeRows| {
        found.step()?;
        for (record, owner) in records.ports.range(node.ports.clone()) {
            let selected = pattern.matches(record)
                && (!node.extended_speeds || extended.matches(record))
                && capabilities.matches(record)
                && sight.has(owner);
            if selected {
                let mut record: [u8; PortInfoRecord::LEN] =
                    *record.first_chunk().expect("a row has the padded length of its record");
                if mask.contains(port_info::OPTIONS) {
                    record[3] = request.options();
                }
                if !extended_record && node.extended_speeds {
                    show_as_qdr(&mut record);
                }
                found.push(&record)?;
            }
        }
        ControlFlow::Continue(())
    });
    Ok(())
}

/// How the request wants the two capability masks to compare.
struct Capabilities {
    /// Bits to compare, and their values.
    mask: (u32, u32),
    mask2: (u16, u16),
}

impl Capabilities {
    /// By AttributeModifier bit 31 the set bits of the request's masks must be set; otherwise the
    /// masks must be equal.
    fn new(query: &Query<'_>, info: &PortInfo<&[u8; PortInfo::LEN]>) -> Self {
        let set_bits_only = query.attribute_modifier & CAPABILITY_MASK_MATCH_ANY != 0;
        let (mask, mask2) = (info.capability_mask().0, info.capability_mask2().0);
        let care = if set_bits_only { mask } else { u32::MAX };
        let care2 = if set_bits_only { mask2 } else { u16::MAX };
        Self {
            mask: if query.mask.contains(port_info::CAPABILITY_MASK) {
                (care, mask)
            } else {
                (0, 0)
            },
            mask2: if query.mask.contains(port_info::CAPABILITY_MASK_2) {
                (care2, mask2)
            } else {
                (0, 0)
            },
        }
    }

    fn matches(&self, record: &[u8]) -> bool {
        let info = PortInfo::new(&record[PORT_INFO..]).expect("a row contains a PortInfoRecord");
        (info.capability_mask().0 ^ self.mask.1) & self.mask.0 == 0
            && (info.capability_mask2().0 ^ self.mask2.1) & self.mask2.0 == 0
    }
}

/// Adds QDR to the old speed fields of a link that runs at an extended speed.
fn show_as_qdr(record: &mut [u8; PortInfoRecord::LEN]) {
    let mut info = PortInfo::at_mut::<PORT_INFO, _>(record);
    if info.link_speed_ext_active().0 == 0 {
        return;
    }
    let with_qdr = |speeds: LinkSpeeds| LinkSpeeds(speeds.0 | LinkSpeeds::QDR.0);
    let supported = with_qdr(info.link_speed_supported());
    let active = with_qdr(info.link_speed_active());
    let enabled = with_qdr(info.link_speed_enabled());
    info.set_link_speed_supported(supported)
        .set_link_speed_active(active)
        .set_link_speed_enabled(enabled);
}
