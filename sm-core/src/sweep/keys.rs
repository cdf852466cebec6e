//! Chooses the M_Key of each request, and tracks the M_Keys of ports (IBA 14.2.4).
//!
//! A port at protection level 0 shows its M_Key to every requester, so it is known once PortInfo is
//! read. At level 1 PortInfo can be read, but its M_Key reads as 0; at levels 2 and 3 requests with
//! a wrong M_Key are not answered. There the M_Key is the configured one, the one remembered in
//! `guid2mkey` or, after a lease expired, none: a request with a wrong M_Key starts the lease
//! period.
//!
//! A remembered M_Key may be outdated: another master has set another one since, or this SM set one
//! and the answer was lost. If it differs from the configured one, a request without an answer is
//! repeated with the other of the two. An answer proves the M_Key right, except at level 1, where a
//! PortInfo that hides its M_Key proves it wrong.

use std::collections::HashSet;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::PortInfo;
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::smp::Smp;
use tracing::debug;

use super::Sweeper;
use super::subnet::Subnet;
use crate::fabric::PortIndex;
use crate::manage::mkey::{MKeyTable, Neighbours};
use crate::smp::{Destination, Kind, Request};

/// Known M_Keys, and the neighbour of each port at the time when all ports could be read.
#[derive(Debug, Default)]
pub(super) struct MKeys {
    pub(super) known: MKeyTable,
    pub(super) neighbours: Arc<Neighbours>,
    /// Whether the hint about M_Keys of other SMs was logged.
    pub(super) hinted: bool,
    /// GUID of the SM's own port; 0 if the transport does not report it.
    own_port: Guid,
    /// Ports that get the configured M_Key before the remembered one, because it was answered last
    /// or the remembered one was not. At most as many as there are known M_Keys.
    doubted: HashSet<Guid>,
    /// Ports whose remembered M_Key is wrong: their PortInfo hid the M_Key.
    refuted: HashSet<Guid>,
    /// Ports that last reported an M_Key other than the configured one.
    others: HashSet<Guid>,
}

impl Sweeper {
    /// Sets the remembered M_Keys and neighbours.
    pub fn set_m_keys(&mut self, known: MKeyTable, neighbours: Arc<Neighbours>) {
        (self.subnet.m_keys.known, self.subnet.m_keys.neighbours) = (known, neighbours);
    }

    /// Takes over M_Keys and links that the master knows, while this SM stands by. Returns which of
    /// the two tables changed.
    pub fn follow_m_keys(&mut self, known: &MKeyTable, neighbours: &Neighbours) -> (bool, bool) {
        let ours = &mut self.subnet.m_keys;
        let keys_changed = ours.known.follow(known);
        let mut followed = Neighbours::clone(&ours.neighbours);
        let links_changed = followed.follow(neighbours);
        if links_changed {
            ours.neighbours = Arc::new(followed);
        }
        (keys_changed, links_changed)
    }

    /// Sets the GUID of the SM's own port, 0 if it is not known: the port may ignore requests with
    /// a wrong M_Key.
    pub fn set_own_port(&mut self, guid: Guid) {
        self.subnet.m_keys.own_port = guid;
    }

    /// The known M_Keys, to be saved.
    pub fn m_keys(&self) -> &MKeyTable {
        &self.subnet.m_keys.known
    }

    /// Neighbours of ports, to be saved; ports not seen in the last sweep keep their neighbour.
    /// Returns another value only if a link changed since the last call.
    pub fn neighbours(&mut self) -> &Arc<Neighbours> {
        let new = self.subnet.fabric.take_new_links();
        let has_room = self.subnet.m_keys.neighbours.has_room(new.len());
        // Else those that are there now are all that is kept.
        let links = if has_room { new } else { self.subnet.fabric.links() };
        let known = &self.subnet.m_keys.neighbours;
        let end = |port| (self.subnet.m_key_holder(port), self.subnet.fabric.port(port).num);
        let links: Vec<_> = links
            .into_iter()
            .map(|(port, peer)| (end(port), end(peer)))
            .filter(|&(a, b)| !has_room || known.get(a) != Some(b) || known.get(b) != Some(a))
            .collect();
        if !links.is_empty() {
            Arc::make_mut(&mut self.subnet.m_keys.neighbours).join(links.into_iter());
        }
        &self.subnet.m_keys.neighbours
    }
}

impl Subnet {
    /// GUID of the port whose M_Key protects `port`.
    fn m_key_holder(&self, port: PortIndex) -> Guid {
        let node = self.fabric.port(port).node;
        let is_switch = self.fabric.node(node).switch.is_some();
        let holder = self.fabric.ports_of(node).next().filter(|_| is_switch).unwrap_or(port);
        match self.fabric.port(holder).guid {
            Guid(0) => self.fabric.node(node).node_info().port_guid(),
            guid => guid,
        }
    }

    /// The M_Key for a request; `last` is that of the previous attempt, which was not answered.
    pub(super) fn m_key_for(&self, request: Request, last: Option<u64>) -> u64 {
        let configured = self.settings.m_key;
        let (holder, Some(known)) = self.m_keys_for(request) else { return configured };
        let is_doubted = match last {
            Some(last) => last == known,
            None => self.m_keys.doubted.contains(&holder),
        };
        if is_doubted { configured } else { known }
    }

