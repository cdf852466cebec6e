//! Passes events to the program that `event_plugin_name` names: a line of JSON each, on its
//! standard input. If it ends, it is started again after a while, and goes on where it was.
//!
//! A thread writes, and waits if the program does not read; nothing else waits for it. The program
//! misses what memory has no room left for; that is counted.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{io, thread};

use sm_config::EventCommand;
use tokio::sync::watch;
use tracing::{info, warn};

use super::signals;
use crate::observe::event::{Event, EventLog, Kinds};
use crate::perf::growths::{GrowthFeed, GrowthReader};

/// Events passed at once.
const BATCH: usize = 100;
/// Waits before the program is started again: the first, and the longest.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// How often it is checked that the program runs, while nothing happens.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end of this program waits for the last events to be passed.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// Numbers of what the thread did.
#[derive(Debug, Default)]
struct Totals {
    passed: AtomicU64,
    missed: AtomicU64,
    starts: AtomicU64,
    /// Number of the next event to pass.
    next: AtomicU64,
}

/// The program, and the thread that passes events to it.
pub(super) struct EventPlugin {
    events: EventLog,
    totals: Arc<Totals>,
    /// Its sender is dropped to end the thread.
    closing: Option<watch::Sender<()>>,
    /// Disconnected once it has ended.
    closed: Receiver<()>,
}

impl EventPlugin {
    /// Starts the thread. Events from now on, of the kinds that the settings name, are passed.
    pub(super) fn start(
        command: EventCommand,
        events: &EventLog,
        growths: Arc<GrowthFeed>,
    ) -> io::Result<Self> {
        let kinds = kinds_of(&command);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (closing, end) = watch::channel(());
        let (ended, closed) = channel();
        let totals = Arc::new(Totals::default());
        let next = *events.next().borrow();
        totals.next.store(next, Relaxed);
        let mut feed = Feed {
            command,
            events: events.clone(),
            totals: totals.clone(),
            growths: growths.follow(kinds.groups()),
            kinds,
            next,
            backoff: BACKOFF_MIN,
        };
        thread::Builder::new().name("event plug-in".to_owned()).spawn(move || {
            runtime.block_on(feed.run(end));
            drop(ended);
        })?;
        Ok(Self { events: events.clone(), totals, closing: Some(closing), closed })
    }

    /// Events passed; events missed, those that memory has no room for any more included; and how
    /// often the program was started.
    pub(super) fn totals(&self) -> [u64; 3] {
        let next = self.totals.next.load(Relaxed);
        let waiting = self.events.first().saturating_sub(next);
        let missed = self.totals.missed.load(Relaxed) + waiting;
        [self.totals.passed.load(Relaxed), missed, self.totals.starts.load(Relaxed)]
    }
}

impl Drop for EventPlugin {
    /// Waits a little until the last events are passed. Then the program reads the end of input.
    fn drop(&mut self) {
        drop(self.closing.take());
        if self.closed.recv_timeout(CLOSING_TIME) == Err(RecvTimeoutError::Timeout) {
            warn!("event_plugin_name: the program does not read; it misses the last events");
        }
    }
}

/// The work of the thread.
struct Feed {
    command: EventCommand,
    events: EventLog,
    totals: Arc<Totals>,
    kinds: Kinds,
    /// Growth of counters, if it is wanted.
    growths: Option<GrowthReader>,
    next: u64,
    backoff: Duration,
}

impl Feed {
    async fn run(&mut self, mut end: watch::Receiver<()>) {
        loop {
            let reason = match self.spawn() {
                Ok((mut child, input)) => {
                    let reason = self.feed(&mut child, input, &mut end).await;
                    let Some(reason) = reason else { return };
                    // It may have closed its input and run on.
                    let _ = child.kill();
                    let _ = child.wait();
                    reason
                }
                Err(failure) => failure.to_string(),
            };
            warn!(
                "event_plugin_name: {}: {reason}; it is started again in {} s",
                self.command.path,
                self.backoff.as_secs()
            );
            tokio::select! {
                () = tokio::time::sleep(self.backoff) => {}
                _ = end.changed() => return,
            }
            self.backoff = (2 * self.backoff).min(BACKOFF_MAX);
        }
    }

