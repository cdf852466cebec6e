//! The gRPC service of `ibsmctl`: queries of the SM's state, and orders.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::{Gid, Guid};
use sa_proto::crowd::Share;
use sa_proto::proto::admin;
use sa_proto::quota::Places;
use sa_proto::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::answering::{Answering, Answers, PATIENCE, share_of};
use super::baseline::{self, Baseline, BaselineError};
use super::events::{self, Begin, EventFeed, Reader, Refusal};
use super::inspection::{inspection, unknown};
use super::long_work::LongWork;
use super::past::PastError;
use super::registered::GroupFilter;
use super::{Observatory, Shared, asking, path_dump, quality, registered, virtual_fabrics};
use crate::clock::unix_ms;
use crate::export::{Form, render};
use crate::history::Archive;
use crate::history::layout::net_of;
use crate::inspect;
use crate::observe::event::{Draft, Event, EventKind};
use crate::observe::given_names;
use crate::observe::ports::{KeptFabric, Ports};
use crate::observe::topology::Topology;
use crate::perf::loads::{self, Loads, Order, TopLinks, Wanted};
use crate::perf::{Selection, listing};
use sm_core::perf::PerfManager;

#[derive(Clone)]
pub(super) struct AdminService {
    pub(super) shared: Arc<Shared>,
    /// Its sender is dropped when all streams must end.
    pub(super) end: watch::Receiver<()>,
    /// Measurements of tables.
    pub(super) measuring: LongWork,
    /// Lists that are being sent.
    pub(super) answering: Answering,
    /// Those that watch.
    pub(super) watchers: Places<Share>,
    /// Questions to responders.
    pub(super) questions: Places<Share>,
    /// Lists of all paths.
    pub(super) listing_paths: LongWork,
}

/// Those that watch at a time, and of one user or host.
pub(super) const WATCHERS_MAX: usize = 64;
pub(super) const WATCHERS_OF_PEER_MAX: usize = 16;

/// Questions to responders at a time, and of one user or host.
pub(super) const QUESTIONS_MAX: usize = 16;
pub(super) const QUESTIONS_OF_PEER_MAX: usize = 8;

/// Messages of an answer that its connection has not taken yet.
const ANSWERS_MAX: usize = 2;

/// GUIDs to be admitted that the SM has not taken yet.
pub(super) const ADMITTED_MAX: usize = 4096;

/// Ports in a message.
const PORTS_IN_MESSAGE: usize = 4096;

/// Length of a piece of text, or of texts of events, bytes.
const PIECE_LEN: usize = 256 << 10;

impl AdminService {
    /// Gives an order to the SM, and waits until the status shows it.
    async fn order(
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
        self.shared.order(give).carried_out().await;
        Ok(Response::new(admin::Ordered {}))
    }

    /// Fails unless this SM knows the registry: a standby does not.
    fn knows_registry(&self) -> Result<(), Status> {
        let sm = self.shared.sm.load();
        if matches!(sm.state.as_str(), "" | "master") {
            // At its start, and after a takeover, it is to be read and published first.
            let is_known = self.shared.is_master() && self.shared.announced.borrow().has_registry();
            let not_yet =
                "this SM has not published its fabric and registry yet; retry in a moment";
            return is_known.then_some(()).ok_or_else(|| Status::unavailable(not_yet));
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

    /// The node whose counters `share` requests, by any of its names; all if that is empty.
    async fn counted(&self, share: Share, name: String) -> Result<Selection, Status> {
        let shared = self.shared.clone();
        self.shared.computing.compute(share, move || counted(&shared, &name)).await?
    }

    /// The busiest links of an earlier time, milliseconds since 1970, at a node by any of its names
    /// of then; of all nodes if that is empty.
    async fn top_links_at(
        &self,
        share: Share,
        time_ms: u64,
        node: String,
        mut wanted: Wanted,
    ) -> Result<TopLinks, Status> {
        if wanted.order == Order::Errors {
            return Err(Status::invalid_argument("of earlier times there are loads, not errors"));
        }
        let make = move |_, fabric: KeptFabric, loads: Loads| {
            if !node.is_empty() {
                let guid = fabric.find(&node).map_err(Status::not_found)?;
                wanted.selection = Selection::of_node(&guid.to_string());
            }
            Ok(loads::top_then(&loads, &fabric.topology, &wanted))
        };
        self.shared.loads_at(share, time_ms, make).await.map_err(not_answered)?
    }

    /// Changes the baseline on another thread: a file is written.
    async fn change_baseline<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Shared) -> Result<T, BaselineError> + Send + 'static,
    ) -> Result<T, Status> {
        let shared = self.shared.clone();
        let changed = tokio::task::spawn_blocking(move || change(&shared)).await;
        let changed = changed.map_err(|error| Status::internal(error.to_string()))?;
        changed.map_err(baseline_refused)
    }

