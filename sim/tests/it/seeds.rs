//! Fixed seeds.

use sim::config::Config;
use sim::world::{Summary, World};

fn run(config: Config) -> Summary {
    sim::use_one_thread();
    let mut world = World::new(config).unwrap();
    match world.run() {
        Ok(summary) => summary,
        Err(violation) => {
            let tail: Vec<_> = world.trace.tail(40).collect();
            panic!("{}\n{}\n{}", tail.join("\n"), world.describe().join("\n"), violation.0);
        }
    }
}

/// What was simulated when a seed was found, so that it has the same faults. Later there were more
/// managers, ports of responders, and others.
fn before(config: Config) -> Config {
    Config {
        managers: 2,
        own_ports: false,
        spare_hosts: 0,
        single_faults: false,
        orders: false,
        aliases: false,
        kills_both: false,
        creates: false,
        loses_answers: false,
        m_keys: false,
        hangs: false,
        isolates: false,
        bursts: false,
        ..config
    }
}

/// A seed and a commit reproduce a failure: the same packets, messages and bytes on disk, in the
/// same order.
#[test]
fn a_seed_is_the_same_run_every_time() {
    let config = || Config { episodes: 2, ..Config::small(3) };
    let first = run(config());
    assert_eq!(run(config()), first);
    let other = run(Config { episodes: 2, ..Config::small(4) });
    assert_ne!(other.hash, first.hash);
}

#[test]
fn without_faults_everything_is_served() {
    let summary = run(Config { episodes: 1, faults: 0, ..Config::small(1) });
    assert!(summary.totals[0] > 100, "{summary:?}");
    assert_eq!(summary.totals[2], 0, "a request was given up: {summary:?}");
}

#[test]
fn one_manager_loses_nothing() {
    for seed in 1..4 {
        run(Config { managers: 1, episodes: 3, ..Config::small(seed) });
    }
}

#[test]
fn two_managers_lose_nothing() {
    for seed in 1..4 {
        run(Config { episodes: 3, ..Config::small(seed) });
    }
}

/// The registry is in an etcd that fails, too.
#[test]
fn managers_that_share_a_registry_lose_nothing() {
    let config = |seed| before(Config { etcd: true, episodes: 3, ..Config::small(seed) });
    let first = run(config(1));
    assert_eq!(run(config(1)).hash, first.hash, "a seed is the same run every time");
    run(config(2));
}

/// Writes wait for two standbys, of which either may have fallen behind.
#[test]
fn three_managers_lose_nothing() {
    for seed in [2, 3] {
        run(Config { managers: 3, sync: true, episodes: 3, ..Config::small(seed) });
    }
}

/// Clients ask responders at ports of these. Links of managers to the fabric fail, while the
/// network between managers works.
#[test]
fn clients_at_the_ports_of_responders_lose_nothing() {
    for seed in 1..4 {
        run(Config { own_ports: true, episodes: 3, ..Config::small(seed) });
    }
}

/// A master was stopped while another one set M_Keys of its own. It found no port when it went on,
/// and stayed master for good beside the other one.
#[test]
fn seed_40_a_master_goes_on_with_other_m_keys() {
    run(Config { episodes: 1, ..Config::small(40) });
}

/// A standby became master while the master came back. It overwrote the master's settings of
/// ports, stood by, and the master did not learn of it: requests went to the standby for good. Then
/// clients that had registered with the standby meanwhile were not asked to register again.
#[test]
fn seed_1060_two_managers_are_master_for_a_moment() {
    run(before(Config { episodes: 2, ..Config::full(1060) }));
}

/// A master died, and then the standby that had replaced it. The first came back with its old
/// registry and did not ask responders, which had a newer one: deletions returned.
#[test]
fn seed_5011_both_managers_die_one_after_the_other() {
    run(before(Config { splits: false, ..Config::small(5011) }));
}

/// A host's link failed, and its registrations were removed. It was up again at a handover with a
/// complete copy, after which no client was asked to register again.
#[test]
fn seed_65_a_link_returns_at_a_handover() {
    run(before(Config::small(65)));
}

/// A master with an old registry was started after its successor had died, and again before it had
/// asked responders: ports named itself as their master by then, and it began at once.
#[test]
fn seed_96_a_master_is_started_twice() {
    run(before(Config::small(96)));
}

/// A master was stopped between its election and its session. The standby took over and took writes
/// meanwhile; the first began its session with an old registry as soon as it went on.
#[test]
fn seed_107_a_master_is_stopped_before_its_session() {
    run(before(Config { splits: false, ..Config::small(107) }));
}

