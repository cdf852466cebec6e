//! Serving connections: the feed, administration, and other services at the same address.

use std::sync::Arc;
use std::time::Duration;

use sa_proto::proto::{admin, snapshot as proto};
use sa_proto::quota::Places;
use sa_proto::serve::{Acceptor, Calls, Roles, accept};
use sa_proto::snapshot::codec;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::Server;

use super::access::ACCESS;
use super::long_work::LongWork;
use super::{Shared, admin_service, feed_service};

/// How often a silent connection is probed, and how long an answer may take: a dead peer is
/// noticed after the sum of both.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Calls at once on one connection.
const CALLS_MAX: u32 = 128;

/// Serves all connections until `end` loses its sender, and they have ended.
pub(super) async fn serve(
    listener: tokio::net::TcpListener,
    acceptor: Acceptor,
    shared: Arc<Shared>,
    services: Routes,
    mut end: watch::Receiver<()>,
) {
    let feed = feed_service::FeedService { shared: shared.clone(), end: end.clone() };
    let feed = proto::snapshot_feed_server::SnapshotFeedServer::new(feed)
        .max_decoding_message_size(codec::MESSAGE_LEN_MAX);
    let admin = admin::admin_server::AdminServer::new(admin_service::AdminService {
        shared,
        end: end.clone(),
        measuring: LongWork::measurements(),
        answering: Default::default(),
        listing_paths: LongWork::lists_of_paths(),
        watchers: Places::new(admin_service::WATCHERS_MAX, admin_service::WATCHERS_OF_PEER_MAX),
        questions: Places::new(admin_service::QUESTIONS_MAX, admin_service::QUESTIONS_OF_PEER_MAX),
    });
    let server = Server::builder()
        .layer(Roles::new(ACCESS, acceptor.counters.clone()))
        .layer(Calls::new(acceptor.counters.clone()))
        .max_concurrent_streams(CALLS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_routes(services.add_service(feed).add_service(admin));
    let end = async move {
        let _ = end.changed().await;
    };
    let accepted = accept(listener, acceptor);
    let served = server.serve_with_incoming_shutdown(accepted, end).await;
    if let Err(error) = served {
        tracing::error!(
            %error,
            "gRPC server stopped: responders and ibsmctl cannot connect; restart ibsm"
        );
    }
}
