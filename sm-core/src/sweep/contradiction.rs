//! Claims that cannot both be true: a cable that moved while we looked, or two nodes with one GUID.
//!
//! Every probe says "this port leads to that port", every PortInfo whether its port has a link.
//! When one contradicts what was confirmed in the same discovery, the older claim is checked again,
//! then the newer. If the older no longer holds, the cable moved; if both still hold, two nodes
//! share a GUID, and both places are named.

use ib_mad::wire::attribute::LinkWidths;
use tracing::error;

use super::discover::Answerer;
use super::{Event, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Request};

/// Contradictions looked into in one discovery, and GUIDs reported; more are only counted.
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
    newer: Newer,
    /// Whether the older was checked again, and held.
    older_holds: bool,
    settled: bool,
}

/// That the link of `from` leads to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim {
    from: PortIndex,
    to: PortIndex,
}

/// What contradicts the older claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Newer {
    /// Another link.
    Link(Claim),
    /// The port has no link.
    Down(PortIndex),
}

impl Sweeper {
    /// Whether the claim that `egress` leads to `ingress` contradicts one already confirmed. If
    /// so, it is looked into.
    pub(super) fn contradicts(&mut self, egress: PortIndex, ingress: PortIndex) -> bool {
        let confirmed = |port: PortIndex| {
            let port = self.fabric.port(port);
            port.peer().filter(|_| port.link_seen == self.subnet.discovery)
        };
        let older = match (confirmed(egress), confirmed(ingress)) {
            (Some(peer), _) if peer == ingress => return false,
            (None, None) => return false,
            // Something else was seen to lead to `ingress`, or to `egress`.
            (_, Some(other)) => Claim { from: other, to: ingress },
            (Some(other), None) => Claim { from: other, to: egress },
        };
        self.look_into(older, Newer::Link(Claim { from: egress, to: ingress }));
        true
    }

    /// `port` says that it has no link, though `peer` was seen to lead to it. `number` is not 0 if
    /// it was asked again for that.
    pub(super) fn contradicted_by_down(&mut self, port: PortIndex, peer: PortIndex, number: u16) {
        let Some(index) = usize::from(number).checked_sub(1) else {
            return self.look_into(Claim { from: peer, to: port }, Newer::Down(port));
        };
        if let Some(entry) = self.sweep.contradictions.open.get(index).copied() {
            self.settle(index);
            self.report_duplicate(entry);
            self.fabric.unlink(port);
        }
    }

    fn look_into(&mut self, older: Claim, newer: Newer) {
        let entry = Contradiction { older, newer, older_holds: false, settled: false };
        let open = &mut self.sweep.contradictions.open;
        if open.len() < OPEN_MAX {
            let number = open.len() as u16;
            open.push(entry);
            self.exchange.push(Request::block(Kind::ProbeAgain, older.from, number));
        } else {
            self.report_duplicate(entry);
        }
    }

    fn settle(&mut self, index: usize) {
        self.sweep.contradictions.open[index].settled = true;
    }

    /// A claim was probed again; `data` is the NodeInfo that came, if one did.
    pub(super) fn probed_again(&mut self, request: Request, data: Option<&[u8; 64]>) {
        let index = usize::from(request.block);
        let Some(entry) = self.sweep.contradictions.open.get(index).copied() else { return };
        if entry.settled {
            return;
        }
        let claim = match entry.newer {
            Newer::Link(newer) if entry.older_holds => newer,
            _ => entry.older,
        };
        let answerer = data.and_then(|data| Answerer::parse(data).ok());
        let holds = answerer.as_ref().is_some_and(|answerer| self.leads_to(claim, answerer));
        match (entry.older_holds, holds, entry.newer) {
            (false, true, newer) => {
                self.sweep.contradictions.open[index].older_holds = true;
                self.exchange.push(match newer {
                    Newer::Link(newer) => {
                        Request::block(Kind::ProbeAgain, newer.from, request.block)
                    }
                    // The number is told from 1, since 0 is that of an ordinary question.
                    Newer::Down(port) => Request::block(Kind::PortInfo, port, request.block + 1),
                });
            }
            (true, true, _) => {
                self.settle(index);
                self.report_duplicate(entry);
            }
            (false, false, newer) => {
                // The cable moved: the newer claim takes its place.
                self.settle(index);
                self.tell_of_third(entry.older, newer, answerer.as_ref());
                self.fabric.unlink(entry.older.from);
                if let Newer::Link(newer) = newer {
                    self.exchange.push(Request::new(Kind::Probe, newer.from));
                }
            }
            (true, false, newer) => {
                self.settle(index);
                self.tell_of_third(entry.older, newer, answerer.as_ref());
            }
        }
    }

