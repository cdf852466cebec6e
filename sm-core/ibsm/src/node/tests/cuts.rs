//! When routes around a cable that was cut are published.

use sa_proto::snapshot::FabricPlane;
use sm_core::sweep::Phase;

use super::*;

/// Time after which no trap is held down.
const QUIET: Duration = Duration::from_secs(11);

/// Cuts a cable between switches; returns the GUID and the port of one of its ends.
fn cut_a_cable(bed: &mut Bed) -> (Guid, PortNum) {
    let (switch, port) = bed.trunk();
    bed.fabric.link_down(bed.clock.now(), switch, port).unwrap();
    (bed.fabric.node(switch).guid, PortNum(port))
}

fn is_linked(plane: &FabricPlane, (guid, num): (Guid, PortNum)) -> bool {
    let mut ports =
        plane.nodes.iter().filter(|node| node.guid == guid).flat_map(|node| &node.ports);
    ports.any(|port| port.num == num && port.peer.is_some())
}

#[test]
fn routes_around_a_cut_are_published_before_the_sweep_has_ended() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    bed.run_for(QUIET);
    let (planes, reports) = (bed.planes(), bed.reports.len());
    let end = cut_a_cable(&mut bed);
    bed.run_until(UP_TIME, |bed| bed.planes() > planes);
    assert_ne!(bed.node.sweeper().phase(), Phase::Idle, "the sweep goes on");
    assert_eq!(bed.reports.len(), reports);
    let early = bed.feed.lock().planes.last().cloned().unwrap();
    let before = bed.feed.lock().planes[planes - 1].clone();
    assert!(is_linked(&before, end) && !is_linked(&early, end));
    assert_ne!(before.lfts, early.lfts, "the routes are new");
    bed.run_until(UP_TIME, |bed| bed.reports.len() > reports);
    assert!(bed.fabric.check_routes().is_whole());
    assert_eq!(bed.feed.lock().planes.last(), Some(&early), "nothing else has changed");
}

/// The registry must delete rows of ports that are gone before a session begins.
#[test]
fn without_a_session_no_routes_are_published() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.feed.lock().is_disk_full = true;
    bed.run_until(UP_TIME, |bed| bed.node.sweeper().is_up());
    bed.run_for(QUIET);
    let reports = bed.reports.len();
    let end = cut_a_cable(&mut bed);
    bed.run_until(UP_TIME, |bed| bed.reports.len() > reports);
    assert_eq!(bed.planes(), 0);
    bed.feed.lock().is_disk_full = false;
    bed.run_until(UP_TIME, |bed| bed.planes() > 0);
    assert!(!is_linked(&bed.feed.lock().planes[0], end));
}
