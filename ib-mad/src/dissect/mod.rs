//! Formats one MAD as text for logs, captures and failing tests.
//!
//! Any bytes of any length are accepted; unknown parts are shown as hexadecimal digits. Keys are
//! printed like any other field, so treat the text as confidential. Programs should read MADs
//! through [`wire`](crate::wire); the wording here may change.

mod value;

use std::fmt::Write;

use crate::wire::attribute::{self, ClassPortInfo, InformInfo, Notice};
use crate::wire::field::Layout;
use crate::wire::mad::{AttributeId, MadHeader, MgmtClass};
use crate::wire::rmpp::{RmppFlags, RmppHeader, RmppType};
use crate::wire::sa::{self, ComponentMask, SA_HEADER_LEN, SaHeader, SaMad};
use crate::wire::smp::Smp;
use crate::wire::{MAD_LEN, congestion, perf, record, smp};

/// The MAD in one line: class, method, attribute, transaction id and status.
pub fn summary(bytes: &[u8]) -> String {
    let Ok(header) = MadHeader::new(bytes) else {
        return format!("{} bytes, too short for a MAD", bytes.len());
    };
    let class = header.mgmt_class();
    let mut text =
        format!("{class} {} {}", header.method(), attribute_name(class, header.attribute_id()));
    let mut add = |what: std::fmt::Arguments<'_>| {
        text.write_fmt(what).expect("writing to a String does not fail");
    };
    if header.attribute_modifier() != 0 {
        add(format_args!(" modifier {:#x}", header.attribute_modifier()));
    }
    add(format_args!(" tid {:#x}", header.tid()));
    let Some(mad) = bytes.first_chunk::<MAD_LEN>() else {
        add(format_args!(", cut after {} bytes", bytes.len()));
        return text;
    };
    let mut status = header.status();
    match class {
        MgmtClass::SUBN_DIRECTED_ROUTE => {
            let smp = Smp::of(mad);
            status = smp.status();
            let way = if smp.returning() { "back at" } else { "at" };
            let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
            add(format_args!(", {way} hop {pointer} of {count}"));
        }
        MgmtClass::SUBN_ADM => {
            let mad = SaMad::new(mad);
            let (mask, rmpp) = (mad.sa().component_mask(), mad.rmpp());
            if !mask.is_empty() {
                add(format_args!(" by {}", components(header.attribute_id(), mask)));
            }
            if rmpp.is_active() {
                let (kind, segment) = (rmpp.rmpp_type(), rmpp.segment());
                add(format_args!(", RMPP {kind} segment {segment}"));
            }
        }
        _ => {}
    }
    if status.0 != 0 || header.method().is_response() {
        add(format_args!(", status {status}"));
    }
    text
}

/// The MAD in full: its summary, then every field on a separate line.
pub fn dissect(bytes: &[u8]) -> String {
    let mut text = summary(bytes);
    text.push('\n');
    let Some(mad) = bytes.first_chunk::<MAD_LEN>() else {
        let rest = match MadHeader::new(bytes) {
            Ok(_) => fields(&mut text, 0, MadHeader::LAYOUT, bytes, &[]),
            Err(_) => bytes,
        };
        value::hexadecimal(&mut text, 0, rest);
        return text;
    };
    match MadHeader::of(mad).mgmt_class() {
        MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE => dissect_smp(&mut text, mad),
        MgmtClass::SUBN_ADM => dissect_sa(&mut text, mad),
        MgmtClass::PERF => dissect_perf(&mut text, mad),
        MgmtClass::CONGESTION => dissect_congestion(&mut text, mad),
        _ => {
            let data = fields(&mut text, 0, MadHeader::LAYOUT, mad, &[]);
            value::hexadecimal(&mut text, 0, data);
        }
    }
    text
}

