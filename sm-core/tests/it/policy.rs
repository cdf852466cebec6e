//! QoS policy and virtual fabrics in force: P_Key tables of a simulated fabric in virtual time, and
//! the rows that responders get.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Bed, fat_tree};
use sa_proto::snapshot::RuleOrigin;
use sm_config::opafm::{self, Instance, OpaFm};
use sm_config::qos_policy::{self, QosPolicy};
use sm_config::{Settings, SitePolicy};
use sm_core::fabric::PolicyRows;
use sm_core::manage::policy::{self, InForce};

fn virtual_fabrics(text: &str) -> Arc<OpaFm> {
    let remark = &mut |line, remark: &str| panic!("{line}: {remark}");
    Arc::new(opafm::parse(Path::new("opafm.xml"), text, &Instance::default(), remark).unwrap())
}

fn qos(text: &str) -> Arc<QosPolicy> {
    Arc::new(qos_policy::parse(Path::new("qos-policy.conf"), text).unwrap())
}

fn rows(bed: &Bed, site: &SitePolicy, settings: &Settings) -> (PolicyRows, Vec<String>) {
    let sweeper = &bed.managers[0].sweeper;
    policy::rows(&InForce {
        fabric: sweeper.fabric(),
        settings,
        site,
        partitions: sweeper.partitions(),
        memberships: sweeper.memberships(),
        virtual_fabrics: sweeper.virtual_fabrics(),
    })
}

const FABRICS: &str = "<Config><Common><VirtualFabrics><VirtualFabric><Name>Storage</Name>\
    <PKey>0x5</PKey><Security>1</Security><Member>Self</Member><LimitedMember>AllFIs\
    </LimitedMember><Application>Storage</Application></VirtualFabric></VirtualFabrics></Common>\
    </Config>";

#[test]
fn virtual_fabrics_are_partitions_of_ports_and_go_with_their_file() {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    let file = virtual_fabrics(FABRICS);
    bed.managers[0].sweeper.set_virtual_fabrics(Some(file));
    bed.bring_up();
    let tables = |bed: &Bed| -> Vec<Vec<u16>> {
        let of = |host| bed.fabric.pkeys(host, 1).unwrap().iter().map(|key| key.0).collect();
        let mut tables: Vec<Vec<u16>> = bed.hosts().into_iter().map(of).collect();
        tables.iter_mut().for_each(|keys| keys.retain(|key| key & 0x7FFF == 5));
        tables.sort_unstable();
        tables
    };
    let mut expected = vec![vec![0x0005]; 7];
    expected.push(vec![0x8005]);
    assert_eq!(tables(&bed), expected, "the SM's port is the full member");
    let site = SitePolicy::default();
    let (rows, remarks) = rows(&bed, &site, bed.managers[0].sweeper.settings());
    assert!(remarks.is_empty(), "{remarks:?}");
    assert_eq!(rows.virtual_fabrics[0].pkey.0, 5);
    assert!(rows.partitions.iter().any(|partition| partition.name == "Storage"));
    assert!(rows.qos_rules.iter().all(|rule| rule.origin == RuleOrigin::VirtualFabric));

    bed.managers[0].sweeper.set_virtual_fabrics(None);
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert!(tables(&bed).iter().all(Vec::is_empty), "{:?}", tables(&bed));
}

#[test]
fn a_qos_policy_counts_with_qos_and_comes_behind_virtual_fabrics() {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    let file = virtual_fabrics(FABRICS);
    bed.managers[0].sweeper.set_virtual_fabrics(Some(file));
    bed.bring_up();
    let text = "port-groups port-group\nname: In5\npkey: 5\nend-port-group port-group\nname: SM\n\
                node-type: SELF\nend-port-group end-port-groups\nqos-ulps\nsdp: 2\nend-qos-ulps";
    let mut site = SitePolicy::default();
    site.qos = Some(qos(text));
    let with = |qos| rows(&bed, &site, &Settings { qos, ..Settings::default() }).0;
    let (off, on) = (with(false), with(true));
    assert_eq!(on.qos_rules.len(), off.qos_rules.len() + 1);
    assert_eq!(on.qos_rules.last().unwrap().origin, RuleOrigin::Ulp);
    let group = |name: &str| on.port_groups.iter().find(|group| group.name == name).unwrap();
    assert_eq!((group("In5").ports.len(), group("SM").ports.len()), (8, 1));
    assert!(on.qos && !off.qos);
}

/// Regression: hosts could not join a group whose MTU exceeds that of their links, and nothing
/// reported it.
#[test]
fn a_group_whose_mtu_is_beyond_its_members_links_is_remarked_on() {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    let with_mtu = |mtu: u8| {
        let text = format!("Default=0x7fff, ipoib, mtu={mtu} : ALL=full ;");
        let mut none = sm_config::Remarks::default();
        Arc::new(sm_config::partitions::parse(Path::new("p"), &text, &mut none).unwrap())
    };
    let mut remarks = |mtu| {
        bed.managers[0].sweeper.set_partitions(with_mtu(mtu));
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.bring_up();
        rows(&bed, &SitePolicy::default(), &Settings::default()).1
    };
    assert_eq!(remarks(4), [""; 0], "2048 bytes is what they carry");
    let [remark] = &remarks(5)[..] else { panic!("one group") };
    assert!(remark.contains("MTU 4096") && remark.contains("8 of its 8 members"), "{remark}");
}
