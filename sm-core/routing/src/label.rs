//! Texts about switches in which the caller chooses how switches are labelled.
//!
//! The topology numbers switches, so errors and defects carry numbers. The caller that shows them
//! to people passes a function that maps a number to a name; plain `Display` shows the numbers.

use std::fmt;

/// Maps a switch number to the words that identify it in a text, e.g. `switch 'leaf 3'`.
pub type SwitchLabel<'a> = dyn Fn(u16) -> String + 'a;

/// Returns the label of a switch without a known name.
pub fn switch_number(switch: u16) -> String {
    format!("switch {switch}")
}

/// Returns the label of a switch, with its name if known.
pub fn switch_label(switch: u16, name: Option<&str>) -> String {
    name.map_or_else(|| switch_number(switch), |name| format!("switch '{name}'"))
}

/// Text in which the caller chooses how switches are labelled.
pub trait DisplayWith {
    /// Writes the text; `label` maps switch numbers to words.
    fn fmt_with(&self, f: &mut fmt::Formatter<'_>, label: &SwitchLabel<'_>) -> fmt::Result;

    /// Returns a value that formats this text with switches labelled by `label`.
    fn display_with<'a>(&'a self, label: &'a SwitchLabel<'a>) -> Labelled<'a, Self> {
        Labelled { value: self, label }
    }
}

/// A value and the labels of its switches; created by [`DisplayWith::display_with`].
pub struct Labelled<'a, T: ?Sized> {
    value: &'a T,
    label: &'a SwitchLabel<'a>,
}

impl<T: DisplayWith + ?Sized> fmt::Display for Labelled<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt_with(f, self.label)
    }
}