fn dissect_smp(text: &mut String, mad: &[u8; MAD_LEN]) {
    let smp = Smp::of(mad);
    let left_out: &[&str] = match smp.is_directed() {
        true => &["data"],
        false => &[
            "data",
            "returning",
            "hop_pointer",
            "hop_count",
            "dr_slid",
            "dr_dlid",
            "initial_path",
            "return_path",
        ],
    };
    fields(text, 0, Smp::LAYOUT, mad, left_out);
    match attribute::layout_of(smp.attribute_id()) {
        Some(layout) => {
            fields(text, 0, layout, &mad[smp::DATA], &[]);
        }
        None => value::hexadecimal(text, 0, &mad[smp::DATA]),
    }
}

fn dissect_perf(text: &mut String, mad: &[u8; MAD_LEN]) {
    fields(text, 0, MadHeader::LAYOUT, mad, &[]);
    let key = perf::pm_key(mad);
    if key != 0 {
        value::line(text, 0, format_args!("pm_key: {key:#x}"));
    }
    match perf::layout_of(MadHeader::of(mad).attribute_id()) {
        Some(layout) => {
            fields(text, 0, layout, &mad[perf::DATA], &[]);
        }
        None => value::hexadecimal(text, 0, &mad[perf::DATA]),
    }
}

fn dissect_congestion(text: &mut String, mad: &[u8; MAD_LEN]) {
    fields(text, 0, MadHeader::LAYOUT, mad, &[]);
    let key = congestion::cc_key(mad);
    if key != 0 {
        value::line(text, 0, format_args!("cc_key: {key:#x}"));
    }
    match congestion::attribute_of(mad) {
        Some((layout, data)) => {
            fields(text, 0, layout, data, &[]);
        }
        None => value::hexadecimal(text, 0, &mad[congestion::DATA]),
    }
}

fn dissect_sa(text: &mut String, mad: &[u8; MAD_LEN]) {
    let sa_mad = SaMad::new(mad);
    let (header, rmpp, sa) = (sa_mad.header(), sa_mad.rmpp(), sa_mad.sa());
    fields(text, 0, MadHeader::LAYOUT, header.as_bytes(), &[]);
    if rmpp.is_active() {
        fields(text, 0, RmppHeader::LAYOUT, rmpp.as_bytes(), &[]);
    }
    fields(text, 0, SaHeader::LAYOUT, sa.as_bytes(), &[]);

    let data = &sa_mad.data()[..];
    if rmpp.is_active() && (rmpp.rmpp_type() != RmppType::DATA || rmpp.segment() != 1) {
        // Records continue across segments: only in the first is it known where they start.
        let data = if rmpp.rmpp_type() == RmppType::DATA { data } else { &[] };
        return value::hexadecimal(text, 0, data);
    }
    let Some(layout) = sa_layout_of(header.attribute_id()) else {
        return value::hexadecimal(text, 0, data);
    };
    if !rmpp.is_active() {
        fields(text, 0, layout, data, &[]);
        return;
    }
    let payload = match rmpp.flags().contains(RmppFlags::LAST) {
        true => (rmpp.payload_len() as usize).saturating_sub(SA_HEADER_LEN).min(data.len()),
        false => data.len(),
    };
    let mut rest = &data[..payload];
    let stride = usize::from(sa.attribute_offset()) * 8;
    while stride >= layout.len && rest.len() >= layout.len {
        fields(text, 0, layout, rest, &[]);
        rest = rest.get(stride..).unwrap_or_default();
    }
    if !rest.is_empty() {
        text.push_str("a record's beginning, continued in the next segment\n");
        value::hexadecimal(text, 1, rest);
    }
}

/// The layout of an attribute in the SA class.
fn sa_layout_of(id: AttributeId) -> Option<Layout> {
    Some(match id {
        AttributeId::CLASS_PORT_INFO => ClassPortInfo::LAYOUT,
        AttributeId::NOTICE => Notice::LAYOUT,
        AttributeId::INFORM_INFO => InformInfo::LAYOUT,
        record => return record::layout_of(record),
    })
}

