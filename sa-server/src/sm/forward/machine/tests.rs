//! The machine and an SM that the test simulates, in virtual time.

use ib_mad::types::Lid;
use sa_proto::snapshot::Session;

use super::super::currency::{PROOF_AGE_MAX, PROOF_INTERVAL, SILENCE_MAX};
use super::*;
use crate::sm::forward::Acknowledged;

const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(1);

/// A machine, its queue of submissions, and the time.
struct Bed {
    machine: Machine,
    counters: Arc<Counters>,
    acknowledged: Acknowledged,
    submissions: VecDeque<Submission>,
    now: Instant,
}

fn version(epoch: u64, sequence: u64) -> Version {
    let session = Session { epoch, ..Session::default() };
    Version { session, fabric_generation: 1, registry_sequence: sequence }
}

/// The outcome of write `number`, which the registry contains from `sequence` on.
fn outcome(number: u64, epoch: u64, sequence: u64) -> proto::Outcome {
    proto::Outcome { id: number, epoch, sequence, ..proto::Outcome::default() }
}

fn numbers(message: &proto::Writes) -> Vec<u64> {
    message.writes.iter().map(|write| write.id).collect()
}

impl Bed {
    /// Tables of epoch 1 and sequence 10, and no stream.
    fn new() -> Self {
        let counters = Arc::<Counters>::default();
        let mut machine = Machine::new(5, PATIENCE, Arc::clone(&counters));
        machine.handle_version(version(1, 10));
        let acknowledged = Acknowledged::default();
        Self { machine, counters, acknowledged, submissions: VecDeque::new(), now: Instant::now() }
    }

    /// A machine with an open stream, and no write in flight.
    fn connected() -> Self {
        let mut bed = Self::new();
        assert!(bed.connect().writes.is_empty());
        bed
    }

    fn connect(&mut self) -> proto::Writes {
        assert!(self.machine.poll_connect());
        self.machine.handle_connect(self.now)
    }

    fn submit(&mut self, ids: impl IntoIterator<Item = u64>) {
        let at = self.now;
        self.submissions.extend(ids.into_iter().map(|id| {
            let address = Address { lid: Lid(id as u16), ..Address::default() };
            let request = Request { mad: vec![id as u8].into(), address, seen: id };
            Submission { id, at, request: Some(request) }
        }));
    }

    fn submit_barriers(&mut self, ids: impl IntoIterator<Item = u64>) {
        let at = self.now;
        self.submissions.extend(ids.into_iter().map(|id| Submission { id, at, request: None }));
    }

    /// The numbers of the writes in the next message.
    fn transmit(&mut self) -> Option<Vec<u64>> {
        let message = self.machine.poll_transmit(self.now, || self.submissions.pop_front());
        message.as_ref().map(numbers)
    }

    fn receive(&mut self, outcomes: impl IntoIterator<Item = proto::Outcome>) {
        let outcomes = proto::Outcomes { outcomes: outcomes.into_iter().collect() };
        self.machine.handle_outcomes(self.now, outcomes);
    }

    fn answers(&mut self) -> Vec<(u64, Verdict)> {
        let mut permits = self.acknowledged.permits();
        let answers = std::iter::from_fn(|| self.machine.poll_answer(&mut permits));
        answers.map(|answer| (answer.id, answer.verdict)).collect()
    }

    fn answered(&mut self) -> Vec<u64> {
        self.answers().into_iter().map(|(id, _)| id).collect()
    }

    /// Handles every timeout up to `duration` from now, and checks that each one is due once.
    fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(due) = self.machine.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.machine.handle_timeout(self.now);
            assert!(self.machine.poll_timeout().is_none_or(|next| next > self.now));
        }
        self.now = end;
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

