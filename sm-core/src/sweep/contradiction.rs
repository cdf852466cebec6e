//! Links that cannot both be true: a cable that moved while we looked, or two nodes with one GUID.
//!
//! Every probe says "this port leads to that port". When it contradicts what was confirmed in the
//! same discovery, the older claim is probed again, then the newer. If the older no longer holds,
//! the cable moved; if both still hold, two nodes share a GUID, and both places are named.

use tracing::error;

use super::Sweeper;
use super::discover::Answerer;
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Request};

/// Contradictions looked into at once; what is beyond is reported without a second look.
const OPEN_MAX: usize = 256;

/// The contradictions of one discovery.
#[derive(Debug, Default)]
pub(super) struct Contradictions {
    open: Vec<Contradiction>,
    /// GUIDs reported already.
    reported: Vec<u64>,
}

/// Two claims that exclude each other.
#[derive(Debug, Clone, Copy)]
struct Contradiction {
    older: Claim,
    newer: Claim,
    /// Whether the older was probed again, and held.
    older_holds: bool,
    settled: bool,
}

/// That the link of `from` leads to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim {
    from: PortIndex,
    to: PortIndex,
}

impl Sweeper {
    /// Whether the claim that `egress` leads to `ingress` contradicts one already confirmed. If
    /// so, it is looked into.
    pub(super) fn contradicts(&mut self, egress: PortIndex, ingress: PortIndex) -> bool {
        let confirmed = |port: PortIndex| {
            let port = self.fabric.port(port);
            port.peer().filter(|_| port.link_seen == self.number)
        };
        let older = match (confirmed(egress), confirmed(ingress)) {
            (Some(peer), _) if peer == ingress => return false,
            (None, None) => return false,
            // Something else was seen to lead to `ingress`, or to `egress`.
            (_, Some(other)) => Claim { from: other, to: ingress },
            (Some(other), None) => Claim { from: other, to: egress },
        };
        let newer = Claim { from: egress, to: ingress };
        let entry = Contradiction { older, newer, older_holds: false, settled: false };
        if self.sweep.contradictions.open.len() < OPEN_MAX {
            let number = self.sweep.contradictions.open.len() as u16;
            self.sweep.contradictions.open.push(entry);
            self.exchange.push(Request::block(Kind::ProbeAgain, older.from, number));
        } else {
            self.report_duplicate(entry);
        }
        true
    }

    /// A claim was probed again; `data` is the NodeInfo that came, if one did.
    pub(super) fn probed_again(&mut self, request: Request, data: Option<&[u8; 64]>) {
        let number = usize::from(request.block);
        let Some(mut entry) = self.sweep.contradictions.open.get(number).copied() else { return };
        if entry.settled {
            return;
        }
        let claim = if entry.older_holds { entry.newer } else { entry.older };
        let answerer = data.and_then(|data| Answerer::parse(data).ok());
        let holds = answerer.as_ref().is_some_and(|answerer| self.leads_to(claim, answerer));
        match (entry.older_holds, holds) {
            (false, true) => {
                entry.older_holds = true;
                self.exchange.push(Request::block(
                    Kind::ProbeAgain,
                    entry.newer.from,
                    request.block,
                ));
            }
            (true, true) => {
                entry.settled = true;
                self.report_duplicate(entry);
            }
            (false, false) => {
                // The cable moved: the newer claim takes its place.
                entry.settled = true;
                self.fabric.unlink(entry.older.from);
                self.exchange.push(Request::new(Kind::Probe, entry.newer.from));
            }
            (true, false) => entry.settled = true,
        }
        self.sweep.contradictions.open[number] = entry;
    }

    fn leads_to(&self, claim: Claim, answerer: &Answerer) -> bool {
        let (node, port) = (self.fabric.node_of(claim.to), self.fabric.port(claim.to));
        node.guid == answerer.guid && port.num == answerer.local_port
    }

    fn report_duplicate(&mut self, entry: Contradiction) {
        // The node that both claims are about: that which both lead to, or that which the newer
        // comes from and the older leads to.
        let guid = self.fabric.node_of(entry.older.to).guid;
        if !self.first_report(guid.0) {
            return;
        }
        let first = self.place(entry.older.from);
        let second = self.place(entry.newer.from);
        let port = self.fabric.port(entry.older.to).num;
        error!(
            "duplicate GUID: {guid} port {port} is there twice, behind {first} and at or behind \
             {second}. The second is left out; give one of the nodes another GUID, or take it off \
             the fabric"
        );
    }

    /// The GUID of `node` answered with another kind or number of ports behind `egress`.
    pub(super) fn report_different_nodes(
        &mut self,
        egress: PortIndex,
        node: NodeIndex,
        answerer: &Answerer,
    ) {
        if !self.first_report(answerer.guid.0) {
            return;
        }
        let known = self.fabric.node(node);
        let at = self.fabric.ports_of(node).find_map(|port| self.fabric.port(port).peer());
        let first = at.map_or_else(|| "the SM's port".to_owned(), |port| self.place(port));
        let second = self.place(egress);
        error!(
            "duplicate GUID: {} is a {} of {} ports behind {first}, and a {} of {} ports behind \
             {second}. The second is left out; give one of the nodes another GUID",
            answerer.guid, known.kind, known.port_count, answerer.kind, answerer.port_count,
        );
    }

    /// Counts a duplicate GUID; whether it is to be reported.
    pub(super) fn first_report(&mut self, guid: u64) -> bool {
        let reported = &mut self.sweep.contradictions.reported;
        if reported.contains(&guid) || reported.len() >= OPEN_MAX {
            return false;
        }
        reported.push(guid);
        self.sweep.report.duplicate_guids += 1;
        true
    }
}
