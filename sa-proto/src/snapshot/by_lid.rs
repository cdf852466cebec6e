//! Tables of a switch with an entry per LID: encoding, and patches of changed blocks.

use ib_mad::types::Guid;

use super::blocks::{BLOCK_LEN, BLOCKS_MAX, Block, BlockReader, BlockWriter};
use super::encoding::{Canonical, Malformed, Reader};
use super::row::{Patch, Row, Side, join};

/// A row with one byte per LID, in whole blocks of 64 entries.
pub(super) trait ByLid: Row<Key = Guid> {
    /// Value of unset entries.
    const FILL: u8;
    /// The entries.
    fn entries(&self) -> &[u8];
    /// A row of a switch with these entries.
    fn of(switch: Guid, entries: Vec<u8>) -> Self;
}

/// Implements [`ByLid`] for a type: its fields, its table, and the value of unset entries.
macro_rules! by_lid_row {
    ($row:ident { $switch:ident, $entries:ident }, $table:ident, $fill:expr) => {
        impl $crate::snapshot::row::Row for $row {
            type Key = ib_mad::types::Guid;
            type Patch = $crate::snapshot::by_lid::BlockPatch;
            const TABLE: $crate::snapshot::Table = $crate::snapshot::Table::$table;
            fn key(&self) -> ib_mad::types::Guid {
                self.$switch
            }
            fn put_sharing(
                &self,
                blocks: &mut $crate::snapshot::blocks::BlockWriter,
                out: &mut Vec<u8>,
            ) {
                $crate::snapshot::by_lid::put_sharing(self, blocks, out);
            }
            fn take_sharing(
                blocks: &mut $crate::snapshot::blocks::BlockReader,
                input: &mut $crate::snapshot::encoding::Reader<'_>,
            ) -> Result<Self, $crate::snapshot::encoding::Malformed> {
                $crate::snapshot::by_lid::take_sharing(blocks, input)
            }
        }

        impl $crate::snapshot::by_lid::ByLid for $row {
            const FILL: u8 = $fill;
            fn entries(&self) -> &[u8] {
                &self.$entries
            }
            fn of($switch: ib_mad::types::Guid, $entries: Vec<u8>) -> Self {
                Self { $switch, $entries: $entries.into() }
            }
        }

        impl $crate::snapshot::encoding::Canonical for $row {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::snapshot::by_lid::put(self, out);
            }
            fn take(
                input: &mut $crate::snapshot::encoding::Reader<'_>,
            ) -> Result<Self, $crate::snapshot::encoding::Malformed> {
                $crate::snapshot::by_lid::take(input)
            }
        }
    };
}
pub(super) use by_lid_row;

fn blocks<R: ByLid>(row: &R) -> &[Block] {
    row.entries().as_chunks().0
}

pub(super) fn put<R: ByLid>(row: &R, out: &mut Vec<u8>) {
    row.key().put(out);
    (row.entries().len() as u32).put(out);
    out.extend_from_slice(row.entries());
}

pub(super) fn take<R: ByLid>(input: &mut Reader<'_>) -> Result<R, Malformed> {
    let switch = Guid::take(input)?;
    let len = input.count(1)?;
    Ok(R::of(switch, input.bytes(len)?.to_vec()))
}

/// Appends a row whose blocks may repeat those of other rows in the same transfer.
pub(super) fn put_sharing<R: ByLid>(row: &R, writer: &mut BlockWriter, out: &mut Vec<u8>) {
    row.key().put(out);
    (blocks(row).len() as u32).put(out);
    blocks(row).iter().for_each(|block| writer.put(block, out));
}

/// Reads what [`put_sharing`] wrote.
pub(super) fn take_sharing<R: ByLid>(
    reader: &mut BlockReader,
    input: &mut Reader<'_>,
) -> Result<R, Malformed> {
    let switch = Guid::take(input)?;
    let count = input.count(size_of::<u16>())?;
    if count > BLOCKS_MAX {
        return Err(Malformed("a table beyond the last unicast LID"));
    }
    let mut entries = Vec::with_capacity(count * BLOCK_LEN);
    for _ in 0..count {
        entries.extend_from_slice(&reader.take(input)?);
    }
    Ok(R::of(switch, entries))
}

/// Changed blocks of a table by LID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPatch {
    /// Number of blocks of the changed table; added blocks are among `blocks`.
    len_blocks: u16,
    /// Index and content of changed blocks, ascending.
    blocks: Vec<(u16, Block)>,
}

