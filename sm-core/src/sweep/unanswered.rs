//! What follows when a request is refused, or nobody answers it.

use std::time::Instant;

use ib_mad::wire::mad::Status;
use tracing::{debug, warn};

use super::{Phase, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Request};

impl Sweeper {
    /// An answer that is no answer: a status other than 0.
    pub(super) fn handle_refusal(&mut self, now: Instant, request: Request, status: Status) {
        let name = request.kind.name();
        if request.kind == Kind::SetMulticast {
            return self.multicast_lost(now, request, status);
        }
        if self.sweep.phase == Phase::TakeOver {
            let place = self.place(request.port());
            return warn!("{name} of {place} is refused: {status}");
        }
        if request.kind == Kind::SetAddress && self.sweep.is_idle() {
            return self.client_lost(now, request.port());
        }
        if matches!(request.kind, Kind::SetGuidInfo | Kind::HandOver | Kind::Acknowledge) {
            let place = self.place(request.port());
            return warn!("{name} of {place} is refused: {status}");
        }
        if request.kind == Kind::LinkState {
            return self.link_is_up(request);
        }
        if request.kind == Kind::OwnNodeInfo {
            return self.error(format_args!("{name} of the SM's own node: {status}"));
        }
        if request.kind == Kind::MlnxExtPortInfo {
            return self.fdr10_unknown(request);
        }
        if request.kind == Kind::SmInfo && self.sweep.phase == Phase::Poll {
            let how = format_args!("refuses a poll: {status}");
            return self.sm_says_nothing(request.port(), how);
        }
        let place = self.place(request.port());
        let steps = matches!(request.kind, Kind::Arm | Kind::Activate);
        if steps && self.sweep.read_again.insert((request.port(), request.kind == Kind::Arm)) {
            // A step that was taken cannot be taken twice: if its answer was lost, a repeat is
            // refused. What the port says of itself decides.
            debug!("{name} of {place} is refused: {status}");
            self.exchange.push(Request::new(Kind::PortInfo, request.port()));
            return;
        }
        let is_map = request.kind == Kind::SetSlToVl;
        if is_map && self.map_refused(request, status) {
            return;
        }
        if is_map && self.settings.suppress_sl2vl_mad_status_errors {
            debug!("{name} of {place} is refused: {status}");
        } else if request.kind.is_set() {
            self.fault(request.port(), format_args!("{name} of {place} is refused: {status}"));
        } else {
            let text = format_args!("{name} of {place} is refused: {status}");
            self.complain_of(request.port(), text);
        }
        self.settle_without_answer(request);
    }

    /// A request that was given up. In a discovery it may be made again, when it is known how to.
    pub(super) fn handle_silence(&mut self, now: Instant, request: Request) {
        if request.kind == Kind::Probe && self.sweep.phase == Phase::Discover {
            return self.probe_unanswered(request);
        }
        if !self.doubts(request) {
            self.handle_lasting_silence(now, request);
        }
    }

    /// A request that was given up for good.
    pub(super) fn handle_lasting_silence(&mut self, now: Instant, request: Request) {
        let name = request.kind.name();
        if request.kind == Kind::SetMulticast {
            return self.multicast_lost(now, request, "no answer");
        }
        if request.kind == Kind::SetAddress && self.sweep.is_idle() {
            return self.client_lost(now, request.port());
        }
        if self.sweep.phase == Phase::TakeOver {
            // What follows from it is decided when the stage ends.
            return debug!("{name}: no answer from {}", self.place(request.port()));
        }
        if matches!(request.kind, Kind::SetGuidInfo | Kind::HandOver | Kind::Acknowledge) {
            return debug!("{name}: no answer from {}", self.place(request.port()));
        }
        if request.kind.is_set()
            && let Some(why) = self.suspect_m_key(request.port())
        {
            self.fault(request.port(), format_args!("{name}: no answer: {why}"));
            return self.settle_without_answer(request);
        }
        if request.kind.is_set() || request.kind == Kind::OwnNodeInfo {
            self.hint_at_m_key(request);
        }
        match request.kind {
            Kind::OwnNodeInfo => {
                self.error(format_args!("{name}: the SM's own node does not answer"));
            }
            Kind::PortChange | Kind::SmInfo => {
                if request.kind == Kind::PortChange {
                    self.grant_grace(now);
                } else {
                    self.sm_is_mute(now, request.port());
                }
                debug!("{name}: no answer from {}", self.place(request.port()));
            }
            // Told at the end of the discovery, if nobody is found there.
            Kind::Probe | Kind::ProbeAgain | Kind::LinkState => {}
            Kind::MlnxExtPortInfo => self.fdr10_unknown(request),
            kind => {
                if kind == Kind::PortInfo && self.sweep.phase == Phase::Discover {
                    self.sweep.quiet.insert(self.fabric.port(request.port()).node);
                }
                let place = self.place(request.port());
                if kind.is_set() {
                    self.fault(request.port(), format_args!("{name}: no answer from {place}"));
                } else {
                    self.complain_of(
                        request.port(),
                        format_args!("{name}: no answer from {place}"),
                    );
                }
            }
        }
        self.settle_without_answer(request);
    }