    fn spawn(&mut self) -> io::Result<(Child, ChildStdin)> {
        let EventCommand { path, arguments, .. } = &self.command;
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
        signals::unblock_in(&mut command);
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        self.totals.starts.fetch_add(1, Relaxed);
        info!("event_plugin_name: {path} started as process {}", child.id());
        Ok((child, input))
    }

    /// Passes events until the program ends: why it did; `None` if this program ends.
    async fn feed(
        &mut self,
        child: &mut Child,
        mut input: ChildStdin,
        end: &mut watch::Receiver<()>,
    ) -> Option<String> {
        let mut next = self.events.next();
        let (mut is_open, mut grown) = (true, Vec::new());
        loop {
            next.mark_unchanged();
            let passed = self.pass_growth(&mut input, std::mem::take(&mut grown));
            if let Err(failure) = passed.and_then(|()| self.pass(&mut input)) {
                return Some(failure.to_string());
            }
            if !is_open {
                return None;
            }
            tokio::select! {
                _ = end.changed() => is_open = false,
                changed = next.changed() => is_open = changed.is_ok(),
                events = next_growth(&mut self.growths) => grown = events,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Some(format!("it ended: {status}")),
                Err(failure) => return Some(failure.to_string()),
            }
        }
    }

    /// Passes all events there are. One whose writing failed is passed again to the next process.
    fn pass(&mut self, input: &mut ChildStdin) -> io::Result<()> {
        loop {
            let batch = self.events.since(self.next, BATCH);
            self.totals.missed.fetch_add(batch.missed, Relaxed);
            self.set_next(batch.next - batch.events.len() as u64);
            if batch.events.is_empty() {
                return Ok(());
            }
            for event in &batch.events {
                if !self.kinds.takes(&event.kind) {
                    self.set_next(event.number + 1);
                    continue;
                }
                input.write_all(format!("{}\n", event.to_json()).as_bytes())?;
                self.totals.passed.fetch_add(1, Relaxed);
                self.set_next(event.number + 1);
                self.backoff = BACKOFF_MIN;
            }
        }
    }

    /// Passes growth of counters. What cannot be written is lost.
    fn pass_growth(&mut self, input: &mut ChildStdin, events: Vec<Arc<Event>>) -> io::Result<()> {
        let lines: String = events.iter().map(|event| event.to_json() + "\n").collect();
        input.write_all(lines.as_bytes())?;
        self.totals.passed.fetch_add(events.len() as u64, Relaxed);
        Ok(())
    }

    fn set_next(&mut self, next: u64) {
        self.next = next;
        self.totals.next.store(next, Relaxed);
    }
}

/// The kinds that the program gets. Labels that are unknown are reported and left out.
fn kinds_of(command: &EventCommand) -> Kinds {
    let is_known = |label: &&str| {
        let unknown = Kinds::of([*label]).err();
        unknown.iter().for_each(|label| warn!("{}", unknown_kind(label)));
        unknown.is_none()
    };
    let labels = command.kinds.iter().map(|label| &label[..]).filter(is_known);
    Kinds::of(labels).expect("all labels are known")
}

/// What is reported about an unknown label.
pub(super) fn unknown_kind(label: &str) -> String {
    format!("event_plugin_kinds: {}", Kinds::unknown(label))
}

