//! Parses dump text into registry rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::{Gid, Guid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::attribute::InformInfo;
use ib_mad::wire::record::service::LEASE_INDEFINITE;
use ib_mad::wire::record::{JoinState, McMemberRecord, ServiceRecord};
use sa_proto::snapshot::{
    AliasGuid, MulticastGroup, MulticastMember, MulticastMemberRid, RegistryPlane, Row, Rows,
    Service, ServiceRid, Subscription, SubscriptionRid,
};

use super::Surroundings;
use crate::registry::inform;

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct DumpError {
    /// Line number, from 1.
    pub line: usize,
    /// Why it cannot be read.
    pub problem: Problem,
}

/// Why a line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The line starts with no known record type.
    #[error("unknown record type")]
    Unknown,
    /// A required field is missing.
    #[error("field '{0}' is missing")]
    Missing(&'static str),
    /// A field's value is not a hexadecimal number, or does not fit the field.
    #[error("field '{0}' is not a hexadecimal number, or is too large")]
    Number(&'static str),
    /// A member line that follows no group line.
    #[error("mcm_port without a preceding MC Group")]
    NoGroup,
}

/// Parses text into rows, with sequence number 0.
///
/// If records have the same key, the first counts. Groups without a member that keeps them alive
/// are left out, and so are leases that expired by `around.now_s`.
pub fn read(text: &[u8], around: &Surroundings<'_>) -> Result<RegistryPlane, DumpError> {
    let mut loading = Loading::default();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let failed = |problem| DumpError { line: index + 1, problem };
        loading.line(Line { rest: line }, around).map_err(failed)?;
    }
    Ok(loading.finish())
}

#[derive(Default)]
struct Loading {
    groups: BTreeMap<Gid, MulticastGroup>,
    members: BTreeMap<MulticastMemberRid, MulticastMember>,
    services: BTreeMap<ServiceRid, Service>,
    subscriptions: BTreeMap<SubscriptionRid, Subscription>,
    alias_guids: BTreeMap<Guid, AliasGuid>,
    /// The group of the following member lines.
    group: Option<Gid>,
}

impl Loading {
    fn line(&mut self, mut line: Line<'_>, around: &Surroundings<'_>) -> Result<(), Problem> {
        if line.starts(b"mcm_port") {
            return self.member(&mut line);
        }
        self.group = None;
        if line.starts(b"MC Group") {
            self.group(&mut line)
        } else if line.starts(b"Service Record:") {
            self.service(&mut line, around)
        } else if line.starts(b"InformInfo Record:") {
            self.subscription(&mut line, around)
        } else if line.starts(b"GUIDInfo Record:") {
            self.alias_guids(&mut line)
        } else {
            Err(Problem::Unknown)
        }
    }

    fn group(&mut self, line: &mut Line<'_>) -> Result<(), Problem> {
        let colon = line.rest.iter().position(|byte| *byte == b':').unwrap_or(0);
        let predefined = line.rest[..colon].ends_with(b"(well known)");
        let mgid = line.gid(" mgid=0x")?;
        line.gid(" port_gid=0x")?;
        let mut record = [0; 52];
        let qkey = line.u32(" qkey=0x")?;
        let mlid = Lid(line.u16(" mlid=0x")?);
        record[38] = line.u8(" mtu=0x")?;
        record[39] = line.u8(" tclass=0x")?;
        let pkey = PKey(line.u16(" pkey=0x")?);
        record[42] = line.u8(" rate=0x")?;
        record[43] = line.u8(" pkt_life=0x")?;
        record[44..48].copy_from_slice(&line.u32(" sl_flow_hop=0x")?.to_be_bytes());
        record[48] = line.u8(" scope_state=0x")? & 0xF0;
        let mut view = McMemberRecord::of_mut(&mut record);
        view.set_mgid(mgid).set_qkey(qkey).set_mlid(mlid).set_pkey(pkey);
        self.groups.entry(mgid).or_insert(MulticastGroup { mgid, record, predefined });
        self.group = Some(mgid);
        Ok(())
    }

    fn member(&mut self, line: &mut Line<'_>) -> Result<(), Problem> {
        let mgid = self.group.ok_or(Problem::NoGroup)?;
        let rid = MulticastMemberRid { mgid, port_gid: line.gid(" port_gid=0x")? };
        let join_state = line.u8(" scope_state=0x")? & 0x0F;
        let proxy_join = line.u8(" proxy_join=0x")? != 0;
        self.members.entry(rid).or_insert(MulticastMember { rid, join_state, proxy_join });
        Ok(())
    }

