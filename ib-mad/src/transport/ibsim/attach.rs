//! Attaching of a client: getting a slot, and the requests of its role.

use super::options::IbsimOptions;
use super::protocol::{
    CONTROL_DATA_LEN, ConnectData, ControlKind, accepted_classes, declare_classes,
};
use super::{Ibsim, IbsimError};
use crate::types::Qpn;

impl Ibsim {
    /// Attaches without requests, after detaching the stale client.
    pub(super) fn attach_anyhow(&mut self, options: &IbsimOptions) -> Result<u32, IbsimError> {
        let stale = options.stale_client.filter(|stale| self.sockets.is_abandoned(stale.number));
        let node = options.node.as_deref().unwrap_or("");
        let mut slot = self.attach(node, options.qpn, false)?;
        if let Some(stale) = stale
            && !self.is_anothers(stale.slot, slot)?
        {
            self.detach(stale.slot)?;
            if slot.is_none() {
                slot = self.attach(node, options.qpn, false)?;
            }
        }
        if let Some(slot) = slot {
            return Ok(slot);
        }
        // The refusal does not state which of its two reasons applies: retry without one of them.
        match self.attach("", None, false)? {
            Some(slot) => {
                self.detach(slot)?;
                Err(IbsimError::UnknownNode { node: node.to_owned() })
            }
            None => Err(IbsimError::NoSlot { socket: options.socket.clone() }),
        }
    }

    /// Whether the slot of a stale client is known to belong to another client, as after a restart
    /// of the server: to this client, or to one at another node.
    fn is_anothers(&self, stale: u32, mine: Option<u32>) -> Result<bool, IbsimError> {
        let Some(mine) = mine else { return Ok(false) };
        if stale >= mine {
            // The lowest free slot is assigned first, so higher ones may never have been used, and
            // stock ibsim crashes on a request about an unused slot.
            return Ok(stale == mine);
        }
        let node_of = |slot| {
            self.sockets.request(slot, ControlKind::GET_NODEINFO, [0; CONTROL_DATA_LEN], || {})
        };
        Ok(node_of(stale)? != node_of(mine)?)
    }

    /// Requests delivery of the role's classes: by declaring them or, where the server does not
    /// support declarations, by attaching again as a manager. Attaching as one leaves PortInfo's
    /// IsSM alone, so that a responder is not taken for an SM.
    pub(super) fn claim_requests(&mut self, options: &IbsimOptions) -> Result<(), IbsimError> {
        let classes = options.role.classes();
        let taken = || IbsimError::Taken { node: self.node.clone() };
        let sockets = &self.sockets;
        let answer = sockets
            .request(self.slot, ControlKind::DECLARE_CLASSES, declare_classes(classes), || {
                sockets.discard_data();
            })?
            .ok_or_else(taken)?;
        match accepted_classes(&answer) {
            Some(count) if count == classes.len() => return Ok(()),
            Some(_) => return Err(taken()),
            None => {}
        }
        self.detach(self.slot)?;
        let node = options.node.as_deref().unwrap_or("");
        match self.attach(node, options.qpn, true) {
            Ok(Some(slot)) => {
                self.slot = slot;
                Ok(())
            }
            other => {
                self.slot = u32::MAX;
                Err(other.err().unwrap_or_else(|| IbsimError::Taken { node: self.node.clone() }))
            }
        }
    }

    /// Requests a slot at `node`; `None` if refused.
    fn attach(
        &mut self,
        node: &str,
        qpn: Option<Qpn>,
        is_sm: bool,
    ) -> Result<Option<u32>, IbsimError> {
        let connect = ConnectData {
            id: self.sockets.number,
            qpn: qpn.unwrap_or_default(),
            is_sm,
            node: node.as_bytes().to_vec(),
        };
        let sockets = &self.sockets;
        let answer = sockets.request(0, ControlKind::CONNECT, connect.to_bytes(), || {
            sockets.discard_data();
        })?;
        Ok(answer.map(|data| {
            let connected = ConnectData::from_bytes(&data);
            self.node = String::from_utf8_lossy(&connected.node).into_owned();
            connected.id
        }))
    }

    fn detach(&self, slot: u32) -> Result<(), IbsimError> {
        let sockets = &self.sockets;
        sockets.request(slot, ControlKind::DISCONNECT, [0; CONTROL_DATA_LEN], || {
            sockets.discard_data();
        })?;
        Ok(())
    }
}
