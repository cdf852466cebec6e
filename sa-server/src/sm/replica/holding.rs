//! Answers to an SM that becomes master and asks which registry queries are answered from.

use std::sync::Arc;

use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_responder::Message as Reply;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::snapshot::codec::Encoder;
use sa_proto::snapshot::{FabricPlane, Snapshot, Version};
use tokio::sync::mpsc;

use super::machine::message;

/// What queries of a lane are answered from.
#[derive(Clone, Debug, Default)]
pub struct Answering {
    /// The snapshot.
    pub snapshot: Option<Arc<Snapshot>>,
    /// Whether an SM has sent or confirmed it since this process started.
    pub is_current: bool,
    /// The highest sequence number of the registry in that session that was acknowledged to a
    /// client; 0 if there is none.
    pub acknowledged: u64,
}

/// Sends the version of the snapshot that queries are answered from, after its registry if that is
/// requested. A separate task waits for the connection.
pub(super) fn answer(
    inquiry: proto::Inquiry,
    serving: &Answering,
    outbound: &mpsc::Sender<proto::FromResponder>,
) {
    let (replies, outbound) = (replies(inquiry, serving), outbound.clone());
    tokio::spawn(async move {
        for reply in replies {
            if outbound.send(reply).await.is_err() {
                return;
            }
        }
    });
}

/// The answers to an inquiry, in their order.
pub fn replies(
    inquiry: proto::Inquiry,
    serving: &Answering,
) -> impl Iterator<Item = proto::FromResponder> + Send + use<> {
    let snapshot = serving.snapshot.as_ref();
    let version = snapshot.map_or(Version::NONE, |snapshot| snapshot.version());
    let rows = snapshot.filter(|_| inquiry.rows).and_then(|snapshot| registry_of(snapshot));
    let holding = proto::Holding {
        number: inquiry.number,
        version: Some(version.into()),
        state: None,
        restarted: !serving.is_current,
        acknowledged: serving.acknowledged,
    };
    let rows = rows.into_iter().flat_map(Encoder::full).filter_map(reply);
    rows.chain([Reply::Holding(holding)]).map(message)
}

/// The snapshot with an empty fabric plane.
fn registry_of(snapshot: &Snapshot) -> Option<Arc<Snapshot>> {
    let Version { session, fabric_generation, .. } = snapshot.version();
    let registry = (**snapshot.registry()).clone();
    let built = Snapshot::build(session, fabric_generation, FabricPlane::default(), registry);
    built
        .inspect_err(|error| tracing::error!("cannot send the registry to an SM: {error}"))
        .ok()
        .map(Arc::new)
}

/// A part of an update, in the other direction.
fn reply(part: proto::FromSm) -> Option<Reply> {
    match part.message? {
        Message::Begin(begin) => Some(Reply::Begin(begin)),
        Message::Chunk(chunk) => Some(Reply::Chunk(chunk)),
        Message::End(end) => Some(Reply::End(end)),
        Message::Explain(_)
        | Message::Heartbeat(_)
        | Message::Inquiry(_)
        | Message::Ended(_)
        | Message::State(_)
        | Message::Outcomes(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use sa_proto::snapshot::codec::Decoder;
    use sa_proto::snapshot::{RegistryPlane, Session, Subnet};

    use super::*;

    #[tokio::test]
    async fn the_registry_comes_before_the_version_if_it_is_requested() {
        let subnet = Subnet { prefix: 7, ..Subnet::default() };
        let fabric = FabricPlane { subnet, ..FabricPlane::default() };
        let session = Session { epoch: 3, sm_guid: Guid(1) };
        let registry = RegistryPlane { sequence: 9, ..RegistryPlane::default() };
        let serving = Arc::new(Snapshot::build(session, 4, fabric, registry).unwrap());
        for rows in [false, true] {
            let (outbound, mut sent) = mpsc::channel(1);
            let answering =
                Answering { snapshot: Some(serving.clone()), is_current: true, acknowledged: 8 };
            answer(proto::Inquiry { number: 5, rows, sm_guid: 1 }, &answering, &outbound);
            let mut decoder = None;
            let mut received = None;
            let holding = loop {
                match sent.recv().await.unwrap().message.unwrap() {
                    Reply::Begin(begin) => decoder = Some(Decoder::new(begin).unwrap()),
                    Reply::Chunk(chunk) => decoder.as_mut().unwrap().chunk(&chunk).unwrap(),
                    Reply::End(end) => {
                        let decoder = decoder.take().unwrap();
                        received = Some(decoder.finish(end, &Snapshot::empty()).unwrap());
                    }
                    Reply::Holding(holding) => break holding,
                    other => panic!("{other:?}"),
                }
            };
            let version = Version::try_from(holding.version).unwrap();
            assert_eq!((holding.number, version), (5, serving.version()));
            assert!(!holding.restarted && holding.acknowledged == 8);
            assert_eq!(received.is_some(), rows);
            if let Some(received) = received {
                assert_eq!(received.version().registry(), serving.version().registry());
                assert_eq!(received.fabric().subnet.prefix, 0, "no fabric");
            }
        }
    }

    #[tokio::test]
    async fn a_responder_without_tables_holds_nothing() {
        let (outbound, mut sent) = mpsc::channel(1);
        let nothing = Answering::default();
        answer(proto::Inquiry { number: 5, rows: true, sm_guid: 1 }, &nothing, &outbound);
        let Some(Reply::Holding(holding)) = sent.recv().await.unwrap().message else { panic!() };
        assert_eq!(Version::try_from(holding.version), Ok(Version::NONE));
        assert!(holding.restarted);
    }
}
