//! Compares answers with recorded ones.

use std::collections::BTreeMap;

use ib_mad::types::PKey;
use sa_proto::snapshot::RegistryPlane;

use super::{Case, Golden, Got, Sa, Writes, bytes, guid};

/// Attributes whose records are served.
const SERVED: &[&str] = &["0x0001", "0x0011", "0x0012", "0x0020", "0x0035"];

/// Cases that are meant to differ, by the beginning of their id, and why; in full in
/// docs/decisions/0007.
const DIFFERENT: &[(&str, &str)] = &[
    ("malformed/status/", "the status of a request is not its answer's"),
    ("portinfo/h1/base-lid/", BASE_LID),
    ("portinfo/h2/base-lid/", BASE_LID),
    ("portinfo/sm/base-lid/", BASE_LID),
    ("portinfo/far/base-lid/", BASE_LID),
    ("portinfo/sw/base-lid/", BASE_LID),
    ("portinfo/sw-last/base-lid/", BASE_LID),
    ("portinfo/differ/init_type_reply", NOT_COMPARED),
    ("portinfo/differ/client_reregister", NOT_COMPARED),
    ("portinfo/differ/max_credit_hint", NOT_COMPARED),
    ("portinfo/differ/link_round_trip", NOT_COMPARED),
];

const BASE_LID: &str = "PortInfo's LID selects by itself, without the record's LID";
const NOT_COMPARED: &str = "a component of the record that OpenSM does not compare";

/// What is compared of an answer: header fields that mean something, and the records, sorted.
fn digest(answer: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let is_rmpp = answer[26] & 1 == 1;
    let is_error = answer[4..6] != [0, 0];
    let mut header = answer[..56].to_vec();
    if !is_rmpp {
        header[24..28].fill(0);
    }
    if is_error {
        // AttributeOffset of what has no records.
        header[44..46].fill(0);
        return (header, Vec::new());
    }
    let stride = usize::from(u16::from_be_bytes([answer[44], answer[45]])) * 8;
    let attribute = u16::from_be_bytes([answer[16], answer[17]]);
    // Bytes behind the last field of a record mean nothing.
    let len = match attribute {
        0x01 => 72,
        0x11 => 108,
        0x12 => 68,
        0x20 => 6,
        _ => 58,
    };
    let data = &answer[56..];
    let mut records: Vec<Vec<u8>> = if stride == 0 {
        if attribute == 1 { vec![data[..len].to_vec()] } else { Vec::new() }
    } else if answer[3] == 0x81 {
        vec![data[..len].to_vec()]
    } else {
        data.chunks_exact(stride).map(|record| record[..len].to_vec()).collect()
    };
    records.sort();
    (header, records)
}

fn expected(case: &Case) -> Got {
    match &case.outcome[..] {
        "reply" => Got::Answer(bytes(case.answer.as_ref().expect("a reply has an answer"))),
        "abort" => Got::Abort(case.rmpp_status.expect("an abort has a status")),
        _ => Got::Nothing,
    }
}

/// An answer in a line: status, number of records and the first one.
fn brief(got: &Got) -> String {
    let Got::Answer(answer) = got else { return format!("{got:?}") };
    let (_, records) = digest(answer);
    let status = u16::from_be_bytes([answer[4], answer[5]]);
    let first: String =
        records.first().into_iter().flatten().map(|byte| format!("{byte:02x}")).collect();
    format!("status {status:#06x}, {} records, {first}", records.len())
}

fn same(want: &Got, got: &Got) -> bool {
    match (want, got) {
        (Got::Answer(want), Got::Answer(got)) => digest(want) == digest(got),
        (want, got) => want == got,
    }
}

/// Replays all cases about records that are served. `keys` tells the P_Key table of a port, by LID
/// and number.
pub(crate) fn replay(golden: &Golden, keys: impl Fn(u16, u8) -> Vec<PKey>) {
    let far = guid(&golden.facts.roles["far"].guid);
    let far_node = golden.facts.fabric.ports.iter().find(|port| guid(&port.guid) == far).unwrap();
    let whole = golden.fabric(None, &keys);
    let without_far = golden.fabric(Some(guid(&far_node.node_guid)), &keys);
    let mut writes = Writes::new(&golden.dump("mcquery/start/dump"));
    let mut sa = Sa::new(&whole, &RegistryPlane::default());

    let mut counts: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in golden.cases.iter().filter(|case| case.kind == "query") {
        writes.apply(case);
        let group = case.id.split('/').next().unwrap();
        let is_unknown = case.outcome == "timeout";
        let is_served = SERVED.contains(&&case.attr_id[..]) || (group == "matrix" && is_unknown);
        if !is_served {
            continue;
        }
        let down = case.id.starts_with("events/link-down");
        sa.publish(if down { &without_far } else { &whole }, &writes.registry(golden));
        let request: Vec<Vec<u8>> = case.request.iter().map(|mad| bytes(mad)).collect();
        let got = sa.ask(golden.lid_of(&case.client), &request);
        let want = expected(case);
        let reason = DIFFERENT.iter().find(|(id, _)| case.id.starts_with(id));
        let count = counts.entry(group).or_default();
        count.0 += 1;
        match (same(&want, &got), reason) {
            (true, None) => count.1 += 1,
            (false, Some(_)) => count.2 += 1,
            (true, Some((_, reason))) => {
                failures.push(format!("{}: equal, though it should differ: {reason}", case.id));
            }
            (false, None) => {
                failures.push(format!("{}: want {}, got {}", case.id, brief(&want), brief(&got)));
            }
        }
    }
    for (group, (all, equal, explained)) in &counts {
        eprintln!("{group}: {equal} equal and {explained} explained of {all}");
    }
    assert!(sa.stats().balances());
    let shown = failures.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} differ:\n{shown}", failures.len());
}
