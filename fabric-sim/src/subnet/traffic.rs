//! Traffic counters of ports.

/// Length of a MAD on the wire, in words of 4 bytes.
const MAD_WORDS: u64 = 72;

/// Counters of one port, saturating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) xmit_words: u64,
    pub(crate) rcv_words: u64,
    pub(crate) xmit_packets: u64,
    pub(crate) rcv_packets: u64,
    pub(crate) xmit_discards: u16,
    pub(crate) rcv_errors: u16,
    pub(crate) rcv_switch_relay_errors: u16,
    pub(crate) link_downed: u8,
}

impl Traffic {
    #[inline]
    pub(crate) fn sent(&mut self) {
        self.xmit_packets = self.xmit_packets.saturating_add(1);
        self.xmit_words = self.xmit_words.saturating_add(MAD_WORDS);
    }

    #[inline]
    pub(crate) fn received(&mut self) {
        self.rcv_packets = self.rcv_packets.saturating_add(1);
        self.rcv_words = self.rcv_words.saturating_add(MAD_WORDS);
    }

    /// Adds the counters of another port, for a request that selects all ports.
    pub(crate) fn add(&mut self, other: &Self) {
        self.xmit_words = self.xmit_words.saturating_add(other.xmit_words);
        self.rcv_words = self.rcv_words.saturating_add(other.rcv_words);
        self.xmit_packets = self.xmit_packets.saturating_add(other.xmit_packets);
        self.rcv_packets = self.rcv_packets.saturating_add(other.rcv_packets);
        self.xmit_discards = self.xmit_discards.saturating_add(other.xmit_discards);
        self.rcv_errors = self.rcv_errors.saturating_add(other.rcv_errors);
        self.rcv_switch_relay_errors =
            self.rcv_switch_relay_errors.saturating_add(other.rcv_switch_relay_errors);
        self.link_downed = self.link_downed.saturating_add(other.link_downed);
    }
}
