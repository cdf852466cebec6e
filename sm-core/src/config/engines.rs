//! What is said of a list of routing engines that is not taken as it is.

use super::Settings;
use super::value::EngineNames;

/// Engines of Mellanox's OpenSM, and which of ours route in the same way, without adaptive routing.
const NEAREST: &[(&str, &str)] = &[
    ("ar_updn", "updn"),
    ("ar_ftree", "ftree"),
    ("ar_torus", "torus-2QoS"),
    ("ar_dor", "dor"),
    ("kdor-hc", "dor"),
    ("dor-hc", "dor"),
    ("pqft", "ftree"),
    ("chain", "minhop"),
];

/// What routes instead of the engines of `text`, of which some are not there.
pub(super) fn instead(settings: &Settings, text: &str) -> String {
    let used = match settings.routing_engine.as_deref() {
        Some(names) if !names.eq_ignore_ascii_case("no_fallback") => format!("{names} is used"),
        _ => "minhop is used, which avoids no credit loops".to_owned(),
    };
    let near = |name: &str| {
        let found = NEAREST.iter().find(|(theirs, _)| theirs.eq_ignore_ascii_case(name))?;
        Some(format!("{} is nearest to {name}", found.1))
    };
    let hints: Vec<_> = text.split(EngineNames::is_separator).filter_map(near).collect();
    match hints.is_empty() {
        true => used,
        false => format!("{used} (of Mellanox's engines, {})", hints.join(", ")),
    }
}
