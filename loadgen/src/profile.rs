//! Profiles: a storm's settings in a TOML file, and the ready ones that come with the program.
//!
//! What a file says is checked value by value as it is read; [`plan`](crate::plan) makes a storm
//! of it. docs/ibstorm.md has every key.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ib_mad::types::PKey;
use serde::Deserialize;
use toml::Value;

use crate::ask::malformed::Form;
use crate::options::CheckKind;
use crate::scenario::pace::Arrivals;
use crate::scenario::reboot::SERVICES_MAX;
use crate::scenario::srp::Listing;
use crate::workload::{By, PAIRS_MAX, Pattern};

/// A profile that comes with the program.
pub struct Ready {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

/// All that come with the program.
pub const READY: [Ready; 12] = [
    Ready { name: "closed", text: include_str!("../profiles/closed.toml") },
    Ready { name: "open", text: include_str!("../profiles/open.toml") },
    Ready { name: "poisson", text: include_str!("../profiles/poisson.toml") },
    Ready { name: "ramp", text: include_str!("../profiles/ramp.toml") },
    Ready { name: "linux-client", text: include_str!("../profiles/linux-client.toml") },
    Ready { name: "overload", text: include_str!("../profiles/overload.toml") },
    Ready { name: "job-start", text: include_str!("../profiles/job-start.toml") },
    Ready { name: "all-to-all", text: include_str!("../profiles/all-to-all.toml") },
    Ready { name: "reboot", text: include_str!("../profiles/reboot.toml") },
    Ready { name: "acm", text: include_str!("../profiles/acm.toml") },
    Ready { name: "srp", text: include_str!("../profiles/srp.toml") },
    Ready { name: "malformed", text: include_str!("../profiles/malformed.toml") },
];

/// What a file says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Profile {
    /// What it is for, in a line.
    pub description: String,
    /// Ends after this time.
    pub duration: Option<Time>,
    /// Ends after so many queries.
    pub queries: Option<Whole<1, { u64::MAX }>>,
    /// What chance is drawn by.
    pub seed: Option<u64>,
    /// How answers are checked.
    pub check: Option<CheckKind>,
    /// Share of the pairs whose answers are compared with the snapshot.
    pub check_sample: Option<Share>,
    /// What is asked.
    pub query: QueryTable,
    /// How long is waited.
    pub retry: RetryTable,
    /// The model, one of these.
    pub closed: Option<ClosedTable>,
    /// See [`open`](crate::scenario::open).
    pub open: Option<OpenTable>,
    /// See [`ramp`](crate::scenario::ramp).
    pub ramp: Option<RampTable>,
    /// See [`linux_client`](crate::scenario::linux_client).
    pub linux_client: Option<LinuxClientTable>,
    /// See [`job_start`](crate::scenario::job_start).
    pub job_start: Option<JobStartTable>,
    /// See [`reboot`](crate::scenario::reboot).
    pub reboot: Option<RebootTable>,
    /// See [`acm`](crate::scenario::acm).
    pub acm: Option<AcmTable>,
    /// See [`srp`](crate::scenario::srp).
    pub srp: Option<SrpTable>,
    /// See [`malformed`](crate::scenario::malformed).
    pub malformed: Option<MalformedTable>,
}

macro_rules! tables {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$field_doc:meta])* $field:ident: $kind:ty, )* } )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, Deserialize)]
            #[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
            pub struct $name {
                $( $(#[$field_doc])* pub $field: Option<$kind>, )*
            }
        )*
    };
}

