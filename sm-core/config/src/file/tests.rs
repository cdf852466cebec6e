//! Tests what is parsed, rejected and rendered in the configuration file.

#[path = "../../../../ib-mad/tests/skip/mod.rs"]
mod skip;

use super::*;
use skip::skip;

fn parse_text(text: &str) -> Result<Parsed, FileError> {
    parse(Path::new("sm.conf"), text, false)
}

#[test]
fn a_template_reads_back_to_the_settings_it_was_written_from() {
    let settings = Settings {
        lmc: 2,
        subnet_prefix: 0xfec0_0000_0000_0001,
        log_file: Some("/var/log/my sm.log".to_owned()),
        log_prefix: Some(" rail 1 ".to_owned()),
        dump_files_dir: Some("'tmp'".to_owned()),
        sweep_on_trap: false,
        ..Settings::default()
    };
    let parsed = parse_text(&settings.render()).unwrap();
    assert_eq!((parsed.settings, parsed.remarks), (settings, vec![]));
}

#[test]
fn keys_without_effect_are_reported_with_the_reason() {
    let text =
        "lmc 1 # two LIDs\n\nqos_max_vls 2\nsingle_thread TRUE\nconsole off\nqos_ca_max_vls 2\n";
    let settings = parse_text(text).unwrap().settings;
    assert_eq!(settings.lmc, 1);
    assert_eq!(
        idle_keys(&settings),
        [
            "no effect: single_thread: SA queries are answered by ibsa; set its number of workers \
             there",
            "no effect: qos_max_vls, qos_ca_max_vls: OpenSM ignores it too; use max_op_vls to \
             limit VLs",
        ]
    );
    assert_eq!(idle_keys(&Settings::default()), Vec::<String>::new());
}

/// Regression: a site whose file names a plug-in could not start without editing it.
#[test]
fn the_name_of_a_plug_in_is_reported_and_not_fatal() {
    let parsed = parse_text("lmc 1\nevent_plugin_name osmeventplugin\n").unwrap();
    let reported = idle_keys(&parsed.settings);
    assert!(reported[0].starts_with("no effect: event_plugin_name: "), "{reported:?}");
}

#[test]
fn old_keys_and_values_are_read_as_opensm_reads_them() {
    let text = "dimn_ports_file '/etc/ports'\nno_qos FALSE\nqos yes\nconnect_roots TRUE\n\
                scatter_ports 0x10\nqos_high_limit 0xa\nlog_prefix\nsmartsm_mode 3\n\
                guid 42\nno_multicast_option TRUE\n";
    let Parsed { settings, remarks, mistakes, .. } = parse_text(text).unwrap();
    assert_eq!(settings.port_search_ordering_file.as_deref(), Some("/etc/ports"));
    assert_eq!((settings.qos, settings.engines.updn.connect_roots), (false, true));
    assert_eq!((settings.scatter_ports, settings.qos_high_limit), (16, 10));
    assert_eq!((settings.log_prefix, settings.guid.0), (None, 42));
    assert!(settings.disable_multicast);
    assert_eq!(
        remarks,
        [
            "sm.conf:1: dimn_ports_file was renamed to port_search_ordering_file",
            "sm.conf:2: no_qos is obsolete: QoS is off unless 'qos TRUE' turns it on",
            "sm.conf:10: no_multicast_option was renamed to disable_multicast",
        ]
    );
    assert_eq!(
        mistakes,
        [
            "sm.conf:3: qos 'yes' is read as FALSE, as OpenSM does; write TRUE or FALSE",
            "sm.conf:8: unknown key 'smartsm_mode'; ignored",
        ]
    );
}

#[test]
fn every_key_renders_to_what_reads_back_and_has_a_meaning() {
    let mut settings = Settings::default();
    for key in Settings::keys() {
        assert!(!key.doc.is_empty() && !key.section.is_empty(), "{}", key.name);
        for line in settings.clone().lines(key.name) {
            assert_eq!(settings.set(key.name, &line), Ok(true), "{}", key.name);
        }
    }
    assert_eq!(settings, Settings::default());
}

/// The keys of OpenSM 3.3.23 with their defaults, as `opensm -c` lists them.
const OPENSM_TEMPLATE: &str = include_str!("../opensm-3.3.23.conf");

