//! Repeats, late repeats and reused TransactionIDs, over restarts and steps of the clock: what is
//! answered with OK is so when it is answered, and a late repeat undoes nothing.

use std::time::Duration;

use sa_proto::snapshot::{MulticastMemberRid, RegistryPlane, ServiceRid};

use super::*;
use crate::registry::{
    AnswerRecord, HostTime, Outcome, OutcomeKey, RegistryClock, Settings, Stamp,
};

/// The next event.
#[derive(Clone, Debug)]
enum Act {
    /// A request, for a group whose MGID the SA chooses if `chooses`.
    New(Step, bool),
    /// A member leaves its group.
    Leave(prop::sample::Index),
    /// An earlier request once more, with its TransactionID: by its client, or late by a responder
    /// that had received it when it was first sent.
    Again(prop::sample::Index, bool),
    /// Seconds pass.
    Time(u64),
    /// The program is restarted, and the host, too, if `boots`. Its wall clock is set.
    Restart { boots: bool, wall_s: u32 },
    /// Ports with these LIDs, and no others.
    Fabric(Vec<u16>),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => (step(), any::<bool>()).prop_map(|(step, chooses)| Act::New(step, chooses)),
        4 => any::<prop::sample::Index>().prop_map(Act::Leave),
        12 => (any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(which, late)| Act::Again(which, late)),
        3 => (0..5_u64).prop_map(Act::Time),
        2 => (any::<bool>(), any::<u32>())
            .prop_map(|(boots, wall_s)| Act::Restart { boots, wall_s }),
        1 => proptest::sample::subsequence(vec![1, 2, 3, 4], 2..=4).prop_map(Act::Fabric),
    ]
}

/// A request that was sent.
struct Known {
    request: Request,
    /// When it was granted last.
    granted_s: Option<u64>,
}

/// A registry with its store, and the host's clocks.
struct Bed {
    registry: Registry,
    there: Ports,
    host: HostTime,
    clock: RegistryClock,
    stored: RegistryPlane,
    outcomes: Vec<(OutcomeKey, Outcome)>,
    stamp: Stamp,
    known: Vec<Known>,
}

impl Bed {
    fn new() -> Self {
        let now = Duration::from_secs(NOW_S);
        let host = HostTime { boot: 1, since_boot: now, wall: now };
        let clock = RegistryClock::new(host, None);
        Self {
            registry: Registry::default(),
            there: ports(),
            host,
            clock,
            stored: RegistryPlane::default(),
            outcomes: Vec::new(),
            stamp: clock.stamp(host),
            known: Vec::new(),
        }
    }

    fn now_s(&self) -> u64 {
        self.clock.stamp(self.host).time.as_secs()
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::New(Step::Repeat | Step::Time(_) | Step::Fabric(_), _) => {}
            Act::New(step, chooses) => {
                let mut request = asked(step).expect("all other steps are requests");
                if *chooses && request.attribute == attribute::MC_MEMBER_RECORD {
                    request.data[..16].fill(0);
                }
                self.send(request);
            }
            Act::Leave(which) if !self.stored.members.is_empty() => {
                let which = which.index(self.stored.members.len());
                let member = (**self.stored.members.get(which).unwrap()).clone();
                let lid = self.there.by_guid(member.rid.port_gid.guid()).map(|port| port.lid.0);
                let mut record = [0; 52];
                McMemberRecord::new(&mut record[..])
                    .unwrap()
                    .set_mgid(member.rid.mgid)
                    .set_port_gid(member.rid.port_gid)
                    .set_join_state(JoinState(member.join_state));
                let mask = mc_member::component::MGID
                    | mc_member::component::PORT_GID
                    | mc_member::component::JOIN_STATE;
                let attribute = attribute::MC_MEMBER_RECORD;
                let slid = lid.unwrap_or(1);
                self.send(request(slid, Method::DELETE, attribute, mask, &record));
            }
            Act::Again(which, late) if !self.known.is_empty() => {
                self.again(which.index(self.known.len()), *late);
            }
            Act::Leave(_) | Act::Again(..) => {}
            Act::Time(passed) => {
                self.host.since_boot += Duration::from_secs(*passed);
                self.host.wall += Duration::from_secs(*passed);
                let now_s = self.now_s();
                self.registry.expire(now_s);
                self.store();
            }
            Act::Restart { boots, wall_s } => {
                if *boots {
                    (self.host.boot, self.host.since_boot) = (self.host.boot + 1, Duration::ZERO);
                }
                self.host.wall = Duration::from_secs((*wall_s).into());
                self.clock = RegistryClock::new(self.host, Some(self.stamp));
                self.registry = Registry::restore(&self.stored, self.outcomes.clone());
            }
            Act::Fabric(lids) => {
                self.there = some(lids);
                self.registry.fabric_changed(&self.there);
                self.store();
            }
        }
    }

    /// A client sends a request for the first time.
    fn send(&mut self, request: Request) {
        let request = Request { seen: self.stored.sequence, ..request };
        let granted = self.decide(&request).is_some();
        let granted_s = granted.then(|| self.now_s());
        self.known.push(Known { request, granted_s });
    }

    fn again(&mut self, which: usize, late: bool) {
        let known = &self.known[which];
        let first = known.request.clone();
        let seen = if late { first.seen } else { self.stored.sequence };
        let request = Request { seen, ..first };
        let window_s = Settings::default().retry_window_s;
        let is_repeat = known.granted_s.is_some_and(|at_s| at_s + window_s >= self.now_s());
        let before = self.stored.clone();
        let reply = self.decide(&request);
        if is_repeat && late {
            assert_eq!(before, self.stored, "a late repeat changed something: {request:?}");
        } else if is_repeat
            && reply.as_ref().is_some_and(|data| holds(self, &before, &request, data))
        {
            assert_eq!(before, self.stored, "done twice: {request:?}");
        }
        if !late && reply.is_some() && before != self.stored {
            self.known[which].granted_s = Some(self.now_s());
            self.known[which].request.seen = before.sequence;
        }
    }

    /// Lets the registry decide on a request, and stores the result; returns the answer if it is
    /// OK.
    fn decide(&mut self, request: &Request) -> Option<[u8; 200]> {
        let reply = self.registry.write(self.now_s(), &self.there, request);
        let before = self.stored.clone();
        self.store();
        if reply.dropped || reply.status != Status::OK {
            assert_eq!(before, self.stored, "refused or dropped, and changed: {request:?}");
            return None;
        }
        let answer = reply.data.as_ref().map_or(request.data, AnswerRecord::data);
        assert!(holds(self, &self.stored, request, &answer), "OK, but it is not so: {request:?}");
        Some(answer)
    }

    fn store(&mut self) {
        let changes = self.registry.take_changes();
        self.stored.apply(&changes.rows);
        self.outcomes.extend(changes.outcomes_put);
        self.outcomes.retain(|(_, outcome)| outcome.at_s >= changes.outcomes_since_s);
        self.stamp = self.clock.stamp(self.host);
        while self.registry.poll_event().is_some() {}
    }
}

