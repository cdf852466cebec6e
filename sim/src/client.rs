//! A client on a host: it joins and leaves groups, registers and withdraws services, and queries.
//!
//! It has one request under way and repeats it as kernels do, with the same TransactionID. For each
//! thing that it registers it knows what the answers permit: after an answer exactly one state,
//! after a request without one the states before and after it.

use std::time::{Duration, Instant};

use fabric_sim::Endpoint;
use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Rate};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::mc_member::component as mc;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::service::{LEASE_INDEFINITE, component as svc};
use ib_mad::wire::record::{JoinState, McMemberRecord, PathRecord, Selector, ServiceRecord};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, SaMad, attribute};
use sa_proto::snapshot::{MulticastMemberRid, RegistryPlane, ServiceRid};

use crate::random::Random;

/// Groups, the same for all clients, and services of each client.
pub const GROUPS: usize = 6;
/// See [`GROUPS`].
pub const SERVICES: usize = 3;
/// How long an answer may take before the request is repeated.
pub const ANSWER_TIME: Duration = Duration::from_millis(700);
/// Requests until a client gives up.
pub const TRIES_MAX: u32 = 6;
/// First of the clients' service IDs.
const SERVICE_ID_BASE: u64 = 0x1000_0000_0000_0000;

/// Something that a client registers. Groups come first.
pub type Slot = usize;

/// What is registered in a slot: nothing, or this value. That of a group member is 1.
pub type Value = Option<u32>;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Registers, withdraws, or changes.
    Put(Slot, Value),
    /// Reads a service.
    Get(Slot),
    /// A path to a port.
    Path(Guid),
}

/// A request under way.
#[derive(Clone, Debug)]
pub struct Open {
    /// What is asked.
    pub ask: Ask,
    /// The request.
    pub mad: [u8; MAD_LEN],
    /// TransactionID without the part that the fabric sets.
    pub tid: u64,
    /// How often it was sent.
    pub tries: u32,
    /// When it was sent first.
    pub since: Instant,
    /// What may have been registered in the slot before.
    pub before: Vec<Value>,
}

/// What a client knows of a slot.
#[derive(Clone, Debug)]
pub struct Known {
    /// What may be registered, by the answers so far. Not empty; one if it is certain.
    pub may_be: Vec<Value>,
    /// What the client wants.
    pub wanted: Value,
    /// When the last answer came.
    pub since: Instant,
    /// Whether a manager asked to register again, and this has not been answered yet.
    pub is_asked: bool,
    /// The SM denied what the client knew, at this time: it must be asked to register again.
    pub denied: Option<Instant>,
}

/// What an answer shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing that contradicts what the client knows.
    Fine,
    /// A read that differs from all that may be registered.
    Unexpected {
        /// The slot.
        slot: Slot,
        /// What the answer says.
        found: Value,
        /// What may be registered.
        may_be: Vec<Value>,
    },
    /// Another answer than to this request.
    Nonsense(String),
}

/// A client.
pub struct Client {
    /// Its number.
    pub index: usize,
    /// Its attachment to the fabric.
    pub endpoint: Endpoint,
    /// Its port.
    pub guid: Guid,
    /// Its GID.
    pub gid: Gid,
    /// The request under way.
    pub open: Option<Open>,
    /// What it knows, by slot.
    pub known: Vec<Known>,
    next_tid: u64,
    next_value: u32,
    /// Answers with OK, with another status, and requests given up.
    pub totals: [u64; 3],
}

impl Client {
    /// A client that has registered nothing.
    pub fn new(index: usize, endpoint: Endpoint, guid: Guid, gid: Gid, now: Instant) -> Self {
        let known =
            Known { may_be: vec![None], wanted: None, since: now, is_asked: false, denied: None };
        Self {
            index,
            endpoint,
            guid,
            gid,
            open: None,
            known: vec![known; GROUPS + SERVICES],
            next_tid: 0,
            next_value: 1,
            totals: [0; 3],
        }
    }

    /// A manager asks this client to register again.
    pub fn handle_reregister(&mut self) {
        for known in &mut self.known {
            known.denied = None;
            if known.wanted.is_some() || known.may_be.iter().any(Option::is_some) {
                known.is_asked = true;
                if !known.may_be.contains(&None) {
                    known.may_be.push(None);
                }
            }
        }
    }

    /// Whether everything wanted is registered for certain, and nothing else.
    pub fn is_settled(&self) -> bool {
        self.open.is_none() && self.known.iter().all(|known| !known.is_unsettled())
    }

