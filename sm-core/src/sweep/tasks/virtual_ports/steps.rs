//! The steps of a pass, and the requests of each.

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{PortState, VPORT_STATES_PER_BLOCK};

use super::{DISABLED, MANAGED, Trouble, VirtualPortSetup, What};
use crate::fabric::{INDICES_MAX, PortIndex, VirtualPort};
use crate::smp::{Kind, Request, virtual_block};
use crate::sweep::subnet::Subnet;

/// The revision of the attributes of virtual ports that is known.
const REVISION: u8 = 0;

/// A step of a pass over a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Read VirtualizationInfo.
    Ask,
    /// Enable or disable virtual ports; clear VPortStateChange before states are read, so that a
    /// later change sets it again.
    Set,
    /// Read the states, of 128 virtual ports at once.
    States,
    /// Read the virtual ports that are not Down, and are new or changed.
    Read,
    /// Read their P_Key tables.
    Tables,
    /// Set the P_Key tables that differ.
    Keys,
    /// Take virtual ports from Initialize to Armed.
    Arm,
    /// Take virtual ports from Armed to Active.
    Activate,
    /// Nothing is left.
    Done,
}

impl Step {
    fn next(self) -> Self {
        match self {
            Self::Ask => Self::Set,
            Self::Set => Self::States,
            Self::States => Self::Read,
            Self::Read => Self::Tables,
            Self::Tables => Self::Keys,
            Self::Keys => Self::Arm,
            Self::Arm => Self::Activate,
            Self::Activate | Self::Done => Self::Done,
        }
    }
}

/// Whether requests were sent for all of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    All,
    /// There was no room for the rest.
    Some,
}

impl VirtualPortSetup {
    /// Whether the pass over a port is at the beginning of a step.
    pub(super) fn is_at(&self, guid: Guid, step: Step) -> bool {
        let pass = self.hosts.get(&guid).and_then(|host| host.pass.as_ref());
        pass.is_some_and(|pass| pass.step == step && pass.cursor == 0)
    }

    /// Sends the requests of the pass over a port, of its next step that has some. Returns `false`
    /// if the pass has ended. At the P_Keys it waits while they are to be computed.
    pub(super) fn advance(&mut self, subnet: &mut Subnet, guid: Guid, room: &mut usize) -> bool {
        loop {
            let Some(host) = self.hosts.get(&guid) else { return false };
            let Some(pass) = &host.pass else { return false };
            if pass.is_silent || pass.step == Step::Done {
                return false;
            }
            let is_at_keys = pass.step == Step::Keys && pass.cursor == 0;
            if is_at_keys && !pass.has_read {
                self.finish_reading(subnet, guid);
            }
            if *room == 0 || is_at_keys && self.is_plan_stale {
                return true;
            }
            let before = *room;
            let sent = self.send(subnet, guid, room);
            let Some(pass) = self.hosts.get_mut(&guid).and_then(|host| host.pass.as_mut()) else {
                return false;
            };
            if sent == Sent::All {
                (pass.step, pass.cursor) = (pass.step.next(), 0);
            }
            if *room != before {
                return true;
            }
        }
    }

    /// Before the P_Keys of a port are set, all its answers have arrived: what was read completely
    /// counts.
    fn finish_reading(&mut self, subnet: &mut Subnet, guid: Guid) {
        let Some(host) = self.hosts.get_mut(&guid) else { return };
        let Some(pass) = &mut host.pass else { return };
        pass.has_read = true;
        let (reading, unread) = (std::mem::take(&mut pass.reading), &pass.unread);
        subnet.fabric.with_virtual_ports(host.port, |all, ports| {
            all.is_known = true;
            for index in reading.iter().filter(|index| !unread.contains(index)) {
                if let Some(port) = ports.get_mut(index) {
                    port.is_read = true;
                }
            }
        });
        if pass.before.as_ref() != subnet.fabric.virtual_ports(host.port) {
            self.is_plan_stale = true;
        }
    }

