//! Operations for operators and tests: attach clients, cause and repair faults, inspect state.

use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Lid, PKey, PortNum, Qpn};
use ib_mad::wire::attribute::{
    CapabilityMask, LocalChanges, NodeType, PortPhysState, PortState, TrapNumber,
};
use ib_mad::wire::mad::MgmtClass;

use super::{AttachError, ClassTaken, Endpoint, Fabric};
use crate::agent::{self, trap};
use crate::fault::{LinkFaults, Probability, Refusal};
use crate::subnet::{NodeIndex, PortIndex};

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No node has this id, description or GUID.
    #[error("no node '{0}'; use its id, description or GUID (0x...)")]
    NoSuchNode(String),
    /// The node has no such port.
    #[error("node '{node}' has no port {port}")]
    NoSuchPort {
        /// The node's id.
        node: String,
        /// The port number.
        port: u8,
    },
    /// The port has no cable.
    #[error("port {port} of node '{node}' has no cable")]
    NoCable {
        /// The node's id.
        node: String,
        /// The port number.
        port: u8,
    },
    /// The port has a cable.
    #[error("port {port} of node '{node}' has a cable; unplug it first")]
    HasCable {
        /// The node's id.
        node: String,
        /// The port number.
        port: u8,
    },
    /// No cable fits: a switch's port 0 is inside, and a port is not cabled to itself.
    #[error("no cable fits into port {port} of node '{node}'")]
    NoSocket {
        /// The node's id.
        node: String,
        /// The port number.
        port: u8,
    },
    /// Only channel adapters have virtual ports.
    #[error("node '{0}' is no channel adapter, and has no virtual ports")]
    NoAdapter(String),
    /// The port does not support such a virtual port.
    #[error(
        "port {port} of node '{node}' has no virtual port {index}; give it some with \
         virtual-ports NODE HIGHEST, and use indices from 1 on"
    )]
    NoVirtualPort {
        /// The node's id.
        node: String,
        /// The port number.
        port: u8,
        /// The index of the virtual port.
        index: u16,
    },
    /// The settings of congestion control do not make the port mark packets, or log.
    #[error(
        "port {port} of node '{node}' does not mark packets or log events: its threshold of \
         congestion control is 0"
    )]
    DoesNotMark {
        /// The node's id.
        node: String,
        /// The port number.
        port: u8,
    },
}

/// A node's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView<'a> {
    /// Id in the net.
    pub name: &'a str,
    /// Switch, channel adapter or router.
    pub node_type: NodeType,
    /// NodeGUID.
    pub guid: Guid,
    /// Number of physical ports.
    pub num_ports: u8,
    /// Whether it is powered.
    pub up: bool,
    /// A switch's linear forwarding table, up to the highest LID programmed; empty for other nodes.
    pub lft: &'a [u8],
}

/// A port's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortView {
    /// PortGUID.
    pub guid: Guid,
    /// Base LID.
    pub lid: Lid,
    /// LMC: the port has 2^LMC LIDs.
    pub lmc: u8,
    /// MasterSMLID.
    pub master_sm_lid: Lid,
    /// PortState.
    pub state: PortState,
    /// PortPhysicalState.
    pub phys_state: PortPhysState,
    /// How often its clients were asked to register again.
    pub reregistrations: u64,
    /// The cable, if there is one.
    pub link: Option<LinkView>,
}

/// The far end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// The far node.
    pub node: NodeIndex,
    /// The far port.
    pub port: u8,
    /// Whether a fault has cut it.
    pub cut: bool,
}

impl Fabric {
    /// Attaches a client to a port, of a planarized port to all its planes; 0 selects a switch's
    /// port 0 or an adapter's first port.
    pub fn attach(&mut self, node: NodeIndex, port: u8) -> Result<Endpoint, AttachError> {
        let number = match port {
            0 if (node.0 as usize) < self.subnet.nodes().len() => {
                self.subnet[self.subnet.default_port(node)].number
            }
            other => other,
        };
        let port = self.subnet.port(node, number).ok_or(AttachError::NoSuchPort { port })?;
        self.endpoints.attach(self.subnet.client_port(port))
    }

