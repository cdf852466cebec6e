//! Processes are killed at random moments: records whose registration was acknowledged are present
//! afterwards, once, and a repeated request gets the answer of the first.
//!
//! Clients at many ports join, leave, register, withdraw and subscribe through two responders,
//! while managers and responders are killed, terminated and restarted. `CHAOS_SEED` selects another
//! random sequence; which moments are hit also depends on the machine.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::chaos_support::herd::Herd;
use crate::chaos_support::{Dice, Registered, request};
use crate::support::{Host, Subnet, hosts, variable};
use benches::sandbox::{PATIENCE, Program, free_address};
use ib_mad::types::Gid;
use ib_mad::wire::mad::{Method, Status};
use sa_proto::snapshot::RegistryPlane;

/// Clients at each host.
const CLIENTS_EACH: u32 = 3;
/// Requests of each client, some of them repeated; at about 15 a second.
const REQUESTS: u64 = 110;

/// A subnet with two responders that restart at the same address.
struct Site {
    subnet: Subnet,
    listen: [SocketAddr; 2],
}

impl Site {
    fn new(name: &str) -> Self {
        Self { subnet: Subnet::new(name), listen: [free_address(), free_address()] }
    }

    fn ibsa(&self, number: usize) -> Program {
        let name = format!("ibsa-{number}");
        let (sm, listen) = (self.subnet.url(), self.listen[number].to_string());
        let cache = self.subnet.sandbox.path(&format!("cache-{number}"));
        let mut args = vec!["--sm", &sm, "--name", &name, "--transport", "udp"];
        args.extend(["--listen", &listen, "--cache-dir", cache.to_str().expect("UTF-8")]);
        self.subnet.sandbox.ours("ibsa", &name, &args)
    }

    async fn registry(&self) -> RegistryPlane {
        (**self.subnet.snapshot().await.registry()).clone()
    }
}

