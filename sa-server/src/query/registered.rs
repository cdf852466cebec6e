//! Records of which each is one row of the registry, as the row describes it ([`ShownRecord`]).

use ib_mad::wire::pattern::Pattern;
use sa_proto::snapshot::{self, ShownRecord};

use super::{Family, Found, Query, Refusal};

macro_rules! families {
    ($($row:ident)*) => {
        /// The families of these records.
        pub(super) const FAMILIES: &[Family] =
            &[$(family::<snapshot::$row, { snapshot::$row::LEN }>(),)*];
    };
}
sa_proto::shown_records!([families]);

const fn family<R: ShownRecord<Record = [u8; LEN]>, const LEN: usize>() -> Family {
    let family = Family::readable(R::ATTRIBUTE, LEN, find::<R, LEN>).of_registry();
    if R::IS_WRITABLE { family.writable() } else { family }
}

fn find<R: ShownRecord<Record = [u8; LEN]>, const LEN: usize>(
    query: &Query<'_>,
    found: &mut Found<'_>,
) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let pattern = Pattern::new(R::COMPONENTS, query.mask, query.record);
    let mut rows = R::rows_of(query.registry).range(R::keys(query.mask, query.record));
    let _ = rows.try_for_each(|row| {
        let record = row.shown(query.trusted);
        let port = query.tables.end_ports.by_guid(row.port());
        if pattern.matches(&record) && port.is_some_and(|port| query.may_see_port(requester, port))
        {
            found.push(&record)?;
        }
        found.step()
    });
    Ok(())
}
