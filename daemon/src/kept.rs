//! Opens the directories that a program keeps, and files in them. Another user may have made such a
//! directory beforehand, for instance below `/tmp`: it is refused, since what is read from it would
//! be that user's. Links in it are not followed, which would have root write to any file, and what
//! is not a regular file is not used, since to open a pipe waits for its other end.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::getegid;

use crate::{is_anothers_link, is_ours};

/// Group and others, who must not write to a directory.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// Makes a directory, and those that it is in, unless it is there.
pub fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Refuses a directory whose files another user may have written, or can replace: it must belong
/// to root or the user of this process, and no others may write to it, other than the groups of
/// root and of this process. The error says what to do.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let refused = |text: String| Err(io::Error::new(ErrorKind::PermissionDenied, text));
    if is_anothers_link(path) {
        return refused("it is a link of another user; remove it".to_owned());
    }
    let there = fs::metadata(path)?;
    let (owner, group, mode) = (there.uid(), there.gid(), there.permissions().mode());
    if !is_ours(&there) {
        return refused(format!(
            "it belongs to user {owner}, who can write what is read from it; run as that user, or \
             remove it, or give it and the files in it to the user of this process (chown -R)"
        ));
    }
    let has_group = [0, getegid().as_raw()].contains(&group);
    if mode & OTHERS_WRITE != 0 || mode & GROUP_WRITES != 0 && !has_group {
        return refused(format!(
            "other users can write to it (mode {:03o}); look at what is in it, then chmod go-w",
            mode & 0o777
        ));
    }
    Ok(())
}

/// Opens a log file, creating it if need be. A link is followed unless it is another user's. What
/// is not a regular file is not waited for: a pipe must have a reader, and takes no more than it
/// has room for.
pub fn open_log(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = |flags: OFlags| (flags | OFlags::NONBLOCK).bits().cast_signed();
    let opened = options.custom_flags(flags(OFlags::NOFOLLOW)).open(path);
    let is_link = opened.is_err() && fs::symlink_metadata(path).is_ok_and(|of| of.is_symlink());
    if !is_link || is_anothers_link(path) {
        return opened;
    }
    options.custom_flags(flags(OFlags::empty())).open(path)
}

