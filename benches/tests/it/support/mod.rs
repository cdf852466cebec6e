//! A small subnet of real programs, and what its manager publishes.

pub(crate) mod agents;
pub(crate) mod browser;
pub(crate) mod pair;
pub(crate) mod scrape;

use std::process::Command;
use std::time::Instant;

use benches::published;
use benches::sandbox::{Program, Sandbox, binary, free_address};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::types::{Gid, Lid};
use ib_mad::wire::attribute::PortInfo;
use sa_proto::snapshot::Snapshot;
use tonic::transport::Channel;

/// The number in an environment variable.
pub(crate) fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// What `ibsmctl` prints about the manager that publishes at `url`. It must succeed.
pub(crate) fn ibsmctl(url: &str, words: &[&str]) -> String {
    let ibsmctl = Command::new(binary("ibsmctl")).args(["--sm", url]).args(words).output();
    let output = ibsmctl.expect("ibsmctl runs");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The next packet that arrives until then and was not returned as undeliverable.
pub(crate) fn next_packet(transport: &mut impl Transport, until: Instant) -> Option<Packet> {
    let mut batch = [Packet::default()];
    loop {
        if transport.receive(&mut batch).expect("the simulator is there") > 0 {
            let [packet] = batch;
            return (packet.carrier.undelivered == 0).then_some(packet);
        }
        let left = until.checked_duration_since(Instant::now())?;
        let descriptor = transport.descriptor().expect("a socket");
        wait(&mut [Interest::read(descriptor)], Some(left)).expect("a socket can be waited for");
    }
}

/// A fat tree with `ibfabric` running, without managers and responders.
pub(crate) struct Subnet {
    pub(crate) sandbox: Sandbox,
    publish: String,
    _fabric: Program,
}

impl Subnet {
    /// One of 16 hosts.
    pub(crate) fn new(name: &str) -> Self {
        Self::of(name, 8, 16)
    }

    /// One with two levels of switches of this radix.
    pub(crate) fn of(name: &str, radix: u8, hosts: u32) -> Self {
        let sandbox = Sandbox::new(name);
        let net = sandbox.fat_tree(radix, hosts);
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
        self.sandbox.control(words);
    }

    pub(crate) async fn channel(&self) -> Channel {
        published::channel(&self.url()).await
    }

    /// The published snapshot, as soon as there is one.
    pub(crate) async fn snapshot(&self) -> Snapshot {
        published::snapshot(&self.url()).await
    }

    /// Where managers publish.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.publish)
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
