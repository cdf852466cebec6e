//! Profiles: a storm's settings in a TOML file, and the ready ones that come with the program.
//!
//! What a file says is checked value by value as it is read; [`plan`](crate::plan) makes a storm
//! of it. docs/ibstorm.md has every key.

mod tables;
mod value;

pub use self::tables::*;
pub use self::value::{Factor, Id, Named, Rate, Share, Time, Whole};

use std::path::{Path, PathBuf};

use toml::Value;

/// A profile that comes with the program.
pub struct Ready {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

/// All that come with the program.
pub const READY: [Ready; 12] = [
    Ready { name: "closed", text: include_str!("../../profiles/closed.toml") },
    Ready { name: "open", text: include_str!("../../profiles/open.toml") },
    Ready { name: "poisson", text: include_str!("../../profiles/poisson.toml") },
    Ready { name: "ramp", text: include_str!("../../profiles/ramp.toml") },
    Ready { name: "linux-client", text: include_str!("../../profiles/linux-client.toml") },
    Ready { name: "overload", text: include_str!("../../profiles/overload.toml") },
    Ready { name: "job-start", text: include_str!("../../profiles/job-start.toml") },
    Ready { name: "all-to-all", text: include_str!("../../profiles/all-to-all.toml") },
    Ready { name: "reboot", text: include_str!("../../profiles/reboot.toml") },
    Ready { name: "acm", text: include_str!("../../profiles/acm.toml") },
    Ready { name: "srp", text: include_str!("../../profiles/srp.toml") },
    Ready { name: "malformed", text: include_str!("../../profiles/malformed.toml") },
];

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Neither a name that is known nor a file.
    #[error(
        "{0}: neither a file nor a profile that comes with ibstorm ({names})",
        names = READY.map(|ready| ready.name).join(", ")
    )]
    Unknown(String),
    /// A file that cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// Something in it.
    #[error("{file}:{line}: {what}")]
    Parse {
        /// Which file.
        file: String,
        /// Where.
        line: usize,
        /// Key, what is wrong and what would be right.
        what: String,
    },
    /// A setting on the command line.
    #[error("--set {0}: {1}")]
    Set(String, String),
}

impl Profile {
    /// Reads the profile of this name or in this file, with settings such as
    /// `job-start.peers=64` put in.
    pub fn load(name: &str, settings: &[String]) -> Result<Self, ProfileError> {
        let ready = READY.iter().find(|ready| ready.name == name);
        let text = match ready {
            Some(ready) => ready.text.to_owned(),
            None if !Path::new(name).exists() => {
                return Err(ProfileError::Unknown(name.to_owned()));
            }
            None => std::fs::read_to_string(name)
                .map_err(|error| ProfileError::Read(name.into(), error))?,
        };
        let profile = Self::parse(name, &text)?;
        if settings.is_empty() {
            return Ok(profile);
        }
        let mut table: toml::Table = text.parse().expect("parsed just now");
        let model = profile.models().into_iter().find(|(_, is_there)| *is_there);
        for setting in settings {
            let fail = |why: String| ProfileError::Set(setting.clone(), why);
            put(&mut table, setting, model.map(|(name, _)| name)).map_err(fail)?;
            // One at a time, so that the one at fault is named.
            let checked = table.clone().try_into::<Self>();
            checked.map_err(|error| fail(error.message().to_owned()))?;
        }
        let settings = settings.join(" --set ");
        table.try_into().map_err(|error: toml::de::Error| {
            ProfileError::Set(settings, error.message().to_owned())
        })
    }

    /// Reads a profile; `file` is what errors call it.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        let fail = |at: usize, what: String| {
            let line = text[..at.min(text.len())].matches('\n').count() + 1;
            ProfileError::Parse { file: file.to_owned(), line, what }
        };
        let profile: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            let line = text[start..].lines().next().unwrap_or_default();
            let key = line.split_once('=').map(|(key, _)| key.trim());
            let message = error.message().trim().to_owned();
            match key {
                Some(key) if !message.contains(&format!("`{key}`")) => {
                    fail(at, format!("{key}: {message}"))
                }
                _ => fail(at, message),
            }
        })?;
        let models: Vec<_> =
            profile.models().into_iter().filter(|(_, is_there)| *is_there).collect();
        let names = profile.models().map(|(name, _)| format!("[{name}]")).join(", ");
        match models[..] {
            [_] => Ok(profile),
            [] => Err(fail(0, format!("no model: one table of {names} says how clients behave"))),
            [_, (second, _), ..] => {
                let at = text.find(&format!("[{second}]")).unwrap_or(0);
                Err(fail(at, format!("[{second}]: a second model; a profile has one of {names}")))
            }
        }
    }

    /// The models, and whether they are there.
    pub fn models(&self) -> [(&'static str, bool); 9] {
        [
            ("closed", self.closed.is_some()),
            ("open", self.open.is_some()),
            ("ramp", self.ramp.is_some()),
            ("linux-client", self.linux_client.is_some()),
            ("job-start", self.job_start.is_some()),
            ("reboot", self.reboot.is_some()),
            ("acm", self.acm.is_some()),
            ("srp", self.srp.is_some()),
            ("malformed", self.malformed.is_some()),
        ]
    }
}

