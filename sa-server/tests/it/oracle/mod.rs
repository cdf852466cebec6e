//! A plain reference for queries: every record of a small world, filtered field by field.

#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod groups;
pub(crate) mod records;
pub(crate) mod world;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ib_mad::types::{Guid, PKey};
use ib_mad::wire::mad::{AttributeId, Status};
use ib_mad::wire::record::port_info::component as port_info;
use ib_mad::wire::record::{components_of, layout_of};
use ib_mad::wire::sa::{ComponentMask, attribute};
use ib_mad::wire::{FieldInfo, attribute as attributes};

use records::Record;
use world::World;

/// A source of choices.
pub(crate) trait Choices {
    /// Below `end`; 0 if that is 0.
    fn below(&mut self, end: usize) -> usize;

    /// Whether the one case in so many is this one.
    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// One of them.
    fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// What the reference knows.
pub(crate) const TYPES: [AttributeId; 14] = [
    attribute::NODE_RECORD,
    attribute::PORT_INFO_RECORD,
    attribute::LINK_RECORD,
    attribute::SWITCH_INFO_RECORD,
    attribute::SL_TO_VL_MAPPING_TABLE_RECORD,
    attribute::VL_ARBITRATION_TABLE_RECORD,
    attribute::PKEY_TABLE_RECORD,
    attribute::LINEAR_FORWARDING_TABLE_RECORD,
    attribute::MULTICAST_FORWARDING_TABLE_RECORD,
    attribute::GUID_INFO_RECORD,
    attribute::SM_INFO_RECORD,
    attribute::INFORM_INFO_RECORD,
    attribute::SERVICE_RECORD,
    attribute::MC_MEMBER_RECORD,
];

/// The requester, and how it sends requests.
pub(crate) struct Request {
    pub(crate) id: AttributeId,
    pub(crate) mask: ComponentMask,
    pub(crate) bytes: Vec<u8>,
    pub(crate) trusted: bool,
    pub(crate) requester: Guid,
}

/// Mask, first bit and width of each component, by its name.
type Fields = BTreeMap<&'static str, (ComponentMask, usize, usize)>;

fn fields(id: AttributeId) -> &'static Fields {
    static ALL: LazyLock<BTreeMap<u16, Fields>> =
        LazyLock::new(|| TYPES.iter().map(|&id| (id.0, read_fields(id))).collect());
    &ALL[&id.0]
}

/// Components are the fields that have their names in the layouts.
fn read_fields(id: AttributeId) -> Fields {
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
    };
    let layout = layout_of(id).unwrap();
    let (embedded, offset): (&[FieldInfo], usize) = match id {
        attribute::NODE_RECORD => (attributes::NodeInfo::FIELDS, 4),
        attribute::PORT_INFO_RECORD => (attributes::PortInfo::FIELDS, 4),
        attribute::SWITCH_INFO_RECORD => (attributes::SwitchInfo::FIELDS, 4),
        attribute::SM_INFO_RECORD => (attributes::SmInfo::FIELDS, 4),
        attribute::INFORM_INFO_RECORD => (attributes::InformInfo::FIELDS, 24),
        _ => (&[], 0),
    };
    let inner = embedded.iter().map(|field| (field, offset * 8));
    let all: Vec<_> = layout.fields.iter().map(|field| (field, 0)).chain(inner).collect();
    let place = |name: &str| {
        if let Some(number) = name.strip_prefix("GUID ") {
            return (64 + number.parse::<usize>().unwrap() * 64, 64);
        }
        if let Some((width, word)) =
            name.strip_prefix("ServiceData").and_then(|n| n.split_once('.'))
        {
            let (width, word): (usize, usize) = (width.parse().unwrap(), word.parse().unwrap());
            let start = match width {
                8 => 896,
                16 => 1024,
                32 => 1152,
                _ => 1280,
            };
            return (start + (word - 1) * width, width);
        }
        let name = match name {
            "Enum" => "enumeration",
            "Type" => "informtype",
            name => name,
        };
        let (field, offset) =
            all.iter().find(|(field, _)| plain(field.name) == plain(name)).expect("a field");
        (field.bit + offset, field.width)
    };
    components_of(id)
        .iter()
        .map(|&(name, mask)| {
            let (bit, width) = place(name);
            (name, (mask, bit, width))
        })
        .collect()
}

fn bit(bytes: &[u8], at: usize) -> bool {
    bytes[at / 8] >> (7 - at % 8) & 1 == 1
}

/// Whether a record has what a request says in all components that it selects.
pub(crate) fn is_equal(request: &Request, record: &[u8], without: &[&str]) -> bool {
    fields(request.id).iter().all(|(name, &(mask, first, width))| {
        without.contains(name)
            || !request.mask.contains(mask)
            || (first..first + width).all(|at| bit(record, at) == bit(&request.bytes, at))
    })
}

