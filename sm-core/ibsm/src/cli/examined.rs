//! The settings as a start would use them, with everything that is wrong with them.

use std::path::Path;

use sa_proto::trust::ClientTrust;
use sm_config::file::FileError;
use sm_config::{ReadFile, Settings, file, verify};

use super::trust::{self, Exposure};
use super::{ConfigError, DEFAULT_CONFIG_FILE, Options, sa_key_warning};

/// The configuration file and the command line, read without stopping at a mistake.
#[derive(Debug, Default)]
pub struct Examined {
    /// The settings, without those that have mistakes.
    pub settings: Settings,
    /// What has to be corrected, each with its place and what would be right.
    pub mistakes: Vec<String>,
    /// What may be meant so.
    pub remarks: Vec<String>,
}

impl Examined {
    /// Reads the file that the options name, or the default one.
    pub fn of(options: &Options, read: ReadFile) -> Self {
        let mut all = Self::default();
        all.add_file(options, read);
        match options.apply(&mut all.settings) {
            Ok(mistakes) => all.mistakes.extend(mistakes),
            Err(failure) => all.mistakes.push(failure.to_string()),
        }
        all.mistakes.extend(verify(&mut all.settings));
        all.remarks.extend(file::idle_keys(&all.settings));
        all.remarks.extend(sa_key_warning(&all.settings));
        all.add_options(options);
        all
    }

    fn add_file(&mut self, options: &Options, read: ReadFile) {
        let named = options.config.as_deref();
        let path = named.unwrap_or(Path::new(DEFAULT_CONFIG_FILE));
        if named.is_none() && !path.exists() {
            return;
        }
        match file::read_all(path, read) {
            Ok(parsed) => {
                self.settings = parsed.settings;
                self.mistakes = parsed.mistakes;
                self.remarks = parsed.remarks;
            }
            Err(FileError::Io { path, source }) if named.is_some() => {
                self.mistakes.push(ConfigError::Named { path, source }.to_string());
            }
            Err(failure) => self.mistakes.push(failure.to_string()),
        }
    }

    /// What a start checks of options that are no keys of the file.
    fn add_options(&mut self, options: &Options) {
        let tls = options.tls.files().map_err(ConfigError::from);
        let tls = tls.unwrap_or_else(|failure| {
            self.mistakes.push(failure.to_string());
            None
        });
        let has_tls = tls.is_some();
        let client = ClientTrust::new(tls, options.insecure);
        let follow = options.follow.iter().filter_map(|url| client.endpoint(url).err());
        self.mistakes.extend(follow.map(|failure| failure.to_string()));
        let follows = !options.follow.is_empty();
        let store = options.store.place(&options.state_dir, follows, options.follow_sync);
        self.mistakes.extend(store.err().map(|failure| failure.to_string()));
        let exposures = [
            trust::check_api(options.api, has_tls, options.insecure),
            trust::check(options.publish, options.front_door, has_tls, options.insecure),
            Ok(trust::check_console(&self.settings, options.insecure)),
        ];
        for exposure in exposures {
            match exposure {
                Ok(exposures) => self.remarks.extend(exposures.iter().map(Exposure::to_string)),
                Err(failure) => self.mistakes.push(failure.to_string()),
            }
        }
    }
}