#[test]
fn opensms_template_is_read_without_remarks_and_all_its_keys_are_known() {
    let Parsed { settings, remarks, mistakes, .. } = parse_text(OPENSM_TEMPLATE).unwrap();
    assert_eq!((remarks, mistakes), (vec![], vec![]));
    let lines = OPENSM_TEMPLATE.lines().filter(|line| !line.starts_with('#'));
    let theirs: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    let ours: Vec<&str> = Settings::keys().iter().map(|key| key.name).collect();
    let known: Vec<&str> = ours.iter().copied().filter(|key| theirs.contains(key)).collect();
    assert_eq!(known, theirs, "all, in their order");
    // Defaults that differ on purpose.
    let default = Settings::default();
    let differ: Vec<&str> =
        ours.into_iter().filter(|key| settings.lines(key) != default.lines(key)).collect();
    assert_eq!(differ, ["max_wire_smps", "log_file", "dump_files_dir"]);
    assert_eq!(idle_keys(&settings), Vec::<String>::new());
}

#[test]
fn mistakes_are_ignored_and_reported_with_their_place() {
    let text = "# head\nsweep_intervall 3\nsm_priority 16\nlmc\n\nsubnet_timeout 20\n\
                subnet_timeout 20 s\nm_key_protection_level 7\nrouting_engine ftre,updn\n\
                sweep_interval x\nlmc 2\nlmc 300\nqos_swe_high_limit 9 of 255\n";
    let Parsed { settings, mistakes, kept, .. } = parse_text(text).unwrap();
    assert_eq!(
        mistakes,
        [
            "sm.conf:2: unknown key 'sweep_intervall'; ignored; did you mean 'sweep_interval'?",
            "sm.conf:3: sm_priority must be 0 to 15, not 16; 0 is used",
            "sm.conf:4: lmc takes a number, not ''; the line is ignored",
            "sm.conf:7: subnet_timeout takes a number, not '20 s'; the line is ignored",
            "sm.conf:8: m_key_protection_level must be 0 to 3, not 7; 2 is used",
            "sm.conf:9: routing_engine takes names among minhop, updn, dnup, ftree, lash, dor, \
             torus-2QoS, sssp, dfsssp, nue, layers, dla, file and no_fallback, separated by \
             commas, not 'ftre,updn'; updn is used",
            "sm.conf:10: sweep_interval takes a number, not 'x'; the line is ignored",
            "sm.conf:12: lmc must be 0 to 7, not 300; the line is ignored",
            "sm.conf:13: qos_swe_high_limit takes a number from -1 to 255, not '9 of 255'; 9 is \
             used",
        ]
    );
    assert_eq!((settings.lmc, settings.subnet_timeout, settings.sm_priority), (2, 20, 0));
    assert_eq!((settings.m_key_protection_level, settings.qos_swe_high_limit), (2, 9));
    assert_eq!(kept, [""; 0], "at start no value is in force yet");

    // Regression: at a SIGHUP, a typo in the engine's name caused a full
    // reroute by minhop, which does not avoid credit loops.
    let text = format!("{text}qos yes\nroutin_engine updn\n");
    let Parsed { mistakes, kept, .. } = parse(Path::new("sm.conf"), &text, true).unwrap();
    let kept_count =
        mistakes.iter().filter(|line| line.contains("keeping the value in force")).count();
    assert_eq!((kept_count, mistakes.len()), (9, 11), "{mistakes:#?}");
    let all = [
        "sm_priority",
        "m_key_protection_level",
        "routing_engine",
        "sweep_interval",
        "qos_swe_high_limit",
        "qos",
    ];
    assert_eq!(kept, all, "other lines set the remaining keys");
}

#[test]
fn keys_of_the_subnet_must_be_read() {
    for line in ["m_key 0xg", "sm_key", "subnet_prefix fe80::", "m_key_protection_level two"] {
        let key = line.split(' ').next().unwrap();
        let error = parse_text(&format!("lmc 1\n{line}\n")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("sm.conf:2: {key} takes a")), "{error}");
    }
}

