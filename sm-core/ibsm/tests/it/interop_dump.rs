//! Checks that ibsm reads the `opensm-sa.dump` of a real `opensm`, and that `opensm` reads ibsm's.
//! Skipped with a message where the programs are missing.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use ib_mad::transport::ibsim::{Ibsim, IbsimOptions};
use ib_mad::transport::{Packet, Transport};
use ib_mad::types::{Gid, Guid, Lid, PKey, Qpn};
use ib_mad::wire::attribute::InformInfo;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::{GuidInfoRecord, McMemberRecord, ServiceRecord};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::snapshot::RegistryPlane;
use sm_core::registry::dump::{Surroundings, read, write};

use crate::ibsim::{find, signal};
use crate::skip::skip;

const PROGRAMS: [&str; 3] = ["ibsim", "ibsim-run", "opensm"];
const NET: &str = r#"
Switch 4 "Switch1"
[1] "Hca1"[1]
[2] "Hca2"[1]
[3] "Hca3"[1]

Hca 1 "Hca1"
[1] "Switch1"[1]

Hca 1 "Hca2"
[1] "Switch1"[2]

Hca 1 "Hca3"
[1] "Switch1"[3]
"#;

/// A simulator, and the programs that run against it; all end with it.
struct Bed {
    socket: String,
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Bed {
    fn new() -> Option<Self> {
        if let Some(name) = PROGRAMS.iter().find(|name| find(name).is_none()) {
            skip(format_args!("{name} is not installed (ibsim-utils, opensm)"));
            return None;
        }
        let socket = format!("sm-core-dump-{}", std::process::id());
        let mut bed = Self { socket, dir: tempfile::tempdir().unwrap(), children: Vec::new() };
        let net = bed.dir.path().join("net");
        std::fs::write(&net, NET).unwrap();
        let mut ibsim = bed.command("ibsim", "ibsim.log");
        bed.children.push(ibsim.args(["-s", "-n"]).arg(net).spawn().unwrap());
        let name = format!("@{}:ctl", bed.socket);
        await_that("ibsim starts", || {
            std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name).then_some(())
        });
        Some(bed)
    }

    fn command(&self, program: &str, log: &str) -> Command {
        let mut command = Command::new(find(program).unwrap());
        let log = File::create(self.dir.path().join(log)).unwrap();
        command.current_dir(self.dir.path()).env("IBSIM_SOCKNAME", &self.socket);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command
    }

    /// Runs `opensm` with a separate directory; it reads `dump` if given.
    fn opensm(&self, name: &str, dump: Option<&Path>) -> OpenSm {
        let dir = self.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        let mut options = format!("dump_files_dir {}\nsa_db_dump TRUE\n", dir.display());
        if let Some(dump) = dump {
            options += &format!("sa_db_file {}\n", dump.display());
        }
        std::fs::write(dir.join("opensm.conf"), options).unwrap();
        let mut command = self.command("ibsim-run", &format!("{name}.out"));
        command.arg(find("opensm").unwrap()).env("SIM_HOST", "Hca1").env("OSM_TMP_DIR", &dir);
        command.env("OSM_CACHE_DIR", &dir).args(["-d2", "-V", "-F"]).arg(dir.join("opensm.conf"));
        let child = command.arg("-f").arg(dir.join("log")).spawn().unwrap();
        let opensm = OpenSm { child, dir };
        await_that("the subnet comes up", || opensm.log().contains("SUBNET UP").then_some(()));
        opensm
    }
}

struct OpenSm {
    child: Child,
    dir: PathBuf,
}

impl Drop for OpenSm {
    fn drop(&mut self) {
        // So that it detaches; it may be a child of the script that preloads the library.
        signal(&self.child, libc::SIGTERM);
        let _ = self.child.wait();
    }
}

impl OpenSm {
    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.join("log")).unwrap_or_default()).into()
    }

    /// The rows of its dump file, once `complete` accepts them. It writes after sweeps.
    fn dump(&self, complete: impl Fn(&RegistryPlane) -> bool) -> RegistryPlane {
        signal(&self.child, libc::SIGHUP);
        await_that("opensm-sa.dump is complete", || {
            let text = std::fs::read(self.dir.join("opensm-sa.dump")).ok()?;
            Some(read(&text, &around()).unwrap()).filter(&complete)
        })
    }
}

