//! A client on a host: it joins and leaves groups, registers and withdraws services, and queries.
//!
//! It has one request under way and repeats it as kernels do, with the same TransactionID. For each
//! thing that it registers it knows what the answers permit: after an answer exactly one state,
//! after a request without one the states before and after it.
//!
//! [`requests`]: their MADs. [`repeats`]: what a repeat is answered.

mod repeats;
mod requests;

use std::time::{Duration, Instant};

use fabric_sim::Endpoint;
use ib_mad::types::{Gid, Guid, Lid, PKey};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::{GuidInfoRecord, McMemberRecord, PathRecord, ServiceRecord};
use ib_mad::wire::sa::{DATA_LEN, SaMad};
use sa_proto::snapshot::{MulticastMemberRid, RegistryPlane, ServiceRid};

use crate::random::Random;
pub use repeats::Arrival;
use repeats::First;

/// Groups, the same for all clients, and services of each client.
pub const GROUPS: usize = 6;
/// See [`GROUPS`].
pub const SERVICES: usize = 3;
/// Leases of further services, seconds. The first is longer than a run, unless a clock jumps.
const LEASES_S: [u32; 2] = [2000, 12];
/// The slots before that of a subscription to events, that of an alias GUID, and that of a group
/// whose MGID the SA chooses.
const RECORDS: usize = GROUPS + SERVICES + LEASES_S.len();
const SUBSCRIPTION: Slot = RECORDS;
const ALIAS: Slot = RECORDS + 1;
const CREATED: Slot = RECORDS + 2;
/// Everything that a client registers, that without a group whose MGID the SA chooses, and that
/// without subscription and alias GUID, either.
pub const SLOTS: usize = RECORDS + 3;
/// See [`SLOTS`].
pub const NAMED_SLOTS: usize = RECORDS + 2;
/// See [`SLOTS`].
pub const PLAIN_SLOTS: usize = RECORDS;
/// First of the clients' alias GUIDs, and its index in a port's table.
pub const ALIAS_BASE: u64 = 0x0A11_A500_0000_0000;
/// See [`ALIAS_BASE`].
pub const ALIAS_INDEX: usize = 1;
/// How long an answer may take before the request is repeated.
pub const ANSWER_TIME: Duration = Duration::from_millis(700);
/// Requests until a client gives up.
pub const TRIES_MAX: u32 = 6;
/// How often of these a client asks the responder's port that it prefers; then that of the SM.
pub const OWN_PORT_TRIES: u32 = 3;
/// How long a client that gave a request up goes on with the same: with [`ANSWER_TIME`], what
/// responders keep writes for while no manager can be reached.
const GIVEN_UP_TIME: Duration = Duration::from_millis(1500);
/// How much later a lease may end than by the time of the answer: registry time has whole seconds,
/// and reads may be outdated. It never ends earlier than by the time of the request.
const LEASE_ERROR: Duration = Duration::from_secs(6);
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
    /// A path to a port, by its GUID or an alias of it.
    Path(Guid),
    /// A path to a port in a partition of programs.
    Inside(Guid, PKey),
    /// A path to a group, which this client's port has if it is a member.
    Reach(Slot),
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
    /// The reign in which it was sent first.
    pub reign: u64,
    /// The first answer, if that was lost.
    first: Option<First>,
}

/// Where an answer comes from: the responder, which of its processes, and the epoch of what it
/// served.
pub type Source = (usize, u64, u64);

/// When a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Not before this time.
    pub from: Instant,
    /// Not after this time, if that is known.
    pub until: Option<Instant>,
}

/// What is known when an answer arrives.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The current time.
    pub now: Instant,
    /// Since when nothing fails that could delay what responders learn.
    pub calm_since: Option<Instant>,
    /// Counts how often another manager became master.
    pub reign: u64,
    /// Whether ports may have left the fabric, with what ends then.
    pub has_moved: bool,
    /// Where the answer comes from.
    pub source: Option<Source>,
}

