//! Registered agents by class, version and methods, as in the kernel's MAD layer, and which of them
//! receives a packet.

use std::collections::BTreeMap;

use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{MadHeader, Method, MgmtClass};

use super::FileId;
use crate::umad::Errno;

/// Limit of agents per open port.
pub const AGENTS_MAX: u32 = 32;

/// Offset of the OUI in MADs of the vendor classes that have one.
const OUI: usize = 37;
/// Bit of BM's attribute modifier that marks a response.
const BM_RESPONSE: u32 = 1;

/// The packets that an agent sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Management class.
    pub class: MgmtClass,
    /// Class version of the requests it receives.
    pub class_version: u8,
    /// Request methods that it receives: bit n is method n. Empty for an agent that only sends
    /// requests.
    pub methods: u128,
    /// OUI, in vendor classes that have one.
    pub oui: u32,
    /// 1 if its messages may be longer than one MAD.
    pub rmpp_version: u8,
    /// The program does RMPP itself, for a class that uses it.
    pub user_rmpp: bool,
}

/// A registered agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agent {
    pub(super) file: FileId,
    /// Its id within the file.
    pub(super) id: u32,
    pub(super) registration: Registration,
}

impl Agent {
    /// Whether this stack does RMPP for the agent.
    pub(super) fn leaves_rmpp_to_us(&self) -> bool {
        self.registration.rmpp_version != 0 && !self.registration.user_rmpp
    }
}

/// All agents, by the number in the upper half of their requests' transaction ids.
pub(super) struct Agents {
    agents: BTreeMap<u16, Agent>,
    last: u16,
}

impl Agents {
    /// No agents yet. `seed` selects the first number: a program that is started again repeats its
    /// transaction ids, and must not be taken for its earlier instance.
    pub(super) fn new(seed: u32) -> Self {
        Self { agents: BTreeMap::new(), last: (seed ^ seed >> 16) as u16 }
    }

    pub(super) fn register(
        &mut self,
        file: FileId,
        registration: Registration,
    ) -> Result<u32, Errno> {
        let Registration { class, rmpp_version, .. } = registration;
        if rmpp_version > 1 || rmpp_version == 1 && !may_be_long(class) {
            return Err(Errno(libc::EINVAL));
        }
        if self.agents.values().any(|other| overlap(&other.registration, &registration)) {
            return Err(Errno(libc::EINVAL));
        }
        let taken = |id| self.of_file(file).any(|(_, agent)| agent.id == id);
        let id = (0..AGENTS_MAX).find(|&id| !taken(id)).ok_or(Errno(libc::ENOMEM))?;
        let number = self.free_number().ok_or(Errno(libc::ENOMEM))?;
        self.last = number;
        self.agents.insert(number, Agent { file, id, registration });
        Ok(id)
    }

    /// Removes an agent; returns its number.
    pub(super) fn unregister(&mut self, file: FileId, id: u32) -> Option<u16> {
        let number = self.find(file, id)?.0;
        self.agents.remove(&number);
        Some(number)
    }

    pub(super) fn get(&self, number: u16) -> Option<Agent> {
        self.agents.get(&number).copied()
    }

    pub(super) fn find(&self, file: FileId, id: u32) -> Option<(u16, Agent)> {
        self.of_file(file).find(|(_, agent)| agent.id == id)
    }

    pub(super) fn of_file(&self, file: FileId) -> impl Iterator<Item = (u16, Agent)> + '_ {
        let agents = self.agents.iter().map(|(&number, &agent)| (number, agent));
        agents.filter(move |(_, agent)| agent.file == file)
    }

    /// Methods of a class that any agent has registered.
    pub(super) fn methods(&self, class: MgmtClass) -> u128 {
        let registrations = self.agents.values().map(|agent| &agent.registration);
        registrations.filter(|of| of.class == class).fold(0, |methods, of| methods | of.methods)
    }

    /// Selects the agent for a packet: a response goes to the agent whose number is in its
    /// transaction id, a request to the agent that registered for it.
    pub(super) fn receiver(&self, mad: &[u8; MAD_LEN]) -> Option<(u16, Agent)> {
        let header = MadHeader::of(mad);
        if is_response(&header) {
            let number = (header.tid() >> 32) as u16;
            return self.agents.get(&number).map(|&agent| (number, agent));
        }
        let oui = u32::from_be_bytes([0, mad[OUI], mad[OUI + 1], mad[OUI + 2]]);
        let takes = |of: &Registration| {
            of.class == header.mgmt_class()
                && of.class_version == header.class_version()
                && of.methods >> (header.method().0 & 0x7F) & 1 == 1
                && (!has_oui(of.class) || of.oui == oui)
        };
        let found = self.agents.iter().find(|(_, agent)| takes(&agent.registration));
        found.map(|(&number, &agent)| (number, agent))
    }

    /// The next unused number after the last one assigned; never 0.
    fn free_number(&self) -> Option<u16> {
        let numbers = (1..=u16::MAX).map(|step| self.last.wrapping_add(step));
        numbers.into_iter().find(|number| *number != 0 && !self.agents.contains_key(number))
    }
}

/// Whether a MAD is delivered by its transaction id, as responses are.
pub(super) fn is_response<T: AsRef<[u8]>>(header: &MadHeader<T>) -> bool {
    header.method().is_response()
        || header.method() == Method::TRAP_REPRESS
        || header.mgmt_class() == MgmtClass::BM && header.attribute_modifier() & BM_RESPONSE != 0
}

/// Whether RMPP is defined for a class: SA, device administration, and vendor classes with an OUI.
pub(super) fn may_be_long(class: MgmtClass) -> bool {
    class == MgmtClass::SUBN_ADM || class.0 == 0x10 || has_oui(class)
}

fn has_oui(class: MgmtClass) -> bool {
    (0x30..=0x4F).contains(&class.0)
}

/// Whether some request would match both registrations.
fn overlap(a: &Registration, b: &Registration) -> bool {
    a.class == b.class
        && a.class_version == b.class_version
        && (!has_oui(a.class) || a.oui == b.oui)
        && a.methods & b.methods != 0
}
