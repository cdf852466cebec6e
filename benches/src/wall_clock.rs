//! The wall clock of a program, which a test sets while the program runs (`libfaketime`).

use std::fs;
use std::path::{Path, PathBuf};

use crate::sandbox::can_interoperate_with;

/// The time of day that a program sees, apart from that of this host. Other clocks are the host's.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// A clock that shows the host's time, kept in this file; `None`, with a printed reason, if
    /// `libfaketime` is not installed.
    pub fn new(file: PathBuf) -> Option<Self> {
        if !can_interoperate_with("faketime") {
            return None;
        }
        let clock = Self { library: library()?, file };
        clock.set(0);
        Some(clock)
    }

    /// Sets it: so many seconds ahead of the host's.
    pub fn set(&self, ahead_s: i64) {
        let draft = self.file.with_extension("new");
        fs::write(&draft, format!("{ahead_s:+}\n")).expect("the sandbox can be written");
        fs::rename(&draft, &self.file).expect("the sandbox can be written");
    }

    /// The environment of a program that sees it.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let on = PathBuf::from("1");
        vec![
            ("LD_PRELOAD", self.library.clone()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone()),
            ("FAKETIME_NO_CACHE", on.clone()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", on.clone()),
            ("DONT_FAKE_MONOTONIC", on.clone()),
            ("NO_FAKE_STAT", on),
        ]
    }
}

/// The library for programs with several threads, in the directory of this machine's kind.
fn library() -> Option<PathBuf> {
    let directories = fs::read_dir("/usr/lib").ok()?.flatten();
    let places = directories.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    let found = places.into_iter().find(|path: &PathBuf| Path::exists(path));
    if found.is_none() {
        eprintln!("skipped: libfaketimeMT.so.1 is not in /usr/lib/*/faketime");
    }
    found
}
