//! What follows from an answer, or from none.

use std::collections::VecDeque;
use std::time::Instant;

use ib_mad::packet::Address;
use ib_mad::types::PortNum;
use ib_mad::wire::MAD_LEN;

use super::super::agent::{Redirection, Step, Sums, Support, Unsupported};
use super::super::growth::{Found, Group};
use super::super::queries::{self, Query, SHORT};
use super::super::table::PortCounts;
use super::{
    Ask, COUNTS_PER_QUERY, Counter, EVENTS_MAX, FULL_EVERY, Happened, PerfEvent, PerfManager,
    PerfStatus, is_nearly_full, pending,
};

impl PerfManager {
    pub(super) fn answered(&mut self, now: Instant, ask: Ask, mad: &[u8; MAD_LEN]) {
        let support = self.agents[ask.agent as usize].support.unwrap_or(Support::ASSUMED);
        match ask.query {
            Query::Info => self.read_info(now, ask, mad),
            Query::LongSums | Query::ShortSums => self.read_sums(now, ask, support, mad),
            _ => {
                self.read_port(now, ask, support, mad);
                self.ask_port_later(ask.port);
            }
        }
    }

    fn read_info(&mut self, now: Instant, ask: Ask, mad: &[u8; MAD_LEN]) {
        let info = queries::info(mad);
        let own = self.agents[ask.agent as usize].lid;
        let is_elsewhere = match Redirection::of(&info) {
            Ok(None) => false,
            Ok(Some(to)) => to.lid != own || to.qpn != Address::gsi(own).qpn,
            Err(()) => true,
        };
        if is_elsewhere && self.agents[ask.agent as usize].redirection.is_none() {
            return self.redirect(now, ask, mad);
        }
        let at = &mut self.agents[ask.agent as usize];
        at.support = Some(Support::of(&info));
        self.go_on(now, ask);
    }

    /// Sends the query again to where its answer says, once in a sweep.
    pub(super) fn redirect(&mut self, now: Instant, ask: Ask, mad: &[u8; MAD_LEN]) {
        let at = &mut self.agents[ask.agent as usize];
        let to = Redirection::of(&queries::info(mad)).ok().flatten();
        let may = self.settings.follow_redirections && !at.redirected_now;
        match to.filter(|_| may) {
            Some(to) => {
                (at.redirection, at.redirected_now) = (Some(to), true);
                self.status.redirected += 1;
                self.start(ask);
            }
            None => {
                at.redirection = None;
                self.status.redirections_refused += 1;
                self.abandon(now, ask, Happened::RedirectionRefused);
            }
        }
    }

    fn read_sums(&mut self, now: Instant, ask: Ask, support: Support, mad: &[u8; MAD_LEN]) {
        let (mut errors, mut packets, mut is_full) = (0u64, 0u64, false);
        queries::read(ask.query, support, mad, |counter, value| match counter {
            Counter::XmitPkts | Counter::RcvPkts => packets = packets.saturating_add(value),
            _ if Counter::DATA.contains(counter) => {}
            _ => {
                let limit = u64::from(counter.max());
                is_full |= ask.query == Query::ShortSums && value >= limit;
                errors = errors.saturating_add(value);
            }
        });
        if self.is_glance {
            if self.glance_at_sums(ask.agent, errors) && !is_full {
                self.leave_quiet(now, ask.agent);
            }
            return self.go_on(now, ask);
        }
        let sent = self.transactions.counters().transmitted;
        let is_turn =
            (self.status.sweeps.wrapping_add(ask.agent.into())).is_multiple_of(FULL_EVERY);
        let at = &mut self.agents[ask.agent as usize];
        if ask.query == Query::LongSums {
            at.sums_packets = packets;
            if !support.additional {
                return self.start(Ask { query: Query::ShortSums, ..ask });
            }
        }
        let packets = at.sums_packets;
        let ports = &self.ports[at.first_port as usize..][..at.port_count.into()];
        let are_known = ports.iter().all(|port| port.is_known || port.agent != ask.agent);
        let is_quiet = !is_full
            && !is_turn
            && are_known
            && at.sums.is_some_and(|last| {
                let own = COUNTS_PER_QUERY * (sent - last.queries);
                let most = last.packets.saturating_add(own);
                last.errors == errors && (last.packets..=most).contains(&packets)
            });
        if is_quiet {
            self.status.quiet += 1;
            for port in &mut self.ports[at.first_port as usize..][..at.port_count.into()] {
                (port.counts.recent_xmit_data, port.counts.recent_rcv_data) = (0, 0);
            }
            self.leave_quiet(now, ask.agent);
        } else {
            at.sums = Some(Sums { errors, packets, queries: sent });
        }
        self.go_on(now, ask);
    }

