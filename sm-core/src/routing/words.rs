//! Engines' words for people: they know switches by number only.

/// `text` with switches by their names, where `name` knows one, instead of the topology's numbers.
pub fn with_names<'a>(text: &str, name: impl Fn(usize) -> Option<&'a str>) -> String {
    const WORD: &str = "switch ";
    let mut named = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(WORD) {
        let (before, after) = rest.split_at(at + WORD.len());
        named += before;
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        match after[..end].parse::<usize>().ok().and_then(&name) {
            Some(name) => named.extend(["'", name, "'"]),
            None => named += &after[..end],
        }
        rest = &after[end..];
    }
    named + rest
}