fn await_that<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(happened) = happened() {
            return happened;
        }
        assert!(Instant::now() < end, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn around() -> Surroundings<'static> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let now_s = now.as_secs();
    Surroundings { now_s, wall_s: now_s, pkeys: &[PKey::DEFAULT_FULL], port: &|_| None }
}

/// A client of the subnet administration.
struct Client {
    ibsim: Ibsim,
    gid: Gid,
    lid: Lid,
    sm_lid: Lid,
    tid: u64,
}

impl Client {
    fn new(bed: &Bed, node: &str) -> Self {
        let options = IbsimOptions {
            socket: bed.socket.clone(),
            node: Some(node.into()),
            ..IbsimOptions::default()
        };
        let mut ibsim = Ibsim::connect(&options).unwrap();
        let port = ibsim.local_port().unwrap();
        let gid = Gid::new(port.gid_prefix, port.guid);
        Self { ibsim, gid, lid: port.lid, sm_lid: port.sm_lid, tid: 0 }
    }

    fn ask(&mut self, method: Method, about: AttributeId, mask: u64, record: &[u8]) -> Status {
        self.tid += 1;
        let mut packet = Packet::default();
        let mut mad = SaMad::new(&mut packet.mad);
        mad.write_request(method, about, self.tid, ComponentMask(mask));
        mad.data_mut()[..record.len()].copy_from_slice(record);
        packet.address.lid = self.sm_lid;
        packet.address.qpn = Qpn::GSI;
        packet.address.local_qpn = Qpn::GSI;
        packet.address.pkey = PKey::DEFAULT_FULL;
        assert_eq!(self.ibsim.send(&[packet]).unwrap(), 1);
        let fd = self.ibsim.descriptor().unwrap().as_raw_fd();
        let mut answers = vec![Packet::default(); 8];
        await_that("the SA answers", || {
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, open for as long as the client is.
            unsafe { libc::poll(&mut poll, 1, 100) };
            let count = self.ibsim.receive(&mut answers).unwrap();
            let answer = answers[..count].iter().find(|answer| {
                let header = SaMad::new(&answer.mad);
                let header = header.header();
                header.tid() & 0xFFFF == self.tid && header.method() != method
            });
            Some(SaMad::new(&answer?.mad).header().status())
        })
    }

    fn set_service(&mut self, id: u64, lease: u32, name: &[u8]) -> Status {
        let mut record = [0; 176];
        let mut text = [0; 64];
        text[..name.len()].copy_from_slice(name);
        ServiceRecord::new(&mut record[..])
            .unwrap()
            .set_service_id(id)
            .set_service_gid(self.gid)
            .set_service_pkey(PKey::DEFAULT_FULL)
            .set_service_lease(lease)
            .set_service_key([0x5A; 16])
            .set_service_name(text)
            .set_service_data64([7; 16]);
        self.ask(Method::SET, attribute::SERVICE_RECORD, 0x77, &record)
    }

    /// Joins a group, and creates it if necessary.
    fn join(&mut self, mgid: Gid) -> Status {
        let mut record = [0; 52];
        McMemberRecord::new(&mut record[..])
            .unwrap()
            .set_mgid(mgid)
            .set_port_gid(self.gid)
            .set_qkey(0x0B1B)
            .set_pkey(PKey::DEFAULT_FULL)
            .set_tclass(3)
            .set_flow_label(0x0012_3456 & 0xF_FFFF);
        record[48] = 0x21;
        self.ask(Method::SET, attribute::MC_MEMBER_RECORD, 0x1_30C7, &record)
    }