/// Keys that stand before all tables.
const TOP: [&str; 6] = ["description", "duration", "queries", "seed", "check", "check-sample"];

/// Puts `key=value` or `table.key=value` into a file's table; a key alone is one of the model's.
fn put(table: &mut toml::Table, setting: &str, model: Option<&str>) -> Result<(), String> {
    let (key, value) =
        setting.split_once('=').ok_or("a setting is KEY=VALUE or TABLE.KEY=VALUE")?;
    let (key, value) = (key.trim(), value.trim());
    // A word that is no TOML value is a string without its quotes.
    let value = format!("value = {value}")
        .parse::<toml::Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    let (inner, key) = match (key.split_once('.'), model) {
        (Some((inner, key)), _) => (Some(inner), key),
        (None, _) if TOP.contains(&key) => (None, key),
        (None, model) => (model, key),
    };
    let target = match inner {
        None => table,
        Some(inner) => table
            .entry(inner)
            .or_insert_with(|| Value::Table(toml::Table::new()))
            .as_table_mut()
            .ok_or_else(|| format!("{inner} is no table"))?,
    };
    target.insert(key.to_owned(), value);
    Ok(())
}

/// The ready profiles in words, a line each.
pub fn list() -> String {
    let line = |Ready { name, text }: &Ready| {
        let profile = Profile::parse(name, text);
        let description = profile.map(|profile| profile.description).unwrap_or_default();
        format!("{name:<14}{description}\n")
    };
    READY.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::By;
    use std::time::Duration;

    #[test]
    fn every_ready_profile_can_be_used_and_says_what_it_is_for() {
        for Ready { name, text } in &READY {
            let profile = Profile::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert!(!profile.description.is_empty(), "{name}");
        }
        assert_eq!(list().lines().count(), READY.len());
    }

    #[test]
    fn errors_name_file_line_key_and_what_would_be_right() {
        let wrong = |text: &str| Profile::parse("storm.toml", text).unwrap_err().to_string();
        for (text, expected) in [
            (
                "seed = 1\n[job-start]\nwithin = \"5 parsecs\"\n",
                "storm.toml:3: within: a time is a number with us, ms, s, m or h in quotes, such \
                 as \"200ms\", not \"5 parsecs\"",
            ),
            (
                "[job-start]\n\npeers = 0\n",
                "storm.toml:3: peers: a whole number from 1 to 65536, not 0",
            ),
            (
                "[ramp]\nfactor = 1\n",
                "storm.toml:2: factor: a factor is a number from 1.01 to 100, not 1",
            ),
            (
                "[query]\nby = \"name\"\n[closed]\n",
                "storm.toml:2: by: one of gid, lid, gid-service, ipoib, acm, acm-gid, acm-lid, \
                 srp, not \"name\"",
            ),
            (
                "[closed]\n[open]\n",
                "storm.toml:2: [open]: a second model; a profile has one of [closed], [open], \
                 [ramp], [linux-client], [job-start], [reboot], [acm], [srp], [malformed]",
            ),
        ] {
            assert_eq!(wrong(text), expected);
        }
        let unknown = wrong("[closed]\nconcurency = 3\n");
        assert!(unknown.starts_with("storm.toml:2: unknown field `concurency`"), "{unknown}");
        assert!(unknown.contains("`concurrency`"), "{unknown}");
        assert!(wrong("seed = 1\n").starts_with("storm.toml:1: no model"));
        let form = wrong("[malformed]\nforms = [\"clas\"]\n");
        assert!(form.starts_with("storm.toml:2: ") && form.contains("`rmpp-stray`"), "{form}");
    }

    #[test]
    fn settings_change_a_profile() {
        let load = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|&s| s.to_owned()).collect();
            Profile::load("job-start", &settings)
        };
        let settings =
            ["peers=5", "job-start.within=20ms", "duration=9s", "query.by=lid", "persist=false"];
        let profile = load(&settings).unwrap();
        let job = profile.job_start.unwrap();
        assert_eq!((job.peers, job.persist), (Some(Whole(5)), Some(false)));
        assert_eq!(job.within, Some(Time(Duration::from_millis(20))));
        assert_eq!(profile.duration, Some(Time(Duration::from_secs(9))));
        assert_eq!(profile.query.by, Some(Named(By::Lid)));
        let wrong = |setting| load(&[setting]).unwrap_err().to_string();
        assert_eq!(wrong("peers=0"), "--set peers=0: a whole number from 1 to 65536, not 0");
        assert!(wrong("peers").contains("KEY=VALUE"));
        assert!(wrong("piers=4").starts_with("--set piers=4: unknown field `piers`"));
        let unknown = Profile::load("no-such", &[]).unwrap_err().to_string();
        assert!(unknown.contains("neither a file nor") && unknown.contains("job-start"));
    }
}
