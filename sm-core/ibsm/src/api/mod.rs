//! UFM's REST interface for partitions and inventory, so that its clients work unchanged
//! (`docs/api.md`).
//!
//! All calls lie under `/ufmRest` (name and password), `/ufmRestV2` (a session from `/dologin`) and
//! `/ufmRestV3` (a token); each base takes any of these. Orders go to the registry as those of gRPC
//! do, and success is status 200, once they are durable. The roles are those of the file of users.
//!
//! What takes long is not done on the thread that serves: passwords are checked, bodies read as
//! JSON and documents made by others.
//!
//! - [`users`]: the file of users, passwords and tokens.
//! - `origin`: requests that pages of other sites make.
//! - [`pkeys`]: partitions; `inventory`: ports, systems and links of the published snapshot.

mod inventory;
mod origin;
pub mod pkeys;
#[cfg(test)]
mod tests;
pub mod users;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use sa_proto::log_limit::LogLimit;
use sa_proto::serve::Followed;
use sa_proto::snapshot::Snapshot;
use sa_proto::trust::local::LocalRoles;
use sa_proto::trust::{Role, TlsFiles, TrustError, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tracing::{info, warn};

use crate::http::{BodyFailure, Server, Totals, in_turn, made, read_body};
use crate::runtime::registry::{OrderFailure, PartitionDesk};
use crate::web::guard;
use sm_core::registry::{OrderRefusal, PartitionOrder};
use users::{Caller, Proof, Users};

/// Passwords checked at once, each in 16 MiB; others wait.
const CHECKS_MAX: usize = 2;
/// Bodies read and documents made at once; others wait.
const MAKERS_MAX: usize = 2;
/// Bytes of a body: the most GUIDs that an order may have, with a membership each, and room.
const BODY_LEN_MAX: usize = 2 << 20;
/// Bytes of a form with name and password, which anyone may send.
const FORM_LEN_MAX: usize = 4 << 10;
/// How often the file of users is looked at, besides at each request.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two lines about refused callers.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// The release of UFM that clients read: the first with all of these calls.
const UFM_RELEASE: &str = "6.15.0";
/// Name of the cookie of a session.
const SESSION: &str = "session";

/// What is served, and to whom.
pub(crate) struct Api {
    pub(crate) desk: PartitionDesk,
    pub(crate) users: Users,
    /// The certificate of the server, which is read again when it changes; plain HTTP without.
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) status: Arc<ApiStatus>,
}

/// What the rest of the process sees of the API.
#[derive(Debug, Default)]
pub(crate) struct ApiStatus {
    /// Callers without, or with a wrong, password or token.
    pub(crate) callers_refused: AtomicU64,
    pub(crate) connections: Arc<Totals>,
    /// The file of users and why it is refused, if it is.
    users_refused: Mutex<Option<(String, String)>>,
}

