//! Parses files that configure routing: root switches, compute nodes, link weights and others
//! (OpenSM manual, "ROUTING", `-a`, `-u`, `-G`, `-m`, `-X`, `-w`, `-O`, `-i`, `-U`, `-M`,
//! `--torus_config`).
//!
//! `manage::steering` resolves their content to a fabric. As in OpenSM, a file that is malformed or
//! missing does not prevent a start: routing continues without it.

mod parse;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ib_mad::types::Guid;
use xxhash_rust::xxh3::xxh3_64;

use super::key::DEFAULT_TORUS_CONFIG;
use super::policy_file::{PolicyError, ReadText, read_text};
use super::remarks::Remarks;
use super::{ReadFile, Settings};
use sm_routing::file::{Dump, HopDump};
use sm_routing::{Engine, Torus2Qos, torus};

/// A file that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct RoutingFile<T> {
    /// Its path.
    pub path: PathBuf,
    /// Its parsed content.
    pub content: T,
    /// Hash of its text.
    hash: u64,
}

/// A line that begins with a GUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuidLine<T = ()> {
    /// Line number, from 1.
    pub line: usize,
    /// The GUID.
    pub guid: Guid,
    /// The rest of the line, parsed.
    pub value: T,
}

/// The weight of a port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortWeight {
    /// The port's number; not 0.
    pub port: u8,
    /// Number of hops that the port counts for; not 0.
    pub weight: u8,
}

type Held<T> = Option<Arc<RoutingFile<T>>>;

/// All routing files as last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingFiles {
    /// Node GUIDs of root switches (`root_guid_file`).
    pub roots: Held<Vec<GuidLine>>,
    /// Port GUIDs of compute nodes (`cn_guid_file`).
    pub compute_nodes: Held<Vec<GuidLine>>,
    /// Port GUIDs of I/O nodes (`io_guid_file`).
    pub io_nodes: Held<Vec<GuidLine>>,
    /// Numbers that replace switches' GUIDs (`ids_guid_file`).
    pub ids: Held<Vec<GuidLine<u64>>>,
    /// Port GUIDs that are routed first (`guid_routing_order_file`).
    pub order: Held<Vec<GuidLine>>,
    /// Weights of switches' ports (`hop_weights_file`).
    pub hop_weights: Held<Vec<GuidLine<PortWeight>>>,
    /// Ports in the order in which switches prefer them (`port_search_ordering_file`).
    pub port_orders: Held<Vec<GuidLine<Vec<u8>>>>,
    /// Ports of switches that balancing does not count (`port_prof_ignore_file`).
    pub ignored_ports: Held<Vec<GuidLine<u8>>>,
    /// Forwarding tables (`lfts_file`).
    pub lfts: Held<Dump>,
    /// Hops between switches (`lid_matrix_dump_file`).
    pub hops: Held<HopDump>,
    /// The torus to find (`torus_config`).
    pub torus: Held<Arc<torus::Config>>,
}

/// Keys of engines that the first version of the hash included, in its order. It is stored: keys of
/// later engines are not added here.
const HASHED_FIRST: [&str; 6] = [
    "connect_roots",
    "max_reverse_hops",
    "lash_start_vl",
    "nue_max_num_vls",
    "nue_include_switches",
    "do_mesh_analysis",
];
/// Keys that engines share, besides those of files.
const HASHED_COMMON: [&str; 3] =
    ["port_shifting", "scatter_ports", "guid_routing_order_no_scatter"];

/// Line number and description of an error.
type Malformed = (usize, String);
/// Parses the text of a file; also returns a summary of its content.
type Parse<T> = fn(&Path, &str, &mut Remarks) -> Result<(T, String), Malformed>;

impl RoutingFiles {
    /// Reads all files that the settings name. Also returns remarks, as log lines. Returns an error
    /// if a file cannot be used; the default file of `torus_config` may be absent.
    pub fn load(settings: &Settings, read: ReadFile) -> Result<(Self, Vec<String>), PolicyError> {
        let (mut files, mut remarks) = (Self::default(), Remarks::default());
        let mut errors = Vec::new();
        let read = &|path: &Path, named_by| read_text(path, named_by, read);
        files.read(settings, &mut remarks, &mut errors, read);
        let is_optional = |error: &PolicyError| {
            error.is_absence() && error.path() == Path::new(DEFAULT_TORUS_CONFIG)
        };
        let mut broken = errors.into_iter().map(|error| match error {
            PolicyError::Routing(error) => *error,
            error => error,
        });
        match broken.find(|error| !is_optional(error)) {
            Some(error) => Err(error),
            None => Ok((files, remarks.into_lines())),
        }
    }

    /// Reads changed files again. Errors are reported, and the previous content stays in force.
    pub(super) fn read(
        &mut self,
        settings: &Settings,
        remarks: &mut Remarks,
        errors: &mut Vec<PolicyError>,
        read: ReadText,
    ) {
        let mut reader = Reader { remarks, errors, read };
        let Settings { root_guid_file, cn_guid_file, io_guid_file, ids_guid_file, .. } = settings;
        reader.take(&mut self.roots, root_guid_file, names::ROOTS, parse::guids);
        reader.take(&mut self.compute_nodes, cn_guid_file, names::COMPUTE_NODES, parse::guids);
        reader.take(&mut self.io_nodes, io_guid_file, names::IO_NODES, parse::guids);
        reader.take(&mut self.ids, ids_guid_file, names::IDS, parse::ids);
        let file = &settings.guid_routing_order_file;
        reader.take(&mut self.order, file, names::ORDER, parse::guids);
        let file = &settings.hop_weights_file;
        reader.take(&mut self.hop_weights, file, names::HOP_WEIGHTS, parse::hop_weights);
        let file = &settings.port_search_ordering_file;
        reader.take(&mut self.port_orders, file, names::PORT_ORDERS, parse::port_orders);
        let file = &settings.port_prof_ignore_file;
        reader.take(&mut self.ignored_ports, file, names::IGNORED_PORTS, parse::ignored_ports);
        reader.take(&mut self.lfts, &settings.lfts_file, names::LFTS, parse::lfts);
        let file = &settings.lid_matrix_dump_file;
        reader.take(&mut self.hops, file, names::HOPS, parse::hops);
        // Without the engine torus-2QoS, the default file is not needed.
        let torus =
            if settings.tries_engine(Torus2Qos.name()) { &settings.torus_config } else { &None };
        reader.take(&mut self.torus, torus, names::TORUS, parse::torus);
    }
}

