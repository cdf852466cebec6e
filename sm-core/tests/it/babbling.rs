//! Ports that keep sending error traps: their links are disabled with `babbling_port_policy`.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::transport::{Address, Packet};
use ib_mad::types::PortNum;
use ib_mad::wire::attribute::{
    NoticeType, PortErrorDetailsRepr, PortPhysState, ProducerType, SmNoticeRepr, TrapNumber,
};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp;
use sm_config::Settings;

fn bed(policy: bool) -> Bed {
    let settings = Settings { babbling_port_policy: policy, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), settings);
    assert_eq!(bed.bring_up().errors, 0);
    bed
}

fn babble(bed: &mut Bed, node: NodeIndex, port: u8, traps: u32) {
    for _ in 0..traps {
        let now = bed.clock.now();
        bed.fabric.port_error(now, node, port, TrapNumber::LOCAL_LINK_INTEGRITY).unwrap();
        bed.run_for(Duration::from_millis(5));
    }
}

/// The last host, and the switch port that it is connected to.
fn far_host(bed: &Bed) -> (NodeIndex, NodeIndex, u8) {
    let host = *bed.hosts().last().unwrap();
    let link = bed.fabric.port(host, 1).unwrap().link.unwrap();
    (host, link.node, link.port)
}

#[test]
fn the_link_of_a_host_that_babbles_is_switched_off_at_its_switch_and_stays_off() {
    let mut bed = bed(true);
    let (host, switch, port) = far_host(&bed);
    let phys = |bed: &Bed| bed.fabric.port(switch, port).unwrap().phys_state;
    babble(&mut bed, host, 1, 250);
    assert_eq!(phys(&bed), PortPhysState::LinkUp, "not before the 251st");
    babble(&mut bed, host, 1, 1);
    bed.run_for(Duration::from_secs(2));
    assert_eq!(phys(&bed), PortPhysState::Disabled);
    assert_eq!(bed.sweeper().fabric().counts().0, 7, "the host is gone");

    // Later sweeps leave it.
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    assert_eq!(bed.bring_up().errors, 0);
    assert_eq!(phys(&bed), PortPhysState::Disabled);
}

#[test]
fn a_port_of_a_switch_is_switched_off_at_the_end_nearer_to_us() {
    let mut bed = bed(true);
    let switches = bed.switches();
    // A leaf other than the SM's, and its link to a spine, whose end is nearer to the SM.
    let (_, leaf, _) = far_host(&bed);
    let view = bed.fabric.node(leaf);
    let up = |port: &u8| {
        let link = bed.fabric.port(leaf, *port).unwrap().link;
        link.is_some_and(|link| switches.contains(&link.node))
    };
    let port = (1..=view.num_ports).find(up).unwrap();
    let far = bed.fabric.port(leaf, port).unwrap().link.unwrap();
    babble(&mut bed, leaf, port, 251);
    bed.run_for(Duration::from_secs(2));
    let at_spine = bed.fabric.port(far.node, far.port).unwrap().phys_state;
    assert_eq!(at_spine, PortPhysState::Disabled);
    assert_ne!(bed.fabric.port(leaf, port).unwrap().phys_state, PortPhysState::Disabled);
    bed.assert_all_reachable();
}

/// Regression: a host that forged the source LIDs of others could have the links of all of them
/// disabled, one after the other.
#[test]
fn few_links_are_disabled_however_many_ports_babble() {
    let mut bed = bed(true);
    for host in bed.hosts().into_iter().skip(1) {
        babble(&mut bed, host, 1, 251);
        bed.run_for(Duration::from_secs(2));
    }
    assert_eq!(bed.sweeper().fabric().counts().0, 6);
    assert_eq!(bed.sweeper().spared_babbling_links(), 5);
    bed.run_for(Duration::from_secs(3700));
    let last = *bed.hosts().last().unwrap();
    babble(&mut bed, last, 1, 251);
    bed.run_for(Duration::from_secs(2));
    assert_eq!(bed.sweeper().fabric().counts().0, 5);
}

#[test]
fn without_the_policy_ports_are_left_alone() {
    let mut bed = bed(false);
    let (host, switch, port) = far_host(&bed);
    babble(&mut bed, host, 1, 300);
    assert_eq!(bed.fabric.port(switch, port).unwrap().phys_state, PortPhysState::LinkUp);
}

/// Regression: any host could have the link of another one disabled by traps in its name.
#[test]
fn traps_about_another_port_disable_nothing() {
    let mut bed = bed(true);
    let (victim, switch, port) = far_host(&bed);
    let lid_of = |bed: &Bed, host| bed.fabric.port(host, 1).unwrap().lid;
    let (victim, forger) = (lid_of(&bed, victim), lid_of(&bed, bed.hosts()[1]));
    let details = PortErrorDetailsRepr { lid: victim, port_num: PortNum(1) };
    let notice = SmNoticeRepr {
        is_generic: true,
        notice_type: NoticeType::URGENT,
        producer_type: ProducerType::CA,
        trap_number: TrapNumber::LOCAL_LINK_INTEGRITY,
        issuer_lid: victim,
        notice_toggle: false,
        notice_count: 0,
        data_details: details.to_bytes(),
    };
    for tid in 0..300 {
        let mut packet = Packet::to(Address::smi(forger));
        let (method, attribute_id) = (Method::TRAP, AttributeId::NOTICE);
        smp::Request { method, attribute_id, attribute_modifier: 0, tid, m_key: 0 }
            .write_lid_routed(&mut packet.mad);
        packet.mad[smp::DATA].copy_from_slice(&notice.to_bytes());
        let now = bed.clock.now();
        bed.managers[0].sweeper.handle_packet(now, &mut packet);
    }
    bed.run_for(Duration::from_secs(2));
    assert_eq!(bed.fabric.port(switch, port).unwrap().phys_state, PortPhysState::LinkUp);
    assert_eq!(bed.sweeper().forged_error_traps(), 300);
}