impl ApiStatus {
    /// The file of users and why it is refused, if it is.
    pub(crate) fn users_refused(&self) -> Option<(String, String)> {
        self.users_refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_users(&self, users: &Users) {
        let refused = users.refused();
        let refused = refused.map(|(path, reason)| (path.display().to_string(), reason.to_owned()));
        *self.users_refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
    }
}

/// State shared by all requests.
struct Served {
    desk: PartitionDesk,
    users: Mutex<Users>,
    is_tls: bool,
    checks: Arc<Semaphore>,
    makers: Arc<Semaphore>,
    status: Arc<ApiStatus>,
    refused_lines: LogLimit,
}

type Shared = Arc<Served>;

/// Serves at `address` as long as the process lives. Returns the bound address.
pub(crate) fn serve(address: SocketAddr, api: Api) -> Result<SocketAddr, ServeError> {
    let Api { desk, users, tls, status } = api;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let is_tls = tls.is_some();
    let tls = tls.map(|files| Followed::of(files, server_config)).transpose()?;
    let totals = status.connections.clone();
    let served = Arc::new(Served {
        desk,
        users: Mutex::new(users),
        is_tls,
        checks: Arc::new(Semaphore::new(CHECKS_MAX)),
        makers: Arc::new(Semaphore::new(MAKERS_MAX)),
        status,
        refused_lines: LogLimit::new("refused callers of the API", 1, LINE_INTERVAL),
    });
    let server = Server {
        thread: "api",
        name: "API",
        purpose: "API",
        blocking_threads: CHECKS_MAX + MAKERS_MAX,
        tls: tls.map(|mut certificate| -> crate::http::Certificate {
            Box::new(move || {
                certificate.follow();
                certificate.loaded().clone()
            })
        }),
        at_once: None,
        local: LocalRoles::default(),
        totals,
    };
    let address = server.serve(address, |address| {
        tokio::spawn(follow_users(served.clone()));
        router(served, origin::Asked::of(address))
    })?;
    info!("API at {scheme}://{address}/ufmRest");
    Ok(address)
}

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Listen(#[from] io::Error),
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// Reads the file of users again when it changes, so that a broken one is reported without a
/// request.
async fn follow_users(served: Shared) {
    let mut interval = tokio::time::interval(FOLLOW_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        drop(served.users());
    }
}

/// TLS with the manager's certificate. Clients need none.
fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TrustError> {
    let credentials = files.read(Usage::Server)?;
    let tls = |error: &dyn std::error::Error| TrustError::Tls(error.to_string());
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| tls(&error))?
        .with_no_client_auth()
        .with_single_cert(credentials.chain, credentials.key)
        .map_err(|error| tls(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn router(served: Shared, asked: origin::Asked) -> Router {
    let calls = || {
        Router::new()
            .route("/app/ufm_version", get(version))
            .route("/app/tokens", post(issue_token))
            .route("/app/smconf", get(keys))
            .merge(pkeys::routes())
            .merge(inventory::routes())
            .layer(middleware::from_fn_with_state(served.clone(), authenticate))
    };
    Router::new()
        .route("/dologin", post(log_in))
        .nest("/ufmRest", calls())
        .nest("/ufmRestV2", calls())
        .nest("/ufmRestV3", calls())
        .layer(middleware::from_fn_with_state(asked, origin::check))
        .layer(middleware::map_response(guard::harden))
        .with_state(served.clone())
}

/// An answer other than success.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1 + "\n").into_response()
    }
}

impl From<BodyFailure> for Refusal {
    fn from(failure: BodyFailure) -> Self {
        let (status, text) = match failure {
            BodyFailure::Late => (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
            BodyFailure::TooLong => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too long"),
            BodyFailure::Broken => (StatusCode::BAD_REQUEST, "the body is broken off"),
        };
        Self(status, text.to_owned())
    }
}

impl From<OrderFailure> for Refusal {
    fn from(failure: OrderFailure) -> Self {
        let status = match failure {
            OrderFailure::Refused(OrderRefusal::Exists(_)) | OrderFailure::OfFile(_) => {
                StatusCode::CONFLICT
            }
            OrderFailure::Refused(OrderRefusal::Unknown(_)) => StatusCode::NOT_FOUND,
            OrderFailure::Refused(_) => StatusCode::BAD_REQUEST,
            OrderFailure::NotMaster
            | OrderFailure::NotKnown
            | OrderFailure::Busy
            | OrderFailure::NotStored
            | OrderFailure::Unknown => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, failure.to_string())
    }
}

fn bad(text: impl Into<String>) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, text.into())
}

fn not_found(text: impl Into<String>) -> Refusal {
    Refusal(StatusCode::NOT_FOUND, text.into())
}

type Answer = Result<Response, Refusal>;

fn encoded(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("the value serializes to JSON")
}

fn json_of(document: &impl Serialize) -> Response {
    json_answer(encoded(document))
}

fn json_answer(text: Vec<u8>) -> Response {
    let content_type = "application/json; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, "no-store")], text)
        .into_response()
}

impl Served {
    /// The users, as the file has them now.
    fn users(&self) -> MutexGuard<'_, Users> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.follow();
        self.status.note_users(&users);
        users
    }

    /// Makes something that may take long, on another thread.
    async fn made<T: Send + 'static>(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        Ok(made(self.makers.clone(), make).await.ok_or(OrderFailure::Unknown)?)
    }

    /// Makes a document from the published snapshot.
    async fn document<T: Serialize>(
        &self,
        make: impl FnOnce(&Snapshot) -> Result<T, Refusal> + Send + 'static,
    ) -> Answer {
        let snapshot = self.snapshot()?;
        let make = move || make(&snapshot).map(|document| encoded(&document));
        self.made(make).await?.map(json_answer)
    }

    /// Reads an order from a body by `read`, and gives it.
    async fn order(
        &self,
        body: Body,
        read: impl FnOnce(pkeys::Body) -> Result<PartitionOrder, Refusal> + Send + 'static,
    ) -> Answer {
        let bytes = read_body(body, BODY_LEN_MAX).await?;
        let order = self.made(move || read(pkeys::Body::read(&bytes)?)).await??;
        self.give(order).await
    }

    /// The published snapshot.
    fn snapshot(&self) -> Result<Arc<Snapshot>, Refusal> {
        Ok(self.desk.snapshot()?)
    }

    /// A token of a caller; `None` if the file of users has changed what it says of that user.
    fn issue(&self, caller: &Caller) -> Result<Option<String>, Refusal> {
        let mut users = self.users();
        if !users.is_current(caller) {
            return Ok(None);
        }
        users.issue(Instant::now(), caller).map(Some).ok_or_else(no_randomness)
    }

    async fn give(&self, order: PartitionOrder) -> Answer {
        self.desk.give(order).await?;
        Ok(json_of(&json!({})))
    }

    /// Who shows a proof; `None` if it proves nothing.
    async fn caller(&self, mut proof: Proof) -> Option<Caller> {
        loop {
            if let Some(caller) = self.users().known(Instant::now(), &proof) {
                return Some(caller);
            }
            let turn = self.checks.clone().acquire_owned().await.ok()?;
            // Others may have checked it meanwhile.
            if let Some(caller) = self.users().known(Instant::now(), &proof) {
                return Some(caller);
            }
            let check = self.users().check(proof)?;
            let checked = in_turn(turn, move || check.run()).await?;
            match self.users().note(Instant::now(), checked) {
                Ok(caller) => return caller,
                // The file has changed meanwhile.
                Err(again) => proof = again,
            }
        }
    }

    /// Counts and logs a refused caller.
    fn note_refused(&self) {
        let count = self.status.callers_refused.fetch_add(1, Relaxed) + 1;
        if self.refused_lines.permits() {
            warn!("API: callers refused since the start: {count} (no or wrong password or token)");
        }
    }
}

