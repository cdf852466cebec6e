//! What is done when: standing by, taking the fence, committing, and rewriting the tables.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::time::Duration;

use sa_proto::snapshot::Session;
use sa_proto::state::StateVersion;
use sm_core::registry::Changes;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, sleep};
use tracing::{debug, warn};

use super::client::Client;
use super::failure::Failure;
use super::image::{Image, Made};
use super::layout::{Commit, Fence, Keys, Replacement, Tables, one, record_of, take_fence};
use super::life::Life;
use super::proto::response_op::Response;
use super::proto::{KeyValue, TxnRequest, TxnResponse};
use super::read::{ReadFailure, Reader, holder_text};
use super::state::{Known, SharedState, StateRead, StateWriter, StateWritten};
use super::status::{EtcdStatus, Holder, Written};
use super::{Event, Events, LEASE_S, Place};
use crate::runtime::store::StoreError;

/// How often a standby reads what was added.
const STANDBY_INTERVAL: Duration = Duration::from_secs(1);
/// How often a master looks whether the fence is free.
const FENCE_INTERVAL: Duration = Duration::from_millis(250);
/// How often a master looks whether the state besides the registry changed.
const STATE_INTERVAL: Duration = Duration::from_secs(1);
/// After how many bytes of that state etcd's history is compacted.
const STATE_LEN_MAX: usize = 64 << 20;
/// How often the lease is prolonged.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// How long to wait after a request without an answer, at first and at most.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const RETRY_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// How long to wait after a write that etcd refused.
const REFUSED_INTERVAL: Duration = Duration::from_secs(1);
/// What cannot be used, and what an operator can do about it.
const CONTENTS: [&str; 2] = [
    "the store in etcd",
    "restore it from a backup, or give another prefix, and clients must register again",
];
const STATE_CONTENTS: [&str; 2] = [
    "the LIDs, M_Keys and links in etcd",
    "standbys do without them until a master writes them again",
];

/// What the registry's thread asks for.
pub(super) enum Command {
    /// Everything, in an event with this number.
    Open(u64),
    /// This manager is master in this session, or not.
    Lead(Option<Session>),
    /// A commit, if the last `Open` has this number.
    Submit(u64, Arc<Changes>, Session),
    /// The end; the sender is dropped when the fence was given back.
    Close(Sender<()>),
}

/// Why a phase ended.
enum End {
    /// The next one may begin.
    Changed,
    /// The store is closed.
    Closed,
}

type Work<T> = Option<Pin<Box<dyn Future<Output = Result<T, Lost>> + Send>>>;

/// The fence is no longer ours.
struct Lost;

/// Ends a task.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// See the module.
pub(super) struct Task {
    reader: Reader,
    fold_len: usize,
    commands: UnboundedReceiver<Command>,
    events: Events,
    status: Arc<EtcdStatus>,
    life: Life,
    /// The state besides the registry, if it is kept; and as it was read last.
    state: Option<Arc<SharedState>>,
    known_state: Known,
    /// The version of it that this manager wrote last.
    written_state: Option<StateVersion>,
    /// Contents as far as they are known.
    image: Option<Image>,
    session: Option<Session>,
    /// Number of the last `Open`; and whether its event is still to be sent.
    opening: u64,
    is_awaited: bool,
    /// Identity of this process among holders of the fence.
    process: u64,
    closing: Option<Sender<()>>,
}

impl Task {
    pub(super) fn new(
        place: Place<'_>,
        commands: UnboundedReceiver<Command>,
        events: Events,
        status: Arc<EtcdStatus>,
        life: Life,
    ) -> Self {
        let Place { client, prefix, fold_len, process, state } = place;
        Self {
            reader: Reader { client, keys: Keys::new(prefix), status: status.clone() },
            fold_len,
            commands,
            events,
            status,
            life,
            state,
            known_state: Known::default(),
            written_state: None,
            image: None,
            session: None,
            opening: 0,
            is_awaited: false,
            process,
            closing: None,
        }
    }

    /// Runs until the store is closed.
    pub(super) async fn run(mut self) {
        loop {
            let end = match self.session {
                None => self.stand_by().await,
                Some(_) => self.lead().await,
            };
            if let End::Closed = end {
                drop(self.closing.take());
                return;
            }
        }
    }

    /// Reads what others commit.
    async fn stand_by(&mut self) -> End {
        while self.session.is_none() {
            self.copy().await;
            if let Some(end) = self.pause(STANDBY_INTERVAL).await {
                return end;
            }
        }
        End::Changed
    }

