//! Settings and operators' files of the master that a standby uses in place of its own
//! (`--follow-config`).
//!
//! The copies are in a directory of the state directory, each under the key that names the file in
//! `opensm.conf`, with an index. The index has the hash that this host's own file had when it was
//! last ignored: a file that was edited since, while this SM was master or not running, counts
//! again, and its copy is dropped. What is edited while standing by is ignored.
//!
//! Not here: who writes the copies (`runtime`), and when.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sa_proto::state::{Document, Documents, Kind};

use super::{disk, documents};
use sm_config::{SETTINGS, Settings};

/// The directory, in the state directory.
pub const DIRECTORY: &str = "master-files";
/// The index in it.
pub const INDEX: &str = "index";
/// Largest copy read, bytes.
const LEN_MAX: u64 = sa_proto::state::DOCUMENT_LEN_MAX as u64;
/// Files for which an empty one has the effect of none. Without a copy of these the default path
/// would be read.
const EMPTY_IS_NONE: [&str; 3] = ["partition_config_file", "prefix_routes_file", "qos_policy_file"];

/// The copies in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterFiles {
    directory: PathBuf,
    entries: BTreeMap<String, Entry>,
}

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Whether the master has the file.
    exists: bool,
    /// Hash of this host's own file, as it was when it was last ignored.
    own: u128,
}

/// Hashes of this host's own files by key, with that of the settings.
pub type OwnHashes = BTreeMap<String, u128>;

/// Hashes of this host's own files, which these settings name.
pub fn own_hashes(settings: &Settings) -> OwnHashes {
    // All files count, whether or not the other settings give them an effect.
    let mut all = Settings { qos: true, ..settings.clone() };
    let _ = all.set("routing_engine", "torus-2QoS");
    let read = documents::read(&all, &disk::read);
    let hash = |(key, document): (String, Option<Document>)| {
        let document = document.unwrap_or_else(|| documents::unreadable(&key));
        (key, document.hash)
    };
    let mut hashes: OwnHashes = read.into_iter().map(hash).collect();
    hashes.insert(SETTINGS.to_owned(), documents::settings(settings).hash);
    hashes
}

impl MasterFiles {
    /// The copies in this state directory; none if there is no index that can be read.
    pub fn read(state_dir: &Path) -> Self {
        let directory = state_dir.join(DIRECTORY);
        let index = disk::read(&directory.join(INDEX), LEN_MAX).unwrap_or_default();
        let entries = parse(&String::from_utf8_lossy(&index));
        Self { directory, entries }
    }

    /// The copies of these documents, given this host's own files.
    pub fn of(state_dir: &Path, master: &Documents, own: &OwnHashes) -> Self {
        let files = master.values().filter(|document| {
            document.kind == Kind::OperatorsFile && (document.text.is_some() || !document.exists())
        });
        let entry =
            |name: &str, exists| Entry { exists, own: own.get(name).copied().unwrap_or_default() };
        Self {
            directory: state_dir.join(DIRECTORY),
            entries: files
                .map(|file| (file.name.clone(), entry(&file.name, file.exists())))
                .collect(),
        }
    }

    /// The index as a file.
    pub fn render(&self) -> String {
        let line = |(key, entry): (&String, &Entry)| {
            let exists = if entry.exists { "present" } else { "absent" };
            format!("{key} {exists} {:032x}\n", entry.own)
        };
        self.entries.iter().map(line).collect()
    }

    /// Whether there are no copies.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops the copies of files that were edited on this host. Returns a line for each.
    pub fn drop_edited(&mut self, own: &OwnHashes) -> Vec<String> {
        let edited = self.edited(own);
        let line = |(key, _): &(String, u128)| {
            format!("{key} was edited on this host: it is used in place of the master's")
        };
        edited.iter().for_each(|(key, _)| _ = self.entries.remove(key));
        edited.iter().map(line).collect()
    }

    /// Ignores edits of files on this host. Returns a line for each.
    pub fn ignore_edited(&mut self, own: &OwnHashes) -> Vec<String> {
        let edited = self.edited(own);
        let line = |(key, _): &(String, u128)| {
            format!("{key} was edited on this host: it is ignored, since the master's is used")
        };
        for (key, now) in &edited {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.own = *now;
            }
        }
        edited.iter().map(line).collect()
    }

    /// Copies whose own file was edited, with its hash now.
    fn edited(&self, own: &OwnHashes) -> Vec<(String, u128)> {
        let now = |key: &String| own.get(key).copied().unwrap_or_default();
        let entries = self.entries.iter().filter(|(key, entry)| entry.own != now(key));
        entries.map(|(key, _)| (key.clone(), now(key))).collect()
    }

    /// Puts the copied settings in place of those of this host. Returns what was ignored.
    pub fn apply(&self, settings: &mut Settings) -> Vec<String> {
        if !self.entries.get(SETTINGS).is_some_and(|entry| entry.exists) {
            return Vec::new();
        }
        let path = self.directory.join(SETTINGS);
        match disk::read(&path, LEN_MAX) {
            Ok(text) => {
                let ignored = settings.take_shared(&String::from_utf8_lossy(&text));
                ignored.into_iter().map(|line| format!("{}: {line}", path.display())).collect()
            }
            Err(error) => vec![format!("{}: {error}; it is ignored", path.display())],
        }
    }

    /// The settings with the paths of the copies in place of those of this host.
    pub fn redirect(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        for (key, entry) in &self.entries {
            let path = self.directory.join(key);
            if entry.exists || EMPTY_IS_NONE.contains(&key.as_str()) {
                settings.set_operators_file(key, Some(&path));
            } else if key != "torus_config" {
                settings.set_operators_file(key, None);
            }
        }
        settings
    }
}

