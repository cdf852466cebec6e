//! Log levels of single modules, in the format of OpenSM's `per_module_logging_file`.

use std::io;

use tracing::level_filters::LevelFilter;

use super::level_of;
use sm_config::parse_number;

/// Modules of ibsm that log.
const MODULES: [&str; 13] = [
    "config",
    "dump",
    "front_door",
    "manage",
    "mastership",
    "notice",
    "observe",
    "publish",
    "registry",
    "routing",
    "runtime",
    "sweep",
    "web",
];

/// Prefixes of names of OpenSM's modules, and the modules of ibsm with the same function. The first
/// match counts.
const OPENSM: [(&str, &str); 24] = [
    ("osm_ucast", "routing"),
    ("osm_torus", "routing"),
    ("osm_mesh", "routing"),
    ("osm_mcast", "sweep::multicast"),
    ("osm_mtree", "sweep::multicast"),
    ("osm_sa_", "registry"),
    ("osm_sa.", "registry"),
    ("osm_inform", "registry"),
    ("osm_service", "registry"),
    ("osm_multicast", "registry"),
    ("osm_guid_", "sweep::guid_info"),
    ("osm_sminfo", "sweep::election"),
    ("osm_sm_state", "sweep::election"),
    ("osm_drop", "sweep::discover"),
    ("osm_node", "sweep::discover"),
    ("osm_port_info", "sweep::discover"),
    ("osm_sw_info", "sweep::discover"),
    ("osm_trap", "sweep::packets"),
    ("osm_lid", "sweep::configure"),
    ("osm_link", "sweep::configure"),
    ("osm_pkey", "sweep::partitions"),
    ("osm_prtn", "config::partitions"),
    ("osm_qos", "sweep::qos"),
    ("osm_state", "sweep"),
];

/// Folders with the modules of `sweep`. To operators a subject is one module, such as
/// `sweep::election`: the rules of elections in one folder, and the sweeper's part in another.
const FOLDERS_OF_SWEEP: [&str; 5] = ["stages", "stages::discover", "subnet", "sweeper", "tasks"];

/// The module of ibsm that a name means.
fn ours(name: &str) -> Option<&str> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_' || c == ':';
    let first = name.split("::").next()?;
    if MODULES.contains(&first) && name.chars().all(is_name) {
        return Some(name);
    }
    let _ = name.strip_suffix(".c")?;
    OPENSM.iter().find(|(begin, _)| name.starts_with(begin)).map(|&(_, module)| module)
}

/// The targets under which a module of [`MODULES`], or one inside it, logs.
pub(super) fn targets(module: &str) -> impl Iterator<Item = String> {
    // The node decides what the service loop does: to operators they are one module.
    let node = matches!(module, "runtime" | "runtime::service").then(|| "ibsm::node".to_owned());
    let in_folders = module.strip_prefix("sweep::").into_iter().flat_map(|part| {
        FOLDERS_OF_SWEEP.iter().map(move |folder| target(&format!("sweep::{folder}::{part}")))
    });
    std::iter::once(target(module)).chain(node).chain(in_folders)
}

fn target(module: &str) -> String {
    let (first, rest) = module.split_at(module.find("::").unwrap_or(module.len()));
    match first {
        "config" | "routing" => format!("sm_{first}{rest}"),
        "front_door" | "observe" | "publish" | "runtime" | "web" => format!("ibsm::{module}"),
        _ => format!("sm_core::{module}"),
    }
}

