//! Renders registry rows as dump text.

use std::collections::BTreeMap;
use std::io::Write as _;

use ib_mad::types::{Gid, Guid, Lid, Qpn};
use ib_mad::wire::attribute::InformInfo;
use ib_mad::wire::record::{McMemberRecord, ServiceRecord};
use sa_proto::snapshot::{
    AliasGuid, MulticastGroup, MulticastMember, RegistryPlane, Rows, Service, Subscription,
};

use super::Surroundings;

/// Q_Key of reports: that of QP1, also used for other QPs.
const REPORT_QKEY: u32 = 0x8001_0000;

/// GUIDs in a block of a port's table.
const BLOCK: usize = 8;

/// Renders `rows` as text.
pub fn write(rows: &RegistryPlane, around: &Surroundings<'_>) -> Vec<u8> {
    let mut text = Text(Vec::with_capacity(256 * (rows.groups.len() + rows.members.len() + 64)));
    text.alias_guids(&rows.alias_guids, around);
    let mut members = rows.members.iter().peekable();
    for group in &rows.groups {
        text.group(group);
        while members.next_if(|member| member.rid.mgid < group.mgid).is_some() {}
        while let Some(member) = members.next_if(|member| member.rid.mgid == group.mgid) {
            text.member(group, member);
        }
    }
    for subscription in &rows.subscriptions {
        text.subscription(subscription, around);
    }
    for service in &rows.services {
        text.service(service, around);
    }
    text.0
}

struct Text(Vec<u8>);

/// A GID in the text format: two halves.
struct Halves(Gid);

impl std::fmt::Display for Halves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0x{:016x}:0x{:016x}", self.0.prefix(), self.0.guid().0)
    }
}

