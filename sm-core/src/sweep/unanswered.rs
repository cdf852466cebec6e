//! Requests that are refused or not answered.

use std::time::Instant;

use ib_mad::wire::mad::Status;
use tracing::{debug, warn};

use super::Sweeper;
use super::current::Stage;
use super::discover::Discovery;
use super::subnet::Subnet;
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Request};

impl Sweeper {
    /// Handles a response with a status other than 0.
    pub(super) fn handle_refusal(&mut self, now: Instant, request: Request, status: Status) {
        let (name, port) = (request.kind.name(), request.port());
        if let Some((task, subnet)) = self.task_of(request) {
            return task.refused(subnet, now, request, status);
        }
        let subnet = &mut self.subnet;
        match (&mut self.sweep.stage, request.kind) {
            (Stage::Discover(discovery), _) => return discovery.refused(subnet, request, status),
            (Stage::TakeOver(_), _) | (_, Kind::HandOver | Kind::Acknowledge) => {
                return warn!("{name} of {} is refused: {status}", subnet.place(port));
            }
            (_, Kind::MlnxExtPortInfo) => return subnet.fdr10_unsupported(request),
            (Stage::Poll, Kind::SmInfo) => {
                return self.sm_failed(port, format_args!("refuses a poll: {status}"));
            }
            (Stage::Links(links), Kind::Arm | Kind::Activate) => {
                let is_expected = links.step_refused(subnet, request);
                if is_expected {
                    return debug!("{name} of {} is refused: {status}", subnet.place(port));
                }
            }
            (_, Kind::SetSlToVl) => {
                if subnet.map_refused(request, status) {
                    return;
                }
                if subnet.settings.suppress_sl2vl_mad_status_errors {
                    return debug!("{name} of {} is refused: {status}", subnet.place(port));
                }
            }
            _ => {}
        }
        subnet.report_refusal(request, status);
        self.end_without_answer(request);
    }

    /// Handles a request that was given up after its last attempt.
    pub(super) fn handle_silence(&mut self, now: Instant, request: Request) {
        let (name, port) = (request.kind.name(), request.port());
        if let Some((task, subnet)) = self.task_of(request) {
            return task.silent(subnet, now, request);
        }
        let subnet = &mut self.subnet;
        match (&mut self.sweep.stage, request.kind) {
            (Stage::Discover(discovery), _) => return discovery.silent(subnet, request),
            // What follows in a takeover is decided at the end of its step.
            (Stage::TakeOver(_), _) | (_, Kind::HandOver | Kind::Acknowledge) => {
                return debug!("{name}: no answer from {}", subnet.place(port));
            }
            (_, Kind::MlnxExtPortInfo) => subnet.fdr10_unsupported(request),
            (Stage::Light(light), Kind::PortChange) => {
                light.grant_grace(now);
                debug!("{name}: no answer from {}", subnet.place(port));
            }
            (_, Kind::SmInfo) => {
                subnet.sm_is_mute(now, port);
                debug!("{name}: no answer from {}", subnet.place(port));
            }
            _ => subnet.report_silence(request),
        }
        self.end_without_answer(request);
    }

    /// What follows from a request without a result.
    fn end_without_answer(&mut self, request: Request) {
        let (subnet, port) = (&mut self.subnet, request.port());
        match (&mut self.sweep.stage, request.kind) {
            (_, Kind::SmInfo) => self.sm_failed(port, "leaves a poll unanswered"),
            (Stage::Light(light), Kind::PortChange) => {
                light.switch_silent(subnet.fabric.port(port).node);
            }
            (Stage::Tables(tables), Kind::SetForwarding) => {
                tables.block_failed(subnet.fabric.port(port).node);
            }
            (_, Kind::ClearPortChange) => {
                subnet.read_unset_ports(subnet.fabric.port(port).node);
            }
            _ => {}
        }
    }
}

impl Discovery {
    fn refused(&mut self, subnet: &mut Subnet, request: Request, status: Status) {
        match request.kind {
            Kind::LinkState => self.link_is_up(subnet, request),
            Kind::OwnNodeInfo => {
                let name = request.kind.name();
                subnet.error(format_args!("{name} of the SM's own node: {status}"));
            }
            Kind::MlnxExtPortInfo => subnet.fdr10_unsupported(request),
            _ => {
                subnet.report_refusal(request, status);
                self.end_without_answer(subnet, request);
            }
        }
    }

    /// Handles a request that was given up, unless it can be repeated by another route.
    fn silent(&mut self, subnet: &mut Subnet, request: Request) {
        if request.kind == Kind::Probe {
            return subnet.probe_unanswered(request);
        }
        if !self.defer(subnet, request) {
            self.given_up(subnet, request);
        }
    }

    /// Handles a request that is not repeated.
    pub(super) fn given_up(&mut self, subnet: &mut Subnet, request: Request) {
        match request.kind {
            Kind::OwnNodeInfo => {
                subnet.hint_at_m_key(request);
                let name = request.kind.name();
                subnet.error(format_args!("{name}: the SM's own node does not answer"));
            }
            // Reported at the end of the discovery, if no node is found there.
            Kind::Probe | Kind::ProbeAgain | Kind::LinkState => {}
            Kind::MlnxExtPortInfo => subnet.fdr10_unsupported(request),
            kind => {
                if kind == Kind::PortInfo {
                    self.quiet.insert(subnet.fabric.port(request.port()).node);
                }
                subnet.report_silence(request);
            }
        }
        self.end_without_answer(subnet, request);
    }

    /// What follows from a request without a result.
    fn end_without_answer(&mut self, subnet: &mut Subnet, request: Request) {
        match request.kind {
            Kind::ProbeAgain => self.probed_again(subnet, request, None),
            Kind::SwitchInfo => {
                self.silent.insert(subnet.fabric.port(request.port()).node);
            }
            Kind::PortInfo => self.port_is_unread(subnet, request.port()),
            Kind::ClearPortChange => {
                let node = subnet.fabric.port(request.port()).node;
                if self.is_unreachable(subnet, request) {
                    self.silent.insert(node);
                } else {
                    subnet.read_ports(node);
                }
            }
            _ => {}
        }
    }

    /// PortInfo of `port` is refused, or not answered. That says nothing of its node's other ports:
    /// its link leads where it led, but is not used until it can be read.
    fn port_is_unread(&mut self, subnet: &mut Subnet, port: PortIndex) {
        subnet.fabric.port_mut(port).known = false;
        if let Some(peer) = subnet.fabric.port(port).peer().filter(|_| !self.full) {
            subnet.fabric.link_seen(port, subnet.state.discovery);
            subnet.fabric.link_seen(peer, subnet.state.discovery);
        }
    }
}

impl Subnet {
    pub(super) fn report_refusal(&mut self, request: Request, status: Status) {
        let (name, port) = (request.kind.name(), request.port());
        let place = self.place(port);
        let text = format_args!("{name} of {place} is refused: {status}");
        match request.kind.is_set() {
            true => self.fault(port, text),
            false => self.node_oddity(port, text),
        }
    }

    pub(super) fn report_silence(&mut self, request: Request) {
        let (name, port) = (request.kind.name(), request.port());
        if !request.kind.is_set() {
            let place = self.place(port);
            return self.node_oddity(port, format_args!("{name}: no answer from {place}"));
        }
        if let Some(why) = self.suspect_m_key(port) {
            return self.fault(port, format_args!("{name}: no answer: {why}"));
        }
        self.hint_at_m_key(request);
        let place = self.place(port);
        self.fault(port, format_args!("{name}: no answer from {place}"));
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