#[test]
fn a_stream_begins_with_a_message_that_names_responder_and_epoch() {
    let mut bed = Bed::new();
    bed.submit([1]);
    assert_eq!(bed.transmit(), None, "there is no stream");
    let first = bed.connect();
    assert_eq!((first.responder_id, first.epoch, first.writes.len()), (5, 1, 0));
    assert!(!bed.machine.poll_connect());
    assert_eq!(bed.transmit(), Some(vec![0]));
    assert_eq!(bed.transmit(), None, "the queue is empty");
}

#[test]
fn a_write_carries_the_request_and_its_requester() {
    let mut bed = Bed::connected();
    bed.submit([9]);
    let message =
        bed.machine.poll_transmit(bed.now, || bed.submissions.pop_front()).expect("a message");
    let write = &message.writes[0];
    assert_eq!((&write.mad[..], write.requester.as_ref().unwrap().lid), (&[9][..], 9));
    assert_eq!(write.seen, 9);
}

#[test]
fn an_outcome_is_answered_once_the_tables_contain_it() {
    let mut bed = Bed::connected();
    bed.submit([7, 8, 9]);
    assert_eq!(bed.transmit(), Some(vec![0, 1, 2]));
    let refused = proto::Outcome { status: 0x0200, ..outcome(0, 1, 10) };
    let done = proto::Outcome { data: vec![1, 2].into(), ..outcome(1, 1, 11) };
    bed.receive([refused, done, proto::Outcome { dropped: true, ..outcome(2, 1, 11) }]);
    let refusal = (7, Verdict::Reply(Status(0x0200), None));
    assert_eq!(bed.answers(), [refusal, (9, Verdict::NoReply)], "silence waits for nothing");
    assert_eq!((count(&bed.counters.outcomes), count(&bed.counters.held)), (3, 1));
    bed.machine.handle_version(version(1, 11));
    let record = Verdict::Reply(Status::OK, Some(vec![1, 2].into()));
    assert_eq!(bed.answers(), [(8, record)]);
    assert_eq!((count(&bed.counters.in_flight), count(&bed.counters.held)), (0, 0));
    bed.receive([outcome(0, 1, 12)]);
    assert!(bed.answers().is_empty(), "it was answered already");
}

/// Regression: a responder had reported to a new master what it held, and then
/// acknowledged a write that the former master had decided before and that arrived late: the
/// new session began without it.
#[test]
fn no_outcome_above_what_was_reported_to_a_new_master_is_acknowledged() {
    let mut bed = Bed::connected();
    bed.submit([5, 6, 7, 8]);
    bed.submit_barriers([9]);
    assert_eq!(bed.transmit(), Some(vec![0, 1, 2, 3, 4]));
    bed.receive([outcome(0, 1, 10)]);
    assert_eq!(bed.answered(), [5]);
    bed.receive([outcome(1, 1, 11), outcome(2, 1, 12)]);
    bed.machine.handle_version(version(1, 11));
    assert_eq!(bed.acknowledged.promise(version(1, 11)), 10, "what it has acknowledged so far");
    let reply = Verdict::Reply(Status::OK, None);
    assert_eq!(bed.answers(), [(6, reply.clone())], "it was reported");
    assert_eq!(bed.acknowledged.promise(version(1, 11)), 11);
    bed.machine.handle_version(version(1, 13));
    assert_eq!(bed.acknowledged.promise(version(1, 13)), 11, "the first promise stays");
    bed.receive([outcome(3, 1, 13), outcome(4, 1, 13)]);
    let silence = Verdict::NoReply;
    let expected = [(8, silence.clone()), (9, Verdict::Requery), (7, silence)];
    let mut answers = bed.answers();
    answers.sort_by_key(|(id, _)| *id);
    assert_eq!(answers.len(), 3);
    for answer in expected {
        assert!(answers.contains(&answer), "{answers:?}");
    }
    assert_eq!(count(&bed.counters.discarded), 2);

    // The next session, and this one once the promise has ended.
    bed.submit([1, 2]);
    bed.transmit();
    bed.machine.handle_version(version(2, 20));
    bed.receive([outcome(5, 2, 20)]);
    assert_eq!(bed.answers(), [(1, reply.clone())]);
    bed.acknowledged.release();
    bed.receive([outcome(6, 2, 20)]);
    assert_eq!(bed.answers(), [(2, reply)]);
}

