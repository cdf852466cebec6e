use std::time::Duration;

use sa_proto::serve::{Caller, Grounds};
use sa_proto::snapshot::{HistoryLimits, Version};
use sa_proto::trust::Role;
use tonic::Code;

use super::*;
use crate::clock::HostClock;
use sa_proto::proto::admin::admin_server::Admin as _;

#[test]
fn events_are_sent_in_messages_of_limited_length() {
    let event = Event { text: "x".repeat(1000), ..Event::default() };
    let events: Vec<_> =
        (1..=1000).map(|number| Arc::new(Event { number, ..event.clone() })).collect();
    let messages = messages(&events);
    assert!((4..10).contains(&messages.len()), "{}", messages.len());
    let numbers = messages.iter().flat_map(|part| &part.events).map(|event| event.number);
    assert!(numbers.eq(1..=1000));
    assert!(messages.iter().all(|part| part.events.len() <= 263));
}

/// The service of a manager that has found nothing yet. Its streams end with the sender.
fn service() -> (AdminService, watch::Sender<()>) {
    let clock = Arc::new(HostClock::open());
    let shared = Shared::new(Arc::new(Snapshot::empty()), HistoryLimits::default(), clock);
    let (closing, end) = watch::channel(());
    let service = AdminService {
        shared: Arc::new(shared),
        end,
        measuring: LongWork::measurements(),
        answering: Default::default(),
        listing_paths: LongWork::lists_of_paths(),
        watchers: Places::new(WATCHERS_MAX, WATCHERS_OF_PEER_MAX),
        questions: Places::new(QUESTIONS_MAX, QUESTIONS_OF_PEER_MAX),
    };
    (service, closing)
}

/// A request of a user of this host.
fn of<T>(user: u32, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let address = ([127, 0, 0, 1], 9).into();
    let grounds = Grounds::User(user);
    request.extensions_mut().insert(Caller { address, grounds, roles: [Role::Viewer].into() });
    request
}

/// The code of a refusal; `Ok` if there is none.
fn code<T>(answer: &Result<T, Status>) -> Code {
    answer.as_ref().err().map_or(Code::Ok, Status::code)
}

#[tokio::test]
async fn one_user_watches_a_limited_number_of_times_and_shuts_out_no_other() {
    let (service, _closing) = service();
    let watch = |user| service.watch(of(user, admin::WatchRequest {}));
    let mut mine = Vec::new();
    while let Ok(watching) = watch(7).await {
        mine.push(watching);
    }
    assert_eq!(mine.len(), WATCHERS_OF_PEER_MAX);
    assert_eq!(code(&watch(7).await), Code::ResourceExhausted);
    let other = watch(8).await;
    assert_eq!(code(&other), Code::Ok);
    // The place of one that leaves is free.
    mine.pop();
    while watch(7).await.is_err() {
        tokio::task::yield_now().await;
    }
    let mut others = vec![other];
    for user in 9..100 {
        others.push(watch(user).await);
    }
    let all = others.iter().filter(|watching| watching.is_ok()).count();
    assert!(all + mine.len() <= WATCHERS_MAX, "{all}");
    assert!(others.last().is_some_and(Result::is_err));
}

/// Regression: these were computed by the threads that move messages.
#[tokio::test]
async fn what_takes_long_waits_for_its_turn() {
    let (service, _closing) = service();
    let turns = service.shared.computing.turns_of(Share::User(7));
    let all = turns.available_permits() as u32;
    let held = turns.acquire_many(all).await.unwrap();
    let wait = Duration::from_millis(20);
    let fabrics = || service.list_virtual_fabrics(of(7, Default::default()));
    let status = || service.get_status(of(7, Default::default()));
    let explain = || service.explain(of(7, Default::default()));
    assert!(timeout(wait, fabrics()).await.is_err() && timeout(wait, status()).await.is_err());
    assert!(timeout(wait, explain()).await.is_err(), "its names are looked up");
    assert!(service.get_status(of(8, Default::default())).await.is_ok(), "another user");
    drop(held);
    assert!(fabrics().await.is_ok() && status().await.is_ok());
    assert_eq!(code(&explain().await), Code::FailedPrecondition, "nothing is published");
}

