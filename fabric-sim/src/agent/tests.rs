//! One rule of an agent per test.

use ib_mad::types::{Guid, Lid, Mtu, PKey, PortNum};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{
    CapabilityMask, LinkSpeeds, LinkWidths, NodeInfo, PortInfo, PortPhysState, PortState,
    SwitchInfo, TrapNumber, VlArbBlock, pkey_table_modifier, sl_to_vl_modifier,
    vl_arbitration_modifier,
};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{DATA, Request, Smp};
use proptest::prelude::*;

use super::*;
use crate::subnet::{Effect, NodeIndex};
use ib_mad::netlist::Net;

const NET: &str = "\
Switch 20 \"S1\"
[1] \"H1\"[1]
[2] \"S2\"[2]

Switch 8 \"S2\"
[1] \"H2\"[1]
[2] \"S1\"[2]

Hca 2 \"H1\"
[1] \"S1\"[1]

Hca 2 \"H2\"
[1] \"S2\"[1]
";

const OK: Status = Status::OK;

struct Bench {
    subnet: Subnet,
    key: u64,
}

impl Bench {
    fn new() -> Self {
        Self { subnet: Subnet::new(&Net::parse("test", NET).unwrap()), key: 0 }
    }

    fn port(&self, node: &str, number: u8) -> PortIndex {
        self.subnet.port(self.subnet.find(node).unwrap(), number).unwrap()
    }

    fn send(&mut self, at: PortIndex, mad: &mut [u8; MAD_LEN]) -> Verdict {
        receive(&mut self.subnet, at, Lid(7), mad)
    }

    fn ask(
        &mut self,
        at: PortIndex,
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        data: &Data,
    ) -> Option<(Status, Data)> {
        let mut mad = [0; MAD_LEN];
        Request {
            method,
            attribute_id: attribute,
            attribute_modifier: modifier,
            tid: 1,
            m_key: self.key,
        }
        .write_lid_routed(&mut mad);
        mad[DATA].copy_from_slice(data);
        match self.send(at, &mut mad) {
            Verdict::Answered => {
                let answer = Smp::of(&mad);
                assert_eq!(answer.method(), Method::GET_RESP);
                Some((answer.status(), answer.data()))
            }
            _ => None,
        }
    }

    fn get(&mut self, at: PortIndex, attribute: AttributeId, modifier: u32) -> (Status, Data) {
        self.ask(at, Method::GET, attribute, modifier, &[0; 64]).unwrap()
    }

    fn set(
        &mut self,
        at: PortIndex,
        attribute: AttributeId,
        modifier: u32,
        data: &Data,
    ) -> (Status, Data) {
        self.ask(at, Method::SET, attribute, modifier, data).unwrap()
    }

    /// Reads PortInfo, modifies it and writes it back; returns the status.
    fn set_port(
        &mut self,
        at: PortIndex,
        number: u8,
        change: impl Fn(&mut PortInfo<&mut [u8; 64]>),
    ) -> Status {
        let (status, mut data) = self.get(at, AttributeId::PORT_INFO, number.into());
        assert_eq!(status, OK);
        let mut info = PortInfo::of_mut(&mut data);
        info.set_port_state(PortState::NoChange).set_port_physical_state(PortPhysState::NoChange);
        change(&mut info);
        self.set(at, AttributeId::PORT_INFO, number.into(), &data).0
    }

    fn set_state(&mut self, node: &str, number: u8, state: PortState) -> Status {
        let at = match node.starts_with('S') {
            true => self.port(node, 0),
            false => self.port(node, number),
        };
        self.set_port(at, number, |info| {
            info.set_port_state(state);
        })
    }

    fn state(&self, node: &str, number: u8) -> PortState {
        self.subnet.port_state(self.port(node, number))
    }

    fn phys(&self, node: &str, number: u8) -> PortPhysState {
        self.subnet.phys_state(self.port(node, number))
    }

    fn change_seen(&mut self, node: &str) -> bool {
        let port = self.port(node, 0);
        let (_, data) = self.get(port, AttributeId::SWITCH_INFO, 0);
        SwitchInfo::new(&data).unwrap().port_state_change()
    }

    fn clear_change(&mut self, node: &str) {
        let port = self.port(node, 0);
        let (_, data) = self.get(port, AttributeId::SWITCH_INFO, 0);
        assert_eq!(self.set(port, AttributeId::SWITCH_INFO, 0, &data).0, OK);
    }

