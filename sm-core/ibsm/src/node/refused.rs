//! Policy files that are refused, and since when.

use std::path::{Path, PathBuf};

use sm_config::{PolicyError, SitePolicy};

/// Files refused at the last reading. There is at most one of each kind.
#[derive(Debug, Default)]
pub(super) struct RefusedFiles {
    files: Vec<Refused>,
    /// Refusals so far.
    total: u64,
}

#[derive(Debug)]
struct Refused {
    path: PathBuf,
    /// The time of day, as in the log.
    since: String,
    reason: String,
    /// The setting in force instead.
    instead: &'static str,
}

impl RefusedFiles {
    /// Whether an error is known already, and so was logged.
    pub(super) fn knows(&self, error: &PolicyError) -> bool {
        let reason = sa_proto::with_causes(error);
        self.files.iter().any(|file| file.path == error.path() && file.reason == reason)
    }

    /// Notes the errors of a reading at `time`; `policy` is in force. Returns files that were
    /// refused before and are not now.
    pub(super) fn note(
        &mut self,
        time: &str,
        policy: &SitePolicy,
        errors: &[PolicyError],
    ) -> Vec<PathBuf> {
        self.total += errors.len() as u64;
        let before = std::mem::take(&mut self.files);
        let since = |path: &Path| before.iter().find(|old| old.path == path);
        self.files = errors
            .iter()
            .map(|error| Refused {
                path: error.path().to_owned(),
                since: since(error.path()).map_or_else(|| time.to_owned(), |old| old.since.clone()),
                reason: sa_proto::with_causes(error),
                instead: policy.instead_of(error),
            })
            .collect();
        let is_accepted = |old: &Refused| self.files.iter().all(|file| file.path != old.path);
        before.into_iter().filter(is_accepted).map(|old| old.path).collect()
    }

    /// How many files are refused now.
    pub(super) fn count(&self) -> usize {
        self.files.len()
    }

    /// How often files were refused so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Each file, and a line about it for operators.
    pub(super) fn warnings(&self) -> Vec<(String, String)> {
        let line = |file: &Refused| {
            let Refused { path, since, reason, instead } = file;
            let text = format!("refused since {since}; {instead}: {reason}");
            (path.display().to_string(), text)
        };
        self.files.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the file of a problem was its path up to the first blank, so that two files in
    /// one directory were one problem.
    #[test]
    fn files_are_told_apart_by_their_whole_path() {
        let mut refused = RefusedFiles::default();
        let paths = ["/etc/my fabric/partitions.conf", "/etc/my fabric/qos-policy.conf"];
        let gone = paths.map(|path| PolicyError::Gone { path: path.into() });
        refused.note("2026-11-24T03:00:00Z", &SitePolicy::default(), &gone);
        let files: Vec<String> = refused.warnings().into_iter().map(|(file, _)| file).collect();
        assert_eq!(files, paths);
    }

    #[test]
    fn a_file_is_stale_from_its_first_refusal_until_it_is_accepted() {
        let mut refused = RefusedFiles::default();
        let policy = SitePolicy::default();
        let gone = || PolicyError::Gone { path: "partitions.conf".into() };
        assert!(refused.note("2026-11-24T03:00:00Z", &policy, &[gone()]).is_empty());
        let warnings = refused.warnings();
        let (file, text) = &warnings[0];
        assert!(file == "partitions.conf" && text.starts_with("refused since 20"), "{warnings:?}");
        assert!(text.ends_with(&gone().to_string()), "{warnings:?}");

        assert!(refused.note("2026-11-24T03:00:00Z", &policy, &[gone()]).is_empty());
        assert_eq!(refused.warnings(), warnings, "it keeps its time");
        assert!(refused.knows(&gone()));
        assert!(!refused.knows(&PolicyError::TooLong {
            path: "partitions.conf".into(),
            named_by: "partitions",
        }));
        assert_eq!((refused.count(), refused.total()), (1, 2));

        assert_eq!(
            refused.note("2026-11-24T03:00:00Z", &policy, &[]),
            [PathBuf::from("partitions.conf")]
        );
        assert_eq!((refused.count(), refused.total(), refused.warnings().len()), (0, 2, 0));
        assert!(
            refused.note("2026-11-24T03:00:00Z", &policy, &[]).is_empty(),
            "that is reported once"
        );
    }
}
