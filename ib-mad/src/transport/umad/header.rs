//! The header before a MAD in a umad file (`struct ib_user_mad_hdr` of `rdma/ib_user_mad.h`, the
//! version with a P_Key index), and in libibumad's buffers. Layout only.

use crate::transport::{Address, Grh};
use crate::types::{Gid, Lid, PKey, Qpn, Sl};

/// Length of the header.
pub const HEADER_LEN: usize = 64;

/// `struct ib_user_mad_hdr`, as bytes: programs may pass anything.
///
/// ```text
///  0 agent_id (4)   4 status (4)     8 timeout_ms (4)  12 retries (4)   16 length (4)
/// 20 qpn (4, be)   24 qkey (4, be)  28 lid (2, be)     30 sl            31 path_bits
/// 32 grh_present   33 gid_index     34 hop_limit       35 traffic_class
/// 36 gid (16)      52 flow_label (4, be)               56 pkey_index (2) 58 reserved (6)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub [u8; HEADER_LEN]);

/// Declares a getter and a setter of an integer field.
macro_rules! field {
    ($(#[$doc:meta])* $get:ident, $set:ident: $int:ty, $at:literal, $from:ident, $to:ident) => {
        $(#[$doc])*
        pub fn $get(&self) -> $int {
            <$int>::$from(self.array($at))
        }
        #[doc = concat!("Sets the value that [`Self::", stringify!($get), "`] returns.")]
        pub fn $set(&mut self, value: $int) -> &mut Self {
            self.0[$at..$at + size_of::<$int>()].copy_from_slice(&value.$to());
            self
        }
    };
}

impl Header {
    /// A header of zeros.
    pub const ZERO: Self = Self([0; HEADER_LEN]);

    field! {
        /// Id of the agent that sends or has received.
        agent_id, set_agent_id: u32, 0, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// 0, or the errno of a send that is returned.
        status, set_status: u32, 4, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// Timeout of each send in milliseconds; 0 if no response is expected.
        timeout_ms, set_timeout_ms: u32, 8, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// Number of retries.
        retries, set_retries: u32, 12, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// Length of a received message in bytes, header and MAD.
        length, set_length: u32, 16, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// The remote QP.
        qpn, set_qpn: u32, 20, from_be_bytes, to_be_bytes
    }
    field! {
        /// The remote Q_Key.
        qkey, set_qkey: u32, 24, from_be_bytes, to_be_bytes
    }
    field! {
        /// The remote LID.
        lid, set_lid: u16, 28, from_be_bytes, to_be_bytes
    }
    field! {
        /// Flow label of the GRH.
        flow_label, set_flow_label: u32, 52, from_be_bytes, to_be_bytes
    }
    field! {
        /// Index into the local port's P_Key table.
        pkey_index, set_pkey_index: u16, 56, from_ne_bytes, to_ne_bytes
    }

    /// Service level.
    pub fn sl(&self) -> u8 {
        self.0[30]
    }

    /// Low bits of the local LID.
    pub fn path_bits(&self) -> u8 {
        self.0[31]
    }

    /// Whether the packet has a GRH.
    pub fn grh_present(&self) -> bool {
        self.0[32] != 0
    }

    /// Index into the local port's GID table.
    pub fn gid_index(&self) -> u8 {
        self.0[33]
    }

    /// Sets the value that [`gid_index`](Self::gid_index) returns.
    pub fn set_gid_index(&mut self, index: u8) -> &mut Self {
        self.0[33] = index;
        self
    }

    /// Sets the hop limit of the GRH.
    pub fn set_hop_limit(&mut self, hop_limit: u8) -> &mut Self {
        self.0[34] = hop_limit;
        self
    }

    /// Writes service level and path bits.
    pub fn set_sl_and_path_bits(&mut self, sl: u8, path_bits: u8) -> &mut Self {
        (self.0[30], self.0[31]) = (sl, path_bits);
        self
    }

    /// Writes the fields of a GRH, or clears them.
    pub fn set_grh(&mut self, grh: Option<&Grh>) -> &mut Self {
        self.0[32] = u8::from(grh.is_some());
        if let Some(grh) = grh {
            (self.0[33], self.0[34], self.0[35]) = (0, grh.hop_limit, grh.traffic_class);
            self.0[36..52].copy_from_slice(&grh.remote_gid.0);
            self.set_flow_label(grh.flow_label);
        }
        self
    }

    /// The destination of a send, from `local_qpn` and with `pkey`.
    pub fn address(&self, local_qpn: Qpn, pkey: PKey, local_gid: Gid) -> Address {
        Address {
            lid: Lid(self.lid()),
            qpn: Qpn(self.qpn()),
            local_qpn,
            sl: Sl::from_low_bits(u16::from(self.sl())),
            pkey,
            path_bits: self.path_bits(),
            grh: self.grh_present().then(|| Grh {
                remote_gid: Gid(self.array(36)),
                local_gid,
                traffic_class: self.0[35],
                flow_label: self.flow_label() & 0xF_FFFF,
                hop_limit: self.0[34],
            }),
        }
    }

    /// The header of a message from agent `agent` to `address`, without a timeout or retries.
    pub fn sent(agent: u32, address: &Address, pkey_index: u16, gid_index: u8) -> Self {
        let mut header = Self::ZERO;
        header
            .set_agent_id(agent)
            .set_qpn(address.qpn.0)
            .set_qkey(if address.qpn == Qpn::SMI { 0 } else { Qpn::GSI_QKEY })
            .set_lid(address.lid.0)
            .set_sl_and_path_bits(address.sl.get(), address.path_bits)
            .set_grh(address.grh.as_ref())
            .set_pkey_index(pkey_index);
        if address.grh.is_some() {
            header.set_gid_index(gid_index);
        }
        header
    }

    /// The header of a message received from `address`.
    pub fn received(agent: u32, address: &Address, pkey_index: u16, mad_len: usize) -> Self {
        let mut header = Self::ZERO;
        header
            .set_agent_id(agent)
            .set_length(u32::try_from(HEADER_LEN + mad_len).unwrap_or(u32::MAX))
            .set_qpn(address.qpn.0)
            .set_lid(address.lid.0)
            .set_sl_and_path_bits(address.sl.get(), address.path_bits)
            .set_grh(address.grh.as_ref())
            .set_pkey_index(pkey_index);
        header
    }

    fn array<const LEN: usize>(&self, at: usize) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(&self.0[at..at + LEN]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_be_sent_to_the_address_received() {
        let grh = Grh {
            remote_gid: Gid([7; 16]),
            local_gid: Gid([9; 16]),
            traffic_class: 3,
            flow_label: 0xABCDE,
            hop_limit: 64,
        };
        let address = Address {
            lid: Lid(0x1234),
            qpn: Qpn(0x77),
            sl: Sl::from_low_bits(5),
            pkey: PKey(0x8001),
            path_bits: 2,
            grh: Some(grh),
            ..Address::default()
        };
        let header = Header::received(4, &address, 1, 256);
        assert_eq!((header.agent_id(), header.length(), header.pkey_index()), (4, 320, 1));
        assert_eq!(header.address(Qpn::GSI, PKey(0x8001), Gid([9; 16])), address);
    }

    /// Offsets as a C compiler lays out `struct ib_user_mad_hdr`.
    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let grh = Grh {
            remote_gid: Gid([0x11; 16]),
            local_gid: Gid::ZERO,
            traffic_class: 0x22,
            flow_label: 0x0003_4455,
            hop_limit: 0x66,
        };
        let address = Address {
            lid: Lid(0x1234),
            qpn: Qpn(0x00AB_CDEF),
            sl: Sl::from_low_bits(7),
            path_bits: 3,
            grh: Some(grh),
            ..Address::default()
        };
        let mut header = Header::sent(0x0102_0304, &address, 0x0506, 9);
        header.set_timeout_ms(0x0708_090A).set_retries(0x0B0C_0D0E).set_status(110);
        let mut expected = Vec::new();
        for number in [0x0102_0304_u32, 110, 0x0708_090A, 0x0B0C_0D0E, 0] {
            expected.extend(number.to_ne_bytes());
        }
        expected.extend([0x00, 0xAB, 0xCD, 0xEF, 0x80, 0x01, 0x00, 0x00, 0x12, 0x34, 7, 3]);
        expected.extend([1, 9, 0x66, 0x22]);
        expected.extend([0x11; 16]);
        expected.extend([0x00, 0x03, 0x44, 0x55]);
        expected.extend(0x0506_u16.to_ne_bytes());
        expected.extend([0; 6]);
        assert_eq!(header.0.to_vec(), expected);
        let near = address.grh.map(|_| Gid::ZERO).unwrap_or_default();
        assert_eq!(header.address(Qpn::GSI, PKey::DEFAULT_FULL, near), address);
    }

    #[test]
    fn without_a_grh_there_is_none_in_the_address() {
        let mut header = Header::ZERO;
        header.set_grh(Some(&Grh::default())).set_grh(None);
        assert_eq!(header.address(Qpn::GSI, PKey::DEFAULT_FULL, Gid::ZERO).grh, None);
    }
}
