//! Compares how `ibsm` and stock `opensm -c` read odd lines of `opensm.conf`: every key must have
//! the same value. Skipped where `opensm` is not installed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use clap::Parser;
use ibsm::cli::{Config, Options};

use crate::skip::skip;

/// Files that OpenSM reads in ways that are not obvious.
const ODD: &[&str] = &[
    // Numbers.
    "lmc 0x2\nsm_priority 07\nsweep_interval +30\nmax_reverse_hops 010\n",
    "lmc 8\nsm_priority 16\n",
    "lmc 2\nlmc 300\n",
    "lmc 2\nlmc 9\n",
    "lmc 1 2\nsweep_interval 10s\nsubnet_timeout 08\nsm_sl 0x\n",
    "lmc\nsweep_interval -1\nmax_wire_smps 4294967296\nlog_max_size 18446744073709551616\n",
    "max_wire_smps 4294967295\nmax_smps_timeout -5\n",
    "packet_life_time 256\nvl_stall_count seven\nmax_op_vls 3.5\nconsole_port 65536\n",
    "m_key -1\nsm_key 0x10\nsa_key 010\nguid 0x2c9000000000a\n",
    "m_key 1\nm_key_protection_level 4\n",
    "m_key_protection_level 1\nm_key_lease_period 5\n",
    "m_key_protection_level 1\nm_key_lease_period 50\nsweep_interval 0\n",
    "force_link_speed 9\nforce_link_speed_ext 17\nforce_link_width 33\nfdr10 3\n",
    "force_link_speed 7\nforce_link_speed_ext 30\nforce_link_width 2\nfdr10 0\n",
    "transaction_timeout 800\n",
    "transaction_timeout 300\nlong_transaction_timeout 100\n",
    "perfmgr_sweep_time_s 0\nperfmgr_max_outstanding_queries 0\n",
    // Words.
    "qos yes\nconnect_roots true\nuse_ucast_cache TRUE\nsweep_on_trap 1\nlmc_esp0 'TRUE'\n",
    "sweep_on_trap\nuse_mfttop FALSE FALSE\nm_key_lookup \"TRUE\"\n",
    "part_enforce inbound\n",
    "part_enforce in\nno_partition_enforcement TRUE\n",
    "part_enforce IN\n",
    "console telnet\n",
    "console local\n",
    "routing_engine ftree, updn\n",
    // Text.
    "log_prefix \"a b\"\nlog_file two words \ndump_files_dir '/tmp/x'\nsa_db_file \"half\n",
    "root_guid_file (null)\ncn_guid_file ( null )\nio_guid_file \"(null)\"\n",
    "log_prefix before\nlog_prefix (null)\nids_guid_file /a\nids_guid_file /b\n",
    "log_prefix\nqos_policy_file\n",
    "log_prefix a#b\nlog_file \"x#y\"\n",
    // Lines.
    "lmc 1\r\nqos TRUE\r\nlog_prefix x y\r\n\r\nroot_guid_file\r\n# c\r\n",
    "\t lmc\t \t1\t\n   # a comment\n#lmc 2\n\n  \nsm_priority 3",
    "LMC 1\nSm_Priority 3\nlmc=2\nlmc: 2\nbogus 1\n",
    "dimn_ports_file /etc/ports\nno_qos FALSE\nno_multicast_optio TRUE\n",
    "lmc\x0b1\n\x0clmc 2\n",
    // QoS.
    "qos TRUE\nqos_max_vls 16\nqos_ca_max_vls 300\nqos_swe_max_vls -1\nqos_rtr_max_vls 15\n",
    "qos TRUE\nqos_high_limit 10x\nqos_ca_high_limit 256\nqos_sw0_high_limit \
     -5\nqos_rtr_high_limit x\n",
    "qos_high_limit 0x10\nqos_ca_high_limit\n",
    "qos TRUE\nqos_sl2vl 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nqos_vlarb_low 0:4,1:4\n",
    // Congestion control.
    "congestion_control TRUE\ncc_key 0x123\ncc_max_outstanding_mads 5\n",
    "cc_sw_cong_setting_control_map 0xf\ncc_sw_cong_setting_threshold 0x10\n",
    "cc_sw_cong_setting_victim_mask 0x102\ncc_sw_cong_setting_credit_mask 1z\n",
    "cc_sw_cong_setting_credit_starvation_return_delay 2:3x\ncc_sw_cong_setting_marking_rate \
     70000\n",
    "cc_ca_cong_setting_ccti_timer 3 20\ncc_ca_cong_setting_ccti_timer 4\t0x10\n",
    "cc_ca_cong_setting_ccti_increase 16 1\ncc_ca_cong_setting_ccti_min 2 300\n",
];

/// Keys whose values are known to differ.
const DIFFERENT: [&str; 3] = ["max_wire_smps", "log_file", "dump_files_dir"];

#[test]
fn odd_files_are_read_as_opensm_reads_them() {
    let directory = tempfile::tempdir().unwrap();
    let (file, written) = (directory.path().join("odd"), directory.path().join("written"));
    let Some(plain) = opensms(&file, &written, "") else {
        return skip("opensm is not installed");
    };
    let ours = ours_of(&file, "");
    let known: Vec<&String> = plain.keys().filter(|key| ours.contains_key(*key)).collect();
    assert!(known.len() > 140, "{known:?}");
    let mut wrong = Vec::new();
    for text in ODD {
        let theirs = opensms(&file, &written, text).unwrap();
        let ours = ours_of(&file, text);
        for key in &known {
            let is_default = theirs.get(*key) == plain.get(*key);
            let differs = ours.get(*key) != theirs.get(*key);
            if differs && !(is_default && DIFFERENT.contains(&key.as_str())) {
                wrong.push(format!(
                    "{text:?}: {key}: {:?}, not {:?}",
                    ours.get(*key),
                    theirs.get(*key)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "the file, the key, ours, OpenSM's: {wrong:#?}");
}

type Values = BTreeMap<String, Vec<String>>;

/// The values that `opensm` reads from a file; `None` if it is not installed.
fn opensms(file: &Path, written: &Path, text: &str) -> Option<Values> {
    std::fs::write(file, text).unwrap();
    let _ = std::fs::remove_file(written);
    let mut command = Command::new("opensm");
    command.arg("-F").arg(file).arg("-c").arg(written).env_remove("OSM_TMP_DIR");
    command.output().ok()?;
    Some(values(&std::fs::read_to_string(written).unwrap()))
}

fn ours_of(file: &Path, text: &str) -> Values {
    std::fs::write(file, text).unwrap();
    let options = Options::parse_from(["ibsm".as_ref(), "-F".as_ref(), file.as_os_str()]);
    let (config, _) = Config::load(options).unwrap_or_else(|error| panic!("{text}: {error}"));
    values(&config.settings.render())
}

/// Values by key, with numbers normalized. SLs without a value are left out.
fn values(text: &str) -> Values {
    let mut all = Values::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let values = all.entry(key.to_owned()).or_default();
        if !(key.starts_with("cc_ca_cong_setting_") && value.ends_with(" 0")) {
            values.push(alike(value.trim()));
        }
    }
    all
}

fn alike(value: &str) -> String {
    let hex = value.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    match hex {
        _ if value.is_empty() => "(null)".to_owned(),
        Some(number) => number.to_string(),
        None => value.to_owned(),
    }
}
