//! Tests the manager program against stock programs. One binary, since linking each takes seconds.

mod dump_golden;
mod ibsim;
mod interop_capture;
mod interop_config;
mod interop_congestion;
mod interop_dry_run;
mod interop_dump;
mod interop_events;
mod interop_files;
mod interop_follow;
mod interop_ibsim;
mod interop_opensm;
mod interop_perf;
mod interop_steering;
#[path = "../../../../ib-mad/tests/skip/mod.rs"]
mod skip;
