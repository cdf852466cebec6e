//! The keys of `opensm.conf` that have an effect here: type, default, range and meaning of each.

use std::ops::RangeInclusive;

use super::qos_tables::{SlToVl, VlArb};

use ib_mad::types::{Guid, SUBNET_PREFIX_DEFAULT};

/// Most SMPs ever on the wire at once; `max_wire_smps 0`, OpenSM's "no limit", means this.
pub const MAX_WIRE_SMPS_LIMIT: u32 = 4096;

/// Where OpenSM and we look for a QoS policy if no other file is named.
pub(super) const DEFAULT_QOS_POLICY_FILE: &str = "/etc/opensm/qos-policy.conf";
/// Where OpenSM and we look for partitions if no other file is named.
pub(super) const DEFAULT_PARTITION_FILE: &str = "/etc/opensm/partitions.conf";
/// Where OpenSM and we look for prefix routes if no other file is named.
pub(super) const DEFAULT_PREFIX_ROUTES_FILE: &str = "/etc/opensm/prefix-routes.conf";

/// What switches check the P_Keys of at the links of end ports (10.9.3.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartEnforce {
    /// Packets in both directions.
    Both,
    /// Packets into the switch.
    In,
    /// Packets out of the switch.
    Out,
    /// Nothing.
    Off,
}

impl PartEnforce {
    /// Whether packets into the switch are checked.
    pub fn inbound(self) -> bool {
        matches!(self, Self::Both | Self::In)
    }

    /// Whether packets out of the switch are checked.
    pub fn outbound(self) -> bool {
        matches!(self, Self::Both | Self::Out)
    }
}

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not of the key's type.
    #[error("{key} takes {expected}, not '{got}'")]
    Malformed {
        /// The key.
        key: &'static str,
        /// What it takes, in words.
        expected: &'static str,
        /// What stood there.
        got: String,
    },
    /// A number out of range.
    #[error("{key} must be {first} to {last}, not {got}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Least allowed value.
        first: u64,
        /// Greatest allowed value.
        last: u64,
        /// What stood there.
        got: u64,
    },
}

/// A type that a setting may have.
pub(super) trait Value: Sized {
    const EXPECTED: &'static str;
    fn parse(text: &str) -> Option<Self>;
    fn render(&self) -> String;
    /// The value as a number to compare with the key's range.
    fn number(&self) -> Option<u64>;
}

/// Reads a number as C's `strtoul` with base 0 does: `0x` hexadecimal, leading 0 octal.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match hex {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(&text[1..], 8).ok(),
        None => text.parse().ok(),
    }
}

macro_rules! integer_value {
    ($($type:ty),*) => {$(
        impl Value for $type {
            const EXPECTED: &'static str = "a number";
            fn parse(text: &str) -> Option<Self> {
                parse_number(text)?.try_into().ok()
            }
            fn render(&self) -> String {
                self.to_string()
            }
            fn number(&self) -> Option<u64> {
                Some(u64::from(*self))
            }
        }
    )*};
}
integer_value!(u8, u16, u32);

