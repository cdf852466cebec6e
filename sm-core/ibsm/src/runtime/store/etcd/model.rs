//! An etcd cluster in memory, for simulations: keys with revisions, transactions and leases as etcd
//! has them, behind links that lose requests and answers. It decides nothing for the store: what
//! managers send and read is what they send to a real cluster.
//!
//! Left out: elections of members. While the cluster is down, as during an election, requests get
//! no answer; then leases begin again, as etcd's do under a new leader. A member that is down
//! answers nothing, and the others go on.
//!
//! Transactions without an answer may be carried out later, also if the process that sent them has
//! ended: when the member that has them is up again, or the connection that carries them works.

#![cfg_attr(
    not(feature = "etcd-model"),
    allow(unreachable_pub, dead_code, reason = "only tests use it")
)]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sa_proto::prost::bytes::Bytes;
use tonic::Status;

use super::failure::Failure;
use super::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use super::proto::request_op::Request;
use super::proto::response_op::Response;
use super::proto::{
    Compare, DeleteRangeResponse, KeyValue, LeaseGrantResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};
use super::turn::Turn;
use crate::clock::Clock;

/// Operations in a transaction, at most, as etcd is configured by default.
const TXN_OPS_MAX: usize = 128;
/// Bytes of a request, at most, as etcd is configured by default.
const REQUEST_LEN_MAX: usize = 1_572_864;
/// When a store in a simulation takes its log into the tables, bytes: often.
#[cfg(feature = "etcd-model")]
pub(super) const FOLD_LEN: usize = 20_000;
/// Members of the cluster.
pub const MEMBERS: usize = 3;
/// Transactions at a time that may be carried out later.
const LATE_MAX: usize = 64;
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A cluster; see the module.
pub struct EtcdModel {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    revision: i64,
    compacted: i64,
    /// By key: its values with the revisions of their changes, ascending; `None`: it was deleted.
    keys: BTreeMap<Bytes, Vec<(i64, Option<KeyValue>)>>,
    leases: BTreeMap<i64, Lease>,
    next_lease: i64,
    is_down: bool,
    /// Members that answer nothing.
    are_down: [bool; MEMBERS],
    /// Reads and writes of keys that contain these texts are refused.
    refused_reads: Option<&'static str>,
    refused_writes: Option<&'static str>,
    /// What is refused now.
    refuses: Option<Refused>,
    /// Transactions without an answer that are yet to be carried out.
    late: Vec<Late>,
}

/// What a cluster refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// All that needs room: it has used up its quota.
    Writes,
    /// All requests: the user has lost its role.
    All,
}

impl Refused {
    fn failure(self) -> Failure {
        Failure::Refused(match self {
            Self::Writes => Status::failed_precondition("etcdserver: mvcc: no space"),
            Self::All => Status::permission_denied("etcdserver: permission denied"),
        })
    }
}

/// A transaction that is carried out later.
struct Late {
    due: Instant,
    /// The member that has it.
    member: usize,
    /// The connection that it came by.
    network: Arc<Mutex<LinkState>>,
    request: TxnRequest,
}

struct Lease {
    time: Duration,
    ends: Instant,
}

