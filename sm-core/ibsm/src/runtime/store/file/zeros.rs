//! Entries without their zeros: half of the bytes of records are zero, and what is not written need
//! not be copied, summed and synced.
//!
//! ```text
//! number of bytes (1)   the bytes   number of zeros after them (1)   and so on to the end
//! ```

use sa_proto::snapshot::encoding::{Malformed, Reader};

/// Shorter runs of zeros are written as they are: the two counts around them are as long.
const RUN_MIN: usize = 4;
const RUN_MAX: usize = u8::MAX as usize;

/// Appends `entry` without its zeros.
pub(super) fn pack(mut entry: &[u8], out: &mut Vec<u8>) {
    while !entry.is_empty() {
        let (bytes, rest) = entry.split_at(before_zeros(entry));
        let zeros = leading_zeros(rest);
        out.push(bytes.len() as u8);
        out.extend_from_slice(bytes);
        out.push(zeros as u8);
        entry = &rest[zeros..];
    }
}

/// Reads what [`pack`] wrote.
pub(super) fn unpack(packed: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut input = Reader::new(packed);
    let mut entry = Vec::with_capacity(packed.len() * 2);
    while input.remaining() > 0 {
        let [len] = input.array()?;
        entry.extend_from_slice(input.bytes(len.into())?);
        let [zeros] = input.array()?;
        entry.resize(entry.len() + usize::from(zeros), 0);
    }
    Ok(entry)
}

/// Number of bytes before the first run of zeros, at most [`RUN_MAX`].
fn before_zeros(bytes: &[u8]) -> usize {
    let bytes = &bytes[..bytes.len().min(RUN_MAX)];
    let mut at = 0;
    while let Some(four) = bytes[at..].first_chunk::<RUN_MIN>() {
        match four.iter().rposition(|&byte| byte != 0) {
            Some(last) => at += last + 1,
            None => return at,
        }
    }
    bytes.len()
}

/// Number of zeros at the beginning, at most [`RUN_MAX`].
fn leading_zeros(bytes: &[u8]) -> usize {
    let bytes = &bytes[..bytes.len().min(RUN_MAX)];
    let mut at = 0;
    while let Some([0, 0, 0, 0, 0, 0, 0, 0]) = bytes[at..].first_chunk() {
        at += 8;
    }
    at + bytes[at..].iter().take_while(|&&byte| byte == 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(entry: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        pack(entry, &mut out);
        out
    }

    #[test]
    fn an_entry_reads_back_whatever_its_runs() {
        const LENGTHS: [usize; 12] = [0, 1, 2, 3, 4, 5, 8, 9, 254, 255, 256, 600];
        for before in LENGTHS {
            for zeros in LENGTHS {
                for after in LENGTHS {
                    let run = |len: usize| (0..len).map(|n| (n % 5 == 0 || n % 7 < 3).into());
                    let zeros = std::iter::repeat_n(0, zeros);
                    let entry: Vec<u8> = run(before).chain(zeros).chain(run(after)).collect();
                    assert_eq!(unpack(&packed(&entry)), Ok(entry));
                }
            }
        }
    }

    #[test]
    fn zeros_take_no_room_and_other_bytes_little() {
        assert_eq!(packed(&[1, 2, 0, 0, 0, 0, 0, 3]), [2, 1, 2, 5, 1, 3, 0]);
        assert_eq!(packed(&[0; 600]), [0, 255, 0, 255, 0, 90]);
        let dense = [7; 10_000];
        assert!(packed(&dense).len() < 10_100);
        assert!(packed(&[[9, 0, 0, 0]; 100].concat()).len() < 410, "short runs are not worth it");
    }

    #[test]
    fn what_ends_early_is_refused() {
        let packed = packed(&[1, 2, 0, 0, 0, 0, 0, 3]);
        for len in [1, 2, 3, 5, 6] {
            assert!(unpack(&packed[..len]).is_err(), "{len}");
        }
    }
}
