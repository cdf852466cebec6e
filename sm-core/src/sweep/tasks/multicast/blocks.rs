//! Blocks of multicast tables, as numbers in requests.

use ib_mad::wire::attribute::multicast_forwarding_modifier;

use crate::smp::Request;

/// Bits of a request's block number that are the block of the table; those above are the position.
const BLOCK_BITS: u32 = 12;

/// The number that represents a block and position in a request.
pub(in crate::sweep) fn block_number((block, position): (u16, u8)) -> u16 {
    block | u16::from(position) << BLOCK_BITS
}

/// AttributeModifier of a MulticastForwardingTable.
pub(in crate::sweep) fn block_modifier(request: Request) -> u32 {
    let (block, position) = block_key(request);
    multicast_forwarding_modifier(block, position)
}

/// Block and position that a request is about.
pub(in crate::sweep) fn block_key(request: Request) -> (u16, u8) {
    (request.block & ((1 << BLOCK_BITS) - 1), (request.block >> BLOCK_BITS) as u8)
}
