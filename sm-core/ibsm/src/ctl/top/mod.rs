//! `ibsmctl top`: shows current activity every second, in the terminal or as JSON.
//!
//! - `show`: renders the state as lines of text; `screen`: takes over and restores the terminal.

mod screen;
mod show;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use sa_proto::proto::admin::{Moment as Reply, WatchRequest};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{CtlError, Sm};
use crate::observe::moment::Moment;
use screen::{Key, Screen};
use show::{Lately, View};

/// Wait before reconnecting.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Silence after which the display is marked as stale; updates arrive every second.
const SILENCE: Duration = Duration::from_millis(3500);

/// Options of `top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Keys: q or Ctrl-C quits. If output is not a terminal, prints once as text."
)]
pub struct Options {
    /// Print once and exit.
    #[arg(short = '1', long)]
    once: bool,
    /// Print JSON, one line per second, as described in docs/web.md.
    #[arg(short, long)]
    json: bool,
}

/// Shows activity until the operator quits.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let mut moments = watch(sm).await?;
    if options.json && !options.once {
        return follow(sm, moments).await;
    }
    if options.once || !std::io::stdout().is_terminal() {
        let reply = next(sm, &mut moments).await?;
        if options.json {
            return Ok(reply.json + "\n");
        }
        let moment = parsed(&reply)?;
        return Ok(show::plain(&View { url: sm.url(), ..View::of(&moment) }));
    }
    live(sm, moments).await?;
    Ok(String::new())
}

async fn watch(sm: &Sm) -> Result<Streaming<Reply>, CtlError> {
    let answer = sm.connect_to_stay().await?.watch(WatchRequest {}).await;
    Ok(answer.map_err(|status| sm.refused(&status))?.into_inner())
}

async fn next(sm: &Sm, moments: &mut Streaming<Reply>) -> Result<Reply, CtlError> {
    let reply = tokio::time::timeout(SILENCE, moments.message()).await;
    let Ok(reply) = reply else { return Err(sm.silent()) };
    reply.map_err(|status| sm.refused(&status))?.ok_or_else(|| sm.silent())
}

fn parsed(reply: &Reply) -> Result<Moment, CtlError> {
    serde_json::from_str(&reply.json).map_err(|failure| CtlError::Unread(failure.to_string()))
}

/// Prints a line per second until the stream or standard output closes.
async fn follow(sm: &Sm, mut moments: Streaming<Reply>) -> Result<String, CtlError> {
    loop {
        let reply = next(sm, &mut moments).await?;
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{}", reply.json).and_then(|()| out.flush()).is_err() {
            return Ok(String::new());
        }
    }
}

/// Events while the display is shown.
enum News {
    Moment(Box<Moment>),
    /// The connection was lost, for this reason.
    Lost(String),
}

/// Draws the screen until the operator quits.
async fn live(sm: &Sm, first: Streaming<Reply>) -> Result<(), CtlError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let (screen, mut keys) = Screen::open()?;
    let (news, mut received) = mpsc::channel(1);
    let mut lately = Lately::default();
    let mut shown: Option<(Moment, Option<String>)> = None;
    let following = keep_following(sm, first, news);
    tokio::pin!(following);
    loop {
        tokio::select! {
            () = &mut following => return Ok(()),
            Some(news) = received.recv() => match news {
                News::Moment(moment) => {
                    lately.take(&moment);
                    shown = Some((*moment, None));
                }
                News::Lost(reason) => {
                    if let Some((_, lost)) = &mut shown {
                        *lost = Some(reason);
                    }
                }
            },
            key = keys.recv() => match key {
                Some(Key::Quit) | None => return Ok(()),
                Some(Key::Other) => {}
            },
            _ = terminated.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
            _ = interrupted.recv() => return Ok(()),
        }
        if let Some((moment, lost)) = &shown {
            let view = View { url: sm.url(), lost: lost.as_deref(), lately: Some(&lately), moment };
            screen.show(|width, height| show::lines(&view, width, height))?;
        }
    }
}

/// Forwards updates, and reconnects whenever the stream ends.
async fn keep_following(sm: &Sm, first: Streaming<Reply>, news: mpsc::Sender<News>) {
    let mut moments = first;
    loop {
        let mut failure = loop {
            match next(sm, &mut moments).await.and_then(|reply| parsed(&reply)) {
                Ok(moment) => {
                    if news.send(News::Moment(Box::new(moment))).await.is_err() {
                        return;
                    }
                }
                Err(failure) => break failure,
            }
        };
        moments = loop {
            if news.send(News::Lost(failure.to_string())).await.is_err() {
                return;
            }
            tokio::time::sleep(RETRY_DELAY).await;
            match watch(sm).await {
                Ok(moments) => break moments,
                Err(another) => failure = another,
            }
        };
    }
}
