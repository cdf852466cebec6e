//! Reads and writes operators' files on behalf of the parsers in [`sm_config`].

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ib_mad::transport::{Interest, wait};
use rustix::fs::OFlags;
use sm_config::Settings;

/// How long to wait for what a pipe yields. The service loop waits meanwhile.
const PIPE_PATIENCE: Duration = Duration::from_secs(1);

/// Reads a whole file of at most `len_max` bytes; a longer one fails with
/// [`ErrorKind::FileTooLarge`], and a pipe whose writer is slow with [`ErrorKind::TimedOut`].
pub fn read(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PIPE_PATIENCE;
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut bytes = Vec::new();
    // A pipe or a device has no length to look at beforehand.
    let room = |bytes: &Vec<u8>| (len_max + 1).saturating_sub(bytes.len() as u64);
    while let Err(error) = Read::by_ref(&mut file).take(room(&bytes)).read_to_end(&mut bytes) {
        let left = end.saturating_duration_since(Instant::now());
        match error.kind() {
            ErrorKind::WouldBlock if left.is_zero() => return Err(ErrorKind::TimedOut.into()),
            ErrorKind::WouldBlock => _ = wait(&mut [Interest::read(file.as_fd())], Some(left))?,
            _ => return Err(error),
        }
    }
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
/// user may read it, also if another user's file was there.
pub fn write_template(path: &Path, settings: &Settings) -> io::Result<()> {
    let text = format!("{TEMPLATE_HEADER}{}", settings.render());
    daemon::kept::write_secret(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

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

    /// Regression: SIGHUP with a pipe in place of a file stopped the service loop.
    #[test]
    fn a_pipe_is_read_unless_its_writer_is_silent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert_eq!(read(&path, 100).unwrap(), b"", "nothing writes");
        let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        writer.write_all(b"text").unwrap();
        assert_eq!(read(&path, 100).unwrap_err().kind(), ErrorKind::TimedOut);
        let reader = std::thread::spawn({
            let path = path.clone();
            move || read(&path, 100)
        });
        writer.write_all(b"more").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        drop(writer);
        assert_eq!(reader.join().unwrap().unwrap(), b"more");
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
