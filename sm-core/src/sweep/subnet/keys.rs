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
//! repeated with the other of the two, and then with the one that the port had before: a master
//! that was replaced while it had no link sets its own M_Key at ports that it reaches until it
//! finds its successor. Last comes the M_Key that another manager set at the SM's own port: it also
//! set that at ports whose M_Keys it had not passed on before it died. An answer proves the M_Key
//! right, except at level 1, where a PortInfo that hides its M_Key proves it wrong.

use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::PortInfo;
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::smp::Smp;
use tracing::debug;

use super::Subnet;
use super::m_keys::MKeys;
use crate::fabric::PortIndex;
use crate::smp::{Destination, Kind, Request};

impl Subnet {
    /// GUID of the port whose M_Key protects `port`.
    pub(in crate::sweep) fn m_key_holder(&self, port: PortIndex) -> Guid {
        let node = self.fabric.port(port).node;
        let holder = self.m_key_port(port);
        match self.fabric.port(holder).guid {
            Guid(0) => self.fabric.node(node).node_info().port_guid(),
            guid => guid,
        }
    }

    /// The port that holds the M_Key for `port`: port 0 of a switch.
    fn m_key_port(&self, port: PortIndex) -> PortIndex {
        let node = self.fabric.port(port).node;
        let is_switch = self.fabric.node(node).switch.is_some();
        self.fabric.ports_of(node).next().filter(|_| is_switch).unwrap_or(port)
    }

    /// The M_Key for a request; `last` is that of the previous attempt, which was not answered. A
    /// subnet manager answers SMInfo, not the agent of its port, and any host can set IsSM and read
    /// what it is sent. So only managers that the operator names get the M_Key: OpenSM shows its
    /// SM_Key to those that show the M_Key.
    pub(in crate::sweep) fn m_key_for(&self, request: Request, last: Option<u64>) -> u64 {
        if request.kind.attribute_id() == AttributeId::SM_INFO {
            let port = request.port();
            let is_named = self.election.is_named(self.fabric.port(port).guid);
            return if is_named && !self.is_away(port) { self.m_key_of(request, last) } else { 0 };
        }
        self.m_key_of(request, last)
    }

    /// The M_Key that our own port holds, as far as it is known.
    pub(in crate::sweep) fn own_port_m_key(&self) -> u64 {
        self.m_keys.known.get(self.m_keys.own_port).unwrap_or(self.settings.m_key)
    }

    /// The M_Key that another manager set last at our own port.
    fn m_key_of_other_manager(&self) -> Option<u64> {
        let MKeys { known, replaced, own_port, .. } = &self.m_keys;
        let of_own_port = [known.get(*own_port), replaced.get(*own_port)];
        of_own_port.into_iter().flatten().find(|key| *key != 0 && *key != self.settings.m_key)
    }

