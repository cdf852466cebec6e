//! What operators ask of engines: an `opensm.conf`, the files that it names, and `--set`.

use std::path::PathBuf;

use super::site::Site;
use crate::config::routing_files::RoutingFiles;
use crate::config::{ConfigError, PolicyError, Settings, ValueError, file};
use crate::manage::steering::{Places, Steered, steer};

/// Settings and files, read once. They name GUIDs, and hold for a site whatever is missing of it.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    settings: Settings,
    files: RoutingFiles,
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
        let mut settings = match config {
            Some(path) => file::read(path)?.settings,
            None => Settings::default(),
        };
        for (key, value) in set {
            if !settings.set(key, value)? {
                return Err(WishError::Unknown(key.clone()));
            }
        }
        // Files that only one engine looks at are read for that one.
        settings.set("routing_engine", &engines.join(","))?;
        let (files, remarks) = RoutingFiles::load(&settings)?;
        Ok(Self { settings, files, remarks })
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
