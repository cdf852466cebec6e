//! The responder from outside: its answers and counters. One binary, since each takes seconds to
//! link.

mod accounting;
mod common;
mod explain;
mod golden_fattree_partitions;
mod golden_mesh_qos;
mod golden_random_default;
mod golden_support;
mod goodput;
mod growing_tables;
mod interop_capture;
mod multi_path;
mod multicast_tables;
mod node_agent;
mod node_agents;
mod operation;
mod oracle;
mod own_port;
mod path_fabrics;
mod path_multicast;
mod path_policy;
mod path_records;
mod path_tables;
mod proxy;
mod query_oracle;
mod reports;
#[path = "../../../ib-mad/tests/skip/mod.rs"]
mod skip;
mod transfers;
mod worker;
mod writes;
