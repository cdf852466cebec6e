//! `/api/v1/stream`: a moment every second as server-sent events, to a limited number of watchers.
//! A watcher that does not read is disconnected and counted.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sa_proto::crowd::Share;
use sa_proto::quota::{Place, Places};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::Shared;
use crate::http::{Caller, Cut, Lasting};
use crate::observe::moment::{Moment, Watchers};

/// Limit of simultaneous watchers.
pub(super) const WATCHERS_MAX: usize = 64;
/// The same of one host, or of one user of this host. A proxy is one host.
pub(super) const SHARE_WATCHERS_MAX: usize = 48;
/// Of these for trusted users of this host.
const WATCHERS_RESERVED: usize = 8;
/// Moments by which a watcher may lag, in addition to the kernel's buffer.
const BEHIND_MAX: usize = 4;

/// The connected watchers.
#[derive(Debug)]
pub(super) struct Streams {
    list: Mutex<Vec<Watcher>>,
    places: Places<Share>,
    dropped: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug)]
struct Watcher {
    events: mpsc::Sender<Bytes>,
    cut: Cut,
    _place: Place<Share>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            list: Mutex::default(),
            places: Places::new(WATCHERS_MAX, SHARE_WATCHERS_MAX).with_reserve(WATCHERS_RESERVED),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl Streams {
    /// Numbers of watchers.
    pub(super) fn watchers(&self) -> Watchers {
        Watchers {
            now: self.lock().len() as u32,
            dropped: self.dropped.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    /// Adds a watcher, starting with `first`; `None` if there are too many.
    fn enter(&self, caller: Caller, first: Bytes, cut: Cut) -> Option<mpsc::Receiver<Bytes>> {
        let mut list = self.lock();
        list.retain(|watcher| !watcher.events.is_closed());
        let Ok(place) = self.places.enter_as(caller.is_trusted, caller.share) else {
            self.refused.fetch_add(1, Relaxed);
            return None;
        };
        let (events, received) = mpsc::channel(BEHIND_MAX);
        events.try_send(first).expect("a new channel has room");
        list.push(Watcher { events, cut, _place: place });
        Some(received)
    }

    /// Sends `event` to all watchers; disconnects those that have not taken the previous ones.
    fn send(&self, event: &Bytes) {
        self.lock().retain(|watcher| match watcher.events.try_send(event.clone()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Relaxed);
                watcher.cut.cut();
                false
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Formats a moment as an event.
fn event(moment: &Moment) -> Bytes {
    let text = serde_json::to_string(moment).expect("the value serializes to JSON");
    // JSON on a single line, since an event ends at a blank line.
    format!("id: {}\nevent: moment\ndata: {text}\n\n", moment.tick).into()
}

/// Sends each moment to the watchers.
pub(super) async fn feed(served: Shared) {
    let mut moments = served.observatory.moments();
    while moments.changed().await.is_ok() {
        moments.mark_unchanged();
        served.streams.send(&event(&served.moment()));
    }
}

/// Starts a stream for a watcher.
pub(super) async fn open(
    State(served): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(cut): Extension<Cut>,
) -> Response {
    let Some(events) = served.streams.enter(caller, event(&served.moment()), cut) else {
        let headers = [(header::RETRY_AFTER, "10")];
        let text = format!(
            "too many watchers: the limit is {WATCHERS_MAX}, and {SHARE_WATCHERS_MAX} of a host or \
             local user\n"
        );
        return (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response();
    };
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    let events = ReceiverStream::new(events).map(Ok::<_, Infallible>);
    (Extension(Lasting::Stream), headers, Body::from_stream(events)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(user: u32) -> Caller {
        Caller { share: Share::User(user), is_trusted: false }
    }

    #[tokio::test]
    async fn who_does_not_read_is_dropped_and_the_others_are_not() {
        let streams = Streams::default();
        let first = Bytes::from_static(b"first");
        let cut = Cut::default();
        let enter = |cut| streams.enter(caller(7), first.clone(), cut).unwrap();
        let mut idle = enter(cut.clone());
        let mut reading = enter(Cut::default());
        for _ in 0..10 {
            streams.send(&Bytes::from_static(b"next"));
            reading.recv().await.unwrap();
        }
        cut.cut_off().await;
        let watchers = Watchers { now: 1, dropped: 1, refused: 0 };
        assert_eq!(streams.watchers(), watchers);
        assert_eq!(idle.recv().await.unwrap(), first, "the first event");
        drop(reading);
        streams.send(&first);
        assert_eq!(streams.watchers().now, 0, "a closed watcher is removed");
    }

    #[test]
    fn the_number_of_watchers_is_limited() {
        let streams = Streams::default();
        let enter = |user| streams.enter(caller(user), Bytes::new(), Cut::default());
        let mut all: Vec<_> = std::iter::from_fn(|| enter(7)).take(WATCHERS_MAX).collect();
        assert_eq!(all.len(), SHARE_WATCHERS_MAX);
        all.extend(std::iter::from_fn(|| enter(8)).take(WATCHERS_MAX));
        assert_eq!(all.len(), WATCHERS_MAX - WATCHERS_RESERVED);
        assert_eq!(streams.watchers().refused, 2);
        let trusted = Caller { is_trusted: true, ..caller(0) };
        assert!(streams.enter(trusted, Bytes::new(), Cut::default()).is_some());
        all.pop();
        assert!(enter(8).is_some());
    }

    #[test]
    fn an_event_is_one_line_of_data() {
        let warnings = vec!["two\nlines".to_owned()];
        let sm = crate::observe::moment::Sm { warnings, ..Default::default() };
        let text = event(&Moment { tick: 7, sm, ..Moment::default() });
        let text = std::str::from_utf8(&text).unwrap();
        assert!(text.starts_with("id: 7\nevent: moment\ndata: {") && text.ends_with("}\n\n"));
        assert_eq!(text.lines().count(), 4);
    }
}
