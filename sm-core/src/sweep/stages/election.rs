//! Other subnet managers: polls them, stands by for the master, and takes over from it.

use std::fmt::Display;
use std::time::{Duration, Instant};

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::{CapabilityMask, SmState};
use ib_mad::wire::mad::Status;
use tracing::{debug, info, warn};

use crate::fabric::PortIndex;
use crate::mastership::RemoteSm;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::election::{Answer, OTHERS_MAX};
use crate::sweep::subnet::log::STATE;
use crate::sweep::subnet::overwritten::Sign;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// Interval at which light sweeps poll SMs that did not answer. Partial sweeps leave this to light
/// sweeps, and poll such SMs only after twice this interval.
pub(in crate::sweep) const UNRESPONSIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Owner of the requests to other SMs, whose state is in [`Election`].
pub(in crate::sweep) struct OtherManagers;

impl RequestOwner for OtherManagers {
    type Kind = kinds::Election;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Election::SmInfo | kinds::Election::Poll => {
                // Where an M_Key is set, a manager shows its key only to those that show theirs.
                let election = &subnet.election;
                let guid = subnet.fabric.port(request.port()).guid;
                let m_key = subnet.m_key_of(request, None);
                if m_key != 0 && election.is_allowed(guid) {
                    let own = &election.own;
                    data[..21].copy_from_slice(&own.shown(own.state(), m_key));
                }
                Some(0)
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, now } = owned;
        let port = request.port();
        let at = subnet.fabric.port(port).guid;
        subnet.election.mark_responsive(|guid| guid == at);
        let m_key = subnet.m_key_of(request, None);
        match subnet.election.read(data, m_key) {
            Answer::None => {
                subnet.sm_failed(kind, port, "unknown SMInfo state");
            }
            Answer::Peer(sm) if !subnet.election.is_allowed(at) => {
                subnet.note_foreign_sm(now, port, sm, "is not in --sm-allow");
                subnet.sm_failed(kind, port, "not in --sm-allow");
            }
            // Who follows, was master or was waited for is known by this GUID.
            Answer::Peer(sm) if sm.guid != at => {
                subnet.note_foreign_sm(now, port, sm, "shows the GUID of another port");
                subnet.sm_failed(kind, port, "shows the GUID of another port");
            }
            Answer::Foreign(sm) => {
                subnet.note_foreign_sm(now, port, sm, "has another SM_Key");
                subnet.sm_failed(kind, port, "different SM_Key");
            }
            Answer::Peer(sm) => {
                subnet.election.note_accepted(at);
                if sm.state == SmState::Master {
                    subnet.election.note_master(port, at);
                }
                subnet.note_activity(port, sm);
                match kind {
                    kinds::Election::Poll => subnet.master_answered(now, port, sm),
                    kinds::Election::SmInfo => {
                        let is_away = subnet.is_away(port);
                        subnet.election.put(port, sm, is_away);
                    }
                }
            }
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, now } = owned;
        if kind == kinds::Election::SmInfo {
            subnet.report_refusal(request, status);
            subnet.foreign_is_silent(now, request.port());
        }
        subnet.sm_failed(kind, request.port(), format_args!("rejected: {status}"));
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { kind, request, now } = owned;
        let port = request.port();
        subnet.sm_is_unresponsive(now, port);
        subnet.foreign_is_silent(now, port);
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(port));
        subnet.sm_failed(kind, port, "no answer");
    }
}

impl Subnet {
    /// Polls SMs that did not answer, at [`UNRESPONSIVE_INTERVAL`]: otherwise two masters that each
    /// missed the other's answer would both continue. A trap ends this light sweep early.
    pub(in crate::sweep) fn poll_unresponsive(&mut self, now: Instant) -> bool {
        let mut asks = false;
        if self.settings.ignore_other_sm || !self.election.has_unresponsive() {
            return false;
        }
        for port in self.manager_ports() {
            let guid = self.fabric.port(port).guid;
            let since = self.election.unresponsive_since(guid);
            if since.is_some_and(|since| now >= since + UNRESPONSIVE_INTERVAL) {
                self.election.mark_unresponsive(now, guid);
                asks = true;
                self.exchange.push(Request::new(Kind::SmInfo, port));
            }
        }
        asks
    }

    /// Records that an SM did not answer: it is polled again at [`UNRESPONSIVE_INTERVAL`].
    fn sm_is_unresponsive(&mut self, now: Instant, port: PortIndex) {
        self.election.mark_unresponsive(now, self.fabric.port(port).guid);
        self.schedule.await_unresponsive(now + UNRESPONSIVE_INTERVAL);
    }

    /// Handles a failed request to another SM; `how` is the reason for the log, if it was a poll.
    fn sm_failed(&mut self, kind: kinds::Election, port: PortIndex, how: impl Display) {
        if kind == kinds::Election::SmInfo {
            return self.election.forget(port);
        }
        if self.election.is_probing {
            return debug!("an additional poll of the master failed ({how})");
        }
        let polls_max = self.settings.polling_retry_number;
        if self.election.miss_poll(polls_max) {
            self.election.forget(port);
            warn!(
                target: STATE,
                "the master at {} failed {polls_max} polls in a row ({how}): looking for another",
                self.peer_place(port)
            );
            return;
        }
        let missed = self.election.polls_missed();
        let left = Duration::from_millis(u64::from(self.settings.sminfo_polling_timeout))
            .saturating_mul(polls_max.saturating_sub(missed));
        warn!(
            "the master at {} failed poll {missed} of {polls_max} ({how}): takeover in {} s",
            self.peer_place(port),
            left.as_secs_f32().ceil()
        );
    }

