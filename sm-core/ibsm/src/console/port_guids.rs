//! The word `dump_portguid`.

use std::fmt::Write as _;

use super::{Answer, Effect, View};
use crate::inspect;

/// Largest number of regular expressions in a line, and size of their program in bytes.
const EXPRESSIONS_MAX: usize = 16;
const EXPRESSIONS_LEN_MAX: usize = 1 << 20;

/// GUIDs of ports, aliases included, whose nodes have names that match an expression.
pub(super) fn dump(arguments: &[&str], view: &View) -> Answer {
    let mut text = String::new();
    let (mut expressions, mut file) = (Vec::new(), None);
    let mut words = arguments.iter();
    while let Some(&word) = words.next() {
        if word != "file" {
            match regex::RegexBuilder::new(word).size_limit(EXPRESSIONS_LEN_MAX).build() {
                Ok(_) if expressions.len() < EXPRESSIONS_MAX => expressions.push(word),
                Ok(_) => {
                    let _ = writeln!(text, "More than {EXPRESSIONS_MAX} expressions. Skipping");
                }
                Err(_) => {
                    let _ = writeln!(text, "Cannot parse regular expression '{word}'. Skipping");
                }
            }
        } else if let Some(name) = words.next() {
            file = Some(name.into());
        } else {
            text += "No file name passed\n";
        }
    }
    let set = regex::RegexSetBuilder::new(&expressions)
        .size_limit(EXPRESSIONS_MAX * EXPRESSIONS_LEN_MAX)
        .build();
    let Some(set) = set.ok().filter(|set| !set.is_empty()) else {
        return Answer::text(text + "No valid expression provided. Aborting\n");
    };
    if !view.sm.subnet_up {
        return Answer::text(text + "Subnet is not ready yet. Try again later\n");
    }
    let guids = inspect::port_guids(&set, &view.fabric);
    let list: String = guids.iter().map(|guid| format!("{:#x}\n", guid.0)).collect();
    match file {
        Some(path) => Answer::with(text, Effect::WriteFile(path, list)),
        None => Answer::text(text + &list),
    }
}
