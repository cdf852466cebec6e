//! Relays traps that agents sent to this responder's port to the SM.
//!
//! Ports whose MasterSMLID names this responder send it their traps too. It forwards them unchanged
//! and sends no reply: the SM represses them itself, so that no M_Key leaves it. Agents repeat
//! their traps until then, so a lost trap is sent again.

use std::sync::Arc;
use std::time::Duration;

use sa_proto::proto::event as proto;
use sa_proto::proto::event::events_client::EventsClient;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::sm::forward::Exchange;
use crate::sm::replica::Upstream;

/// Traps in one message.
const BATCH_MAX: usize = 256;
/// Messages that the connection has not taken yet.
const OUTBOUND_MAX: usize = 4;
/// How long to wait before a stream that broke is opened again.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Relays until the source of SMs is closed. `upstream` is the SM that is followed in `lane`.
pub(crate) async fn run(
    responder_id: u64,
    lane: usize,
    exchange: Arc<Exchange>,
    mut upstream: watch::Receiver<Option<Upstream>>,
) {
    loop {
        let current = upstream.borrow_and_update().clone();
        let work = async {
            match current {
                Some(sm) => {
                    relay(responder_id, lane, &exchange, &sm).await;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = work => {}
            changed = upstream.changed() => if changed.is_err() { return },
        }
    }
}

/// Relays to one SM until the stream breaks.
async fn relay(responder_id: u64, lane: usize, exchange: &Exchange, sm: &Upstream) {
    let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
    let mut client = EventsClient::new(sm.channel.clone());
    let call = client.relay(ReceiverStream::new(messages));
    let feed = async {
        loop {
            exchange.trap_arrived(lane).await;
            loop {
                let next = std::iter::from_fn(|| exchange.take_trap(lane));
                let traps: Vec<_> = next.take(BATCH_MAX).map(trap).collect();
                if traps.is_empty() {
                    break;
                }
                if outbound.send(proto::Traps { responder_id, traps }).await.is_err() {
                    return;
                }
            }
        }
    };
    tokio::select! {
        ended = call => if let Err(status) = ended {
            tracing::debug!(
                sm = sm.url, reason = status.message(),
                "trap stream to the SM failed; agents repeat their traps"
            );
        },
        () = feed => {}
    }
}

fn trap(packet: ib_mad::transport::Packet) -> proto::Trap {
    proto::Trap {
        mad: packet.mad.to_vec().into(),
        lid: packet.address.lid.0.into(),
        sl: packet.address.sl.get().into(),
    }
}
