//! Suggests engines for a list of routing engines that contains unknown names.

use super::Settings;
use super::value::EngineNames;
use sm_routing::{Dor, Engine, FTree, MinHop, Torus2Qos, UpDown, engines};

/// Engines of Mellanox's OpenSM, each with the closest engine of this project, without adaptive
/// routing.
static NEAREST: [(&str, &dyn Engine); 8] = [
    ("ar_updn", &UpDown::FromRoots),
    ("ar_ftree", &FTree),
    ("ar_torus", &Torus2Qos),
    ("ar_dor", &Dor),
    ("kdor-hc", &Dor),
    ("dor-hc", &Dor),
    ("pqft", &FTree),
    ("chain", &MinHop),
];

/// Describes which engines are used instead of `text`, which contains unknown names.
pub fn instead(settings: &Settings, text: &str) -> String {
    let used = match settings.routing_engine.as_deref() {
        Some(names) if !names.eq_ignore_ascii_case(engines::NO_FALLBACK) => {
            format!("{names} is used")
        }
        _ => format!("{} is used, which does not avoid credit loops", engines::fallback().name()),
    };
    let near = |name: &str| {
        let found = NEAREST.iter().find(|(theirs, _)| theirs.eq_ignore_ascii_case(name))?;
        Some(format!("the closest engine to {name} is {}", found.1.name()))
    };
    let hints: Vec<_> = text.split(EngineNames::is_separator).filter_map(near).collect();
    match hints.is_empty() {
        true => used,
        false => format!("{used} ({})", hints.join(", ")),
    }
}