    /// Handles an answer to a request that showed this M_Key in its last attempt. At level 1 every
    /// requester is answered, but only the right M_Key makes the port's M_Key visible.
    pub(super) fn check_m_key(&mut self, request: Request, shown: u64, answer: &[u8; 256]) {
        let hides = self.hides_m_key(request, answer);
        self.note_m_key(request, shown, !hides);
        let (holder, known) = self.m_keys_for(request);
        if hides && known == Some(shown) {
            self.m_keys.refuted.insert(holder);
        }
    }

    /// Whether this is PortInfo of a port that holds its own M_Key and hides it.
    fn hides_m_key(&self, request: Request, answer: &[u8; 256]) -> bool {
        let Ok(smp) = Smp::new(&answer[..]) else { return false };
        // A LinkState reads a port that has no M_Key, or the SM port once more.
        let kind = request.kind;
        let is_port_info = kind.attribute_id() == AttributeId::PORT_INFO
            && !kind.is_set()
            && kind != Kind::LinkState;
        if !is_port_info || smp.status().0 != 0 || !self.has_m_key(request.port()) {
            return false;
        }
        let info = PortInfo::new(smp.data_bytes());
        info.is_ok_and(|info| info.m_key() == 0 && info.m_key_protect_bits() != 0)
    }

    /// Whether a port holds its own M_Key (of a switch, only port 0 does).
    fn has_m_key(&self, port: PortIndex) -> bool {
        self.fabric.node_of(port).switch.is_none() || self.fabric.port(port).num == PortNum(0)
    }

    /// Records whether the last attempt of a request, which had the M_Key `shown`, was answered.
    pub(super) fn note_m_key(&mut self, request: Request, shown: u64, answered: bool) {
        let (holder, known) = self.m_keys_for(request);
        if known.is_none_or(|known| known == self.settings.m_key) {
            return;
        }
        if (known == Some(shown)) == answered {
            self.m_keys.doubted.remove(&holder);
        } else {
            self.m_keys.doubted.insert(holder);
        }
    }

    /// The port whose M_Key protects the target of a request, with its remembered M_Key.
    fn m_keys_for(&self, request: Request) -> (Guid, Option<u64>) {
        let holder = match request.destination() {
            Destination::OwnNode => Some(self.m_keys.own_port),
            Destination::Behind(_) if !self.settings.m_key_lookup => None,
            Destination::Behind(port) => {
                let known = self.fabric.port(port).peer().map(|peer| self.m_key_holder(peer));
                let end = (self.m_key_holder(port), self.fabric.port(port).num);
                known.or_else(|| self.m_keys.neighbours.get(end).map(|(guid, _)| guid))
            }
            Destination::NodeOf(port) => Some(self.m_key_holder(port)),
        };
        let holder = holder.unwrap_or_default();
        (holder, self.m_keys.known.get(holder))
    }

    /// Updates the known M_Key from the PortInfo of an end port.
    pub(super) fn learn_m_key(&mut self, port: PortIndex) {
        if !self.has_m_key(port) {
            return; // It holds no M_Key.
        }
        let info = self.fabric.port(port).port_info();
        let (m_key, is_shown) = (info.m_key(), info.m_key() != 0 || info.m_key_protect_bits() == 0);
        if is_shown {
            let holder = self.m_key_holder(port);
            self.m_keys.known.set(holder, m_key);
            self.m_keys.doubted.remove(&holder);
            self.m_keys.refuted.remove(&holder);
            match m_key == self.settings.m_key {
                true => self.m_keys.others.remove(&holder),
                false => self.m_keys.others.insert(holder),
            };
        }
    }

    /// The M_Key for the port with this LID. Few ports hold another M_Key than the configured one,
    /// and not for long, so a burst of traps needs no search.
    pub(super) fn m_key_at(&self, lid: Lid) -> u64 {
        let has_lid = |guid: &&Guid| self.lids.get(**guid).is_some_and(|range| range.contains(lid));
        let other = self.m_keys.others.iter().find(has_lid);
        other.and_then(|&guid| self.m_keys.known.get(guid)).unwrap_or(self.settings.m_key)
    }

    /// Handles a Set() without an answer: the known M_Key may be wrong. Returns the reason and the
    /// remedy, for the log (IBA C14-44).
    pub(super) fn suspect_m_key(&mut self, port: PortIndex) -> Option<String> {
        let guid = self.m_key_holder(port);
        let node = self.fabric.port(port).node;
        let holder = match self.fabric.node(node).switch {
            Some(_) => self.fabric.ports_of(node).next()?,
            None => port,
        };
        let info = self.fabric.port(holder).port_info();
        let (level, lease, m_key) =
            (info.m_key_protect_bits(), info.m_key_lease_period(), info.m_key());
        if m_key != 0 || level == 0 || !self.fabric.port(holder).known {
            return None;
        }
        if self.m_keys.known.get(guid).is_some() {
            if !self.m_keys.refuted.remove(&guid) {
                // Only the configured M_Key was tried: the next sweep reads with the stored one.
                return None;
            }
            debug!("stored M_Key of port {guid} is wrong");
            self.m_keys.known.forget(guid);
        }
        let place = self.fabric.describe(port);
        Some(match lease {
            0 => format!(
                "{place}, port GUID {guid}, has an unknown M_Key at protection level {level} that \
                 never expires; add it to guid2mkey, or reset the port"
            ),
            _ => format!(
                "{place}, port GUID {guid}, has an unknown M_Key at protection level {level}; \
                 retrying until its lease of {lease} s has expired"
            ),
        })
    }
}