/// What a client knows of a slot.
#[derive(Clone, Debug)]
pub struct Known {
    /// What may be registered, by the answers so far. Not empty; one if it is certain.
    pub may_be: Vec<Value>,
    /// What it was when its last lease ended. It stays in a store that takes no writes.
    pub lapsed: Vec<Value>,
    /// What the client wants.
    pub wanted: Value,
    /// When the last answer came.
    pub since: Instant,
    /// Whether a manager asked to register again, and this has not been answered yet.
    pub is_asked: bool,
    /// When it was asked last.
    pub asked: Option<Instant>,
    /// The SM denied what the client knew, at this time: it must be asked to register again.
    pub denied: Option<Instant>,
    /// When it ends by itself, if it does.
    pub lease: Option<Lease>,
    /// Where the last answer to a write came from.
    pub source: Option<Source>,
    /// When a request was given up last.
    pub given_up: Option<Instant>,
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
    /// Its LID, when it asked last.
    pub lid: Lid,
    /// How many of [`SLOTS`] it uses.
    pub slots: usize,
    /// The responder whose own port it asks first, in place of the SM's port.
    pub via: Option<usize>,
    /// Since when it has had no answer to anything it asked.
    pub waits_since: Option<Instant>,
    /// The request under way.
    pub open: Option<Open>,
    /// What it knows, by slot.
    pub known: Vec<Known>,
    /// The MGID that the SA chose last.
    created: Option<Gid>,
    /// The last value of its alias GUID.
    last_alias: Option<u32>,
    next_tid: u64,
    next_value: u32,
    /// Whether registry time may have jumped, so that leases end at any time.
    has_jumped: bool,
    /// Answers with OK, with another status, and requests given up.
    pub totals: [u64; 3],
}

impl Client {
    /// A client that has registered nothing.
    pub fn new(index: usize, endpoint: Endpoint, guid: Guid, gid: Gid, now: Instant) -> Self {
        let known = Known {
            may_be: vec![None],
            lapsed: Vec::new(),
            wanted: None,
            since: now,
            is_asked: false,
            asked: None,
            denied: None,
            lease: None,
            source: None,
            given_up: None,
        };
        Self {
            index,
            endpoint,
            guid,
            gid,
            lid: Lid::NONE,
            slots: SLOTS,
            via: None,
            waits_since: None,
            open: None,
            known: vec![known; SLOTS],
            created: None,
            last_alias: None,
            next_tid: 0,
            next_value: 1,
            has_jumped: false,
            totals: [0; 3],
        }
    }

    /// A manager asks this client to register again.
    pub fn handle_reregister(&mut self, now: Instant) {
        // No other client knows the group: this one leaves it, and creates another.
        self.known[CREATED].wanted = None;
        for known in &mut self.known {
            known.denied = None;
            known.asked = Some(now);
            if known.wanted.is_some() || known.may_be.iter().any(Option::is_some) {
                known.is_asked = true;
                if !known.may_be.contains(&None) {
                    known.may_be.push(None);
                }
            }
        }
    }

    /// Registry time may have jumped: leases end at any time from now on.
    pub fn handle_jump(&mut self, now: Instant) {
        self.has_jumped = true;
        for lease in self.known.iter_mut().filter_map(|known| known.lease.as_mut()) {
            *lease = Lease { from: lease.from.min(now), until: None };
        }
    }

    /// Registry time continues from the last commit: leases that began before may last longer.
    pub fn handle_session(&mut self) {
        for lease in self.known.iter_mut().filter_map(|known| known.lease.as_mut()) {
            lease.until = None;
        }
    }

    /// A manager has become master with a registry that may be outdated: what was withdrawn may
    /// have returned, and is withdrawn again.
    pub fn handle_return(&mut self, plane: &RegistryPlane) {
        for slot in 0..SLOTS {
            let found = self.value_in(plane, slot);
            let known = &mut self.known[slot];
            if found.is_some() && !known.may_be.contains(&found) {
                known.may_be.push(found);
            }
        }
    }

