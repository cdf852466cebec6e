//! One port: what its responder said, how current that is, and which requests it answers.
//!
//! A port is *absent* while it has no responder, *outdated* while paths may differ from those that
//! it holds, and *fresh* otherwise. Only a fresh port answers, only while its responder was heard
//! within [`STALE_AFTER`], and only while the responder's manager confirmed within [`CONTACT_MAX`]
//! that these are the latest paths: the responder says when it asked, counted from a ping.
//!
//! A responder may be cut off from the master and follow one that was replaced. Its session is
//! lower than one known before, and not followed for [`FENCED_FOR`].

use std::time::{Duration, Instant};

use ib_mad::types::{Gid, Guid, Lid};
use ib_mad::wire::record::PathRecord;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;

use super::netlink::{PathUse, Request};
use super::ping::Pings;
use super::table::{Record, Table, TableError};
use crate::node::{CONTACT_MAX, HEARTBEAT};

/// How long after its last message a responder is taken for dead: three heartbeats.
pub const STALE_AFTER: Duration = Duration::from_millis(3 * HEARTBEAT.as_millis() as u64);

/// How long after a session was heard of a lower one is not followed. In a fabric that was split a
/// port can belong to a lower one; until then it leaves everything to the SA.
pub const FENCED_FOR: Duration = Duration::from_secs(60);

/// Maximum number of GUIDs and of exceptions of a kind that a port may have.
const TERMS_MAX: usize = 1 << 13;

/// One port of this host.
#[derive(Debug)]
pub struct Port {
    guid: Guid,
    state: State,
    table: Table,
    terms: proto::Terms,
    /// When the responder was heard last.
    heard: Option<Instant>,
    /// When the responder's manager was asked for the last confirmation of these paths, at least.
    confirmed: Option<Instant>,
    pings: Option<Pings>,
    version: (u64, u64),
    /// Epoch of the highest session that was heard of, and when.
    highest: Option<(u64, Instant)>,
    /// Whether the responder's last complete paths were of a snapshot without the port.
    is_unknown: bool,
}

/// How current a port's paths are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// No responder is followed.
    #[default]
    Absent,
    /// The responder's paths may differ.
    Outdated,
    /// The paths are those that the responder answers; `is_known`: its snapshot has the port.
    Fresh {
        /// Whether the responder's snapshot has the port.
        is_known: bool,
    },
}

/// Why a request is not answered with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The request could not be read, or has a mandatory attribute that is not known.
    Malformed,
    /// The port is not one that the agent follows.
    UnknownPort,
    /// No responder is followed.
    Absent,
    /// The responder's paths may differ from those held.
    Outdated,
    /// The responder has not been heard for too long.
    Stale,
    /// The manager has not confirmed the responder's paths for too long.
    Unconfirmed,
    /// The request lacks a source, a destination or a P_Key.
    Incomplete,
    /// The source is not the port.
    OtherSource,
    /// The destination is a group, or in another subnet.
    OtherSubnet,
    /// The request falls under a QoS rule of its own.
    Qos,
    /// No path is known, or not a reversible one.
    NoPath,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 11] = [
        Self::Malformed,
        Self::UnknownPort,
        Self::Absent,
        Self::Outdated,
        Self::Stale,
        Self::Unconfirmed,
        Self::Incomplete,
        Self::OtherSource,
        Self::OtherSubnet,
        Self::Qos,
        Self::NoPath,
    ];

    /// Label in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownPort => "unknown_port",
            Self::Absent => "no_responder",
            Self::Outdated => "outdated",
            Self::Stale => "stale",
            Self::Unconfirmed => "unconfirmed",
            Self::Incomplete => "incomplete",
            Self::OtherSource => "other_source",
            Self::OtherSubnet => "other_subnet",
            Self::Qos => "qos_rule",
            Self::NoPath => "no_path",
        }
    }
}

