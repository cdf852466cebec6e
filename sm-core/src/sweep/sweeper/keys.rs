//! M_Keys and neighbours of ports, which the caller saves and restores.

use std::sync::Arc;

use ib_mad::types::Guid;

use super::Sweeper;
use crate::manage::mkey::{MKeyTable, Neighbours};
use crate::sweep::subnet::Subnet;

impl Sweeper {
    /// Sets the remembered M_Keys and neighbours.
    pub fn set_m_keys(&mut self, known: MKeyTable, neighbours: Arc<Neighbours>) {
        (self.subnet.m_keys.known, self.subnet.m_keys.neighbours) = (known, neighbours);
    }

    /// Takes over M_Keys and links that the master knows, while this SM stands by.
    pub fn follow_m_keys(&mut self, known: &MKeyTable, neighbours: &Neighbours) {
        let ours = &mut self.subnet.m_keys;
        known.iter().for_each(|(guid, m_key)| ours.learn(guid, m_key));
        let mut followed = Neighbours::clone(&ours.neighbours);
        if followed.follow(neighbours) {
            ours.neighbours = Arc::new(followed);
        }
    }

    /// Sets the GUID of the SM's own port, 0 if it is not known: the port may ignore requests with
    /// a wrong M_Key, and other managers may ask before it is discovered.
    pub fn set_own_port(&mut self, guid: Guid) {
        self.subnet.m_keys.own_port = guid;
        if guid != Guid(0) {
            self.subnet.election.own.set_guid(guid);
        }
    }

    /// The GUID of the SM's own port; 0 if it is not known.
    pub fn own_port(&self) -> Guid {
        self.subnet.m_keys.own_port
    }

    /// The known M_Keys, to be saved.
    pub fn m_keys(&self) -> &MKeyTable {
        &self.subnet.m_keys.known
    }

    /// GUIDs that ports or nodes have or had: of those that are there, have LIDs or are
    /// remembered as neighbours. Some are listed more than once.
    pub fn known_guids(&self) -> impl Iterator<Item = Guid> {
        let Subnet { fabric, lids, m_keys, .. } = &self.subnet;
        let nodes = fabric.nodes().map(|(_, node)| node.guid);
        nodes.chain(lids.guids()).chain(m_keys.neighbours.guids())
    }

    /// Neighbours of ports, to be saved; ports not seen in the last sweep keep their neighbour, and
    /// so does an identity that is not at its home. Returns another value only if a link changed
    /// since the last call.
    pub fn neighbours(&mut self) -> &Arc<Neighbours> {
        self.subnet.note_links();
        let links = std::mem::take(&mut self.subnet.m_keys.new_links);
        if !links.is_empty() {
            Arc::make_mut(&mut self.subnet.m_keys.neighbours).join(links.into_iter());
        }
        &self.subnet.m_keys.neighbours
    }
}
