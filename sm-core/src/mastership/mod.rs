//! Which subnet manager is master (IBA 14.4.1): this SM's state, its answers to SMInfo, and
//! decisions by the SMInfo of others. This module only decides; `sweep` polls the master and hands
//! over to another.

mod keys;

use std::collections::BTreeSet;

use ib_mad::types::Guid;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{SmControl, SmInfo, SmInfoRepr, SmState};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::smp::{self, Smp};

pub use keys::SmKeys;

/// SMInfo reported by another subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSm {
    /// GUID of its port.
    pub guid: Guid,
    /// Its priority, 0 to 15.
    pub priority: u8,
    /// Its state.
    pub state: SmState,
}

/// The decision after a discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// We are master.
    Master,
    /// That SM is or becomes master; this one is standby.
    StandBy(RemoteSm),
    /// This SM is master, and that one ranks above it: hand over.
    HandOver(RemoteSm),
    /// That SM is also master and ranks below this one: it must hand over.
    AwaitHandover(RemoteSm),
}

/// The effect of a Set(SMInfo) by another SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Become master: the SM at the port with this GUID hands over.
    TakeOver(Guid),
    /// The SM at the port with this GUID says that it handed over during a discovery. If the
    /// election finds it, clients may have registered with it, and its SMInfo may be outdated.
    LookAgain(Guid),
    /// The subnet manager at the port with this GUID acknowledged our handover and is master.
    StepDown(Guid),
    /// Program the whole subnet: the SM at the port with this GUID, which this one replaced, was
    /// still master, and stands by now.
    ProgramAgain(Guid),
    /// Return to DISCOVERING.
    Discover,
    /// Go to NOT-ACTIVE.
    Disable,
    /// Leave NOT-ACTIVE for STANDBY, and poll the master.
    StandBy,
    /// No action is needed.
    None,
    /// The request is not to be answered: its sender is unknown. It repeats the request, and may be
    /// known by then.
    AskBack,
}

impl Demand {
    /// Whether it leads to a full sweep.
    pub fn costs_sweep(self) -> bool {
        matches!(self, Self::TakeOver(_) | Self::ProgramAgain(_) | Self::Discover)
    }
}

/// What is known of the port that a Set(SMInfo) came from. A GUID in SMInfo is only a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is not the port with the GUID that it claims, or no subnet manager is known there.
    Unknown,
    /// A subnet manager is known there.
    Manager,
    /// The master that this SM polls.
    Polled,
}

/// Our state in the election of the master.
#[derive(Debug)]
pub struct Mastership {
    guid: Guid,
    priority: u8,
    keys: SmKeys,
    state: SmState,
    act_count: u32,
    tenure: u32,
    /// Whether this SM refuses handovers: its copy of the registry is not complete yet.
    refuses_handover: bool,
    /// The master that this SM replaced because it did not answer.
    replaced: Option<Guid>,
    /// Managers that handed over to this SM while it was master, and have not been master since as
    /// far as it knows: they have nothing more to hand over.
    handed_over: BTreeSet<Guid>,
}

/// Maximum number of managers of which this SM, as master, accepts a handover.
const HANDED_OVER_MAX: usize = 64;

impl Mastership {
    /// A subnet manager in DISCOVERING.
    pub fn new(priority: u8, sm_key: u64) -> Self {
        Self {
            guid: Guid(0),
            priority,
            keys: SmKeys { sm_key, m_key: 0 },
            state: SmState::Discovering,
            act_count: 0,
            tenure: 0,
            refuses_handover: false,
            replaced: None,
            handed_over: BTreeSet::new(),
        }
    }

    /// Our state.
    pub fn state(&self) -> SmState {
        self.state
    }

    /// Enters a state.
    pub fn set_state(&mut self, state: SmState) {
        if state == SmState::Master && self.state != SmState::Master {
            self.tenure += 1;
        }
        self.state = state;
    }

    /// Becomes master in place of another SM. If this SM is master already, both were: a new term
    /// begins, since clients may have registered with the other.
    pub fn replace_master(&mut self) {
        self.tenure += 1;
        self.state = SmState::Master;
    }

    /// How many times this SM became master; the number of its current term, from 1.
    pub fn tenure(&self) -> u32 {
        self.tenure
    }

    /// Sets our port GUID.
    pub fn set_guid(&mut self, guid: Guid) {
        self.guid = guid;
    }