    /// Since when it waits for the answer to a read at a responder's port.
    pub fn reads_since(&self) -> Option<Instant> {
        let open = self.open.as_ref().filter(|open| matches!(open.ask, Ask::Get(_)))?;
        self.via.map(|_| open.since)
    }

    /// The alias GUID that its port must have: what is registered, if that is certain.
    pub fn alias_wanted(&self) -> Option<Guid> {
        let [value] = self.known[ALIAS].may_be[..] else { return None };
        value.map(|value| self.alias(value))
    }

    /// The alias GUID of its port that it registered last.
    pub fn last_alias(&self) -> Option<Guid> {
        self.last_alias.map(|value| self.alias(value))
    }

    /// Whether a port has this alias GUID, as far as that is known; `asked`: when that was asked
    /// first.
    pub fn has_alias(&self, alias: Guid, asked: Instant) -> Option<bool> {
        let known = &self.known[ALIAS];
        let is_known = asked >= known.since + READ_AGE_MAX && known.may_be.len() == 1;
        is_known.then(|| known.may_be[0].map(|value| self.alias(value)) == Some(alias))
    }

    /// Whether everything wanted is registered for certain, and nothing else.
    pub fn is_settled(&self) -> bool {
        self.open.is_none() && self.known.iter().all(|known| !known.is_unsettled())
    }

