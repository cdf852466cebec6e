//! `ibsmctl topology` and `ibsmctl diff`: the published topology in forms that other programs read,
//! and how two fabrics differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use ib_mad::netlist::Net;
use ib_mad::types::{Guid, PortNum};
use sa_proto::proto::admin::{self, TopologyRequest};
use serde::Serialize;

use super::quarantined::{self, KeptOut};
use super::{CtlError, Sm, baseline, events, time, to_json};
use crate::export::Form;
use crate::observe::ports::{KeptFabric, PortDifference, PortStatus, Ports};
use crate::observe::topology::{Difference, End, Topology};

/// Options of `topology`.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    form: FormOptions,
    /// Count hosts only at adapters whose NodeDescription has this second word, such as HCA-1;
    /// repeatable.
    #[arg(long, value_name = "NAME")]
    rail: Vec<String>,
    /// Print the topology of this time (12:03, '2026-11-27 12:03', 5m ago as 5m), from the history;
    /// with --ibnetdiscover.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct FormOptions {
    /// As ibnetdiscover prints it: for ibsm plan, ibfabric, ibsmctl diff and others.
    #[arg(long)]
    ibnetdiscover: bool,
    /// topology.conf of Slurm's topology/tree.
    #[arg(long)]
    slurm: bool,
    /// topology.conf of Slurm's topology/block, a block per leaf switch.
    #[arg(long)]
    slurm_block: bool,
    /// The graph of topograph, as JSON.
    #[arg(long)]
    topograph: bool,
}

impl FormOptions {
    fn form(&self) -> Form {
        match self {
            Self { slurm: true, .. } => Form::Slurm,
            Self { slurm_block: true, .. } => Form::SlurmBlock,
            Self { topograph: true, .. } => Form::Topograph,
            Self { .. } => Form::Ibnetdiscover,
        }
    }
}

/// Options of `diff`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ibsmctl diff                   The fabric now, compared with the baseline.\n  \
    ibsmctl diff good.topo         The same, compared with a file.\n  \
    ibsmctl diff 12:00 12:05       What changed in these five minutes, from the history.")]
pub struct DiffOptions {
    /// Output of ibsmctl topology --ibnetdiscover, or of ibnetdiscover: what is expected. Or a
    /// time, such as 12:00, '2026-11-27 12:00', 5m (ago): the topology of then, from the history
    /// [default: the baseline, see ibsmctl baseline].
    old: Option<String>,
    /// The same of another time [default: the fabric now].
    new: Option<String>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Requests the topology.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let at_ms = options.at.as_deref().map(|at| time::parse("--at", at)).transpose()?;
    let (text, ..) = fetch(sm, options.form.form(), &options.rail, at_ms, false).await?;
    Ok(text)
}

/// Operators' names of nodes.
type Names = BTreeMap<Guid, String>;

/// The topology as text, and, if `ports` are wanted, the rest of the fabric without a topology, and
/// the operator's names.
async fn fetch(
    sm: &Sm,
    form: Form,
    rails: &[String],
    at_ms: Option<u64>,
    ports: bool,
) -> Result<(String, KeptFabric, Names), CtlError> {
    let (form, rails) = (form.name().to_owned(), rails.to_vec());
    let request = TopologyRequest { form, rails, at_ms, ports };
    let answer = sm.connect().await?.get_topology(request).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut text = String::new();
    let mut ports: BTreeMap<Guid, Vec<PortStatus>> = BTreeMap::new();
    let mut routing_engine = String::new();
    let mut names = Names::new();
    while let Some(part) = stream.message().await.map_err(|status| sm.refused(&status))? {
        text += &part.text;
        routing_engine += &part.routing_engine;
        names.extend(part.names.into_iter().map(|of| (Guid(of.guid), of.name)));
        for port in &part.ports {
            ports.entry(Guid(port.guid)).or_default().push(port_of(port));
        }
    }
    let ports = ports.into_iter().map(|(guid, ports)| (guid, ports.into())).collect();
    Ok((text, KeptFabric { ports: Ports(ports), routing_engine, ..KeptFabric::default() }, names))
}

/// A port of the answer. Its fields are bytes and LIDs on the wire of the fabric.
fn port_of(port: &admin::PortStatus) -> PortStatus {
    PortStatus {
        number: PortNum(port.port as u8),
        guid: Guid(port.port_guid),
        state: port.state as u8,
        physical_state: port.physical_state as u8,
        lid: port.lid as u16,
        lmc: port.lmc as u8,
    }
}

