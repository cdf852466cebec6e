//! A dry run: a sweep that sets nothing, and lists what it would have set.
//!
//! Each Set() is sent as a Get() of the same attribute. What the node answers is compared with what
//! was to be set; the sweep then continues as if the node had accepted it. So everything that a
//! sweep decides and writes is covered, in its own code, and tables that a sweep does not read
//! otherwise are compared, too.

use std::collections::{BTreeMap, HashMap};

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{
    LinkSpeeds, LinkSpeedsExt, LinkWidths, PortInfo, PortPhysState, PortState, SmState, SwitchInfo,
    layout_of,
};
use ib_mad::wire::field::FieldInfo;
use ib_mad::wire::mad::AttributeId;

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::smp::{Kind, Request};

type Data = [u8; 64];

/// A field that would get another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Its name, as the specification has it, in Rust case.
    pub field: &'static str,
    /// Its value; "secret" for keys.
    pub is: String,
    /// The value that it would get.
    pub would_be: String,
}

/// An attribute of a port or of a switch that would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// GUID of the node.
    pub node_guid: Guid,
    /// Name of the node.
    pub node: String,
    /// Port number; `None` for attributes of a whole switch.
    pub port: Option<PortNum>,
    /// Name of the attribute.
    pub attribute: &'static str,
    /// Blocks of a table that would be written; 0 for an attribute without blocks.
    pub blocks: u32,
    /// Entries in them that would change.
    pub entries: u32,
    /// Fields that would change, of an attribute without blocks.
    pub fields: Vec<FieldChange>,
}

/// What a dry run would change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The attributes, by node GUID, port and attribute.
    pub changes: Vec<Change>,
    /// Ports that name another master (MasterSMLID, MasterSMSL) and would name this manager. Each
    /// manager writes its own address, so that this is no change.
    pub readdressed: u32,
}

/// What a dry run found.
#[derive(Debug, Default)]
pub(super) struct DryRun {
    /// Set() requests that were sent as Get(), by the lower half of their TransactionID.
    asked: HashMap<u32, Asked>,
    /// What they found, in the order of ports.
    found: BTreeMap<Place, Found>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    modifier: u32,
    wanted: Data,
}

/// A port's attribute, and its modifier. Switches have theirs at their first port.
type Place = (u32, u16, u32);

#[derive(Clone, Copy, Debug)]
struct Found {
    port: PortIndex,
    attribute: AttributeId,
    /// As the node has it.
    present: Data,
    /// As it would be after all that the sweep set.
    would_be: Data,
    /// Whether the link would be taken through Down.
    resets: bool,
}

impl DryRun {
    /// A Set() is sent as a Get(); `false` if it is none that a dry run has: the states of managers
    /// are theirs.
    pub(super) fn ask(&mut self, request: Request, tid: u64, modifier: u32, wanted: Data) -> bool {
        self.asked.insert(tid as u32, Asked { modifier, wanted });
        request.kind.attribute_id() != AttributeId::SM_INFO
    }

    /// What the sweep gets in place of `data`, which a node answered.
    pub(super) fn answer(
        &mut self,
        request: Request,
        tid: u64,
        modifier: u32,
        data: &Data,
    ) -> Data {
        let attribute = request.kind.attribute_id();
        if !request.kind.is_set() {
            // What was set in the sweep's eyes is read again.
            let place = (request.port().to_bits(), attribute.0, modifier);
            let is_read_again = !matches!(request.kind, Kind::OwnNodeInfo);
            let before = is_read_again.then(|| self.found.get(&place)).flatten();
            return before.map_or(*data, Found::shown);
        }
        let Some(Asked { modifier, wanted }) = self.asked.remove(&(tid as u32)) else {
            return *data;
        };
        let place = (request.port().to_bits(), attribute.0, modifier);
        let found = self.found.entry(place).or_insert(Found {
            port: request.port(),
            attribute,
            present: *data,
            would_be: *data,
            resets: false,
        });
        found.resets |= attribute == AttributeId::PORT_INFO
            && PortInfo::of(&wanted).port_state() == PortState::Down.code();
        found.would_be = accepted(attribute, &found.would_be, &wanted);
        found.shown()
    }
}

