//! Redirection (IBA 13.5.1): determines the port that requests go to instead of the SA's
//! own.
//!
//! A client sends ClassPortInfo queries to the SA, then to the port that the response names. Any
//! query answered with status 0x0002 redirects as well. Redirections are followed up to a limit,
//! and from the start again when responses cease. A state machine without I/O:
//! [`driver`](crate::driver) has the transport and the clock.

use std::time::{Duration, Instant};

use ib_mad::transport::{Address, Carrier, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::attribute::ClassPortInfo;
use ib_mad::wire::mad::{AttributeId, Method, MgmtClass, Status};
use ib_mad::wire::sa::{ComponentMask, SaMad};

/// Limit of consecutive redirections; at the limit, queries stay at the port reached.
pub const HOPS_MAX: u8 = 4;
/// Times that Get(ClassPortInfo) is sent before queries start without a response.
const TRIES: u32 = 3;
/// Destinations kept for the report.
const ASKED_MAX: usize = 64;

/// Determines the destination of requests; see the [module](self).
#[derive(Debug)]
pub struct Follower {
    /// The SA's own port.
    home: Address,
    /// Destination of queries.
    current: Address,
    asking: Option<Asking>,
    /// Whether the first ClassPortInfo query has ended; other queries wait for it.
    settled: bool,
    timeout: Duration,
    tid: u64,
    asked: Vec<Lid>,
}

/// A pending ClassPortInfo query.
#[derive(Debug)]
struct Asking {
    at: Address,
    tries_left: u32,
    due: Option<Instant>,
    hops: u8,
}

impl Follower {
    /// Starts at the SA's own port. `tid` should differ between runs.
    pub fn new(home: Address, timeout: Duration, tid: u64) -> Self {
        let mut this = Self {
            current: home,
            home,
            asking: None,
            settled: false,
            timeout,
            tid,
            asked: Vec::with_capacity(ASKED_MAX),
        };
        this.ask(this.home, 0);
        this
    }

    /// Destination of queries.
    pub fn destination(&self) -> &Address {
        &self.current
    }

    /// Whether the destination of queries is known.
    pub fn is_ready(&self) -> bool {
        self.settled
    }

    /// LIDs that queries were sent to, in order.
    pub fn into_asked(self) -> Vec<Lid> {
        self.asked
    }

    /// Writes the ClassPortInfo query that is due, if any.
    pub fn poll_transmit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        let Some(asking) = &mut self.asking else { return false };
        if asking.due.is_some_and(|due| now < due) {
            return false;
        }
        let Some(left) = asking.tries_left.checked_sub(1) else {
            // A port that does not answer this is not used for queries either.
            self.asking = None;
            self.settle(self.current);
            return false;
        };
        asking.tries_left = left;
        asking.due = Some(now + self.timeout);
        (packet.address, packet.carrier) = (asking.at, Carrier::default());
        let info = AttributeId::CLASS_PORT_INFO;
        SaMad::new(&mut packet.mad).write_request(
            Method::GET,
            info,
            self.tid,
            ComponentMask::default(),
        );
        true
    }

    /// When [`poll_transmit`](Self::poll_transmit) has something to send.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.asking.as_ref()?.due
    }

    /// Handles a response to a ClassPortInfo query; `false` if the packet is something else.
    pub fn handle(&mut self, packet: &Packet) -> bool {
        let mad = SaMad::new(&packet.mad);
        let header = mad.header();
        let is_answer = header.mgmt_class() == MgmtClass::SUBN_ADM
            && header.method() == Method::GET_RESP
            && header.attribute_id() == AttributeId::CLASS_PORT_INFO
            && packet.carrier.undelivered == 0;
        if !is_answer {
            return false;
        }
        // The upper half is overwritten by simulators.
        let Some(asking) = self.asking.take_if(|_| header.tid() as u32 == self.tid as u32) else {
            return true;
        };
        match target_of(packet, &asking.at) {
            Some(next) if asking.hops < HOPS_MAX && !same_place(&next, &asking.at) => {
                self.ask(next, asking.hops + 1);
            }
            _ => self.settle(asking.at),
        }
        true
    }

    /// Handles a response that only redirects, after `hops` redirections of the same query; `false`
    /// if it does not redirect, or must not be followed.
    pub fn handle_redirect(&mut self, packet: &Packet, hops: u8) -> bool {
        let is_redirect = SaMad::new(&packet.mad).header().status() == Status::REDIRECT;
        if !is_redirect || hops >= HOPS_MAX {
            return false;
        }
        let Some(next) = target_of(packet, &self.home) else { return false };
        self.asking = None;
        self.settle(next);
        true
    }

    /// Notes that a query had to be repeated: if it was sent to a port other than the SA's own, the
    /// SA's own port is queried for ClassPortInfo again.
    pub fn handle_silence(&mut self) {
        if !same_place(&self.current, &self.home) {
            self.settle(self.home);
            self.ask(self.home, 0);
        }
    }

    fn ask(&mut self, at: Address, hops: u8) {
        self.tid = self.tid.wrapping_add(1);
        self.asking = Some(Asking { at, tries_left: TRIES, due: None, hops });
    }

    fn settle(&mut self, at: Address) {
        self.settled = true;
        if self.asked.last() != Some(&at.lid) && self.asked.len() < ASKED_MAX {
            self.asked.push(at.lid);
        }
        self.current = at;
    }
}

