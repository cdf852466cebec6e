//! The changes and the time of a commit, as bytes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use sa_proto::snapshot::encoding::{Canonical, Malformed, Reader};
use sa_proto::snapshot::{self, ReadChanges, RegistryChanges, Row, Table, WriteChanges};

use sm_core::registry::{HostTime, Stamp};

/// Tables that entries of earlier releases do not have.
const LATER: [Table; 3] = [Table::ApiPartitions, Table::PartitionMembers, Table::LapsedPorts];

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
        if self.0.remaining() == 0 && LATER.contains(&R::TABLE) {
            return Ok(snapshot::Changes::<R>::new());
        }
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
    use ib_mad::types::{Gid, Guid, PKey};
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
        assert_eq!(read_rows(&bytes).as_ref(), Ok(&all));
        // Without tables that earlier releases did not have, which are empty here.
        let before = bytes.len() - 4 * LATER.len();
        assert_eq!(read_rows(&bytes[..before]).as_ref(), Ok(&all));
        for len in 0..before {
            assert!(read_rows(&bytes[..len]).is_err());
        }
    }
}
