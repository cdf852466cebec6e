//! Requests to the members of an etcd cluster: one at a time, the next if one does not answer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sa_proto::trust::{LocalServer, Program, is_loopback};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Response, Status};

use super::failure::Failure;
use super::proto::kv_client::KvClient;
use super::proto::lease_client::LeaseClient;
use super::proto::{
    CompactionRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseRevokeRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use super::status::EtcdStatus;
use super::turn::Turn;
use crate::cli::EtcdLocation;
use crate::runtime::store::StoreError;

/// How long a member may take to answer. It answers in a few milliseconds, unless it is stopped or
/// has lost the others; an election takes about a second.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a range of keys, up to a page of rows.
const PAGE_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a response, at most: a page of pieces.
const RESPONSE_LEN_MAX: usize = 64 << 20;

/// The way to a cluster.
#[derive(Clone)]
pub(super) enum Client {
    /// To the members of a real one.
    Members(Members),
    /// To a simulated one.
    #[cfg(any(test, feature = "etcd-model"))]
    Model(super::model::EtcdLink),
}

/// Passes requests on.
macro_rules! requests {
    ($($(#[doc = $doc:literal])* $name:ident($request:ident: $type:ty) -> $response:ty;)*) => {
        impl Client {$(
            $(#[doc = $doc])*
            pub(super) async fn $name(&self, $request: $type) -> Result<$response, Failure> {
                match self {
                    Self::Members(members) => members.$name($request).await,
                    #[cfg(any(test, feature = "etcd-model"))]
                    Self::Model(link) => link.$name($request).await,
                }
            }
        )*}
    };
}
requests! {
    range(request: RangeRequest) -> RangeResponse;
    txn(request: &TxnRequest) -> TxnResponse;
    compact(revision: i64) -> ();
    grant(ttl_s: i64) -> LeaseGrantResponse;
    /// Ends a lease, and the keys that hang on it.
    revoke(id: i64) -> ();
    /// Prolongs a lease; returns whether it still existed.
    keep_alive(id: i64) -> bool;
}

impl Client {
    /// Connects when there is a request. Must be called in a runtime.
    pub(super) fn new(
        location: &EtcdLocation,
        status: &Arc<EtcdStatus>,
    ) -> Result<Self, StoreError> {
        Members::new(location, status).map(Self::Members)
    }
}

/// A client of all members.
#[derive(Clone)]
pub(super) struct Members {
    members: Arc<[Member]>,
    turn: Turn,
    status: Arc<EtcdStatus>,
}

struct Member {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
}

impl Members {
    fn new(location: &EtcdLocation, status: &Arc<EtcdStatus>) -> Result<Self, StoreError> {
        let members = location.endpoints.iter().map(|endpoint| member(location, endpoint));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { members: members.into(), turn: Turn::default(), status: status.clone() })
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        let request = &request;
        let patience = if request.range_end.is_empty() { PATIENCE } else { PAGE_PATIENCE };
        self.call(patience, |member| {
            let (mut kv, request) = (member.kv.clone(), request.clone());
            async move { kv.range(request).await }
        })
        .await
    }

    async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, Failure> {
        self.call(PATIENCE, |member| {
            let (mut kv, request) = (member.kv.clone(), request.clone());
            async move { kv.txn(request).await }
        })
        .await
    }

    async fn compact(&self, revision: i64) -> Result<(), Failure> {
        self.call(PAGE_PATIENCE, |member| {
            let mut kv = member.kv.clone();
            async move { kv.compact(CompactionRequest { revision }).await }
        })
        .await
        .map(|_| ())
    }

    async fn grant(&self, ttl_s: i64) -> Result<LeaseGrantResponse, Failure> {
        self.call(PATIENCE, |member| {
            let mut lease = member.lease.clone();
            async move { lease.lease_grant(LeaseGrantRequest { ttl: ttl_s }).await }
        })
        .await
    }

    async fn revoke(&self, id: i64) -> Result<(), Failure> {
        self.call(PATIENCE, |member| {
            let mut lease = member.lease.clone();
            async move { lease.lease_revoke(LeaseRevokeRequest { id }).await }
        })
        .await
        .map(|_| ())
    }

    async fn keep_alive(&self, id: i64) -> Result<bool, Failure> {
        let answer = self.call(PATIENCE, |member| {
            let mut lease = member.lease.clone();
            async move {
                let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
                let mut answers = lease.lease_keep_alive(requests).await?.into_inner();
                let answer = answers.message().await?;
                answer.map(Response::new).ok_or_else(|| Status::unavailable("no answer"))
            }
        });
        Ok(answer.await?.ttl > 0)
    }

    /// Asks the current member, and makes the next one current if it has no answer in time.
    async fn call<T, F>(
        &self,
        patience: Duration,
        ask: impl FnOnce(&Member) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let at = self.turn.current();
        let asked = ask(&self.members[at % self.members.len()]);
        let status = match tokio::time::timeout(patience, asked).await {
            Ok(Ok(response)) => {
                self.status.note_answer();
                return Ok(response.into_inner());
            }
            Ok(Err(status)) if is_final(&status) => {
                self.status.note_answer();
                return Err(Failure::Refused(status));
            }
            Ok(Err(status)) => sa_proto::trust::reason_of_status(&status),
            Err(_) => format!("no answer for {} s", patience.as_secs()),
        };
        self.turn.pass(at);
        let endpoint = self.status.endpoint(at);
        self.status.note_failure(endpoint, &status);
        Err(Failure::Unreachable(format!("{endpoint}: {status}")))
    }
}

/// Whether another member would answer the same.
fn is_final(status: &Status) -> bool {
    // With the same code a member reports that it has too many requests.
    let is_full =
        status.code() == Code::ResourceExhausted && status.message().contains("space exceeded");
    is_full
        || matches!(
            status.code(),
            Code::InvalidArgument
                | Code::NotFound
                | Code::OutOfRange
                | Code::PermissionDenied
                | Code::FailedPrecondition
                | Code::Unimplemented
        )
}

fn member(location: &EtcdLocation, endpoint: &str) -> Result<Member, StoreError> {
    let unusable = |source: tonic::transport::Error| StoreError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason: sa_proto::with_causes(&source),
    };
    let scheme = if location.tls.is_some() { "https" } else { "http" };
    let mut builder = Endpoint::from_shared(format!("{scheme}://{endpoint}"))
        .map_err(unusable)?
        .connect_timeout(PATIENCE)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(2));
    if let Some(tls) = &location.tls {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        builder = builder.tls_config(config).map_err(unusable)?;
    }
    let host = builder.uri().host().unwrap_or_default();
    let is_local = location.tls.is_none() && is_loopback(host.trim_matches(['[', ']']));
    let channel = match is_local {
        true => builder.connect_with_connector_lazy(LocalServer::new(Program::Etcd, None)),
        false => builder.connect_lazy(),
    };
    Ok(Member {
        kv: KvClient::new(channel.clone()).max_decoding_message_size(RESPONSE_LEN_MAX),
        lease: LeaseClient::new(channel),
    })
}
