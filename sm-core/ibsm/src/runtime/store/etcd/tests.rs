//! Against a real cluster: what every store promises, and what only this one has to.

use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::encoding::Canonical as _;
use sa_proto::state::{Document, Kind};
use sm_core::manage::lid::LidTable;

use super::layout::{
    Fence, Head, Keys, PIECE_LEN, SCHEMA, Tables, one, page, read_head, take_fence,
};
use super::model::{EtcdLink, EtcdModel};
use super::task::found;
use super::testing::{Cluster, Prefix, Proxy, await_that};
use super::*;
use crate::cli::{EtcdLocation, EtcdTls};
use crate::clock::HostClock;
use crate::node::{LIDS, M_KEYS, MasterState, NEIGHBOURS};
use crate::publish::StateBoard;
use crate::runtime::follow::Progress;
use crate::runtime::store::Stored;
use crate::runtime::store::conformance::{
    self, Bed, SESSION, aliases, changes, commit, event_of, opened,
};

const OTHER: Session = Session { epoch: 9, sm_guid: Guid(2) };

#[test]
fn etcd_keeps_the_promises_of_a_store() {
    let Some(cluster) = Cluster::start() else { return };
    conformance::what_was_committed_is_read_back(&cluster.prefix("/read-back"));
    conformance::a_commit_that_failed_is_there_as_a_whole_or_not_at_all(&cluster.prefix("/fail"));
    conformance::a_commit_of_any_size_is_one(&cluster.prefix("/size"));
    conformance::many_commits_are_read_back_in_their_order(&cluster.prefix("/many"));
    conformance::only_one_holder_commits(&cluster.prefix("/holder"));
}

/// A model of a cluster, behind links that lose nothing or one message in twenty.
struct Modelled {
    model: Arc<EtcdModel>,
    lost_of: u64,
}

impl Modelled {
    fn new(lost_of: u64) -> Self {
        Self { model: EtcdModel::new(Arc::new(HostClock::open())), lost_of }
    }
}

impl Bed for Modelled {
    fn store(&self) -> Box<dyn Store> {
        let link = EtcdLink::new(&self.model, Duration::from_micros(100), 7);
        link.set_losses(self.lost_of);
        Box::new(EtcdStore::start_on(link, 200_000, None).unwrap())
    }
}

/// So that what holds with the model in the simulation holds with etcd.
mod model {
    use super::*;

    conformance::conformance_tests!(Some(Modelled::new(0)));

    #[test]
    fn commits_are_one_whatever_is_lost() {
        let bed = Modelled::new(20);
        conformance::only_one_holder_commits(&bed);
    }
}

/// A member that is stopped: a request for a single key goes to the next one soon.
#[test]
fn a_silent_member_is_left_after_a_second() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = vec![silent.local_addr().unwrap().to_string()];
    let location = EtcdLocation { endpoints, prefix: String::new(), tls: None };
    let status = Arc::new(EtcdStatus::new(location.endpoints.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let failure = runtime.block_on(async {
        let client = Client::new(&location, &status).unwrap();
        client.range(one(Keys::new("/x").fence())).await.unwrap_err()
    });
    assert!(failure.to_string().contains("no answer for 1 s"), "{failure}");
}

/// Regression: a request to make tables valid that had no answer, and was carried out after the
/// next ones were valid, deleted those.
async fn tables_are_not_replaced_by_those_before(client: Client, prefix: &str) {
    let keys = Keys::new(prefix);
    let lease = client.grant(60).await.unwrap().id;
    let taken = client.txn(&take_fence(&keys, lease, "a manager")).await.unwrap();
    let fence = Fence { revision: taken.header.unwrap().revision, lease };
    let mut requests = Vec::new();
    for number in [1, 2] {
        let tables = Tables::new(number, vec![number as u8; 10].into());
        let mut as_of = 0;
        for piece in tables.pieces(&keys, fence) {
            as_of = client.txn(&piece).await.unwrap().header.unwrap().revision;
        }
        let replacement = tables.replace(&keys, fence, as_of);
        assert!(client.txn(&replacement.request).await.unwrap().succeeded);
        let again = client.txn(&replacement.request).await.unwrap();
        assert!(!again.succeeded && replacement.was_made(&found(&again)), "its answer was lost");
        requests.push(replacement);
    }
    let late = client.txn(&requests[0].request).await.unwrap();
    assert!(!late.succeeded && !requests[0].was_made(&found(&late)));
    let head = client.range(one(keys.head())).await.unwrap();
    assert_eq!(read_head(Some(&head.kvs[0].value)), Ok(Head { number: 2, pieces: 1 }));
    assert_eq!(client.range(page(keys.table(2))).await.unwrap().kvs.len(), 1);
    client.revoke(lease).await.unwrap();
}

#[test]
fn tables_are_not_replaced_by_those_before_them() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let link = EtcdLink::new(&Modelled::new(0).model, Duration::ZERO, 7);
        tables_are_not_replaced_by_those_before(Client::Model(link), "/late").await;
        let Some(cluster) = Cluster::start() else { return };
        let location = cluster.location("/late");
        let status = Arc::new(EtcdStatus::new(location.endpoints.clone()));
        let client = Client::new(&location, &status).unwrap();
        tables_are_not_replaced_by_those_before(client, "/late").await;
    });
}

