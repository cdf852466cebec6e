//! SLs of paths, for the caller.

use std::sync::Arc;

use sa_proto::snapshot::PathSls;

use super::Sweeper;
use crate::sweep::subnet::lanes::SlsOfPaths;

impl Sweeper {
    /// The SLs of paths, from which the SA answers.
    pub fn sls_of_paths(&self) -> SlsOfPaths {
        self.subnet.sls_of_paths()
    }

    /// The SLs of paths by source switch, ascending by switch; empty if the engine leaves SLs
    /// alone.
    pub fn path_sls(&self) -> Vec<Arc<PathSls>> {
        self.subnet.routing.made().map_or(Vec::new(), |made| made.path_sls().to_vec())
    }

    /// Bits of a path's SL that the routing engine decides.
    pub fn engine_sls(&self) -> u8 {
        self.subnet.engine_sls()
    }
}
