//! Clients that register, change and withdraw records over UDP at random, and record what must be
//! registered at the end.

pub(crate) mod herd;
pub(crate) mod request;

use std::collections::{BTreeMap, BTreeSet};

use ib_mad::types::{Gid, Guid, Qpn};
use ib_mad::wire::attribute::InformInfo;
use sa_proto::snapshot::RegistryPlane;

/// SplitMix64: the same sequence for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    pub(crate) fn one<T: Copy>(&mut self, all: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<T> = all.into_iter().collect();
        (!all.is_empty()).then(|| all[self.below(all.len() as u64) as usize])
    }
}

/// The registered records, in a form that is easily compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registered {
    /// JoinState by MGID and port.
    pub(crate) members: BTreeMap<(Gid, Gid), u8>,
    /// The last byte of ServiceData8 by ServiceID and port.
    pub(crate) services: BTreeMap<(u64, Gid), u8>,
    /// Trap numbers to which ports subscribe at QPs.
    pub(crate) subscriptions: BTreeSet<(Gid, Qpn, u16)>,
    /// Aliases by port and index.
    pub(crate) aliases: BTreeMap<(Guid, u8), Guid>,
}

impl Registered {
    /// Adds the records of others.
    pub(crate) fn add(&mut self, other: &Self) {
        self.members.extend(&other.members);
        self.services.extend(&other.services);
        self.subscriptions.extend(&other.subscriptions);
        self.aliases.extend(&other.aliases);
    }

    /// The contents of `plane`. Panics if a record exists twice, or refers to a missing one.
    pub(crate) fn of(plane: &RegistryPlane) -> Self {
        let mut all = Self::default();
        for row in plane.members.iter() {
            assert!(plane.groups.find(row.rid.mgid).is_some(), "member without a group: {row:?}");
            all.members.insert((row.rid.mgid, row.rid.port_gid), row.join_state);
        }
        for row in plane.services.iter() {
            let key = (row.rid.service_id, row.rid.service_gid);
            let twice = all.services.insert(key, row.record[127]);
            assert!(twice.is_none(), "a service twice: {row:?}");
        }
        for row in plane.subscriptions.iter() {
            let info = InformInfo::new(&row.inform_info[..]).unwrap();
            let key = (row.rid.subscriber_gid, row.qpn, info.trap_number().0);
            assert!(all.subscriptions.insert(key), "a subscription twice: {row:?}");
        }
        for row in plane.alias_guids.iter() {
            let twice = all.aliases.insert((row.port_guid, row.index), row.alias);
            assert!(twice.is_none(), "two aliases in one place: {row:?}");
        }
        all
    }
}