    /// Reads what was added, and reports it.
    async fn copy(&mut self) -> bool {
        match self.reader.refresh(&mut self.image).await {
            Ok(any) => {
                self.status.note_read(None);
                if let Some(image) = self.image.as_ref().filter(|_| any || self.is_awaited) {
                    self.is_awaited = false;
                    self.events.send(self.opening, Event::Copied(Box::new(image.rows())));
                }
                self.copy_state().await
            }
            Err(failure) => {
                self.read_failed(failure);
                false
            }
        }
    }

    /// Reads the state besides the registry, if it changed, and passes it on.
    async fn copy_state(&mut self) -> bool {
        let Some(shared) = self.state.clone() else { return true };
        match self.reader.state(&mut self.known_state).await {
            Ok(version) => {
                self.status.note_state_read(None);
                let documents = self.known_state.documents();
                shared.received(version.map(|version| (version, documents)));
                true
            }
            Err(failure) => {
                self.status.note_state_read(failure.damage(STATE_CONTENTS));
                debug!("cannot read the state in the store: {failure:?}");
                false
            }
        }
    }

    fn read_failed(&mut self, failure: ReadFailure) {
        let Some(damage) = failure.damage(CONTENTS) else {
            return debug!("cannot read the store: {failure:?}");
        };
        self.status.note_read(Some(damage));
        self.image = None;
    }

    /// Handles commands for this time; returns why to stop what is going on, if there is a reason.
    async fn pause(&mut self, time: Duration) -> Option<End> {
        let end = sleep(time);
        tokio::pin!(end);
        loop {
            tokio::select! {
                biased;
                () = &mut end => return None,
                command = self.commands.recv() => match command {
                    None => return Some(End::Closed),
                    Some(Command::Close(done)) => {
                        self.closing = Some(done);
                        return Some(End::Closed);
                    }
                    Some(Command::Open(number)) => {
                        (self.opening, self.is_awaited) = (number, true);
                        // At once.
                        return None;
                    }
                    Some(Command::Lead(session)) => {
                        let changes = session.is_some() != self.session.is_some();
                        self.session = session;
                        if changes {
                            // What was reported may be of a second ago.
                            self.is_awaited = true;
                            return Some(End::Changed);
                        }
                    }
                    // It was submitted before the loss of the fence was known.
                    Some(Command::Submit(..)) => {}
                },
            }
        }
    }

    /// Takes the fence, and commits as long as it is held.
    async fn lead(&mut self) -> End {
        let fence = loop {
            // After a loss of the fence the registry's thread must have taken notice.
            match self.acquire().await {
                Ok(Some(fence)) => break fence,
                Ok(None) => {
                    self.copy().await;
                }
                Err(failure) => debug!("cannot take the store's fence: {failure}"),
            }
            if let Some(end) = self.pause(FENCE_INTERVAL).await {
                return end;
            }
        };
        // No one else adds to the log now.
        let end = self.serve(fence).await;
        self.status.end_writes();
        self.status.set_holder(Holder::Unknown);
        if let Err(failure) = self.reader.client.revoke(fence.lease).await {
            debug!("cannot give back the store's fence: {failure}; it ends by itself");
        }
        end
    }

    /// Tries to take the fence; `None`: another manager has it, or this one hangs.
    async fn acquire(&mut self) -> Result<Option<Fence>, Failure> {
        let Some(session) = self.session.filter(|_| self.life.is_there()) else { return Ok(None) };
        let Reader { client, keys, .. } = &self.reader;
        let holder = holder_text(session.epoch, session.sm_guid, self.process);
        if let Some(found) = client.range(one(keys.fence())).await?.kvs.first() {
            let text = String::from_utf8_lossy(&found.value).into_owned();
            if text == holder {
                // The answer was lost when we took it.
                return Ok(Some(Fence { revision: found.create_revision, lease: found.lease }));
            }
            self.status.set_holder(Holder::Other(text));
            return Ok(None);
        }
        let lease = client.grant(LEASE_S).await?.id;
        let taken = client.txn(&take_fence(keys, lease, &holder)).await?;
        if !taken.succeeded {
            client.revoke(lease).await?;
            return Ok(None);
        }
        let revision = taken.header.map_or(0, |header| header.revision);
        Ok(Some(Fence { revision, lease }))
    }

