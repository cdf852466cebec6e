//! P_Key tables of ports; equal tables are stored once.

use std::collections::HashSet;
use std::sync::Arc;

use ib_mad::types::PKey;

/// Number of distinct tables above which unused ones are collected.
const SWEPT_ABOVE: usize = 4096;

/// The distinct P_Key tables of a fabric.
#[derive(Debug)]
pub(super) struct PKeyTables {
    tables: HashSet<Arc<[PKey]>>,
    /// Number of tables at which unused ones are collected: twice the number in use when
    /// that was last done, so that the amortized cost per table is constant.
    swept_above: usize,
}

impl Default for PKeyTables {
    fn default() -> Self {
        Self { tables: HashSet::new(), swept_above: SWEPT_ABOVE }
    }
}

impl PKeyTables {
    /// The table without keys.
    pub(super) fn empty(&mut self) -> Arc<[PKey]> {
        self.intern(&[])
    }

    /// `table` with its block of 32 entries at `block` replaced.
    pub(super) fn with_block(
        &mut self,
        table: &[PKey],
        block: u16,
        keys: &[PKey; 32],
    ) -> Arc<[PKey]> {
        let start = usize::from(block) * keys.len();
        let mut next = table.to_vec();
        if next.len() < start + keys.len() {
            next.resize(start + keys.len(), PKey::default());
        }
        next[start..start + keys.len()].copy_from_slice(keys);
        let used = next.iter().rposition(|key| key.is_valid()).map_or(0, |last| last + 1);
        self.intern(&next[..used])
    }

    fn intern(&mut self, table: &[PKey]) -> Arc<[PKey]> {
        if let Some(known) = self.tables.get(table) {
            return known.clone();
        }
        if self.tables.len() > self.swept_above {
            self.tables.retain(|table| Arc::strong_count(table) > 1);
            self.swept_above = SWEPT_ABOVE.max(2 * self.tables.len());
        }
        let table: Arc<[PKey]> = table.into();
        self.tables.insert(table.clone());
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_any_order_make_the_same_table() {
        let mut tables = PKeyTables::default();
        let (mut first, mut third) = ([PKey(0); 32], [PKey(0); 32]);
        first[0] = PKey(0xFFFF);
        third[1] = PKey(0x8001);
        let empty = tables.empty();
        let a = tables.with_block(&empty, 0, &first);
        let a = tables.with_block(&a, 2, &third);
        let b = tables.with_block(&empty, 2, &third);
        let b = tables.with_block(&b, 0, &first);
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!((a.len(), a[0], a[65]), (66, PKey(0xFFFF), PKey(0x8001)));
        let cleared = tables.with_block(&a, 2, &[PKey(0); 32]);
        assert_eq!(cleared.len(), 1, "no invalid keys are kept at the end");
    }

    /// Regression: above 4,096 tables in use, all were scanned for each new one.
    #[test]
    fn unused_tables_are_looked_for_seldom_however_many_are_in_use() {
        let mut tables = PKeyTables::default();
        let table = |number: u16| [PKey(number | 0x8000)];
        let mut held: Vec<_> = (0..10_000).map(|number| tables.intern(&table(number))).collect();
        // The next collection comes when there are twice as many as at the last.
        assert_eq!((tables.tables.len(), tables.swept_above), (10_000, 2 * 8195));
        held.truncate(100);
        (10_000..17_000).for_each(|number| _ = tables.intern(&table(number)));
        assert_eq!(tables.swept_above, SWEPT_ABOVE, "few are in use");
        assert!(tables.tables.len() < 1_000, "{}", tables.tables.len());
        assert!(held.iter().all(|held| Arc::ptr_eq(held, &tables.intern(held))));
    }
}
