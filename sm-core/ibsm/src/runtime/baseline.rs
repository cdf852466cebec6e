//! The file of the baseline, in the state directory, and which baseline is in force at the start.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ib_mad::netlist::Net;
use tracing::{info, warn};

use super::RunError;
use super::state::{BASELINE, StateDir, StateWriter};
use crate::observe::topology::Topology;
use crate::publish::{Baseline, BaselineOrigin, BaselineStore, Publisher};

impl BaselineStore for StateWriter {
    fn keep(&self, text: &str) -> io::Result<()> {
        self.write(BASELINE, text).map_err(io::Error::other)
    }

    fn forget(&self) -> io::Result<()> {
        StateWriter::forget(self, BASELINE).map_err(io::Error::other)
    }
}

/// Puts the baseline in force: that of the file if one is given, else what was taken by command.
/// Fails if that file cannot be read; a baseline that cannot be read is set aside with a warning.
pub(super) fn start(
    file: Option<&Path>,
    state: &StateDir,
    publisher: &Publisher,
) -> Result<(), RunError> {
    publisher.set_baseline_store(Arc::new(state.writer().clone()));
    let kept = state.baseline()?;
    if let Some(path) = file {
        let net = Net::read(path).map_err(|source| RunError::Expected(Box::new(source)))?;
        if kept.is_some() {
            warn!(
                "--expected-topology {} prevails over the baseline taken with ibsmctl, which \
                 applies again without this option",
                path.display()
            );
        }
        let topology = Arc::new(Topology::of_net(&net));
        let origin = BaselineOrigin::File(path.to_owned());
        publisher.set_baseline(Baseline { origin, topology });
    } else if let Some(baseline) = kept {
        let topology = &baseline.topology;
        let (nodes, links) = (topology.nodes.len(), topology.links.len());
        info!("the fabric is compared with the baseline: {nodes} nodes, {links} links");
        publisher.set_baseline(baseline);
    }
    Ok(())
}
