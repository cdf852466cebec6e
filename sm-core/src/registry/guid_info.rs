//! GUIDInfoRecord: alias GUIDs (IBA 15.2.5.18).
//!
//! Only the port itself, unless it is a newcomer, or a trusted requester may set its alias GUIDs.
//! The answer is the resulting block; an unchanged entry shows the client that the GUID is in use
//! elsewhere. A GUID counts as used while its port is away for less than a quarter of an hour, or
//! services are registered at it: for its port and trusted requesters it does not.
//! The sweep programs the port's GUID table with the blocks of [`Registry::take_guid_blocks`].

mod kept;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ib_mad::types::Guid;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::GuidInfoRecord;
use ib_mad::wire::record::guid_info::component;
use ib_mad::wire::sa::{ComponentMask, DATA_LEN};
use sa_proto::snapshot::AliasGuid;

use kept::KeptAliases;

use super::{
    Answer, AnswerRecord, Core, EndPort, Ports, Refusal, Registry, Request, lapsed, multicast,
    service,
};

/// GUIDs in a block.
pub const GUIDS_PER_BLOCK: usize = 8;

/// Company ID at the start of SA-assigned GUIDs; OpenSM's.
const COMPANY: u64 = 0x0014_0500_0000_0000;
/// Maximum number of released SA-assigned GUIDs remembered for their former ports.
const REMEMBERED_MAX: usize = 1 << 18;

/// A block of a port's GUID table (GUIDInfo, IBA 14.2.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuidBlock {
    /// GUID of the port.
    pub port_guid: Guid,
    /// Block number.
    pub number: u8,
    /// Its entries; 0 where there is none. The first of block 0 is the port GUID.
    pub guids: [Guid; GUIDS_PER_BLOCK],
}

/// Indices of the alias GUID rows.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Aliases by port and index.
    by_port: BTreeMap<(Guid, u8), Guid>,
    /// SA-assigned GUIDs by port and index, so that a port gets the same GUID again.
    chosen: HashMap<(Guid, u8), Guid>,
    /// The last number assigned.
    last: u32,
    /// Blocks changed since they were last taken.
    changed: BTreeSet<(Guid, u8)>,
    /// Aliases of ports that left.
    pub(super) kept: KeptAliases,
}

impl Index {
    /// Aliases of a port.
    pub(super) fn aliases(&self, port: Guid) -> impl Iterator<Item = Guid> {
        self.by_port.range((port, 0)..=(port, u8::MAX)).map(|(_, alias)| *alias)
    }

    fn block(&self, port_guid: Guid, number: u8) -> GuidBlock {
        let mut guids = [Guid(0); GUIDS_PER_BLOCK];
        for (entry, guid) in guids.iter_mut().enumerate() {
            let index = usize::from(number) * GUIDS_PER_BLOCK + entry;
            *guid = match u8::try_from(index) {
                Ok(0) => port_guid,
                Ok(index) => self.by_port.get(&(port_guid, index)).copied().unwrap_or_default(),
                Err(_) => Guid(0),
            };
        }
        GuidBlock { port_guid, number, guids }
    }
}

/// Builds the index of restored rows.
pub(super) fn restore(core: &mut Core) {
    let mut index = Index::default();
    for row in core.alias_guids.rows().iter() {
        let at = (row.port_guid, row.index);
        index.by_port.insert(at, row.alias);
        index.changed.insert((row.port_guid, row.index / GUIDS_PER_BLOCK as u8));
    }
    core.guid_info = index;
}

/// Handles a Set() or Delete() of GUIDInfoRecord.
pub(super) fn write(core: &mut Core, now_s: u64, ports: &Ports, request: &Request) -> Answer {
    expire(core, now_s);
    if ![Method::SET, Method::DELETE].contains(&request.method) {
        return Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE.into());
    }
    let mask = request.component_mask;
    if !mask.contains(component::LID | component::BLOCK_NUM) {
        return Err(Status::SA_INSUFFICIENT_COMPONENTS.into());
    }
    let record = GuidInfoRecord::of(&request.data);
    let requester = ports.by_lid(request.requester.slid).ok_or(Refusal::Silent)?;
    let port = ports.by_lid(record.lid()).ok_or(Status::SA_NO_RECORDS)?;
    if !port.shares_partition(requester) {
        return Err(Refusal::Silent);
    }
    let is_own = port.guid == requester.guid && !ports.newcomers().contains(&port.guid);
    if !is_own && !request.trusted {
        return Err(Status::SA_DENIED.into());
    }
    let block = record.block_num();
    if usize::from(block) >= usize::from(port.guid_cap).div_ceil(GUIDS_PER_BLOCK) {
        return Err(Status::SA_NO_RECORDS.into());
    }
    if block == 0 && mask.contains(component::GUID_0) {
        return Err(Status::SA_REQ_INVALID.into());
    }
    let entries = entries(port, block, mask);
    match request.method {
        Method::SET => set(core, ports, request, port, &entries)?,
        _ => delete(core, port, &entries)?,
    }
    let mut data = [0; GuidInfoRecord::LEN];
    data.copy_from_slice(&request.data[..GuidInfoRecord::LEN]);
    let guids = core.guid_info.block(port.guid, block).guids;
    for (bytes, guid) in data[8..].chunks_exact_mut(8).zip(guids) {
        bytes.copy_from_slice(&guid.0.to_be_bytes());
    }
    Ok(AnswerRecord::new(&data))
}