/// Each of these is counted before anything is computed.
#[tokio::test]
async fn one_user_has_a_share_of_inspections_and_of_other_lists() {
    let (service, _closing) = service();
    let known = Version { fabric_generation: 1, registry_sequence: 1, ..Version::NONE };
    service.shared.announced.send_replace(known);
    let mut held = Vec::new();
    while let Ok(place) = service.answering.enter(Share::User(7)) {
        held.push(place);
    }
    let asked = async |user| {
        let lid = Some(admin::inspect_request::What::Lid(1));
        let inspect = admin::InspectRequest { what: lid, ..Default::default() };
        let topology = admin::TopologyRequest { form: "slurm".into(), ..Default::default() };
        [
            code(&service.inspect(of(user, inspect)).await),
            code(&service.get_topology(of(user, topology)).await),
            code(&service.list_top_links(of(user, Default::default())).await),
            code(&service.list_counters(of(user, Default::default())).await),
            code(&service.list_services(of(user, Default::default())).await),
            code(&service.get_baseline(of(user, Default::default())).await),
        ]
    };
    let refused = asked(7).await;
    // Counters are not read here.
    let counters = |at| [2, 3].contains(&at);
    for (at, (mine, other)) in refused.into_iter().zip(asked(8).await).enumerate() {
        let expected =
            if counters(at) { Code::FailedPrecondition } else { Code::ResourceExhausted };
        assert!(mine == expected || mine == Code::ResourceExhausted, "{at}: {mine:?}");
        assert_ne!(other, Code::ResourceExhausted, "{at}");
    }
}

/// Regression: a user who asked all the time had all questions that a responder takes, and no other
/// got an explanation.
#[tokio::test]
async fn one_user_has_a_share_of_explanations() {
    let (service, _closing) = service();
    let explain = |user| service.explain(of(user, admin::ExplainRequest::default()));
    assert_eq!(code(&explain(7).await), Code::FailedPrecondition, "nothing is published");
    let mut held = Vec::new();
    while let Ok(place) = service.questions.enter(Share::User(7)) {
        held.push(place);
    }
    assert_eq!(held.len(), QUESTIONS_OF_PEER_MAX);
    assert_eq!(code(&explain(7).await), Code::ResourceExhausted);
    assert_eq!(code(&explain(8).await), Code::FailedPrecondition);
    held.pop();
    assert_eq!(code(&explain(7).await), Code::FailedPrecondition);
}

/// Regression: a viewer that listed paths, or measured tables, one time after the other kept both
/// from all others.
#[tokio::test]
async fn one_user_has_one_of_the_places_for_long_work_and_administrators_one_more() {
    let (service, _closing) = service();
    let admin = |mut request: Request<admin::MeasureRoutingRequest>| {
        let roles = [Role::Admin].into();
        let caller =
            request.extensions().get::<Caller>().cloned().map(|caller| Caller { roles, ..caller });
        request.extensions_mut().insert(caller.unwrap());
        request
    };
    for places in [&service.listing_paths, &service.measuring] {
        let enter = |user| places.enter(&of(user, ()));
        let _held: Vec<_> = (7..20).map_while(|user| enter(user).ok()).collect();
        assert!(enter(7).unwrap_err().message().contains("for you"), "it has one");
        let dump = code(&service.dump_paths(of(20, Default::default())).await);
        let measure = code(&service.measure_routing(of(20, Default::default())).await);
        assert!([dump, measure].contains(&Code::ResourceExhausted));
        let measure = admin(of(20, Default::default()));
        let measured = code(&service.measure_routing(measure).await);
        assert_ne!(measured, Code::ResourceExhausted);
    }
}
