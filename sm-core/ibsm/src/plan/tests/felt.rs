//! Tests of what a comparison says about traffic, and of recommendations.

use super::super::recommend::{self, Recommendation};
use super::*;
use crate::cli::Goal;

fn recommended(plan: &Plan<'_>, goal: Goal) -> Recommendation {
    recommend::all(plan).into_iter().find(|given| given.goal == goal).unwrap()
}

/// The rows of the second table, in words.
fn felt(text: &str) -> Vec<Vec<&str>> {
    let begin = text.find("\nWhat applications feel (").unwrap();
    let rows = text[begin..].trim_start().split("\n\n").nth(1).unwrap();
    rows.lines().map(|row| row.split_whitespace().collect()).collect()
}

#[test]
fn bandwidth_of_patterns_is_shown_beside_its_bound() {
    let options = options(&["--engines", "ftree,minhop", "--patterns", "31"]);
    let plan = plan(&options, fat_tree());
    let text = table::render(&plan);
    assert!(text.contains("\nWhat applications feel (31 patterns of each kind)\n"), "{text}");
    let rows = felt(&text);
    assert_eq!(rows[1], ["bound", "1.000", "1.000", "1.000"]);
    assert_eq!((rows[2][0], &rows[2][2..5]), ("ftree", &["1.000", "(1.0,", "1)"][..]), "{text}");
    assert_eq!(rows.len(), 4);
    let document: serde_json::Value = serde_json::from_str(&json::render(&plan)).unwrap();
    let base = &document["engines"][0]["tables"]["base"];
    assert_eq!(base["shifts"]["bandwidth"], 1.0);
    assert_eq!((&base["shifts"]["patterns"], &base["shifts"]["flows"]), (&31.into(), &992.into()));
    assert!(base["matchings"]["bandwidth"].as_f64().unwrap() < 1.0);
    assert!(document["engines"][0]["tables"]["spread"].is_null());
}

#[test]
fn several_lids_have_rows_of_their_own() {
    let options = options(&["--engines", "minhop"]);
    let net = generate(
        &Shape::Grid(Grid { dims: vec![3, 3], wraps: true, hosts_per_switch: 2, radix: None }),
        &Common::default(),
    );
    let plan = plan(&options, Site::new(&net.unwrap(), Some(2)).unwrap());
    let text = table::render(&plan);
    let names: Vec<_> = felt(&text).iter().map(|row| row[..2].join(" ")).collect();
    assert_eq!(names[1].split(' ').next(), Some("bound"));
    assert!(names[3].starts_with("minhop +") && names[4].starts_with("minhop /"), "{text}");
    let document: serde_json::Value = serde_json::from_str(&json::render(&plan)).unwrap();
    for plane in ["spread", "divided"] {
        let contention = &document["engines"][0]["tables"][plane]["contention"];
        assert!(contention.as_f64().unwrap() > 0.0);
    }
}

/// With an LMC, detours pay off for shifts that use all LIDs, and longer routes are counted.
/// Without one there are none.
#[test]
fn detours_are_recommended_where_ports_have_several_lids() {
    let shape = HyperX { dims: vec![5, 5], hosts_per_switch: 2, radix: None };
    let net = generate(&Shape::HyperX(shape), &Common::default()).unwrap();
    let options = options(&["--engines", "dfsssp,layers", "--goal", "all-to-all"]);
    let some = plan(&options, Site::new(&net, Some(2)).unwrap());
    let Recommendation { engine, reason, .. } = recommended(&some, Goal::AllToAll);
    assert_eq!(engine, Some("layers"), "{reason}");
    assert!(reason.contains(", divided among LIDs (0."), "{reason}");
    let text = table::render(&some);
    let note = text.lines().find(|line| line.contains(" are longer than the shortest path"));
    assert!(note.unwrap().trim_start().starts_with("layers  "), "{text}");
    let document: serde_json::Value = serde_json::from_str(&json::render(&some)).unwrap();
    let longer = |engine: usize| &document["engines"][engine]["tables"]["routes_longer"];
    assert_eq!(longer(0), 0);
    assert!(longer(1).as_u64().unwrap() > 0);

    let none = plan(&options, Site::new(&net, None).unwrap());
    assert!(!table::render(&none).contains("longer than the shortest path"));
    assert_eq!(recommended(&none, Goal::AllToAll).engine, Some("dfsssp"));
}

