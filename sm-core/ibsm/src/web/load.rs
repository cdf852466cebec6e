//! Documents about the load of links, by the counters that the performance manager reads: the
//! colours of the map, the busiest links, and the curves and counters of a node's ports.

use std::collections::{BTreeMap, HashMap};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use ib_mad::types::Guid;
use sa_proto::crowd::Share;
use serde::{Deserialize, Serialize};

use super::api::{TimeQuery, as_accepted, compressed, json, not_a_guid};
use super::map::Place;
use super::{Shared, past};
use crate::http::{Caller, made};
use crate::observe::ports::KeptFabric;
use crate::observe::topology::End;
use crate::perf::Selection;
use crate::perf::loads::{self, LISTED_DEFAULT, Loads, Order, Wanted};

/// Routes of these documents.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/load", get(load))
        .route("/api/v1/links", get(links))
        .route("/api/v1/nodes/{guid}/rates", get(rates))
        .route("/api/v1/nodes/{guid}/counters", get(counters))
}

fn not_read() -> Response {
    let text = "counters of ports are not read: set perfmgr TRUE and restart ibsm\n";
    (StatusCode::NOT_FOUND, text).into_response()
}

/// The load of links on the map. Only those with at least 1/1000 of their capacity are listed.
#[derive(Debug, Default, PartialEq, Serialize)]
struct MapLoad {
    /// The map whose numbers these are.
    etag: String,
    /// Number of the sweep of the performance manager; 0 before the first has ended.
    sweep: u64,
    /// When it ended, milliseconds since 1970.
    time_ms: u64,
    /// Three numbers per link between switches: its place in `links` of the map, counted in links;
    /// thousandths of the capacity sent by its first end; the same by its second.
    links: Vec<u32>,
    /// Three numbers per host: its place in the lists of hosts of the map; thousandths of the
    /// capacity that it sent; that it received.
    hosts: Vec<u32>,
    /// Directions of links with less traffic, beyond the limit, that are not considered.
    unlisted: usize,
}

impl MapLoad {
    /// `etag`, `places`: of the map.
    fn of(loads: &Loads, etag: &str, places: &HashMap<End, Place>) -> Self {
        let mut links = BTreeMap::<u32, [u32; 2]>::new();
        let mut hosts = BTreeMap::<u32, [u32; 2]>::new();
        for one in &loads.directions {
            let share = (one.share() * 1e3).min(1e3) as u32;
            if share == 0 {
                continue;
            }
            let ends = [places.get(&one.from), places.get(&one.to)];
            match ends {
                [Some(Place::Near(link)), _] => links.entry(*link).or_default()[0] = share,
                [Some(Place::Far(link)), _] => links.entry(*link).or_default()[1] = share,
                [Some(Place::Host(host)), _] => hosts.entry(*host).or_default()[0] = share,
                [_, Some(Place::Host(host))] => hosts.entry(*host).or_default()[1] = share,
                _ => {}
            }
        }
        let flat = |of: BTreeMap<u32, [u32; 2]>| {
            of.into_iter().flat_map(|(at, [one, other])| [at, one, other]).collect()
        };
        Self {
            etag: etag.to_owned(),
            sweep: loads.sweep,
            time_ms: loads.time_ms,
            links: flat(links),
            hosts: flat(hosts),
            unlisted: loads.unlisted,
        }
    }

    /// The document, compressed.
    fn packed(&self) -> Vec<u8> {
        compressed(&serde_json::to_vec(self).expect("the value serializes to JSON"))
    }
}

