//! Serving connections: the feed, administration, and other services at the same address.

use std::sync::Arc;
use std::time::Duration;

use sa_proto::proto::{admin, snapshot as proto};
use sa_proto::snapshot::codec;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::service::Routes;
use tonic::transport::Server;

use super::{Shared, admin_service, feed_service, roles, tls};

/// How often a silent connection is probed, and how long an answer may take: a dead peer is
/// noticed after the sum of both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Connections with TCP_NODELAY. The server's own option does not apply to connections that it has
/// not accepted itself; without it an outcome waits 40 ms for the delayed acknowledgement of the
/// delta before it.
fn accept(
    listener: tokio::net::TcpListener,
) -> impl Stream<Item = std::io::Result<tokio::net::TcpStream>> {
    TcpListenerStream::new(listener).map(|accepted| {
        accepted.inspect(|stream| {
            let _ = stream.set_nodelay(true);
        })
    })
}

/// Serves all connections until `end` loses its sender, and they have ended.
pub(super) async fn serve(
    listener: tokio::net::TcpListener,
    identity: Option<tls::Identity>,
    shared: Arc<Shared>,
    services: Routes,
    mut end: watch::Receiver<()>,
) {
    let feed = feed_service::FeedService { shared: shared.clone(), end: end.clone() };
    let feed = proto::snapshot_feed_server::SnapshotFeedServer::new(feed)
        .max_decoding_message_size(codec::MESSAGE_LEN_MAX);
    let admin = admin::admin_server::AdminServer::new(admin_service::AdminService {
        shared: shared.clone(),
        end: end.clone(),
    });
    let server = Server::builder()
        .layer(roles::Roles { checked: identity.is_some() })
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_routes(services.add_service(feed).add_service(admin));
    let end = async move {
        let _ = end.changed().await;
    };
    let served = match identity {
        Some(identity) => {
            let accepted = tls::accept(listener, identity, shared);
            server.serve_with_incoming_shutdown(accepted, end).await
        }
        None => server.serve_with_incoming_shutdown(accept(listener), end).await,
    };
    if let Err(error) = served {
        tracing::error!(
            %error,
            "gRPC server stopped: responders and ibsmctl cannot connect; restart ibsm"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_to_responders_does_not_wait_for_acknowledgements() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut accepted = std::pin::pin!(accept(listener));
            let _client = tokio::net::TcpStream::connect(address).await.unwrap();
            let stream = accepted.next().await.unwrap().unwrap();
            assert!(stream.nodelay().unwrap());
        });
    }
}
