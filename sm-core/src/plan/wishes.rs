//! What operators ask of engines: an `opensm.conf`, the files that it names, and `--set`.

use std::path::{Path, PathBuf};

use super::site::Site;
use crate::config::routing_files::RoutingFiles;
use crate::config::{ConfigError, EngineNames, PolicyError, Settings, ValueError, file};
use crate::manage::steering::{Places, Steered, steer};

/// Settings and files, read once. They name GUIDs, and hold for a site whatever is missing of it.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    settings: Settings,
    files: RoutingFiles,
    /// Engines whose own file cannot be used, and why.
    refused: Vec<(&'static str, String)>,
    /// What `routing_engine` names, if the configuration file or `--set` names any.
    wanted: Vec<String>,
    /// What is odd about the files, in lines for people.
    pub remarks: Vec<String>,
}

/// Why they cannot be heeded. A plan that leaves them out would be one of something else.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WishError {
    /// The configuration file.
    #[error("-F/--config: {0}")]
    Config(#[from] ConfigError),
    /// A value of `--set`.
    #[error("--set: {0}")]
    Value(#[from] ValueError),
    /// A key of `--set` that there is not.
    #[error("--set: there is no setting '{0}'; ibsm -c FILE writes all there are")]
    Unknown(String),
    /// A file that is named.
    #[error(transparent)]
    File(#[from] PolicyError),
}

impl Wishes {
    /// Reads the configuration file, puts what is set over it, and reads the files that are named.
    /// `engines` are those that will be asked.
    pub fn load(
        config: Option<&PathBuf>,
        set: &[(String, String)],
        engines: &[&str],
    ) -> Result<Self, WishError> {
        let (mut settings, mut remarks) = (Settings::default(), Vec::new());
        if let Some(path) = config {
            let parsed = file::read(path, false)?;
            settings = parsed.settings;
            remarks = parsed.mistakes;
        }
        for (key, value) in set {
            if !settings.set(key, value)? {
                return Err(WishError::Unknown(key.clone()));
            }
        }
        let names = settings.engine_names();
        let names = names.split(EngineNames::is_separator).filter(|name| !name.is_empty());
        let wanted = names.map(str::to_owned).collect();
        // Files that only one engine looks at are read for that one.
        settings.set("routing_engine", &engines.join(","))?;
        let mut refused = Vec::new();
        if let Err(error) = RoutingFiles::load(&settings)
            && is_of(&error, settings.torus_config.as_deref())
        {
            refused.push(("torus-2QoS", error.to_string()));
            settings.torus_config = None;
        }
        let (files, odd) = RoutingFiles::load(&settings)?;
        remarks.extend(odd);
        Ok(Self { settings, files, refused, wanted, remarks })
    }

    /// Why an engine cannot be steered as it is to be, if it cannot.
    pub fn refusal(&self, engine: &str) -> Option<&str> {
        let refused = self.refused.iter().find(|(name, _)| *name == engine);
        refused.map(|(_, reason)| reason.as_str())
    }

    /// What `routing_engine` names, in its order; empty if it names none.
    pub fn wanted(&self) -> &[String] {
        &self.wanted
    }

    /// The same in the numbers of a site, whose links have so many data VLs.
    pub fn steer(&self, site: &Site, data_lanes: u8) -> Steered {
        let ends = site.topology.destinations().iter().zip(&site.roster.ends);
        let ports = ends.map(|(to, end)| (end.guid, to.base_lid));
        let switches = site.roster.switches.iter().map(|switch| switch.guid);
        let places = Places::new(&site.topology, switches, ports);
        let mut steered = steer(&self.files, &self.settings, &places);
        steered.steering.data_lanes = data_lanes;
        steered
    }
}

/// Whether an error is about this file.
fn is_of(error: &PolicyError, path: Option<&str>) -> bool {
    path.is_some_and(|path| error.path() == Path::new(path))
}
