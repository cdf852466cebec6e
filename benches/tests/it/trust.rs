//! Which peers an SM with certificates accepts: connections and calls over real TLS on loopback.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ibsm::publish::{EpochFile, PublishConfig, Publisher};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, RevocationReason, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};
use sa_proto::proto::admin::StatusRequest;
use sa_proto::proto::admin::admin_client::AdminClient;
use sa_proto::proto::node::FollowRequest;
use sa_proto::proto::node::node_paths_client::NodePathsClient;
use sa_proto::proto::node::update::Kind;
use sa_proto::proto::registry::Writes;
use sa_proto::proto::registry::registry_client::RegistryClient;
use sa_proto::proto::snapshot::FromResponder;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::snapshot::{FabricPlane, HistoryLimits, Snapshot, Subnet};
use sa_proto::trust::{ClientTrust, Role, TlsFiles, reason, reason_of_status};
use sa_server::node::{AGENTS_MAX, AgentCounters, Agents, AgentsConfig, Contact, ServeError};
use sa_server::sm::replica::{self, Identity, ReplicaConfig, ReplicaStatus, SmUrl};
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// How long a step may take before a test fails; none needs more than a second.
const PATIENCE: Duration = Duration::from_secs(60);
const SA_KEY: u64 = 0xC0FFEE;

/// A CA and a directory for the certificates it signs.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    directory: tempfile::TempDir,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let directory = tempfile::tempdir().unwrap();
        Self { issuer: Issuer::new(params, key), pem, directory }
    }

    /// The certificate of an SM on loopback.
    fn sm(&self) -> TlsFiles {
        let params = CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).unwrap();
        self.issue(self.directory.path(), "sm", params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn client(&self, roles: &[Role]) -> ClientTrust {
        let mut params = CertificateParams::default();
        let uri = |role: &Role| SanType::URI(role.uri().try_into().unwrap());
        params.subject_alt_names = roles.iter().map(uri).collect();
        let name = roles.iter().map(|role| role.name()).collect::<String>() + "-client";
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        ClientTrust::new(Some(self.issue(self.directory.path(), &name, params, usage)), false)
    }

    /// An administrator whose certificate has this serial number.
    fn client_with_serial(&self, serial: u64) -> ClientTrust {
        let mut params = CertificateParams::default();
        params.serial_number = Some(SerialNumber::from(serial));
        params.subject_alt_names = vec![SanType::URI(Role::Admin.uri().try_into().unwrap())];
        let (directory, usage) = (self.directory.path(), ExtendedKeyUsagePurpose::ClientAuth);
        ClientTrust::new(Some(self.issue(directory, &serial.to_string(), params, usage)), false)
    }

    /// A list of revoked certificates, by serial numbers, in PEM.
    fn revoked(&self, serials: &[u64]) -> String {
        let revoked = |&serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2027, 1, 1),
            crl_number: SerialNumber::from(serials.len() as u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn issue(
        &self,
        directory: &Path,
        name: &str,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> TlsFiles {
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let put = |kind: &str, text: &str| {
            let path = directory.join(format!("{name}.{kind}"));
            std::fs::write(&path, text).unwrap();
            path
        };
        TlsFiles {
            ca: put("ca", &self.pem),
            cert: put("pem", &certificate),
            key: put("key", &key.serialize_pem()),
            crl: None,
        }
    }
}

struct Sm {
    publisher: Publisher,
    _state_dir: tempfile::TempDir,
}

impl Sm {
    fn start(tls: Option<TlsFiles>) -> Self {
        let state_dir = tempfile::tempdir().unwrap();
        let publisher = Publisher::start(PublishConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            tls,
            local: Default::default(),
            epochs: EpochFile::new(state_dir.path().into()),
            history: HistoryLimits::default(),
        })
        .unwrap();
        publisher.begin_session(Guid(0x5AFE)).unwrap();
        let subnet = Subnet { sa_key: SA_KEY, ..Subnet::default() };
        publisher.publish(FabricPlane { subnet, ..FabricPlane::default() }).unwrap();
        Self { publisher, _state_dir: state_dir }
    }

    fn address(&self) -> SocketAddr {
        self.publisher.address()
    }

    fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    fn turned_away(&self) -> u64 {
        self.counter("tls_connections_turned_away")
    }

    fn counter(&self, wanted: &str) -> u64 {
        let counters = self.publisher.counters();
        counters.iter().find(|(name, ..)| *name == wanted).unwrap().2
    }
}

fn block_on<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, what).await.expect("in time") })
}

/// Requests the status; returns an error as text.
async fn status_by(
    connecting: impl Future<Output = Result<Channel, tonic::transport::Error>>,
) -> Result<u64, String> {
    let channel = connecting.await.map_err(|error| reason(&error))?;
    let answer = AdminClient::new(channel).get_status(StatusRequest {}).await;
    answer.map(|answer| answer.into_inner().epoch).map_err(|status| reason_of_status(&status))
}

