//! The configuration file: options of the command line as lines of a key and a value, in the
//! syntax of opensm.conf.
//!
//! A key is the long name of an option, with `_` or `-`. An option that may be repeated may have
//! several lines; of other keys the last line counts. An option given on the command line or in the
//! environment replaces all lines of its key.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::options::Options;

/// Read if it exists and `-F` names no other.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/ibsm/ibsa.conf";
/// Longest file, bytes.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Largest number of mistakes that are listed.
const MISTAKES_MAX: usize = 50;
/// Least similarity of a key with the one that was probably meant, of 1.
const SIMILAR_MIN: f64 = 0.7;
/// Options that a file cannot contain.
const NOT_IN_FILES: [&str; 3] = ["config", "help", "version"];

/// Why the options cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The command line; help and the version, too.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    /// The file cannot be read.
    #[error("-F/--config: {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Lines of the file cannot be used.
    #[error("{}", mistakes.join("\n"))]
    Mistakes {
        /// Each with file, line and reason.
        mistakes: Vec<String>,
    },
}

impl Options {
    /// Reads the arguments of the program, its name first, and the configuration file beneath them.
    pub fn from_arguments(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, OptionsError> {
        Self::over_default(arguments.into_iter().collect(), Path::new(DEFAULT_CONFIG_FILE))
    }

    fn over_default(arguments: Vec<OsString>, default: &Path) -> Result<Self, OptionsError> {
        let lenient = Self::command().mut_args(|argument| argument.required(false));
        let given = lenient.clone().try_get_matches_from(&arguments)?;
        let named = given.get_one::<PathBuf>("config");
        let path = named.map_or(default, PathBuf::as_path);
        let text = match read(path) {
            Ok(text) => text,
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {
                String::new()
            }
            Err(source) => return Err(OptionsError::Io { path: path.to_owned(), source }),
        };
        let mut reader = Reader { command: lenient, path, lines: Vec::new(), mistakes: Vec::new() };
        reader.read(&text);
        if !reader.mistakes.is_empty() {
            return Err(OptionsError::Mistakes { mistakes: reader.mistakes });
        }
        let (name, rest) = arguments
            .split_first()
            .map_or((None, &[][..]), |(name, rest)| (Some(name.clone()), rest));
        let lines = reader.lines.into_iter().filter(|line| !is_given(&given, &line.id));
        let all = name.into_iter().chain(lines.map(|line| line.argument.into()));
        let matches = Self::command().try_get_matches_from(all.chain(rest.iter().cloned()))?;
        Ok(Self::from_arg_matches(&matches)?)
    }
}

/// Whether the command line or the environment sets an option.
fn is_given(given: &ArgMatches, id: &str) -> bool {
    let source = given.value_source(id);
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        let reason = format!("longer than {FILE_LEN_MAX} bytes; not a configuration file?");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// A line as an argument of the command line.
struct Line {
    /// clap's name of the option.
    id: String,
    argument: String,
}

/// State while a file is read.
struct Reader<'a> {
    command: Command,
    path: &'a Path,
    lines: Vec<Line>,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self, text: &str) {
        for (number, line) in (1..).zip(text.lines()) {
            // A comment ends the line, unless `#` is part of a word, as in a file name.
            let is_comment = |(at, _): &(usize, &str)| {
                line[..*at].chars().next_back().is_none_or(char::is_whitespace)
            };
            let end = line.match_indices('#').find(is_comment).map_or(line.len(), |(at, _)| at);
            let line = line[..end].trim();
            if line.is_empty() {
                continue;
            }
            let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let value = value.trim();
            let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            if let Err(reason) = self.take(key, quoted.unwrap_or(value))
                && self.mistakes.len() < MISTAKES_MAX
            {
                self.mistakes.push(format!("{}:{number}: {reason}", self.path.display()));
            }
        }
    }

    /// Takes one line, or says what is wrong with it.
    fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        let name = key.replace('_', "-");
        let fits = |argument: &&Arg| {
            argument.get_long() == Some(&name)
                && !NOT_IN_FILES.contains(&argument.get_id().as_str())
        };
        let Some(argument) = self.command.get_arguments().find(fits) else {
            return Err(format!("unknown key '{key}'{}", self.suggestion(&name)));
        };
        let id = argument.get_id().as_str().to_owned();
        if value.is_empty() {
            return Err(format!("{key} has no value"));
        }
        if value == "(null)" {
            return Ok(());
        }
        let is_repeatable = matches!(argument.get_action(), ArgAction::Append);
        let argument = if argument.get_action().takes_values() {
            let argument = format!("--{name}={value}");
            let words = ["ibsa", &argument];
            let checked = self.command.clone().try_get_matches_from(words);
            checked.map_err(|error| reason(&error))?;
            Some(argument)
        } else if value.eq_ignore_ascii_case("TRUE") {
            Some(format!("--{name}"))
        } else if value.eq_ignore_ascii_case("FALSE") {
            None
        } else {
            return Err(format!("{key} takes TRUE or FALSE, not '{value}'"));
        };
        if !is_repeatable {
            self.lines.retain(|line| line.id != id);
        }
        self.lines.extend(argument.map(|argument| Line { id, argument }));
        Ok(())
    }

    /// The key that was probably meant.
    fn suggestion(&self, name: &str) -> String {
        let names = self.command.get_arguments().filter_map(Arg::get_long);
        let rated = names.map(|known| (strsim::jaro_winkler(known, name), known));
        let nearest = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
        match nearest.filter(|(similarity, _)| *similarity >= SIMILAR_MIN) {
            Some((_, known)) => format!("; did you mean '{}'?", known.replace('-', "_")),
            None => String::new(),
        }
    }
}

