//! The file of the baseline, in the state directory, and which baseline is in force at the start.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ib_mad::netlist::Net;
use tracing::{info, warn};

use super::RunError;
use super::state::{StateDir, StateWriter};
use crate::node::BASELINE;
use crate::observe::topology::Topology;
use crate::publish::{Baseline, BaselineOrigin, BaselineStore, Publisher, StateBoard};

/// The file of the baseline, which standbys copy.
struct BaselineFile {
    writer: StateWriter,
    board: Arc<StateBoard>,
}

impl BaselineStore for BaselineFile {
    fn keep(&self, text: &str) -> io::Result<()> {
        self.writer.write(BASELINE, text).map_err(io::Error::other)?;
        self.board.set_file(BASELINE, text.to_owned());
        Ok(())
    }

    /// Leaves an empty file: standbys remove theirs, those that are not running now, too.
    fn forget(&self) -> io::Result<()> {
        self.keep("")
    }
}

/// Puts the baseline in force: that of the file if one is given, else what was taken by command.
/// Fails if that file cannot be read; a baseline that cannot be read is set aside with a warning.
pub(super) fn start(
    file: Option<&Path>,
    state: &StateDir,
    publisher: &Publisher,
) -> Result<(), RunError> {
    let (writer, board) = (state.writer().clone(), publisher.state_board());
    publisher.set_baseline_store(Arc::new(BaselineFile { writer, board }));
    publisher.pass_baseline();
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
        return Ok(());
    }
    if state.has_baseline_file() {
        let text = kept.as_ref().map(Baseline::text).unwrap_or_default();
        publisher.state_board().set_file(BASELINE, text);
    }
    if let Some(baseline) = kept {
        let topology = &baseline.topology;
        let (nodes, links) = (topology.nodes.len(), topology.links.len());
        info!("the fabric is compared with the baseline: {nodes} nodes, {links} links");
        publisher.set_baseline(baseline);
    }
    Ok(())
}