/// What a store that leads reports first: everything.
fn led(store: &mut dyn Store, session: Session) -> Stored {
    store.lead(Some(session));
    loop {
        match event_of(store) {
            Event::Opened(stored) => return *stored,
            Event::Copied(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A manager that commits one number after the other and remembers which were acknowledged.
struct Writer {
    store: EtcdStore,
    session: Session,
    open: bool,
    /// The commit under way.
    pending: Option<u64>,
    acknowledged: Vec<(Instant, u64)>,
    /// Sequence number of the rows known.
    sequence: u64,
    next: u64,
}

impl Writer {
    fn new(store: EtcdStore, session: Session) -> Self {
        let next = session.epoch << 32;
        let acknowledged = Vec::new();
        let mut writer =
            Self { store, session, open: false, pending: None, acknowledged, sequence: 0, next };
        writer.store.open();
        writer.store.lead(Some(session));
        writer
    }

    /// Does what can be done now.
    fn step(&mut self) {
        match self.store.poll() {
            Some(Event::Opened(stored)) => {
                (self.open, self.pending) = (true, None);
                self.sequence = stored.plane.sequence;
            }
            Some(Event::Committed) => {
                let number = self.pending.take().expect("one was under way");
                self.acknowledged.push((Instant::now(), number));
            }
            Some(Event::Failed(_)) => {
                (self.open, self.pending) = (false, None);
                self.store.open();
            }
            Some(Event::Copied(_)) | None => {}
        }
        if self.open && self.pending.is_none() {
            self.next += 1;
            self.sequence += 1;
            self.pending = Some(self.next);
            self.store.submit(&Arc::new(changes(self.sequence, [self.next], [])), self.session);
        }
    }
}

fn run(writers: &mut [&mut Writer], time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        writers.iter_mut().for_each(|writer| writer.step());
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What a third manager finds afterwards must be everything that was acknowledged.
fn all_are_there(bed: &Prefix<'_>, writers: Vec<Writer>) {
    let acknowledged: Vec<Vec<_>> =
        writers.iter().map(|writer| writer.acknowledged.clone()).collect();
    drop(writers);
    let mut last = bed.store();
    last.open();
    let stored = led(&mut *last, Session { epoch: 99, sm_guid: Guid(9) });
    let there = aliases(&stored.plane);
    for (_, number) in acknowledged.iter().flatten() {
        assert!(there.binary_search(number).is_ok(), "{number:x} was acknowledged and is lost");
    }
}

/// Members are killed, stopped and cut off, one at a time and two at a time, under load.
#[test]
fn no_acknowledged_commit_is_lost_whatever_happens_to_members() {
    let Some(mut cluster) = Cluster::start() else { return };
    let link = cluster.link();
    let mut writer = Writer::new(cluster.prefix("/members").store_by(&link), SESSION);
    run(&mut [&mut writer], Duration::from_secs(1));
    let mut before = writer.acknowledged.len();
    assert!(before > 10, "{before} commits in a second");
    let mut goes_on = |writer: &mut Writer, what: &str| {
        await_that(what, || {
            writer.step();
            writer.acknowledged.len() > before + 10
        });
        before = writer.acknowledged.len();
    };
    for (at, proxy) in link.iter().enumerate() {
        cluster.kill_member(at);
        goes_on(&mut writer, "one of three members is dead");
        cluster.start_member(at);
        goes_on(&mut writer, "it is back");
        cluster.pause_member(at, true);
        goes_on(&mut writer, "one of three members is stopped");
        cluster.pause_member(at, false);
        proxy.cut(true);
        goes_on(&mut writer, "one of three members cannot be reached");
        proxy.cut(false);
    }
    // Without a majority nothing is acknowledged; afterwards it goes on.
    cluster.pause_member(0, true);
    cluster.pause_member(1, true);
    let mut count = usize::MAX;
    // What both had received is still answered.
    await_that("nothing is acknowledged", || {
        run(&mut [&mut writer], Duration::from_secs(1));
        std::mem::replace(&mut count, writer.acknowledged.len()) == writer.acknowledged.len()
    });
    run(&mut [&mut writer], Duration::from_secs(2));
    assert_eq!(writer.acknowledged.len(), count, "two of three members do not answer");
    cluster.pause_member(0, false);
    cluster.pause_member(1, false);
    goes_on(&mut writer, "all are back");
    all_are_there(&cluster.prefix("/members"), vec![writer]);
}

/// Two managers that both hold themselves for the master, and lose the way to etcd in turn.
#[test]
fn of_two_masters_only_the_holder_of_the_fence_acknowledges() {
    let Some(cluster) = Cluster::start() else { return };
    let links = [cluster.link(), cluster.link()];
    let bed = cluster.prefix("/two");
    let cut = |link: &[Proxy], is: bool| link.iter().for_each(|proxy| proxy.cut(is));
    let mut one = Writer::new(bed.store_by(&links[0]), SESSION);
    run(&mut [&mut one], Duration::from_secs(1));
    let mut two = Writer::new(bed.store_by(&links[1]), OTHER);
    run(&mut [&mut one, &mut two], Duration::from_secs(5));
    assert!(two.acknowledged.is_empty(), "the fence is never taken from a living holder");
    for turn in 0..2 {
        let (from, to) = if turn == 0 { (0, 1) } else { (1, 0) };
        let since = Instant::now();
        cut(&links[from], true);
        let mut pair = [&mut one, &mut two];
        let count = pair[to].acknowledged.len();
        await_that("the other one takes over", || {
            pair.iter_mut().for_each(|writer| writer.step());
            pair[to].acknowledged.len() > count
        });
        let took = since.elapsed();
        assert!(took < Duration::from_secs(8), "{took:?}");
        cut(&links[from], false);
        run(&mut pair, Duration::from_secs(2));
        let first = pair[to].acknowledged[count].0;
        let late = pair[from].acknowledged.iter().filter(|(at, _)| *at > first).count();
        assert_eq!(late, 0, "commits of the former holder were acknowledged");
    }
    all_are_there(&bed, vec![one, two]);
}

/// A holder that ends in order gives the fence back; one that dies is waited for.
#[test]
fn the_fence_is_free_at_once_after_an_orderly_end() {
    let Some(cluster) = Cluster::start() else { return };
    let bed = cluster.prefix("/orderly");
    let mut first = bed.store();
    assert!(led(&mut *first, SESSION).fresh);
    commit(&mut *first, &changes(1, [1], []), SESSION).unwrap();
    let mut second = bed.store();
    second.open();
    second.lead(Some(OTHER));
    await_that("the second waits", || matches!(second.poll(), Some(Event::Copied(_))));
    let since = Instant::now();
    first.lead(None);
    let stored = led(&mut *second, OTHER);
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    assert_eq!((aliases(&stored.plane), stored.session), (vec![1], SESSION));
    // The first one reads what the second commits.
    commit(&mut *second, &changes(2, [2], []), OTHER).unwrap();
    await_that("the standby reads it", || match first.poll() {
        Some(Event::Copied(copy)) => copy.session == OTHER && aliases(&copy.plane) == [1, 2],
        _ => false,
    });
}

/// The tables replace the log while commits go on, and a standby that lags reads them.
#[test]
fn the_log_stays_short() {
    let Some(cluster) = Cluster::start() else { return };
    let bed = cluster.prefix("/short");
    let link = cluster.link();
    let mut store = bed.store_by(&link);
    store.open();
    led(&mut store, SESSION);
    let status = store.status();
    for sequence in 1..=200 {
        let all = changes(sequence, 0..500, [sequence + 1000]);
        commit(&mut store, &all, SESSION).unwrap();
    }
    let checkpoints = status.view().totals[2];
    assert!(checkpoints >= 5, "{checkpoints}");
    drop(store);
    let stored = opened(&mut *bed.store());
    assert_eq!((stored.plane.sequence, stored.plane.alias_guids.len()), (200, 500));
}

/// A certificate for these names and its key, in PEM.
fn issued(issuer: &rcgen::Issuer<'_, rcgen::KeyPair>, names: &[&str]) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, issuer);
    (certificate.unwrap().pem(), key.serialize_pem())
}

fn authority() -> (rcgen::Issuer<'static, rcgen::KeyPair>, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().pem();
    (rcgen::Issuer::new(params, key), certificate)
}

#[test]
fn with_tls_members_and_managers_show_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let (ca, ca_pem) = authority();
    let (certificate, key) = issued(&ca, &["127.0.0.1"]);
    let files = [("ca", &ca_pem), ("certificate", &certificate), ("key", &key)];
    let files = files.map(|(name, text)| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let (own, own_key) = issued(&ca, &["sm1"]);
    let identity = Some((own.into_bytes(), own_key.into_bytes()));
    let tls = EtcdTls { ca: ca_pem.into_bytes(), identity };
    let Some(cluster) = Cluster::start_with(Some((files, tls.clone()))) else { return };
    let bed = cluster.prefix("/tls");
    let mut store = bed.store();
    assert!(opened(&mut *store).fresh);
    commit(&mut *store, &changes(1, [1], []), SESSION).unwrap();
    let (_, stranger) = authority();
    let without = EtcdTls { identity: None, ..tls.clone() };
    let elsewhere = EtcdTls { ca: stranger.into_bytes(), ..tls };
    for tls in [Some(without), Some(elsewhere), None] {
        let location = EtcdLocation { tls, ..cluster.location("/tls") };
        let mut store = EtcdStore::start(&location, None).unwrap();
        store.open();
        assert!(store.poll_within(Duration::from_secs(2)).is_none(), "{location:?}");
        assert!(store.status().view().failure.is_some());
    }
}

/// A manager's side of the state besides the registry.
struct Side {
    board: Arc<StateBoard>,
    received: Arc<Progress>,
    shared: Arc<SharedState>,
}

impl Side {
    fn new(keeps_texts: bool) -> Self {
        let (board, received): (Arc<StateBoard>, Arc<Progress>) = Default::default();
        let shared = SharedState::new(board.clone(), received.clone(), keeps_texts);
        Self { board, received, shared }
    }

    fn state(&self) -> Option<Arc<MasterState>> {
        self.received.followed().master_state
    }

    /// Whether this table of LIDs was read.
    fn has_lids(&self, text: &str) -> bool {
        self.state().is_some_and(|state| state.lids().render() == LidTable::parse(text).0.render())
    }
}

#[test]
fn lids_keys_links_and_files_reach_other_managers_and_outlive_their_master() {
    let Some(cluster) = Cluster::start() else { return };
    let bed = cluster.prefix("/state");
    let (master, standby) = (Side::new(false), Side::new(false));
    let mut store = bed.store_of(&master.shared);
    store.open();
    assert!(master.shared.await_first(Duration::from_secs(60)));
    led(&mut store, SESSION);
    master.board.set_file(LIDS, "0x10 1 1\n".to_owned());
    let ends = (0..30_000).map(|n| (format!("0x1{n:05}:1"), format!("0x2{n:05}:1")));
    let links: String = ends.map(|(a, b)| format!("{a} {b}\n\n{b} {a}\n\n")).collect();
    assert!(links.len() > PIECE_LEN);
    master.board.set_file(NEIGHBOURS, links);
    let file = |text: &'static str| {
        let name = "partition_config_file";
        vec![(name.to_owned(), Some(Document::new(Kind::OperatorsFile, name, text)))]
    };
    master.board.set_operators_files(file("Default=0x7fff;"));
    let mut second = bed.store_of(&standby.shared);
    second.open();
    await_that("the standby has all", || {
        standby.has_lids("0x10 1 1")
            && standby
                .state()
                .is_some_and(|state| state.neighbours().len() == 60_000 && state.files.len() == 1)
    });
    let state = standby.state().unwrap();
    assert_eq!(state.version.session, SESSION);
    assert!(state.files.values().all(|file| file.exists() && file.text.is_none()));
    let pieces = bed.text_keys();
    // What is replaced does not stay.
    master.board.set_file(LIDS, "0x10 1 1\n0x20 2 2\n".to_owned());
    await_that("the change arrives", || standby.has_lids("0x10 1 1\n0x20 2 2"));
    assert_eq!(bed.text_keys(), pieces);
    // The master dies. Its successor has its own, and the text of the operator's file.
    drop(store);
    let heir = Side::new(true);
    let mut third = bed.store_of(&heir.shared);
    third.open();
    await_that("the successor has it", || heir.has_lids("0x10 1 1\n0x20 2 2"));
    heir.board.set_file(LIDS, "0x30 3 3\n".to_owned());
    heir.board.set_operators_files(file("Default=0x7fff, ipoib;"));
    led(&mut third, OTHER);
    await_that("the successor's arrives", || {
        let has_text = |file: &Arc<Document>| file.text.is_some();
        standby.has_lids("0x30 3 3")
            && standby.state().is_some_and(|state| state.files.values().any(has_text))
    });
    assert_eq!(standby.state().unwrap().version.session, OTHER);
}

/// A manager that led before it could read etcd does not erase what others left there.
#[test]
fn what_a_manager_never_read_stays() {
    let Some(cluster) = Cluster::start() else { return };
    let bed = cluster.prefix("/unread");
    let (before, blind, reader) = (Side::new(false), Side::new(false), Side::new(false));
    let mut store = bed.store_of(&before.shared);
    store.open();
    before.board.set_file(LIDS, "0x10 1 1\n0x20 2 2\n".to_owned());
    before.board.set_file(M_KEYS, "0x10 0xabc\n".to_owned());
    led(&mut store, SESSION);
    let mut third = bed.store_of(&reader.shared);
    third.open();
    await_that("it is kept", || reader.has_lids("0x10 1 1\n0x20 2 2"));
    drop(store);
    blind.board.set_file(LIDS, "0x20 1 1\n0x30 3 3\n".to_owned());
    let mut documents = blind.shared.documents().1;
    let kept = reader.state().unwrap();
    let known = [(LIDS, kept.lids().render()), (M_KEYS, "0x10 0xabc\n".to_owned())];
    let known = known.map(|(name, text)| {
        (name.to_owned(), Arc::new(Document::new(Kind::StateFile, name, text)))
    });
    state::add_known(&mut documents, &known.into());
    let text =
        |name: &str| String::from_utf8(documents[name].text.clone().unwrap().into()).unwrap();
    let lids = LidTable::parse("0x20 1 1\n0x30 3 3\n").0;
    assert_eq!(text(LIDS), lids.render(), "0x10 lost its LID to another");
    assert!(text(M_KEYS).contains("abc"));
}

/// Stores with a state besides the registry, in a model of a cluster.
impl Modelled {
    fn store_of(&self, side: &Side) -> EtcdStore {
        let link = EtcdLink::new(&self.model, Duration::from_micros(100), 7);
        EtcdStore::start_on(link, 200_000, Some(side.shared.clone())).unwrap()
    }
}

/// Regression: the documents of a write counted as kept before they were written. After a change
/// of masters in the middle of it the next write left their texts out, and no manager could read
/// the state any more.
#[test]
fn texts_that_were_not_written_do_not_count_as_kept() {
    let bed = Modelled::new(0);
    let (master, standby) = (Side::new(false), Side::new(false));
    master.board.set_file(LIDS, "0x10 1 1\n".to_owned());
    bed.model.refuse(None, Some("/document/"));
    let mut store = bed.store_of(&master);
    store.open();
    led(&mut store, SESSION);
    await_that("the write is refused", || store.status().view().behind[0].is_some());
    store.lead(None);
    await_that("it stands by", || store.status().view().behind[0].is_none());
    bed.model.refuse(None, None);
    led(&mut store, OTHER);
    let mut second = bed.store_of(&standby);
    second.open();
    await_that("the standby has it", || standby.has_lids("0x10 1 1"));
}

/// Regression: a master whose read of the state failed took it for empty, and replaced what others
/// had left.
#[test]
fn a_state_that_cannot_be_read_is_not_an_empty_one() {
    let bed = Modelled::new(0);
    let (before, blind, reader) = (Side::new(false), Side::new(false), Side::new(false));
    before.board.set_file(LIDS, "0x10 1 1\n".to_owned());
    let mut first = bed.store_of(&before);
    first.open();
    led(&mut first, SESSION);
    let mut third = bed.store_of(&reader);
    third.open();
    await_that("it is kept", || reader.has_lids("0x10 1 1"));
    drop(first);
    bed.model.refuse(Some("/state"), None);
    blind.board.set_file(LIDS, "0x30 3 3\n".to_owned());
    let mut second = bed.store_of(&blind);
    second.open();
    led(&mut second, OTHER);
    // Longer than the interval in which it writes.
    std::thread::sleep(Duration::from_millis(1500));
    bed.model.refuse(None, None);
    await_that("both are there", || reader.has_lids("0x10 1 1\n0x30 3 3"));
}

/// Regression: etcd refused commits and the state, and no problem said so: a warning came only of
/// requests without an answer.
#[test]
fn what_etcd_refuses_to_write_is_reported_and_written_later() {
    let bed = Modelled::new(0);
    let (master, standby) = (Side::new(false), Side::new(false));
    let mut store = bed.store_of(&master);
    store.open();
    led(&mut store, SESSION);
    let status = store.status();
    bed.model.refuse(None, Some("/"));
    master.board.set_file(LIDS, "0x10 1 1\n".to_owned());
    store.submit(&Arc::new(changes(1, [1], [])), SESSION);
    await_that("both are reported", || {
        let view = status.view();
        view.refused.is_some() && view.behind[0].is_some()
    });
    let view = status.view();
    assert!(view.refused.unwrap().contains("etcdserver: no space"));
    bed.model.refuse(None, None);
    assert!(matches!(event_of(&mut store), Event::Committed));
    let mut second = bed.store_of(&standby);
    second.open();
    await_that("the standby has it", || standby.has_lids("0x10 1 1"));
    await_that("it is over", || {
        let view = status.view();
        view.refused.is_none() && view.behind[0].is_none()
    });
}

/// Regression: a state that no one can read was logged as an error each second.
#[test]
fn a_damaged_state_is_replaced_by_a_master() {
    let bed = Modelled::new(0);
    let (master, standby) = (Side::new(false), Side::new(false));
    let mut second = bed.store_of(&standby);
    let mut torn = Vec::new();
    SCHEMA.put(&mut torn);
    bed.model.put_raw("/model/state", &torn);
    second.open();
    await_that("it is reported", || second.status().view().behind[0].is_some());
    assert_eq!(second.status().view().damage, None, "the registry is sound");
    master.board.set_file(LIDS, "0x10 1 1\n".to_owned());
    let mut store = bed.store_of(&master);
    store.open();
    led(&mut store, SESSION);
    await_that("the standby has it", || standby.has_lids("0x10 1 1"));
    await_that("it is over", || second.status().view().behind[0].is_none());
}
