//! Tests odd and old files, and files that change.

use super::*;
use crate::testing::DISK;

/// Returns the content of `text` and the remarks on it, or the line and reason of its rejection.
fn read<T>(parse: Parse<T>, text: &str) -> Result<(T, Vec<String>), Malformed> {
    let mut remarks = Remarks::default();
    let (content, _) = parse(Path::new("f"), text, &mut remarks)?;
    Ok((content, remarks.into_lines()))
}

fn all<T>(lines: Vec<GuidLine<T>>) -> Vec<(usize, u64, T)> {
    lines.into_iter().map(|line| (line.line, line.guid.0, line.value)).collect()
}

#[test]
fn guids_are_read_as_opensm_reads_them() {
    let text =
        "\n# roots\n  0x2c9 spine 1\n\t0X2CA\t# second\r\n0x2cb#third\n713\n0010\n2c9c\n0x10";
    let (lines, remarks) = read(parse::guids, text).unwrap();
    let expected = [0x2c9, 0x2ca, 0x2cb, 713, 8, 0x2c9c, 0x10];
    let guids: Vec<u64> = lines.iter().map(|line| line.guid.0).collect();
    assert_eq!(guids, expected, "as strtoull with base 0 does, or else hexadecimal");
    assert_eq!((lines[0].line, lines[6].line), (3, 9));
    // A GUID of digits without 0x is probably not meant as it is read.
    assert_eq!(
        remarks,
        [
            "f:6: '713' has no 0x and is read as GUID 0x00000000000002c9, as by OpenSM",
            "f:7: '0010' has no 0x and is read as GUID 0x0000000000000008, as by OpenSM",
        ]
    );
}

#[test]
fn a_line_without_a_guid_is_an_error_with_its_number() {
    for (text, line, word) in [
        ("0x1\nspine", 2, "spine"),
        ("0x2,0x3", 1, "0x2,0x3"),
        ("0x", 1, "0x"),
        ("-1", 1, "-1"),
        ("+1", 1, "+1"),
        ("0x12345678123456781", 1, "0x12345678123456781"),
    ] {
        let reason = format!(
            "'{word}' is not a GUID; the line must begin with one, such as 0x0002c90300000001"
        );
        assert_eq!(read(parse::guids, text), Err((line, reason)), "{text}");
    }
}

#[test]
fn ids_are_numbers_or_0() {
    let (lines, _) = read(parse::ids, "0x1 5 five\n0x2 0x10\n0x3\n").unwrap();
    assert_eq!(all(lines), [(1, 1, 5), (2, 2, 16), (3, 3, 0)]);
    let reason = "'5a' is not an id; add a number after the GUID".to_owned();
    assert_eq!(read(parse::ids, "0x1 5\n0x2 5a\n"), Err((2, reason)));
}

#[test]
fn hop_weights_are_of_a_port_and_from_1_to_255() {
    let text =
        "0x1 3 2\n0x1 4,0x10 # costly\n0x1 0 2\n0x1 5 256\n0x1 6\n0x1 7 0\n0x1\n0x2 010 1 9\n";
    let (lines, remarks) = read(parse::hop_weights, text).unwrap();
    let weight = |port, weight| PortWeight { port, weight };
    let expected = [(1, 1, weight(3, 2)), (2, 1, weight(4, 16)), (8, 2, weight(8, 1))];
    assert_eq!(all(lines), expected);
    let wrong = "line ignored: no weight; add one from 1 to 255 after the port";
    let no_port = |word| format!("line ignored: '{word}' is not a port number (1 to 254)");
    let expected = [
        format!("f:3: {}", no_port("0")),
        format!("f:4: {wrong}"),
        format!("f:5: {wrong}"),
        format!("f:6: {wrong}"),
        format!("f:7: {}", no_port("")),
    ];
    assert_eq!(remarks, expected);
}

#[test]
fn a_port_order_with_a_typo_is_ignored_whole() {
    let text = "0x1 3 1\t2 # up\n0x2 3,1\n0x3 4 4\n0x4\n0x5 0x1f\n";
    let (lines, remarks) = read(parse::port_orders, text).unwrap();
    assert_eq!(all(lines), [(1, 1, vec![3, 1, 2]), (5, 5, vec![31])]);
    assert_eq!(
        remarks,
        [
            "f:2: line ignored: ',1' is not a port number (1 to 254)",
            "f:3: line ignored: port 4 is listed twice",
            "f:4: line ignored: no port",
        ]
    );
    let (lines, _) = read(parse::ignored_ports, "0x1 24 internal\n0x2 x\n").unwrap();
    assert_eq!(all(lines), [(1, 1, 24)]);
}

fn settings(directory: &Path, text: &str) -> Settings {
    let path = directory.join("roots");
    std::fs::write(&path, text).unwrap();
    Settings { root_guid_file: Some(path.to_string_lossy().into_owned()), ..Settings::default() }
}

