//! Which M_Key a request shows, and what is learnt of the M_Keys of ports (IBTA vol 1, 14.2.4).
//!
//! A port at protection level 0 shows its M_Key to everybody, so that it is known once PortInfo is
//! read. At level 1 PortInfo can be read and the M_Key in it is 0; at 2 and 3 nobody is answered
//! who does not show it. There the M_Key is the one set here, the one remembered by `guid2mkey` or,
//! with a lease, none once that has run out: a request with the wrong one starts it running.

use std::sync::Arc;

use ib_mad::types::{Guid, PortNum};
use tracing::debug;

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::manage::mkey::{MKeyTable, Neighbours};
use crate::smp::{Kind, Request};

/// What is known of M_Keys, and of who was behind which port when all could be read.
#[derive(Debug, Default)]
pub(super) struct MKeys {
    pub(super) known: MKeyTable,
    pub(super) neighbours: Arc<Neighbours>,
    /// Whether it was said what an M_Key of another subnet manager looks like.
    pub(super) hinted: bool,
}

impl Sweeper {
    /// States what is remembered of M_Keys, and of who is behind which port.
    pub fn set_m_keys(&mut self, known: MKeyTable, neighbours: Arc<Neighbours>) {
        (self.m_keys.known, self.m_keys.neighbours) = (known, neighbours);
    }

    /// What is known of M_Keys, to be remembered.
    pub fn m_keys(&self) -> &MKeyTable {
        &self.m_keys.known
    }

    /// Which port is behind which, to be remembered: links of ports that were not seen last are as
    /// they were. What is new since it was asked for last is looked at; another value is yielded only
    /// if something of it is.
    pub fn neighbours(&mut self) -> &Arc<Neighbours> {
        for (port, peer) in self.fabric.take_new_links() {
            let [a, b] =
                [port, peer].map(|port| (self.m_key_holder(port), self.fabric.port(port).num));
            let known = &self.m_keys.neighbours;
            if known.get(a) != Some(b) || known.get(b) != Some(a) {
                Arc::make_mut(&mut self.m_keys.neighbours).join(a, b);
            }
        }
        &self.m_keys.neighbours
    }

    /// GUID of the port that holds the M_Key that `port` is asked with.
    fn m_key_holder(&self, port: PortIndex) -> Guid {
        let node = self.fabric.port(port).node;
        let is_switch = self.fabric.node(node).switch.is_some();
        let holder = self.fabric.ports_of(node).next().filter(|_| is_switch).unwrap_or(port);
        match self.fabric.port(holder).guid {
            Guid(0) => self.fabric.node(node).node_info().port_guid(),
            guid => guid,
        }
    }

    /// The M_Key to show with a request.
    pub(super) fn m_key_for(&self, request: Request) -> u64 {
        let holder = match request.kind {
            Kind::OwnNodeInfo => Some(self.settings.guid),
            Kind::Probe | Kind::ProbeAgain if !self.settings.m_key_lookup => None,
            Kind::Probe | Kind::ProbeAgain => {
                let port = request.port();
                let known = self.fabric.port(port).peer().map(|peer| self.m_key_holder(peer));
                let end = (self.m_key_holder(port), self.fabric.port(port).num);
                known.or_else(|| self.m_keys.neighbours.get(end).map(|(guid, _)| guid))
            }
            _ => Some(self.m_key_holder(request.port())),
        };
        let known = holder.and_then(|guid| self.m_keys.known.get(guid));
        known.unwrap_or(self.settings.m_key)
    }

    /// Learns from PortInfo as an end port reports it.
    pub(super) fn learn_m_key(&mut self, port: PortIndex) {
        let entry = self.fabric.port(port);
        if self.fabric.node_of(port).switch.is_some() && entry.num != PortNum(0) {
            return; // It has none of its own, whatever stands there.
        }
        let info = self.fabric.port(port).port_info();
        let (m_key, is_shown) = (info.m_key(), info.m_key() != 0 || info.m_key_protect_bits() == 0);
        if is_shown {
            self.m_keys.known.set(self.m_key_holder(port), m_key);
        }
    }

    /// A request that changes something was left without answer: what is known of the M_Key may be
    /// what is wrong. Why it could be, and what to do about it, for the log.
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
            debug!("the M_Key remembered of port {guid} is not its");
            self.m_keys.known.forget(guid);
        }
        let place = self.fabric.describe(port);
        Some(match lease {
            0 => format!(
                "{place}, port GUID {guid}, has an M_Key at protection level {level} that is not \
                 known and never expires: put it into guid2mkey, or reset the port"
            ),
            _ => format!(
                "{place}, port GUID {guid}, has an M_Key at protection level {level} that is not \
                 known; it is tried again until its lease of {lease} s has run out"
            ),
        })
    }
}
