//! Options of OpenSM that are keys of its configuration file, too, by their names and letters.

use clap::Args;

use super::error::OptionError;
use sm_config::Settings;
use sm_config::ValueError;

/// Options that set one key each. If the key has no effect, neither has the option, which is
/// reported at start.
#[derive(Args, Clone, Debug, Default)]
pub struct OpenSmOptions {
    /// File of root switches' GUIDs (updn, ftree).
    #[arg(short = 'a', long = "root_guid_file", value_name = "FILE", help_heading = ROUTING)]
    root_guid_file: Option<String>,
    /// File of compute nodes' port GUIDs (ftree, sssp).
    #[arg(short = 'u', long = "cn_guid_file", value_name = "FILE", help_heading = ROUTING)]
    cn_guid_file: Option<String>,
    /// File of I/O nodes' port GUIDs (ftree, sssp).
    #[arg(short = 'G', long = "io_guid_file", value_name = "FILE", help_heading = ROUTING)]
    io_guid_file: Option<String>,
    /// How many hops in the wrong direction ftree's routes to I/O nodes may take.
    #[arg(short = 'H', long = "max_reverse_hops", value_name = "COUNT", help_heading = ROUTING)]
    max_reverse_hops: Option<String>,
    /// Also route between root switches (updn, ftree).
    #[arg(short = 'z', long = "connect_roots", help_heading = ROUTING)]
    connect_roots: bool,
    /// File of numbers that order switches in place of their GUIDs.
    #[arg(short = 'm', long = "ids_guid_file", value_name = "FILE", help_heading = ROUTING)]
    ids_guid_file: Option<String>,
    /// File of port GUIDs to be routed first, in this order.
    #[arg(short = 'X', long = "guid_routing_order_file", value_name = "FILE",
          help_heading = ROUTING)]
    guid_routing_order_file: Option<String>,
    /// Do not scatter ports of that file.
    #[arg(long = "guid_routing_order_no_scatter", help_heading = ROUTING)]
    guid_routing_order_no_scatter: bool,
    /// File of switch GUIDs, ports and weights, as many hops as a port counts for.
    #[arg(short = 'w', long = "hop_weights_file", value_name = "FILE", help_heading = ROUTING)]
    hop_weights_file: Option<String>,
    /// File of switch GUIDs and their ports in the order in which they are preferred.
    #[arg(short = 'O', long = "port_search_ordering_file", alias = "dimn_ports_file",
          value_name = "FILE", help_heading = ROUTING)]
    port_search_ordering_file: Option<String>,
    /// File of switch GUIDs and ports that balancing does not count.
    #[arg(short = 'i', long = "ignore_guids", value_name = "FILE", help_heading = ROUTING)]
    ignore_guids: Option<String>,
    /// File of forwarding tables for the routing engine file.
    #[arg(short = 'U', long = "lfts_file", value_name = "FILE", help_heading = ROUTING)]
    lfts_file: Option<String>,
    /// File of hops by which the routing engine file routes if it has no tables.
    #[arg(short = 'M', long = "lid_matrix_file", value_name = "FILE", help_heading = ROUTING)]
    lid_matrix_file: Option<String>,
    /// File of the torus for torus-2QoS [default: /etc/opensm/torus-2QoS.conf].
    #[arg(long = "torus_config", value_name = "FILE", help_heading = ROUTING)]
    torus_config: Option<String>,
    /// Do not fall back to minhop when no engine of -R can route; the same as no_fallback there.
    #[arg(long = "no_default_routing", help_heading = ROUTING)]
    no_default_routing: bool,
    /// Refused: adaptive routing is configured in the switches, with their vendor's tools.
    #[arg(long = "ar", hide = true)]
    adaptive_routing: bool,
    /// Refused, like --ar.
    #[arg(long = "ar_config_file", hide = true)]
    ar_config_file: Option<String>,
    /// Have lash look for a mesh to order switches by.
    #[arg(long = "do_mesh_analysis", help_heading = ROUTING)]
    do_mesh_analysis: bool,
    /// First VL of lash.
    #[arg(long = "lash_start_vl", value_name = "VL", help_heading = ROUTING)]
    lash_start_vl: Option<String>,
    /// Maximum number of VLs for nue.
    #[arg(long = "nue_max_num_vls", value_name = "COUNT", help_heading = ROUTING)]
    nue_max_num_vls: Option<String>,
    /// Assign ports so that the tables of switches do not align.
    #[arg(long = "port-shifting", help_heading = ROUTING)]
    port_shifting: bool,
    /// Choose ports at random among equals, by this seed.
    #[arg(long = "scatter-ports", value_name = "SEED", help_heading = ROUTING)]
    scatter_ports: Option<String>,
    /// Keep routes when a switch leaves and returns (no effect: always on).
    #[arg(short = 'A', long = "ucast_cache", help_heading = ROUTING)]
    ucast_cache: bool,
    /// Service level of traffic to the SM and SA.
    #[arg(long = "sm_sl", value_name = "SL", help_heading = OPENSM)]
    sm_sl: Option<String>,
    /// SM_Key that other subnet managers must show, in hexadecimal.
    #[arg(short = 'k', long = "smkey", value_name = "KEY", help_heading = OPENSM)]
    smkey: Option<String>,
    /// Do not exit on a fatal error, such as a duplicate GUID.
    #[arg(short = 'y', long = "stay_on_fatal", help_heading = OPENSM)]
    stay_on_fatal: bool,
    /// Let IPv6 solicited-node groups that differ only in their last 24 bits share an MLID.
    #[arg(long = "consolidate_ipv6_snm_req", help_heading = OPENSM)]
    consolidate_ipv6_snm_req: bool,
    /// Directory of dump files.
    #[arg(long = "dump_files_dir", value_name = "DIR", help_heading = OPENSM)]
    dump_files_dir: Option<String>,
    /// Debug option: 0 ignores other subnet managers, 1 handles SA queries in one thread, 2 flushes
    /// the log, 3 turns multicast off. Repeatable.
    #[arg(short = 'd', long = "debug", value_name = "NUMBER", help_heading = OPENSM)]
    debug: Vec<String>,
    /// Console: off, local (standard input and output), loopback or socket.
    #[arg(short = 'q', long = "console", value_name = "KIND", help_heading = OPENSM)]
    console: Option<String>,
    /// Port of the console.
    #[arg(short = 'C', long = "console-port", value_name = "PORT", help_heading = OPENSM)]
    console_port: Option<String>,
    /// Read the counters of all ports.
    #[arg(long = "perfmgr", help_heading = OPENSM)]
    perfmgr: bool,
    /// Seconds between readings of the counters of ports.
    #[arg(long = "perfmgr_sweep_time_s", value_name = "SECONDS", help_heading = OPENSM)]
    perfmgr_sweep_time_s: Option<String>,
    /// Set up congestion control.
    #[arg(long = "congestion_control", help_heading = OPENSM)]
    congestion_control: bool,
    /// CC_Key that requests of congestion control show.
    #[arg(long = "cc_key", value_name = "KEY", help_heading = OPENSM)]
    cc_key: Option<String>,
}

