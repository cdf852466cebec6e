//! `ibsm check`: reads all files of the configuration as a start would, and reports all mistakes at
//! once. It opens no port and no socket, and writes nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ib_mad::netlist::Net;
use sa_proto::trust::Usage;
use sm_config::{PolicyError, Reading, Settings, SitePolicy, node_names};

use super::event_plugin::unknown_kind;
use super::log;
use crate::api::users::Users;
use crate::cli::{Examined, Options, disk};
use crate::observe::event::Kinds;

/// Largest number of mistakes that are found in a file that is otherwise rejected at the first.
const ROUNDS_MAX: usize = 50;

/// Runs `ibsm check` to its end. The exit status is 1 if there are mistakes.
pub fn main(options: Options) -> ExitCode {
    let found = Found::of(&options);
    // Standard output may be closed.
    let _ = io::stdout().write_all(found.text().as_bytes());
    if found.mistakes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the files contain that an operator should know.
#[derive(Debug, Default)]
struct Found {
    /// What has to be corrected, each with its place.
    mistakes: Vec<String>,
    /// What may be meant so.
    remarks: Vec<String>,
    files: BTreeSet<PathBuf>,
}

impl Found {
    fn of(options: &Options) -> Self {
        let files = RefCell::new(BTreeSet::new());
        let read = |path: &Path, len_max: u64| {
            let bytes = disk::read(path, len_max)?;
            files.borrow_mut().insert(path.to_owned());
            Ok(bytes)
        };
        let Examined { settings, mistakes, remarks } = Examined::of(options, &read);
        let mut found = Self { mistakes, remarks, files: BTreeSet::new() };
        found.add_policy(&settings, &read);
        let names = node_names::load(settings.node_name_map_name.as_deref(), &read);
        found.mistakes.extend(names.1);
        found.mistakes.extend(log::odd_lines(&settings));
        found.add_others(options, &settings);
        found.files = files.into_inner();
        found
    }

    /// Policy files.
    fn add_policy(&mut self, settings: &Settings, read: sm_config::ReadFile<'_>) {
        let mut faulty = BTreeMap::<PathBuf, BTreeSet<usize>>::new();
        for _ in 0..ROUNDS_MAX {
            let without = |path: &Path, len_max| {
                let bytes = read(path, len_max)?;
                Ok(faulty.get(path).map_or(bytes.clone(), |lines| without_lines(&bytes, lines)))
            };
            let Reading { errors, remarks, mistakes, .. } = SitePolicy::check(settings, &without);
            // What follows the faulty line of a routing file is still unread.
            let unread = errors.iter().filter_map(PolicyError::line_of_list);
            let unread: Vec<_> = unread.map(|(path, line)| (path.to_owned(), line)).collect();
            let lines = errors.iter().flat_map(PolicyError::each);
            let new: Vec<String> = lines.filter(|line| !self.mistakes.contains(line)).collect();
            self.mistakes.extend(new);
            if unread.is_empty() {
                self.mistakes.extend(mistakes.iter().cloned());
                self.remarks.extend(remarks.into_iter().filter(|line| !mistakes.contains(line)));
                return;
            }
            for (path, line) in unread {
                faulty.entry(path).or_default().insert(line);
            }
        }
    }

    /// Files that only the command line names.
    fn add_others(&mut self, options: &Options, settings: &Settings) {
        let mut note = |option: &str, failure: &dyn std::error::Error| {
            self.mistakes.push(format!("{option}{}", sa_proto::with_causes(failure)));
        };
        if let Ok(Some(tls)) = options.tls.files() {
            let tls = sa_proto::trust::TlsFiles { crl: options.tls_crl.clone(), ..tls };
            if let Err(failure) = tls.read(Usage::Server) {
                note("", &failure);
            }
        }
        if let Some(Err(failure)) = options.api_users.as_deref().map(Users::open) {
            note("--api-users: ", &failure);
        }
        if let Some(Err(failure)) = options.expected_topology.as_deref().map(Net::read) {
            note("--expected-topology: ", &failure);
        }
        if let Some(command) = settings.event_command() {
            if let Err(failure) = std::fs::metadata(&command.path) {
                note(&format!("event_plugin_name: {}: ", command.path), &failure);
            }
            let unknown = command.kinds.iter().filter_map(|label| Kinds::of([&label[..]]).err());
            self.mistakes.extend(unknown.map(|label| unknown_kind(&label)));
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for mistake in self.mistakes.iter().flat_map(|mistake| mistake.lines()) {
            text += &format!("{mistake}\n");
        }
        for remark in &self.remarks {
            text += &format!("note: {remark}\n");
        }
        let files: Vec<_> = self.files.iter().map(|path| path.display().to_string()).collect();
        let read = if files.is_empty() { "no files".to_owned() } else { files.join(", ") };
        let count = match self.mistakes.len() {
            0 => "no mistakes".to_owned(),
            1 => "1 mistake".to_owned(),
            count => format!("{count} mistakes"),
        };
        text += &format!("{count}; read: {read}\n");
        printable(&text)
    }
}

/// A text with control characters of files as escapes: a terminal would obey them.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if letter.is_control() && letter != '\n' => {
                shown.extend(letter.escape_default());
            }
            letter => shown.push(letter),
        }
    }
    shown
}

