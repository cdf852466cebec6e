//! Operators' engine settings: an `opensm.conf`, the files that it names, and `--set`.

use std::path::{Path, PathBuf};

use super::site::Site;
use crate::cli::disk;
use sm_config::routing_files::RoutingFiles;
use sm_config::{EngineNames, FileError, PolicyError, Settings, ValueError, file};
use sm_core::manage::steering::{Places, Steered, steer};
use sm_routing::{Engine, Torus2Qos};

/// Settings and files, read once. They refer to GUIDs, so they also apply to a fabric from which
/// nodes are removed.
#[derive(Clone, Debug, Default)]
pub struct EngineSettings {
    settings: Settings,
    files: RoutingFiles,
    /// Engines whose own file is invalid, and the reason.
    refused: Vec<(&'static str, String)>,
    /// The engines listed in `routing_engine`, if the configuration file or `--set` sets it.
    engine_names: Vec<String>,
    /// Remarks on the files, as lines of text.
    pub remarks: Vec<String>,
}

/// Reports why the settings are invalid. A plan without them would not be the requested one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The configuration file is invalid.
    #[error("-F/--config: {0}")]
    Config(#[from] FileError),
    /// A value of `--set` is invalid.
    #[error("--set: {0}")]
    Value(#[from] ValueError),
    /// An unknown key of `--set`.
    #[error("--set: unknown key '{0}'; ibsm -c FILE lists all keys")]
    Unknown(String),
    /// A file that the settings name is invalid.
    #[error(transparent)]
    File(#[from] PolicyError),
}

impl EngineSettings {
    /// Reads the configuration file, applies `--set`, and reads the files that the settings name.
    /// `engines` are the engines to compare.
    pub fn load(
        config: Option<&PathBuf>,
        set: &[(String, String)],
        engines: &[&str],
    ) -> Result<Self, SettingsError> {
        let (mut settings, mut remarks) = (Settings::default(), Vec::new());
        if let Some(path) = config {
            let parsed = file::read(path, false, &disk::read)?;
            settings = parsed.settings;
            remarks = parsed.mistakes;
        }
        for (key, value) in set {
            if !settings.set(key, value)? {
                return Err(SettingsError::Unknown(key.clone()));
            }
        }
        let names = settings.engine_names();
        let names = names.split(EngineNames::is_separator).filter(|name| !name.is_empty());
        let engine_names = names.map(str::to_owned).collect();
        // Files of a single engine are read only if it is compared.
        settings.set("routing_engine", &engines.join(","))?;
        let mut refused = Vec::new();
        if let Err(error) = RoutingFiles::load(&settings, &disk::read)
            && is_of(&error, settings.torus_config.as_deref())
        {
            refused.push((Torus2Qos.name(), error.to_string()));
            settings.torus_config = None;
        }
        let (files, odd) = RoutingFiles::load(&settings, &disk::read)?;
        remarks.extend(odd);
        Ok(Self { settings, files, refused, engine_names, remarks })
    }

    /// The reason why an engine's own file is invalid, if it is.
    pub fn refusal(&self, engine: &str) -> Option<&str> {
        let refused = self.refused.iter().find(|(name, _)| *name == engine);
        refused.map(|(_, reason)| reason.as_str())
    }

    /// The engines listed in `routing_engine`, in order; empty if it is not set.
    pub fn engine_names(&self) -> &[String] {
        &self.engine_names
    }

    /// Resolves the settings to a site, whose links have `data_lanes` data VLs.
    pub fn steer(&self, site: &Site, data_lanes: u8) -> Steered {
        let ends = site.topology.destinations().iter().zip(&site.roster.ends);
        let ports = ends.map(|(to, end)| (end.guid, to.base_lid));
        let switches = site.roster.switches.iter().map(|switch| switch.guid);
        let places = Places::new(&site.topology, switches, ports);
        let mut steered = steer(&self.files, &self.settings, &places);
        steered.steering.common.data_lanes = data_lanes;
        steered
    }
}

/// Whether an error is about this file.
fn is_of(error: &PolicyError, path: Option<&str>) -> bool {
    path.is_some_and(|path| error.path() == Path::new(path))
}