fn attribute_name(class: MgmtClass, id: AttributeId) -> String {
    let name = match class {
        MgmtClass::SUBN_ADM => sa::attribute::name(id),
        MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE => id.name(),
        MgmtClass::PERF => perf::name(id),
        MgmtClass::CONGESTION => congestion::name(id),
        // Other classes share only the numbers below 0x10.
        _ if id.0 < 0x10 => id.name(),
        _ => None,
    };
    name.map_or_else(|| format!("attribute {:#06x}", id.0), str::to_owned)
}

/// Names of the components in a mask; bits without a name as a number.
fn components(id: AttributeId, mask: ComponentMask) -> String {
    let mut rest = mask;
    let mut names = Vec::new();
    for &(name, component) in record::components_of(id) {
        if rest.contains(component) {
            names.push(name.to_owned());
            rest &= !component;
        }
    }
    if !rest.is_empty() {
        names.push(rest.to_string());
    }
    names.join("|")
}

/// Appends a layout's name and its fields except those `left_out`, with nested layouts. Returns the
/// bytes behind the layout; all of them if they are too few for it.
fn fields<'a>(
    text: &mut String,
    depth: usize,
    layout: Layout,
    bytes: &'a [u8],
    left_out: &[&str],
) -> &'a [u8] {
    let Some((bytes, rest)) = bytes.split_at_checked(layout.len) else { return bytes };
    value::line(text, depth, format_args!("{}", layout.name));
    for field in layout.fields.iter().filter(|field| !left_out.contains(&field.name)) {
        let end = (field.bit + field.width).div_ceil(8);
        if let Some(inner) = value::inner_layout(layout, field, bytes) {
            fields(text, depth + 1, inner, &bytes[field.bit / 8..end], &[]);
        } else if !value::special(text, depth + 1, field.name, &bytes[field.bit / 8..end]) {
            let mut value = String::new();
            (field.format)(bytes, &mut value);
            value::line(text, depth + 1, format_args!("{}: {value}", field.name));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Gid, Lid, PKey, PortNum};
    use crate::wire::attribute::{GidDetails, PKeyTable, SmNotice, TrapNumber};
    use crate::wire::mad::{Method, Status};
    use crate::wire::record::{LinkRecord, LinkRecordRepr, PathRecord};
    use crate::wire::smp::Request;
    use proptest::prelude::*;

    fn request(attribute_id: AttributeId) -> Request {
        Request { method: Method::GET, attribute_id, attribute_modifier: 0, tid: 0x2A, m_key: 0 }
    }

    /// IBA 16.1.3.5.
    #[test]
    fn counters_are_shown_by_name() {
        let mut mad = [0; MAD_LEN];
        request(perf::PORT_COUNTERS).write_lid_routed(&mut mad);
        MadHeader::of_mut(&mut mad).set_mgmt_class(MgmtClass::PERF);
        perf::PortCounters::at_mut::<{ perf::DATA.start }, _>(&mut mad)
            .set_port_select(PortNum(7))
            .set_port_rcv_errors(9);
        let text = dissect(&mad);
        assert!(text.starts_with("Perf Get PortCounters tid 0x2a"), "{text}");
        assert!(text.contains("port_select: 7") && text.contains("port_rcv_errors: 0x9"), "{text}");
    }

    #[test]
    fn a_directed_route_is_shown_by_its_ports() {
        let mut mad = [0; MAD_LEN];
        let path = [1, 7, 19].map(PortNum);
        request(AttributeId::NODE_INFO).write_directed(&mut mad, &path).unwrap();
        smp::step(&mut mad, None, false);
        assert_eq!(summary(&mad), "SubnDR Get NodeInfo tid 0x2a, at hop 1 of 3");
        let text = dissect(&mad);
        assert!(text.contains("\n  initial_path: 1,7,19\n"), "{text}");
        assert!(text.contains("\nNodeInfo\n  base_version: 0\n"), "{text}");
    }

    #[test]
    fn tables_show_what_they_hold() {
        let mut mad = [0; MAD_LEN];
        request(AttributeId::PKEY_TABLE).write_lid_routed(&mut mad);
        PKeyTable::new(&mut mad[smp::DATA])
            .unwrap()
            .set_pkey(0, PKey(0xFFFF))
            .set_pkey(9, PKey(0x8001));
        smp::answer(&mut mad, Status::OK);
        let text = dissect(&mad);
        assert!(text.starts_with("Subn GetResp P_KeyTable tid 0x2a, status OK\n"), "{text}");
        assert!(text.contains("\n  pkey_block: 0:0xffff 9:0x8001\n"), "{text}");
        assert!(!text.contains("hop_count"), "{text}");
    }

    #[test]
    fn a_trap_shows_its_details() {
        let mut mad = [0; MAD_LEN];
        request(AttributeId::NOTICE).write_lid_routed(&mut mad);
        let mut details = [0; 54];
        let gid: Gid = "fe80::1".parse().unwrap();
        GidDetails::of_mut(&mut details).set_gid(gid);
        SmNotice::new(&mut mad[smp::DATA])
            .unwrap()
            .set_is_generic(true)
            .set_trap_number(TrapNumber::GID_IN_SERVICE)
            .set_data_details(details);
        let text = dissect(&mad);
        assert!(text.contains("\n  details of traps 64-67\n    gid: fe80::1\n"), "{text}");
    }

    #[test]
    fn a_query_names_its_components() {
        let mut mad = [0; MAD_LEN];
        let mask = record::path::component::DGID | record::path::component::SGID;
        SaMad::new(&mut mad).write_request(Method::GET, sa::attribute::PATH_RECORD, 1, mask);
        PathRecord::new(&mut mad[sa::HEADER_LEN..]).unwrap().set_dlid(Lid(5));
        assert_eq!(summary(&mad), "SubnAdm Get PathRecord tid 0x1 by DGID|SGID");
        assert!(dissect(&mad).contains("\n  dlid: 5\n"));
    }

    #[test]
    fn a_segment_shows_its_whole_records_and_the_rest() {
        let mut mad = [0; MAD_LEN];
        let link = LinkRecordRepr {
            from_lid: Lid(1),
            from_port: PortNum(2),
            to_port: PortNum(3),
            to_lid: Lid(4),
        };
        let mut sa_mad = SaMad::new(&mut mad);
        let id = sa::attribute::LINK_RECORD;
        sa_mad.write_request(Method::GET_TABLE, id, 1, ComponentMask::NONE);
        sa_mad.make_response(Status::OK);
        sa_mad
            .rmpp_mut()
            .set_rmpp_version(1)
            .set_rmpp_type(RmppType::DATA)
            .set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST)
            .set_segment(1)
            .set_payload_len(20 + 2 * 8 + 3);
        sa_mad.sa_mut().set_attribute_offset(1);
        link.emit(&mut LinkRecord::new(&mut mad[sa::HEADER_LEN..]).unwrap());
        link.emit(&mut LinkRecord::new(&mut mad[sa::HEADER_LEN + 8..]).unwrap());
        let text = dissect(&mad);
        assert_eq!(text.matches("\nLinkRecord\n").count(), 2, "{text}");
        assert!(text.ends_with("continued in the next segment\n  00: 000000\n"), "{text}");
    }

    #[test]
    fn short_bytes_are_shown_as_they_are() {
        assert_eq!(dissect(&[1, 2]), "2 bytes, too short for a MAD\n00: 0102\n");
        assert!(dissect(&[1; 30]).contains(", cut after 30 bytes"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_dissected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(!dissect(&bytes).is_empty());
        }

        /// Random bytes rarely have a known class and attribute: give them one.
        #[test]
        fn any_attribute_of_any_class_is_dissected(
            bytes in prop::collection::vec(any::<u8>(), MAD_LEN),
            class in prop::sample::select(vec![0x01u8, 0x81, 0x03, 0x04]),
            id in 0u8..0x40,
        ) {
            let mut bytes = bytes;
            (bytes[1], bytes[16], bytes[17]) = (class, 0, id);
            prop_assert!(dissect(&bytes).lines().count() > 5);
        }
    }
}
