//! Parses `qos-ulps`: rules by upper-layer protocol, each with one criterion and a service level.
//!
//! | rule | matches |
//! |---|---|
//! | `sdp`, `sdp, port-num N` | Service IDs 0x10000 + port |
//! | `rds`, `rds, port-num N` | Service IDs 0x1060000 + port; 0x48CA without one |
//! | `iser`, `iser, port-num N` | Service IDs 0x1060000 + port; 0x0CBC without one |
//! | `srp, target-port-guid G` | destinations |
//! | `ipoib`, `ipoib, pkey K` | P_Keys; 0x7FFF without one |
//! | `any, service-id S`, `any, pkey K` | Service IDs, P_Keys |
//! | `any, target-port-guid G`, `any, source-port-guid G` | destinations, sources |
//! | `any, source-target-port-guid G` | paths whose source and destination are both among them |

use ib_mad::types::Sl;

use super::super::ranges::Ranges;
use super::Reason;
use super::cursor::Line;
use super::value::{number, pkeys, ranges};

/// Base of SDP's Service IDs; the port is added.
const SDP_SERVICE_ID: u64 = 0x0001_0000;
/// Base of the Service IDs of RDS and iSER: RDMA IP CM over TCP.
const TCP_SERVICE_ID: u64 = 0x0106_0000;
/// RDS's own port.
const RDS_PORT: u64 = 0x48CA;
/// iSER's own port.
const ISER_PORT: u64 = 0x0CBC;
/// P_Key of the default partition, which IPoIB uses by default.
const DEFAULT_PKEY: u64 = 0x7FFF;

/// Keywords of the section.
pub(super) const EXPECTED: &[&str] = &["default", "sdp", "rds", "iser", "srp", "ipoib", "any"];

/// A rule of `qos-ulps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UlpRule {
    /// Its text, for messages: `sdp, port-num 10000-20000`.
    pub text: String,
    /// Line number, from 1.
    pub line: usize,
    /// The criterion that requests must match.
    pub criterion: Criterion,
    /// The service level of matching paths.
    pub sl: Sl,
}

/// The criterion of a rule of `qos-ulps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// Requests for one of these Service IDs.
    ServiceIds(Ranges),
    /// Requests for one of these P_Keys, 15 bits.
    PKeys(Ranges),
    /// Paths to one of these port GUIDs.
    Targets(Ranges),
    /// Paths from one of these port GUIDs.
    Sources(Ranges),
    /// Paths with both ends among these port GUIDs.
    SourcesAndTargets(Ranges),
}

/// A parsed line of the section.
pub(super) enum Parsed {
    Default(Sl),
    Rule(UlpRule),
}

/// The meaning of a rule's list.
enum Meaning {
    Port { first: u64, default: (u64, u64) },
    ServiceId,
    PKey { default: Option<u64> },
    Guid(fn(Ranges) -> Criterion),
}

/// Protocol, keyword of its list, whether the list is optional, meaning.
const RULES: &[(&str, &str, bool, Meaning)] = &[
    ("sdp", "port-num", true, Meaning::Port { first: SDP_SERVICE_ID, default: (0, 0xFFFF) }),
    (
        "rds",
        "port-num",
        true,
        Meaning::Port { first: TCP_SERVICE_ID, default: (RDS_PORT, RDS_PORT) },
    ),
    (
        "iser",
        "port-num",
        true,
        Meaning::Port { first: TCP_SERVICE_ID, default: (ISER_PORT, ISER_PORT) },
    ),
    ("srp", "target-port-guid", false, Meaning::Guid(Criterion::Targets)),
    ("ipoib", "pkey", true, Meaning::PKey { default: Some(DEFAULT_PKEY) }),
    ("any", "service-id", false, Meaning::ServiceId),
    ("any", "pkey", false, Meaning::PKey { default: None }),
    ("any", "target-port-guid", false, Meaning::Guid(Criterion::Targets)),
    ("any", "source-port-guid", false, Meaning::Guid(Criterion::Sources)),
    ("any", "source-target-port-guid", false, Meaning::Guid(Criterion::SourcesAndTargets)),
];

/// Parses a line: `ulp[, keyword list] : sl`.
pub(super) fn parse(line: &Line) -> Result<Parsed, Reason> {
    let refuse = || Reason::Ulp { got: line.text.chars().take(80).collect(), expected: forms() };
    let (rule, sl) = line.text.rsplit_once(':').ok_or_else(refuse)?;
    let rule = rule.trim();
    let (ulp, list) = match rule.split_once(',') {
        Some((ulp, list)) => (ulp.trim(), Some(list.trim())),
        None => (rule, None),
    };
    let level = || -> Result<Sl, Reason> {
        let sl = number("the SL", sl.trim(), 0..=15, "a service level of 0 to 15")?;
        Ok(Sl::from_low_bits(sl as u16))
    };
    if ulp.eq_ignore_ascii_case("default") && list.is_none() {
        return level().map(Parsed::Default);
    }
    let candidates = RULES.iter().filter(|(name, ..)| ulp.eq_ignore_ascii_case(name));
    for (_, key, alone, meaning) in candidates {
        let values = match list {
            // A keyword ends at the first blank or character with which a number may begin.
            Some(list) => match list.strip_prefix(key) {
                Some(rest) if !rest.starts_with('-') => Some(rest.trim()),
                _ => continue,
            },
            None if *alone => None,
            None => continue,
        };
        let criterion = meaning.criterion(key, values)?;
        let text = rule.to_owned();
        return Ok(Parsed::Rule(UlpRule { text, line: line.number, criterion, sl: level()? }));
    }
    Err(refuse())
}

impl Meaning {
    fn criterion(&self, key: &'static str, list: Option<&str>) -> Result<Criterion, Reason> {
        match *self {
            Self::Port { first, default } => {
                let ports = match list {
                    Some(list) => ranges(key, list, 0xFFFF, "ports of 0 to 65535")?,
                    None => Ranges::of(default.0, default.1),
                };
                let ids = ports.iter().map(|(a, b)| (first + a, first + b)).collect();
                Ok(Criterion::ServiceIds(ids))
            }
            Self::ServiceId => {
                let list = list.unwrap_or_default();
                Ok(Criterion::ServiceIds(ranges(key, list, u64::MAX, "Service IDs")?))
            }
            Self::PKey { default } => Ok(Criterion::PKeys(match (list, default) {
                (None, Some(default)) => Ranges::of(default, default),
                (list, _) => pkeys(key, list.unwrap_or_default())?,
            })),
            Self::Guid(make) => {
                Ok(make(ranges(key, list.unwrap_or_default(), u64::MAX, "port GUIDs")?))
            }
        }
    }
}

/// Describes all valid forms of a line.
fn forms() -> String {
    let mut text = "'default: SL'".to_owned();
    for (ulp, key, alone, _) in RULES {
        if *alone {
            text.push_str(&format!(", '{ulp}: SL'"));
        }
        text.push_str(&format!(", '{ulp}, {key} LIST: SL'"));
    }
    text
}
