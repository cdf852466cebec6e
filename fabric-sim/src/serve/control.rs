//! Control requests of ibsim's protocol: attaching clients, queries about their port, becoming a
//! manager.

use std::time::Instant;

use ib_mad::transport::ibsim::protocol::{
    CONTROL_DATA_LEN, ConnectData, Control, ControlKind, MethodsData, asks_for_planes,
    classes_accepted, declared_classes, planes_answer,
};
use ib_mad::types::Qpn;
use ib_mad::wire::attribute::NodeInfo;

use super::Server;
use crate::{Endpoint, NodeIndex};

/// Handles a request of the client whose socket names have the number `sender`; the reply replaces
/// it in the buffer.
pub(super) fn serve(
    server: &mut Server,
    now: Instant,
    sender: Option<u32>,
    mut request: Control,
) -> Control {
    let done = match request.kind {
        ControlKind::CONNECT => connect(server, now, &mut request),
        ControlKind::DISCONNECT => disconnect(server, now, sender, &request),
        ControlKind::SET_ISSM => set_is_sm(server, now, &request),
        ControlKind::DECLARE_CLASSES => declare(server, now, &mut request),
        ControlKind::DECLARE_METHODS => declare_methods(server, now, &mut request),
        ControlKind::GET_PLANES => planes(server, &mut request),
        _ => look(server, &mut request),
    };
    if done.is_none() {
        request.kind = ControlKind::ERROR;
    }
    request
}

fn connect(server: &mut Server, now: Instant, request: &mut Control) -> Option<()> {
    let asked = ConnectData::from_bytes(&request.data);
    // Detach clients that died, which frees their names and nodes. If a name is in use again, its
    // previous owner has given it up.
    server.disconnect_number(now, asked.id);
    server.reap(now);
    let node = match asked.node.as_slice() {
        [] => NodeIndex(0),
        name => server.fabric.find_node(&String::from_utf8_lossy(name)).or_else(|| {
            tracing::warn!(
                number = asked.id,
                node = %String::from_utf8_lossy(name),
                "client refused: no such node"
            );
            None
        })?,
    };
    if asked.is_sm && server.fabric.takes_requests(node) {
        tracing::warn!(
            number = asked.id,
            "client refused: another manager is attached to the node"
        );
        return None;
    }
    let endpoint = server.fabric.attach(node, 0).ok()?;
    if let Err(error) = server.add_client(endpoint, asked.id) {
        tracing::warn!(number = asked.id, %error, "client refused: cannot connect to its socket");
        server.fabric.detach(now, endpoint);
        return None;
    }
    server.fabric.set_takes_requests(endpoint, asked.is_sm);
    if asked.qpn > Qpn::GSI {
        server.fabric.set_qpn(endpoint, asked.qpn);
    }
    let name = server.fabric.node(node).name.as_bytes().to_vec();
    tracing::info!(
        client = endpoint.id(),
        number = asked.id,
        node = %String::from_utf8_lossy(&name),
        "client connected"
    );
    let answer = ConnectData { id: u32::from(endpoint.id()), node: name, ..asked };
    request.data = answer.to_bytes();
    Some(())
}

fn disconnect(
    server: &mut Server,
    now: Instant,
    sender: Option<u32>,
    request: &Control,
) -> Option<()> {
    let id = u16::try_from(request.client).ok()?;
    // An absent client is not an error. The server may have detached a dead client before it read
    // this message, and given its id to another client, which keeps it.
    let owner = server.clients.get(usize::from(id)).and_then(Option::as_ref);
    if owner.is_some_and(|owner| sender == Some(owner.number) || owner.is_gone(&server.name)) {
        server.disconnect(now, id);
    }
    Some(())
}

fn set_is_sm(server: &mut Server, now: Instant, request: &Control) -> Option<()> {
    let endpoint = client(server, request)?;
    let is_sm = request.data[..4] != [0; 4];
    server.fabric.set_takes_requests(endpoint, is_sm);
    server.fabric.set_is_sm(now, endpoint, is_sm);
    Some(())
}