/// The attribute after a Set() of `wanted`, where it was `before`.
fn accepted(attribute: AttributeId, before: &Data, wanted: &Data) -> Data {
    let mut after = *wanted;
    match attribute {
        AttributeId::PORT_INFO => {
            let now = PortInfo::of(before);
            let mut then = PortInfo::of_mut(&mut after);
            let state = match PortState::from_code(then.port_state()) {
                None | Some(PortState::NoChange) => PortState::from_code(now.port_state()),
                // The link trains again by itself.
                Some(PortState::Down) => Some(PortState::Initialize),
                state => state,
            };
            then.set_port_state(state.unwrap_or(PortState::NoChange));
            if let Some(state) = PortPhysState::from_code(now.port_physical_state()) {
                then.set_port_physical_state(state);
            }
            // 0 changes nothing, and all ones is what is supported, which need not be all ones.
            let is_all = [LinkWidths(0), LinkWidths::SET_TO_SUPPORTED];
            if is_all.contains(&then.link_width_enabled()) {
                then.set_link_width_enabled(now.link_width_enabled());
            }
            let is_all = [LinkSpeeds(0), LinkSpeeds::SET_TO_SUPPORTED];
            if is_all.contains(&then.link_speed_enabled()) {
                then.set_link_speed_enabled(now.link_speed_enabled());
            }
            let is_all = [LinkSpeedsExt(0), LinkSpeedsExt::SET_TO_SUPPORTED];
            if is_all.contains(&then.link_speed_ext_enabled()) {
                then.set_link_speed_ext_enabled(now.link_speed_ext_enabled());
            }
        }
        // Setting the bit clears it.
        AttributeId::SWITCH_INFO => {
            if let Ok(mut info) = SwitchInfo::new(&mut after[..]) {
                info.set_port_state_change(false);
            }
        }
        _ => {}
    }
    after
}

/// Fields that a manager sets; other fields of the attribute are reports of the node.
fn set_fields(attribute: AttributeId) -> &'static [&'static str] {
    match attribute {
        AttributeId::PORT_INFO => &[
            "m_key",
            "gid_prefix",
            "base_lid",
            "m_key_lease_period",
            "link_width_enabled",
            "port_state",
            "link_down_default_state",
            "m_key_protect_bits",
            "lmc",
            "link_speed_enabled",
            "neighbor_mtu",
            "vl_high_limit",
            "vl_stall_count",
            "hoq_life",
            "operational_vls",
            "partition_enforcement_inbound",
            "partition_enforcement_outbound",
            "subnet_time_out",
            "local_phy_errors",
            "overrun_errors",
            "link_speed_ext_enabled",
        ],
        AttributeId::SWITCH_INFO => &["linear_fdb_top", "life_time_value", "multicast_fdb_top"],
        AttributeId::MLNX_EXT_PORT_INFO => &["link_speed_enabled"],
        _ => &[],
    }
}

/// Bits of an entry of a table; `None` if the attribute is no table.
fn entry_bits(attribute: AttributeId) -> Option<usize> {
    Some(match attribute {
        AttributeId::LINEAR_FORWARDING_TABLE => 8,
        AttributeId::MULTICAST_FORWARDING_TABLE | AttributeId::PKEY_TABLE => 16,
        AttributeId::VL_ARBITRATION_TABLE => 16,
        AttributeId::SL_TO_VL_MAPPING_TABLE => 4,
        AttributeId::GUID_INFO => 64,
        _ => return None,
    })
}

/// Whether an attribute belongs to a switch, not to one of its ports.
fn is_of_switch(attribute: AttributeId) -> bool {
    matches!(
        attribute,
        AttributeId::SWITCH_INFO
            | AttributeId::LINEAR_FORWARDING_TABLE
            | AttributeId::MULTICAST_FORWARDING_TABLE
    )
}