/// Why a responder is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// Its changes do not fit.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The table is not the one that it believes to have sent.
    #[error("the table has {held} records, and the responder sent {sent}")]
    Count {
        /// Records held.
        held: usize,
        /// Records sent.
        sent: usize,
    },
    /// Too many GUIDs or exceptions.
    #[error("there are more than {TERMS_MAX} GUIDs or exceptions")]
    Terms,
    /// It follows a manager that was replaced.
    #[error("its session, {offered}, is lower than one known {} s ago or less, {known}",
        FENCED_FOR.as_secs())]
    Session {
        /// Epoch of its session.
        offered: u64,
        /// Epoch known before.
        known: u64,
    },
    /// A message without content: of a later version of the protocol.
    #[error("a message is not understood")]
    Unknown,
}

impl Port {
    /// A port without a responder.
    pub fn new(guid: Guid) -> Self {
        Self {
            guid,
            state: State::Absent,
            table: Table::default(),
            terms: proto::Terms::default(),
            heard: None,
            confirmed: None,
            pings: None,
            version: (0, 0),
            highest: None,
            is_unknown: false,
        }
    }

    /// Its GUID.
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// How current its paths are, as far as was said.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its paths.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Epoch of the session and generation that its paths are of.
    pub fn version(&self) -> (u64, u64) {
        self.version
    }

    /// When its responder was heard last.
    pub fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// A responder is followed from now on. It was asked at `asked` or later: the request was the
    /// first ping.
    pub fn handle_connected(&mut self, now: Instant, asked: Instant) {
        self.handle_disconnected();
        self.state = State::Outdated;
        self.heard = Some(now);
        self.pings = Some(Pings::new(asked));
    }

    /// The responder is followed no more. Its paths are forgotten: the next one sends all.
    pub fn handle_disconnected(&mut self) {
        *self = Self { highest: self.highest, ..Self::new(self.guid) };
    }

    /// The responder sent this. After an error it must be given up.
    pub fn handle_update(
        &mut self,
        now: Instant,
        update: proto::Update,
    ) -> Result<(), UpdateError> {
        self.heard = Some(now);
        match update.kind.ok_or(UpdateError::Unknown)? {
            Kind::Changing(proto::Changing {}) => self.state = State::Outdated,
            Kind::Heartbeat(beat) => {
                if matches!(self.state, State::Fresh { .. }) {
                    self.take_version(now, (beat.session, beat.generation))?;
                }
                self.confirm(now, beat.confirmation);
            }
            Kind::Terms(terms) => {
                self.state = State::Outdated;
                let lens = [terms.sources.len(), terms.service_ids.len(), terms.qos_classes.len()];
                if lens.iter().any(|&len| len > TERMS_MAX) {
                    return Err(UpdateError::Terms);
                }
                self.terms = terms;
                self.terms.sources.sort_unstable();
            }
            Kind::Changes(changes) => {
                self.state = State::Outdated;
                self.table.replace(&changes.destinations, &changes.records)?;
            }
            Kind::Current(current) => {
                let (held, sent) = (self.table.len(), current.records as usize);
                if held != sent {
                    self.state = State::Outdated;
                    return Err(UpdateError::Count { held, sent });
                }
                self.take_version(now, (current.session, current.generation))?;
                self.confirm(now, current.confirmation);
                self.state = State::Fresh { is_known: current.is_known };
                self.is_unknown = !current.is_known;
            }
        }
        Ok(())
    }

    /// The manager confirmed the paths.
    fn confirm(&mut self, now: Instant, confirmation: Option<proto::Confirmation>) {
        let (Some(pings), Some(confirmation)) = (&mut self.pings, confirmation) else { return };
        let at = pings.handle_confirmation(now, &confirmation);
        self.confirmed = self.confirmed.max(at);
    }

    /// Number of a ping to be sent to the responder now. To be called after each message of it.
    pub fn poll_ping(&mut self, now: Instant) -> Option<u64> {
        self.pings.as_mut()?.poll(now)
    }

