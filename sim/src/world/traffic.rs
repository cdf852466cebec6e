//! What arrives at processes and clients: messages, datagrams and packets of the fabric; and what
//! clients ask.

use std::time::Duration;

use fabric_sim::{Delivery, Endpoint};
use ib_mad::transport::Packet;
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::sa::SaMad;

use super::{Event, World};
use crate::client::{ANSWER_TIME, Arrival, Ask, Client, Context, OWN_PORT_TRIES, TID_MASK};
use crate::faults::Fault;
use crate::net::{Message, NetEvent, Proc, Received};
use crate::oracle::Oracle;
use crate::responder::Responder;
use crate::violation::Violation;

/// Packets that wait at the port of a stopped process.
const QUEUE_MAX: usize = 1000;

impl World {
    pub(super) fn handle_net(&mut self, event: NetEvent) {
        let at = self.elapsed();
        let sender = match &event {
            NetEvent::Message(id, direction) => self.net.waiting_sender(*id, *direction),
            _ => None,
        };
        let (managers, responders) = (&self.managers, &self.responders);
        let is_alive = |process| match process {
            Proc::Manager(index) => managers[index].process.is_some(),
            Proc::Responder(index) => responders[index].process.is_some(),
        };
        let received = self.net.handle(self.timeline.now(), event, is_alive);
        // There is room for another message.
        match sender {
            Some(Proc::Manager(index)) => self.managers[index].is_dirty = true,
            Some(Proc::Responder(index)) => self.responders[index].is_dirty = true,
            None => {}
        }
        let Some((to, received)) = received else { return };
        match (to, received) {
            (Proc::Manager(index), Received::Asks(id, kind, from)) => {
                let place = &mut self.managers[index];
                place.is_dirty = true;
                if let Some(manager) = &mut place.process {
                    manager.handle_asks(&mut self.net, id, kind);
                }
                self.trace.text(at, format_args!("{from:?} asks {to:?} {kind:?}"));
            }
            (_, Received::Asks(id, ..)) => self.net.refuse(self.timeline.now(), id),
            (to, Received::Message(id, message)) => {
                self.trace.text(at, format_args!("{to:?} {id} {}", name_of(&message)));
                match to {
                    Proc::Manager(index) => {
                        let place = &mut self.managers[index];
                        place.is_dirty = true;
                        if let Some(manager) = &mut place.process {
                            manager.handle_message(&mut self.net, id, message);
                        }
                    }
                    Proc::Responder(index) => {
                        let place = &mut self.responders[index];
                        place.is_dirty = true;
                        if let Some(responder) = &mut place.process {
                            responder.handle_message(&mut self.net, id, message);
                        }
                    }
                }
            }
        }
    }

    pub(super) fn handle_datagram(&mut self, to: Proc, mut packet: Packet) {
        let at = self.elapsed();
        if !self.is_running(to) {
            return;
        }
        // What arrives at a stopped process waits in the socket's buffer.
        self.trace.bytes(at, &packet.mad);
        match to {
            Proc::Manager(index) if self.takes_no_packets(index) => {
                let due = self.now() + Duration::from_millis(100);
                self.schedule(due, Event::Net(NetEvent::Datagram(to, Box::new(packet))));
            }
            Proc::Manager(index) => {
                let place = &mut self.managers[index];
                place.is_dirty = true;
                if let Some(manager) = &mut place.process {
                    manager.handle_datagram(&mut packet);
                }
            }
            Proc::Responder(index) => {
                let place = &mut self.responders[index];
                place.is_dirty = true;
                if let Some(responder) = &mut place.process {
                    responder.handle_packet(packet);
                }
            }
        }
    }

