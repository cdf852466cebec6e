//! Tests the text that an operator reads.

use super::*;

const GRANTED: &str = r#"{
  "source": {"node": "host-1", "node_guid": "0x10", "node_type": "ca", "port": 1,
             "port_guid": "0x0000000000000011", "lid": 4, "lmc": 0, "pkeys": ["0xffff", "0x8001"]},
  "destination": {"node": "host-2", "node_guid": "0x20", "node_type": "ca", "port": 2,
             "port_guid": "0x0000000000000022", "lid": 8, "lmc": 2, "pkeys": ["0xffff"]},
  "off_subnet": null,
  "hops": [
    {"node": "host-1", "node_guid": "0x10", "entry": 0, "exit": 1, "mtu": 4096,
     "rate": "100 Gb/s", "dropped_sls": []},
    {"node": "leaf", "node_guid": "0x30", "entry": 3, "exit": 17, "mtu": 2048,
     "rate": "25 Gb/s", "dropped_sls": [14, 15]}
  ],
  "arrival": "delivered",
  "mtu_bound_by": {"hop": 1, "from": "leaf/P17", "to": "host-2/P2", "value": "2048"},
  "rate_bound_by": {"hop": 1, "from": "leaf/P17", "to": "host-2/P2", "value": "25 Gb/s"},
  "passed_over": [{"index": 0, "name": "storage", "failing": "service_id"},
                  {"index": 1, "name": "", "failing": "source"}],
  "rule": {"index": 2, "name": "mpi", "origin": "match_rule",
           "level": {"name": "gold", "sl": 3, "mtu_limit": 2048, "rate_limit": null,
                     "packet_life": null, "pkeys": [[1, 1], [16, 31]]}},
  "no_path": null, "no_way_back": null, "status": 0,
  "record": {"dgid": "fe80::22", "sgid": "fe80::11", "dlid": 8, "slid": 4, "hop_limit": 0,
             "pkey": "0xffff", "sl": 3, "mtu": 2048, "rate": "25 Gb/s", "packet_life": 18,
             "reversible": true, "bytes": "00ff"}
}"#;

const TEXT: &str = "\
from      host-1/P1, ca, GUID 0x0000000000000011, LID 4, P_Keys 0xffff 0x8001
to        host-2/P2, ca, GUID 0x0000000000000022, LID 8 to 11, P_Keys 0xffff
request   ServiceID 0x00000000010603db, QoSClass 7
path      yes; status 0x0000, ok
hops      2
  1   host-1           out P1     MTU 4096  100 Gb/s
  2   leaf    in P3    out P17    MTU 2048  25 Gb/s  < least MTU and rate  drops SL 14, 15
MTU       2048 bytes, bound by the link leaf/P17 - host-2/P2
rate      25 Gb/s, bound by the link leaf/P17 - host-2/P2
rule      2 'mpi', a match rule
level     'gold': SL 3, MTU up to 2048, P_Keys 0x0001 0x0010-0x001f
  not 0 'storage': ServiceID differs or is not given
  not 1 unnamed: the source is in none of its groups
record    SGID fe80::11, SLID 4
          DGID fe80::22, DLID 8
          P_Key 0xffff, SL 3, MTU 2048, rate 25 Gb/s, packet life 18 (1.1 s), hop limit 0, \
reversible
          00ff
responder ibsa-1
";

fn asked() -> ExplainRequest {
    ExplainRequest { service_id: Some(0x0106_03DB), qos_class: Some(7), ..Default::default() }
}

#[test]
fn a_path_is_shown_with_hops_narrowest_link_rule_and_record() {
    let explanation = serde_json::from_str(GRANTED).unwrap();
    assert_eq!(text(&explanation, &asked(), "ibsa-1"), TEXT);
}

#[test]
fn where_there_is_no_path_the_reason_comes_first() {
    let mut explanation: Explanation = serde_json::from_str(GRANTED).unwrap();
    explanation.record = None;
    explanation.no_path = Some("no_p_key_shared".into());
    explanation.no_way_back = explanation.no_path.clone();
    explanation.status = 0x0300;
    explanation.arrival = "loop".into();
    explanation.rule = None;
    let text = text(&explanation, &ExplainRequest::default(), "ibsa-1");
    let reason = "path      no: the ends share no P_Key; status 0x0300, no records\n\
                  reverse   no: the ends share no P_Key\n";
    assert!(text.contains(reason), "{text}");
    assert!(text.contains("does not arrive: routing loop\n"), "{text}");
    assert!(text.contains("rule      none matches\n") && !text.contains("record  "), "{text}");
    assert!(!text.contains("request"), "{text}");
}

#[test]
fn numbers_out_of_range_are_refused() {
    let options = |pkey: &str| Options {
        source: "a".into(),
        destination: "b".into(),
        service_id: None,
        qos_class: None,
        pkey: Some(pkey.into()),
        at: None,
        json: false,
    };
    assert_eq!(request(&options("0x8001")).unwrap().pkey, Some(0x8001));
    let refusal = request(&options("0x18001")).unwrap_err().to_string();
    assert_eq!(refusal, "--pkey takes a P_Key such as 0x8001, not '0x18001'");
}

#[test]
fn an_mtu_lowered_for_an_adapter_is_shown_with_its_name() {
    let mut explanation: Explanation = serde_json::from_str(GRANTED).unwrap();
    explanation.mtu_lowered_for = Some("host-2".to_owned());
    let text = text(&explanation, &asked(), "ibsa-1");
    let line = "MTU sent  2048 bytes, unless the request asks for more: host-2 is an InfiniHost \
                (enable_quirks)";
    assert!(text.lines().any(|other| other == line), "{text}");
}

/// Port 0 of a switch has no link.
#[test]
fn a_bound_at_port_0_is_shown_by_its_port() {
    let mut explanation: Explanation = serde_json::from_str(GRANTED).unwrap();
    let bound = explanation.mtu_bound_by.as_mut().unwrap();
    (bound.from, bound.to) = ("leaf/P0".to_owned(), String::new());
    let text = text(&explanation, &asked(), "ibsa-1");
    assert!(text.contains("MTU       2048 bytes, bound by leaf/P0 itself\n"), "{text}");
}

#[test]
fn an_unshared_p_key_is_explained_by_memberships() {
    let said = |source: &[&str], destination: &[&str]| {
        let mut explanation: Explanation = serde_json::from_str(GRANTED).unwrap();
        let keys = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect();
        (explanation.source.pkeys, explanation.destination.pkeys) =
            (keys(source), keys(destination));
        (explanation.record, explanation.no_path) = (None, Some("p_key_not_shared".into()));
        text(&explanation, &ExplainRequest { pkey: Some(0x8005), ..Default::default() }, "ibsa-1")
    };
    let limited = said(&["0xffff", "0x0005"], &["0x0005"]);
    assert!(limited.contains("no: both are limited members of 0x0005;"), "{limited}");
    let stranger = said(&["0x8005"], &["0xffff"]);
    assert!(stranger.contains("no: host-2 is not a member of 0x0005;"), "{stranger}");
}
