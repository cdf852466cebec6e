//! What a simulation consists of.

use fabric_sim::generate::FatTree;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Config {
    /// The seed of everything.
    pub seed: u64,
    /// The fabric.
    pub tree: FatTree,
    /// Subnet managers.
    pub managers: usize,
    /// Responders.
    pub responders: usize,
    /// Clients.
    pub clients: usize,
    /// Requests of all clients in a second.
    pub rate: u32,
    /// Whether writes wait for a standby in step (`--follow-sync`).
    pub sync: bool,
    /// Episodes of faults, each followed by a time without.
    pub episodes: u32,
    /// Faults in an episode, on average.
    pub faults: usize,
    /// Whether managers share a registry in etcd (`--store etcd://`) and follow no other.
    pub etcd: bool,
    /// Whether the fabric is split between managers, too.
    pub splits: bool,
    /// Whether responders have ports of their own, which some clients ask; then links of managers
    /// to the fabric fail, too.
    pub own_ports: bool,
    /// Hosts without clients that are switched off and on. Half of them are off at first.
    pub spare_hosts: usize,
    /// Whether in some episodes one thing fails alone: then waits are limited.
    pub single_faults: bool,
    /// Whether a program orders partitions.
    pub orders: bool,
    /// Whether clients subscribe to events, and have alias GUIDs.
    pub aliases: bool,
    /// Whether a manager and a responder are killed at once.
    pub kills_both: bool,
    /// Whether clients create groups whose MGIDs the SA chooses.
    pub creates: bool,
    /// Whether answers to writes are lost, so that clients repeat requests that were granted.
    pub loses_answers: bool,
    /// Whether each manager sets an M_Key of its own. Not where the fabric is split: see
    /// "Protect ports with M_Keys" in `docs/operating.md`.
    pub m_keys: bool,
    /// Whether service loops of managers hang while their other threads go on.
    pub hangs: bool,
    /// Whether hosts of managers lose their links to the fabric and to the network at once. Not
    /// with M_Keys: a manager that starts meanwhile does not know those of its successor.
    pub isolates: bool,
    /// Whether clients ask at the same times in some episodes, as those of a job that starts do.
    pub bursts: bool,
    /// A defect that is to be found.
    pub plant: Option<Plant>,
    /// Whether the trace is printed.
    pub prints: bool,
}

/// A defect planted in what the simulation adds to the system, to see that it is found. Defects of
/// the system itself are patches in `sim/mutants`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Disks acknowledge a sync and do nothing.
    NoSync,
    /// Some writes are answered and never reach the registry.
    LostWrites,
    /// Responders now and then acknowledge a snapshot and go on with the one before.
    StaleTables,
    /// Clients do not hear that they are to register again.
    DeafClients,
}

impl Plant {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("no-sync", Self::NoSync),
        ("lost-writes", Self::LostWrites),
        ("stale-tables", Self::StaleTables),
        ("deaf-clients", Self::DeafClients),
    ];
}

impl Config {
    /// 40 switches, 128 hosts, 2 managers, 4 responders, 64 clients with 100 requests a second. In
    /// every third seed there are 3 managers.
    pub fn full(seed: u64) -> Self {
        Self {
            seed,
            tree: FatTree { levels: 2, radix: 24, hosts: 128, oversubscription: (1, 3) },
            managers: if seed.is_multiple_of(3) { 3 } else { 2 },
            responders: 4,
            clients: 64,
            rate: 100,
            sync: seed.is_multiple_of(2),
            episodes: 6,
            faults: 3,
            etcd: false,
            splits: seed % 4 >= 2,
            own_ports: seed % 5 >= 2,
            spare_hosts: 8,
            single_faults: true,
            orders: true,
            aliases: true,
            kills_both: true,
            creates: true,
            loses_answers: true,
            m_keys: seed % 7 >= 4 && seed % 4 < 2,
            hangs: seed % 9 >= 6,
            isolates: seed % 11 >= 6 && (seed % 7 < 4 || seed % 4 >= 2),
            bursts: true,
            plant: None,
            prints: false,
        }
    }

    /// 6 switches, 16 hosts and 8 clients: for tests.
    pub fn small(seed: u64) -> Self {
        let tree = FatTree { levels: 2, radix: 8, hosts: 16, oversubscription: (1, 1) };
        Self { tree, responders: 2, clients: 8, rate: 20, spare_hosts: 3, ..Self::full(seed) }
    }
}
