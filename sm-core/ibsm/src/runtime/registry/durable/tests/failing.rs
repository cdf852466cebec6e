//! While commits fail.

use super::*;

#[test]
fn while_the_file_cannot_be_used_writes_are_refused_and_what_is_published_stays() {
    let bed = Bed::new();
    let mut durable = bed.master();
    durable.turn(NOW_S, work([forever(1)]));
    bed.faults.set_unreadable(true);
    durable.recover(NOW_S);
    assert_eq!(durable.plane(), None, "nothing that could be kept elsewhere");
    for n in 2..4 {
        let verdicts = durable.turn(NOW_S + 1, work([forever(n)]));
        assert_eq!(statuses(&verdicts), [Some(Status::SA_NO_RESOURCES)]);
        assert_eq!(bed.published().services.len(), 1);
    }
    assert_eq!(bed.counters.refused_unstored.get(), 2);
    bed.faults.set_unreadable(false);
    let due_s = durable.due_s().unwrap();
    let verdicts = durable.turn(due_s, work([forever(4)]));
    assert_eq!(statuses(&verdicts), [Some(Status::OK)]);
    let ids: Vec<_> = bed.published().services.iter().map(|row| row.rid.service_id).collect();
    assert_eq!(ids, [1, 4]);
}

/// Regression: on a full disk, where everything can be read and no commit succeeds, each batch of
/// writes read the whole file twice and logged four lines.
#[test]
fn on_a_full_disk_writes_are_refused_at_once_and_a_commit_is_tried_at_intervals() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let version = durable.held();
    bed.faults.set_full(true);
    let opened = bed.faults.opened();
    for n in 0..100 {
        let verdicts = durable.turn(NOW_S, work([forever(n)]));
        assert_eq!(statuses(&verdicts), [Some(Status::SA_NO_RESOURCES)]);
    }
    assert_eq!(bed.faults.opened() - opened, 2, "the first batch was tried twice");
    assert_eq!((bed.counters.failures.get(), bed.counters.refused_unstored.get()), (2, 100));
    assert_eq!((durable.held(), plane(&durable).services.len()), (version, 0));
    assert_eq!(durable.published(), bed.publisher.session(), "nothing is published again");

    // One attempt, after some time.
    let due_s = durable.due_s().unwrap();
    assert!(due_s > NOW_S);
    let refused = [Some(Status::SA_NO_RESOURCES)];
    assert_eq!(statuses(&durable.turn(due_s, work([forever(100)]))), refused);
    assert_eq!(statuses(&durable.turn(due_s, work([forever(101)]))), refused);
    assert_eq!(bed.faults.opened() - opened, 3);
    bed.faults.set_full(false);
    assert_eq!(statuses(&durable.turn(due_s, work([forever(102)]))), refused);
    let due_s = durable.due_s().unwrap();
    assert_eq!(statuses(&durable.turn(due_s, work([forever(103)]))), [Some(Status::OK)]);
    let ids: Vec<_> = bed.published().services.iter().map(|row| row.rid.service_id).collect();
    assert_eq!(ids, [103]);
}

/// Regression: a request that had been granted, and was repeated since its answer was lost, was
/// refused while the store failed, though it is stored.
#[test]
fn a_repeat_of_what_is_stored_is_not_refused_while_the_store_fails() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let (delete, set) = (Request { method: Method::DELETE, ..forever(1) }, forever(2));
    durable.turn(NOW_S, work([forever(1), set.clone()]));
    durable.turn(NOW_S, work([delete.clone()]));
    bed.faults.set_full(true);
    let refused = Some(Status::SA_NO_RESOURCES);
    durable.turn(NOW_S, work([forever(3)]));
    let verdicts = durable.turn(NOW_S, work([delete.clone(), set.clone(), forever(3)]));
    assert_eq!(statuses(&verdicts), [Some(Status::OK), Some(Status::OK), refused]);
    let look = Work { writes: vec![Write::Nothing], ..Work::default() };
    assert_eq!(statuses(&durable.turn(NOW_S, look)), [Some(Status::OK)], "reads are current");

    // What cannot be read back is not known.
    bed.faults.set_unreadable(true);
    durable.recover(NOW_S);
    let verdicts = durable.turn(NOW_S, work([delete, set, forever(3)]));
    assert_eq!(verdicts[..2], [Verdict::Dropped, Verdict::Dropped]);
    assert_eq!(statuses(&verdicts[2..]), [refused]);
}

