//! Names of ports that registered something.

use ib_mad::types::Gid;
use sa_proto::proto::admin::Port;
use serde::Serialize;

/// Node and port number; the port may have left the fabric.
pub(super) fn name(port: Option<&Port>) -> String {
    match port {
        Some(port) if port.number != 0 || !port.node.is_empty() => {
            format!("{}/P{}", port.node, port.number)
        }
        _ => "not in the fabric".to_owned(),
    }
}

/// GID as text.
pub(super) fn gid(port: Option<&Port>) -> String {
    let bytes = port.and_then(|port| <[u8; 16]>::try_from(&port.gid[..]).ok());
    bytes.map_or("no GID".to_owned(), |bytes| Gid(bytes).to_string())
}

/// A port as JSON.
#[derive(Serialize)]
pub(super) struct PortJson<'a> {
    node: Option<&'a str>,
    port: Option<u32>,
    gid: String,
}

impl<'a> PortJson<'a> {
    pub(super) fn of(port: Option<&'a Port>) -> Self {
        let there = port.filter(|port| port.number != 0 || !port.node.is_empty());
        Self {
            node: there.map(|port| port.node.as_str()),
            port: there.map(|port| port.number),
            gid: gid(port),
        }
    }
}
