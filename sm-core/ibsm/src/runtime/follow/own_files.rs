//! Compares operators' files of this host with those of the master, while standing by: a thread
//! reads them every few seconds, and when the master's change.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sa_proto::state::{StateVersion, different_files};

use super::Progress;
use crate::cli::documents;
use sm_config::Settings;

/// How often files are compared if no change is known.
const INTERVAL: Duration = Duration::from_secs(5);

/// The settings that name the files.
#[derive(Debug)]
pub(in crate::runtime) struct OwnFiles {
    settings: Mutex<Settings>,
}

impl OwnFiles {
    /// Starts the thread. It lasts as long as the process.
    pub(in crate::runtime) fn start(
        settings: Settings,
        progress: Arc<Progress>,
    ) -> io::Result<Arc<Self>> {
        let files = Arc::new(Self { settings: Mutex::new(settings) });
        let shared = files.clone();
        let run = move || {
            loop {
                let compared = shared.compare(&progress);
                progress.await_state(compared, INTERVAL);
            }
        };
        std::thread::Builder::new().name("own files".to_owned()).spawn(run)?;
        Ok(files)
    }

    /// Other settings are in force.
    pub(in crate::runtime) fn set_settings(&self, settings: &Settings) {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone_from(settings);
    }

    /// Compares once, if a master is followed. Returns the version of its state.
    fn compare(&self, progress: &Progress) -> Option<StateVersion> {
        let followed = progress.followed();
        let state = followed.master_state?;
        if !followed.is_connected && !followed.reads_store {
            return Some(state.version);
        }
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let files = documents::read(&settings, &crate::cli::disk::read);
        let ours = files.into_iter().map(|(name, document)| {
            // One that cannot be read differs from every other.
            let document = document.unwrap_or_else(|| documents::unreadable(&name));
            (name, Arc::new(document))
        });
        progress.compared(&different_files(&ours.collect(), &state.files));
        Some(state.version)
    }
}
