//! Outcomes of requests as bytes: on disk, and on the way to other managers.

use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::DATA_LEN;
use sa_proto::snapshot::encoding::{Canonical, Malformed, Reader};

use super::{Outcome, OutcomeKey};
use crate::registry::AnswerRecord;

/// Written as the length of an outcome without data.
const NO_DATA: u8 = u8::MAX;

/// Outcomes as bytes.
pub fn encode(outcomes: &[(OutcomeKey, Outcome)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(outcomes.len() * 256);
    put(outcomes, &mut out);
    out
}

/// Appends outcomes as bytes.
pub fn put(outcomes: &[(OutcomeKey, Outcome)], out: &mut Vec<u8>) {
    for (key, outcome) in outcomes {
        key.slid.put(out);
        key.sgid.put(out);
        key.qpn.put(out);
        key.tid.put(out);
        key.attribute.0.put(out);
        key.method.0.put(out);
        key.digest.put(out);
        outcome.status.0.put(out);
        outcome.at_s.put(out);
        let Some(data) = outcome.data.as_ref().map(AnswerRecord::trimmed) else {
            out.push(NO_DATA);
            continue;
        };
        out.push(data.len() as u8);
        out.extend_from_slice(data);
    }
}

/// Reads what [`encode`] wrote, and appends it.
pub fn decode(entry: &[u8], out: &mut Vec<(OutcomeKey, Outcome)>) -> Result<(), Malformed> {
    let mut input = Reader::new(entry);
    while input.remaining() > 0 {
        let key = OutcomeKey {
            slid: Lid::take(&mut input)?,
            sgid: Gid::take(&mut input)?,
            qpn: Qpn::take(&mut input)?,
            tid: u64::take(&mut input)?,
            attribute: AttributeId(u16::take(&mut input)?),
            method: Method(u8::take(&mut input)?),
            digest: u64::take(&mut input)?,
        };
        let status = Status(u16::take(&mut input)?);
        let at_s = u64::take(&mut input)?;
        let data = match u8::take(&mut input)? {
            NO_DATA => None,
            len if usize::from(len) <= DATA_LEN => {
                Some(AnswerRecord::new(input.bytes(len.into())?))
            }
            _ => return Err(Malformed("an outcome longer than a record")),
        };
        out.push((key, Outcome { status, data, at_s }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::outcome_key as key;

    #[test]
    fn outcomes_read_back_with_the_zeros_that_were_left_out() {
        let with = |len: usize| {
            let mut data = [0; DATA_LEN];
            data[..len].fill(7);
            Some(AnswerRecord::new(&data))
        };
        let outcome = |data| Outcome { status: Status(3), data, at_s: 50 };
        let all: Vec<_> = (0..).zip([with(0), None, with(52), with(DATA_LEN)]).collect();
        let all: Vec<_> = all.into_iter().map(|(tid, data)| (key(tid), outcome(data))).collect();
        let bytes = encode(&all);
        let mut read = Vec::new();
        decode(&bytes, &mut read).unwrap();
        assert_eq!(read, all);
        assert!(bytes.len() < 4 * 60 + 52 + DATA_LEN);
        assert!(decode(&bytes[..bytes.len() - 1], &mut read).is_err());
    }
}
