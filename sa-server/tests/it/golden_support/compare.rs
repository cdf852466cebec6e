//! Compares answers with recorded ones.

use std::collections::BTreeMap;

use ib_mad::types::PKey;
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::record::layout_of;
use sa_proto::snapshot::{FabricPlane, RegistryPlane};

use super::{Case, Golden, Got, Sa, Writes, bytes, guid};

/// Attributes that are served, and whether they are writable; writes are decided by the registry.
const SERVED: &[(&str, bool)] = &[
    ("0x0001", false),
    ("0x0003", true),
    ("0x0011", false),
    ("0x0012", false),
    ("0x0013", false),
    ("0x0014", false),
    ("0x0015", false),
    ("0x0017", false),
    ("0x0018", false),
    ("0x0020", false),
    ("0x0030", true),
    ("0x0031", true),
    ("0x0033", false),
    ("0x0035", false),
    ("0x0036", false),
    ("0x0038", true),
    ("0x003a", false),
    ("0x00f3", false),
];

/// Cases with intended differences, by their id (`*` matches anything), with the reason; details
/// are in docs/decisions/0007.
const DIFFERENT: &[(&str, &str)] = &[
    ("malformed/status/*", "the status of a request is not its answer's"),
    ("portinfo/*/base-lid/*", "PortInfo's LID selects by itself, without the record's LID"),
    ("portinfo/differ/init_type_reply", NOT_COMPARED),
    ("portinfo/differ/client_reregister", NOT_COMPARED),
    ("portinfo/differ/max_credit_hint", NOT_COMPARED),
    ("portinfo/differ/link_round_trip", NOT_COMPARED),
    ("matrix/*/0x0002", UNSERVED),
    ("matrix/*/0x0016", UNSERVED),
    ("matrix/*/0x0039", UNSERVED),
    ("matrix/*/0x003b", UNSERVED),
    ("porttables/P_KeyTableRecord/*/port-2,block-3/trusted/*", BEYOND_TABLE),
    ("porttables/P_KeyTableRecord/*/port-1,block-200/trusted/*", BEYOND_TABLE),
    ("porttables/P_KeyTableRecord/sw/port-0,block-1/trusted/*", BEYOND_TABLE),
    ("porttables/P_KeyTableRecord/sw/block-1/trusted", BEYOND_TABLE),
    ("porttables/P_KeyTableRecord/sw-last/port-0,block-1/trusted/*", BEYOND_TABLE),
    ("porttables/P_KeyTableRecord/sw-last/block-1/trusted", BEYOND_TABLE),
    ("guidinfo/*/guid0/*", "GUIDs are compared with those of the record"),
    ("guidinfo/guid0-only", "GUIDs are compared with those of the record"),
    ("guidinfo/*/block-255/*", "there is no block 255"),
    ("guidinfo/lid-0x0000/*", "LID 0 has no owner"),
    ("mcquery/*/plain/proxy_join-wrong", "ProxyJoin is in the highest bit of its byte"),
    ("mcquery/*/plain/life-0+*", NOT_COMPARED),
    ("mcquery/*/plain/life-1-1", NOT_COMPARED),
    ("mcquery/*/plain/life-1+0", NOT_COMPARED),
    ("mcquery/*/plain/life-2-1", NOT_COMPARED),
    ("mcquery/*/plain/life-2+1", NOT_COMPARED),
    ("service/query-lease/table", NOT_COMPARED),
    ("service/query-lease/h2", NOT_COMPARED),
    ("service/query-lease/trusted", NOT_COMPARED),
    ("inform/query-gid+enum/*", "Enum distinguishes the subscriptions of a port"),
    ("inform/query-enum/*", "Enum distinguishes the subscriptions of a port"),
    ("inform/query-trap_num/*", NOT_COMPARED),
    ("inform/query-is_generic/*table", NOT_COMPARED),
    ("inform/query-qpn/get", NOT_COMPARED),
    ("inform/query-qpn/table", NOT_COMPARED),
    ("inform/query-trap_type/*table", NOT_COMPARED),
    ("inform/query-producer_type/*", NOT_COMPARED),
    ("inform/query-lid_begin/*table", NOT_COMPARED),
];

const UNSERVED: &str = "an attribute of the class that is not served is refused";
pub(crate) const BEYOND_TABLE: &str = "a P_Key table ends where it ends";
const NOT_COMPARED: &str = "a component of the record that OpenSM does not compare";

