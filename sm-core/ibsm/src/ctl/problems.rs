//! `ibsmctl problems`: what is broken, since when, how often, and what to do.

use std::fmt::Write as _;

use sa_proto::proto::admin::{Problem, Problems, ProblemsRequest};
use serde::Serialize;

use super::{CtlError, Sm, to_json};
use crate::observe::words::{count, duration};

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Requests the problems and formats them.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let answer = sm.connect().await?.list_problems(ProblemsRequest {}).await;
    let problems = answer.map_err(|status| sm.refused(&status))?.into_inner();
    Ok(if options.json { to_json(&ProblemsJson::of(&problems)) } else { text(&problems) })
}

fn text(problems: &Problems) -> String {
    if problems.problems.is_empty() {
        return "no problems\n".to_owned();
    }
    let mut text = String::new();
    for problem in &problems.problems {
        let _ = writeln!(text, "{}", line(problem));
        let _ = writeln!(text, "          to do: {}", problem.remedy);
    }
    if problems.unlisted > 0 {
        let more = count(problems.unlisted, "more problem is", "more problems are");
        let _ = writeln!(text, "{more} not listed");
    }
    text
}

/// A problem in one line.
pub(super) fn line(problem: &Problem) -> String {
    let times = match problem.count {
        0 | 1 => String::new(),
        count => format!(", {count} times within a day"),
    };
    let Problem { severity, text, kind, for_s, .. } = problem;
    format!("{severity:<8}  {text} [{kind}, for {}{times}]", duration(*for_s))
}

/// The list as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct ProblemsJson<'a> {
    problems: Vec<ProblemJson<'a>>,
    unlisted: u64,
}

/// A problem as JSON.
#[derive(Serialize)]
pub(super) struct ProblemJson<'a> {
    id: &'a str,
    kind: &'a str,
    severity: &'a str,
    name: &'a str,
    guid: Option<String>,
    port: Option<u32>,
    detail: &'a str,
    text: &'a str,
    remedy: &'a str,
    since_ms: u64,
    for_seconds: u64,
    count: u64,
}

impl<'a> ProblemsJson<'a> {
    fn of(problems: &'a Problems) -> Self {
        let Problems { problems, unlisted } = problems;
        Self { problems: problems.iter().map(ProblemJson::from).collect(), unlisted: *unlisted }
    }
}

impl<'a> From<&'a Problem> for ProblemJson<'a> {
    fn from(problem: &'a Problem) -> Self {
        Self {
            id: &problem.id,
            kind: &problem.kind,
            severity: &problem.severity,
            name: &problem.name,
            guid: (problem.guid != 0).then(|| format!("{:#018x}", problem.guid)),
            port: problem.port,
            detail: &problem.detail,
            text: &problem.text,
            remedy: &problem.remedy,
            since_ms: problem.since_ms,
            for_seconds: problem.for_s,
            count: problem.count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_shown_with_its_age_and_what_to_do() {
        let problem = Problem {
            id: "link_degraded/0x7/3".into(),
            kind: "link_degraded".into(),
            severity: "warning".into(),
            text: "'leaf' 0x7 port 3: 1x".into(),
            remedy: "replace the cable".into(),
            for_s: 75,
            count: 2,
            guid: 7,
            port: Some(3),
            ..Problem::default()
        };
        let problems = Problems { problems: vec![problem], unlisted: 4 };
        assert_eq!(
            text(&problems),
            "warning   'leaf' 0x7 port 3: 1x [link_degraded, for 1 min 15 s, 2 times within a \
             day]\n          to do: replace the cable\n4 more problems are not listed\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&to_json(&ProblemsJson::of(&problems))).unwrap();
        assert_eq!(json["problems"][0]["guid"], "0x0000000000000007");
        assert_eq!((&json["problems"][0]["port"], &json["unlisted"]), (&3.into(), &4.into()));
        assert_eq!(text(&Problems::default()), "no problems\n");
    }
}
