//! Contradictions found by a discovery: a cable that was moved, or two nodes with one GUID.
//!
//! A probe states which port a link leads to; PortInfo states whether a port has a link. If a
//! result contradicts an earlier one of the same discovery, both are checked again (`checks`). If
//! one no longer holds, the cable was moved; if both hold, two nodes share a GUID, and both places
//! are reported.

use std::time::Instant;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::LinkWidths;
use tracing::debug;

use super::Discovery;
use super::answerer::Answerer;
use super::notes::{Claim, Contradiction, Newer};
use crate::fabric::PortIndex;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;

/// Maximum number of contradictions resolved, and of GUIDs reported, in one discovery; further ones
/// are only counted.
pub(super) const OPEN_MAX: usize = 256;

impl Discovery {
    /// Whether a link from `egress` to `ingress` contradicts a confirmed result. If so, starts to
    /// resolve the contradiction.
    pub(in crate::sweep) fn contradicts(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        ingress: PortIndex,
        now: Instant,
    ) -> bool {
        // A partial discovery trusts links of adapters that it has not read.
        let trusted = !self.full && subnet.is_adapter_port(ingress);
        let confirmed = |port: PortIndex| {
            let is_trusted = trusted && port == ingress;
            let port = subnet.fabric.port(port);
            port.peer().filter(|_| is_trusted || port.link_seen == subnet.state.discovery)
        };
        // It does not probe ports of switches that stayed Active either: whether the known link of
        // `ingress` is still there is found by a probe from its switch.
        let unread = subnet.fabric.port(ingress).peer().filter(|&peer| {
            let node = subnet.fabric.port(ingress).node;
            !self.full && !trusted && peer != egress && subnet.fabric.has_way(node)
        });
        let older = match (confirmed(egress), confirmed(ingress)) {
            (Some(peer), _) if peer == ingress => return false,
            (_, Some(peer)) if peer == egress => return false,
            (None, None) => match unread {
                Some(peer) => Claim { from: ingress, to: peer },
                None if self.must_confirm(subnet, egress, ingress) => {
                    Claim { from: ingress, to: egress }
                }
                None => return false,
            },
            // Something else was seen to lead to `ingress`, or to `egress`.
            (_, Some(other)) => subnet.probed_from_switch(other, ingress),
            (Some(other), None) => subnet.probed_from_switch(other, egress),
        };
        self.look_into(subnet, older, Newer::Link(Claim { from: egress, to: ingress }), now);
        true
    }

    /// In a partial discovery, cuts the link that `egress` had before, if it leads to `ingress`
    /// now: no route goes by it.
    pub(super) fn cut_former_link(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        ingress: PortIndex,
    ) {
        let former = subnet.fabric.port(egress).peer().filter(|&peer| peer != ingress);
        if let Some(peer) = former
            && !self.full
            && !subnet.is_confirmed(egress)
        {
            self.link_is_gone(subnet, egress, peer);
        }
    }

    /// Whether a link into a switch must be seen from its other end, too: the switch is reached by
    /// another way, and was not linked there before. What answers with its GUID may be a host.
    fn must_confirm(&self, subnet: &Subnet, egress: PortIndex, ingress: PortIndex) -> bool {
        let node = subnet.fabric.port(ingress).node;
        let has_memory = !self.full || !subnet.m_keys.neighbours.is_empty();
        let is_read = !self.full || subnet.fabric.node(node).seen == subnet.state.discovery;
        let is_own =
            subnet.fabric.sm_port().is_some_and(|own| subnet.fabric.port(own).node == node);
        let is_other_way =
            is_own || subnet.fabric.has_way(node) && subnet.fabric.upstream(node) != Some(egress);
        subnet.is_external(ingress)
            && has_memory
            && is_read
            && is_other_way
            && !subnet.is_remembered(egress, ingress)
            && !self.contradictions.confirmed.contains(&Claim { from: egress, to: ingress })
    }

    /// A new link into a switch is refused: from its other end another node, or none, is seen.
    pub(super) fn refuse_link(&mut self, subnet: &mut Subnet, link: Claim, is_silent: bool) {
        self.left_out.insert(link.from);
        let guid = subnet.fabric.node_of(link.to).guid;
        let (place, far) = (subnet.place(link.from), subnet.place(link.to));
        if is_silent {
            return subnet.anomaly(format_args!(
                "the link from {place} to {far} is ignored: nothing answers there when it is \
                 probed from {far}"
            ));
        }
        subnet.contest_switch(link.to);
        if self.first_report(subnet, guid.0) {
            let text = format!(
                "duplicate GUID: a node at {place} answers as {far}, whose link leads elsewhere. \
                 It is ignored; change the GUID of one of the nodes"
            );
            let out = subnet.left_out_place(link.from);
            subnet.journal.duplicate(guid, out, text);
        }
    }

