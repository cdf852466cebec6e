//! Target for the responder's input at QP1: queries, parts of transfers, noise.
//!
//! It answers from the fabric of the recorded conversations, and from a registry with everything
//! that was registered in them. For any input, every request is accounted for, answers go to their
//! requesters and contain no SM_Key, and no transfer remains once all clients stop.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ib_mad::transport::{Address, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::sa::{SaMad, attribute};
use sa_proto::snapshot::{RegistryPlane, Service, Version};
use sa_server::query::pool::PoolConfig;
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};

use crate::golden_support::{Case, Golden, Writes, bytes};

/// Small, so that inputs reach the limits.
const TRANSFERS_MAX: usize = 4;
const ASSEMBLIES_MAX: usize = 3;
/// More than any transfer can send at once.
const BURST_MAX: usize = 1000;

struct Recording {
    golden: Golden,
    generation: Arc<Generation>,
}

static RECORDING: LazyLock<Recording> = LazyLock::new(|| {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../ib-mad/tests/golden/random-default.json.gz");
    let golden = Golden::read(Path::new(path));
    let keys = golden.pkeys();
    let fabric =
        golden.fabric(None, |lid, port| keys.get(&(lid, port)).cloned().unwrap_or_default());
    let mut writes = Writes::new(&golden.dump("mcquery/start/dump"));
    let registers = |case: &&Case| case.method == "Set" && !case.id.contains("/cleanup/");
    golden.cases.iter().filter(registers).for_each(|case| writes.apply(&golden, case));
    let registry = writes.registry(&golden);
    assert!(!registry.members.is_empty() && !registry.services.is_empty());
    assert!(!registry.subscriptions.is_empty() && !registry.alias_guids.is_empty());
    let tables = Arc::new(Tables::build(&fabric, &registry));
    let registry: Arc<RegistryPlane> = Arc::new(registry);
    Recording { golden, generation: Arc::new(Generation::new(Version::OFFLINE, tables, registry)) }
});

/// The target. The input is a script: a packet is a byte for its sender, a byte of length, and that
/// many bytes of MAD; a pause is a byte from 0xC0 on and 16 bits of milliseconds.
pub fn run(input: &[u8]) {
    let mut publisher = Publisher::new();
    let config = ResponderConfig {
        pool: PoolConfig { answer_max: 256 << 10, total_max: 512 << 10 },
        transfers_max: TRANSFERS_MAX,
        assemblies_max: ASSEMBLIES_MAX,
        ..ResponderConfig::default()
    };
    let mut responder = Responder::new(publisher.reader(), config, Arc::new(Stats::default()));
    publisher.publish(Arc::clone(&RECORDING.generation));

    let mut now = Instant::now();
    let mut rest = input;
    while let Some((&kind, after)) = rest.split_first() {
        rest = after;
        if kind >= 0xC0 {
            let Some((pause, after)) = rest.split_first_chunk() else { break };
            rest = after;
            now += Duration::from_millis(u64::from(u16::from_be_bytes(*pause)));
        } else {
            let Some((&len, after)) = rest.split_first() else { break };
            let (mad, after) = after.split_at(usize::from(len).min(after.len()));
            rest = after;
            send(&mut responder, Lid(u16::from(kind)), mad, now);
        }
        while responder.poll_timeout().is_some_and(|due| due <= now) {
            responder.handle_timeout(now);
        }
        drain(&mut responder, now);
        assert!(responder.stats().balances(), "a request is not accounted for");
        assert!(responder.stats().in_flight() <= (TRANSFERS_MAX + ASSEMBLIES_MAX) as u64);
    }

    let mut timeouts = 0;
    while let Some(due) = responder.poll_timeout() {
        responder.handle_timeout(due);
        drain(&mut responder, due);
        timeouts += 1;
        assert!(timeouts < 1000, "silent clients hold their transfers");
    }
    assert_eq!(responder.stats().in_flight(), 0);
    assert!(responder.stats().balances());
}

fn send(responder: &mut Responder, lid: Lid, bytes: &[u8], now: Instant) {
    let mut mad = [0; MAD_LEN];
    mad[..bytes.len()].copy_from_slice(bytes);
    let mut packet = Packet::new(mad, Address::gsi(lid));
    if responder.handle(&mut packet, now) != Outcome::Send {
        return;
    }
    assert_eq!(packet.address.lid, lid, "an answer was sent to another client");
    let (request, answer) = (SaMad::new(&mad), SaMad::new(&packet.mad));
    assert_eq!(answer.header().tid(), request.header().tid());
    assert_ne!(answer.header().method(), request.header().method());
    if !request.rmpp().is_active() {
        // A message is identified by its first segment. The attribute of a refused MultiPathRecord
        // request is PathRecord, as in OpenSM.
        let (asked, returned) = (request.header().attribute_id(), answer.header().attribute_id());
        let is_path = asked == attribute::MULTI_PATH_RECORD && returned == attribute::PATH_RECORD;
        assert!(returned == asked || is_path, "{asked:?} is answered as {returned:?}");
    }
    if !answer.rmpp().is_active() {
        assert_eq!(answer.sa().sm_key(), 0, "an SM_Key was disclosed");
    }
    let is_untrusted = !request.rmpp().is_active() && request.sa().sm_key() == 0;
    if is_untrusted && answer.header().status() == Status::OK {
        keep_secrets(&answer);
    }
}

/// Fields that an untrusted requester must not see, in an answer of one MAD.
fn keep_secrets(answer: &SaMad<&[u8; MAD_LEN]>) {
    let is_get = answer.header().method() == Method::GET_RESP;
    match answer.header().attribute_id() {
        attribute::PKEY_TABLE_RECORD => panic!("P_Keys were disclosed"),
        attribute::SERVICE_RECORD if is_get => {
            assert_eq!(answer.data()[Service::KEY], [0; 16], "a ServiceKey was disclosed");
        }
        attribute::MC_MEMBER_RECORD if is_get => {
            assert_eq!(answer.data()[16..32], [0; 16], "a member's GID was disclosed");
        }
        _ => {}
    }
}

fn drain(responder: &mut Responder, now: Instant) {
    let mut packet = Packet::default();
    for _ in 0..BURST_MAX {
        if !responder.poll_transmit(now, &mut packet) {
            return;
        }
    }
    panic!("more than {BURST_MAX} packets at once");
}

/// Every recorded request, from the port that sent it; the first ones of each kind in one script.
pub fn seeds() -> Vec<Vec<u8>> {
    let golden = &RECORDING.golden;
    let queries = golden.cases.iter().filter(|case| case.kind == "query");
    let mut seeds: Vec<Vec<u8>> = queries
        .map(|case| {
            let lid = golden.lid_of(&case.client).0 as u8;
            case.request.iter().flat_map(|mad| step(lid, &bytes(mad))).collect()
        })
        .collect();
    seeds.sort();
    seeds.dedup();
    let every_50th: Vec<u8> = seeds.iter().step_by(50).take(20).flatten().copied().collect();
    seeds.push(every_50th);
    seeds
}

/// One packet of a script, without the zeros at its end.
fn step(lid: u8, mad: &[u8]) -> Vec<u8> {
    let len = mad.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1).min(255);
    [&[lid, len as u8], &mad[..len]].concat()
}