/// Whether the requester may see a record of `owner`.
fn is_visible(world: &World, request: &Request, record: &Record) -> bool {
    let requester = records::end_port(world, request.requester).expect("the requester exists");
    if request.trusted && world.fabric.subnet.trusted_see_all {
        return true;
    }
    let valid = |keys: &[PKey]| -> Vec<PKey> {
        keys.iter().copied().filter(|key| key.is_valid()).collect()
    };
    let own = valid(&requester.keys);
    if let Some(partition) = record.partition {
        return !partition.is_valid() || own.iter().any(|key| key.base() == partition.base());
    }
    let share = |own: &[PKey], theirs: &[PKey]| {
        own.is_empty()
            || theirs.is_empty()
            || own.iter().any(|a| theirs.iter().any(|b| a.matches(*b)))
    };
    let theirs = valid(&record.keys);
    let sees = record.owner == Some(request.requester) || share(&own, &theirs);
    // Of a link both ends, which must see each other.
    let other = record.other.as_deref();
    sees && other
        .is_none_or(|end| is_visible(world, request, end) && share(&theirs, &valid(&end.keys)))
}

/// What is compared in ways of its own: LIDs, which name a port by any of its own, a description,
/// which is text, and what is not compared at all.
fn is_like(request: &Request, record: &Record) -> bool {
    let has = |name: &str| {
        fields(request.id).get(name).is_some_and(|&(mask, ..)| request.mask.contains(mask))
    };
    let lid = |at: usize| u32::from(u16::from_be_bytes([request.bytes[at], request.bytes[at + 1]]));
    let to = record.other.as_deref().map(|end| end.lids.clone()).unwrap_or_default();
    let text = |bytes: &[u8]| -> Vec<u8> {
        bytes[44..108].iter().copied().take_while(|&byte| byte != 0).collect()
    };
    (!(has("LID") || has("FromLID")) || record.lids.contains(&lid(0)))
        && (!has("ToLID") || to.contains(&lid(4)))
        && (!has("NodeDescription") || text(&request.bytes) == text(&record.bytes))
}

/// What the reference finds, sorted; the status if it refuses.
pub(crate) fn expected(world: &World, request: &Request) -> Result<Vec<Vec<u8>>, Status> {
    if request.id == attribute::PKEY_TABLE_RECORD && !request.trusted {
        return Err(Status::SA_REQ_INVALID);
    }
    if request.id == attribute::MC_MEMBER_RECORD {
        let visible = |record: &Record| is_visible(world, request, record);
        return groups::expected(world, request, visible);
    }
    let mut found = Vec::new();
    for record in records::all(world, request.id) {
        let mut without = vec!["LID", "FromLID", "ToLID", "NodeDescription", "SM_Key", "Options"];
        // No node of these worlds has extended link speeds.
        without.extend(["LinkSpeedExtActive", "LinkSpeedExtSupported", "LinkSpeedExtEnabled"]);
        if !record.has_port_numbers && request.id != attribute::PORT_INFO_RECORD {
            without.extend(["InputPortNum", "OutputPortNum", "PortNum"]);
        }
        // A ServiceKey is compared for every requester, a QPN with the value shown.
        let shown = if request.trusted { &record.bytes } else { &record.public };
        let is_service = request.id == attribute::SERVICE_RECORD;
        let compared = if is_service { &record.bytes } else { shown };
        if is_like(request, &record)
            && is_equal(request, compared, &without)
            && is_visible(world, request, &record)
        {
            let mut shown = shown.clone();
            if request.id == attribute::PORT_INFO_RECORD
                && request.mask.contains(port_info::OPTIONS)
            {
                // Options are the request's.
                shown[3] = request.bytes[3];
            }
            found.push(shown);
        }
    }
    found.sort();
    Ok(found)
}

/// A request about one of the records, more or less.
pub(crate) fn request(world: &World, dice: &mut impl Choices, id: AttributeId) -> Request {
    let len = layout_of(id).unwrap().len;
    let all = match id {
        attribute::MC_MEMBER_RECORD => groups::templates(world),
        id => records::all(world, id),
    };
    let mut bytes = vec![0; 200];
    if !all.is_empty() && !dice.chance(8) {
        let template = &all[dice.below(all.len())];
        let shown = if dice.chance(2) { &template.bytes } else { &template.public };
        bytes[..len].copy_from_slice(shown);
        // Another LID of the same port, or of another one.
        let lids = template.lids.clone();
        if !lids.is_empty() && dice.chance(3) {
            let lid = lids.start + dice.below(lids.len() + 1) as u32;
            bytes[..2].copy_from_slice(&(lid as u16).to_be_bytes());
        }
    }
    for _ in 0..dice.one(&[0, 0, 1, 3]) {
        let at = dice.below(len);
        bytes[at] = dice.one(&[0, 1, 2, 3, 0x42, 0x80, 0xFF]);
    }
    let components = components_of(id);
    let mut mask = ComponentMask::NONE;
    for _ in 0..dice.below(4) {
        mask |= components[dice.below(components.len())].1;
    }
    if id == attribute::MC_MEMBER_RECORD && dice.chance(2) {
        // A value with its selector: MTU, rate, lifetime.
        let (selector, at) = dice.one(&[(4, 38), (8, 42), (10, 43)]);
        mask |= ComponentMask(3 << selector);
        bytes[at] = bytes[at] & 0x3F | dice.one(&[0, 0x40, 0x80, 0xC0]);
    }
    if dice.chance(5) {
        // A bit without a name selects nothing.
        mask |= ComponentMask::component(62);
    }
    let guids: Vec<Guid> = world.fabric.nodes.iter().map(|node| node.ports[0].guid).collect();
    Request { id, mask, bytes, trusted: dice.chance(2), requester: dice.one(&guids) }
}