    /// Whether an adapter's port, or the one that had its GUID, was elsewhere an hour ago.
    pub(in crate::sweep) fn is_away(&self, port: PortIndex) -> bool {
        let entry = self.fabric.port(port);
        let Some(place) = entry.peer().map(|peer| self.end(peer)) else { return false };
        let identities = [(self.fabric.node_of(port).guid, entry.num), (entry.guid, PortNum(0))];
        let mut homes = identities.into_iter().filter_map(|identity| self.homes.known(identity));
        homes.any(|home| home != place)
    }

    /// End ports that have IsSM set.
    pub(in crate::sweep) fn manager_ports(&self) -> Vec<PortIndex> {
        let runs = |port: &PortIndex| {
            let mask = self.fabric.port(*port).port_info().capability_mask();
            mask.contains(CapabilityMask::IS_SM)
        };
        self.fabric.end_ports().filter(runs).collect()
    }

    /// Reports, once, an SM that takes nothing over, and that it does again.
    fn note_activity(&mut self, port: PortIndex, sm: RemoteSm) {
        let inactive = &mut self.election.inactive;
        let is_inactive = sm.state == SmState::NotActive;
        let has_room = inactive.len() < OTHERS_MAX;
        let is_news = match is_inactive {
            true => has_room && inactive.insert(sm.guid),
            false => inactive.remove(&sm.guid),
        };
        if !is_news {
            return;
        }
        let place = self.peer_place(port);
        match is_inactive {
            true => warn!(
                target: STATE,
                "the subnet manager at {place} is inactive and will not take over: it was disabled \
                 by Set(SMInfo), or has sm_inactive set"
            ),
            false => info!(target: STATE, "the subnet manager at {place} is active again"),
        }
    }

    /// Handles the answer of an SM that is ignored: reports it, once, and whether it is master.
    fn note_foreign_sm(
        &mut self,
        now: Instant,
        port: PortIndex,
        sm: RemoteSm,
        reason: &'static str,
    ) {
        let is_master = sm.state == SmState::Master;
        let at = self.peer_place(port);
        if is_master {
            self.election.ignored_master = Some((at.clone(), reason));
        }
        let (fabric, guid) = (&self.fabric, self.fabric.port(port).guid);
        let news = self.election.put_foreign(guid, is_master, reason, || fabric.describe(port));
        if news.is_new {
            let place = self.place(port);
            warn!(
                "the subnet manager at {place}, {} with priority {}, {reason}: it is ignored in \
                 elections and handovers",
                sm.state, sm.priority
            );
        }
        if news.became_master {
            self.note_overwritten(now, Sign::Written, |_| {
                format!("ports may be programmed by another manager: the one at {at} is master")
            });
        }
        if news.ceased {
            self.foreign_master_ended(now, &at);
        }
    }

    /// Asks the SMs that are ignored whether they are still there, and masters; returns whether
    /// there are any.
    pub(in crate::sweep) fn poll_foreign(&mut self) -> bool {
        if self.settings.ignore_other_sm {
            return false;
        }
        let ports = self.foreign_ports();
        let asks = !ports.is_empty();
        ports.into_iter().for_each(|port| self.exchange.push(Request::new(Kind::SmInfo, port)));
        asks
    }

    /// The ports of SMs that are ignored.
    pub(in crate::sweep) fn foreign_ports(&self) -> Vec<PortIndex> {
        if self.election.foreign_sms().next().is_none() {
            return Vec::new();
        }
        let is_foreign = |port: &PortIndex| self.election.is_foreign(self.fabric.port(*port).guid);
        self.fabric.end_ports().filter(is_foreign).collect()
    }

    /// A master that is ignored is gone, or is no longer master: what it wrote last is overwritten.
    pub(in crate::sweep) fn foreign_master_ended(&mut self, now: Instant, place: &str) {
        self.note_overwritten(now, Sign::RivalEnded, |_| {
            format!(
                "ports may be programmed by another manager: the one at {place} is no longer master"
            )
        });
    }

    /// An SM did not answer, or there is none: one that is ignored is gone after some time.
    fn foreign_is_silent(&mut self, now: Instant, port: PortIndex) {
        let guid = self.fabric.port(port).guid;
        let Some((place, was_master)) = self.election.miss_foreign(guid) else { return };
        info!(target: STATE, "the subnet manager at {place}, which was ignored, is gone");
        if was_master {
            self.foreign_master_ended(now, &place);
        }
    }

    /// Text that identifies another SM: node, port and port GUID.
    pub(in crate::sweep) fn peer_place(&self, port: PortIndex) -> String {
        format!("{}, port GUID {}", self.fabric.describe(port), self.fabric.port(port).guid)
    }

    fn master_answered(&mut self, now: Instant, port: PortIndex, sm: RemoteSm) {
        if sm.state == SmState::Master {
            self.election.master_lives(now);
            if self.election.own.outranks(&sm) {
                self.ask_for_handover(port);
            }
        } else {
            info!(target: STATE, "the master changed its state to {}", sm.state);
            self.election.master_is_gone();
        }
    }
}
