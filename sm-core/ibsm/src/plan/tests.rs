//! Tests of whole comparisons, and of what they count.

mod felt;
mod programmed;

use fabric_sim::generate::{Common, FatTree, Grid, HyperX, Shape, generate};

use super::survey::Survey;
use super::*;
use sm_routing::{Engine, MinHop, NO_ROUTE, Previous, Routing, RoutingError, Steering, Topology};

fn ring(switches: u16, hosts_per_switch: u8) -> Site {
    let dims = vec![switches];
    site(&Shape::Grid(Grid { dims, wraps: true, hosts_per_switch, radix: None }))
}

fn fat_tree() -> Site {
    let oversubscription = (1, 1);
    site(&Shape::FatTree(FatTree { levels: 2, radix: 8, hosts: 32, oversubscription }))
}

fn site(shape: &Shape) -> Site {
    Site::new(&generate(shape, &Common::default()).unwrap(), None).unwrap()
}

fn options(arguments: &[&str]) -> PlanOptions {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: PlanOptions,
    }
    let arguments = [&["plan", "a.net"], arguments].concat();
    <Line as clap::Parser>::try_parse_from(arguments)
        .unwrap_or_else(|error| panic!("{error}"))
        .options
}

fn steering(site: &Site) -> Steering {
    EngineSettings::default().steer(site, 8).steering
}

fn plan(options: &PlanOptions, site: Site) -> Plan<'_> {
    compare(options, site, 8, &|site| steering(site), "").unwrap()
}

/// The words of an engine's row in the first table that has one.
fn words<'a>(text: &'a str, engine: &str) -> Vec<&'a str> {
    let row = text.lines().find(|line| line.split_whitespace().next() == Some(engine));
    row.unwrap_or_else(|| panic!("no row of {engine} in\n{text}")).split_whitespace().collect()
}

/// On a ring of six the other switches are 1, 1, 2, 2 and 3 links away: a sum of 9 for each of 6
/// switches, with two hosts at either end 216 for 12 x 11 routes.
#[test]
fn a_ring_is_shown_with_its_credit_loop() {
    let options = options(&["--engines", "MinHop,lash,torus-2QoS,ftree"]);
    let plan = plan(&options, ring(6, 2));
    let text = table::render(&plan);
    assert!(
        text.starts_with(
            "a.net: 6 switches, 6 links between them, 12 hosts, 18 LIDs, 8 data VLs\n"
        )
    );
    let minhop = words(&text, "minhop");
    assert_eq!(
        minhop[..8],
        ["minhop", "all", "1.64", "/", "3", minhop[5], minhop[6], "1"],
        "{text}"
    );
    assert_eq!(minhop[8..11], ["/", "1", "YES"]);
    assert_eq!(words(&text, "lash")[7..11], ["2", "/", "2", "none"], "{text}");
    assert_eq!(words(&text, "torus-2QoS")[1], "refused");
    assert!(text.contains("\nRefused:\n  torus-2QoS  no usable torus-2QoS.conf"), "{text}");
    // A cycle with names; each hop leads to the next.
    let cycle = text.lines().find(|line| line.starts_with("  minhop  ")).unwrap();
    let loops = &plan.trials[0].trial.outcome.as_ref().unwrap().loops;
    assert!(cycle.starts_with("  minhop  6 links: "), "{cycle}");
    for (switch, port) in &loops.example {
        let name = &plan.site.roster.switches[usize::from(*switch)].name;
        assert!(cycle.contains(&format!("'{name}' port {port} > ")), "{cycle}");
    }
}

#[test]
fn the_document_has_the_content_of_the_table() {
    let options = options(&["--engines", "minhop,ftree", "--failures", "links"]);
    let plan = plan(&options, ring(6, 2));
    let document: serde_json::Value = serde_json::from_str(&json::render(&plan)).unwrap();
    assert_eq!(document["format"], 2);
    assert_eq!((&document["switches"], &document["links"]), (&6.into(), &6.into()));
    let [minhop, ftree] = &document["engines"].as_array().unwrap()[..] else { panic!() };
    assert_eq!(
        (&minhop["engine"], &minhop["refused"]),
        (&"minhop".into(), &serde_json::Value::Null)
    );
    let tables = &minhop["tables"];
    assert_eq!(tables["routes"], 12 * 11);
    assert_eq!((&tables["hops_max"], &tables["deadlock_free"]), (&3.into(), &false.into()));
    assert_eq!(tables["cycle"].as_array().unwrap().len(), 6);
    assert!(tables["cycle"][0]["guid"].as_str().unwrap().starts_with("0x"));
    // Without a link the ring is a line.
    let failures = &minhop["failures"][0];
    assert_eq!((&failures["of"], &failures["tried"]), (&"links".into(), &6.into()));
    assert_eq!((&failures["deadlocking"], &failures["pairs_parted"]), (&0.into(), &0.into()));
    assert!(ftree["refused"].as_str().unwrap().contains("of the same rank"));
    assert!(ftree["tables"].is_null() && ftree["failures"].as_array().unwrap().is_empty());
}

