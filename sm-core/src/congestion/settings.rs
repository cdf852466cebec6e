//! What the operator wants, as attributes.

use std::time::Duration;

use ib_mad::types::Sl;
use ib_mad::wire::congestion::{
    CCT_BLOCK_LEN, CaCongestionEntryRepr, CaCongestionSettingRepr, CongestionControlTableRepr,
    SwitchCongestionSettingRepr, SwitchPortCongestionElementRepr, control_map,
};
use sm_config::Settings;

/// Settings, as in `opensm.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionSettings {
    /// Whether congestion control is set up.
    pub is_on: bool,
    /// The CC_Key that requests show.
    pub key: u64,
    /// The lease period if the key is written to nodes and protected; `None` if it is only shown.
    pub protection: Option<u16>,
    /// Time between two readings of logs.
    pub interval: Duration,
    /// Requests outstanding at once, at most [`OUTSTANDING_MAX`](super::OUTSTANDING_MAX).
    pub outstanding_max: usize,
    /// How long an answer is awaited before a request is repeated.
    pub timeout: Duration,
    /// How often.
    pub retries: u32,
    /// Service level of requests.
    pub sl: Sl,
    /// The setting of switches.
    pub switch: SwitchCongestionSettingRepr,
    /// The setting of switch ports to hosts, if it is another.
    pub host_port: Option<SwitchPortCongestionElementRepr>,
    /// The setting of channel adapters.
    pub ca: CaCongestionSettingRepr,
    /// The congestion control table of channel adapters: block by block, at least one.
    pub table: Vec<CongestionControlTableRepr>,
}

impl CongestionSettings {
    /// The settings of `opensm.conf`. Where OpenSM has the key, the attributes are those that it
    /// would write.
    pub fn of(settings: &Settings) -> Self {
        // A protected key of 0 would protect nothing.
        let protects = settings.cc_key_protect && settings.cc_key != 0;
        Self {
            is_on: settings.congestion_control,
            key: settings.cc_key,
            protection: protects.then_some(settings.cc_key_lease_period),
            interval: Duration::from_secs(settings.cc_log_interval_s.into()),
            outstanding_max: settings.cc_max_outstanding_mads as usize,
            timeout: Duration::from_millis(settings.transaction_timeout.into()),
            retries: settings.transaction_retries,
            sl: Sl::from_low_bits(settings.sm_sl.into()),
            switch: SwitchCongestionSettingRepr {
                control_map: settings.cc_sw_cong_setting_control_map,
                victim_mask: settings.cc_sw_cong_setting_victim_mask.bytes(),
                credit_mask: settings.cc_sw_cong_setting_credit_mask.bytes(),
                threshold: settings.cc_sw_cong_setting_threshold & 0xF,
                packet_size: settings.cc_sw_cong_setting_packet_size,
                cs_threshold: settings.cc_sw_cong_setting_credit_starvation_threshold & 0xF,
                cs_return_delay: settings.cc_sw_cong_setting_credit_starvation_return_delay.code(),
                marking_rate: settings.cc_sw_cong_setting_marking_rate,
            },
            host_port: settings.cc_host_port_marking.map(|marking| {
                SwitchPortCongestionElementRepr {
                    valid: true,
                    control_type: false,
                    threshold: marking.threshold,
                    packet_size: marking.packet_size,
                    marking_rate: marking.marking_rate,
                }
            }),
            ca: ca_setting(settings),
            table: table(settings),
        }
    }
}

fn ca_setting(settings: &Settings) -> CaCongestionSettingRepr {
    let timers = settings.cc_ca_cong_setting_ccti_timer.numbers();
    let increases = settings.cc_ca_cong_setting_ccti_increase.numbers();
    let thresholds = settings.cc_ca_cong_setting_trigger_threshold.numbers();
    let least = settings.cc_ca_cong_setting_ccti_min.numbers();
    let mut entries = [0; 128];
    for (sl, place) in entries.chunks_exact_mut(8).enumerate() {
        // The keys accept numbers of the fields' width.
        let entry = CaCongestionEntryRepr {
            ccti_timer: timers[sl],
            ccti_increase: increases[sl] as u8,
            trigger_threshold: thresholds[sl] as u8,
            ccti_min: least[sl] as u8,
        };
        place.copy_from_slice(&entry.to_bytes());
    }
    CaCongestionSettingRepr {
        port_control: settings.cc_ca_cong_setting_port_control,
        control_map: settings.cc_ca_cong_setting_control_map,
        entries,
    }
}

/// The table in blocks. As OpenSM's, a table without entries is one block that sets the limit to 0,
/// and so is one with a single entry, which is written as 0.
fn table(settings: &Settings) -> Vec<CongestionControlTableRepr> {
    let codes: Vec<u16> = settings.cc_cct.iter().flat_map(|table| table.codes()).collect();
    let ccti_limit = codes.len().saturating_sub(1) as u16;
    if ccti_limit == 0 {
        return vec![CongestionControlTableRepr { ccti_limit, entries: [0; _] }];
    }
    let blocks = codes.chunks(CCT_BLOCK_LEN).map(|block| {
        let mut entries = [0; CCT_BLOCK_LEN * 2];
        for (place, code) in entries.chunks_exact_mut(2).zip(block) {
            place.copy_from_slice(&code.to_be_bytes());
        }
        CongestionControlTableRepr { ccti_limit, entries }
    });
    blocks.collect()
}

