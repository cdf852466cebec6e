//! What is done when: standing by, taking the fence, committing, and rewriting the tables.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::time::Duration;

use sa_proto::snapshot::Session;
use sm_core::registry::Changes;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::{debug, error, warn};

use super::client::Client;
use super::failure::Failure;
use super::image::{Image, Made};
use super::layout::{Commit, Fence, Keys, SCHEMA, Tables, Unreadable, one, record_of, take_fence};
use super::proto::response_op::Response;
use super::proto::{KeyValue, TxnRequest, TxnResponse};
use super::read::{ReadFailure, Reader, holder_text};
use super::status::{EtcdStatus, Holder};
use super::{Event, Events, LEASE_S, Place};
use crate::runtime::store::StoreError;

/// How often a standby reads what was added.
const STANDBY_INTERVAL: Duration = Duration::from_secs(1);
/// How often a master looks whether the fence is free.
const FENCE_INTERVAL: Duration = Duration::from_millis(250);
/// How often the lease is prolonged.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// How long to wait after a request without an answer, at first and at most.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const RETRY_INTERVAL_MAX: Duration = Duration::from_millis(500);

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
    ) -> Self {
        let Place { client, prefix, fold_len, process } = place;
        Self {
            reader: Reader { client, keys: Keys::new(prefix) },
            fold_len,
            commands,
            events,
            status,
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
                true
            }
            Err(failure) => {
                self.read_failed(failure);
                false
            }
        }
    }

    fn read_failed(&mut self, failure: ReadFailure) {
        let damage = match failure {
            ReadFailure::Request(failure) => return debug!("cannot read the store: {failure}"),
            ReadFailure::Unreadable(Unreadable::Schema(found)) => format!(
                "the store in etcd has layout {found}, this release reads {SCHEMA}: run the \
                 release that wrote it, or give another prefix"
            ),
            ReadFailure::Unreadable(Unreadable::Malformed(malformed)) => format!(
                "the store in etcd is damaged ({malformed}): restore it from a backup, or give \
                 another prefix, and clients must register again"
            ),
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
        self.status.set_committing(false);
        self.status.set_holder(Holder::Unknown);
        if let Err(failure) = self.reader.client.revoke(fence.lease).await {
            debug!("cannot give back the store's fence: {failure}; it ends by itself");
        }
        end
    }

    /// Tries to take the fence; `None`: another manager has it.
    async fn acquire(&mut self) -> Result<Option<Fence>, Failure> {
        let Some(session) = self.session else { return Ok(None) };
        let Reader { client, keys } = &self.reader;
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
        let task = tokio::spawn(keep_alive(self.reader.client.clone(), fence.lease));
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
                        let client = self.reader.client.clone();
                        // Earlier revisions would fill the members' disks.
                        tokio::spawn(async move {
                            if let Err(failure) = client.compact(revision).await {
                                debug!("cannot compact etcd's history: {failure}");
                            }
                        });
                    }
                    Err(Lost) => return self.lose(),
                },
                _ = ended(&mut alive) => return self.lose(),
            }
        }
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

/// Prolongs a lease until it has ended.
async fn keep_alive(client: Client, lease: i64) -> Result<(), Lost> {
    loop {
        sleep(KEEP_ALIVE_INTERVAL).await;
        match client.keep_alive(lease).await {
            Ok(true) | Err(Failure::Unreachable(_)) => {}
            Ok(false) | Err(Failure::Refused(_)) => return Err(Lost),
        }
    }
}

/// Sends a transaction until it has an answer. To repeat it does no harm: see `layout`.
async fn until_answered(client: &Client, request: &TxnRequest) -> TxnResponse {
    let mut pause = RETRY_INTERVAL;
    loop {
        match client.txn(request).await {
            Ok(response) => return response,
            Err(Failure::Unreachable(_)) => {
                sleep(pause).await;
                pause = RETRY_INTERVAL_MAX.min(pause * 2);
            }
            Err(Failure::Refused(status)) => {
                error!("etcd refuses a write: {}; repeating it", status.message());
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Makes a commit.
async fn make(reader: Reader, fence: Fence, commit: Commit) -> Result<(), Lost> {
    for request in commit.transactions(&reader.keys, fence) {
        let response = until_answered(&reader.client, &request).await;
        if !response.succeeded && !commit.was_made(fence, &found(&response)) {
            return Err(Lost);
        }
    }
    Ok(())
}

/// What the reads of a transaction found.
fn found(response: &TxnResponse) -> Vec<&KeyValue> {
    let ranges = response.responses.iter().filter_map(|op| match &op.response {
        Some(Response::ResponseRange(range)) => Some(&range.kvs),
        _ => None,
    });
    ranges.flatten().collect()
}

/// Writes tables; returns the revision in which they became valid.
async fn write_tables(reader: Reader, fence: Fence, tables: Tables) -> Result<i64, Lost> {
    let mut revision = 0;
    for request in tables.transactions(&reader.keys, fence) {
        let response = until_answered(&reader.client, &request).await;
        if !response.succeeded {
            return Err(Lost);
        }
        revision = response.header.map_or(0, |header| header.revision);
    }
    Ok(revision)
}