/// What clap says of a value: its first line, and the values that are possible.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("For more"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options of a command line over a file with this text.
    fn read(text: &str, arguments: &[&str]) -> Result<Options, OptionsError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ibsa.conf");
        std::fs::write(&path, text).unwrap();
        let path = path.to_string_lossy();
        let words = ["ibsa", "-F", &path].into_iter().chain(arguments.iter().copied());
        Options::from_arguments(words.map(OsString::from)).map_err(|error| match error {
            OptionsError::Mistakes { mistakes } => OptionsError::Mistakes {
                mistakes: mistakes.iter().map(|line| line.replace(&*path, "conf")).collect(),
            },
            error => error,
        })
    }

    const LEAST: &str = "sm http://127.0.0.1:1\ntransport udp\n";

    #[test]
    fn a_file_has_the_options_of_the_command_line() {
        let text = "# responder\n\nsm http://127.0.0.1:1\nsm\thttp://127.0.0.1:2 # standby\n\
                    transport udp\ncache_dir \"/var/lib/a b\"\nat-sm-port FALSE\ninsecure TRUE\n\
                    workers 2\nworkers 3\npin 1,2\nname (null)\nring /run/a#b\n";
        let options = read(text, &[]).unwrap();
        assert_eq!((options.sms.len(), options.workers, options.insecure), (2, 3, true));
        assert_eq!(options.cache_dir.as_deref(), Some(Path::new("/var/lib/a b")));
        assert_eq!(options.ring.as_deref(), Some(Path::new("/run/a#b")));
        assert_eq!((options.at_sm_port, options.pin, options.name), (false, vec![1, 2], None));
    }

    #[test]
    fn the_command_line_replaces_lines_of_the_file() {
        let text = format!("{LEAST}sm http://127.0.0.1:2\nworkers 2\n");
        let options = read(&text, &["--sm", "http://127.0.0.1:3", "--workers", "4"]).unwrap();
        assert_eq!((options.sms.len(), options.workers), (1, 4));
        let options = read(&text, &["--echo"]).unwrap();
        assert_eq!((options.sms.len(), options.workers, options.echo), (2, 2, true));
    }

    #[test]
    fn all_mistakes_are_listed_with_their_lines() {
        let text = format!("{LEAST}wokers 2\nworkers 100\ninsecure yes\nhttp\nio fast\nconfig a\n");
        let Err(OptionsError::Mistakes { mistakes }) = read(&text, &[]) else { panic!() };
        assert_eq!(mistakes[0], "conf:3: unknown key 'wokers'; did you mean 'workers'?");
        assert!(
            mistakes[1].starts_with("conf:4: invalid value '100' for '--workers <N>'"),
            "{mistakes:?}"
        );
        assert_eq!(mistakes[2], "conf:5: insecure takes TRUE or FALSE, not 'yes'");
        assert_eq!(mistakes[3], "conf:6: http has no value");
        assert!(mistakes[4].contains("[possible values: auto, uring, mmsg]"), "{mistakes:?}");
        assert!(mistakes[5].starts_with("conf:8: unknown key 'config'"), "{mistakes:?}");
        assert_eq!(mistakes.len(), 6);
    }

    #[test]
    fn what_neither_names_is_missing() {
        let error = read("transport udp\n", &[]).unwrap_err();
        assert!(matches!(&error, OptionsError::Arguments(_)), "{error}");
        assert!(error.to_string().contains("--sm"), "{error}");
    }

    #[test]
    fn a_named_file_has_to_exist_and_the_default_has_not() {
        let named = ["ibsa", "-F", "/nofile"].map(OsString::from);
        let error = Options::from_arguments(named).unwrap_err().to_string();
        assert!(error.starts_with("-F/--config: /nofile: No such file"), "{error}");
        let words = ["ibsa", "--sm", "http://127.0.0.1:1", "--transport", "udp"];
        let words = words.map(OsString::from).to_vec();
        assert!(Options::over_default(words.clone(), Path::new("/nofile")).is_ok());
        let directory = tempfile::tempdir().unwrap();
        let default = directory.path().join("ibsa.conf");
        std::fs::write(&default, "workers 5\n").unwrap();
        assert_eq!(Options::over_default(words, &default).unwrap().workers, 5);
    }
}