/// Whether a switch has what is wanted, of the fields that are to be set.
pub(super) fn switch_has(
    has: &SwitchCongestionSettingRepr,
    wanted: &SwitchCongestionSettingRepr,
) -> bool {
    let differs = |bit: u32, same: bool| wanted.control_map & bit != 0 && !same;
    !(differs(control_map::VICTIM_MASK, has.victim_mask == wanted.victim_mask)
        || differs(control_map::CREDIT_MASK, has.credit_mask == wanted.credit_mask)
        || differs(
            control_map::THRESHOLD,
            (has.threshold, has.packet_size) == (wanted.threshold, wanted.packet_size),
        )
        || differs(
            control_map::CREDIT_STARVATION,
            (has.cs_threshold, has.cs_return_delay)
                == (wanted.cs_threshold, wanted.cs_return_delay),
        )
        || differs(control_map::MARKING_RATE, has.marking_rate == wanted.marking_rate))
}

/// Whether an adapter has what is wanted, of the SLs that are to be set.
pub(super) fn ca_has(has: &CaCongestionSettingRepr, wanted: &CaCongestionSettingRepr) -> bool {
    let mut entries = has.entries.chunks_exact(8).zip(wanted.entries.chunks_exact(8)).enumerate();
    has.port_control == wanted.port_control
        && entries.all(|(sl, (has, wants))| wanted.control_map & 1 << sl == 0 || has == wants)
}

/// Whether an adapter has the wanted block of the table: the limit, and the entries up to it.
pub(super) fn table_has(
    block: u8,
    has: &CongestionControlTableRepr,
    wanted: &CongestionControlTableRepr,
) -> bool {
    let first = usize::from(block) * CCT_BLOCK_LEN;
    let used = (usize::from(wanted.ccti_limit) + 1).saturating_sub(first).min(CCT_BLOCK_LEN);
    // The only entry of a table whose limit is 0 means no delay, whichever it is.
    let used = if wanted.ccti_limit == 0 { 0 } else { used };
    has.ccti_limit == wanted.ccti_limit && has.entries[..used * 2] == wanted.entries[..used * 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(lines: &[(&str, &str)]) -> CongestionSettings {
        let mut settings = Settings::default();
        for (key, value) in lines {
            assert_eq!(settings.set(key, value), Ok(true), "{key}");
        }
        CongestionSettings::of(&settings)
    }

    /// IBA A10.4.3.6 to A10.4.3.9.
    #[test]
    fn keys_become_attributes() {
        let set = settings(&[
            ("cc_sw_cong_setting_control_map", "0x15"),
            ("cc_sw_cong_setting_victim_mask", "0x102"),
            ("cc_sw_cong_setting_threshold", "0xf"),
            ("cc_sw_cong_setting_credit_starvation_return_delay", "1:2"),
            ("cc_ca_cong_setting_control_map", "0x8"),
            ("cc_ca_cong_setting_ccti_timer", "3 20"),
            ("cc_ca_cong_setting_ccti_min", "3 1"),
            ("cc_cct", "0:1,1:2"),
        ]);
        let switch = set.switch.to_bytes();
        assert_eq!((switch[3], &switch[34..36], switch[68]), (0x15, &[1, 2][..], 0xF0));
        assert_eq!(switch[72..74], [0x40, 2]);
        let ca = set.ca.to_bytes();
        assert_eq!((ca[3], &ca[28..33]), (8, &[0, 20, 0, 0, 1][..]));
        assert_eq!(set.table[0].to_bytes()[..8], [0, 1, 0, 0, 0, 1, 0x40, 2]);
    }

    #[test]
    fn a_table_is_cut_into_blocks() {
        let long: Vec<String> = (0..65).map(|n| format!("0:{n}")).collect();
        let set = settings(&[("cc_cct", &long.join(","))]);
        assert_eq!((set.table.len(), set.table[1].ccti_limit), (2, 64));
        assert_eq!(set.table[1].entries[..4], [0, 64, 0, 0]);
        let mut other = set.table[1].clone();
        other.entries[2] = 1;
        assert!(table_has(1, &other, &set.table[1]), "beyond the limit, entries have no effect");
        other.entries[1] = 1;
        assert!(!table_has(1, &other, &set.table[1]));
        assert_eq!(settings(&[]).table.len(), 1);
    }

    #[test]
    fn what_is_not_to_be_set_may_differ() {
        let set = settings(&[
            ("cc_sw_cong_setting_control_map", "4"),
            ("cc_sw_cong_setting_threshold", "2"),
            ("cc_ca_cong_setting_control_map", "1"),
        ]);
        let mut switch = set.switch.clone();
        (switch.marking_rate, switch.control_map) = (9, 0x1F);
        assert!(switch_has(&switch, &set.switch));
        switch.threshold = 3;
        assert!(!switch_has(&switch, &set.switch));
        let mut ca = set.ca.clone();
        ca.entries[8] = 1;
        assert!(ca_has(&ca, &set.ca));
        ca.entries[0] = 1;
        assert!(!ca_has(&ca, &set.ca));
    }

    #[test]
    fn a_key_of_0_is_never_written() {
        assert_eq!(settings(&[("cc_key_protect", "TRUE")]).protection, None);
        let lines = [("cc_key_protect", "TRUE"), ("cc_key", "7"), ("cc_key_lease_period", "30")];
        assert_eq!(settings(&lines).protection, Some(30));
    }
}