/// Compared parts of an answer: header fields with a meaning, and the records, sorted.
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
    let len = layout_of(AttributeId(attribute)).map_or(72, |layout| layout.len);
    let data = &answer[56..];
    let mut records: Vec<Vec<u8>> = if stride == 0 {
        if attribute == 1 { vec![data[..len].to_vec()] } else { Vec::new() }
    } else if answer[3] == 0x81 {
        vec![data[..len].to_vec()]
    } else {
        data.chunks_exact(stride).map(|record| record[..len].to_vec()).collect()
    };
    records.iter_mut().for_each(|record| blank(attribute, record));
    records.sort();
    (header, records)
}

/// Blanks what cannot be equal.
fn blank(attribute: u16, record: &mut [u8]) {
    match attribute {
        // ActCount moves.
        0x18 => record[20..24].fill(0),
        // Enum is always 0 with OpenSM.
        0xF3 => record[16..18].fill(0),
        _ => {}
    }
}

/// The recorded answer without two errors in the layout of records: P_KeyTableRecord has BlockNum
/// in the byte order of the SA's host, MCMemberRecord has ProxyJoin in the lowest bit.
fn mend(mut answer: Vec<u8>) -> Vec<u8> {
    let attribute = u16::from_be_bytes([answer[16], answer[17]]);
    let stride = usize::from(u16::from_be_bytes([answer[44], answer[45]])) * 8;
    if answer[4..6] != [0, 0] || stride == 0 {
        return answer;
    }
    let end = if answer[3] == 0x81 { 56 + stride } else { answer.len() };
    for record in answer[56..end].chunks_exact_mut(stride) {
        match attribute {
            0x33 => record.swap(2, 3),
            0x38 => record[49] = record[49].reverse_bits(),
            _ => {}
        }
    }
    answer
}

fn expected(case: &Case) -> Got {
    match &case.outcome[..] {
        "reply" => Got::Answer(mend(bytes(case.answer.as_ref().expect("a reply has an answer")))),
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

/// Whether an id matches a pattern, in which `*` matches anything.
fn is_like(pattern: &str, id: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == id,
        Some((start, rest)) => id.strip_prefix(start).is_some_and(|left| {
            (0..=left.len()).any(|at| left.is_char_boundary(at) && is_like(rest, &left[at..]))
        }),
    }
}

/// Replays all cases about records that are served. `keys` returns the P_Key table of a port, by
/// LID and number, `amend` completes the plane; cases `different` are meant to differ, too.
pub(crate) fn replay(
    golden: &Golden,
    different: &[(&str, &str)],
    keys: impl Fn(u16, u8) -> Vec<PKey>,
    amend: impl Fn(&mut FabricPlane),
) {
    let far = guid(&golden.facts.roles["far"].guid);
    let far_node = golden.facts.fabric.ports.iter().find(|port| guid(&port.guid) == far).unwrap();
    let mut whole = golden.fabric(None, &keys);
    let mut without_far = golden.fabric(Some(guid(&far_node.node_guid)), &keys);
    amend(&mut whole);
    amend(&mut without_far);
    let mut writes = Writes::new(&golden.dump("mcquery/start/dump"));
    let mut sa = Sa::new(&whole, &RegistryPlane::default());

    let mut counts: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in golden.cases.iter().filter(|case| case.kind == "query") {
        writes.apply(golden, case);
        let group = case.id.split('/').next().unwrap();
        let is_unknown = case.outcome == "timeout";
        let is_write = case.method == "Set" || case.method == "Delete";
        let is_served = SERVED.iter().any(|&(attribute, is_written)| {
            // InformInfo has no Delete().
            let is_refused = case.attr_id == "0x0003" && case.method == "Delete";
            attribute == case.attr_id && (!is_write || !is_written || is_refused)
        });
        let is_served = is_served || (group == "matrix" && is_unknown);
        if !is_served {
            continue;
        }
        let down = case.id.starts_with("events/link-down");
        sa.publish(if down { &without_far } else { &whole }, &writes.registry(golden));
        let request: Vec<Vec<u8>> = case.request.iter().map(|mad| bytes(mad)).collect();
        let got = sa.ask(golden.lid_of(&case.client), &request);
        let want = expected(case);
        let reason = DIFFERENT.iter().chain(different).find(|(id, _)| is_like(id, &case.id));
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
