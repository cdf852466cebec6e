//! Commands that change what the SM does: `ibsmctl sweep`, `reroute`, `reload`, `sweeping`,
//! `priority`, `log-level` and `admit`.

use std::time::Duration;

use clap::ValueEnum;
use ib_mad::types::Guid;
use sa_proto::proto::admin::{
    AdjustRequest, Event, Events, EventsRequest, ProblemsRequest, RerouteRequest, Status,
    StatusRequest, SweepRequest,
};
use serde::Serialize;
use serde_json::json;
use tonic::Streaming;

use super::events::EventJson;
use super::{CtlError, Sm, to_json};
use crate::observe::problem::Kind;
use sm_config::parse_number;

/// Kinds of events.
const SWEEP_START: &str = "sweep_start";
const SWEEP_END: &str = "sweep_end";
const SUBNET_UP: &str = "subnet_up";
/// How often one that waits looks whether a sweep may begin.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Options of `ibsmctl sweep`.
#[derive(Debug, clap::Args)]
pub struct SweepOptions {
    /// A light sweep, which reads only what switches report as changed.
    #[arg(short, long, conflicts_with = "wait")]
    light: bool,
    #[command(flatten)]
    waiting: WaitOptions,
}

/// Whether a command waits for its effect, and how it reports.
#[derive(Debug, clap::Args)]
pub struct WaitOptions {
    /// Wait until the sweep has ended, and print its result. Fails at once while sweeps are off.
    #[arg(short, long)]
    wait: bool,
    /// Seconds to wait.
    #[arg(
        long,
        value_name = "S",
        requires = "wait",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    timeout: u64,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Starts a sweep.
pub(super) async fn sweep(sm: &Sm, options: &SweepOptions) -> Result<String, CtlError> {
    let light = options.light;
    let waiting = &options.waiting;
    let events = waiting.begin(sm).await?;
    let answer = sm.connect().await?.sweep(SweepRequest { light }).await;
    answer.map_err(|status| sm.refused(&status))?;
    let (ordered, text) = match light {
        true => ("light_sweep", "a light sweep begins"),
        false => ("heavy_sweep", "a heavy sweep begins"),
    };
    waiting.end(sm, ordered, text, events).await
}

/// Reads the settings and policy files again.
pub(super) async fn reload(sm: &Sm, waiting: &WaitOptions) -> Result<String, CtlError> {
    let events = waiting.begin(sm).await?;
    adjust(sm, AdjustRequest { reload: true, ..AdjustRequest::default() }).await?;
    let text = "settings and policy files are read again, by a heavy sweep that begins";
    waiting.end(sm, "reload", text, events).await
}

/// Recomputes all routes.
pub(super) async fn reroute(sm: &Sm, waiting: &WaitOptions) -> Result<String, CtlError> {
    let events = waiting.begin(sm).await?;
    let answer = sm.connect().await?.reroute(RerouteRequest {}).await;
    answer.map_err(|status| sm.refused(&status))?;
    let text = "all routes are recomputed, by a heavy sweep that begins";
    waiting.end(sm, "reroute", text, events).await
}

/// An order as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct OrderJson<'a> {
    /// `heavy_sweep`, `light_sweep`, `reroute` or `reload`.
    ordered: &'a str,
    /// Whether sweeps are permitted; if not, it waits.
    sweeping: bool,
    /// Whether the sweep has ended, with `--wait`.
    ended: bool,
    /// The end of the sweep, and whether the subnet came up.
    events: Vec<EventJson<'a>>,
}

impl WaitOptions {
    /// Begins to read events, so that none after the order is missed. Fails if there would be none.
    async fn begin(&self, sm: &Sm) -> Result<Option<Streaming<Events>>, CtlError> {
        if !self.wait {
            return Ok(None);
        }
        expect_sweep(&status(sm).await?)?;
        let kinds = [SWEEP_START, SWEEP_END, SUBNET_UP].map(str::to_owned).to_vec();
        let request =
            EventsRequest { last: Some(0), follow: true, kinds, ..EventsRequest::default() };
        let answer = sm.connect_to_stay().await?.list_events(request).await;
        Ok(Some(answer.map_err(|status| sm.refused(&status))?.into_inner()))
    }

