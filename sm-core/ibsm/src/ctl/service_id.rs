//! `ibsmctl service-id`: composes Service IDs of the RDMA CM from protocol and port, and decodes
//! them.
//!
//! ```text
//! 0x0000 0000 01NN PPPP   IANA protocol N, port P
//! 0x0000 0000 0001 PPPP   SDP
//! 0x0000 0000 0002 PPPP   the RDMA CM's port space for IPoIB
//! 0x1000 0000 00QQ QQQQ   IPoIB connected mode, queue pair Q (RFC 4755)
//! ```

use serde::Serialize;

use super::{CtlError, to_json};
use sm_config::parse_number;

const PROTOCOL_EXPECTED: &str = "tcp, udp, sctp, sdp, ipoib, ipoib-cm, an IANA protocol number, \
                                 or a Service ID to decode";

/// The Service ID to compose or decode.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ibsmctl service-id tcp lustre              0x00000000010603db\n  \
    ibsmctl service-id tcp 1191                0x00000000010604a7\n  \
    ibsmctl service-id ipoib-cm 0x48           0x1000000000000048\n  \
    ibsmctl service-id 0x00000000010603db      decode it")]
pub struct Options {
    /// Protocol: tcp, udp, sctp, sdp, ipoib, ipoib-cm or an IANA number; or, without a port, a
    /// Service ID.
    #[arg(value_name = "PROTOCOL|ID")]
    what: String,
    /// Port: a number or a name such as lustre, nfs, iser; a queue pair for ipoib-cm.
    port: Option<String>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Protocols, with the prefixes of their Service IDs.
const PROTOCOLS: &[(&str, u64)] = &[
    ("tcp", 0x0106_0000),
    ("udp", 0x0111_0000),
    ("sctp", 0x0184_0000),
    ("sdp", 0x0001_0000),
    ("ipoib", 0x0002_0000),
];

/// Prefix for IPoIB connected mode; the queue pair is added.
const IPOIB_CM: u64 = 0x1000_0000_0000_0000;
/// Prefix for IANA protocols; the protocol number is added in bits 16 to 23.
const IANA: u64 = 0x0100_0000;

/// Ports on which RDMA applications listen. NFS has a separate one for RDMA (RFC 8267).
const PORTS: &[(&str, u16)] = &[
    ("lustre", 987),
    ("gpfs", 1191),
    ("nfs", 20049),
    ("nfsrdma", 20049),
    ("iser", 3260),
    ("iscsi", 3260),
    ("nvme", 4420),
    ("rds", 0x48CA),
    ("smb", 445),
    ("glusterfs", 24008),
];

/// Where other port names are looked up.
const SERVICES: &str = "/etc/services";

/// A Service ID and its meaning.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Known {
    service_id: String,
    protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port_name: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qpn: Option<u32>,
}

/// Runs the command.
pub(super) fn run(options: &Options) -> Result<String, CtlError> {
    let services = || std::fs::read_to_string(SERVICES).unwrap_or_default();
    let id = match &options.port {
        Some(port) => compose(&options.what, port, &services)?,
        None => parse_number(&options.what).ok_or_else(|| CtlError::Argument {
            what: "PROTOCOL|ID",
            expected: PROTOCOL_EXPECTED,
            got: options.what.clone(),
        })?,
    };
    let known = decompose(id);
    if options.json {
        return Ok(to_json(&known));
    }
    // The Service ID alone, for use in scripts.
    Ok(if options.port.is_some() { known.service_id + "\n" } else { known.render() })
}

/// Composes the Service ID of a port.
fn compose(protocol: &str, port: &str, services: &dyn Fn() -> String) -> Result<u64, CtlError> {
    let protocol = protocol.to_ascii_lowercase();
    if protocol == "ipoib-cm" {
        let qpn = parse_number(port).filter(|&qpn| qpn < 1 << 24);
        let (what, expected) = ("PORT", "a queue pair number of 24 bits");
        let got = port.to_owned();
        return Ok(IPOIB_CM | qpn.ok_or(CtlError::Argument { what, expected, got })?);
    }
    let named = PROTOCOLS.iter().find(|(name, _)| *name == protocol).map(|&(_, first)| first);
    let numbered = || {
        let number = parse_number(&protocol).filter(|&number| number < 256)?;
        Some(IANA | number << 16)
    };
    let first = named.or_else(numbered).ok_or_else(|| CtlError::Argument {
        what: "PROTOCOL",
        expected: "tcp, udp, sctp, sdp, ipoib, ipoib-cm or an IANA protocol number",
        got: protocol.clone(),
    })?;
    Ok(first | u64::from(port_number(&protocol, port, services)?))
}

