//! Limits and settings of a responder.

use ib_mad::rmpp::SenderConfig;
use ib_mad::types::Guid;

use crate::query::pool::PoolConfig;
use crate::query::redirect::Redirection;
use crate::sm::peers::Peers;

/// Bounds and settings of a [`Responder`](super::Responder).
#[derive(Clone, Debug)]
pub struct ResponderConfig {
    /// Memory for table answers.
    pub pool: PoolConfig,
    /// Maximum number of answers of several segments at a time.
    pub transfers_max: usize,
    /// Maximum number of requests of several segments at a time.
    pub assemblies_max: usize,
    /// Maximum length of a request's data, bytes.
    pub request_max: usize,
    /// Windows, timeouts and retries of answers.
    pub sender: SenderConfig,
    /// Responders that ClassPortInfo redirects to.
    pub redirection: Redirection,
    /// GUID of the responder's own port, by which answers may leave.
    pub own_port: Option<Guid>,
    /// The front doors of the managers that are followed: a request is answered from the session
    /// of the manager through whose door it came.
    pub doors: Peers,
    /// Returns every request as its answer without reading the tables, to measure everything else.
    pub echo: bool,
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            pool: PoolConfig::default(),
            transfers_max: 1024,
            assemblies_max: 256,
            request_max: 16 << 10,
            sender: SenderConfig::default(),
            redirection: Redirection::off(),
            own_port: None,
            doors: Peers::default(),
            echo: false,
        }
    }
}