#[test]
fn lines_are_cut_as_opensm_cuts_them() {
    let text = "\r\n\tlmc\t2 \r\nlog_file\r\n log_prefix  \"a b\"\t\r\nsm_sl 3#4\nqos TRUE";
    let Parsed { settings, remarks, mistakes, .. } = parse_text(text).unwrap();
    assert_eq!((settings.lmc, settings.sm_sl, settings.qos), (2, 3, true));
    assert_eq!((settings.log_file, settings.log_prefix.as_deref()), (None, Some("a b")));
    assert_eq!(mistakes, ["sm.conf:3: log_file has no value; the line is ignored"]);
    assert_eq!(remarks, Vec::<String>::new());
    let long = format!("#{}\nlmc 1", "-".repeat(1100));
    let Parsed { settings, remarks, .. } = parse_text(&long).unwrap();
    assert_eq!((settings.lmc, remarks.len()), (1, 1), "{remarks:?}");
}

/// Values by key of a file that `opensm -c` wrote, with numbers normalized.
fn values(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(char::is_whitespace));
    let plain = |value: &str| {
        let number = crate::parse_number(value);
        number.map_or_else(|| value.to_owned(), |number| number.to_string())
    };
    pairs.map(|(key, value)| (key.to_owned(), plain(value.trim()))).collect()
}

#[test]
fn opensm_reads_our_template_to_the_same() {
    let mut settings = parse_text(OPENSM_TEMPLATE).unwrap().settings;
    for (key, value) in [
        ("lmc", "2"),
        ("routing_engine", "ftree,updn"),
        ("root_guid_file", "/etc/roots"),
        ("qos", "TRUE"),
        ("qos_ca_vlarb_high", "0:64,1:4"),
        ("qos_swe_high_limit", "255"),
        ("part_enforce", "in"),
        ("packet_life_time", "0x13"),
        ("cc_ca_cong_setting_ccti_timer", "3 20"),
        ("cc_sw_cong_setting_victim_mask", "0x102"),
        ("cc_cct", "1:2,3:4"),
        ("m_key", "0x1234"),
        ("max_wire_smps", "64"),
    ] {
        assert_eq!(settings.set(key, value), Ok(true), "{key}");
    }
    let directory = tempfile::tempdir().unwrap();
    let (ours, theirs) = (directory.path().join("ours"), directory.path().join("theirs"));
    std::fs::write(&ours, settings.render()).unwrap();
    let mut command = std::process::Command::new("opensm");
    command.arg("-F").arg(&ours).arg("-c").arg(&theirs);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return skip(format_args!("opensm is not installed: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    // 3.3.23 lacks the key of 3.3.24; it must recognize all others and accept their values.
    for line in text.lines().filter(|line| line.contains("Unrecognized") || line.contains("-E-")) {
        assert!(line.contains("max_rate_enum"), "{line}");
    }
    let text = std::fs::read_to_string(&theirs).unwrap();
    let (ours, theirs) = (values(&settings.render()), values(&text));
    assert!(theirs.len() > 140, "{text}");
    let theirs: Vec<_> = theirs.into_iter().filter(|pair| !is_other_sl(&pair.1, &pair.0)).collect();
    for pair in &theirs {
        assert!(ours.contains(pair), "{pair:?}");
    }
    let Parsed { settings: back, remarks, .. } = parse_text(&text).unwrap();
    assert_eq!((back, remarks), (settings, vec![]));
}

/// If one of the four keys of an SL is set, OpenSM writes all four.
fn is_other_sl(value: &str, key: &str) -> bool {
    key.starts_with("cc_ca_cong_setting_") && value.ends_with(" 0")
}

/// The guide for operators who migrate from OpenSM.
const GUIDE: &str = include_str!("../../../../docs/migrate-from-opensm.md");

#[test]
fn the_guide_lists_exactly_the_keys_without_effect() {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for key in Settings::keys() {
        let reason = match key.effect {
            Effect::Acts => continue,
            Effect::Idle(why) => format!("no effect: {why}"),
        };
        let name = format!("`{}`", key.name);
        match rows.iter_mut().find(|(same, _)| *same == reason) {
            Some((_, names)) => names.push(name),
            None => rows.push((reason, vec![name])),
        }
    }
    let row = |(why, names): &(String, Vec<String>)| format!("| {} | {why} |", names.join(", "));
    let wanted: Vec<String> = rows.iter().map(row).collect();
    let table = GUIDE.lines().skip_while(|line| !line.starts_with("| key | set to")).skip(2);
    let found: Vec<&str> = table.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(found, wanted, "write\n{}", wanted.join("\n"));
    for (old, _) in RENAMED.iter().chain(GONE) {
        assert!(GUIDE.contains(&format!("`{old}`")), "{old}");
    }
}
