//! Limits how many calls are open at a time, in all and of each user or host. A call is open until
//! its answer is sent, which a client can put off: HTTP/2 sends no more than the client permits,
//! and the rest is in memory.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tower_layer::Layer;

use super::Counters;
use super::caller::{Caller, Grounds};
use crate::crowd::Share;
use crate::quota::{Place, Places};
use crate::trust::Role;

/// Calls open at a time, and of one user of this host or of another host. A responder has four.
const CALLS_MAX: usize = 8192;
const CALLS_OF_PEER_MAX: usize = 512;

/// Limits calls.
#[derive(Clone, Debug)]
pub struct Calls {
    places: Places<Share>,
    counters: Arc<Counters>,
}

impl Calls {
    /// Calls that are refused are counted in `counters`.
    pub fn new(counters: Arc<Counters>) -> Self {
        Self { places: Places::new(CALLS_MAX, CALLS_OF_PEER_MAX), counters }
    }

    /// A place for a call; users of this host who may change something have no share.
    fn enter(&self, caller: Option<&Caller>) -> Option<Place<Share>> {
        let is_trusted = caller.is_some_and(|caller| {
            matches!(caller.grounds, Grounds::User(_))
                && caller.roles.iter().any(|role| *role != Role::Viewer)
        });
        let share = caller.map_or(Share::UNKNOWN, Caller::share);
        let place = match is_trusted {
            true => self.places.enter_trusted(share),
            false => self.places.enter(share),
        };
        if place.is_err() {
            self.counters.calls_crowded.fetch_add(1, Relaxed);
        }
        place.ok()
    }
}

impl<S> Layer<S> for Calls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, calls: self.clone() }
    }
}

/// A service whose calls are limited.
#[derive(Clone, Debug)]
pub struct Counted<S> {
    inner: S,
    calls: Calls,
}

impl<S, B> Service<http::Request<B>> for Counted<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let Some(place) = self.calls.enter(request.extensions().get::<Caller>()) else {
            let refusal = Status::resource_exhausted(format!(
                "too many calls are open: the limit is {CALLS_MAX}, and {CALLS_OF_PEER_MAX} of a \
                 host or of a user of this host"
            ));
            return Box::pin(async move { Ok(refusal.into_http()) });
        };
        let answer = self.inner.call(request);
        Box::pin(
            async move { Ok(answer.await?.map(|body| Body::new(Answer { body, _place: place }))) },
        )
    }
}

/// The body of an answer, with the place of its call.
struct Answer {
    body: Body,
    _place: Place<Share>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};

    use super::*;

    /// A body that the client does not read.
    struct Unread;

    impl hyper::body::Body for Unread {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Pending
        }
    }

    /// Answers each call.
    #[derive(Clone)]
    struct Answering;

    impl Service<http::Request<()>> for Answering {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: http::Request<()>) -> Self::Future {
            ready(Ok(http::Response::new(Body::new(Unread))))
        }
    }

    fn caller(grounds: Grounds, address: &str, roles: &[Role]) -> Caller {
        Caller { address: address.parse().unwrap(), grounds, roles: roles.into() }
    }

    /// Regression: a viewer kept 16,384 answers in the memory of the server, of up to a megabyte
    /// each, by reading none of them.
    #[tokio::test]
    async fn answers_that_are_not_read_are_limited_and_shut_out_no_other() {
        let counters = Arc::<Counters>::default();
        let mut service = Calls::new(counters.clone()).layer(Answering);
        let mut call = |caller: &Caller| {
            let mut request = http::Request::new(());
            request.extensions_mut().insert(caller.clone());
            let answer = service.call(request);
            async move {
                let answer = answer.await.unwrap();
                let is_refused = answer.headers().get("grpc-status").is_some_and(|it| it == "8");
                (!is_refused).then_some(answer)
            }
        };
        let viewer = caller(Grounds::User(7), "127.0.0.1:9", &[Role::Viewer]);
        let mut unread = Vec::new();
        while unread.len() <= CALLS_OF_PEER_MAX
            && let Some(answer) = call(&viewer).await
        {
            unread.push(answer);
        }
        assert_eq!(unread.len(), CALLS_OF_PEER_MAX);
        assert_eq!(counters.calls_crowded.load(Relaxed), 1);
        // The other calls of this viewer are refused, and those of others are not.
        let host = caller(Grounds::Certificate, "192.0.2.1:9", &[Role::Responder]);
        assert!(call(&host).await.is_some() && call(&viewer).await.is_none());
        let root = caller(Grounds::User(0), "127.0.0.1:9", &Role::ALL);
        for _ in 0..2 * CALLS_OF_PEER_MAX {
            unread.push(call(&root).await.expect("root has no share"));
        }
        unread.remove(0);
        assert!(call(&viewer).await.is_some(), "one was read");
    }
}