/// A two-level tree is routed around any failed link; a failed leaf takes its hosts with it, and a
/// failed link of a line partitions it.
#[test]
fn failures_are_counted_by_their_effect() {
    let options = options(&["--engines", "minhop,ftree", "--failures", "all"]);
    let tree = plan(&options, fat_tree());
    for tried in &tree.trials {
        let [links, switches] = &tried.failures[..] else { panic!("two kinds") };
        assert_eq!((links.tried, links.total, links.refused), (32, 32, 0));
        assert_eq!((links.lost, links.parted, links.looping), (0, 0, 0));
        assert!(links.changed > 0 && links.changed_max <= 8 * 44, "{links:?}");
        assert_eq!((switches.tried, switches.refused), (12, 0));
        assert_eq!((switches.lost, switches.parted), (0, 0));
    }

    let net = ib_mad::netlist::Net::parse(
        "net",
        "Switch 4 \"s\"\n[1] \"t\"[1]\n[2] \"a\"[1]\n[3] \"b\"[1]\n\nSwitch 4 \"t\"\n[2] \
         \"c\"[1]\n\n\
         Ca 1 \"a\"\n\nCa 1 \"b\"\n\nCa 1 \"c\"\n",
    );
    let line = plan(&options, Site::new(&net.unwrap(), None).unwrap());
    let [links, _] = &line.trials[0].failures[..] else { panic!("two kinds") };
    // a and b no longer reach c, nor c them.
    assert_eq!((links.tried, links.parted, links.lost), (1, 4, 0));
    let text = table::render(&line);
    assert!(text.contains("Some failures partition the fabric: 4 pairs of"), "{text}");
}

#[test]
fn a_limited_number_of_failures_is_tried_evenly_spaced() {
    let options = options(&["--engines", "minhop", "--failures", "links", "--failures-max", "5"]);
    let plan = plan(&options, fat_tree());
    let tally = &plan.trials[0].failures[0];
    assert_eq!((tally.tried, tally.total), (5, 32));
    assert!(table::render(&plan).contains("(5 of 32 tried, evenly spaced)"));
    let all = plan.site.failures(false);
    let tried = failures::Choice::of(&plan.site, false, 5).tried;
    assert_eq!(tried, [0, 6, 12, 19, 25].map(|index| all[index]));
}

/// Routes minimum hops. With a previous routing, one entry is missing.
#[derive(Debug)]
struct Faulty;

impl Engine for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        let mut routing = MinHop.route(topology, steering, None)?;
        if previous.is_some() {
            let host = topology.destinations().iter().find(|to| to.is_host()).unwrap();
            let far = topology.switches().find(|&switch| switch != host.egress_switch).unwrap();
            routing.lfts[usize::from(far)][host.base_lid.index()] = NO_ROUTE;
        }
        Ok(routing)
    }
}

#[test]
fn tables_that_are_wrong_after_a_failure_count_as_refused() {
    let site = ring(6, 1);
    let steer = |site: &Site| steering(site);
    let traffic = |site: &Site| Traffic {
        hosts: sm_routing::measure::by_lid(&site.topology),
        effort: Effort::default(),
    };
    let trial = Trial::run(&Faulty, &site, &steer(&site), &traffic(&site));
    let made = trial.outcome.unwrap();
    assert!(made.deliveries.is_sound());
    let choice = Choice::of(&site, false, 10);
    let (whole, progress) = ((&site, &made), &mut Progress::new());
    let tally = failures::tally(&Faulty, whole, &choice, &steer, &traffic, progress).unwrap();
    assert_eq!((tally.tried, tally.refused), (6, 6));
    let (_, reason) = tally.refusal.unwrap();
    assert!(reason.contains("wrong entries, the first: switch '"), "{reason}");
}