    /// Detaches a client. The caller discards deliveries still queued for it.
    pub fn detach(&mut self, now: Instant, endpoint: Endpoint) {
        if let Some(port) = self.endpoints.detach(endpoint) {
            self.show_is_sm(now, port);
        }
    }

    /// Number of attached clients.
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// Assigns management classes of its port to a client, which then receives requests of these
    /// classes. Assigns all or none.
    pub fn declare(&mut self, endpoint: Endpoint, classes: &[MgmtClass]) -> Result<(), ClassTaken> {
        self.endpoints.declare(endpoint, classes)
    }

    /// Assigns methods of a class, one bit each, to a client, which then receives requests to its
    /// port with these methods. Replaces earlier ones of the class.
    pub fn declare_methods(
        &mut self,
        endpoint: Endpoint,
        class: MgmtClass,
        methods: u128,
    ) -> Result<(), ClassTaken> {
        self.endpoints.declare_methods(endpoint, class, methods)
    }

    /// Sets whether a client receives requests of classes that no client declared.
    pub fn set_takes_requests(&mut self, endpoint: Endpoint, takes: bool) {
        self.endpoints.set_takes_requests(endpoint, takes);
    }

    /// Whether any client at the node's default port receives requests of undeclared classes.
    pub fn takes_requests(&self, node: NodeIndex) -> bool {
        (node.0 as usize) < self.subnet.nodes().len()
            && self.endpoints.any_takes_requests(self.subnet.default_port(node))
    }

    /// Assigns a QP above 1 to a client.
    pub fn set_qpn(&mut self, endpoint: Endpoint, qpn: Qpn) {
        self.endpoints.set_qpn(endpoint, qpn);
    }

    /// Sets whether a client is a subnet manager: sets IsSM of its port and notifies the master.
    pub fn set_is_sm(&mut self, now: Instant, endpoint: Endpoint, is_sm: bool) {
        self.endpoints.set_is_sm(endpoint, is_sm);
        if let Some(port) = self.endpoints.port(endpoint) {
            self.show_is_sm(now, port);
        }
    }

    /// Finds a node by its id in the net or else by description or GUID.
    pub fn find_node(&self, name: &str) -> Option<NodeIndex> {
        self.subnet.find(name)
    }

    /// The base LID of a client's port; `None` if no such client is attached.
    pub fn local_lid(&self, endpoint: Endpoint) -> Option<Lid> {
        let port = self.subnet.shown_port(self.endpoints.port(endpoint)?);
        Some(self.subnet.port_info(port).base_lid())
    }

    /// Numbers of the ports that a client's port has in planes of the fabric; empty if it is not
    /// planarized.
    pub fn planes(&self, endpoint: Endpoint) -> Vec<PortNum> {
        let Some(port) = self.endpoints.port(endpoint) else { return Vec::new() };
        let planes: Vec<PortNum> =
            self.subnet.planes_of(port).map(|plane| PortNum(self.subnet[plane].number)).collect();
        if planes.len() > 1 { planes } else { Vec::new() }
    }

    /// NodeInfo of a client's node, as read locally by its driver.
    pub fn read_node_info(&self, endpoint: Endpoint) -> Option<[u8; 40]> {
        Some(agent::node::read_node_info(&self.subnet, self.endpoints.port(endpoint)?))
    }

    /// PortInfo of a client's port (0) or of another port of its node, as read locally by its
    /// driver.
    pub fn read_port_info(&self, endpoint: Endpoint, number: u8) -> Option<[u8; 64]> {
        let own = self.endpoints.port(endpoint)?;
        let port = match number {
            0 => self.subnet.shown_port(own),
            number => self.subnet.port(self.subnet[own].node, number)?,
        };
        let shown = if self.subnet.node_of(own).is_switch() { 0 } else { self.subnet[port].number };
        Some(agent::port_info::read_port_info(&self.subnet, port, shown))
    }

