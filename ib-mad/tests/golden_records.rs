//! SA records compared with the golden file: every column of every response, every component mask
//! and every field that a request set.
//!
//! Columns are read by the layouts' bit positions; the checked forms must encode to the bytes they
//! were decoded from.

mod golden;

use golden::{hex_number, mads, queries, unhex};
use ib_mad::wire::attribute::{
    InformInfo, NodeDescription, NodeInfo, PortInfo, SmInfo, SwitchInfo,
};
use ib_mad::wire::field::{DecodeError, FieldInfo, Layout};
use ib_mad::wire::mad::{AttributeId, MadHeader, Status};
use ib_mad::wire::record::*;
use ib_mad::wire::sa::{ComponentMask, HEADER_LEN, SaMad};
use serde_json::Value;

/// A column of the golden file, the corresponding field, and the components that select it.
///
/// `inner` is a field of the attribute that the record embeds there, or one of its elements as
/// `[stride, offset, width, number]` in bits.
struct Column {
    golden: String,
    field: &'static str,
    inner: Inner,
    components: Vec<&'static str>,
}

enum Inner {
    Whole,
    Field(Layout, &'static str),
    Element { bit: usize, width: usize },
}

struct Record {
    name: &'static str,
    round_trip: fn(&[u8]) -> Result<Vec<u8>, DecodeError>,
    columns: Vec<Column>,
}

/// Decodes the checked form and encodes it over zeros.
macro_rules! round_trip {
    ($view:ident, $repr:ident) => {
        |bytes| Ok($repr::parse(&$view::new(bytes)?)?.to_bytes().to_vec())
    };
}

/// `golden = field, "components"` for whole fields; `field.inner` for those of an attribute.
macro_rules! columns {
    ($(
        $golden:ident = $field:ident $(. $layout:ident . $inner:ident)? $(, $component:literal)*;
    )*) => {
        vec![$( Column {
            golden: stringify!($golden).to_owned(),
            field: stringify!($field),
            inner: columns!(@inner $($layout $inner)?),
            components: vec![$($component),*],
        } ),*]
    };
    (@inner $layout:ident $inner:ident) => {
        Inner::Field($layout::LAYOUT, stringify!($inner))
    };
    (@inner) => { Inner::Whole };
}

/// Columns `prefix0`, `prefix1`, … for the elements of an array.
fn elements(
    prefix: &str,
    field: &'static str,
    (stride, offset, width): (usize, usize, usize),
    components: &[&'static str],
    count: usize,
) -> Vec<Column> {
    (0..count)
        .map(|number| Column {
            golden: format!("{prefix}{number}"),
            field,
            inner: Inner::Element { bit: number * stride + offset, width },
            components: components.get(number).copied().into_iter().collect(),
        })
        .collect()
}

fn records() -> Vec<Record> {
    vec![
        Record {
            name: "NodeRecord",
            round_trip: round_trip!(NodeRecord, NodeRecordRepr),
            columns: columns! {
                lid = lid, "LID";
                base_version = node_info.NodeInfo.base_version, "BaseVersion";
                class_version = node_info.NodeInfo.class_version, "ClassVersion";
                node_type = node_info.NodeInfo.node_type, "NodeType";
                num_ports = node_info.NodeInfo.num_ports, "NumPorts";
                sys_image_guid = node_info.NodeInfo.system_image_guid, "SystemImageGUID";
                node_guid = node_info.NodeInfo.node_guid, "NodeGUID";
                port_guid = node_info.NodeInfo.port_guid, "PortGUID";
                partition_cap = node_info.NodeInfo.partition_cap, "PartitionCap";
                device_id = node_info.NodeInfo.device_id, "DeviceID";
                revision = node_info.NodeInfo.revision, "Revision";
                local_port_num = node_info.NodeInfo.local_port_num, "LocalPortNum";
                vendor_id = node_info.NodeInfo.vendor_id, "VendorID";
                node_desc = node_description.NodeDescription.node_string, "NodeDescription";
            },
        },
        Record {
            name: "PortInfoRecord",
            round_trip: round_trip!(PortInfoRecord, PortInfoRecordRepr),
            columns: columns! {
                lid = lid, "LID";
                port_num = port_num, "PortNum";
                options = options, "Options";
                m_key = port_info.PortInfo.m_key, "M_Key";
                gid_prefix = port_info.PortInfo.gid_prefix, "GidPrefix";
                base_lid = port_info.PortInfo.base_lid, "BaseLID";
                master_sm_lid = port_info.PortInfo.master_sm_lid, "MasterSMLID";
                cap_mask = port_info.PortInfo.capability_mask, "CapabilityMask";
                diag_code = port_info.PortInfo.diag_code, "DiagCode";
                m_key_lease = port_info.PortInfo.m_key_lease_period, "M_KeyLeasePeriod";
                local_port_num = port_info.PortInfo.local_port_num, "LocalPortNum";
                link_width_enabled = port_info.PortInfo.link_width_enabled, "LinkWidthEnabled";
                link_width_supported = port_info.PortInfo.link_width_supported,
                    "LinkWidthSupported";
                link_width_active = port_info.PortInfo.link_width_active, "LinkWidthActive";
                link_speed_supported = port_info.PortInfo.link_speed_supported,
                    "LinkSpeedSupported";
                port_state = port_info.PortInfo.port_state, "PortState";
                phys_state = port_info.PortInfo.port_physical_state, "PortPhysicalState";
                link_down_default = port_info.PortInfo.link_down_default_state,
                    "LinkDownDefaultState";
                m_key_protect = port_info.PortInfo.m_key_protect_bits, "M_KeyProtectBits";
                lmc = port_info.PortInfo.lmc, "LMC";
                link_speed_active = port_info.PortInfo.link_speed_active, "LinkSpeedActive";
                link_speed_enabled = port_info.PortInfo.link_speed_enabled, "LinkSpeedEnabled";
                neighbor_mtu = port_info.PortInfo.neighbor_mtu, "NeighborMTU";
                master_sm_sl = port_info.PortInfo.master_sm_sl, "MasterSMSL";
                vl_cap = port_info.PortInfo.vl_cap, "VLCap";
                init_type = port_info.PortInfo.init_type, "InitType";
                vl_high_limit = port_info.PortInfo.vl_high_limit, "VLHighLimit";
                vl_arb_high_cap = port_info.PortInfo.vl_arbitration_high_cap,
                    "VLArbitrationHighCap";
                vl_arb_low_cap = port_info.PortInfo.vl_arbitration_low_cap, "VLArbitrationLowCap";
                init_type_reply = port_info.PortInfo.init_type_reply, "InitTypeReply";
                mtu_cap = port_info.PortInfo.mtu_cap, "MTUCap";
                vl_stall_count = port_info.PortInfo.vl_stall_count, "VLStallCount";
                hoq_life = port_info.PortInfo.hoq_life, "HOQLife";
                operational_vls = port_info.PortInfo.operational_vls, "OperationalVLs";
                part_enforce_in = port_info.PortInfo.partition_enforcement_inbound,
                    "PartitionEnforcementInbound";
                part_enforce_out = port_info.PortInfo.partition_enforcement_outbound,
                    "PartitionEnforcementOutbound";
                filter_raw_in = port_info.PortInfo.filter_raw_inbound, "FilterRawInbound";
                filter_raw_out = port_info.PortInfo.filter_raw_outbound, "FilterRawOutbound";
                m_key_violations = port_info.PortInfo.m_key_violations, "M_KeyViolations";
                p_key_violations = port_info.PortInfo.p_key_violations, "P_KeyViolations";
                q_key_violations = port_info.PortInfo.q_key_violations, "Q_KeyViolations";
                guid_cap = port_info.PortInfo.guid_cap, "GUIDCap";
                client_reregister = port_info.PortInfo.client_reregister, "ClientReregister";
                subnet_timeout = port_info.PortInfo.subnet_time_out, "SubnetTimeOut";
                resp_time = port_info.PortInfo.resp_time_value, "RespTimeValue";
                local_phys_errors = port_info.PortInfo.local_phy_errors, "LocalPhyErrors";
                overrun_errors = port_info.PortInfo.overrun_errors, "OverrunErrors";
                max_credit_hint = port_info.PortInfo.max_credit_hint, "MaxCreditHint";
                link_round_trip = port_info.PortInfo.link_round_trip_latency,
                    "LinkRoundTripLatency";
                cap_mask2 = port_info.PortInfo.capability_mask2, "CapabilityMask2";
                link_speed_ext_active = port_info.PortInfo.link_speed_ext_active,
                    "LinkSpeedExtActive";
                link_speed_ext_supported = port_info.PortInfo.link_speed_ext_supported,
                    "LinkSpeedExtSupported";
                link_speed_ext_enabled = port_info.PortInfo.link_speed_ext_enabled,
                    "LinkSpeedExtEnabled";
            },
        },
        Record {
            name: "SLtoVLMappingTableRecord",
            round_trip: round_trip!(SlToVlMappingTableRecord, SlToVlMappingTableRecordRepr),
            columns: join(
                columns! {
                    lid = lid, "LID";
                    in_port = input_port_num, "InputPortNum";
                    out_port = output_port_num, "OutputPortNum";
                },
                elements("sl_vl", "sl_to_vl_mapping_table", (4, 0, 4), &[], 16),
            ),
        },
        Record {
            name: "SwitchInfoRecord",
            round_trip: round_trip!(SwitchInfoRecord, SwitchInfoRecordRepr),
            columns: columns! {
                lid = lid, "LID";
                linear_cap = switch_info.SwitchInfo.linear_fdb_cap, "LinearFDBCap";
                random_cap = switch_info.SwitchInfo.random_fdb_cap, "RandomFDBCap";
                mcast_cap = switch_info.SwitchInfo.multicast_fdb_cap, "MulticastFDBCap";
                linear_top = switch_info.SwitchInfo.linear_fdb_top, "LinearFDBTop";
                default_port = switch_info.SwitchInfo.default_port, "DefaultPort";
                default_mcast_primary = switch_info.SwitchInfo.default_multicast_primary_port,
                    "DefaultMulticastPrimaryPort";
                default_mcast_not_primary =
                    switch_info.SwitchInfo.default_multicast_not_primary_port,
                    "DefaultMulticastNotPrimaryPort";
                life_time = switch_info.SwitchInfo.life_time_value, "LifeTimeValue";
                port_state_change = switch_info.SwitchInfo.port_state_change, "PortStateChange";
                sl2vl_optimised =
                    switch_info.SwitchInfo.optimized_sl_to_vl_mapping_programming,
                    "OptimizedSLtoVLMappingProgramming";
                lids_per_port = switch_info.SwitchInfo.lids_per_port, "LIDsPerPort";
                enforce_cap = switch_info.SwitchInfo.partition_enforcement_cap,
                    "PartitionEnforcementCap";
                inbound_enforce = switch_info.SwitchInfo.inbound_enforcement_cap,
                    "InboundEnforcementCap";
                outbound_enforce = switch_info.SwitchInfo.outbound_enforcement_cap,
                    "OutboundEnforcementCap";
                filter_raw_in = switch_info.SwitchInfo.filter_raw_inbound_cap,
                    "FilterRawInboundCap";
                filter_raw_out = switch_info.SwitchInfo.filter_raw_outbound_cap,
                    "FilterRawOutboundCap";
                enhanced_port0 = switch_info.SwitchInfo.enhanced_port0, "EnhancedPort0";
                mcast_top = switch_info.SwitchInfo.multicast_fdb_top;
            },
        },
        Record {
            name: "LinearForwardingTableRecord",
            round_trip: round_trip!(LinearForwardingTableRecord, LinearForwardingTableRecordRepr),
            columns: join(
                columns! { lid = lid, "LID"; block = block_num, "BlockNum"; },
                elements("port", "linear_forwarding_table", (8, 0, 8), &[], 64),
            ),
        },
        Record {
            name: "MulticastForwardingTableRecord",
            round_trip: round_trip!(
                MulticastForwardingTableRecord,
                MulticastForwardingTableRecordRepr
            ),
            columns: join(
                columns! {
                    lid = lid, "LID";
                    position = position, "Position";
                    block = block_num, "BlockNum";
                },
                elements("mask", "multicast_forwarding_table", (16, 0, 16), &[], 32),
            ),
        },
        Record {
            name: "SMInfoRecord",
            round_trip: round_trip!(SmInfoRecord, SmInfoRecordRepr),
            columns: columns! {
                lid = lid, "LID";
                guid = sm_info.SmInfo.guid, "GUID";
                sm_key = sm_info.SmInfo.sm_key, "SM_Key";
                act_count = sm_info.SmInfo.act_count, "ActCount";
                priority = sm_info.SmInfo.priority, "Priority";
                sm_state = sm_info.SmInfo.sm_state, "SMState";
            },
        },
        Record {
            name: "LinkRecord",
            round_trip: round_trip!(LinkRecord, LinkRecordRepr),
            columns: columns! {
                from_lid = from_lid, "FromLID";
                from_port = from_port, "FromPort";
                to_port = to_port, "ToPort";
                to_lid = to_lid, "ToLID";
            },
        },
        Record {
            name: "GUIDInfoRecord",
            round_trip: round_trip!(GuidInfoRecord, GuidInfoRecordRepr),
            columns: join(
                columns! { lid = lid, "LID"; block = block_num, "BlockNum"; },
                elements(
                    "guid",
                    "guid_info",
                    (64, 0, 64),
                    &[
                        "GUID 0", "GUID 1", "GUID 2", "GUID 3", "GUID 4", "GUID 5", "GUID 6",
                        "GUID 7",
                    ],
                    8,
                ),
            ),
        },
        Record {
            name: "ServiceRecord",
            round_trip: round_trip!(ServiceRecord, ServiceRecordRepr),
            columns: service_columns(),
        },
        Record {
            name: "P_KeyTableRecord",
            round_trip: round_trip!(PKeyTableRecord, PKeyTableRecordRepr),
            columns: join(
                columns! {
                    lid = lid, "LID";
                    block = block_num, "BlockNum";
                    port = port_num, "PortNum";
                },
                elements("pkey", "pkey_table", (16, 0, 16), &[], 32),
            ),
        },
        Record {
            name: "PathRecord",
            round_trip: round_trip!(PathRecord, PathRecordRepr),
            columns: columns! {
                service_id = service_id, "ServiceID8MSB", "ServiceID56LSB";
                dgid = dgid, "DGID";
                sgid = sgid, "SGID";
                dlid = dlid, "DLID";
                slid = slid, "SLID";
                raw_traffic = raw_traffic, "RawTraffic";
                flow_label = flow_label, "FlowLabel";
                hop_limit = hop_limit, "HopLimit";
                tclass = tclass, "TClass";
                reversible = reversible, "Reversible";
                numb_path = numb_path, "NumbPath";
                pkey = pkey, "P_Key";
                qos_class = qos_class, "QoSClass";
                sl = sl, "SL";
                mtu_sel = mtu_selector, "MtuSelector";
                mtu = mtu, "Mtu";
                rate_sel = rate_selector, "RateSelector";
                rate = rate, "Rate";
                life_sel = packet_life_time_selector, "PacketLifeTimeSelector";
                life = packet_life_time, "PacketLifeTime";
                preference = preference, "Preference";
            },
        },
        Record {
            name: "VLArbitrationTableRecord",
            round_trip: round_trip!(VlArbitrationTableRecord, VlArbitrationTableRecordRepr),
            columns: join(
                columns! {
                    lid = lid, "LID";
                    port = output_port_num, "OutputPortNum";
                    block = block_num, "BlockNum";
                },
                join(
                    elements("vl", "vl_arbitration_table", (16, 4, 4), &[], 32),
                    elements("weight", "vl_arbitration_table", (16, 8, 8), &[], 32),
                ),
            ),
        },
        Record {
            name: "MCMemberRecord",
            round_trip: round_trip!(McMemberRecord, McMemberRecordRepr),
            columns: columns! {
                mgid = mgid, "MGID";
                port_gid = port_gid, "PortGID";
                qkey = qkey, "Q_Key";
                mlid = mlid, "MLID";
                mtu_sel = mtu_selector, "MtuSelector";
                mtu = mtu, "Mtu";
                tclass = tclass, "TClass";
                pkey = pkey, "P_Key";
                rate_sel = rate_selector, "RateSelector";
                rate = rate, "Rate";
                life_sel = packet_life_time_selector, "PacketLifeTimeSelector";
                life = packet_life_time, "PacketLifeTime";
                sl = sl, "SL";
                flow_label = flow_label, "FlowLabel";
                hop_limit = hop_limit, "HopLimit";
                scope = scope, "Scope";
                join_state = join_state, "JoinState";
                proxy_join = proxy_join, "ProxyJoin";
            },
        },
        Record {
            name: "MultiPathRecord",
            round_trip: round_trip!(MultiPathRecord, MultiPathRecordRepr),
            columns: columns! {
                raw_traffic = raw_traffic, "RawTraffic";
                flow_label = flow_label, "FlowLabel";
                hop_limit = hop_limit, "HopLimit";
                tclass = tclass, "TClass";
                reversible = reversible, "Reversible";
                numb_path = numb_path, "NumbPath";
                pkey = pkey, "P_Key";
                qos_class = qos_class, "QoSClass";
                sl = sl, "SL";
                mtu_sel = mtu_selector, "MtuSelector";
                mtu = mtu, "Mtu";
                rate_sel = rate_selector, "RateSelector";
                rate = rate, "Rate";
                life_sel = packet_life_time_selector, "PacketLifeTimeSelector";
                life = packet_life_time, "PacketLifeTime";
                service_id_msb = service_id_8_msb, "ServiceID8MSB";
                independence = independence_selector, "IndependenceSelector";
                sgid_count = sgid_count, "SGIDCount";
                dgid_count = dgid_count, "DGIDCount";
                service_id_lsb = service_id_56_lsb, "ServiceID56LSB";
            },
        },
        Record {
            name: "InformInfoRecord",
            round_trip: round_trip!(InformInfoRecord, InformInfoRecordRepr),
            columns: columns! {
                subscriber_gid = subscriber_gid, "SubscriberGID";
                enum = enumeration, "Enum";
                gid = inform_info.InformInfo.gid, "GID";
                lid_begin = inform_info.InformInfo.lid_range_begin, "LIDRangeBegin";
                lid_end = inform_info.InformInfo.lid_range_end, "LIDRangeEnd";
                is_generic = inform_info.InformInfo.is_generic, "IsGeneric";
                subscribe = inform_info.InformInfo.subscribe, "Subscribe";
                trap_type = inform_info.InformInfo.inform_type, "Type";
                trap_num = inform_info.InformInfo.trap_number, "TrapNumber";
                qpn = inform_info.InformInfo.qpn, "QPN";
                resp_time = inform_info.InformInfo.resp_time_value, "RespTimeValue";
                producer_type = inform_info.InformInfo.producer_type, "ProducerType";
            },
        },
    ]
}

fn service_columns() -> Vec<Column> {
    let data = |prefix, field, width, first: usize| {
        let count = 128 / width;
        let component = |number: usize| service::component::ALL[first + number].0;
        let components: Vec<_> = (0..count).map(component).collect();
        elements(prefix, field, (width, 0, width), &components, count)
    };
    let mut columns = columns! {
        service_id = service_id, "ServiceID";
        service_gid = service_gid, "ServiceGID";
        pkey = service_pkey, "ServiceP_Key";
        lease = service_lease, "ServiceLease";
        service_key = service_key, "ServiceKey";
        name = service_name, "ServiceName";
    };
    columns.extend(data("data8_", "service_data8", 8, 6));
    columns.extend(data("data16_", "service_data16", 16, 22));
    columns.extend(data("data32_", "service_data32", 32, 30));
    columns.extend(data("data64_", "service_data64", 64, 34));
    columns
}

fn join(mut columns: Vec<Column>, more: Vec<Column>) -> Vec<Column> {
    columns.extend(more);
    columns
}

fn id_of(name: &str) -> AttributeId {
    let mut ids = (0..=0xFF).map(AttributeId);
    ids.find(|&id| layout_of(id).is_some_and(|layout| layout.name == name)).expect("a record")
}

fn field_of(layout: &Layout, name: &str) -> &'static FieldInfo {
    let found = layout.fields.iter().find(|field| field.name == name);
    found.unwrap_or_else(|| panic!("{} has no field {name}", layout.name))
}

impl Column {
    /// First bit and width within the record.
    fn bits(&self, record: &Layout) -> (usize, usize) {
        let outer = field_of(record, self.field);
        match &self.inner {
            Inner::Whole => (outer.bit, outer.width),
            Inner::Element { bit, width } => (outer.bit + bit, *width),
            Inner::Field(layout, inner) => {
                let inner = field_of(layout, inner);
                assert!(inner.bit + inner.width <= outer.width, "{}", self.golden);
                (outer.bit + inner.bit, inner.width)
            }
        }
    }