/// The files to be written for these documents, by their names in the state directory: texts, and
/// empty files for those that the master does not have.
pub fn copies(master: &Documents) -> impl Iterator<Item = (String, &[u8])> {
    master.values().filter(|document| document.kind == Kind::OperatorsFile).filter_map(|document| {
        let text = match &document.text {
            Some(text) => &text[..],
            None if !document.exists() && EMPTY_IS_NONE.contains(&document.name.as_str()) => &[],
            None => return None,
        };
        Some((format!("{DIRECTORY}/{}", document.name), text))
    })
}

/// Entries of an index. Lines that cannot be read are skipped.
fn parse(text: &str) -> BTreeMap<String, Entry> {
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let key = words.next()?.to_owned();
        let exists = match words.next()? {
            "present" => true,
            "absent" => false,
            _ => return None,
        };
        Some((key, Entry { exists, own: u128::from_str_radix(words.next()?, 16).ok()? }))
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;

    const PARTITIONS: &str = "partition_config_file";
    const ROOTS: &str = "root_guid_file";

    /// The master has partitions of its own and LMC 1, and no root switches.
    fn master() -> Documents {
        let all = [
            Document::new(Kind::OperatorsFile, SETTINGS, "lmc 1\n"),
            Document::new(Kind::OperatorsFile, PARTITIONS, "A=1: ALL;\n"),
            Document::absent("qos_policy_file"),
            Document::absent(ROOTS),
            Document::new(Kind::StateFile, "guid2lid", "0x1 1 1\n"),
        ];
        all.map(|document| (document.name.clone(), Arc::new(document))).into()
    }

    fn host(directory: &Path) -> Settings {
        let file = |name: &str| {
            let path = directory.join(name);
            fs::write(&path, "ours\n").unwrap();
            Some(path.to_string_lossy().into_owned())
        };
        Settings {
            partition_config_file: file("partitions.conf"),
            root_guid_file: file("roots"),
            subnet_timeout: 19,
            m_key: 7,
            ..Settings::default()
        }
    }

    /// Writes the copies, as the runtime does.
    fn copy(state_dir: &Path, own: &OwnHashes) -> MasterFiles {
        fs::create_dir_all(state_dir.join(DIRECTORY)).unwrap();
        for (name, text) in copies(&master()) {
            fs::write(state_dir.join(name), text).unwrap();
        }
        let files = MasterFiles::of(state_dir, &master(), own);
        fs::write(state_dir.join(DIRECTORY).join(INDEX), files.render()).unwrap();
        files
    }

    #[test]
    fn copies_are_used_in_place_of_this_hosts_files() {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = host(directory.path());
        assert!(MasterFiles::read(directory.path()).is_empty());
        let files = copy(directory.path(), &own_hashes(&settings));
        assert_eq!(MasterFiles::read(directory.path()), files);
        assert!(files.apply(&mut settings).is_empty());
        assert_eq!((settings.lmc, settings.subnet_timeout, settings.m_key), (1, 18, 7));
        let used = files.redirect(&settings);
        assert_eq!(fs::read(used.partition_config_file.unwrap()).unwrap(), b"A=1: ALL;\n");
        assert_eq!(fs::read(used.qos_policy_file.unwrap()).unwrap(), b"");
        assert_eq!(used.root_guid_file, None, "the master has none");
        let ours = documents::read(&files.redirect(&settings), &disk::read).into_iter();
        let ours = ours.map(|(name, document)| (name, Arc::new(document.unwrap()))).collect();
        assert!(sa_proto::state::different_files(&ours, &master()).is_empty());
    }

    #[test]
    fn a_file_that_is_edited_here_counts_again_unless_the_edit_was_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let settings = host(directory.path());
        let mut files = copy(directory.path(), &own_hashes(&settings));
        assert!(files.drop_edited(&own_hashes(&settings)).is_empty());
        fs::write(directory.path().join("partitions.conf"), "edited while standing by\n").unwrap();
        assert_eq!(files.ignore_edited(&own_hashes(&settings)).len(), 1);
        assert!(files.drop_edited(&own_hashes(&settings)).is_empty());
        fs::write(directory.path().join("partitions.conf"), "edited as master\n").unwrap();
        assert_eq!(files.drop_edited(&own_hashes(&settings)).len(), 1);
        assert_eq!(files.redirect(&settings).partition_config_file, settings.partition_config_file);
        let edited = Settings { lmc: 2, ..settings.clone() };
        assert_eq!(files.drop_edited(&own_hashes(&edited)).len(), 1);
        let mut used = edited.clone();
        files.apply(&mut used);
        assert_eq!(used, edited);
    }

    /// A copy that comes without its text, because it is too long, replaces nothing.
    #[test]
    fn a_document_without_its_text_is_no_copy() {
        let directory = tempfile::tempdir().unwrap();
        let settings = host(directory.path());
        let withheld = Document { text: None, ..(*master()[PARTITIONS]).clone() };
        let all: Documents = [(PARTITIONS.to_owned(), Arc::new(withheld))].into();
        assert_eq!(copies(&all).count(), 0);
        let files = MasterFiles::of(directory.path(), &all, &own_hashes(&settings));
        assert!(files.is_empty());
    }

    #[test]
    fn lines_of_an_index_that_cannot_be_read_are_skipped() {
        let entries = parse("a present 0f\nb maybe 0\nc absent x\n\nd absent 0\n");
        let expected = [
            ("a".to_owned(), Entry { exists: true, own: 15 }),
            ("d".to_owned(), Entry { exists: false, own: 0 }),
        ];
        assert_eq!(entries, expected.into());
    }
}
