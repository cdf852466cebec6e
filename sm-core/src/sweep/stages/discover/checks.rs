//! Checks of two results of a discovery that exclude each other, before they count.
//!
//! Cables may be moved while a discovery runs. Two results exclude each other only if both hold at
//! one time: the older one is checked before and after the newer one. And a probe says nothing
//! about the node from which it is sent if the route to that node now leads to another one; then
//! all that was read by such routes is of no use, and a discovery of the whole fabric starts over.

use std::time::Instant;

use super::Discovery;
use super::answerer::Answerer;
use super::contradiction::OPEN_MAX;
use super::notes::{Check, Claim, Contradiction, Newer};
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;

impl Contradiction {
    fn new(older: Claim, newer: Newer) -> Self {
        let entry = Self { older, newer, check: Check::Older, is_silent: false, settled: false };
        let check = entry.order()[0];
        Self { check, ..entry }
    }

    /// Whether this is no contradiction, but a new link that the other end is to confirm.
    fn is_confirmation(&self) -> bool {
        let reverse = Claim { from: self.older.to, to: self.older.from };
        self.newer == Newer::Link(reverse)
    }

    /// What is checked, in this order.
    fn order(&self) -> &'static [Check] {
        use Check::{Newer as N, NewerAgain, Older, OlderAgain, RouteOfNewer, RouteOfOlder};
        match self.newer {
            Newer::Home(_) => &[N, RouteOfNewer, Older, RouteOfOlder, NewerAgain],
            _ if self.is_confirmation() => &[Older, RouteOfOlder, RouteOfNewer, N],
            _ => &[Older, N, RouteOfOlder, RouteOfNewer, OlderAgain],
        }
    }

    /// The check that follows if what is being checked holds.
    fn next(&self) -> Option<Check> {
        let mut later = self.order().iter().skip_while(|check| **check != self.check);
        later.nth(1).copied()
    }

    fn is_newer(&self) -> bool {
        matches!(self.check, Check::Newer | Check::RouteOfNewer | Check::NewerAgain)
    }

    /// The port from which the claim is made that is being checked.
    fn claimant(&self) -> PortIndex {
        match self.newer {
            Newer::Link(Claim { from: port, .. }) | Newer::Down(port) | Newer::Home(port)
                if self.is_newer() =>
            {
                port
            }
            _ => self.older.from,
        }
    }

    /// The node whose route is being checked.
    fn on_route(&self, subnet: &Subnet) -> Option<NodeIndex> {
        let is_route = matches!(self.check, Check::RouteOfOlder | Check::RouteOfNewer);
        is_route.then(|| subnet.fabric.port(self.claimant()).node)
    }

    /// The request that checks it; `None` if there is nothing to ask.
    fn request(&self, subnet: &Subnet, index: usize) -> Option<Request> {
        let number = index as u16;
        if let Some(node) = self.on_route(subnet) {
            let way = subnet.fabric.upstream(node)?;
            return Some(Request::block(Kind::ProbeAgain, way, number));
        }
        Some(match self.newer {
            // Numbered from 1, since 0 is the number of an ordinary request.
            Newer::Down(port) if self.is_newer() => {
                Request::block(Kind::PortInfo, port, number + 1)
            }
            Newer::Home(port) if self.is_newer() => {
                let arrival = subnet.fabric.port(self.older.to).num;
                Request::block(Kind::ProbeBeyond, port, arrival.0.into())
            }
            _ => Request::block(Kind::ProbeAgain, self.claimant(), number),
        })
    }

    /// Whether an answer is as claimed.
    fn holds(&self, subnet: &Subnet, answerer: &Answerer) -> bool {
        if let Some(node) = self.on_route(subnet) {
            return subnet.fabric.node(node).guid == answerer.guid;
        }
        match self.newer {
            Newer::Link(claim) if self.is_newer() => subnet.leads_to(claim, answerer),
            Newer::Home(_) if self.is_newer() => {
                let reverse = Claim { from: self.older.to, to: self.older.from };
                !subnet.leads_to(reverse, answerer)
            }
            _ => subnet.leads_to(self.older, answerer),
        }
    }
}

impl Discovery {
    /// PortInfo of `port` shows no link, although `peer` was found to lead to it. `number` is not 0
    /// if the request was sent to resolve a contradiction.
    pub(in crate::sweep) fn contradicted_by_down(
        &mut self,
        subnet: &mut Subnet,
        port: PortIndex,
        peer: PortIndex,
        number: u16,
        now: Instant,
    ) {
        match usize::from(number).checked_sub(1) {
            None => self.look_into(subnet, Claim { from: peer, to: port }, Newer::Down(port), now),
            Some(index) => self.go_on(subnet, index, now),
        }
    }

