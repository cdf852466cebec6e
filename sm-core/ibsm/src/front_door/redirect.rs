//! Redirection of clients from the SM's port to responders' ports (IBA 13.5.1).
//!
//! Only the front door redirects. Requests at a responder's own port do not pass through it, so
//! that a client is redirected only once.

use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::attribute::{ClassPortInfo, ClassPortInfoRepr};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::{CLASS_VERSION, SaMad};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cli::RedirectMode;

/// The well-known Q_Key of QP1, which redirected QPs have too.
const GSI_QKEY: u32 = 0x8001_0000;
/// RespTimeValue of an answer that only redirects, as OpenSM states it: 4.096 µs × 2^16.
const RESP_TIME: u8 = 16;

/// The port of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Identity of the responder, stable over its restarts.
    pub id: u64,
    /// Its LID.
    pub lid: Lid,
    /// Its GID.
    pub gid: Gid,
    /// P_Key of requests.
    pub pkey: PKey,
    /// QP that answers.
    pub qpn: Qpn,
    /// Service level by policy; the routing engine may choose another for each client.
    pub sl: Sl,
}

/// Redirects clients to responders.
#[derive(Clone, Debug, Default)]
pub(super) struct Redirection {
    mode: RedirectMode,
    targets: Vec<Target>,
}

impl Redirection {
    pub(super) fn set_mode(&mut self, mode: RedirectMode) {
        self.mode = mode;
    }

    pub(super) fn set_targets(&mut self, targets: Vec<Target>) {
        self.targets = targets;
    }