    fn read_port(&mut self, now: Instant, ask: Ask, support: Support, mad: &[u8; MAD_LEN]) {
        let (now_s, now_ms) = (self.seconds(now), self.millis(now));
        let index = ask.port as usize;
        let agent = &self.agents[ask.agent as usize];
        let node = &self.nodes[agent.node as usize].row;
        let (details, discards) =
            (agent.may(Unsupported::RCV_DETAILS), agent.may(Unsupported::XMIT_DETAILS));
        let only_speeds = agent.only_speeds;
        let port = &mut self.ports[index];
        let was_known = match ask.query {
            Query::Speeds => std::mem::replace(&mut port.knows_speeds, true),
            _ => port.is_known,
        };
        let mut was_cleared = false;
        let threshold = self.settings.xmit_wait_threshold;
        let (mut grown, mut found) = (Vec::new(), Found::default());
        queries::read(ask.query, support, mad, |counter, value| {
            let change = port.counts.add(counter, value);
            was_cleared |= change.was_cleared;
            match counter {
                Counter::XmitData => port.counts.recent_xmit_data = change.by,
                Counter::RcvData => port.counts.recent_rcv_data = change.by,
                Counter::RcvErrors if change.by > 0 && details => {
                    port.pending |= pending::RCV_DETAILS;
                }
                Counter::XmitDiscards if change.by > 0 && discards => {
                    port.pending |= pending::XMIT_DETAILS;
                }
                _ => {}
            }
            if !was_known || change.by == 0 {
                return;
            }
            found.add(counter, change.by);
            if counter.is_fault() {
                let by = u32::try_from(change.by).unwrap_or(u32::MAX);
                port.counts.recent_faults = port.counts.recent_faults.saturating_add(by);
            }
            let is_event = match counter {
                Counter::XmitWait => threshold.is_some_and(|least| change.by >= least.into()),
                _ => self.settings.log_errors && Counter::OPENSM_ERRORS.contains(counter),
            };
            if is_event {
                grown.push(Happened::Grew { counter, by: change.by });
            }
        });
        match ask.query {
            Query::Long | Query::Short => {
                if ask.query == Query::Short || support.additional {
                    port.counts.recent_faults_s =
                        now_s.saturating_sub(port.counts.last_error_update_s);
                    port.counts.last_error_update_s = now_s;
                }
                if ask.query == Query::Long || !support.extended {
                    let interval = now_ms.saturating_sub(port.data_at_ms);
                    if was_known {
                        let interval = u32::try_from(interval).unwrap_or(u32::MAX);
                        port.counts.interval_ms = interval.max(1);
                    }
                    (port.data_at_ms, port.counts.last_data_update_s) = (now_ms, now_s);
                }
                let is_full = |counter: &Counter| is_nearly_full(&port.counts, *counter);
                // Counters read with 64 bits do not fill.
                if ask.query == Query::Short
                    && SHORT.iter().filter(|at| is_short(**at, support)).any(is_full)
                {
                    port.pending |= pending::CLEAR_SHORT;
                }
            }
            Query::Speeds => {
                let age_s = now_s.saturating_sub(port.speeds_at_s);
                port.speeds_at_s = now_s;
                if was_known {
                    let others_s = if only_speeds { 0 } else { port.counts.recent_faults_s };
                    port.counts.recent_faults_s = age_s.max(others_s);
                }
                if any_full(&port.counts, &queries::SPEEDS) {
                    port.pending |= pending::CLEAR_SPEEDS;
                }
            }
            Query::RcvDetails if any_full(&port.counts, &queries::RCV_DETAILS) => {
                port.pending |= pending::CLEAR_RCV_DETAILS;
            }
            Query::XmitDetails if any_full(&port.counts, &queries::XMIT_DETAILS) => {
                port.pending |= pending::CLEAR_XMIT_DETAILS;
            }
            Query::ClearShort(mask) => {
                let cleared = (0..).zip(SHORT).filter(|(bit, _)| mask & 1 << bit != 0);
                cleared.for_each(|(_, counter)| port.counts.set_last(counter, 0));
            }
            Query::ClearRcvDetails => port.counts.forget(&queries::RCV_DETAILS),
            Query::ClearXmitDetails => port.counts.forget(&queries::XMIT_DETAILS),
            Query::ClearSpeeds => port.counts.forget(&queries::SPEEDS),
            _ => {}
        }
        if let Query::ClearShort(_)
        | Query::ClearRcvDetails
        | Query::ClearXmitDetails
        | Query::ClearSpeeds = ask.query
        {
            port.counts.last_reset_s = now_s;
            self.status.clears += 1;
        }
        if was_cleared {
            self.status.cleared_by_others += 1;
            grown.push(Happened::Cleared);
        }
        let elapsed = |group| match group {
            Group::Data => port.counts.interval_ms.saturating_add(500) / 1000,
            Group::Errors | Group::Waiting => port.counts.recent_faults_s,
        };
        let followed = Group::ALL.into_iter().filter(|group| self.followed[*group as usize]);
        let counted = followed.filter_map(|group| found.of(group, elapsed(group)));
        grown.extend(counted.map(Happened::Counted));
        for what in grown {
            let event = PerfEvent { node: node.clone(), port: port.number, what };
            push_event(&mut self.events, &mut self.status, event);
        }
    }