    /// Two nodes share a GUID: reports both places, and decides which one keeps it.
    pub(super) fn report_duplicate(
        &mut self,
        subnet: &mut Subnet,
        entry: Contradiction,
        now: Instant,
    ) {
        // The node that both claims are about: both lead to it, or one leads to it and the other
        // comes from it.
        let about = match entry.newer {
            Newer::Link(newer) if newer.to == entry.older.from => newer.to,
            _ => entry.older.to,
        };
        let node = subnet.fabric.port(about).node;
        let guid = subnet.fabric.node(node).guid;
        let out = self.settle_rivals(subnet, entry, now);
        self.left_out.insert(out);
        if !self.first_report(subnet, guid.0) {
            return;
        }
        let num = subnet.fabric.port(about).num;
        match entry.newer {
            Newer::Link(newer) => {
                let kept = if out == newer.from { entry.older.from } else { newer.from };
                let (first, second) = (subnet.place(kept), subnet.place(out));
                let ignored = match self.left_out.contains(&kept) {
                    true => "Both are ignored, since it belongs to a third place",
                    false => "The second is ignored",
                };
                let lanes = subnet.lane_reversal(&[entry.older.from, entry.older.to, newer.from]);
                subnet.journal.duplicate(
                    guid,
                    subnet.left_out_place(out),
                    format!(
                        "duplicate GUID: {guid} port {num} was found twice, behind {first}, and \
                         behind or at {second}{lanes}. {ignored}; change the GUID of one of the \
                         nodes"
                    ),
                );
            }
            Newer::Down(port) => {
                let (first, second) = (subnet.place(entry.older.from), subnet.place(port));
                subnet.journal.duplicate(
                    guid,
                    subnet.left_out_place(out),
                    format!(
                        "duplicate GUID: port {num} of {guid} has a link when reached through \
                         {first}, and none when reached through {second}: these are two nodes. \
                         The first is ignored; change the GUID of one of them"
                    ),
                );
            }
            // That is reported as the switch is given up there.
            Newer::Home(_) => {}
        }
    }

    /// Handles a link that leads back to the same GUID.
    pub(in crate::sweep) fn leads_to_itself(&mut self, subnet: &mut Subnet, port: PortIndex) {
        self.left_out.insert(port);
        let (place, lanes) = (subnet.place(port), subnet.lane_reversal(&[port]));
        let text = format!(
            "{place} is connected to itself: a loopback plug, or the node behind it has the same \
             GUID{lanes}"
        );
        let (_, switches) = subnet.fabric.counts();
        if switches == 0 && subnet.settings.exit_on_fatal {
            // It is the only link there is. OpenSM ends, too.
            return subnet
                .events
                .push(Event::Fatal(format!("{text}. With -y the subnet manager keeps running")));
        }
        if subnet.state.left_out.contains(&port) {
            // It is in the list of problems.
            subnet.journal.report.anomalies += 1;
            return debug!("{text}");
        }
        subnet.anomaly(format_args!("{text}"));
    }

    /// Counts a duplicate GUID; returns whether to report it.
    pub(in crate::sweep) fn first_report(&mut self, subnet: &mut Subnet, guid: u64) -> bool {
        let reported = &mut self.contradictions.reported;
        if reported.contains(&guid) || reported.len() >= OPEN_MAX {
            return false;
        }
        reported.push(guid);
        subnet.journal.report.duplicate_guids += 1;
        true
    }
}

impl Subnet {
    /// The port of a switch whose link is left out, given one of the link's ends.
    pub(super) fn left_out_place(&self, end: PortIndex) -> Option<(Guid, PortNum)> {
        let ends = [Some(end), self.fabric.port(end).peer()];
        let port = ends.into_iter().flatten().find(|port| self.is_external(*port))?;
        Some((self.fabric.node_of(port).guid, self.fabric.port(port).num))
    }

    /// Whether this is a port of a switch other than port 0.
    pub(super) fn is_external(&self, port: PortIndex) -> bool {
        !self.is_adapter_port(port) && self.fabric.port(port).num.0 > 0
    }

    /// A link as it can be probed: an adapter forwards no probe.
    fn probed_from_switch(&self, from: PortIndex, to: PortIndex) -> Claim {
        match self.is_adapter_port(from) && self.is_external(to) {
            true => Claim { from: to, to: from },
            false => Claim { from, to },
        }
    }

    /// Reports a node that answered a repeated request with a third GUID. Where a cable was moved,
    /// one of the known nodes answers, or none.
    pub(super) fn report_third_guid(
        &mut self,
        older: Claim,
        newer: Newer,
        answerer: Option<&Answerer>,
    ) {
        let Some(answerer) = answerer else { return };
        let newer = match newer {
            Newer::Link(newer) => [newer.from, newer.to],
            Newer::Down(port) | Newer::Home(port) => [port; 2],
        };
        let known = [older.from, older.to, newer[0], newer[1]];
        if known.iter().all(|&port| self.fabric.node_of(port).guid != answerer.guid) {
            let place = self.place(newer[0]);
            self.anomaly(format_args!(
                "a node at {place} reports a different GUID each time, for example {}",
                answerer.guid
            ));
        }
    }

    pub(super) fn leads_to(&self, claim: Claim, answerer: &Answerer) -> bool {
        let (node, port) = (self.fabric.node_of(claim.to), self.fabric.port(claim.to));
        node.guid == answerer.guid && port.num == answerer.local_port
    }

    /// A hint for the log line about ports that were seen where they cannot be: on a 12x link the
    /// cause may be reversed lanes rather than a duplicate GUID. Empty if no port is 12x.
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
}