#[test]
fn barriers_of_one_message_share_a_write() {
    let mut bed = Bed::connected();
    bed.submit_barriers([1, 2]);
    bed.submit([3]);
    bed.submit_barriers([4]);
    assert_eq!(bed.transmit(), Some(vec![0, 1]));
    bed.receive([outcome(0, 1, 10)]);
    let answers = bed.answers();
    assert!(answers.iter().all(|(_, verdict)| *verdict == Verdict::Requery), "{answers:?}");
    assert_eq!(answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 4, 1]);
}

#[test]
fn submissions_that_exceed_a_message_stay_in_their_queue() {
    let mut bed = Bed::connected();
    bed.submit(0..3 * BATCH_MAX as u64);
    for first in [0, BATCH_MAX] {
        let numbers = bed.transmit().unwrap();
        assert_eq!((numbers.len(), numbers[0]), (BATCH_MAX, first as u64));
    }
    assert_eq!(bed.transmit(), None, "two messages have no outcome");
    assert_eq!(bed.submissions.len(), BATCH_MAX);
    bed.receive([outcome(0, 1, 10)]);
    assert_eq!(bed.transmit().unwrap().len(), BATCH_MAX);
}

#[test]
fn a_silent_sm_delays_the_next_message_briefly_and_the_write_expires() {
    let mut bed = Bed::connected();
    for id in [1, 2] {
        bed.submit([id]);
        assert!(bed.transmit().is_some());
    }
    bed.submit([3]);
    assert_eq!(bed.transmit(), None);
    bed.run(STEP * 100);
    let with_barrier = Some(vec![2, 3]);
    assert_eq!(bed.transmit(), with_barrier, "the first two may never be answered");
    bed.receive([outcome(0, 1, 10)]);
    assert_eq!(bed.answered(), [1], "late, but in time for its client");
    bed.run(PATIENCE + EXPIRY_INTERVAL);
    assert_eq!((count(&bed.counters.given_up), count(&bed.counters.in_flight)), (2, 0));
    bed.receive([outcome(1, 1, 10)]);
    assert!(bed.answers().is_empty(), "its client has timed out");
    assert_eq!(bed.machine.poll_timeout(), None);
}

#[test]
fn a_submission_whose_client_has_timed_out_is_not_sent() {
    let mut bed = Bed::connected();
    bed.submit([1]);
    bed.run(PATIENCE + STEP);
    bed.submit([2]);
    assert_eq!(bed.transmit(), Some(vec![0, 1]), "a barrier and the second");
    assert_eq!((count(&bed.counters.given_up), count(&bed.counters.sent)), (1, 2));
    bed.receive([outcome(1, 1, 10)]);
    assert_eq!(bed.answered(), [2]);
}

#[test]
fn writes_in_flight_are_sent_again_on_the_next_stream_after_a_delay() {
    let mut bed = Bed::connected();
    bed.submit([1, 2, 3]);
    bed.transmit();
    bed.receive([outcome(1, 1, 10)]);
    bed.machine.handle_disconnect(bed.now);
    assert!(!bed.machine.poll_connect());
    bed.submit([4]);
    assert_eq!(bed.transmit(), None);
    bed.run(RETRY_DELAY);
    let again = bed.connect();
    assert_eq!(numbers(&again), [0, 2]);
    assert_eq!(&again.writes[1].mad[..], [3]);
    assert_eq!((count(&bed.counters.resent), count(&bed.counters.sent)), (2, 3));
    assert_eq!(bed.transmit(), Some(vec![3]));
    bed.receive([0, 2, 3].map(|number| outcome(number, 1, 10)));
    assert_eq!(bed.answered(), [2, 1, 3, 4]);
}

