//! Tests which files are accepted and which are rejected.

use super::*;

fn error(text: &str) -> String {
    Config::parse(text).unwrap_err().to_string()
}

/// The example of torus-2QoS.conf(5).
#[test]
fn the_manuals_example_is_read() {
    let text = "\
# Look for a 2D (since x radix is one) 4x5 torus.
torus 1 4 5

yp_link 0x200000 0x200005  # sw @ y=0,z=0 -> sw @ y=1,z=0
ym_link 0x200000 0x20000f  # sw @ y=0,z=0 -> sw @ y=3,z=0
  zp_link 0x200000 0x200001  # sw @ y=0,z=0 -> sw @ y=0,z=1

next_seed

yp_link 0x20000b 0x200010
ym_link 0x20000b 0x200006
zp_link 0x20000b 0x20000c

y_dateline -2  # Move the dateline for this seed
z_dateline -1  # back to its original position.
port_order 7 10 8 7 11 # as cabled
";
    let config = Config::parse(text).unwrap();
    assert_eq!(config.shape, Shape::new([1, 4, 5], [false, true, true]));
    let guid = |guid| Some(Guid(guid));
    let [first, second] = &config.seeds[..] else { panic!("{config:?}") };
    let to = [None, None, guid(0x20000f), guid(0x200005), None, guid(0x200001)];
    assert_eq!(*first, Seed { from: Guid(0x200000), to, datelines: [0; 3] });
    assert_eq!((second.from, second.datelines), (Guid(0x20000b), [0, -2, -1]));
    assert_eq!((first.place(&config.shape), second.place(&config.shape)), ([0; 3], [0, 2, 1]));
    let switches = second.switches(&config.shape);
    assert!(switches.contains(&(Guid(0x200010), [0, 3, 1])), "{switches:?}");
    assert_eq!(config.port_order, [7, 10, 8, 11]);
    assert_eq!((config.portgroup_max_ports, config.max_changes), (16, 32));
}

#[test]
fn a_radix_may_differ_from_the_rest() {
    let links = "xp_link 1 2\nyp_link 1 3\nzp_link 1 4\n";
    let shape = |line: &str| Config::parse(&format!("{line}\n{links}")).unwrap().shape;
    assert_eq!(shape("mesh 3T 4 5"), shape("torus 3 4M 5m"));
    // Two switches in a row are no ring, however they are cabled.
    assert_eq!(shape("torus 2t 3 5"), shape("torus 2m 3 5"));
    assert!(Config::parse("mesh 3 4 1\nxp_link 01 0x2\nyp_link 1 3").is_ok());
}

#[test]
fn numbers_prevail_when_repeated_and_default_otherwise() {
    let text = "portgroup_max_ports 20\nmax_changes 5\ntorus 5 1 1\nxm_link 1 2\nmax_changes 6";
    let config = Config::parse(text).unwrap();
    assert_eq!((config.portgroup_max_ports, config.max_changes), (20, 6));
}