    /// The first P_Keys of a client's port, as read locally by its driver.
    pub fn read_pkeys(&self, endpoint: Endpoint) -> Option<[u8; 64]> {
        Some(agent::port_tables::read_pkeys(&self.subnet, self.endpoints.port(endpoint)?))
    }

    /// All nodes' indices.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeIndex> + use<> {
        (0..self.subnet.nodes().len() as u32).map(NodeIndex)
    }

    /// State of a node.
    ///
    /// # Panics
    /// If the fabric has no such node; indices come from [`nodes`](Self::nodes) and
    /// [`find_node`](Self::find_node).
    pub fn node(&self, node: NodeIndex) -> NodeView<'_> {
        let at = &self.subnet[node];
        NodeView {
            name: self.subnet.name(node),
            node_type: at.node_type,
            guid: at.guid,
            num_ports: at.num_ports,
            up: at.up,
            lft: self.subnet.switch(node).map_or(&[], |switch| &switch.lft),
        }
    }

    /// State of a port of a node; `None` if the node has no such port.
    pub fn port(&self, node: NodeIndex, number: u8) -> Option<PortView> {
        let port = self.subnet.port(node, number)?;
        let info = self.subnet.port_info(port);
        Some(PortView {
            guid: self.subnet.port_guid(port),
            lid: info.base_lid(),
            lmc: info.lmc(),
            master_sm_lid: info.master_sm_lid(),
            reregistrations: self.reregistrations.get(&port).copied().unwrap_or(0),
            state: self.subnet.port_state(port),
            phys_state: self.subnet.phys_state(port),
            link: self.subnet.peer(port).map(|peer| LinkView {
                node: self.subnet[peer].node,
                port: self.subnet[peer].number,
                cut: self.subnet.is_cut(port),
            }),
        })
    }

    /// Whether a port supports FDR10, and whether it runs at it; `None` if there is no such port.
    pub fn fdr10(&self, node: NodeIndex, number: u8) -> Option<(bool, bool)> {
        let port = self.subnet.port(node, number)?;
        let may = agent::port_info::fdr10_enabled(&self.subnet, port) != 0;
        Some((may, agent::port_info::fdr10_active(&self.subnet, port)))
    }

    /// The SL-to-VL mapping of an output port for packets that entered by `in_port`, in the layout
    /// of SLtoVLMappingTable; `None` if there is no such port.
    pub fn sl_to_vl(&self, node: NodeIndex, in_port: u8, out_port: u8) -> Option<[u8; 8]> {
        let port = self.subnet.port(node, out_port)?;
        (in_port <= self.subnet[node].num_ports)
            .then(|| crate::subnet::sl_to_vl(self.subnet.tables(port), in_port))
    }

    /// The VL arbitration table of a port: entries of low and of high priority, as VL and weight,
    /// 32 of each; `None` if there is no such port.
    pub fn vl_arbitration(&self, node: NodeIndex, number: u8) -> Option<[Vec<(u8, u8)>; 2]> {
        let tables = self.subnet.tables(self.subnet.port(node, number)?);
        Some([0, 1].map(|table| {
            let block = crate::subnet::vl_arbitration(tables, table);
            block.as_chunks::<2>().0.iter().map(|&[vl, weight]| (vl, weight)).collect()
        }))
    }

    /// HOQLife, as its code, and VLHighLimit of a port; `None` if there is no such port.
    pub fn queueing(&self, node: NodeIndex, number: u8) -> Option<(u8, u8)> {
        let info = self.subnet.port_info(self.subnet.port(node, number)?);
        Some((info.hoq_life(), info.vl_high_limit()))
    }

    /// The P_Key table of a port, up to its last valid key; `None` if there is no such port.
    pub fn pkeys(&self, node: NodeIndex, number: u8) -> Option<Vec<PKey>> {
        Some(agent::port_tables::all_pkeys(&self.subnet, self.subnet.port(node, number)?))
    }

    /// The whole GUID table of a port, without entry 0 (the port GUID); `None` if there is no such
    /// port.
    pub fn guid_table(&self, node: NodeIndex, number: u8) -> Option<Vec<Guid>> {
        Some(agent::port_tables::all_guids(&self.subnet, self.subnet.port(node, number)?))
    }

    /// Sets GUIDCap of a port, which is 32 or 1 before, and whether Set(GUIDInfo) has no effect.
    pub fn set_guid_table(
        &mut self,
        node: NodeIndex,
        number: u8,
        guid_cap: u8,
        is_fixed: bool,
    ) -> Result<(), ControlError> {
        let port = self.find_port(node, number)?;
        let cap = guid_cap.min(crate::subnet::GUID_CAP as u8);
        self.subnet.port_info_mut(port).set_guid_cap(cap);
        if is_fixed {
            self.subnet.fixed_guids.insert(port);
        } else {
            self.subnet.fixed_guids.remove(&port);
        }
        Ok(())
    }

    /// The first block of a port's GUID table, without entry 0 (the port GUID); `None` if there is
    /// no such port.
    pub fn guids(&self, node: NodeIndex, number: u8) -> Option<[Guid; 8]> {
        let port = self.subnet.port(node, number)?;
        let block = crate::subnet::guids(self.subnet.tables(port), 0);
        let (guids, _) = block.as_chunks::<8>();
        Some(std::array::from_fn(|at| Guid(u64::from_be_bytes(guids[at]))))
    }

    /// Whether a switch port enforces P_Keys inbound and outbound.
    pub fn checks_pkeys(&self, node: NodeIndex, number: u8) -> Option<(bool, bool)> {
        let info = self.subnet.port_info(self.subnet.port(node, number)?);
        Some((info.partition_enforcement_inbound(), info.partition_enforcement_outbound()))
    }

    /// Cuts the link at a port, as if the cable were pulled.
    pub fn link_down(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
    ) -> Result<(), ControlError> {
        self.set_cut(now, node, port, true)
    }

    /// Restores the cable at a port.
    pub fn link_up(&mut self, now: Instant, node: NodeIndex, port: u8) -> Result<(), ControlError> {
        self.set_cut(now, node, port, false)
    }

    /// Powers a node off: it neither answers nor forwards, and its links go down.
    pub fn node_down(&mut self, now: Instant, node: NodeIndex) -> Result<(), ControlError> {
        self.check_node(node)?;
        self.subnet[node].up = false;
        for port in self.subnet.ports_of(node) {
            self.subnet.settle(port);
            self.forget_traps(port);
        }
        self.run_effects(now);
        Ok(())
    }

    /// Powers a node on, with its configuration lost.
    pub fn node_up(&mut self, now: Instant, node: NodeIndex) -> Result<(), ControlError> {
        self.check_node(node)?;
        if self.subnet[node].up {
            return Ok(());
        }
        self.subnet.reset(node);
        self.subnet[node].up = true;
        for port in self.subnet.ports_of(node) {
            self.subnet.settle(port);
        }
        let port = self.subnet.default_port(node);
        self.show_is_sm(now, port);
        Ok(())
    }

    /// Powers a node off and on: tables and PortInfo are reset.
    pub fn reboot(&mut self, now: Instant, node: NodeIndex) -> Result<(), ControlError> {
        self.node_down(now, node)?;
        self.node_up(now, node)
    }

    /// Sets the loss rate of packets crossing links: of all links, or of the one at a port.
    pub fn set_loss(
        &mut self,
        at: Option<(NodeIndex, u8)>,
        loss: Probability,
    ) -> Result<(), ControlError> {
        self.set_faults(at, |link| link.loss = loss)
    }

    /// Sets the delay per link crossed: of all links, or of the one at a port.
    pub fn set_delay(
        &mut self,
        at: Option<(NodeIndex, u8)>,
        delay: Duration,
    ) -> Result<(), ControlError> {
        self.set_faults(at, |link| link.delay = delay)
    }

    /// Sets MulticastFDBCap of all switches; the default is 1,024.
    pub fn set_multicast_capacity(&mut self, mlids: u16) {
        self.subnet.set_multicast_capacity(mlids);
    }

    /// Makes a node's agent refuse certain requests, or ignore them.
    pub fn refuse(&mut self, node: NodeIndex, refusal: Refusal) -> Result<(), ControlError> {
        self.check_node(node)?;
        self.faults.refuse(node, refusal);
        Ok(())
    }

    /// Removes the refusals of all agents.
    pub fn refuse_nothing(&mut self) {
        self.faults.refuse_nothing();
    }

    /// Makes a port report that an error threshold was reached (traps 129 to 131).
    pub fn port_error(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        trap: TrapNumber,
    ) -> Result<(), ControlError> {
        let port = self.find_port(node, port)?;
        trap::port_error(&mut self.subnet, port, trap);
        self.run_effects(now);
        Ok(())
    }

    /// Changes a node's description, as its host would, and notifies the subnet manager.
    pub fn set_description(
        &mut self,
        now: Instant,
        node: NodeIndex,
        text: &str,
    ) -> Result<(), ControlError> {
        self.check_node(node)?;
        let description = ib_mad::wire::attribute::NodeDescriptionRepr::from_text(text);
        agent::node::set_description(&mut self.subnet, node, description.node_string);
        self.run_effects(now);
        Ok(())
    }

    /// Changes a node's system image GUID and notifies the subnet manager.
    pub fn set_system_image_guid(
        &mut self,
        now: Instant,
        node: NodeIndex,
        guid: Guid,
    ) -> Result<(), ControlError> {
        self.check_node(node)?;
        if self.subnet[node].system_image_guid != guid {
            self.subnet[node].system_image_guid = guid;
            trap::system_image_guid_change(&mut self.subnet, node, guid);
            self.run_effects(now);
        }
        Ok(())
    }

    fn set_cut(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        cut: bool,
    ) -> Result<(), ControlError> {
        let (port, _) = self.find_link(node, port)?;
        self.subnet.set_cut(port, cut);
        self.subnet.settle(port);
        self.run_effects(now);
        Ok(())
    }

    fn set_faults(
        &mut self,
        at: Option<(NodeIndex, u8)>,
        change: impl Fn(&mut LinkFaults),
    ) -> Result<(), ControlError> {
        match at {
            None => self.faults.set_everywhere(change),
            Some((node, port)) => {
                let (port, peer) = self.find_link(node, port)?;
                self.faults.set_link([port, peer], change);
            }
        }
        Ok(())
    }

    /// Updates IsSM of a port by the clients attached.
    fn show_is_sm(&mut self, now: Instant, port: PortIndex) {
        let is_sm = self.endpoints.any_is_sm(port);
        let planes: Vec<PortIndex> = self.subnet.planes_of(port).collect();
        for port in planes {
            let mask = self.subnet.port_info(port).capability_mask();
            let wanted = match is_sm {
                true => mask.with(CapabilityMask::IS_SM),
                false => mask.without(CapabilityMask::IS_SM),
            };
            if wanted != mask {
                self.subnet.port_info_mut(port).set_capability_mask(wanted);
                trap::local_changes(&mut self.subnet, port, LocalChanges::NONE);
            }
        }
        self.run_effects(now);
    }

    pub(super) fn check_node(&self, node: NodeIndex) -> Result<(), ControlError> {
        match (node.0 as usize) < self.subnet.nodes().len() {
            true => Ok(()),
            false => Err(ControlError::NoSuchNode(node.0.to_string())),
        }
    }

    pub(super) fn find_port(&self, node: NodeIndex, number: u8) -> Result<PortIndex, ControlError> {
        self.check_node(node)?;
        let missing =
            || ControlError::NoSuchPort { node: self.subnet.name(node).to_owned(), port: number };
        self.subnet.port(node, number).ok_or_else(missing)
    }

    /// A port with a cable, and the port at the far end.
    pub(super) fn find_link(
        &self,
        node: NodeIndex,
        number: u8,
    ) -> Result<(PortIndex, PortIndex), ControlError> {
        let port = self.find_port(node, number)?;
        let missing =
            || ControlError::NoCable { node: self.subnet.name(node).to_owned(), port: number };
        Ok((port, self.subnet.peer(port).ok_or_else(missing)?))
    }
}
