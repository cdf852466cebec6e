//! Virtual ports of adapters on a simulated fabric: set up, given the P_Keys of partitions, and
//! followed when they change.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use crate::multicast::{heard, listeners};
use fabric_sim::{NodeIndex, Refusal, VirtualPortView};
use ib_mad::types::{Guid, Lid, PKey};
use ib_mad::wire::attribute::PortState;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use sa_proto::snapshot::{
    ApiPartition, PartitionMember, PartitionMemberRid, RegistryPlane, VirtualPort,
};
use sm_config::{Remarks, Settings, partitions};
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::manage::lid::LidTable;
use sm_core::registry::{GUIDS_PER_BLOCK, GuidBlock};
use sm_core::sweep::{VirtualPortFault, VirtualPortTrouble};
use sm_routing::multicast::{Audience, Membership};

/// How soon a change must be in force.
const SOON: Duration = Duration::from_secs(3);

fn managed(virt_enabled: u8) -> Settings {
    Settings { virt_enabled, ..Settings::default() }
}

/// A fabric whose hosts have three virtual ports each, besides port 0.
fn bed(settings: Settings, text: &str) -> Bed {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), settings);
    let now = bed.clock.now();
    bed.fabric.add_virtual_ports_everywhere(now, 3);
    set_partitions(&mut bed, text);
    bed
}

fn set_partitions(bed: &mut Bed, text: &str) {
    let file = partitions::parse(Path::new("p"), text, &mut Remarks::default()).unwrap();
    bed.managers[0].sweeper.set_partitions(Arc::new(file));
}

const EVERYONE: &str = "Default=0x7fff: ALL=full;";

fn views(bed: &Bed, host: usize) -> Vec<VirtualPortView> {
    bed.fabric.virtual_ports(bed.hosts()[host], 1)
}

fn states(bed: &Bed, host: usize) -> Vec<PortState> {
    views(bed, host).iter().map(|port| port.state).collect()
}

fn virtual_guid(bed: &Bed, host: usize, index: usize) -> Guid {
    views(bed, host)[index].guid
}

/// P_Keys of a virtual port, and of the switch port that its packets pass.
fn keys(bed: &Bed, host: usize, index: usize) -> [Vec<u16>; 2] {
    let of_switch = switch_keys(bed, host);
    [views(bed, host)[index].pkeys.iter().map(|key| key.0).collect(), of_switch]
}

fn switch_keys(bed: &Bed, host: usize) -> Vec<u16> {
    let far = bed.fabric.port(bed.hosts()[host], 1).unwrap().link.unwrap();
    bed.fabric.pkeys(far.node, far.port).unwrap().iter().map(|key| key.0).collect()
}

/// The virtual ports of a host, as published.
fn published(bed: &Bed, host: usize) -> Vec<VirtualPort> {
    let guid = bed.fabric.port(bed.hosts()[host], 1).unwrap().guid;
    let rows = bed.plane().virtual_ports;
    let row = rows.iter().find(|row| row.port_guid == guid);
    row.map_or_else(Vec::new, |row| row.ports.clone())
}

fn troubles(bed: &Bed) -> Vec<VirtualPortTrouble> {
    bed.sweeper().virtual_port_troubles().map(|(_, trouble)| trouble).collect()
}

fn put(bed: &mut Bed, pkey: u16, members: &[Guid]) {
    let pkey = PKey(pkey);
    let partition = ApiPartition {
        pkey,
        name: String::new(),
        ipoib: true,
        mtu: 0,
        rate: 0,
        sl: Default::default(),
    };
    let member = |&guid: &Guid| {
        let rid = PartitionMemberRid { pkey, guid };
        Arc::new(PartitionMember {
            rid,
            full: true,
            limited: false,
            first: false,
            host: String::new(),
        })
    };
    let plane = RegistryPlane {
        api_partitions: [Arc::new(partition)].into_iter().collect(),
        partition_members: members.iter().map(member).collect(),
        ..RegistryPlane::default()
    };
    let now = bed.clock.now();
    let partitions = Some(Arc::new(ApiPartitions::of(&plane)));
    bed.managers[0].sweeper.put_api_partitions(now, partitions);
}

