use ib_mad::types::Guid;
use sa_proto::proto::snapshot::from_responder::Message as Reply;
use sa_proto::snapshot::codec::Encoder;
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session, Subnet};

use super::*;

fn snapshot(generation: u64) -> Arc<Snapshot> {
    let session = Session { epoch: 1, sm_guid: Guid(1) };
    let subnet = Subnet { prefix: generation, ..Subnet::default() };
    let fabric = FabricPlane { subnet, ..FabricPlane::default() };
    Arc::new(Snapshot::build(session, generation, fabric, RegistryPlane::default()).unwrap())
}

/// Regression: a snapshot from which tables could not be built ended all responders of the subnet,
/// again after each restart, because each received the same snapshot.
#[tokio::test]
async fn a_snapshot_that_no_tables_can_be_made_of_leaves_the_one_before() {
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = served.clone();
    let on_change = move |change: &Change| {
        let Change::Serve(0, snapshot) = change else { return };
        let generation = snapshot.version().fabric_generation;
        assert!(generation != 2, "as the test wants it");
        seen.lock().unwrap().push(generation);
    };
    let status = Arc::new(ReplicaStatus::default());
    let urls = vec!["http://127.0.0.1:1".to_owned()];
    let mut replica = Replica {
        machine: Machine::new(
            Instant::now(),
            proto::Hello::default(),
            urls.clone(),
            None,
            None,
            status.clone(),
        ),
        urls,
        links: vec![None],
        channels: vec![None],
        saver: Saver::new(None, Duration::from_secs(60)),
        on_change: Some(Box::new(on_change)),
        peers: Peers::default(),
        status: status.clone(),
    };
    let (outbound, mut said) = mpsc::channel(8);
    let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
    replica.handle(Event { link: 0, kind: EventKind::Connected(outbound, channel) }).await;
    assert!(matches!(said.try_recv().unwrap().message, Some(Reply::Hello(_))));
    let mut acked = |generation| {
        let Some(Reply::Ack(ack)) = said.try_recv().unwrap().message else {
            panic!("no acknowledgement")
        };
        assert_eq!(ack.version.unwrap().fabric_generation, generation);
        ack.serving.map(|serving| serving.fabric_generation)
    };
    // Twice the second one: it is confirmed the second time, and still not answered from.
    for (generation, serving) in [(1, None), (2, Some(1)), (2, Some(1)), (3, None)] {
        for message in Encoder::full(snapshot(generation)) {
            replica.handle(Event { link: 0, kind: EventKind::Message(message) }).await;
        }
        assert_eq!(acked(generation), serving, "generation {generation}");
        let version = status.version().fabric_generation;
        assert_eq!(version, serving.unwrap_or(generation), "the reported version");
    }
    assert_eq!(*served.lock().unwrap(), [1, 3]);
    let unusable = status.counters().into_iter().find(|c| c.0 == "replica_snapshots_unusable");
    assert_eq!(unusable.unwrap().2, 1);
}