/// The sequence number of the change that ended the effect of a granted request, or a later one;
/// `None` if it lasts: the entries that it named are as answered.
pub(super) fn ended(
    core: &Core,
    ports: &Ports,
    request: &Request,
    answer: &[u8; DATA_LEN],
) -> Option<u64> {
    let record = GuidInfoRecord::of(&request.data);
    // Without its port, it will be refused.
    let Some(port) = ports.by_lid(record.lid()) else { return Some(0) };
    let number = record.block_num();
    let (answered, held) =
        (GuidInfoRecord::of(answer).guid_info(), core.guid_info.block(port.guid, number).guids);
    let lasts = entries(port, number, request.component_mask).into_iter().all(|index| {
        let at = usize::from(index) % GUIDS_PER_BLOCK;
        answered.as_chunks::<8>().0[at] == held[at].0.to_be_bytes()
    });
    (!lasts).then(|| core.alias_guids.changed_at(port.guid))
}

/// Table indices of the entries in `mask`, within the size of the port's table.
fn entries(port: &EndPort, block: u8, mask: ComponentMask) -> Vec<u8> {
    let first = usize::from(block) * GUIDS_PER_BLOCK;
    let named = |index: &u8| {
        let entry = u32::from(*index) % GUIDS_PER_BLOCK as u32;
        mask.contains(ComponentMask(component::GUID_0.0 << entry))
    };
    (first..(first + GUIDS_PER_BLOCK).min(port.guid_cap.into()))
        .filter_map(|index| u8::try_from(index).ok())
        .filter(named)
        .collect()
}

fn set(
    core: &mut Core,
    ports: &Ports,
    request: &Request,
    port: &EndPort,
    entries: &[u8],
) -> Result<(), Refusal> {
    let guids = GuidInfoRecord::of(&request.data).guid_info();
    let is_new = |index: &&u8| !core.guid_info.by_port.contains_key(&(port.guid, **index));
    match entries.iter().filter(is_new).count() {
        0 => {}
        new => core.room_for(ports, request, new)?,
    }
    // All GUIDs are chosen before any change, so that a refused request changes nothing.
    let mut chosen: Vec<(u8, Guid)> = Vec::with_capacity(entries.len());
    let mut freed: Vec<Guid> = Vec::new();
    for &index in entries {
        let at = (port.guid, index);
        let bytes = guids.as_chunks::<8>().0[usize::from(index) % GUIDS_PER_BLOCK];
        let old = core.guid_info.by_port.get(&at).copied();
        let alias = match Guid(u64::from_be_bytes(bytes)) {
            // The SA assigns a GUID, unless the entry already has one.
            Guid(0) if old.is_some() => continue,
            Guid(0) => choose(core, ports, at, &chosen)?,
            alias => alias,
        };
        let named_before = chosen.iter().any(|(_, other)| *other == alias);
        // GUIDs released by an earlier entry of this request are free.
        let is_used = !freed.contains(&alias)
            && (in_use(core, ports, alias)
                || !request.trusted && is_anothers(core, port.guid, alias));
        if old == Some(alias) || named_before || is_used || is_reserved(ports, port, alias) {
            continue;
        }
        chosen.push((index, alias));
        freed.extend(old);
    }
    for (index, alias) in chosen {
        let at = (port.guid, index);
        if let Some(&old) = core.guid_info.by_port.get(&at) {
            take_out(core, old);
        }
        core.guid_info.kept.release(alias);
        core.alias_guids.put(AliasGuid { alias, port_guid: port.guid, index });
        core.guid_info.by_port.insert(at, alias);
        core.guid_info.changed.insert((port.guid, index / GUIDS_PER_BLOCK as u8));
    }
    Ok(())
}

fn in_use(core: &Core, ports: &Ports, guid: Guid) -> bool {
    ports.is_known(guid)
        || core.alias_guids.get(guid).is_some()
        // The member, though absent, is another.
        || multicast::is_member(core, guid)
}

/// Whether an alias that no port has was another port's: it is kept for that, or services are
/// registered at it.
fn is_anothers(core: &Core, port: Guid, alias: Guid) -> bool {
    match core.guid_info.kept.port_of(alias) {
        Some(owner) => owner != port,
        None => service::is_at(core, alias),
    }
}

/// Releases aliases of ports that left long ago.
pub(super) fn expire(core: &mut Core, now_s: u64) {
    core.guid_info.kept.expire(now_s);
}

