//! Which role may call which service: with TLS, the role in a client's certificate decides, on this
//! host without TLS the user of the client. A service that is not listed here is refused to every
//! client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use sa_proto::trust::Role;
use tonic::Status;
use tonic::codegen::{Service, http};
use tower_layer::Layer;

use super::super::Shared;
use super::LogLimit;
use super::caller::{Caller, Grounds};

/// Calls and the roles that may make them, by the beginning of their path; the first that matches
/// counts.
const CALLS: [(&str, &[Role]); 6] = [
    ("/ibsa.snapshot.v1.SnapshotFeed/", &[Role::Responder]),
    ("/ibsa.registry.v1.Registry/", &[Role::Responder]),
    ("/ibsa.event.v1.Events/", &[Role::Responder]),
    ("/ibsa.admin.v1.Admin/Sweep", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/Reroute", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/", &[Role::Admin, Role::Viewer]),
];

/// Checks roles.
#[derive(Clone)]
pub(in super::super) struct Roles {
    refusals: Arc<Refusals>,
}

struct Refusals {
    shared: Arc<Shared>,
    log: LogLimit,
}

impl Roles {
    /// Refused calls are counted in `shared`.
    pub(in super::super) fn new(shared: Arc<Shared>) -> Self {
        Self { refusals: Arc::new(Refusals { shared, log: LogLimit::default() }) }
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
pub(in super::super) struct Guarded<S> {
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
        if let Err(refusal) = check(request.uri().path(), caller) {
            self.refusals.shared.counters.calls_refused.fetch_add(1, Relaxed);
            if self.refusals.log.permits() {
                let peer = caller.map(|caller| caller.address);
                tracing::warn!(?peer, "gRPC call refused: {}", refusal.message());
            }
            return Box::pin(async move { Ok(refusal.into_http()) });
        }
        Box::pin(self.inner.call(request))
    }
}

fn check(path: &str, caller: Option<&Caller>) -> Result<(), Status> {
    let call = CALLS.iter().find(|(prefix, _)| path.starts_with(prefix));
    let Some((_, permitted)) = call else {
        return Err(Status::unimplemented(format!("{path} is not a service of this SM")));
    };
    let held = caller.map(|caller| &caller.roles[..]).unwrap_or_default();
    if held.iter().any(|role| permitted.contains(role)) {
        return Ok(());
    }
    let needed = permitted[0];
    let names: Vec<&str> = held.iter().map(|role| role.name()).collect();
    let held = match names.is_empty() {
        true => "no role".to_owned(),
        false => format!("the role {}", names.join(" and ")),
    };
    let path = path.trim_start_matches('/');
    let name = needed.name();
    Err(Status::permission_denied(match caller.map(|caller| caller.grounds) {
        Some(Grounds::User(user)) => format!(
            "{path} is for the role {name}, and user {user} of this host has {held}; run the \
             command as root or as the user of ibsm, or start ibsm with --local-role {user}={name}"
        ),
        _ => format!(
            "{path} is for the role {name}, a certificate with {} as URI in its subject \
             alternative name; this one gives {held}",
            needed.uri(),
        ),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: &str = "/ibsa.registry.v1.Registry/Write";
    const STATUS: &str = "/ibsa.admin.v1.Admin/GetStatus";
    const SWEEP: &str = "/ibsa.admin.v1.Admin/Sweep";

    fn by(grounds: Grounds, roles: &[Role]) -> Caller {
        Caller { address: ([127, 0, 0, 1], 9).into(), grounds, roles: roles.into() }
    }

    fn certified(path: &str, roles: &[Role]) -> Result<(), Status> {
        check(path, Some(&by(Grounds::Certificate, roles)))
    }

    #[test]
    fn each_role_makes_its_own_calls_only() {
        for (path, permitted) in CALLS {
            for held in Role::ALL {
                let is_permitted = permitted.contains(&held);
                assert_eq!(certified(path, &[held]).is_ok(), is_permitted, "{path} by {held:?}");
            }
            assert!(certified(path, &Role::ALL).is_ok());
            assert!(certified(path, &[]).is_err());
            assert!(check(path, None).is_err());
        }
    }

    #[test]
    fn a_viewer_changes_nothing() {
        assert!(certified(STATUS, &[Role::Viewer]).is_ok());
        for path in [SWEEP, "/ibsa.admin.v1.Admin/Reroute", WRITE] {
            assert!(certified(path, &[Role::Viewer]).is_err(), "{path}");
        }
    }

    #[test]
    fn a_service_that_is_not_listed_is_refused_to_all() {
        assert!(certified("/ibsa.registry.v1.Registries/Write", &Role::ALL).is_err());
        assert!(certified("", &Role::ALL).is_err());
    }

    #[test]
    fn a_refusal_names_the_role_held_and_the_role_needed() {
        assert_eq!(
            certified(WRITE, &[Role::Admin]).unwrap_err().message(),
            "ibsa.registry.v1.Registry/Write is for the role responder, a certificate with \
             urn:ibsm:role:responder as URI in its subject alternative name; this one gives the \
             role admin"
        );
        assert!(certified(STATUS, &[]).unwrap_err().message().ends_with("this one gives no role"));
        let user = by(Grounds::User(990), &[Role::Viewer]);
        assert_eq!(
            check(SWEEP, Some(&user)).unwrap_err().message(),
            "ibsa.admin.v1.Admin/Sweep is for the role admin, and user 990 of this host has the \
             role viewer; run the command as root or as the user of ibsm, or start ibsm with \
             --local-role 990=admin"
        );
    }
}
