//! The record in the answer to a write.

use ib_mad::wire::sa::DATA_LEN;
use sa_proto::prost::bytes::Bytes;

/// The record of an answer. Trailing zeros are not stored, and clones share the rest: the
/// outcome kept for repeats, the stored one and the sent one share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerRecord(Bytes);

impl AnswerRecord {
    /// A record that starts with `record`, at most [`DATA_LEN`] bytes, and is padded with
    /// zeros.
    pub fn new(record: &[u8]) -> Self {
        let record = &record[..record.len().min(DATA_LEN)];
        let len = record.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Self(Bytes::copy_from_slice(&record[..len]))
    }

    /// Whether it equals this record.
    pub fn is(&self, data: &[u8; DATA_LEN]) -> bool {
        let (record, rest) = data.split_at(self.0.len());
        self.0 == record && rest.iter().all(|&byte| byte == 0)
    }

    /// The bytes without trailing zeros.
    pub fn trimmed(&self) -> &Bytes {
        &self.0
    }

    /// The whole record, padded with zeros.
    pub fn data(&self) -> [u8; DATA_LEN] {
        let mut data = [0; DATA_LEN];
        data[..self.0.len()].copy_from_slice(&self.0);
        data
    }
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