    fn check(&self, record: &Layout, bytes: &[u8], expected: &Value, id: &Value) {
        let (bit, width) = self.bits(record);
        let found = match expected {
            Value::String(_) if width > 128 => {
                let text = &bytes[bit / 8..(bit + width) / 8];
                let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
                Value::from(String::from_utf8_lossy(&text[..end]))
            }
            Value::String(_) => {
                Value::from(format!("{:0w$x}", bits(bytes, bit, width), w = width / 4))
            }
            _ => Value::from(bits(bytes, bit, width) as u64),
        };
        assert_eq!(&found, expected, "{id}: {}.{}", record.name, self.golden);
    }

    fn components(&self, all: &[Component]) -> ComponentMask {
        self.components.iter().fold(ComponentMask::NONE, |mask, name| {
            let found = all.iter().find(|component| component.0 == *name);
            mask | found.unwrap_or_else(|| panic!("no component {name}")).1
        })
    }
}

/// Reads bit by bit, without using the code under test.
fn bits(bytes: &[u8], bit: usize, width: usize) -> u128 {
    (bit..bit + width)
        .fold(0, |value, bit| value << 1 | u128::from(bytes[bit / 8] >> (7 - bit % 8) & 1))
}

/// The bits covered by some field of `layout`, as a mask over the record.
fn owned_bits(layout: &Layout) -> Vec<u8> {
    let mut owned = vec![0; layout.len];
    for field in layout.fields {
        for bit in field.bit..field.bit + field.width {
            owned[bit / 8] |= 0x80 >> (bit % 8);
        }
    }
    owned
}

#[test]
fn every_field_of_every_record_has_a_column() {
    for record in records() {
        let layout = layout_of(id_of(record.name)).unwrap();
        for field in layout.fields {
            let used = record.columns.iter().any(|column| column.field == field.name);
            assert!(used, "{}.{}", record.name, field.name);
        }
        let columns = record.columns.iter();
        let mut named: Vec<_> = columns.flat_map(|column| &column.components).collect();
        named.sort();
        let mut all: Vec<_> =
            components_of(id_of(record.name)).iter().map(|component| &component.0).collect();
        all.sort();
        assert_eq!(named, all, "{}", record.name);
    }
}

/// IBA 15.2.5.2, 15.2.5.3, 15.2.5.4, 15.2.5.5, 15.2.5.6, 15.2.5.8, 15.2.5.9, 15.2.5.10, 15.2.5.11,
/// 15.2.5.12, 15.2.5.13, 15.2.5.14, 15.2.5.16, 15.2.5.17, 15.2.5.18.
#[test]
fn answers_decode_to_the_golden_columns_and_encode_to_the_same_bits() {
    let records = records();
    let mut rows_checked = 0;
    for case in queries() {
        let table = &case["records"];
        let Some(record) = records.iter().find(|record| table["type"] == record.name) else {
            continue;
        };
        let layout = layout_of(id_of(record.name)).unwrap();
        let owned = owned_bits(&layout);
        let answer = unhex(&case["answer"]);
        let stride = attribute_offset(layout.len) as usize * 8;
        let names = table["columns"].as_array().unwrap();
        for (i, row) in table["rows"].as_array().unwrap().iter().enumerate() {
            assert_eq!(
                case["header"]["attr_offset"],
                attribute_offset(layout.len),
                "{}",
                case["id"]
            );
            let bytes = &answer[HEADER_LEN + i * stride..];
            for (name, value) in names.iter().zip(row.as_array().unwrap()) {
                let name = name.as_str().unwrap();
                let Some(column) = record.columns.iter().find(|column| column.golden == name)
                else {
                    assert!(name.starts_with("reserved"), "{}.{name}", record.name);
                    continue;
                };
                column.check(&layout, bytes, value, &case["id"]);
            }
            rows_checked += 1;
            if case["method"] == "Delete" {
                continue; // Echoes the request, whose unmasked fields hold anything.
            }
            let encoded = (record.round_trip)(bytes).unwrap();
            for (i, byte) in encoded.iter().enumerate() {
                assert_eq!(*byte, bytes[i] & owned[i], "{} byte {i}", case["id"]);
            }
        }
    }
    assert_eq!(rows_checked, 9_847);
}

#[test]
fn requests_have_the_golden_components_and_fields() {
    let records = records();
    let (mut requests, mut fields_checked) = (0, 0);
    for case in queries() {
        let Some(record) = records.iter().find(|record| case["record"] == record.name) else {
            continue;
        };
        let id = id_of(record.name);
        let mad = mads(&case["request"])[0];
        let view = SaMad::new(&mad);
        assert_eq!(view.header().attribute_id(), id, "{}", case["id"]);
        if let Some(method) = view.header().method().name() {
            assert_eq!(case["method"], method, "{}", case["id"]);
        }
        let mask = view.sa().component_mask();
        assert_eq!(Some(mask.0), hex_number(&case["mask"]), "{}", case["id"]);

        let selected = case["mask_fields"].as_array().unwrap();
        for column in &record.columns {
            let components = column.components(components_of(id));
            let expected = selected.iter().any(|name| *name == *column.golden);
            // For components unknown to OpenSM's header, the file says "unknown".
            if !components.is_empty() && !selected.iter().any(is_unknown) {
                let found = mask.intersects(components);
                assert_eq!(found, expected, "{}: {}", case["id"], column.golden);
            }
        }
        let layout = layout_of(id).unwrap();
        if case["id"].as_str().unwrap().contains("/cut-") {
            continue; // Truncated before the fields that it claims to set.
        }
        for (name, value) in case["fields"].as_object().unwrap() {
            let Some(column) = record.columns.iter().find(|column| column.golden == *name) else {
                assert!(name.starts_with("reserved"), "{}.{name}", record.name);
                continue;
            };
            column.check(&layout, view.data(), value, &case["id"]);
            fields_checked += 1;
        }
        requests += 1;
    }
    assert!(requests > 3_500 && fields_checked > 5_000, "{requests} {fields_checked}");
}

fn is_unknown(name: &Value) -> bool {
    name.as_str().is_some_and(|name| name.starts_with("unknown:"))
}

#[test]
fn statuses_of_answers_have_names() {
    let mut errors = 0;
    for case in queries().iter().filter(|case| case["outcome"] == "reply") {
        let mad: &[u8] = &unhex(&case["answer"]);
        let status = MadHeader::new(mad).unwrap().status();
        assert_eq!(case["header"]["status"], status.0, "{}", case["id"]);
        assert!(status.name().is_some(), "{}: {status}", case["id"]);
        errors += u32::from(status != Status::OK);
    }
    assert_eq!(errors, 896);
}
