//! Orders of programs about partitions: the gRPC service, and what other faces use.

use std::pin::Pin;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ib_mad::types::PKey;
use sa_proto::proto::partition as proto;
use sa_proto::proto::partition::partitions_server::Partitions;
use sa_proto::snapshot::Snapshot;
use tokio::sync::oneshot;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::durable::{Verdict, Write};
use super::shared::{Job, ReplyTo, Shared, WRITES_MAX};
use crate::partitions::{Site, list, order};
use crate::publish::answering::{Answering, share_of};
use sm_core::registry::{OrderRefusal, PartitionAction, PartitionOrder, Presence};

/// How long an order may wait for its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where programs give orders.
#[derive(Clone)]
pub struct PartitionDesk {
    shared: Arc<Shared>,
}

/// The version of the registry that has a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedAt {
    /// Epoch of the session.
    pub epoch: u64,
    /// Sequence number.
    pub sequence: u64,
}

/// Why an order was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderFailure {
    /// The registry refused it.
    #[error(transparent)]
    Refused(#[from] OrderRefusal),
    /// Another SM is master, or none yet.
    #[error(
        "this SM is not the master, or its first sweep has not ended: order it there, or later"
    )]
    NotMaster,
    /// This SM is master, and has not published its fabric and its registry yet, or another manager
    /// may have added to the registry.
    #[error("this SM is the master and does not know all that is registered yet: ask again")]
    NotKnown,
    /// What operators' files define, programs neither delete nor change.
    #[error(
        "an operator's file defines partition {0}: a program can add and remove members of its \
         own, and nothing else"
    )]
    OfFile(PKey),
    /// Too much waits for the registry.
    #[error("too many writes wait for the registry; order it again")]
    Busy,
    /// It cannot be stored, and is not.
    #[error("the registry cannot be written (see the log of ibsm); nothing has changed")]
    NotStored,
    /// Whether it is stored is unknown.
    #[error("it is not known whether the order was stored; order it again, which is harmless")]
    Unknown,
}

/// An order that was given, and whose answer is to come.
#[derive(Debug)]
pub struct Given(oneshot::Receiver<Verdict>);

impl Given {
    /// The answer, once there is one; for callers that limit their time themselves.
    pub fn poll(&mut self) -> Option<Result<GrantedAt, OrderFailure>> {
        match self.0.try_recv() {
            Ok(verdict) => Some(read(verdict)),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(OrderFailure::Unknown)),
        }
    }
}

/// What a verdict means for the program.
fn read(verdict: Verdict) -> Result<GrantedAt, OrderFailure> {
    match verdict {
        Verdict::Ordered { result, epoch, sequence } => {
            result?;
            Ok(GrantedAt { epoch, sequence })
        }
        Verdict::Answer { .. } => Err(OrderFailure::NotStored),
        Verdict::Superseded => Err(OrderFailure::NotMaster),
        // Dropped by a registry that does not know.
        Verdict::Dropped | Verdict::Silence => Err(OrderFailure::Unknown),
    }
}

