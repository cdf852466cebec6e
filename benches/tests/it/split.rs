//! A fabric that is split while the network between hosts is whole: each half has a master, and
//! responders that both managers reach answer each half from its own master's session.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::next_packet;
use benches::sandbox::{PATIENCE, Program, Sandbox, free_address};
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions, Role};
use ib_mad::transport::{Address, Packet, Transport};
use ib_mad::types::{Gid, Lid, PKey};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::record::{PathRecord, ServiceRecord};
use ib_mad::wire::sa::{SaMad, attribute};
use sa_proto::proto::admin::admin_client::AdminClient;
use sa_proto::proto::admin::{self, StatusRequest};
use tonic::transport::Channel;

/// Two switches with a link between them, and three hosts each: a manager, a client and a
/// responder with a port of its own.
const NET: &str = r#"
Switch 8 "switch-left"
[1] "manager-left"[1]
[2] "client-left"[1]
[3] "responder-left"[1]
[8] "switch-right"[8]

Switch 8 "switch-right"
[1] "manager-right"[1]
[2] "client-right"[1]
[3] "responder-right"[1]
[8] "switch-left"[8]

Hca 1 "manager-left"
[1] "switch-left"[1]

Hca 1 "client-left"
[1] "switch-left"[2]

Hca 1 "responder-left"
[1] "switch-left"[3]

Hca 1 "manager-right"
[1] "switch-right"[1]

Hca 1 "client-right"
[1] "switch-right"[2]

Hca 1 "responder-right"
[1] "switch-right"[3]
"#;

/// The halves; the manager of the first is preferred.
const SIDES: [&str; 2] = ["left", "right"];
/// Nodes of a half.
const HALF: u32 = 4;
/// How long a client waits before it repeats a request.
const REPEAT: Duration = Duration::from_millis(500);
/// How long it repeats one: longer than a kernel does.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// The fabric, two managers that follow each other, and responders that follow both.
struct Site {
    sandbox: Sandbox,
    _fabric: Program,
    publish: [SocketAddr; 2],
    runtime: tokio::runtime::Runtime,
}

impl Site {
    fn new(name: &str) -> Self {
        let sandbox = Sandbox::new(name);
        let net = sandbox.path("halves.net");
        std::fs::write(&net, NET).expect("the sandbox can be written");
        let text = "sminfo_polling_timeout 300\npolling_retry_number 3\nsweep_interval 2\n";
        std::fs::write(sandbox.path("ibsm.conf"), text).expect("the sandbox can be written");
        let fabric = sandbox.ibfabric(&net);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("threads");
        Self { sandbox, _fabric: fabric, publish: [free_address(), free_address()], runtime }
    }

    fn manager(&self, at: usize) -> Program {
        let sandbox = &self.sandbox;
        let (state, config) =
            (sandbox.path(&format!("state-{}", SIDES[at])), sandbox.path("ibsm.conf"));
        let (publish, follow) = (self.publish[at].to_string(), self.url(1 - at));
        let node = format!("manager-{}", SIDES[at]);
        let mut args = vec!["--transport", "ibsim", "--socket", sandbox.socket(), "--node", &node];
        args.extend(["--publish", &publish, "--follow", &follow, "-p", ["9", "3"][at]]);
        args.extend(["--state-dir", state.to_str().expect("UTF-8")]);
        args.extend(["-F", config.to_str().expect("UTF-8")]);
        sandbox.ours("ibsm", &format!("ibsm-{}", SIDES[at]), &args)
    }

    /// A responder at a port of this half.
    fn responder(&self, at: usize) -> Program {
        let sandbox = &self.sandbox;
        let node = format!("responder-{}", SIDES[at]);
        let (cache, urls) =
            (sandbox.path(&format!("cache-{}", SIDES[at])), [0, 1].map(|at| self.url(at)));
        let mut args = vec!["--sm", &urls[0], "--sm", &urls[1], "--name", &node];
        args.extend(["--transport", "ibsim", "--socket", sandbox.socket(), "--node", &node]);
        args.extend(["--cache-dir", cache.to_str().expect("UTF-8")]);
        sandbox.ours("ibsa", &node, &args)
    }

    fn url(&self, at: usize) -> String {
        format!("http://{}", self.publish[at])
    }

    fn status(&self, at: usize) -> Option<admin::Status> {
        self.runtime.block_on(async {
            let channel = Channel::from_shared(self.url(at)).unwrap().connect().await.ok()?;
            let answer = AdminClient::new(channel).get_status(StatusRequest {}).await;
            Some(answer.ok()?.into_inner())
        })
    }

