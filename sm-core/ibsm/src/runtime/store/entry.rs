//! The changes, the outcomes and the time of a commit, as bytes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use sa_proto::snapshot::encoding::{Canonical, Malformed, Reader};
use sa_proto::snapshot::{self, ReadChanges, RegistryChanges, Row, WriteChanges};

use sm_core::registry::{AnswerRecord, HostTime, Outcome, OutcomeKey, Stamp};

/// Bytes of an outcome's data; trailing zeros are omitted.
const DATA_LEN: usize = 200;
/// Written as the length of an outcome without data.
const NO_DATA: u8 = u8::MAX;

/// The changes of a commit.
pub(super) fn rows(changes: &RegistryChanges) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + changes.len() * 256);
    put_rows(changes, &mut out);
    out
}

/// Appends the changes of a commit.
pub(super) fn put_rows(changes: &RegistryChanges, out: &mut Vec<u8>) {
    changes.sequence.put(out);
    let Ok(()) = changes.write(&mut Output(out));
}

/// Reads what [`rows`] wrote.
pub(super) fn read_rows(entry: &[u8]) -> Result<RegistryChanges, Malformed> {
    let mut input = Reader::new(entry);
    let sequence = Canonical::take(&mut input)?;
    let changes = RegistryChanges::read(sequence, &mut Input(&mut input))?;
    input.finish()?;
    Ok(changes)
}

/// An entry that is being written.
struct Output<'a>(&'a mut Vec<u8>);

impl WriteChanges for Output<'_> {
    type Error = Infallible;

    fn changes<R: Row>(&mut self, changes: &snapshot::Changes<R>) -> Result<(), Infallible> {
        let out = &mut *self.0;
        (changes.len() as u32).put(out);
        for (key, row) in changes {
            row.is_some().put(out);
            match row {
                Some(row) => row.put(out),
                None => key.put(out),
            }
        }
        Ok(())
    }
}

/// An entry that is being read.
struct Input<'a, 'b>(&'a mut Reader<'b>);

impl ReadChanges for Input<'_, '_> {
    type Error = Malformed;

    fn changes<R: Row>(&mut self) -> Result<snapshot::Changes<R>, Malformed> {
        let count = self.0.count(size_of::<u8>())?;
        let change = |_| {
            if bool::take(self.0)? {
                let row = R::take(self.0)?;
                return Ok((row.key(), Some(Arc::new(row))));
            }
            Ok((R::Key::take(self.0)?, None))
        };
        (0..count).map(change).collect()
    }
}

/// The outcomes of a commit.
pub(super) fn outcomes(outcomes: &[(OutcomeKey, Outcome)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(outcomes.len() * 256);
    put_outcomes(outcomes, &mut out);
    out
}

/// Appends the outcomes of a commit.
pub(super) fn put_outcomes(outcomes: &[(OutcomeKey, Outcome)], out: &mut Vec<u8>) {
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

/// Reads what [`outcomes`] wrote.
pub(super) fn read_outcomes(
    entry: &[u8],
    out: &mut Vec<(OutcomeKey, Outcome)>,
) -> Result<(), Malformed> {
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

/// Writes registry time.
pub(super) fn put_stamp(stamp: &Stamp, out: &mut Vec<u8>) {
    let Stamp { time, host } = stamp;
    ((host.boot >> 64) as u64).put(out);
    (host.boot as u64).put(out);
    for time in [time, &host.since_boot, &host.wall] {
        // Enough until the year 2554.
        (time.as_nanos() as u64).put(out);
    }
}

/// Reads what [`put_stamp`] wrote.
pub(super) fn take_stamp(input: &mut Reader<'_>) -> Result<Stamp, Malformed> {
    let mut number = || u64::take(input);
    let boot = u128::from(number()?) << 64 | u128::from(number()?);
    let [time, since_boot, wall] = [number()?, number()?, number()?].map(Duration::from_nanos);
    Ok(Stamp { time, host: HostTime { boot, since_boot, wall } })
}

#[cfg(test)]
mod tests {
    use ib_mad::types::{Guid, PKey};
    use sa_proto::snapshot::{AliasGuid, MulticastGroup, Service, ServiceRid};

    use super::*;

    #[test]
    fn changes_read_back_and_half_of_them_do_not() {
        let mgid = Gid([0xFF; 16]);
        let rid = ServiceRid { service_id: 5, service_gid: mgid, service_pkey: PKey(0xFFFF) };
        let alias = AliasGuid { alias: Guid(1), port_guid: Guid(2), index: 3 };
        let mut all = RegistryChanges { sequence: 9, ..RegistryChanges::default() };
        let group = MulticastGroup { mgid, record: [5; 52], predefined: true };
        all.groups.insert(mgid, Some(Arc::new(group)));
        all.services.insert(rid, None);
        let service = Service { rid: ServiceRid::default(), record: [3; 176], expires_s: Some(7) };
        all.services.insert(service.rid, Some(Arc::new(service)));
        all.alias_guids.insert(Guid(1), Some(Arc::new(alias)));
        let bytes = rows(&all);
        assert_eq!(read_rows(&bytes), Ok(all));
        for len in 0..bytes.len() {
            assert!(read_rows(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn outcomes_read_back_with_the_zeros_that_were_left_out() {
        let key = |tid| OutcomeKey {
            slid: Lid(3),
            sgid: Gid([9; 16]),
            qpn: Qpn(1),
            tid,
            attribute: AttributeId(0x31),
            method: Method::SET,
            digest: 77,
        };
        let with = |len: usize| {
            let mut data = [0; DATA_LEN];
            data[..len].fill(7);
            Some(AnswerRecord::new(&data))
        };
        let outcome = |data| Outcome { status: Status(3), data, at_s: 50 };
        let all: Vec<_> = (0..).zip([with(0), None, with(52), with(DATA_LEN)]).collect();
        let all: Vec<_> = all.into_iter().map(|(tid, data)| (key(tid), outcome(data))).collect();
        let bytes = outcomes(&all);
        let mut read = Vec::new();
        read_outcomes(&bytes, &mut read).unwrap();
        assert_eq!(read, all);
        assert!(bytes.len() < 4 * 60 + 52 + DATA_LEN);
        assert!(read_outcomes(&bytes[..bytes.len() - 1], &mut read).is_err());
    }
}
