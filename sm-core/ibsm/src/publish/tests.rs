//! The publisher as a whole.

use std::path::Path;
use std::time::{Instant, SystemTime};

use sa_proto::proto::{admin, snapshot as proto};
use sa_proto::snapshot::{MftBlock, RegistryVersion};
use tokio_stream::StreamExt;

use super::*;
use crate::observe::{CopyStatus, Responder};

/// One that keeps its state there, on a port of the system's choice.
fn publisher(state_dir: &Path) -> Publisher {
    let config = PublishConfig {
        tls: None,
        local: Default::default(),
        listen: "127.0.0.1:0".parse().unwrap(),
        epochs: EpochFile::new(state_dir.to_owned()),
        history: HistoryLimits::default(),
    };
    Publisher::start(config).unwrap()
}

#[test]
fn multicast_tables_are_published_alone_and_not_before_a_fabric_is() {
    let directory = tempfile::tempdir().unwrap();
    let publisher = publisher(directory.path());
    let blocks = vec![MftBlock { block: 0, position: 0, masks: [1; 64] }];
    let mfts = vec![Arc::new(Mft { switch: Guid(5), blocks })];
    let refused = publisher.publish_multicast(&mfts);
    assert!(matches!(refused, Err(PublishError::NoSession)));
    publisher.begin_session(Guid(1)).unwrap();
    let early = publisher.publish_multicast(&mfts).unwrap();
    assert_eq!((early.fabric_generation, publisher.version()), (0, early));

    let first = publisher.publish(FabricPlane::default()).unwrap();
    let second = publisher.publish_multicast(&mfts).unwrap();
    assert_eq!(second.fabric_generation, first.fabric_generation + 1);
    assert_eq!(publisher.publish_multicast(&mfts).unwrap(), second, "nothing is new");
    let snapshot = publisher.reader().current().clone();
    assert_eq!((snapshot.version(), &snapshot.fabric().mfts), (second, &mfts));
}

/// Regression: while its disk failed, a new master published the registry of its last session as
/// that of the new one, and a standby preferred it to what it had.
#[test]
fn a_registry_that_is_unknown_in_a_session_is_published_without_rows() {
    let directory = tempfile::tempdir().unwrap();
    let publisher = publisher(directory.path());
    publisher.begin_session(Guid(1)).unwrap();
    publisher.publish_registry(RegistryPlane { sequence: 7, ..Default::default() }).unwrap();
    assert_eq!(publisher.publish(FabricPlane::default()).unwrap().registry_sequence, 7);
    publisher.begin_session(Guid(1)).unwrap();
    assert_eq!(publisher.publish(FabricPlane::default()).unwrap().registry_sequence, 0);
    let registry = RegistryPlane { sequence: 9, ..Default::default() };
    assert_eq!(publisher.publish_registry(registry).unwrap().registry_sequence, 9);
}

/// Regression: any client that could connect made this SM take the highest epoch, and keep it; or
/// one that SMs with other clocks find impossible.
#[test]
fn a_responder_that_reports_an_impossible_epoch_is_refused() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for epoch in [u64::MAX - 1, now + (1 << 31) + 3600] {
        assert_refused(epoch);
    }
}

