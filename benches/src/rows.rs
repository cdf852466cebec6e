//! The queries by which every change is measured, and a test bench for each.

use std::sync::Arc;

use ib_mad::transport::Packet;
use ib_mad::types::PKey;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::stride;
use ib_mad::wire::record::{NodeRecord, PathRecord};
use sa_proto::snapshot::FabricPlane;

use crate::policy::Policy;
use crate::requests::{Draw, Host, Kind, hosts, multi_path};
use crate::subject::{BATCH, Subject};

/// A kind of query under some policy.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name in figures.
    pub name: &'static str,
    /// QoS rules in force, without the level DEFAULT; QoS is off with none.
    pub rules: u32,
    /// The query.
    pub ask: Ask,
}

/// The query, and the form of its answer.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// A Get(), answered in one MAD.
    One(Kind),
    /// A GetTable(), in many segments; a figure is per record.
    Table(Kind),
    /// GetMulti(MultiPathRecord) for paths between 8 sources and 3 destinations; a figure is per
    /// answer of 24 paths.
    Multi,
}

/// All of them.
pub const ROWS: [Row; 9] = [
    Row::new("path_by_gids", 0, Ask::One(Kind::PathByGids)),
    Row::new("path_by_gids_50_rules", 50, Ask::One(Kind::PathByGids)),
    Row::new("path_by_gids_1000_rules", 1000, Ask::One(Kind::PathByGids)),
    Row::new("path_by_lids", 0, Ask::One(Kind::PathByLids)),
    Row::new("paths_of_source", 0, Ask::Table(Kind::PathsOfSource)),
    Row::new("multi_path_8x3", 0, Ask::Multi),
    Row::new("node_by_lid", 0, Ask::One(Kind::NodeByLid)),
    Row::new("node_by_guid", 0, Ask::One(Kind::NodeByGuid)),
    Row::new("all_nodes", 0, Ask::Table(Kind::AllNodes)),
];

impl Row {
    const fn new(name: &'static str, rules: u32, ask: Ask) -> Self {
        Self { name, rules, ask }
    }
}

/// Sources and destinations of a MultiPathRecord.
const SOURCES: usize = 8;
const DESTINATIONS: usize = 3;

/// A subject, and requests of one row to it. Every answer is checked.
pub struct Stand {
    subject: Subject,
    ask: Ask,
    hosts: Vec<Host>,
    draw: Draw,
    requests: Vec<(Packet, Host)>,
    next: usize,
    buffers: Vec<Packet>,
}

impl Stand {
    /// A test bench for `row` on a plane, with `requests` distinct requests.
    pub fn new(plane: &FabricPlane, row: &Row, requests: usize) -> Self {
        let hosts = hosts(plane);
        let mut plane = plane.clone();
        spread_partitions(&mut plane);
        if row.rules > 0 {
            Policy::Services.write(&mut plane, &hosts, row.rules);
        }
        let mut stand = Self {
            subject: Subject::new(&plane),
            ask: row.ask,
            hosts,
            draw: Draw::new(),
            requests: Vec::new(),
            next: 0,
            buffers: vec![Packet::default(); BATCH],
        };
        if let Ask::One(kind) = row.ask {
            let count = requests.next_multiple_of(BATCH);
            stand.requests = (0..count).map(|tid| stand.request(kind, tid, row.rules)).collect();
        }
        stand
    }

    fn request(&mut self, kind: Kind, tid: usize, rules: u32) -> (Packet, Host) {
        let (source, destination) = (self.draw.host(&self.hosts), self.draw.host(&self.hosts));
        let mut packet = Packet::default();
        kind.write(tid as u64, source, destination, &mut packet);
        if rules > 0 {
            Policy::Services.ask(tid as u32, rules, &mut packet);
        }
        (packet, destination)
    }

    /// Writes the next requests into the buffers, as a transport does.
    pub fn refill(&mut self) {
        let requests = &self.requests[self.next..self.next + BATCH];
        for (buffer, (request, _)) in self.buffers.iter_mut().zip(requests) {
            buffer.mad = request.mad;
            buffer.address = request.address;
        }
    }

    /// Answers the requests in the buffers.
    pub fn answer(&mut self) {
        self.subject.answer(&mut self.buffers);
    }

    /// Checks the answers in the buffers, and moves on to the next requests.
    ///
    /// # Panics
    ///
    /// If one is wrong.
    pub fn check(&mut self) {
        let Ask::One(kind) = self.ask else { return };
        let asked = &self.requests[self.next..self.next + BATCH];
        for (answer, (_, destination)) in self.buffers.iter().zip(asked) {
            assert!(kind.is_answered(*destination, answer), "{kind:?} of {destination:?}");
        }
        self.next = (self.next + BATCH) % self.requests.len();
    }

    /// Writes the request for the next answer of several segments.
    pub fn next_request(&mut self) -> Packet {
        let mut packet = Packet::default();
        self.next += 1;
        let tid = self.next as u64;
        match self.ask {
            Ask::Multi => {
                let mut draw = |count: usize| -> Vec<Host> {
                    (0..count).map(|_| self.draw.host(&self.hosts)).collect()
                };
                let (sources, destinations) = (draw(SOURCES), draw(DESTINATIONS));
                multi_path(tid, &sources, &destinations, &mut packet);
            }
            Ask::One(kind) | Ask::Table(kind) => {
                let host = self.draw.host(&self.hosts);
                kind.write(tid, host, host, &mut packet);
            }
        }
        packet
    }

    /// Sends the request, takes all segments and acknowledges them; returns the number of units of
    /// the row.
    ///
    /// # Panics
    ///
    /// If the answer is incomplete.
    pub fn fetch(&mut self, request: &mut Packet) -> usize {
        let received = self.subject.fetch(request);
        let (record_len, least, units) = match self.ask {
            Ask::Multi => (PathRecord::LEN, SOURCES * DESTINATIONS, Some(1)),
            Ask::Table(Kind::AllNodes) => (NodeRecord::LEN, self.hosts.len(), None),
            _ => (PathRecord::LEN, self.hosts.len(), None),
        };
        let records = received.bytes / stride(record_len);
        assert!(received.status == Status::OK && records >= least, "{received:?} of {least}");
        units.unwrap_or(records)
    }
}

/// Gives hosts one of 64 P_Key tables: the default partition and one to four of 16 others.
fn spread_partitions(plane: &mut FabricPlane) {
    const PARTITIONS: u16 = 16;
    for (nth, node) in plane.nodes.iter_mut().enumerate() {
        if node.switch_info.is_some() {
            continue;
        }
        let table = nth as u16 % 64;
        let more = (0..=table % 4).map(|i| PKey(0x8000 | (1 + (table * 7 + i * 5) % PARTITIONS)));
        let pkeys: Vec<PKey> = std::iter::once(PKey::DEFAULT_FULL).chain(more).collect();
        for port in &mut Arc::make_mut(node).ports {
            port.pkeys = pkeys.clone().into();
        }
    }
}