    /// The paths are of this session and generation.
    fn take_version(&mut self, now: Instant, version: (u64, u64)) -> Result<(), UpdateError> {
        let (offered, _) = version;
        let is_recent = |&(known, at): &(u64, Instant)| offered < known && now < at + FENCED_FOR;
        if let Some((known, _)) = self.highest.filter(is_recent) {
            self.state = State::Outdated;
            return Err(UpdateError::Session { offered, known });
        }
        if offered != self.version.0 {
            // That was another manager.
            self.confirmed = None;
        }
        (self.version, self.highest) = (version, Some((offered, now)));
        Ok(())
    }

    /// Node GUID of the switch that it is attached to, as far as its responder said.
    pub fn switch(&self) -> Option<Guid> {
        Some(Guid(self.terms.switch_guid)).filter(|guid| guid.0 != 0)
    }

    /// Until when the manager's last confirmation counts.
    pub fn confirmed_until(&self) -> Option<Instant> {
        Some(self.confirmed? + CONTACT_MAX)
    }

    /// When the responder is to be given up unless it is heard.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Some(self.heard? + STALE_AFTER)
    }

    /// Whether requests are answered now.
    pub fn is_fresh(&self, now: Instant) -> bool {
        matches!(self.state, State::Fresh { is_known: true })
            && self.poll_timeout().is_some_and(|due| now < due)
            && self.is_confirmed(now)
    }

    /// Whether its responder is of use: it has the port, and is known to be up to date.
    pub fn is_served(&self, now: Instant) -> bool {
        !self.is_unknown && self.is_confirmed(now)
    }

    /// Whether the manager confirmed lately that its responder is up to date.
    pub fn is_confirmed(&self, now: Instant) -> bool {
        self.confirmed_until().is_some_and(|due| now < due)
    }

    /// The record that the responder answers to a request.
    pub fn answer(&self, now: Instant, asked: &Request<'_>) -> Result<Record, Reason> {
        match self.state {
            State::Absent => return Err(Reason::Absent),
            State::Outdated => return Err(Reason::Outdated),
            State::Fresh { .. } if self.poll_timeout().is_none_or(|due| due <= now) => {
                return Err(Reason::Stale);
            }
            State::Fresh { .. } if !self.is_confirmed(now) => return Err(Reason::Unconfirmed),
            State::Fresh { .. } => {}
        }
        let (Some(sgid), Some(dgid), Some(pkey)) = (asked.sgid, asked.dgid, asked.pkey) else {
            return Err(Reason::Incomplete);
        };
        let is_own = self.terms.sources.binary_search(&sgid.guid().0).is_ok();
        if !is_own || !self.is_local(sgid) {
            return Err(Reason::OtherSource);
        }
        if dgid.is_multicast() || !self.is_local(dgid) {
            return Err(Reason::OtherSubnet);
        }
        if asked.service_id.is_some_and(|id| self.names_service(id))
            || asked.qos_class.is_some_and(|class| self.names_class(class))
        {
            return Err(Reason::Qos);
        }
        let mut record = *self.table.find(dgid.guid(), pkey).ok_or(Reason::NoPath)?;
        let mut view = PathRecord::of_mut(&mut record);
        if asked.path_use == PathUse::Reversible && !view.reversible() {
            // There may be one between other LIDs of the ports.
            return Err(Reason::NoPath);
        }
        // An answer repeats the source and the P_Key as they were asked for.
        let slid = view.slid().0.wrapping_add(self.terms.lid as u16);
        view.set_sgid(sgid).set_pkey(pkey).set_slid(Lid(slid));
        Ok(record)
    }

    /// Whether a GID is of this subnet: by its prefix, or link-local.
    fn is_local(&self, gid: Gid) -> bool {
        gid.prefix() == self.terms.subnet_prefix || gid.prefix() >> 54 == 0xFE80 >> 6
    }

    fn names_service(&self, id: u64) -> bool {
        let names = |of: &proto::IdMatch| match of.mask {
            0 => (of.first..=of.last).contains(&id),
            mask => id & mask == of.first & mask,
        };
        self.terms.service_ids.iter().any(names)
    }

    fn names_class(&self, class: u16) -> bool {
        // The field has 12 bits.
        let class = u32::from(class & 0xFFF);
        self.terms.qos_classes.iter().any(|of| (of.first..=of.last).contains(&class))
    }
}