fn assert_refused(epoch: u64) {
    let directory = tempfile::tempdir().unwrap();
    let publisher = publisher(directory.path());
    let ours = publisher.begin_session(Guid(1)).unwrap();
    let session = Session { epoch, sm_guid: Guid(2) };
    let (fabric, registry) = (FabricPlane::default(), RegistryPlane::default());
    let held = Snapshot::build(session, 1, fabric, registry).unwrap();
    let hello = proto::Hello {
        schema: sa_proto::snapshot::SCHEMA,
        responder_id: 7,
        held: Some(proto::Held {
            version: Some(held.version().into()),
            checksum: Some(held.checksum().into()),
            bucket_sums: held.digest().to_bytes().into(),
        }),
        ..Default::default()
    };
    let hello = proto::from_responder::Message::Hello(hello);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refusal = runtime.block_on(async {
        let url = format!("http://{}", publisher.address());
        let mut client =
            proto::snapshot_feed_client::SnapshotFeedClient::connect(url).await.unwrap();
        let said = tokio_stream::once(proto::FromResponder { message: Some(hello) });
        let said = said.chain(tokio_stream::pending());
        let mut feed = client.subscribe(said).await.unwrap().into_inner();
        feed.message().await.unwrap_err()
    });
    assert!(refusal.message().contains("epoch"), "{refusal}");
    assert_eq!(publisher.challenge(), None);
    assert_eq!(publisher.begin_session(Guid(1)).unwrap().epoch, ours.epoch + 1);
    let counted =
        |(name, _, count): &(_, _, u64)| *name == "feed_epochs_implausible" && *count == 1;
    assert!(publisher.counters().iter().any(counted));
}

/// Regression: a master that stood by while its changes were on the way to its successor did not
/// send the rest, and the successor asked all clients to register again.
#[test]
fn a_follower_gets_the_rest_of_a_session_that_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let publisher = publisher(directory.path());
    let publish = |sequence| {
        let registry = RegistryPlane { sequence, ..Default::default() };
        publisher.publish_registry(registry).unwrap()
    };
    publisher.begin_session(Guid(1)).unwrap();
    publish(7);
    let first = publisher.publish(FabricPlane::default()).unwrap();
    let now = Instant::now();
    let mut follower = Peer::new(&publisher, now, Guid(2));
    let mut responder = Peer::new(&publisher, now, Guid(0));
    assert_eq!((follower.takes(now), responder.takes(now)), (Some(first), Some(first)));

    let second = publish(8);
    publisher.end_session();
    responder.acknowledge(now);
    assert_eq!(responder.takes(now), None, "it gets the next master's");
    assert_eq!(follower.takes(now), None, "it has not acknowledged the first");
    follower.acknowledge(now);
    assert_eq!(follower.takes(now), Some(second));
    follower.acknowledge(now);
    assert_eq!(follower.takes(now), None);
    let mut late = Peer::new(&publisher, now, Guid(3));
    assert_eq!(late.takes(now), None, "it did not follow that session");
}

/// A program at the other end of the feed, or a standby if it has a port.
struct Peer {
    subscription: Subscription,
    taken: Version,
}

impl Peer {
    fn new(publisher: &Publisher, now: Instant, port: Guid) -> Self {
        let mut peer = Self { subscription: publisher.subscribe(None), taken: Version::NONE };
        peer.say(
            now,
            proto::from_responder::Message::Hello(proto::Hello {
                schema: sa_proto::snapshot::SCHEMA,
                responder_id: 70 + port.0,
                sm_guid: port.0,
                ..Default::default()
            }),
        );
        peer
    }

    fn say(&mut self, now: Instant, message: proto::from_responder::Message) {
        let message = proto::FromResponder { message: Some(message) };
        assert!(self.subscription.handle_message(now, message).is_ok());
    }

    /// The version of the next update.
    fn takes(&mut self, now: Instant) -> Option<Version> {
        self.subscription.handle_changes(now);
        let mut version = None;
        while self.subscription.has_output() {
            for message in self.subscription.poll_transmit(now) {
                if let Some(proto::from_sm::Message::Begin(begin)) = message.message {
                    version = Some(Version::try_from(begin.target).unwrap());
                }
            }
        }
        self.taken = version.unwrap_or(self.taken);
        version
    }

    fn acknowledge(&mut self, now: Instant) {
        let version = Some(self.taken.into());
        self.say(now, proto::from_responder::Message::Ack(proto::Ack { version, serving: None }));
    }
}

