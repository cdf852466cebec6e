use super::*;
use crate::testing::DISK;

fn settings(directory: &Path) -> Settings {
    let file = |name| {
        let path = directory.join(name);
        std::fs::write(&path, "# nothing\n").unwrap();
        Some(path.to_string_lossy().into_owned())
    };
    Settings {
        partition_config_file: file("partitions"),
        prefix_routes_file: file("routes"),
        ..Settings::default()
    }
}

#[test]
fn a_broken_file_leaves_the_policy_in_force_and_is_reported_until_corrected() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path());
    let write = |name, text| std::fs::write(directory.path().join(name), text).unwrap();
    write("partitions", "A=0x10 : ALL=full ;\n");
    write("routes", "* 0x1\n");
    let (policy, reading) = SitePolicy::load(&settings, DISK).unwrap();
    assert_eq!((policy.partitions.partitions().len(), policy.prefix_routes.len()), (2, 1));
    assert!(reading.remarks.is_empty());
    assert!(reading.taken[0].contains("partitions: 2, "), "{:?}", reading.taken);
    assert!(reading.taken[1].ends_with("prefix routes: 1"), "{:?}", reading.taken);

    write("partitions", "A=0x10 : ALL=full ;\nB=0x11 : 0c42 ;\n");
    write("routes", "* 0x1\n* 0x2\n");
    for _ in 0..2 {
        let (next, Reading { errors, .. }) = policy.reload(&settings, DISK);
        assert_eq!(next.partitions, policy.partitions);
        assert_eq!(next.prefix_routes.len(), 2, "the other file is taken");
        let path = directory.path().join("partitions");
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert!(error.to_string().starts_with(&format!("{}:2: ", path.display())), "{error}");
    }
    let (open, Reading { errors, .. }) = SitePolicy::load(&settings, DISK).unwrap();
    assert!(matches!(errors[..], [PolicyError::Partitions { line: 2, .. }]), "{errors:?}");
    assert_eq!(*open.partitions, PartitionConfig::default(), "as OpenSM begins");
    assert!(open.instead_of(&errors[0]).starts_with("all ports are full members"));
    assert_eq!(policy.instead_of(&errors[0]), "what was read before is in force");

    write("partitions", "B=0x11 : 0xc42, SELF=ful ;\n");
    let (next, Reading { errors, remarks, .. }) = policy.reload(&settings, DISK);
    assert!(errors.is_empty() && remarks.is_empty(), "{errors:?} {remarks:?}");
    assert_eq!(next.partitions.partitions()[1].name, "B");
    let (same, again) = next.reload(&settings, DISK);
    assert!(again.taken.is_empty(), "{:?}", again.taken);
    assert!(Arc::ptr_eq(&same.partitions, &next.partitions), "unchanged content is shared");
}

#[test]
fn a_qos_policy_counts_with_qos_only_and_outlives_a_bad_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qos");
    let file = Some(path.to_string_lossy().into_owned());
    let off = Settings { qos_policy_file: file, ..settings(directory.path()) };
    std::fs::write(&path, "qos-ulps\nsdp: 1\nend-qos-ulps\n").unwrap();
    assert_eq!(SitePolicy::load(&off, DISK).unwrap().0.qos, None);

    let on = Settings { qos: true, ..off };
    let (policy, _) = SitePolicy::load(&on, DISK).unwrap();
    assert_eq!(policy.qos.as_ref().unwrap().ulps.len(), 1);
    std::fs::write(&path, "qos-ulps\nsdp: 1\nsdp: 16\nend-qos-ulps\n").unwrap();
    let (kept, Reading { errors, .. }) = policy.reload(&on, DISK);
    assert_eq!(kept.qos, policy.qos);
    let expected = format!("{}:3: the SL takes a service level of 0 to 15, not 16", path.display());
    assert_eq!(errors[0].to_string(), expected);

    assert_eq!(policy.instead_of(&errors[0]), "what was read before is in force");

    // Regression: the error was reported twice at start, once with the text
    // for previous content.
    let (without, Reading { remarks, errors, .. }) = SitePolicy::load(&on, DISK).unwrap();
    assert_eq!(without.qos, None, "it comes up without");
    assert!(!remarks.iter().any(|remark| remark.contains(":3: ")), "{remarks:?}");
    assert_eq!((errors[0].to_string(), errors.len()), (expected, 1));
    assert_eq!(without.instead_of(&errors[0]), "QoS has no rules");
}