impl RoutingFiles {
    /// A hash of everything that operators configure for engines, in these files and in settings.
    /// It is equal for equal configurations, in every run.
    pub fn digest(&self, settings: &Settings) -> u64 {
        fn hash<T>(held: &Held<T>) -> u64 {
            held.as_ref().map_or(0, |file| file.hash)
        }
        let files = [
            hash(&self.roots),
            hash(&self.compute_nodes),
            hash(&self.io_nodes),
            hash(&self.ids),
            hash(&self.order),
            hash(&self.hop_weights),
            hash(&self.port_orders),
            hash(&self.ignored_ports),
            hash(&self.lfts),
            hash(&self.hops),
            hash(&self.torus),
        ];
        // Keys added later are included only where they differ from the default, so that the hash
        // of a site without them does not change.
        let plain = Settings::default();
        let differs = |key: &&str| settings.lines(key) != plain.lines(key);
        let mut text = format!("{files:x?}");
        for key in HASHED_FIRST.iter().chain(HASHED_COMMON.iter().filter(|key| differs(key))) {
            text += &settings.lines(key).join(" ");
        }
        let engines = settings.engines.keys().map(|key| key.name);
        for key in engines.filter(|key| !HASHED_FIRST.contains(key) && differs(key)) {
            let _ = write!(text, "\n{key} {}", settings.lines(key).join(" "));
        }
        xxh3_64(text.as_bytes())
    }

    /// Whether content of the file at `path`, current or from before it was rejected, is in force.
    pub(super) fn holds(&self, path: &Path) -> bool {
        fn is<T>(held: &Held<T>, path: &Path) -> bool {
            held.as_ref().is_some_and(|file| file.path == path)
        }
        let lists = [&self.roots, &self.compute_nodes, &self.io_nodes, &self.order];
        lists.into_iter().any(|list| is(list, path))
            || is(&self.ids, path)
            || is(&self.hop_weights, path)
            || is(&self.port_orders, path)
            || is(&self.ignored_ports, path)
            || is(&self.lfts, path)
            || is(&self.hops, path)
            || is(&self.torus, path)
    }
}

/// Descriptions of files for messages, with the options that name them.
mod names {
    pub(super) const ROOTS: &str = "root switches (-a/--root_guid_file, root_guid_file)";
    pub(super) const COMPUTE_NODES: &str = "compute nodes (-u/--cn_guid_file, cn_guid_file)";
    pub(super) const IO_NODES: &str = "I/O nodes (-G/--io_guid_file, io_guid_file)";
    pub(super) const IDS: &str = "node ids (-m/--ids_guid_file, ids_guid_file)";
    pub(super) const ORDER: &str =
        "routing order (-X/--guid_routing_order_file, guid_routing_order_file)";
    pub(super) const HOP_WEIGHTS: &str = "hop weights (-w/--hop_weights_file, hop_weights_file)";
    pub(super) const PORT_ORDERS: &str =
        "port order (-O/--port_search_ordering_file, port_search_ordering_file)";
    pub(super) const IGNORED_PORTS: &str =
        "ignored ports (-i/--ignore_guids, port_prof_ignore_file)";
    pub(super) const LFTS: &str = "forwarding tables (-U/--lfts_file, lfts_file)";
    pub(super) const HOPS: &str = "hops (-M/--lid_matrix_file, lid_matrix_dump_file)";
    pub(super) const TORUS: &str = "torus (--torus_config, torus_config)";
}

struct Reader<'a> {
    remarks: &'a mut Remarks,
    errors: &'a mut Vec<PolicyError>,
    read: ReadText<'a>,
}

impl Reader<'_> {
    fn take<T>(
        &mut self,
        held: &mut Held<T>,
        path: &Option<String>,
        named_by: &'static str,
        parse: Parse<T>,
    ) {
        let Some(path) = path.as_deref().map(Path::new) else {
            *held = None;
            return;
        };
        let before = held.as_ref().filter(|before| before.path == path);
        let text = match (self.read)(path, named_by) {
            Ok(text) => text,
            Err(error) => {
                let error = if before.is_some() && error.is_absence() {
                    PolicyError::Gone { path: path.to_owned() }
                } else {
                    error
                };
                return self.errors.push(PolicyError::Routing(Box::new(error)));
            }
        };
        let hash = xxh3_64(text.as_bytes());
        if before.is_some_and(|before| before.hash == hash) {
            return;
        }
        match parse(path, &text, self.remarks) {
            Ok((content, count)) => {
                let what = named_by.split(" (").next().unwrap_or(named_by);
                self.remarks.take(path, &format!("{what}: {count}"));
                *held = Some(Arc::new(RoutingFile { path: path.to_owned(), content, hash }));
            }
            Err((line, reason)) => {
                let error = PolicyError::RoutingFile { path: path.to_owned(), line, reason };
                self.errors.push(PolicyError::Routing(Box::new(error)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