/// Whether `plane` is as the answer to a granted request says.
fn holds(bed: &Bed, plane: &RegistryPlane, request: &Request, answer: &[u8; 200]) -> bool {
    let sets = request.method == Method::SET;
    match request.attribute {
        attribute::MC_MEMBER_RECORD => {
            let (asked, answer) =
                (McMemberRecord::new(&request.data[..52]), McMemberRecord::new(&answer[..52]));
            let (asked, answer) = (asked.unwrap(), answer.unwrap());
            let mgid = answer.mgid();
            let port_gid = Gid::new(bed.there.prefix, asked.port_gid().guid());
            let member = plane.members.find(MulticastMemberRid { mgid, port_gid });
            let held = member.map_or(0, |member| member.join_state);
            let mlid = plane.groups.find(mgid);
            let mlid = mlid.map(|group| McMemberRecord::new(&group.record[..]).unwrap().mlid());
            let state = asked.join_state().0;
            if sets {
                held & state == state && mlid == Some(answer.mlid())
            } else {
                held & state == 0
            }
        }
        attribute::SERVICE_RECORD => {
            let record = ServiceRecord::new(&request.data[..176]).unwrap();
            let rid = ServiceRid {
                service_id: record.service_id(),
                service_gid: record.service_gid(),
                service_pkey: record.service_pkey(),
            };
            let row = plane.services.find(rid);
            let is_over = |end| end <= bed.now_s();
            let row = row.filter(|row| !row.expires_s.is_some_and(is_over));
            let same = |record: &[u8; 176]| record[..] == request.data[..176];
            if sets { row.is_some_and(|row| same(&row.record)) } else { row.is_none() }
        }
        AttributeId::INFORM_INFO => {
            let wanted = InformInfo::new(&request.data[..36]).unwrap();
            let mut mine = plane.subscriptions.iter().filter(|row| {
                let info = InformInfo::new(&row.inform_info[..]).unwrap();
                row.lid == request.requester.slid && info.trap_number() == wanted.trap_number()
            });
            mine.next().is_some() == (wanted.subscribe() == 1)
        }
        _ => {
            let lid = GuidInfoRecord::new(&request.data[..72]).unwrap().lid();
            let Some(port) = bed.there.by_lid(lid) else { return false };
            (1..8_u8).filter(|entry| request.component_mask.0 >> 4 >> entry & 1 == 1).all(|entry| {
                let mut rows = plane.alias_guids.iter();
                let row = rows.find(|row| row.port_guid == port.guid && row.index == entry);
                let held = row.map_or(0, |row| row.alias.0);
                answer[8 + 8 * usize::from(entry)..][..8] == held.to_be_bytes()
            })
        }
    }
}

proptest! {
    /// Regression: a client that joined, left, and joined with the first request's TransactionID
    /// got OK and was no member; after a step of the clock at a restart, for as long as the step.
    #[test]
    fn what_is_answered_with_ok_is_so(acts in vec(act(), 0..80)) {
        let mut bed = Bed::new();
        acts.iter().for_each(|act| bed.act(act));
    }
}
