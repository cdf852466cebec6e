//! Parses names that operators assign to nodes, in place of NodeDescriptions (`node_name_map_name`;
//! ibnetdiscover(8)).
//!
//! A line has a node GUID and a name, which is in double quotes or ends at a `#`. Logs and dump
//! files show these names; SA records keep the nodes' own descriptions.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use ib_mad::types::Guid;

use super::{ReadFile, parse_number};

/// Names by node GUID.
pub type NodeNames = HashMap<Guid, Arc<str>>;

/// The default file, read if it exists and no other is configured.
const DEFAULT_FILE: &str = "/etc/opensm/ib-node-name-map";
/// Largest file size, bytes: some 300,000 names.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Reads the configured file, or the default one. As in OpenSM there are no names if it cannot be
/// read; the second value is the reason, as a log line.
pub fn load(named: Option<&str>, read: ReadFile) -> (NodeNames, Option<String>) {
    let path = Path::new(named.unwrap_or(DEFAULT_FILE));
    let problem =
        |what: String| (NodeNames::new(), Some(format!("{what}; node names are not used")));
    match read(path, FILE_LEN_MAX) {
        Ok(text) => match parse(&String::from_utf8_lossy(&text)) {
            Ok(names) => (names, None),
            Err((line, word)) => problem(format!(
                "{}:{line}: '{word}' is not a GUID, such as 0x0002c90300000001",
                path.display()
            )),
        },
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => {
            (NodeNames::new(), None)
        }
        Err(error) => problem(format!("{}: {error}", path.display())),
    }
}

/// Parses a text into names. The error is the number of a line and a word in it that is not a GUID.
/// If a GUID has several names, the first is used.
fn parse(text: &str) -> Result<NodeNames, (usize, String)> {
    let mut names = NodeNames::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim_start();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let end = content.find(|c: char| c.is_whitespace() || c == '#').unwrap_or(content.len());
        let (word, rest) = content.split_at(end);
        let guid = parse_number(word).map(Guid).ok_or_else(|| (line, word.to_owned()))?;
        let name = rest.trim_start().trim_start_matches(['"', '#']);
        let name = name.split(['"', '#']).next().unwrap_or_default();
        if !name.is_empty() {
            names.entry(guid).or_insert_with(|| name.into());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::DISK;

    #[test]
    fn names_are_read_as_opensm_reads_them() {
        let text = "# names\r\n\n 0x10 \"spine 1\" # a comment\n0x11\t\"leaf \\\\ 2\"\n\
                    0x12 bare name #rest\n0x13\n0x10 \"later\"\n20 \"by number\"\r\n0x15#no\n";
        let names = parse(text).unwrap();
        let mut all: Vec<(u64, &str)> = names.iter().map(|(g, name)| (g.0, &**name)).collect();
        all.sort_unstable();
        let expected = [
            (0x10, "spine 1"),
            (0x11, "leaf \\\\ 2"),
            (0x12, "bare name "),
            (20, "by number"),
            (0x15, "no"),
        ];
        assert_eq!(all, expected);
        assert_eq!(parse("0x1 \"a\"\nspine \"b\"\n"), Err((2, "spine".to_owned())));
    }

    #[test]
    fn an_unreadable_file_is_reported_and_gives_no_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("names");
        let name = path.to_string_lossy();
        let (names, problem) = load(Some(&name), DISK);
        assert!(names.is_empty() && problem.unwrap().contains("names: No such file"));
        std::fs::write(&path, "0x1 \"a\"\n0xx \"b\"\n").unwrap();
        let (names, problem) = load(Some(&name), DISK);
        assert!(names.is_empty() && problem.unwrap().contains("names:2: '0xx' is not a GUID"));
        std::fs::write(&path, "0x1 \"a\"\n").unwrap();
        assert_eq!(load(Some(&name), DISK).0.len(), 1);
    }
}
