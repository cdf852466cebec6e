//! Which subscriptions match a notice (IBA 13.4.8.3, 13.4.11).

use ib_mad::types::{Gid, Guid, Lid, PKey};
use ib_mad::wire::attribute::{InformInfo, Notice, ProducerType, TrapNumber};
use sa_proto::snapshot::Subscription;

use crate::tables::Tables;

/// A notice, and the subscribers that may receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The notice as it is on the wire, with its issuer's GID.
    pub notice: [u8; 80],
    /// Only trusted subscribers receive it.
    pub trusted_only: bool,
    /// The port it concerns; only subscribers that share a partition with it receive it.
    pub subject: Option<Guid>,
    /// P_Keys of its subject, if that is not a port or may no longer exist.
    pub subject_pkeys: Vec<PKey>,
    /// Only the latest event with the same key has to be reported; an event with key 0 supersedes
    /// none.
    pub supersedes_key: u64,
}

/// Whether `subscription` matches `event`, and its subscriber may receive it.
pub(super) fn concerns(event: &Event, subscription: &Subscription, tables: &Tables) -> bool {
    let notice = Notice::of(&event.notice);
    let wanted = InformInfo::of(&subscription.inform_info);
    (!event.trusted_only || subscription.trusted)
        && is_wanted(&wanted, &notice)
        && may_hear(event, subscription, tables)
}

/// Whether a notice matches an InformInfo. A GID other than zero alone selects the issuer,
/// otherwise the LID range does.
fn is_wanted(
    wanted: &InformInfo<&[u8; InformInfo::LEN]>,
    notice: &Notice<&[u8; Notice::LEN]>,
) -> bool {
    const EVERY_TYPE: u16 = 0xFFFF;
    let from_here = if wanted.gid() != Gid::default() {
        wanted.gid() == notice.issuer_gid()
    } else {
        let (first, last) = (wanted.lid_range_begin(), wanted.lid_range_end());
        // An end of 0 stands for a range of one LID.
        let last = if last == Lid::NONE { first } else { last };
        first == Lid::PERMISSIVE || (first..=last).contains(&notice.issuer_lid())
    };
    from_here
        && (wanted.is_generic() != 0) == notice.is_generic()
        && (wanted.inform_type() == EVERY_TYPE
            || wanted.inform_type() == u16::from(notice.notice_type().0))
        && (wanted.trap_number() == TrapNumber::ALL || wanted.trap_number() == notice.trap_number())
        && (wanted.producer_type() == ProducerType::ALL
            || wanted.producer_type() == notice.producer_type())
}

/// Whether the subscriber shares a partition with the subject of the event (IBA o13-17.1.1).
fn may_hear(event: &Event, subscription: &Subscription, tables: &Tables) -> bool {
    let Some(subscriber) = tables.end_ports.by_lid(subscription.lid) else { return false };
    let own = tables.end_class(subscriber).pkeys;
    if !event.subject_pkeys.is_empty() {
        return event.subject_pkeys.iter().any(|&pkey| tables.partitions.reaches(own, pkey));
    }
    let Some(subject) = event.subject else { return true };
    tables.end_ports.by_guid(subject).is_some_and(|subject| {
        subject.is_same_port(subscriber)
            || tables.partitions.visible(own, tables.end_class(subject).pkeys)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::attribute::NoticeType;

    /// A subscription to everything, changed; and a link state change that LID 9 reports, changed.
    fn wanted(
        subscribe: impl FnOnce(&mut InformInfo<&mut [u8; InformInfo::LEN]>),
        report: impl FnOnce(&mut Notice<&mut [u8; Notice::LEN]>),
    ) -> bool {
        let mut info = [0; 36];
        let mut inform = InformInfo::of_mut(&mut info);
        inform
            .set_lid_range_begin(Lid::PERMISSIVE)
            .set_is_generic(1)
            .set_inform_type(0xFFFF)
            .set_trap_number(TrapNumber::ALL)
            .set_producer_type(ProducerType::ALL);
        subscribe(&mut inform);
        let mut bytes = [0; 80];
        let mut notice = Notice::of_mut(&mut bytes);
        notice
            .set_is_generic(true)
            .set_notice_type(NoticeType::URGENT)
            .set_producer_type(ProducerType::SWITCH)
            .set_trap_number(TrapNumber::LINK_STATE_CHANGE)
            .set_issuer_lid(Lid(9))
            .set_issuer_gid(Gid::new(0xFE80 << 48, Guid(7)));
        report(&mut notice);
        is_wanted(&InformInfo::of(&info), &Notice::of(&bytes))
    }

    /// IBA 13.4.8.3.
    #[test]
    fn each_filter_excludes_what_differs() {
        assert!(wanted(|_| {}, |_| {}));
        assert!(wanted(
            |i| {
                i.set_inform_type(1)
                    .set_trap_number(TrapNumber::LINK_STATE_CHANGE)
                    .set_producer_type(ProducerType::SWITCH);
            },
            |_| {}
        ));
        assert!(!wanted(
            |i| {
                i.set_inform_type(3);
            },
            |_| {}
        ));
        assert!(!wanted(
            |i| {
                i.set_trap_number(TrapNumber(129));
            },
            |_| {}
        ));
        assert!(!wanted(
            |i| {
                i.set_producer_type(ProducerType::CA);
            },
            |_| {}
        ));
        assert!(!wanted(
            |i| {
                i.set_is_generic(0);
            },
            |_| {}
        ));
        assert!(!wanted(
            |_| {},
            |n| {
                n.set_is_generic(false);
            }
        ));
    }

    #[test]
    fn the_issuer_is_chosen_by_gid_or_else_by_a_range_of_lids() {
        let range = |first, last| {
            wanted(
                |i| {
                    i.set_lid_range_begin(Lid(first)).set_lid_range_end(Lid(last));
                },
                |_| {},
            )
        };
        assert!(range(9, 9) && range(5, 9) && range(9, 12) && range(9, 0));
        assert!(!range(10, 12) && !range(5, 8) && !range(12, 5));
        let gid = |guid| {
            wanted(
                |i| {
                    i.set_gid(Gid::new(0xFE80 << 48, Guid(guid)));
                },
                |_| {},
            )
        };
        assert!(gid(7) && !gid(8));
    }
}
