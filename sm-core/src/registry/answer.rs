//! The record in the answer to a write.

use std::sync::Arc;

use ib_mad::wire::record::McMemberRecord;
use ib_mad::wire::sa::DATA_LEN;

/// Length of records that are kept in place: the answers to joins and leaves, which are many.
const SHORT_LEN: usize = McMemberRecord::LEN;

/// The record of an answer. Trailing zeros are not stored, and clones share what is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerRecord(Bytes);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Bytes {
    /// The first `len`; the others are zero.
    Short { len: u8, bytes: [u8; SHORT_LEN] },
    /// More than fit in place.
    Long(Arc<[u8]>),
}

impl AnswerRecord {
    /// A record that starts with `record`, at most [`DATA_LEN`] bytes, and is padded with
    /// zeros.
    pub fn new(record: &[u8]) -> Self {
        let record = trim(&record[..record.len().min(DATA_LEN)]);
        Self(match record.len() {
            len @ 0..=SHORT_LEN => {
                let mut bytes = [0; SHORT_LEN];
                bytes[..len].copy_from_slice(record);
                Bytes::Short { len: len as u8, bytes }
            }
            _ => Bytes::Long(record.into()),
        })
    }

    /// Whether it equals this record.
    pub fn is(&self, data: &[u8; DATA_LEN]) -> bool {
        trim(data) == self.trimmed()
    }

    /// The bytes without trailing zeros.
    pub fn trimmed(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short { len, bytes } => &bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }

    /// The whole record, padded with zeros.
    pub fn data(&self) -> [u8; DATA_LEN] {
        let mut data = [0; DATA_LEN];
        let record = self.trimmed();
        data[..record.len()].copy_from_slice(record);
        data
    }
}

/// A record without its trailing zeros.
fn trim(record: &[u8]) -> &[u8] {
    // Most are zero to a large part.
    let mut len = record.len();
    while let Some((_, [0, 0, 0, 0, 0, 0, 0, 0])) = record[..len].split_last_chunk::<8>() {
        len -= 8;
    }
    &record[..record[..len].iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_answered_whole_and_stored_without_its_zeros() {
        for len in [0, 1, 52, DATA_LEN - 1, DATA_LEN] {
            let mut whole = [0; DATA_LEN];
            whole[..len].fill(7);
            let record = AnswerRecord::new(&whole);
            assert_eq!((record.data(), record.trimmed().len()), (whole, len));
            assert_eq!(AnswerRecord::new(&whole[..len]), record);
            assert!(record.is(&whole));
            for other in [0, len / 2, DATA_LEN - 1] {
                whole[other] ^= 1;
                assert!(!record.is(&whole), "{len} bytes, {other} differs");
                whole[other] ^= 1;
            }
        }
    }
}