#[test]
fn routes_that_go_nowhere_are_lost_and_not_parted() {
    let site = ring(6, 3);
    let mut routing = MinHop.route(&site.topology, &Steering::default(), None).unwrap();
    let before = Survey::of(&site.topology, &routing);
    assert_eq!((before.routes, before.lost, before.parted), (18 * 17, 0, 0));
    // The egress switch does not deliver: all 17 others lose the LID, and the other hosts on the
    // same switch.
    let host = *site.topology.destinations().iter().find(|to| to.is_host()).unwrap();
    routing.lfts[usize::from(host.egress_switch)][host.base_lid.index()] = NO_ROUTE;
    let after = Survey::of(&site.topology, &routing);
    assert_eq!((after.routes, after.lost, after.parted), (18 * 17 - 17, 17, 0));
}

/// On a line of three switches with a host each: two pairs of neighbours, one link apart, and the
/// ends, two links apart, in both directions.
#[test]
fn hops_are_links_between_switches() {
    let net = generate(
        &Shape::Grid(Grid { dims: vec![3], wraps: false, hosts_per_switch: 1, radix: None }),
        &Common::default(),
    );
    let site = Site::new(&net.unwrap(), None).unwrap();
    let routing = MinHop.route(&site.topology, &Steering::default(), None).unwrap();
    let survey = Survey::of(&site.topology, &routing);
    assert_eq!((survey.routes, survey.hops, survey.hops_max), (6, 8, 2));
    assert!((survey.mean() - 8.0 / 6.0).abs() < 1e-9);
}

#[test]
fn engines_are_listed_once_and_unknown_ones_are_errors() {
    let names = |text: &str| -> Vec<_> {
        let options = options(&["--engines", text]);
        options.engines.engines().iter().map(|engine| engine.name()).collect()
    };
    assert_eq!(names("SSSP, minhop sssp"), ["sssp", "minhop"]);
    assert_eq!(names("lash,all")[..2], ["lash", "minhop"]);
    assert_eq!(names("all").len(), sm_routing::engines::all().len());
    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: PlanOptions,
    }
    for (value, message) in
        [("bogus", "unknown engine 'bogus'; known engines: minhop, "), (",", "no engine given")]
    {
        let line = ["plan", "net", "--engines", value];
        let error = <Line as clap::Parser>::try_parse_from(line).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn tables_are_dumped_under_opensms_file_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dump");
    let options = options(&["--engines", "minhop,dor", "--dump", path.to_str().unwrap()]);
    plan(&options, fat_tree());
    for engine in ["minhop", "dor"] {
        let read = |name: &str| std::fs::read_to_string(path.join(engine).join(name)).unwrap();
        let routes = read("opensm.fdbs");
        assert_eq!(routes.matches("dump_ucast_routes: Switch 0x").count(), 12);
        assert!(!routes.contains("UNREACHABLE") && !routes.contains("possible"), "{routes}");
        assert_eq!(read("opensm-lfts.dump").matches("44 lids dumped").count(), 12);
    }
}

/// A ring needs two layers; SL 1 is on VL 1 everywhere.
#[test]
fn sls_and_their_virtual_lanes_are_dumped() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(&["--engines", "lash", "--dump", directory.path().to_str().unwrap()]);
    let plan = plan(&options, ring(6, 2));
    assert!(plan.trials[0].trial.outcome.is_ok());
    let read = |name: &str| std::fs::read_to_string(directory.path().join("lash").join(name));
    let sls = read("ibsm-path-sls.dump").unwrap();
    assert_eq!(sls.matches("Switch 0x").count(), 6);
    for sl in [0, 1] {
        assert!(sls.matches(&format!(" : {sl}\n")).count() > 10, "{sls}");
    }
    assert_eq!(sls.matches("\n0x").count(), 6 * 18, "{sls}");
    let maps = read("opensm-sl2vl.dump").unwrap();
    assert_eq!(maps.matches("Switch 0x").count(), 6);
    assert_eq!(maps.matches("Channel Adapter 0x").count(), 12);
    assert!(maps.contains("\n0   0   : 0  1  2  3  4  5  6  7  0  1  2  3"), "{maps}");
    // Four ports with a link, and maps from all ports and port 0.
    let is_map = |line: &&str| line.contains(" : 0  1  2") && !line.starts_with('#');
    let of_switches = maps.lines().filter(is_map).count() - 12;
    assert_eq!(of_switches % (6 * 4), 0);
}

