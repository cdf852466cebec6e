//! A small subnet of real programs, and what its manager publishes.

#![allow(dead_code, reason = "no test uses all of it")]

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, Sandbox, binary, free_address};
use ib_mad::types::{Gid, Lid};
use ib_mad::wire::attribute::PortInfo;
use sa_proto::proto::snapshot;
use sa_proto::proto::snapshot::from_responder::Message as Said;
use sa_proto::proto::snapshot::from_sm::Message as Told;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::snapshot::codec::Decoder;
use sa_proto::snapshot::{SCHEMA, Snapshot};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// A fat tree of 16 hosts with `ibfabric` running; managers and responders to be added.
pub(crate) struct Subnet {
    pub(crate) sandbox: Sandbox,
    publish: String,
    _fabric: Program,
}

impl Subnet {
    pub(crate) fn new(name: &str) -> Self {
        let sandbox = Sandbox::new(name);
        let net: PathBuf = sandbox.path("fat-tree.net");
        let status = Command::new(binary("ibfabric"))
            .args(["generate", "fat-tree", "--levels", "2", "--radix", "8", "--hosts", "16", "-o"])
            .arg(&net)
            .status()
            .expect("ibfabric runs");
        assert!(status.success());
        let fabric = sandbox.ibfabric(&net);
        Self { publish: free_address().to_string(), _fabric: fabric, sandbox }
    }

    pub(crate) fn ibsm(&self, more: &[&str]) -> Program {
        let state = self.sandbox.path("state");
        let state = state.to_str().expect("UTF-8");
        let mut args = vec!["--transport", "ibsim", "--socket", self.sandbox.socket()];
        args.extend(["--node", "node00001 HCA-1", "--publish", &self.publish]);
        args.extend(["--state-dir", state]);
        args.extend(more);
        self.sandbox.ours("ibsm", "ibsm", &args)
    }

    /// A responder behind the front door.
    pub(crate) fn ibsa(&self) -> Program {
        let cache = self.sandbox.path("cache");
        let url = self.url();
        let mut args = vec!["--sm", &url, "--name", "r1", "--transport", "udp"];
        args.extend(["--listen", "127.0.0.1:0", "--cache-dir", cache.to_str().expect("UTF-8")]);
        let ibsa = self.sandbox.ours("ibsa", "ibsa", &args);
        ibsa.wait_for("serving generation");
        ibsa
    }

    pub(crate) fn control(&self, words: &[&str]) {
        let output = Command::new(binary("ibfabric"))
            .args(["ctl", "--socket", self.sandbox.socket()])
            .args(words)
            .output()
            .expect("ibfabric runs");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    pub(crate) async fn channel(&self) -> Channel {
        let url = self.url();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let endpoint = Channel::from_shared(url.clone()).expect("a URL");
            match endpoint.connect().await {
                Ok(channel) => return channel,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Everything that is published, once there is something.
    pub(crate) async fn snapshot(&self) -> Snapshot {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(snapshot) = self.try_snapshot().await {
                return snapshot;
            }
            assert!(Instant::now() < deadline, "nothing is published");
        }
    }

    /// Where managers publish.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.publish)
    }

    async fn try_snapshot(&self) -> Option<Snapshot> {
        let hello = snapshot::Hello { schema: SCHEMA, responder_id: 0x51, ..Default::default() };
        let (say, said) = mpsc::channel(1);
        let hello = snapshot::FromResponder { message: Some(Said::Hello(hello)) };
        say.send(hello).await.ok()?;
        let mut client = SnapshotFeedClient::new(self.channel().await);
        let mut feed = client.subscribe(ReceiverStream::new(said)).await.ok()?.into_inner();
        let mut decoder = None;
        loop {
            let message = tokio::time::timeout(PATIENCE, feed.message()).await.ok()?.ok()??;
            match message.message? {
                Told::Begin(begin) => decoder = Some(Decoder::new(begin).unwrap()),
                Told::Chunk(chunk) => decoder.as_mut()?.chunk(&chunk).unwrap(),
                Told::End(end) => return Some(decoder?.finish(end, &Snapshot::empty()).unwrap()),
                Told::Explain(_) => {}
            }
        }
    }
}

/// A host's port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) gid: Gid,
    pub(crate) lid: Lid,
}

/// The ports of all hosts that have a LID.
pub(crate) fn hosts(snapshot: &Snapshot) -> Vec<Host> {
    let prefix = snapshot.fabric().subnet.prefix;
    let nodes = snapshot.fabric().nodes.iter().filter(|node| node.switch_info.is_none());
    let ports = nodes.flat_map(|node| &node.ports).map(|port| Host {
        gid: Gid::new(prefix, port.guid),
        lid: PortInfo::new(&port.info[..]).unwrap().base_lid(),
    });
    ports.filter(|host| host.lid.is_unicast()).collect()
}