/// When [`expire`] has something to do, in seconds of registry time.
pub(super) fn next_expiry(core: &Core) -> Option<u64> {
    core.guid_info.kept.next_expiry()
}

/// Whether a port must not have this alias: it stands for the SA.
fn is_reserved(ports: &Ports, port: &EndPort, alias: Guid) -> bool {
    alias == Guid::WELL_KNOWN_SA && port.guid != ports.sm_port_guid
}

/// Assigns a GUID for an index of a port's table: the previous one, or the next number.
fn choose(
    core: &mut Core,
    ports: &Ports,
    at: (Guid, u8),
    taken: &[(u8, Guid)],
) -> Result<Guid, Refusal> {
    if let Some(&before) = core.guid_info.chosen.get(&at) {
        return Ok(before);
    }
    // After a restart numbering restarts and skips GUIDs in use.
    while let Some(number) = core.guid_info.last.checked_add(1) {
        core.guid_info.last = number;
        let byte = u64::from(ports.settings.sm_assigned_guid);
        let guid = Guid(COMPANY | byte << 32 | u64::from(number));
        if !in_use(core, ports, guid) && taken.iter().all(|(_, other)| *other != guid) {
            if core.guid_info.chosen.len() < REMEMBERED_MAX {
                core.guid_info.chosen.insert(at, guid);
            }
            return Ok(guid);
        }
    }
    core.counters.records_refused += 1;
    Err(Status::SA_NO_RESOURCES.into())
}

/// An alias that is a member of a group cannot be removed (the port would continue to receive).
fn delete(core: &mut Core, port: &EndPort, entries: &[u8]) -> Result<(), Refusal> {
    let alias = |index: &u8| core.guid_info.by_port.get(&(port.guid, *index)).copied();
    let aliases: Vec<_> = entries.iter().filter_map(alias).collect();
    if aliases.iter().any(|alias| multicast::is_member(core, *alias)) {
        return Err(Status::SA_DENIED.into());
    }
    for alias in aliases {
        take_out(core, alias);
    }
    Ok(())
}

fn take_out(core: &mut Core, alias: Guid) {
    let Some(row) = core.alias_guids.remove(alias) else { return };
    core.guid_info.by_port.remove(&(row.port_guid, row.index));
    core.guid_info.changed.insert((row.port_guid, row.index / GUIDS_PER_BLOCK as u8));
    multicast::guid_gone(core, alias);
}

/// Removes aliases of ports that left the fabric or whose GUID table became too small, and
/// aliases equal to the GUID of some port or virtual port.
pub(super) fn fabric_changed(core: &mut Core, ports: &Ports) {
    let owner = |guid| ports.by_guid(guid).filter(|_| !core.arrived.contains(&guid));
    let lost = |row: &&std::sync::Arc<AliasGuid>| {
        let room = owner(row.port_guid).map_or(0, |port| port.guid_cap);
        let is_taken =
            ports.by_guid(row.alias).is_some() || ports.by_virtual_guid(row.alias).is_some();
        row.index >= room || is_taken
    };
    let lost: Vec<_> = core.alias_guids.rows().iter().filter(lost).map(|row| row.alias).collect();
    for alias in lost {
        let owner = core.alias_guids.get(alias).map(|row| row.port_guid);
        let is_absent = |owner| ports.by_guid(owner).is_none() || core.arrived.contains(&owner);
        if let Some(absent) = owner.filter(|&owner| is_absent(owner)) {
            lapsed::lapse(core, absent);
            core.guid_info.kept.keep(alias, absent);
        }
        take_out(core, alias);
    }
    core.guid_info.chosen.retain(|(port, _), _| ports.by_guid(*port).is_some());
    core.guid_info.changed.retain(|(port, _)| ports.by_guid(*port).is_some());
}

impl Registry {
    /// Takes the GUID table blocks that changed since the last call, with the content to be
    /// programmed at the ports. After a restart these are all blocks that hold an alias.
    pub fn take_guid_blocks(&mut self) -> Vec<GuidBlock> {
        let changed = std::mem::take(&mut self.core.guid_info.changed);
        let index = &self.core.guid_info;
        changed.into_iter().map(|(port, number)| index.block(port, number)).collect()
    }

    /// The blocks of a port's GUID table that hold an alias, with the content to be programmed. All
    /// other entries are 0, except the first, the port GUID.
    pub fn guid_blocks(&self, port_guid: Guid) -> Vec<GuidBlock> {
        let index = &self.core.guid_info;
        let held = index.by_port.range((port_guid, 0)..=(port_guid, u8::MAX));
        let numbers: BTreeSet<_> = held.map(|((_, at), _)| at / GUIDS_PER_BLOCK as u8).collect();
        numbers.into_iter().map(|number| index.block(port_guid, number)).collect()
    }
}

#[cfg(test)]
mod tests;