    /// Waits until a manager reports this.
    fn await_status(&self, at: usize, what: &str, is: impl Fn(&admin::Status) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status(at);
            if status.as_ref().is_some_and(&is) {
                return;
            }
            assert!(Instant::now() < deadline, "{} {what}: {status:#?}", SIDES[at]);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a manager is master of so many nodes, and all responders serve its session.
    fn await_served(&self, at: usize, nodes: u32, responders: usize) {
        self.await_status(at, "is served", |status| {
            let serving = status.responders.iter().filter(|responder| responder.current);
            status.subnet_up && status.nodes == nodes && serving.count() == responders
        });
    }

    /// Pulls the cable between the halves, and waits until each has its master.
    fn split(&self) {
        self.sandbox.control(&["link-down", "switch-left", "8"]);
        for at in 0..2 {
            self.await_status(at, "is master of its half", |status| {
                status.subnet_up && status.nodes == HALF
            });
        }
    }
}

/// A client on the fabric.
struct Client {
    transport: Ibsim,
    side: &'static str,
    tid: u64,
    /// Services that were acknowledged.
    registered: BTreeMap<u64, Gid>,
}

impl Client {
    fn new(site: &Site, at: usize) -> Self {
        let options = IbsimOptions {
            socket: site.sandbox.socket().to_owned(),
            node: Some(format!("client-{}", SIDES[at])),
            role: Role::Responder,
            ..IbsimOptions::default()
        };
        let transport = Ibsim::connect(&options).expect("the simulator is there");
        Self { transport, side: SIDES[at], tid: 100 * (at as u64 + 1), registered: BTreeMap::new() }
    }

    fn own(&mut self) -> (Lid, Gid, Lid) {
        let port = self.transport.local_port().expect("a port");
        (port.lid, Gid::new(port.gid_prefix, port.guid), port.sm_lid)
    }

    /// Sends a request to `to`, or to the LID of the SM, and repeats it until it is answered.
    fn ask(
        &mut self,
        to: Option<Lid>,
        what: &str,
        fill: impl Fn(&mut SaMad<&mut [u8; 256]>),
    ) -> [u8; 256] {
        let deadline = Instant::now() + ANSWERED_WITHIN;
        let tid = self.tid;
        loop {
            let sa = to.unwrap_or_else(|| self.own().2);
            let mut request = Packet::to(Address::gsi(sa));
            fill(&mut SaMad::new(&mut request.mad));
            SaMad::new(&mut request.mad).header_mut().set_tid(tid);
            self.transport.send(&[request]).expect("the simulator is there");
            let until = Instant::now() + REPEAT;
            while let Some(packet) = self.next(until) {
                let answer = SaMad::new(&packet.mad);
                if answer.header().method().is_response()
                    && answer.header().tid() as u32 == tid as u32
                {
                    self.tid += 1;
                    return packet.mad;
                }
            }
            assert!(Instant::now() < deadline, "{}: no answer to {what} from LID {sa}", self.side);
        }
    }

    fn next(&mut self, until: Instant) -> Option<Packet> {
        next_packet(&mut self.transport, until)
    }

    /// The status of an answer about the path to a LID.
    fn path(&mut self, to: Option<Lid>, destination: Lid) -> Status {
        let (lid, ..) = self.own();
        let answer = self.ask(to, "a path", |mad| {
            let mask = path::SLID | path::DLID | path::NUMB_PATH;
            mad.write_request(Method::GET, attribute::PATH_RECORD, 0, mask);
            let mut record = PathRecord::new(&mut mad.data_mut()[..64]).unwrap();
            record.set_slid(lid).set_dlid(destination).set_numb_path(1);
        });
        SaMad::new(&answer).header().status()
    }

    fn service(&mut self, to: Option<Lid>, method: Method, id: u64) -> Status {
        let (_, gid, _) = self.own();
        let what = if method == Method::SET { "a write" } else { "a read" };
        let answer = self.ask(to, what, |mad| {
            let mask = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY;
            mad.write_request(method, attribute::SERVICE_RECORD, 0, mask);
            let mut record = ServiceRecord::new(&mut mad.data_mut()[..176]).unwrap();
            record.set_service_id(id).set_service_gid(gid).set_service_pkey(PKey::DEFAULT_FULL);
        });
        SaMad::new(&answer).header().status()
    }

    /// Registers a service, and finds it at once.
    fn register(&mut self, to: Option<Lid>, id: u64) {
        let side = self.side;
        assert_eq!(self.service(to, Method::SET, id), Status::OK, "{side} registers {id}");
        assert_eq!(self.service(to, Method::GET, id), Status::OK, "{side} reads {id}");
        let gid = self.own().1;
        self.registered.insert(id, gid);
    }

