//! All keys of `opensm.conf`, as of OpenSM 3.3.24, in its order, and those of our own.
//!
//! A line is a key, its type and default; whether it counts from the `start` on, or a SIGHUP has it
//! read again with the next `sweep`; its range, if it has one; and, for a key without effect, the
//! reason (`idle`), or why other values than the default are `refused`.

use ib_mad::types::{Guid, SUBNET_PREFIX_DEFAULT};

use super::congestion::{BySl, Cct, CctEntry, PortBits};
use super::qos_tables::{SlToVl, VlArb};
use super::settings::{
    DEFAULT_PARTITION_FILE, DEFAULT_PREFIX_ROUTES_FILE, DEFAULT_QOS_POLICY_FILE,
    DEFAULT_TORUS_CONFIG, settings,
};
use super::value::{EngineNames, PartEnforce};

settings! {
    section "DEVICE ATTRIBUTES OPTIONS" {
        /// GUID of the port to run on; 0 takes the transport's port.
        guid: Guid = Guid(0), start;
        /// M_Key written to all ports; 0 leaves them unprotected.
        m_key: u64 = 0, start;
        /// Lease period of the M_Key, seconds; 0 never expires.
        m_key_lease_period: u16 = 0, start;
        /// Protection level of the M_Key, 0 to 3.
        m_key_protection_level: u8 = 0, start, 0..=3;
        /// Whether the M_Keys of unknown ports are looked up in guid2mkey.
        m_key_lookup: bool = true, start;
        /// SM_Key that other subnet managers must show.
        sm_key: u64 = 1, start;
        /// SM_Key that makes a subnet administration request trusted.
        sa_key: u64 = 1, start;
        /// Subnet prefix, the upper half of every GID.
        subnet_prefix: u64 = SUBNET_PREFIX_DEFAULT, start;
        /// LID mask control: 2^lmc LIDs a port.
        lmc: u8 = 0, start, 0..=7;
        /// Whether enhanced switch ports 0 get 2^lmc LIDs too.
        lmc_esp0: bool = false, start;
        /// Service level of traffic to the SM and SA.
        sm_sl: u8 = 0, sweep, 0..=15;
        /// Lifetime of a packet in a switch, code n: 4.096 us * 2^n; 20 or more is for ever.
        packet_life_time: u8 = 0x12, sweep, 0..=31;
        /// Packets dropped in a row by a switch-to-switch port before its VL stalls, code.
        vl_stall_count: u8 = 7, sweep, 0..=7;
        /// The same for switch ports towards channel adapters and routers.
        leaf_vl_stall_count: u8 = 7, sweep, 0..=7;
        /// Lifetime at the head of a queue of a switch-to-switch port, code n: 4.096 us * 2^n.
        head_of_queue_lifetime: u8 = 0x12, sweep, 0..=31;
        /// The same for switch ports towards channel adapters and routers.
        leaf_head_of_queue_lifetime: u8 = 0x10, sweep, 0..=31;
        /// Most operational VLs, code: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
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
        /// FDR10 of ports of Mellanox's that have it: 0 leaves it alone, 1 turns it on, 2 off, from the
        /// next time on that their links are trained.
        fdr10: u8 = 1, sweep, 0..=2;
        /// Subnet timeout in PortInfo, and lifetime of paths, code n: 4.096 us * 2^n.
        subnet_timeout: u8 = 18, sweep, 0..=31;
        /// Threshold of local physical errors.
        local_phy_errors_threshold: u8 = 8, sweep, 0..=15;
        /// Threshold of overrun errors.
        overrun_errors_threshold: u8 = 8, sweep, 0..=15;
        /// Whether the top of multicast tables is lifted where another subnet manager left it lower.
        use_mfttop: bool = true, sweep;
    }
    section "PARTITIONING OPTIONS" {
        /// File of partitions; (null) is /etc/opensm/partitions.conf.
        partition_config_file: Option<String> = Some(DEFAULT_PARTITION_FILE.to_owned()), start;
        /// Whether switches check no P_Keys at all; the same as part_enforce off.
        no_partition_enforcement: bool = false, sweep;
        /// What switches check the P_Keys of at the links of end ports: both, in, out or off.
        part_enforce: PartEnforce = PartEnforce::Both, sweep;
        /// Whether a port may have a partition's P_Key as full and as limited member at once.
        allow_both_pkeys: bool = false, start;
        /// Whether P_Keys keep their places in the tables of ports when others come and go.
        keep_pkey_indexes: bool = true, sweep;
        /// Byte of the alias GUIDs that the SA chooses, by which a site tells its subnets apart.
        sm_assigned_guid: u8 = 0, sweep;
    }
    section "SWEEP OPTIONS" {
        /// Seconds between light sweeps; 0 sweeps on traps only.
        sweep_interval: u32 = 10, sweep;
        /// Whether to give all ports new LIDs at start.
        reassign_lids: bool = false, start;
        /// Whether every sweep is a heavy one.
        force_heavy_sweep: bool = false, sweep;
        /// Whether traps about changes start a sweep.
        sweep_on_trap: bool = true, sweep;
    }
    section "ROUTING OPTIONS" {
        /// Whether balancing counts routes to switches.
        port_profile_switch_nodes: bool = false, start,
            idle("routes to switches are always balanced, apart from those to hosts");
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
        /// Whether updn and ftree route between root switches.
        connect_roots: bool = false, sweep;
        /// Whether routes are kept when a switch goes and comes back.
        use_ucast_cache: bool = false, start,
            idle("routes that can stay are always kept from one routing to the next");
        /// File of hops by which the routing engine file routes if it has no tables.
        lid_matrix_dump_file: Option<String> = None, start;
        /// File of forwarding tables for the routing engine file.
        lfts_file: Option<String> = None, start;
        /// File of root switches' GUIDs (updn, ftree); (null) leaves it to the engine to find them.
        root_guid_file: Option<String> = None, start;
        /// File of compute nodes' port GUIDs (ftree, sssp, dfsssp); (null) is all hosts.
        cn_guid_file: Option<String> = None, start;
        /// File of I/O nodes' port GUIDs (ftree, sssp, dfsssp).
        io_guid_file: Option<String> = None, start;
        /// Whether ftree numbers switches from the roots.
        quasi_ftree_indexing: bool = false, start,
            idle("ftree balances by the routes that pass, whatever switches are numbered by");
        /// How often ftree's routes to I/O nodes may go the wrong way.
        max_reverse_hops: u16 = 0, start;
        /// File of numbers that order switches in place of their GUIDs (updn, dnup, ftree).
        ids_guid_file: Option<String> = None, start;
        /// File of port GUIDs to be routed first, in this order (minhop, updn, dnup, dor).
        guid_routing_order_file: Option<String> = None, start;
        /// Whether lash looks for a mesh to order switches by.
        do_mesh_analysis: bool = false, sweep;
        /// First VL of lash.
        lash_start_vl: u8 = 0, sweep, 0..=15;
        /// Most VLs of nue; 0 is all there are.
        nue_max_num_vls: u8 = 1, sweep, 0..=15;
        /// Whether nue keeps routes to switches free of deadlocks, too.
        nue_include_switches: bool = false, sweep;
        /// Whether ports are dealt so that tables of switches do not align (minhop, updn, dor, file).
        port_shifting: bool = false, start;
        /// Seed by which ports are chosen at random among equals, instead of in turn (minhop, updn,
        /// dor, file); 0 takes turns.
        scatter_ports: u32 = 0, start;
        /// Whether ports of guid_routing_order_file take turns all the same.
        guid_routing_order_no_scatter: bool = false, start;
        /// What the registry begins with if there is none yet: an opensm-sa.dump; (null) is
        /// nothing.
        sa_db_file: Option<String> = None, start;
        /// Whether opensm-sa.dump is written when what clients registered has changed.
        sa_db_dump: bool = false, start;
        /// File of the torus for the routing engine torus-2QoS.
        torus_config: Option<String> = Some(DEFAULT_TORUS_CONFIG.to_owned()), sweep;
    }
    section "HANDOVER - MULTIPLE SMs OPTIONS" {
        /// Priority among subnet managers, 0 to 15.
        sm_priority: u8 = 0, sweep, 0..=15;
        /// Whether to act as master though another SM is master; for debugging.
        ignore_other_sm: bool = false, sweep;
        /// Milliseconds between polls of the master while in standby.
        sminfo_polling_timeout: u32 = 10_000, sweep, 1..=u32::MAX as u64;
        /// Polls that may go unanswered before a standby SM takes over.
        polling_retry_number: u32 = 4, sweep, 1..=u32::MAX as u64;
        /// Whether guid2lid is read again when the SM comes out of standby.
        honor_guid2lid_file: bool = false, start;
    }
    section "TIMING AND THREADING OPTIONS" {
        /// SMPs on the wire at once, up to 4096; 0 means 4096. OpenSM's default is 4; switches
        /// answer
        /// in hardware, so that more in flight is what makes a large fabric come up in seconds.
        max_wire_smps: u32 = 64, start;
        /// SMPs on the wire at once, those beyond max_wire_smps with max_smps_timeout.
        max_wire_smps2: u32 = 4, start,
            idle("the window is max_wire_smps, of which slow nodes do not hold others up");
        /// Microseconds to wait for SMPs beyond max_wire_smps.
        max_smps_timeout: u32 = 600_000, start,
            idle("there are no SMPs beyond max_wire_smps");
        /// Milliseconds to wait for the answer to an SMP.
        transaction_timeout: u32 = 200, start, 1..=3_600_000;
        /// Times an unanswered SMP is sent again.
        transaction_retries: u32 = 3, start, 0..=100;
        /// Milliseconds to wait for the answer to an SL-to-VL map for all ports of a switch.
        long_transaction_timeout: u32 = 500, start;
        /// Milliseconds after which SA requests in a queue are dropped.
        max_msg_fifo_timeout: u32 = 10_000, start,
            idle("responders drop what waited too long for its client, by ages of their own \
                (decision 27)");
        /// Whether one thread handles SA queries.
        single_thread: bool = false, start,
            idle("responders are processes of their own, with as many workers as they are given");
    }
    section "MISC OPTIONS" {
        /// Whether to run in the background.
        daemon: bool = false, start;
        /// Whether to start in the state Not-Active.
        sm_inactive: bool = false, start;
        /// Whether links of ports that report the same error for ever (traps 129 to 131) are switched
        /// off.
        babbling_port_policy: bool = false, sweep;
        /// Whether subscriptions and services go with the port that made them, and when the SM
        /// comes out of standby.
        drop_event_subscriptions: bool = false, start,
            idle("what a port registered stays until its lease ends or it takes it back");
        /// Whether MGIDs asked for are checked, those of IPoIB against their broadcast group.
        ipoib_mcgroup_creation_validation: bool = true, sweep;
        /// Whether the components of a join must agree with the group.
        mcgroup_join_validation: bool = true, sweep;
        /// Whether rates above 300 Gb/s are told as 300 Gb/s; max_rate_enum 18 is the same.
        use_original_extended_sa_rates_only: bool = false, sweep;
        /// The greatest code of a rate that paths and new groups are told to have; 63 is no limit.
        max_rate_enum: u8 = 63, sweep;
        /// Whether one SL-to-VL map is written for all ports of a switch at once, where it takes that.
        use_optimized_slvl: bool = false, sweep;
        /// Whether files in the state directory are forced to disk.
        fsync_high_avail_files: bool = true, start;
    }
    section "Performance Manager Options" {
        /// Whether error counters are read.
        perfmgr: bool = false, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// Whether it follows redirection.
        perfmgr_redir: bool = true, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// Seconds between its sweeps.
        perfmgr_sweep_time_s: u16 = 180, start, 1..=65535,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// Its queries on the wire at once.
        perfmgr_max_outstanding_queries: u32 = 500, start, 1..=u32::MAX as u64,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// Whether it leaves channel adapters out.
        perfmgr_ignore_cas: bool = false, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// Whether it forgets nodes that are gone.
        perfmgr_rm_nodes: bool = true, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// Whether it logs errors.
        perfmgr_log_errors: bool = true, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// Whether it asks for ClassPortInfo.
        perfmgr_query_cpi: bool = true, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// Whether it logs PortXmitWait.
        perfmgr_xmit_wait_log: bool = false, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
        /// From which value on.
        perfmgr_xmit_wait_threshold: u32 = 65535, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
    }
    section "Event DB Options" {
        /// File that it writes events to.
        event_db_dump_file: Option<String> = None, start,
            idle("error counters are not read here; run a monitor beside ibsm, as perfquery \
                and ibqueryerrors do");
    }
    section "Event Plugin Options" {
        /// Plugins to load.
        event_plugin_name: Option<String> = None, start,
            refused("plugins of OpenSM cannot be loaded; unset it, and read events from ibsm's \
                page or by gRPC instead");
        /// What plugins are told.
        event_plugin_options: Option<String> = None, start,
            idle("there are no plugins");
        /// File of names by node GUID, which stand in logs and dumps for NodeDescriptions; (null) is
        /// /etc/opensm/ib-node-name-map, if it is there.
        node_name_map_name: Option<String> = None, start;
    }
    section "DEBUG FEATURES" {
        /// Log bits: 1 errors, 2 information, 4 verbose, 8, 0x10 and 0x20 debugging, 0x40 dump files
        /// of routing.
        log_flags: u8 = 3, sweep;
        /// Whether each line of the log is written at once.
        force_log_flush: bool = false, start,
            idle("each line of the log is always written at once");
        /// Log file, beside standard output; (null) is none.
        log_file: Option<String> = None, start;
        /// Megabytes at which the log file begins anew; 0 is no limit.
        log_max_size: u32 = 0, start;
        /// Whether the log file is appended to, rather than started anew.
        accum_log_file: bool = true, start;
        /// File of log flags by module.
        per_module_logging_file: Option<String> = Some("/etc/opensm/per-module-logging.conf".to_owned()), start;
        /// Directory of dump files, opensm-sa.dump among them; (null) is the state directory.
        dump_files_dir: Option<String> = None, start;
        /// Whether paths from or to InfiniHost adapters (2003), which are faster so, are told an MTU of
        /// 1,024 bytes, unless more is asked for.
        enable_quirks: bool = false, sweep;
        /// Whether clients are not asked to register again when the SM starts.
        no_clients_rereg: bool = false, sweep;
        /// Whether multicast groups get no trees.
        disable_multicast: bool = false, sweep;
        /// Whether what cannot be repaired ends the program, rather than being logged.
        exit_on_fatal: bool = true, start;
        /// Console: off, local, loopback or socket.
        console: Option<String> = Some("off".to_owned()), start,
            idle("there is no console; `ibsmctl status`, `sweep`, `reroute` and the page of --http \
                stand in for most of it");
        /// Port of the console.
        console_port: u16 = 10000, start,
            idle("there is no console");
    }
    section "QoS OPTIONS" {
        /// Whether QoS is on: the QoS policy and the SLs of partitions count.
        qos: bool = false, sweep;
        /// File of the QoS policy, read again with every heavy sweep while QoS is on.
        qos_policy_file: Option<String> = Some(DEFAULT_QOS_POLICY_FILE.to_owned()), start;
        /// Whether SL-to-VL maps that a port refuses are no errors.
        suppress_sl2vl_mad_status_errors: bool = false, sweep;
        /// VLs of ports while QoS is on.
        qos_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM reads it and does nothing by it either: max_op_vls limits VLs");
        /// Limit of the high priority VL arbitration table; -1 is 0, or the common value.
        qos_high_limit: i16 = -1, sweep;
        /// VL arbitration table of high priority: VL:weight, separated by commas.
        qos_vlarb_high: Option<VlArb> = None, sweep;
        /// VL arbitration table of low priority: VL:weight, separated by commas.
        qos_vlarb_low: Option<VlArb> = None, sweep;
        /// VL by SL, 16 numbers separated by commas; 15 drops packets.
        qos_sl2vl: Option<SlToVl> = None, sweep;
        /// The same for channel adapters. VLs of ports while QoS is on.
        qos_ca_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM reads it and does nothing by it either: max_op_vls limits VLs");
        /// The same for channel adapters. Limit of the high priority VL arbitration table; -1 is 0,
        /// or the common value.
        qos_ca_high_limit: i16 = -1, sweep;
        /// The same for channel adapters. VL arbitration table of high priority: VL:weight,
        /// separated by commas.
        qos_ca_vlarb_high: Option<VlArb> = None, sweep;
        /// The same for channel adapters. VL arbitration table of low priority: VL:weight,
        /// separated by commas.
        qos_ca_vlarb_low: Option<VlArb> = None, sweep;
        /// The same for channel adapters. VL by SL, 16 numbers separated by commas; 15 drops
        /// packets.
        qos_ca_sl2vl: Option<SlToVl> = None, sweep;
        /// The same for switch ports 0. VLs of ports while QoS is on.
        qos_sw0_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM reads it and does nothing by it either: max_op_vls limits VLs");
        /// The same for switch ports 0. Limit of the high priority VL arbitration table; -1 is 0,
        /// or the common value.
        qos_sw0_high_limit: i16 = -1, sweep;
        /// The same for switch ports 0. VL arbitration table of high priority: VL:weight, separated
        /// by commas.
        qos_sw0_vlarb_high: Option<VlArb> = None, sweep;
        /// The same for switch ports 0. VL arbitration table of low priority: VL:weight, separated
        /// by commas.
        qos_sw0_vlarb_low: Option<VlArb> = None, sweep;
        /// The same for switch ports 0. VL by SL, 16 numbers separated by commas; 15 drops packets.
        qos_sw0_sl2vl: Option<SlToVl> = None, sweep;
        /// The same for external switch ports. VLs of ports while QoS is on.
        qos_swe_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM reads it and does nothing by it either: max_op_vls limits VLs");
        /// The same for external switch ports. Limit of the high priority VL arbitration table; -1
        /// is 0, or the common value.
        qos_swe_high_limit: i16 = -1, sweep;
        /// The same for external switch ports. VL arbitration table of high priority: VL:weight,
        /// separated by commas.
        qos_swe_vlarb_high: Option<VlArb> = None, sweep;
        /// The same for external switch ports. VL arbitration table of low priority: VL:weight,
        /// separated by commas.
        qos_swe_vlarb_low: Option<VlArb> = None, sweep;
        /// The same for external switch ports. VL by SL, 16 numbers separated by commas; 15 drops
        /// packets.
        qos_swe_sl2vl: Option<SlToVl> = None, sweep;
        /// The same for routers. VLs of ports while QoS is on.
        qos_rtr_max_vls: u8 = 0, start, 0..=15,
            idle("OpenSM reads it and does nothing by it either: max_op_vls limits VLs");
        /// The same for routers. Limit of the high priority VL arbitration table; -1 is 0, or the
        /// common value.
        qos_rtr_high_limit: i16 = -1, sweep;
        /// The same for routers. VL arbitration table of high priority: VL:weight, separated by
        /// commas.
        qos_rtr_vlarb_high: Option<VlArb> = None, sweep;
        /// The same for routers. VL arbitration table of low priority: VL:weight, separated by
        /// commas.
        qos_rtr_vlarb_low: Option<VlArb> = None, sweep;
        /// The same for routers. VL by SL, 16 numbers separated by commas; 15 drops packets.
        qos_rtr_sl2vl: Option<SlToVl> = None, sweep;
    }
    section "Congestion Control OPTIONS (EXPERIMENTAL)" {
        /// Whether congestion control is set up.
        congestion_control: bool = false, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// Its key.
        cc_key: u64 = 0, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// Its MADs on the wire at once.
        cc_max_outstanding_mads: u32 = 500, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
    }
    section "Congestion Control SwitchCongestionSetting options" {
        /// Which of the settings of switches are used, as bits.
        cc_sw_cong_setting_control_map: u32 = 0, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// Ports that mark packets though they are victims only, as 256 bits.
        cc_sw_cong_setting_victim_mask: PortBits = PortBits::NONE, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// Ports that look for credit starvation, as 256 bits.
        cc_sw_cong_setting_credit_mask: PortBits = PortBits::NONE, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// How soon packets are marked, 0 to 15.
        cc_sw_cong_setting_threshold: u8 = 0, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// Credits of the smallest packet that is marked.
        cc_sw_cong_setting_packet_size: u8 = 0, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// How soon credits are starved, 0 to 15.
        cc_sw_cong_setting_credit_starvation_threshold: u8 = 0, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// Delay of credits, as shift:multiplier.
        cc_sw_cong_setting_credit_starvation_return_delay: CctEntry = CctEntry::NONE, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// Mean number of packets between marks.
        cc_sw_cong_setting_marking_rate: u16 = 0, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
    }
    section "Congestion Control CA Congestion Setting options" {
        /// Whether adapters throttle queue pairs (0) or SLs (1).
        cc_ca_cong_setting_port_control: u16 = 0, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// SLs that are set up, as bits.
        cc_ca_cong_setting_control_map: u16 = 0, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
    }
    section "CA Congestion Setting Entries" {
        /// Timer of an SL: the SL, then the value; may be there once for each SL.
        cc_ca_cong_setting_ccti_timer: BySl<65535> = BySl::NONE, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// The same of steps on a mark.
        cc_ca_cong_setting_ccti_increase: BySl<255> = BySl::NONE, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// The same of the level that is told.
        cc_ca_cong_setting_trigger_threshold: BySl<255> = BySl::NONE, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// The same of the least level.
        cc_ca_cong_setting_ccti_min: BySl<255> = BySl::NONE, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
    }
    section "Congestion Control Table" {
        /// Table of delays: shift:multiplier, separated by commas.
        cc_cct: Option<Cct> = None, start,
            idle("congestion control is not set up here: switches and adapters keep what they \
                have");
        /// File of ways to other subnets; (null) is /etc/opensm/prefix-routes.conf.
        prefix_routes_file: Option<String> = Some(DEFAULT_PREFIX_ROUTES_FILE.to_owned()), start;
    }
    section "IPv6 Solicited Node Multicast (SNM) Options" {
        /// Whether IPv6 solicited-node groups that differ in their last 24 bits only share an MLID.
        consolidate_ipv6_snm_req: bool = false, sweep;
        /// What lines of the system's log begin with.
        log_prefix: Option<String> = None, start;
    }
    section "IBSM OPTIONS" {
        /// Whether no engine stands in when none of routing_engine can route, as no_fallback there.
        no_default_routing: bool = false, sweep;
        /// Whether the routes that another SM left are made anew at start, not kept where they are right.
        reassign_lfts: bool = false, start;
        /// Whether routes that another SM left are kept even if the engine would balance them better.
        keep_found_routes: bool = false, start;
        /// Ports a second that a new master asks to register again; 0 is all at once.
        client_rereg_rate: u32 = 1000, sweep;
        /// Whether trusted requests see records of ports that share no partition with the
        /// requester.
        sa_trusted_see_all: bool = false, sweep;
        /// File of virtual fabrics, an opafm.xml, read again with every heavy sweep; (null) is
        /// none.
        vfabric_config_file: Option<String> = None, start;
    }
}
