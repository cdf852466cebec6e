//! Checks which role may call which service: with TLS, the role in a client's certificate decides,
//! on this host without TLS the user of the client. A service that is not listed is refused to
//! every client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use tonic::Status;
use tonic::codegen::{Service, http};
use tower_layer::Layer;

use super::caller::{Caller, Grounds};
use super::{Counters, LOG_INTERVAL};
use crate::log_limit::LogLimit;
use crate::trust::Role;

/// The beginning of a call's path, and the roles that may make it, the least last: a refusal names
/// that one.
pub type Call = (&'static str, &'static [Role]);

/// Which role may call what at a server.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The first that matches counts.
    pub calls: &'static [Call],
    /// The server, as in "is not a service of this SM".
    pub server: &'static str,
    /// What a user of this host, who lacks this role, can do.
    pub remedy: fn(u32, Role) -> String,
}

/// Checks roles.
#[derive(Clone)]
pub struct Roles {
    refusals: Arc<Refusals>,
}

#[derive(Debug)]
struct Refusals {
    access: Access,
    counters: Arc<Counters>,
    log: LogLimit,
}

impl Roles {
    /// Refused calls are counted in `counters`.
    pub fn new(access: Access, counters: Arc<Counters>) -> Self {
        let log = LogLimit::new("refused calls", 1, LOG_INTERVAL);
        Self { refusals: Arc::new(Refusals { access, counters, log }) }
    }
}

impl<S> Layer<S> for Roles {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, refusals: self.refusals.clone() }
    }
}

/// A service that requires a role of its callers.
#[derive(Clone)]
pub struct Guarded<S> {
    inner: S,
    refusals: Arc<Refusals>,
}

impl<S, B, R> Service<http::Request<B>> for Guarded<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let caller = request.extensions().get::<Caller>();
        if let Err(refusal) = self.refusals.access.check(request.uri().path(), caller) {
            self.refusals.counters.calls_refused.fetch_add(1, Relaxed);
            if self.refusals.log.permits() {
                let peer = caller.map(|caller| caller.address);
                tracing::warn!(?peer, "gRPC call refused: {}", refusal.message());
            }
            return Box::pin(async move { Ok(refusal.into_http()) });
        }
        Box::pin(self.inner.call(request))
    }
}

impl Access {
    /// Whether the caller may make a call.
    pub fn check(&self, path: &str, caller: Option<&Caller>) -> Result<(), Status> {
        let call = self.calls.iter().find(|(prefix, _)| path.starts_with(prefix));
        let Some((_, permitted)) = call else {
            return Err(Status::unimplemented(format!(
                "{path} is not a service of {}",
                self.server
            )));
        };
        let held = caller.map(|caller| &caller.roles[..]).unwrap_or_default();
        if held.iter().any(|role| permitted.contains(role)) {
            return Ok(());
        }
        let needed = permitted[permitted.len() - 1];
        let names: Vec<&str> = held.iter().map(|role| role.name()).collect();
        let held = match names.is_empty() {
            true => "no role".to_owned(),
            false => format!("the role {}", names.join(" and ")),
        };
        let path = path.trim_start_matches('/');
        let name = needed.name();
        Err(Status::permission_denied(match caller.map(|caller| caller.grounds) {
            Some(Grounds::User(user)) => format!(
                "{path} is for the role {name}, and user {user} of this host has {held}; {}",
                (self.remedy)(user, needed),
            ),
            _ => format!(
                "{path} is for the role {name}, a certificate with {} as URI in its subject \
             alternative name; this one gives {held}",
                needed.uri(),
            ),
        }))
    }
}