/// Levels of modules by the file of this name, and warnings about it. The format is OpenSM's: each
/// line has a module and its log bits, separated by a blank or `=`. A missing file is ignored.
pub(super) fn read(name: &str) -> (Vec<(String, LevelFilter)>, Vec<String>) {
    match std::fs::read_to_string(name) {
        Ok(text) => parse_modules(name, &text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
        Err(error) => (Vec::new(), vec![format!("{name}: {error}")]),
    }
}

fn parse_modules(name: &str, text: &str) -> (Vec<(String, LevelFilter)>, Vec<String>) {
    let (mut levels, mut odd) = (Vec::new(), Vec::new());
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default();
        let mut words = content.split(|c: char| c.is_whitespace() || c == '=');
        let mut words = words.by_ref().filter(|word| !word.is_empty());
        let Some(module) = words.next() else { continue };
        let flags = words.next().and_then(parse_number).and_then(|flags| u8::try_from(flags).ok());
        match (flags, ours(module)) {
            (Some(flags), Some(module)) => levels.push((module.to_owned(), level_of(flags))),
            _ if odd.len() >= ODD_LINES_MAX => {}
            (Some(_), None) => odd.push(format!(
                "{name}:{line}: '{module}' is neither a module of ibsm nor an OpenSM module that \
                 maps to one; line ignored. Modules: {}; submodules as in sweep::election",
                MODULES.join(", ")
            )),
            (None, _) => odd.push(format!(
                "{name}:{line}: '{module}' must be followed by log bits such as 0x07; line ignored"
            )),
        }
        if levels.len() == MODULES_MAX {
            break;
        }
    }
    (levels, odd)
}

/// Modules that may have their own level.
const MODULES_MAX: usize = 100;
/// Warnings about the file of module levels.
const ODD_LINES_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_the_levels_of_their_log_bits() {
        let text = "# all\nsweep 0x07\nregistry=0x1\n\nosm_vendor.c 0xff\nweb\nsweeep 0x3\n";
        let (levels, odd) = parse_modules("m.conf", text);
        let (sweep, registry) = ("sweep".to_owned(), "registry".to_owned());
        assert_eq!(levels, [(sweep, LevelFilter::DEBUG), (registry, LevelFilter::WARN)]);
        assert!(odd[0].starts_with("m.conf:5: 'osm_vendor.c' is neither a module"), "{odd:?}");
        assert!(odd[0].contains("front_door, manage,"), "{odd:?}");
        assert!(odd[1].starts_with("m.conf:6: 'web' must be followed by log bits"), "{odd:?}");
        assert!(odd[2].starts_with("m.conf:7: 'sweeep' is neither a module"), "{odd:?}");
    }

    #[test]
    fn opensms_modules_are_those_that_do_the_same_here() {
        assert_eq!(ours("osm_ucast_mgr.c"), Some("routing"));
        assert_eq!(ours("osm_sa_path_record.c"), Some("registry"));
        assert_eq!(ours("osm_sminfo_rcv.c"), Some("sweep::election"));
        assert_eq!(ours("osm_state_mgr.c"), Some("sweep"));
        assert_eq!(ours("sweep::election"), Some("sweep::election"));
        assert_eq!((ours("osm_ucast_mgr"), ours("opensm.c")), (None, None));
    }

    #[test]
    fn the_target_of_a_module_names_its_crate() {
        assert_eq!(target("routing"), "sm_routing");
        assert_eq!(target("config::partitions"), "sm_config::partitions");
        assert_eq!(target("runtime"), "ibsm::runtime");
        assert_eq!(target("sweep::election"), "sm_core::sweep::election");
        assert_eq!(targets("runtime").collect::<Vec<_>>(), ["ibsm::runtime", "ibsm::node"]);
        assert_eq!(targets("web").count(), 1);
    }

    #[test]
    fn a_part_of_the_sweep_is_found_in_each_folder() {
        let election: Vec<_> = targets("sweep::election").collect();
        for folder in ["stages", "subnet", "sweeper"] {
            assert!(election.contains(&format!("sm_core::sweep::{folder}::election")), "{folder}");
        }
        let silent: Vec<_> = targets("sweep::unresponsive").collect();
        assert!(silent.contains(&"sm_core::sweep::stages::discover::unresponsive".to_owned()));
        assert_eq!(targets("sweep").collect::<Vec<_>>(), ["sm_core::sweep"]);
    }
}
