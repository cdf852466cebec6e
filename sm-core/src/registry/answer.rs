//! The record that a write is answered with.

use ib_mad::wire::sa::DATA_LEN;
use sa_proto::prost::bytes::Bytes;

/// A record as it is answered. The zeros at its end are not kept, and clones share the rest: the
/// outcome kept for repeats, the one stored and the one sent are the same memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerRecord(Bytes);

impl AnswerRecord {
    /// What begins with `record`, of which no more than [`DATA_LEN`] bytes count, and goes on with
    /// zeros.
    pub fn new(record: &[u8]) -> Self {
        let record = &record[..record.len().min(DATA_LEN)];
        let len = record.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Self(Bytes::copy_from_slice(&record[..len]))
    }

    /// Whether it is this record.
    pub fn is(&self, data: &[u8; DATA_LEN]) -> bool {
        let (record, rest) = data.split_at(self.0.len());
        self.0 == record && rest.iter().all(|&byte| byte == 0)
    }

    /// Without the zeros at its end.
    pub fn trimmed(&self) -> &Bytes {
        &self.0
    }

    /// With them.
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
    fn a_record_is_told_as_it_was_and_kept_without_its_zeros() {
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
