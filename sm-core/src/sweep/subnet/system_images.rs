//! SystemImageGUIDs that nodes reported by trap 145, kept until the next sweep, as OpenSM does:
//! only sweeps of the whole fabric read NodeInfo again.
//!
//! A trap names a LID; only traps that came from that port count. The owner of the LID is looked up
//! once per sweep for all LIDs and not for each trap, since traps may come in masses.

use std::collections::BTreeMap;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{SmNotice, SystemImageGuidDetails};

use crate::manage::lid::LidRange;

/// Maximum number of LIDs; traps of more issuers request a full sweep.
const LIDS_MAX: usize = 1024;

/// SystemImageGUIDs reported since the last sweep began, by the sender's LID, with the LID that
/// each is about.
#[derive(Debug, Default)]
pub(in crate::sweep) struct SystemImages {
    images: BTreeMap<Lid, (Lid, Guid)>,
}

impl SystemImages {
    /// Whether nothing was reported.
    pub(in crate::sweep) fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Records a notice of trap 145 that the port with LID `sender` sent.
    pub(in crate::sweep) fn note(&mut self, sender: Lid, notice: &[u8; 64]) {
        let Ok(details) = SmNotice::new(notice).map(|notice| notice.data_details()) else { return };
        let Ok(details) = SystemImageGuidDetails::new(&details[..]) else { return };
        if self.images.len() < LIDS_MAX || self.images.contains_key(&sender) {
            self.images.insert(sender, (details.lid(), details.system_image_guid()));
        }
    }

    /// The report of the port with these LIDs about itself, if there is one.
    pub(in crate::sweep) fn of(&self, range: LidRange) -> Option<Guid> {
        let mut sent = self.images.range(range.first..=range.last).map(|(_, image)| *image);
        sent.find(|&(about, _)| range.contains(about)).map(|(_, image)| image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::attribute::TrapNumber;

    fn notice(lid: u16, image: u64) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut notice = SmNotice::new(&mut bytes[..]).unwrap();
        let mut details = notice.data_details();
        SystemImageGuidDetails::new(&mut details[..])
            .unwrap()
            .set_lid(Lid(lid))
            .set_system_image_guid(Guid(image));
        notice
            .set_is_generic(true)
            .set_trap_number(TrapNumber::SYSTEM_IMAGE_GUID_CHANGE)
            .set_data_details(details);
        bytes
    }

    #[test]
    fn the_latest_of_each_port_counts_and_no_more_are_kept_than_there_is_room_for() {
        let mut images = SystemImages::default();
        (1..=2000).for_each(|lid| images.note(Lid(lid), &notice(lid, 1)));
        images.note(Lid(6), &notice(6, 2));
        assert_eq!(images.images.len(), LIDS_MAX);
        let of = |first, last| images.of(LidRange { first: Lid(first), last: Lid(last) });
        assert_eq!([of(6, 7), of(4, 5), of(1999, 2000)], [Some(Guid(2)), Some(Guid(1)), None]);
    }

    /// Regression: a host gave other nodes the SystemImageGUID of its choice, by which virtual
    /// fabrics select members.
    #[test]
    fn what_a_port_reports_of_another_does_not_count() {
        let mut images = SystemImages::default();
        images.note(Lid(9), &notice(6, 2));
        let of = |first, last| images.of(LidRange { first: Lid(first), last: Lid(last) });
        assert_eq!([of(6, 6), of(9, 9), of(6, 9)], [None, None, Some(Guid(2))]);
    }
}
