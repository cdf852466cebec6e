//! An SA client with its own queue pair, with which `scripts/kernel-lab` tests a responder that
//! clients are redirected to.
//!
//! usage: ud_client DEVICE GID/QP COUNT     COUNT times Get(PathRecord), 16 at a time

use std::collections::BTreeSet;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ib_mad::transport::umad::UmadPort;
use ib_mad::transport::verbs::Verbs;
use ib_mad::transport::{Address, Grh, Interest, Packet, Transport, wait};
use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::{PathRecord, path};
use ib_mad::wire::sa::{SaMad, attribute};

/// Outstanding requests.
const WINDOW: usize = 16;
/// Interval at which unanswered requests are sent again.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time limit of the whole run.
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, target, count] = &arguments[..] else {
        eprintln!("usage: ud_client DEVICE GID/QP COUNT");
        return ExitCode::from(2);
    };
    match run(device, target, count) {
        Ok(result) => {
            println!("PASS ud: {result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAIL ud: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: &str, target: &str, count: &str) -> Result<String, Box<dyn Error>> {
    let port = UmadPort::find(Some(device), None)?;
    let mut verbs = Verbs::open(&port)?;
    let (gid, qpn) = target.split_once('/').ok_or("the target is GID/QP")?;
    let (here, there): (Gid, Gid) = (port.gid(0)?, gid.parse()?);
    let grh = Grh { remote_gid: there, local_gid: here, hop_limit: 64, ..Grh::default() };
    let address =
        Address { lid: Lid::NONE, qpn: Qpn(qpn.parse()?), grh: Some(grh), ..Address::default() };
    let count: u64 = count.parse()?;

    let begun = Instant::now();
    let (mut open, mut next, mut repeats) = (BTreeSet::new(), 1, 0);
    let mut batch = vec![Packet::default(); WINDOW];
    let mut heard = Instant::now();
    while next <= count || !open.is_empty() {
        if begun.elapsed() > LIMIT {
            return Err(format!("{} of {count} unanswered", open.len()).into());
        }
        while next <= count && open.len() < WINDOW {
            verbs.send(&[request(next, &address, here, there)])?;
            open.insert(next);
            next += 1;
        }
        let got = verbs.receive(&mut batch)?;
        for packet in &batch[..got] {
            open.remove(&answered(packet, &address, there)?);
            heard = Instant::now();
        }
        if heard.elapsed() > PATIENCE {
            for &tid in &open {
                verbs.send(&[request(tid, &address, here, there)])?;
                repeats += 1;
            }
            heard = Instant::now();
        }
        if let (0, Some(descriptor)) = (got, verbs.descriptor()) {
            wait(&mut [Interest::read(descriptor)], Some(PATIENCE / 5))?;
        }
    }
    let rate = count as f32 / begun.elapsed().as_secs_f32();
    let (mine, other) = (verbs.qpn(), address.qpn);
    Ok(format!("{count} answers of QP {other} to QP {mine}, {rate:.0}/s, {repeats} repeats"))
}

fn request(tid: u64, address: &Address, here: Gid, there: Gid) -> Packet {
    let mut packet = Packet::to(*address);
    let mut mad = SaMad::new(&mut packet.mad);
    let mask = path::component::SGID | path::component::DGID;
    mad.write_request(Method::GET, attribute::PATH_RECORD, tid, mask);
    let mut record = PathRecord::of_mut(mad.data_mut());
    record.set_sgid(here).set_dgid(there);
    packet
}

/// The transaction ID of a correct answer; errors for other packets.
fn answered(packet: &Packet, address: &Address, there: Gid) -> Result<u64, Box<dyn Error>> {
    let mad = SaMad::new(&packet.mad);
    let (status, found) = (mad.header().status(), PathRecord::new(&mad.data()[..])?);
    if status != Status::OK || found.dgid() != there || packet.address.qpn != address.qpn {
        return Err(format!(
            "{status}, a path to {}, from QP {}",
            found.dgid(),
            packet.address.qpn
        )
        .into());
    }
    Ok(mad.header().tid())
}