impl EtcdModel {
    /// An empty cluster.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = State { revision: 1, next_lease: 1, ..State::default() };
        Arc::new(Self { clock, state: Mutex::new(state) })
    }

    /// Lets the cluster answer no requests, or answer again.
    pub fn set_down(&self, is_down: bool) {
        let now = self.clock.now();
        let mut state = self.state();
        if std::mem::replace(&mut state.is_down, is_down) && !is_down {
            state.leases.values_mut().for_each(|lease| lease.ends = now + lease.time);
        }
    }

    /// Lets a member answer no requests, or answer again. It is not the leader.
    pub fn set_member_down(&self, member: usize, is_down: bool) {
        self.state().are_down[member] = is_down;
    }

    /// Lets the cluster refuse requests, or accept all again.
    pub fn set_refuses(&self, refuses: Option<Refused>) {
        self.state().refuses = refuses;
    }

    /// Refuses reads, and writes, of keys that contain these texts, as an etcd whose disk is full.
    #[cfg(test)]
    pub(super) fn refuse(&self, reads: Option<&'static str>, writes: Option<&'static str>) {
        let mut state = self.state();
        (state.refused_reads, state.refused_writes) = (reads, writes);
    }

    /// Puts a value that no manager wrote.
    #[cfg(test)]
    pub(super) fn put_raw(&self, key: &'static str, value: &[u8]) {
        let mut state = self.state();
        state.revision += 1;
        let value = Bytes::copy_from_slice(value);
        state.put(&PutRequest { key: Bytes::from_static(key.as_bytes()), value, lease: 0 });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state for a request that arrives at a member now; `None` while that or the cluster is
    /// down.
    fn serve_at(&self, member: usize) -> Option<MutexGuard<'_, State>> {
        self.serve().filter(|state| !state.are_down[member % MEMBERS])
    }

    /// The same at a member that is up.
    fn serve(&self) -> Option<MutexGuard<'_, State>> {
        let now = self.clock.now();
        let mut state = self.state();
        if state.is_down {
            return None;
        }
        let ended = state.leases.iter().filter(|(_, lease)| lease.ends <= now);
        let ended: Vec<i64> = ended.map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| state.end_lease(id));
        state.carry_out_late(now);
        Some(state)
    }

    /// Keeps a transaction without an answer, to be carried out later.
    fn keep_late(&self, late: Late) {
        let mut state = self.state();
        if state.late.len() < LATE_MAX {
            state.late.push(late);
        }
    }
}