    /// Agents leave a request with another M_Key than theirs without answer. Said once.
    fn hint_at_m_key(&mut self, request: Request) {
        if std::mem::replace(&mut self.m_keys.hinted, true) {
            return;
        }
        let place = match request.kind {
            Kind::OwnNodeInfo => "the SM's own node".to_owned(),
            _ => self.place(request.port()),
        };
        warn!(
            "no answer from {place}: if an M_Key was set by another subnet manager, give it as \
             m_key in the configuration (-F), or copy that one's guid2mkey and neighbors into the \
             state directory"
        );
    }

    /// What follows from a request that yielded nothing.
    fn settle_without_answer(&mut self, request: Request) {
        match request.kind {
            Kind::OwnNodeInfo
            | Kind::Probe
            | Kind::LinkState
            | Kind::NodeDescription
            | Kind::MlnxExtPortInfo
            | Kind::PKeys
            | Kind::Forwarding
            | Kind::Multicast => {}
            Kind::ProbeAgain => self.probed_again(request, None),
            Kind::SwitchInfo => {
                if self.sweep.phase == Phase::Discover {
                    self.sweep.silent.insert(self.fabric.port(request.port()).node);
                }
            }
            Kind::PortInfo => {
                if self.sweep.phase == Phase::Discover {
                    self.port_is_unread(request.port());
                }
            }
            Kind::ClearPortChange => {
                let node = self.fabric.port(request.port()).node;
                if self.is_in_vain(request) {
                    self.sweep.silent.insert(node);
                    return;
                }
                self.go_on_after_clearing(node);
            }
            Kind::PortChange => {
                self.sweep.silent.insert(self.fabric.port(request.port()).node);
            }
            Kind::SmInfo => {
                self.sm_says_nothing(request.port(), "leaves a poll unanswered");
            }
            Kind::SetForwarding => {
                self.sweep.unprogrammed.insert(self.fabric.port(request.port()).node);
            }
            Kind::SetPKeys
            | Kind::SetMulticast
            | Kind::SetSlToVl
            | Kind::SetGuidInfo
            | Kind::SetMlnxExtPortInfo
            | Kind::SetVlArbitration
            | Kind::SetAddress
            | Kind::SetSwitchInfo
            | Kind::DisablePort
            | Kind::EnablePort
            | Kind::Arm
            | Kind::Activate
            | Kind::HandOver
            | Kind::Acknowledge => {}
        }
    }

    /// PortInfo of `port` is refused, or not answered. That says nothing of its node's other ports:
    /// its link leads where it led, but is not used until it can be read.
    fn port_is_unread(&mut self, port: PortIndex) {
        self.fabric.port_mut(port).known = false;
        if let Some(peer) = self.fabric.port(port).peer().filter(|_| !self.sweep.full) {
            self.fabric.link_seen(port, self.subnet.discovery);
            self.fabric.link_seen(peer, self.subnet.discovery);
        }
    }

    /// Whether a node said nothing of any of its ports.
    pub(super) fn is_unread(&self, node: NodeIndex) -> bool {
        let is_switch = self.fabric.node(node).switch.is_some();
        self.fabric.ports_of(node).all(|port| {
            let port = self.fabric.port(port);
            !port.known || !is_switch && port.peer().is_none()
        })
    }

    /// Tells of ports that could not be read, though their nodes are there.
    pub(super) fn find_unread_ports(&mut self) {
        let is_unread = |port: &PortIndex| {
            let entry = self.fabric.port(*port);
            !entry.known && (self.fabric.node_of(*port).switch.is_some() || entry.peer().is_some())
        };
        let nodes = self.fabric.nodes().flat_map(|(index, _)| self.fabric.ports_of(index));
        for port in nodes.filter(is_unread).collect::<Vec<_>>() {
            let place = self.place(port);
            self.fault(port, format_args!("{place} cannot be read, and its link is not used"));
        }
    }
}
