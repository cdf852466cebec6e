//! Reports of requests that are refused or not answered, and of ports that could not be read.

use ib_mad::wire::mad::Status;
use tracing::warn;

use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Destination, Request};
use crate::sweep::subnet::Subnet;

impl Subnet {
    /// Reports a response with a status other than 0: a fault if it is to a Set().
    pub(in crate::sweep) fn report_refusal(&mut self, request: Request, status: Status) {
        let (name, port) = (request.kind.name(), request.port());
        let place = self.place(port);
        let text = format_args!("{place} refused {name}: {status}");
        match request.kind.is_set() {
            true => self.fault(port, text),
            false => self.node_anomaly(port, text),
        }
    }

    /// Reports a request without a response: a fault if it is a Set().
    pub(in crate::sweep) fn report_silence(&mut self, request: Request) {
        let (name, port) = (request.kind.name(), request.port());
        if !request.kind.is_set() {
            let place = self.place(port);
            return self.node_anomaly(port, format_args!("{name}: no answer from {place}"));
        }
        if let Some(why) = self.suspect_m_key(port) {
            return self.fault(port, format_args!("{name}: no answer: {why}"));
        }
        self.hint_at_m_key(request);
        let place = self.place(port);
        self.fault(port, format_args!("{name}: no answer from {place}"));
    }

    /// Logs once that a wrong M_Key may be the cause: agents do not respond to one.
    pub(in crate::sweep) fn hint_at_m_key(&mut self, request: Request) {
        if std::mem::replace(&mut self.m_keys.hinted, true) {
            return;
        }
        let place = match request.destination() {
            Destination::OwnNode => "the SM's own node".to_owned(),
            Destination::NodeOf(port)
            | Destination::Behind(port)
            | Destination::Beyond(port, _) => self.place(port),
        };
        warn!(
            "no answer from {place}: another subnet manager may have set an M_Key. Set m_key in \
             the configuration (-F) to it, or copy guid2mkey and neighbors of that manager to the \
             state directory"
        );
    }

    /// Whether no port of a node could be read.
    pub(in crate::sweep) fn is_unread(&self, node: NodeIndex) -> bool {
        let is_switch = self.fabric.node(node).switch.is_some();
        self.fabric.ports_of(node).all(|port| {
            let port = self.fabric.port(port);
            !port.known || !is_switch && port.peer().is_none()
        })
    }

    /// Reports ports that could not be read although their nodes were found.
    pub(in crate::sweep) fn find_unread_ports(&mut self) {
        let is_unread = |port: &PortIndex| {
            let entry = self.fabric.port(*port);
            !entry.known && (self.fabric.node_of(*port).switch.is_some() || entry.peer().is_some())
        };
        let nodes = self.fabric.nodes().flat_map(|(index, _)| self.fabric.ports_of(index));
        for port in nodes.filter(is_unread).collect::<Vec<_>>() {
            let place = self.place(port);
            self.fault(port, format_args!("{place} cannot be read; its link is not used"));
        }
    }
}