/// Regression: a new master whose file had become unreadable refused repeats of what it had copied
/// from the one before, which had granted them.
#[test]
fn what_a_standby_has_copied_is_not_refused_when_its_file_fails() {
    let granted = forever(1);
    let (copy, outcomes) = {
        let bed = Bed::new();
        let mut durable = bed.master();
        durable.turn(NOW_S, work([granted.clone()]));
        (plane(&durable), durable.registry.granted_outcomes())
    };
    let bed = Bed::new();
    let mut durable = bed.open();
    assert!(durable.follow(NOW_S, OTHERS, &copy, &outcomes));
    bed.faults.set_unreadable(true);
    durable.recover(NOW_S);
    bed.publisher.begin_session(Guid(1)).unwrap();
    durable.turn(NOW_S, Work { ports: Some(Arc::new(ports())), ..Work::default() });
    let verdicts = durable.turn(NOW_S, work([granted, forever(2)]));
    assert_eq!(verdicts[0], Verdict::Dropped);
    assert_eq!(statuses(&verdicts[1..]), [Some(Status::SA_NO_RESOURCES)]);
}

/// Regression: a standby whose disk is full read its whole file, and logged two lines, several
/// times a second.
#[test]
fn a_standby_on_a_full_disk_stores_the_copy_once_there_is_room() {
    let planes = planes_of_a_master(3);
    let bed = Bed::new();
    let mut durable = bed.open();
    assert!(durable.follow(NOW_S, OTHERS, &planes[0], &[]));
    let opened = bed.faults.opened();
    bed.faults.set_full(true);
    for _ in 0..10 {
        assert!(!durable.follow(NOW_S, OTHERS, &planes[1], &[]));
    }
    assert_eq!(bed.faults.opened() - opened, 1);
    assert_eq!(durable.held().sequence, planes[0].sequence);
    bed.faults.set_full(false);
    assert!(!durable.follow(NOW_S + 1, OTHERS, &planes[1], &[]));
    assert!(durable.follow(NOW_S + 2, OTHERS, &planes[2], &[]));
    assert_eq!(plane(&durable), planes[2]);
}

/// Regression: a standby that had read its copy back from disk, after a restart or after a commit
/// that failed, went on with the master's sequence numbers, of which that may have used more.
#[test]
fn sequence_numbers_are_above_the_masters_also_if_its_copy_was_read_back() {
    let planes = planes_of_a_master(2);
    for is_restarted in [false, true] {
        let bed = Bed::new();
        let mut durable = bed.open();
        assert!(durable.follow(NOW_S, OTHERS, &planes[1], &[]));
        if is_restarted {
            drop(durable);
            durable = bed.open();
        } else {
            bed.faults.fail_next(Fault::Before);
        }
        bed.publisher.begin_session(Guid(1)).unwrap();
        durable.turn(NOW_S, Work { ports: Some(Arc::new(ports())), ..Work::default() });
        let begun = durable.held();
        assert_eq!(Some(begun.session), bed.publisher.session());
        assert!(begun.sequence > planes[1].sequence + 1_000_000, "restarted: {is_restarted}");
        assert_eq!(bed.published().services, planes[1].services);
    }
}

/// A refusal would be final, although the record may be on disk.
#[test]
fn what_may_be_on_disk_is_not_refused() {
    for (fault, stored) in [(Fault::Before, 0), (Fault::After, 1)] {
        let bed = Bed::new();
        let mut durable = bed.master();
        bed.faults.fail_next(fault);
        bed.faults.set_unreadable(true);
        assert_eq!(durable.turn(NOW_S, work([forever(1)])), [Verdict::Dropped]);
        assert_eq!((bed.counters.unsettled.get(), bed.counters.refused_unstored.get()), (1, 0));
        bed.faults.set_unreadable(false);
        durable.turn(durable.due_s().unwrap(), Work::default());
        assert_eq!(plane(&durable).services.len(), stored, "{fault:?}");
    }
}