impl State {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.revision })
    }

    fn value(&self, key: &[u8]) -> Option<&KeyValue> {
        self.keys.get(key)?.last()?.1.as_ref()
    }

    /// Carries out transactions that had no answer, and whose time has come.
    fn carry_out_late(&mut self, now: Instant) {
        let are_down = self.are_down;
        let is_due = |late: &mut Late| {
            let network = late.network.lock().unwrap_or_else(PoisonError::into_inner);
            late.due <= now && !network.is_cut && !are_down[late.member % MEMBERS]
        };
        let due: Vec<_> = self.late.extract_if(.., is_due).collect();
        for late in due {
            // No request waits for the answer.
            let _ = self.txn(&late.request);
        }
    }

    /// Whether a request is refused; `writes`: it needs room.
    fn check_refused(&self, writes: bool) -> Result<(), Failure> {
        let refused = self.refuses.filter(|refused| writes || *refused == Refused::All);
        refused.map_or(Ok(()), |refused| Err(refused.failure()))
    }

    fn end_lease(&mut self, id: i64) {
        if self.leases.remove(&id).is_none() {
            return;
        }
        let hangs = |(_, values): &(&Bytes, &Vec<(i64, Option<KeyValue>)>)| {
            values.last().and_then(|(_, kv)| kv.as_ref()).is_some_and(|kv| kv.lease == id)
        };
        let keys: Vec<Bytes> = self.keys.iter().filter(hangs).map(|(key, _)| key.clone()).collect();
        if !keys.is_empty() {
            self.revision += 1;
            keys.into_iter().for_each(|key| self.change(key, None));
        }
    }

    /// Changes a key in the current revision.
    fn change(&mut self, key: Bytes, value: Option<KeyValue>) {
        let revision = self.revision;
        self.keys.entry(key).or_default().push((revision, value));
    }

    fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Failure> {
        self.check_refused(false)?;
        if self.refused_reads.is_some_and(|text| contains(&request.key, text)) {
            return Err(Failure::Refused(Status::failed_precondition("refused by the test")));
        }
        let at = if request.revision == 0 { self.revision } else { request.revision };
        if at < self.compacted {
            let reason = "etcdserver: mvcc: required revision has been compacted";
            return Err(Failure::Refused(Status::out_of_range(reason)));
        }
        let end = match request.range_end.is_empty() {
            true => Bound::Included(&request.key),
            false => Bound::Excluded(&request.range_end),
        };
        let mut kvs = Vec::new();
        if request.range_end.is_empty() || request.key < request.range_end {
            for (_, values) in self.keys.range::<Bytes, _>((Bound::Included(&request.key), end)) {
                let then = values.iter().rev().find(|(revision, _)| *revision <= at);
                kvs.extend(then.and_then(|(_, kv)| kv.clone()));
            }
        }
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let more = limit != 0 && kvs.len() > limit;
        if more {
            kvs.truncate(limit);
        }
        Ok(RangeResponse { header: self.header(), kvs, more })
    }

    fn holds(&self, compare: &Compare) -> bool {
        let created = self.value(&compare.key).map_or(0, |kv| kv.create_revision);
        let values = self.keys.get(&compare.key).and_then(|values| values.last());
        // An absent key counts as one that never changed.
        let changed = values.map_or(0, |(revision, kv)| kv.as_ref().map_or(0, |_| *revision));
        match (compare.result(), compare.target(), compare.target_union) {
            (CompareResult::Equal, CompareTarget::Create, Some(it)) => {
                it == TargetUnion::CreateRevision(created)
            }
            (CompareResult::Less, CompareTarget::Mod, Some(TargetUnion::ModRevision(revision))) => {
                changed < revision
            }
            other => panic!("{other:?} is not in the model"),
        }
    }

    fn txn(&mut self, request: &TxnRequest) -> Result<TxnResponse, Failure> {
        use sa_proto::prost::Message;
        let refused = |reason| Err(Failure::Refused(Status::invalid_argument(reason)));
        if request.success.len().max(request.failure.len()) > TXN_OPS_MAX {
            return refused("etcdserver: too many operations in txn request");
        }
        if request.encoded_len() > REQUEST_LEN_MAX {
            return refused("etcdserver: request is too large");
        }
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let ops = if succeeded { &request.success } else { &request.failure };
        let puts = ops.iter().filter_map(|op| match &op.request {
            Some(Request::RequestPut(put)) => Some(put),
            _ => None,
        });
        self.check_refused(puts.clone().next().is_some())?;
        if puts.clone().any(|put| put.lease != 0 && !self.leases.contains_key(&put.lease)) {
            return Err(Failure::Refused(Status::not_found(
                "etcdserver: requested lease not found",
            )));
        }
        if puts.clone().any(|put| self.refused_writes.is_some_and(|it| contains(&put.key, it))) {
            return Err(Failure::Refused(Status::failed_precondition("etcdserver: no space")));
        }
        let before = self.revision;
        let mut responses = Vec::new();
        for op in ops {
            let response = match &op.request {
                Some(Request::RequestRange(range)) => Response::ResponseRange(self.range(range)?),
                Some(Request::RequestPut(put)) => {
                    self.revision = before + 1;
                    self.put(put);
                    Response::ResponsePut(PutResponse { header: self.header() })
                }
                Some(Request::RequestDeleteRange(range)) => {
                    let (key, range_end) = (range.key.clone(), range.range_end.clone());
                    let all = RangeRequest { key, range_end, ..RangeRequest::default() };
                    for kv in self.range(&all)?.kvs {
                        self.revision = before + 1;
                        self.change(kv.key, None);
                    }
                    Response::ResponseDeleteRange(DeleteRangeResponse { header: self.header() })
                }
                None => continue,
            };
            responses.push(ResponseOp { response: Some(response) });
        }
        Ok(TxnResponse { header: self.header(), succeeded, responses })
    }

    fn put(&mut self, put: &PutRequest) {
        let created = self.value(&put.key).map_or(self.revision, |kv| kv.create_revision);
        let value = KeyValue {
            key: put.key.clone(),
            create_revision: created,
            value: put.value.clone(),
            lease: put.lease,
        };
        self.change(put.key.clone(), Some(value));
    }

    fn compact(&mut self, revision: i64) {
        self.compacted = revision.max(self.compacted).min(self.revision);
        let compacted = self.compacted;
        self.keys.retain(|_, values| {
            let last = values.iter().rposition(|(revision, _)| *revision <= compacted);
            values.drain(..last.unwrap_or(0));
            !matches!(values[..], [(revision, None)] if revision <= compacted)
        });
    }
}

fn contains(key: &[u8], text: &str) -> bool {
    key.windows(text.len()).any(|part| part == text.as_bytes())
}

/// The way of one manager to the cluster.
#[derive(Clone)]
pub struct EtcdLink {
    model: Arc<EtcdModel>,
    network: Arc<Mutex<LinkState>>,
    /// The member that a process asks first.
    first: usize,
    turn: Turn,
}

impl std::fmt::Debug for EtcdLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdLink").finish_non_exhaustive()
    }
}

/// The state of a link.
struct LinkState {
    /// Time to the cluster, and back.
    latency: Duration,
    is_cut: bool,
    /// Chooses what is lost.
    draws: u64,
    /// One in this many requests, and answers, is lost; 0: none.
    lost_of: u64,
}

