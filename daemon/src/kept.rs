//! Opens files of the directories that a program keeps. Another user may own such a directory,
//! for instance below `/tmp`: links are not followed, which would have root write to any file, and
//! what is not a regular file is not used, since to open a pipe waits for its other end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file. A link fails with [`ErrorKind::InvalidInput`], anything else that is not
/// one with [`ErrorKind::InvalidData`].
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match options.custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => Err(irregular(path, ErrorKind::InvalidData)),
        Err(error) => match fs::symlink_metadata(path).map(|of| of.file_type()) {
            Ok(of) if of.is_symlink() => Err(irregular(path, ErrorKind::InvalidInput)),
            Ok(of) if !of.is_file() => Err(irregular(path, ErrorKind::InvalidData)),
            _ => Err(error),
        },
    }
}

fn irregular(path: &Path, kind: ErrorKind) -> io::Error {
    let what = if kind == ErrorKind::InvalidInput { "a link" } else { "not a regular file" };
    let text = format!("{} is {what}, which is not used here; remove it", path.display());
    io::Error::new(kind, text)
}

/// Opens a file that is locked, creating it if need be.
pub fn lock_file(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().write(true).create(true).truncate(false))
}

/// Creates a file that is written under a name for drafts, in place of what an earlier run left.
pub fn draft(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    open(path, OpenOptions::new().write(true).create_new(true).mode(mode))
}

/// Reads a file of at most `len_max` bytes. A longer one fails with [`ErrorKind::InvalidData`].
pub fn read(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path, OpenOptions::new().read(true))?;
    let len = file.metadata()?.len();
    if len > len_max {
        let reason = format!("it has {len} bytes; at most {len_max} are read");
        return Err(io::Error::new(ErrorKind::InvalidData, reason));
    }
    let mut bytes = Vec::new();
    file.take(len_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Makes a pipe.
    fn pipe(path: &Path) {
        // Not by a program: between fork and exec it would hold the locks of other tests' files.
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }

    /// Regression: root emptied, and wrote to, the files that links of another user led to, and
    /// waited for ever for the other end of a pipe.
    #[test]
    fn links_are_not_followed_and_pipes_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("precious"), "precious").unwrap();
        symlink(at("precious"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        pipe(&at("pipe"));
        fs::create_dir(at("directory")).unwrap();
        for (name, kind) in [
            ("link", ErrorKind::InvalidInput),
            ("dangling", ErrorKind::InvalidInput),
            ("pipe", ErrorKind::InvalidData),
            ("directory", ErrorKind::InvalidData),
        ] {
            for refused in [read(&at(name), 10).map(drop), lock_file(&at(name)).map(drop)] {
                let refused = refused.unwrap_err();
                assert_eq!(refused.kind(), kind, "{name}");
                let text = refused.to_string();
                assert!(text.contains(name) && text.ends_with("remove it"), "{text}");
            }
        }
        for name in ["link", "dangling", "pipe"] {
            assert!(draft(&at(name), 0o600).unwrap().metadata().unwrap().is_file(), "{name}");
        }
        assert!(draft(&at("directory"), 0o600).is_err());
        assert_eq!(fs::read(at("precious")).unwrap(), b"precious");
        assert!(!at("none").exists());
        assert_eq!(read(&at("precious"), 8).unwrap(), b"precious");
        assert_eq!(read(&at("precious"), 7).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(read(&at("none"), 7).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