    fn subscribe(&mut self, trap: u16) -> Status {
        let mut info = [0; 36];
        InformInfo::new(&mut info[..])
            .unwrap()
            .set_lid_range_begin(Lid::PERMISSIVE)
            .set_is_generic(1)
            .set_subscribe(1)
            .set_inform_type(0xFFFF)
            .set_trap_number(ib_mad::wire::attribute::TrapNumber(trap))
            .set_resp_time_value(19);
        info[33..].fill(0xFF);
        self.ask(Method::SET, AttributeId::INFORM_INFO, 0, &info)
    }

    fn set_alias(&mut self, alias: Guid) -> Status {
        let mut record = [0; 72];
        GuidInfoRecord::new(&mut record[..]).unwrap().set_lid(self.lid);
        record[16..24].copy_from_slice(&alias.0.to_be_bytes());
        self.ask(Method::SET, attribute::GUID_INFO_RECORD, 0x23, &record)
    }
}

const MGID: Gid = Gid([0xFF, 0x12, 0xA0, 0x1C, 0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);

#[test]
fn ibsm_and_opensm_read_each_others_dumps() {
    let Some(bed) = Bed::new() else { return };
    let first = bed.opensm("first", None);
    let mut client = Client::new(&bed, "Hca2");
    assert_eq!(client.set_service(0x1000, u32::MAX, b"for ever"), Status::OK);
    assert_eq!(client.set_service(0x1001, 5000, b"an hour"), Status::OK);
    assert_eq!(client.join(MGID), Status::OK);
    assert_eq!(client.subscribe(64), Status::OK);
    assert_eq!(client.subscribe(0xFFFF), Status::OK);
    assert_eq!(client.set_alias(Guid(0xA11A5)), Status::OK);
    let dumped = first.dump(|rows| {
        rows.services.len() == 2
            && rows.subscriptions.len() == 2
            && rows.members.len() == 1
            && rows.alias_guids.len() == 1
    });
    if let Ok(keep) = std::env::var("KEEP_DUMP") {
        std::fs::copy(first.dir.join("opensm-sa.dump"), keep).unwrap();
    }
    let group = dumped.groups.find(MGID).expect("the client's group");
    assert!(!group.predefined);
    let record = McMemberRecord::new(&group.record).unwrap();
    assert_eq!((record.tclass(), record.flow_label()), (3, 0x2_3456));
    let left = dumped.services.iter().filter_map(|row| row.expires_s).next().expect("a lease");
    assert!((4900..=5000).contains(&(left - around().now_s)), "{left}");
    drop((client, first));

    // ibsm's dump is loaded into another opensm, which must write the same rows.
    let ours = bed.dir.path().join("ours.dump");
    let lids = |_| Some((Lid(3), 32));
    let text = write(&dumped, &Surroundings { port: &lids, ..around() });
    std::fs::write(&ours, text).unwrap();
    let second = bed.opensm("second", Some(&ours));
    let log = second.log();
    assert!(log.contains("Restoring SA DB from file") && !log.contains("PARSE ERROR"), "{log}");
    // It writes only after a change.
    let mut client = Client::new(&bed, "Hca3");
    assert_eq!(client.set_service(0x1002, u32::MAX, b"another"), Status::OK);
    let again = second.dump(|rows| rows.services.len() == 3);
    let rows = |plane: &RegistryPlane| {
        let lease = |row: &sa_proto::snapshot::Service| (row.record, row.expires_s.is_some());
        let services: Vec<_> = plane.services.iter().map(|row| lease(row)).collect();
        let client_services =
            services.into_iter().filter(|(record, _)| record[..8] != 0x1002_u64.to_be_bytes());
        let client_services: Vec<_> = client_services.collect();
        let mut informs: Vec<_> =
            plane.subscriptions.iter().map(|row| (row.inform_info, row.qpn, row.lid)).collect();
        informs.sort();
        let members: Vec<_> = plane.members.iter().map(|row| (**row).clone()).collect();
        let group = (**plane.groups.find(MGID).expect("the client's group")).clone();
        let aliases: Vec<_> = plane.alias_guids.iter().map(|row| (**row).clone()).collect();
        (client_services, informs, members, group, aliases)
    };
    assert_eq!(rows(&again), rows(&dumped));
}