    /// Sets the SM_Key that other subnet managers must present.
    pub fn set_sm_key(&mut self, sm_key: u64) {
        self.keys.sm_key = sm_key;
    }

    /// Sets our priority, 0 to 15.
    pub fn set_priority(&mut self, priority: u8) {
        self.priority = priority;
    }

    /// Sets whether this SM refuses a handover. A master whose HANDOVER is refused stays master,
    /// and tries again.
    pub fn set_refuses_handover(&mut self, refuses: bool) {
        self.refuses_handover = refuses;
    }

    /// The master that this SM replaced because it did not answer.
    pub fn replaced(&self) -> Option<Guid> {
        self.replaced
    }

    /// Sets the master that this SM replaced because it did not answer.
    pub fn set_replaced(&mut self, replaced: Option<Guid>) {
        self.replaced = replaced;
        replaced.inspect(|guid| _ = self.handed_over.remove(guid));
    }

    /// Records which other SMs were found, and in which state. One that is master, or in another
    /// part of a split fabric where it may become master, can hand over again; one that only does
    /// not answer cannot. `is_present`: whether the fabric has the port with a GUID.
    pub fn note_others(&mut self, others: &[RemoteSm], is_present: impl Fn(Guid) -> bool) {
        let is_master =
            |guid: Guid| others.iter().any(|sm| sm.guid == guid && sm.state == SmState::Master);
        self.handed_over.retain(|guid| is_present(*guid) && !is_master(*guid));
    }

    /// SMInfo.ActCount.
    pub fn act_count(&self) -> u32 {
        self.act_count
    }

    /// Increments ActCount, by which SMs that poll this one see that it is alive.
    pub fn act(&mut self) {
        self.act_count = self.act_count.wrapping_add(1);
    }

    /// Decides by the other SMs found. A master found while this SM is not master stays master,
    /// regardless of its priority: it hands over when it finds that this SM ranks above it
    /// (IBA 14.4.1).
    pub fn decide(&self, others: &[RemoteSm]) -> Decision {
        let active = || others.iter().filter(|sm| sm.state != SmState::NotActive);
        let order = |sm: &&RemoteSm| (sm.priority, std::cmp::Reverse(sm.guid));
        let masters = || active().filter(|sm| sm.state == SmState::Master);
        if self.state == SmState::Master {
            // An SM in DISCOVERING will find this one and go to STANDBY.
            let settled = active().filter(|sm| sm.state != SmState::Discovering);
            return match settled.filter(|sm| self.is_below(sm)).max_by_key(order) {
                Some(sm) => Decision::HandOver(*sm),
                None => masters()
                    .max_by_key(order)
                    .map_or(Decision::Master, |sm| Decision::AwaitHandover(*sm)),
            };
        }
        let higher = masters().max_by_key(order);
        let higher = higher.or_else(|| active().filter(|sm| self.is_below(sm)).max_by_key(order));
        higher.map_or(Decision::Master, |sm| Decision::StandBy(*sm))
    }

    /// Whether `other` ranks below this SM; as a master it must hand over.
    pub fn outranks(&self, other: &RemoteSm) -> bool {
        !self.is_below(other)
    }

    /// Our SMInfo in a request to a port that holds this M_Key, 0 if it holds none: with the state
    /// that matches the AttributeModifier of a Set().
    pub fn shown(&self, state: SmState, m_key: u64) -> [u8; 21] {
        let mut bytes = self.record();
        SmInfo::of_mut(&mut bytes)
            .set_sm_key(self.keys.shown_to(m_key))
            .set_act_count(self.act_count)
            .set_sm_state(state);
        bytes
    }

    /// Whether `other` ranks above this SM: by priority, then by lower GUID.
    fn is_below(&self, other: &RemoteSm) -> bool {
        (other.priority, std::cmp::Reverse(other.guid))
            > (self.priority, std::cmp::Reverse(self.guid))
    }

    /// Our SMInfo in SMInfoRecords: without the SM_Key, and without ActCount, so that
    /// its increments do not count as changes of the subnet.
    pub fn record(&self) -> [u8; 21] {
        let mut bytes = [0; 21];
        SmInfo::of_mut(&mut bytes)
            .set_guid(self.guid)
            .set_priority(self.priority)
            .set_sm_state(self.state);
        bytes
    }

    /// Sets the M_Key: a requester that shows neither it nor a proof of it does not get the SM_Key.
    /// If it is 0, every requester gets it: peers refuse subnet managers that do not show their
    /// SM_Key.
    pub fn set_m_key(&mut self, m_key: u64) {
        self.keys.m_key = m_key;
    }