/// Files contain GUIDs, and those that remain still apply after a failure.
#[test]
fn engines_are_steered_by_files_also_after_failures() {
    let directory = tempfile::tempdir().unwrap();
    let (roots, conf) = (directory.path().join("roots"), directory.path().join("ibsm.conf"));
    let site = ring(6, 2);
    let guid = |switch: usize| site.roster.switches[switch].guid;
    std::fs::write(&roots, format!("{}\n{}\n0x99\n", guid(4), guid(5))).unwrap();
    std::fs::write(&conf, format!("root_guid_file {}\n", roots.display())).unwrap();
    let settings = EngineSettings::load(Some(&conf), &[], &["updn"]).unwrap();
    let steered = settings.steer(&site, 3);
    let steering = &steered.steering;
    assert_eq!((&steering.updn.roots[..], steering.common.data_lanes), (&[4, 5][..], 3));
    assert!(steered.remarks[0].contains("roots:3: 0x0000000000000099"), "{:?}", steered.remarks);
    let (rest, _) = site.without(site::Failure::Switch(1)).unwrap();
    assert_eq!(settings.steer(&rest, 3).steering.updn.roots, [3, 4]);

    // updn, which finds no roots on a ring by itself, routes with these.
    let options = options(&["--engines", "updn"]);
    let steer = |site: &Site| settings.steer(site, 8).steering;
    let steered = compare(&options, site.clone(), 8, &steer, "").unwrap();
    assert!(steered.trials[0].trial.outcome.is_ok());
    assert!(plan(&options, site).trials[0].trial.outcome.is_err());
}

#[test]
fn invalid_settings_and_files_are_reported() {
    let refusal = |text: &str| {
        let options = options(&["--set", text]);
        EngineSettings::load(None, &options.set, &["torus-2QoS"]).unwrap_err().to_string()
    };
    assert_eq!(
        refusal("root_guids=x"),
        "--set: unknown key 'root_guids'; ibsm -c FILE lists all keys"
    );
    assert!(refusal("lmc=9").contains("lmc must be 0 to 7, not 9"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("roots");
    std::fs::write(&path, "0x1\nnonsense\n").unwrap();
    let message = refusal(&format!("root_guid_file={}", path.display()));
    assert!(message.contains("roots:2: "), "{message}");
}

/// Regression: one broken torus-2QoS.conf ended the plan for all engines,
/// and mistakes in the settings were not reported.
#[test]
fn a_broken_file_of_one_engine_is_a_refusal_of_that_one() {
    let directory = tempfile::tempdir().unwrap();
    let (torus, conf) = (directory.path().join("torus"), directory.path().join("opensm.conf"));
    std::fs::write(&torus, "torus 5\n").unwrap();
    let text = format!("torus_config {}\nrouting_engine updn,minhop\nlmcc 3\n", torus.display());
    std::fs::write(&conf, text).unwrap();
    let settings = EngineSettings::load(Some(&conf), &[], &["torus-2QoS", "updn"]).unwrap();
    let refusal = settings.refusal("torus-2QoS").unwrap();
    assert!(refusal.contains("torus:1: "), "{refusal}");
    assert_eq!(settings.refusal("updn"), None);
    assert!(settings.remarks[0].contains("lmcc"), "{:?}", settings.remarks);
    assert_eq!(settings.engine_names(), ["updn", "minhop"]);
}

#[test]
fn the_engine_that_the_settings_would_use_is_the_first_that_is_right_and_free_of_deadlocks() {
    let options = options(&["--engines", "updn,minhop,nue"]);
    let on_ring = plan(&options, ring(6, 2));
    let wanted = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let used = |names: &[&str]| in_force(&on_ring.trials, &wanted(names));
    // updn refuses a ring without roots, and minhop's routes could deadlock there.
    assert_eq!(used(&["updn", "minhop", "nue"]), Some("nue"));
    assert_eq!(used(&["updn"]), Some("minhop"));
    assert_eq!((used(&["updn", "no_fallback"]), used(&[]), used(&["ftree"])), (None, None, None));
}
