//! Defines the keys of `opensm.conf`, as of OpenSM 3.3.24 and in its order, and the keys that only
//! ibsm has. Keys of single routing engines are declared there (`sm_routing::engines`), with the
//! key that they follow.
//!
//! An entry has the key, its type and default; whether it is read only at `start`, or again on
//! SIGHUP before the next `sweep`; its range, if any; and, for a key without effect, the reason
//! (`idle`), or why only the default is accepted (`refused`).

use ib_mad::types::{Guid, SUBNET_PREFIX_DEFAULT};

use super::congestion::{BySl, Cct, CctEntry, PortBits, PortMarking};
use super::key::{
    DEFAULT_PARTITION_FILE, DEFAULT_PREFIX_ROUTES_FILE, DEFAULT_QOS_POLICY_FILE,
    DEFAULT_TORUS_CONFIG, settings,
};
use super::qos_values::{SlToVl, VlArb};
use super::value::{EngineNames, PartEnforce};

settings! {
    section "DEVICE ATTRIBUTES OPTIONS" {
        /// GUID of the port to run on; 0 uses the transport's port.
        guid: Guid = Guid(0), start;
        /// M_Key written to all ports; 0 leaves them unprotected.
        m_key: u64 = 0, sweep;
        /// Lease period of the M_Key, seconds; 0 never expires.
        m_key_lease_period: u16 = 0, sweep;
        /// Protection level of the M_Key, 0 to 3.
        m_key_protection_level: u8 = 0, sweep, 0..=3;
        /// Whether the M_Keys of unknown ports are looked up in guid2mkey.
        m_key_lookup: bool = true, sweep;
        /// SM_Key that other subnet managers must show.
        sm_key: u64 = 1, sweep;
        /// SM_Key that makes a subnet administration request trusted.
        sa_key: u64 = 1, sweep;
        /// Subnet prefix, the upper half of every GID.
        subnet_prefix: u64 = SUBNET_PREFIX_DEFAULT, start;
        /// LID mask control: 2^lmc LIDs a port.
        lmc: u8 = 0, start, 0..=7;
        /// Whether enhanced switch ports 0 get 2^lmc LIDs too.
        lmc_esp0: bool = false, start;
        /// Service level of traffic to the SM and SA.
        sm_sl: u8 = 0, sweep, 0..=15;
        /// Lifetime of a packet in a switch, code n: 4.096 us * 2^n; 20 or more never expires.
        packet_life_time: u8 = 0x12, sweep, 0..=31;
        /// Packets dropped in a row by a switch-to-switch port before its VL stalls, code.
        vl_stall_count: u8 = 7, sweep, 0..=7;
        /// Packets dropped in a row by a switch port towards a channel adapter or router before its
        /// VL stalls, code.
        leaf_vl_stall_count: u8 = 7, sweep, 0..=7;
        /// Lifetime at the head of a queue of a switch-to-switch port, code n: 4.096 us * 2^n.
        head_of_queue_lifetime: u8 = 0x12, sweep, 0..=31;
        /// Lifetime at the head of a queue of a switch port towards a channel adapter or router,
        /// code n: 4.096 us * 2^n.
        leaf_head_of_queue_lifetime: u8 = 0x10, sweep, 0..=31;
        /// Maximum number of operational VLs, code: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
        max_op_vls: u8 = 5, sweep, 1..=5;
        /// LinkSpeedEnabled of switches' external ports: 1, 3, 5 or 7; 0 leaves it alone, 15 is all
        /// that is supported.
        force_link_speed: u8 = 15, sweep, 0..=15;
        /// LinkSpeedExtEnabled, bits as in PortInfo: 0 leaves it alone, 30 turns extended speeds
        /// off, 31 is all that is supported.
        force_link_speed_ext: u8 = 31, sweep, 0..=31;
        /// LinkWidthEnabled of switches' external ports, bits as in PortInfo; 0 leaves it alone,
        /// 255 is all that is supported.
        force_link_width: u8 = 255, sweep, 0..=255;
        /// FDR10 on Mellanox ports that support it: 0 leaves it alone, 1 enables it, 2 disables it.
        /// Takes effect when the link is trained again.
        fdr10: u8 = 1, sweep, 0..=2;
        /// Subnet timeout in PortInfo, and lifetime of paths, code n: 4.096 us * 2^n.
        subnet_timeout: u8 = 18, sweep, 0..=31;
        /// Threshold of local physical errors.
        local_phy_errors_threshold: u8 = 8, sweep, 0..=15;
        /// Threshold of overrun errors.
        overrun_errors_threshold: u8 = 8, sweep, 0..=15;
        /// Whether MulticastFDBTop is raised where another subnet manager left it lower.
        use_mfttop: bool = true, sweep;
    }
    section "PARTITIONING OPTIONS" {
        /// File of partitions; (null) is /etc/opensm/partitions.conf.
        partition_config_file: Option<String> = Some(DEFAULT_PARTITION_FILE.to_owned()), start;
        /// Whether switches check no P_Keys at all; the same as part_enforce off.
        no_partition_enforcement: bool = false, sweep;
        /// P_Key enforcement by switches on links to end ports: both, in, out or off.
        part_enforce: PartEnforce = PartEnforce::Both, sweep;
        /// Whether a port may have a partition's P_Key as full and as limited member at once.
        allow_both_pkeys: bool = false, start;
        /// Whether P_Keys keep their index in a port's table when other P_Keys are added or
        /// removed.
        keep_pkey_indexes: bool = true, sweep;
        /// Byte put into alias GUIDs that the SA assigns, to distinguish the subnets of a site.
        sm_assigned_guid: u8 = 0, sweep;
    }
    section "SWEEP OPTIONS" {
        /// Seconds between light sweeps; 0 sweeps on traps only.
        sweep_interval: u32 = 10, sweep;
        /// Whether to give all ports new LIDs at start.
        reassign_lids: bool = false, sweep;
        /// Whether every sweep is a heavy one.
        force_heavy_sweep: bool = false, sweep;
        /// Whether traps about changes start a sweep.
        sweep_on_trap: bool = true, sweep;
    }
    section "ROUTING OPTIONS" {
        /// Whether balancing counts routes to switches.
        port_profile_switch_nodes: bool = false, start,
            idle("routes to switches are always balanced, separately from routes to hosts");
        /// File of switch GUIDs and ports that balancing does not count.
        port_prof_ignore_file: Option<String> = None, start;
        /// File of switch GUIDs, ports and weights, as many hops as a port counts for.
        hop_weights_file: Option<String> = None, start;
        /// File of switch GUIDs and their ports in the order in which they are preferred.
        port_search_ordering_file: Option<String> = None, start;
        /// Routing engines to try, in order, separated by commas; (null) is minhop.
        routing_engine: Option<EngineNames> = None, sweep;
        /// Whether engines avoid links between switches that run below their width or speed.
        avoid_throttled_links: bool = false, sweep;
        /// Whether routes are kept when a switch goes and comes back.
        use_ucast_cache: bool = false, start,
            idle("routes that remain valid are always kept when routing is recomputed");
        /// File of hops by which the routing engine file routes if it has no tables.
        lid_matrix_dump_file: Option<String> = None, start;
        /// File of forwarding tables for the routing engine file.
        lfts_file: Option<String> = None, start;
        /// File of root switches' GUIDs (updn, ftree); with (null) the engine finds the roots.
        root_guid_file: Option<String> = None, start;
        /// File of compute nodes' port GUIDs (ftree, sssp, dfsssp); (null) is all hosts.
        cn_guid_file: Option<String> = None, start;
        /// File of I/O nodes' port GUIDs (ftree, sssp, dfsssp).
        io_guid_file: Option<String> = None, start;
        /// Whether ftree numbers switches from the roots.
        quasi_ftree_indexing: bool = false, start,
            idle("ftree balances by routes per link; the order of switch numbers has no influence");
        /// File of numbers that order switches in place of their GUIDs (updn, dnup, ftree).
        ids_guid_file: Option<String> = None, start;
        /// File of port GUIDs to be routed first, in this order (minhop, updn, dnup, dor).
        guid_routing_order_file: Option<String> = None, start;
        /// Whether ports are assigned so that the tables of switches do not align (minhop, updn,
        /// dor, file).
        port_shifting: bool = false, sweep;
        /// Seed by which ports are chosen at random among equals, instead of in turn (minhop, updn,
        /// dor, file); 0 takes turns.
        scatter_ports: u32 = 0, sweep;
        /// Whether ports of guid_routing_order_file take turns even with scatter_ports.
        guid_routing_order_no_scatter: bool = false, start;
        /// File of registrations, an opensm-sa.dump, to load if the registry is empty; (null) is
        /// none.
        sa_db_file: Option<String> = None, start;
        /// Whether opensm-sa.dump is written when client registrations have changed.
        sa_db_dump: bool = false, sweep;
        /// File of the torus for the routing engine torus-2QoS.
        torus_config: Option<String> = Some(DEFAULT_TORUS_CONFIG.to_owned()), sweep;
    }
    section "HANDOVER - MULTIPLE SMs OPTIONS" {
        /// Priority among subnet managers, 0 to 15.
        sm_priority: u8 = 0, sweep, 0..=15;
        /// Whether to act as master even if another SM is master; for debugging.
        ignore_other_sm: bool = false, sweep;
        /// Milliseconds between polls of the master while in standby.
        sminfo_polling_timeout: u32 = 10_000, sweep, 1..=u32::MAX as u64;
        /// Polls that may go unanswered before a standby SM takes over.
        polling_retry_number: u32 = 4, sweep, 1..=u32::MAX as u64;
        /// Whether guid2lid is read again when the SM comes out of standby.
        honor_guid2lid_file: bool = false, sweep;
    }
    section "TIMING AND THREADING OPTIONS" {
        /// SMPs on the wire at once, up to 4096; 0 means 4096. OpenSM's default is 4; switches
        /// answer in hardware, so that a larger window brings a large fabric up in seconds.
        max_wire_smps: u32 = 64, sweep;
        /// SMPs on the wire at once, including those beyond max_wire_smps with max_smps_timeout.
        max_wire_smps2: u32 = 4, start,
            idle("max_wire_smps is the only window; a slow node does not delay others");
        /// Microseconds to wait for SMPs beyond max_wire_smps.
        max_smps_timeout: u32 = 600_000, start,
            idle("SMPs in flight never exceed max_wire_smps");
        /// Milliseconds to wait for the response to an SMP.
        transaction_timeout: u32 = 200, start, 1..=3_600_000;
        /// Number of retries of an unanswered SMP.
        transaction_retries: u32 = 3, start, 0..=100;
        /// Milliseconds to wait for the response to an SL-to-VL map for all ports of a switch.
        long_transaction_timeout: u32 = 500, start;
        /// Milliseconds after which SA requests in a queue are dropped.
        max_msg_fifo_timeout: u32 = 10_000, start,
            idle("responders have separate age limits for queued requests (decision 27)");
        /// Whether one thread handles SA queries.
        single_thread: bool = false, start,
            idle("SA queries are answered by ibsa; set its number of workers there");
    }
    section "MISC OPTIONS" {
        /// Whether to run in the background.
        daemon: bool = false, start;
        /// Whether to start in the state Not-Active, or to go to it from standby at a HUP. FALSE at
        /// a HUP ends it.
        sm_inactive: bool = false, sweep;
        /// Whether links are disabled whose port repeats the same error trap (129 to 131) without
        /// end.
        babbling_port_policy: bool = false, sweep;
        /// Whether subscriptions and services are removed with the port that registered them.
        drop_event_subscriptions: bool = false, sweep;
        /// Whether requested MGIDs are checked, those of IPoIB against their broadcast group.
        ipoib_mcgroup_creation_validation: bool = true, sweep;
        /// Whether the components of a join must agree with the group.
        mcgroup_join_validation: bool = true, sweep;
        /// Whether rates above 300 Gb/s are reported as 300 Gb/s; the same as max_rate_enum 18.
        use_original_extended_sa_rates_only: bool = false, sweep;
        /// Greatest rate code in PathRecords and new multicast groups; 63 is no limit.
        max_rate_enum: u8 = 63, sweep;
        /// Whether one SL-to-VL map is set for all ports of a switch at once, where supported.
        use_optimized_slvl: bool = false, sweep;
        /// Whether files in the state directory are synced to disk (fsync).
        fsync_high_avail_files: bool = true, sweep;
    }
    section "Performance Manager Options" {
        /// Whether the counters of all ports are read.
        perfmgr: bool = false, start;
        /// Whether the performance manager follows redirection.
        perfmgr_redir: bool = true, start;
        /// Seconds between sweeps of the performance manager.
        perfmgr_sweep_time_s: u16 = 180, start, 1..=65535;
        /// Queries of the performance manager on the wire at once.
        perfmgr_max_outstanding_queries: u32 = 500, start, 1..=u32::MAX as u64;
        /// Whether the performance manager skips channel adapters.
        perfmgr_ignore_cas: bool = false, start;
        /// Whether the performance manager removes nodes that left the fabric.
        perfmgr_rm_nodes: bool = true, start;
        /// Whether the performance manager logs errors.
        perfmgr_log_errors: bool = true, start;
        /// Whether the performance manager queries ClassPortInfo.
        perfmgr_query_cpi: bool = true, start;
        /// Whether the performance manager logs PortXmitWait.
        perfmgr_xmit_wait_log: bool = false, start;
        /// Least PortXmitWait that the performance manager logs.
        perfmgr_xmit_wait_threshold: u32 = 65535, start;
    }
    section "Event DB Options" {
        /// File to which the performance manager writes all counters after each sweep; (null) is
        /// none.
        event_db_dump_file: Option<String> = None, start;
    }
    section "Event Plugin Options" {
        /// Program that gets events as lines of JSON on its standard input: exec:PATH, with
        /// arguments if need be. OpenSM's plug-ins cannot be loaded: their names have no effect.
        event_plugin_name: Option<String> = None, start;
        /// Further arguments of that program.
        event_plugin_options: Option<String> = None, start;
        /// File of node names by GUID, used in logs and dumps instead of NodeDescriptions; (null)
        /// is /etc/opensm/ib-node-name-map, if it exists.
        node_name_map_name: Option<String> = None, start;
    }
    section "DEBUG FEATURES" {
        /// Log bits: 1 errors, 2 information, 4 verbose, 8 and 0x10 debugging, 0x20 each MAD in
        /// full, 0x40 dump files of routing, 0x80 a copy in the system's log.
        log_flags: u8 = 3, sweep;
        /// Whether each log line is flushed.
        force_log_flush: bool = false, start,
            idle("every log line is always flushed");
        /// Log file, beside standard output; (null) is none.
        log_file: Option<String> = None, start;
        /// Size at which the log file is truncated, megabytes; 0 is no limit.
        log_max_size: u32 = 0, sweep;
        /// Whether the log file is appended to rather than truncated at start.
        accum_log_file: bool = true, sweep;
        /// File of log flags by module.
        per_module_logging_file: Option<String> =
            Some("/etc/opensm/per-module-logging.conf".to_owned()), start;
        /// Directory of dump files, opensm-sa.dump among them; (null) is the state directory.
        dump_files_dir: Option<String> = None, start;
        /// Whether PathRecords from or to InfiniHost adapters (2003), which are faster that way,
        /// have an MTU of 1,024 bytes unless the request asks for more.
        enable_quirks: bool = false, sweep;
        /// Whether to suppress the request for client reregistration when the SM starts.
        no_clients_rereg: bool = false, sweep;
        /// Whether multicast groups get no trees.
        disable_multicast: bool = false, sweep;
        /// Whether a fatal error, such as a duplicate GUID, ends the program instead of being
        /// logged.
        exit_on_fatal: bool = true, sweep;
        /// Console: off, local (standard input and output), loopback or socket.
        console: Option<String> = Some("off".to_owned()), start;
        /// Port of the console.
        console_port: u16 = 10000, start;
    }
    section "QoS OPTIONS" {
        /// Whether QoS is on. Without it the QoS policy and the SLs of partitions are ignored.
        qos: bool = false, sweep;
        /// File of the QoS policy, read again with every heavy sweep while QoS is on.
        qos_policy_file: Option<String> = Some(DEFAULT_QOS_POLICY_FILE.to_owned()), start;
        /// Whether to ignore error statuses of ports that refuse an SL-to-VL map.
        suppress_sl2vl_mad_status_errors: bool = false, sweep;
        /// VLs of ports while QoS is on.
        qos_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM ignores it too; use max_op_vls to limit VLs");
        /// Limit of the high priority VL arbitration table; -1 is 0, or the common value.
        qos_high_limit: i16 = -1, sweep;
        /// VL arbitration table of high priority: VL:weight, separated by commas.
        qos_vlarb_high: Option<VlArb> = None, sweep;
        /// VL arbitration table of low priority: VL:weight, separated by commas.
        qos_vlarb_low: Option<VlArb> = None, sweep;
        /// VL by SL, 16 numbers separated by commas; 15 drops packets.
        qos_sl2vl: Option<SlToVl> = None, sweep;
        /// For channel adapters: VLs of ports while QoS is on.
        qos_ca_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM ignores it too; use max_op_vls to limit VLs");
        /// For channel adapters: limit of the high priority VL arbitration table; -1 is 0, or the
        /// common value.
        qos_ca_high_limit: i16 = -1, sweep;
        /// For channel adapters: VL arbitration table of high priority: VL:weight, separated by
        /// commas.
        qos_ca_vlarb_high: Option<VlArb> = None, sweep;
        /// For channel adapters: VL arbitration table of low priority: VL:weight, separated by
        /// commas.
        qos_ca_vlarb_low: Option<VlArb> = None, sweep;
        /// For channel adapters: VL by SL, 16 numbers separated by commas; 15 drops packets.
        qos_ca_sl2vl: Option<SlToVl> = None, sweep;
        /// For switch ports 0: VLs of ports while QoS is on.
        qos_sw0_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM ignores it too; use max_op_vls to limit VLs");
        /// For switch ports 0: limit of the high priority VL arbitration table; -1 is 0, or the
        /// common value.
        qos_sw0_high_limit: i16 = -1, sweep;
        /// For switch ports 0: VL arbitration table of high priority: VL:weight, separated by
        /// commas.
        qos_sw0_vlarb_high: Option<VlArb> = None, sweep;
        /// For switch ports 0: VL arbitration table of low priority: VL:weight, separated by
        /// commas.
        qos_sw0_vlarb_low: Option<VlArb> = None, sweep;
        /// For switch ports 0: VL by SL, 16 numbers separated by commas; 15 drops packets.
        qos_sw0_sl2vl: Option<SlToVl> = None, sweep;
        /// For external switch ports: VLs of ports while QoS is on.
        qos_swe_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM ignores it too; use max_op_vls to limit VLs");
        /// For external switch ports: limit of the high priority VL arbitration table; -1 is 0, or
        /// the common value.
        qos_swe_high_limit: i16 = -1, sweep;
        /// For external switch ports: VL arbitration table of high priority: VL:weight, separated
        /// by commas.
        qos_swe_vlarb_high: Option<VlArb> = None, sweep;
        /// For external switch ports: VL arbitration table of low priority: VL:weight, separated by
        /// commas.
        qos_swe_vlarb_low: Option<VlArb> = None, sweep;
        /// For external switch ports: VL by SL, 16 numbers separated by commas; 15 drops packets.
        qos_swe_sl2vl: Option<SlToVl> = None, sweep;
        /// For routers: VLs of ports while QoS is on.
        qos_rtr_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM ignores it too; use max_op_vls to limit VLs");
        /// For routers: limit of the high priority VL arbitration table; -1 is 0, or the common
        /// value.
        qos_rtr_high_limit: i16 = -1, sweep;
        /// For routers: VL arbitration table of high priority: VL:weight, separated by commas.
        qos_rtr_vlarb_high: Option<VlArb> = None, sweep;
        /// For routers: VL arbitration table of low priority: VL:weight, separated by commas.
        qos_rtr_vlarb_low: Option<VlArb> = None, sweep;
        /// For routers: VL by SL, 16 numbers separated by commas; 15 drops packets.
        qos_rtr_sl2vl: Option<SlToVl> = None, sweep;
    }
    section "Congestion Control OPTIONS (EXPERIMENTAL)" {
        /// Whether congestion control is set up.
        congestion_control: bool = false, sweep;
        /// CC_Key that requests show.
        cc_key: u64 = 0, sweep;
        /// Congestion control MADs on the wire at once.
        cc_max_outstanding_mads: u32 = 500, start;
    }
    section "Congestion Control SwitchCongestionSetting options" {
        /// Which of the settings of switches are used, as bits.
        cc_sw_cong_setting_control_map: u32 = 0, sweep;
        /// Ports that mark packets though they are victims only, as 256 bits.
        cc_sw_cong_setting_victim_mask: PortBits = PortBits::NONE, sweep;
        /// Ports that look for credit starvation, as 256 bits.
        cc_sw_cong_setting_credit_mask: PortBits = PortBits::NONE, sweep;
        /// How soon packets are marked, 0 to 15.
        cc_sw_cong_setting_threshold: u8 = 0, sweep;
        /// Credits of the smallest packet that is marked.
        cc_sw_cong_setting_packet_size: u8 = 0, sweep;
        /// How soon credits are starved, 0 to 15.
        cc_sw_cong_setting_credit_starvation_threshold: u8 = 0, sweep;
        /// Delay of credits, as shift:multiplier.
        cc_sw_cong_setting_credit_starvation_return_delay: CctEntry = CctEntry::NONE, sweep;
        /// Mean number of packets between marks.
        cc_sw_cong_setting_marking_rate: u16 = 0, sweep;
    }
    section "Congestion Control CA Congestion Setting options" {
        /// Whether adapters throttle queue pairs (0) or SLs (1).
        cc_ca_cong_setting_port_control: u16 = 0, sweep;
        /// SLs that are set up, as bits.
        cc_ca_cong_setting_control_map: u16 = 0, sweep;
    }
    section "CA Congestion Setting Entries" {
        /// Timer of an SL: the SL, then the value; one line per SL.
        cc_ca_cong_setting_ccti_timer: BySl<65535> = BySl::NONE, sweep;
        /// Increase of the CCT index per BECN, by SL, as SL and value.
        cc_ca_cong_setting_ccti_increase: BySl<255> = BySl::NONE, sweep;
        /// Threshold of the CCT index for a congestion event, by SL, as SL and value.
        cc_ca_cong_setting_trigger_threshold: BySl<255> = BySl::NONE, sweep;
        /// Least CCT index, by SL, as SL and value.
        cc_ca_cong_setting_ccti_min: BySl<255> = BySl::NONE, sweep;
    }
    section "Congestion Control Table" {
        /// Table of delays: shift:multiplier, separated by commas.
        cc_cct: Option<Cct> = None, sweep;
        /// File of routes to other subnets (prefix routes); (null) is
        /// /etc/opensm/prefix-routes.conf.
        prefix_routes_file: Option<String> = Some(DEFAULT_PREFIX_ROUTES_FILE.to_owned()), start;
    }
    section "IPv6 Solicited Node Multicast (SNM) Options" {
        /// Whether IPv6 solicited-node groups that differ in their last 24 bits only share an MLID.
        consolidate_ipv6_snm_req: bool = false, sweep;
        /// Prefix of lines in the log file and syslog.
        log_prefix: Option<String> = None, sweep;
    }
    section "IBSM OPTIONS" {
        /// Whether to leave out the fallback to minhop when no engine of routing_engine can route;
        /// the same as no_fallback there.
        no_default_routing: bool = false, sweep;
        /// Whether routes left by another SM are recomputed at start, instead of kept where valid.
        reassign_lfts: bool = false, start;
        /// Whether routes left by another SM are kept even if the engine would balance them better.
        keep_found_routes: bool = false, start;
        /// Ports per second that a new master asks to reregister; 0 is all at once.
        client_rereg_rate: u32 = 1000, sweep;
        /// Whether trusted requests see records of ports that share no partition with the
        /// requester.
        sa_trusted_see_all: bool = false, sweep;
        /// File of virtual fabrics, an opafm.xml, read again with every heavy sweep; (null) is
        /// none.
        vfabric_config_file: Option<String> = None, start;
        /// PM_Key of the performance manager's queries; 0 is none.
        pm_key: u64 = 0, start;
        /// Whether cc_key is written to all nodes with congestion control, and protected, instead
        /// of shown only.
        cc_key_protect: bool = false, sweep;
        /// Seconds after a request with a wrong CC_Key until its protection ends; 0 is never.
        cc_key_lease_period: u16 = 0, sweep;
        /// Seconds between two readings of the logs of congestion.
        cc_log_interval_s: u32 = 60, sweep, 1..=86_400;
        /// When switch ports to hosts mark packets, threshold:packet size:marking rate; (null) is
        /// as the switch's other ports.
        cc_host_port_marking: Option<PortMarking> = None, sweep;
        /// Kinds of events that the program of event_plugin_name gets, separated by commas; (null)
        /// or all is all that have numbers. Growth of counters is passed if it is named:
        /// port_errors, port_data_counters, port_select.
        event_plugin_kinds: Option<String> = None, start;
        /// Virtual ports of adapters (SR-IOV): 0 ignores them, 1 disables them, 2 enables and
        /// manages them.
        virt_enabled: u8 = 0, sweep, 0..=2;
        /// Name of the Fm instance of that file to use; (null) is the one whose SubnetPrefix is
        /// subnet_prefix.
        vfabric_instance: Option<String> = None, start;
    }
}
