//! Commands that change what the SM does: `ibsmctl sweep`, `reroute`, `reload`, `sweeping`,
//! `priority` and `log-level`.

use std::time::Duration;

use clap::ValueEnum;
use ib_mad::types::Guid;
use sa_proto::proto::admin::{
    AdjustRequest, Events, EventsRequest, ProblemsRequest, RerouteRequest, StatusRequest,
    SweepRequest,
};
use tonic::Streaming;

use super::{CtlError, Sm};
use crate::observe::problem::Kind;
use sm_config::parse_number;

/// Kinds of events.
const SWEEP_START: &str = "sweep_start";
const SWEEP_END: &str = "sweep_end";
const SUBNET_UP: &str = "subnet_up";

/// Options of `ibsmctl sweep`.
#[derive(Debug, clap::Args)]
pub struct SweepOptions {
    /// A light sweep, which reads only what switches report as changed.
    #[arg(short, long, conflicts_with = "wait")]
    light: bool,
    #[command(flatten)]
    waiting: WaitOptions,
}

/// Whether a command waits for its effect.
#[derive(Debug, clap::Args)]
pub struct WaitOptions {
    /// Wait until the sweep has ended, and print its result.
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
}

/// Starts a sweep.
pub(super) async fn sweep(sm: &Sm, options: &SweepOptions) -> Result<String, CtlError> {
    let light = options.light;
    let events = options.waiting.begin(sm).await?;
    let answer = sm.connect().await?.sweep(SweepRequest { light }).await;
    answer.map_err(|status| sm.refused(&status))?;
    let kind = if light { "light" } else { "heavy" };
    match events {
        Some(events) => options.waiting.end(sm, events).await,
        None => Ok(format!(
            "a {kind} sweep begins within a second; see ibsmctl events for the result\n"
        )),
    }
}

impl WaitOptions {
    /// Begins to read events, so that none after the order is missed.
    async fn begin(&self, sm: &Sm) -> Result<Option<Streaming<Events>>, CtlError> {
        if !self.wait {
            return Ok(None);
        }
        let kinds = [SWEEP_START, SWEEP_END, SUBNET_UP].map(str::to_owned).to_vec();
        let request =
            EventsRequest { last: Some(0), follow: true, kinds, ..EventsRequest::default() };
        let answer = sm.connect_to_stay().await?.list_events(request).await;
        Ok(Some(answer.map_err(|status| sm.refused(&status))?.into_inner()))
    }

    /// Waits until a sweep that began from now on has ended. One that was under way does not
    /// count: what it had read before the order may be outdated.
    async fn end(&self, sm: &Sm, mut events: Streaming<Events>) -> Result<String, CtlError> {
        let mut has_begun = false;
        let mut text = String::new();
        let read = async {
            while let Some(part) = events.message().await.map_err(|status| sm.refused(&status))? {
                for event in part.events {
                    has_begun |= event.kind == SWEEP_START;
                    if !has_begun {
                        continue;
                    }
                    if event.kind != SWEEP_START {
                        text.push_str(&event.text);
                        text.push('\n');
                    }
                    if event.kind == SWEEP_END {
                        return Ok(());
                    }
                }
            }
            Err(CtlError::Unreachable {
                address: sm.url().to_owned(),
                reason: "the stream of events has ended".to_owned(),
            })
        };
        match tokio::time::timeout(Duration::from_secs(self.timeout), read).await {
            Ok(ended) => ended.map(|()| text),
            Err(_) => Err(CtlError::Late(self.timeout)),
        }
    }
}

/// Reads the settings and policy files again.
pub(super) async fn reload(sm: &Sm, waiting: &WaitOptions) -> Result<String, CtlError> {
    let events = waiting.begin(sm).await?;
    adjust(sm, AdjustRequest { reload: true, ..AdjustRequest::default() }).await?;
    match events {
        Some(events) => waiting.end(sm, events).await,
        None => {
            Ok("settings and policy files are read again, by a heavy sweep that begins within \
                    a second; see ibsmctl events for the result\n"
                .to_owned())
        }
    }
}

/// Whether sweeps are permitted.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Sweeping {
    /// Resume sweeps, and run those that were requested meanwhile.
    On,
    /// Suspend sweeps of all causes, except for takeovers.
    Off,
}

/// Resumes or suspends sweeps.
pub(super) async fn sweeping(sm: &Sm, sweeping: Sweeping) -> Result<String, CtlError> {
    let is_on = matches!(sweeping, Sweeping::On);
    adjust(sm, AdjustRequest { sweeping: Some(is_on), ..AdjustRequest::default() }).await?;
    Ok(format!("sweeps are {}\n", if is_on { "on" } else { "off, until they are turned on" }))
}

/// Shows or sets the priority.
pub(super) async fn priority(sm: &Sm, priority: Option<u32>) -> Result<String, CtlError> {
    let Some(priority) = priority else {
        let answer = sm.connect().await?.get_status(StatusRequest {}).await;
        let status = answer.map_err(|status| sm.refused(&status))?.into_inner();
        return Ok(format!("{}\n", status.priority));
    };
    adjust(sm, AdjustRequest { priority: Some(priority), ..AdjustRequest::default() }).await?;
    Ok(format!("the priority is {priority}, until the settings are read again\n"))
}

/// Gives ports what belongs to their GUIDs. Fails if none has one of these GUIDs and waits.
pub(super) async fn admit(sm: &Sm, guids: &[Guid]) -> Result<String, CtlError> {
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
    Ok("what belongs to these GUIDs is theirs within a second; ibsmctl problems lists those that \
        still wait\n"
        .to_owned())
}

/// Shows or sets the log bits.
pub(super) async fn log_level(sm: &Sm, level: Option<&str>) -> Result<String, CtlError> {
    let Some(text) = level else {
        let level = setting(sm, "log_flags").await?;
        let level = parse_number(&level).ok_or(CtlError::Unread(level))?;
        return Ok(format!("{level:#x}\n"));
    };
    let level = parse_number(text).and_then(|level| u32::try_from(level).ok());
    let level = level.ok_or_else(|| CtlError::Argument {
        what: "log-level",
        expected: "the sum of log bits, such as 0x83",
        got: text.to_owned(),
    })?;
    adjust(sm, AdjustRequest { log_level: Some(level), ..AdjustRequest::default() }).await?;
    Ok(format!("the log level is {level:#x}, until the settings are read again\n"))
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

/// Recomputes all routes.
pub(super) async fn reroute(sm: &Sm, waiting: &WaitOptions) -> Result<String, CtlError> {
    let events = waiting.begin(sm).await?;
    let answer = sm.connect().await?.reroute(RerouteRequest {}).await;
    answer.map_err(|status| sm.refused(&status))?;
    match events {
        Some(events) => waiting.end(sm, events).await,
        None => {
            Ok("all routes are recomputed by a heavy sweep, which begins within a second\n".into())
        }
    }
}
