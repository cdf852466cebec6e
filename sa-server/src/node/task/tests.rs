//! Tasks with an agent, a finder and a manager that the test simulates.

use std::sync::Mutex;

use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session, Subnet};
use tokio_stream::wrappers::ReceiverStream;

use super::super::lock;
use super::super::turns::Turns;
use super::*;
use crate::node::service::Contact;
use crate::tables::cell::Generation;
use crate::tables::fabric::Tables;

const PORT: Guid = Guid(7);
const ME: Share = Share::User(7);
const SESSION: Session = Session { epoch: 3, sm_guid: Guid(1) };

/// A responder, and when the manager of [`SESSION`] was asked.
struct Bed {
    shared: Arc<Shared>,
    jobs: mpsc::Receiver<Job>,
    asked: Arc<Mutex<Option<Instant>>>,
}

impl Bed {
    fn new() -> Self {
        let (sender, jobs) = mpsc::channel(1);
        let asked = Arc::new(Mutex::new(None));
        let of_manager = Arc::clone(&asked);
        let contact: Contact =
            Arc::new(move |session| lock(&of_manager).filter(|_| session == SESSION));
        let shared = Shared::new(Arc::default(), Arc::default(), sender, contact);
        Self { shared: Arc::new(shared), jobs, asked }
    }

    fn set_asked(&self, at: Instant) {
        *lock(&self.asked) = Some(at);
    }

    /// Publishes other tables, without ports.
    fn publish(&self, fabric_generation: u64) {
        let registry = Arc::new(RegistryPlane::default());
        let subnet = Subnet { prefix: fabric_generation, ..Subnet::default() };
        let plane = FabricPlane { subnet, ..FabricPlane::default() };
        let tables = Arc::new(Tables::build(&plane, &registry));
        let version = Version { session: SESSION, fabric_generation, ..Version::NONE };
        let generation = Arc::new(Generation::new(version, tables, registry));
        lock(&self.shared.publisher).publish(generation);
        self.shared.follow();
    }

    /// Finds the paths of the agent that waits.
    async fn find(&mut self) {
        self.find_in_turn(&Turns::new()).await;
    }

    async fn find_in_turn(&mut self, turns: &Arc<Turns>) {
        let Job { mut follower, share, done, .. } = self.jobs.recv().await.expect("a task");
        let turn = turns.begin(share, Instant::now()).expect("a turn");
        let messages = self.update(&mut follower);
        assert!(done.send((follower, Some((messages, turn)))).is_ok());
    }

    fn update(&self, follower: &mut Follower) -> crate::node::Messages {
        let mut reader = self.shared.reader();
        let generation = reader.current().expect("a generation");
        follower.update(&self.shared.halves, generation, self.shared.halves.number())
    }

    fn updates(&self) -> u64 {
        self.shared.counters.updates.load(Relaxed)
    }
}

type Messages = mpsc::Receiver<Result<proto::Update, Status>>;

fn task(bed: &Bed, room: usize, arrived: Instant) -> (Task, Messages, mpsc::Sender<Ping>) {
    let (outbound, messages) = mpsc::channel(room);
    let (pings, requests) = mpsc::channel(64);
    let requests = Box::pin(ReceiverStream::new(requests));
    let task = Task::new(Arc::clone(&bed.shared), ME, outbound, (1, arrived), requests);
    (task, messages, pings)
}

type Ping = Result<proto::FollowRequest, Status>;

async fn next(messages: &mut Messages) -> Kind {
    messages.recv().await.expect("the task runs").expect("no error").kind.expect("a message")
}

/// The next message that is no heartbeat.
async fn next_change(messages: &mut Messages) -> Kind {
    loop {
        match next(messages).await {
            Kind::Heartbeat(_) => {}
            kind => return kind,
        }
    }
}

/// Regression: an update that was given up for a newer one counted as sent.
#[tokio::test]
async fn an_update_counts_when_its_end_was_sent() {
    let mut bed = Bed::new();
    bed.publish(1);
    // Room for the terms alone: Current waits until they are read.
    let (task, mut messages, _pings) = task(&bed, 1, Instant::now());
    let running = tokio::spawn(task.run(Follower::new(PORT)));
    bed.find().await;
    bed.publish(2);
    assert!(matches!(next_change(&mut messages).await, Kind::Terms(_)));
    bed.find().await;
    assert!(matches!(next_change(&mut messages).await, Kind::Terms(_)), "another prefix");
    let Kind::Current(current) = next_change(&mut messages).await else { panic!() };
    assert_eq!((current.generation, bed.updates()), (2, 1));
    running.abort();
}

