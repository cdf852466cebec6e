//! Writes the snapshot from which the responder of `scripts/kernel-lab` answers, as if it had
//! followed a subnet manager once: a fabric of two switches with 62 hosts each, two of which have
//! the GUIDs of the lab's RoCE ports. No subnet manager can run at those, since they have no QP0.
//!
//! usage: lab-snapshot DIRECTORY     a cache directory for `ibsa --cache-dir`

use std::path::PathBuf;
use std::process::ExitCode;

use benches::fabrics::{Managed, snapshot};
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::Guid;
use sa_proto::snapshot::cache;
use sm_config::Settings;

/// Hosts of each switch: enough that a table of all nodes exceeds one window of 64 segments.
const HOSTS_EACH: u8 = 62;
/// GUIDs that Linux derives from the MAC addresses 02:00:00:00:00:01 and 02:00:00:00:01:01, less
/// one: a net file's port GUIDs follow the node's.
const LAB_NODES: [Guid; 2] = [Guid(0x0000_00FF_FE00_0000), Guid(0x0000_00FF_FE00_0100)];

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: lab-snapshot DIRECTORY");
        return ExitCode::from(2);
    };
    let mut managed = Managed::new(&net(), Settings::default());
    managed.bring_up();
    let snapshot = snapshot(managed.plane(), 1);
    let written =
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string()).and_then(|()| {
            cache::save(&directory.join("snapshot"), &snapshot).map_err(|error| error.to_string())
        });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn net() -> Net {
    let rate = LinkRate::default();
    let mut net = Net::new();
    let switches = [0, 1].map(|which| {
        let guid = Guid(0x0000_00AB_0000_0000 + which);
        net.add_node(Node::new(NodeKind::Switch, guid, HOSTS_EACH + 1, rate))
    });
    let [left, right] = switches.map(|node| PortRef { node, port: HOSTS_EACH + 1 });
    net.connect(left, right).expect("both ports are free");
    for (node, lab) in switches.into_iter().zip(LAB_NODES) {
        for port in 1..=HOSTS_EACH {
            let made_up =
                Guid(0x0000_00CD_0000_0000 + u64::from(node) * 0x1000 + u64::from(port) * 0x10);
            let guid = if port == 1 { lab } else { made_up };
            let host = net.add_node(Node::new(NodeKind::Ca, guid, 1, rate));
            let end = PortRef { node: host, port: 1 };
            net.connect(end, PortRef { node, port }).expect("both ports are free");
        }
    }
    net
}
