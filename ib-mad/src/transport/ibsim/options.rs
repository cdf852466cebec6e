//! Options of a client: server, node, role and identity.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::types::Qpn;
use crate::wire::mad::MgmtClass;

/// How to attach.
#[derive(Clone, Debug)]
pub struct IbsimOptions {
    /// Base of the server's socket names.
    pub socket: String,
    /// Id or description of the node to attach to; `None` for the server's default.
    pub node: Option<String>,
    /// The requests that the client receives.
    pub role: Role,
    /// A QP above 1 whose packets to receive as well. On stock ibsim this is the only way to
    /// receive requests on a node whose QP0 and QP1 belong to another client.
    pub qpn: Option<Qpn>,
    /// The id of an earlier client of the same owner, which is detached first: if it was killed, it
    /// still holds its slot and its requests.
    pub stale_client: Option<ClientId>,
    /// Time limit of the server's response to a control request.
    pub timeout: Duration,
}

impl Default for IbsimOptions {
    /// A client of `IBSIM_SOCKNAME` at `SIM_HOST`, as in libumad2sim.
    fn default() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            socket: variable("IBSIM_SOCKNAME").unwrap_or_else(|| "sim".to_owned()),
            node: variable("SIM_HOST"),
            role: Role::Client,
            qpn: None,
            stale_client: None,
            timeout: Duration::from_secs(5),
        }
    }
}

/// The requests that a client receives. Responses to its own requests reach every client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Receives no requests.
    Client,
    /// Requests of subnet administration. Stock ibsim also delivers SMPs for SMInfo and traps.
    Responder,
    /// Requests of subnet management.
    Manager {
        /// Whether also requests of subnet administration. Stock ibsim delivers these in any case.
        sa: bool,
    },
}

impl Role {
    pub(super) fn classes(self) -> &'static [MgmtClass] {
        const SUBN: MgmtClass = MgmtClass::SUBN_LID_ROUTED;
        const SUBN_DR: MgmtClass = MgmtClass::SUBN_DIRECTED_ROUTE;
        match self {
            Self::Client => &[],
            Self::Responder => &[MgmtClass::SUBN_ADM],
            Self::Manager { sa: false } => &[SUBN, SUBN_DR],
            Self::Manager { sa: true } => &[SUBN, SUBN_DR, MgmtClass::SUBN_ADM],
        }
    }
}

/// Identifies a client. Its owner stores it, so that a successor can detach a dead predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    /// Its slot at the server.
    pub slot: u32,
    /// The number in its socket names.
    pub number: u32,
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.slot, self.number)
    }
}

/// Text that is not a client id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an ibsim client id, SLOT:NUMBER")]
pub struct ParseClientIdError(pub String);

impl FromStr for ClientId {
    type Err = ParseClientIdError;

    fn from_str(text: &str) -> Result<Self, ParseClientIdError> {
        let parse = || {
            let (slot, number) = text.trim().split_once(':')?;
            Some(Self { slot: slot.parse().ok()?, number: number.parse().ok()? })
        };
        parse().ok_or_else(|| ParseClientIdError(text.to_owned()))
    }
}
