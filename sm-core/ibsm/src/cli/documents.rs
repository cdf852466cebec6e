//! Operators' files and settings as documents, by which managers of a subnet compare them.

use std::io::{self, ErrorKind};

use sa_proto::state::{Document, Kind};
use sm_config::{ReadFile, SETTINGS, Settings};

/// Largest file read, bytes, as for policy files.
const FILE_LEN_MAX: u64 = 256 << 20;

/// The settings, and all files that they name. `None`: the file cannot be read. A file that does
/// not exist is a document, too. QoS policies count only with `qos`, and the torus's file only with
/// its engine, as they have no effect otherwise.
pub fn read(settings: &Settings, read: ReadFile) -> Vec<(String, Option<Document>)> {
    let mut documents = vec![(SETTINGS.to_owned(), Some(self::settings(settings)))];
    for (key, path) in settings.operators_files() {
        let has_effect = match key {
            "qos_policy_file" => settings.qos,
            "torus_config" => settings.tries_engine("torus-2QoS"),
            _ => true,
        };
        let document = match path.filter(|_| has_effect) {
            None => Some(Document::absent(key)),
            Some(path) => document(key, read(&path, FILE_LEN_MAX)),
        };
        documents.push((key.to_owned(), document));
    }
    documents
}

/// The shared settings.
pub fn settings(settings: &Settings) -> Document {
    Document::new(Kind::OperatorsFile, SETTINGS, settings.shared_text())
}

/// A file. An empty one has the effect of none, and counts as that.
fn document(key: &str, content: io::Result<Vec<u8>>) -> Option<Document> {
    match content {
        Ok(content) if content.is_empty() => Some(Document::absent(key)),
        Ok(content) => Some(Document::new(Kind::OperatorsFile, key, content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(Document::absent(key)),
        Err(_) => None,
    }
}

/// Stands for a file that cannot be read: it differs from all others.
pub fn unreadable(key: &str) -> Document {
    Document { hash: 1, ..Document::absent(key) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn files_are_documents_by_key_whether_they_exist_or_not() {
        let mut settings = Settings { lmc: 1, ..Settings::default() };
        settings.root_guid_file = Some("/roots".to_owned());
        settings.cn_guid_file = Some("/nodes".to_owned());
        let content = |path: &Path, _| match path.to_str() {
            Some("/roots") => Ok(b"0x1".to_vec()),
            Some("/nodes") => Err(ErrorKind::PermissionDenied.into()),
            Some(path) if path.contains("qos") => Ok(b"without -Q of no effect".to_vec()),
            _ => Err(ErrorKind::NotFound.into()),
        };
        let all = read(&settings, &content);
        let find = |key: &str| all.iter().find(|(name, _)| name == key).unwrap().1.as_ref();
        assert_eq!(find(SETTINGS).unwrap().text.as_deref(), Some(&b"lmc 1\n"[..]));
        assert_eq!(find("root_guid_file").unwrap().text.as_deref(), Some(&b"0x1"[..]));
        assert!(find("cn_guid_file").is_none());
        assert!(!find("qos_policy_file").unwrap().exists());
        assert!(!find("partition_config_file").unwrap().exists());
    }
}
