//! The 64 bytes before the MAD of a datagram: the addressing that a fabric would carry.

use crate::transport::{Address, Grh, Marks};
use crate::types::{Gid, Lid, PKey, Qpn, Sl};
use crate::wire::field::layout;

/// Length of the envelope, bytes.
pub const ENVELOPE_LEN: usize = Envelope::<()>::LEN;

/// "IBMD".
const MAGIC: u32 = 0x4942_4D44;
const VERSION: u8 = 1;
/// Magic and version, the start of every envelope.
const HEAD: u64 = (MAGIC as u64) << 8 | VERSION as u64;

/// Mark of a request that a front door forwarded: the responder may send the response from its own
/// port.
pub const DIRECT: Marks = Marks::numbered(0);

layout! {
    /// Envelope, 64 bytes, big-endian. It describes the client on the fabric, in both directions.
    ///
    /// ```text
    ///  0 "IBMD"   4 version 1   5 rsvd:6 direct:1 GRH present:1   6 rsvd:4 SL:4   7 path bits
    ///  8 LID (2)      10 P_Key (2)  12 QPN (4)               16 local QPN (4)
    /// 20 remote GID (16)            36 local GID (16)
    /// 52 TClass       53 HopLimit   54 token high (2)        56 FlowLabel (4)   60 token low (4)
    /// ```
    pub struct Envelope(EnvelopeRepr): "envelope", 64 bytes {
        /// "IBMD".
        magic: u32 [0 .. 32],
        /// 1.
        version: u8 [32 .. 40],
        /// Whether the responder may send the response from its own port.
        direct: bool [46 .. 47],
        /// Whether the fields from `remote_gid` on are valid.
        grh_present: bool [47 .. 48],
        /// Service level.
        sl: Sl [52 .. 56],
        /// Low bits of the responder's LID that the request was sent to.
        path_bits: u8 [56 .. 64],
        /// The client's LID: source of a request, destination of a response.
        lid: Lid [64 .. 80],
        /// P_Key.
        pkey: PKey [80 .. 96],
        /// The client's QP.
        qpn: Qpn [96 .. 128],
        /// The responder's QP.
        local_qpn: Qpn [128 .. 160],
        /// The client's GID.
        remote_gid: Gid [160 .. 288],
        /// The responder's GID.
        local_gid: Gid [288 .. 416],
        /// Traffic class.
        traffic_class: u8 [416 .. 424],
        /// Hop limit.
        hop_limit: u8 [424 .. 432],
        /// Upper 16 bits of the sender's token.
        token_high: u16 [432 .. 448],
        /// Flow label.
        flow_label: u32 [448 .. 480],
        /// Lower 32 bits of the sender's token.
        token_low: u32 [480 .. 512],
    }
}

/// Bits of a token.
pub const TOKEN_BITS: u32 = 48;

/// The envelope of a MAD with this address and these marks, of which it has [`DIRECT`]. It has
/// neither `Carrier::peer` nor `Carrier::undelivered`, and no token.
#[inline(always)]
pub fn encode(address: &Address, marks: Marks) -> [u8; ENVELOPE_LEN] {
    encode_from(address, marks, 0)
}

/// The same, with the sender's `token`, of which it has the lower [`TOKEN_BITS`] bits.
#[inline(always)]
pub(super) fn encode_from(address: &Address, marks: Marks, token: u64) -> [u8; ENVELOPE_LEN] {
    // Not by `EnvelopeRepr::to_bytes`, which works bit by bit and takes several times as long: this
    // is done for every packet. Whole words, since a cache line owned by another core is written
    // store by store. A test compares the two.
    let flags = u8::from(marks.contains(DIRECT)) << 1 | u8::from(address.grh.is_some());
    let [sl, path_bits] = [address.sl.get(), address.path_bits].map(u64::from);
    let first = HEAD << 24 | u64::from(flags) << 16 | sl << 8 | path_bits;
    let (lid, pkey) = (u64::from(address.lid.0), u64::from(address.pkey.0));
    let second = lid << 48 | pkey << 32 | u64::from(address.qpn.0);
    let mut bytes = [0; ENVELOPE_LEN];
    bytes[0..8].copy_from_slice(&first.to_be_bytes());
    bytes[8..16].copy_from_slice(&second.to_be_bytes());
    bytes[16..20].copy_from_slice(&address.local_qpn.0.to_be_bytes());
    if let Some(grh) = &address.grh {
        bytes[20..36].copy_from_slice(&grh.remote_gid.0);
        bytes[36..52].copy_from_slice(&grh.local_gid.0);
        bytes[52] = grh.traffic_class;
        bytes[53] = grh.hop_limit;
        bytes[56..60].copy_from_slice(&grh.flow_label.to_be_bytes());
    }
    bytes[54..56].copy_from_slice(&((token >> 32) as u16).to_be_bytes());
    bytes[60..64].copy_from_slice(&(token as u32).to_be_bytes());
    bytes
}

/// The sender's token in an envelope; 0 if it has none.
#[inline(always)]
pub(super) fn token(bytes: &[u8; ENVELOPE_LEN]) -> u64 {
    let high = u16::from_be_bytes([bytes[54], bytes[55]]);
    let low = u32::from_be_bytes([bytes[60], bytes[61], bytes[62], bytes[63]]);
    u64::from(high) << 32 | u64::from(low)
}

