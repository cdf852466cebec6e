//! Selects the client that receives a packet at a port, by the classes, methods and QPs assigned to
//! each attached client.
//!
//! Responses go to the client whose id is in the top 16 bits of their transaction id; packets to
//! QPs above 1 to the client that has the QP. Requests go to the client that declared their method
//! in their class, else to the one that declared the class, else to one that receives all
//! undeclared classes, as `ibsim` does for managers.

use std::collections::HashMap;

use ib_mad::types::Qpn;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{MadHeader, Method, MgmtClass};

use crate::subnet::{PortIndex, Subnet};

/// Limit of clients of a fabric: their ids are 16 bits of a transaction id.
pub const ENDPOINTS_MAX: usize = 1 << 16;

/// A client attached to a port. Its id is reused after it is detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(u16);

impl Endpoint {
    /// The id: the top 16 bits of its requests' transaction ids.
    pub const fn id(self) -> u16 {
        self.0
    }
}

/// Why a client could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The node has no such port.
    #[error("the node has no port {port}")]
    NoSuchPort {
        /// The port number.
        port: u8,
    },
    /// All ids are in use.
    #[error("limit of {ENDPOINTS_MAX} attached clients reached")]
    TooMany,
}

/// Another client of the port has the class already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("class {class} of this node belongs to client {owner}")]
pub struct ClassTaken {
    /// The class.
    pub class: MgmtClass,
    /// Id of the client that has the class.
    pub owner: u16,
}

/// Methods that only the client serving a class receives: all but Report(), which goes to the
/// service's clients.
const SERVED: u128 = !(1 << Method::REPORT.0);

/// Set of management classes.
type Classes = [u64; 4];

#[derive(Clone)]
struct Client {
    port: PortIndex,
    qpn: Qpn,
    classes: Classes,
    /// Methods declared, one bit each, by class.
    methods: Vec<(MgmtClass, u128)>,
    takes_requests: bool,
    is_sm: bool,
}

/// All attached clients.
#[derive(Default)]
pub(super) struct Endpoints {
    clients: Vec<Option<Client>>,
    by_port: HashMap<PortIndex, Vec<Endpoint>>,
    attached: usize,
}

impl Endpoints {
    /// Attaches a client with the lowest free id.
    pub(super) fn attach(&mut self, port: PortIndex) -> Result<Endpoint, AttachError> {
        let free = self.clients.iter().position(Option::is_none);
        let place = free.unwrap_or(self.clients.len());
        let endpoint = Endpoint(u16::try_from(place).map_err(|_| AttachError::TooMany)?);
        if place == self.clients.len() {
            self.clients.push(None);
        }
        self.clients[place] = Some(Client {
            port,
            qpn: Qpn::SMI,
            classes: [0; 4],
            methods: Vec::new(),
            takes_requests: false,
            is_sm: false,
        });
        self.by_port.entry(port).or_default().push(endpoint);
        self.attached += 1;
        Ok(endpoint)
    }

    /// Detaches a client; returns its port.
    pub(super) fn detach(&mut self, endpoint: Endpoint) -> Option<PortIndex> {
        let client = self.clients.get_mut(usize::from(endpoint.0))?.take()?;
        self.attached -= 1;
        if let Some(others) = self.by_port.get_mut(&client.port) {
            others.retain(|&other| other != endpoint);
            if others.is_empty() {
                self.by_port.remove(&client.port);
            }
        }
        Some(client.port)
    }

    pub(super) fn len(&self) -> usize {
        self.attached
    }

    #[inline]
    pub(super) fn port(&self, endpoint: Endpoint) -> Option<PortIndex> {
        self.client(endpoint).map(|client| client.port)
    }

    pub(super) fn set_qpn(&mut self, endpoint: Endpoint, qpn: Qpn) {
        if let Some(client) = self.client_mut(endpoint) {
            client.qpn = qpn;
        }
    }

    pub(super) fn set_takes_requests(&mut self, endpoint: Endpoint, takes: bool) {
        if let Some(client) = self.client_mut(endpoint) {
            client.takes_requests = takes;
        }
    }

    pub(super) fn set_is_sm(&mut self, endpoint: Endpoint, is_sm: bool) {
        if let Some(client) = self.client_mut(endpoint) {
            client.is_sm = is_sm;
        }
    }