    /// Logs a change of the baseline and notes it as an event.
    fn note_baseline(&self, text: impl Into<String>) {
        let text = text.into();
        tracing::info!("{text}");
        self.shared.events.note(unix_ms(), Draft::new(EventKind::Configuration, text));
    }

    /// Starts a stream of events.
    fn stream_events(
        &self,
        share: Share,
        request: admin::EventsRequest,
    ) -> Result<Response<Answers<admin::Events>>, Status> {
        let admin::EventsRequest { from_number, since_ms, last, follow, kinds } = request;
        let wanted = events::Wanted { from: Begin::of(from_number, since_ms, last), follow, kinds };
        let feed = EventFeed::open(&self.shared, Reader::Caller(share), wanted);
        let mut feed = feed.map_err(|refusal| match refusal {
            Refusal::Crowded => Status::resource_exhausted(refusal.to_string()),
            Refusal::Kind(_) | Refusal::NotKept => Status::invalid_argument(refusal.to_string()),
            Refusal::NotCounted => Status::failed_precondition(refusal.to_string()),
        })?;
        let mut end = self.end.clone();
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        tokio::spawn(async move {
            loop {
                let events = tokio::select! {
                    events = feed.next() => events,
                    () = sender.closed() => None,
                    _ = end.changed() => None,
                };
                let Some(events) = events else { return };
                for events in messages(&events) {
                    tokio::select! {
                        sent = send_in_time(&sender, events) => if !sent { return },
                        _ = end.changed() => return,
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    /// Answers `share` with a stream of messages about the latest snapshot, made on another thread.
    /// `make` passes each to a function that returns whether to continue.
    fn answer<M: Send + 'static>(
        &self,
        share: Share,
        make: impl FnOnce(&Snapshot, &mut dyn FnMut(M) -> bool) + Send + 'static,
    ) -> Result<Response<Answers<M>>, Status> {
        let latest = self.shared.history().latest().clone();
        self.answering.answer(share, move |send| make(&latest, send)).map(Response::new)
    }
}

/// Ports in messages of limited length. The first has the engine.
fn messages_of_ports(ports: &Ports, engine: String) -> Vec<admin::TopologyText> {
    let all = ports.0.iter().flat_map(|(guid, ports)| {
        ports.iter().map(|port| admin::PortStatus {
            guid: guid.0,
            port: port.number.0.into(),
            port_guid: port.guid.0,
            state: port.state.into(),
            physical_state: port.physical_state.into(),
            lid: port.lid.into(),
            lmc: port.lmc.into(),
        })
    });
    let all: Vec<_> = all.collect();
    let mut engine = Some(engine);
    let message = |ports: &[admin::PortStatus]| admin::TopologyText {
        ports: ports.to_vec(),
        routing_engine: engine.take().unwrap_or_default(),
        ..admin::TopologyText::default()
    };
    all.chunks(PORTS_IN_MESSAGE).map(message).collect()
}

fn messages_of_names() -> impl Iterator<Item = admin::TopologyText> {
    let names = given_names().map(|(guid, name)| admin::NodeName { guid: guid.0, name });
    let names: Vec<_> = names.collect();
    let messages: Vec<_> = names
        .chunks(PORTS_IN_MESSAGE)
        .map(|names| admin::TopologyText { names: names.to_vec(), ..<_>::default() })
        .collect();
    messages.into_iter()
}

fn not_answered(failure: PastError) -> Status {
    match failure {
        PastError::NotKept => Status::failed_precondition(failure.to_string()),
        PastError::NotThen | PastError::NoLoads => Status::not_found(failure.to_string()),
        PastError::Read(_) | PastError::Stopped(_) => Status::internal(failure.to_string()),
    }
}

fn baseline_refused(failure: BaselineError) -> Status {
    match failure {
        BaselineError::File(_) | BaselineError::NoStore => {
            Status::failed_precondition(failure.to_string())
        }
        BaselineError::Store(_) => Status::internal(failure.to_string()),
    }
}

/// The node whose counters are requested, by any of its names; all if that is empty.
fn counted(shared: &Arc<Shared>, name: &str) -> Result<Selection, Status> {
    let selection = Selection::of_node(name);
    let is_known = |manager: &mut PerfManager| manager.rows().any(|node| selection.takes(node));
    // One that left the fabric is known by its full name only.
    let is_known = shared.perf.with(is_known).ok_or_else(counters_are_not_read)?;
    if is_known || name.is_empty() {
        return Ok(selection);
    }
    let fabric = Observatory::new(shared.clone()).fabric_view();
    let node = inspect::find(name, &fabric).map_err(unknown)?;
    Ok(Selection::of_node(&node.guid.to_string()))
}

fn counters_are_not_read() -> Status {
    Status::failed_precondition("counters are not read: set perfmgr TRUE and restart ibsm")
}

#[tonic::async_trait]
impl admin::admin_server::Admin for AdminService {
    type ListGroupsStream = Answers<admin::Groups>;
    type ListServicesStream = Answers<admin::Services>;
    type ListSubscriptionsStream = Answers<admin::Subscriptions>;
    type GetTopologyStream = Answers<admin::TopologyText>;
    type GetBaselineStream = Answers<admin::Baseline>;
    type ListCountersStream = Answers<admin::Counters>;
    type InspectStream = Answers<admin::Inspection>;
    type ListCongestionStream = Answers<admin::CongestionAgents>;
    type WatchStream = Answers<admin::Moment>;
    type ListEventsStream = Answers<admin::Events>;
    type EventsStream = Answers<admin::Events>;

    async fn watch(
        &self,
        request: Request<admin::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let place = self.watchers.enter(share_of(&request));
        let place = place.map_err(|_| Status::resource_exhausted("too many watch; retry"))?;
        let mut moments = self.shared.moments.subscribe();
        let mut end = self.end.clone();
        let (sender, answers) = mpsc::channel(1);
        tokio::spawn(async move {
            let _place = place;
            loop {
                let moment = moments.borrow_and_update().clone();
                let json =
                    serde_json::to_string(&*moment).expect("text and numbers can be written");
                tokio::select! {
                    sent = send_in_time(&sender, admin::Moment { json }) => if !sent { return },
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
        let share = share_of(&request);
        self.knows_registry()?;
        let admin::GroupsRequest { mgid, node, summary } = request.into_inner();
        let only = match mgid.is_empty() {
            true => None,
            false => Some(Gid(mgid
                .try_into()
                .map_err(|_| Status::invalid_argument("an MGID has 16 bytes"))?)),
        };
        let mut filter = GroupFilter { mgid: only, ports: None, is_summary: summary };
        if !node.is_empty() {
            let fabric = Observatory::new(self.shared.clone()).fabric_view();
            let find = move || {
                let found = inspect::find(&node, &fabric).map_err(unknown)?;
                Ok::<_, Status>(inspect::guids_of(found, &fabric))
            };
            filter.ports = Some(self.shared.computing.compute(share, find).await??);
        }
        self.answer(share, move |snapshot, send| registered::groups(snapshot, &filter, send))
    }

    async fn list_services(
        &self,
        request: Request<admin::ServicesRequest>,
    ) -> Result<Response<Self::ListServicesStream>, Status> {
        let share = share_of(&request);
        self.knows_registry()?;
        let time = self.shared.registry_time(Instant::now()).unwrap_or_default();
        self.answer(share, move |snapshot, send| registered::services(snapshot, time, send))
    }

    async fn list_subscriptions(
        &self,
        request: Request<admin::SubscriptionsRequest>,
    ) -> Result<Response<Self::ListSubscriptionsStream>, Status> {
        let share = share_of(&request);
        self.knows_registry()?;
        let responders = self.shared.responders.load().clone();
        self.answer(share, move |snapshot, send| {
            registered::subscriptions(snapshot, &responders, send);
        })
    }

    async fn get_status(
        &self,
        request: Request<admin::StatusRequest>,
    ) -> Result<Response<admin::Status>, Status> {
        let shared = self.shared.clone();
        let status = self.shared.computing.compute(share_of(&request), move || shared.status());
        status.await.map(Response::new)
    }

    async fn get_topology(
        &self,
        request: Request<admin::TopologyRequest>,
    ) -> Result<Response<Self::GetTopologyStream>, Status> {
        let share = share_of(&request);
        let admin::TopologyRequest { form, rails, at_ms, ports } = request.into_inner();
        let form: Form = form.parse().map_err(Status::invalid_argument)?;
        let place = self.answering.enter(share)?;
        let earlier = match at_ms {
            Some(time_ms) if form == Form::Ibnetdiscover => {
                let make = |_, KeptFabric { topology, ports, routing_engine }| {
                    (net_of(&topology, &ports).to_string(), ports, routing_engine)
                };
                Some(self.shared.fabric_at(share, time_ms, make).await.map_err(not_answered)?)
            }
            Some(_) => {
                return Err(Status::invalid_argument(
                    "of earlier times there is the form ibnetdiscover only",
                ));
            }
            None => None,
        };
        let now = self.shared.sm.load().routing_engine.clone();
        let latest = self.shared.history().latest().clone();
        Ok(Response::new(self.answering.answer_from(place, move |send| {
            let (text, all, engine) = earlier.unwrap_or_else(|| {
                let plane = latest.fabric();
                (render(plane, form, &rails), Ports::of(plane), now)
            });
            let of = |text: &str| admin::TopologyText { text: text.to_owned(), ..<_>::default() };
            if pieces(&text).all(|piece| send(of(piece))) && ports {
                messages_of_ports(&all, engine).into_iter().chain(messages_of_names()).all(send);
            }
        })))
    }

    type DumpPathsStream = Answers<admin::PathsText>;

    async fn dump_paths(
        &self,
        request: Request<admin::DumpPathsRequest>,
    ) -> Result<Response<Self::DumpPathsStream>, Status> {
        let turn = self.listing_paths.enter(&request)?;
        // Names of all ports are looked for.
        let shared = self.shared.clone();
        let found = tokio::task::spawn_blocking(move || {
            path_dump::ports(&shared, request.into_inner()).map(|ports| (ports, turn))
        });
        let (ports, turn) = found.await.map_err(|error| Status::internal(error.to_string()))??;
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let (shared, mut end) = (self.shared.clone(), self.end.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = path_dump::send(shared, ports, turn, sender) => {}
                _ = end.changed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn get_baseline(
        &self,
        request: Request<admin::BaselineRequest>,
    ) -> Result<Response<Self::GetBaselineStream>, Status> {
        let share = share_of(&request);
        let wants_text = request.into_inner().text;
        let current = self.shared.baseline.current();
        self.answer(share, move |_, send| {
            let Some(baseline) = current else {
                send(baseline::none());
                return;
            };
            if send(baseline.summary()) && wants_text {
                let of =
                    |piece: &str| admin::Baseline { text: piece.to_owned(), ..baseline::none() };
                pieces(&baseline.text()).all(|piece| send(of(piece)));
            }
        })
    }

    async fn take_baseline(
        &self,
        request: Request<admin::TakeBaselineRequest>,
    ) -> Result<Response<admin::Baseline>, Status> {
        let share = share_of(&request);
        let _place = self.answering.enter(share)?;
        self.shared.baseline.check().map_err(baseline_refused)?;
        let baseline = match request.into_inner().at_ms {
            Some(time_ms) => {
                let make = move |_, then: KeptFabric| Baseline::taken(time_ms, then.topology);
                self.shared.fabric_at(share, time_ms, make).await.map_err(not_answered)?
            }
            None => {
                let snapshot = self.shared.history().latest().clone();
                if self.shared.announced.borrow().fabric_generation == 0 {
                    return Err(Status::failed_precondition(
                        "this SM has published no topology as master; take the baseline at the \
                         master",
                    ));
                }
                let make = move || Baseline::taken(unix_ms(), Topology::of(snapshot.fabric()));
                let made = tokio::task::spawn_blocking(make).await;
                made.map_err(|error| Status::internal(error.to_string()))?
            }
        };
        let summary = baseline.summary();
        self.change_baseline(move |shared| shared.take_baseline(baseline)).await?;
        let admin::Baseline { switches, hosts, links, .. } = summary;
        self.note_baseline(format!(
            "baseline taken: {switches} switches, {hosts} hosts, {links} links"
        ));
        Ok(Response::new(summary))
    }

    async fn clear_baseline(
        &self,
        _request: Request<admin::ClearBaselineRequest>,
    ) -> Result<Response<admin::BaselineCleared>, Status> {
        let was_set = self.change_baseline(Shared::clear_baseline).await?;
        if was_set {
            self.note_baseline("baseline removed: differences from it are no problems any more");
        }
        Ok(Response::new(admin::BaselineCleared { was_set }))
    }

    async fn list_problems(
        &self,
        request: Request<admin::ProblemsRequest>,
    ) -> Result<Response<admin::Problems>, Status> {
        let shared = self.shared.clone();
        let problems = move || shared.problems(Instant::now());
        self.shared.computing.compute(share_of(&request), problems).await.map(Response::new)
    }

    async fn list_events(
        &self,
        request: Request<admin::EventsRequest>,
    ) -> Result<Response<Self::ListEventsStream>, Status> {
        self.stream_events(share_of(&request), request.into_inner())
    }

    async fn events(
        &self,
        request: Request<admin::EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let share = share_of(&request);
        self.stream_events(share, admin::EventsRequest { follow: true, ..request.into_inner() })
    }

    async fn list_history(
        &self,
        request: Request<admin::HistoryRequest>,
    ) -> Result<Response<admin::History>, Status> {
        let share = share_of(&request);
        let _place = self.answering.enter(share)?;
        let read = |archive: &dyn Archive| Ok((archive.list()?, archive.reach()?));
        let (list, reach) = match self.shared.ask_archive(share, read).await {
            Err(PastError::NotKept) => return Ok(Response::new(admin::History::default())),
            read => read.map_err(not_answered)?,
        };
        let segments = list.into_iter().map(|segment| admin::HistorySegment {
            first: segment.first,
            events: segment.events,
            begun_ms: segment.begun_ms,
            ended_ms: segment.ended_ms,
            bytes: segment.bytes,
        });
        let reaches = reach
            .by_kind()
            .map(|(kind, since_ms)| admin::HistoryReach { kind: kind.to_owned(), since_ms });
        Ok(Response::new(admin::History {
            kept: true,
            segments: segments.collect(),
            reaches: reaches.to_vec(),
        }))
    }

    async fn sweep(
        &self,
        request: Request<admin::SweepRequest>,
    ) -> Result<Response<admin::Ordered>, Status> {
        match request.into_inner().light {
            true => self.order(|orders| orders.light_sweep = true).await,
            false => self.order(|orders| orders.sweep = true).await,
        }
    }

    async fn adjust(
        &self,
        request: Request<admin::AdjustRequest>,
    ) -> Result<Response<admin::Ordered>, Status> {
        let admin::AdjustRequest { priority, log_level, sweeping, reload, admit } =
            request.into_inner();
        let within = |value: Option<u32>, most: u8, what: &str| match value.map(u8::try_from) {
            None => Ok(None),
            Some(Ok(value)) if value <= most => Ok(Some(value)),
            Some(_) => Err(Status::invalid_argument(format!("{what} is 0 to {most}"))),
        };
        let priority = within(priority, 15, "a priority")?;
        let log_flags = within(log_level, u8::MAX, "a log level")?;
        let given = self.shared.orders.give(|orders| {
            if orders.admitted.len() + admit.len() > ADMITTED_MAX {
                return Err(Status::resource_exhausted(format!(
                    "at most {ADMITTED_MAX} GUIDs at a time; retry with fewer"
                )));
            }
            orders.admitted.extend(admit.into_iter().map(Guid));
            orders.priority = priority.or(orders.priority);
            orders.log_flags = log_flags.or(orders.log_flags);
            orders.sweeping = sweeping.or(orders.sweeping);
            orders.reload |= reload;
            Ok(())
        });
        given?.carried_out().await;
        Ok(Response::new(admin::Ordered {}))
    }

    async fn inspect(
        &self,
        request: Request<admin::InspectRequest>,
    ) -> Result<Response<Self::InspectStream>, Status> {
        let share = share_of(&request);
        let place = self.answering.enter(share)?;
        let fabric = Observatory::new(self.shared.clone()).fabric_view();
        let request = request.into_inner();
        let made = tokio::task::spawn_blocking(move || (inspection(&fabric, request), place)).await;
        let (text, place) = made.map_err(|error| Status::internal(error.to_string()))?;
        let text = text?;
        Ok(Response::new(self.answering.answer_from(place, move |send| {
            pieces(&text).all(|piece| send(admin::Inspection { text: piece.to_owned() }));
        })))
    }

    async fn get_settings(
        &self,
        _request: Request<admin::SettingsRequest>,
    ) -> Result<Response<admin::Settings>, Status> {
        let text = self.shared.settings.load().render();
        Ok(Response::new(admin::Settings { text }))
    }

    async fn list_counters(
        &self,
        request: Request<admin::CountersRequest>,
    ) -> Result<Response<Self::ListCountersStream>, Status> {
        let share = share_of(&request);
        let admin::CountersRequest { node, port } = request.into_inner();
        let perf = self.shared.perf.clone();
        let selection = self.counted(share, node).await?;
        self.answer(share, move |_, send| {
            listing::list(&perf, &selection, port, send);
        })
    }

    async fn list_top_links(
        &self,
        request: Request<admin::TopLinksRequest>,
    ) -> Result<Response<admin::TopLinks>, Status> {
        let share = share_of(&request);
        let place = self.answering.enter(share)?;
        let admin::TopLinksRequest { node, port, order, count, at_ms } = request.into_inner();
        let order = order.parse().map_err(Status::invalid_argument)?;
        let count = count as usize;
        let wanted = |selection| Wanted { selection, port, order, count };
        let top = match at_ms {
            Some(time_ms) => {
                self.top_links_at(share, time_ms, node, wanted(Selection::default())).await?
            }
            None => {
                let selection = self.counted(share, node).await?;
                let (perf, wanted) = (self.shared.perf.clone(), wanted(selection));
                // The place is held until the work has ended, also if the caller leaves.
                let found = tokio::task::spawn_blocking(move || {
                    let top = loads::top(&perf, &wanted);
                    drop(place);
                    top
                });
                let top = found.await.map_err(|error| Status::internal(error.to_string()))?;
                top.ok_or_else(counters_are_not_read)?
            }
        };
        let json = serde_json::to_string(&top).expect("the value serializes to JSON");
        Ok(Response::new(admin::TopLinks { json }))
    }

    async fn list_congestion(
        &self,
        request: Request<admin::CongestionRequest>,
    ) -> Result<Response<Self::ListCongestionStream>, Status> {
        let share = share_of(&request);
        let selection = Selection::of_node(&request.into_inner().node);
        let congestion = self.shared.congestion.clone();
        self.answer(share, move |_, send| {
            crate::congestion::listing::list(&congestion, &selection, send);
        })
    }

    async fn clear_counters(
        &self,
        request: Request<admin::ClearCountersRequest>,
    ) -> Result<Response<admin::CountersCleared>, Status> {
        let (share, shared) = (share_of(&request), self.shared.clone());
        let node = request.into_inner().node;
        let clear = move || {
            let selection = counted(&shared, &node)?;
            let cleared = shared.perf.clear(Instant::now(), |node| selection.takes(node));
            cleared.ok_or_else(counters_are_not_read)
        };
        let ports = self.shared.computing.compute(share, clear).await?? as u64;
        Ok(Response::new(admin::CountersCleared { ports }))
    }

    async fn reroute(
        &self,
        _request: Request<admin::RerouteRequest>,
    ) -> Result<Response<admin::Ordered>, Status> {
        self.order(|orders| orders.reroute = true).await
    }

    async fn list_virtual_fabrics(
        &self,
        request: Request<admin::VirtualFabricsRequest>,
    ) -> Result<Response<admin::VirtualFabrics>, Status> {
        let share = share_of(&request);
        let latest = self.shared.history().latest().clone();
        let list = move || virtual_fabrics::list(&latest, &request.into_inner().member);
        self.shared.computing.compute(share, list).await?.map(Response::new)
    }

    async fn measure_routing(
        &self,
        request: Request<admin::MeasureRoutingRequest>,
    ) -> Result<Response<admin::RoutingQuality>, Status> {
        let turn = self.measuring.enter(&request)?;
        let latest = self.shared.history().latest().clone();
        let request = request.into_inner();
        let measured = tokio::task::spawn_blocking(move || {
            let measured = quality::measure(&latest, &request);
            drop(turn);
            measured
        });
        let measured = measured.await.map_err(|error| Status::internal(error.to_string()))?;
        measured.map(Response::new)
    }

    async fn explain(
        &self,
        request: Request<admin::ExplainRequest>,
    ) -> Result<Response<admin::Explanation>, Status> {
        let share = share_of(&request);
        let place = self.questions.enter(share);
        let _place = place.map_err(|_| Status::resource_exhausted("too many ask; retry"))?;
        asking::explain(&self.shared, share, request.into_inner()).await.map(Response::new)
    }
}

/// Sends a message; returns whether its reader took it in time. One that does not loses its place.
async fn send_in_time<M>(sender: &mpsc::Sender<Result<M, Status>>, message: M) -> bool {
    matches!(timeout(PATIENCE, sender.send(Ok(message))).await, Ok(Ok(())))
}

/// A text in pieces for messages.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut len = rest.len().min(PIECE_LEN);
        while !rest.is_char_boundary(len) {
            len -= 1;
        }
        let (piece, left) = rest.split_at(len);
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Events as messages, none of which is too long for gRPC.
fn messages(events: &[Arc<Event>]) -> Vec<admin::Events> {
    let mut messages = vec![admin::Events::default()];
    let mut len = 0;
    for event in events {
        let event = message(event);
        let event_len = event.text.len() + event.fields.len();
        if len > 0 && len + event_len > PIECE_LEN {
            messages.push(admin::Events::default());
            len = 0;
        }
        len += event_len;
        messages.last_mut().expect("there is one").events.push(event);
    }
    messages
}

fn message(event: &Event) -> admin::Event {
    let guid = event.guid.as_deref().and_then(|guid| guid.parse::<Guid>().ok());
    admin::Event {
        number: event.number,
        time_ms: event.time_ms,
        kind: event.kind.clone(),
        opensm_id: event.opensm_id.map(u32::from),
        severity: event.severity.map_or_else(String::new, |severity| severity.name().to_owned()),
        name: event.name.clone(),
        guid: guid.map_or(0, |guid| guid.0),
        port: event.port.map(u32::from),
        text: event.text.clone(),
        fields: serde_json::to_string(&event.fields).expect("the value serializes to JSON"),
    }
}
