//! Effects of the recorded writes on the registry, case by case: a simple model of OpenSM's
//! registry.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::{Gid, Guid, PKey, Qpn, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::record::service::component as service;
use ib_mad::wire::record::{McMemberRecord, ServiceRecord};
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{
    AliasGuid, MulticastGroup, MulticastMember, MulticastMemberRid, RegistryPlane, Service,
    ServiceRid, Subscription, SubscriptionRid,
};

use super::{Case, Golden, bytes, guid};

/// A subscriber's role, and its InformInfo as it was kept.
type Key = (String, [u8; 36]);

#[derive(Default)]
pub(crate) struct Writes {
    groups: BTreeMap<Gid, [u8; 52]>,
    /// JoinState and ProxyJoin.
    members: BTreeMap<MulticastMemberRid, (u8, bool)>,
    aliases: BTreeMap<(u16, u8), Guid>,
    services: BTreeMap<ServiceRid, [u8; 176]>,
    subscriptions: Vec<Key>,
    /// Groups that stay without members.
    predefined: Vec<Gid>,
}

impl Writes {
    /// The groups that existed from the start.
    pub(crate) fn new(groups: &[Vec<u8>]) -> Self {
        let mut writes = Self::default();
        for record in groups {
            let record: [u8; 52] = record[..52].try_into().unwrap();
            let mgid = Gid(record[..16].try_into().unwrap());
            writes.groups.insert(mgid, record);
            writes.predefined.push(mgid);
        }
        writes
    }

    /// Applies a successful Set() or Delete().
    pub(crate) fn apply(&mut self, golden: &Golden, case: &Case) {
        if case.id == "service/lease/expired" {
            // Leases of no more than a second.
            self.services.retain(|_, record| record[28..32] > [0, 0, 0, 1][..]);
        }
        let is_write = case.method == "Set" || case.method == "Delete";
        if !is_write || case.status.as_deref() != Some("OK") {
            return;
        }
        let answer = bytes(case.answer.as_ref().expect("it was answered"));
        match &case.attr_id[..] {
            "0x0003" => self.subscription(case),
            "0x0030" => self.alias(&answer),
            "0x0031" => self.service(case),
            "0x0038" => {
                let requester = guid(&golden.facts.roles[&case.client].guid);
                self.member(requester, answer[56..108].try_into().unwrap());
            }
            _ => {}
        }
    }

    fn member(&mut self, requester: Guid, mut record: [u8; 52]) {
        let view = McMemberRecord::new(&record[..]).unwrap();
        let rid = MulticastMemberRid { mgid: view.mgid(), port_gid: view.port_gid() };
        let state = view.join_state().0;
        // An answer shows the JoinState as it is now.
        let before = self.members.remove(&rid);
        if state != 0 {
            let mut group = McMemberRecord::new(&mut record[..]).unwrap();
            group.set_port_gid(Gid::ZERO).set_join_state(Default::default()).set_proxy_join(false);
            self.groups.entry(rid.mgid).or_insert(record);
            let proxy = before.map_or(rid.port_gid.guid() != requester, |(_, proxy)| proxy);
            self.members.insert(rid, (state, proxy));
        }
        // A group lives as long as it has full members; others do not outlive it.
        const FULL: u8 = 1 | 8;
        let of_group = |member: &MulticastMemberRid| member.mgid == rid.mgid;
        let lives = self.members.iter().any(|(key, member)| of_group(key) && member.0 & FULL != 0);
        if !lives && !self.predefined.contains(&rid.mgid) {
            self.groups.remove(&rid.mgid);
            self.members.retain(|key, _| !of_group(key));
        }
    }

    /// An answer shows the whole block as it is now.
    fn alias(&mut self, answer: &[u8]) {
        let (lid, block) = (u16::from_be_bytes([answer[56], answer[57]]), answer[58]);
        for (i, guid) in answer[64..128].chunks_exact(8).enumerate().skip(1) {
            let guid = Guid(u64::from_be_bytes(guid.try_into().unwrap()));
            let at = (lid, block * 8 + i as u8);
            self.aliases.remove(&at);
            if guid.0 != 0 {
                self.aliases.insert(at, guid);
            }
        }
    }