#[test]
fn virtual_fabrics_are_read_where_a_file_is_named_and_outlive_a_bad_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("opafm.xml");
    let file = Some(path.to_string_lossy().into_owned());
    let settings = Settings { vfabric_config_file: file, ..settings(directory.path()) };
    let expected = format!(
        "virtual fabrics (--vfabrics, vfabric_config_file): {}: No such file or directory (os \
         error 2)",
        path.display()
    );
    assert_eq!(SitePolicy::load(&settings, DISK).unwrap_err().to_string(), expected);
    let text = include_str!("../../../tests/policy/virtual-fabrics.xml");
    std::fs::write(&path, text).unwrap();
    let (policy, _) = SitePolicy::load(&settings, DISK).unwrap();
    assert_eq!(policy.virtual_fabrics.as_ref().unwrap().virtual_fabrics.len(), 4);
    std::fs::write(&path, text.replace("<BaseSL>3<", "<BaseSL>33<")).unwrap();
    let (kept, Reading { errors, .. }) = policy.reload(&settings, DISK);
    assert_eq!(kept.virtual_fabrics, policy.virtual_fabrics);
    let expected =
        format!("{}:34: BaseSL takes a service level of 0 to 15, not '33'", path.display());
    assert_eq!(errors[0].to_string(), expected);
    std::fs::write(&path, text).unwrap();
    let named =
        |name: &str| Settings { vfabric_instance: Some(name.to_owned()), ..settings.clone() };
    assert!(SitePolicy::load(&named("fm0"), DISK).is_ok());
    let other = SitePolicy::load(&named("fm1"), DISK).unwrap_err().to_string();
    assert!(other.contains("Name 'fm1'"), "{other}");
    let elsewhere = Settings { subnet_prefix: 7, ..settings };
    let other = SitePolicy::load(&elsewhere, DISK).unwrap_err().to_string();
    assert!(other.contains("SubnetPrefix 0x0000000000000007"), "{other}");
}

/// OpenSM starts without these files and reports it, except for partitions.
#[test]
fn a_missing_file_is_reported_with_its_option() {
    let directory = tempfile::tempdir().unwrap();
    let all = Settings { qos: true, ..settings(directory.path()) };
    let nowhere = || Some(directory.path().join("nofile").to_string_lossy().into_owned());
    let qos = Settings { qos_policy_file: nowhere(), ..all.clone() };
    for (option, named, instead) in [
        ("-P/", Settings { partition_config_file: nowhere(), ..qos.clone() }, "all ports"),
        ("--prefix", Settings { prefix_routes_file: nowhere(), ..qos.clone() }, "there are no"),
        ("-Y/", qos.clone(), "QoS has no rules"),
    ] {
        let (policy, reading) = SitePolicy::load(&named, DISK).unwrap();
        let error = &reading.errors[0];
        assert!(error.path().ends_with("nofile"), "{error}");
        assert!(error.to_string().contains(&format!("({option}")), "{error}");
        assert!(policy.instead_of(error).starts_with(instead), "{error}");
        let (_, again) = policy.reload(&named, DISK);
        assert_eq!(
            again.errors.len(),
            reading.errors.len(),
            "an error is reported as long as it persists"
        );
    }
    let off = Settings { qos: false, ..qos };
    assert!(
        SitePolicy::load(&off, DISK).unwrap().1.errors.is_empty(),
        "it is not read without QoS"
    );
}

#[test]
fn a_partition_file_that_vanishes_opens_nothing_and_an_empty_one_does() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path());
    let path = directory.path().join("partitions");
    std::fs::write(&path, "A=0x10 : ALL=full ;\n").unwrap();
    let (policy, ..) = SitePolicy::load(&settings, DISK).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (kept, Reading { errors, .. }) = policy.reload(&settings, DISK);
    assert_eq!(kept.partitions, policy.partitions);
    assert!(matches!(errors[..], [PolicyError::Gone { .. }]));

    std::fs::write(&path, "# nothing\n").unwrap();
    let (open, Reading { errors, .. }) = policy.reload(&settings, DISK);
    assert_eq!((&*open.partitions, errors.len()), (&PartitionConfig::default(), 0));
}