/// Number of entries of `bits` that differ.
fn differing(bits: usize, one: &Data, other: &Data) -> u32 {
    let nibbles = |data: &Data| data.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect();
    let (one, other): (Vec<u8>, Vec<u8>) = (nibbles(one), nibbles(other));
    let pairs = one.chunks(bits / 4).zip(other.chunks(bits / 4));
    pairs.filter(|(one, other)| one != other).count() as u32
}

impl Found {
    /// What the sweep is shown: the port still has its present M_Key, with which requests to it
    /// are sent.
    fn shown(&self) -> Data {
        let mut shown = self.would_be;
        if self.attribute == AttributeId::PORT_INFO {
            let now = PortInfo::of(&self.present);
            PortInfo::of_mut(&mut shown)
                .set_m_key(now.m_key())
                .set_m_key_lease_period(now.m_key_lease_period())
                .set_m_key_protect_bits(now.m_key_protect_bits());
        }
        shown
    }

    /// Whether the port names another master than it would.
    fn is_readdressed(&self) -> bool {
        let master = |data| {
            let info = PortInfo::of(data);
            (info.master_sm_lid(), info.master_sm_sl())
        };
        self.attribute == AttributeId::PORT_INFO && master(&self.present) != master(&self.would_be)
    }

    /// Fields that would change.
    fn fields(&self) -> Vec<FieldChange> {
        let Some(layout) = layout_of(self.attribute) else { return Vec::new() };
        let set = set_fields(self.attribute);
        let change = |field: &FieldInfo| {
            let value = |data: &Data| {
                let mut text = String::new();
                (field.format)(&data[..layout.len], &mut text);
                text
            };
            let (mut is, mut would_be) = (value(&self.present), value(&self.would_be));
            let resets = self.resets && field.name == "port_state";
            if is == would_be && !resets {
                return None;
            }
            if field.name == "m_key" {
                (is, would_be) = ("secret".to_owned(), "secret".to_owned());
            } else if resets {
                would_be = format!("Down, then {would_be}");
            }
            Some(FieldChange { field: field.name, is, would_be })
        };
        layout.fields.iter().filter(|field| set.contains(&field.name)).filter_map(change).collect()
    }
}

impl Sweeper {
    /// Makes this a dry run: nothing is set in the fabric, no other manager is asked or answered,
    /// and [`changes`](Self::changes) lists what would have been set. Call it before the first
    /// sweep, and end the run after it.
    pub fn run_dry(&mut self) {
        self.dry_run = Some(DryRun::default());
        let settings = &mut self.subnet.settings;
        // It decides as a master would, beside the one that there may be.
        (settings.ignore_other_sm, settings.sm_inactive) = (true, false);
        self.subnet.election.own.set_state(SmState::Discovering);
        // A request to register again is no state that a port has.
        settings.no_clients_rereg = true;
        // Maps that are set for all ports at once cannot be read so.
        settings.use_optimized_slvl = false;
    }

