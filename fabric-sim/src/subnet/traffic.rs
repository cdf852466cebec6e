//! Counters of ports: what they are called, what forwarding counts, and what only faults count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{PortIndex, Subnet};

/// Length of a MAD on the wire, in words of 4 bytes.
const MAD_WORDS: u64 = 72;

/// A counter of a port that counts up by itself.
struct Rate {
    counter: PortCounter,
    per_second: f64,
    /// Counts up to this time are in the counter.
    counted_until: Instant,
}

/// Counters that forwarding increases, saturating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) xmit_words: u64,
    pub(crate) rcv_words: u64,
    pub(crate) xmit_packets: u64,
    pub(crate) rcv_packets: u64,
    pub(crate) xmit_discards: u32,
    pub(crate) rcv_errors: u32,
    pub(crate) rcv_switch_relay_errors: u32,
    pub(crate) link_downed: u32,
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
}

macro_rules! port_counters {
    ($($name:ident $text:literal,)*) => {
        /// A counter of a port, under the specification's name (IBA 16.1).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are the specification's")]
        #[non_exhaustive]
        pub enum PortCounter {
            $($name,)*
        }

        impl PortCounter {
            /// All counters.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The specification's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

port_counters! {
    PortXmitData "PortXmitData",
    PortRcvData "PortRcvData",
    PortXmitPkts "PortXmitPkts",
    PortRcvPkts "PortRcvPkts",
    PortMulticastXmitPkts "PortMulticastXmitPkts",
    PortMulticastRcvPkts "PortMulticastRcvPkts",
    SymbolErrorCounter "SymbolErrorCounter",
    LinkErrorRecoveryCounter "LinkErrorRecoveryCounter",
    LinkDownedCounter "LinkDownedCounter",
    PortRcvErrors "PortRcvErrors",
    PortRcvRemotePhysicalErrors "PortRcvRemotePhysicalErrors",
    PortRcvSwitchRelayErrors "PortRcvSwitchRelayErrors",
    PortXmitDiscards "PortXmitDiscards",
    PortXmitConstraintErrors "PortXmitConstraintErrors",
    PortRcvConstraintErrors "PortRcvConstraintErrors",
    LocalLinkIntegrityErrors "LocalLinkIntegrityErrors",
    ExcessiveBufferOverrunErrors "ExcessiveBufferOverrunErrors",
    Vl15Dropped "VL15Dropped",
    PortXmitWait "PortXmitWait",
    Qp1Dropped "QP1Dropped",
    PortLocalPhysicalErrors "PortLocalPhysicalErrors",
    PortMalformedPacketErrors "PortMalformedPacketErrors",
    PortBufferOverrunErrors "PortBufferOverrunErrors",
    PortDlidMappingErrors "PortDLIDMappingErrors",
    PortVlMappingErrors "PortVLMappingErrors",
    PortLoopingErrors "PortLoopingErrors",
    PortInactiveDiscards "PortInactiveDiscards",
    PortNeighborMtuDiscards "PortNeighborMTUDiscards",
    PortSwLifetimeLimitDiscards "PortSwLifetimeLimitDiscards",
    PortSwHoqLifetimeLimitDiscards "PortSwHOQLifetimeLimitDiscards",
    PortFecCorrectableBlockCtr "PortFECCorrectableBlockCtr",
    PortFecUncorrectableBlockCtr "PortFECUncorrectableBlockCtr",
    PortFecCorrectedSymbolCtr "PortFECCorrectedSymbolCtr",
}

impl PortCounter {
    /// The counter of this name; capitals and small letters are equal.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|counter| counter.name().eq_ignore_ascii_case(name))
    }
}

/// Counters that forwarding does not touch, of the few ports that have any.
#[derive(Default)]
pub(crate) struct RareCounters {
    by_port: HashMap<PortIndex, [u64; PortCounter::ALL.len()]>,
    rates: HashMap<PortIndex, Vec<Rate>>,
}

impl Subnet {
    /// The value of a counter.
    pub(crate) fn counter(&self, port: PortIndex, counter: PortCounter) -> u64 {
        let traffic = &self[port].traffic;
        match counter {
            PortCounter::PortXmitData => traffic.xmit_words,
            PortCounter::PortRcvData => traffic.rcv_words,
            PortCounter::PortXmitPkts => traffic.xmit_packets,
            PortCounter::PortRcvPkts => traffic.rcv_packets,
            PortCounter::PortXmitDiscards => traffic.xmit_discards.into(),
            PortCounter::PortRcvErrors => traffic.rcv_errors.into(),
            PortCounter::PortRcvSwitchRelayErrors => traffic.rcv_switch_relay_errors.into(),
            PortCounter::LinkDownedCounter => traffic.link_downed.into(),
            rare => self.rare.by_port.get(&port).map_or(0, |counters| counters[rare as usize]),
        }
    }

    /// Sets a counter.
    pub(crate) fn set_counter(&mut self, port: PortIndex, counter: PortCounter, value: u64) {
        let short = u32::try_from(value).unwrap_or(u32::MAX);
        let traffic = &mut self[port].traffic;
        match counter {
            PortCounter::PortXmitData => traffic.xmit_words = value,
            PortCounter::PortRcvData => traffic.rcv_words = value,
            PortCounter::PortXmitPkts => traffic.xmit_packets = value,
            PortCounter::PortRcvPkts => traffic.rcv_packets = value,
            PortCounter::PortXmitDiscards => traffic.xmit_discards = short,
            PortCounter::PortRcvErrors => traffic.rcv_errors = short,
            PortCounter::PortRcvSwitchRelayErrors => traffic.rcv_switch_relay_errors = short,
            PortCounter::LinkDownedCounter => traffic.link_downed = short,
            rare => {
                let counters = &mut self.rare.by_port;
                if value != 0 || counters.contains_key(&port) {
                    let all = counters.entry(port).or_insert([0; PortCounter::ALL.len()]);
                    all[rare as usize] = value;
                }
            }
        }
    }

    /// Increases a counter, which saturates.
    pub(crate) fn count(&mut self, port: PortIndex, counter: PortCounter, by: u64) {
        let value = self.counter(port, counter).saturating_add(by);
        self.set_counter(port, counter, value);
    }

    /// Makes a counter count up by itself from `now` on; a rate of 0 ends this.
    pub(crate) fn set_rate(
        &mut self,
        now: Instant,
        port: PortIndex,
        counter: PortCounter,
        per_second: f64,
    ) {
        self.accrue(now, port);
        let rates = self.rare.rates.entry(port).or_default();
        rates.retain(|rate| rate.counter != counter);
        if per_second > 0.0 {
            rates.push(Rate { counter, per_second, counted_until: now });
        } else if rates.is_empty() {
            self.rare.rates.remove(&port);
        }
    }

    /// Brings the counters of a port that count up by themselves up to date.
    pub(crate) fn accrue(&mut self, now: Instant, port: PortIndex) {
        let Some(mut rates) = self.rare.rates.remove(&port) else { return };
        for rate in &mut rates {
            let elapsed = now.saturating_duration_since(rate.counted_until).as_secs_f64();
            let whole = (elapsed * rate.per_second).floor();
            if whole >= 1.0 {
                rate.counted_until += Duration::from_secs_f64(whole / rate.per_second);
                self.count(port, rate.counter, whole as u64);
            }
        }
        self.rare.rates.insert(port, rates);
    }

    /// Sets all counters of a port to 0, as a power cycle does. Rates continue.
    pub(crate) fn clear_counters(&mut self, port: PortIndex) {
        self[port].traffic = Traffic::default();
        self.rare.by_port.remove(&port);
    }
}