    /// Checks what excludes each other.
    pub(super) fn look_into(
        &mut self,
        subnet: &mut Subnet,
        older: Claim,
        newer: Newer,
        now: Instant,
    ) {
        let entry = Contradiction::new(older, newer);
        let open = &mut self.contradictions.open;
        if open.len() < OPEN_MAX {
            if let Some(request) = entry.request(subnet, open.len()) {
                subnet.exchange.push(request);
            }
            open.push(entry);
        } else {
            self.both_hold(subnet, entry, now);
        }
    }

    /// Handles the result of a probe from a switch's former place.
    pub(in crate::sweep) fn probed_beyond(
        &mut self,
        subnet: &mut Subnet,
        request: Request,
        data: Option<&[u8; 64]>,
        now: Instant,
    ) {
        let is_it = |entry: &Contradiction| {
            !entry.settled && entry.newer == Newer::Home(request.port()) && entry.is_newer()
        };
        if let Some(index) = self.contradictions.open.iter().position(is_it) {
            self.checked(subnet, index, data, now);
        }
    }

    /// Handles the result of a repeated probe: `data` is the NodeInfo received, if any.
    pub(in crate::sweep) fn probed_again(
        &mut self,
        subnet: &mut Subnet,
        request: Request,
        data: Option<&[u8; 64]>,
        now: Instant,
    ) {
        self.checked(subnet, usize::from(request.block), data, now);
    }

    fn checked(
        &mut self,
        subnet: &mut Subnet,
        index: usize,
        data: Option<&[u8; 64]>,
        now: Instant,
    ) {
        let Some(entry) = self.contradictions.open.get_mut(index).filter(|entry| !entry.settled)
        else {
            return;
        };
        let answerer = data.and_then(|data| Answerer::parse(data).ok());
        let is_home = matches!(entry.newer, Newer::Home(_));
        let holds = match &answerer {
            Some(answerer) => entry.holds(subnet, answerer),
            // Nothing is linked there.
            None => is_home && matches!(entry.check, Check::Newer | Check::NewerAgain),
        };
        if entry.check == Check::Older && entry.is_confirmation() {
            entry.is_silent = answerer.is_none();
            if !holds {
                return self.go_on(subnet, index, now);
            }
        } else if holds {
            return self.go_on(subnet, index, now);
        }
        entry.settled = true;
        let entry = *entry;
        let is_route = entry.on_route(subnet).is_some();
        let is_outdated = is_route && (answerer.is_some() || entry.is_confirmation());
        if is_outdated && self.starts_over(subnet, now) {
            return;
        }
        self.one_no_longer_holds(subnet, entry, answerer.as_ref());
    }

    /// What was checked holds: goes on with the next check, or reports what is the case.
    fn go_on(&mut self, subnet: &mut Subnet, index: usize, now: Instant) {
        loop {
            let Some(entry) = self.contradictions.open.get_mut(index) else { return };
            if entry.settled {
                return;
            }
            let Some(next) = entry.next() else {
                entry.settled = true;
                let entry = *entry;
                return self.both_hold(subnet, entry, now);
            };
            entry.check = next;
            if let Some(request) = entry.request(subnet, index) {
                return subnet.exchange.push(request);
            }
        }
    }

    fn both_hold(&mut self, subnet: &mut Subnet, entry: Contradiction, now: Instant) {
        match entry.newer {
            Newer::Link(link) if entry.is_confirmation() => {
                self.refuse_link(subnet, link, entry.is_silent);
            }
            Newer::Link(_) => self.report_duplicate(subnet, entry, now),
            Newer::Down(port) => {
                self.report_duplicate(subnet, entry, now);
                subnet.fabric.unlink(port);
            }
            Newer::Home(port) => {
                let node = subnet.fabric.port(entry.older.to).node;
                self.displaces(subnet, port, node);
                self.probe(subnet, port);
            }
        }
    }

    /// A cable was moved, or the claims are of one node: what still holds counts.
    fn one_no_longer_holds(
        &mut self,
        subnet: &mut Subnet,
        entry: Contradiction,
        answerer: Option<&Answerer>,
    ) {
        let Contradiction { older, newer, check, .. } = entry;
        let is_newer = entry.is_newer();
        match newer {
            Newer::Link(link) if entry.is_confirmation() => {
                match check {
                    Check::Older => _ = self.contradictions.confirmed.insert(link),
                    Check::RouteOfOlder | Check::RouteOfNewer => {
                        return self.refuse_link(subnet, link, true);
                    }
                    _ => {}
                }
                self.probe(subnet, link.from);
            }
            Newer::Home(port) => {
                if matches!(check, Check::Newer | Check::NewerAgain) {
                    self.contradictions.confirmed.insert(older);
                } else if !is_newer {
                    subnet.fabric.unlink(older.from);
                    self.probe(subnet, older.from);
                }
                self.probe(subnet, port);
            }
            _ => {
                subnet.report_third_guid(older, newer, answerer);
                if is_newer {
                    return;
                }
                subnet.fabric.unlink(older.from);
                if let Newer::Link(newer) = newer {
                    self.probe(subnet, newer.from);
                }
            }
        }
    }
}