/// A text with these lines, from 1, empty.
fn without_lines(bytes: &[u8], lines: &BTreeSet<usize>) -> Vec<u8> {
    let all = (1..).zip(bytes.split(|&byte| byte == b'\n'));
    let kept = all.map(|(number, line)| if lines.contains(&number) { &[][..] } else { line });
    kept.collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found with these files in a directory, whose name is left out.
    fn check(files: &[(&str, &str)], arguments: &[&str]) -> Found {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text.replace("AT/", &format!("{at}/")))
                .unwrap();
        }
        let arguments = arguments.iter().map(|word| word.replace("AT/", &format!("{at}/")));
        let words = ["ibsm".to_owned(), "check".to_owned()].into_iter().chain(arguments);
        let mut found = Found::of(&Options::from_arguments(words.map(Into::into)));
        for line in found.mistakes.iter_mut().chain(&mut found.remarks) {
            *line = line.replace(&format!("{at}/"), "");
        }
        found
    }

    #[test]
    fn all_mistakes_of_all_files_are_reported_at_once() {
        let conf = "lmc 8\nsweep_intervall 5\nm_key none\npartition_config_file AT/parts\n\
                    qos TRUE\nqos_policy_file AT/qos\nroot_guid_file AT/roots\nnode_name_map_name AT/names\n\
                    prefix_routes_file AT/prefix\n";
        let parts = "Default=0x7fff : ALL=full ;\none=zz : ALL ;\ntwo=0x2 : ALL, elf ;\n\
                     three=0x3 : SELF, nothing=full ;\nfour=0x4 : ALL ;\n";
        let files = [
            ("conf", conf),
            ("parts", parts),
            (
                "qos",
                "qos-levels\n    qos-level\n        name: a\n        sl: 99\n    end-qos-level\n\
                 end-qos-levels\n",
            ),
            ("roots", "0x1\nspine\n0x2\nleaf\n"),
            ("names", "0x1 \"a\"\nspine \"b\"\n"),
            ("prefix", "0xfe80000000000000 0x1\n"),
        ];
        let found = check(&files, &["-F", "AT/conf", "--tls-ca", "AT/no.pem"]);
        let begins = [
            "conf:1: lmc must be 0 to 7, not 8",
            "conf:2: unknown key 'sweep_intervall'; ignored; did you mean 'sweep_interval'?",
            "conf:3: m_key",
            "parts:2: P_Key 'zz' is not a number; write it like 0x7fff",
            "parts:3: 'elf' is neither",
            "parts:4: 'nothing' is neither",
            "qos:4: ",
            "roots:2: ",
            "roots:4: ",
            "names:2: 'spine' is not a GUID",
            "--tls-cert is missing",
        ];
        for begin in begins {
            let is_found = |line: &String| line.contains(begin);
            assert_eq!(found.mistakes.iter().filter(|line| is_found(line)).count(), 1, "{begin}");
        }
        assert_eq!(found.mistakes.len(), begins.len(), "{:#?}", found.mistakes);
        assert!(found.text().contains("\n11 mistakes; read: "), "{}", found.text());
        assert_eq!(found.files.len(), 6, "{:?}", found.files);
    }

    /// Regression: control bytes of files came to the terminal.
    #[test]
    fn control_bytes_of_files_are_escaped() {
        let conf = "key\u{1b}]0;x\u{7}\u{85} 5\n";
        let text = check(&[("opensm.conf", conf)], &["-F", "AT/opensm.conf"]).text();
        assert!(text.contains("u{1b}]0;x"), "{text}");
        assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
    }

    #[test]
    fn a_configuration_without_mistakes_may_have_remarks() {
        let files = [("conf", "sa_key 7\nlog_max_size 1\nuse_ucast_cache TRUE\n")];
        let arguments = ["-F", "AT/conf", "-P", "/dev/null", "--state-dir", "AT/none"];
        let found = check(&files, &arguments);
        assert_eq!(found.mistakes, Vec::<String>::new());
        assert!(found.text().contains("no mistakes; read: "), "{}", found.text());
        assert!(!found.remarks.is_empty());
    }

    #[test]
    fn a_missing_file_is_a_mistake_if_it_is_named() {
        let found = check(&[], &["-F", "AT/conf", "-P", "AT/parts"]);
        let named = |option: &str, file: &str| {
            found.mistakes.iter().any(|line| line.contains(option) && line.contains(file))
        };
        assert!(named("-F/--config", "conf") && named("-P/--Pconfig", "parts"), "{found:?}");
    }

    #[test]
    fn lines_are_left_out_and_the_others_keep_their_numbers() {
        let lines = BTreeSet::from([2, 9]);
        assert_eq!(without_lines(b"a\nb\nc\n", &lines), b"a\n\nc\n");
    }
}
