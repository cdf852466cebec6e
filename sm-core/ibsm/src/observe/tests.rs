use super::*;

use ib_mad::types::Guid;
use sa_proto::proto::snapshot as proto;
use sa_proto::snapshot::Session;

const SECOND: Duration = Duration::from_secs(1);

/// Responders that report once a second, and the observer's view of them.
struct Bed {
    observer: Observer,
    now: Instant,
    start: Instant,
    snapshot: Arc<Snapshot>,
    announced: Version,
    announcements: Announcements,
    responders: Vec<Responder>,
    hung: Vec<Hung>,
}

fn generation(fabric_generation: u64) -> Version {
    Version {
        session: Session { epoch: 1, sm_guid: Guid(0x10) },
        fabric_generation,
        registry_sequence: 0,
    }
}

impl Bed {
    fn new() -> Self {
        let start = Instant::now();
        let mut announcements = Announcements::default();
        announcements.note(generation(1), start);
        Self {
            observer: Observer::new(start),
            now: start,
            start,
            snapshot: Arc::new(Snapshot::empty()),
            announced: generation(1),
            announcements,
            responders: Vec::new(),
            hung: Vec::new(),
        }
    }

    fn connect(&mut self, id: u64, connection: u64) {
        let hello = proto::Hello {
            responder_id: id,
            name: format!("r{id}"),
            front_door: vec![format!("127.0.0.1:{}", 9 + id % 10)],
            ..Default::default()
        };
        let serving = Some(self.announced);
        let responder = Responder::new(&hello, serving, None, self.now, connection);
        self.responders.retain(|other| other.id != id);
        self.responders.push(responder);
    }

    /// Advances by a second, in which each responder reaches these totals of answered queries.
    fn second(&mut self, answered: &[u64]) -> Moment {
        self.now += SECOND;
        for (responder, &answered) in self.responders.iter_mut().zip(answered) {
            responder.figures = Some(Arc::new(Reported::of(proto::Figures {
                uptime_ns: (self.now - self.start).as_nanos() as u64,
                requests: answered + answered / 10,
                responses: answered,
                answers: vec![proto::Answers {
                    attribute: 0x35,
                    method: "get".into(),
                    status: "ok".into(),
                    count: answered,
                }],
                dropped: vec![proto::Counter { name: "stale".into(), value: answered / 10 }],
                latency: Some(proto::Latency {
                    bounds_ns: vec![1000, 2000],
                    counts: vec![0, answered],
                    sum_ns: 0,
                }),
                requesters: vec![proto::Requester { lid: 7, requests: answered }],
                ..Default::default()
            })));
        }
        self.look()
    }

    fn look(&mut self) -> Moment {
        let seen = Seen {
            responders: &self.responders,
            hung: &self.hung,
            snapshot: &self.snapshot,
            announced: self.announced,
            announcements: &self.announcements,
            sm: &SmStatus::default(),
            conditions: Vec::new(),
            counters: &[],
            uptime: SECOND,
            sweeps: &Sweeps::default(),
            time_ms: 1_000_000 + (self.now - self.start).as_millis() as u64,
        };
        self.observer.tick(self.now, &seen).expect("a second has passed")
    }
}

#[test]
fn rates_add_up_over_responders() {
    let mut bed = Bed::new();
    bed.connect(1, 1);
    bed.connect(2, 2);
    let first = bed.second(&[100, 1000]);
    assert_eq!(first.total.answers_per_s, None, "one report gives no rate");
    let moment = bed.second(&[300, 1100]);
    assert_eq!(moment.total.answers_per_s, Some(300.0));
    assert_eq!(moment.total.dropped_per_s, Some(30.0));
    assert_eq!(moment.total.p50_us, Some(1.5));
    assert_eq!((&moment.types[0].attribute[..], moment.types[0].per_s), ("PathRecord", 300.0));
    assert_eq!((moment.types[0].total, moment.drops[0].total), (1400, 140));
    let rates: Vec<_> = moment.responders.iter().map(|r| r.load.answers_per_s).collect();
    assert_eq!(rates, [Some(200.0), Some(100.0)]);
    assert_eq!(moment.talkers[0].lid, 7);
    assert_eq!(moment.talkers[0].node, "", "no port has that LID");
}