    /// The next request; `random`: one that the client makes up, or else only those that settle
    /// what is uncertain.
    pub fn next_ask(&mut self, random: &mut Random, invents: bool, others: &[Guid]) -> Option<Ask> {
        if let Some(slot) = self.known.iter().position(Known::is_unsettled) {
            let known = &mut self.known[slot];
            // Who is not answered may do something else: the first request must not come later.
            if invents && !known.is_asked && random.one_in(3) {
                known.wanted = match known.wanted {
                    Some(_) => None,
                    None => Some(1),
                };
            }
            return Some(Ask::Put(slot, self.known[slot].wanted));
        }
        if !invents {
            return None;
        }
        let slot = random.below(GROUPS + SERVICES);
        Some(match random.below(10) {
            0..5 => {
                let value = match self.known[slot].wanted {
                    Some(_) if slot < GROUPS || random.one_in(2) => None,
                    _ if slot < GROUPS => Some(1),
                    _ => {
                        self.next_value += 1;
                        Some(self.next_value)
                    }
                };
                Ask::Put(slot, value)
            }
            // Only trusted requesters may read who is in a group.
            5..8 => Ask::Get(GROUPS + random.below(SERVICES)),
            _ => Ask::Path(others[random.below(others.len())]),
        })
    }

    /// Begins a request.
    pub fn begin(&mut self, now: Instant, ask: Ask) {
        self.next_tid += 1;
        let tid = (self.index as u64) << 32 | self.next_tid;
        let mut mad = [0; MAD_LEN];
        self.write(ask, tid, &mut mad);
        let mut before = Vec::new();
        if let Ask::Put(slot, value) = ask {
            before.clone_from(&self.known[slot].may_be);
            let known = &mut self.known[slot];
            known.wanted = value;
            if !known.may_be.contains(&value) {
                known.may_be.push(value);
            }
        }
        self.open = Some(Open { ask, mad, tid, tries: 0, since: now, before });
    }

    fn write(&self, ask: Ask, tid: u64, mad: &mut [u8; MAD_LEN]) {
        match ask {
            Ask::Put(slot, value) if slot < GROUPS => self.write_member(slot, value, tid, mad),
            Ask::Put(slot, value) => {
                let method = if value.is_some() { Method::SET } else { Method::DELETE };
                self.write_service(slot, method, value.unwrap_or(0), tid, mad);
            }
            Ask::Get(slot) => self.write_service(slot, Method::GET, 0, tid, mad),
            Ask::Path(to) => {
                let mask = path::DGID | path::SGID;
                let data = request(mad, Method::GET, attribute::PATH_RECORD, tid, mask);
                let mut to_gid = self.gid;
                to_gid.0[8..].copy_from_slice(&to.0.to_be_bytes());
                PathRecord::of_mut(data).set_dgid(to_gid).set_sgid(self.gid);
            }
        }
    }

    fn write_member(&self, slot: Slot, value: Value, tid: u64, mad: &mut [u8; MAD_LEN]) {
        let named = mc::MGID | mc::PORT_GID | mc::JOIN_STATE;
        if value.is_none() {
            let data = request(mad, Method::DELETE, attribute::MC_MEMBER_RECORD, tid, named);
            McMemberRecord::of_mut(data)
                .set_mgid(mgid(slot))
                .set_port_gid(self.gid)
                .set_join_state(JoinState::FULL_MEMBER);
            return;
        }
        let given = mc::QKEY | mc::MTU_SELECTOR | mc::MTU | mc::TCLASS | mc::RATE_SELECTOR;
        let given = given | mc::RATE | mc::SL | mc::FLOW_LABEL | mc::PKEY | mc::SCOPE;
        let data = request(mad, Method::SET, attribute::MC_MEMBER_RECORD, tid, named | given);
        McMemberRecord::of_mut(data)
            .set_mgid(mgid(slot))
            .set_port_gid(self.gid)
            .set_pkey(PKey::DEFAULT_FULL)
            .set_join_state(JoinState::FULL_MEMBER)
            .set_qkey(0x8001_0000)
            .set_mtu_selector(Selector::Exactly)
            .set_mtu(Mtu::B2048)
            .set_rate_selector(Selector::Exactly)
            .set_rate(Rate::Gbps10)
            .set_scope(5);
    }

    fn write_service(
        &self,
        slot: Slot,
        method: Method,
        value: u32,
        tid: u64,
        mad: &mut [u8; MAD_LEN],
    ) {
        let key = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY;
        let mask = match method {
            Method::SET => key | svc::SERVICE_LEASE | svc::SERVICE_NAME,
            _ => key,
        };
        let data = request(mad, method, attribute::SERVICE_RECORD, tid, mask);
        let mut name = [0; 64];
        name[..4].copy_from_slice(&value.to_be_bytes());
        ServiceRecord::of_mut(data)
            .set_service_id(self.service_id(slot))
            .set_service_gid(self.gid)
            .set_service_pkey(PKey::DEFAULT_FULL)
            .set_service_lease(LEASE_INDEFINITE)
            .set_service_name(name);
    }

    fn service_id(&self, slot: Slot) -> u64 {
        SERVICE_ID_BASE + (self.index as u64) * 256 + slot as u64
    }

