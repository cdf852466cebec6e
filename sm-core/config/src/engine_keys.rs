//! The keys of single engines, which declare them (`sm_routing::engines::settings`): reads and
//! writes their values.

use sm_routing::engines::EngineSettings;
use sm_routing::engines::settings::Value as Typed;

use super::value::{Value, ValueError, parse};

/// Sets a key of an engine from text. `Ok(false)` if no engine has it.
pub(super) fn set(
    engines: &mut EngineSettings,
    name: &str,
    text: &str,
) -> Result<bool, ValueError> {
    let (Some(key), Some(now)) = (engines.key(name), engines.get(name)) else { return Ok(false) };
    let value = typed(now, key.name, text, key.range.clone())?;
    Ok(engines.set(name, value))
}

/// Sets a key of an engine to its default, which OpenSM would use for a number out of range;
/// returns whether `text` is one.
pub(super) fn set_as_opensm(engines: &mut EngineSettings, name: &str, text: &str) -> bool {
    let default = EngineSettings::default();
    let (Some(key), Some(value)) = (default.key(name), default.get(name)) else { return false };
    typed(value, key.name, text, None).is_ok() && engines.set(name, value)
}

/// Describes how a text is read where that is certainly a mistake.
pub(super) fn slip(name: &str, text: &str) -> Option<&'static str> {
    match EngineSettings::default().get(name)? {
        Typed::Flag(_) => bool::slip(text),
        _ => None,
    }
}

/// The value of a key of an engine, as the file would have it.
pub(super) fn lines(engines: &EngineSettings, name: &str) -> Vec<String> {
    let text = match engines.get(name) {
        Some(Typed::Flag(value)) => value.render(),
        Some(Typed::U8(value)) => value.render(),
        Some(Typed::U16(value)) => value.render(),
        Some(Typed::U32(value)) => value.render(),
        None => return Vec::new(),
    };
    vec![text]
}

/// Sets a key of an engine to its value in `from`.
pub(super) fn copy(engines: &mut EngineSettings, name: &str, from: &EngineSettings) {
    if let Some(value) = from.get(name) {
        engines.set(name, value);
    }
}

/// Parses a text as a value of the same type as `like`.
fn typed(
    like: Typed,
    key: &'static str,
    text: &str,
    range: Option<std::ops::RangeInclusive<u64>>,
) -> Result<Typed, ValueError> {
    Ok(match like {
        Typed::Flag(_) => Typed::Flag(parse(key, text, range)?),
        Typed::U8(_) => Typed::U8(parse(key, text, range)?),
        Typed::U16(_) => Typed::U16(parse(key, text, range)?),
        Typed::U32(_) => Typed::U32(parse(key, text, range)?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Settings;

    #[test]
    fn keys_of_engines_are_read_as_all_others() {
        let mut settings = Settings::default();
        assert_eq!(settings.set("nue_max_num_vls", "0x4"), Ok(true));
        assert_eq!(settings.set("max_reverse_hops", "300"), Ok(true));
        assert_eq!(settings.set("do_mesh_analysis", "TRUE"), Ok(true));
        assert_eq!(settings.lines("nue_max_num_vls"), ["4"]);
        assert_eq!(settings.lines("do_mesh_analysis"), ["TRUE"]);
        let error = settings.set("lash_start_vl", "16").unwrap_err();
        assert_eq!(error.to_string(), "lash_start_vl must be 0 to 15, not 16");
        let error = settings.set("max_reverse_hops", "x").unwrap_err();
        assert_eq!(error.to_string(), "max_reverse_hops takes a number, not 'x'");
        assert!(settings.set_as_opensm("nue_max_num_vls", "99"), "out of range");
        assert_eq!(settings.engines.nue.lanes_max, 1, "the default");
        assert!(!settings.set_as_opensm("nue_max_num_vls", "x"), "no number");
        assert!(Settings::slip("connect_roots", "yes").is_some());
        assert!(Settings::slip("connect_roots", "TRUE").is_none());
    }

    #[test]
    fn a_reread_changes_live_keys_of_engines_only() {
        let (mut settings, mut new) = (Settings::default(), Settings::default());
        new.engines.ftree.max_reverse_hops = 2;
        new.engines.lash.start_lane = 3;
        assert_eq!(settings.changes(&new).len(), 2);
        assert_eq!(settings.follow(&new), ["max_reverse_hops"]);
        assert_eq!(settings.engines.lash, new.engines.lash);
        assert_eq!(settings.engines.ftree.max_reverse_hops, 0);
        settings.copy("max_reverse_hops", &new);
        assert_eq!(settings, new);
    }
}