/// The address and the marks in an envelope; `None` if it is not an envelope of this version.
#[inline(always)]
pub fn decode(bytes: &[u8; ENVELOPE_LEN]) -> Option<(Address, Marks)> {
    let (words, _) = bytes.as_chunks::<8>();
    let (first, second) = (u64::from_be_bytes(words[0]), u64::from_be_bytes(words[1]));
    if first >> 24 != HEAD {
        return None;
    }
    let flags = (first >> 16) as u8;
    let address = Address {
        lid: Lid((second >> 48) as u16),
        qpn: Qpn(second as u32),
        local_qpn: Qpn((u64::from_be_bytes(words[2]) >> 32) as u32),
        sl: Sl::from_low_bits((first >> 8) as u16),
        pkey: PKey((second >> 32) as u16),
        path_bits: first as u8,
        grh: (flags & 1 != 0).then(|| read_grh(bytes)),
    };
    Some((address, DIRECT.only_if(flags & 2 != 0)))
}

/// The fields that are valid only with a GRH, which few packets have.
#[cold]
fn read_grh(bytes: &[u8; ENVELOPE_LEN]) -> Grh {
    let envelope = Envelope::of(bytes);
    Grh {
        remote_gid: envelope.remote_gid(),
        local_gid: envelope.local_gid(),
        traffic_class: envelope.traffic_class(),
        flow_label: envelope.flow_label(),
        hop_limit: envelope.hop_limit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> Address {
        Address {
            lid: Lid(0x0102),
            qpn: Qpn(0x00AB_CDEF),
            local_qpn: Qpn(1),
            sl: Sl::from_low_bits(9),
            pkey: PKey(0x8001),
            path_bits: 3,
            grh: Some(Grh {
                remote_gid: Gid([1; 16]),
                local_gid: Gid([2; 16]),
                traffic_class: 7,
                flow_label: 0x000F_FFFF,
                hop_limit: 64,
            }),
        }
    }

    #[test]
    fn layout_is_as_drawn() {
        let bytes = encode(&address(), Marks::default());
        assert_eq!(bytes[..8], *b"IBMD\x01\x01\x09\x03");
        assert_eq!(bytes[8..20], [1, 2, 0x80, 1, 0, 0xAB, 0xCD, 0xEF, 0, 0, 0, 1]);
        assert_eq!((&bytes[20..36], &bytes[36..52]), (&[1; 16][..], &[2; 16][..]));
        assert_eq!(bytes[52..], [7, 64, 0, 0, 0, 0x0F, 0xFF, 0xFF, 0, 0, 0, 0]);
        assert_eq!(decode(&bytes), Some((address(), Marks::default())));
        let without = Address { grh: None, ..address() };
        assert_eq!(decode(&encode(&without, DIRECT)), Some((without, DIRECT)));
        assert_eq!(encode(&address(), DIRECT)[5], 3);
        assert_eq!(decode(&encode(&address(), DIRECT)), Some((address(), DIRECT)));
    }

    #[test]
    fn strangers_and_other_versions_are_refused() {
        for byte in [0, 3, 4] {
            let mut bytes = encode(&address(), Marks::default());
            bytes[byte] ^= 2;
            assert_eq!(decode(&bytes), None, "byte {byte}");
        }
    }

    /// The hand-written encoding is that of the layout.
    #[test]
    fn both_ways_of_writing_agree() {
        for direct in [false, true] {
            for grh in [None, address().grh] {
                let address = Address { grh, ..address() };
                let Grh { remote_gid, local_gid, traffic_class, flow_label, hop_limit } =
                    grh.unwrap_or_default();
                let repr = EnvelopeRepr {
                    magic: MAGIC,
                    version: VERSION,
                    direct,
                    grh_present: grh.is_some(),
                    sl: address.sl,
                    path_bits: address.path_bits,
                    lid: address.lid,
                    pkey: address.pkey,
                    qpn: address.qpn,
                    local_qpn: address.local_qpn,
                    remote_gid,
                    local_gid,
                    traffic_class,
                    hop_limit,
                    token_high: 0x0102,
                    flow_label,
                    token_low: 0x0304_0506,
                };
                let bytes = encode_from(&address, DIRECT.only_if(direct), 0x0102_0304_0506);
                assert_eq!(bytes, repr.to_bytes());
                assert_eq!(token(&bytes), 0x0102_0304_0506);
            }
        }
    }

    proptest! {
        /// Every envelope read from the wire is written back unchanged, except reserved bits.
        #[test]
        fn what_is_read_is_written_back(fill: [u8; 32]) {
            let mut bytes = [0; ENVELOPE_LEN];
            bytes[..5].copy_from_slice(b"IBMD\x01");
            bytes[5] = 1;
            bytes[6..38].copy_from_slice(&fill);
            bytes[6] &= 0xF;
            let (address, marks) = decode(&bytes).unwrap();
            prop_assert_eq!(encode(&address, marks), bytes);
        }
    }
}