/// The load of links in the last sweep, or at an earlier time.
async fn load(
    State(served): State<Shared>,
    Extension(Caller { share, .. }): Extension<Caller>,
    Query(time): Query<TimeQuery>,
    headers: HeaderMap,
) -> Response {
    if let Some(at_ms) = time.at_ms {
        return load_then(served, share, at_ms, headers).await;
    }
    let perf = served.observatory.perf();
    if perf.with(|_| ()).is_none() {
        return not_read();
    }
    let (snapshot, missing) = (served.observatory.snapshot(), served.observatory.missing());
    let turns = served.turns.of(share);
    let make = move || {
        let map = served.map.get(&snapshot, &missing);
        answer(&headers, MapLoad::of(&perf.loads(), &map.etag, &map.places).packed())
    };
    match made(turns, make).await {
        Some(document) => document,
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn load_then(served: Shared, share: Share, at_ms: u64, headers: HeaderMap) -> Response {
    let _turn = served.turns.of(share).acquire_owned().await;
    let observatory = served.observatory.clone();
    let make = move |since_ms, fabric: KeptFabric, loads: Loads| {
        let map = past::map_then(&observatory, since_ms, &fabric);
        answer(&headers, MapLoad::of(&loads, &map.etag, &map.places).packed())
    };
    match served.observatory.loads_at(share, at_ms, make).await {
        Ok(document) => document,
        Err(failure) => failure.into_response(),
    }
}

fn answer(headers: &HeaderMap, bytes: Vec<u8>) -> Response {
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    (no_store, as_accepted(headers, "application/json", bytes.into())).into_response()
}

#[derive(Deserialize)]
struct LinksQuery {
    /// `rate`, `share` or `errors`.
    by: Option<String>,
    /// Number of directions.
    count: Option<usize>,
    /// GUIDs or names, separated by commas.
    nodes: Option<String>,
    /// Milliseconds since 1970; without it, the last sweep.
    at_ms: Option<u64>,
}

/// The busiest links.
async fn links(
    State(served): State<Shared>,
    Extension(Caller { share, .. }): Extension<Caller>,
    Query(query): Query<LinksQuery>,
) -> Response {
    let order = match query.by.as_deref().unwrap_or_default().parse::<Order>() {
        Ok(order) => order,
        Err(text) => return (StatusCode::BAD_REQUEST, format!("{text}\n")).into_response(),
    };
    let selection = match Selection::of_list(query.nodes.as_deref()) {
        Ok(selection) => selection,
        Err(text) => return (StatusCode::BAD_REQUEST, format!("{text}\n")).into_response(),
    };
    let perf = served.observatory.perf();
    let count = query.count.unwrap_or(LISTED_DEFAULT);
    let wanted = Wanted { selection, port: None, order, count };
    if let Some(at_ms) = query.at_ms {
        if order == Order::Errors {
            let text = "of earlier times there are loads, not errors\n";
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
        let _turn = served.turns.of(share).acquire_owned().await;
        let make = move |_, fabric: KeptFabric, loads: Loads| {
            json(&loads::top_then(&loads, &fabric.topology, &wanted))
        };
        let made = served.observatory.loads_at(share, at_ms, make).await;
        return made.unwrap_or_else(IntoResponse::into_response);
    }
    let make = move || loads::top(&perf, &wanted).map_or_else(not_read, |top| json(&top));
    match made(served.turns.of(share), make).await {
        Some(document) => document,
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The counters of a node's ports.
async fn counters(State(served): State<Shared>, Path(guid): Path<String>) -> Response {
    let Ok(guid) = guid.parse::<Guid>() else { return not_a_guid() };
    served.observatory.perf().counts_of(guid).map_or_else(not_read, |counts| json(&counts))
}

/// The rates of a node's ports.
async fn rates(State(served): State<Shared>, Path(guid): Path<String>) -> Response {
    let Ok(guid) = guid.parse::<Guid>() else { return not_a_guid() };
    served.observatory.perf().rates_of(guid).map_or_else(not_read, |rates| json(&rates))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::loads::Direction;
    use ib_mad::types::PortNum;

    #[test]
    fn the_load_of_the_map_has_each_direction_in_its_place() {
        let end = |guid: u64, port: u8| -> End { (Guid(guid), PortNum(port)) };
        let places = HashMap::from([
            (end(1, 1), Place::Near(0)),
            (end(2, 1), Place::Far(0)),
            (end(100, 1), Place::Host(7)),
        ]);
        let one = |from: End, to: End, rate: f64| {
            let errors = 0.0;
            Direction { from, to, rate, capacity: 1000.0, from_errors: errors, to_errors: errors }
        };
        let directions = vec![
            one(end(1, 1), end(2, 1), 900.0),
            one(end(2, 1), end(1, 1), 2000.0),
            one(end(1, 9), end(100, 1), 250.0),
            one(end(100, 1), end(1, 9), 0.5),
            one(end(8, 1), end(9, 1), 500.0),
        ];
        let loads = Loads { sweep: 3, time_ms: 5, directions, unlisted: 2 };
        let load = MapLoad::of(&loads, "1", &places);
        assert_eq!(load.links, [0, 900, 1000], "no more than the capacity");
        assert_eq!(load.hosts, [7, 0, 250], "what is below 1/1000 is left out");
        assert_eq!((load.sweep, load.time_ms, load.unlisted), (3, 5, 2));
    }
}
