//! Target for the history: a damaged file is read up to the damage, and each record that is read
//! can be written.

use ibsm::history::frame::{Frames, HEAD_LEN, Head, append};
use ibsm::history::layout::{Layout, net_of};
use ibsm::history::loads::KeptLoads;
use ibsm::history::record::{FabricReader, Record, Shape};
use ibsm::observe::event::{Draft, EventKind, EventLog};
use ibsm::observe::ports::{KeptFabric, PortStatus};
use ibsm::observe::problem::Subject;
use ibsm::observe::topology::TopologyNode;

use ib_mad::types::{Guid, PortNum};

/// The target: the input is a segment, the frames of one, or a record.
pub fn run(input: &[u8]) {
    let head = Head::decode(input);
    assert!(head.is_none_or(|head| head.encode() == input[..HEAD_LEN]));
    let mut reader = FabricReader::default();
    let start = if head.is_some() { HEAD_LEN } else { 0 };
    let mut frames = Frames::new(&input[start..]);
    let mut written = Vec::new();
    for record in frames.by_ref() {
        assert!(append(&mut written, record));
        read(record, &mut reader);
    }
    assert_eq!(written, input[start..start + frames.read()]);
    // Without the checksum, which no mutation satisfies.
    read(input, &mut reader);
    if let Some((_, fabric)) = &reader.now {
        let _ = net_of(&fabric.topology, &fabric.ports).to_string();
        let mut again = KeptFabric::default();
        Layout::of(fabric).apply(&mut again);
        assert_eq!(again, *fabric);
    }
}

fn read(bytes: &[u8], reader: &mut FabricReader) {
    let Some(record) = Record::decode(bytes) else { return };
    let again = Record::decode(&record.encode());
    assert_eq!(again.as_ref(), Some(&record));
    reader.take(record);
}

/// A segment with events and fabrics, and each of its records.
pub fn seeds() -> Vec<Vec<u8>> {
    let log = EventLog::default();
    let leaf = Subject::port("leaf", Guid(7), PortNum(3));
    log.note(1, Draft::new(EventKind::LinkWent, "link is down").about(leaf));
    log.note(2, Draft::new(EventKind::SweepEnd, "sweep").with("changes", vec!["a".to_owned()]));
    let mut fabric = KeptFabric { routing_engine: "ftree".to_owned(), ..KeptFabric::default() };
    for (guid, is_switch) in [(7, true), (9, false)] {
        let node = TopologyNode { name: format!("n{guid}"), is_switch };
        fabric.topology.nodes.insert(Guid(guid), node);
        let port = |number| PortStatus {
            number: PortNum(number),
            guid: Guid(guid),
            state: 4,
            physical_state: 5,
            lid: if is_switch { 0 } else { 12 },
            lmc: 0,
        };
        fabric.ports.0.insert(Guid(guid), [1, 2, 3].map(port).into());
    }
    let whole = Layout::of(&fabric);
    let before = fabric.clone();
    let ends = ((Guid(7), PortNum(3)), (Guid(9), PortNum(1)));
    fabric.topology.insert_link(ends.0, ends.1, "4x NDR".to_owned());
    let change = Layout::between(&before, &fabric);
    let events = log.since(1, 10).events;
    let mut records: Vec<Record> =
        events.iter().map(|event| Record::Event((**event).clone())).collect();
    records.push(Record::Whole(Shape { time_ms: 1, layout: whole }));
    records.push(Record::Change(Shape { time_ms: 2, layout: change }));
    let directions = vec![(0, 200), (1, 3), (300, 255)];
    let loads = KeptLoads { time_ms: 3, sweep: 1, links: 1, unlisted: 0, directions };
    records.push(Record::Loads(loads));
    let mut segment = Head { number: 1, time_ms: 1 }.encode().to_vec();
    let mut seeds = Vec::new();
    for record in &records {
        let bytes = record.encode();
        append(&mut segment, &bytes);
        seeds.push(bytes);
    }
    seeds.push(segment);
    seeds
}