impl Text {
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a Vec does not fail");
    }

    fn alias_guids(&mut self, aliases: &Rows<AliasGuid>, around: &Surroundings<'_>) {
        let mut ports = BTreeMap::<Guid, Vec<&AliasGuid>>::new();
        for alias in aliases {
            ports.entry(alias.port_guid).or_default().push(alias);
        }
        for (port, aliases) in ports {
            let needed = aliases.iter().map(|alias| usize::from(alias.index) + 1).max();
            let (lid, capacity) = (around.port)(port).unwrap_or((Lid::NONE, 0));
            let capacity = usize::from(capacity).max(needed.unwrap_or(0));
            let mut table = vec![[0; BLOCK]; capacity.div_ceil(BLOCK)];
            table[0][0] = port.0;
            for alias in aliases {
                let index = usize::from(alias.index);
                table[index / BLOCK][index % BLOCK] = alias.alias.0;
            }
            for (number, block) in table.iter().enumerate() {
                self.put(format_args!(
                    "GUIDInfo Record: base_guid={port} lid={lid:#06x} block_num={number:#x}",
                    port = Hex64(port.0),
                    lid = lid.0,
                ));
                for (index, guid) in block.iter().enumerate() {
                    self.put(format_args!(" guid{index}={}", Hex64(*guid)));
                }
                self.put(format_args!("\n\n"));
            }
        }
    }

    fn group(&mut self, group: &MulticastGroup) {
        let r = &group.record;
        let record = McMemberRecord::of(r);
        self.put(format_args!(
            "MC Group {mlid:#06x} {known}: mgid={mgid} port_gid={port_gid} qkey={qkey:#010x} \
             mlid={mlid:#06x} mtu={mtu:#04x} tclass={tclass:#04x} pkey={pkey:#06x} \
             rate={rate:#04x} pkt_life={life:#04x} sl_flow_hop={sl_flow_hop:#010x} \
             scope_state={scope:#04x} proxy_join=0x0\n\n",
            known = if group.predefined { " (well known)" } else { "" },
            mgid = Halves(group.mgid),
            port_gid = Halves(record.port_gid()),
            qkey = record.qkey(),
            mlid = record.mlid().0,
            mtu = r[38],
            tclass = record.tclass(),
            pkey = record.pkey().0,
            rate = r[42],
            life = r[43],
            sl_flow_hop = u32::from_be_bytes([r[44], r[45], r[46], r[47]]),
            scope = r[48],
        ));
    }

    fn member(&mut self, group: &MulticastGroup, member: &MulticastMember) {
        self.put(format_args!(
            "mcm_port: port_gid={gid} scope_state={state:#04x} proxy_join={proxy:#x}\n\n",
            gid = Halves(member.rid.port_gid),
            state = group.record[48] & 0xF0 | member.join_state & 0x0F,
            proxy = u8::from(member.proxy_join),
        ));
    }

    fn subscription(&mut self, row: &Subscription, around: &Surroundings<'_>) {
        let i = &row.inform_info;
        let info = InformInfo::of(i);
        let pkey = around.pkeys.iter().position(|pkey| pkey.base() == row.pkey.base());
        self.put(format_args!(
            "InformInfo Record: subscriber_gid={subscriber} subscriber_enum={number:#x} \
             InformInfo: gid={gid} lid_range_begin={begin:#x} lid_range_end={end:#x} \
             is_generic={generic:#x} subscribe={subscribe:#x} trap_type={kind:#x} \
             trap_num={trap:#x} qpn_resp_time_val={qpn_time:#x} node_type=0x{producer:06x} \
             rep_addr: lid={lid:#06x} path_bits=0x00 static_rate=0x00 remote_qp={qpn:#010x} \
             remote_qkey={qkey:#010x} pkey_ix={pkey:#06x} sl={sl:#04x}\n\n",
            subscriber = Halves(row.rid.subscriber_gid),
            number = row.rid.enumeration,
            gid = Halves(info.gid()),
            begin = info.lid_range_begin().0,
            end = info.lid_range_end().0,
            generic = info.is_generic(),
            subscribe = info.subscribe(),
            kind = info.inform_type(),
            trap = info.trap_number().0,
            qpn_time = u32::from_be_bytes([i[28], i[29], i[30], i[31]]),
            producer = u32::from_be_bytes([0, i[33], i[34], i[35]]),
            lid = row.lid.0,
            qpn = row.qpn.0,
            qkey = if row.qpn == Qpn::SMI { 0 } else { REPORT_QKEY },
            pkey = pkey.unwrap_or(0),
            sl = row.sl.get(),
        ));
    }

    fn service(&mut self, row: &Service, around: &Surroundings<'_>) {
        let r = &row.record;
        let record = ServiceRecord::of(r);
        let (words, _) = r.as_chunks::<8>();
        let half = |at: usize| u64::from_be_bytes(words[at / 8]);
        self.put(format_args!(
            "Service Record: id={id} gid={gid} pkey={pkey:#x} lease={lease:#x} \
             key={key0}:{key1} name=",
            id = Hex64(record.service_id()),
            gid = Halves(record.service_gid()),
            pkey = record.service_pkey().0,
            lease = record.service_lease(),
            key0 = Hex64(half(32)),
            key1 = Hex64(half(40)),
        ));
        self.name(&record.service_name());
        for (label, at) in [("data8", 112), ("data16", 128), ("data32", 144), ("data64", 160)] {
            self.put(format_args!(" {label}={}:{}", Hex64(half(at)), Hex64(half(at + 8))));
        }
        // 32-bit seconds end in 2106; after that a lease is written as one without end.
        let (changed, left) = match row.expires_s {
            Some(expires) => (around.wall_s, expires.saturating_sub(around.now_s)),
            None => (around.wall_s, u64::from(u32::MAX)),
        };
        let saturated = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        self.put(format_args!(
            " modified_time={:#x} lease_period={:#x}\n\n",
            saturated(changed),
            saturated(left),
        ));
    }

    /// A quoted name, as far as the format can hold it: `opensm` reads at most 63 bytes, up
    /// to a quote of the opening kind. Characters that could start another line or be
    /// mistaken for one are removed, since clients choose the name.
    fn name(&mut self, name: &[u8; 64]) {
        let end = name.iter().position(u8::is_ascii_control).unwrap_or(63).min(63);
        let name = &name[..end];
        let quote = if name.contains(&b'\'') { b'"' } else { b'\'' };
        self.0.push(quote);
        self.0.extend(name.iter().take_while(|byte| **byte != quote));
        self.0.push(quote);
    }
}

/// A 64-bit number with leading zeros.
struct Hex64(u64);

impl std::fmt::Display for Hex64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}