    /// The keys by which other subnet managers know this one, and this one them.
    pub fn keys(&self) -> SmKeys {
        self.keys
    }

    /// Answers a Get or Set of SMInfo in place. `port_m_key` is the M_Key that our port holds, by
    /// which others may know this SM.
    pub fn answer(
        &mut self,
        mad: &mut [u8; MAD_LEN],
        standing: Standing,
        port_m_key: u64,
    ) -> Demand {
        let Ok(view) = Smp::new(&mad[..]) else { return Demand::None };
        let SmKeys { sm_key, m_key } = self.keys;
        let may_see_key = m_key == 0 || view.m_key() == m_key;
        let (method, modifier) = (view.method(), view.attribute_modifier());
        let asker = SmInfo::new(view.data_bytes()).ok().map(|info| Asker {
            sm_key: info.sm_key(),
            guid: info.guid(),
            priority: info.priority(),
            state: SmState::from_code(info.sm_state()),
        });
        let shown = asker.map(|asker| asker.sm_key);
        let shown = shown.filter(|&key| self.keys.are_shown_by(key, port_m_key));
        let mut status = Status::OK;
        let mut demand = Demand::None;
        if method == Method::SET {
            if standing == Standing::Unknown {
                return Demand::AskBack;
            }
            let control = SmControl::from_modifier(modifier);
            match asker
                .zip(control)
                .filter(|_| shown.is_some())
                .and_then(|(asker, control)| self.demand(asker, control, standing))
            {
                Some(demanded) => demand = demanded,
                None => status = Status::INVALID_FIELD,
            }
            if demand == Demand::StandBy {
                self.state = SmState::Standby;
            }
            if let Demand::TakeOver(from) = demand
                && self.state == SmState::Master
            {
                self.handed_over.insert(from);
            }
        }
        self.act();
        smp::answer(mad, status);
        let repr = SmInfoRepr {
            guid: self.guid,
            sm_key: if may_see_key { sm_key } else { shown.unwrap_or(0) },
            act_count: self.act_count,
            priority: self.priority,
            sm_state: self.state,
        };
        let data = &mut mad[smp::DATA];
        data.fill(0);
        if let Ok(mut info) = SmInfo::new(data) {
            repr.emit(&mut info);
        }
        demand
    }

    /// Whether a manager may have been master while this SM was.
    fn may_hand_over(&self, guid: Guid) -> bool {
        self.handed_over.len() < HANDED_OVER_MAX && !self.handed_over.contains(&guid)
    }

    /// The effect of Set(SMInfo) of a sender that has shown our key, by the state machine of
    /// 14.4.1; `None` if it is refused. The sender must be in the state that matches the request
    /// (IBA C14-38.1.1).
    fn demand(&self, asker: Asker, control: SmControl, standing: Standing) -> Option<Demand> {
        use SmState::{Discovering, Master, NotActive, Standby};
        let shown = match control {
            SmControl::Acknowledge => Standby,
            _ => Master,
        };
        if asker.state != Some(shown) {
            return None;
        }
        if matches!(control, SmControl::Discover | SmControl::Disable)
            && standing < Standing::Polled
        {
            return None;
        }
        let from = asker.guid;
        let other = RemoteSm { guid: from, priority: asker.priority, state: shown };
        match (control, self.state) {
            // It may have written to ports and tables until it learned that it was replaced.
            (SmControl::Handover, Master)
                if self.is_below(&other) && self.replaced == Some(from) =>
            {
                Some(Demand::ProgramAgain(from))
            }
            (SmControl::Handover, _) if self.refuses_handover => None,
            // Only the master that this SM polls has the subnet to hand over.
            (SmControl::Handover, Standby) if standing < Standing::Polled => None,
            (SmControl::Handover, Standby) => Some(Demand::TakeOver(from)),
            // It did so already, and has not been master since: a full sweep and registrations of
            // all clients for nothing.
            (SmControl::Handover, Master) if self.outranks(&other) && !self.may_hand_over(from) => {
                Some(Demand::None)
            }
            // A master accepts a handover only from one of lower rank: two subnets were merged.
            (SmControl::Handover, Master) if self.outranks(&other) => Some(Demand::TakeOver(from)),
            // The discovery decides on mastership.
            (SmControl::Handover, Discovering) => Some(Demand::LookAgain(from)),
            (SmControl::Acknowledge, Master) => Some(Demand::StepDown(from)),
            (SmControl::Discover, Standby) => Some(Demand::Discover),
            (SmControl::Standby, NotActive) => Some(Demand::StandBy),
            (SmControl::Disable, Standby | Discovering) => Some(Demand::Disable),
            (SmControl::Acknowledge | SmControl::Standby, _) => Some(Demand::None),
            // HANDOVER, DISCOVER and DISABLE in other states.
            _ => None,
        }
    }
}

