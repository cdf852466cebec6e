//! Describes a trap for the log: its issuer and subject by name, but never a key.

use ib_mad::types::{Lid, PortNum, Qpn, Sl};
use ib_mad::wire::attribute::{
    BadKeyDetails, BadMKeyDetails, BadPKeySwitchPortDetails, PortErrorDetails, SmNotice, TrapNumber,
};

/// Bits of DataValid in trap 259 (IBA 14.2.5.1, table of traps): valid fields.
mod valid {
    pub(super) const LID1: u16 = 1 << 0;
    pub(super) const LID2: u16 = 1 << 1;
}

/// Describes a notice. `place` names the port with that number of the node with that LID, or
/// without a number the end port; `None` if the LID is unknown.
pub fn words(notice: &[u8; 64], place: &dyn Fn(Lid, Option<PortNum>) -> Option<String>) -> String {
    let Ok(view) = SmNotice::new(&notice[..]) else { return String::new() };
    let at = |lid: Lid| match place(lid, None) {
        Some(name) => format!("LID {lid} ({name})"),
        None => format!("LID {lid}"),
    };
    let from = at(view.issuer_lid());
    if !view.is_generic() {
        return format!("vendor trap from {from}");
    }
    let number = view.trap_number();
    let name = number.name().map_or_else(String::new, |name| format!(" '{name}'"));
    let about = about(number, &view.data_details(), &at, place);
    format!("trap {}{name} from {from}{}", number.0, about.unwrap_or_default())
}

/// The subject of a trap, where the next sweep does not find it out.
fn about(
    number: TrapNumber,
    details: &[u8; 54],
    at: &dyn Fn(Lid) -> String,
    place: &dyn Fn(Lid, Option<PortNum>) -> Option<String>,
) -> Option<String> {
    let packet = |from: Option<Lid>, to: Option<Lid>, (qp1, qp2): (Qpn, Qpn), sl: Sl| {
        let end = |way: &str, lid: Option<Lid>, qp: Qpn| match lid {
            Some(lid) => format!(" {way} {} QP {:#x}", at(lid), qp.0),
            None => String::new(),
        };
        format!("a packet{}{} on SL {sl}", end("from", from, qp1), end("to", to, qp2))
    };
    Some(match number {
        TrapNumber::LOCAL_LINK_INTEGRITY
        | TrapNumber::EXCESSIVE_BUFFER_OVERRUN
        | TrapNumber::FLOW_CONTROL_UPDATE => {
            let details = PortErrorDetails::new(&details[..]).ok()?;
            let (lid, num) = (details.lid(), details.port_num());
            match place(lid, Some(num)) {
                Some(port) => format!(": {port}"),
                None => format!(": port {num} of LID {lid}"),
            }
        }
        TrapNumber::BAD_MKEY => {
            let details = BadMKeyDetails::new(&details[..]).ok()?;
            let (method, attribute) = (details.method(), details.attribute_id());
            let way = if details.dr_notice() {
                format!(" by directed route from DrSLID {}", details.dr_slid())
            } else {
                String::new()
            };
            let modifier = details.attribute_modifier();
            format!(
                ": {method}({attribute}) modifier {modifier:#x} from {}{way}",
                at(details.lid())
            )
        }
        TrapNumber::BAD_PKEY | TrapNumber::BAD_QKEY => {
            let details = BadKeyDetails::new(&details[..]).ok()?;
            let (from, to) = (Some(details.lid1()), Some(details.lid2()));
            format!(": {}", packet(from, to, (details.qp1(), details.qp2()), details.sl()))
        }
        TrapNumber::BAD_PKEY_SWITCH_PORT => {
            let details = BadPKeySwitchPortDetails::new(&details[..]).ok()?;
            let (lid, num) = (details.switch_lid(), details.port_num());
            let port = place(lid, Some(num)).unwrap_or_else(|| format!("port {num} of LID {lid}"));
            let meant = |bit: u16, lid: Lid| (details.data_valid() & bit != 0).then_some(lid);
            let (from, to) =
                (meant(valid::LID1, details.lid1()), meant(valid::LID2, details.lid2()));
            let qps = (details.qp1(), details.qp2());
            format!(": {port}, {}", packet(from, to, qps, details.sl()))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use ib_mad::types::PKey;
    use ib_mad::wire::mad::{AttributeId, Method};

    use super::*;

    fn said(number: TrapNumber, fill: impl Fn(&mut [u8; 54])) -> String {
        let (mut notice, mut details) = ([0; 64], [0; 54]);
        fill(&mut details);
        SmNotice::new(&mut notice[..])
            .unwrap()
            .set_is_generic(true)
            .set_trap_number(number)
            .set_issuer_lid(Lid(17))
            .set_data_details(details);
        words(&notice, &|lid, num| match (lid, num) {
            (Lid(17), None) => Some("switch 'leaf001'".into()),
            (Lid(17), Some(num)) => Some(format!("switch 'leaf001' port {num}")),
            (Lid(5), None) => Some("CA 'host5'".into()),
            _ => None,
        })
    }

    #[test]
    fn errors_of_ports_name_the_port() {
        let line = said(TrapNumber::LOCAL_LINK_INTEGRITY, |details| {
            let mut view = PortErrorDetails::new(&mut details[..]).unwrap();
            view.set_lid(Lid(17)).set_port_num(PortNum(9));
        });
        assert_eq!(
            line,
            "trap 129 'local link integrity' from LID 17 (switch 'leaf001'): \
             switch 'leaf001' port 9"
        );
        let unknown = said(TrapNumber::FLOW_CONTROL_UPDATE, |details| {
            PortErrorDetails::new(&mut details[..])
                .unwrap()
                .set_lid(Lid(99))
                .set_port_num(PortNum(1));
        });
        assert!(unknown.ends_with(": port 1 of LID 99"), "{unknown}");
    }

    #[test]
    fn violations_name_who_offended_and_never_the_key() {
        let m_key = said(TrapNumber::BAD_MKEY, |details| {
            let mut view = BadMKeyDetails::new(&mut details[..]).unwrap();
            view.set_lid(Lid(5)).set_method(Method::SET).set_attribute_id(AttributeId::PORT_INFO);
            view.set_m_key(0xABCD);
        });
        assert!(m_key.ends_with(": Set(PortInfo) modifier 0x0 from LID 5 (CA 'host5')"), "{m_key}");
        let p_key = said(TrapNumber::BAD_PKEY, |details| {
            let mut view = BadKeyDetails::new(&mut details[..]).unwrap();
            view.set_lid1(Lid(5)).set_lid2(Lid(6)).set_key(0xABCD).set_qp1(Qpn(0x10));
        });
        let packet = ": a packet from LID 5 (CA 'host5') QP 0x10 to LID 6 QP 0x0 on SL 0";
        assert!(p_key.ends_with(packet), "{p_key}");
        let at_switch = said(TrapNumber::BAD_PKEY_SWITCH_PORT, |details| {
            let mut view = BadPKeySwitchPortDetails::new(&mut details[..]).unwrap();
            view.set_data_valid(valid::LID1).set_lid1(Lid(5)).set_lid2(Lid(6));
            view.set_pkey(PKey(0xABCD)).set_switch_lid(Lid(17)).set_port_num(PortNum(3));
        });
        let packet = ": switch 'leaf001' port 3, a packet from LID 5 (CA 'host5') QP 0x0 on SL 0";
        assert!(at_switch.ends_with(packet), "{at_switch}");
        for line in [m_key, p_key, at_switch] {
            assert!(!line.to_lowercase().contains("abcd"), "{line}");
        }
    }
}