/// Regression: a standby, and every master that ended, warned that queries are not answered.
#[test]
fn the_last_responder_is_missed_only_by_a_master() {
    let directory = tempfile::tempdir().unwrap();
    let publisher = publisher(directory.path());
    let hello = proto::Hello { front_door: vec!["127.0.0.1:1".into()], ..Default::default() };
    let leaves = |connection| {
        let responder = Responder::new(&hello, None, None, Instant::now(), connection);
        assert!(publisher.shared.responders.enter(&responder));
        publisher.shared.leave(connection)
    };
    assert!(!leaves(1), "there is no session");
    publisher.begin_session(Guid(1)).unwrap();
    publisher.publish(FabricPlane::default()).unwrap();
    assert!(leaves(2));
    publisher.end_session();
    assert!(!leaves(3));
}

/// Regression: a standby reported that there are no groups.
#[test]
fn a_standby_does_not_list_the_registry() {
    let directory = tempfile::tempdir().unwrap();
    let publisher = publisher(directory.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asked = |state: &str, follows: bool| {
        let copy = follows.then(|| CopyStatus {
            in_step: true,
            since: Duration::ZERO,
            stored: RegistryVersion::default(),
            lag: 0,
            contact: None,
            has_state: true,
            files_differ: None,
            follows_config: false,
        });
        publisher.set_status(SmStatus { state: state.to_owned(), copy, ..SmStatus::default() });
        runtime.block_on(async {
            let url = format!("http://{}", publisher.address());
            let mut client = admin::admin_client::AdminClient::connect(url).await.unwrap();
            let groups = client.list_groups(admin::GroupsRequest::default()).await.map(drop);
            let services = client.list_services(admin::ServicesRequest {}).await.map(drop);
            let subscriptions = client.list_subscriptions(admin::SubscriptionsRequest {}).await;
            [groups, services, subscriptions.map(drop)]
        })
    };
    for (state, follows, reason) in [
        ("standby", false, "has no registry"),
        ("discovering", false, "not known yet"),
        ("standby", true, "only for a takeover"),
    ] {
        for refused in asked(state, follows) {
            let refusal = refused.unwrap_err();
            assert_eq!(refusal.code(), tonic::Code::FailedPrecondition);
            assert!(refusal.message().contains(reason), "{refusal}");
        }
    }
    // Regression: a master that had published nothing yet reported that there are none, too.
    let unavailable = |state: &str| {
        let listed = asked(state, false);
        let codes = listed.into_iter().map(|listed| listed.unwrap_err().code());
        assert!(codes.into_iter().all(|code| code == tonic::Code::Unavailable), "{state}");
    };
    unavailable("");
    unavailable("master");
    publisher.begin_session(Guid(1)).unwrap();
    publisher.publish(FabricPlane::default()).unwrap();
    unavailable("master");
    publisher.publish_registry(RegistryPlane { sequence: 1, ..Default::default() }).unwrap();
    let listed = asked("master", false);
    assert!(listed.iter().all(Result::is_ok), "{listed:?}");
}

#[test]
fn a_program_gets_events_as_they_happen_without_asking_to_follow() {
    use crate::observe::event::{Draft, EventKind};
    let directory = tempfile::tempdir().unwrap();
    let publisher = publisher(directory.path());
    let events = publisher.events();
    let note = |time_ms, text: &str| events.note(time_ms, Draft::new(EventKind::Trap, text));
    note(1, "earlier");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("http://{}", publisher.address());
        let mut client = admin::admin_client::AdminClient::connect(url).await.unwrap();
        let wanted = admin::EventsRequest { last: Some(1), ..Default::default() };
        let mut stream = client.events(wanted).await.unwrap().into_inner();
        let texts = async |stream: &mut tonic::Streaming<admin::Events>| -> Vec<String> {
            let part = stream.message().await.unwrap().unwrap();
            part.events.into_iter().map(|event| event.text).collect()
        };
        assert_eq!(texts(&mut stream).await, ["earlier"]);
        note(2, "now");
        assert_eq!(texts(&mut stream).await, ["now"]);
        let unknown = admin::EventsRequest { kinds: vec!["tarp".into()], ..Default::default() };
        let refusal = client.events(unknown).await.unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::InvalidArgument);
    });
}