    /// Sends requests of the step that a pass is at, as far as there is room.
    fn send(&mut self, subnet: &mut Subnet, guid: Guid, room: &mut usize) -> Sent {
        let Some(host) = self.hosts.get_mut(&guid) else { return Sent::All };
        let port = host.port;
        let Some(pass) = &mut host.pass else { return Sent::All };
        match pass.step {
            Step::Ask => {
                push(subnet, room, Request::new(Kind::Virtualization, port));
            }
            Step::Set => {
                let known = subnet.fabric.virtual_ports_so_far(port);
                let Some(known) = known.filter(|_| pass.trouble.is_none()) else {
                    // It refused to be read.
                    pass.step = Step::Done;
                    return Sent::All;
                };
                let info = known.virtualization_info();
                let is_managed = subnet.settings.virt_enabled == MANAGED;
                if info.revision() != REVISION {
                    pass.note(Trouble::of_port(What::Revision(info.revision())));
                    pass.step = Step::Done;
                } else if !is_managed && !info.virtualization_enable() {
                    // Without the feature port 0 is the physical port: there is nothing to set.
                    subnet.fabric.remove_virtual_ports(port);
                    self.is_plan_stale |= pass.before.is_some();
                    pass.step = Step::Done;
                } else if info.virtualization_enable() != is_managed
                    || info.vport_state_change()
                    || host.is_new
                {
                    host.is_outdated |= info.virtualization_enable() != is_managed;
                    push(subnet, room, Request::new(Kind::SetVirtualization, port));
                } else if pass.before.is_some() && !host.is_outdated {
                    // Nothing changed: only what is still missing is set.
                    pass.step = Step::Tables;
                }
            }
            Step::States if subnet.settings.virt_enabled == DISABLED => {
                subnet.fabric.remove_virtual_ports(port);
                self.is_plan_stale |= pass.before.is_some();
                pass.step = Step::Done;
            }
            Step::States if pass.trouble.is_some() => {
                // It refused to enable virtual ports: then it has none but the physical port.
                pass.step = Step::Tables;
            }
            Step::States => {
                let top = subnet
                    .fabric
                    .virtual_ports_so_far(port)
                    .map_or(0, |ports| ports.virtualization_info().vport_index_top());
                if top >= INDICES_MAX {
                    let count = usize::from(top - INDICES_MAX) + 1;
                    pass.note(Trouble { what: What::TooManyOfPort, first: INDICES_MAX, count });
                }
                let blocks = top.min(INDICES_MAX - 1) / VPORT_STATES_PER_BLOCK as u16 + 1;
                for block in 0..blocks {
                    push(subnet, room, Request::block(Kind::VPortState, port, block));
                }
            }
            Step::Read => {
                const KINDS: [Kind; 3] = [Kind::VPortInfo, Kind::VNodeInfo, Kind::VNodeDescription];
                let cursor = pass.cursor;
                for &index in pass.reading.range(cursor..) {
                    if *room < KINDS.len() {
                        pass.cursor = index;
                        return if *room == 0 { Sent::Some } else { wait(room) };
                    }
                    for kind in KINDS {
                        let request = Request::block(kind, port, virtual_block(index, 0));
                        push(subnet, room, request);
                    }
                }
            }
            Step::Tables => {
                let cursor = pass.cursor;
                for &index in pass.reading.range(cursor..) {
                    if *room == 0 {
                        pass.cursor = index;
                        return Sent::Some;
                    }
                    let blocks = blocks_of(subnet, port, index);
                    for block in 0..blocks {
                        let number = virtual_block(index, block);
                        push(subnet, room, Request::block(Kind::VPKeys, port, number));
                    }
                }
            }
            Step::Keys | Step::Arm | Step::Activate => {
                let (step, cursor) = (pass.step, pass.cursor);
                let wanted = wanted(subnet, port, step, cursor);
                for (index, requests) in wanted {
                    if *room == 0 {
                        pass.cursor = index;
                        return Sent::Some;
                    }
                    requests.into_iter().for_each(|request| push(subnet, room, request));
                }
            }
            Step::Done => {}
        }
        Sent::All
    }
}

/// Leaves the rest of a round unused.
fn wait(room: &mut usize) -> Sent {
    *room = 0;
    Sent::Some
}

fn push(subnet: &mut Subnet, room: &mut usize, request: Request) {
    subnet.exchange.push(request);
    *room = room.saturating_sub(1);
}

/// Blocks of the P_Key table of a virtual port.
fn blocks_of(subnet: &Subnet, port: PortIndex, index: u16) -> u16 {
    let ports = subnet.fabric.virtual_ports_so_far(port);
    ports.and_then(|ports| ports.get(index)).map_or(0, VirtualPort::pkey_blocks)
}

/// The requests of a step that sets something, by virtual port, from index `cursor` on.
fn wanted(subnet: &Subnet, host: PortIndex, step: Step, cursor: u16) -> Vec<(u16, Vec<Request>)> {
    let plan = &subnet.partitions.plan;
    let is_active = subnet.fabric.port(host).state() == Some(PortState::Active);
    let requests = |index: u16, port: &VirtualPort| -> Vec<Request> {
        let in_state = |state: PortState, counts: bool| {
            let counts = counts && port.state == state && !port.needs_lid();
            let number = virtual_block(index, 0);
            counts.then(|| Request::block(Kind::SetVPortInfo, host, number)).into_iter().collect()
        };
        match step {
            Step::Keys => {
                let set =
                    |block| Request::block(Kind::SetVPKeys, host, virtual_block(index, block));
                plan.wrong_virtual_blocks((host, index), port).into_iter().map(set).collect()
            }
            Step::Arm => in_state(PortState::Initialize, true),
            Step::Activate => in_state(PortState::Armed, is_active),
            _ => Vec::new(),
        }
    };
    let ports = subnet.fabric.virtual_ports(host).into_iter().flat_map(|ports| ports.iter());
    ports
        .filter(|&(index, port)| index >= cursor && port.is_usable())
        .map(|(index, port)| (index, requests(index, port)))
        .filter(|(_, requests)| !requests.is_empty())
        .collect()
}
