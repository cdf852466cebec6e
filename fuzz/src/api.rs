//! What clients of the API and its file of users may contain: lines of users, headers that prove
//! who calls, and bodies of orders.

use ibsm::api::pkeys;
use ibsm::api::users::{self, Proof};
use sm_core::registry::PartitionAction;

/// Status of a refused body.
const BAD_REQUEST: u16 = 400;

/// Reads the input as each of them.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match users::count(&text) {
        Ok(count) => assert!(count <= text.lines().count()),
        Err((line, reason)) => {
            assert!((1..=text.lines().count()).contains(&line) && !reason.is_empty());
        }
    }
    for line in text.lines() {
        if let Some(Proof::Password(name, _)) = Proof::of_header(line) {
            assert!(!name.contains(':'));
        }
    }
    for order in pkeys::orders(input) {
        match order {
            Ok(order) => {
                assert!((1..=0x7fff).contains(&order.pkey.0), "{order:?}");
                if let PartitionAction::Add { members, .. }
                | PartitionAction::Replace { members, .. } = order.action
                {
                    assert!(members.iter().all(|member| member.full || member.limited));
                }
            }
            Err(status) => assert_eq!(status, BAD_REQUEST),
        }
    }
}

/// A file of users, headers, and bodies as clients send them.
pub fn seeds() -> Vec<Vec<u8>> {
    let hash = format!("scrypt$14$8$1${}${}", "0a".repeat(16), "5b".repeat(32));
    let users = format!("# users\nk8s:admin:{hash}\neye:viewer:{hash}\n");
    let texts = [
        &users[..],
        "Basic azhzOnNlY3JldA==\nBasic 0123abcd\nBearer 0123abcd\nNegotiate x\nBasic\n",
        r#"{"pkey": "0x0005", "index0": true, "ip_over_ib": true, "membership": "full",
            "guids": ["0200000000000001", "0x0002c90300000002", "00:02:c9:00:00:00:00:03"]}"#,
        r#"{"pkey": "0X5", "guids": ["0000000000000011", "00000000000000000012"],
            "memberships": ["full", "limited"]}"#,
        r#"{"pkey": "0x6", "mtu_limit": 4, "service_level": 3, "rate_limit": 2.5,
            "partition_name": "blue", "guids": []}"#,
        r#"{"hosts_names": "host1,host2", "pkey": "0x7", "membership": "both"}"#,
        r#"{"pkey": "0x8000", "guids": null, "rate_limit": -1e308}"#,
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
