//! Operators' files: read for sweeps, published for standbys, and copied from the master.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{self, FormatTime};

use super::Service;
use crate::cli::master_files::MasterFiles;
use crate::cli::{disk, documents};
use crate::node::{FilesRead, MasterState, StateWrite, WriteOutcome};
use sm_config::{PolicyError, Reading, SETTINGS, Settings};

impl Service {
    /// Reads operators' files, for a sweep that has just begun.
    pub(super) fn read_files(&mut self, lids: bool) {
        let seen = RefCell::new(BTreeMap::new());
        let read = |path: &Path, len_max| {
            let content = disk::read(path, len_max);
            if let Ok(content) = &content {
                seen.borrow_mut().insert(path.to_owned(), content.clone());
            }
            content
        };
        self.config.follow_edits(self.node.leads()).iter().for_each(|line| warn!("{line}"));
        let settings = self.config.with_used_files(self.node.settings());
        let (policy, reading) = self.node.policy().reload(&settings, &read);
        self.publish_files(&settings, &reading, &seen.into_inner());
        let lids = lids.then(|| self.files.directory().lids().map_err(Into::into));
        let files = FilesRead { policy, reading, lids, time: time_of_day() };
        self.node.handle_files(Instant::now(), files);
        self.follow_settings();
    }

    /// Applies the settings in force to the parts of the program outside the node.
    pub(super) fn follow_settings(&mut self) {
        self.config.settings.clone_from(self.node.settings());
        self.publisher.set_settings(self.config.settings.clone());
        self.log.follow(&self.config.settings);
        self.registry.follow(&self.config.settings);
        self.files.directory().set_sync(self.config.settings.fsync_high_avail_files);
    }

    /// A file of the state directory was written, or could not be. Copies of the master's files are
    /// used from now on.
    pub(super) fn note_written(&mut self, now: Instant, outcome: WriteOutcome) {
        let outcome = match outcome {
            WriteOutcome::Done(StateWrite::MasterFiles(state)) => self.use_master_files(now, state),
            outcome => outcome,
        };
        // In force even if it could not be written.
        if let WriteOutcome::Done(StateWrite::Baseline(baseline))
        | WriteOutcome::Failed(StateWrite::Baseline(baseline), _) = &outcome
        {
            self.publisher.follow_baseline(baseline.text.as_deref().unwrap_or_default().to_vec());
        }
        self.node.handle_written(now, outcome);
    }

    fn use_master_files(&mut self, now: Instant, state: Arc<MasterState>) -> WriteOutcome {
        let own = self.config.own_hashes();
        let files = MasterFiles::of(&self.config.state_dir, &state.files, &own);
        if let Err(failure) = self.files.directory().save_index(&files) {
            return WriteOutcome::Failed(StateWrite::MasterFiles(state), failure.into());
        }
        self.config.master_files = files;
        let settings = state.files.get(SETTINGS).map(|settings| settings.hash);
        let files = state.files.values().filter(|file| file.exists());
        let names: Vec<&str> = files.map(|file| &*file.name).collect();
        info!("--follow-config: using the master's files: {}", names.join(", "));
        if std::mem::replace(&mut self.master_settings, settings) != settings {
            self.node.handle_settings(now, self.config.reread(false));
        }
        if let Some(own_files) = &self.own_files {
            own_files.set_settings(&self.config.with_used_files(self.node.settings()));
        }
        WriteOutcome::Done(StateWrite::MasterFiles(state))
    }

    /// Saves the index of copies of the master's files if it changed.
    pub(super) fn save_index(&mut self) {
        if !std::mem::take(&mut self.config.is_index_outdated) {
            return;
        }
        if let Err(failure) = self.files.directory().save_index(&self.config.master_files) {
            warn!("{failure}; after a restart, files edited on this host may be used");
        }
    }

    /// Publishes operators' files as they were read. Of one that was refused, what was published
    /// before stays, as it stays in force.
    fn publish_files(
        &self,
        settings: &Settings,
        reading: &Reading,
        seen: &BTreeMap<PathBuf, Vec<u8>>,
    ) {
        let refused: Vec<&Path> = reading.errors.iter().map(PolicyError::path).collect();
        let read = |path: &Path, len_max| match seen.get(path) {
            _ if refused.contains(&path) => Err(ErrorKind::InvalidData.into()),
            Some(content) => Ok(content.clone()),
            None => disk::read(path, len_max),
        };
        self.publisher.state_board().set_operators_files(documents::read(settings, &read));
        if let Some(own_files) = &self.own_files {
            own_files.set_settings(settings);
        }
    }
}

/// The time of day, as the log writes it.
fn time_of_day() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = time::SystemTime.format_time(&mut Writer::new(&mut text));
    text
}