    /// What is registered in a slot, by the rows of a registry.
    pub fn value_in(&self, plane: &RegistryPlane, slot: Slot) -> Value {
        if slot < GROUPS {
            let rid = MulticastMemberRid { mgid: mgid(slot), port_gid: self.gid };
            let member = plane.members.find(rid)?;
            return (member.join_state & 1 != 0).then_some(1);
        }
        let (service_id, service_gid) = (self.service_id(slot), self.gid);
        let rid = ServiceRid { service_id, service_gid, service_pkey: PKey::DEFAULT_FULL };
        let service = plane.services.find(rid)?;
        Some(value_of_name(&service.record[48..52]))
    }

    /// Takes an answer. `calm` if everything has been current for long: a read must show what is
    /// registered.
    pub fn handle_answer(
        &mut self,
        now: Instant,
        mad: &[u8; MAD_LEN],
        calm_since: Option<Instant>,
    ) -> Option<(Ask, Status, Finding)> {
        let answer = SaMad::new(mad);
        let tid = answer.header().tid() & (u64::MAX >> 16);
        let open = self.open.take_if(|open| open.tid == tid)?;
        let status = answer.header().status();
        self.totals[usize::from(status != Status::OK)] += 1;
        let finding = match open.ask {
            Ask::Put(slot, value) => {
                self.settle(now, &open, (slot, value), status);
                Finding::Fine
            }
            Ask::Get(slot) => self.check(&open, slot, status, answer.data(), calm_since),
            Ask::Path(_) => Finding::Fine,
        };
        Some((open.ask, status, finding))
    }

    fn settle(&mut self, now: Instant, open: &Open, put: (Slot, Value), status: Status) {
        let (slot, value) = put;
        let known = &mut self.known[slot];
        known.since = now;
        // What is not there need not be withdrawn.
        let is_absent = status == Status::SA_REQ_INVALID || status == Status::SA_NO_RECORDS;
        if status == Status::OK || (value.is_none() && is_absent) {
            // A repeat may find what the first request has done.
            let is_denial = status != Status::OK && open.tries == 1;
            if is_denial && !open.before.contains(&None) && !known.is_asked {
                known.denied = Some(now);
            }
            (known.may_be, known.is_asked) = (vec![value], false);
        }
    }

    fn check(
        &self,
        open: &Open,
        slot: Slot,
        status: Status,
        data: &[u8; DATA_LEN],
        calm_since: Option<Instant>,
    ) -> Finding {
        let found = match status {
            Status::OK => {
                let record = ServiceRecord::of(data);
                if record.service_id() != self.service_id(slot) {
                    return Finding::Nonsense(format!("another service in the answer of {slot}"));
                }
                Some(value_of_name(&record.service_name()[..4]))
            }
            Status::SA_NO_RECORDS => None,
            _ => return Finding::Fine,
        };
        let known = &self.known[slot];
        let is_certain = calm_since.is_some_and(|since| open.since >= since)
            && open.since >= known.since + READ_AGE_MAX
            && known.may_be.len() == 1;
        if is_certain && !known.may_be.contains(&found) {
            return Finding::Unexpected { slot, found, may_be: known.may_be.clone() };
        }
        Finding::Fine
    }

    /// No answer came in time: whether to send again. If not, the request is given up.
    pub fn retry(&mut self, tid: u64) -> Option<bool> {
        let open = self.open.as_ref().filter(|open| open.tid == tid)?;
        if open.tries < TRIES_MAX {
            return Some(true);
        }
        self.totals[2] += 1;
        self.open = None;
        Some(false)
    }

    /// The port that the SM has named for queries.
    pub fn address(sm_lid: Lid) -> ib_mad::transport::Address {
        ib_mad::transport::Address::gsi(sm_lid)
    }
}

/// By how much reads of what is registered may be outdated, and some time for packets.
pub const READ_AGE_MAX: Duration = Duration::from_millis(1500);

impl Known {
    /// Whether the client has something to do for this slot.
    pub fn is_unsettled(&self) -> bool {
        self.is_asked || self.may_be.len() > 1 || self.may_be[0] != self.wanted
    }
}

fn value_of_name(name: &[u8]) -> u32 {
    name.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn mgid(slot: Slot) -> Gid {
    let mut mgid = [0; 16];
    mgid[..6].copy_from_slice(&[0xFF, 0x15, 0x40, 0x01, 0xFF, 0xFF]);
    mgid[15] = slot as u8 + 1;
    Gid(mgid)
}

fn request(
    mad: &mut [u8; MAD_LEN],
    method: Method,
    attribute: ib_mad::wire::mad::AttributeId,
    tid: u64,
    mask: ComponentMask,
) -> &mut [u8; DATA_LEN] {
    SaMad::new(&mut *mad).write_request(method, attribute, tid, mask);
    ib_mad::wire::field::part_mut::<{ ib_mad::wire::sa::HEADER_LEN }, _, _>(mad)
}