    fn service(&mut self, case: &Case) {
        let mad: [u8; 256] = bytes(&case.request[0]).try_into().unwrap();
        let mask = SaMad::new(&mad).sa().component_mask();
        let mut record: [u8; 176] = mad[56..232].try_into().unwrap();
        let mut view = ServiceRecord::new(&mut record[..]).unwrap();
        if !mask.contains(service::SERVICE_LEASE) {
            view.set_service_lease(u32::MAX);
        }
        let rid = ServiceRid {
            service_id: view.service_id(),
            service_gid: view.service_gid(),
            service_pkey: view.service_pkey(),
        };
        if case.method == "Set" {
            self.services.insert(rid, record);
        } else {
            self.services.remove(&rid);
        }
    }

    fn subscription(&mut self, case: &Case) {
        const SUBSCRIBE: usize = 23;
        const QPN: std::ops::Range<usize> = 28..31;
        let mad = bytes(&case.request[0]);
        let mut inform_info: [u8; 36] = mad[56..92].try_into().unwrap();
        let subscribes = inform_info[SUBSCRIBE] == 1;
        inform_info[SUBSCRIBE] = 1;
        if subscribes {
            inform_info[QPN].copy_from_slice(&[0, 0, 1]);
        }
        // A request is about the GID, or without one about LIDs, regardless of the GID; and about
        // all that follows but reserved bytes.
        let by_gid = inform_info[..16] != [0; 16];
        let essence = |info: &[u8; 36]| {
            let mut essence = *info;
            essence[if by_gid { 16..22 } else { 0..16 }].fill(0);
            essence[20..22].fill(0);
            essence[32] = 0;
            essence
        };
        let wanted = essence(&inform_info);
        let same = |(role, info): &Key| *role == case.client && essence(info) == wanted;
        let known = self.subscriptions.iter().position(same);
        match (subscribes, known) {
            (true, None) => self.subscriptions.push((case.client.clone(), inform_info)),
            (true, Some(at)) => self.subscriptions[at].1 = inform_info,
            (false, Some(at)) => {
                self.subscriptions.remove(at);
            }
            (false, None) => {}
        }
    }

    pub(crate) fn registry(&self, golden: &Golden) -> RegistryPlane {
        let ports = &golden.facts.fabric.ports;
        let alias_guids = self
            .aliases
            .iter()
            .filter_map(|(&(lid, index), &alias)| {
                let port = ports.iter().find(|port| port.lid == lid)?;
                Some(Arc::new(AliasGuid { alias, port_guid: guid(&port.guid), index }))
            })
            .collect();
        let subscriptions = (0..)
            .zip(&self.subscriptions)
            .map(|(enumeration, (role, inform_info))| {
                let port = guid(&golden.facts.roles[role].guid);
                let subscriber_gid = Gid::new(SUBNET_PREFIX_DEFAULT, port);
                Arc::new(Subscription {
                    rid: SubscriptionRid { subscriber_gid, enumeration },
                    inform_info: *inform_info,
                    lid: golden.lid_of(role),
                    qpn: Qpn(1),
                    sl: Sl::default(),
                    pkey: PKey::DEFAULT_FULL,
                    grh: false,
                    trusted: false,
                    responder: 0,
                })
            })
            .collect();
        let group = |(&mgid, &record): (&Gid, &[u8; 52])| {
            Arc::new(MulticastGroup { mgid, record, predefined: self.predefined.contains(&mgid) })
        };
        let member = |(&rid, &(join_state, proxy_join)): (&MulticastMemberRid, &(u8, bool))| {
            Arc::new(MulticastMember { rid, join_state, proxy_join })
        };
        let service = |(&rid, &record): (&ServiceRid, &[u8; 176])| {
            Arc::new(Service { rid, record, expires_s: None })
        };
        RegistryPlane {
            groups: self.groups.iter().map(group).collect(),
            members: self.members.iter().map(member).collect(),
            services: self.services.iter().map(service).collect(),
            subscriptions,
            alias_guids,
            ..RegistryPlane::default()
        }
    }
}