    fn manage(&mut self, node: &str, number: u8, lid: u16) {
        let port = self.port(node, number);
        let status = self.set_port(port, number, |info| {
            info.set_base_lid(Lid(lid)).set_master_sm_lid(Lid(1));
        });
        assert_eq!(status, OK);
    }

    fn traps(&mut self) -> Vec<(PortIndex, TrapNumber)> {
        let effects = std::mem::take(&mut self.subnet.effects);
        effects
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::Trap(port, notice) => Some((port, notice.trap_number)),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn node_info_names_the_port_that_was_asked() {
    let mut bench = Bench::new();
    let (status, data) = bench.get(bench.port("H1", 2), AttributeId::NODE_INFO, 0);
    let info = NodeInfo::new(&data).unwrap();
    assert_eq!((status, info.num_ports(), info.local_port_num()), (OK, 2, PortNum(2)));
    assert_eq!(info.port_guid().0, info.node_guid().0 + 2);
    let (_, data) = bench.get(bench.port("S1", 2), AttributeId::NODE_INFO, 0);
    let info = NodeInfo::new(&data).unwrap();
    assert_eq!((info.local_port_num(), info.port_guid()), (PortNum(2), info.node_guid()));
    let at = bench.port("H1", 1);
    assert_eq!(bench.set(at, AttributeId::NODE_INFO, 0, &[0; 64]).0, UNSUPPORTED);
}

/// IBA 13.4.7.
#[test]
fn wrong_versions_methods_and_attributes_have_their_own_status() {
    let mut bench = Bench::new();
    let at = bench.port("H1", 1);
    let mut send = |byte: usize, value: u8| {
        let mut mad = [0; MAD_LEN];
        Request {
            method: Method::GET,
            attribute_id: AttributeId::NODE_INFO,
            attribute_modifier: 0,
            tid: 1,
            m_key: 0,
        }
        .write_lid_routed(&mut mad);
        mad[byte] = value;
        let verdict = bench.send(at, &mut mad);
        (verdict, Smp::of(&mad).status())
    };
    assert_eq!(send(0, 2), (Verdict::Answered, Status::BAD_VERSION));
    assert_eq!(send(2, 2), (Verdict::Answered, Status::BAD_VERSION));
    assert_eq!(send(3, 0x12), (Verdict::Answered, Status::UNSUPPORTED_METHOD));
    assert_eq!(send(17, 0x7F), (Verdict::Answered, UNSUPPORTED));
    assert_eq!(send(3, 0x03).0, Verdict::Dropped(DropReason::Malformed));
    assert_eq!(send(3, 0x81).0, Verdict::ForHost);
    assert_eq!(send(3, 0x05).0, Verdict::ForHost);
    assert_eq!(send(17, 0x20).0, Verdict::ForHost, "SMInfo is the host's");
}

#[test]
fn a_modifier_beyond_the_node_is_invalid() {
    let mut bench = Bench::new();
    let (host, switch) = (bench.port("H1", 1), bench.port("S1", 0));
    for (at, attribute, modifier) in [
        (host, AttributeId::PORT_INFO, 3),
        (switch, AttributeId::PORT_INFO, 21),
        (switch, AttributeId::PORT_INFO, 256),
        (switch, AttributeId::LINEAR_FORWARDING_TABLE, 768),
        (switch, AttributeId::MULTICAST_FORWARDING_TABLE, 32),
        (switch, AttributeId::MULTICAST_FORWARDING_TABLE, 2 << 28),
        (host, AttributeId::GUID_INFO, 4),
        (switch, AttributeId::GUID_INFO, 1),
        (host, AttributeId::PKEY_TABLE, 2),
        (switch, AttributeId::PKEY_TABLE, 21 << 16),
        (switch, AttributeId::SL_TO_VL_MAPPING_TABLE, 21),
        (switch, AttributeId::SL_TO_VL_MAPPING_TABLE, 21 << 8),
        (switch, AttributeId::VL_ARBITRATION_TABLE, 0),
        (switch, AttributeId::VL_ARBITRATION_TABLE, 2 << 16),
        (host, AttributeId::VENDOR_DIAG, 1),
    ] {
        assert_eq!(bench.get(at, attribute, modifier).0, INVALID, "{attribute} {modifier:#x}");
    }
    for attribute in [
        AttributeId::SWITCH_INFO,
        AttributeId::LINEAR_FORWARDING_TABLE,
        AttributeId::MULTICAST_FORWARDING_TABLE,
        AttributeId::RANDOM_FORWARDING_TABLE,
    ] {
        assert_eq!(bench.get(host, attribute, 0).0, UNSUPPORTED, "{attribute} of a host");
    }
    assert_eq!(bench.get(switch, AttributeId::RANDOM_FORWARDING_TABLE, 0).0, UNSUPPORTED);
}

/// IBA 7.2.7.
#[test]
fn a_port_becomes_active_only_by_way_of_armed_and_beside_an_armed_one() {
    use PortState::{Active, Armed, Initialize};
    let mut bench = Bench::new();
    assert_eq!(bench.state("H1", 1), Initialize);
    assert_eq!(bench.set_state("H1", 1, Active), INVALID);
    assert_eq!(bench.set_state("H1", 1, Armed), OK);
    assert_eq!(bench.set_state("H1", 1, Active), INVALID, "its neighbour is not armed");
    assert_eq!(bench.set_state("S1", 1, Armed), OK);
    assert_eq!(bench.set_state("H1", 1, Active), OK);
    assert_eq!((bench.state("H1", 1), bench.state("S1", 1)), (Active, Armed));
    assert_eq!(bench.set_state("H1", 1, Armed), INVALID, "there is no way back");
    assert_eq!(bench.set_state("H1", 1, Initialize), INVALID);
    assert_eq!(bench.set_state("H1", 2, Armed), INVALID, "there is no link");
}

#[test]
fn down_retrains_both_ends_and_switches_report_it() {
    let mut bench = Bench::new();
    for (node, port) in [("S1", 2), ("S2", 2)] {
        assert_eq!(bench.set_state(node, port, PortState::Armed), OK);
        bench.clear_change(node);
    }
    assert!(!bench.change_seen("S1") && !bench.change_seen("S2"));
    assert_eq!(bench.set_state("S1", 2, PortState::Down), OK);
    for node in ["S1", "S2"] {
        assert_eq!(bench.state(node, 2), PortState::Initialize);
        assert_eq!(bench.phys(node, 2), PortPhysState::LinkUp);
        assert!(bench.change_seen(node));
    }
    assert_eq!(bench.subnet[bench.port("S2", 2)].traffic.link_downed, 1);
}

#[test]
fn arming_sends_no_trap() {
    let mut bench = Bench::new();
    bench.manage("S1", 0, 9);
    bench.clear_change("S1");
    bench.traps();
    assert_eq!(bench.set_state("S1", 2, PortState::Armed), OK);
    assert!(!bench.change_seen("S1"));
    assert_eq!(bench.traps(), []);
}

#[test]
fn a_disabled_port_stays_down_until_it_polls_again() {
    let mut bench = Bench::new();
    let at = bench.port("S1", 0);
    let physical = |bench: &mut Bench, state| {
        bench.set_port(at, 2, |info| {
            info.set_port_state(PortState::Down).set_port_physical_state(state);
        })
    };
    assert_eq!(physical(&mut bench, PortPhysState::Disabled), OK);
    assert_eq!(bench.phys("S1", 2), PortPhysState::Disabled);
    assert_eq!(bench.phys("S2", 2), PortPhysState::Polling);
    assert_eq!((bench.state("S1", 2), bench.state("S2", 2)), (PortState::Down, PortState::Down));
    assert_eq!(physical(&mut bench, PortPhysState::LinkUp), INVALID);
    assert_eq!(physical(&mut bench, PortPhysState::Polling), OK);
    assert_eq!(bench.phys("S2", 2), PortPhysState::LinkUp);
    assert_eq!(bench.state("S2", 2), PortState::Initialize);
}

#[test]
fn two_sleeping_ports_do_not_wake_each_other() {
    let mut bench = Bench::new();
    for node in ["S1", "S2"] {
        let at = bench.port(node, 0);
        let status = bench.set_port(at, 2, |info| {
            info.set_link_down_default_state(PortPhysState::Sleep);
        });
        assert_eq!(status, OK);
    }
    assert_eq!(bench.set_state("S1", 2, PortState::Down), OK);
    assert_eq!(
        (bench.state("S1", 2), bench.phys("S2", 2)),
        (PortState::Down, PortPhysState::Sleep)
    );
    let at = bench.port("S2", 0);
    let status = bench.set_port(at, 2, |info| {
        info.set_port_physical_state(PortPhysState::Polling);
    });
    assert_eq!(status, OK);
    assert_eq!(bench.state("S1", 2), PortState::Initialize);
}

/// IBA 14.2.5.6.
#[test]
fn read_only_fields_of_port_info_stay_and_others_change() {
    let mut bench = Bench::new();
    let at = bench.port("H1", 1);
    let before = bench.get(at, AttributeId::PORT_INFO, 1).1;
    let status = bench.set_port(at, 1, |info| {
        info.set_base_lid(Lid(0x10))
            .set_lmc(2)
            .set_master_sm_lid(Lid(3))
            .set_neighbor_mtu(Mtu::B1024)
            .set_capability_mask(CapabilityMask::IS_SM)
            .set_vl_cap(1)
            .set_guid_cap(1)
            .set_mtu_cap(Mtu::B256)
            .set_link_width_active(LinkWidths::X1)
            .set_diag_code(9)
            .set_m_key_violations(0)
            .set_client_reregister(true);
    });
    assert_eq!(status, OK);
    let after = bench.get(at, AttributeId::PORT_INFO, 1).1;
    let (before, after) = (PortInfo::new(&before).unwrap(), PortInfo::new(&after).unwrap());
    assert_eq!((after.base_lid(), after.lmc(), after.master_sm_lid()), (Lid(0x10), 2, Lid(3)));
    assert_eq!(after.neighbor_mtu(), Mtu::B1024.code());
    assert_eq!(after.capability_mask(), before.capability_mask());
    assert_eq!((after.vl_cap(), after.guid_cap()), (before.vl_cap(), before.guid_cap()));
    assert_eq!((after.mtu_cap(), after.diag_code()), (before.mtu_cap(), 0));
    assert_eq!(after.link_width_active(), before.link_width_active());
    assert!(!after.client_reregister());
    assert!(bench.subnet.effects.iter().any(|effect| matches!(effect, Effect::Reregister(_))));
}

/// A refused Set() must leave all fields unchanged, those before the invalid one too.
#[test]
fn a_refused_set_changes_nothing() {
    let mut bench = Bench::new();
    let at = bench.port("H1", 1);
    let before = bench.get(at, AttributeId::PORT_INFO, 1).1;
    let refused: [fn(&mut PortInfo<&mut [u8; 64]>); 8] = [
        |info| {
            info.set_base_lid(Lid(0xC000));
        },
        |info| {
            info.set_base_lid(Lid(0x11)).set_lmc(1);
        },
        |info| {
            info.set_link_width_enabled(LinkWidths::X12);
        },
        |info| {
            info.set_link_speed_enabled(LinkSpeeds::QDR);
        },
        |info| {
            info.set_operational_vls(5);
        },
        |info| {
            info.set_operational_vls(6);
        },
        |info| {
            info.set_neighbor_mtu(Mtu::B4096);
        },
        |info| {
            info.set_link_down_default_state(PortPhysState::Disabled);
        },
    ];
    for (i, change) in refused.into_iter().enumerate() {
        let status = bench.set_port(at, 1, |info| {
            info.set_master_sm_lid(Lid(5));
            change(info);
        });
        assert_eq!(status, INVALID, "change {i}");
        assert_eq!(bench.get(at, AttributeId::PORT_INFO, 1).1, before, "change {i}");
    }
}

#[test]
fn a_base_port_0_has_one_lid_and_one_state() {
    let mut bench = Bench::new();
    let at = bench.port("S1", 0);
    let status = bench.set_port(at, 0, |info| {
        info.set_base_lid(Lid(8)).set_lmc(1);
    });
    assert_eq!(status, INVALID);
    assert_eq!(bench.set_state("S1", 0, PortState::Active), OK, "its present state");
    assert_eq!(bench.set_state("S1", 0, PortState::Down), INVALID);
    assert_eq!(bench.set_state("S1", 0, PortState::Armed), INVALID);
}

#[test]
fn an_adapter_sets_only_the_port_that_was_asked() {
    let mut bench = Bench::new();
    let (first, second) = (bench.port("H1", 1), bench.port("H1", 2));
    let (_, data) = bench.get(first, AttributeId::PORT_INFO, 2);
    assert_eq!(PortInfo::new(&data).unwrap().local_port_num(), PortNum(1));
    assert_eq!(bench.set(first, AttributeId::PORT_INFO, 2, &data).0, INVALID);
    let status = bench.set_port(second, 0, |info| {
        info.set_base_lid(Lid(4));
    });
    assert_eq!(status, OK);
    assert_eq!(bench.subnet.port_info(second).base_lid(), Lid(4));
    assert_eq!(bench.subnet.port_info(first).base_lid(), Lid::NONE);
}

#[test]
fn tables_keep_what_is_written_in_their_place() {
    let mut bench = Bench::new();
    let (host, switch) = (bench.port("H1", 1), bench.port("S1", 0));
    let block: Data = std::array::from_fn(|i| i as u8);
    for (at, attribute, modifier) in [
        (switch, AttributeId::LINEAR_FORWARDING_TABLE, 0),
        (switch, AttributeId::LINEAR_FORWARDING_TABLE, 767),
        (switch, AttributeId::MULTICAST_FORWARDING_TABLE, 31 | 1 << 28),
        (host, AttributeId::PKEY_TABLE, pkey_table_modifier(0, 1)),
        (switch, AttributeId::PKEY_TABLE, pkey_table_modifier(20, 0)),
        (host, AttributeId::GUID_INFO, 3),
    ] {
        assert_eq!(bench.set(at, attribute, modifier, &block), (OK, block), "{attribute}");
        assert_eq!(bench.get(at, attribute, modifier), (OK, block), "{attribute}");
    }
    let untouched = bench.get(switch, AttributeId::LINEAR_FORWARDING_TABLE, 1).1;
    assert_eq!(untouched, [0xFF; 64]);
    let modifier = vl_arbitration_modifier(2, VlArbBlock::HighPriorityFirst);
    let (_, kept) = bench.set(switch, AttributeId::VL_ARBITRATION_TABLE, modifier, &block);
    assert_eq!((&kept[..16], &kept[16..]), (&block[..16], &[0; 48][..]), "its capacity");
}

/// IBA 14.2.5.5.
#[test]
fn the_port_guid_cannot_be_set() {
    let mut bench = Bench::new();
    let at = bench.port("H1", 1);
    let (status, data) = bench.set(at, AttributeId::GUID_INFO, 0, &[0x77; 64]);
    assert_eq!(status, OK);
    assert_eq!(data[..8], bench.subnet.port_guid(at).0.to_be_bytes());
    assert_eq!(data[8..], [0x77; 56]);
}

/// IBA 14.2.5.8.
#[test]
fn sl_to_vl_of_a_switch_is_set_by_port_pair_or_for_all_at_once() {
    let mut bench = Bench::new();
    let at = bench.port("S2", 0);
    let table = |vls: u8| -> Data { std::array::from_fn(|i| if i < 8 { vls } else { 0 }) };
    let read = |bench: &mut Bench, in_port, out_port| {
        let modifier = sl_to_vl_modifier(in_port, out_port);
        bench.get(at, AttributeId::SL_TO_VL_MAPPING_TABLE, modifier).1[0]
    };
    let write = |bench: &mut Bench, modifier, vls| {
        bench.set(at, AttributeId::SL_TO_VL_MAPPING_TABLE, modifier, &table(vls)).0
    };
    assert_eq!(write(&mut bench, sl_to_vl_modifier(1, 2), 0x11), OK);
    assert_eq!((read(&mut bench, 1, 2), read(&mut bench, 2, 1)), (0x11, 0x01));
    assert_eq!(write(&mut bench, 1 << 17 | 3, 0x22), OK, "all in ports");
    assert_eq!((read(&mut bench, 1, 3), read(&mut bench, 8, 3)), (0x22, 0x22));
    assert_eq!(write(&mut bench, 3 << 16, 0x33), OK, "all ports");
    assert_eq!((read(&mut bench, 1, 2), read(&mut bench, 8, 8)), (0x33, 0x33));
    let wild = bench.get(at, AttributeId::SL_TO_VL_MAPPING_TABLE, 3 << 16).0;
    assert_eq!(wild, INVALID, "only a Set() means many ports");
}

/// IBA 14.2.5.4.
#[test]
fn switch_info_clears_the_change_bit_by_writing_one() {
    let mut bench = Bench::new();
    let at = bench.port("S1", 0);
    assert!(bench.change_seen("S1"), "links came up");
    let (_, mut data) = bench.get(at, AttributeId::SWITCH_INFO, 0);
    SwitchInfo::of_mut(&mut data)
        .set_port_state_change(false)
        .set_linear_fdb_top(Lid(77))
        .set_linear_fdb_cap(1);
    assert_eq!(bench.set(at, AttributeId::SWITCH_INFO, 0, &data).0, OK);
    assert!(bench.change_seen("S1"));
    bench.clear_change("S1");
    assert!(!bench.change_seen("S1"));
    let (_, data) = bench.get(at, AttributeId::SWITCH_INFO, 0);
    let info = SwitchInfo::new(&data).unwrap();
    assert_eq!((info.linear_fdb_top(), info.linear_fdb_cap()), (Lid(77), 0xC000));
}

/// IBA 14.2.4.
#[test]
fn protection_without_bits_lets_everyone_read_and_only_the_owner_write() {
    let mut bench = Bench::new();
    let at = bench.port("H1", 1);
    assert_eq!(
        bench.set_port(at, 1, |info| {
            info.set_m_key(42);
        }),
        OK
    );
    let key_read = |bench: &mut Bench| {
        let (_, data) = bench.get(at, AttributeId::PORT_INFO, 1);
        PortInfo::new(&data).unwrap().m_key()
    };
    assert_eq!(key_read(&mut bench), 42, "bits 0: the key itself can be read");
    assert!(bench.ask(at, Method::SET, AttributeId::LED_INFO, 0, &[0; 64]).is_none());
    bench.key = 42;
    assert_eq!(
        bench.set_port(at, 1, |info| {
            info.set_m_key_protect_bits(1);
        }),
        OK
    );
    assert_eq!(key_read(&mut bench), 42);
    bench.key = 0;
    assert_eq!(key_read(&mut bench), 0, "bits 1: the key is hidden");
    bench.key = 42;
    assert_eq!(
        bench.set_port(at, 1, |info| {
            info.set_m_key_protect_bits(2);
        }),
        OK
    );
    bench.key = 41;
    assert!(bench.ask(at, Method::GET, AttributeId::NODE_INFO, 0, &[0; 64]).is_none());
    assert_eq!(bench.subnet.port_info(at).m_key_violations(), 2);
    let other = bench.port("H1", 2);
    assert_eq!(bench.get(other, AttributeId::NODE_INFO, 0).0, OK, "each port has its own key");
}

/// IBA 14.2.4, 14.2.5.1.
#[test]
fn one_key_protects_all_ports_of_a_switch_and_its_violation_is_reported() {
    let mut bench = Bench::new();
    bench.manage("S1", 0, 9);
    let at = bench.port("S1", 0);
    let protect = |info: &mut PortInfo<&mut [u8; 64]>| {
        info.set_m_key(5).set_m_key_protect_bits(3).set_m_key_lease_period(60);
    };
    assert_eq!(bench.set_port(at, 0, protect), OK);
    bench.traps();
    let by_port_2 = bench.port("S1", 2);
    assert!(bench.ask(by_port_2, Method::GET, AttributeId::NODE_INFO, 0, &[0; 64]).is_none());
    let lease = |effect: &Effect| matches!(effect, Effect::LeaseBegun(port, _) if *port == at);
    assert_eq!(bench.subnet.effects.iter().filter(|effect| lease(effect)).count(), 1);
    assert_eq!(bench.traps(), [(at, TrapNumber::BAD_MKEY)]);
    assert!(bench.ask(by_port_2, Method::GET, AttributeId::NODE_INFO, 0, &[0; 64]).is_none());
    assert!(!bench.subnet.effects.iter().any(lease), "it runs already");
    let number = bench.subnet.leases[&at];
    mkey::lease_over(&mut bench.subnet, at, number);
    assert_eq!(bench.get(by_port_2, AttributeId::NODE_INFO, 0).0, OK, "the lease is over");
}

/// IBA 14.2.4.
#[test]
fn a_lease_is_whole_again_once_the_owner_shows_its_key() {
    let mut bench = Bench::new();
    let at = bench.port("H1", 1);
    let protect = |info: &mut PortInfo<&mut [u8; 64]>| {
        info.set_m_key(5).set_m_key_protect_bits(3).set_m_key_lease_period(60);
    };
    assert_eq!(bench.set_port(at, 1, protect), OK);
    assert!(bench.ask(at, Method::GET, AttributeId::NODE_INFO, 0, &[0; 64]).is_none());
    let number = bench.subnet.leases[&at];
    bench.key = 5;
    assert_eq!(bench.get(at, AttributeId::NODE_INFO, 0).0, OK);
    mkey::lease_over(&mut bench.subnet, at, number);
    bench.key = 0;
    assert!(bench.ask(at, Method::GET, AttributeId::NODE_INFO, 0, &[0; 64]).is_none());
}

#[test]
fn a_port_without_a_manager_sends_no_traps() {
    let mut bench = Bench::new();
    let (s1, h2) = (bench.subnet.find("S1").unwrap(), bench.subnet.find("H2").unwrap());
    trap::link_state_change(&mut bench.subnet, s1);
    trap::system_image_guid_change(&mut bench.subnet, h2, Guid(1));
    assert_eq!(bench.traps(), []);
    bench.manage("S1", 0, 9);
    bench.manage("H2", 1, 5);
    trap::link_state_change(&mut bench.subnet, s1);
    trap::system_image_guid_change(&mut bench.subnet, h2, Guid(1));
    let port = bench.port("S1", 2);
    trap::port_error(&mut bench.subnet, port, TrapNumber::LOCAL_LINK_INTEGRITY);
    let expected = [
        (bench.port("S1", 0), TrapNumber::LINK_STATE_CHANGE),
        (bench.port("H2", 1), TrapNumber::SYSTEM_IMAGE_GUID_CHANGE),
        (bench.port("S1", 0), TrapNumber::LOCAL_LINK_INTEGRITY),
    ];
    assert_eq!(bench.traps(), expected);
}

#[test]
fn setting_a_description_notifies_the_manager() {
    let mut bench = Bench::new();
    bench.manage("H1", 1, 4);
    let at = bench.port("H1", 1);
    let (_, before) = bench.get(at, AttributeId::NODE_DESCRIPTION, 0);
    assert_eq!(&before[..2], b"H1");
    assert_eq!(bench.set(at, AttributeId::NODE_DESCRIPTION, 0, &[b'x'; 64]).1, [b'x'; 64]);
    assert_eq!(bench.traps(), [(at, TrapNumber::LOCAL_CHANGES)]);
    bench.set(at, AttributeId::NODE_DESCRIPTION, 0, &[b'x'; 64]);
    assert_eq!(bench.traps(), [], "nothing changed");
}

/// IBA 14.2.5.14, 14.2.5.15.
#[test]
fn leds_and_diagnostics_answer() {
    let mut bench = Bench::new();
    let at = bench.port("S1", 0);
    let mut on = [0; 64];
    on[0] = 0x80;
    assert_eq!(bench.set(at, AttributeId::LED_INFO, 3, &on), (OK, on));
    assert_eq!(bench.get(at, AttributeId::LED_INFO, 3).1, on);
    assert_eq!(bench.get(at, AttributeId::LED_INFO, 4).1, [0; 64]);
    assert_eq!(bench.get(at, AttributeId::VENDOR_DIAG, 0), (OK, [0; 64]));
}

#[test]
fn a_reset_forgets_what_was_configured() {
    let mut bench = Bench::new();
    bench.manage("S1", 0, 9);
    let at = bench.port("S1", 0);
    let before = bench.get(at, AttributeId::SWITCH_INFO, 0).1;
    bench.set(at, AttributeId::LINEAR_FORWARDING_TABLE, 0, &[1; 64]);
    let node = bench.subnet[at].node;
    bench.subnet.reset(node);
    assert_eq!(bench.get(at, AttributeId::LINEAR_FORWARDING_TABLE, 0).1, [0xFF; 64]);
    assert_eq!(bench.subnet.port_info(at).base_lid(), Lid::NONE);
    assert_eq!(bench.state("S1", 0), PortState::Active);
    assert_eq!(before[..4], bench.get(at, AttributeId::SWITCH_INFO, 0).1[..4]);
    let view = bench.subnet.port_info(at);
    assert!(view.capability_mask().contains(CapabilityMask::IS_TRAP_SUPPORTED));
}

proptest! {
    /// The agent answers, forwards or drops every MAD, with any contents.
    #[test]
    fn any_bytes_are_handled_without_panic(
        mut bytes in prop::collection::vec(any::<u8>(), MAD_LEN),
        method in prop::sample::select(vec![1u8, 2, 5, 7, 0x81]),
        attribute in prop::sample::select(vec![
            0x02u8, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x20, 0x30,
            0x31,
        ]),
        small_modifier in prop::option::of(0u32..64),
        switch: bool,
    ) {
        let mut bench = Bench::new();
        bytes[..4].copy_from_slice(&[1, 0x81, 1, method]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        if let Some(modifier) = small_modifier {
            bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        }
        let mut mad: [u8; MAD_LEN] = bytes.try_into().unwrap();
        let at = bench.port(if switch { "S1" } else { "H1" }, 1);
        bench.send(at, &mut mad);
        let node: NodeIndex = bench.subnet[at].node;
        for port in bench.subnet.ports_of(node) {
            // After every accepted MAD, PortInfo can still be decoded.
            let info = *bench.subnet.port_info(port).into_inner();
            let view = PortInfo::new(&info).unwrap();
            prop_assert!(Mtu::from_code(view.neighbor_mtu()).is_some());
            prop_assert!(view.base_lid() <= Lid::UNICAST_LAST);
        }
    }
}

/// The steps of a manager, and what the agent refuses.
#[test]
fn virtual_ports_follow_the_steps_of_a_manager() {
    use ib_mad::wire::attribute::{VPKeyTable, VPortInfo, VPortState, VirtualizationInfo};
    const INFO: AttributeId = AttributeId::VIRTUALIZATION_INFO;
    let mut bench = Bench::new();
    let port = bench.port("H1", 1);
    assert_eq!(bench.get(port, INFO, 0).0, UNSUPPORTED);
    virtual_port::add(&mut bench.subnet, port, 200);
    assert!(virtual_port::plug(&mut bench.subnet, port, 130, Some(Guid(0xF0)), true));
    assert!(!virtual_port::plug(&mut bench.subnet, port, 201, None, true));
    let state_of = |bench: &mut Bench, index: u32| {
        let (status, data) = bench.get(port, AttributeId::VPORT_STATE, index / 128);
        assert_eq!(status, OK);
        VPortState::of(&data).state(index as usize % 128)
    };
    let (_, mut info) = bench.get(port, INFO, 0);
    let shown = VirtualizationInfo::of(&info);
    assert_eq!((shown.vport_cap(), shown.vport_index_top()), (200, 130));
    assert!(!shown.virtualization_enable() && !shown.vport_state_change());
    assert_eq!((state_of(&mut bench, 0), state_of(&mut bench, 130)), (2, 1));
    VirtualizationInfo::of_mut(&mut info).set_virtualization_enable(true);
    assert_eq!(bench.set(port, INFO, 0, &info).0, OK);
    assert_eq!((state_of(&mut bench, 130), state_of(&mut bench, 129)), (2, 1));
    // Active needs Armed, and an active physical port.
    let step = |bench: &mut Bench, state| {
        let mut data = [0; 64];
        VPortInfo::of_mut(&mut data).set_vport_state(state);
        bench.set(port, AttributeId::VPORT_INFO, 130 << 16, &data).0
    };
    assert_eq!(step(&mut bench, PortState::Active), INVALID);
    assert_eq!(step(&mut bench, PortState::Armed), OK);
    assert_eq!(step(&mut bench, PortState::Active), INVALID);
    for state in [PortState::Armed, PortState::Active] {
        bench.set_state("S1", 1, state);
        bench.set_state("H1", 1, state);
    }
    bench.set_state("S1", 1, PortState::Active);
    bench.set_state("H1", 1, PortState::Active);
    assert_eq!(step(&mut bench, PortState::Active), OK);
    let mut keys = [PKey(0); 32];
    keys[1] = PKey(0x8005);
    let mut table = [0; 64];
    VPKeyTable::of_mut(&mut table).set_pkeys(&keys);
    assert_eq!(bench.set(port, AttributeId::VPKEY_TABLE, 130 << 16 | 1, &table).0, OK);
    assert_eq!(bench.set(port, AttributeId::VPKEY_TABLE, 130 << 16 | 4, &table).0, INVALID);
    assert_eq!(bench.get(port, AttributeId::VPORT_INFO, 7 << 16).0, INVALID);
    let view = virtual_port::views(&bench.subnet, port).pop().unwrap();
    assert_eq!((view.guid, view.state), (Guid(0xF0), PortState::Active));
    assert_eq!((view.pkeys.len(), view.pkeys[33]), (34, PKey(0x8005)));
    // A change shows until it is cleared.
    virtual_port::plug(&mut bench.subnet, port, 5, None, true);
    let (_, mut info) = bench.get(port, INFO, 0);
    assert!(VirtualizationInfo::of(&info).vport_state_change());
    assert_eq!(bench.set(port, INFO, 0, &info).0, OK);
    info = bench.get(port, INFO, 0).1;
    assert!(!VirtualizationInfo::of(&info).vport_state_change());
    assert!(VirtualizationInfo::of(&info).virtualization_enable());
}