/// A restarted master and its standby were elected at the same time. The standby wrote its LID to
/// ports after the master had, and died; the master did not look at these ports again.
#[test]
fn seed_17_two_managers_are_elected_and_one_dies() {
    run(before(Config::full(17)));
}

/// A standby was stopped for so long that the master no longer waited for it, and the master died.
/// The standby had heard from it last when it was stopped, so its copy counted as complete.
#[test]
fn seed_300036_a_standby_is_stopped_and_its_master_dies() {
    run(before(Config::full(300_036)));
}

/// A master was stopped; its successor took writes and died. When the first one went on, responders
/// followed the dead one, whose feed still seemed open: it began a session with its old registry.
#[test]
fn seed_420387_a_stopped_master_goes_on_when_its_successor_is_dead() {
    run(before(Config { splits: false, ..Config::small(420_387) }));
}

/// Both spines failed, and one came back. The master of one part got the other part back from its
/// master, and took its ports for ports whose registrations it had.
#[test]
fn seed_400343_parts_of_a_fabric_are_joined() {
    run(before(Config { splits: false, ..Config::small(400_343) }));
}

/// The disk of a master failed. It published no registry, and queries for what was registered were
/// answered as if nothing were.
#[test]
fn seed_200336_a_registry_cannot_be_read() {
    run(before(Config::small(200_336)));
}

/// Updates of a feed that had been cut arrived when their master had been replaced, and replaced
/// the newer registry on disk.
#[test]
fn seed_3013_a_feed_goes_on() {
    run(before(Config { episodes: 6, ..Config::full(3013) }));
}

/// A standby took over while its master was started again. It gave up for what responders follow,
/// found the master, and stood by without notice: ports named the standby as their master.
#[test]
fn seed_7003_a_standby_gives_up_in_its_first_term() {
    run(before(Config { episodes: 3, splits: false, ..Config::full(7003) }));
}

/// A leaf lost its uplinks, so that the registrations of its hosts were removed. When the manager
/// started again it was back, and its hosts were not asked to register again: no other manager had
/// been master, and their links had been active all the time.
#[test]
fn seed_1095_a_leaf_returns_before_its_manager() {
    run(before(Config { splits: true, episodes: 1, ..Config::small(1095) }));
}

/// A standby whose host had lost both networks returned after its master had gone on without it and
/// died: it concluded that all writes had waited for it.
#[test]
fn seed_52_a_standby_is_isolated_while_its_master_goes_on_and_dies() {
    run(Config { episodes: 12, isolates: true, hangs: false, bursts: false, ..Config::small(52) });
}

/// A manager started while its port had no link. When the link was back its node had the M_Key of
/// the other manager, and it became master of that node alone.
#[test]
fn seed_188_a_manager_starts_without_a_link() {
    run(Config { episodes: 1, ..Config::small(188) });
}

/// The time of the registry began at the last stamp in etcd, before the last writes: they were
/// decided again when clients repeated them.
#[test]
fn seed_1145_writes_are_repeated_at_the_next_master() {
    run(Config { episodes: 6, etcd: true, ..Config::small(1145) });
}

/// A port lost its registrations, and was asked to register again before the session began: that
/// was forgotten, and it was asked once more after the next takeover.
#[test]
fn seed_1151_a_port_returns_as_its_manager_starts() {
    run(Config { episodes: 6, ..Config::small(1151) });
}

/// The host of a master lost both its networks. Its successor acknowledged writes, and stood by
/// when it returned; it went on in its session, with the registry that it had had before, until
/// responders refused that.
#[test]
fn seed_5146_a_master_returns_and_its_successor_stands_by() {
    run(Config { episodes: 2, ..Config::small(5146) });
}

/// A master set its M_Key at a port that had come back, and handed over before that key was in
/// etcd: the next master could not read the port.
#[test]
fn seed_5165_a_port_has_an_m_key_that_is_not_stored() {
    run(Config { episodes: 1, etcd: true, ..Config::small(5165) });
}

/// A master hung while another set its M_Keys, went on, took the fence and could not read its own
/// node: it kept the fence, and the other one could not write its M_Keys to etcd.
#[test]
fn seed_5640_a_master_with_the_fence_cannot_read_its_own_node() {
    run(Config { episodes: 4, etcd: true, ..Config::small(5640) });
}
