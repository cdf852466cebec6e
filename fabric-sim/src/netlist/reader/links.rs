//! Turns what port lines claim into cables.

use std::collections::HashMap;

use ib_mad::types::Guid;

use super::super::{NetError, NodeKind, PortRef, Problem};
use super::{Place, Reader};

/// One port line: a port says where its cable goes.
pub(super) struct Claim {
    pub(super) place: Place,
    pub(super) here: PortRef,
    /// A node's id, or an alias, which contains an '@'.
    pub(super) peer: String,
    /// Empty stands for port 1.
    pub(super) peer_port: String,
    /// The peer's port GUID as told from here.
    pub(super) peer_guid: Option<Guid>,
    /// Whether the line tells this port's own GUID.
    pub(super) states_guid: bool,
}

/// Plugs in all cables. Both ends may claim one, or one alone; two claims that differ are refused.
pub(super) fn resolve(reader: &mut Reader) -> Result<(), NetError> {
    let claims = std::mem::take(&mut reader.claims);
    // For each port that has a cable: the line that said so.
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
    adopt_guids(reader, &claims);
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
        first: 1,
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
    use super::super::LinkError;
    let id = |reader: &Reader, at: PortRef| reader.net.nodes[at.node as usize].id.clone();
    match reader.net.connect(here, there) {
        Ok(()) => Ok(()),
        Err(LinkError::InUse { port, peer }) => Err(Problem::Contradiction {
            node: id(reader, here),
            port: here.port,
            peer: id(reader, there),
            peer_port: there.port,
            first: said.get(&port).map_or(0, |place| place.line as usize),
            taken: id(reader, port),
            taken_port: port.port,
            other: id(reader, peer),
            other_port: peer.port,
        }),
        // The other kind, a port that does not exist, was excluded when the peer was looked up.
        Err(LinkError::ToItself { .. } | LinkError::NoSuchPort { .. }) => {
            Err(Problem::ToItself { node: id(reader, here), port: here.port })
        }
    }
}

/// An adapter of which only its switch tells has the port GUID that the switch's line gives.
fn adopt_guids(reader: &mut Reader, claims: &[Claim]) {
    let own: std::collections::HashSet<PortRef> =
        claims.iter().filter(|claim| claim.states_guid).map(|claim| claim.here).collect();
    for claim in claims {
        let Some(guid) = claim.peer_guid else { continue };
        let Some(peer) = reader.net.port(claim.here).and_then(|port| port.peer) else { continue };
        let node = &mut reader.net.nodes[peer.node as usize];
        if node.kind != NodeKind::Switch && !own.contains(&peer) {
            if let Some(port) = node.port_mut(peer.port) {
                port.guid = guid;
            }
        }
    }
}
