use ib_mad::types::Guid;
use proptest::prelude::*;
use prost::Message as _;

use super::super::Entries;
use super::super::testing::{SESSION, snapshot};
use super::*;

/// Decodes the messages of `encoder`, through the wire format.
fn transfer(encoder: Encoder, held: &Snapshot) -> Result<Snapshot, UpdateError> {
    receive(encoder, held, |_| {})
}

fn receive(
    encoder: Encoder,
    held: &Snapshot,
    mut meddle: impl FnMut(&mut Message),
) -> Result<Snapshot, UpdateError> {
    let mut decoder = None;
    for message in encoder {
        let bytes = message.encode_to_vec();
        assert!(bytes.len() <= 1 << 20, "message of {} bytes", bytes.len());
        let mut message = proto::FromSm::decode(&bytes[..]).unwrap().message.unwrap();
        meddle(&mut message);
        match message {
            Message::Begin(begin) => decoder = Some(Decoder::new(begin)?),
            Message::Chunk(chunk) => decoder.as_mut().unwrap().chunk(&chunk)?,
            Message::End(end) => return decoder.take().unwrap().finish(end, held),
            _ => panic!("not of an update"),
        }
    }
    panic!("no end");
}

fn wire_len(encoder: Encoder) -> usize {
    encoder.map(|message| message.encoded_len()).sum()
}

proptest! {
    #[test]
    fn every_kind_of_update_leads_to_the_senders_snapshot(
        old in snapshot(1), new in snapshot(2),
    ) {
        let sent = Arc::new(new.clone());
        prop_assert_eq!(&transfer(Encoder::full(sent.clone()), &old).unwrap(), &new);
        let delta = Arc::new(delta::construct(&old, &new));
        prop_assert_eq!(&transfer(Encoder::delta(delta), &old).unwrap(), &new);
        let set = new.digest().differing(&old.digest().to_bytes()).unwrap();
        let buckets = Encoder::buckets(sent, set, old.version(), old.checksum());
        prop_assert_eq!(&transfer(buckets, &old).unwrap(), &new);
    }

    #[test]
    fn a_damaged_update_is_refused_or_harmless(
        old in snapshot(1), new in snapshot(2), kind in 0..3, at: usize, flip in 1..=255u8,
    ) {
        let encoder = match kind {
            0 => Encoder::full(Arc::new(new.clone())),
            1 => Encoder::delta(Arc::new(delta::construct(&old, &new))),
            _ => {
                let set = new.digest().differing(&old.digest().to_bytes()).unwrap();
                Encoder::buckets(Arc::new(new.clone()), set, old.version(), old.checksum())
            }
        };
        let received = receive(encoder, &old, |message| {
            if let Message::Chunk(chunk) = message {
                let mut data = chunk.data.to_vec();
                let at = at % data.len();
                data[at] ^= flip;
                chunk.data = data.into();
            }
        });
        if let Ok(received) = received {
            prop_assert_eq!(received, new);
        }
    }
}

/// Three switches with equal tables of 48k LIDs, and a node too large for one chunk.
fn large() -> Snapshot {
    let ports: Entries = (0..Lft::BLOCKS_MAX * Lft::BLOCK_LEN)
        .map(|lid| (lid / Lft::BLOCK_LEN) as u8 ^ (lid / 4096) as u8)
        .collect();
    let lfts = (1..=3).map(|n| Arc::new(Lft { switch: Guid(n), ports: ports.clone() }));
    let mut node = super::super::testing::linked_pair(Guid(1), Guid(2)).remove(0);
    node.ports[0].peer = None;
    node.ports[0].pkeys = (1..=40_000).map(ib_mad::types::PKey).collect();
    let mut twin = node.ports[0].clone();
    for num in 2..=8 {
        twin.num = ib_mad::types::PortNum(num);
        node.ports.push(twin.clone());
    }
    let fabric =
        FabricPlane { nodes: vec![Arc::new(node)], lfts: lfts.collect(), ..FabricPlane::default() };
    Snapshot::build(SESSION, 1, fabric, RegistryPlane::default()).unwrap()
}

#[test]
fn rows_straddle_messages_and_equal_tables_are_sent_once() {
    let large = large();
    let received = transfer(Encoder::full(Arc::new(large.clone())), &Snapshot::empty());
    assert_eq!(received.unwrap(), large);
    let node_len = 8 * 80_000;
    let len = wire_len(Encoder::full(Arc::new(large)));
    assert!((node_len..node_len + 2 * 49_152).contains(&len), "{len} bytes");
}

#[test]
fn a_change_of_one_block_takes_less_than_a_kilobyte() {
    let old = large();
    let mut fabric = (**old.fabric()).clone();
    Arc::make_mut(&mut fabric.lfts[1]).ports[777] = 42;
    let new = Snapshot::build(SESSION, 2, fabric, RegistryPlane::default()).unwrap();
    let delta = Arc::new(delta::construct(&old, &new));
    let len = wire_len(Encoder::delta(delta));
    assert!(len < 1024, "{len} bytes");
}

#[test]
fn buckets_apply_only_to_the_state_they_were_made_for() {
    let (old, new) = (Snapshot::empty(), large());
    let set = new.digest().differing(&old.digest().to_bytes()).unwrap();
    let other = Checksum { fabric: 1, registry: 2 };
    let encoder = Encoder::buckets(Arc::new(new), set, old.version(), other);
    assert!(matches!(transfer(encoder, &old), Err(UpdateError::WrongBase { .. })));
}

#[test]
fn chunks_out_of_place_are_refused() {
    let begin = || {
        let mut messages = Encoder::full(Arc::new(Snapshot::empty()));
        match messages.next().and_then(|message| message.message) {
            Some(Message::Begin(begin)) => Decoder::new(begin).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let chunk = |table, data: &'static [u8]| proto::Chunk { table, data: data.into() };
    assert!(begin().chunk(&chunk(99, &[])).is_err(), "unknown table");
    let mut decoder = begin();
    decoder.chunk(&chunk(2, &[])).unwrap();
    assert!(decoder.chunk(&chunk(1, &[])).is_err(), "descending tables");
    let mut decoder = begin();
    decoder.chunk(&chunk(1, &[0, 0, 0, 9, 1])).unwrap();
    let end = proto::End { checksum: Some(Checksum::default().into()), registry_time_ns: 0 };
    assert!(decoder.finish(end, &Snapshot::empty()).is_err(), "ends within a row");
}
