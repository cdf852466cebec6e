//! The sweep: discovers the fabric and configures it.
//!
//! [`Sweeper`] decides and does no I/O: the caller sends the packets that [`poll_transmit`] writes,
//! passes received ones to it, and calls [`handle_timeout`] at the time that [`poll_timeout`]
//! returns. A heavy sweep discovers the whole fabric; a light one asks every switch whether a port
//! changed, and discovers only from the changes on. Both end in the same phases of configuration,
//! which send only what differs.
//!
//! State, which decides and answers questions:
//!
//! - `current`: the sweep under way, as a stage; `subnet`: data that stages and tasks share;
//!   `state`: results of earlier sweeps; `schedule`: when to sweep next, and why; `journal`,
//!   `report`: what a sweep did; `events`: events for the caller.
//! - `election::state`: the other subnet managers; `routing`: engines and the routing in force;
//!   `partitions`, `multicast`, `guid_info`, `shard`, `reregister`: the wanted state of each.
//!
//! Steps, in the order of a sweep:
//!
//! - `light`: detects changes. `discover`: walks the fabric; `contradiction`: detects links that
//!   cannot both exist, and duplicate GUIDs; `unresponsive`: probes silent nodes from all sides;
//!   `unanswered`: reports refused and unanswered requests; `came_back`: logs returned nodes;
//!   `compact`: removes nodes that are gone; `keys`: chooses M_Keys.
//! - `election`: elects the master; `handover`: hands over and takes over. `inherit`: reads tables
//!   that another SM left; `kept_routes`: recomputes kept routes that are unbalanced.
//! - `configure`: LIDs, P_Keys, forwarding tables, links; `tables`: routing, as a job that the
//!   caller runs ([`RoutingJob`]); `qos`, `sl_maps`, `fdr10`: other tables of ports; `avoided`:
//!   switches that accept no tables; `throttled`: links that routes avoid; `service`: end ports
//!   that came and went.
//! - Tasks between sweeps: `multicast`, `guid_info`, `shard`, `reregister`; `take_over`: moves the
//!   LID of a responder's port to another port; `babble`: disables ports that send traps without
//!   end.
//! - `owner`: the trait of each owner of requests, and which request goes to which; `task`: runs
//!   the tasks; `packets`: encodes requests and handles received packets; `view`: what callers may
//!   read; `log`: log lines.
//!
//! Not here: the wanted contents of ports and tables (`manage`, `routing`), the election rules
//! (`mastership`), and sockets, clocks and files (`runtime`).
//!
//! [`poll_transmit`]: Sweeper::poll_transmit
//! [`handle_timeout`]: Sweeper::handle_timeout
//! [`poll_timeout`]: Sweeper::poll_timeout

mod avoided;
mod babble;
mod came_back;
mod configure;
mod contradiction;
mod current;
mod discover;
mod election;
mod events;
mod fdr10;
mod fingerprint;
mod guid_info;
mod handover;
mod inherit;
mod journal;
mod kept_routes;
mod keys;
mod lanes;
mod light;
mod log;
mod m_keys;
mod multicast;
mod owner;
mod partitioning;
mod partitions;
mod peer;
mod pending_clients;
mod qos;
mod registry_copy;
mod report;
mod reregister;
mod routing;
mod schedule;
mod service;
mod shard;
mod sharding;
mod sl_maps;
mod state;
mod subnet;
mod sweeper;
mod system_images;
mod tables;
mod take_over;
mod task;
mod unanswered;
mod unresponsive;

pub use events::{Event, TrapNotice};
pub use fingerprint::{AcknowledgedTables, TableFingerprint};
pub use kept_routes::CORRECTION_DELAY;
pub use lanes::SlsOfPaths;
pub use log::STATE;
pub use multicast::{MulticastJob, MulticastOutcome};
pub use peer::Peer;
pub use registry_copy::{ImportedRegistry, RegistryCopy};
pub use report::{Phase, Report};
pub use routing::{
    BalanceCheck, BalanceFinding, LoopCheck, LoopFinding, Origin, RoutingJob, RoutingOutcome,
};
pub use schedule::Cause;
pub use service::PortsChanged;
pub use sharding::Sharding;
pub use sweeper::Sweeper;
pub use sweeper::dump::{DumpFileKind, DumpJob, DumpScope};
pub use take_over::{DisabledPorts, TakeOverStart};
