//! The header that libibumad puts before a MAD (`struct ib_user_mad`), and the system's error
//! numbers that its calls fail with. Layouts only.

use ib_mad::transport::{Address, Grh};
use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};

/// Length of the header.
pub const HEADER_LEN: usize = 64;

/// A system error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// `struct ib_user_mad` without its MAD, as bytes: what programs hand over may be anything.
///
/// ```text
///  0 agent_id (4)   4 status (4)     8 timeout_ms (4)  12 retries (4)   16 length (4)
/// 20 qpn (4, be)   24 qkey (4, be)  28 lid (2, be)     30 sl            31 path_bits
/// 32 grh_present   33 gid_index     34 hop_limit       35 traffic_class
/// 36 gid (16)      52 flow_label (4, be)               56 pkey_index (2) 58 reserved (6)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub [u8; HEADER_LEN]);

/// Declares a getter and a setter of an integer at a place of the header.
macro_rules! field {
    ($(#[$doc:meta])* $get:ident, $set:ident: $int:ty, $at:literal, $from:ident, $to:ident) => {
        $(#[$doc])*
        pub fn $get(&self) -> $int {
            <$int>::$from(self.array($at))
        }
        #[doc = concat!("Sets what [`", stringify!($get), "`](Self::", stringify!($get), ") yields.")]
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
        /// The agent that sends or has received.
        agent_id, set_agent_id: u32, 0, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// 0, or the error number of a send that comes back.
        status, set_status: u32, 4, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// How long a send waits for its answer, each time; 0: there will be none. Milliseconds.
        timeout_ms, set_timeout_ms: u32, 8, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// How often a send is repeated.
        retries, set_retries: u32, 12, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// Of what is received: bytes, header and MAD.
        length, set_length: u32, 16, from_ne_bytes, to_ne_bytes
    }
    field! {
        /// The far end's QP.
        qpn, set_qpn: u32, 20, from_be_bytes, to_be_bytes
    }
    field! {
        /// The far end's Q_Key.
        qkey, set_qkey: u32, 24, from_be_bytes, to_be_bytes
    }
    field! {
        /// The far end's LID.
        lid, set_lid: u16, 28, from_be_bytes, to_be_bytes
    }
    field! {
        /// Flow label of the GRH.
        flow_label, set_flow_label: u32, 52, from_be_bytes, to_be_bytes
    }
    field! {
        /// Index into our port's P_Key table.
        pkey_index, set_pkey_index: u16, 56, from_ne_bytes, to_ne_bytes
    }

    /// Service level.
    pub fn sl(&self) -> u8 {
        self.0[30]
    }

    /// Low bits of our LID.
    pub fn path_bits(&self) -> u8 {
        self.0[31]
    }

    /// Whether there is a GRH.
    pub fn grh_present(&self) -> bool {
        self.0[32] != 0
    }

    /// Index into our port's GID table.
    pub fn gid_index(&self) -> u8 {
        self.0[33]
    }

    /// Writes service level and path bits.
    pub fn set_sl_and_path_bits(&mut self, sl: u8, path_bits: u8) -> &mut Self {
        (self.0[30], self.0[31]) = (sl, path_bits);
        self
    }

    /// Writes the fields of a GRH, or that there is none.
    pub fn set_grh(&mut self, grh: Option<&Grh>) -> &mut Self {
        self.0[32] = u8::from(grh.is_some());
        if let Some(grh) = grh {
            (self.0[33], self.0[34], self.0[35]) = (0, grh.hop_limit, grh.traffic_class);
            self.0[36..52].copy_from_slice(&grh.remote_gid.0);
            self.set_flow_label(grh.flow_label);
        }
        self
    }

    /// Whom a send goes to, from `local_qpn` and with `pkey`.
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
            ..Address::default()
        }
    }

    /// The header of what came from `address`.
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

    #[test]
    fn without_a_grh_there_is_none_in_the_address() {
        let mut header = Header::ZERO;
        header.set_grh(Some(&Grh::default())).set_grh(None);
        assert_eq!(header.address(Qpn::GSI, PKey::DEFAULT_FULL, Gid::ZERO).grh, None);
    }
}
