//! The performance manager on a simulated fabric, against the simulator's own counts.

use sm_core::querier::Querier;
use std::time::Duration;

use fabric_sim::{CounterSupport, Delivery, Endpoint, NodeIndex, PortCounter, Probability};
use ib_mad::transport::Address;
use ib_mad::transport::Packet;
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::mad::{MadHeader, Method, MgmtClass};
use ib_mad::wire::perf::{self, PortCounters};
use sa_proto::snapshot::FabricPlane;
use sm_config::Settings;
use sm_core::perf::{Counter, PerfManager, PerfSettings};

use crate::common::{Bed, fat_tree};

/// The counters that packets of this test do not increase, with the simulator's names.
const QUIET: [(Counter, PortCounter); 22] = [
    (Counter::SymbolError, PortCounter::SymbolErrorCounter),
    (Counter::LinkErrorRecovery, PortCounter::LinkErrorRecoveryCounter),
    (Counter::LinkDowned, PortCounter::LinkDownedCounter),
    (Counter::RcvErrors, PortCounter::PortRcvErrors),
    (Counter::RcvRemotePhysicalErrors, PortCounter::PortRcvRemotePhysicalErrors),
    (Counter::RcvSwitchRelayErrors, PortCounter::PortRcvSwitchRelayErrors),
    (Counter::XmitDiscards, PortCounter::PortXmitDiscards),
    (Counter::XmitConstraintErrors, PortCounter::PortXmitConstraintErrors),
    (Counter::RcvConstraintErrors, PortCounter::PortRcvConstraintErrors),
    (Counter::LocalLinkIntegrityErrors, PortCounter::LocalLinkIntegrityErrors),
    (Counter::ExcessiveBufferOverrunErrors, PortCounter::ExcessiveBufferOverrunErrors),
    (Counter::Vl15Dropped, PortCounter::Vl15Dropped),
    (Counter::XmitWait, PortCounter::PortXmitWait),
    (Counter::Qp1Dropped, PortCounter::Qp1Dropped),
    (Counter::LocalPhysicalErrors, PortCounter::PortLocalPhysicalErrors),
    (Counter::LoopingErrors, PortCounter::PortLoopingErrors),
    (Counter::InactiveDiscards, PortCounter::PortInactiveDiscards),
    (Counter::SwHoqLifetimeLimitDiscards, PortCounter::PortSwHoqLifetimeLimitDiscards),
    (Counter::FecCorrectedBlocks, PortCounter::PortFecCorrectableBlockCtr),
    (Counter::FecUncorrectableBlocks, PortCounter::PortFecUncorrectableBlockCtr),
    (Counter::FecCorrectedSymbols, PortCounter::PortFecCorrectedSymbolCtr),
    (Counter::MulticastXmitPkts, PortCounter::PortMulticastXmitPkts),
];

/// Counters of a fabric that is up, read by a manager at the second host.
struct Watch {
    bed: Bed,
    endpoint: Endpoint,
    manager: PerfManager,
    deliveries: Vec<Delivery>,
}

impl Watch {
    fn new(hosts: usize, radix: u8, settings: Settings) -> Self {
        let net = fat_tree(2, radix, hosts);
        let mut bed = Bed::with_manager(&net, Settings::default());
        bed.bring_up();
        let host = bed.hosts()[1];
        let endpoint = bed.fabric.attach(host, 0).unwrap();
        let now = bed.clock.now();
        let mut manager = PerfManager::new(PerfSettings::of(&settings), now, 1_000_000, 3);
        let plane: FabricPlane = bed.plane();
        manager.set_nodes(now, plane.nodes);
        Self { bed, endpoint, manager, deliveries: Vec::new() }
    }

    /// Runs one sweep; returns how long it took.
    fn sweep(&mut self) -> Duration {
        let sweeps = self.manager.status().sweeps;
        loop {
            let now = self.bed.clock.now();
            self.manager.handle_timeout(now);
            while let Some(packet) = self.manager.poll_transmit(now) {
                self.bed.fabric.send(now, self.endpoint, &packet);
            }
            self.bed.fabric.poll(now, &mut self.deliveries, usize::MAX);
            let is_idle = self.deliveries.is_empty();
            for delivery in self.deliveries.drain(..) {
                if delivery.endpoint == self.endpoint {
                    self.manager.handle_packet(now, &delivery.packet);
                }
            }
            if self.manager.status().sweeps > sweeps {
                return self.manager.status().last_sweep;
            }
            if is_idle {
                let next = [self.manager.poll_timeout(), self.bed.fabric.poll_timeout(now)];
                let next = next.into_iter().flatten().min().expect("a sweep ends");
                self.bed.clock.advance_to(next);
            }
        }
    }

    /// A sweep that reads all ports.
    fn full_sweep(&mut self) -> Duration {
        self.manager.sweep_now(self.bed.clock.now());
        self.sweep()
    }

    fn total(&self, node: NodeIndex, port: u8, counter: Counter) -> u64 {
        let guid: Guid = self.bed.fabric.node(node).guid;
        let mut ports = (0..self.manager.node_count()).flat_map(|at| self.manager.ports_of(at));
        let found = ports.find(|at| at.node.guid == guid && at.number == PortNum(port));
        found.map_or(0, |port| port.counts.total(counter))
    }

    /// Increases each quiet counter of a port by a number of its own.
    fn count(&mut self, node: NodeIndex, port: u8, factor: u64) {
        for (number, (_, counter)) in (1..).zip(QUIET) {
            self.bed.fabric.count(node, port, counter, number * factor).unwrap();
        }
    }