/// Regression: an agent that read nothing kept its turn for 5 s, and all others waited.
#[tokio::test]
async fn an_agent_that_does_not_read_gives_its_turn_back_and_may_read_on() {
    let mut bed = Bed::new();
    bed.publish(1);
    let (task, mut messages, _pings) = task(&bed, 1, Instant::now());
    let running = tokio::spawn(task.run(Follower::new(PORT)));
    let turns = Turns::new();
    let begun = Instant::now();
    bed.find_in_turn(&turns).await;
    while bed.shared.counters.behind.load(Relaxed) == 0 {
        assert!(begun.elapsed() < PATIENCE, "it keeps its turn");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let now = Instant::now();
    assert!(!turns.is_served(ME, now) && turns.begin(Share::User(8), now).is_ok());
    assert!(matches!(next_change(&mut messages).await, Kind::Terms(_)));
    assert!(matches!(next_change(&mut messages).await, Kind::Current(_)));
    assert_eq!((bed.updates(), bed.shared.counters.slow.load(Relaxed)), (1, 0));
    running.abort();
}

#[tokio::test]
async fn a_confirmation_is_stated_from_the_arrival_of_the_last_ping() {
    const MS: Duration = Duration::from_millis(1);
    let mut bed = Bed::new();
    bed.publish(1);
    let arrived = Instant::now();
    bed.set_asked(arrived + 1700 * MS / 10);
    let (mut task, mut messages, pings) = task(&bed, 8, arrived);
    assert_eq!(task.confirmation(arrived - 15 * MS / 10).after_ms, -2, "rounded down");
    task.beat(None);
    let Kind::Heartbeat(beat) = next(&mut messages).await else { panic!() };
    assert_eq!(beat.confirmation, Some(proto::Confirmation { ping: 1, after_ms: 170 }));
    let running = tokio::spawn(task.run(Follower::new(PORT)));
    bed.find().await;
    for number in 2..50 {
        let request = proto::FollowRequest { ping: number, ..Default::default() };
        pings.send(Ok(request)).await.expect("the task runs");
    }
    let (mut last, mut beats) = (1, 0);
    while last < 3 {
        if let Kind::Heartbeat(beat) = next(&mut messages).await {
            let ping = beat.confirmation.expect("it was confirmed").ping;
            assert!(ping - last <= 1, "one between two heartbeats");
            (last, beats) = (ping, beats + 1);
        }
    }
    assert!(beats >= 3);
    running.abort();
}

/// Tables that agents have not heard of may be confirmed; what agents answer from is not, then.
#[tokio::test]
async fn an_agent_whose_paths_may_have_changed_is_not_confirmed() {
    let bed = Bed::new();
    bed.publish(1);
    bed.set_asked(Instant::now());
    let (mut task, mut messages, _pings) = task(&bed, 8, Instant::now());
    let mut follower = Follower::new(PORT);
    bed.update(&mut follower);
    let mut is_confirmed = async |task: &mut Task, follower: Option<&Follower>| {
        task.beat(follower);
        let Kind::Heartbeat(beat) = next(&mut messages).await else { panic!() };
        (beat.generation, beat.confirmation.is_some())
    };
    assert_eq!(is_confirmed(&mut task, Some(&follower)).await, (1, true));
    bed.publish(2);
    assert_eq!(is_confirmed(&mut task, Some(&follower)).await, (1, false));
    // One that does not answer learns that its responder is up to date.
    assert_eq!(is_confirmed(&mut task, None).await, (1, true));
    let due = Instant::now() + PATIENCE;
    let turn = Turns::new().begin(ME, Instant::now()).expect("a turn");
    let mut reading = Reading::new(turn, ME);
    let sent = task.send_current(proto::Current::default(), &follower, due, &mut reading).await;
    assert_eq!(sent.ok(), Some(false));
    bed.update(&mut follower);
    assert_eq!(is_confirmed(&mut task, Some(&follower)).await, (2, true));
}