/// Waits for growth of counters; for ever if none is wanted.
async fn next_growth(growths: &mut Option<GrowthReader>) -> Vec<Arc<Event>> {
    match growths {
        Some(growths) => match growths.next(BATCH).await {
            Some(events) => events,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use crate::observe::event::{Draft, EVENTS_MAX, Event, EventKind};

    fn shell(script: &str) -> EventCommand {
        let arguments = vec!["-c".into(), script.into()];
        EventCommand { path: "/bin/sh".into(), arguments, kinds: Vec::new() }
    }

    fn start(command: EventCommand, events: &EventLog) -> EventPlugin {
        EventPlugin::start(command, events, Arc::default()).unwrap()
    }

    fn note(events: &EventLog, text: &str) {
        events.note(1, Draft::new(EventKind::NodeCame, text));
    }

    fn until(what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < end, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_program_gets_lines_of_json_up_to_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        let events = EventLog::default();
        note(&events, "before it started");
        let plugin = start(shell(&format!("cat > {}", path.display())), &events);
        note(&events, "one");
        until("it is passed", || plugin.totals()[0] == 1);
        note(&events, "two");
        drop(plugin);
        let lines = || std::fs::read_to_string(&path).unwrap_or_default();
        until("all are written", || lines().lines().count() == 2);
        let read: Vec<Event> =
            lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((read[0].number, &read[1].text[..]), (2, "two"));
    }

    #[test]
    fn a_program_gets_the_kinds_that_are_named_and_growth_of_counters_only_then() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        let (events, growths) = (EventLog::default(), Arc::new(GrowthFeed::default()));
        let kinds = ["port_errors", "trap", "tarp"].map(str::to_owned).to_vec();
        let command = EventCommand { kinds, ..shell(&format!("cat > {}", path.display())) };
        let plugin = EventPlugin::start(command, &events, growths.clone()).unwrap();
        assert_eq!(growths.wanted(), [true, false, false]);
        note(&events, "another kind");
        events.note(1, Draft::new(EventKind::Trap, "trap"));
        growths.send(crate::perf::testing::symbol_errors(7));
        until("both are passed", || plugin.totals()[0] == 2);
        drop(plugin);
        let read = || -> Vec<Event> {
            let lines = std::fs::read_to_string(&path).unwrap_or_default();
            lines.lines().flat_map(serde_json::from_str).collect()
        };
        until("both are written", || read().len() == 2);
        let mut kinds: Vec<_> = read().into_iter().map(|event| event.kind).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["port_errors", "trap"]);
    }

    /// Regression: the program inherited the signals that `ibsm` blocks, and did not end on TERM.
    #[test]
    fn a_program_is_ended_by_a_signal() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mask");
        let events = EventLog::default();
        let script =
            format!("grep SigBlk /proc/self/status > {0}.new; mv {0}.new {0}; cat", path.display());
        let plugin = thread::spawn(move || {
            // Its threads inherit the mask of this one.
            let _signals = signals::Signals::take().unwrap();
            start(shell(&script), &events)
        });
        let plugin = plugin.join().unwrap();
        until("it runs", || path.exists());
        let mask = std::fs::read_to_string(&path).unwrap();
        assert_eq!(mask.trim(), "SigBlk:\t0000000000000000");
        drop(plugin);
    }

    #[test]
    fn a_program_that_ends_is_started_again_and_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        let events = EventLog::default();
        let once = format!("head -n 1 >> {}", path.display());
        let plugin = start(shell(&once), &events);
        note(&events, "one");
        let lines = || std::fs::read_to_string(&path).unwrap_or_default();
        until("the first is written", || lines().contains("one"));
        until("it is started again", || plugin.totals()[2] == 2);
        note(&events, "two");
        until("the second is written", || lines().contains("two"));
    }

    #[test]
    fn a_program_that_does_not_read_delays_nothing_and_misses_events() {
        let events = EventLog::default();
        let plugin = start(shell("exec sleep 20"), &events);
        for at in 0..3 * EVENTS_MAX as u64 {
            events.note(at * 1000, Draft::new(EventKind::NodeCame, "x".repeat(900)));
        }
        assert!(plugin.totals()[1] > EVENTS_MAX as u64, "{:?}", plugin.totals());
        let begun = Instant::now();
        drop(plugin);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_is_not_there_is_tried_again() {
        let events = EventLog::default();
        let command = EventCommand { path: "/no/such/program".into(), ..shell("") };
        let plugin = start(command, &events);
        note(&events, "one");
        assert_eq!(plugin.totals(), [0, 0, 0]);
    }
}