/// What a request shows: a header, or the cookie of a session.
fn proof_of(headers: &HeaderMap) -> Option<Proof> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if let Some(value) = text(header::AUTHORIZATION) {
        return Proof::of_header(value);
    }
    let cookies = text(header::COOKIE)?.split(';');
    let mut sessions = cookies.filter_map(|cookie| cookie.trim().split_once('='));
    let (_, session) = sessions.find(|(name, _)| *name == SESSION)?;
    Some(Proof::Token(session.to_owned()))
}

/// Lets a request pass if its caller has a role for it: viewers read.
async fn authenticate(State(served): State<Shared>, mut request: Request, next: Next) -> Response {
    let caller = match proof_of(request.headers()) {
        Some(proof) => served.caller(proof).await,
        None => None,
    };
    let Some(caller) = caller else { return unproven(&served) };
    let role = caller.role();
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    if role != Role::Admin && !is_read && !request.uri().path().ends_with("/app/tokens") {
        let text = format!("the role {} changes nothing; it takes admin", role.name());
        return Refusal(StatusCode::FORBIDDEN, text).into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// The answer to a caller who is not known.
fn unproven(served: &Served) -> Response {
    served.note_refused();
    let wanted = [(header::WWW_AUTHENTICATE, "Basic realm=\"ibsm\"")];
    (StatusCode::UNAUTHORIZED, wanted, "who you are is not proven\n").into_response()
}

async fn version() -> Response {
    json_of(&json!({ "ufm_release_version": UFM_RELEASE, "ibsm": env!("CARGO_PKG_VERSION") }))
}

async fn issue_token(State(served): State<Shared>, Extension(caller): Extension<Caller>) -> Answer {
    match served.issue(&caller)? {
        Some(token) => Ok(json_of(&json!({ "access_token": token }))),
        None => Ok(unproven(&served)),
    }
}

fn no_randomness() -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, "the system gives no random numbers".to_owned())
}

#[derive(Deserialize)]
struct Login {
    httpd_username: String,
    httpd_password: String,
}

/// Begins a session.
async fn log_in(State(served): State<Shared>, body: Body) -> Answer {
    let body = read_body(body, FORM_LEN_MAX).await?;
    let text = std::str::from_utf8(&body).map_err(|_| bad("not a form"))?;
    let uri: Uri = format!("/?{}", text.trim()).parse().map_err(|_| bad("not a form"))?;
    let Query(login) =
        Query::<Login>::try_from_uri(&uri).map_err(|failure| bad(failure.to_string()))?;
    let proof = Proof::Password(login.httpd_username, login.httpd_password);
    let session = match served.caller(proof).await {
        Some(caller) => served.issue(&caller)?,
        None => None,
    };
    let Some(session) = session else {
        served.note_refused();
        let text = "wrong name or password".to_owned();
        return Err(Refusal(StatusCode::UNAUTHORIZED, text));
    };
    // A browser must not send it in the clear later.
    let secure = if served.is_tls { "; Secure" } else { "" };
    let cookie = format!("{SESSION}={session}; Path=/; HttpOnly; SameSite=Strict{secure}");
    Ok(([(header::SET_COOKIE, cookie)], json_of(&json!({}))).into_response())
}

/// Keys of the subnet, which clients check for being set.
async fn keys(State(served): State<Shared>, Extension(caller): Extension<Caller>) -> Answer {
    if caller.role() != Role::Admin {
        return Err(Refusal(StatusCode::FORBIDDEN, "keys are for the role admin".to_owned()));
    }
    let snapshot = served.snapshot()?;
    let (subnet, site) = (&snapshot.fabric().subnet, served.desk.site());
    let text = |number: u64| Value::from(format!("{number:#x}"));
    Ok(json_of(&json!({
        "subnet_prefix": text(subnet.prefix),
        "m_key": text(site.m_key),
        "sm_key": text(site.sm_key),
        "sa_key": text(subnet.sa_key),
        // One key is for all ports.
        "m_key_per_port": "false",
    })))
}
