//! A small file system that a test can fill: a directory in which programs find no room.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::null;

/// Where the file is that takes the room.
const FILLER: &str = "filler";

/// A file system in memory. It is seen by the thread that mounted it and by programs which that
/// thread starts, by nothing else, and ends with them.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts a file system of `len` bytes at `path`, which is created; `None`, with a printed
    /// reason, if that is not permitted.
    pub fn mount(path: &Path, len: usize) -> Option<Self> {
        fs::create_dir_all(path).expect("the sandbox can be written");
        match mount(path, len) {
            Ok(()) => Some(Self { path: path.to_owned() }),
            Err(error) => {
                eprintln!("skipped: no file system can be mounted: {error}");
                None
            }
        }
    }

    /// Takes all room that is left.
    pub fn fill(&self) {
        let filler = File::create(self.path.join(FILLER)).expect("a name needs no room");
        let mut len = 0;
        let mut step = 1 << 20;
        while step >= 512 {
            // SAFETY: fallocate() takes a descriptor that `filler` keeps open, and integers.
            match unsafe { libc::fallocate(filler.as_raw_fd(), 0, len, step) } {
                0 => len += step,
                _ => step /= 2,
            }
        }
    }

    /// Gives the room back.
    pub fn make_room(&self) {
        fs::remove_file(self.path.join(FILLER)).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) {
            // SAFETY: umount2() reads a string that ends with 0. An error leaves the file system to
            // the end of the thread.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

fn mount(path: &Path, len: usize) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::other);
    let (target, options) =
        (text(path.as_os_str().as_bytes())?, text(format!("size={len},mode=0700").as_bytes())?);
    let checked = |result| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the calls take flags and strings that end with 0, which they read.
    unsafe {
        checked(libc::unshare(libc::CLONE_NEWNS))?;
        let (root, alone) = (c"/".as_ptr(), libc::MS_REC | libc::MS_PRIVATE);
        checked(libc::mount(null(), root, null(), alone, null()))?;
        let kind = c"tmpfs".as_ptr();
        checked(libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()))
    }
}
