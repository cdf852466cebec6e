//! Which role may call which service: with TLS, the role in a client's certificate decides. A
//! service that is not listed here is refused to every client.

use std::pin::Pin;
use std::task::{Context, Poll};

use sa_proto::trust::Role;
use tonic::Status;
use tonic::codegen::{Service, http};
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tower_layer::Layer;

/// Services and the roles that may call them, by the path of a call.
const SERVICES: [(&str, Role); 4] = [
    ("/ibsa.snapshot.v1.SnapshotFeed/", Role::Responder),
    ("/ibsa.registry.v1.Registry/", Role::Responder),
    ("/ibsa.event.v1.Events/", Role::Responder),
    ("/ibsa.admin.v1.Admin/", Role::Admin),
];

/// Checks roles, if connections have TLS; without it, every client may call every service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roles {
    pub(super) checked: bool,
}

impl<S> Layer<S> for Roles {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, checked: self.checked }
    }
}

/// A service that requires a role of its callers.
#[derive(Clone, Debug)]
pub(super) struct Guarded<S> {
    inner: S,
    checked: bool,
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
        if self.checked
            && let Err(refusal) = check(request.uri().path(), &roles(&request))
        {
            tracing::warn!(peer = ?peer(&request), "gRPC call refused: {}", refusal.message());
            return Box::pin(async move { Ok(refusal.into_http()) });
        }
        Box::pin(self.inner.call(request))
    }
}

fn connection<B>(request: &http::Request<B>) -> Option<&TlsConnectInfo<TcpConnectInfo>> {
    request.extensions().get()
}

fn peer<B>(request: &http::Request<B>) -> Option<std::net::SocketAddr> {
    connection(request)?.get_ref().remote_addr()
}

/// The roles of the client's certificate.
fn roles<B>(request: &http::Request<B>) -> Vec<Role> {
    let certificates = connection(request).and_then(TlsConnectInfo::peer_certs);
    let own = certificates.as_ref().and_then(|certificates| certificates.first());
    own.map(|certificate| Role::of_certificate(certificate)).unwrap_or_default()
}

fn check(path: &str, held: &[Role]) -> Result<(), Status> {
    let service = SERVICES.iter().find(|(prefix, _)| path.starts_with(prefix));
    let Some((_, needed)) = service else {
        return Err(Status::unimplemented(format!("{path} is not a service of this SM")));
    };
    if held.contains(needed) {
        return Ok(());
    }
    let held: Vec<&str> = held.iter().map(|role| role.name()).collect();
    let held = match held.is_empty() {
        true => "gives no role".to_owned(),
        false => format!("gives the role {}", held.join(" and ")),
    };
    Err(Status::permission_denied(format!(
        "{} is for the role {}, a certificate with {} as URI in its subject alternative name; \
         this one {held}",
        path.trim_start_matches('/'),
        needed.name(),
        needed.uri(),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: &str = "/ibsa.registry.v1.Registry/Write";
    const STATUS: &str = "/ibsa.admin.v1.Admin/GetStatus";

    #[test]
    fn each_role_reaches_its_own_services_only() {
        for (path, needed) in SERVICES {
            for held in Role::ALL {
                assert_eq!(check(path, &[held]).is_ok(), held == needed, "{path} by {held:?}");
            }
            assert!(check(path, &Role::ALL).is_ok());
            assert!(check(path, &[]).is_err());
        }
    }

    #[test]
    fn a_service_that_is_not_listed_is_refused_to_all() {
        assert!(check("/ibsa.registry.v1.Registries/Write", &Role::ALL).is_err());
        assert!(check("", &Role::ALL).is_err());
    }

    #[test]
    fn a_refusal_names_the_role_held_and_the_role_needed() {
        assert_eq!(
            check(WRITE, &[Role::Admin]).unwrap_err().message(),
            "ibsa.registry.v1.Registry/Write is for the role responder, a certificate with \
             urn:ibsm:role:responder as URI in its subject alternative name; this one gives the \
             role admin"
        );
        assert!(check(STATUS, &[]).unwrap_err().message().ends_with("this one gives no role"));
    }
}
