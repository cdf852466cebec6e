//! Checks the top level of a profile's file: its keys and tables.
//!
//! Done before values are parsed: the TOML deserializer does not distinguish tables from keys, nor
//! which of two models comes first.

use toml::de::{DeTable, Error};

/// Keys before the first table.
pub(super) const TOP: [&str; 6] =
    ["description", "duration", "queries", "seed", "check", "check-sample"];

/// Tables allowed in any profile.
const SHARED: [&str; 2] = ["query", "retry"];

/// Tables of the models.
pub(super) const MODELS: [&str; 9] =
    ["closed", "open", "ramp", "linux-client", "job-start", "reboot", "acm", "srp", "malformed"];

/// An error message, and its offset in the text.
type Wrong = (usize, String);

/// Checks a file's text.
pub(super) fn check(text: &str) -> Result<(), Wrong> {
    let file = DeTable::parse(text).map_err(|error| in_words(text, &error))?;
    let entries = file.get_ref().iter();
    let mut entries: Vec<(usize, &str, bool)> = entries
        .map(|(key, value)| (key.span().start, &**key.get_ref(), value.get_ref().is_table()))
        .collect();
    entries.sort_unstable();
    let mut model = None;
    for (at, name, is_table) in entries {
        check_entry(name, is_table).map_err(|what| (at, what))?;
        if !MODELS.contains(&name) {
            continue;
        }
        if let Some((line, first)) = model.replace((line_of(text, at), name)) {
            let what = format!(
                "[{name}]: a profile has one model, and line {line} has [{first}]; remove one of \
                 the two"
            );
            return Err((at, what));
        }
    }
    let no_model = || (0, format!("no model: a profile needs one table of {}", models()));
    model.map(drop).ok_or_else(no_model)
}

/// Checks the name of a key or table at the top.
pub(super) fn check_entry(name: &str, is_table: bool) -> Result<(), String> {
    let is_name_of_table = MODELS.contains(&name) || SHARED.contains(&name);
    match (is_table, is_name_of_table, TOP.contains(&name)) {
        (true, true, _) | (false, _, true) => Ok(()),
        (true, _, true) => {
            Err(format!("{name} is a key, not a table; write {name} = ... before the first table"))
        }
        (false, true, _) => {
            Err(format!("{name} is a table, not a key; write [{name}] on a separate line"))
        }
        (true, ..) => Err(format!(
            "[{name}]: unknown table; a profile has [query], [retry] and one model of {}",
            models()
        )),
        (false, ..) => Err(format!(
            "{name}: unknown key before the first table; allowed there: {}; all other keys belong \
             in a table such as [query]",
            TOP.join(", ")
        )),
    }
}

/// Line number of an offset.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Rewords a parser's error.
pub(super) fn in_words(text: &str, error: &Error) -> Wrong {
    let at = error.span().map_or(0, |span| span.start);
    let line = text.lines().nth(line_of(text, at) - 1).unwrap_or_default().trim();
    let key = line.split_once('=').map(|(key, _)| key.trim());
    let message = error.message().trim();
    if message == "duplicate key" {
        let what = match key {
            Some(key) => format!("{key}: duplicate key; remove one of the two"),
            None => format!("{line}: duplicate table; put all its keys under one of them"),
        };
        return (at, what);
    }
    let what = unknown_key(message).unwrap_or_else(|| match key {
        Some(key) if !message.contains(&format!("`{key}`")) => format!("{key}: {message}"),
        _ => message.to_owned(),
    });
    (at, what)
}

/// Rewords "unknown field `x`, expected one of `a`, `b`" to name the allowed keys.
pub(super) fn unknown_key(message: &str) -> Option<String> {
    let (name, expected) = message.strip_prefix("unknown field `")?.split_once("`, expected ")?;
    let expected = expected.strip_prefix("one of ").unwrap_or(expected).replace('`', "");
    let place = match TOP.contains(&name) {
        true => format!("; {name} belongs before the first table"),
        false => String::new(),
    };
    Some(format!("{name}: unknown key in this table, which has {expected}{place}"))
}

fn models() -> String {
    MODELS.map(|name| format!("[{name}]")).join(", ")
}
