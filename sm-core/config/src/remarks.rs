//! Remarks on policy files: anomalies that are not errors.

use std::path::Path;

/// Maximum number of remarks, and of mistakes, that are kept from one reading of a file; further
/// ones are only counted.
const REMARKS_MAX: usize = 20;

/// Collects remarks on policy files, as log lines.
#[derive(Debug, Default)]
pub struct Remarks {
    lines: Vec<String>,
    more: usize,
    pub(super) mistakes: Vec<String>,
    pub(super) taken: Vec<String>,
}

impl Remarks {
    /// Adds a remark on `line`, from 1, of the file at `path`.
    pub fn add(&mut self, path: &Path, line: Option<usize>, text: &str) {
        if self.lines.len() >= REMARKS_MAX {
            self.more += 1;
            return;
        }
        self.lines.push(placed(path, line, text));
    }

    /// Adds a mistake: invalid input that is ignored. It counts as a mistake even when the limit of
    /// remarks is reached.
    pub fn add_mistake(&mut self, path: &Path, line: usize, text: &str) {
        if self.mistakes.len() < REMARKS_MAX {
            self.mistakes.push(placed(path, Some(line), text));
        }
        self.add(path, Some(line), text);
    }

    /// Adds a mistake that causes a line to be ignored.
    pub fn pass_over(&mut self, path: &Path, line: usize, reason: &str) {
        self.add_mistake(path, line, &format!("line ignored: {reason}"));
    }

    /// The mistakes, up to the limit.
    pub fn mistakes(&self) -> &[String] {
        &self.mistakes
    }

    /// Records the summary of a file that is now in force.
    pub(super) fn take(&mut self, path: &Path, what: &str) {
        self.taken.push(format!("{}: {what}", path.display()));
    }

    /// The remarks, followed by the number of further ones.
    pub fn into_lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.lines.push(format!("{} more remarks on policy files", self.more));
        }
        self.lines
    }
}

/// Formats a remark with its place.
fn placed(path: &Path, line: Option<usize>, text: &str) -> String {
    let path = path.display();
    match line {
        Some(line) => format!("{path}:{line}: {text}"),
        None => format!("{path}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: mistakes after many other remarks did not prevent a
    /// start with `--strict`.
    #[test]
    fn a_mistake_counts_however_much_was_remarked_on_before() {
        let mut remarks = Remarks::default();
        let path = Path::new("p");
        (1..=2 * REMARKS_MAX).for_each(|line| remarks.add(path, Some(line), "odd"));
        remarks.pass_over(path, 99, "no sense");
        assert_eq!(remarks.mistakes(), ["p:99: line ignored: no sense"]);
        (1..=2 * REMARKS_MAX).for_each(|line| remarks.pass_over(path, line, "no sense"));
        assert_eq!(remarks.mistakes().len(), REMARKS_MAX);
        assert_eq!(remarks.into_lines().last().unwrap(), "61 more remarks on policy files");
    }
}
