//! Resolves port lines to cables.

use std::collections::{HashMap, HashSet};

use crate::types::Guid;

use super::super::error::PortName;
use super::super::{LinkError, LinkRate, NetError, NodeKind, PortRef, Problem};
use super::{Place, Reader};

/// A port line: the peer of a port.
pub(super) struct Claim {
    pub(super) place: Place,
    pub(super) here: PortRef,
    /// The peer's node id, or an alias, which contains an '@'.
    pub(super) peer: String,
    /// The peer's port; empty means port 1.
    pub(super) peer_port: String,
    /// The peer's port GUID, if the line states it.
    pub(super) peer_guid: Option<Guid>,
    /// This port's rate, which also applies to a peer without a port line.
    pub(super) rate: Option<LinkRate>,
}

/// Connects all cables. One end may state a cable, or both; two statements that conflict are an
/// error.
pub(super) fn resolve(reader: &mut Reader) -> Result<(), NetError> {
    let claims = std::mem::take(&mut reader.claims);
    // For each connected port, the line that stated the cable.
    let mut said: HashMap<PortRef, Place> = HashMap::with_capacity(2 * claims.len());
    for claim in &claims {
        let failed = |reader: &Reader, problem| {
            Err(reader.error(claim.place.file, claim.place.line, problem))
        };
        let there = match find_peer(reader, claim) {
            Ok(there) => there,
            Err(problem) => return failed(reader, problem),
        };
        if let Err(problem) = plug(reader, &said, claim.here, there) {
            return failed(reader, problem);
        }
        said.entry(claim.here).or_insert(claim.place);
        said.entry(there).or_insert(claim.place);
    }
    adopt_from_peers(reader, &claims);
    rate_idle_ports(reader);
    Ok(())
}

fn find_peer(reader: &Reader, claim: &Claim) -> Result<PortRef, Problem> {
    if claim.peer.contains('@') {
        let alias = || Problem::NoSuchAlias { alias: claim.peer.clone() };
        return reader.aliases.get(&claim.peer).copied().ok_or_else(alias);
    }
    let missing = || Problem::NoSuchNode { id: claim.peer.clone() };
    let node = *reader.by_id.get(&claim.peer).ok_or_else(missing)?;
    let count = reader.net.nodes[node as usize].port_count();
    let text = if claim.peer_port.is_empty() { "1" } else { &claim.peer_port };
    let port = text.parse().ok().filter(|port| (1..=count).contains(port));
    port.map(|port| PortRef { node, port }).ok_or_else(|| Problem::PortNumber {
        node: claim.peer.clone(),
        count,
        number: text.to_owned(),
    })
}

fn plug(
    reader: &mut Reader,
    said: &HashMap<PortRef, Place>,
    here: PortRef,
    there: PortRef,
) -> Result<(), Problem> {
    let name = |reader: &Reader, at: PortRef| PortName {
        node: reader.net.nodes[at.node as usize].id.clone(),
        port: at.port,
    };
    match reader.net.connect(here, there) {
        Ok(()) => Ok(()),
        Err(LinkError::InUse { port, peer }) => Err(Problem::Contradiction {
            cable: Box::new([name(reader, here), name(reader, there)]),
            first: said.get(&port).map_or(0, |place| place.line as usize),
            taken: Box::new([name(reader, port), name(reader, peer)]),
        }),
        // The other error, a nonexistent port, was excluded when the peer was looked up.
        Err(LinkError::ToItself { .. } | LinkError::NoSuchPort { .. }) => {
            Err(Problem::ToItself { port: name(reader, here) })
        }
    }
}

/// Sets the port GUID and rate of a port that is described only by its peer's line.
fn adopt_from_peers(reader: &mut Reader, claims: &[Claim]) {
    let own: HashSet<PortRef> = claims.iter().map(|claim| claim.here).collect();
    for claim in claims {
        let peer = reader.net.port(claim.here).and_then(|port| port.peer);
        let Some(peer) = peer.filter(|peer| !own.contains(peer)) else { continue };
        let node = &mut reader.net.nodes[peer.node as usize];
        let is_switch = node.kind == NodeKind::Switch;
        let Some(port) = node.port_mut(peer.port) else { continue };
        port.rate = claim.rate.unwrap_or(port.rate);
        port.guid = claim.peer_guid.filter(|_| !is_switch).unwrap_or(port.guid);
    }
}

/// Sets the rate of ports without a cable to the highest rate among the node's cables.
pub(super) fn rate_idle_ports(reader: &mut Reader) {
    for node in &mut reader.net.nodes {
        let cabled = node.ports().filter(|(_, port)| port.peer.is_some());
        let best = cabled
            .map(|(_, port)| port.rate)
            .reduce(|a, b| LinkRate { width: a.width.max(b.width), speed: a.speed.max(b.speed) });
        node.rate = best.unwrap_or(node.rate);
        let rate = node.rate;
        node.ports.iter_mut().filter(|port| port.peer.is_none()).for_each(|port| port.rate = rate);
    }
}