/// The sender of a Set(SMInfo), by its SMInfo.
#[derive(Clone, Copy, Debug)]
struct Asker {
    sm_key: u64,
    guid: Guid,
    priority: u8,
    state: Option<SmState>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::mad::AttributeId;
    use ib_mad::wire::smp::Request;

    fn sm(guid: u64, priority: u8, state: SmState) -> RemoteSm {
        RemoteSm { guid: Guid(guid), priority, state }
    }

    fn own(priority: u8, state: SmState) -> Mastership {
        let mut own = Mastership::new(priority, 1);
        own.set_guid(Guid(10));
        own.set_state(state);
        own
    }

    #[test]
    fn a_master_found_at_start_stays_master() {
        let master = sm(20, 0, SmState::Master);
        let higher = sm(5, 15, SmState::Standby);
        let discovering = own(15, SmState::Discovering);
        assert_eq!(discovering.decide(&[higher, master]), Decision::StandBy(master));
        assert_eq!(discovering.decide(&[sm(20, 0, SmState::NotActive)]), Decision::Master);
    }

    /// IBA 14.4.1.
    #[test]
    fn among_equals_the_lower_guid_rules() {
        let discovering = own(3, SmState::Discovering);
        let lower = sm(9, 3, SmState::Standby);
        assert_eq!(discovering.decide(&[lower]), Decision::StandBy(lower));
        assert_eq!(discovering.decide(&[sm(11, 3, SmState::Standby)]), Decision::Master);
    }

    /// IBA 14.4.1.
    #[test]
    fn a_master_hands_over_only_to_a_manager_of_higher_precedence() {
        let master = own(3, SmState::Master);
        for state in [SmState::Standby, SmState::Master] {
            let (higher, highest) = (sm(20, 4, state), sm(21, 5, state));
            assert_eq!(master.decide(&[highest, higher]), Decision::HandOver(highest));
            let equal = sm(9, 3, state);
            assert_eq!(master.decide(&[equal]), Decision::HandOver(equal), "its GUID is lower");
        }
        for idle in [SmState::Discovering, SmState::NotActive] {
            assert_eq!(master.decide(&[sm(9, 15, idle)]), Decision::Master, "{idle}");
        }
        assert_eq!(master.decide(&[sm(11, 3, SmState::Standby)]), Decision::Master);
        let lower = sm(9, 2, SmState::Master);
        assert_eq!(master.decide(&[lower]), Decision::AwaitHandover(lower));
    }

    #[test]
    fn an_acknowledgement_concerns_a_master_and_a_handover_all_but_the_disabled() {
        let answered = |state, control| {
            let mut own = own(3, state);
            let mut mad = set_request(control, 1);
            SmInfo::new(&mut mad[smp::DATA]).unwrap().set_guid(Guid(9)).set_priority(2);
            (own.answer(&mut mad, Standing::Polled, 0), Smp::new(&mad[..]).unwrap().status())
        };
        let (ok, refused) = (Status::OK, Status::INVALID_FIELD);
        let (standby, master) = (SmState::Standby, SmState::Master);
        for state in [standby, master] {
            let taken = (Demand::TakeOver(Guid(9)), ok);
            assert_eq!(answered(state, SmControl::Handover), taken, "{state}");
        }
        let looks_again = (Demand::LookAgain(Guid(9)), ok);
        assert_eq!(answered(SmState::Discovering, SmControl::Handover), looks_again);
        let idle = SmState::NotActive;
        assert_eq!(answered(idle, SmControl::Handover), (Demand::None, refused));
        let stepped_down = (Demand::StepDown(Guid(9)), ok);
        assert_eq!(answered(master, SmControl::Acknowledge), stepped_down);
        assert_eq!(answered(standby, SmControl::Acknowledge), (Demand::None, ok));
        assert_eq!(answered(master, SmControl::Disable), (Demand::None, refused));
        assert_eq!(answered(master, SmControl::Discover), (Demand::None, refused));
    }

