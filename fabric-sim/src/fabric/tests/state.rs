//! Changes of port state, traps for them, and M_Key leases.

use super::*;

/// IBA 14.2.5.1.
#[test]
fn a_cut_link_is_reported_until_the_trap_is_repressed() {
    let mut bench = Bench::configured();
    let (manager, s1, now) = (bench.manager, bench.node("S1"), bench.now());
    bench.fabric.declare(manager, &[MgmtClass::SUBN_LID_ROUTED]).unwrap();
    bench.fabric.link_down(now, s1, 20).unwrap();
    let first = bench.poll();
    assert_eq!(first.len(), 1);
    let trap = &first[0].packet;
    let header = Smp::of(&trap.mad);
    assert_eq!((header.method(), trap.address.lid), (Method::TRAP, Lid(1)));
    let notice = SmNotice::new(&trap.mad[smp::DATA]).unwrap();
    assert_eq!(notice.trap_number(), TrapNumber::LINK_STATE_CHANGE);
    assert_eq!(notice.data_details()[..2], [0, 1], "LID of the switch");

    // SubnetTimeOut 18 is 1.07 s.
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.poll().is_empty());
    bench.clock.advance(Duration::from_millis(80));
    let again = bench.poll();
    assert_eq!(again[0].packet.mad, trap.mad, "the same trap again");

    let mut repress = trap.clone();
    let mut smp = Smp::of_mut(&mut repress.mad);
    let mangled = smp.tid() | 0xABCD << 32;
    smp.set_method(Method::TRAP_REPRESS).set_tid(mangled);
    bench.send(&repress);
    bench.clock.advance(Duration::from_secs(60));
    assert!(bench.poll().is_empty());
    assert_eq!(bench.fabric.counters().traps_repressed, 1);
    let view = bench.fabric.port(s1, 20).unwrap();
    assert_eq!(view.state, PortState::Down);

    let now = bench.now();
    bench.fabric.link_up(now, s1, 20).unwrap();
    assert_eq!(bench.poll().len(), 1);
    assert_eq!(bench.fabric.port(s1, 20).unwrap().state, PortState::Initialize);
}

/// A TrapRepress() of an earlier trap must not repress the trap of a later change.
#[test]
fn a_second_change_is_reported_after_the_first_is_repressed() {
    let mut bench = Bench::configured();
    let (manager, s1, now) = (bench.manager, bench.node("S1"), bench.now());
    bench.fabric.declare(manager, &[MgmtClass::SUBN_LID_ROUTED]).unwrap();
    bench.fabric.link_down(now, s1, 20).unwrap();
    let first = bench.poll().remove(0).packet;
    bench.fabric.link_up(now, s1, 20).unwrap();
    let mut repress = first.clone();
    Smp::of_mut(&mut repress.mad).set_method(Method::TRAP_REPRESS);
    bench.send(&repress);
    assert!(bench.poll().is_empty(), "not before SubnetTimeOut is over");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.poll().len(), 1);
}

#[test]
fn becoming_a_manager_shows_in_the_port_and_is_reported() {
    let mut bench = Bench::configured();
    let (manager, now) = (bench.manager, bench.now());
    bench.fabric.declare(manager, &[MgmtClass::SUBN_LID_ROUTED]).unwrap();
    let standby = bench.attach("H2");
    let is_sm = |bench: &mut Bench| {
        let data = bench.ask_directed(AttributeId::PORT_INFO, 1, &[1, 2, 1]);
        PortInfo::new(&data).unwrap().capability_mask().contains(CapabilityMask::IS_SM)
    };
    assert!(!is_sm(&mut bench));
    bench.fabric.set_is_sm(now, standby, true);
    let trap = bench.poll().remove(0).packet;
    let notice = SmNotice::new(&trap.mad[smp::DATA]).unwrap();
    assert_eq!(notice.trap_number(), TrapNumber::LOCAL_CHANGES);
    let mut repress = trap.clone();
    Smp::of_mut(&mut repress.mad).set_method(Method::TRAP_REPRESS);
    bench.send(&repress);
    assert!(is_sm(&mut bench));
    bench.fabric.detach(now, standby);
    assert_eq!(bench.poll().len(), 1, "the master is notified that the manager left");
    assert!(!is_sm(&mut bench));
}

/// IBA 14.2.4.
#[test]
fn a_protected_key_is_given_up_when_its_lease_is_over() {
    let mut bench = Bench::configured();
    let protect = |info: &mut PortInfo<&mut [u8; 64]>| {
        info.set_m_key(9).set_m_key_protect_bits(2).set_m_key_lease_period(30);
    };
    assert_eq!(bench.set_port(&[1, 20], 1, protect), Status::OK);
    let packet = bench.directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 20]);
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::BadMKey), 1);
    bench.clock.advance(Duration::from_secs(29));
    bench.poll();
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::BadMKey), 2);
    bench.clock.advance(Duration::from_secs(1));
    bench.poll();
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::BadMKey), 2);
    assert!(bench.poll().iter().any(|delivery| delivery.endpoint == bench.manager));
}
