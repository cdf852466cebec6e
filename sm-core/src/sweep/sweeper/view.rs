//! Read access for callers: the fabric and the state of the sweeper.

use std::sync::Arc;
use std::time::Instant;

use ib_mad::wire::attribute::SmState;
use sa_proto::metrics::Histogram;

use super::Sweeper;
use crate::fabric::{Fabric, PortIndex};
use crate::manage::lid::LidTable;
use crate::manage::quarantine::{End, KeptOut};
use crate::smp::{Counters, Kind, Passed};
use crate::sweep::subnet::report::Phase;
use sm_config::Settings;

impl Sweeper {
    /// The fabric as it is known.
    pub fn fabric(&self) -> &Fabric {
        &self.subnet.fabric
    }

    /// LIDs by port GUID.
    pub fn lids(&self) -> &LidTable {
        &self.subnet.lids
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.subnet.settings
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.sweep.stage.phase()
    }

    /// Number of light sweeps that found no change.
    pub fn quiet_sweeps(&self) -> u64 {
        self.subnet.state.quiet_sweeps
    }

    /// Whether sweeps are permitted: see [`set_sweeping`](Self::set_sweeping).
    pub fn is_sweeping(&self) -> bool {
        !self.subnet.schedule.is_paused()
    }

    /// SMInfo state of this SM.
    pub fn sm_state(&self) -> SmState {
        self.subnet.election.state()
    }

    /// Whether the subnet is up: the last sweep as master programmed all of it but for
    /// [`faults`](Self::faults).
    pub fn is_up(&self) -> bool {
        self.subnet.state.up
    }

    /// Sweeps in a row that were given up, since the fabric could not be read.
    pub fn sweeps_given_up(&self) -> u32 {
        self.subnet.state.given_up()
    }

    /// Ports with attributes that the last sweep could not read or set.
    pub fn faults(&self) -> &[PortIndex] {
        &self.subnet.state.faults
    }

    /// What another manager wrote over this one's settings, as text, until it is restored.
    pub fn overwritten(&self, now: Instant) -> Option<String> {
        self.subnet.overwritten.text(now)
    }

    /// Whether a node left a request unanswered as one does that has another M_Key.
    pub fn suspects_m_key(&self) -> bool {
        self.subnet.m_keys.hinted
    }

    /// Ports with a link behind which nothing answered in the last discovery.
    pub fn unanswered(&self) -> &[PortIndex] {
        &self.subnet.state.unanswered
    }

    /// Ports of switches whose links the last discovery left out: they lead to a port with another
    /// one's GUID, or back to their own.
    pub fn left_out(&self) -> &[PortIndex] {
        &self.subnet.state.left_out
    }

    /// Links that are kept out since they do not belong, by the port of a switch that leads there;
    /// they are among [`left_out`](Self::left_out).
    pub fn kept_out(&self) -> impl Iterator<Item = (End, KeptOut)> + '_ {
        self.subnet.quarantine.listed()
    }

    /// How often a link was kept out and not listed, because there are too many.
    pub fn kept_out_unlisted(&self) -> u64 {
        self.subnet.quarantine.unlisted()
    }

    /// Whether nothing is kept out because the switch at the SM's port is not expected.
    pub fn quarantine_is_foreign(&self) -> bool {
        self.subnet.quarantine.is_foreign()
    }

    /// Ports behind which the last discovery left new nodes out.
    pub fn put_off(&self) -> &[PortIndex] {
        &self.subnet.state.put_off.ports
    }

    /// Why this SM is cut off from the fabric, if it is.
    pub fn cut_off(&self) -> Option<&'static str> {
        let locked = "the SM's own port has an M_Key that is not known, and cannot be configured";
        self.subnet.state.cut_off().or_else(|| self.is_own_port_locked().then_some(locked))
    }

    /// Whether the SM is cut off since it seems to lack the M_Key of its own port.
    pub fn lacks_own_m_key(&self) -> bool {
        self.subnet.state.is_own_node_silent() || self.is_own_port_locked()
    }

    /// Whether the SM's own port can be read, and shows that it has an M_Key that is not known.
    fn is_own_port_locked(&self) -> bool {
        let fabric = &self.subnet.fabric;
        let port = fabric.sm_port().filter(|&port| fabric.port(port).known);
        port.is_some_and(|port| self.subnet.is_locked(port))
    }

    /// Name of the routing engine that made the tables.
    pub fn routing_engine(&self) -> &str {
        self.subnet.routing.engine()
    }

    /// Why preferred engines were skipped, one line each.
    pub fn rejected_engines(&self) -> &[String] {
        &self.subnet.routing.rejected
    }

    /// SMPs sent, answered and given up so far.
    pub fn counters(&self) -> Counters {
        self.subnet.exchange.counters()
    }

    /// SMPs of a kind so far.
    pub fn passed(&self, kind: Kind) -> Passed {
        self.subnet.exchange.passed(kind)
    }

    /// How long light sweeps took so far.
    pub fn light_sweeps(&self) -> &Arc<Histogram> {
        &self.subnet.state.light_sweeps
    }

    /// Changes whenever pending work is abandoned. Packets of
    /// [`poll_transmit`](Self::poll_transmit) from before a change must not be sent: they are
    /// commands of a master, and another SM may be master now.
    pub fn generation(&self) -> u64 {
        self.subnet.exchange.generation()
    }

    /// Requests that wait or are on the wire.
    pub fn outstanding(&self) -> usize {
        self.subnet.exchange.outstanding()
    }

    /// Traps dropped before subscribers were notified, because too many arrived between two polls
    /// of events.
    pub fn traps_dropped(&self) -> u64 {
        self.subnet.events.traps_dropped()
    }
}