    /// What perfquery -R does.
    fn clear(&mut self, lid: Lid, port: u8) {
        let now = self.bed.clock.now();
        let mut packet = Packet::to(Address::gsi(lid));
        MadHeader::of_mut(&mut packet.mad)
            .set_base_version(1)
            .set_mgmt_class(MgmtClass::PERF)
            .set_class_version(perf::CLASS_VERSION)
            .set_method(Method::SET)
            .set_attribute_id(perf::PORT_COUNTERS);
        PortCounters::at_mut::<{ perf::DATA.start }, _>(&mut packet.mad)
            .set_port_select(PortNum(port))
            .set_counter_select(0xFFFF)
            .set_counter_select2(0xFF);
        self.bed.fabric.send(now, self.endpoint, &packet);
        self.bed.clock.advance(Duration::from_millis(1));
        let now = self.bed.clock.now();
        self.bed.fabric.poll(now, &mut self.deliveries, usize::MAX);
        self.deliveries.clear();
    }
}

fn each_support(mut check: impl FnMut(CounterSupport)) {
    use CounterSupport::{Additional, Extended, Plain};
    [Plain, Extended, Additional].into_iter().for_each(&mut check);
}

#[test]
fn every_total_is_what_the_simulator_counted() {
    each_support(|support| {
        let mut watch = Watch::new(8, 4, Settings::default());
        watch.bed.fabric.set_counter_support(support);
        let (switch, host) = (watch.bed.switches()[0], watch.bed.hosts()[3]);
        watch.sweep();
        for (node, port) in [(switch, 2), (host, 1)] {
            watch.count(node, port, 1);
        }
        watch.full_sweep();
        for (node, port) in [(switch, 2), (host, 1)] {
            for (ours, theirs) in QUIET {
                let now = watch.bed.clock.now();
                let truth = watch.bed.fabric.port_counter(now, node, port, theirs).unwrap();
                let max = u64::from(ours.max());
                let known = match support {
                    CounterSupport::Plain => {
                        matches!(ours as usize, 8..=21) && ours != Counter::MulticastXmitPkts
                    }
                    _ => true,
                };
                let expected = match support {
                    _ if !known => 0,
                    CounterSupport::Additional => truth,
                    // Cleared at three quarters; nothing was lost since nothing was counted then.
                    _ => truth.max(watch.total(node, port, ours)),
                };
                let total = watch.total(node, port, ours);
                assert!(total == expected && total <= max.max(truth), "{support:?} {ours:?}");
                assert!(!known || total > 0 || ours == Counter::LinkDowned, "{support:?} {ours:?}");
            }
            let sent = watch.total(node, port, Counter::XmitPkts);
            let now = watch.bed.clock.now();
            let truth =
                watch.bed.fabric.port_counter(now, node, port, PortCounter::PortXmitPkts).unwrap();
            assert!(sent > 0 && sent <= truth, "{sent} {truth}");
        }
    });
}

#[test]
fn totals_never_fall_under_loss_and_clears_by_others() {
    each_support(|support| {
        let mut watch = Watch::new(8, 4, Settings::default());
        watch.bed.fabric.set_counter_support(support);
        let loss = Probability::new(0.01).unwrap();
        watch.bed.fabric.set_loss(None, loss).unwrap();
        let switch = watch.bed.switches()[0];
        let lid = watch.bed.fabric.port(switch, 0).unwrap().lid;
        let mut expected = 0;
        for round in 1..=40u64 {
            watch.bed.fabric.count(switch, 2, PortCounter::SymbolErrorCounter, 3000).unwrap();
            expected += 3000;
            watch.full_sweep();
            let total = watch.total(switch, 2, Counter::SymbolError);
            assert_eq!(total, expected, "{support:?}, round {round}");
            if round == 20 {
                watch.clear(lid, 2);
            }
        }
        let status = watch.manager.status();
        assert!(status.cleared_by_others > 0 && status.retried > 0, "{status:?}");
        let clears = status.clears;
        assert_eq!(clears > 0, support != CounterSupport::Additional, "{support:?} {status:?}");
    });
}

#[test]
fn only_switches_that_moved_are_read_port_by_port() {
    let mut watch = Watch::new(64, 16, Settings::default());
    for _ in 0..2 {
        watch.full_sweep();
    }
    let before = watch.manager.status();
    watch.sweep();
    watch.sweep();
    let after = watch.manager.status();
    let switches = watch.bed.switches().len() as u64;
    // The first of both learns the sums; the second reads one switch in eight nevertheless.
    assert!(after.quiet - before.quiet >= switches * 3 / 4, "{after:?}");
    // A switch with an error is read, and the error found, while the others are still quiet.
    let switch = watch.bed.switches()[3];
    watch.bed.fabric.count(switch, 5, PortCounter::PortRcvErrors, 1).unwrap();
    watch.sweep();
    assert_eq!(watch.total(switch, 5, Counter::RcvErrors), 1);
    assert!(watch.manager.status().quiet - after.quiet >= switches / 2);
}

/// In virtual time: 400 hosts, each link loses 1 % of the packets.
#[test]
fn a_sweep_under_loss_takes_less_than_two_seconds() {
    let mut watch = Watch::new(400, 32, Settings::default());
    watch.bed.fabric.set_loss(None, Probability::new(0.01).unwrap()).unwrap();
    watch.bed.fabric.set_delay(None, Duration::from_micros(1)).unwrap();
    for _ in 0..3 {
        let took = watch.full_sweep();
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
    // A query crosses up to four links, and so does its answer: some are lost four times.
    let status = watch.manager.status();
    assert!(status.retried > 0 && status.expired * 1000 < status.answered, "{status:?}");
    let ports = (0..watch.manager.node_count()).flat_map(|at| watch.manager.ports_of(at));
    assert!(ports.into_iter().all(|port| port.is_known));
}
