//! Profiles: settings of a storm in a TOML file, and the built-in ones.
//!
//! Values are checked as a file is read; [`plan`](crate::plan) derives the storm. docs/ibstorm.md
//! documents every key.

mod outline;
mod tables;
mod value;

pub use self::tables::*;
pub use self::value::{Factor, Id, Named, Rate, Share, Time, Whole};

use std::path::{Path, PathBuf};

use toml::Value;

use self::outline::{MODELS, TOP};

/// A built-in profile.
pub struct Ready {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

/// All built-in profiles.
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
    /// Neither a built-in profile nor a file.
    #[error(
        "{0}: neither a file nor a built-in profile ({names})",
        names = READY.map(|ready| ready.name).join(", ")
    )]
    Unknown(String),
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// The file has an error.
    #[error("{file}:{line}: {what}")]
    Parse {
        /// Path of the file.
        file: String,
        /// The line.
        line: usize,
        /// Key, error and expected value.
        what: String,
    },
    /// A `--set` option is invalid.
    #[error("--set {0}: {1}")]
    Set(String, String),
}

impl Profile {
    /// Reads a profile by name or path, and applies settings such as `job-start.peers=64`.
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
        let mut table: toml::Table = text.parse().expect("the text was parsed above");
        let model = profile.models().into_iter().find(|(_, is_there)| *is_there);
        for setting in settings {
            let fail = |why: String| ProfileError::Set(setting.clone(), why);
            put(&mut table, setting, model.map(|(name, _)| name)).map_err(fail)?;
            // One at a time, so that an error names the setting.
            check_set(&table, model.map(|(name, _)| name)).map_err(fail)?;
        }
        let settings = settings.join(" --set ");
        table.try_into().map_err(|error: toml::de::Error| {
            ProfileError::Set(settings, error.message().to_owned())
        })
    }

    /// Parses a profile; errors call it `file`.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        let fail = |(at, what): (usize, String)| {
            let line = outline::line_of(text, at);
            ProfileError::Parse { file: file.to_owned(), line, what }
        };
        outline::check(text).map_err(fail)?;
        toml::from_str(text).map_err(|error| fail(outline::in_words(text, &error)))
    }

    /// The models, and whether the profile has each.
    pub fn models(&self) -> [(&'static str, bool); 9] {
        let there = [
            self.closed.is_some(),
            self.open.is_some(),
            self.ramp.is_some(),
            self.linux_client.is_some(),
            self.job_start.is_some(),
            self.reboot.is_some(),
            self.acm.is_some(),
            self.srp.is_some(),
            self.malformed.is_some(),
        ];
        std::array::from_fn(|at| (MODELS[at], there[at]))
    }
}

/// Checks a file's table after a setting was applied.
fn check_set(table: &toml::Table, model: Option<&str>) -> Result<(), String> {
    for (name, value) in table {
        outline::check_entry(name, value.is_table())?;
        let second = MODELS.contains(&name.as_str()) && model != Some(name.as_str());
        if let (Some(model), true) = (model, second) {
            return Err(format!("{name}: a profile has one model, and this one has {model}"));
        }
    }
    let checked = table.clone().try_into::<Profile>().map(drop);
    checked.map_err(|error| {
        outline::unknown_key(error.message()).unwrap_or_else(|| error.message().to_owned())
    })
}

/// Inserts `key=value` or `table.key=value` into a file's table; a key alone belongs to the model's
/// table.
fn put(table: &mut toml::Table, setting: &str, model: Option<&str>) -> Result<(), String> {
    let (key, value) =
        setting.split_once('=').ok_or("a setting is KEY=VALUE or TABLE.KEY=VALUE")?;
    let (key, value) = (key.trim(), value.trim());
    // A word that is not a TOML value is an unquoted string.
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
            .ok_or_else(|| format!("{inner} is not a table"))?,
    };
    target.insert(key.to_owned(), value);
    Ok(())
}

/// The built-in profiles with their descriptions, one per line.
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
                "[closed]\nconcurency = 3\n",
                "storm.toml:2: concurency: unknown key in this table, which has concurrency",
            ),
            (
                "[closed]\nduration = \"5s\"\n",
                "storm.toml:2: duration: unknown key in this table, which has concurrency; \
                 duration belongs before the first table",
            ),
        ] {
            assert_eq!(wrong(text), expected);
        }
        let form = wrong("[malformed]\nforms = [\"clas\"]\n");
        assert!(form.starts_with("storm.toml:2: ") && form.contains("`rmpp-stray`"), "{form}");
    }

    /// Regression: with two models, the error named the one later in an internal list, not in the
    /// file, and its line was searched in comments too; a table name was reported as an "unknown
    /// field".
    #[test]
    fn errors_about_tables_say_what_is_wrong_with_which() {
        let wrong = |text: &str| Profile::parse("storm.toml", text).unwrap_err().to_string();
        let models = "[closed], [open], [ramp], [linux-client], [job-start], [reboot], [acm], \
                      [srp], [malformed]";
        for (text, expected) in [
            (
                "# [closed] or [open]\n[open]\n\n[closed]\n",
                "4: [closed]: a profile has one model, and line 2 has [open]; remove one of the \
                 two",
            ),
            (
                "open.rate = 5\n[closed]\n",
                "2: [closed]: a profile has one model, and line 1 has [open]; remove one of the \
                 two",
            ),
            (
                "[closed]\n[query]\n[closed]\n",
                "3: [closed]: duplicate table; put all its keys under one of them",
            ),
            ("seed = 1\nseed = 2\n", "2: seed: duplicate key; remove one of the two"),
            (
                "[clsoed]\nx = 1\n",
                &format!(
                    "1: [clsoed]: unknown table; a profile has [query], [retry] and one model of \
                     {models}"
                ),
            ),
            (
                "seed = 1\nclosed = 5\n",
                "2: closed is a table, not a key; write [closed] on a separate line",
            ),
            ("[[closed]]\n", "1: closed is a table, not a key; write [closed] on a separate line"),
            (
                "[duration]\n[closed]\n",
                "1: duration is a key, not a table; write duration = ... before the first table",
            ),
            (
                "rate = 5\n[open]\n",
                "1: rate: unknown key before the first table; allowed there: description, \
                 duration, queries, seed, check, check-sample; all other keys belong in a table \
                 such as [query]",
            ),
            ("seed = 1\n", &format!("1: no model: a profile needs one table of {models}")),
        ] {
            assert_eq!(wrong(text), format!("storm.toml:{expected}"));
        }
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
        assert!(wrong("piers=4").starts_with("--set piers=4: piers: unknown key in this table"));
        assert_eq!(
            wrong("open.rate=5"),
            "--set open.rate=5: open: a profile has one model, and this one has job-start"
        );
        assert!(wrong("opn.rate=5").starts_with("--set opn.rate=5: [opn]: unknown table; "));
        let unknown = Profile::load("no-such", &[]).unwrap_err().to_string();
        assert!(unknown.contains("neither a file nor") && unknown.contains("job-start"));
    }
}