    /// Commits as long as the fence is held.
    async fn serve(&mut self, fence: Fence) -> End {
        // A task of its own: reading may take longer than the lease.
        let task =
            tokio::spawn(keep_alive(self.reader.client.clone(), fence.lease, self.life.clone()));
        let _until_the_end = AbortOnDrop(task.abort_handle());
        let mut alive: Work<()> = Some(Box::pin(async { task.await.unwrap_or(Err(Lost)) }));
        loop {
            match self.reader.refresh(&mut self.image).await {
                Ok(_) => break,
                Err(failure) => self.read_failed(failure),
            }
            tokio::select! {
                biased;
                _ = ended(&mut alive) => return End::Changed,
                paused = self.pause(FENCE_INTERVAL) => if let Some(end) = paused {
                    return end;
                },
            }
        }
        self.status.set_holder(Holder::Us);
        self.is_awaited = true;
        let mut commit: Work<()> = None;
        let mut pending: Option<(u64, Made)> = None;
        let mut checkpoint: Work<i64> = None;
        let mut state = self
            .state
            .clone()
            .map(|state| StateWriter::new(state, self.known_state.clone(), self.written_state));
        let mut state_read: Work<StateRead> = None;
        let mut state_write: Work<StateWritten> = None;
        let mut state_bytes = 0;
        let mut look = tokio::time::interval(STATE_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.is_awaited && pending.is_none() {
                self.send_contents();
            }
            // It was read above.
            let Some(image) = &mut self.image else { return self.lose() };
            if checkpoint.is_none() && image.is_log_long(self.fold_len) {
                let tables = image.tables();
                checkpoint = Some(Box::pin(write_tables(self.reader.clone(), fence, tables)));
            }
            tokio::select! {
                biased;
                made = ended(&mut commit) => {
                    self.status.set_committing(false);
                    let Some((opening, of)) = pending.take() else { continue };
                    if made.is_err() {
                        return self.lose();
                    }
                    image.note(image.last() + 1, of);
                    self.events.send(opening, Event::Committed);
                }
                command = self.commands.recv() => match command {
                    None => return End::Closed,
                    Some(Command::Close(done)) => {
                        self.closing = Some(done);
                        return End::Closed;
                    }
                    Some(Command::Open(number)) => {
                        (self.opening, self.is_awaited) = (number, true);
                    }
                    Some(Command::Lead(None)) => {
                        self.session = None;
                        return End::Changed;
                    }
                    Some(Command::Lead(session)) => self.session = session,
                    Some(Command::Submit(opening, changes, session)) => {
                        if opening != self.opening || pending.is_some() {
                            continue;
                        }
                        let number = image.last() + 1;
                        let (record, outcomes) = record_of(&changes, session);
                        let of = Commit::new(number, record);
                        let len = of.len();
                        pending = Some((opening, Made { changes, session, len, outcomes }));
                        commit = Some(Box::pin(make(self.reader.clone(), fence, of)));
                        self.status.set_committing(true);
                    }
                },
                written = ended(&mut checkpoint) => match written {
                    Ok(revision) => {
                        self.status.totals.checkpoints.fetch_add(1, Relaxed);
                        self.compact(revision);
                    }
                    Err(Lost) => return self.lose(),
                },
                read = ended(&mut state_read) => {
                    let Some((writer, read)) = state.as_mut().zip(read.ok()) else { continue };
                    self.status.note_state_read(writer.record_read(read));
                }
                written = ended(&mut state_write) => match written.ok().zip(state.as_mut()) {
                    Some((written, writer)) => {
                        self.status.set_writing_state(false);
                        self.written_state = Some(written.version);
                        state_bytes += written.bytes;
                        if state_bytes > STATE_LEN_MAX {
                            state_bytes = 0;
                            self.compact(written.revision);
                        }
                        self.known_state = writer.record_written(written);
                    }
                    None => return self.lose(),
                },
                _ = look.tick(), if state_read.is_none() && state_write.is_none() => {
                    let Some((writer, session)) = state.as_mut().zip(self.session) else {
                        continue;
                    };
                    // What others left is read before it is replaced: a read that fails says
                    // nothing about what is there.
                    if let Some(mut known) = writer.to_read() {
                        self.status.set_writing_state(true);
                        let reader = self.reader.clone();
                        state_read = Some(Box::pin(async move {
                            let read = reader.state(&mut known).await;
                            Ok((read, known))
                        }));
                    } else if let Some(write) = writer.to_write(session) {
                        self.status.set_writing_state(true);
                        let write = write.make(self.reader.clone(), fence);
                        state_write = Some(Box::pin(async { write.await.ok_or(Lost) }));
                    }
                }
                _ = ended(&mut alive) => return self.lose(),
            }
        }
    }