    /// Reports an order that was given, once its sweep has ended if that is awaited. `text`: what
    /// happens.
    async fn end(
        &self,
        sm: &Sm,
        ordered: &str,
        text: &str,
        events: Option<Streaming<Events>>,
    ) -> Result<String, CtlError> {
        let Some(events) = events else {
            // Roles that may order it need not be permitted to see the status.
            let sweeping = status(sm).await.map_or(true, |status| status.sweeping != Some(false));
            if self.json {
                let events = Vec::new();
                return Ok(to_json(&OrderJson { ordered, sweeping, ended: false, events }));
            }
            let when = match sweeping {
                true => "within a second; see ibsmctl events for the result",
                false => "once sweeps are on again: they are off; see ibsmctl sweeping",
            };
            return Ok(format!("{text} {when}\n"));
        };
        let read = self.read(sm, events);
        let events = match tokio::time::timeout(Duration::from_secs(self.timeout), read).await {
            Ok(read) => read?,
            Err(_) => return Err(CtlError::Late(self.timeout)),
        };
        if self.json {
            let events = events.iter().map(EventJson::of).collect::<Result<_, _>>()?;
            return Ok(to_json(&OrderJson { ordered, sweeping: true, ended: true, events }));
        }
        Ok(events.iter().flat_map(|event| [&event.text[..], "\n"]).collect())
    }

    /// The events of a sweep that began from now on, once it has ended. One that was under way does
    /// not count: what it had read before the order may be outdated.
    async fn read(&self, sm: &Sm, mut events: Streaming<Events>) -> Result<Vec<Event>, CtlError> {
        let (mut has_begun, mut seen) = (false, Vec::new());
        let mut check = tokio::time::interval(CHECK_INTERVAL);
        loop {
            let part = tokio::select! {
                part = events.message() => part,
                _ = check.tick(), if !has_begun => {
                    expect_sweep(&status(sm).await?)?;
                    continue;
                }
            };
            let Some(part) = part.map_err(|status| sm.refused(&status))? else {
                return Err(CtlError::Unreachable {
                    address: sm.url().to_owned(),
                    reason: "the stream of events has ended".to_owned(),
                });
            };
            for event in part.events {
                let is_end = event.kind == SWEEP_END;
                if event.kind == SWEEP_START {
                    has_begun = true;
                } else if has_begun {
                    seen.push(event);
                }
                if has_begun && is_end {
                    return Ok(seen);
                }
            }
        }
    }
}

/// Fails if this SM begins no sweep.
fn expect_sweep(status: &Status) -> Result<(), CtlError> {
    match (&status.sm_state[..], status.sweeping) {
        ("master", Some(false)) => Err(CtlError::SweepsOff),
        ("master", _) => Ok(()),
        ("", _) => Err(CtlError::NoSweep("starting".to_owned())),
        (state, _) => Err(CtlError::NoSweep(state.to_owned())),
    }
}

async fn status(sm: &Sm) -> Result<Status, CtlError> {
    let answer = sm.connect().await?.get_status(StatusRequest {}).await;
    Ok(answer.map_err(|status| sm.refused(&status))?.into_inner())
}

/// Whether sweeps are permitted.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Sweeping {
    /// Resume sweeps, and run those that were requested meanwhile.
    On,
    /// Suspend sweeps of all causes, except for takeovers.
    Off,
}

/// Shows whether sweeps are permitted, or resumes or suspends them.
pub(super) async fn sweeping(
    sm: &Sm,
    state: Option<Sweeping>,
    json: bool,
) -> Result<String, CtlError> {
    let is_on = match state {
        None => status(sm).await?.sweeping.unwrap_or(true),
        Some(state) => {
            let is_on = matches!(state, Sweeping::On);
            adjust(sm, AdjustRequest { sweeping: Some(is_on), ..AdjustRequest::default() }).await?;
            is_on
        }
    };
    Ok(match json {
        true => to_json(&json!({ "sweeping": is_on })),
        false => {
            format!("sweeps are {}\n", if is_on { "on" } else { "off, until they are turned on" })
        }
    })
}

