//! Malformed answers and requests: nothing panics, and the subnet comes up once they stop.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use ib_mad::transport::Packet;
use ib_mad::types::Qpn;
use ib_mad::wire::attribute::{PortInfo, PortState};
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::smp::{DATA, Smp};
use proptest::prelude::*;
use sm_config::Settings;
use sm_core::sweep::Phase;

/// Changes `packet` by `choice`: from a single bit to all of it.
fn spoil(packet: &mut Packet, choice: u64) {
    let place = choice as usize >> 8;
    match choice % 7 {
        0 => packet.mad[place % 256] ^= 1 << (choice >> 32 & 7),
        1 => packet.mad[DATA][place % 64] = (choice >> 32) as u8,
        2 => packet.mad[DATA].fill((choice >> 32) as u8),
        3 => packet.mad[64 + place % 40..].rotate_left(1),
        4 => packet.carrier.undelivered = 110,
        // A node with many ports, on which the request came by one of them.
        5 => packet.mad[DATA][3] = (choice >> 32) as u8,
        _ => packet.mad[..].iter_mut().for_each(|byte| *byte = byte.wrapping_mul(choice as u8)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]

    #[test]
    fn spoilt_answers_delay_the_subnet_but_break_nothing(
        seed: u64,
        share in 1u64..20,
        spoilt in 50usize..2000,
    ) {
        let mut bed = Bed::with_manager(&fat_tree(2, 6, 12), Settings::default());
        let (mut state, mut left) = (seed, spoilt);
        bed.tamper = Some(Box::new(move |packet| {
            // SplitMix64: the same case fails the same way.
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut random = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            random = (random ^ random >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            if left > 0 && random % 100 < share {
                left -= 1;
                spoil(packet, random >> 7);
            }
        }));
        bed.run_for(Duration::from_secs(20));
        bed.tamper = None;
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        let before = bed.reports().len();
        bed.run_until(Duration::from_secs(600), "subnet up", |bed| {
            let (sweeper, reports) = (bed.sweeper(), bed.reports());
            let all = (bed.hosts().len(), bed.switches().len());
            let idle = sweeper.is_up() && sweeper.phase() == Phase::Idle;
            idle && reports.len() > before && sweeper.fabric().counts() == all
        });
        // Tables of a switch that went by two GUIDs may have been written twice, which only a new
        // master puts right: it takes nothing for granted.
        let lids = bed.crash_manager().sweeper.lids().clone();
        bed.manage(bed.hosts()[3], Settings::default(), lids);
        bed.bring_up();
        bed.assert_all_reachable();
    }

    #[test]
    fn any_packet_is_taken_at_any_time(
        packets in
            prop::collection::vec((prop::collection::vec(any::<u8>(), 256), 0u16..8), 1..200),
    ) {
        let mut bed = Bed::with_manager(&fat_tree(2, 6, 12), Settings::default());
        for (bytes, class) in packets {
            let mut packet = Packet::default();
            packet.mad.copy_from_slice(&bytes);
            packet.address.qpn = Qpn::SMI;
            packet.address.local_qpn = Qpn::SMI;
            let mut smp = Smp::new(&mut packet.mad[..]).unwrap();
            // Often enough something that is looked at.
            match class {
                0 => { smp.set_attribute_id(AttributeId::SM_INFO); }
                1 => { smp.set_attribute_id(AttributeId::NOTICE); }
                2 => {
                    PortInfo::new(smp.data_bytes_mut()).unwrap().set_port_state(PortState::Down);
                }
                _ => {}
            }
            let now = bed.clock.now();
            bed.managers[0].sweeper.handle_packet(now, &mut packet);
            bed.run_for(Duration::from_micros(20));
        }
    }
}
