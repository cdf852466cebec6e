//! The sweep: discovers the fabric and configures it.
//!
//! [`Sweeper`] decides and does no I/O: the caller sends the packets that [`poll_transmit`] writes,
//! passes received ones to it, and calls [`handle_timeout`] at the time that [`poll_timeout`]
//! returns. A heavy sweep discovers the whole fabric; a light one asks every switch whether a port
//! changed, and discovers only from the changes on. Both end in the same phases of configuration,
//! which send only what differs.
//!
//! Four folders, each of which imports only those before it:
//!
//! - `subnet`: data that stages and tasks share. `state`: results of earlier sweeps; `schedule`:
//!   when to sweep next, and why; `journal`, `report`: what a sweep did; `events`: events for the
//!   caller; `election`, `handover`: the other subnet managers; `routing`: engines and the routing
//!   in force; `lanes`: SLs of paths; `partitioning`, `sharding`, `shard`, `sa_guid`,
//!   `pending_clients`: the wanted state of each; `m_keys`, `keys`: chooses M_Keys; `service`: end
//!   ports that came and went; `owner`: the trait of each owner of requests; `log`: log lines.
//! - `tasks`: work between sweeps. `multicast`, `guid_info`, `reregister`, `partitions`;
//!   `virtual_ports`: sets up virtual ports of adapters; `babble`: disables ports that send traps
//!   without end.
//! - `stages`: the sweep under way, in the order of a sweep. `light`: detects changes. `discover`:
//!   walks the fabric; inside it, `contradiction`: detects links that cannot both exist, and
//!   duplicate GUIDs; `unresponsive`: probes silent nodes from all sides; `came_back`: logs
//!   returned nodes. `unanswered`: reports refused and unanswered requests. `election`: polls the
//!   other managers; `handover`: hands over and requests a handover. `configure`: LIDs, forwarding
//!   tables, links; `partitions`: P_Keys; `inherit`: reads tables that another SM left; `tables`:
//!   the chosen routing as blocks to write; `kept_routes`: recomputes kept routes that are
//!   unbalanced; `qos`, `sl_maps`, `fdr10`: other tables of ports; `avoided`: switches that accept
//!   no tables; `take_over`: moves the LID of a responder's port to another port.
//! - `sweeper`: the [`Sweeper`]: the transitions between stages, jobs that the caller runs
//!   ([`RoutingJob`]), and what callers may set and read (`view`, `dump`). `packets`: encodes
//!   requests and handles received packets; `owner`: which request goes to which owner; `task`:
//!   runs the tasks; `compact`: removes nodes that are gone; `throttled`: links that routes avoid;
//!   `dry_run`: lists what a sweep would set.
//!
//! Not here: the wanted contents of ports and tables (`manage`, `routing`), the election rules
//! (`mastership`), and sockets, clocks and files (`runtime`).
//!
//! [`poll_transmit`]: Sweeper::poll_transmit
//! [`handle_timeout`]: Sweeper::handle_timeout
//! [`poll_timeout`]: Sweeper::poll_timeout

mod stages;
mod subnet;
mod sweeper;
mod tasks;

pub use stages::kept_routes::CORRECTION_DELAY;
pub use stages::take_over::{DisabledPorts, TakeOverStart};
pub use subnet::events::{Event, TrapNotice};
pub use subnet::fingerprint::{AcknowledgedTables, TableFingerprint};
pub use subnet::lanes::SlsOfPaths;
pub use subnet::log::STATE;
pub use subnet::peer::Peer;
pub use subnet::registry_copy::{ImportedRegistry, RegistryCopy};
pub use subnet::report::{Duplicate, Phase, Report};
pub use subnet::routing::checks::{BalanceCheck, BalanceFinding, LoopCheck, LoopFinding};
pub use subnet::routing::job::{RoutingJob, RoutingOutcome};
pub use subnet::routing::origin::Origin;
pub use subnet::sa_guid::SaGuid;
pub use subnet::schedule::Cause;
pub use subnet::service::PortsChanged;
pub use subnet::sharding::Sharding;
pub use sweeper::Sweeper;
pub use sweeper::dry_run::{Change, Changes, FieldChange};
pub use sweeper::dump::{DumpFileKind, DumpJob, DumpScope};
pub use tasks::multicast::job::{MulticastJob, MulticastOutcome};
pub use tasks::virtual_ports::Counters as VirtualPortCounters;
pub use tasks::virtual_ports::trouble::{Trouble as VirtualPortTrouble, What as VirtualPortFault};