    /// What a [dry run](Self::run_dry) would have changed so far.
    pub fn changes(&self) -> Changes {
        let Some(dry_run) = &self.dry_run else { return Changes::default() };
        let fabric = &self.subnet.fabric;
        let mut changes: BTreeMap<(Guid, Option<PortNum>, u16), Change> = BTreeMap::new();
        for found in dry_run.found.values() {
            let Found { port, attribute, present, would_be, .. } = found;
            let (fields, entries) = match entry_bits(*attribute) {
                Some(bits) => (Vec::new(), differing(bits, present, would_be)),
                None => (found.fields(), 0),
            };
            if fields.is_empty() && entries == 0 {
                continue;
            }
            let node = fabric.node_of(*port);
            let num = (!is_of_switch(*attribute)).then_some(fabric.port(*port).num);
            let change = changes.entry((node.guid, num, attribute.0)).or_insert_with(|| Change {
                node_guid: node.guid,
                node: node.name(),
                port: num,
                attribute: attribute.name().unwrap_or("MlnxExtPortInfo"),
                blocks: 0,
                entries: 0,
                fields: Vec::new(),
            });
            change.blocks += u32::from(entries > 0);
            change.entries += entries;
            change.fields.extend(fields);
        }
        let readdressed = dry_run.found.values().filter(|found| found.is_readdressed()).count();
        Changes { changes: changes.into_values().collect(), readdressed: readdressed as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::Lid;

    fn info(write: impl FnOnce(&mut PortInfo<&mut Data>)) -> Data {
        let mut data = [0; 64];
        write(&mut PortInfo::of_mut(&mut data));
        data
    }

    /// A dry run that asked for `wanted` and was answered with `present`; what the sweep is shown.
    fn asked(dry_run: &mut DryRun, tid: u64, wanted: Data, present: Data) -> Data {
        let request = Request::new(Kind::Arm, PortIndex::from_bits(1));
        assert!(dry_run.ask(request, tid, 1, wanted));
        dry_run.answer(request, tid, 1, &present)
    }

    #[test]
    fn a_link_that_is_armed_and_activated_would_be_active() {
        let mut dry_run = DryRun::default();
        let state = |state| info(|info| _ = info.set_port_state(state));
        let present = state(PortState::Initialize);
        for wanted in [PortState::Armed, PortState::Active] {
            let shown = asked(&mut dry_run, 7, state(wanted), present);
            assert_eq!(PortInfo::of(&shown).port_state(), wanted.code());
        }
        let found = dry_run.found.values().next().unwrap();
        let fields = found.fields();
        assert_eq!((fields.len(), fields[0].field), (1, "port_state"));
        assert_eq!((&*fields[0].is, &*fields[0].would_be), ("Initialize", "Active"));
        // The port is read again, as it would be.
        let again = Request::new(Kind::RecheckPort, PortIndex::from_bits(1));
        let shown = dry_run.answer(again, 8, 1, &present);
        assert_eq!(PortInfo::of(&shown).port_state(), PortState::Active.code());
    }

    #[test]
    fn a_port_keeps_its_m_key_and_the_change_of_it_is_listed_without_the_keys() {
        let mut dry_run = DryRun::default();
        let key = |key| info(|info| _ = info.set_m_key(key).set_port_state(PortState::Active));
        let shown = asked(&mut dry_run, 7, key(0x5EC), key(0x01D));
        assert_eq!(PortInfo::of(&shown).m_key(), 0x01D);
        let fields = dry_run.found.values().next().unwrap().fields();
        let expected =
            FieldChange { field: "m_key", is: "secret".to_owned(), would_be: "secret".to_owned() };
        assert_eq!(fields, [expected]);
    }

    #[test]
    fn what_changes_nothing_is_no_change() {
        let mut dry_run = DryRun::default();
        let present = info(|info| {
            info.set_port_state(PortState::Active)
                .set_link_width_enabled(LinkWidths(3))
                .set_link_speed_enabled(LinkSpeeds(7));
            info.set_p_key_violations(9);
        });
        let wanted = info(|info| {
            info.set_link_width_enabled(LinkWidths::SET_TO_SUPPORTED)
                .set_link_speed_enabled(LinkSpeeds::SET_TO_SUPPORTED)
                .set_client_reregister(true)
                .set_master_sm_lid(Lid(9));
        });
        asked(&mut dry_run, 7, wanted, present);
        let found = dry_run.found.values().next().unwrap();
        assert_eq!((found.fields(), found.is_readdressed()), (Vec::new(), true));
    }

    #[test]
    fn entries_are_counted_by_the_width_of_the_table() {
        let (zeros, mut other) = ([0; 64], [0; 64]);
        (other[0], other[9]) = (0x11, 1);
        let counts = [4, 8, 16, 64].map(|bits| differing(bits, &zeros, &other));
        assert_eq!(counts, [3, 2, 2, 2]);
    }

    #[test]
    fn no_handover_is_sent_to_managers() {
        let mut dry_run = DryRun::default();
        let port = PortIndex::from_bits(1);
        assert!(!dry_run.ask(Request::new(Kind::HandOver, port), 7, 1, [0; 64]));
    }
}
