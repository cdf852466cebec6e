//! The cache file with the last snapshot, from which a responder answers immediately after a
//! restart.
//!
//! ```text
//! "IBSASNAP"  schema (4)  { length (4)  FromSm message }…  xxh3-128 of all before (16)
//! ```
//!
//! The messages are those of a full update. Secrets are left out: `sa_key` (so a responder trusts
//! no requester until an SM has sent it again) and the ServiceKeys; M_Keys are in no snapshot. The
//! restored state can therefore differ from the state of its version; bucket sums reveal the
//! difference as soon as an SM is connected, which then sends those buckets.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this module reads and writes the cache file"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message as _;
use rustix::fs::OFlags;
use xxhash_rust::xxh3::Xxh3;

use super::codec::{Decoder, Encoder, UpdateError};
use super::encoding::{Canonical, Malformed, Reader};
use super::fabric::FabricPlane;
use super::registry::{RegistryPlane, Service};
use super::state::{SCHEMA, Snapshot};
use crate::proto::snapshot::FromSm;
use crate::proto::snapshot::from_sm::Message;

const MAGIC: [u8; 8] = *b"IBSASNAP";
const CHECKSUM_LEN: usize = 16;
/// Size limit: a longer file is rejected unread; no fabric needs one.
const FILE_LEN_MAX: u64 = 1 << 30;

/// Why a cached snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The file cannot be read or written.
    #[error("cannot read or write snapshot cache {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
    /// The file is truncated, corrupted or not a snapshot cache.
    #[error(
        "snapshot cache {} is damaged: {reason}; ignored, the next save replaces it",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: UpdateError,
    },
    /// The file was written by another release.
    #[error(
        "snapshot cache {} has schema {found}, this release reads {SCHEMA}; ignored",
        path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Schema version of the file.
        found: u32,
    },
}

/// Writes `snapshot` without its secrets. Readers see either the old file or the new one, even
/// after a system crash.
pub fn save(path: &Path, snapshot: &Snapshot) -> Result<(), CacheError> {
    write(path, snapshot).map_err(|error| CacheError::Io { path: path.to_owned(), error })
}

/// Reads the snapshot; `None` if there is no file.
pub fn load(path: &Path) -> Result<Option<Snapshot>, CacheError> {
    let io_error = |error| CacheError::Io { path: path.to_owned(), error };
    // Another user may own the directory: to open a pipe waits for its other end.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io_error)?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(io_error)?;
    let damaged = |reason| CacheError::Damaged { path: path.to_owned(), reason };
    let mut input = checked(&bytes).map_err(|malformed| damaged(malformed.into()))?;
    match u32::take(&mut input) {
        Ok(SCHEMA) => decode(input).map(Some).map_err(damaged),
        Ok(found) => Err(CacheError::Schema { path: path.to_owned(), found }),
        Err(malformed) => Err(damaged(malformed.into())),
    }
}

fn write(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let temporary = path.with_extension("new");
    // A leftover of a crash may have any mode; a new file has mode 0600 from the start.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let mut out = Hashing { out: BufWriter::new(file), hash: Xxh3::new() };
    out.write_all(&MAGIC)?;
    out.write_all(&SCHEMA.to_be_bytes())?;
    for message in Encoder::full(Arc::new(without_secrets(snapshot))) {
        let message = message.encode_to_vec();
        out.write_all(&(message.len() as u32).to_be_bytes())?;
        out.write_all(&message)?;
    }
    let checksum = out.hash.digest128().to_be_bytes();
    let mut out = out.out;
    out.write_all(&checksum)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&temporary, path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads the content between magic and checksum.
fn checked(bytes: &[u8]) -> Result<Reader<'_>, Malformed> {
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(Malformed("longer than any snapshot"));
    }
    let content = bytes.strip_prefix(&MAGIC).ok_or(Malformed("not a snapshot cache"))?;
    let (content, checksum) = content.split_last_chunk().ok_or(Malformed("truncated"))?;
    let mut hash = Xxh3::new();
    hash.update(&bytes[..bytes.len() - CHECKSUM_LEN]);
    if hash.digest128() != u128::from_be_bytes(*checksum) {
        return Err(Malformed("wrong checksum"));
    }
    Ok(Reader::new(content))
}