#[test]
fn writes_that_expired_without_a_stream_are_not_sent_again() {
    let mut bed = Bed::connected();
    bed.submit([1]);
    bed.transmit();
    bed.run(PATIENCE / 2);
    bed.submit([2]);
    bed.transmit();
    bed.machine.handle_disconnect(bed.now);
    bed.run(PATIENCE / 2 + STEP);
    assert_eq!(numbers(&bed.connect()), [1, 2], "a barrier and the second");
    assert_eq!(count(&bed.counters.given_up), 1);
}

/// Regression: a write that waited for a stream was sent again until two seconds after it was sent
/// first, when its client had given up and had deleted the record.
#[test]
fn a_write_is_sent_again_only_while_its_client_waits() {
    let mut bed = Bed::new();
    bed.submit([1]);
    bed.run(PATIENCE - STEP);
    bed.connect();
    assert_eq!(bed.transmit(), Some(vec![0]));
    bed.machine.handle_disconnect(bed.now);
    bed.run(RETRY_DELAY);
    assert_eq!(numbers(&bed.connect()), [0u64; 0]);
    assert_eq!(count(&bed.counters.given_up), 1);
}

#[test]
fn another_sm_gets_the_writes_in_flight_at_once() {
    let mut bed = Bed::connected();
    bed.submit([1]);
    bed.transmit();
    bed.machine.handle_upstream();
    assert_eq!(numbers(&bed.connect()), [0]);
}

#[test]
fn an_outcome_of_a_new_session_waits_for_tables_of_that_session() {
    let mut bed = Bed::connected();
    bed.submit([1]);
    bed.transmit();
    bed.machine.handle_upstream();
    bed.connect();
    bed.receive([outcome(0, 2, 10)]);
    assert!(bed.answers().is_empty(), "tables of the old session may lack the write");
    bed.machine.handle_version(version(2, 10));
    assert_eq!(bed.answered(), [1]);
    bed.submit([2]);
    let message = bed.machine.poll_transmit(bed.now, || bed.submissions.pop_front());
    assert_eq!(message.map(|message| message.epoch), Some(2));
}

#[test]
fn outcomes_that_the_tables_do_not_reach_are_bounded_and_counted() {
    let mut bed = Bed::connected();
    let total = HELD_MAX as u64 + 1;
    let mut next = 0;
    while next < total {
        bed.submit(next..next + BATCH_MAX as u64);
        let numbers = bed.transmit().unwrap();
        next += numbers.len() as u64;
        bed.receive(numbers.into_iter().map(|number| outcome(number, 2, 10)));
    }
    assert!(bed.answers().is_empty());
    assert_eq!(count(&bed.counters.held), next);
    bed.run(EXPIRY_INTERVAL);
    assert_eq!((count(&bed.counters.held), count(&bed.counters.discarded)), (0, next));
}

#[test]
fn no_more_writes_are_in_flight_than_allowed() {
    let mut bed = Bed::connected();
    let mut sent = 0;
    loop {
        bed.submit(0..BATCH_MAX as u64);
        let Some(numbers) = bed.transmit() else { break };
        sent += numbers.len();
        // Silence long enough for the next message, and too short for a write to expire.
        bed.run(Duration::from_millis(51));
    }
    assert_eq!(sent as u64, count(&bed.counters.in_flight));
    assert_eq!(sent, 16_384);
    assert_eq!(bed.submissions.len(), BATCH_MAX + 1, "one of them is a barrier");
}

