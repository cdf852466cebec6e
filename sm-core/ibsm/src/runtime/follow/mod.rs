//! Follows the registry of a master while standing by: keeps a copy of the registrations there.
//!
//! A standby is a client of the feed and answers no queries. [`machine`] decides, a [`Stream`] for
//! each other subnet manager; a thread with a task for each drives them. The registry of each
//! snapshot goes to the registry's thread through [`Progress`], and is made durable there. The
//! node (`node::succession`) decides whether the copy is complete at a takeover.

pub mod machine;
mod own_files;
mod progress;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::FromResponder;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::snapshot::SCHEMA;
use sa_proto::trust::{self, ClientTrust, SmEndpoint};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

pub use machine::{Output, Stream};
pub(super) use own_files::OwnFiles;
pub use progress::{News, Progress};

/// How often a silent connection is probed, and how long an answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Messages that the connection has not taken yet. What is stored is not among them: it is sent
/// when there is room.
const OUTBOUND_MAX: usize = 16;

/// The subnet managers to follow, and the identity of this one.
#[derive(Clone, Debug)]
pub(super) struct Following {
    /// Addresses of feeds, such as `https://sm1:7471`: those of all other subnet managers.
    pub(super) urls: Vec<String>,
    pub(super) trust: ClientTrust,
    /// Identity of this SM among the clients of a feed, not 0.
    pub(super) id: u64,
    pub(super) name: String,
    /// GUID of the port of this SM.
    pub(super) sm_guid: Guid,
    /// Whether operators' files of the master are used (`--follow-config`).
    pub(super) takes_texts: bool,
}

/// Follows for as long as the process lives; `arrived` is called for each snapshot.
pub(super) fn start(
    following: Following,
    progress: Arc<Progress>,
    arrived: impl Fn() + Clone + Send + 'static,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || {
        let streams = tokio::task::LocalSet::new();
        let Following { urls, trust, id, name, sm_guid, takes_texts } = following;
        for url in urls {
            let greeting = greeting(id, name.clone(), sm_guid, takes_texts);
            let stream = Stream::new(Instant::now(), url, greeting);
            let driver = Driver { stream, trust: trust.clone(), progress: progress.clone() };
            streams.spawn_local(driver.run(arrived.clone()));
        }
        runtime.block_on(streams);
    };
    std::thread::Builder::new().name("follow".to_owned()).spawn(run)?;
    Ok(())
}

/// What a standby with this identity sends first; `sm_guid` is the GUID of its port. With
/// `takes_texts` it needs the texts of operators' files.
pub fn greeting(id: u64, name: String, sm_guid: Guid, takes_texts: bool) -> proto::Hello {
    proto::Hello {
        schema: SCHEMA,
        responder_id: id,
        name,
        sm_guid: sm_guid.0,
        takes_state: true,
        takes_texts,
        software: concat!("ibsm ", env!("CARGO_PKG_VERSION")).into(),
        ..proto::Hello::default()
    }
}

/// Moves messages between a stream and its connection.
struct Driver {
    stream: Stream,
    trust: ClientTrust,
    progress: Arc<Progress>,
}

impl Driver {
    async fn run(mut self, arrived: impl Fn()) {
        while let Some(due) = self.stream.poll_timeout() {
            tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
            if self.stream.poll_connect(Instant::now()) {
                let reason = match self.connect(&arrived).await {
                    Ok(()) => "the stream ended".to_owned(),
                    Err(reason) => reason,
                };
                self.stream.handle_disconnected(Instant::now(), reason, &self.progress);
            }
        }
    }

    /// One connection, from its beginning to its end. Fails with the reason of its end.
    async fn connect(&mut self, arrived: &impl Fn()) -> Result<(), String> {
        let endpoint = endpoint(&self.trust, self.stream.url())?;
        let channel = endpoint.connect().await.map_err(|error| trust::reason(&error))?;
        let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
        self.stream.handle_connected(&self.progress);
        self.carry_out(&outbound, arrived)?;
        let call = SnapshotFeedClient::new(channel).subscribe(ReceiverStream::new(messages)).await;
        let mut inbound = call.map_err(|status| trust::reason_of_status(&status))?.into_inner();
        let mut stored = self.progress.subscribe();
        loop {
            tokio::select! {
                message = inbound.message() => {
                    let message = message.map_err(|status| trust::reason_of_break(&status))?;
                    let Some(message) = message else { return Ok(()) };
                    self.stream.handle_message(message, &self.progress);
                }
                Ok(()) = stored.changed() => self.stream.handle_stored(&self.progress),
                Ok(permit) = outbound.reserve(), if self.stream.has_holding() => {
                    if let Some(message) = self.stream.holding(Instant::now(), &self.progress) {
                        permit.send(message);
                    }
                }
            }
            self.carry_out(&outbound, arrived)?;
        }
    }

    fn carry_out(
        &mut self,
        outbound: &mpsc::Sender<FromResponder>,
        arrived: &impl Fn(),
    ) -> Result<(), String> {
        while let Some(output) = self.stream.poll_output() {
            match output {
                Output::News => arrived(),
                Output::Close(reason) => return Err(reason),
                Output::Send(message) => outbound
                    .try_send(*message)
                    .map_err(|_| "it does not accept replies".to_owned())?,
            }
        }
        Ok(())
    }
}

fn endpoint(trust: &ClientTrust, url: &str) -> Result<SmEndpoint, String> {
    let endpoint = trust.endpoint(url).map_err(|error| error.to_string())?;
    Ok(endpoint.configure(|endpoint| {
        endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
    }))
}