const ROUTING: &str = "Routing, as with OpenSM";
const OPENSM: &str = "As with OpenSM";

impl OpenSmOptions {
    /// Applies these options to `settings`.
    pub(super) fn apply(&self, settings: &mut Settings) -> Result<(), OptionError> {
        let texts = [
            ("-a/--root_guid_file", "root_guid_file", &self.root_guid_file),
            ("-u/--cn_guid_file", "cn_guid_file", &self.cn_guid_file),
            ("-G/--io_guid_file", "io_guid_file", &self.io_guid_file),
            ("-H/--max_reverse_hops", "max_reverse_hops", &self.max_reverse_hops),
            ("-m/--ids_guid_file", "ids_guid_file", &self.ids_guid_file),
            (
                "-X/--guid_routing_order_file",
                "guid_routing_order_file",
                &self.guid_routing_order_file,
            ),
            ("-w/--hop_weights_file", "hop_weights_file", &self.hop_weights_file),
            (
                "-O/--port_search_ordering_file",
                "port_search_ordering_file",
                &self.port_search_ordering_file,
            ),
            ("-i/--ignore_guids", "port_prof_ignore_file", &self.ignore_guids),
            ("-U/--lfts_file", "lfts_file", &self.lfts_file),
            ("-M/--lid_matrix_file", "lid_matrix_dump_file", &self.lid_matrix_file),
            ("--torus_config", "torus_config", &self.torus_config),
            ("--lash_start_vl", "lash_start_vl", &self.lash_start_vl),
            ("--nue_max_num_vls", "nue_max_num_vls", &self.nue_max_num_vls),
            ("--scatter-ports", "scatter_ports", &self.scatter_ports),
            ("--sm_sl", "sm_sl", &self.sm_sl),
            ("--dump_files_dir", "dump_files_dir", &self.dump_files_dir),
            ("-q/--console", "console", &self.console),
            ("-C/--console-port", "console_port", &self.console_port),
            ("--perfmgr_sweep_time_s", "perfmgr_sweep_time_s", &self.perfmgr_sweep_time_s),
            ("--cc_key", "cc_key", &self.cc_key),
        ];
        for (option, key, text) in texts {
            if let Some(text) = text {
                settings.set(key, text).map_err(|source| OptionError { option, source })?;
            }
        }
        if let Some(key) = &self.smkey {
            let option = "-k/--smkey";
            let text = hexadecimal(key);
            settings.set("sm_key", &text).map_err(|source| OptionError { option, source })?;
        }
        settings.engines.updn.connect_roots |= self.connect_roots;
        settings.guid_routing_order_no_scatter |= self.guid_routing_order_no_scatter;
        settings.no_default_routing |= self.no_default_routing;
        settings.engines.lash.analyses_mesh |= self.do_mesh_analysis;
        settings.port_shifting |= self.port_shifting;
        settings.use_ucast_cache |= self.ucast_cache;
        settings.exit_on_fatal &= !self.stay_on_fatal;
        settings.consolidate_ipv6_snm_req |= self.consolidate_ipv6_snm_req;
        settings.perfmgr |= self.perfmgr;
        settings.congestion_control |= self.congestion_control;
        if self.adaptive_routing || self.ar_config_file.is_some() {
            let reason =
                "adaptive routing is configured in the switches, with their vendor's tools";
            let source = ValueError::Refused { key: "ar", reason };
            return Err(OptionError { option: "--ar", source });
        }
        self.debug.iter().try_for_each(|number| debug(number, settings))
    }
}

/// OpenSM reads some numbers as hexadecimal, with 0x or without.
pub(super) fn hexadecimal(text: &str) -> String {
    let is_marked = text.starts_with("0x") || text.starts_with("0X");
    if is_marked { text.to_owned() } else { format!("0x{text}") }
}

fn debug(number: &str, settings: &mut Settings) -> Result<(), OptionError> {
    match number {
        "0" => settings.ignore_other_sm = true,
        "1" => settings.single_thread = true,
        "2" => settings.force_log_flush = true,
        "3" => settings.disable_multicast = true,
        _ => {
            let expected = "0, 1, 2 or 3 (others concern OpenSM's internals)";
            let source = ValueError::Malformed { key: "debug", expected, got: number.to_owned() };
            return Err(OptionError { option: "-d/--debug", source });
        }
    }
    Ok(())
}
