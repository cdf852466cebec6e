//! Clients attached to ports: which of them receives a packet.

use super::*;

#[test]
fn answers_find_their_asker_among_several_clients_of_a_port() {
    let mut bench = Bench::configured();
    let other = bench.attach("H1");
    assert_eq!((bench.manager.id(), other.id()), (0, 1));
    let mut packet = bench.by_lid(AttributeId::NODE_INFO, 2);
    Smp::of_mut(&mut packet.mad).set_tid(0xFFFF_0000_0000_0077);
    let now = bench.now();
    bench.fabric.send(now, other, &packet);
    let delivery = bench.poll().remove(0);
    assert_eq!(delivery.endpoint, other);
    assert_eq!(Smp::of(&delivery.packet.mad).tid(), 0x0001_0000_0000_0077);
}

#[test]
fn requests_go_to_the_client_that_declared_their_class_before_others() {
    let mut bench = Bench::configured();
    let (all, sa, qp) = (bench.attach("H2"), bench.attach("H2"), bench.attach("H2"));
    bench.send(&gmp(MgmtClass::SUBN_ADM, 4));
    assert_eq!(bench.dropped(DropReason::NoClient), 1);
    bench.fabric.set_takes_requests(all, true);
    bench.fabric.declare(sa, &[MgmtClass::SUBN_ADM]).unwrap();
    bench.fabric.set_qpn(qp, Qpn(77));
    let receiver = |bench: &mut Bench, packet: &Packet| {
        bench.send(packet);
        bench.poll().remove(0).endpoint
    };
    assert_eq!(receiver(&mut bench, &gmp(MgmtClass::SUBN_ADM, 4)), sa);
    assert_eq!(receiver(&mut bench, &gmp(MgmtClass::COM_MGT, 4)), all);
    let mut packet = gmp(MgmtClass::SUBN_ADM, 4);
    packet.address.qpn = Qpn(77);
    assert_eq!(receiver(&mut bench, &packet), qp);
    let taken = bench.fabric.declare(all, &[MgmtClass::SUBN_ADM]).unwrap_err();
    assert_eq!(taken.owner, sa.id());
    let now = bench.now();
    bench.fabric.detach(now, sa);
    bench.fabric.declare(all, &[MgmtClass::SUBN_ADM]).unwrap();
}

#[test]
fn clients_of_a_port_share_a_class_by_method() {
    const fn bit(method: Method) -> u128 {
        1 << method.0
    }
    let mut bench = Bench::configured();
    let (whole, asker, other) = (bench.attach("H2"), bench.attach("H2"), bench.attach("H2"));
    let sa = MgmtClass::SUBN_ADM;
    bench.fabric.declare(whole, &[sa]).unwrap();
    bench.fabric.declare_methods(asker, sa, bit(Method::REPORT)).unwrap();
    let mut report = gmp(sa, 4);
    MadHeader::new(&mut report.mad).unwrap().set_method(Method::REPORT);
    let receiver = |bench: &mut Bench, packet: &Packet| {
        bench.send(packet);
        bench.poll().remove(0).endpoint
    };
    assert_eq!(receiver(&mut bench, &report), asker);
    assert_eq!(receiver(&mut bench, &gmp(sa, 4)), whole);
    for methods in [bit(Method::REPORT), bit(Method::GET)] {
        assert!(bench.fabric.declare_methods(other, sa, methods).is_err(), "{methods:#x}");
    }
    bench.fabric.declare_methods(asker, sa, 0).unwrap();
    assert_eq!(receiver(&mut bench, &report), whole);
}

#[test]
fn a_declined_declaration_declares_nothing() {
    let mut bench = Bench::configured();
    let (first, second) = (bench.attach("H2"), bench.attach("H2"));
    bench.fabric.declare(first, &[MgmtClass::PERF]).unwrap();
    assert!(bench.fabric.declare(second, &[MgmtClass::SUBN_ADM, MgmtClass::PERF]).is_err());
    bench.send(&gmp(MgmtClass::SUBN_ADM, 4));
    assert!(bench.poll().is_empty());
}

#[test]
fn sm_info_is_answered_by_an_attached_manager_or_refused() {
    let mut bench = Bench::configured();
    let packet = bench.directed(Method::GET, AttributeId::SM_INFO, 0, &[1, 2, 1]);
    let refused = bench.ask(&packet);
    let refused = Smp::of(&refused.mad);
    assert_eq!(refused.status(), Status::UNSUPPORTED_METHOD_ATTRIBUTE);

    let standby = bench.attach("H2");
    bench.fabric.declare(standby, &[MgmtClass::SUBN_DIRECTED_ROUTE]).unwrap();
    // A client of ibsim leaves the hop pointer at 0; others leave it as received.
    for hop_pointer in [None, Some(0)] {
        bench.send(&packet);
        let mut asked = bench.poll().remove(0);
        assert_eq!(asked.endpoint, standby);
        smp::answer(&mut asked.packet.mad, Status::OK);
        if let Some(pointer) = hop_pointer {
            Smp::of_mut(&mut asked.packet.mad).set_hop_pointer(pointer);
        }
        let now = bench.now();
        bench.fabric.send(now, standby, &asked.packet);
        let answer = bench.poll().remove(0);
        assert_eq!(answer.endpoint, bench.manager);
        assert_eq!(Smp::of(&answer.packet.mad).status(), Status::OK);
    }
}