impl LinkState {
    /// The next random number: xorshift (Marsaglia 2003).
    fn draw(&mut self) -> u64 {
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 7;
        self.draws ^= self.draws << 17;
        self.draws
    }
}

impl EtcdLink {
    /// A link whose losses, and the member that is asked first, depend on `seed`.
    pub fn new(model: &Arc<EtcdModel>, latency: Duration, seed: u64) -> Self {
        let state = LinkState { latency, is_cut: false, draws: seed | 1, lost_of: 0 };
        let (network, first) = (Arc::new(Mutex::new(state)), seed as usize % MEMBERS);
        Self { model: model.clone(), network, first, turn: Turn::starting_at(first) }
    }

    /// The link as a process uses it that has just started.
    pub(super) fn of_process(&self) -> Self {
        Self { turn: Turn::starting_at(self.first), ..self.clone() }
    }

    /// Cuts the link, or mends it.
    pub fn set_cut(&self, is_cut: bool) {
        self.network().is_cut = is_cut;
    }

    /// Loses one in `lost_of` requests, and answers; none if that is 0.
    pub fn set_losses(&self, lost_of: u64) {
        self.network().lost_of = lost_of;
    }

    fn network(&self) -> MutexGuard<'_, LinkState> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a message gets through.
    fn passes(&self) -> bool {
        let mut network = self.network();
        network.draw();
        !network.is_cut && (network.lost_of == 0 || !network.draws.is_multiple_of(network.lost_of))
    }

    /// How much later a request is carried out that had no answer, up to 4 s.
    fn delay(&self) -> Duration {
        Duration::from_millis(self.network().draw() % 4096)
    }

    /// Sends a request, and waits for its answer.
    async fn call<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.call_late(act, None).await
    }

    /// The same of a transaction, which is carried out later if the member does not get it now.
    async fn call_late<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, Failure>,
        late: Option<&TxnRequest>,
    ) -> Result<T, Failure> {
        let (latency, member) = (self.network().latency, self.turn.current());
        tokio::time::sleep(latency).await;
        let answer = match self.passes() {
            true => self.model.serve_at(member).map(|mut state| act(&mut state)),
            false => None,
        };
        if answer.is_none()
            && let Some(request) = late
        {
            let (due, network) = (self.model.clock.now() + self.delay(), self.network.clone());
            self.model.keep_late(Late { due, member, network, request: request.clone() });
        }
        match answer {
            Some(answer) if self.passes() => {
                tokio::time::sleep(latency).await;
                answer
            }
            _ => {
                tokio::time::sleep(PATIENCE).await;
                self.turn.pass(member);
                Err(Failure::Unreachable("no answer".to_owned()))
            }
        }
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.call(|state| state.range(&request)).await
    }

    /// One that the member does not get now is carried out later, as by a member that was stopped
    /// or could not reach the leader.
    pub(super) async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, Failure> {
        self.call_late(|state| state.txn(request), Some(request)).await
    }

    pub(super) async fn compact(&self, revision: i64) -> Result<(), Failure> {
        self.call(|state| {
            state.check_refused(false)?;
            state.compact(revision);
            Ok(())
        })
        .await
    }

    pub(super) async fn grant(&self, ttl_s: i64) -> Result<LeaseGrantResponse, Failure> {
        let now = self.model.clock.now();
        self.call(|state| {
            state.check_refused(true)?;
            let id = state.next_lease;
            state.next_lease += 1;
            let time = Duration::from_secs(ttl_s.max(0) as u64);
            state.leases.insert(id, Lease { time, ends: now + time });
            Ok(LeaseGrantResponse { header: state.header(), id, ttl: ttl_s })
        })
        .await
    }

    pub(super) async fn revoke(&self, id: i64) -> Result<(), Failure> {
        self.call(|state| {
            state.check_refused(false)?;
            state.end_lease(id);
            Ok(())
        })
        .await
    }

    pub(super) async fn keep_alive(&self, id: i64) -> Result<bool, Failure> {
        let model = self.model.clone();
        self.call(|state| {
            state.check_refused(false)?;
            let now = model.clock.now();
            let lease = state.leases.get_mut(&id);
            let is_there = lease.is_some();
            lease.into_iter().for_each(|lease| lease.ends = now + lease.time);
            Ok(is_there)
        })
        .await
    }
}