/// Ends a program in one of several ways.
fn end(program: Program, gently: bool) {
    if gently {
        program.signal(libc::SIGTERM);
        let (status, log) = program.wait();
        assert!(status.success(), "{log}");
    } else {
        program.kill();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn whatever_is_killed_nothing_acknowledged_is_lost_or_there_twice() {
    let seed = variable("CHAOS_SEED", 1);
    eprintln!("CHAOS_SEED={seed}");
    let site = Site::new("chaos");
    let runtime = runtime();
    let mut ibsm = Some(site.subnet.ibsm(&[]));
    ibsm.iter().for_each(|ibsm| drop(ibsm.wait_for("SUBNET UP")));
    let mut ibsa = [0, 1].map(|number| Some(site.ibsa(number)));
    let snapshot = runtime.block_on(site.subnet.snapshot());
    let (hosts, groups_before) = (hosts(&snapshot), snapshot.registry().groups.len());
    let mut herd = Herd::new(seed, &hosts, CLIENTS_EACH, REQUESTS, &site.listen);

    let (began, mut dice, mut deaths) = (Instant::now(), Dice::new(seed), Vec::new());
    thread::scope(|scope| {
        let clients = scope.spawn(|| herd.run());
        while !clients.is_finished() {
            thread::sleep(Duration::from_millis(100 + dice.below(1200)));
            let gently = dice.below(4) == 0;
            let victim = dice.below(4);
            let absent = Duration::from_millis(dice.below(300));
            match victim {
                0 | 1 => {
                    end(ibsm.take().expect("it runs"), gently);
                    thread::sleep(absent);
                    ibsm = Some(site.subnet.ibsm(&[]));
                }
                victim => {
                    let place = &mut ibsa[victim as usize - 2];
                    end(place.take().expect("it runs"), gently);
                    thread::sleep(absent);
                    *place = Some(site.ibsa(victim as usize - 2));
                }
            }
            deaths.push((began.elapsed().as_millis(), ["SM", "SM", "0", "1"][victim as usize]));
        }
        clients.join().unwrap();
    });
    // All acknowledged state of the last manager must be on disk.
    end(ibsm.take().expect("it runs"), false);
    let ibsm = site.subnet.ibsm(&[]);

    let seen = &herd.seen;
    eprintln!("{} deaths in {:?}: {deaths:?}", deaths.len(), began.elapsed());
    eprintln!(
        "{} answers, {} repeats compared, {} asked again, {} late",
        seen.answered, seen.repeats_compared, seen.sent_again, seen.late
    );
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    assert!(deaths.len() > 3 && seen.repeats_compared > 0, "the run did not test anything");
    let plane = runtime.block_on(site.registry());
    let (mut found, wanted) = (Registered::of(&plane), herd.registered());
    let of_known = |mgid: Gid| wanted.members.keys().any(|(known, _)| *known == mgid);
    let unknown = found.members.keys().filter(|(mgid, _)| !of_known(*mgid)).count();
    assert!(unknown <= seen.late_creations, "{unknown} memberships without a request");
    found.members.retain(|(mgid, _), _| of_known(*mgid));
    assert_same(&found, &wanted);
    let made = plane.groups.iter().filter(|group| !group.predefined).count();
    let known = wanted.members.keys().map(|(mgid, _)| *mgid);
    let known = known.collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!(made, known + unknown, "of {groups_before} at first");

    // Both responders must find all of it, once they follow this manager.
    let begun = ibsm.wait_for("session begun");
    let (_, session) = begun.split_once("session=").expect("the line names the session");
    for (place, number) in ibsa.iter().flatten().zip(0..) {
        place.wait_for(&format!("version={session}:"));
        for (n, &(id, gid)) in wanted.services.keys().enumerate() {
            let host = *hosts.iter().find(|host| host.gid == gid).unwrap();
            let get = request::service(Method::GET, host, 1 << 40 | n as u64, id, 0);
            assert_eq!(herd.ask(number, host, get), Status::OK, "{id:#x} at {number}");
        }
    }
    drop(ibsm);
}

fn assert_same(found: &Registered, wanted: &Registered) {
    let lost: Vec<_> =
        wanted.members.iter().filter(|row| !found.members.contains_key(row.0)).collect();
    assert!(lost.is_empty(), "memberships are lost: {lost:?}");
    assert_eq!(found.members, wanted.members);
    assert_eq!(found.services, wanted.services);
    assert_eq!(found.subscriptions, wanted.subscriptions);
    assert_eq!(found.aliases, wanted.aliases);
}

/// The manager is paused, so that a request has left the responder and is not decided yet.
#[test]
fn a_request_outlives_the_responder_that_took_it() {
    let site = Site::new("chaos-responder");
    let runtime = runtime();
    let ibsm = site.subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let ibsa = [site.ibsa(0), site.ibsa(1)];
    let hosts: Vec<Host> = hosts(&runtime.block_on(site.subnet.snapshot()));
    ibsa.iter().for_each(|ibsa| drop(ibsa.wait_for("serving generation")));
    // Both are connected to the SM.
    let mut herd = Herd::new(1, &hosts, 1, 0, &site.listen);
    for number in 0..2 {
        let mad = request::service(Method::SET, hosts[0], 1, number as u64, 0);
        assert_eq!(herd.ask(number, hosts[0], mad), Status::OK);
    }

    ibsm.signal(libc::SIGSTOP);
    let mad = request::join(hosts[1], 7, Gid::ZERO, 1);
    herd.send(0, hosts[1], mad);
    thread::sleep(Duration::from_millis(300));
    let [first, _second] = ibsa;
    first.kill();
    ibsm.signal(libc::SIGCONT);
    assert_eq!(herd.ask(1, hosts[1], mad), Status::OK);
    assert_eq!(herd.ask(1, hosts[1], mad), Status::OK);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let plane = runtime.block_on(site.registry());
        let made = plane.groups.iter().filter(|group| !group.predefined).count();
        assert!(made <= 1, "one request made {made} groups");
        if made == 1 {
            break;
        }
        assert!(Instant::now() < deadline, "an acknowledged write is not published");
    }
}
