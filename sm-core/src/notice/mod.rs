//! Notices for event subscribers, built from traps, sweep results and changes of
//! multicast groups (IBA 13.4.8.2, 13.4.11, 14.2.5.1).
//!
//! Pure: bytes in, bytes out. Every byte of a notice is defined. [`Damper`] prevents a storm of
//! events from becoming a storm of reports. The responder that sends reports matches subscriptions
//! and checks access, using the fields of [`Event`]; acknowledging traps is done by
//! [`trap`](crate::trap).

mod damper;

use ib_mad::types::{Gid, Guid, Lid, PKey};
use ib_mad::wire::attribute::{GidDetails, Notice, NoticeType, ProducerType, TrapNumber};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use damper::{Damper, DamperCounters};

/// Length of a Notice with IssuerGID, bytes.
pub const NOTICE_LEN: usize = 80;

/// A notice with what a responder needs to select its subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The Notice in wire format.
    pub notice: [u8; NOTICE_LEN],
    /// Whether only trusted subscribers may receive it, because it contains keys.
    pub trusted_only: bool,
    /// The port it is about; subscribers that share no partition with it do not receive it.
    pub subject: Option<Guid>,
    /// P_Keys of its subject, where that may have left the fabric when it is reported.
    pub subject_pkeys: Vec<PKey>,
    /// Events with the same key supersede each other.
    pub key: u64,
}

impl Event {
    /// Its trap number; meaningless for vendor notices.
    pub fn trap_number(&self) -> TrapNumber {
        Notice::of(&self.notice).trap_number()
    }
}

/// The SM as issuer of notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issuer {
    /// Subnet prefix, the upper half of every GID.
    pub prefix: u64,
    /// LID of the SM's port.
    pub sm_lid: Lid,
    /// GUID of the SM's port.
    pub sm_port_guid: Guid,
}

impl Issuer {
    /// An end port came into service (trap 64) (IBA C14-72.1.1).
    pub fn port_in_service(&self, port: Guid, pkeys: &[PKey]) -> Event {
        self.port(TrapNumber::GID_IN_SERVICE, port, pkeys)
    }

    /// An end port that had `pkeys` went out of service (trap 65) (IBA C14-72.1.2).
    pub fn port_out_of_service(&self, port: Guid, pkeys: &[PKey]) -> Event {
        self.port(TrapNumber::GID_OUT_OF_SERVICE, port, pkeys)
    }

    /// A multicast group was created (trap 66) (IBA o14-12.1.11).
    pub fn group_created(&self, mgid: Gid, pkey: Option<PKey>) -> Event {
        self.group(TrapNumber::MULTICAST_GROUP_CREATED, mgid, pkey)
    }

    /// A multicast group was deleted (trap 67) (IBA o14-12.1.11).
    pub fn group_deleted(&self, mgid: Gid, pkey: Option<PKey>) -> Event {
        self.group(TrapNumber::MULTICAST_GROUP_DELETED, mgid, pkey)
    }

    fn port(&self, trap: TrapNumber, port: Guid, pkeys: &[PKey]) -> Event {
        let gid = Gid::new(self.prefix, port);
        Event { subject_pkeys: pkeys.to_vec(), ..self.of_gid(trap, gid, seed::PORT) }
    }

    fn group(&self, trap: TrapNumber, mgid: Gid, pkey: Option<PKey>) -> Event {
        // Full and limited members belong to the group's partition.
        let full = pkey.map(|pkey| PKey(pkey.0 | PKey::DEFAULT_FULL.0 & !PKey::DEFAULT_LIMITED.0));
        Event { subject_pkeys: full.into_iter().collect(), ..self.of_gid(trap, mgid, seed::GROUP) }
    }

    fn of_gid(&self, trap: TrapNumber, gid: Gid, seed: u64) -> Event {
        let mut details = [0; 54];
        GidDetails::of_mut(&mut details).set_gid(gid);
        let mut notice = [0; NOTICE_LEN];
        Notice::of_mut(&mut notice)
            .set_is_generic(true)
            .set_notice_type(NoticeType::SUBNET_MANAGEMENT)
            .set_producer_type(ProducerType::CLASS_MANAGER)
            .set_trap_number(trap)
            .set_issuer_lid(self.sm_lid)
            .set_data_details(details)
            .set_issuer_gid(Gid::new(self.prefix, self.sm_port_guid));
        let key = xxh3_64_with_seed(&gid.0, seed) | 1;
        Event { notice, trusted_only: false, subject: None, subject_pkeys: Vec::new(), key }
    }

    /// A trap sent by the port with GUID `source`; `trap` is the Notice of the SMP.
    pub fn trap(&self, trap: &[u8; 64], source: Guid) -> Event {
        let mut notice = [0; NOTICE_LEN];
        notice[..trap.len()].copy_from_slice(trap);
        let mut view = Notice::of_mut(&mut notice);
        view.set_issuer_gid(Gid::new(self.prefix, source));
        let keys = TrapNumber::BAD_MKEY.0..=TrapNumber::BAD_PKEY_SWITCH_PORT.0;
        let trusted_only = view.is_generic() && keys.contains(&view.trap_number().0);
        // A trap with the same details is a repeat; the toggle bit does not count.
        let mut content = notice;
        content[8..10].fill(0);
        let key = xxh3_64_with_seed(&content, seed::TRAP) | 1;
        Event { notice, trusted_only, subject: Some(source), subject_pkeys: Vec::new(), key }
    }
}

