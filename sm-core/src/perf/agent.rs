//! Performance management agents, as far as they are known, and what is left to read from each.

use ib_mad::types::{Lid, PKey, Qpn, Sl};
use ib_mad::wire::attribute::ClassPortInfo;
use ib_mad::wire::perf;

/// What an agent supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Support {
    /// PortSelect may be all ports.
    pub(super) all_ports: bool,
    /// PortCountersExtended.
    pub(super) extended: bool,
    /// It counts unicast and multicast packets.
    pub(super) by_cast: bool,
    /// It has error counters.
    pub(super) additional: bool,
    /// PortCounters has PortXmitWait.
    pub(super) xmit_wait: bool,
    /// PortCounters has QP1Dropped.
    pub(super) qp1_dropped: bool,
}

/// Where requests are sent instead of to the agent's own port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    pub(super) lid: Lid,
    pub(super) qpn: Qpn,
    pub(super) sl: Sl,
    pub(super) pkey: PKey,
}

/// What an agent is asked next in a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// ClassPortInfo.
    Info,
    /// The sums of all ports.
    Sums,
    /// Port by port, from this place on, as an index of its ports.
    Ports(u16),
    /// Nothing more.
    Done,
}

/// The sums of a switch's ports when these were last read one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    /// Of all error counters.
    pub(super) errors: u64,
    /// Of packets in both directions.
    pub(super) packets: u64,
    /// Queries that this manager had sent by then, to all agents.
    pub(super) queries: u64,
}

/// An agent: that of a switch, or of one port of another node.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    /// Index of the node.
    pub(super) node: u32,
    /// Index of its first port.
    pub(super) first_port: u32,
    pub(super) port_count: u16,
    pub(super) lid: Lid,
    /// `None` until ClassPortInfo was read.
    pub(super) support: Option<Support>,
    /// Attributes that it refused, as bits of [`Unsupported`].
    pub(super) unsupported: u8,
    /// It was redirected in this sweep; a second time is refused.
    pub(super) redirected_now: bool,
    /// The rest of it is left out in this sweep.
    pub(super) abandoned: bool,
    /// Of its ports, only the counters of forward error correction are read: its sums are as they
    /// were, and they do not include these.
    pub(super) only_speeds: bool,
    pub(super) redirection: Option<Redirection>,
    pub(super) step: Step,
    /// Requests, or ports with requests, under way.
    pub(super) in_flight: u8,
    /// It waits in the manager's queue.
    pub(super) queued: bool,
    pub(super) sums: Option<Sums>,
    /// Packets, of the sums being read.
    pub(super) sums_packets: u64,
}

/// Attributes that an agent may not support, as bits.
pub(super) struct Unsupported;

impl Unsupported {
    pub(super) const EXTENDED: u8 = 1;
    pub(super) const RCV_DETAILS: u8 = 2;
    pub(super) const XMIT_DETAILS: u8 = 4;
    pub(super) const SPEEDS: u8 = 8;
    pub(super) const SUMS: u8 = 16;
    pub(super) const PLAIN: u8 = 32;
}

impl Support {
    /// For agents whose ClassPortInfo is not read: attributes are tried.
    pub(super) const ASSUMED: Self = Self {
        all_ports: false,
        extended: true,
        by_cast: true,
        additional: false,
        xmit_wait: true,
        qp1_dropped: false,
    };

    /// What ClassPortInfo states.
    pub(super) fn of(info: &ClassPortInfo<&[u8; 72]>) -> Self {
        let has = |bit: u16| info.capability_mask() & bit != 0;
        let by_cast = has(perf::IS_EXTENDED_WIDTH_SUPPORTED);
        let extended = by_cast || has(perf::IS_EXTENDED_WIDTH_SUPPORTED_NO_IETF);
        let additional = perf::IS_ADDITIONAL_PORT_COUNTERS_EXTENDED_SUPPORTED;
        Self {
            all_ports: has(perf::ALL_PORT_SELECT),
            extended,
            by_cast,
            additional: extended && info.capability_mask2() & additional != 0,
            xmit_wait: has(perf::IS_PORT_XMIT_WAIT_SUPPORTED),
            qp1_dropped: has(perf::IS_QP1_DROPPED_SUPPORTED),
        }
    }
}

impl Redirection {
    /// The redirection that ClassPortInfo states: `Ok(None)` if there is none, an error if it is
    /// by GID or to a queue pair with a Q_Key of its own.
    pub(super) fn of(info: &ClassPortInfo<&[u8; 72]>) -> Result<Option<Self>, ()> {
        let (lid, qpn) = (info.redirect_lid(), info.redirect_qp());
        if lid == Lid::NONE {
            return if info.redirect_gid().0 == [0; 16] { Ok(None) } else { Err(()) };
        }
        let is_usable = lid.is_unicast() && qpn.0 != 0 && info.redirect_qkey() == Qpn::GSI_QKEY;
        let pkey = match info.redirect_pkey() {
            PKey(0) => PKey::DEFAULT_FULL,
            pkey => pkey,
        };
        is_usable.then_some(Some(Self { lid, qpn, sl: info.redirect_sl(), pkey })).ok_or(())
    }
}

impl Agent {
    /// An agent that nothing is known about.
    pub(super) fn new(node: u32, first_port: u32, lid: Lid) -> Self {
        Self {
            node,
            first_port,
            port_count: 0,
            lid,
            support: None,
            unsupported: 0,
            redirected_now: false,
            abandoned: false,
            only_speeds: false,
            redirection: None,
            step: Step::Done,
            in_flight: 0,
            queued: false,
            sums: None,
            sums_packets: 0,
        }
    }

    /// Takes over what was known before the fabric changed.
    pub(super) fn inherit(&mut self, old: &Self) {
        if self.lid == old.lid {
            (self.support, self.unsupported) = (old.support, old.unsupported);
            self.redirection = old.redirection;
            // They cover the ports without a link, too.
            self.sums = old.sums;
        }
    }

    /// Forgets what happened in the sweep or glance before.
    pub(super) fn begin_reading(&mut self) {
        (self.redirected_now, self.abandoned, self.only_speeds) = (false, false, false);
        self.in_flight = 0;
    }

    /// Whether it supports an attribute, as far as known.
    pub(super) fn may(&self, attribute: u8) -> bool {
        self.unsupported & attribute == 0
    }
}