/// In the order of the file, neighbours are on one switch; interleaved, they are far apart.
#[test]
fn the_order_of_hosts_counts() {
    let site = ring(6, 2);
    let hosts: Vec<_> = site.roster.ends.iter().filter(|end| end.kind.code() == 1).collect();
    let name = |at: usize| format!("{}\n", hosts[at].guid);
    let file: String = (0..6).chain(0..3).map(name).collect();
    let (groups, remarks) = site.traffic(&HostOrder::File("f".into()), &file);
    assert_eq!((groups[0].len(), remarks.len()), (6, 0), "each host once, others not at all");
    let options = options(&["--engines", "minhop", "--hosts", "f"]);
    let some = compare(&options, site.clone(), 8, &|site| steering(site), &file).unwrap();
    let made = some.trials[0].trial.outcome.as_ref().unwrap();
    assert_eq!(made.quality.base.shifts.flows, 5 * 6);
}

#[test]
fn the_engine_for_a_goal_is_the_best_that_cannot_deadlock() {
    let arguments = ["--engines", "minhop,lash,nue,ftree", "--failures", "links"];
    let options = options(&arguments);
    let plan = plan(&options, ring(6, 2));
    let given = recommend::all(&plan);
    assert_eq!(
        given.iter().map(|given| given.goal).collect::<Vec<_>>(),
        [Goal::AllToAll, Goal::Pairs, Goal::Stable]
    );
    for given in &given {
        assert!(matches!(given.engine, Some("lash" | "nue")), "{given:?}");
    }
    let text = table::render(&plan);
    assert!(text.contains("\nRecommended for\n  all-to-all: "), "{text}");
    assert!(given[0].reason.contains(" of at most "), "{given:?}");
    assert!(given[2].reason.contains("entries change per failure"), "{given:?}");
}

/// `lash` is free of credit loops as `ftree` is, and has less bandwidth on a damaged tree.
#[test]
fn the_better_one_is_recommended_with_the_reason() {
    let shape = FatTree { levels: 3, radix: 6, hosts: 54, oversubscription: (1, 1) };
    let common = Common { missing_links: 5.0, seed: 2, ..Common::default() };
    let site = Site::new(&generate(&Shape::FatTree(shape), &common).unwrap(), None).unwrap();
    let options = options(&["--engines", "lash,ftree", "--goal", "all-to-all"]);
    let plan = plan(&options, site);
    assert_eq!(recommend::all(&plan).len(), 1);
    let Recommendation { engine, reason, .. } = recommended(&plan, Goal::AllToAll);
    assert_eq!(engine, Some("ftree"), "{reason}");
    assert!(reason.contains("; next is lash: shifts have "), "{reason}");
}

#[test]
fn without_a_suitable_engine_the_reasons_are_listed() {
    let options = options(&["--engines", "minhop,ftree", "--goal", "pairs"]);
    let plan = plan(&options, ring(6, 2));
    let given = recommended(&plan, Goal::Pairs);
    let expected = "no engine is suitable: minhop (can deadlock), ftree (refused)";
    assert_eq!((given.engine, given.reason.as_str()), (None, expected));
}

/// On a line of three switches the failure of a link changes what led over it, and nothing else.
#[test]
fn changed_entries_are_compared_with_those_that_had_to_change() {
    let options = options(&["--engines", "minhop", "--failures", "links"]);
    let tree = plan(&options, fat_tree());
    let tally = &tree.trials[0].failures[0];
    assert!(tally.forced > 0 && tally.changed >= tally.forced, "{tally:?}");
    assert!(tally.shifts.min <= tally.shifts.mean() && tally.shifts.mean() < 1.0, "{tally:?}");
    assert!(tally.matchings.min > 0.5);
    let dims = vec![3];
    let grid = Grid { dims, wraps: false, hosts_per_switch: 1, radix: None };
    let line = plan(&options, site(&Shape::Grid(grid)));
    let tally = &line.trials[0].failures[0];
    // Two links; without either, one switch loses two LIDs of two others, and two lose one's two.
    assert_eq!((tally.tried, tally.forced, tally.changed), (2, 16, 16));
    let text = table::render(&tree);
    let header = text.lines().find(|line| line.starts_with("engine  refused")).unwrap();
    let header: Vec<_> = header.split_whitespace().collect();
    assert_eq!(header[3..9], ["changed", "mean/max", "forced", "eBB", "mean/min", "shift"]);
    let row = text.lines().rfind(|line| line.starts_with("minhop")).unwrap();
    assert_eq!(row.split_whitespace().nth(6), Some("15"), "{text}");
}