fn declare(server: &mut Server, now: Instant, request: &mut Control) -> Option<()> {
    let Some(classes) = declared_classes(&request.data) else {
        // Not a known declaration: returned unchanged, like every unknown request.
        return Some(());
    };
    let endpoint = client(server, request)?;
    if server.fabric.declare(endpoint, &classes).is_err() {
        server.reap(now);
        server.fabric.declare(endpoint, &classes).ok()?;
    }
    request.data = classes_accepted(classes.len());
    Some(())
}

fn declare_methods(server: &mut Server, now: Instant, request: &mut Control) -> Option<()> {
    let Some(asked) = MethodsData::from_bytes(&request.data) else {
        return Some(());
    };
    let endpoint = client(server, request)?;
    let MethodsData { class, methods } = asked;
    if server.fabric.declare_methods(endpoint, class, methods).is_err() {
        server.reap(now);
        server.fabric.declare_methods(endpoint, class, methods).ok()?;
    }
    request.data = asked.accepted();
    Some(())
}

fn planes(server: &mut Server, request: &mut Control) -> Option<()> {
    if !asks_for_planes(&request.data) {
        return Some(());
    }
    let endpoint = client(server, request)?;
    let planes = server.fabric.planes(endpoint);
    server.client_mut(endpoint.id())?.has_planes = !planes.is_empty();
    request.data = planes_answer(&planes);
    Some(())
}

/// Handles the read-only requests.
fn look(server: &Server, request: &mut Control) -> Option<()> {
    let fabric = &server.fabric;
    let place = usize::try_from(request.client).ok()?;
    let endpoint = server.clients.get(place).and_then(Option::as_ref).map(|at| at.endpoint);
    let asked = request.data;
    let mut data = [0; CONTROL_DATA_LEN];
    match request.kind {
        ControlKind::GET_PORT => {
            let info = fabric.read_port_info(endpoint?, 0)?;
            data[..2].copy_from_slice(&fabric.local_lid(endpoint?)?.0.to_ne_bytes());
            data[2] = info[32] & 0xF;
        }
        ControlKind::GET_VENDOR => {
            let info = fabric.read_node_info(endpoint?)?;
            let word = |at: usize| {
                u32::from_be_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]])
            };
            // Vendor, device, revision, and the firmware version after padding.
            data[0..4].copy_from_slice(&(word(36) & 0x00FF_FFFF).to_ne_bytes());
            data[4..8].copy_from_slice(&(word(28) & 0xFFFF).to_ne_bytes());
            data[8..12].copy_from_slice(&word(32).to_ne_bytes());
            data[16..24].copy_from_slice(&1u64.to_ne_bytes());
        }
        ControlKind::GET_GID => {
            data[..8].copy_from_slice(&fabric.read_port_info(endpoint?, 0)?[8..16]);
            data[8..16].copy_from_slice(&node_guid(server, endpoint?)?.to_ne_bytes());
        }
        ControlKind::GET_GUID => {
            data[..8].copy_from_slice(&node_guid(server, endpoint?)?.to_ne_bytes());
        }
        ControlKind::GET_NODEINFO => {
            data[..40].copy_from_slice(&fabric.read_node_info(endpoint?)?);
        }
        ControlKind::GET_PORTINFO => {
            data = fabric
                .read_port_info(endpoint?, asked[0])
                .or_else(|| fabric.read_port_info(endpoint?, 0))?;
        }
        ControlKind::GET_PKEYS => data = fabric.read_pkeys(endpoint?)?,
        // Returned as received.
        _ => data = asked,
    }
    request.data = data;
    Some(())
}

fn node_guid(server: &Server, endpoint: Endpoint) -> Option<u64> {
    let info = server.fabric.read_node_info(endpoint)?;
    Some(NodeInfo::of(&info).node_guid().0)
}

fn client(server: &Server, request: &Control) -> Option<Endpoint> {
    let place = usize::try_from(request.client).ok()?;
    server.clients.get(place)?.as_ref().map(|client| client.endpoint)
}