impl PartitionDesk {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Gives an order; returns once its effect is durable and published.
    pub async fn give(&self, order: PartitionOrder) -> Result<GrantedAt, OrderFailure> {
        let Given(answered) = self.submit(order)?;
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(verdict)) => read(verdict),
            // Never decided, or nothing is known of it.
            Ok(Err(_)) | Err(_) => Err(OrderFailure::Unknown),
        }
    }

    /// Gives an order, whose answer is to be waited for.
    pub fn submit(&self, order: PartitionOrder) -> Result<Given, OrderFailure> {
        self.leaves_files(&order)?;
        if !*self.shared.open.borrow() {
            return Err(OrderFailure::NotMaster);
        }
        let session =
            self.shared.publisher.get().and_then(|publisher| publisher.upgrade()?.session());
        let epoch = session.ok_or(OrderFailure::NotMaster)?.epoch;
        if self.shared.inbox().writes.len() >= WRITES_MAX {
            self.shared.counters.overflow.add(1);
            return Err(OrderFailure::Busy);
        }
        let (answer, answered) = oneshot::channel();
        let (write, reply_to) = (Write::Order { order, epoch }, ReplyTo::Program(answer));
        self.shared.submit(vec![Job { id: 0, write, reply_to }]);
        Ok(Given(answered))
    }

    /// What operators' files say, as it is in force.
    pub(crate) fn site(&self) -> Site {
        self.shared.site().clone()
    }

    /// Checks that an order does not pretend to change what operators' files define.
    fn leaves_files(&self, order: &PartitionOrder) -> Result<(), OrderFailure> {
        let pkey = PKey(order.pkey.base());
        if self.shared.site().partitions.partition(pkey).is_none() {
            return Ok(());
        }
        match &order.action {
            PartitionAction::Set { presence: Presence::Absent, .. } => {
                Err(OrderRefusal::Exists(pkey).into())
            }
            PartitionAction::Set { presence: Presence::Present, .. } | PartitionAction::Delete => {
                Err(OrderFailure::OfFile(pkey))
            }
            PartitionAction::Set { presence: Presence::Either, .. }
            | PartitionAction::Add { .. }
            | PartitionAction::Replace { .. }
            | PartitionAction::Remove { .. } => Ok(()),
        }
    }

    /// The snapshot to list from: with all that is on the fabric, and all that was ever
    /// acknowledged.
    pub fn snapshot(&self) -> Result<Arc<Snapshot>, OrderFailure> {
        // Before the snapshot, which then has at least that registry.
        let certain = self.shared.certain.load(Acquire);
        let publisher = self.shared.publisher.get().and_then(Weak::upgrade);
        let publisher = publisher.ok_or(OrderFailure::NotMaster)?;
        let session = publisher.session().ok_or(OrderFailure::NotMaster)?;
        // Another session may begin meanwhile.
        let is_certain = |snapshot: &Arc<Snapshot>| {
            session.epoch == certain && snapshot.version().session == session
        };
        publisher.whole().filter(is_certain).ok_or(OrderFailure::NotKnown)
    }
}

impl From<OrderFailure> for Status {
    fn from(failure: OrderFailure) -> Self {
        let message = failure.to_string();
        match failure {
            OrderFailure::Refused(OrderRefusal::Exists(_)) => Self::already_exists(message),
            OrderFailure::Refused(OrderRefusal::Unknown(_)) => Self::not_found(message),
            OrderFailure::Refused(refusal) if refusal.is_limit() => {
                Self::resource_exhausted(message)
            }
            OrderFailure::Refused(_) => Self::invalid_argument(message),
            OrderFailure::NotMaster | OrderFailure::OfFile(_) => Self::failed_precondition(message),
            OrderFailure::NotKnown
            | OrderFailure::Busy
            | OrderFailure::NotStored
            | OrderFailure::Unknown => Self::unavailable(message),
        }
    }
}

/// The gRPC service.
pub(super) struct PartitionService {
    pub(super) desk: PartitionDesk,
    /// Lists that are being sent.
    pub(super) answering: Answering,
}

#[tonic::async_trait]
impl Partitions for PartitionService {
    type ListStream = Pin<Box<dyn Stream<Item = Result<proto::Listed, Status>> + Send>>;

    async fn list(
        &self,
        request: Request<proto::ListRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let share = share_of(&request);
        let proto::ListRequest { pkey, brief } = request.into_inner();
        let only = match pkey {
            0 => None,
            number => Some(wanted(number)?),
        };
        let snapshot = self.desk.snapshot()?;
        let site = self.desk.site();
        let listed = self.answering.answer(share, move |send| {
            list::list(&snapshot, &site, only, brief, send);
        })?;
        Ok(Response::new(Box::pin(listed)))
    }

    async fn give(
        &self,
        request: Request<proto::Order>,
    ) -> Result<Response<proto::Granted>, Status> {
        let order = order::read(request.into_inner())
            .map_err(|failure| Status::invalid_argument(failure.to_string()))?;
        let GrantedAt { epoch, sequence } = self.desk.give(order).await?;
        Ok(Response::new(proto::Granted { epoch, registry_sequence: sequence }))
    }
}

fn wanted(number: u32) -> Result<PKey, Status> {
    order::pkey(number).map_err(|failure| Status::invalid_argument(failure.to_string()))
}