/// A fabric that is compared.
struct Side {
    /// With its ports, unless it is a file or the baseline.
    fabric: KeptFabric,
    /// What it is, for people.
    name: String,
    /// What `--quarantine` keeps out of it; nothing if that is not known.
    kept_out: KeptOut,
    /// The operator's names, if the SM was asked.
    names: Names,
    /// Whether it is from the history.
    is_past: bool,
}

impl Side {
    /// One of which only the topology is known.
    fn without_ports(topology: Topology, name: String) -> Self {
        let fabric = KeptFabric { topology, ..KeptFabric::default() };
        Self { fabric, name, kept_out: KeptOut::new(), names: Names::new(), is_past: false }
    }

    /// Shows nodes by the names that the operator gives them now, also those of files and of
    /// earlier times.
    fn give_names(&mut self, names: &Names) {
        for (guid, node) in &mut self.fabric.topology.nodes {
            if let Some(name) = names.get(guid) {
                node.name.clone_from(name);
            }
        }
    }

    /// What it is, with its size.
    fn text(&self) -> String {
        let nodes = grouped(self.fabric.topology.nodes.len());
        format!("{} ({nodes} nodes)", self.name)
    }
}

/// The fabric of a file if there is one of that name, of a time, or of now.
async fn place(sm: &Sm, what: &'static str, place: Option<&str>) -> Result<Side, CtlError> {
    let failed = |failure| CtlError::Net(Box::new(failure));
    let (at_ms, name) = match place.map(|place| (place, time::parse(what, place))) {
        None => (None, "the fabric of now".to_owned()),
        Some((place, Ok(at_ms))) if !Path::new(place).exists() => {
            (Some(at_ms), format!("the fabric of {}", time::seconds(at_ms)))
        }
        // Also what can be no time: a file that is missing.
        Some((file, _)) => {
            let topology = Topology::of_net(&Net::read(Path::new(file)).map_err(failed)?);
            return Ok(Side::without_ports(topology, file.to_owned()));
        }
    };
    let found = fetch(sm, Form::Ibnetdiscover, &[], at_ms, true).await;
    let (text, rest, names) = match (found, at_ms) {
        (Err(failure), Some(_)) => return Err(events::with_reach(sm, failure, "topology").await),
        (found, _) => found?,
    };
    let kept_out = match at_ms {
        Some(at_ms) => quarantined::at(sm, at_ms).await?,
        None => quarantined::now(sm).await?,
    };
    let fabric = KeptFabric { topology: topology("the answer of ibsm", &text)?, ..rest };
    Ok(Side { fabric, name, kept_out, names, is_past: at_ms.is_some() })
}

/// The baseline in force.
async fn expected(sm: &Sm) -> Result<Side, CtlError> {
    let baseline = baseline::fetch(sm, true).await?;
    let name = match &baseline.source[..] {
        "none" => return Err(CtlError::NoBaseline),
        "file" => format!("the baseline {}", baseline.file),
        _ if baseline.taken_ms == 0 => "the baseline of an unknown time".to_owned(),
        _ => format!("the baseline of {}", time::seconds(baseline.taken_ms)),
    };
    Ok(Side::without_ports(topology("the baseline", &baseline.text)?, name))
}

/// A number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The fabric of a time, milliseconds since 1970; without, that of now.
pub(super) async fn at(sm: &Sm, at_ms: Option<u64>) -> Result<KeptFabric, CtlError> {
    let (text, rest, _) = fetch(sm, Form::Ibnetdiscover, &[], at_ms, true).await?;
    Ok(KeptFabric { topology: topology("the answer of ibsm", &text)?, ..rest })
}

/// The topology of a net file.
fn topology(name: &str, text: &str) -> Result<Topology, CtlError> {
    let net = Net::parse(name, text).map_err(|failure| CtlError::Net(Box::new(failure)))?;
    Ok(Topology::of_net(&net))
}

/// Compares two fabrics.
pub(super) async fn diff(sm: &Sm, options: &DiffOptions) -> Result<String, CtlError> {
    let mut old = match &options.old {
        Some(old) => place(sm, "OLD", Some(old)).await?,
        None => expected(sm).await?,
    };
    let mut new = place(sm, "NEW", options.new.as_deref()).await?;
    let names: Names =
        std::mem::take(&mut new.names).into_iter().chain(old.names.clone()).collect();
    [&mut old, &mut new].into_iter().for_each(|side| side.give_names(&names));
    let difference = DifferenceJson::between(&old, &new);
    if options.json {
        return Ok(to_json(&difference));
    }
    let mut text = difference.text(&old, &new, options.new.is_none());
    if !difference.ports_known && (old.is_past || new.is_past) {
        let since = events::reach_of(sm, "ports").await?;
        let _ = writeln!(text, "states and LIDs of ports are not compared: {since}");
    }
    Ok(text)
}

