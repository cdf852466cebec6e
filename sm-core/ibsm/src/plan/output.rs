//! Writes comparisons and tables.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::site::Site;
use super::trial::Made;
use super::{Plan, PlanError, json, lanes, table};
use sm_core::dump::{self, Tables};
use sm_routing::HopMatrix;

/// Writes JSON to `path` if requested, and the table to standard output unless that is used for
/// JSON.
pub(super) fn show(plan: &Plan<'_>, path: Option<&Path>) -> Result<(), PlanError> {
    let standard = Path::new("standard output");
    let mut out = io::stdout().lock();
    match path {
        Some(path) if path == Path::new("-") => {
            out.write_all(json::render(plan).as_bytes()).map_err(PlanError::io(standard))
        }
        _ => {
            if let Some(path) = path {
                fs::write(path, json::render(plan)).map_err(PlanError::io(path))?;
            }
            out.write_all(table::render(plan).as_bytes()).map_err(PlanError::io(standard))
        }
    }
}

/// Renders one switch's part of a dump.
type Render = fn(&Tables<'_>, u16) -> String;

/// Writes an engine's tables to files in a directory, which is created if necessary.
pub(super) fn dump(
    site: &Site,
    made: &Made,
    data_lanes: u8,
    directory: &Path,
) -> Result<(), PlanError> {
    fs::create_dir_all(directory).map_err(PlanError::io(directory))?;
    let lfts = made.routing.tables();
    let hops = HopMatrix::compute(&site.topology);
    let (topology, roster) = (&site.topology, &site.roster);
    let tables = Tables { topology, roster, lfts: &lfts, hops: hops.as_ref() };
    let files: [(&str, Render); 2] =
        [("opensm.fdbs", dump::fdbs), ("opensm-lfts.dump", dump::lfts)];
    let order = tables.order();
    for (name, render) in files {
        let parts = order.iter().map(|&switch| render(&tables, switch));
        write(&directory.join(name), parts)?;
    }
    let lanes_of = &made.routing.lanes;
    let sls = order.iter().map(|&switch| lanes::path_sls(site, lanes_of, switch));
    write(&directory.join("ibsm-path-sls.dump"), sls)?;
    let maps = lanes::sl_to_vl(site, lanes_of, data_lanes);
    write(&directory.join("opensm-sl2vl.dump"), maps.iter().map(dump::sl2vl))
}

/// Writes the parts of a file.
fn write(path: &Path, mut parts: impl Iterator<Item = String>) -> Result<(), PlanError> {
    let file = File::create(path).map_err(PlanError::io(path))?;
    let mut file = BufWriter::new(file);
    let written = parts.try_for_each(|part| file.write_all(part.as_bytes()));
    written.and_then(|()| file.flush()).map_err(PlanError::io(path))
}