/// Counts the requests for attributes of virtual ports that arrive at nodes.
fn count_requests(bed: &mut Bed) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    bed.lie = Some(Box::new(move |_, packet| {
        let is_virtual = packet.mad[16] == 0xFF && packet.mad[17] >= 0xB0;
        let is_request = packet.mad[3] & 0x80 == 0;
        counted.fetch_add(usize::from(is_virtual && is_request), Ordering::Relaxed);
    }));
    count
}

fn refuse(bed: &mut Bed, node: NodeIndex, attribute: AttributeId, status: Option<Status>) {
    let refusal = Refusal { method: None, attribute, port: None, status, times: u32::MAX };
    bed.fabric.refuse(node, refusal).unwrap();
}

const ALL_ACTIVE: [PortState; 4] = [PortState::Active; 4];

#[test]
fn virtual_ports_become_active_with_the_p_keys_of_all_hosts() {
    let mut bed = bed(managed(2), EVERYONE);
    bed.bring_up();
    bed.run_for(SOON);
    for host in 0..8 {
        assert_eq!(states(&bed, host), ALL_ACTIVE, "host {host}");
        assert_eq!(keys(&bed, host, 2), [vec![0xffff], vec![0xffff]]);
    }
    assert_eq!(troubles(&bed), []);
    let port = published(&bed, 5)[2].clone();
    assert_eq!((port.index, port.guid), (2, virtual_guid(&bed, 5, 2)));
    assert_eq!((port.state, port.is_usable), (PortState::Active.code(), true));
    assert!(port.description.ends_with("vf2"), "{}", port.description);
    assert_eq!(port.pkeys, [PKey(0xffff)]);
    // Nothing is left to do.
    let count = count_requests(&mut bed);
    bed.run_for(Duration::from_secs(60));
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[test]
fn by_default_nothing_is_asked_and_virtual_ports_stay_as_they_are() {
    let mut bed = bed(Settings::default(), EVERYONE);
    let count = count_requests(&mut bed);
    bed.bring_up();
    bed.run_for(Duration::from_secs(60));
    assert_eq!(count.load(Ordering::Relaxed), 0);
    assert!(states(&bed, 3)[1..].iter().all(|state| *state == PortState::Down));
}

#[test]
fn virtual_ports_are_disabled_on_request_and_then_forgotten() {
    let mut bed = bed(managed(2), EVERYONE);
    bed.bring_up();
    bed.run_for(SOON);
    bed.managers[0].sweeper.follow_settings(&managed(1));
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    bed.run_for(SOON);
    for host in 0..8 {
        assert!(states(&bed, host)[1..].iter().all(|state| *state == PortState::Down));
    }
    assert!(bed.plane().virtual_ports.is_empty());
    assert_eq!(troubles(&bed), []);
}

#[test]
fn a_guid_in_the_operators_file_gives_its_virtual_port_a_p_key_and_no_other_port() {
    let mut bed = bed(managed(2), EVERYONE);
    let guid = virtual_guid(&bed, 3, 2);
    set_partitions(&mut bed, &format!("{EVERYONE} A=0x5: {guid}=full;"));
    bed.bring_up();
    bed.run_for(SOON);
    assert_eq!(keys(&bed, 3, 2), [vec![0xffff, 0x8005], vec![0xffff, 0x8005]]);
    assert_eq!(keys(&bed, 3, 1)[0], [0xffff]);
    let physical = bed.fabric.pkeys(bed.hosts()[3], 1).unwrap();
    assert_eq!(physical, [PKey(0xffff)], "the physical port is no member");
    assert_eq!(switch_keys(&bed, 4), [0xffff]);
    assert_eq!(published(&bed, 3)[2].pkeys, [PKey(0xffff), PKey(0x8005)]);
    assert_eq!(bed.sweeper().absent_guids().count, 0);
}

#[test]
fn a_function_that_appears_after_its_partition_gets_the_p_key_without_a_sweep() {
    let mut bed = bed(managed(2), EVERYONE);
    bed.bring_up();
    bed.run_for(SOON);
    let (host, new) = (bed.hosts()[4], Guid(0x0200_0000_0000_0001));
    let now = bed.clock.now();
    bed.fabric.virtual_port_down(now, host, 1, 1).unwrap();
    bed.run_for(SOON);
    assert_eq!(published(&bed, 4).len(), 3);
    put(&mut bed, 5, &[new]);
    bed.run_for(SOON);
    assert_eq!(bed.sweeper().absent_guids().count, 0, "programs may announce what is to come");
    let now = bed.clock.now();
    bed.fabric.virtual_port_up(now, host, 1, 1, Some(new)).unwrap();
    bed.run_for(SOON);
    assert_eq!(states(&bed, 4), ALL_ACTIVE);
    assert_eq!(keys(&bed, 4, 1), [vec![0xffff, 0x8005], vec![0xffff, 0x8005]]);
    assert_eq!(bed.sweeper().absent_guids().count, 0);
    assert_eq!(published(&bed, 4)[1].guid, new);
    // And loses it with the partition.
    put(&mut bed, 5, &[]);
    bed.run_for(SOON);
    assert_eq!(keys(&bed, 4, 1), [vec![0xffff], vec![0xffff]]);
}

#[test]
fn a_port_that_was_reset_gets_everything_again() {
    let mut bed = bed(managed(2), EVERYONE);
    let guid = virtual_guid(&bed, 3, 2);
    set_partitions(&mut bed, &format!("{EVERYONE} A=0x5: {guid}=full;"));
    bed.bring_up();
    bed.run_for(SOON);
    let (host, now) = (bed.hosts()[3], bed.clock.now());
    bed.fabric.reboot(now, host).unwrap();
    assert!(states(&bed, 3)[1..].iter().all(|state| *state == PortState::Down));
    bed.run_for(Duration::from_secs(30));
    assert_eq!(states(&bed, 3), ALL_ACTIVE);
    assert_eq!(keys(&bed, 3, 2), [vec![0xffff, 0x8005], vec![0xffff, 0x8005]]);
    // A cable that was pulled takes its virtual ports down, too.
    let now = bed.clock.now();
    bed.fabric.link_down(now, host, 1).unwrap();
    bed.run_for(Duration::from_secs(30));
    assert!(published(&bed, 3).is_empty());
    let now = bed.clock.now();
    bed.fabric.link_up(now, host, 1).unwrap();
    bed.run_for(Duration::from_secs(30));
    assert_eq!(states(&bed, 3), ALL_ACTIVE);
    assert_eq!(published(&bed, 3).len(), 4);
}

/// A manager that starts must not take P_Keys of virtual ports away from switches until it has read
/// them.
#[test]
fn a_restarted_manager_interrupts_no_partition_of_virtual_ports() {
    let mut bed = bed(managed(2), EVERYONE);
    let guid = virtual_guid(&bed, 3, 2);
    let text = format!("{EVERYONE} A=0x5: {guid}=full;");
    set_partitions(&mut bed, &text);
    bed.bring_up();
    bed.run_for(SOON);
    bed.crash_manager();
    let first = bed.hosts()[0];
    bed.manage(first, managed(2), LidTable::default());
    set_partitions(&mut bed, &text);
    bed.run_until(Duration::from_secs(60), "virtual ports set up", |bed| {
        assert_eq!(switch_keys(bed, 3), [0xffff, 0x8005]);
        !published(bed, 3).is_empty()
    });
    bed.run_for(SOON);
    assert_eq!(keys(&bed, 3, 2), [vec![0xffff, 0x8005], vec![0xffff, 0x8005]]);
}

#[test]
fn a_silent_agent_holds_nothing_up_and_is_tried_again() {
    let mut bed = bed(managed(2), EVERYONE);
    let (deaf, rude) = (bed.hosts()[3], bed.hosts()[4]);
    refuse(&mut bed, deaf, AttributeId::VPORT_INFO, None);
    let invalid = Some(Status::INVALID_FIELD);
    refuse(&mut bed, rude, AttributeId::VPKEY_TABLE, invalid);
    bed.bring_up();
    bed.run_for(Duration::from_secs(10));
    assert!(bed.sweeper().is_up() && bed.sweeper().faults().is_empty());
    for host in [1, 2, 5, 6, 7] {
        assert_eq!(states(&bed, host), ALL_ACTIVE, "host {host}");
    }
    let faults: Vec<_> = troubles(&bed).iter().map(|trouble| trouble.what).collect();
    assert!(
        matches!(faults[..], [VirtualPortFault::Silent(_), VirtualPortFault::Refused(..)]),
        "{faults:?}"
    );
    let counters = bed.sweeper().virtual_port_counters();
    assert!(counters.silent > 0 && counters.refused > 0, "{counters:?}");
    // A sweep that is asked for is over soon.
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert!(bed.clock.now() < now + Duration::from_secs(5));
    bed.fabric.refuse_nothing();
    bed.run_for(Duration::from_secs(300));
    assert_eq!((states(&bed, 3), states(&bed, 4)), (ALL_ACTIVE.to_vec(), ALL_ACTIVE.to_vec()));
    assert_eq!(troubles(&bed), []);
}

#[test]
fn of_two_virtual_ports_with_one_guid_the_first_has_it_until_it_goes() {
    let mut bed = bed(managed(2), EVERYONE);
    let guid = Guid(0x0200_0000_0000_0007);
    bed.bring_up();
    bed.run_for(SOON);
    let (first, second) = (bed.hosts()[6], bed.hosts()[3]);
    set_partitions(&mut bed, &format!("{EVERYONE} A=0x5: {guid}=full;"));
    for host in [first, second] {
        let now = bed.clock.now();
        bed.fabric.virtual_port_up(now, host, 1, 1, Some(guid)).unwrap();
        bed.run_for(SOON);
    }
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    bed.run_for(SOON);
    assert_eq!(keys(&bed, 6, 1)[0], [0xffff, 0x8005]);
    assert_eq!(states(&bed, 6)[1], PortState::Active);
    assert_eq!(states(&bed, 3)[1], PortState::Initialize);
    assert_eq!(switch_keys(&bed, 3), [0xffff]);
    let taken = VirtualPortTrouble { what: VirtualPortFault::GuidTaken, first: 1, count: 1 };
    assert_eq!(troubles(&bed), [taken]);
    // A virtual machine that moves takes its GUID along.
    let now = bed.clock.now();
    bed.fabric.virtual_port_down(now, first, 1, 1).unwrap();
    bed.run_for(SOON);
    assert_eq!(keys(&bed, 3, 1)[0], [0xffff, 0x8005]);
    assert_eq!(states(&bed, 3)[1], PortState::Active);
    assert_eq!(troubles(&bed), []);
}

/// A virtual port cannot take what belongs to a host.
#[test]
fn a_virtual_port_with_the_guid_of_a_host_is_left_out() {
    let mut bed = bed(managed(2), EVERYONE);
    let victim = bed.fabric.port(bed.hosts()[5], 1).unwrap().guid;
    set_partitions(&mut bed, &format!("{EVERYONE} A=0x5: {victim}=full;"));
    let (host, now) = (bed.hosts()[3], bed.clock.now());
    bed.fabric.virtual_port_up(now, host, 1, 1, Some(victim)).unwrap();
    bed.bring_up();
    bed.run_for(SOON);
    assert_eq!(states(&bed, 3)[1], PortState::Initialize);
    assert_eq!(switch_keys(&bed, 3), [0xffff]);
    assert_eq!(switch_keys(&bed, 5), [0xffff, 0x8005]);
    assert!(!published(&bed, 3)[1].is_usable);
}

/// Regression: while a host was away, another one announced a virtual port with its GUID, and got
/// its P_Keys. The same with an alias of another port.
#[test]
fn a_virtual_port_does_not_get_the_guid_of_an_absent_host_nor_an_alias_of_another() {
    let mut bed = bed(managed(2), EVERYONE);
    let away = bed.hosts()[5];
    let victim = bed.fabric.port(away, 1).unwrap().guid;
    let (alias, own_alias) = (Guid(0x0200_0000_0000_0071), Guid(0x0200_0000_0000_0072));
    let text = format!("{EVERYONE} A=0x5: {victim}=full,{alias}=full,{own_alias}=full;");
    set_partitions(&mut bed, &text);
    bed.bring_up();
    bed.run_for(SOON);
    let block = |bed: &Bed, host: usize, alias| {
        let port_guid = bed.fabric.port(bed.hosts()[host], 1).unwrap().guid;
        let mut guids = [Guid(0); GUIDS_PER_BLOCK];
        (guids[0], guids[1]) = (port_guid, alias);
        GuidBlock { port_guid, number: 0, guids }
    };
    let blocks = [block(&bed, 6, alias), block(&bed, 3, own_alias)];
    let now = bed.clock.now();
    bed.managers[0].sweeper.put_guid_blocks(now, &blocks);
    bed.fabric.link_down(now, away, 1).unwrap();
    bed.run_for(SOON);
    let host = bed.hosts()[3];
    for (index, guid) in [(1, victim), (2, alias), (3, own_alias)] {
        let now = bed.clock.now();
        bed.fabric.virtual_port_up(now, host, 1, index, Some(guid)).unwrap();
        bed.run_for(SOON);
    }
    let usable: Vec<bool> = published(&bed, 3).iter().map(|port| port.is_usable).collect();
    assert_eq!(usable, [true, false, false, true]);
    assert_eq!(keys(&bed, 3, 1)[0], [0xffff], "as it had with its own GUID");
    assert_eq!(keys(&bed, 3, 3)[0], [0xffff, 0x8005]);
    let taken = VirtualPortTrouble { what: VirtualPortFault::GuidTaken, first: 1, count: 2 };
    assert_eq!(troubles(&bed), [taken]);
    // The host comes back, and is served.
    let now = bed.clock.now();
    bed.fabric.link_up(now, away, 1).unwrap();
    bed.run_for(Duration::from_secs(30));
    assert_eq!(switch_keys(&bed, 5), [0xffff, 0x8005]);
}

/// Regression: while a host was away, another one announced a virtual port with the GUID of one of
/// the former, and got its P_Keys.
#[test]
fn the_guid_of_a_virtual_port_whose_host_is_away_brings_no_p_keys_for_a_while() {
    let mut bed = bed(managed(2), EVERYONE);
    let (away, other) = (bed.hosts()[5], bed.hosts()[3]);
    let guid = virtual_guid(&bed, 5, 2);
    set_partitions(&mut bed, &format!("{EVERYONE} A=0x5: {guid}=full;"));
    bed.bring_up();
    bed.run_for(SOON);
    assert_eq!(keys(&bed, 5, 2)[0], [0xffff, 0x8005]);
    let now = bed.clock.now();
    bed.fabric.link_down(now, away, 1).unwrap();
    bed.run_for(SOON);
    let now = bed.clock.now();
    bed.fabric.virtual_port_up(now, other, 1, 1, Some(guid)).unwrap();
    bed.run_for(SOON);
    assert!(published(&bed, 3)[1].is_usable, "a virtual machine may have moved");
    assert_eq!((keys(&bed, 3, 1)[0].clone(), bed.sweeper().newcomers()), (vec![0xffff], 1));
    // The host comes back, with its virtual port.
    let now = bed.clock.now();
    bed.fabric.link_up(now, away, 1).unwrap();
    bed.run_for(Duration::from_secs(30));
    assert_eq!(keys(&bed, 5, 2)[0], [0xffff, 0x8005]);
    assert!(!published(&bed, 3)[1].is_usable);
    // It gives the GUID away.
    let now = bed.clock.now();
    bed.fabric.virtual_port_down(now, away, 1, 2).unwrap();
    bed.run_for(Duration::from_secs(30));
    assert_eq!((keys(&bed, 3, 1)[0].clone(), bed.sweeper().newcomers()), (vec![0xffff, 0x8005], 0));
}

#[test]
fn a_virtual_port_that_needs_a_lid_of_its_own_is_reported() {
    let mut bed = bed(managed(2), EVERYONE);
    let (host, now) = (bed.hosts()[3], bed.clock.now());
    bed.fabric.set_virtual_port_needs_lid(now, host, 1, 2, true).unwrap();
    bed.bring_up();
    bed.run_for(SOON);
    let expected = VirtualPortTrouble { what: VirtualPortFault::NeedsLid, first: 2, count: 1 };
    assert_eq!(troubles(&bed), [expected]);
    let states = states(&bed, 3);
    assert_eq!((states[1], states[2]), (PortState::Active, PortState::Initialize));
}

/// A host that claims 65,535 virtual ports, all of which change each time they are asked for.
#[test]
fn what_a_host_claims_is_limited_in_number_and_pace() {
    let mut bed = bed(managed(2), EVERYONE);
    let liar = bed.hosts()[3];
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    bed.lie = Some(Box::new(move |node, packet| {
        let attribute = AttributeId(u16::from_be_bytes([packet.mad[16], packet.mad[17]]));
        let is_answer = packet.mad[3] & 0x80 != 0;
        if node != liar || packet.mad[16] != 0xFF || packet.mad[17] < 0xB0 {
            return;
        }
        if !is_answer {
            counted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Replaces the status of the agent with 0.
        packet.mad[4..6].copy_from_slice(&[0x80, 0]);
        let modifier = u32::from_be_bytes(packet.mad[20..24].try_into().unwrap());
        let data = &mut packet.mad[64..128];
        match attribute {
            AttributeId::VIRTUALIZATION_INFO => {
                data[..5].copy_from_slice(&[0xFF, 0xFE, 0xFF, 0xFE, 0xA0]);
            }
            AttributeId::VPORT_STATE => data.fill(0x22),
            AttributeId::VPORT_INFO => {
                data.fill(0);
                data[0] = 0x20;
                data[12..16].copy_from_slice(&[2, 0, 0, 0]);
                data[16..20].copy_from_slice(&modifier.to_be_bytes());
            }
            AttributeId::VNODE_INFO => data[..2].copy_from_slice(&[0xFF, 0xFF]),
            _ => {}
        }
    }));
    bed.bring_up();
    bed.run_for(Duration::from_secs(60));
    assert!(bed.sweeper().is_up() && bed.sweeper().faults().is_empty());
    assert_eq!(states(&bed, 4), ALL_ACTIVE);
    let fabric = bed.sweeper().fabric();
    assert!(fabric.virtual_port_count() <= 1024 + 7 * 4, "{}", fabric.virtual_port_count());
    let what: Vec<_> = troubles(&bed).iter().map(|trouble| trouble.what).collect();
    assert_eq!(what.len(), 1, "{what:?}");
    // Of 1,024 virtual ports three attributes and 64 blocks of P_Keys each, then what is set.
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked < 12 * 1024 * (3 + 64 + 2), "{asked} requests in a minute");
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert!(bed.clock.now() < now + Duration::from_secs(5));
}

/// A method that is not answered at all: the port counts as having none.
#[test]
fn a_port_without_the_attributes_behind_its_capability_costs_little() {
    let mut bed = bed(managed(2), EVERYONE);
    let host = bed.hosts()[3];
    let refusal = Refusal {
        method: Some(Method::GET),
        attribute: AttributeId::VIRTUALIZATION_INFO,
        port: None,
        status: Some(Status::UNSUPPORTED_METHOD_ATTRIBUTE),
        times: u32::MAX,
    };
    bed.fabric.refuse(host, refusal).unwrap();
    bed.bring_up();
    bed.run_for(SOON);
    let count = count_requests(&mut bed);
    bed.run_for(Duration::from_secs(600));
    let count = count.load(Ordering::Relaxed);
    assert!((1..20).contains(&count), "{count} requests in ten minutes");
    assert_eq!(switch_keys(&bed, 3), [0xffff]);
}

/// The manager may know members of a store before it has read virtual ports.
#[test]
fn a_tree_reaches_a_member_by_its_virtual_port_and_follows_it_to_another_host() {
    const MLID: Lid = Lid(0xC007);
    let mut bed = bed(managed(2), EVERYONE);
    let guid = Guid(0x0200_0000_0000_0009);
    let (first, now) = (bed.hosts()[3], bed.clock.now());
    bed.fabric.virtual_port_up(now, first, 1, 1, Some(guid)).unwrap();
    let sender = bed.fabric.port(bed.hosts()[1], 1).unwrap().guid;
    let mut members = vec![guid, sender];
    members.sort_unstable();
    let membership = Membership::from([(MLID, Audience::new(members, 0))]);
    bed.managers[0].sweeper.put_members(membership);
    bed.bring_up();
    bed.run_for(SOON);
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [3]);
    let (second, now) = (bed.hosts()[6], bed.clock.now());
    bed.fabric.virtual_port_down(now, first, 1, 1).unwrap();
    bed.fabric.virtual_port_up(now, second, 1, 1, Some(guid)).unwrap();
    bed.run_for(SOON);
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [6]);
}