impl BlockPatch {
    /// Indices of the changed blocks, ascending.
    pub fn changed(&self) -> impl Iterator<Item = u16> + '_ {
        self.blocks.iter().map(|&(number, _)| number)
    }
}

impl<R: ByLid> Patch<R> for BlockPatch {
    fn between(old: &R, new: &R) -> Option<Self> {
        let (old, new) = (blocks(old), blocks(new));
        let blocks: Vec<_> = (0u16..)
            .zip(new)
            .filter(|&(number, block)| old.get(usize::from(number)) != Some(block))
            .map(|(number, &block)| (number, block))
            .collect();
        (blocks.len() < new.len()).then_some(Self { len_blocks: new.len() as u16, blocks })
    }

    fn apply(&self, row: &R) -> R {
        let mut entries = row.entries().to_vec();
        entries.resize(usize::from(self.len_blocks) * BLOCK_LEN, R::FILL);
        let blocks = entries.as_chunks_mut().0;
        for (number, block) in &self.blocks {
            if let Some(place) = blocks.get_mut(usize::from(*number)) {
                *place = *block;
            }
        }
        R::of(row.key(), entries)
    }

    fn merge(&self, later: &Self) -> Self {
        let mut blocks: Vec<_> = join_by_number(&self.blocks, &later.blocks).collect();
        blocks.retain(|&(number, _)| number < later.len_blocks);
        Self { len_blocks: later.len_blocks, blocks }
    }
}

/// The blocks of both lists; where both have one, that of the later list.
fn join_by_number<'a, B: Copy>(
    earlier: &'a [(u16, B)],
    later: &'a [(u16, B)],
) -> impl Iterator<Item = (u16, B)> + 'a {
    join(earlier.iter().copied(), later.iter().copied()).map(|(number, side)| match side {
        Side::Left(block) | Side::Right(block) | Side::Both(_, block) => (number, block),
    })
}

impl Canonical for BlockPatch {
    fn put(&self, out: &mut Vec<u8>) {
        self.len_blocks.put(out);
        self.blocks.put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len_blocks = u16::take(input)?;
        let blocks: Vec<(u16, Block)> = Canonical::take(input)?;
        if usize::from(len_blocks) > BLOCKS_MAX {
            return Err(Malformed("a table beyond the last unicast LID"));
        }
        let ascending = blocks.is_sorted_by(|a, b| a.0 < b.0);
        if !ascending || blocks.last().is_some_and(|&(last, _)| last >= len_blocks) {
            return Err(Malformed("blocks of a table out of order or beyond its end"));
        }
        Ok(Self { len_blocks, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Lft {
        switch: Guid,
        ports: Vec<u8>,
    }
    by_lid_row!(Lft { switch, ports }, Lfts, 0xFF);

    fn lft(blocks: &[u8]) -> Lft {
        let ports = blocks.iter().flat_map(|&fill| [fill; BLOCK_LEN]).collect();
        Lft { switch: Guid(1), ports }
    }

    #[test]
    fn a_patch_carries_changed_blocks_only() {
        let (old, new) = (lft(&[1, 2, 3, 4]), lft(&[1, 9, 3, 4]));
        let patch = BlockPatch::between(&old, &new).unwrap();
        assert_eq!(patch.changed().collect::<Vec<_>>(), [1]);
        assert_eq!(patch.apply(&old), new);
    }

    #[test]
    fn tables_may_shrink_and_grow_again() {
        let (a, b, c) = (lft(&[1, 2, 3]), lft(&[1, 2]), lft(&[1, 2, 7, 8]));
        let (shrink, grow) =
            (BlockPatch::between(&a, &b).unwrap(), BlockPatch::between(&b, &c).unwrap());
        assert_eq!(shrink.apply(&a), b);
        assert_eq!(grow.apply(&b), c);
        let merged = Patch::<Lft>::merge(&shrink, &grow);
        assert_eq!(merged.apply(&a), c);
        let back = BlockPatch::between(&c, &b).unwrap();
        let merged = Patch::<Lft>::merge(&grow, &back);
        assert_eq!(merged.apply(&b), b);
    }

    #[test]
    fn a_table_that_changed_everywhere_is_sent_whole() {
        assert_eq!(<BlockPatch as Patch<Lft>>::between(&lft(&[1, 2]), &lft(&[3, 4])), None);
    }

    #[test]
    fn a_patch_beyond_its_table_is_refused() {
        let mut bytes = Vec::new();
        BlockPatch { len_blocks: 2, blocks: vec![(2, [0; 64])] }.put(&mut bytes);
        assert!(super::super::encoding::decode::<BlockPatch>(&bytes).is_err());
    }
}