    /// Assigns classes to a client, all of them or none.
    pub(super) fn declare(
        &mut self,
        endpoint: Endpoint,
        classes: &[MgmtClass],
    ) -> Result<(), ClassTaken> {
        let Some(port) = self.port(endpoint) else { return Ok(()) };
        for other in self.at(port).filter(|&other| other != endpoint) {
            let taken = self.client(other).and_then(|client| {
                classes
                    .iter()
                    .copied()
                    .find(|&class| client.has_class(class) || client.methods(class) & SERVED != 0)
            });
            if let Some(class) = taken {
                return Err(ClassTaken { class, owner: other.0 });
            }
        }
        if let Some(client) = self.client_mut(endpoint) {
            for class in classes {
                client.classes[usize::from(class.0 / 64)] |= 1 << (class.0 % 64);
            }
        }
        Ok(())
    }

    /// Assigns methods of a class to a client, replacing earlier ones.
    pub(super) fn declare_methods(
        &mut self,
        endpoint: Endpoint,
        class: MgmtClass,
        methods: u128,
    ) -> Result<(), ClassTaken> {
        let Some(port) = self.port(endpoint) else { return Ok(()) };
        let takes = |client: &Client| {
            let whole = if client.has_class(class) { SERVED } else { 0 };
            (client.methods(class) | whole) & methods != 0
        };
        let other =
            self.at(port).find(|&other| other != endpoint && self.client(other).is_some_and(takes));
        if let Some(other) = other {
            return Err(ClassTaken { class, owner: other.0 });
        }
        if let Some(client) = self.client_mut(endpoint) {
            client.methods.retain(|&(other, _)| other != class);
            if methods != 0 {
                client.methods.push((class, methods));
            }
        }
        Ok(())
    }

    /// Whether any client of the port receives all undeclared classes.
    pub(super) fn any_takes_requests(&self, port: PortIndex) -> bool {
        self.at(port).filter_map(|at| self.client(at)).any(|client| client.takes_requests)
    }

    /// Whether any client of the port has declared itself a subnet manager.
    pub(super) fn any_is_sm(&self, port: PortIndex) -> bool {
        self.at(port).filter_map(|at| self.client(at)).any(|client| client.is_sm)
    }

    /// The client that receives a packet which arrived at its node by `port`.
    pub(super) fn receiver(
        &self,
        subnet: &Subnet,
        port: PortIndex,
        dqp: Qpn,
        header: &MadHeader<&[u8; MAD_LEN]>,
    ) -> Option<Endpoint> {
        let is_response = header.method().is_response();
        if is_response {
            let asker = Endpoint((header.tid() >> 48) as u16);
            let asked_from = self.port(asker).map(|at| subnet[at].node);
            if asked_from == Some(subnet[port].node) {
                return Some(asker);
            }
        }
        let port = subnet.client_port(port);
        let find = |takes: &dyn Fn(&Client) -> bool| {
            self.at(port).find(|&endpoint| self.client(endpoint).is_some_and(takes))
        };
        if dqp > Qpn::GSI {
            return find(&|client| client.qpn == dqp);
        }
        if is_response {
            return None;
        }
        let class = header.mgmt_class();
        let method = 1 << (header.method().0 & 0x7F);
        find(&|client| client.methods(class) & method != 0)
            .or_else(|| find(&|client| client.has_class(class)))
            .or_else(|| find(&|client| client.takes_requests))
    }

    fn at(&self, port: PortIndex) -> impl Iterator<Item = Endpoint> + '_ {
        self.by_port.get(&port).into_iter().flatten().copied()
    }

    fn client(&self, endpoint: Endpoint) -> Option<&Client> {
        self.clients.get(usize::from(endpoint.0))?.as_ref()
    }

    fn client_mut(&mut self, endpoint: Endpoint) -> Option<&mut Client> {
        self.clients.get_mut(usize::from(endpoint.0))?.as_mut()
    }
}

impl Client {
    fn methods(&self, class: MgmtClass) -> u128 {
        self.methods.iter().find(|declared| declared.0 == class).map_or(0, |declared| declared.1)
    }

    fn has_class(&self, class: MgmtClass) -> bool {
        self.classes[usize::from(class.0 / 64)] & 1 << (class.0 % 64) != 0
    }
}
