//! The bytes of a segment: a head, then records in frames.
//!
//! ```text
//! head   "IBSMHIS1" (8)  number (8)  time (8)  checksum of these (8)
//! frame  length (4)  checksum of the record (8)  record (length)
//! ```
//!
//! Integers are little-endian; checksums are XXH3. `number` and `time` (milliseconds since 1970)
//! are those of the first event, or of the next one. A segment ends at the first frame that is
//! incomplete or damaged: a write that was cut short by a crash leaves such a frame.

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"IBSMHIS1";
/// Length of the head, bytes.
pub const HEAD_LEN: usize = 32;
/// Length of what precedes a record, bytes.
const FRAME_HEAD_LEN: usize = 12;
/// Longest record, bytes: a topology of 48,000 hosts has 3 MB.
pub const RECORD_LEN_MAX: usize = 32 << 20;

/// Numbers of events are below this: one that is not is damaged.
pub const NUMBER_END: u64 = 1 << 63;

/// The beginning of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the first event.
    pub number: u64,
    /// When the segment was begun, milliseconds since 1970.
    pub time_ms: u64,
}

impl Head {
    /// Its bytes.
    pub fn encode(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time_ms.to_le_bytes());
        let checksum = xxh3_64(&bytes[..24]);
        bytes[24..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads it; `None` if these bytes do not begin a segment, or its number is out of range.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<HEAD_LEN>()?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
        let is_valid = head[..8] == MAGIC[..] && word(24) == xxh3_64(&head[..24]);
        let is_valid = is_valid && word(8) < NUMBER_END;
        is_valid.then(|| Self { number: word(8), time_ms: word(16) })
    }
}

/// Appends a record to `out` as a frame. `false` if it is too long.
pub fn append(out: &mut Vec<u8>, record: &[u8]) -> bool {
    if record.len() > RECORD_LEN_MAX {
        return false;
    }
    out.extend_from_slice(&(record.len() as u32).to_le_bytes());
    out.extend_from_slice(&xxh3_64(record).to_le_bytes());
    out.extend_from_slice(record);
    true
}

/// The records of the frames in `bytes`, up to the first that is incomplete or damaged.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    /// Bytes of whole frames so far.
    read: usize,
}

impl<'a> Frames<'a> {
    /// Frames, without a head before them.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, read: 0 }
    }

    /// Length of the frames read so far, bytes.
    pub fn read(&self) -> usize {
        self.read
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.read..)?;
        let len = u32::from_le_bytes(*rest.first_chunk::<4>()?) as usize;
        let checksum = u64::from_le_bytes(*rest.get(4..)?.first_chunk::<8>()?);
        if len > RECORD_LEN_MAX {
            return None;
        }
        let record = rest.get(FRAME_HEAD_LEN..FRAME_HEAD_LEN + len)?;
        if xxh3_64(record) != checksum {
            return None;
        }
        self.read += FRAME_HEAD_LEN + len;
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_read_back_up_to_a_torn_or_damaged_one() {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for record in [&b"one"[..], b"", b"three"] {
            assert!(append(&mut bytes, record));
            ends.push(bytes.len());
        }
        let all: Vec<_> = Frames::new(&bytes).collect();
        assert_eq!(all, [&b"one"[..], b"", b"three"]);
        for len in 0..bytes.len() {
            let mut frames = Frames::new(&bytes[..len]);
            let whole = ends.iter().filter(|&&end| end <= len).count();
            assert_eq!(frames.by_ref().count(), whole, "{len}");
            assert_eq!(frames.read(), ends[..whole].last().copied().unwrap_or(0));
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Frames::new(&damaged).count() < 3, "{at}");
        }
        assert!(!append(&mut bytes, &vec![0; RECORD_LEN_MAX + 1]));
    }

    #[test]
    fn a_head_is_known_by_its_checksum() {
        let head = Head { number: 7, time_ms: 1_795_773_158_000 };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Some(head));
        for at in 0..HEAD_LEN {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert_eq!(Head::decode(&damaged), None, "{at}");
        }
        assert_eq!(Head::decode(&bytes[..31]), None);
        // Regression: the first event of the next run had no number.
        assert_eq!(Head::decode(&Head { number: u64::MAX, ..head }.encode()), None);
    }
}