    fn service(&mut self, line: &mut Line<'_>, around: &Surroundings<'_>) -> Result<(), Problem> {
        let mut record = [0; 176];
        let rid = ServiceRid {
            service_id: line.u64(" id=0x")?,
            service_gid: line.gid(" gid=0x")?,
            service_pkey: PKey(line.u16(" pkey=0x")?),
        };
        let lease = line.u32(" lease=0x")?;
        let mut put = |at: usize, halves: [u64; 2]| {
            record[at..at + 8].copy_from_slice(&halves[0].to_be_bytes());
            record[at + 8..at + 16].copy_from_slice(&halves[1].to_be_bytes());
        };
        put(Service::KEY.start, line.halves(" key=0x")?);
        let name = line.name(" name=")?;
        put(112, line.halves(" data8=0x")?);
        put(128, line.halves(" data16=0x")?);
        put(144, line.halves(" data32=0x")?);
        put(160, line.halves(" data64=0x")?);
        let modified = u64::from(line.u32(" modified_time=0x")?);
        let left = u64::from(line.u32(" lease_period=0x")?);
        ServiceRecord::of_mut(&mut record)
            .set_service_id(rid.service_id)
            .set_service_gid(rid.service_gid)
            .set_service_pkey(rid.service_pkey)
            .set_service_lease(lease)
            .set_service_name(name);
        let left = (modified + left).saturating_sub(around.wall_s);
        let expires_s = (lease != LEASE_INDEFINITE).then_some(around.now_s + left);
        if expires_s.is_none_or(|expires| expires > around.now_s) {
            self.services.entry(rid).or_insert(Service { rid, record, expires_s });
        }
        Ok(())
    }

    fn subscription(
        &mut self,
        line: &mut Line<'_>,
        around: &Surroundings<'_>,
    ) -> Result<(), Problem> {
        let subscriber_gid = line.gid(" subscriber_gid=0x")?;
        let wanted = line.u16(" subscriber_enum=0x")?;
        let mut info = [0; 36];
        info[..16].copy_from_slice(&line.gid(" gid=0x")?.0);
        info[16..18].copy_from_slice(&line.u16(" lid_range_begin=0x")?.to_be_bytes());
        info[18..20].copy_from_slice(&line.u16(" lid_range_end=0x")?.to_be_bytes());
        info[22] = line.u8(" is_generic=0x")?;
        info[23] = line.u8(" subscribe=0x")?;
        info[24..26].copy_from_slice(&line.u16(" trap_type=0x")?.to_be_bytes());
        info[26..28].copy_from_slice(&line.u16(" trap_num=0x")?.to_be_bytes());
        info[28..32].copy_from_slice(&line.u32(" qpn_resp_time_val=0x")?.to_be_bytes());
        info[33..36].copy_from_slice(&line.u32(" node_type=0x")?.to_be_bytes()[1..]);
        let lid = Lid(line.u16(" rep_addr: lid=0x")?);
        line.u8(" path_bits=0x")?;
        line.u8(" static_rate=0x")?;
        let qpn = Qpn(line.u32(" remote_qp=0x")? & 0x00FF_FFFF);
        line.u32(" remote_qkey=0x")?;
        let pkey = usize::from(line.u16(" pkey_ix=0x")?);
        let sl = Sl::from_low_bits(line.u8(" sl=0x")?.into());

        // OpenSM does not number them: each is 0.
        let rid = |enumeration| SubscriptionRid { subscriber_gid, enumeration };
        let mine = || self.subscriptions.range(rid(0)..=rid(u16::MAX)).map(|(_, row)| row);
        let same = |row: &Subscription| row.qpn == qpn && inform::same(&row.inform_info, &info);
        if mine().any(same) {
            return Ok(());
        }
        let taken = self.subscriptions.contains_key(&rid(wanted));
        let number = if taken { inform::free_number(mine()) } else { Some(wanted) };
        if let Some(number) = number {
            let row = Subscription {
                rid: rid(number),
                inform_info: info,
                lid,
                qpn,
                sl,
                pkey: around.pkeys.get(pkey).copied().unwrap_or(PKey::DEFAULT_FULL),
                grh: false,
                trusted: inform::needs_trust(&InformInfo::of(&info)),
                responder: 0,
            };
            self.subscriptions.insert(row.rid, row);
        }
        Ok(())
    }