tables! {
    /// `[query]`: what is asked.
    QueryTable {
        /// How paths are named.
        by: Named<By>,
        /// Service ID, where queries have one.
        service_id: Id,
        /// P_Key, where queries have one.
        pkey: Id,
        /// Pairs of ports to draw.
        pairs: Whole<1, { PAIRS_MAX as u64 }>,
    }
    /// `[retry]`: how long is waited for an answer.
    RetryTable {
        /// Before asking again.
        timeout: Time,
        /// Times that it is asked again.
        retries: Whole<0, 1000>,
        /// When the client gives up.
        deadline: Time,
    }
    /// `[closed]`.
    ClosedTable {
        /// Queries outstanding.
        concurrency: Whole<1, { 1 << 20 }>,
    }
    /// `[open]`.
    OpenTable {
        /// Queries a second.
        rate: Rate,
        /// How they follow each other.
        arrivals: Arrivals,
    }
    /// `[ramp]`.
    RampTable {
        /// First rate.
        from: Rate,
        /// Last rate.
        to: Rate,
        /// Each rate is so many times the one before.
        factor: Factor,
        /// How long each is measured.
        step: Time,
        /// How long is waited before.
        settle: Time,
        /// Least share of queries resolved.
        goodput: Share,
        /// Longest 99th percentile.
        p99: Time,
        /// Steps to close in on the knee.
        refine: Whole<0, 20>,
        /// How queries follow each other.
        arrivals: Arrivals,
    }
    /// `[linux-client]`.
    LinuxClientTable {
        /// Ports that ask.
        ports: Whole<1, 65_536>,
        /// Queries that each has outstanding.
        outstanding: Whole<1, 1024>,
        /// Others that each asks for.
        destinations: Whole<1, 65_536>,
        /// Which ones.
        pattern: Pattern,
        /// Queries a second of all ports together.
        rate: Rate,
        /// How they follow each other.
        arrivals: Arrivals,
    }
    /// `[job-start]`.
    JobStartTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they begin.
        within: Time,
        /// Others that each asks for.
        peers: Whole<1, 65_536>,
        /// Which ones.
        pattern: Pattern,
        /// Queries that each has outstanding.
        outstanding: Whole<1, 1024>,
        /// Whether what failed is asked for again.
        persist: bool,
    }
    /// `[reboot]`.
    RebootTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they come up.
        within: Time,
        /// Requests that each has outstanding.
        outstanding: Whole<1, 64>,
        /// Services that each registers.
        services: Whole<0, { SERVICES_MAX as u64 }>,
        /// How long each stays.
        stay: Time,
        /// Whether it takes back what it registered.
        leave: bool,
    }
    /// `[acm]`.
    AcmTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they begin.
        within: Time,
        /// Others that each asks for.
        destinations: Whole<1, 65_536>,
        /// Which ones.
        pattern: Pattern,
        /// Queries that each has outstanding.
        depth: Whole<1, 1024>,
        /// How paths are asked for, in turn.
        by: Vec<Named<By>>,
    }
    /// `[srp]`.
    SrpTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they begin.
        within: Time,
        /// Which list is asked for.
        listing: Listing,
        /// Searches that each makes.
        scans: Whole<1, 1_000_000>,
        /// Time between two.
        rescan: Time,
    }
    /// `[malformed]`.
    MalformedTable {
        /// Queries a second, garbage included.
        rate: Rate,
        /// How they follow each other.
        arrivals: Arrivals,
        /// Share of the garbage.
        share: Share,
        /// Its forms.
        forms: Vec<Form>,
    }
}

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

/// A time such as "200ms".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Time(pub Duration);

impl TryFrom<Value> for Time {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        let wrong = "a time is a number with us, ms, s, m or h in quotes, such as \"200ms\"";
        let text = value.as_str().ok_or_else(|| format!("{wrong}, not {value}"))?;
        crate::options::duration(text).map(Self).map_err(|_| format!("{wrong}, not {value}"))
    }
}

/// A whole number between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Whole<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> TryFrom<Value> for Whole<MIN, MAX> {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        let limit = match MAX {
            u64::MAX => format!("of at least {MIN}"),
            _ => format!("from {MIN} to {MAX}"),
        };
        number.map(Self).ok_or_else(|| format!("a whole number {limit}, not {value}"))
    }
}

fn between(value: &Value, min: f64, max: f64, what: &str) -> Result<f64, String> {
    let number = value.as_float().or(value.as_integer().map(|number| number as f64));
    number
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("{what} is a number from {min} to {max}, not {value}"))
}

/// Queries a second.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Rate(pub f64);

impl TryFrom<Value> for Rate {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        between(&value, 1e-3, 1e9, "a rate, queries a second,").map(Self)
    }
}

/// A share, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Share(pub f64);

impl TryFrom<Value> for Share {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        between(&value, 0.0, 1.0, "a share").map(Self)
    }
}

/// By how much a rate grows.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Factor(pub f64);

impl TryFrom<Value> for Factor {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        between(&value, 1.01, 100.0, "a factor").map(Self)
    }
}

/// A number such as 0xffff; in quotes where it is too large for TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Id(pub u64);

impl TryFrom<Value> for Id {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        let given = match &value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::String(text) => crate::options::number(text).ok(),
            _ => None,
        };
        given.map(Self).ok_or_else(|| format!("a number such as 0x01061b58, not {value}"))
    }
}

impl Id {
    /// As a P_Key.
    pub fn pkey(self) -> Option<PKey> {
        u16::try_from(self.0).ok().map(PKey).filter(|pkey| pkey.is_valid())
    }
}

/// One of several, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value", bound = "T: std::str::FromStr<Err = String>")]
pub struct Named<T>(pub T);

impl<T: std::str::FromStr<Err = String>> TryFrom<Value> for Named<T> {
    type Error = String;
    fn try_from(value: Value) -> Result<Self, String> {
        let text = value.as_str().ok_or_else(|| format!("a word in quotes, not {value}"))?;
        text.parse().map(Self).map_err(|right| format!("{right}, not {value}"))
    }
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