    /// The M_Key of the target of a request, as far as it is known.
    pub(in crate::sweep) fn m_key_of(&self, request: Request, last: Option<u64>) -> u64 {
        let configured = self.settings.m_key;
        let (holder, known) = self.m_keys_for(request);
        let known = known.unwrap_or(configured);
        let first = if self.m_keys.doubted.contains(&holder) { configured } else { known };
        let Some(last) = last else { return first };
        let is_searched =
            self.settings.m_key_lookup && request.kind.attribute_id() != AttributeId::SM_INFO;
        let of_other = self.m_key_of_other_manager().filter(|_| is_searched);
        let earlier = [self.m_keys.replaced.get(holder), of_other];
        let mut keys = vec![known];
        for key in [Some(configured)].into_iter().chain(earlier).flatten() {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let at = keys.iter().position(|key| *key == last);
        at.map_or(first, |at| keys[(at + 1) % keys.len()])
    }

    /// Handles an answer to a request that showed this M_Key in its last attempt. At level 1 every
    /// requester is answered, but only the right M_Key makes the port's M_Key visible.
    pub(in crate::sweep) fn check_m_key(
        &mut self,
        request: Request,
        shown: u64,
        answer: &[u8; 256],
    ) {
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
    pub(in crate::sweep) fn note_m_key(&mut self, request: Request, shown: u64, answered: bool) {
        if request.kind.attribute_id() == AttributeId::SM_INFO {
            return; // Its answer does not depend on the M_Key.
        }
        let (holder, known) = self.m_keys_for(request);
        let Some(known) = known else { return };
        let configured = self.settings.m_key;
        let is_replaced = shown != known
            && shown != configured
            && self.m_keys.replaced.get(holder) == Some(shown);
        if answered && is_replaced && self.proves_m_key(request) {
            self.m_keys.prove(holder, shown);
            return;
        }
        if known == configured {
            return;
        }
        if (known == shown) == answered {
            self.m_keys.doubted.remove(&holder);
        } else {
            self.m_keys.doubted.insert(holder);
        }
    }

    /// Whether an answer to a request proves the M_Key that it showed: at levels 0 and 1 a port
    /// answers every Get. The level of a port that was never read is not known: most likely it
    /// answers no other M_Key.
    fn proves_m_key(&self, request: Request) -> bool {
        if request.kind.is_set() {
            return true;
        }
        let target = match request.destination() {
            Destination::NodeOf(port) => Some(port),
            Destination::Behind(port) => self.fabric.port(port).peer(),
            Destination::OwnNode | Destination::Beyond(..) => None,
        };
        let Some(target) = target else { return true };
        let entry = self.fabric.port(self.m_key_port(target));
        !entry.known || entry.port_info().m_key_protect_bits() > 1
    }

    /// The port whose M_Key protects the target of a request, with its remembered M_Key.
    fn m_keys_for(&self, request: Request) -> (Guid, Option<u64>) {
        let holder = match request.destination() {
            Destination::OwnNode => Some(self.m_keys.own_port),
            Destination::Behind(_) if !self.settings.m_key_lookup => None,
            // NodeInfo of what is expected there, or of a host: it is read without a key.
            Destination::Beyond(..) => None,
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

    /// The configured M_Key was `before`: the ports still have that, and get the new one by the
    /// next sweep, which reads and writes them with the old one.
    pub(in crate::sweep) fn m_key_changed(&mut self, before: u64) {
        let m_key = self.settings.m_key;
        if m_key == before {
            return;
        }
        self.election.own.set_m_key(m_key);
        let ports: Vec<PortIndex> = self.fabric.end_ports().collect();
        for port in ports {
            let holder = self.m_key_holder(port);
            if self.m_keys.known.get(holder).is_none() {
                self.m_keys.known.set(holder, before);
            }
            match self.m_keys.known.get(holder) == Some(m_key) {
                true => self.m_keys.others.remove(&holder),
                false => self.m_keys.others.insert(holder),
            };
        }
    }

    /// Updates the known M_Key from the PortInfo of an end port.
    pub(in crate::sweep) fn learn_m_key(&mut self, port: PortIndex) {
        if !self.has_m_key(port) {
            return; // It holds no M_Key.
        }
        let info = self.fabric.port(port).port_info();
        let (m_key, is_shown) = (info.m_key(), info.m_key() != 0 || info.m_key_protect_bits() == 0);
        if is_shown {
            let holder = self.m_key_holder(port);
            self.m_keys.prove(holder, m_key);
            match m_key == self.settings.m_key {
                true => self.m_keys.others.remove(&holder),
                false => self.m_keys.others.insert(holder),
            };
        }
    }

    /// The M_Key for the port with this LID. Few ports hold another M_Key than the configured one,
    /// and not for long, so a burst of traps needs no search.
    pub(in crate::sweep) fn m_key_at(&self, lid: Lid) -> u64 {
        let has_lid = |guid: &&Guid| self.lids.get(**guid).is_some_and(|range| range.contains(lid));
        let other = self.m_keys.others.iter().find(has_lid);
        other.and_then(|&guid| self.m_keys.known.get(guid)).unwrap_or(self.settings.m_key)
    }

    /// Whether the sender of a trap may see the M_Key of its port: a switch may, and a host if
    /// ports show it to everyone. On a host programs send traps, too.
    pub(in crate::sweep) fn may_see_m_key(&self, sender: Lid) -> bool {
        self.settings.m_key_protection_level == 0 || self.switch_at(sender).is_some()
    }

    /// Whether a port has an M_Key that is not known, and is protected by it.
    pub(in crate::sweep) fn is_locked(&self, port: PortIndex) -> bool {
        let entry = self.fabric.port(port);
        let is_linked = entry.peer().is_some() || self.fabric.node(entry.node).switch.is_some();
        if !entry.known {
            return is_linked;
        }
        let info = entry.port_info();
        let guid = self.m_key_holder(port);
        info.m_key_protect_bits() != 0 && info.m_key() == 0 && self.m_keys.known.get(guid).is_none()
    }

    /// Handles a Set() without an answer: the known M_Key may be wrong. Returns the reason and the
    /// remedy, for the log (IBA C14-44).
    pub(in crate::sweep) fn suspect_m_key(&mut self, port: PortIndex) -> Option<String> {
        let (guid, holder) = (self.m_key_holder(port), self.m_key_port(port));
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
            if let Some(before) = self.m_keys.replaced.get(guid) {
                // The next sweep shows it.
                self.m_keys.known.set(guid, before);
                self.m_keys.replaced.forget(guid);
                return None;
            }
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