    pub(super) fn deliver(&mut self, delivery: Delivery) -> Result<(), Violation> {
        let Delivery { endpoint, mut packet } = delivery;
        let at = self.elapsed();
        self.trace.bytes(at, &packet.mad);
        let manager = self.managers.iter().position(|place| {
            place.process.as_ref().is_some_and(|manager| manager.endpoint() == endpoint)
        });
        if let Some(index) = manager {
            let waits = self.takes_no_packets(index);
            let place = &mut self.managers[index];
            if waits {
                // It waits in the queue of the port.
                if place.queue.len() < QUEUE_MAX {
                    place.queue.push(packet);
                }
            } else if let Some(manager) = &mut place.process {
                manager.handle_packet(&mut packet);
                place.is_dirty = true;
            }
            return Ok(());
        }
        let responder = self.responders.iter_mut().find(|place| {
            let process = place.process.as_ref();
            process.and_then(Responder::endpoint).is_some_and(|own| own == endpoint)
        });
        if let Some(place) = responder {
            if place.is_stopped {
                if place.queue.len() < QUEUE_MAX {
                    place.queue.push(packet);
                }
            } else if let Some(responder) = &mut place.process {
                responder.handle_packet(packet);
                place.is_dirty = true;
            }
            return Ok(());
        }
        let Some(index) = self.client_at(endpoint) else { return Ok(()) };
        let tid = SaMad::new(&packet.mad).header().tid() & TID_MASK;
        let context = Context {
            now: self.now(),
            calm_since: self.calm_since,
            reign: self.reign.1,
            has_moved: self.has_moved,
            source: self.sources.remove(&tid),
        };
        if !self.arrives(index, context, &packet.mad)? {
            return Ok(());
        }
        let asked = self.clients[index].open.as_ref().map(|open| open.since);
        let answered = self.clients[index].handle_answer(context, &packet.mad);
        let Some((ask, status, finding)) = answered else { return Ok(()) };
        self.note(format_args!("client {index}: {ask:?}: {status:?}"));
        self.oracle.note_answer(status);
        Oracle::check_finding(index, &finding)?;
        self.check_status(index, ask, status)?;
        if let Some(asked) = asked {
            self.check_path(index, ask, asked, &packet.mad)?;
        }
        if let Some(read) = Client::read_after(ask)
            && self.invents
            && self.random.one_in(2)
        {
            self.begin(index, read);
        }
        Ok(())
    }

    /// Whether an answer arrives that the fabric delivers. Fails if a repeat has another answer
    /// than the first.
    fn arrives(
        &mut self,
        index: usize,
        context: Context,
        mad: &[u8; MAD_LEN],
    ) -> Result<bool, Violation> {
        let loses = self.config.loses_answers && self.invents;
        match self.clients[index].judge_arrival(context, mad, loses, &mut self.losses) {
            Arrival::Arrives => Ok(true),
            Arrival::Lost => {
                self.note(format_args!("client {index} does not get the answer"));
                Ok(false)
            }
            Arrival::Differs(what, is_others) if self.must_repeat(is_others) => {
                Err(Violation(format!("client {index}: {what}")))
            }
            Arrival::Differs(..) => Ok(true),
        }
    }

    /// Whether a repeat must have the first answer, which another manager has given if `is_others`.
    fn must_repeat(&self, is_others: bool) -> bool {
        if self.etcd.is_some() {
            return true;
        }
        // Where another manager takes over, it knows all outcomes if writes waited for it.
        let changes = |(fault, _): &(Fault, Duration)| fault.may_change_master();
        let was_awaited = self.config.sync && self.episode.fault.as_ref().is_some_and(changes);
        let is_whole = !self.episode.disk_failed && !self.was_split;
        is_whole && !self.had_incomplete_takeover() && (!is_others || was_awaited)
    }

    fn client_at(&self, endpoint: Endpoint) -> Option<usize> {
        self.clients.iter().position(|client| client.endpoint == endpoint)
    }

    /// A client begins a request if it has none under way.
    pub(super) fn ask(&mut self, index: usize) {
        let now = self.now();
        let pause =
            Duration::from_secs_f64(self.clients.len() as f64 / f64::from(self.config.rate.max(1)));
        let next = self.random.between(pause / 2, pause * 3 / 2);
        self.schedule(self.timeline.tick_from(now + next, self.tick), Event::Ask(index));
        if self.config.rate == 0 {
            return;
        }
        let client = &mut self.clients[index];
        if client.open.is_some() {
            return;
        }
        let ask = client.next_ask(now, &mut self.random, self.invents, &self.ports);
        let ask = match ask {
            Some(Ask::Path(to)) => Some(self.varied(index, to)),
            other => other,
        };
        if let Some(ask) = ask {
            self.begin(index, ask);
        }
    }