/// Destination in a response's redirect fields; `None` if there is none, or only a GID.
fn target_of(packet: &Packet, from: &Address) -> Option<Address> {
    let mad = SaMad::new(&packet.mad);
    if ![Status::OK, Status::REDIRECT].contains(&mad.header().status()) {
        return None;
    }
    let info = ClassPortInfo::new(&mad.data()[..]).ok()?;
    let lid = info.redirect_lid();
    lid.is_unicast().then(|| Address {
        lid,
        qpn: info.redirect_qp(),
        sl: info.redirect_sl(),
        pkey: info.redirect_pkey(),
        ..*from
    })
}

fn same_place(a: &Address, b: &Address) -> bool {
    (a.lid, a.qpn) == (b.lid, b.qpn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::{PKey, Qpn, Sl};
    use ib_mad::wire::sa::attribute;

    fn follower() -> (Follower, Instant) {
        let home = Address::gsi(Lid(1));
        (Follower::new(home, Duration::from_millis(100), 7), Instant::now())
    }

    /// Sends the query, and answers it with `status` and `lid`.
    fn step(follower: &mut Follower, now: Instant, status: Status, lid: u16) -> Lid {
        let mut packet = Packet::default();
        assert!(follower.poll_transmit(now, &mut packet));
        let asked = packet.address.lid;
        assert!(follower.handle(&answered(packet, status, lid)));
        asked
    }

    fn answered(mut packet: Packet, status: Status, lid: u16) -> Packet {
        let mut mad = SaMad::new(&mut packet.mad);
        mad.make_response(status);
        ClassPortInfo::new(&mut mad.data_mut()[..])
            .unwrap()
            .set_redirect_lid(Lid(lid))
            .set_redirect_qp(Qpn(5))
            .set_redirect_sl(Sl::from_low_bits(2))
            .set_redirect_pkey(PKey(0x8001));
        packet
    }

    #[test]
    fn a_redirection_is_followed_until_it_leads_no_further() {
        let (mut follower, now) = follower();
        assert!(!follower.is_ready(), "no query is sent before its destination is known");
        assert_eq!(step(&mut follower, now, Status::OK, 9), Lid(1));
        assert_eq!(step(&mut follower, now, Status::OK, 0), Lid(9));
        assert!(follower.is_ready());
        let Address { lid, qpn, sl, pkey, .. } = *follower.destination();
        assert_eq!((lid, qpn, sl.get(), pkey), (Lid(9), Qpn(5), 2, PKey(0x8001)));
        assert_eq!(follower.into_asked(), [Lid(9)]);
    }

    #[test]
    fn mutual_redirection_holds_no_client() {
        let (mut follower, now) = follower();
        let mut hops = 0;
        while !follower.is_ready() {
            step(&mut follower, now, Status::OK, if hops % 2 == 0 { 9 } else { 1 });
            hops += 1;
            assert!(hops < 20);
        }
        assert_eq!(hops, u32::from(HOPS_MAX) + 1);
    }

    #[test]
    fn an_sa_that_is_silent_about_itself_is_asked_as_it_is() {
        let (mut follower, mut now) = follower();
        let mut packet = Packet::default();
        for _ in 0..TRIES {
            assert!(follower.poll_transmit(now, &mut packet));
            assert!(!follower.poll_transmit(now, &mut packet));
            now = follower.poll_timeout().unwrap();
        }
        assert!(!follower.poll_transmit(now, &mut packet) && follower.is_ready());
        assert_eq!(follower.destination().lid, Lid(1));
    }

    #[test]
    fn a_required_redirection_is_followed_a_bounded_number_of_times() {
        let (mut follower, now) = follower();
        step(&mut follower, now, Status::OK, 0);
        let mut query = Packet::default();
        SaMad::new(&mut query.mad).write_request(
            Method::GET,
            attribute::PATH_RECORD,
            1,
            ComponentMask::default(),
        );
        let redirect = answered(query.clone(), Status::REDIRECT, 9);
        assert!(!follower.handle(&redirect), "it is the query's answer, not ours");
        assert!(follower.handle_redirect(&redirect, 0));
        assert_eq!(follower.destination().lid, Lid(9));
        assert!(!follower.handle_redirect(&redirect, HOPS_MAX));
        assert!(!follower.handle_redirect(&answered(query.clone(), Status::OK, 9), 0));
        assert!(!follower.handle_redirect(&answered(query, Status::REDIRECT, 0), 0));
    }

    #[test]
    fn the_sa_is_asked_again_when_a_responder_falls_silent() {
        let (mut follower, now) = follower();
        step(&mut follower, now, Status::OK, 9);
        step(&mut follower, now, Status::OK, 0);
        follower.handle_silence();
        assert_eq!(follower.destination().lid, Lid(1), "the front door answers meanwhile");
        assert!(follower.is_ready());
        assert_eq!(step(&mut follower, now, Status::OK, 12), Lid(1));
        assert_eq!(step(&mut follower, now, Status::OK, 0), Lid(12));
        assert_eq!(follower.into_asked(), [Lid(9), Lid(1), Lid(12)]);
    }
}