/// A difference as JSON: lines by kind. Its keys stay; more may be added.
#[derive(Serialize)]
struct DifferenceJson {
    /// What was compared.
    old: String,
    new: String,
    missing_nodes: Vec<String>,
    extra_nodes: Vec<String>,
    /// Nodes and links that `--quarantine` keeps out of the new fabric, and did not of the old one.
    quarantined: Vec<String>,
    /// Those that it kept out of the old fabric, and does not of the new one.
    let_in: Vec<String>,
    missing_links: Vec<String>,
    extra_links: Vec<String>,
    moved: Vec<String>,
    changed: Vec<String>,
    /// Ports in another state.
    states: Vec<String>,
    /// Ports with another LID or LMC.
    lids: Vec<String>,
    /// Whether ports were compared: those of both fabrics are known.
    ports_known: bool,
}

impl DifferenceJson {
    fn between(old: &Side, new: &Side) -> Self {
        let names = [old.name.clone(), new.name.clone()];
        let [old_name, new_name] = names;
        let quarantined = only(&new.kept_out, &old.kept_out);
        let let_in = only(&old.kept_out, &new.kept_out);
        let (old, new) = (&old.fabric, &new.fabric);
        let difference = Difference::between(&old.topology, &new.topology);
        let ports = PortDifference::between(old, new);
        let node = |of: &KeptFabric, guid| format!("'{}' {guid}", of.topology.name(guid));
        let link = |of: &KeptFabric, near| {
            let far = of.topology.links[&near].far;
            format!("{} - {}", of.topology.describe(near), of.topology.describe(far))
        };
        let port = |end: End, say: fn(&PortStatus) -> String| {
            let word = |of: &KeptFabric| of.ports.at(end).map_or_else(String::new, say);
            format!("{}: {}, not {}", new.topology.describe(end), word(new), word(old))
        };
        Self {
            old: old_name,
            new: new_name,
            missing_nodes: difference.missing_nodes.iter().map(|&guid| node(old, guid)).collect(),
            extra_nodes: difference.extra_nodes.iter().map(|&guid| node(new, guid)).collect(),
            quarantined,
            let_in,
            missing_links: difference.missing_links.iter().map(|&near| link(old, near)).collect(),
            extra_links: difference.extra_links.iter().map(|&near| link(new, near)).collect(),
            moved: difference
                .moved
                .iter()
                .map(|moved| {
                    let (is, was) = (&new.topology, &old.topology);
                    let (end, to) = (is.describe(moved.end), is.describe(moved.is));
                    format!("{end}: to {to}, not to {}", was.describe(moved.was))
                })
                .collect(),
            changed: difference
                .changed
                .iter()
                .map(|near| {
                    let rate = |of: &KeptFabric| of.topology.links[near].rate.clone();
                    format!("{}: {}, not {}", link(new, *near), rate(new), rate(old))
                })
                .collect(),
            states: ports.states.iter().map(|&end| port(end, PortStatus::states)).collect(),
            lids: ports.lids.iter().map(|&end| port(end, PortStatus::lids)).collect(),
            ports_known: !old.ports.is_empty() && !new.ports.is_empty(),
        }
    }

    /// The lines by kind. `is_now`: whether `new` is the fabric of now.
    fn text(&self, old: &Side, new: &Side, is_now: bool) -> String {
        let mut text = String::new();
        for (what, lines) in [
            ("missing node", &self.missing_nodes),
            ("extra node", &self.extra_nodes),
            ("quarantined", &self.quarantined),
            ("let in", &self.let_in),
            ("missing link", &self.missing_links),
            ("extra link", &self.extra_links),
            ("moved cable", &self.moved),
            ("other rate", &self.changed),
            ("other state", &self.states),
            ("other LID", &self.lids),
        ] {
            for line in lines {
                let _ = writeln!(text, "{what:<14}{line}");
            }
        }
        match (text.is_empty(), is_now) {
            (false, _) => text,
            (true, true) => format!("no difference from {}\n", old.text()),
            (true, false) => format!("no difference between {} and {}\n", old.text(), new.text()),
        }
    }
}

