//! Whole systems of real programs. One binary, since each takes seconds to link.

mod at_sm_port;
mod chaos;
mod chaos_support;
mod console;
mod ctl;
mod failback;
mod faults;
mod feed;
mod followed_state;
mod golden_conversations;
mod grafana;
mod interop_against_opensm;
mod interop_etcd;
mod interop_osmtest;
mod interop_paths;
mod interop_saquery;
mod local_users;
mod metrics;
mod node_agent;
mod problems;
mod quarantine;
mod reach;
mod registry;
mod registry_scale;
mod rounds;
#[path = "../../../ib-mad/tests/skip/mod.rs"]
mod skip;
mod split;
mod storms;
mod support;
mod trust;
mod two_rails;
mod umad;
mod waits;
mod web_map;
mod web_page;