/// A switch keeps P_Keys of virtual ports that are not known yet, but not for a host that hides
/// them.
#[test]
fn a_host_that_does_not_answer_keeps_no_p_key_that_it_lost() {
    let mut bed = bed(managed(2), EVERYONE);
    let host = bed.hosts()[3];
    let guid = bed.fabric.port(host, 1).unwrap().guid;
    set_partitions(&mut bed, &format!("{EVERYONE} A=0x5: {guid}=full;"));
    refuse(&mut bed, host, AttributeId::VIRTUALIZATION_INFO, None);
    bed.bring_up();
    assert_eq!(switch_keys(&bed, 3), [0xffff, 0x8005]);
    set_partitions(&mut bed, EVERYONE);
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    bed.run_for(Duration::from_secs(60));
    assert_eq!(switch_keys(&bed, 3), [0xffff]);
}

/// Regression: hosts were set up in the order of their GUIDs, 64 at a time: a partition that a
/// program changed in the first minutes reached a host's virtual ports only after all others were.
#[test]
fn a_host_whose_partition_changes_is_set_up_before_those_that_wait() {
    let mut bed = Bed::with_manager(&fat_tree(2, 16, 128), managed(2));
    let now = bed.clock.now();
    bed.fabric.add_virtual_ports_everywhere(now, 3);
    set_partitions(&mut bed, EVERYONE);
    bed.bring_up();
    let guid = |host| bed.fabric.port(bed.hosts()[host], 1).unwrap().guid;
    let last = (0..128).max_by_key(|&host| guid(host)).unwrap();
    let member = guid(last);
    put(&mut bed, 5, &[member]);
    bed.run_until(SOON, "in force", |bed| keys(bed, last, 0)[0].contains(&0x8005));
    let set_up = (0..128).filter(|&host| states(&bed, host) == ALL_ACTIVE).count();
    assert!(set_up < 64, "{set_up} hosts were first");
    bed.run_for(SOON);
    assert!((0..128).all(|host| states(&bed, host) == ALL_ACTIVE));
    assert_eq!(troubles(&bed), []);
}