fn ask_status(trust: &ClientTrust, url: &str) -> Result<u64, String> {
    block_on(status_by(trust.endpoint(url).unwrap().connect()))
}

async fn connect(trust: &ClientTrust, sm: &Sm) -> Channel {
    trust.endpoint(&sm.url()).unwrap().connect().await.unwrap()
}

/// Follows the feed until the first snapshot.
fn first_snapshot(sm: &Sm, trust: ClientTrust) -> Option<Arc<Snapshot>> {
    let url: SmUrl = sm.url().parse().unwrap();
    let config = ReplicaConfig {
        sms: vec![url.with_trust(trust).unwrap()],
        identity: Identity {
            id: 1,
            name: "r".into(),
            front_door: vec![],
            front_door_token: 0,
            spill_from: None,
            spill_token: 0,
            port: None,
            port_use: Default::default(),
        },
        cache_dir: None,
        cache_interval: Duration::ZERO,
    };
    let (got, mut snapshots) = tokio::sync::mpsc::unbounded_channel();
    let status = Arc::new(ReplicaStatus::default());
    let attempts = status.clone();
    block_on(async {
        let refused = async move {
            let count = || attempts.counters().into_iter().find(|c| c.0 == "replica_disconnects");
            let disconnects = || count().is_some_and(|(.., count)| count >= 2);
            while !disconnects() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let on_snapshot = move |snapshot: &Arc<Snapshot>| {
            let _ = got.send(snapshot.clone());
        };
        let never = std::future::pending();
        tokio::select! {
            () = replica::run(config, status, on_snapshot, Default::default, never) => None,
            snapshot = snapshots.recv() => snapshot,
            () = refused => None,
        }
    })
}

#[test]
fn a_responder_follows_the_feed_and_receives_the_sa_key() {
    let ca = Ca::new();
    let sm = Sm::start(Some(ca.sm()));
    let snapshot = first_snapshot(&sm, ca.client(&[Role::Responder])).expect("a snapshot");
    assert_eq!(snapshot.fabric().subnet.sa_key, SA_KEY);
}

#[test]
fn an_operator_asks_by_address_and_by_name() {
    let ca = Ca::new();
    let sm = Sm::start(Some(ca.sm()));
    let admin = ca.client(&[Role::Admin]);
    assert!(ask_status(&admin, &sm.url()).unwrap() > 0);
    assert!(ask_status(&admin, &format!("https://localhost:{}", sm.address().port())).is_ok());
}

#[test]
fn a_responder_asks_nothing_that_operators_ask() {
    let ca = Ca::new();
    let sm = Sm::start(Some(ca.sm()));
    let refusal = ask_status(&ca.client(&[Role::Responder]), &sm.url()).unwrap_err();
    assert_eq!(
        refusal,
        "ibsa.admin.v1.Admin/GetStatus is for the role viewer, a certificate with \
         urn:ibsm:role:viewer as URI in its subject alternative name; this one gives the role \
         responder"
    );
    assert!(ask_status(&ca.client(&[]), &sm.url()).unwrap_err().ends_with("gives no role"));
    assert!(ask_status(&ca.client(&Role::ALL), &sm.url()).is_ok());
}

#[test]
fn an_operator_neither_reads_snapshots_nor_writes() {
    let ca = Ca::new();
    let sm = Sm::start(Some(ca.sm()));
    assert!(first_snapshot(&sm, ca.client(&[Role::Admin])).is_none());
    block_on(async {
        let channel = connect(&ca.client(&[Role::Admin]), &sm).await;
        let writes = tokio_stream::once(Writes::default());
        let refusal = RegistryClient::new(channel.clone()).write(writes).await.unwrap_err();
        assert_eq!(refusal.code(), Code::PermissionDenied);
        let hello = tokio_stream::once(FromResponder::default());
        let refusal = SnapshotFeedClient::new(channel).subscribe(hello).await.unwrap_err();
        assert_eq!(refusal.code(), Code::PermissionDenied);
        assert!(refusal.message().contains("is for the role responder"), "{refusal}");
    });
}

#[test]
fn who_shows_no_certificate_or_one_of_another_ca_is_turned_away() {
    let (ca, other) = (Ca::new(), Ca::new());
    let sm = Sm::start(Some(ca.sm()));
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ca.pem));
    let bare = Endpoint::from_shared(sm.url()).unwrap().tls_config(tls).unwrap();
    let error = block_on(status_by(bare.connect())).unwrap_err();
    assert!(error.contains("certificate"), "{error}");

    // It trusts the SM, but the SM does not trust it.
    let mut stranger = other.client(&Role::ALL);
    std::fs::write(&stranger.files.as_mut().unwrap().ca, &ca.pem).unwrap();
    let error = ask_status(&stranger, &sm.url()).unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    let deadline = Instant::now() + PATIENCE;
    while sm.turned_away() < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(sm.turned_away() >= 2, "the SM counts them, and attempts to connect again");
    assert!(ask_status(&ca.client(&[Role::Admin]), &sm.url()).is_ok(), "others are served");
}