#[test]
fn a_line_that_makes_no_sense_is_an_error_with_its_number() {
    for (text, reason) in [
        ("", "1: no shape; write 'torus' or 'mesh' and three radices, such as 'torus 8 8 8'"),
        ("torus 3 3", "1: 'torus' needs a radix for each of x, y and z (1 for an unused axis)"),
        (
            "torus 3 0 3",
            "1: '0' is not a radix; write a number from 1 to 254, then t for a ring or m for a \
             line",
        ),
        ("mesh 90 90 90", "1: 729000 switches are more than the 16384 that can be routed"),
        (
            "mesh 3 3 3\n\ntorus 3 3 3",
            "3: the shape is given twice; keep one line of 'torus' or 'mesh'",
        ),
        (
            "# x\nx_dateline 1",
            "2: 'x_dateline' before the shape; begin with 'torus' or 'mesh' and three radices",
        ),
        (
            "torus 5 5 1\nxq_link 1 2",
            "2: unknown keyword 'xq_link'; write one of torus, mesh, xp_link, xm_link, yp_link, \
             ym_link, zp_link, zm_link, x_dateline, y_dateline, z_dateline, next_seed, \
             portgroup_max_ports, port_order, max_changes",
        ),
        ("torus 5 5 1\nxp_link 1 # 2", "2: 'xp_link' needs the GUIDs of two switches"),
        (
            "torus 5 5 1\nxp_link 1 x2",
            "2: 'x2' is not a switch GUID; write one such as 0x0002c90300000001",
        ),
        (
            "torus 5 5 1\nxp_link 1 3\nyp_link 1 4\nzp_link 1 2",
            "2: z has radix 1, so no link leads along it; remove 'zp_link' and 'zm_link'",
        ),
        (
            "torus 5 5 1\nxp_link 1 2\nyp_link 3 1",
            "3: all links of a seed start at one switch; write 0x0000000000000001 first, not \
             0x0000000000000003",
        ),
        (
            "torus 5 5 1\nx_dateline 5",
            "2: '5' is not a position of the x dateline; write a number from -4 to 4",
        ),
        (
            "torus 5 5 1\n# no more\n",
            "2: no seed; write a link along each axis, such as 'xp_link 0x2000 0x2001'",
        ),
        (
            "torus 5 5 1\nxp_link 1 2",
            "2: this seed has no link along y; add 'yp_link' or 'ym_link'",
        ),
        (
            "torus 5 5 1\nxp_link 1 2\nyp_link 1 3\nnext_seed",
            "4: no seed; write a link along each axis, such as 'xp_link 0x2000 0x2001'",
        ),
        (
            "torus 5 4 1\nxp_link 1 2\nyp_link 1 3",
            "2: y is a ring of four switches, which needs both 'yp_link' and 'ym_link' in each \
             seed",
        ),
        (
            "mesh 5 5 1\nxm_link 1 2\nyp_link 1 3",
            "2: 'xm_link' leads out of the mesh: this seed is at x=0; move it by 'x_dateline'",
        ),
        (
            "torus 5 5 1\nxp_link 1 2\nyp_link 1 2",
            "2: 0x0000000000000002 is in two places of this seed; each link must lead to a \
             different switch",
        ),
        (
            "torus 2 5 1\nxp_link 1 2\nxm_link 1 4\nyp_link 1 3",
            "2: 0x0000000000000004 and 0x0000000000000002 are at the same place in this seed; \
             keep one of them",
        ),
    ] {
        assert_eq!(error(text), reason);
    }
}

/// `sm-core/tests/it/interop_files.rs` compares this with OpenSM.
#[test]
fn odd_lines_are_read_as_by_opensm_and_reported() {
    let text = "xp_link 0x1 0x2\nyp_link 1 3\nyp_link 1 4z\nmesh 3tm 5 1 9\nx_dateline 01\n\
                y_dateline -0x2\nmax_changes few\nport_order 3 x 3 1\n";
    let mut reported = Vec::new();
    let config =
        Config::parse_and_report(text, &mut |line, odd| reported.push(format!("{line}: {odd}")));
    let config = config.unwrap();
    assert_eq!(config.shape, Shape::new([3, 5, 1], [true, false, false]));
    let up_y = config.seeds[0].to[Direction::new(1, true).index()];
    assert_eq!((up_y, config.seeds[0].datelines), (Some(Guid(4)), [1, -2, 0]));
    assert_eq!((config.max_changes, config.port_order), (MAX_CHANGES, vec![3, 1]));
    let expected = [
        "3: '4z' ends in 'z', which is ignored",
        "3: 'yp_link' is given twice in this seed and the later one is used; is 'next_seed' \
         missing?",
        "4: '3tm' ends in 'm', which is ignored",
        "7: 'few' is not a number for 'max_changes'; the default is used",
        "8: 'x' is not a port and is ignored",
        "8: port 3 is listed twice",
    ];
    assert_eq!(reported, expected);
}
