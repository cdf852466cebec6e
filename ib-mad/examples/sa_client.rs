//! An SA client at a umad port, with which `scripts/kernel-lab` tests a responder. It prints the
//! result of each check in a line that begins with PASS or FAIL, and fails if any check fails.
//!
//! usage: sa_client DEVICE GID[/QP] CHECK...
//!
//! - `path:none`, `path:owner`, `path:kernel`: Get(PathRecord), with RMPP by none, us, the kernel.
//! - `table`: GetTable(NodeRecord), reassembled by the kernel; each record also by Get().
//! - `tables:N`: the same table N times; all must be equal.
//! - `multi:N`: GetMulti(MultiPathRecord) to all hosts, N times, segmented by the kernel.
//! - `steady:SECONDS`: Get(PathRecord) continuously. Timeouts are no failure, wrong statuses are.

#![allow(clippy::print_stdout, reason = "results are printed")]

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ib_mad::transport::umad::{
    AgentSpec, Device, HEADER_LEN, Header, Rmpp, UmadPort, open, register,
};
use ib_mad::transport::{Address, Grh, Interest, wait};
use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::NodeInfo;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::multi_path::{component as multi, write_gids};
use ib_mad::wire::record::{MultiPathRecord, NodeRecord, PathRecord, node, path, stride};
use ib_mad::wire::rmpp::{RmppFlags, RmppType, VERSION};
use ib_mad::wire::sa::{ComponentMask, HEADER_LEN as SA_HEADER_LEN, SaMad, attribute};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Size limit of an answer.
const MESSAGE_LEN_MAX: usize = 1 << 18;
/// Retries of a request: as many, and at the same interval, as RDMA CM's.
const SOON: (u32, u32) = (200, 10);
/// Retries of a request with several segments either way: all timeouts together must cover the
/// whole transfer, and the kernel waits 2 s for ACKs if a single timeout is longer than that.
const PATIENTLY: (u32, u32) = (3_000, 10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, target, checks @ ..] = &arguments[..] else {
        eprintln!("usage: sa_client DEVICE GID[/QP] CHECK...");
        return ExitCode::from(2);
    };
    let mut failed = false;
    for check in checks {
        match Client::run(device, target, check) {
            Ok(result) => println!("PASS {check}: {result}"),
            Err(error) => {
                println!("FAIL {check}: {error}");
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}

/// Result from the kernel: an answer, header and data, or a timeout.
enum Heard {
    Answer(Vec<u8>),
    Silence,
}

struct Client {
    file: OwnedFd,
    agent: u32,
    here: Gid,
    there: Address,
    tid: u32,
}

impl Client {
    fn run(device: &str, target: &str, check: &str) -> Result<String> {
        let (name, argument) = check.split_once(':').unwrap_or((check, ""));
        let rmpp = match (name, argument) {
            ("path" | "steady", "owner") => Rmpp::Owner,
            ("path", "none") | ("steady", _) => Rmpp::None,
            _ => Rmpp::Kernel,
        };
        let mut client = Self::open(device, target, rmpp)?;
        match name {
            "path" => client.path(),
            "table" => client.table(),
            "tables" => client.tables(argument.parse()?),
            "multi" => client.multi(argument.parse()?),
            "steady" => client.steady(Duration::from_secs(argument.parse()?)),
            _ => Err(format!("there is no check '{name}'").into()),
        }
    }

    fn open(device: &str, target: &str, rmpp: Rmpp) -> Result<Self> {
        let port = UmadPort::find(Some(device), None)?;
        let file = open(&port.path())?;
        let agent = register(file.as_fd(), &AgentSpec::sa_client(rmpp))?;
        let (gid, qpn) = target.split_once('/').unwrap_or((target, "1"));
        let here = port.gid(0)?;
        let (remote_gid, local_gid) = (gid.parse()?, here);
        let grh = Grh { remote_gid, local_gid, hop_limit: 64, ..Grh::default() };
        let there = Address {
            lid: Lid::NONE,
            qpn: Qpn(qpn.parse()?),
            grh: Some(grh),
            ..Address::default()
        };
        Ok(Self { file, agent, here, there, tid: 0 })
    }

    fn far_gid(&self) -> Gid {
        self.there.grh.map(|grh| grh.remote_gid).unwrap_or_default()
    }

    /// Sends a request, and waits for the kernel's result. A request longer than a MAD is segmented
    /// by the kernel.
    fn ask(
        &mut self,
        (method, attribute): (Method, AttributeId),
        mask: ComponentMask,
        data: &[u8],
        (timeout_ms, retries): (u32, u32),
    ) -> Result<Heard> {
        self.tid += 1;
        let mut mad = [0; MAD_LEN];
        let mut view = SaMad::new(&mut mad);
        view.write_request(method, attribute, self.tid.into(), mask);
        let mut header = Header::sent(self.agent, &self.there, 0, 0);
        header.set_timeout_ms(timeout_ms).set_retries(retries);
        let mut record = header.0.to_vec();
        if method == Method::GET_MULTI {
            let mut rmpp = view.rmpp_mut();
            rmpp.set_rmpp_version(VERSION).set_rmpp_type(RmppType::DATA);
            rmpp.set_flags(RmppFlags::ACTIVE);
            record.extend(&mad[..SA_HEADER_LEN]);
            record.extend(data);
        } else {
            mad[SA_HEADER_LEN..][..data.len()].copy_from_slice(data);
            record.extend(&mad);
        }
        Device::write(&self.file, &record)?;
        let whole = Duration::from_millis(u64::from(timeout_ms) * u64::from(retries + 1));
        let deadline = Instant::now() + whole + Duration::from_secs(5);
        let mut buffer = vec![0; MESSAGE_LEN_MAX];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the kernel returned neither a response nor a timeout".into());
            }
            wait(&mut [Interest::read(self.file.as_fd())], Some(left))?;
            let len = match Device::read(&self.file, &mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            let header = Header(*buffer.first_chunk().ok_or("a short record")?);
            let mad = &buffer[HEADER_LEN..len];
            // The kernel has overwritten the upper half.
            if mad.get(12..16) != Some(&self.tid.to_be_bytes()[..]) {
                continue;
            }
            return match header.status() {
                0 => Ok(Heard::Answer(mad.to_vec())),
                status if status == libc::ETIMEDOUT as u32 => Ok(Heard::Silence),
                status => Err(io::Error::from_raw_os_error(status as i32).into()),
            };
        }
    }

    /// Checks an answer; errors with the reason if it is faulty.
    fn data(
        &mut self,
        what: (Method, AttributeId),
        mask: ComponentMask,
        data: &[u8],
        times: (u32, u32),
    ) -> Result<Vec<u8>> {
        let Heard::Answer(mad) = self.ask(what, mask, data, times)? else {
            return Err("no answer".into());
        };
        let header: &[u8; MAD_LEN] = &std::array::from_fn(|i| mad.get(i).copied().unwrap_or(0));
        let header = SaMad::new(header);
        let (method, status) = (header.header().method(), header.header().status());
        if method != what.0.response() || status != Status::OK {
            return Err(format!("answered with {method}, status {status}").into());
        }
        Ok(mad[SA_HEADER_LEN..].to_vec())
    }

    fn path(&mut self) -> Result<String> {
        let (mask, record) = self.path_wish();
        let what = (Method::GET, attribute::PATH_RECORD);
        let data = self.data(what, mask, &record, SOON)?;
        let found = PathRecord::new(&data[..])?;
        if (found.sgid(), found.dgid()) != (self.here, self.far_gid()) || found.dlid() == Lid::NONE
        {
            return Err(format!("a path from {} to {}", found.sgid(), found.dgid()).into());
        }
        Ok(format!("to LID {}, {}", found.dlid(), found.pkey()))
    }

    fn path_wish(&self) -> (ComponentMask, Vec<u8>) {
        let mut record = vec![0; PathRecord::LEN];
        PathRecord::new(&mut record[..])
            .expect("the buffer has the length of a PathRecord")
            .set_sgid(self.here)
            .set_dgid(self.far_gid())
            .set_reversible(true)
            .set_numb_path(1);
        use path::component::{DGID, NUMB_PATH, REVERSIBLE, SGID};
        (SGID | DGID | REVERSIBLE | NUMB_PATH, record)
    }

    fn nodes(&mut self) -> Result<Vec<u8>> {
        let what = (Method::GET_TABLE, attribute::NODE_RECORD);
        let data = self.data(what, ComponentMask::NONE, &[], PATIENTLY)?;
        if data.is_empty() || data.len() % stride(NodeRecord::LEN) != 0 {
            return Err(
                format!("{} bytes are not a whole number of NodeRecords", data.len()).into()
            );
        }
        Ok(data)
    }

    fn table(&mut self) -> Result<String> {
        let table = self.nodes()?;
        let records = table.chunks(stride(NodeRecord::LEN));
        let count = records.len();
        for record in records {
            let lid = NodeRecord::new(record)?.lid();
            let mut wish = vec![0; NodeRecord::LEN];
            NodeRecord::new(&mut wish[..])?.set_lid(lid);
            let what = (Method::GET, attribute::NODE_RECORD);
            let alone = self.data(what, node::component::LID, &wish, SOON)?;
            if alone[..record.len()] != *record {
                return Err(format!("the record of LID {lid} differs from that of Get()").into());
            }
        }
        Ok(format!("{count} records, {} bytes, each equal to that of Get()", table.len()))
    }

    fn tables(&mut self, count: u32) -> Result<String> {
        let begun = Instant::now();
        let first = self.nodes()?;
        for nth in 2..=count {
            if self.nodes()? != first {
                return Err(format!("table {nth} differs from the first").into());
            }
        }
        let took = begun.elapsed().as_secs_f32();
        Ok(format!("{count} times {} bytes in {took:.1} s", first.len()))
    }

    fn multi(&mut self, count: u32) -> Result<String> {
        const PATHS_MAX: usize = 127;
        let table = self.nodes()?;
        let mut hosts = Vec::new();
        for record in table.chunks(stride(NodeRecord::LEN)) {
            let info = NodeRecord::new(record)?.node_info();
            let info = NodeInfo::of(&info);
            if info.node_type() == 1 {
                hosts.push(Gid::new(self.here.prefix(), info.port_guid()));
            }
        }
        hosts.truncate(PATHS_MAX);
        let mut wish = vec![0; MultiPathRecord::LEN + 16 * (1 + hosts.len())];
        write_gids(&mut wish, &[self.here], &hosts).ok_or("too many GIDs")?;
        MultiPathRecord::new(&mut wish[..])?.set_numb_path(PATHS_MAX as u8);
        let mask = multi::SGID_COUNT | multi::DGID_COUNT | multi::NUMB_PATH;
        let wanted: BTreeSet<Gid> = hosts.iter().copied().collect();
        let begun = Instant::now();
        for nth in 1..=count {
            let what = (Method::GET_MULTI, attribute::MULTI_PATH_RECORD);
            let data = self.data(what, mask, &wish, PATIENTLY)?;
            let mut found = BTreeSet::new();
            for record in data.chunks(stride(PathRecord::LEN)) {
                found.insert(PathRecord::new(record)?.dgid());
            }
            if found != wanted {
                let (found, wanted) = (found.len(), wanted.len());
                return Err(format!("answer {nth} has {found} paths, expected {wanted}").into());
            }
        }
        let took = begun.elapsed().as_secs_f32();
        let (sent, hosts) = (wish.len(), hosts.len());
        Ok(format!("{count} requests of {sent} bytes, {hosts} paths each, in {took:.1} s"))
    }

    fn steady(&mut self, time: Duration) -> Result<String> {
        let (mask, record) = self.path_wish();
        let begun = Instant::now();
        let (mut answers, mut silences, mut longest) = (0, 0, Duration::ZERO);
        while begun.elapsed() < time {
            let asked = Instant::now();
            match self.ask((Method::GET, attribute::PATH_RECORD), mask, &record, SOON)? {
                Heard::Silence => silences += 1,
                Heard::Answer(mad) => {
                    let status = u16::from_be_bytes([mad[4], mad[5]]);
                    if status != 0 {
                        let after = begun.elapsed().as_secs_f32();
                        return Err(format!("status {status:#06x} after {after:.1} s").into());
                    }
                    answers += 1;
                    longest = longest.max(asked.elapsed());
                }
            }
        }
        let longest = longest.as_millis();
        Ok(format!("{answers} answers, {silences} timeouts, the slowest after {longest} ms"))
    }
}
