//! Where and as what a client attaches, and what it is known by there.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::types::Qpn;
use crate::wire::mad::MgmtClass;

/// Where and as what to attach.
#[derive(Clone, Debug)]
pub struct IbsimOptions {
    /// Base of the server's socket names.
    pub socket: String,
    /// Identifier or description of the node to attach to; `None` for the server's default.
    pub node: Option<String>,
    /// Which requests to receive.
    pub role: Role,
    /// A QP above 1 whose packets to receive as well. At stock ibsim the only way to be sent
    /// requests on a node whose QP0 and QP1 belong to another client.
    pub qpn: Option<Qpn>,
    /// The id of an earlier client of the same owner, to be thrown out if it was killed: it would
    /// go on holding its slot and its requests.
    pub stale_client: Option<ClientId>,
    /// How long the server may take to answer a control request.
    pub timeout: Duration,
}

impl Default for IbsimOptions {
    /// A client of `IBSIM_SOCKNAME` at `SIM_HOST`, as libumad2sim has it.
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

/// Which requests a client receives. Answers to its own reach every client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// None.
    Client,
    /// Those of subnet administration. Stock ibsim delivers SMPs for SMInfo and traps too.
    Responder,
    /// Those of subnet management.
    Manager {
        /// And those of subnet administration. Stock ibsim delivers them in any case.
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

/// What a client is known by: kept by its owner, so that a successor can throw it out.
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