    /// Remembers that an agent does not support an attribute.
    pub(super) fn unsupported(&mut self, now: Instant, ask: Ask) {
        let at = &mut self.agents[ask.agent as usize];
        match ask.query {
            Query::Info => {}
            Query::ShortSums | Query::LongSums => at.unsupported |= Unsupported::SUMS,
            Query::Long => {
                at.unsupported |= Unsupported::EXTENDED;
                if let Some(support) = &mut at.support {
                    (support.extended, support.additional) = (false, false);
                }
                // Read again by PortCounters alone.
                if let Some(port) = self.ports.get_mut(ask.port as usize) {
                    port.pending |= pending::SHORT;
                }
            }
            Query::Short | Query::ClearShort(_) => at.unsupported |= Unsupported::PLAIN,
            Query::RcvDetails | Query::ClearRcvDetails => {
                at.unsupported |= Unsupported::RCV_DETAILS;
            }
            Query::XmitDetails | Query::ClearXmitDetails => {
                at.unsupported |= Unsupported::XMIT_DETAILS;
            }
            Query::Speeds | Query::ClearSpeeds => at.unsupported |= Unsupported::SPEEDS,
        }
        self.go_on(now, ask);
    }

    /// A query was not answered.
    pub(super) fn silent(&mut self, now: Instant, ask: Ask) {
        let at = &mut self.agents[ask.agent as usize];
        (at.support, at.redirection, at.unsupported) = (None, None, 0);
        self.abandon(now, ask, Happened::Silent);
    }

    /// Leaves out the rest of an agent until the next sweep.
    fn abandon(&mut self, now: Instant, ask: Ask, what: Happened) {
        let began_ms = self.sweep_began.map_or(0, |began| self.millis(began));
        let at = &mut self.agents[ask.agent as usize];
        let is_first = !std::mem::replace(&mut at.abandoned, true);
        at.step = Step::Done;
        let node = self.nodes[at.node as usize].row.clone();
        let ports = at.first_port as usize..at.first_port as usize + usize::from(at.port_count);
        if is_first {
            // Ports that this sweep has not read show no rate of an earlier one.
            let ports = self.ports[ports].iter_mut();
            ports.filter(|port| port.data_at_ms < began_ms).for_each(|port| {
                port.counts.forget_rates();
            });
            let event = PerfEvent { node, port: PortNum(0), what };
            push_event(&mut self.events, &mut self.status, event);
        }
        match self.ports.get_mut(ask.port as usize) {
            Some(port) => {
                port.pending = 0;
                at.in_flight = at.in_flight.saturating_sub(1);
                self.end_sweep_if_done(now);
            }
            None => self.go_on(now, ask),
        }
    }
}

/// Whether a counter is read by PortCounters from an agent with this support.
fn is_short(counter: Counter, support: Support) -> bool {
    !(support.extended && Counter::DATA.contains(counter))
}

fn any_full(counts: &PortCounts, counters: &[Counter]) -> bool {
    counters.iter().any(|&counter| is_nearly_full(counts, counter))
}

fn push_event(events: &mut VecDeque<PerfEvent>, status: &mut PerfStatus, event: PerfEvent) {
    if events.len() < EVENTS_MAX {
        events.push_back(event);
    } else {
        status.events_dropped += 1;
    }
}
