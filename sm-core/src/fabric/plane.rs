//! The fabric as rows of a snapshot, for the responders.

use std::sync::Arc;

use ib_mad::types::{Guid, Lifetime, PortNum};
use ib_mad::wire::attribute::{PortInfo, PortPhysState, PortState};
use sa_proto::snapshot::{self, FabricPlane, Lft};

use super::PolicyRows;
use super::{Fabric, Node, NodeIndex, PortIndex, port_qos};

/// Response time that the SA states in ClassPortInfo: 4.096 µs × 2^16, a quarter of a second.
const RESPONSE_TIME: u8 = 16;

/// Attributes of the subnet in a snapshot that the fabric does not hold.
#[derive(Clone, Debug)]
pub struct SubnetParameters {
    /// Subnet prefix, the upper half of every GID.
    pub prefix: u64,
    /// Lifetime of paths, code n: 4.096 µs × 2^n.
    pub lifetime: u8,
    /// SM_Key of trusted requests.
    pub sa_key: u64,
    /// Routing engine that computed the tables.
    pub routing_engine: String,
    /// Bits of paths' SLs that it decides.
    pub engine_sls: u8,
    /// The SLs of paths, ascending by switch; none if it leaves them alone.
    pub path_sls: Vec<Arc<snapshot::PathSls>>,
    /// The subnet managers of the subnet.
    pub managers: Vec<snapshot::SubnetManager>,
    /// The site's policy, resolved against this fabric.
    pub policy: PolicyRows,
}

/// A PortInfo with the two states only: the other fields mean nothing while a port is down
/// (IBA C14-24.2.1), and OpenSM shows none of them.
fn states_only<T: AsRef<[u8]>>(port_info: &PortInfo<T>) -> [u8; 64] {
    let mut info = [0; 64];
    let mut states = PortInfo::of_mut(&mut info);
    states.set_port_state(PortState::Down);
    if let Some(physical) = PortPhysState::from_code(port_info.port_physical_state()) {
        states.set_port_physical_state(physical);
    }
    info
}

fn shared<R: Clone>(rows: &[R]) -> Vec<Arc<R>> {
    rows.iter().cloned().map(Arc::new).collect()
}

impl Fabric {
    /// The fabric plane of a snapshot of this fabric.
    pub fn plane(&self, parameters: &SubnetParameters) -> FabricPlane {
        let mut nodes: Vec<_> = self.rows().map(|(_, row)| row).collect();
        nodes.sort_unstable_by_key(|node| node.guid);
        let mut lfts: Vec<Arc<Lft>> =
            self.switches().map(|(_, switch)| switch.lft.published()).collect();
        lfts.sort_unstable_by_key(|lft| lft.switch);
        let policy = &parameters.policy;
        FabricPlane {
            subnet: snapshot::Subnet {
                prefix: parameters.prefix,
                sm_lid: self.sm_port().map(|sm_port| self.lids_of(sm_port).0).unwrap_or_default(),
                sm_port_guid: self.sm_port().map_or(Guid(0), |sm_port| self.port(sm_port).guid),
                lifetime: Lifetime::from_low_bits(parameters.lifetime),
                sa_key: parameters.sa_key,
                response_time: Lifetime::from_low_bits(RESPONSE_TIME),
                routing_engine: parameters.routing_engine.clone(),
                qos: policy.qos,
                allow_both_pkeys: policy.allow_both_pkeys,
                trusted_see_all: policy.trusted_see_all,
                engine_sls: parameters.engine_sls,
                max_rate: policy.max_rate,
                quirks: policy.quirks,
                prefix_routes: policy.prefix_routes.clone(),
            },
            nodes,
            lfts,
            path_sls: parameters.path_sls.clone(),
            partitions: shared(&policy.partitions),
            port_groups: shared(&policy.port_groups),
            qos_levels: shared(&policy.qos_levels),
            qos_rules: shared(&policy.qos_rules),
            virtual_fabrics: shared(&policy.virtual_fabrics),
            mfts: self.multicast_tables(),
            port_tables: self.port_tables(),
            virtual_ports: self.virtual_port_rows(),
            subnet_managers: shared(&parameters.managers),
        }
    }

    /// The nodes that are present, each as it is published.
    pub fn rows(&self) -> impl Iterator<Item = (&Node, Arc<snapshot::Node>)> {
        self.nodes().map(|(index, node)| {
            (node, node.row.get_or_init(|| Arc::new(self.row(index, node))).clone())
        })
    }

    /// How switches are known to forward multicast, ascending by node GUID.
    pub fn multicast_tables(&self) -> Vec<Arc<snapshot::Mft>> {
        let mut mfts: Vec<Arc<snapshot::Mft>> = self
            .switches()
            .filter_map(|(_, switch)| switch.mft.published(self.node(switch.node).guid))
            .collect();
        mfts.sort_unstable_by_key(|mft| mft.switch);
        mfts
    }

    fn row(&self, index: NodeIndex, node: &Node) -> snapshot::Node {
        snapshot::Node {
            guid: node.guid,
            info: node.info,
            description: node.description,
            switch_info: node.switch.map(|switch| self.switch(switch).info),
            ports: self
                .ports_of(index)
                .filter(|&port| self.is_published(port))
                .map(|port| self.port_row(port))
                .collect(),
        }
    }

    fn port_row(&self, index: PortIndex) -> snapshot::Port {
        let port = self.port(index);
        let mut info = port.info;
        info[snapshot::Port::M_KEY].fill(0);
        if self.node_of(index).switch.is_none() || port.num.0 == 0 {
            let (base_lid, lmc) = self.lids_of(index);
            PortInfo::of_mut(&mut info).set_base_lid(base_lid).set_lmc(lmc);
        }
        if port.state() == Some(PortState::Down) {
            info = states_only(&port.port_info());
        }
        snapshot::Port {
            num: port.num,
            guid: port.guid,
            info,
            pkeys: self.pkeys_of(index),
            peer: port
                .peer()
                .filter(|&peer| self.is_published(peer))
                .map(|peer| self.identify(peer)),
        }
    }

    /// Whether a port is published: not unknown ones, and not those that
    /// report another port's GUID.
    fn is_published(&self, port: PortIndex) -> bool {
        self.port(port).known && !self.is_duplicate(port)
    }

    /// QoS tables of nodes that have any.
    fn port_tables(&self) -> Vec<Arc<snapshot::PortTables>> {
        let mut rows: Vec<_> = self
            .nodes()
            .map(|(index, node)| {
                let ports = self.ports_of(index).map(|port| self.port(port));
                let ports = ports.filter_map(|port| Some((port.num.0, port.qos.as_deref()?)));
                port_qos::row(node.guid, node.switch.is_some(), ports)
            })
            .filter(|row| !row.sl_to_vl.is_empty() || !row.vl_arb.is_empty())
            .map(Arc::new)
            .collect();
        rows.sort_unstable_by_key(|row| row.node);
        rows
    }

    fn identify(&self, port: PortIndex) -> (Guid, PortNum) {
        (self.node_of(port).guid, self.port(port).num)
    }
}
