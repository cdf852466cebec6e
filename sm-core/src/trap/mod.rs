//! Traps: unsolicited reports of agents, the TrapRepress that acknowledges them, and which
//! of them report a change of the fabric (IBA 14.2.5.1, 14.4.10).

mod hourly;
mod words;

use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{SmNotice, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::Smp;

pub use hourly::HourlyLimit;
pub use words::words;

/// A parsed trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Trap number; `None` for a vendor trap.
    pub number: Option<TrapNumber>,
    /// LID of the issuer.
    pub issuer: Lid,
    /// The action that the sweep must take.
    pub meaning: Meaning,
}

/// The action that a trap requires of the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The issuer or the state of its ports changed: read it again.
    Changed,
    /// The fabric did not change: nothing need be read.
    Noted,
}

/// Parses a trap; `None` if the MAD is not one.
pub fn read(mad: &[u8; MAD_LEN]) -> Option<Trap> {
    let smp = Smp::new(&mad[..]).ok()?;
    if smp.method() != Method::TRAP || smp.attribute_id() != AttributeId::NOTICE {
        return None;
    }
    let notice = SmNotice::new(smp.data_bytes()).ok()?;
    let number = notice.is_generic().then(|| notice.trap_number());
    let meaning = match number {
        Some(
            TrapNumber::LINK_STATE_CHANGE
            | TrapNumber::LOCAL_CHANGES
            | TrapNumber::SYSTEM_IMAGE_GUID_CHANGE,
        ) => Meaning::Changed,
        _ => Meaning::Noted,
    };
    Some(Trap { number, issuer: notice.issuer_lid(), meaning })
}

/// Turns a trap into the TrapRepress that stops its repetition. That of a trap that came along a
/// directed route returns by it.
pub fn repress(mad: &mut [u8; MAD_LEN], m_key: u64) {
    if let Ok(mut smp) = Smp::new(&mut mad[..]) {
        smp.set_method(Method::TRAP_REPRESS).set_m_key(m_key);
        if smp.is_directed() {
            let hops = smp.hop_count();
            smp.set_returning(true).set_hop_pointer(hops.saturating_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::smp::{self, Request};

    fn trap(number: TrapNumber) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        Request {
            method: Method::TRAP,
            attribute_id: AttributeId::NOTICE,
            attribute_modifier: 0,
            tid: 0x77,
            m_key: 0,
        }
        .write_lid_routed(&mut mad);
        SmNotice::new(&mut mad[smp::DATA])
            .unwrap()
            .set_is_generic(true)
            .set_trap_number(number)
            .set_issuer_lid(Lid(9));
        mad
    }

    #[test]
    fn link_state_changes_call_for_a_look_and_key_violations_do_not() {
        let seen = read(&trap(TrapNumber::LINK_STATE_CHANGE)).unwrap();
        assert_eq!((seen.issuer, seen.meaning), (Lid(9), Meaning::Changed));
        assert_eq!(read(&trap(TrapNumber::BAD_PKEY)).unwrap().meaning, Meaning::Noted);
    }

    #[test]
    fn a_repress_repeats_the_notice_and_the_transaction() {
        let mut mad = trap(TrapNumber::LINK_STATE_CHANGE);
        let before = mad;
        repress(&mut mad, 0);
        let smp = Smp::new(&mad[..]).unwrap();
        assert_eq!((smp.method(), smp.tid()), (Method::TRAP_REPRESS, 0x77));
        assert_eq!(mad[smp::DATA], before[smp::DATA]);
        assert_eq!(read(&mad), None);
    }

    #[test]
    fn a_trap_that_came_along_a_directed_route_is_repressed_along_it() {
        let mut mad = trap(TrapNumber::LOCAL_CHANGES);
        let notice: Vec<u8> = mad[smp::DATA].to_vec();
        let request = Request {
            method: Method::TRAP,
            attribute_id: AttributeId::NOTICE,
            attribute_modifier: 0,
            tid: 0x77,
            m_key: 0,
        };
        request.write_directed(&mut mad, &[ib_mad::types::PortNum(3)]).unwrap();
        mad[smp::DATA].copy_from_slice(&notice);
        repress(&mut mad, 0);
        let smp = Smp::new(&mad[..]).unwrap();
        assert_eq!(smp.method(), Method::TRAP_REPRESS);
        assert!(smp.returning());
        assert_eq!(smp.hop_pointer(), smp.hop_count() + 1);
    }
}
