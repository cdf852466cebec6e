//! `ibsmctl baseline`: the topology that the fabric is compared with.

use sa_proto::proto::admin::{
    Baseline, BaselineRequest, ClearBaselineRequest, TakeBaselineRequest,
};
use serde::Serialize;

use super::{CtlError, Sm, time, to_json};

/// Options of the command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ibsmctl baseline take               From now on, what differs from the fabric of now is a \
    problem.\n  \
    ibsmctl baseline take --at 12:00    The same with the fabric of then, from the history.\n  \
    ibsmctl diff                        How the fabric differs from the baseline.\n  \
    ibsmctl baseline show --ibnetdiscover > good.topo\n                                      \
    Print it, for ibsm plan and others.\n  \
    ibsmctl baseline clear              Compare no more.\n\
    \nThe baseline is kept in the state directory of ibsm. ibsm --expected-topology FILE prevails \
    over it.")]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

/// What to do with the baseline.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make the topology of now the baseline, in place of the one before.
    Take {
        /// Take the topology of this time instead (12:03, '2026-11-27 12:03', 5m ago as 5m), from
        /// the history.
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Show which baseline is in force.
    Show {
        /// Print the topology itself, as ibnetdiscover prints it.
        #[arg(long, conflicts_with = "json")]
        ibnetdiscover: bool,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Remove it: what was there and goes is a problem, as without a baseline.
    Clear {
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
}

/// The baseline in force, with its text if that is wanted.
pub(super) async fn fetch(sm: &Sm, text: bool) -> Result<Baseline, CtlError> {
    let answer = sm.connect().await?.get_baseline(BaselineRequest { text }).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut baseline: Option<Baseline> = None;
    while let Some(part) = stream.message().await.map_err(|status| sm.refused(&status))? {
        match &mut baseline {
            None => baseline = Some(part),
            Some(baseline) => baseline.text += &part.text,
        }
    }
    baseline.ok_or_else(|| CtlError::Unread("no message".to_owned()))
}

/// Takes, shows or removes the baseline.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    match &options.command {
        Command::Take { at, json } => {
            let at_ms = at.as_deref().map(|at| time::parse("--at", at)).transpose()?;
            let answer = sm.connect().await?.take_baseline(TakeBaselineRequest { at_ms }).await;
            let baseline = answer.map_err(|status| sm.refused(&status))?.into_inner();
            Ok(if *json { to_json(&BaselineJson::of(&baseline)) } else { text(&baseline) })
        }
        Command::Show { ibnetdiscover, json } => {
            let baseline = fetch(sm, *ibnetdiscover).await?;
            Ok(match (ibnetdiscover, json) {
                (true, _) if baseline.source == "none" => return Err(CtlError::NoBaseline),
                (true, _) => baseline.text,
                (_, true) => to_json(&BaselineJson::of(&baseline)),
                (_, false) => text(&baseline),
            })
        }
        Command::Clear { json } => {
            let answer = sm.connect().await?.clear_baseline(ClearBaselineRequest {}).await;
            let cleared = answer.map_err(|status| sm.refused(&status))?.into_inner();
            if *json {
                return Ok(to_json(&serde_json::json!({ "was_set": cleared.was_set })));
            }
            let was_set = if cleared.was_set { "baseline removed" } else { "there is no baseline" };
            Ok(format!("{was_set}\n"))
        }
    }
}

fn text(baseline: &Baseline) -> String {
    let origin = match &baseline.source[..] {
        "none" => return "no baseline: take one with ibsmctl baseline take\n".to_owned(),
        "file" => format!("--expected-topology {}", baseline.file),
        _ if baseline.taken_ms == 0 => "the fabric of an unknown time".to_owned(),
        _ => format!("the fabric of {}", time::text(baseline.taken_ms)),
    };
    let Baseline { switches, hosts, links, .. } = baseline;
    format!("baseline: {origin}: {switches} switches, {hosts} hosts, {links} links\n")
}

/// A baseline as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct BaselineJson<'a> {
    /// `none`, `command` or `file`.
    source: &'a str,
    file: Option<&'a str>,
    /// Milliseconds since 1970.
    taken_ms: Option<u64>,
    switches: u64,
    hosts: u64,
    links: u64,
}

impl<'a> BaselineJson<'a> {
    fn of(baseline: &'a Baseline) -> Self {
        Self {
            source: &baseline.source,
            file: Some(&*baseline.file).filter(|file| !file.is_empty()),
            taken_ms: Some(baseline.taken_ms).filter(|&time_ms| time_ms != 0),
            switches: baseline.switches,
            hosts: baseline.hosts,
            links: baseline.links,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_origin_has_its_words() {
        let of = |source: &str, taken_ms| {
            text(&Baseline {
                source: source.to_owned(),
                file: "/etc/expected.topo".to_owned(),
                taken_ms,
                switches: 3,
                ..Baseline::default()
            })
        };
        assert!(of("none", 0).starts_with("no baseline: "));
        let counts = "3 switches, 0 hosts, 0 links\n";
        let file = format!("baseline: --expected-topology /etc/expected.topo: {counts}");
        assert_eq!(of("file", 0), file);
        assert!(of("command", 1_795_780_800_042).contains(".042: 3 switches"));
    }
}