#[test]
fn a_disconnected_responder_is_down_and_a_returning_one_counts_again() {
    let mut bed = Bed::new();
    bed.connect(1, 1);
    bed.second(&[100]);
    assert_eq!(bed.second(&[200]).responders[0].state, Standing::Current);
    bed.responders.clear();
    bed.second(&[]);
    let moment = bed.second(&[]);
    let gone = &moment.responders[0];
    assert_eq!((gone.state, gone.for_s, &gone.name[..]), (Standing::Down, 1, "r1"));
    assert_eq!((gone.load.answers_per_s, moment.total.answers_per_s), (None, None));
    bed.connect(1, 2);
    assert_eq!(bed.second(&[5]).responders[0].load.answers_per_s, None);
    assert_eq!(bed.second(&[15]).responders[0].load.answers_per_s, Some(10.0));
    let history = bed.observer.history(Range::Seconds);
    let rates = [None, None, Some(100.0), None, None, None, Some(10.0)];
    assert_eq!(history.responders[0].load.answers_per_s, rates);
    assert_eq!((history.step_s, history.tick), (1, 6));
}

#[test]
fn a_responder_that_reports_nothing_is_silent_and_not_idle() {
    let mut bed = Bed::new();
    bed.connect(1, 1);
    bed.second(&[100]);
    bed.second(&[200]);
    let answered = |moment: Moment| moment.responders[0].load.answers_per_s;
    bed.now += SECOND;
    assert_eq!(answered(bed.look()), Some(100.0), "a report is valid for a while");
    bed.now += 3 * SECOND;
    let moment = bed.look();
    assert_eq!(moment.responders[0].state, Standing::Silent);
    assert_eq!(answered(moment), None);
}

#[test]
fn lag_grows_from_the_first_announcement_that_is_missed() {
    let mut bed = Bed::new();
    bed.connect(1, 1);
    bed.responders[0].lag = Some(Duration::from_millis(40));
    let responder = |moment: Moment| moment.responders[0].clone();
    assert_eq!(responder(bed.second(&[1])).load.lag_ms, Some(40.0), "it has just caught up");
    let idle = responder(bed.second(&[1]));
    assert_eq!((idle.load.lag_ms, idle.last_update_ms), (Some(0.0), Some(40.0)));
    for version in [2, 3] {
        bed.announced = generation(version);
        bed.announcements.note(bed.announced, bed.now + Duration::from_millis(100 * version));
    }
    let late = responder(bed.second(&[2]));
    assert_eq!((late.state, late.load.lag_ms), (Standing::Current, Some(800.0)));
    let later = responder(bed.second(&[3]));
    assert_eq!((later.state, later.load.lag_ms), (Standing::Behind, Some(1800.0)));
    // It has one of the two.
    bed.responders[0].serving = Some(generation(2));
    assert_eq!(responder(bed.second(&[4])).load.lag_ms, Some(2700.0));
    bed.responders[0].serving = Some(generation(3));
    assert_eq!(responder(bed.second(&[5])).state, Standing::Current);
}

#[test]
fn missed_seconds_are_unknown() {
    let mut bed = Bed::new();
    bed.connect(1, 1);
    bed.second(&[100]);
    bed.now += SECOND;
    bed.second(&[300]);
    let history = bed.observer.history(Range::Seconds);
    assert_eq!(history.total.answers_per_s, [None, None, None, Some(100.0)]);
    assert_eq!(history.types[0].per_s.len(), 4);
    // A suspended machine costs no more than the length of the history.
    bed.now += Duration::from_secs(400 * 24 * 3600);
    assert!(bed.second(&[400]).tick > 30_000_000);
    assert_eq!(bed.observer.history(Range::Minutes).total.answers_per_s.len(), COARSE);
}