/// Regression: reads of records that had been changed or deleted through another responder returned
/// the old ones while the feed was slow.
#[test]
fn reads_ask_the_sm_unless_the_tables_were_current_within_the_bound() {
    let mut bed = Bed::connected();
    assert_eq!(bed.machine.reads(), Reads::Ask);
    bed.run(Duration::ZERO);
    let asked = bed.now;
    assert_eq!(bed.transmit(), Some(vec![0]), "a message without submissions");
    bed.run(STEP);
    bed.receive([outcome(0, 1, 11)]);
    assert_eq!(bed.machine.reads(), Reads::Ask, "the tables lack a write");
    bed.machine.handle_version(version(1, 11));
    assert_eq!(bed.machine.reads(), Reads::AskFrom(asked + PROOF_AGE_MAX));
    assert!(bed.answers().is_empty(), "no worker asked");
    bed.run(PROOF_INTERVAL);
    assert_eq!(bed.transmit(), Some(vec![1]));
    // A registry that cannot decide proves nothing.
    let refused = proto::Outcome { status: Status::SA_NO_RESOURCES.0.into(), ..outcome(1, 1, 0) };
    bed.receive([refused]);
    assert_eq!(bed.machine.reads(), Reads::AskFrom(asked + PROOF_AGE_MAX));
    bed.machine.handle_disconnect(bed.now);
    assert_eq!(bed.machine.reads(), Reads::AsHeld);
}

#[test]
fn an_answer_confirms_the_fabric_that_it_names() {
    let mut bed = Bed::connected();
    let ask = |bed: &mut Bed, fabric_generation| {
        bed.run(PROOF_INTERVAL);
        let [number] = bed.transmit().unwrap()[..] else { panic!("a barrier") };
        bed.receive([proto::Outcome { fabric_generation, ..outcome(number, 1, 10) }]);
        bed.machine.confirmed().map(|confirmed| (confirmed.epoch, confirmed.at))
    };
    let asked = ask(&mut bed, 1);
    assert_eq!(asked, Some((1, bed.now)));
    assert_eq!(ask(&mut bed, 2), asked, "the tables lack it");
    assert_eq!(ask(&mut bed, 0), asked, "of an SM that names none");
    let version = Version { fabric_generation: 2, ..version(1, 10) };
    bed.machine.handle_version(version);
    assert!(bed.machine.confirmed().map(|confirmed| confirmed.at) > asked.map(|(_, at)| at));
}

/// Regression: an SM behind a connection that loses all packets kept reads waiting until their
/// clients gave up.
#[test]
fn reads_that_a_silent_sm_does_not_answer_are_answered_from_what_is_held() {
    let mut bed = Bed::connected();
    bed.run(Duration::ZERO);
    bed.submit_barriers([1, 2]);
    assert_eq!(bed.transmit(), Some(vec![0]), "they share a write");
    bed.submit([3]);
    assert_eq!(bed.transmit(), Some(vec![1]));
    bed.run(SILENCE_MAX);
    assert_eq!(bed.machine.reads(), Reads::AsHeld);
    assert_eq!(bed.answers(), [(1, Verdict::Requery), (2, Verdict::Requery)]);
    assert_eq!(count(&bed.counters.in_flight), 1, "the write waits");
    assert_eq!(bed.transmit(), Some(vec![2]), "it is tried again");
    bed.receive([outcome(2, 1, 10)]);
    assert_eq!(bed.machine.reads(), Reads::AskFrom(bed.now + PROOF_AGE_MAX));
}

/// Its next session may be that of another part of the fabric, whose manager would refuse them.
#[test]
fn writes_of_a_session_that_is_not_continued_reach_no_other_manager() {
    let mut bed = Bed::connected();
    bed.submit([1, 2]);
    assert_eq!(bed.transmit(), Some(vec![0, 1]));
    bed.receive([outcome(0, 1, 12)]);
    bed.machine.handle_version(Version::NONE);
    bed.machine.handle_upstream();
    bed.machine.handle_version(version(1, 12));
    assert!(bed.connect().writes.is_empty(), "nothing is sent again");
    assert_eq!(bed.answers(), [], "nor answered");
    // An outcome that is late belongs to no later write.
    bed.submit([3]);
    let numbers = bed.transmit().unwrap();
    assert!(!numbers.contains(&1), "{numbers:?}");
    assert_eq!(bed.machine.reads(), Reads::Ask, "nothing is proven");
}