fn port_number(protocol: &str, port: &str, services: &dyn Fn() -> String) -> Result<u16, CtlError> {
    if let Some(number) = parse_number(port).and_then(|number| u16::try_from(number).ok()) {
        return Ok(number);
    }
    let name = port.to_ascii_lowercase();
    if let Some(&(_, number)) = PORTS.iter().find(|(known, _)| *known == name) {
        return Ok(number);
    }
    in_services(&services(), &name, protocol).ok_or_else(|| CtlError::Argument {
        what: "PORT",
        expected: "a port of 0 to 65535, or a name such as lustre, nfs, iser or one of \
                   /etc/services",
        got: port.to_owned(),
    })
}

/// Port of a name in the text of `/etc/services`: `name port/protocol aliases`.
fn in_services(text: &str, name: &str, protocol: &str) -> Option<u16> {
    text.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (first, port) = (words.next()?, words.next()?);
        let (port, of) = port.split_once('/')?;
        let is_named = first == name || words.any(|alias| alias == name);
        (is_named && of == protocol).then(|| port.parse().ok()).flatten()
    })
}

/// Decodes a Service ID, if it is of a known kind.
fn decompose(id: u64) -> Known {
    let mut known = Known {
        service_id: format!("{id:#018x}"),
        protocol: None,
        port: None,
        port_name: None,
        qpn: None,
    };
    if id & !0xFF_FFFF == IPOIB_CM {
        known.protocol = Some("ipoib-cm".to_owned());
        known.qpn = Some((id & 0xFF_FFFF) as u32);
        return known;
    }
    let (first, port) = (id & !0xFFFF, (id & 0xFFFF) as u16);
    let named = PROTOCOLS.iter().find(|&&(_, known)| known == first);
    known.protocol = match named {
        Some((name, _)) => Some((*name).to_owned()),
        None if first & !0xFF_0000 == IANA => Some(format!("protocol {}", first >> 16 & 0xFF)),
        None => None,
    };
    if known.protocol.is_some() {
        known.port = Some(port);
        known.port_name = PORTS.iter().find(|(_, known)| *known == port).map(|(name, _)| *name);
    }
    known
}

impl Known {
    fn render(&self) -> String {
        let mut text = self.service_id.clone();
        match (&self.protocol, self.port, self.qpn) {
            (Some(protocol), Some(port), _) => {
                text.push_str(&format!(": {protocol}, port {port}"));
                if let Some(name) = self.port_name {
                    text.push_str(&format!(" ({name})"));
                }
            }
            (Some(protocol), None, Some(qpn)) => {
                text.push_str(&format!(": {protocol}, queue pair {qpn:#x}"));
            }
            _ => text.push_str(": not a Service ID of the RDMA CM or IPoIB"),
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(protocol: &str, port: &str) -> Result<u64, CtlError> {
        compose(protocol, port, &|| "nfs 2049/tcp\nfoo 77/udp bar # baz\n".to_owned())
    }

    #[test]
    fn service_ids_are_composed_as_the_rdma_cm_does() {
        for (protocol, port, id) in [
            ("tcp", "987", 0x0106_03DB),
            ("TCP", "lustre", 0x0106_03DB),
            ("tcp", "0x4A7", 0x0106_04A7),
            ("6", "iser", 0x0106_0CBC),
            ("udp", "7", 0x0111_0007),
            ("udp", "bar", 0x0111_004D),
            ("sctp", "1", 0x0184_0001),
            ("tcp", "nfs", 0x0106_4E51),
            ("sdp", "30000", 0x0001_7530),
            ("ipoib", "5", 0x0002_0005),
            ("ipoib-cm", "0x48", 0x1000_0000_0000_0048),
        ] {
            assert_eq!(composed(protocol, port).unwrap(), id, "{protocol} {port}");
        }
        for (protocol, port) in [("tcp", "65536"), ("tcp", "foo"), ("256", "1"), ("x", "1")] {
            assert!(composed(protocol, port).is_err(), "{protocol} {port}");
        }
    }

    #[test]
    fn service_ids_are_decoded() {
        for (id, text) in [
            (0x0106_03DB, "0x00000000010603db: tcp, port 987 (lustre)\n"),
            (0x012F_0007, "0x00000000012f0007: protocol 47, port 7\n"),
            (0x1000_0000_0000_0048, "0x1000000000000048: ipoib-cm, queue pair 0x48\n"),
            (0x42, "0x0000000000000042: not a Service ID of the RDMA CM or IPoIB\n"),
        ] {
            assert_eq!(decompose(id).render(), text);
        }
    }
}