/// Revoked certificates open no connection, and those that are open end.
#[test]
fn revoked_certificates_are_turned_away_and_their_connections_closed() {
    let ca = Ca::new();
    let crl = ca.directory.path().join("revoked.pem");
    std::fs::write(&crl, ca.revoked(&[1])).unwrap();
    let sm = Sm::start(Some(TlsFiles { crl: Some(crl.clone()), ..ca.sm() }));
    let (mine, others) = (ca.client_with_serial(7), ca.client_with_serial(8));
    let ask = |channel: &Channel| {
        let mut admin = AdminClient::new(channel.clone());
        async move { admin.get_status(StatusRequest {}).await }
    };
    block_on(async {
        let [own, other] = [connect(&mine, &sm).await, connect(&others, &sm).await];
        assert!(ask(&own).await.is_ok() && ask(&other).await.is_ok());
        std::fs::write(&crl, ca.revoked(&[1, 7])).unwrap();
        while ask(&own).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(ask(&other).await.is_ok());
    });
    let error = ask_status(&mine, &sm.url()).unwrap_err();
    // Its alert may be lost, as the connection is closed behind it.
    assert!(error.contains("certificate"), "{error}");
    assert!(sm.counter("tls_connections_revoked") == 1 && sm.turned_away() >= 1);
    // A broken list changes nothing.
    std::fs::write(&crl, "no list").unwrap();
    assert!(ask_status(&mine, &sm.url()).is_err() && ask_status(&others, &sm.url()).is_ok());
}

#[test]
fn an_sm_of_another_ca_or_name_is_not_believed() {
    let (ca, other) = (Ca::new(), Ca::new());
    let sm = Sm::start(Some(other.sm()));
    let admin = ca.client(&[Role::Admin]);
    let error = ask_status(&admin, &sm.url()).unwrap_err();
    assert_eq!(error, "its certificate is not signed by a CA in --tls-ca");
    let sm = Sm::start(Some(ca.sm()));
    let error = ask_status(&admin, &format!("https://127.0.0.2:{}", sm.address().port()));
    // Linux routes all of 127/8 to this host, but no program listens there.
    assert!(error.is_err());
    let admin_as_sm = Sm::start(Some(TlsFiles {
        ca: ca.sm().ca,
        ..ca.issue(
            ca.directory.path(),
            "elsewhere",
            CertificateParams::new(vec!["sm1.example.org".into()]).unwrap(),
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }));
    let error = ask_status(&admin, &admin_as_sm.url()).unwrap_err();
    assert!(error.starts_with("its certificate is not for 127.0.0.1, but for"), "{error}");
}

#[test]
fn tls_and_its_absence_do_not_meet() {
    let ca = Ca::new();
    let sm = Sm::start(Some(ca.sm()));
    let plain = format!("http://{}", sm.address());
    let error = ask_status(&ClientTrust::default(), &plain).unwrap_err();
    assert!(error.contains("https") || error.contains("TLS"), "{error}");
    let sm = Sm::start(None);
    let error = ask_status(&ca.client(&[Role::Admin]), &sm.url()).unwrap_err();
    assert_eq!(error, "it does not speak TLS; is it http://?");
    let plain = format!("http://{}", sm.address());
    assert!(ask_status(&ClientTrust::default(), &plain).is_ok(), "on loopback as ever");
}

#[test]
fn renewed_certificates_are_used_from_the_next_connection_on() {
    let (old, new) = (Ca::new(), Ca::new());
    let files = old.sm();
    let sm = Sm::start(Some(files.clone()));
    assert!(ask_status(&old.client(&[Role::Admin]), &sm.url()).is_ok());
    assert!(ask_status(&new.client(&[Role::Admin]), &sm.url()).is_err());

    // An incomplete renewal must not stop service.
    std::fs::write(&files.key, "rubbish").unwrap();
    assert!(ask_status(&old.client(&[Role::Admin]), &sm.url()).is_ok());

    let renewed = new.sm();
    for (to, from) in
        [(&files.ca, renewed.ca), (&files.cert, renewed.cert), (&files.key, renewed.key)]
    {
        std::fs::copy(from, to).unwrap();
    }
    assert!(ask_status(&new.client(&[Role::Admin]), &sm.url()).is_ok());
    assert!(ask_status(&old.client(&[Role::Admin]), &sm.url()).is_err());
}

#[test]
fn an_sm_does_not_start_with_certificates_that_cannot_be_used() {
    let ca = Ca::new();
    let files = TlsFiles { cert: ca.directory.path().join("none.pem"), ..ca.sm() };
    let state_dir = tempfile::tempdir().unwrap();
    let refusal = Publisher::start(PublishConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: Some(files),
        local: Default::default(),
        epochs: EpochFile::new(state_dir.path().into()),
        history: HistoryLimits::default(),
    });
    let error = refusal.err().expect("refused").to_string();
    assert!(error.contains("none.pem (--tls-cert): No such file"), "{error}");
}