/// Lines of what one side has and the other does not.
fn only(these: &KeptOut, others: &KeptOut) -> Vec<String> {
    let all = these.iter().filter(|(id, line)| others.get(*id) != Some(line));
    all.map(|(_, line)| line.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::render;
    use crate::observe::problem::testing::plane;

    const LINKS: [(u64, u8, u64, u8); 4] =
        [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1), (2, 9, 101, 1)];

    fn side(name: &str, links: &[(u64, u8, u64, u8)], slow: usize) -> Side {
        let text = render(&plane(links, slow, 0), Form::Ibnetdiscover, &[]);
        Side::without_ports(topology("test", &text).unwrap(), name.to_owned())
    }

    #[test]
    fn no_difference_names_what_was_compared() {
        let old = side("the baseline of 2026-11-28 12:03:10", &LINKS, 0);
        let new = side("the fabric of 2026-11-28 12:05:00", &LINKS, 0);
        let same = DifferenceJson::between(&old, &new);
        let from = "no difference from the baseline of 2026-11-28 12:03:10 (5 nodes)\n";
        assert_eq!(same.text(&old, &new, true), from);
        assert_eq!(
            same.text(&old, &new, false),
            "no difference between the baseline of 2026-11-28 12:03:10 (5 nodes) and the fabric of \
             2026-11-28 12:05:00 (5 nodes)\n"
        );
        let numbers = [7, 999, 2000, 1_234_567].map(grouped);
        assert_eq!(numbers, ["7", "999", "2,000", "1,234,567"]);
    }

    #[test]
    fn every_kind_of_difference_has_a_line() {
        let old = side("old", &LINKS, 0);
        // One link is slow, one spine port moved, one host went, another came.
        let new = side("new", &[LINKS[0], (2, 1, 8, 7), LINKS[2], (2, 8, 102, 1)], 1);
        let found = DifferenceJson::between(&old, &new).text(&old, &new, true);
        for line in [
            "missing node  'n101' 0x0000000000000065",
            "extra node    'n102' 0x0000000000000066",
            "moved cable   'n2' port 1: to 'n8' port 7, not to 'n8' port 2",
            "other rate    'n1' port 1 - 'n8' port 1: 1x QDR, not 4x QDR",
        ] {
            assert!(found.contains(line), "{line}\n{found}");
        }
    }

    #[test]
    fn what_is_kept_out_is_named_and_so_is_what_is_let_in() {
        let kept_out = |ids: &[&str]| -> KeptOut {
            ids.iter().map(|&id| (id.to_owned(), format!("'leaf1' port {id}: kept out"))).collect()
        };
        let with = |ids: &[&str]| Side { kept_out: kept_out(ids), ..side("x", &LINKS, 0) };
        let (old, new) = (with(&["1", "2"]), with(&["2", "3"]));
        let found = DifferenceJson::between(&old, &new).text(&old, &new, true);
        assert_eq!(
            found,
            "quarantined   'leaf1' port 3: kept out\nlet in        'leaf1' port 1: kept out\n"
        );
        let baseline = side("the baseline", &LINKS, 0);
        let found = DifferenceJson::between(&baseline, &new);
        assert_eq!((found.quarantined.len(), found.let_in.len()), (2, 0));
    }

    /// Regression: nodes that are missing had the names of the file, or of the baseline's time.
    #[test]
    fn nodes_of_files_and_earlier_times_have_the_operators_names_of_now() {
        let (mut old, new) = (side("good.topo", &LINKS, 0), side("now", &LINKS[..3], 0));
        old.give_names(&[(Guid(101), "rack 7".to_owned())].into());
        let found = DifferenceJson::between(&old, &new).text(&old, &new, true);
        assert!(found.contains("missing node  'rack 7' 0x0000000000000065"), "{found}");
    }

    #[test]
    fn ports_are_compared_where_those_of_both_are_known() {
        let side = |init| Side {
            fabric: KeptFabric::of(&plane(&LINKS, 0, init)),
            ..Side::without_ports(Topology::default(), format!("with {init} ports initialized"))
        };
        let (old, mut new) = (side(0), side(1));
        let end = (Guid(100), PortNum(1));
        let port = PortStatus { lid: 9, ..*new.fabric.ports.at(end).unwrap() };
        new.fabric.ports.0.insert(end.0, [port].into());
        let difference = DifferenceJson::between(&old, &new);
        assert!(difference.ports_known);
        assert_eq!(
            difference.text(&old, &new, true),
            "other state   'n1' port 1: Initialize, not Active\nother state   'n8' port 1: \
             Initialize, not Active\nother LID     'n100' port 1: 9, not 1\n"
        );
        let file = Side::without_ports(old.fabric.topology.clone(), "good.topo".to_owned());
        let difference = DifferenceJson::between(&file, &new);
        assert!(!difference.ports_known);
        assert!(difference.text(&file, &new, true).starts_with("no difference from good.topo"));
    }
}