    fn alias_guids(&mut self, line: &mut Line<'_>) -> Result<(), Problem> {
        const LABELS: [&str; 8] = [
            " guid0=0x",
            " guid1=0x",
            " guid2=0x",
            " guid3=0x",
            " guid4=0x",
            " guid5=0x",
            " guid6=0x",
            " guid7=0x",
        ];
        let port_guid = Guid(line.u64(" base_guid=0x")?);
        line.u16(" lid=0x")?;
        let block = usize::from(line.u8(" block_num=0x")?);
        for (entry, label) in LABELS.into_iter().enumerate() {
            let alias = Guid(line.u64(label)?);
            // The first entry of the table is the port GUID.
            match u8::try_from(block * LABELS.len() + entry) {
                Ok(index) if index != 0 && alias != Guid(0) => {
                    let row = AliasGuid { alias, port_guid, index };
                    self.alias_guids.entry(alias).or_insert(row);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn finish(mut self) -> RegistryPlane {
        let alive = |member: &MulticastMember| {
            let state = JoinState(member.join_state);
            state.contains(JoinState::FULL_MEMBER)
                || state.contains(JoinState::SEND_ONLY_FULL_MEMBER)
        };
        self.groups.retain(|mgid, group| {
            let rid = |port_gid| MulticastMemberRid { mgid: *mgid, port_gid };
            let mut members = self.members.range(rid(Gid::ZERO)..=rid(Gid([0xFF; 16])));
            group.predefined || members.any(|(_, member)| alive(member))
        });
        self.members.retain(|rid, _| self.groups.contains_key(&rid.mgid));
        // OpenSM's file has no other tables, and a sequence number neither.
        RegistryPlane {
            groups: shared(self.groups),
            members: shared(self.members),
            services: shared(self.services),
            subscriptions: shared(self.subscriptions),
            alias_guids: shared(self.alias_guids),
            ..RegistryPlane::default()
        }
    }
}

fn shared<R: Row>(rows: BTreeMap<R::Key, R>) -> Rows<R> {
    rows.into_values().map(Arc::new).collect()
}

/// The unparsed rest of a line.
struct Line<'a> {
    rest: &'a [u8],
}

impl<'a> Line<'a> {
    fn starts(&self, with: &[u8]) -> bool {
        self.rest.starts_with(with)
    }

    /// Skips past the next `label`.
    fn after(&mut self, label: &'static str) -> Result<(), Problem> {
        let at = self.rest.windows(label.len()).position(|window| window == label.as_bytes());
        self.rest = &self.rest[at.ok_or(Problem::Missing(label))? + label.len()..];
        Ok(())
    }

    /// The hexadecimal number of up to `bits` bits after `label`.
    fn number(&mut self, label: &'static str, bits: u32) -> Result<u64, Problem> {
        self.after(label)?;
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (number, rest) = self.rest.split_at(digits);
        let ends = rest.first().is_none_or(|byte| byte.is_ascii_whitespace() || *byte == b':');
        let number = std::str::from_utf8(number).ok().and_then(|n| u64::from_str_radix(n, 16).ok());
        let number = number.filter(|number| ends && (bits == 64 || *number >> bits == 0));
        self.rest = rest;
        number.ok_or(Problem::Number(label))
    }

    fn u8(&mut self, label: &'static str) -> Result<u8, Problem> {
        Ok(self.number(label, 8)? as u8)
    }

    fn u16(&mut self, label: &'static str) -> Result<u16, Problem> {
        Ok(self.number(label, 16)? as u16)
    }

    fn u32(&mut self, label: &'static str) -> Result<u32, Problem> {
        Ok(self.number(label, 32)? as u32)
    }

    fn u64(&mut self, label: &'static str) -> Result<u64, Problem> {
        self.number(label, 64)
    }

    fn halves(&mut self, label: &'static str) -> Result<[u64; 2], Problem> {
        Ok([self.u64(label)?, self.u64(":0x")?])
    }

    fn gid(&mut self, label: &'static str) -> Result<Gid, Problem> {
        let [prefix, guid] = self.halves(label)?;
        Ok(Gid::new(prefix, Guid(guid)))
    }

    /// A name: between quotes of one kind or the other, or up to a space; 63 bytes at most.
    fn name(&mut self, label: &'static str) -> Result<[u8; 64], Problem> {
        self.after(label)?;
        let quote = self.rest.first().copied().filter(|byte| matches!(byte, b'\'' | b'"'));
        if quote.is_some() {
            self.rest = &self.rest[1..];
        }
        let end = quote.unwrap_or(b' ');
        let len = self.rest.iter().position(|byte| *byte == end).unwrap_or(self.rest.len());
        let mut name = [0; 64];
        let kept = len.min(63);
        name[..kept].copy_from_slice(&self.rest[..kept]);
        self.rest = &self.rest[len..];
        Ok(name)
    }
}