    /// Has etcd forget what was replaced up to a revision: earlier revisions would fill the
    /// members' disks.
    fn compact(&self, revision: i64) {
        let client = self.reader.client.clone();
        tokio::spawn(async move {
            if let Err(failure) = client.compact(revision).await {
                debug!("cannot compact etcd's history: {failure}");
            }
        });
    }

    /// Reports everything, and that commits are accepted.
    fn send_contents(&mut self) {
        self.is_awaited = false;
        let Some(image) = &self.image else { return };
        let event = match image.contents() {
            Ok(stored) => Event::Opened(Box::new(stored)),
            Err(malformed) => Event::Failed(StoreError::Contents(malformed.to_string())),
        };
        self.events.send(self.opening, event);
    }

    /// The fence is lost: another manager may commit.
    fn lose(&mut self) -> End {
        self.status.totals.fence_losses.fetch_add(1, Relaxed);
        warn!("the store's fence is lost: its lease has ended; taking it again if no other has it");
        self.events.send(self.opening, Event::Failed(StoreError::Fenced));
        End::Changed
    }
}

/// Waits for work, if there is any; otherwise forever. It is taken when it has ended.
async fn ended<T>(work: &mut Work<T>) -> Result<T, Lost> {
    let Some(going) = work else { return std::future::pending().await };
    let result = going.await;
    *work = None;
    result
}

/// Prolongs a lease until it has ended, which it does if this manager hangs.
async fn keep_alive(client: Client, lease: i64, mut life: Life) -> Result<(), Lost> {
    let mut was_alive = true;
    loop {
        sleep(KEEP_ALIVE_INTERVAL).await;
        let is_alive = life.is_there();
        if was_alive && !is_alive {
            warn!("the service loop or the registry's thread hangs: letting the fence's lease end");
        }
        was_alive = is_alive;
        if !is_alive {
            continue;
        }
        match client.keep_alive(lease).await {
            Ok(true) | Err(Failure::Unreachable(_)) => {}
            Ok(false) | Err(Failure::Refused(_)) => return Err(Lost),
        }
    }
}

/// Sends a transaction until it has an answer. To repeat it does no harm: see `layout`.
pub(super) async fn until_answered(
    reader: &Reader,
    what: Written,
    request: &TxnRequest,
) -> TxnResponse {
    let mut pause = RETRY_INTERVAL;
    loop {
        match reader.client.txn(request).await {
            Ok(response) => {
                reader.status.note_refused(what, None);
                return response;
            }
            Err(Failure::Unreachable(_)) => {
                sleep(pause).await;
                pause = RETRY_INTERVAL_MAX.min(pause * 2);
            }
            Err(Failure::Refused(status)) => {
                reader.status.note_refused(what, Some(status.message()));
                sleep(REFUSED_INTERVAL).await;
            }
        }
    }
}

/// Makes a commit.
async fn make(reader: Reader, fence: Fence, commit: Commit) -> Result<(), Lost> {
    for request in commit.transactions(&reader.keys, fence) {
        let response = until_answered(&reader, Written::Commit, &request).await;
        if !response.succeeded && !commit.was_made(fence, &found(&response)) {
            return Err(Lost);
        }
    }
    Ok(())
}

/// What the reads of a transaction found.
pub(super) fn found(response: &TxnResponse) -> Vec<&KeyValue> {
    let ranges = response.responses.iter().filter_map(|op| match &op.response {
        Some(Response::ResponseRange(range)) => Some(&range.kvs),
        _ => None,
    });
    ranges.flatten().collect()
}

/// Replaces a value; returns the revision after that, or `None` if the fence is lost.
pub(super) async fn replace(
    reader: &Reader,
    what: Written,
    replacement: &Replacement,
) -> Option<i64> {
    let response = until_answered(reader, what, &replacement.request).await;
    let is_made = response.succeeded || replacement.was_made(&found(&response));
    is_made.then(|| response.header.map_or(0, |header| header.revision))
}

/// Writes tables; returns the revision in which they became valid.
async fn write_tables(reader: Reader, fence: Fence, tables: Tables) -> Result<i64, Lost> {
    let mut revision = 0;
    for request in tables.pieces(&reader.keys, fence) {
        let response = until_answered(&reader, Written::Tables, &request).await;
        if !response.succeeded {
            return Err(Lost);
        }
        revision = response.header.map_or(0, |header| header.revision);
    }
    let replacement = tables.replace(&reader.keys, fence, revision);
    replace(&reader, Written::Tables, &replacement).await.ok_or(Lost)
}
