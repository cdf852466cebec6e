//! The gRPC service of `ibsmctl`: queries of the SM's state, and orders.

use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Gid;
use sa_proto::proto::admin;
use sa_proto::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{Shared, asking, registered, virtual_fabrics};

#[derive(Clone)]
pub(super) struct AdminService {
    pub(super) shared: Arc<Shared>,
    /// Its sender is dropped when all streams must end.
    pub(super) end: watch::Receiver<()>,
}

/// Messages of an answer that its connection has not taken yet.
const ANSWERS_MAX: usize = 2;

type Answers<M> = ReceiverStream<Result<M, Status>>;

impl AdminService {
    /// Queues an order for the SM, which takes it within a second.
    fn order(
        &self,
        give: impl FnOnce(&mut super::Orders),
    ) -> Result<Response<admin::Ordered>, Status> {
        let state = self.shared.sm.load().state.clone();
        if state != "master" {
            let state = if state.is_empty() { "starting" } else { &state };
            return Err(Status::failed_precondition(format!(
                "this SM is {state}; only the master sweeps and routes"
            )));
        }
        give(&mut self.shared.orders());
        Ok(Response::new(admin::Ordered {}))
    }

    /// Fails unless this SM knows the registry: a standby does not.
    fn knows_registry(&self) -> Result<(), Status> {
        let sm = self.shared.sm.load();
        if matches!(sm.state.as_str(), "" | "master") {
            return Ok(());
        }
        Err(Status::failed_precondition(match sm.state.as_str() {
            "discovering" => {
                "this SM is discovering; which SM is master is not known yet; retry in \
                              a moment"
                    .to_owned()
            }
            state if sm.copy.is_none() => {
                format!(
                    "this SM is {state} and, without --follow, has no registry; query the master"
                )
            }
            state => {
                format!(
                    "this SM is {state}; its copy of the registry is only for a takeover; query \
                     the master"
                )
            }
        }))
    }

    /// Answers with a stream of messages about the latest snapshot, made on another thread. `make`
    /// passes each to a function that returns whether to continue.
    fn answer<M: Send + 'static>(
        &self,
        make: impl FnOnce(&Snapshot, &mut dyn FnMut(M) -> bool) + Send + 'static,
    ) -> Response<Answers<M>> {
        let latest = self.shared.history().latest().clone();
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        tokio::task::spawn_blocking(move || {
            make(&latest, &mut |message| sender.blocking_send(Ok(message)).is_ok());
        });
        Response::new(ReceiverStream::new(answers))
    }
}

#[tonic::async_trait]
impl admin::admin_server::Admin for AdminService {
    type ListGroupsStream = Answers<admin::Groups>;
    type ListServicesStream = Answers<admin::Services>;
    type ListSubscriptionsStream = Answers<admin::Subscriptions>;
    type WatchStream = Answers<admin::Moment>;

    async fn watch(
        &self,
        _request: Request<admin::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut moments = self.shared.moments.subscribe();
        let mut end = self.end.clone();
        let (sender, answers) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let moment = moments.borrow_and_update().clone();
                let json =
                    serde_json::to_string(&*moment).expect("text and numbers can be written");
                tokio::select! {
                    sent = sender.send(Ok(admin::Moment { json })) => if sent.is_err() { return },
                    _ = end.changed() => return,
                }
                tokio::select! {
                    changed = moments.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                    _ = end.changed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn list_groups(
        &self,
        request: Request<admin::GroupsRequest>,
    ) -> Result<Response<Self::ListGroupsStream>, Status> {
        self.knows_registry()?;
        let mgid = request.into_inner().mgid;
        let only = match mgid.is_empty() {
            true => None,
            false => Some(Gid(mgid
                .try_into()
                .map_err(|_| Status::invalid_argument("an MGID has 16 bytes"))?)),
        };
        Ok(self.answer(move |snapshot, send| registered::groups(snapshot, only, send)))
    }

    async fn list_services(
        &self,
        _request: Request<admin::ServicesRequest>,
    ) -> Result<Response<Self::ListServicesStream>, Status> {
        self.knows_registry()?;
        let time = self.shared.registry_time(Instant::now()).unwrap_or_default();
        Ok(self.answer(move |snapshot, send| registered::services(snapshot, time, send)))
    }

    async fn list_subscriptions(
        &self,
        _request: Request<admin::SubscriptionsRequest>,
    ) -> Result<Response<Self::ListSubscriptionsStream>, Status> {
        self.knows_registry()?;
        let responders = self.shared.responders.load().clone();
        Ok(self.answer(move |snapshot, send| {
            registered::subscriptions(snapshot, &responders, send);
        }))
    }

    async fn get_status(
        &self,
        _request: Request<admin::StatusRequest>,
    ) -> Result<Response<admin::Status>, Status> {
        Ok(Response::new(self.shared.status()))
    }

    async fn sweep(
        &self,
        _request: Request<admin::SweepRequest>,
    ) -> Result<Response<admin::Ordered>, Status> {
        self.order(|orders| orders.sweep = true)
    }

    async fn reroute(
        &self,
        _request: Request<admin::RerouteRequest>,
    ) -> Result<Response<admin::Ordered>, Status> {
        self.order(|orders| orders.reroute = true)
    }

    async fn list_virtual_fabrics(
        &self,
        _request: Request<admin::VirtualFabricsRequest>,
    ) -> Result<Response<admin::VirtualFabrics>, Status> {
        let latest = self.shared.history().latest().clone();
        Ok(Response::new(virtual_fabrics::list(&latest)))
    }

    async fn explain(
        &self,
        request: Request<admin::ExplainRequest>,
    ) -> Result<Response<admin::Explanation>, Status> {
        asking::explain(&self.shared, request.into_inner()).await.map(Response::new)
    }
}
