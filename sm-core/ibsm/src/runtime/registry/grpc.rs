//! The services that responders call: writes in, outcomes out; traps in, notices out.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ib_mad::transport::Packet;
use ib_mad::types::{Lid, Sl};
use ib_mad::wire::MAD_LEN;
use sa_proto::crowd::Share;
use sa_proto::log_limit::LogLimit;
use sa_proto::proto::event as event_proto;
use sa_proto::proto::event::events_server::{Events, EventsServer};
use sa_proto::proto::partition::partitions_server::PartitionsServer;
use sa_proto::proto::registry as proto;
use sa_proto::proto::registry::registry_server::{Registry, RegistryServer};
use sa_proto::quota::Places;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::front_door::AnnouncedDoor;

use super::notices::{NOTICES_KEPT, NumberedNotice};
use super::orders::{PartitionDesk, PartitionService};
use super::shared::Shared;
use super::writing::{OUTBOUND_MAX, Writing};
use crate::publish::answering::{Answering, share_of};
use crate::publish::writers::STREAMS_MAX;

/// Streams of writes, and of notices, of one user of this host or of another host.
const STREAMS_OF_PEER_MAX: usize = STREAMS_MAX / 4;
/// Relayed traps that wait for the service loop.
const TRAPS_MAX: usize = 4096;
/// Messages with notices that a connection has not taken yet; more wait in the broadcast channel.
const NOTICES_OUTBOUND_MAX: usize = 16;
/// Notices in one message.
const NOTICES_BATCH_MAX: usize = 256;
/// Largest message accepted, bytes: as many writes as one may have, with room.
const INBOUND_LEN_MAX: usize = 6 << 20;

/// Traps of one message, and largest message with traps accepted, bytes.
const RELAYED_MAX: usize = 4096;
const RELAYED_LEN_MAX: usize = RELAYED_MAX * 288;

/// Largest order accepted: its GUIDs, with room.
const ORDER_LEN_MAX: usize = 1 << 20;

/// Lines about responders that miss events.
static LINES: LogLimit = LogLimit::new("events that responders missed", 64, Duration::from_secs(1));

pub(super) fn services(shared: Arc<Shared>, end: watch::Receiver<()>) -> Routes {
    let desk = PartitionDesk::new(shared.clone());
    let orders = PartitionService { desk, answering: Answering::default() };
    let orders = PartitionsServer::new(orders).max_decoding_message_size(ORDER_LEN_MAX);
    let streams = Places::new(STREAMS_MAX, STREAMS_OF_PEER_MAX);
    let followers = Places::new(STREAMS_MAX, STREAMS_OF_PEER_MAX);
    let service = Service { shared, end, streams, followers };
    let registry = RegistryServer::new(service.clone()).max_decoding_message_size(INBOUND_LEN_MAX);
    let events = EventsServer::new(service).max_decoding_message_size(RELAYED_LEN_MAX);
    Routes::new(registry).add_service(events).add_service(orders)
}