/// A manager that has just confirmed.
fn contact() -> Contact {
    Arc::new(|_| Some(Instant::now()))
}

/// A responder's service for agents on loopback, without a snapshot.
fn serve_agents(tls: Option<TlsFiles>) -> (Agents, SocketAddr, Arc<AgentCounters>) {
    let config = AgentsConfig { address: "127.0.0.1:0".parse().unwrap(), tls, insecure: false };
    let (tables, counters) = (Arc::default(), Arc::<AgentCounters>::default());
    let (agents, address) =
        Agents::serve(&config, tables, Arc::clone(&counters), contact()).unwrap();
    (agents, address, counters)
}

async fn follow_paths(
    channel: Channel,
) -> Result<tonic::Streaming<sa_proto::proto::node::Update>, tonic::Status> {
    let request = FollowRequest { port_guid: 7, agent: "node1".into(), ping: 1 };
    Ok(NodePathsClient::new(channel).follow(tokio_stream::once(request)).await?.into_inner())
}

#[tokio::test]
async fn paths_are_followed_by_agents_and_by_no_other_role() {
    let ca = Ca::new();
    let (_agents, address, counters) = serve_agents(Some(ca.sm()));
    let url = format!("https://{address}");
    for role in Role::ALL {
        let endpoint = ca.client(&[role]).endpoint(&url).unwrap();
        let followed = follow_paths(endpoint.connect().await.unwrap()).await;
        if role == Role::Agent {
            let first = followed.unwrap().message().await.unwrap().unwrap().kind;
            assert!(matches!(first, Some(Kind::Heartbeat(_))), "{first:?}");
        } else {
            assert_eq!(followed.unwrap_err().code(), Code::PermissionDenied, "{role:?}");
        }
    }
    assert_eq!(counters.connections.calls_refused.load(Relaxed), 3);
    let other = Ca::new();
    let trust = other.client(&[Role::Agent]);
    let strange = trust.endpoint(&url).unwrap().connect().await;
    let refused = match strange {
        Ok(channel) => follow_paths(channel).await.is_err(),
        Err(_) => true,
    };
    assert!(refused, "a certificate of another CA");
}

#[tokio::test]
async fn there_is_an_end_to_the_number_of_agents() {
    let (_agents, address, counters) = serve_agents(None);
    let endpoint = ClientTrust::default().endpoint(&format!("http://{address}")).unwrap();
    let mut streams = Vec::new();
    while streams.len() < AGENTS_MAX {
        let channel = endpoint.connect().await.unwrap();
        for _ in 0..32 {
            streams.push(follow_paths(channel.clone()).await.unwrap());
        }
    }
    let beyond = follow_paths(endpoint.connect().await.unwrap()).await.unwrap_err();
    assert_eq!(beyond.code(), Code::ResourceExhausted);
    assert_eq!(counters.refused.load(Relaxed), 1);
    drop(streams);
    let deadline = Instant::now() + PATIENCE;
    while counters.following.load(Relaxed) > 0 {
        assert!(Instant::now() < deadline, "agents that left keep their places");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(follow_paths(endpoint.connect().await.unwrap()).await.is_ok());
}

/// Regression: one compute node took all places, and the others asked the SA again. With a
/// certificate it is counted by its address.
#[tokio::test]
async fn a_host_leaves_places_for_agents_of_others() {
    let ca = Ca::new();
    let (_agents, address, counters) = serve_agents(Some(ca.sm()));
    let endpoint = ca.client(&[Role::Agent]).endpoint(&format!("https://{address}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut streams = Vec::new();
    let refused = loop {
        match follow_paths(channel.clone()).await {
            Ok(stream) => streams.push(stream),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(streams.len() < AGENTS_MAX / 4, "{}", streams.len());
    assert_eq!(counters.following.load(Relaxed), streams.len() as u64);
}

#[test]
fn agents_of_other_hosts_need_tls_or_that_they_are_trusted() {
    let config = AgentsConfig { address: "0.0.0.0:0".parse().unwrap(), tls: None, insecure: false };
    let serve = |config: &AgentsConfig| {
        Agents::serve(config, Arc::default(), Arc::default(), contact()).map(|(_, address)| address)
    };
    assert!(matches!(serve(&config), Err(ServeError::Exposed)));
    assert!(serve(&AgentsConfig { insecure: true, ..config }).is_ok());
}