    /// Regression: a master accepted HANDOVER from any SM with the SM_Key, and discarded the
    /// switches' tables. IBA 14.4.1, C14-38.1.1.
    #[test]
    fn a_demand_needs_the_state_that_goes_with_it_and_a_handover_to_a_master_a_lower_rank() {
        let answered = |state, control, shown, priority| {
            let mut mad = set_request(control, 1);
            let mut info = SmInfo::new(&mut mad[smp::DATA]).unwrap();
            info.set_guid(Guid(9)).set_priority(priority).set_sm_state(shown);
            let demand = own(3, state).answer(&mut mad, Standing::Polled, 0);
            (demand, Smp::new(&mad[..]).unwrap().status())
        };
        let refused = (Demand::None, Status::INVALID_FIELD);
        let (standby, master) = (SmState::Standby, SmState::Master);
        for shown in [standby, SmState::Discovering, SmState::NotActive] {
            for state in [standby, master, SmState::Discovering] {
                assert_eq!(answered(state, SmControl::Handover, shown, 2), refused, "{shown}");
            }
            assert_eq!(answered(standby, SmControl::Disable, shown, 2), refused, "{shown}");
            assert_eq!(answered(standby, SmControl::Discover, shown, 2), refused, "{shown}");
        }
        assert_eq!(answered(master, SmControl::Acknowledge, master, 2), refused);
        // GUID 9 ranks above ours, 10.
        for priority in [3, 4] {
            assert_eq!(answered(master, SmControl::Handover, master, priority), refused);
            let taken = (Demand::TakeOver(Guid(9)), Status::OK);
            assert_eq!(answered(standby, SmControl::Handover, master, priority), taken);
        }
    }

    /// It was stopped, and may have written to ports and tables before it noticed.
    #[test]
    fn the_master_that_this_one_replaced_may_end_its_term_whatever_its_rank() {
        let mut own = own(3, SmState::Master);
        own.set_replaced(Some(Guid(9)));
        let asker = |guid| Asker { sm_key: 1, guid, priority: 4, state: Some(SmState::Master) };
        let demand = |own: &Mastership, guid| {
            own.demand(asker(Guid(guid)), SmControl::Handover, Standing::Manager)
        };
        assert_eq!(demand(&own, 9), Some(Demand::ProgramAgain(Guid(9))));
        assert_eq!(demand(&own, 8), None);
        own.set_state(SmState::Standby);
        assert_eq!(demand(&own, 9), None, "another one is master now");
    }