    /// A query for a path to a port: by its GUID, by an alias of it, or in a partition.
    fn varied(&mut self, index: usize, to: Guid) -> Ask {
        match self.losses.below(3) {
            0 if self.config.aliases => {
                let owner = self.clients.iter().find(|client| client.guid == to);
                Ask::Path(owner.and_then(Client::last_alias).unwrap_or(to))
            }
            1 if self.config.orders => {
                let (to, pkey) = self.program.member_beside(self.clients[index].guid, to);
                Ask::Inside(to, pkey)
            }
            _ => Ask::Path(to),
        }
    }

    fn begin(&mut self, index: usize, ask: Ask) {
        let now = self.now();
        let port = self.fabric.port(self.client_hosts[index], 1);
        self.clients[index].lid = port.map_or(Lid::NONE, |port| port.lid);
        self.clients[index].begin(now, ask, self.reign.1);
        self.note(format_args!("client {index} asks {ask:?}"));
        self.send_request(index);
    }

    /// The program gives an order to a manager that publishes.
    pub(super) fn order(&mut self) {
        let now = self.now();
        let pause = self.program.pause();
        self.schedule(now + pause, Event::Order);
        self.poll_program();
        let Some((slot, order)) = self.program.next_order(self.invents) else { return };
        let asked = self.managers.iter().enumerate().find_map(|(index, place)| {
            let manager = place.process.as_ref().filter(|_| !place.is_stopped)?;
            manager.is_publishing().then_some((index, manager))
        });
        let Some((index, manager)) = asked else { return };
        let given = manager.order_partition(order.clone());
        self.managers[index].is_dirty = true;
        let is_taken = given.is_ok();
        self.program.handle_given(now, slot, index, given);
        self.note(format_args!("manager {index} is ordered {order:?}: {is_taken}"));
    }

    /// Looks whether the program's order has an answer.
    pub(super) fn poll_program(&mut self) {
        if let Some(news) = self.program.poll(self.timeline.now()) {
            self.note(format_args!("{news}"));
        }
    }

    fn send_request(&mut self, index: usize) {
        let now = self.now();
        let client = &mut self.clients[index];
        let Some(open) = &mut client.open else { return };
        open.tries += 1;
        let (tid, tries) = (open.tid, open.tries);
        let lid = self.asked_lid(index, tries);
        let client = &self.clients[index];
        if let (Some(open), true) = (&client.open, lid.is_unicast()) {
            let packet = Packet::new(open.mad, Client::address(lid));
            self.fabric.send(now, client.endpoint, &packet);
        }
        self.schedule(now + ANSWER_TIME, Event::Late(index, tid, tries));
    }

    /// The LID that a client sends a request to: that of the responder's port that it prefers, and
    /// after some times without an answer, or if there is none, that of the SM.
    fn asked_lid(&self, index: usize, tries: u32) -> Lid {
        let via = self.clients[index].via.filter(|_| tries <= OWN_PORT_TRIES);
        let via = via.and_then(|responder| self.responder_hosts.get(responder));
        let via = via.and_then(|host| self.fabric.port(*host, 1)).map(|port| port.lid);
        via.filter(|lid| lid.is_unicast()).unwrap_or_else(|| {
            let port = self.fabric.port(self.client_hosts[index], 1);
            port.map_or(Lid::NONE, |port| port.master_sm_lid)
        })
    }

    pub(super) fn late(&mut self, index: usize, tid: u64, tries: u32) -> Result<(), Violation> {
        let now = self.now();
        let client = &mut self.clients[index];
        if client.open.as_ref().is_none_or(|open| (open.tid, open.tries) != (tid, tries)) {
            return Ok(());
        }
        // Before the request may be given up, which ends the wait for it.
        self.check_wait(index)?;
        match self.clients[index].retry(now, tid) {
            Some(true) => self.send_request(index),
            Some(false) => self.note(format_args!("client {index} gives up {tid:#x}")),
            None => {}
        }
        Ok(())
    }
}

fn name_of(message: &Message) -> &'static str {
    match message {
        Message::Accepted => "accepted",
        Message::FromSm(_) => "from the SM",
        Message::FromResponder(_) => "from the responder",
        Message::Writes(_) => "writes",
        Message::Outcomes(_) => "outcomes",
        Message::Closed => "closed",
    }
}