/// Regression: a responder without a cache directory has a new identity
/// after each restart, and its previous ones were listed as `down` for a day.
#[test]
fn a_departed_responder_is_replaced_by_one_at_its_address_or_forgotten() {
    let mut bed = Bed::new();
    let standing = |moment: Moment| {
        moment.responders.iter().map(|one| (one.name.clone(), one.state)).collect::<Vec<_>>()
    };
    bed.connect(1, 1);
    bed.connect(2, 2);
    bed.second(&[1, 1]);
    bed.responders.clear();
    bed.connect(11, 3);
    let left = [("r11".to_owned(), Standing::Current), ("r2".to_owned(), Standing::Down)];
    assert_eq!(standing(bed.second(&[1])), left, "r11 listens where r1 did");
    for _ in 0..DOWN_REPORTED.as_secs() {
        bed.second(&[1]);
    }
    assert_eq!(standing(bed.second(&[1])), left[..1]);
}

/// A responder whose process is stopped stays connected.
#[test]
fn a_hung_responder_is_a_problem_and_so_is_one_that_went() {
    let mut bed = Bed::new();
    bed.connect(1, 1);
    bed.connect(2, 2);
    bed.second(&[1, 1]);
    let ids = |bed: &Bed| -> Vec<_> {
        bed.observer.problems().listed.iter().map(|problem| problem.id.clone()).collect()
    };
    assert!(ids(&bed).is_empty(), "{:?}", ids(&bed));
    // The first reports on; the second does not.
    let mut counts = ProblemCounts::default();
    for total in 2..8 {
        counts = bed.second(&[total]).problems;
    }
    let id = format!("responder_hung/responder r2 ({:#018x})", 2);
    assert_eq!(ids(&bed), std::slice::from_ref(&id));
    assert_eq!((counts.critical, counts.warning), (1, 0));
    // Regression: once its connection was closed because it was silent, a second later, it was
    // reported as not connected any more, and so as if somebody had stopped it.
    let gone = bed.responders.pop().unwrap();
    bed.hung = vec![Hung { id: 2, front_door: gone.front_door.clone() }];
    for total in 8..2 * DOWN_REPORTED.as_secs() {
        bed.second(&[total]);
    }
    assert_eq!(ids(&bed), std::slice::from_ref(&id));
    // Its host says that the process has ended.
    bed.hung.clear();
    bed.responders.push(gone);
    bed.second(&[2_000, 8]);
    bed.responders.pop();
    let counts = bed.second(&[2_001]).problems;
    assert!(ids(&bed).is_empty() && counts.critical == 0, "{:?}", ids(&bed));
    for total in 2_002..2_014 {
        bed.second(&[total]);
    }
    assert_eq!(ids(&bed), [format!("responder_down/responder r2 ({:#018x})", 2)]);
}

#[test]
fn a_counter_that_grows_is_a_problem() {
    let mut bed = Bed::new();
    let counters = [("calls_refused", 3)];
    let seen = Seen {
        responders: &[],
        hung: &[],
        snapshot: &bed.snapshot,
        announced: bed.announced,
        announcements: &bed.announcements,
        sm: &SmStatus::default(),
        conditions: vec![Condition::new(Kind::CutOff, problem::Subject::subnet(), "no link")],
        counters: &counters,
        uptime: SECOND,
        sweeps: &Sweeps::default(),
        time_ms: 5,
    };
    let moment = bed.observer.tick(bed.now, &seen).unwrap();
    let kinds: Vec<_> = moment.problems.opened.iter().map(|one| &one.kind[..]).collect();
    assert_eq!(kinds, ["cut_off", "access_refused"]);
}