/// Shows or sets the priority.
pub(super) async fn priority(
    sm: &Sm,
    priority: Option<u32>,
    json: bool,
) -> Result<String, CtlError> {
    let in_force = match priority {
        None => status(sm).await?.priority,
        Some(priority) => {
            let request = AdjustRequest { priority: Some(priority), ..AdjustRequest::default() };
            adjust(sm, request).await?;
            priority
        }
    };
    Ok(match (json, priority) {
        (true, _) => to_json(&json!({ "priority": in_force })),
        (false, None) => format!("{in_force}\n"),
        (false, Some(_)) => {
            format!("the priority is {in_force}, until the settings are read again\n")
        }
    })
}

/// Gives ports what belongs to their GUIDs. Fails if none has one of these GUIDs and waits.
pub(super) async fn admit(sm: &Sm, guids: &[Guid], json: bool) -> Result<String, CtlError> {
    let answer = sm.connect().await?.list_problems(ProblemsRequest {}).await;
    let listed = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let waits = |guid: &Guid| {
        let (subject, text) = (guid.0, guid.to_string());
        listed
            .problems
            .iter()
            .filter(|one| one.kind == Kind::GuidMoved.label())
            .any(|one| one.guid == subject || one.detail.contains(&text))
    };
    if listed.unlisted == 0
        && let Some(guid) = guids.iter().find(|guid| !waits(guid))
    {
        return Err(CtlError::Argument {
            what: "admit",
            expected: "a GUID that ibsmctl problems lists as guid_moved",
            got: guid.to_string(),
        });
    }
    let admit = guids.iter().map(|guid| guid.0).collect();
    adjust(sm, AdjustRequest { admit, ..AdjustRequest::default() }).await?;
    if json {
        let guids: Vec<String> = guids.iter().map(Guid::to_string).collect();
        return Ok(to_json(&json!({ "admitted": guids })));
    }
    Ok("what belongs to these GUIDs is theirs within a second; ibsmctl problems lists those that \
        still wait\n"
        .to_owned())
}

/// Shows or sets the log bits.
pub(super) async fn log_level(
    sm: &Sm,
    level: Option<&str>,
    json: bool,
) -> Result<String, CtlError> {
    let in_force = match level {
        None => {
            let level = setting(sm, "log_flags").await?;
            let number = parse_number(&level).and_then(|level| u32::try_from(level).ok());
            number.ok_or(CtlError::Unread(level))?
        }
        Some(text) => {
            let level = parse_number(text).and_then(|level| u32::try_from(level).ok());
            let level = level.ok_or_else(|| CtlError::Argument {
                what: "log-level",
                expected: "the sum of log bits, such as 0x83",
                got: text.to_owned(),
            })?;
            let request = AdjustRequest { log_level: Some(level), ..AdjustRequest::default() };
            adjust(sm, request).await?;
            level
        }
    };
    Ok(match (json, level) {
        (true, _) => to_json(&json!({ "log_level": in_force })),
        (false, None) => format!("{in_force:#x}\n"),
        (false, Some(_)) => {
            format!("the log level is {in_force:#x}, until the settings are read again\n")
        }
    })
}

async fn adjust(sm: &Sm, request: AdjustRequest) -> Result<(), CtlError> {
    let answer = sm.connect().await?.adjust(request).await;
    answer.map(drop).map_err(|status| sm.refused(&status))
}

/// The value of a setting in force.
async fn setting(sm: &Sm, key: &str) -> Result<String, CtlError> {
    let settings = super::inspect::settings(sm).await?;
    let value = settings.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.map(str::to_owned).ok_or_else(|| CtlError::Unread(format!("no {key} in the settings")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `ibsmctl sweep --wait` waited in silence while sweeps were off, and `reload
    /// --wait` at a standby.
    #[test]
    fn a_sweep_that_does_not_begin_is_not_awaited() {
        let expect = |sm_state: &str, sweeping| {
            let status = Status { sm_state: sm_state.to_owned(), sweeping, ..Status::default() };
            expect_sweep(&status).map_err(|failure| failure.to_string()).err()
        };
        assert_eq!(expect("master", Some(true)), None);
        assert_eq!(expect("master", None), None, "a manager of an earlier release");
        assert!(expect("master", Some(false)).unwrap().contains("ibsmctl sweeping on"));
        assert!(expect("standby", Some(true)).unwrap().contains("this SM is standby"));
        assert!(expect("", Some(false)).unwrap().contains("this SM is starting"));
    }
}