/// Seed of keys, so that a port and a group with equal bytes have different keys.
mod seed {
    pub(super) const PORT: u64 = 1;
    pub(super) const GROUP: u64 = 2;
    pub(super) const TRAP: u64 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: Issuer = Issuer {
        prefix: 0xFE80_0000_0000_0000,
        sm_lid: Lid(1),
        sm_port_guid: Guid(0x0C42_A103_0000_0001),
    };

    /// A recorded report; `..` stands for bytes of the recorder's stack memory.
    fn recorded(hex: &str) -> [Option<u8>; NOTICE_LEN] {
        let hex: String = hex.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok();
        std::array::from_fn(byte)
    }

    fn assert_like(event: &Event, hex: &str) {
        for (at, (ours, theirs)) in event.notice.iter().zip(recorded(hex)).enumerate() {
            // What is not defined there is zero here.
            assert_eq!(*ours, theirs.unwrap_or(0), "byte {at}");
        }
    }

    const UNDEFINED: &str = "................................................................";

    /// Proves IBA C14-72.1.1, C14-72.1.2, o14-12.1.11.
    #[test]
    fn notices_of_ports_and_groups_are_as_recorded_without_stack_memory() {
        let port = Guid(0x0C42_A103_0000_00B1);
        let of = |trap: &str, gid: &str| {
            format!(
                "83000004 {trap} 0001 .... ............ {gid} {UNDEFINED} \
                 fe800000000000000c42a10300000001"
            )
        };
        let gid = "fe800000000000000c42a103000000b1";
        assert_like(&ISSUER.port_out_of_service(port, &[]), &of("0041", gid));
        assert_like(&ISSUER.port_in_service(port, &[]), &of("0040", gid));
        let mgid = "ff12a01cfe8000000000000000000b00";
        let group = Gid(u128::from_str_radix(mgid, 16).unwrap().to_be_bytes());
        assert_like(&ISSUER.group_created(group, None), &of("0042", mgid));
        assert_like(&ISSUER.group_deleted(group, None), &of("0043", mgid));
    }

    fn trap(data: &str) -> [u8; 64] {
        let bytes = recorded(&format!("{data:0<160}"));
        std::array::from_fn(|at| bytes[at].unwrap())
    }

    #[test]
    fn traps_are_passed_on_as_recorded() {
        let zeros = "0".repeat(200);
        let of = |head: &str, guid: &str| {
            let head: String = head.split_whitespace().collect();
            format!("{}fe80000000000000{guid}", &format!("{head}{zeros}")[..128])
        };
        for (head, guid) in [
            ("81000002 0080 0002 0000 0002", "b8599f0300a00000"),
            ("84000001 0090 0005 0000 000000050000025108680000", "0c42a10300000021"),
            ("84000001 0091 0005 0000 00000005000000000000000000050000", "0c42a10300000021"),
            ("82000001 0101 0005 0000 00000005000100001234", "0c42a10300000021"),
            ("84000001 03e7 0005 0000", "0c42a10300000021"),
        ] {
            let head: String = head.split_whitespace().collect();
            let source = Guid(u64::from_str_radix(guid, 16).unwrap());
            let event = ISSUER.trap(&trap(&head), source);
            assert_like(&event, &of(&head, guid));
            assert_eq!(event.subject, Some(source));
            assert_eq!(event.trusted_only, event.trap_number() == TrapNumber::BAD_PKEY);
        }
    }

    #[test]
    fn what_supersedes_each_other_shares_a_key() {
        let (up, down) = (
            ISSUER.port_in_service(Guid(5), &[]),
            ISSUER.port_out_of_service(Guid(5), &[PKey::DEFAULT_FULL]),
        );
        assert_eq!(up.key, down.key);
        assert_ne!(up.key, ISSUER.port_in_service(Guid(6), &[]).key);
        let gid = Gid::new(ISSUER.prefix, Guid(5));
        assert_ne!(up.key, ISSUER.group_created(gid, None).key);
        let first = ISSUER.trap(&trap("81000002008000020000"), Guid(1));
        let toggled = ISSUER.trap(&trap("81000002008000028000"), Guid(1));
        let other = ISSUER.trap(&trap("81000002008000030000"), Guid(1));
        assert_eq!(first.key, toggled.key);
        assert_ne!(first.key, other.key);
    }

    #[test]
    fn a_groups_members_of_either_kind_may_hear_of_it() {
        let event = ISSUER.group_created(Gid([0xFF; 16]), Some(PKey(0x0001)));
        assert_eq!(event.subject_pkeys, [PKey(0x8001)]);
    }
}
