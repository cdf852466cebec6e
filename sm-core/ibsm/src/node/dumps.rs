//! OpenSM's dump files: which of them to write, and when.
//!
//! One job is written at a time. Changes in the meantime are written when it is done.

use tracing::{debug, error, warn};

use sm_config::Settings;
use sm_core::sweep::{DumpJob, DumpScope, Sweeper};

/// The bit of `log_flags` that asks for dump files, as with OpenSM (ROUTING).
const ROUTING: u8 = 0x40;

/// Why dump files could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The file, and the error of the system.
    #[error("{0}")]
    Failed(String),
    /// The message of a panic.
    #[error("{0}")]
    Panicked(String),
}

/// Dump files that are wanted.
pub(super) struct DumpFiles {
    /// The files that the settings enable.
    scope: DumpScope,
    wanted: Option<DumpScope>,
    is_writing: bool,
}

impl DumpFiles {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { scope: scope_of(settings), wanted: None, is_writing: false }
    }

    /// Other settings are in force from the next files on.
    pub(super) fn follow(&mut self, settings: &Settings) {
        self.scope = scope_of(settings);
    }

    /// Schedules the files of a sweep: those that OpenSM always writes and, if the settings request
    /// them, all.
    pub(super) fn want_all(&mut self) {
        self.wanted = self.wanted.max(Some(self.scope));
    }

    /// Schedules the files of multicast, if the settings request them.
    pub(super) fn want_multicast(&mut self) {
        if self.scope == DumpScope::Routing {
            self.wanted = self.wanted.max(Some(DumpScope::Multicast));
        }
    }

    /// The next files to write.
    pub(super) fn poll(&mut self, sweeper: &Sweeper) -> Option<DumpJob> {
        let wanted = self.wanted.take_if(|_| !self.is_writing)?;
        self.is_writing = true;
        Some(sweeper.dump_job(wanted))
    }

    /// Files were written, or could not be.
    pub(super) fn handle_written(&mut self, result: Result<(), DumpError>) {
        self.is_writing = false;
        match result {
            Ok(()) => debug!("dump files written"),
            Err(DumpError::Failed(failure)) => {
                warn!("cannot write dump files: {failure}; the existing ones are outdated");
            }
            Err(DumpError::Panicked(panic)) => error!("cannot write dump files: {panic}"),
        }
    }
}

/// The files that the settings enable.
fn scope_of(settings: &Settings) -> DumpScope {
    match settings.log_flags & ROUTING {
        0 => DumpScope::Links,
        _ => DumpScope::Routing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_core::manage::lid::LidTable;

    fn of(log_flags: u8) -> Settings {
        Settings { log_flags, ..Settings::default() }
    }

    #[test]
    fn files_are_written_if_the_log_flag_asks_for_them() {
        for flags in [0x3F, 0x83] {
            let mut files = DumpFiles::new(&of(flags));
            files.want_multicast();
            assert_eq!(files.wanted, None);
            files.want_all();
            assert_eq!(files.wanted, Some(DumpScope::Links));
        }
        let mut files = DumpFiles::new(&of(0x43));
        files.want_all();
        files.want_multicast();
        assert_eq!(files.wanted, Some(DumpScope::Routing), "the larger scope is kept");
    }

    #[test]
    fn one_job_is_written_at_a_time() {
        let sweeper = Sweeper::new(Settings::default(), LidTable::default(), 0);
        let mut files = DumpFiles::new(&of(0x43));
        files.want_all();
        assert!(files.poll(&sweeper).is_some());
        files.want_multicast();
        assert!(files.poll(&sweeper).is_none());
        files.handle_written(Ok(()));
        assert!(files.poll(&sweeper).is_some());
        files.handle_written(Err(DumpError::Failed("no space left".to_owned())));
        assert!(files.poll(&sweeper).is_none());
    }

    /// Regression: SIGHUP applied the log flags, except this one.
    #[test]
    fn a_change_of_settings_applies_from_the_next_files_on() {
        let mut files = DumpFiles::new(&of(3));
        for (flags, wanted) in [(0x43, DumpScope::Routing), (3, DumpScope::Links)] {
            files.follow(&of(flags));
            files.want_all();
            assert_eq!(files.wanted.take(), Some(wanted));
        }
    }
}
