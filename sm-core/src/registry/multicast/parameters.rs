//! Group parameters in a request: their values in a new group (IBA o15-0.2.3), and
//! whether they match an existing group (IBA o15-0.2.4).

use ib_mad::types::{Mtu, PKey, Rate};
use ib_mad::wire::field::part;
use ib_mad::wire::record::mc_member::component;
use ib_mad::wire::record::{JoinState, McMemberRecord, Selector};
use ib_mad::wire::sa::ComponentMask;

use super::super::{EndPort, GroupParameters, Request};

/// An MCMemberRecord in wire format.
pub(super) type Record = [u8; 52];

/// Reads a record.
pub(super) fn view(record: &Record) -> McMemberRecord<&Record> {
    McMemberRecord::of(record)
}

/// Writes a record.
pub(super) fn edit(record: &mut Record) -> McMemberRecord<&mut Record> {
    McMemberRecord::of_mut(record)
}

/// Components required in every join and leave.
const MEMBER: ComponentMask =
    component::MGID.union(component::PORT_GID).union(component::JOIN_STATE);

/// Components required to create a group.
const GROUP: ComponentMask = MEMBER
    .union(component::QKEY)
    .union(component::TCLASS)
    .union(component::PKEY)
    .union(component::FLOW_LABEL)
    .union(component::SL);

/// A request's record with its component mask.
pub(super) struct Asked {
    pub(super) record: Record,
    mask: ComponentMask,
}

impl Asked {
    pub(super) fn of(request: &Request) -> Self {
        let record = *part::<0, _, _>(&request.data);
        Self { record, mask: request.component_mask }
    }

    pub(super) fn view(&self) -> McMemberRecord<&Record> {
        view(&self.record)
    }

    /// Whether the component mask includes the component.
    pub(super) fn has(&self, components: ComponentMask) -> bool {
        self.mask.contains(components)
    }

    /// Whether it has the components of a join or leave.
    pub(super) fn names_a_member(&self) -> bool {
        self.has(MEMBER)
    }

    /// Whether it has the components to create a group.
    pub(super) fn describes_a_group(&self) -> bool {
        self.has(GROUP)
    }

    /// The join states that the request adds or removes.
    pub(super) fn join_state(&self) -> JoinState {
        self.view().join_state()
    }

    /// Whether MTU and rate, where compared, are defined codes.
    pub(super) fn has_known_codes(&self) -> bool {
        let mtu_counts = self.has(component::MTU_SELECTOR | component::MTU);
        let rate_counts = self.has(component::RATE_SELECTOR | component::RATE);
        (!mtu_counts || Mtu::from_code(self.view().mtu()).is_some())
            && (!rate_counts || Rate::from_code(self.view().rate()).is_some())
    }

    /// This request with P_Key and SL of a virtual fabric, which override the requested values.
    pub(super) fn within(&self, fabric: GroupParameters) -> Self {
        let mut record = self.record;
        let mut asked = edit(&mut record);
        if asked.pkey().base() != fabric.pkey.base() {
            asked.set_pkey(PKey(fabric.pkey.0 | 0x8000));
        }
        asked.set_sl(fabric.sl);
        Self { record, mask: self.mask }
    }