    /// Tells of a node that called itself by a third GUID when it was asked again. Where a cable was
    /// moved, one of those that are known answers, or nobody.
    fn tell_of_third(&mut self, older: Claim, newer: Newer, answerer: Option<&Answerer>) {
        let Some(answerer) = answerer else { return };
        let newer = match newer {
            Newer::Link(newer) => [newer.from, newer.to],
            Newer::Down(port) => [port; 2],
        };
        let known = [older.from, older.to, newer[0], newer[1]];
        if known.iter().all(|&port| self.fabric.node_of(port).guid != answerer.guid) {
            let place = self.place(newer[0]);
            self.complain(format_args!(
                "a node at {place} calls itself by ever other GUIDs, {} among them",
                answerer.guid
            ));
        }
    }

    fn leads_to(&self, claim: Claim, answerer: &Answerer) -> bool {
        let (node, port) = (self.fabric.node_of(claim.to), self.fabric.port(claim.to));
        node.guid == answerer.guid && port.num == answerer.local_port
    }

    fn report_duplicate(&mut self, entry: Contradiction) {
        // The node that both claims are about: that which both lead to, or that which the newer
        // comes from and the older leads to.
        let node = self.fabric.port(entry.older.to).node;
        let guid = self.fabric.node(node).guid;
        let out = match entry.newer {
            Newer::Link(newer) => newer.from,
            Newer::Down(_) => entry.older.from,
        };
        self.sweep.left_out.insert(out);
        if !self.first_report(guid.0) {
            return;
        }
        let first = self.place(entry.older.from);
        let num = self.fabric.port(entry.older.to).num;
        match entry.newer {
            Newer::Link(newer) => {
                let second = self.place(newer.from);
                let lanes = self.lane_reversal(&[entry.older.from, entry.older.to, newer.from]);
                error!(
                    "duplicate GUID: {guid} port {num} is there twice, behind {first}, and behind \
                     or at {second}{lanes}. The second is left out; give one of the nodes another \
                     GUID"
                );
            }
            Newer::Down(port) => {
                let second = self.place(port);
                error!(
                    "duplicate GUID: {guid} has a link at port {num} behind {first}, and none by \
                     the route to {second}: they are two nodes. The first is left out; give one \
                     of them another GUID"
                );
            }
        }
    }

    /// One of these ports was seen where it cannot be. At 12x that may be no duplicate GUID, but lanes
    /// that are reversed; in words, for whoever looks at the cable. Nothing where none is so wide.
    fn lane_reversal(&self, ports: &[PortIndex]) -> &'static str {
        let is_wide = |&port: &PortIndex| {
            let port = self.fabric.port(port);
            port.known && port.port_info().link_width_supported().contains(LinkWidths::X12)
        };
        match ports.iter().any(is_wide) {
            true => " (or a 12x link with lane reversal is badly configured)",
            false => "",
        }
    }

    /// The link of a port leads to the port itself, as far as GUIDs tell.
    pub(super) fn leads_to_itself(&mut self, port: PortIndex) {
        self.sweep.left_out.insert(port);
        let (place, lanes) = (self.place(port), self.lane_reversal(&[port]));
        let text = format!(
            "{place} sees itself: a loop-back plug, or the node behind it has the same GUID{lanes}"
        );
        let (_, switches) = self.fabric.counts();
        if switches == 0 && self.settings.exit_on_fatal {
            // It is the only link there is. OpenSM ends, too.
            return self.emit(Event::Fatal(format!("{text}. With -y that is no reason to end")));
        }
        self.complain(format_args!("{text}"));
    }

    /// The GUID of `node` answered with another kind or number of ports behind `egress`.
    pub(super) fn report_different_nodes(
        &mut self,
        egress: PortIndex,
        node: NodeIndex,
        answerer: &Answerer,
    ) {
        self.sweep.left_out.insert(egress);
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
