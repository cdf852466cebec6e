//! Checks settings against each other and against the values that OpenSM accepts; replaces invalid
//! ones as OpenSM does.

use super::settings::Settings;

/// Most SMPs on the wire that OpenSM takes.
const WIRE_SMPS_MAX: u32 = i32::MAX as u32;
/// Rates as codes of PathRecords (IBA 15.2.5.16): 2.5, 300 and 1,200 Gb/s, and no limit.
const RATE_MIN: u8 = 2;
const RATE_300: u8 = 18;
const RATE_MAX: u8 = 24;
const RATE_ANY: u8 = 63;

/// Replaces invalid values. Returns a log line for each replacement.
pub fn verify(s: &mut Settings) -> Vec<String> {
    let mut replaced = Vec::new();
    let default = Settings::default();
    let mut replace = |key: &str, s: &Settings, with: &dyn std::fmt::Display, why: &str| {
        replaced.push(format!("{key} {} {why}; {with} is used", s.lines(key).join(", ")));
    };
    if (8..=14).contains(&s.force_link_speed) {
        replace("force_link_speed", s, &default.force_link_speed, "is not 0 to 7 or 15");
        s.force_link_speed = default.force_link_speed;
    }
    if (16..30).contains(&s.force_link_speed_ext) {
        let instead = default.force_link_speed_ext;
        replace("force_link_speed_ext", s, &instead, "is not 0 to 15, 30 or 31");
        s.force_link_speed_ext = instead;
    }
    if (32..255).contains(&s.force_link_width) {
        replace("force_link_width", s, &default.force_link_width, "is not 0 to 31 or 255");
        s.force_link_width = default.force_link_width;
    }
    if s.max_wire_smps > WIRE_SMPS_MAX {
        replace("max_wire_smps", s, &default.max_wire_smps, "is more than 2147483647");
        s.max_wire_smps = default.max_wire_smps;
    }
    if s.max_wire_smps2 > WIRE_SMPS_MAX {
        replace("max_wire_smps2", s, &s.max_wire_smps, "is more than 2147483647");
        s.max_wire_smps2 = s.max_wire_smps;
    }
    if s.long_transaction_timeout < s.transaction_timeout {
        let instead = s.transaction_timeout;
        if s.long_transaction_timeout != default.long_transaction_timeout {
            replace("long_transaction_timeout", s, &instead, "is less than transaction_timeout");
        }
        s.long_transaction_timeout = instead;
    }
    let console = s.console.as_deref().unwrap_or("off");
    if !["off", "local", "loopback", "socket"].contains(&console) {
        replace("console", s, &"off", "is not off, local, loopback or socket");
        s.console = default.console;
    }
    s.part_enforce = s.enforcement();
    if s.m_key_protection_level > 0 && s.m_key_lease_period > 0 {
        let lease = u32::from(s.m_key_lease_period);
        if s.sweep_interval == 0 {
            replace("sweep_interval", s, &(lease - 1), "would let M_Key leases expire");
            s.sweep_interval = lease - 1;
        }
        if s.sweep_interval >= lease {
            let longer = u16::try_from(s.sweep_interval + 1).unwrap_or(u16::MAX);
            replace("m_key_lease_period", s, &longer, "must be longer than sweep_interval");
            s.m_key_lease_period = longer;
        }
    }
    if s.use_original_extended_sa_rates_only && s.max_rate_enum > RATE_300 {
        if s.max_rate_enum != RATE_ANY {
            let why = "exceeds the limit of use_original_extended_sa_rates_only";
            replace("max_rate_enum", s, &RATE_300, why);
        }
        s.max_rate_enum = RATE_300;
    }
    if !(RATE_MIN..=RATE_MAX).contains(&s.max_rate_enum) && s.max_rate_enum != RATE_ANY {
        replace("max_rate_enum", s, &RATE_ANY, "is not a rate code");
        s.max_rate_enum = RATE_ANY;
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_replaced_and_reported() {
        let default = Settings::default;
        assert_eq!(verify(&mut default()), Vec::<String>::new());
        let mut s = Settings {
            m_key_protection_level: 2,
            m_key_lease_period: 10,
            sweep_interval: 60,
            force_link_speed: 9,
            force_link_speed_ext: 16,
            force_link_width: 32,
            long_transaction_timeout: 100,
            console: Some("remote".to_owned()),
            max_rate_enum: 30,
            ..default()
        };
        let replaced = verify(&mut s);
        assert_eq!((s.m_key_lease_period, s.long_transaction_timeout), (61, 200));
        assert_eq!((s.force_link_speed, s.force_link_speed_ext, s.force_link_width), (15, 31, 255));
        assert_eq!((s.console.as_deref(), s.max_rate_enum, replaced.len()), (Some("off"), 63, 7));
        assert_eq!(replaced[0], "force_link_speed 9 is not 0 to 7 or 15; 15 is used");
        assert_eq!(verify(&mut s), Vec::<String>::new(), "once is enough");
    }

    #[test]
    fn leases_of_an_m_key_outlive_the_pause_between_sweeps() {
        let of = |interval| Settings {
            m_key_protection_level: 1,
            m_key_lease_period: 30,
            sweep_interval: interval,
            ..Settings::default()
        };
        for (interval, wanted) in [(0, (29, 30)), (29, (29, 30)), (30, (30, 31))] {
            let mut s = of(interval);
            verify(&mut s);
            assert_eq!((s.sweep_interval, s.m_key_lease_period), wanted, "{interval}");
        }
    }

    #[test]
    fn original_rates_are_a_limit_on_rates() {
        let mut s = Settings { use_original_extended_sa_rates_only: true, ..Settings::default() };
        assert_eq!((verify(&mut s).len(), s.max_rate_enum), (0, 18));
    }
}
