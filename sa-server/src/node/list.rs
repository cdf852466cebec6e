//! The paths from one port to the base LIDs of all end ports.

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::record::PathRecord;
use sa_proto::proto::snapshot::PathList;

use super::survey::Survey;
use crate::tables::cell::Generation;

/// The paths from the port with this GUID, unless this generation does not have it.
pub fn list(generation: &Generation, port: Guid) -> Option<PathList> {
    let mut survey = Survey::new(generation, port)?;
    let ports = generation.tables.end_ports.all();
    let mut bases: Vec<Lid> = ports.iter().map(|port| port.lid).collect();
    bases.sort_unstable();
    bases.dedup();
    let mut paths = PathList::default();
    for lid in bases {
        let Some(record) = survey.path_to_lid(lid) else { continue };
        let record = PathRecord::of(&record);
        paths.lids.push(lid.0.into());
        paths.sls.push(record.sl().get().into());
        paths.mtus.push(record.mtu().into());
        paths.rates.push(record.rate().into());
    }
    Some(paths)
}