fn decode(mut input: Reader<'_>) -> Result<Snapshot, UpdateError> {
    let mut decoder: Option<Decoder> = None;
    loop {
        let len = input.count(1)?;
        let message = FromSm::decode(input.bytes(len)?);
        let message = message.map_err(|_| Malformed("not a message of the feed"))?;
        match (message.message, &mut decoder) {
            (Some(Message::Begin(begin)), None) => decoder = Some(Decoder::new(begin)?),
            (Some(Message::Chunk(chunk)), Some(decoder)) => decoder.chunk(&chunk)?,
            (Some(Message::End(end)), Some(_)) => {
                input.finish()?;
                let decoder = decoder.take().ok_or(Malformed("messages out of order"))?;
                return decoder.finish(end, &Snapshot::empty());
            }
            _ => return Err(Malformed("messages out of order").into()),
        }
    }
}

fn without_secrets(snapshot: &Snapshot) -> Snapshot {
    let mut fabric = FabricPlane::clone(snapshot.fabric());
    let mut registry = RegistryPlane::clone(snapshot.registry());
    fabric.subnet.sa_key = 0;
    for service in snapshot.registry().services.iter() {
        if service.record[Service::KEY] != [0; 16] {
            let mut service = Service::clone(service);
            service.record[Service::KEY].fill(0);
            registry.services.insert(Arc::new(service));
        }
    }
    snapshot.succeed(snapshot.version(), &fabric, &registry).0
}

/// A writer that hashes the bytes it forwards to `out`.
struct Hashing<W> {
    out: W,
    hash: Xxh3,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::super::testing::snapshot;
    use super::*;

    fn file(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("snapshot")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_was_saved_loads_again_without_secrets(saved in snapshot(3)) {
            let directory = tempfile::tempdir().unwrap();
            save(&file(&directory), &saved).unwrap();
            let loaded = load(&file(&directory)).unwrap().unwrap();
            prop_assert_eq!(loaded.version(), saved.version());
            prop_assert_eq!(&loaded.fabric().nodes, &saved.fabric().nodes);
            prop_assert_eq!(&loaded.fabric().lfts, &saved.fabric().lfts);
            prop_assert_eq!(loaded.fabric().subnet.sa_key, 0);
            let services = &loaded.registry().services;
            prop_assert!(services.iter().all(|s| s.record[Service::KEY] == [0; 16]));
            prop_assert_eq!(loaded.registry().services.len(), saved.registry().services.len());
            prop_assert_eq!(&loaded.registry().members, &saved.registry().members);
            prop_assert_eq!(loaded.checksum(), without_secrets(&saved).checksum());
        }

        #[test]
        fn damage_anywhere_is_found(
            saved in snapshot(3), at: usize, flip in 1..=255u8, cut: usize,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let path = file(&directory);
            save(&path, &saved).unwrap();
            let whole = fs::read(&path).unwrap();
            let mut changed = whole.clone();
            changed[at % whole.len()] ^= flip;
            for damaged in [&changed[..], &whole[..cut % whole.len()]] {
                fs::write(&path, damaged).unwrap();
                let refused = matches!(load(&path), Err(CacheError::Damaged { .. }));
                prop_assert!(refused);
            }
        }
    }

    #[test]
    fn the_file_is_for_its_owner_only_and_a_leftover_does_not_hinder() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory);
        fs::write(path.with_extension("new"), "left behind").unwrap();
        save(&path, &Snapshot::empty()).unwrap();
        save(&path, &Snapshot::empty()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_not_followed_and_a_pipe_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (file(&directory), directory.path().join("other"));
        save(&other, &Snapshot::empty()).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(matches!(load(&path), Err(CacheError::Io { .. })));
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(load(&path).is_err());
    }

    #[test]
    fn no_file_is_no_error_and_another_layout_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory);
        assert!(load(&path).unwrap().is_none());
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&99u32.to_be_bytes());
        let mut hash = Xxh3::new();
        hash.update(&bytes);
        bytes.extend_from_slice(&hash.digest128().to_be_bytes());
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(load(&path), Err(CacheError::Schema { found: 99, .. })));
    }
}