    /// Turns a request into the answer that redirects it, if it must be redirected. `sl` yields the
    /// SL from a client's LID to a target.
    pub(super) fn require(&self, packet: &mut Packet, sl: impl Fn(Lid, &Target) -> Sl) -> bool {
        if self.mode != RedirectMode::Require || !is_redirectable(packet) {
            return false;
        }
        let Some(target) = self.target(&packet.address) else { return false };
        let info = ClassPortInfoRepr {
            base_version: 1,
            class_version: CLASS_VERSION,
            capability_mask: 0,
            capability_mask2: 0,
            resp_time_value: RESP_TIME,
            redirect_gid: target.gid,
            redirect_tc: 0,
            redirect_sl: sl(packet.address.lid, target),
            redirect_fl: 0,
            redirect_lid: target.lid,
            redirect_pkey: target.pkey,
            redirect_qp: target.qpn,
            redirect_qkey: GSI_QKEY,
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
        let mut mad = SaMad::new(&mut packet.mad);
        mad.make_response(Status::REDIRECT);
        let data = mad.data_mut();
        data.fill(0);
        data[..ClassPortInfo::LEN].copy_from_slice(&info.to_bytes());
        true
    }

    /// Writes redirect fields into an answer to Get(ClassPortInfo); returns whether it was one. The
    /// answer is for this client alone, so that it has the SL of that client's path.
    pub(super) fn advertise(&self, packet: &mut Packet, sl: impl Fn(Lid, &Target) -> Sl) -> bool {
        if self.mode == RedirectMode::Off || !is_class_port_info(packet) {
            return false;
        }
        let Some(target) = self.target(&packet.address) else { return false };
        let sl = sl(packet.address.lid, target);
        let mut mad = SaMad::new(&mut packet.mad);
        let Ok(mut info) = ClassPortInfo::new(&mut mad.data_mut()[..]) else { return false };
        info.set_redirect_gid(target.gid)
            .set_redirect_tc(0)
            .set_redirect_sl(sl)
            .set_redirect_fl(0)
            .set_redirect_lid(target.lid)
            .set_redirect_pkey(target.pkey)
            .set_redirect_qp(target.qpn)
            .set_redirect_qkey(GSI_QKEY);
        true
    }

    /// Whether the answer to this request must return through the front door, to be changed.
    pub(super) fn concerns(&self, packet: &Packet) -> bool {
        self.mode != RedirectMode::Off
            && SaMad::new(&packet.mad).header().attribute_id() == AttributeId::CLASS_PORT_INFO
    }

    /// Whether clients can be redirected to the port of the responder `id`.
    pub(super) fn has_target(&self, id: u64) -> bool {
        self.targets.iter().any(|target| target.id == id)
    }

    /// The responder of a client: the one with the greatest hash of both, so that few clients move
    /// when responders come and go. All QPs of a port have the same.
    fn target(&self, client: &Address) -> Option<&Target> {
        let mut key = [0; 18];
        key[..2].copy_from_slice(&client.lid.0.to_be_bytes());
        if let Some(grh) = &client.grh {
            key[2..].copy_from_slice(&grh.remote_gid.0);
        }
        self.targets.iter().max_by_key(|target| (xxh3_64_with_seed(&key, target.id), target.id))
    }
}

/// Whether any responder can answer the request: not ClassPortInfo, whose answer has other fields,
/// too, and no part of a transfer or report that one responder holds.
fn is_redirectable(packet: &Packet) -> bool {
    let mad = SaMad::new(&packet.mad);
    let header = mad.header();
    let method = header.method();
    !mad.rmpp().is_active()
        && header.attribute_id() != AttributeId::CLASS_PORT_INFO
        && [
            Method::GET,
            Method::GET_TABLE,
            Method::GET_MULTI,
            Method::GET_TRACE_TABLE,
            Method::SET,
            Method::DELETE,
        ]
        .contains(&method)
}

fn is_class_port_info(packet: &Packet) -> bool {
    let mad = SaMad::new(&packet.mad);
    let header = mad.header();
    header.method() == Method::GET_RESP
        && header.attribute_id() == AttributeId::CLASS_PORT_INFO
        && header.status() == Status::OK
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::transport::Grh;
    use ib_mad::wire::sa::attribute;

    fn target(id: u64) -> Target {
        Target {
            id,
            lid: Lid(100 + id as u16),
            gid: Gid::new(0xFE80 << 48, ib_mad::types::Guid(id)),
            pkey: PKey::DEFAULT_FULL,
            qpn: Qpn::GSI,
            sl: Sl::from_low_bits(3),
        }
    }

    fn by_policy(_: Lid, target: &Target) -> Sl {
        target.sl
    }

    fn redirection(mode: RedirectMode, ids: impl IntoIterator<Item = u64>) -> Redirection {
        Redirection { mode, targets: ids.into_iter().map(target).collect() }
    }

    fn packet(lid: u16, method: Method, attribute: AttributeId) -> Packet {
        let mut packet = Packet::default();
        packet.address.lid = Lid(lid);
        SaMad::new(&mut packet.mad).write_request(method, attribute, 7, Default::default());
        packet
    }

    /// Redirect fields of an answer, which begin at byte 56 of the MAD.
    fn fields(packet: &Packet) -> (Lid, Qpn, PKey, u32, Sl) {
        let info = ClassPortInfo::new(&packet.mad[56..128]).unwrap();
        let (lid, qp, pkey) = (info.redirect_lid(), info.redirect_qp(), info.redirect_pkey());
        (lid, qp, pkey, info.redirect_qkey(), info.redirect_sl())
    }

    /// Proves IBA 13.5.1.
    #[test]
    fn a_required_redirect_answers_with_status_2_and_the_fields_at_byte_56() {
        let redirection = redirection(RedirectMode::Require, [1]);
        for method in [Method::GET, Method::GET_TABLE, Method::SET, Method::DELETE] {
            let mut packet = packet(4, method, attribute::PATH_RECORD);
            packet.mad[200] = 0xA5;
            assert!(redirection.require(&mut packet, by_policy));
            assert_eq!(packet.mad[4..6], [0, 2]);
            assert_eq!(SaMad::new(&packet.mad).header().method(), method.response());
            let expected =
                (Lid(101), Qpn::GSI, PKey::DEFAULT_FULL, 0x8001_0000, Sl::from_low_bits(3));
            assert_eq!(fields(&packet), expected);
            assert_eq!(packet.mad[200], 0, "nothing of the request goes back");
            assert_eq!(packet.address.lid, Lid(4));
        }
    }

    /// Regression: all clients got the same SL, by which packets of some would have left their
    /// lanes.
    #[test]
    fn each_client_gets_the_sl_of_its_own_path() {
        let own = |client: Lid, target: &Target| Sl::from_low_bits(client.0 + target.lid.0 % 100);
        let require = redirection(RedirectMode::Require, [1]);
        let advertise = redirection(RedirectMode::Advertise, [1]);
        for lid in [4, 9] {
            let mut query = packet(lid, Method::GET, attribute::PATH_RECORD);
            assert!(require.require(&mut query, own));
            let mut info = packet(lid, Method::GET_RESP, AttributeId::CLASS_PORT_INFO);
            assert!(advertise.advertise(&mut info, own));
            for redirect in [fields(&query), fields(&info)] {
                assert_eq!(redirect.4, Sl::from_low_bits(lid + 1));
            }
        }
    }

    #[test]
    fn what_one_responder_holds_is_never_redirected() {
        let redirection = redirection(RedirectMode::Require, [1]);
        let mut ack = packet(4, Method::GET_TABLE, attribute::PATH_RECORD);
        SaMad::new(&mut ack.mad).rmpp_mut().set_flags(ib_mad::wire::rmpp::RmppFlags::ACTIVE);
        assert!(!redirection.require(&mut ack, by_policy));
        let mut answer = packet(4, Method::REPORT_RESP, AttributeId::NOTICE);
        assert!(!redirection.require(&mut answer, by_policy));
    }

    #[test]
    fn class_port_info_is_answered_in_every_mode_and_then_names_a_responder() {
        for mode in [RedirectMode::Advertise, RedirectMode::Require] {
            let redirection = redirection(mode, [1, 2]);
            let mut packet = packet(4, Method::GET, AttributeId::CLASS_PORT_INFO);
            assert!(redirection.concerns(&packet) && !redirection.require(&mut packet, by_policy));
            SaMad::new(&mut packet.mad).make_response(Status::OK);
            packet.mad[56..62].copy_from_slice(&[1, 2, 0x26, 2, 0, 1]);
            assert!(redirection.advertise(&mut packet, by_policy));
            assert_eq!(fields(&packet).3, 0x8001_0000);
            assert!([Lid(101), Lid(102)].contains(&fields(&packet).0));
            assert_eq!(packet.mad[56..62], [1, 2, 0x26, 2, 0, 1], "capabilities stay");
        }
    }

    #[test]
    fn a_request_is_redirected_only_if_needed_and_if_there_is_a_target() {
        let cases = [
            redirection(RedirectMode::Off, [1]),
            redirection(RedirectMode::Advertise, []),
            redirection(RedirectMode::Require, []),
        ];
        for redirection in cases {
            let mut query = packet(4, Method::GET, attribute::PATH_RECORD);
            assert!(!redirection.require(&mut query, by_policy));
            let mut info = packet(4, Method::GET_RESP, AttributeId::CLASS_PORT_INFO);
            assert!(!redirection.advertise(&mut info, by_policy));
        }
        let advertise = redirection(RedirectMode::Advertise, [1]);
        assert!(!advertise.require(&mut packet(4, Method::GET, attribute::PATH_RECORD), by_policy));
    }

    #[test]
    fn clients_are_spread_evenly_and_move_only_where_a_responder_came_or_went() {
        let (four, three) = (
            redirection(RedirectMode::Advertise, 1..=4),
            redirection(RedirectMode::Advertise, [1, 2, 4]),
        );
        let mut counts = [0; 5];
        for lid in 1..=4000u16 {
            let client = Address::gsi(Lid(lid));
            let (before, after) = (four.target(&client).unwrap(), three.target(&client).unwrap());
            assert!(before == after || before.id == 3);
            let other_qp = Address { qpn: Qpn(77), ..client };
            assert_eq!(four.target(&other_qp), Some(before));
            counts[before.id as usize] += 1;
        }
        assert!(counts[1..].iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        let gid = |last| Grh { remote_gid: Gid([last; 16]), ..Grh::default() };
        let behind_one_lid = (0..=255).map(|last| Address {
            lid: Lid(9),
            grh: Some(gid(last)),
            ..Address::default()
        });
        let used: std::collections::BTreeSet<u64> =
            behind_one_lid.map(|client| four.target(&client).unwrap().id).collect();
        assert_eq!(used.len(), 4, "virtual ports behind one LID are spread too");
    }
}