fn reading(files: &mut RoutingFiles, settings: &Settings) -> (Vec<String>, usize) {
    let (mut remarks, mut errors) = (Remarks::default(), Vec::new());
    let read = &|path: &Path, named_by| read_text(path, named_by, DISK);
    files.read(settings, &mut remarks, &mut errors, read);
    (errors.iter().map(ToString::to_string).collect(), remarks.into_lines().len())
}

#[test]
fn a_broken_or_missing_file_keeps_its_content_and_an_unconfigured_one_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path(), "0x1\n0x2\n");
    let path = directory.path().join("roots");
    let mut files = RoutingFiles::default();
    assert_eq!(reading(&mut files, &settings), (vec![], 0));
    let first = files.roots.clone().unwrap();
    assert_eq!(first.content.len(), 2);

    std::fs::write(&path, "0x1\nroot\n").unwrap();
    let (errors, _) = reading(&mut files, &settings);
    assert!(errors[0].starts_with(&format!("{}:2: 'root' is not a GUID", path.display())));
    std::fs::remove_file(&path).unwrap();
    let (errors, _) = reading(&mut files, &settings);
    assert!(errors[0].contains("roots no longer exists"), "{errors:?}");
    assert!(Arc::ptr_eq(files.roots.as_ref().unwrap(), &first));

    std::fs::write(&path, "0x3\n").unwrap();
    reading(&mut files, &settings);
    assert_eq!(files.roots.as_ref().unwrap().content[0].guid, Guid(3));
    reading(&mut files, &Settings::default());
    assert_eq!(files, RoutingFiles::default());
}

#[test]
fn a_missing_file_does_not_keep_the_subnet_down() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path(), "");
    std::fs::remove_file(directory.path().join("roots")).unwrap();
    let partitions = directory.path().join("partitions");
    std::fs::write(&partitions, "").unwrap();
    let settings = Settings {
        partition_config_file: Some(partitions.to_string_lossy().into_owned()),
        ..settings
    };
    let (policy, reading) = super::super::SitePolicy::load(&settings, DISK).unwrap();
    let error = reading.errors[0].to_string();
    assert!(error.starts_with("root switches (-a/--root_guid_file, root_guid_file): /"), "{error}");
    assert_eq!(policy.instead_of(&reading.errors[0]), "routing continues without it");
}

#[test]
fn a_torus_is_read_for_its_engine_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("torus");
    std::fs::write(&path, "torus 3 3 1\nxp_link 0x1 0x2\nyp_link 0x1 0x4\n").unwrap();
    let torus_config = Some(path.to_string_lossy().into_owned());
    let mut settings = Settings { torus_config, ..Settings::default() };
    let mut files = RoutingFiles::default();
    reading(&mut files, &settings);
    assert_eq!(files.torus, None);
    settings.set("routing_engine", "updn, Torus-2qos").unwrap();
    assert_eq!(reading(&mut files, &settings), (vec![], 0));
    assert_eq!(files.torus.as_ref().unwrap().content.seeds.len(), 1);
    std::fs::write(&path, "torus 3 3 1\nxp_lnk 0x1 0x2\n").unwrap();
    let (errors, _) = reading(&mut files, &settings);
    assert!(errors[0].contains("torus:2: unknown keyword 'xp_lnk'"), "{errors:?}");
}

/// The digest is on disk, in `STATE/routing`: if an upgrade changed it, routes of the previous
/// version would be recomputed at the next start.
#[test]
fn the_digest_of_equal_options_is_the_same_in_every_version() {
    let digest = |set: &[(&str, &str)]| {
        let mut settings = Settings::default();
        for (key, text) in set {
            assert_eq!(settings.set(key, text), Ok(true), "{key}");
        }
        RoutingFiles::default().digest(&settings)
    };
    for (set, expected) in [
        (&[][..], 0x07c6_f6a9_8583_cd7c),
        (&[("connect_roots", "TRUE")], 0x5c1f_143f_846b_122d),
        (&[("max_reverse_hops", "300")], 0xffd8_df2c_2ca8_979d),
        (&[("do_mesh_analysis", "TRUE"), ("lash_start_vl", "2")], 0xc49e_e655_3940_fb26),
        (&[("nue_max_num_vls", "4"), ("nue_include_switches", "TRUE")], 0x98b3_6ad1_e4c6_4d77),
        (&[("port_shifting", "TRUE"), ("scatter_ports", "7")], 0xcb6e_5f06_ab76_b26e),
        (&[("guid_routing_order_no_scatter", "TRUE")], 0x7c2a_1b82_d2a1_ff94),
        // Not an option of engines.
        (&[("sm_priority", "9")], 0x07c6_f6a9_8583_cd7c),
    ] {
        assert_eq!(digest(set), expected, "{set:?}: {:#018x}", digest(set));
    }
}