/// Writes a file with secrets, which only this user may read, at the place that an operator names:
/// in place of a regular file, which may be another user's. What is none, such as a terminal, is
/// written to, but no pipe of another user, and links of other users are not followed.
pub fn write_secret(path: &Path, contents: &[u8]) -> io::Result<()> {
    let anothers = |what: &str| {
        let text = format!("{} is {what} of another user; remove it", path.display());
        Err(io::Error::new(ErrorKind::PermissionDenied, text))
    };
    if is_anothers_link(path) {
        return anothers("a link");
    }
    let is_link = fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink());
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => {
            let mut options = OpenOptions::new();
            if !is_link {
                options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
            }
            let mut file = options.write(true).open(path)?;
            let there = file.metadata()?;
            // An unnamed one is reached by a link in /proc, and is what the operator set up.
            if there.file_type().is_fifo() && !is_link && !is_ours(&there) {
                return anothers("a pipe");
            }
            return file.write_all(contents);
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let path = if is_link { fs::canonicalize(path)? } else { path.to_owned() };
    let Some(name) = path.file_name() else { return Err(ErrorKind::IsADirectory.into()) };
    let mut of_draft = name.to_owned();
    of_draft.push(".new");
    let at: PathBuf = path.with_file_name(of_draft);
    let mut file = draft(&at, 0o600)?;
    let written = file.write_all(contents).and_then(|()| fs::rename(&at, &path));
    written.inspect_err(|_| _ = fs::remove_file(&at))
}

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
    use std::os::unix::fs::{chown, lchown, symlink};

    /// Whether files can be given to another user.
    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            eprintln!("skipped in part: only root can give a file to another user");
        }
        is_root
    }

    const NOBODY: Option<u32> = Some(65534);

    /// Makes a pipe.
    fn pipe(path: &Path) {
        // Not by a program: between fork and exec it would hold the locks of other tests' files.
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }

    /// Regression: root read LIDs, keys and registrations from, and wrote them to, a directory that
    /// another user had made under the name of the first example.
    #[test]
    fn a_directory_of_another_user_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let at = parent.path().join("a/b");
        make_directory(&at).unwrap();
        check_directory(&at).unwrap();
        let set = |mode| fs::set_permissions(&at, PermissionsExt::from_mode(mode)).unwrap();
        for mode in [0o757, 0o1777] {
            set(mode);
            let refusal = check_directory(&at).unwrap_err().to_string();
            assert!(refusal.contains("chmod go-w"), "{refusal}");
        }
        set(0o775);
        check_directory(&at).unwrap();
        assert!(check_directory(&parent.path().join("none")).is_err());
        let link = parent.path().join("link");
        symlink(&at, &link).unwrap();
        check_directory(&link).unwrap();
        if !is_root() {
            return;
        }
        lchown(&link, NOBODY, None).unwrap();
        let refusal = check_directory(&link).unwrap_err().to_string();
        assert!(refusal.contains("a link of another user"), "{refusal}");
        chown(&at, None, NOBODY).unwrap();
        assert!(check_directory(&at).is_err(), "its group writes");
        set(0o755);
        check_directory(&at).unwrap();
        chown(&at, NOBODY, None).unwrap();
        let refusal = check_directory(&at).unwrap_err().to_string();
        assert!(refusal.contains("belongs to user 65534"), "{refusal}");
    }

    /// Regression: `ibsm -c` wrote keys to a file that another user had made and could read.
    #[test]
    fn secrets_go_to_a_file_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("old"), "old").unwrap();
        fs::set_permissions(at("old"), PermissionsExt::from_mode(0o644)).unwrap();
        let mut reader = File::open(at("old")).unwrap();
        symlink(at("old"), at("link")).unwrap();
        for name in ["new", "old", "link"] {
            write_secret(&at(name), b"secret").unwrap();
            let file = fs::metadata(at(name)).unwrap();
            assert_eq!(file.permissions().mode() & 0o777, 0o600, "{name}");
            assert_eq!(fs::read(at(name)).unwrap(), b"secret");
        }
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "old", "it was open before");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "no draft is left");
        write_secret(Path::new("/dev/null"), b"secret").unwrap();
        if !is_root() {
            return;
        }
        lchown(at("link"), NOBODY, None).unwrap();
        assert!(write_secret(&at("link"), b"secret").is_err());
        pipe(&at("pipe"));
        chown(at("pipe"), NOBODY, None).unwrap();
        let _reader = open_log(&at("pipe"), OpenOptions::new().read(true)).unwrap();
        let refusal = write_secret(&at("pipe"), b"secret").unwrap_err().to_string();
        assert!(refusal.contains("a pipe of another user"), "{refusal}");
    }

    /// Regression: whether a log file is a link was looked at before it was opened, so that another
    /// user could put one there in between; and the start waited for the reader of a pipe.
    #[test]
    fn a_log_file_is_opened_before_it_is_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let log = |name: &str| open_log(&at(name), OpenOptions::new().append(true).create(true));
        assert!(log("log").unwrap().metadata().unwrap().is_file());
        pipe(&at("pipe"));
        let error = log("pipe").unwrap_err().raw_os_error();
        assert_eq!(error, Some(rustix::io::Errno::NXIO.raw_os_error()), "nothing reads it");
        symlink(at("log"), at("link")).unwrap();
        log("link").unwrap();
        if is_root() {
            lchown(at("link"), NOBODY, None).unwrap();
            let error = log("link").unwrap_err().raw_os_error();
            assert_eq!(error, Some(rustix::io::Errno::LOOP.raw_os_error()));
        }
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