#[derive(Clone)]
struct Service {
    shared: Arc<Shared>,
    /// Loses its sender when all streams have to end.
    end: watch::Receiver<()>,
    /// Streams of writes.
    streams: Places<Share>,
    /// Streams of notices.
    followers: Places<Share>,
}

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Registry for Service {
    type WriteStream = BoxStream<proto::Outcomes>;

    async fn write(
        &self,
        request: Request<Streaming<proto::Writes>>,
    ) -> Result<Response<Self::WriteStream>, Status> {
        let mut open = self.shared.open.subscribe();
        if !*open.borrow_and_update() {
            return Err(not_master());
        }
        let place = self.streams.enter(share_of(&request)).map_err(|_| {
            Status::resource_exhausted("too many streams of writes, in all or of this host")
        })?;
        let (outbound, stream) = mpsc::channel(OUTBOUND_MAX);
        let mut writing = Writing::new(self.shared.clone(), outbound);
        let (mut end, mut inbound) = (self.end.clone(), request.into_inner());
        tokio::spawn(async move {
            let _place = place;
            let ended = loop {
                tokio::select! {
                    biased;
                    _ = end.changed() => break Some(Status::unavailable("the SM is shutting down")),
                    changed = open.changed() => {
                        if changed.is_err() || !*open.borrow_and_update() {
                            break Some(not_master());
                        }
                    }
                    message = inbound.message() => match message {
                        Ok(Some(writes)) => {
                            if let Err(status) = writing.take(writes) {
                                break Some(status);
                            }
                        }
                        Ok(None) | Err(_) => break None,
                    },
                }
            };
            if let Some(status) = ended {
                writing.end(status);
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

fn not_master() -> Status {
    Status::failed_precondition("this SM is not the master")
}

#[tonic::async_trait]
impl Events for Service {
    type FollowStream = BoxStream<event_proto::Notices>;

    async fn follow(
        &self,
        request: Request<event_proto::FollowRequest>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let place = self.followers.enter(share_of(&request)).map_err(|_| {
            Status::resource_exhausted("too many streams of notices, in all or of this host")
        })?;
        let (outbound, stream) = mpsc::channel(NOTICES_OUTBOUND_MAX);
        let event_proto::FollowRequest { responder_id, after } = request.into_inner();
        let (missed, notices) = {
            let recent = self.shared.recent();
            let kept = recent.iter().filter(|(since, _)| since.elapsed() < NOTICES_KEPT);
            let missed = kept.filter(|(_, notice)| notice.number > after);
            let missed: Vec<_> = missed.map(|(_, notice)| (**notice).clone()).collect();
            (missed, self.shared.notices.subscribe())
        };
        let following = self.clone().follow_until_end(responder_id, missed, notices, outbound);
        tokio::spawn(async move {
            following.await;
            drop(place);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn relay(
        &self,
        request: Request<Streaming<event_proto::Traps>>,
    ) -> Result<Response<event_proto::Relayed>, Status> {
        let mut inbound = request.into_inner();
        let mut end = self.end.clone();
        let mut count = 0;
        loop {
            let message = tokio::select! {
                _ = end.changed() => None,
                message = inbound.message() => message?,
            };
            let Some(message) = message else { break };
            for trap in relayed(message)? {
                count += u64::from(self.take_trap(&trap));
            }
        }
        Ok(Response::new(event_proto::Relayed { traps: count }))
    }
}

impl Service {
    async fn follow_until_end(
        self,
        responder: u64,
        missed: Vec<NumberedNotice>,
        mut notices: broadcast::Receiver<Arc<NumberedNotice>>,
        outbound: mpsc::Sender<Result<event_proto::Notices, Status>>,
    ) {
        let mut end = self.end.clone();
        let mut door = self.shared.front_door.subscribe();
        let mut spill = self.shared.spill.subscribe();
        let AnnouncedDoor { address, token } = door.borrow_and_update().clone();
        let mut message = event_proto::Notices {
            notices: missed,
            front_door: address,
            front_door_token: token,
            spill: Some(spill.borrow_and_update().message(responder)),
        };
        loop {
            let sent = tokio::select! {
                _ = end.changed() => return,
                sent = outbound.send(Ok(message)) => sent,
            };
            if sent.is_err() {
                return;
            }
            message = event_proto::Notices::default();
            tokio::select! {
                _ = end.changed() => return,
                () = outbound.closed() => return,
                _ = door.changed() => {
                    let AnnouncedDoor { address, token } = door.borrow_and_update().clone();
                    (message.front_door, message.front_door_token) = (address, token);
                }
                _ = spill.changed() => {
                    message.spill = Some(spill.borrow_and_update().message(responder));
                }
                notice = notices.recv() => match notice {
                    Ok(notice) => message.notices.push((*notice).clone()),
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        self.shared.counters.notices_missed.add(missed as usize);
                        if LINES.permits() {
                            tracing::warn!(
                                missed,
                                "events dropped: a responder does not read them fast enough"
                            );
                        }
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
            while message.notices.len() < NOTICES_BATCH_MAX
                && let Ok(notice) = notices.try_recv()
            {
                message.notices.push((*notice).clone());
            }
        }
    }

    /// Queues a trap for the service loop; returns whether it is well-formed and there was room.
    fn take_trap(&self, trap: &event_proto::Trap) -> bool {
        let counters = &self.shared.counters;
        let packet = <[u8; MAD_LEN]>::try_from(&trap.mad[..]).ok().and_then(|mad| {
            let mut packet = Packet { mad, ..Packet::default() };
            packet.address.lid = Lid(u16::try_from(trap.lid).ok()?);
            packet.address.sl = Sl::from_low_bits(trap.sl as u16);
            Some(packet)
        });
        let mut traps = self.shared.traps.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match packet.filter(|_| traps.len() < TRAPS_MAX) {
            Some(packet) => {
                traps.push_back(packet);
                drop(traps);
                counters.relayed.add(1);
                self.shared.ring();
                true
            }
            None => {
                counters.relayed_dropped.add(1);
                false
            }
        }
    }
}

/// The traps of a message.
fn relayed(message: event_proto::Traps) -> Result<Vec<event_proto::Trap>, Status> {
    match message.traps.len() {
        0..=RELAYED_MAX => Ok(message.traps),
        count => {
            let text = format!("{count} traps in one message; the limit is {RELAYED_MAX}");
            Err(Status::invalid_argument(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use hyper::body::{Bytes, Frame};
    use prost::Message as _;
    use sa_proto::serve::{Caller, Grounds};
    use sa_proto::trust::Role;
    use tonic::codec::Codec as _;

    use super::super::RegistrySetup;

    /// The body of a request that sends nothing.
    struct Silent;

    impl hyper::body::Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    /// A request of a user of this host.
    fn of<T>(user: u32, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let (address, grounds) = (([127, 0, 0, 1], 9).into(), Grounds::User(user));
        let roles = [Role::Responder].into();
        request.extensions_mut().insert(Caller { address, grounds, roles });
        request
    }

    /// Regression: one responder's user had all streams of notices.
    #[tokio::test]
    async fn streams_of_one_user_leave_room_for_others() {
        let setup = RegistrySetup::new(1).unwrap();
        setup.shared.open.send_replace(true);
        let (_closing, end) = watch::channel(());
        let places = || Places::new(STREAMS_MAX, STREAMS_OF_PEER_MAX);
        let shared = setup.shared.clone();
        let service = Service { shared, end, streams: places(), followers: places() };
        let write = |user| {
            let mut codec = tonic_prost::ProstCodec::<proto::Outcomes, proto::Writes>::default();
            let writes = Streaming::new_request(codec.decoder(), Silent, None, None);
            service.write(of(user, writes))
        };
        let follow = |user| service.follow(of(user, event_proto::FollowRequest::default()));
        let (mut writing, mut following) = (Vec::new(), Vec::new());
        while let Ok(stream) = write(7).await {
            writing.push(stream);
        }
        while let Ok(stream) = follow(7).await {
            following.push(stream);
        }
        assert_eq!([writing.len(), following.len()], [STREAMS_OF_PEER_MAX; 2]);
        assert!(write(8).await.is_ok() && follow(8).await.is_ok());
        // The place of one that leaves is free.
        drop(following);
        while follow(7).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    /// Regression: a message had as many empty traps as 4 MB hold, which took 160 MB.
    #[test]
    fn a_message_has_a_limited_number_of_traps() {
        let mad = vec![0xFF; MAD_LEN].into();
        let trap = event_proto::Trap { mad, lid: u16::MAX.into(), sl: 15 };
        let of = |count| {
            let traps = vec![trap.clone(); count];
            event_proto::Traps { responder_id: 7, traps }
        };
        assert!(of(RELAYED_MAX).encoded_len() <= RELAYED_LEN_MAX);
        assert_eq!(relayed(of(RELAYED_MAX)).unwrap().len(), RELAYED_MAX);
        assert!(relayed(of(RELAYED_MAX + 1)).is_err());
    }
}
