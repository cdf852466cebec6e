//! The outline of a profile's file: which keys and tables stand at its top.
//!
//! It is checked before values are: what reads those does not tell a table from a key, nor which of
//! two models comes first.

use toml::de::{DeTable, Error};

/// Keys that stand before all tables.
pub(super) const TOP: [&str; 6] =
    ["description", "duration", "queries", "seed", "check", "check-sample"];

/// Tables that any profile may have.
const SHARED: [&str; 2] = ["query", "retry"];

/// Tables that say how clients behave.
pub(super) const MODELS: [&str; 9] =
    ["closed", "open", "ramp", "linux-client", "job-start", "reboot", "acm", "srp", "malformed"];

/// What is wrong, and where in the text.
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
                "[{name}]: a second model, after [{first}] on line {line}; a profile has one: leave \
                 one of the two out"
            );
            return Err((at, what));
        }
    }
    let no_model = || (0, format!("no model: one table of {} says how clients behave", models()));
    model.map(drop).ok_or_else(no_model)
}

/// Checks the name of a key or table at the top.
pub(super) fn check_entry(name: &str, is_table: bool) -> Result<(), String> {
    let is_name_of_table = MODELS.contains(&name) || SHARED.contains(&name);
    match (is_table, is_name_of_table, TOP.contains(&name)) {
        (true, true, _) | (false, _, true) => Ok(()),
        (true, _, true) => {
            Err(format!("{name}: a key, no table; write {name} = ... before the first table"))
        }
        (false, true, _) => {
            Err(format!("{name}: a table, no key; write [{name}] on a line of its own"))
        }
        (true, ..) => Err(format!(
            "[{name}]: no such table; a profile has [query], [retry] and one model of {}",
            models()
        )),
        (false, ..) => Err(format!(
            "{name}: no such key before the first table; there may be {}; all others stand under a \
             table such as [query]",
            TOP.join(", ")
        )),
    }
}

/// The number of the line that an offset is in.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// What a parser says of the text.
pub(super) fn in_words(text: &str, error: &Error) -> Wrong {
    let at = error.span().map_or(0, |span| span.start);
    let line = text.lines().nth(line_of(text, at) - 1).unwrap_or_default().trim();
    let key = line.split_once('=').map(|(key, _)| key.trim());
    let message = error.message().trim();
    if message == "duplicate key" {
        let what = match key {
            Some(key) => format!("{key}: the key is there twice; leave one of the two out"),
            None => format!("{line}: the table is there twice; put all its keys under one of them"),
        };
        return (at, what);
    }
    let what = unknown_key(message).unwrap_or_else(|| match key {
        Some(key) if !message.contains(&format!("`{key}`")) => format!("{key}: {message}"),
        _ => message.to_owned(),
    });
    (at, what)
}

/// "unknown field `x`, expected one of `a`, `b`" in words that say what a key may be.
pub(super) fn unknown_key(message: &str) -> Option<String> {
    let (name, expected) = message.strip_prefix("unknown field `")?.split_once("`, expected ")?;
    let expected = expected.strip_prefix("one of ").unwrap_or(expected).replace('`', "");
    let place = match TOP.contains(&name) {
        true => format!("; {name} stands before the first table"),
        false => String::new(),
    };
    Some(format!("{name}: no such key in this table, which has {expected}{place}"))
}

fn models() -> String {
    MODELS.map(|name| format!("[{name}]")).join(", ")
}
