//! `ibsmctl routing quality`: what applications feel of the tables in force.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use sa_proto::proto::admin::{MeasureRoutingRequest, RoutingQuality};
use serde::Serialize;

use super::{CtlError, Sm, to_json};
use crate::host_order::HostOrder;
use crate::plan::json::{Quality as JsonQuality, quality as json_quality};
use crate::plan::table;
use crate::publish::quality_of_message;
use sm_routing::measure::Quality;

/// How long the measurement may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Commands about routing.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Measure the tables in force by traffic patterns: bandwidth of random matchings (eBB), shifts
    /// and random permutations beside what the links allow, pairs that share links, contention. The
    /// manager computes it on a thread of its own; nothing is sent over the fabric.
    Quality(Options),
}

/// Options of the command.
#[derive(Debug, clap::Args)]
#[command(after_help = "The columns are those of 'ibsm plan --help'.")]
pub struct Options {
    /// Order of hosts in traffic patterns: name, random, rail (each rail by itself), or a FILE with
    /// a host's name or port GUID per line.
    #[arg(long, value_name = "ORDER", default_value = "name")]
    hosts: HostOrder,
    /// Number of traffic patterns of each kind.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    patterns: NonZeroU32,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Requests the figures and formats them.
pub(super) async fn run(sm: &Sm, command: &Command) -> Result<String, CtlError> {
    let Command::Quality(options) = command;
    let mut request =
        MeasureRoutingRequest { patterns: options.patterns.get(), ..Default::default() };
    match &options.hosts {
        HostOrder::Name => request.hosts = "name".to_owned(),
        HostOrder::Random => request.hosts = "random".to_owned(),
        HostOrder::Rail => request.hosts = "rail".to_owned(),
        HostOrder::File(path) => {
            let with_path = |error: std::io::Error| {
                std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            request.listed = std::fs::read_to_string(path).map_err(with_path)?;
            if request.listed.is_empty() {
                request.listed.push('\n');
            }
        }
    }
    let mut client = sm.connect_to_stay().await?;
    let answer = tokio::time::timeout(PATIENCE, client.measure_routing(request)).await;
    let answer = answer.map_err(|_| sm.silent())?;
    let found = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let shown = match options.json {
        true => Json::of(&found).map(|json| to_json(&json)),
        false => text(&found),
    };
    shown.ok_or_else(|| CtlError::Unread("figures are missing".to_owned()))
}

fn text(found: &RoutingQuality) -> Option<String> {
    let RoutingQuality { routing_engine, switches, links, hosts, patterns, .. } = found;
    let mut text = format!(
        "{switches} switches, {links} links between them, {hosts} hosts; {patterns} patterns of \
         each kind\n"
    );
    for remark in &found.remarks {
        let _ = writeln!(text, "{remark}");
    }
    let base = quality_of_message(found.base.as_ref()?)?;
    let mut rows = table::felt_head(&base);
    rows.push(table::felt_row(routing_engine, &base));
    if let Some(spread) = &found.spread {
        let spread: Quality = quality_of_message(spread)?;
        rows.push(table::felt_row(&format!("{routing_engine} +"), &spread));
    }
    text.push('\n');
    text += &table::aligned(&rows);
    let lost = base.shifts.lost + base.matchings.lost + base.permutations.lost;
    if lost > 0 {
        let _ = writeln!(text, "\n{lost} flows do not arrive; their bandwidth counts as 0");
    }
    Some(text)
}

#[derive(Serialize)]
struct Json<'a> {
    routing_engine: &'a str,
    fabric_generation: u64,
    switches: u32,
    links: u32,
    hosts: u32,
    patterns: u32,
    remarks: &'a [String],
    base: JsonQuality,
    spread: Option<JsonQuality>,
}

impl<'a> Json<'a> {
    fn of(found: &'a RoutingQuality) -> Option<Self> {
        let spread = match &found.spread {
            Some(spread) => Some(json_quality(&quality_of_message(spread)?)),
            None => None,
        };
        Some(Self {
            routing_engine: &found.routing_engine,
            fabric_generation: found.fabric_generation,
            switches: found.switches,
            links: found.links,
            hosts: found.hosts,
            patterns: found.patterns,
            remarks: &found.remarks,
            base: json_quality(&quality_of_message(found.base.as_ref()?)?),
            spread,
        })
    }
}