    /// The next request; `invents`: one that the client makes up, or else only those that settle
    /// what is uncertain.
    pub fn next_ask(
        &mut self,
        now: Instant,
        random: &mut Random,
        invents: bool,
        others: &[Guid],
    ) -> Option<Ask> {
        self.known.iter_mut().for_each(|known| known.end_lease(now));
        if let Some(slot) = self.known.iter().position(Known::is_unsettled) {
            let known = &mut self.known[slot];
            // Who is not answered may do something else: the first request must not come later.
            let is_over = known.given_up.is_none_or(|at| now >= at + GIVEN_UP_TIME);
            if slot == CREATED && self.created.is_none() {
                // The group cannot be named that may have been created.
                known.wanted = Some(1);
            } else if invents && !known.is_asked && is_over && random.one_in(3) {
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
        let slot = random.below(self.slots);
        Some(match random.below(10) {
            0..5 => {
                let value = match self.known[slot].wanted {
                    Some(_) if is_yes_or_no(slot) || random.one_in(2) => None,
                    _ if is_yes_or_no(slot) => Some(1),
                    _ => {
                        self.next_value += 1;
                        Some(self.next_value)
                    }
                };
                Ask::Put(slot, value)
            }
            5..8 => match random.below(self.slots) {
                SUBSCRIPTION => Ask::Get(GROUPS),
                CREATED if self.created.is_none() => Ask::Get(0),
                slot if slot < GROUPS && random.one_in(2) => Ask::Reach(slot),
                slot => Ask::Get(slot),
            },
            _ => Ask::Path(others[random.below(others.len())]),
        })
    }

    /// A read of what was just written.
    pub fn read_after(ask: Ask) -> Option<Ask> {
        match ask {
            Ask::Put(SUBSCRIPTION | CREATED, _) => None,
            Ask::Put(slot, _) => Some(Ask::Get(slot)),
            Ask::Get(_) | Ask::Path(_) | Ask::Inside(..) | Ask::Reach(_) => None,
        }
    }

    /// Begins a request.
    pub fn begin(&mut self, now: Instant, ask: Ask, reign: u64) {
        self.next_tid += 1;
        self.waits_since.get_or_insert(now);
        let tid = (self.index as u64) << 32 | self.next_tid;
        let mut mad = [0; MAD_LEN];
        self.write(ask, tid, &mut mad);
        let mut before = Vec::new();
        if let Ask::Put(slot, value) = ask {
            before.clone_from(&self.known[slot].may_be);
            if slot == ALIAS {
                self.last_alias = value.or(self.last_alias);
            }
            let known = &mut self.known[slot];
            known.wanted = value;
            if !known.may_be.contains(&value) {
                known.may_be.push(value);
            }
            if let (Some(lease), Some(_)) = (lease_of(slot), value) {
                let from = now + lease;
                let before = known.lease.map_or(from, |lease| lease.from);
                known.lease = Some(Lease { from: from.min(before), until: None });
            }
        }
        self.open = Some(Open { ask, mad, tid, tries: 0, since: now, before, reign, first: None });
    }

    /// What is registered in a slot, by the rows of a registry.
    pub fn value_in(&self, plane: &RegistryPlane, slot: Slot) -> Value {
        if slot < GROUPS || slot == CREATED {
            let rid = MulticastMemberRid { mgid: self.mgid(slot)?, port_gid: self.gid };
            let member = plane.members.find(rid)?;
            return (member.join_state & 1 != 0).then_some(1);
        }
        if slot == SUBSCRIPTION {
            let mut rows = plane.subscriptions.iter();
            return rows.any(|row| row.rid.subscriber_gid == self.gid).then_some(1);
        }
        if slot == ALIAS {
            let alias = plane.alias_guids.iter().find(|row| row.port_guid == self.guid)?;
            return Some(alias.alias.0 as u32);
        }
        let (service_id, service_gid) = (self.service_id(slot), self.gid);
        let rid = ServiceRid { service_id, service_gid, service_pkey: PKey::DEFAULT_FULL };
        let service = plane.services.find(rid)?;
        Some(value_of_name(&service.record[48..52]))
    }

    /// Takes an answer.
    pub fn handle_answer(
        &mut self,
        context: Context,
        mad: &[u8; MAD_LEN],
    ) -> Option<(Ask, Status, Finding)> {
        let answer = SaMad::new(mad);
        let tid = answer.header().tid() & TID_MASK;
        let open = self.open.take_if(|open| open.tid == tid)?;
        let status = answer.header().status();
        self.waits_since = None;
        self.totals[usize::from(status != Status::OK)] += 1;
        let finding = match open.ask {
            Ask::Put(slot, value) => {
                self.settle(context, &open, (slot, value), status);
                if slot == CREATED {
                    self.note_created(status, answer.data());
                }
                Finding::Fine
            }
            Ask::Get(slot) => {
                let found = self.found(slot, answer.data());
                self.check(context, &open, slot, status, found)
            }
            Ask::Reach(slot) => {
                let record = PathRecord::of(answer.data());
                let (mgid, lid) = (record.dgid(), record.dlid());
                let found = match Some(mgid) == self.mgid(slot) && lid.is_multicast() {
                    true => Ok(Some(1)),
                    false => Err(format!("path to {mgid}, LID {lid}, in the answer of {slot}")),
                };
                self.check(context, &open, slot, status, found)
            }
            Ask::Path(_) | Ask::Inside(..) => Finding::Fine,
        };
        Some((open.ask, status, finding))
    }

    fn settle(&mut self, context: Context, open: &Open, put: (Slot, Value), status: Status) {
        let ((slot, value), now) = (put, context.now);
        let has_jumped = self.has_jumped;
        let known = &mut self.known[slot];
        // It is not known which of several copies is answered.
        let is_first = open.tries == 1;
        (known.since, known.source) = (now, context.source.filter(|_| is_first));
        // What is not there need not be withdrawn.
        let is_absent = status == Status::SA_REQ_INVALID || status == Status::SA_NO_RECORDS;
        if status == Status::OK || (value.is_none() && is_absent) {
            // A repeat gets the first answer, unless another manager decides meanwhile: that may
            // find what the first request has done.
            let is_same = is_first || (context.reign == open.reign && !has_jumped);
            let has_ended = known.lease.is_some_and(|lease| now >= lease.from);
            let is_denial = status != Status::OK && is_same && !has_ended;
            if is_denial && !open.before.contains(&None) && !known.is_asked {
                known.denied = Some(now);
            }
            // Asked since it sent this, it cannot know what the answer is about.
            let is_asked = known.is_asked && known.asked >= Some(open.since);
            (known.may_be, known.is_asked) = (vec![value], is_asked);
            if is_asked && value.is_some() {
                known.may_be.push(None);
            }
            let lease = lease_of(slot).filter(|_| value.is_some());
            known.lease = lease.map(|lease| match has_jumped {
                false => Lease { from: open.since + lease, until: Some(now + lease + LEASE_ERROR) },
                true => Lease { from: open.since, until: None },
            });
        }
    }

    /// The group whose MGID the SA chooses was created or left.
    fn note_created(&mut self, status: Status, data: &[u8; DATA_LEN]) {
        if self.known[CREATED].may_be == [None] {
            self.created = None;
        } else if status == Status::OK {
            self.created = Some(McMemberRecord::of(data).mgid());
        }
    }

    fn check(
        &self,
        context: Context,
        open: &Open,
        slot: Slot,
        status: Status,
        found: Result<Value, String>,
    ) -> Finding {
        let found = match status {
            Status::OK => match found {
                Ok(found) => found,
                Err(what) => return Finding::Nonsense(what),
            },
            Status::SA_NO_RECORDS if slot != ALIAS => None,
            _ => return Finding::Fine,
        };
        let known = &self.known[slot];
        let is_current = context.calm_since.is_some_and(|since| open.since >= since)
            && open.since >= known.since + READ_AGE_MAX;
        // The responder that answers a write has it in its tables. It need not learn that a lease
        // has ended.
        let shows_write = open.tries == 1
            && known.source.is_some()
            && known.source == context.source
            && !known.has_lapsed(context.now);
        let mut permitted = known.permitted(context.now);
        if context.has_moved && ends_with_port(slot) {
            permitted.push(None);
        }
        if (is_current || shows_write) && !permitted.contains(&found) {
            return Finding::Unexpected { slot, found, may_be: permitted };
        }
        Finding::Fine
    }

    /// What is registered in a slot, by the record in an answer.
    fn found(&self, slot: Slot, data: &[u8; DATA_LEN]) -> Result<Value, String> {
        if slot < GROUPS || slot == CREATED {
            let mgid = McMemberRecord::of(data).mgid();
            return match self.mgid(slot) == Some(mgid) {
                true => Ok(Some(1)),
                false => Err(format!("group {mgid} in the answer of {slot}")),
            };
        }
        if slot == ALIAS {
            let record = GuidInfoRecord::of(data);
            let guids = record.guid_info();
            let alias =
                guids[8 * ALIAS_INDEX..].first_chunk().map_or(0, |it| u64::from_be_bytes(*it));
            return match record.lid() == self.lid {
                true => Ok((alias != 0).then_some(alias as u32)),
                false => Err(format!("GUIDs of LID {} in the answer", record.lid())),
            };
        }
        let record = ServiceRecord::of(data);
        match record.service_id() == self.service_id(slot) {
            true => Ok(Some(value_of_name(&record.service_name()[..4]))),
            false => Err(format!("another service in the answer of {slot}")),
        }
    }

    /// No answer came in time: whether to send again. If not, the request is given up.
    pub fn retry(&mut self, now: Instant, tid: u64) -> Option<bool> {
        let open = self.open.as_ref().filter(|open| open.tid == tid)?;
        if open.tries < open.first.as_ref().map_or(TRIES_MAX, |_| repeats::TRIES_MAX) {
            return Some(true);
        }
        if let Ask::Put(slot, _) = open.ask {
            self.known[slot].given_up = Some(now);
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

/// The part of a TransactionID that the fabric leaves as it is.
pub const TID_MASK: u64 = u64::MAX >> 16;

/// By how much reads of what is registered may be outdated, and some time for packets.
pub const READ_AGE_MAX: Duration = Duration::from_millis(1500);

/// Whether a slot has no values but 1.
fn is_yes_or_no(slot: Slot) -> bool {
    slot < GROUPS || slot == SUBSCRIPTION || slot == CREATED
}

/// Whether what is registered in a slot ends when the port leaves the fabric.
pub fn ends_with_port(slot: Slot) -> bool {
    !(GROUPS..RECORDS).contains(&slot)
}

fn lease_of(slot: Slot) -> Option<Duration> {
    let lease_s = *LEASES_S.get(slot.checked_sub(GROUPS + SERVICES)?)?;
    Some(Duration::from_secs(lease_s.into()))
}

impl Known {
    /// What may be registered at this time.
    pub fn permitted(&self, now: Instant) -> Vec<Value> {
        let Some(lease) = self.lease else { return self.may_be.clone() };
        let has_ended = lease.until.is_some_and(|until| now >= until);
        let may_have_ended = now >= lease.from && !self.may_be.contains(&None);
        let kept = self.may_be.iter().copied().filter(|value| value.is_none() || !has_ended);
        kept.chain(may_have_ended.then_some(None)).collect()
    }

    /// Forgets a registration whose lease has ended.
    fn end_lease(&mut self, now: Instant) {
        if self.has_lapsed(now) {
            self.lapsed.clone_from(&self.may_be);
            (self.may_be, self.wanted, self.lease) = (vec![None], None, None);
            (self.is_asked, self.denied, self.source) = (false, None, None);
        }
    }

    /// Whether its lease has ended.
    fn has_lapsed(&self, now: Instant) -> bool {
        self.lease.is_some_and(|lease| lease.until.is_some_and(|until| now >= until))
    }

    /// Whether the client has something to do for this slot.
    pub fn is_unsettled(&self) -> bool {
        self.is_asked || self.may_be.len() > 1 || self.may_be[0] != self.wanted
    }
}

fn value_of_name(name: &[u8]) -> u32 {
    name.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use fabric_sim::generate::{Common, FatTree, Shape, generate};
    use fabric_sim::{Fabric, Options};

    use super::*;

    const START: Duration = Duration::from_secs(1);

    fn client(now: Instant) -> Client {
        let tree = FatTree { levels: 2, radix: 4, hosts: 4, oversubscription: (1, 1) };
        let net = generate(&Shape::FatTree(tree), &Common::default()).unwrap();
        let mut fabric = Fabric::new(&net, Options::default());
        let is_host = |node: &fabric_sim::NodeIndex| fabric.node(*node).num_ports == 1;
        let host = fabric.nodes().find(is_host).unwrap();
        let endpoint = fabric.attach(host, 0).unwrap();
        Client::new(
            0,
            endpoint,
            Guid(7),
            Gid::new(ib_mad::types::SUBNET_PREFIX_DEFAULT, Guid(7)),
            now,
        )
    }

    fn context(now: Instant, source: Option<Source>) -> Context {
        Context { now, calm_since: None, reign: 0, has_moved: false, source }
    }

    /// Sends a request and takes an answer with this status and the data of the request.
    fn ask(client: &mut Client, context: Context, ask: Ask, status: Status) -> Finding {
        client.begin(context.now, ask, context.reign);
        let open = client.open.as_mut().unwrap();
        open.tries = 1;
        let mut mad = open.mad;
        SaMad::new(&mut mad).header_mut().set_status(status);
        client.handle_answer(context, &mad).unwrap().2
    }

    #[test]
    fn a_lease_ends_within_its_error_unless_a_clock_may_have_jumped() {
        let start = Instant::now();
        let (slot, mut client) = (RECORDS - 1, client(start));
        let lease = lease_of(slot).unwrap();
        let now = start + START;
        ask(&mut client, context(now, None), Ask::Put(slot, Some(5)), Status::OK);
        let permitted = |client: &Client, after| client.known[slot].permitted(now + after);
        assert_eq!(permitted(&client, lease - Duration::from_millis(1)), [Some(5)]);
        assert_eq!(permitted(&client, lease), [Some(5), None]);
        assert_eq!(permitted(&client, lease + LEASE_ERROR), [None]);
        client.handle_jump(now);
        assert_eq!(permitted(&client, Duration::ZERO), [Some(5), None]);
        assert_eq!(permitted(&client, lease * 9), [Some(5), None]);
    }

    #[test]
    fn a_write_must_be_seen_at_the_responder_that_answered_it() {
        let start = Instant::now();
        let (slot, mut client) = (GROUPS, client(start));
        let here = context(start + START, Some((1, 1, 9)));
        ask(&mut client, here, Ask::Put(slot, Some(5)), Status::OK);
        let mut read =
            |source, status| ask(&mut client, Context { source, ..here }, Ask::Get(slot), status);
        let none = Status::SA_NO_RECORDS;
        assert!(matches!(read(here.source, none), Finding::Unexpected { found: None, .. }));
        for other in [None, Some((2, 1, 9)), Some((1, 2, 9)), Some((1, 1, 10))] {
            assert_eq!(read(other, none), Finding::Fine, "{other:?} need not have it yet");
        }
    }

    #[test]
    fn a_withdrawal_is_refused_only_if_another_manager_may_have_done_it() {
        let start = Instant::now();
        let now = start + START;
        for (tries, reign, is_denial) in [(1, 4, true), (2, 3, true), (2, 4, false)] {
            let mut client = client(start);
            ask(&mut client, context(now, None), Ask::Put(0, Some(1)), Status::OK);
            client.begin(now, Ask::Put(0, None), 3);
            let open = client.open.as_mut().unwrap();
            open.tries = tries;
            let mut mad = open.mad;
            SaMad::new(&mut mad).header_mut().set_status(Status::SA_REQ_INVALID);
            client.handle_answer(Context { reign, ..context(now, None) }, &mad);
            assert_eq!(client.known[0].denied.is_some(), is_denial, "{tries} {reign}");
        }
    }

    #[test]
    fn an_answer_may_be_lost_and_its_repeat_must_be_the_same() {
        let (now, mut random) = (Instant::now(), Random::new(1, 0));
        for (slot, data, moved, differs) in [
            (0, 0, false, false),
            (0, 1, false, true),
            (0, 1, true, false),
            (GROUPS, 1, true, true),
        ] {
            let mut client = client(now);
            let here = Context { has_moved: moved, ..context(now, None) };
            let mut arrives = |client: &mut Client, context, data| {
                let mut mad = client.open.as_ref().unwrap().mad;
                mad[MAD_LEN - 1] = data;
                client.judge_arrival(context, &mad, true, &mut random)
            };
            loop {
                client.begin(now, Ask::Put(slot, Some(1)), 0);
                if arrives(&mut client, here, 0) == Arrival::Lost {
                    break;
                }
            }
            let later = Context { now: now + Duration::from_secs(8), reign: 1, ..here };
            match arrives(&mut client, later, data) {
                Arrival::Differs(_, is_others) => assert!(differs && is_others),
                other => assert!(!differs && other == Arrival::Arrives, "{other:?}"),
            }
        }
    }

    #[test]
    fn a_group_is_named_as_the_sa_named_it_until_it_is_left() {
        let now = Instant::now();
        let (mut client, here) = (client(now), context(now, None));
        let made = Gid([0xFF; 16]);
        client.begin(now, Ask::Put(CREATED, Some(1)), 0);
        let mut mad = client.open.as_ref().unwrap().mad;
        McMemberRecord::of_mut(SaMad::new(&mut mad).data_mut()).set_mgid(made);
        client.handle_answer(here, &mad);
        assert_eq!(client.mgid(CREATED), Some(made));
        client.handle_reregister(now);
        assert_eq!(client.known[CREATED].wanted, None, "it is left, since it is gone for others");
        ask(&mut client, here, Ask::Put(CREATED, None), Status::SA_REQ_INVALID);
        assert_eq!(client.mgid(CREATED), None);
    }
}