    fn set_request(control: SmControl, sm_key: u64) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        smp::Request {
            method: Method::SET,
            attribute_id: ib_mad::wire::mad::AttributeId::SM_INFO,
            attribute_modifier: control as u32,
            tid: 7,
            m_key: 0,
        }
        .write_lid_routed(&mut mad);
        let state = match control {
            SmControl::Acknowledge => SmState::Standby,
            _ => SmState::Master,
        };
        SmInfo::new(&mut mad[smp::DATA]).unwrap().set_sm_key(sm_key).set_sm_state(state);
        mad
    }

    /// OpenSM ignores a subnet manager that does not present its SM_Key, and becomes a second
    /// master.
    #[test]
    fn peers_see_our_sm_key_unless_an_m_key_keeps_them_out() {
        let shown = |own: &mut Mastership, m_key: u64| {
            let mut mad = [0; MAD_LEN];
            Request {
                method: Method::GET,
                attribute_id: AttributeId::SM_INFO,
                attribute_modifier: 0,
                tid: 1,
                m_key,
            }
            .write_lid_routed(&mut mad);
            own.answer(&mut mad, Standing::Unknown, 0);
            SmInfo::new(&mad[smp::DATA]).unwrap().sm_key()
        };
        let mut own = own(3, SmState::Master);
        assert_eq!(shown(&mut own, 0), 1);
        own.set_m_key(77);
        assert_eq!((shown(&mut own, 0), shown(&mut own, 77)), (0, 1));
    }

    /// Regression: any port that knew the SM_Key made a standby inactive, and a master discard its
    /// tables.
    #[test]
    fn demands_count_only_from_a_known_manager() {
        let answered = |state, control, standing| {
            let mut mad = set_request(control, 1);
            SmInfo::new(&mut mad[smp::DATA]).unwrap().set_guid(Guid(9)).set_priority(2);
            (own(3, state).answer(&mut mad, standing, 0), Smp::new(&mad[..]).unwrap().method())
        };
        let (standby, master) = (SmState::Standby, SmState::Master);
        let controls = [SmControl::Handover, SmControl::Disable, SmControl::Discover];
        for control in controls {
            let unanswered = (Demand::AskBack, Method::SET);
            assert_eq!(answered(standby, control, Standing::Unknown), unanswered, "{control:?}");
        }
        for control in [SmControl::Disable, SmControl::Discover] {
            let refused = (Demand::None, Method::GET_RESP);
            assert_eq!(answered(standby, control, Standing::Manager), refused, "{control:?}");
            assert_ne!(answered(standby, control, Standing::Polled).0, Demand::None);
        }
        let taken = Demand::TakeOver(Guid(9));
        assert_eq!(answered(master, SmControl::Handover, Standing::Manager).0, taken);
    }

    /// Regression: a standby had all clients register again as often as it liked.
    #[test]
    fn a_manager_hands_over_once_unless_it_may_have_been_master_again() {
        let mut own = own(3, SmState::Master);
        let hand_over = |own: &mut Mastership, guid: u64| {
            let mut mad = set_request(SmControl::Handover, 1);
            SmInfo::new(&mut mad[smp::DATA]).unwrap().set_guid(Guid(guid));
            own.answer(&mut mad, Standing::Manager, 0)
        };
        let taken = Demand::TakeOver(Guid(20));
        assert_eq!(hand_over(&mut own, 20), taken);
        assert_eq!(hand_over(&mut own, 20), Demand::None);
        own.note_others(&[sm(20, 0, SmState::Standby)], |_| true);
        assert_eq!(hand_over(&mut own, 20), Demand::None, "it is standby as before");
        own.note_others(&[], |_| true);
        assert_eq!(hand_over(&mut own, 20), Demand::None, "it does not answer");
        own.note_others(&[sm(20, 0, SmState::Master)], |_| true);
        assert_eq!(hand_over(&mut own, 20), taken);
        own.note_others(&[], |_| false);
        assert_eq!(hand_over(&mut own, 20), taken, "it was in another part of the fabric");
        own.set_replaced(Some(Guid(20)));
        assert_eq!(hand_over(&mut own, 20), taken, "it was replaced");
        let granted = (100..1000).filter(|guid| hand_over(&mut own, *guid) != Demand::None);
        assert_eq!(granted.count(), HANDED_OVER_MAX - 1);
    }

    #[test]
    fn a_handover_is_refused_on_request() {
        for state in [SmState::Standby, SmState::Master, SmState::Discovering] {
            let mut own = own(3, state);
            own.set_refuses_handover(true);
            let mut mad = set_request(SmControl::Handover, 1);
            SmInfo::new(&mut mad[smp::DATA]).unwrap().set_guid(Guid(99)).set_priority(2);
            assert_eq!(own.answer(&mut mad, Standing::Polled, 0), Demand::None, "{state}");
            assert_eq!(Smp::new(&mad[..]).unwrap().status(), Status::INVALID_FIELD);
            own.set_refuses_handover(false);
            let mut mad = set_request(SmControl::Handover, 1);
            SmInfo::new(&mut mad[smp::DATA]).unwrap().set_guid(Guid(99)).set_priority(2);
            assert_ne!(own.answer(&mut mad, Standing::Polled, 0), Demand::None, "{state}");
        }
    }

    #[test]
    fn a_handover_needs_our_sm_key() {
        let mut standby = own(3, SmState::Standby);
        let mut mad = set_request(SmControl::Handover, 99);
        assert_eq!(standby.answer(&mut mad, Standing::Polled, 0), Demand::None);
        assert_eq!(Smp::new(&mad[..]).unwrap().status(), Status::INVALID_FIELD);
        // Regression: a standby took the subnet from any manager that claimed to be master.
        let mut mad = set_request(SmControl::Handover, 1);
        assert_eq!(standby.answer(&mut mad, Standing::Manager, 0), Demand::None);
        assert_eq!(Smp::new(&mad[..]).unwrap().status(), Status::INVALID_FIELD);
        let mut mad = set_request(SmControl::Handover, 1);
        assert_eq!(standby.answer(&mut mad, Standing::Polled, 0), Demand::TakeOver(Guid(0)));
        let answer = Smp::new(&mad[..]).unwrap();
        assert_eq!((answer.method(), answer.status()), (Method::GET_RESP, Status::OK));
        let info = SmInfo::new(answer.data_bytes()).unwrap();
        assert_eq!((info.guid(), info.priority(), info.act_count()), (Guid(10), 3, 3));
    }
}