    /// Parameters for a new group on behalf of `port`: the requested values, else the port's. MTU
    /// and rate are within the limits of a virtual fabric. The caller fills in MGID and MLID.
    /// `None` if the request cannot be satisfied (IBA o15-0.1.8).
    pub(super) fn realize(
        &self,
        port: &EndPort,
        fabric: Option<GroupParameters>,
    ) -> Option<Record> {
        let mtu_max =
            fabric.and_then(|fabric| fabric.mtu_max).map_or(port.mtu, |m| m.min(port.mtu));
        let rate_max =
            fabric.and_then(|fabric| fabric.rate_max).map_or(port.rate, |r| r.min(port.rate));
        let asked = self.view();
        let mut record = [0; 52];
        // Components used in the record only are copied whether or not the mask has them, as in
        // OpenSM.
        edit(&mut record)
            .set_qkey(asked.qkey())
            .set_mtu_selector(Selector::Exactly)
            .set_mtu(self.mtu(mtu_max)?)
            .set_tclass(asked.tclass())
            .set_pkey(asked.pkey())
            .set_rate_selector(Selector::Exactly)
            .set_rate(self.rate(rate_max)?)
            .set_packet_life_time_selector(Selector::Exactly)
            .set_sl(asked.sl())
            .set_packet_life_time(asked.packet_life_time())
            .set_flow_label(asked.flow_label())
            .set_hop_limit(asked.hop_limit())
            .set_scope(asked.scope());
        Some(record)
    }

    fn mtu(&self, max: Mtu) -> Option<Mtu> {
        let selector = self.view().mtu_selector();
        if !self.has(component::MTU_SELECTOR | component::MTU) || selector == Selector::Largest {
            return Some(max);
        }
        let asked = Mtu::from_code(self.view().mtu())?;
        match selector {
            Selector::Greater => (asked < max).then_some(max),
            Selector::Less if asked > max => Some(max),
            Selector::Less => Mtu::from_code(asked.code() - 1),
            Selector::Exactly | Selector::Largest => (asked <= max).then_some(asked),
        }
    }

    fn rate(&self, max: Rate) -> Option<Rate> {
        let selector = self.view().rate_selector();
        if !self.has(component::RATE_SELECTOR | component::RATE) || selector == Selector::Largest {
            return Some(max);
        }
        let asked = Rate::from_code(self.view().rate())?;
        match selector {
            Selector::Greater => (asked < max).then_some(max),
            Selector::Less if asked > max => Some(max),
            Selector::Less => {
                let rank = usize::from(asked.rank());
                Rate::BY_VALUE.get(rank.checked_sub(2)?).copied()
            }
            Selector::Exactly | Selector::Largest => (asked <= max).then_some(asked),
        }
    }

    /// Whether requested Q_Key, P_Key, TClass, SL, FlowLabel and HopLimit match `group`.
    pub(super) fn agrees_with(&self, group: &Record) -> bool {
        let (asked, group) = (self.view(), view(group));
        let agrees = |component, same: bool| !self.has(component) || same;
        agrees(component::QKEY, asked.qkey() == group.qkey())
            && agrees(component::PKEY, asked.pkey().matches(group.pkey()))
            && agrees(component::TCLASS, asked.tclass() == group.tclass())
            && agrees(component::SL, asked.sl() == group.sl())
            && agrees(component::FLOW_LABEL, asked.flow_label() == group.flow_label())
            && agrees(component::HOP_LIMIT, asked.hop_limit() == group.hop_limit())
    }

    /// Whether the group's MTU and rate match the selectors. The lifetime is not compared, as in
    /// OpenSM: no join depends on it.
    pub(super) fn selects(&self, group: &Record) -> bool {
        let (asked, group) = (self.view(), view(group));
        let rank = |code| Rate::from_code(code).map_or(0, Rate::rank);
        (!self.has(component::MTU_SELECTOR) || fits(asked.mtu_selector(), group.mtu(), asked.mtu()))
            && (!self.has(component::RATE_SELECTOR)
                || fits(asked.rate_selector(), rank(group.rate()), rank(asked.rate())))
    }
}

fn fits(selector: Selector, have: u8, asked: u8) -> bool {
    match selector {
        Selector::Greater => have > asked,
        Selector::Less => have < asked,
        Selector::Exactly => have == asked,
        Selector::Largest => true,
    }
}

/// Whether the port's link carries the group's packets.
pub(super) fn carries(port: &EndPort, group: &Record) -> bool {
    let group = view(group);
    port.mtu.code() >= group.mtu() && Rate::from_code(group.rate()).is_some_and(|r| r <= port.rate)
}