    /// Searches for a service at any port.
    fn find(&mut self, id: u64) -> Status {
        let answer = self.ask(None, "a search", |mad| {
            mad.write_request(Method::GET, attribute::SERVICE_RECORD, 0, svc::SERVICE_ID);
            let mut record = ServiceRecord::new(&mut mad.data_mut()[..176]).unwrap();
            record.set_service_id(id);
        });
        SaMad::new(&answer).header().status()
    }

    /// Finds all that it has registered.
    fn find_all(&mut self, to: Option<Lid>) {
        for id in self.registered.keys().copied().collect::<Vec<_>>() {
            let side = self.side;
            assert_eq!(self.service(to, Method::GET, id), Status::OK, "{side} finds {id}");
        }
    }
}

/// The LID of a responder's port.
fn lid_of(responder: &Program) -> Lid {
    let attached = responder.wait_for("attached to the fabric");
    let lid = attached.split("lid=").nth(1).and_then(|lid| lid.trim().parse().ok());
    Lid(lid.unwrap_or_else(|| panic!("no LID in '{attached}'")))
}

/// Responders followed the higher session only: clients of the other half got no answer at their
/// own master, a write was refused there for good, and its status said that its responders served.
#[test]
fn each_half_of_a_split_fabric_is_served_by_its_own_master_and_both_by_one_once_it_is_whole() {
    let site = Site::new("split");
    let managers = [site.manager(0), {
        site.await_status(0, "is up", |status| status.subnet_up && status.nodes == 2 * HALF);
        site.manager(1)
    }];
    let mut responders = [0, 1].map(|at| site.responder(at));
    site.await_served(0, 2 * HALF, 2);
    site.await_status(1, "is in step", |status| status.following.starts_with("in step"));
    let manager_lids = [0, 1].map(|at| Lid(site.status(at).expect("it runs").sm_lid as u16));
    let ports = [0, 1].map(|at| lid_of(&responders[at]));
    let mut clients = [0, 1].map(|at| Client::new(&site, at));
    for (at, client) in clients.iter_mut().enumerate() {
        client.register(None, 10 + at as u64);
        client.register(Some(ports[at]), 20 + at as u64);
    }

    site.split();
    for at in 0..2 {
        site.await_served(at, HALF, 2);
    }
    let epochs = [0, 1].map(|at| site.status(at).expect("it runs").epoch);
    assert!(epochs[0] < epochs[1], "{epochs:?}");
    // In turn, so that each request comes after one of the other half.
    for round in 0..5 {
        for (at, client) in clients.iter_mut().enumerate() {
            // Through the master's port, and directly at the responder's.
            for to in [None, Some(ports[at])] {
                let far = manager_lids[1 - at];
                assert_eq!(client.path(to, manager_lids[at]), Status::OK, "in its half");
                assert_ne!(client.path(to, far), Status::OK, "there is none to the other half");
                let id = 100 * (round + 1) + 10 * at as u64 + u64::from(to.is_some());
                client.register(to, id);
            }
            client.find_all(None);
        }
        // What is registered in one half is not known in the other one.
        let news = [0, 1].map(|at| *clients[at].registered.last_key_value().expect("some").0);
        for (at, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.find(news[1 - at]), Status::SA_NO_RECORDS, "{}", client.side);
        }
    }
    for (at, manager) in managers.iter().enumerate() {
        let status = site.status(at).expect("it runs");
        let serving = |it: &admin::Responder| it.current && it.epoch == status.epoch;
        assert!(
            status.responders.len() == 2 && status.responders.iter().all(serving),
            "{status:#?}"
        );
        let is_about = |warning: &&String| warning.contains("responder");
        assert_eq!(status.warnings.iter().find(is_about), None, "{}", manager.log());
    }

    // A responder that starts again gets both sessions, though it has kept one of them only.
    responders[1].kill_and_wait();
    responders[1] = site.responder(1);
    responders[1].wait_for("following this SM");
    for at in 0..2 {
        site.await_served(at, HALF, 2);
    }
    for (at, client) in clients.iter_mut().enumerate() {
        client.find_all(None);
        client.register(None, 900 + at as u64);
    }
    clients[1].find_all(Some(ports[1]));

    site.sandbox.control(&["link-up", "switch-left", "8"]);
    site.await_served(0, 2 * HALF, 2);
    site.await_status(1, "stands by", |status| status.sm_state == "standby");
    for (at, client) in clients.iter_mut().enumerate() {
        for to in [None, Some(ports[at])] {
            assert_eq!(client.path(to, manager_lids[1 - at]), Status::OK, "the fabric is whole");
            client.register(to, 1000 + 10 * at as u64 + u64::from(to.is_some()));
        }
    }
    for responder in &responders {
        assert!(!responder.log().contains("panicked"), "{}", responder.log());
    }
}
