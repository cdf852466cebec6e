//! Reads and writes operators' files on behalf of the parsers in [`sm_config`].

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use sm_config::Settings;

/// Reads a whole file of at most `len_max` bytes; a longer one fails with
/// [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // A pipe or a device has no length to look at beforehand.
    File::open(path)?.take(len_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > len_max {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Begins a template.
const TEMPLATE_HEADER: &str = "\
# ibsm configuration, in the syntax of opensm.conf. An opensm.conf can be used instead.
";

/// Writes the settings in force as a configuration file. It holds keys of the subnet, so only its
/// owner may read it.
pub fn write_template(path: &Path, settings: &Settings) -> io::Result<()> {
    let text = format!("{TEMPLATE_HEADER}{}", settings.render());
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // An existing file keeps its mode unless it is set. A terminal is not a regular file.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_config::file;

    #[test]
    fn a_template_is_readable_by_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let (new, old) = (directory.path().join("new"), directory.path().join("old"));
        std::fs::write(&old, "what anybody could read").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        for path in [&new, &old] {
            write_template(path, &Settings::default()).unwrap();
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(file::read(path, false, &read).unwrap().settings, Settings::default());
        }
    }

    #[test]
    fn a_file_over_the_limit_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