/// A number that may be -1 for "not set".
impl Value for i16 {
    const EXPECTED: &'static str = "a number from -1 to 255";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number| (-1..=255).contains(number))
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// 64 bits that are an identifier or a key, written in hexadecimal.
impl Value for u64 {
    const EXPECTED: &'static str = "a 64-bit number such as 0xfe80000000000000";
    fn parse(text: &str) -> Option<Self> {
        parse_number(text)
    }
    fn render(&self) -> String {
        format!("{self:#018x}")
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Value for Guid {
    const EXPECTED: &'static str = "a GUID such as 0x0002c90300000001";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn render(&self) -> String {
        self.to_string()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "TRUE or FALSE";
    fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("true") {
            Some(true)
        } else if text.eq_ignore_ascii_case("false") {
            Some(false)
        } else {
            None
        }
    }
    fn render(&self) -> String {
        if *self { "TRUE" } else { "FALSE" }.to_owned()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Text; OpenSM writes `(null)` for none.
impl Value for Option<String> {
    const EXPECTED: &'static str = "text";
    fn parse(text: &str) -> Option<Self> {
        Some((text != "(null)").then(|| text.to_owned()))
    }
    fn render(&self) -> String {
        self.clone().unwrap_or_else(|| "(null)".to_owned())
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Names of routing engines, separated by commas, all of which OpenSM has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineNames(String);

impl std::ops::Deref for EngineNames {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

/// Routing engines of OpenSM 3.3.24 and later.
const ENGINES: [&str; 11] = [
    "minhop",
    "updn",
    "dnup",
    "file",
    "ftree",
    "lash",
    "dor",
    "torus-2QoS",
    "nue",
    "dfsssp",
    "sssp",
];

/// None is the default, as `none` and `null` are.
impl Value for Option<EngineNames> {
    const EXPECTED: &'static str = "names among minhop, updn, dnup, file, ftree, lash, dor, \
                                    torus-2QoS, nue, dfsssp and sssp, separated by commas";
    fn parse(text: &str) -> Option<Self> {
        if ["none", "null", "(null)"].iter().any(|none| text.eq_ignore_ascii_case(none)) {
            return Some(None);
        }
        let is_known = |name: &str| {
            name.is_empty() || ENGINES.iter().any(|engine| engine.eq_ignore_ascii_case(name))
        };
        let names = text.split(|c: char| c == ',' || c.is_whitespace());
        names.into_iter().all(is_known).then(|| Some(EngineNames(text.to_owned())))
    }
    fn render(&self) -> String {
        self.as_deref().unwrap_or("(null)").to_owned()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Value for PartEnforce {
    const EXPECTED: &'static str = "both, in, out or off";
    fn parse(text: &str) -> Option<Self> {
        match text {
            "both" => Some(Self::Both),
            "in" => Some(Self::In),
            "out" => Some(Self::Out),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
    fn render(&self) -> String {
        match self {
            Self::Both => "both",
            Self::In => "in",
            Self::Out => "out",
            Self::Off => "off",
        }
        .to_owned()
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

fn parse<V: Value>(
    key: &'static str,
    text: &str,
    range: Option<RangeInclusive<u64>>,
) -> Result<V, ValueError> {
    let malformed = || ValueError::Malformed { key, expected: V::EXPECTED, got: text.to_owned() };
    let out_of_range = |range: &RangeInclusive<u64>, got| ValueError::OutOfRange {
        key,
        first: *range.start(),
        last: *range.end(),
        got,
    };
    let Some(value) = V::parse(text) else {
        // A number too large for the type is out of range rather than malformed.
        return Err(match (&range, parse_number(text)) {
            (Some(range), Some(got)) if !range.contains(&got) => out_of_range(range, got),
            _ => malformed(),
        });
    };
    match (&range, value.number()) {
        (Some(range), Some(got)) if !range.contains(&got) => Err(out_of_range(range, got)),
        _ => Ok(value),
    }
}

macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+
        $key:ident: $type:ty = $default:expr $(, $range:expr)?;
    )*) => {
        /// Checked settings of the subnet manager, named as in `opensm.conf`.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {
            $( $(#[doc = $doc])+ pub $key: $type, )*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $( $key: $default, )* }
            }
        }

        impl Settings {
            /// The keys, in the order of the template.
            pub const KEYS: &'static [&'static str] = &[$( stringify!($key), )*];

            /// Sets `key` from text. `Ok(false)` if the key is none of ours.
            pub fn set(&mut self, key: &str, text: &str) -> Result<bool, ValueError> {
                match key {
                    $( stringify!($key) => {
                        let range: Option<RangeInclusive<u64>> = None $( .or(Some($range)) )?;
                        self.$key = parse(stringify!($key), text, range)?;
                    } )*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// The settings as a file that reads back to the same.
            pub fn render(&self) -> String {
                let mut text = String::new();
                $(
                    $( text.push('#'); text.push_str($doc); text.push('\n'); )+
                    text.push_str(concat!(stringify!($key), " "));
                    text.push_str(&self.$key.render());
                    text.push_str("\n\n");
                )*
                text
            }
        }
    };
}

settings! {
    /// GUID of the port to run on; 0 takes the transport's port.
    guid: Guid = Guid(0);
    /// M_Key written to all ports; 0 leaves them unprotected.
    m_key: u64 = 0;
    /// Lease period of the M_Key, seconds; 0 never expires.
    m_key_lease_period: u16 = 0;
    /// Protection level of the M_Key, 0 to 3.
    m_key_protection_level: u8 = 0, 0..=3;
    /// Whether M_Keys of ports behind a link are looked up in guid2mkey by who was there before.
    m_key_lookup: bool = true;
    /// SM_Key that other subnet managers must show.
    sm_key: u64 = 1;
    /// SM_Key that makes a subnet administration request trusted.
    sa_key: u64 = 1;
    /// Whether trusted requests see records of ports that share no partition with the requester.
    sa_trusted_see_all: bool = false;
    /// Subnet prefix, the upper half of every GID.
    subnet_prefix: u64 = SUBNET_PREFIX_DEFAULT;
    /// LID mask control: 2^lmc LIDs a port.
    lmc: u8 = 0, 0..=7;
    /// Whether enhanced switch ports 0 get 2^lmc LIDs too.
    lmc_esp0: bool = false;
    /// Service level of traffic to the SM and SA.
    sm_sl: u8 = 0, 0..=15;
    /// Lifetime of a packet in a switch, code n: 4.096 us * 2^n; 20 or more is for ever.
    packet_life_time: u8 = 0x12, 0..=31;
    /// Packets dropped in a row by a switch-to-switch port before its VL stalls, code.
    vl_stall_count: u8 = 7, 0..=7;
    /// The same for switch ports towards channel adapters and routers.
    leaf_vl_stall_count: u8 = 7, 0..=7;
    /// Lifetime at the head of a queue of a switch-to-switch port, code n: 4.096 us * 2^n.
    head_of_queue_lifetime: u8 = 0x12, 0..=31;
    /// The same for switch ports towards channel adapters and routers.
    leaf_head_of_queue_lifetime: u8 = 0x10, 0..=31;
    /// Most operational VLs, code: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
    max_op_vls: u8 = 5, 1..=5;
    /// Subnet timeout in PortInfo, and lifetime of paths, code n: 4.096 us * 2^n.
    subnet_timeout: u8 = 18, 0..=31;
    /// Threshold of local physical errors.
    local_phy_errors_threshold: u8 = 8, 0..=15;
    /// Threshold of overrun errors.
    overrun_errors_threshold: u8 = 8, 0..=15;
    /// Seconds between light sweeps; 0 sweeps on traps only.
    sweep_interval: u32 = 10;
    /// Whether to give all ports new LIDs at start.
    reassign_lids: bool = false;
    /// Whether every sweep is a heavy one.
    force_heavy_sweep: bool = false;
    /// Whether traps about changes start a sweep.
    sweep_on_trap: bool = true;
    /// Routing engines to try, in order, separated by commas; (null) is minhop.
    routing_engine: Option<EngineNames> = None;
    /// Priority among subnet managers, 0 to 15.
    sm_priority: u8 = 0, 0..=15;
    /// Whether to start not active, and wait for another SM's command to stand by.
    sm_inactive: bool = false;
    /// Whether LIDs of guid2lid count, when taking over, before those that ports hold from the
    /// other SM.
    honor_guid2lid_file: bool = false;
    /// Whether to act as master though another SM is master; for debugging.
    ignore_other_sm: bool = false;
    /// Milliseconds between polls of the master while in standby.
    sminfo_polling_timeout: u32 = 10_000, 1..=u32::MAX as u64;
    /// Polls that may go unanswered before a standby SM takes over.
    polling_retry_number: u32 = 4, 1..=u32::MAX as u64;
    /// File of partitions; (null) is /etc/opensm/partitions.conf.
    partition_config_file: Option<String> = Some(DEFAULT_PARTITION_FILE.to_owned());
    /// Whether QoS is on: the QoS policy and the SLs of partitions count.
    qos: bool = false;
    /// File of the QoS policy, read again with every heavy sweep while QoS is on.
    qos_policy_file: Option<String> = Some(DEFAULT_QOS_POLICY_FILE.to_owned());
    /// File of virtual fabrics, an opafm.xml, read again with every heavy sweep; (null) is none.
    vfabric_config_file: Option<String> = None;
    /// VLs of ports while QoS is on; 0 leaves them to max_op_vls.
    qos_max_vls: u8 = 0, 0..=15;
    /// Limit of the high priority VL arbitration table; -1 is 0, or the common value.
    qos_high_limit: i16 = -1;
    /// VL arbitration table of high priority: VL:weight, separated by commas.
    qos_vlarb_high: Option<VlArb> = None;
    /// VL arbitration table of low priority: VL:weight, separated by commas.
    qos_vlarb_low: Option<VlArb> = None;
    /// VL by SL, 16 numbers separated by commas; 15 drops packets.
    qos_sl2vl: Option<SlToVl> = None;
    /// The same for channel adapters. VLs of ports while QoS is on; 0 leaves them to max_op_vls.
    qos_ca_max_vls: u8 = 0, 0..=15;
    /// The same for channel adapters. Limit of the high priority VL arbitration table; -1 is 0, or the common value.
    qos_ca_high_limit: i16 = -1;
    /// The same for channel adapters. VL arbitration table of high priority: VL:weight, separated by commas.
    qos_ca_vlarb_high: Option<VlArb> = None;
    /// The same for channel adapters. VL arbitration table of low priority: VL:weight, separated by commas.
    qos_ca_vlarb_low: Option<VlArb> = None;
    /// The same for channel adapters. VL by SL, 16 numbers separated by commas; 15 drops packets.
    qos_ca_sl2vl: Option<SlToVl> = None;
    /// The same for switch ports 0. VLs of ports while QoS is on; 0 leaves them to max_op_vls.
    qos_sw0_max_vls: u8 = 0, 0..=15;
    /// The same for switch ports 0. Limit of the high priority VL arbitration table; -1 is 0, or the common value.
    qos_sw0_high_limit: i16 = -1;
    /// The same for switch ports 0. VL arbitration table of high priority: VL:weight, separated by commas.
    qos_sw0_vlarb_high: Option<VlArb> = None;
    /// The same for switch ports 0. VL arbitration table of low priority: VL:weight, separated by commas.
    qos_sw0_vlarb_low: Option<VlArb> = None;
    /// The same for switch ports 0. VL by SL, 16 numbers separated by commas; 15 drops packets.
    qos_sw0_sl2vl: Option<SlToVl> = None;
    /// The same for external switch ports. VLs of ports while QoS is on; 0 leaves them to max_op_vls.
    qos_swe_max_vls: u8 = 0, 0..=15;
    /// The same for external switch ports. Limit of the high priority VL arbitration table; -1 is 0, or the common value.
    qos_swe_high_limit: i16 = -1;
    /// The same for external switch ports. VL arbitration table of high priority: VL:weight, separated by commas.
    qos_swe_vlarb_high: Option<VlArb> = None;
    /// The same for external switch ports. VL arbitration table of low priority: VL:weight, separated by commas.
    qos_swe_vlarb_low: Option<VlArb> = None;
    /// The same for external switch ports. VL by SL, 16 numbers separated by commas; 15 drops packets.
    qos_swe_sl2vl: Option<SlToVl> = None;
    /// The same for routers. VLs of ports while QoS is on; 0 leaves them to max_op_vls.
    qos_rtr_max_vls: u8 = 0, 0..=15;
    /// The same for routers. Limit of the high priority VL arbitration table; -1 is 0, or the common value.
    qos_rtr_high_limit: i16 = -1;
    /// The same for routers. VL arbitration table of high priority: VL:weight, separated by commas.
    qos_rtr_vlarb_high: Option<VlArb> = None;
    /// The same for routers. VL arbitration table of low priority: VL:weight, separated by commas.
    qos_rtr_vlarb_low: Option<VlArb> = None;
    /// The same for routers. VL by SL, 16 numbers separated by commas; 15 drops packets.
    qos_rtr_sl2vl: Option<SlToVl> = None;
    /// Whether switches check no P_Keys at all; the same as part_enforce off.
    no_partition_enforcement: bool = false;
    /// What switches check the P_Keys of at the links of end ports: both, in, out or off.
    part_enforce: PartEnforce = PartEnforce::Both;
    /// Whether a port may have a partition's P_Key as full and as limited member at once.
    allow_both_pkeys: bool = false;
    /// Whether P_Keys keep their places in the tables of ports when others come and go.
    keep_pkey_indexes: bool = true;
    /// File of ways to other subnets; (null) is /etc/opensm/prefix-routes.conf.
    prefix_routes_file: Option<String> = Some(DEFAULT_PREFIX_ROUTES_FILE.to_owned());
    /// SMPs on the wire at once, up to 4096; 0 means 4096. OpenSM's default is 4; switches answer
    /// in hardware, so that more in flight is what makes a large fabric come up in seconds.
    max_wire_smps: u32 = 64;
    /// Milliseconds to wait for the answer to an SMP.
    transaction_timeout: u32 = 200, 1..=3_600_000;
    /// Times an unanswered SMP is sent again.
    transaction_retries: u32 = 3, 0..=100;
    /// Whether files in the state directory are forced to disk.
    fsync_high_avail_files: bool = true;
    /// Whether IPv6 solicited-node groups that differ in their last 24 bits only share an MLID.
    consolidate_ipv6_snm_req: bool = false;
    /// Whether the components of a join must agree with the group.
    mcgroup_join_validation: bool = true;
    /// Whether MGIDs asked for are checked, those of IPoIB against their broadcast group.
    ipoib_mcgroup_creation_validation: bool = true;
    /// Byte of the alias GUIDs that the SA chooses, by which a site tells its subnets apart.
    sm_assigned_guid: u8 = 0;
    /// What the registry begins with if there is none yet: an opensm-sa.dump; (null) is nothing.
    sa_db_file: Option<String> = None;
    /// Whether opensm-sa.dump is written when what clients registered has changed.
    sa_db_dump: bool = false;
    /// Directory of opensm-sa.dump; (null) is the state directory.
    dump_files_dir: Option<String> = None;
    /// Log bits: 1 errors, 2 information, 4 verbose, 8 and more debugging.
    log_flags: u8 = 3;
    /// Log file, beside standard output; (null) is none.
    log_file: Option<String> = None;
    /// Megabytes at which the log file is emptied and begun anew; 0 is no limit.
    log_max_size: u32 = 0;
    /// What lines of the log file and of the system's log begin with; (null) is nothing.
    log_prefix: Option<String> = None;
    /// File of log flags by module, a module and its flags a line; (null) is none.
    per_module_logging_file: Option<String> = Some("/etc/opensm/per-module-logging.conf".to_owned());
    /// Whether to run in the background.
    daemon: bool = false;
    /// Whether the log file is appended to, rather than started anew.
    accum_log_file: bool = true;
    /// Whether clients are not asked to register again when the SM starts.
    no_clients_rereg: bool = false;
    /// Whether what cannot be repaired ends the program, rather than being logged.
    exit_on_fatal: bool = true;
}

impl Settings {
    /// What switches are to check, by either key.
    pub fn enforcement(&self) -> PartEnforce {
        if self.no_partition_enforcement { PartEnforce::Off } else { self.part_enforce }
    }

    /// SMPs on the wire at once, with 0 taken as the limit.
    pub fn window(&self) -> usize {
        match self.max_wire_smps {
            0 => MAX_WIRE_SMPS_LIMIT as usize,
            n => n.min(MAX_WIRE_SMPS_LIMIT) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_c_reads_them() {
        let mut settings = Settings::default();
        for (text, value) in [("0x12", 18), ("022", 18), ("18", 18), ("0", 0)] {
            assert_eq!(settings.set("subnet_timeout", text), Ok(true));
            assert_eq!(settings.subnet_timeout, value, "{text}");
        }
        assert_eq!(settings.set("routing_engine", "(null)"), Ok(true));
        assert_eq!(settings.routing_engine, None);
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let mut settings = Settings::default();
        let error = settings.set("lmc", "8").unwrap_err();
        assert_eq!(error.to_string(), "lmc must be 0 to 7, not 8");
        let error = settings.set("lmc", "300").unwrap_err();
        assert_eq!(error.to_string(), "lmc must be 0 to 7, not 300");
        let error = settings.set("reassign_lids", "yes").unwrap_err();
        assert_eq!(error.to_string(), "reassign_lids takes TRUE or FALSE, not 'yes'");
        assert_eq!(settings, Settings::default(), "a refused value changes nothing");
    }
}
