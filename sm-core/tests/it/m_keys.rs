//! Ports with an M_Key of another subnet manager's: what is known of it is used, what can be learnt
//! is learnt, and what cannot is told.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use ib_mad::wire::attribute::PortState;
use sm_core::config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{MKeyTable, Neighbours};
use sm_core::sweep::Phase;

const MINUTE: Duration = Duration::from_secs(60);
const FIRST: u64 = 0x5eaf;
const SECOND: u64 = 0xbead;

fn keyed(m_key: u64, level: u8, lease: u16) -> Settings {
    let (m_key_protection_level, m_key_lease_period) = (level, lease);
    Settings { m_key, m_key_protection_level, m_key_lease_period, ..Settings::default() }
}

/// A fabric whose ports have the M_Key FIRST, its manager having died, and what that one remembered.
fn left_behind(level: u8, lease: u16) -> (Bed, MKeyTable, Arc<Neighbours>) {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), keyed(FIRST, level, lease));
    bed.bring_up();
    let mut manager = bed.crash_manager();
    let keys = MKeyTable::parse(&manager.sweeper.m_keys().render()).0;
    let neighbours = Neighbours::parse(&manager.sweeper.neighbours().render()).0;
    (bed, keys, Arc::new(neighbours))
}

/// A manager with the M_Key SECOND on the same host.
fn succeed(bed: &mut Bed, lease: u16) {
    let host = bed.hosts()[0];
    bed.manage(host, keyed(SECOND, 2, lease), LidTable::default());
}

fn await_all(bed: &mut Bed, limit: Duration) {
    let all = (bed.hosts().len(), bed.switches().len());
    bed.run_until(limit, "all under the new key", |bed| {
        let sweeper = bed.sweeper();
        let last = bed.reports().last();
        sweeper.is_up()
            && sweeper.phase() == Phase::Idle
            && sweeper.fabric().counts() == all
            && last.is_some_and(|report| report.errors == 0)
    });
    bed.assert_all_reachable();
    let keys = bed.sweeper().m_keys();
    for port in bed.sweeper().fabric().end_ports() {
        assert_eq!(keys.get(bed.sweeper().fabric().port(port).guid), Some(SECOND));
    }
}

/// At level 0 whoever asks is told the key.
#[test]
fn a_key_that_ports_show_is_learnt() {
    let (mut bed, ..) = left_behind(0, 0);
    succeed(&mut bed, 0);
    await_all(&mut bed, MINUTE);
}

/// At levels 2 and 3 nobody is answered, not even about who is there.
#[test]
fn what_another_remembered_opens_ports_that_answer_nobody() {
    for level in [1, 2, 3] {
        let (mut bed, keys, neighbours) = left_behind(level, 0);
        let home = bed.hosts()[0];
        let guid = bed.fabric.port(home, 1).unwrap().guid;
        succeed(&mut bed, 0);
        // Our own port cannot be asked who it is; its GUID is set, as an operator would.
        let settings = Settings { guid, ..keyed(SECOND, 2, 0) };
        bed.crash_manager();
        bed.manage(home, settings, LidTable::default());
        bed.managers[0].sweeper.set_m_keys(keys, neighbours);
        await_all(&mut bed, MINUTE);
    }
}

#[test]
fn a_lease_that_runs_out_opens_ports_whose_key_nobody_knows() {
    for level in [1, 2, 3] {
        let (mut bed, ..) = left_behind(level, 20);
        succeed(&mut bed, 20);
        bed.run_for(Duration::from_secs(10));
        let sweeper = bed.sweeper();
        assert!(!sweeper.is_up() || !sweeper.faults().is_empty(), "the lease has not run out");
        await_all(&mut bed, MINUTE * 10);
    }
}

/// Level 1, without a lease: what can be read is, what cannot be set is told by node and port.
#[test]
fn a_port_that_can_never_be_opened_is_told_with_its_guid() {
    let (mut bed, keys, neighbours) = left_behind(1, 0);
    let closed = bed.hosts()[7];
    let guid = bed.fabric.port(closed, 1).unwrap().guid;
    let mut known = keys;
    known.forget(guid);
    let home = bed.hosts()[0];
    bed.manage(home, keyed(SECOND, 2, 0), LidTable::default());
    bed.managers[0].sweeper.set_m_keys(known, neighbours);
    let report = bed.bring_up();
    let told = report.faults.join("\n");
    assert!(told.contains(&guid.to_string()) && told.contains("never expires"), "{told}");
    let open = bed.hosts()[8];
    assert_eq!(bed.fabric.port(open, 1).unwrap().state, PortState::Active);
}
