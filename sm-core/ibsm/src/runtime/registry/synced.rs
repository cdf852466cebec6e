//! Answers that wait until followers have stored the writes: with `--follow-sync`, and those to
//! programs.

use std::collections::VecDeque;

use sa_proto::snapshot::RegistryVersion;

use super::durable::Verdict;
use super::shared::{Job, ReplyTo};
use crate::publish::Acknowledged;

/// Writes decided, and the results.
type Batch = (Vec<Job>, Vec<Verdict>);

/// Batches that wait, oldest first.
#[derive(Default)]
pub(super) struct WaitingAnswers {
    batches: VecDeque<(RegistryVersion, Batch)>,
    writes: usize,
}

impl WaitingAnswers {
    /// Adds a batch whose last change has this version.
    pub(super) fn push(&mut self, version: RegistryVersion, batch: Batch) {
        self.writes += batch.0.len();
        self.batches.push_back((version, batch));
    }

    /// The next batch that may be answered.
    pub(super) fn pop(&mut self, acknowledged: Acknowledged) -> Option<Batch> {
        let (version, (jobs, _)) = self.batches.front()?;
        let is_order = |job: &Job| matches!(job.reply_to, ReplyTo::Program(_));
        let up_to = match jobs.iter().any(is_order) {
            true => acknowledged.orders_up_to,
            false => acknowledged.up_to,
        };
        if up_to.is_some_and(|up_to| up_to < *version) {
            return None;
        }
        let (_, batch) = self.batches.pop_front()?;
        self.writes -= batch.0.len();
        Some(batch)
    }

    /// Removes batches of sessions that have ended; returns how many writes these were.
    pub(super) fn drop_before(&mut self, current: RegistryVersion) -> usize {
        let before = self.writes;
        self.batches.retain(|(version, _)| version.session >= current.session);
        self.writes = self.batches.iter().map(|(_, (jobs, _))| jobs.len()).sum();
        before - self.writes
    }

    /// Writes that wait.
    pub(super) fn len(&self) -> usize {
        self.writes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ib_mad::types::Guid;
    use sa_proto::snapshot::Session;
    use tokio::sync::mpsc;

    use super::super::durable::Write;
    use super::super::shared::Origin;
    use super::*;

    fn version(epoch: u64, sequence: u64) -> RegistryVersion {
        RegistryVersion { session: Session { epoch, sm_guid: Guid(1) }, sequence }
    }

    fn batch(id: u64) -> Batch {
        let (outbound, _) = mpsc::channel(1);
        let origin = Arc::new(Origin { epoch: 0, connection: 1, outbound });
        let job = Job { id, write: Write::Nothing, reply_to: ReplyTo::Responder(origin) };
        (vec![job], vec![Verdict::Dropped])
    }

    fn popped(waiting: &mut WaitingAnswers, up_to: Option<RegistryVersion>) -> Vec<u64> {
        let acknowledged = Acknowledged { up_to, orders_up_to: up_to, due: None };
        std::iter::from_fn(|| waiting.pop(acknowledged)).map(|(jobs, _)| jobs[0].id).collect()
    }

    #[test]
    fn a_batch_is_answered_once_followers_have_its_last_change() {
        let mut waiting = WaitingAnswers::default();
        waiting.push(version(5, 10), batch(1));
        waiting.push(version(5, 20), batch(2));
        assert_eq!(popped(&mut waiting, Some(version(5, 9))), [0u64; 0]);
        assert_eq!(popped(&mut waiting, Some(version(5, 19))), [1]);
        assert_eq!(waiting.len(), 1);
        assert_eq!(popped(&mut waiting, None), [2], "no follower is awaited");
    }

    #[test]
    fn an_order_waits_for_followers_where_writes_do_not() {
        let mut waiting = WaitingAnswers::default();
        let (mut jobs, verdicts) = batch(2);
        jobs[0].reply_to = ReplyTo::Program(tokio::sync::oneshot::channel().0);
        waiting.push(version(5, 10), batch(1));
        waiting.push(version(5, 11), (jobs, verdicts));
        let mut stored = |sequence| {
            let orders_up_to = Some(version(5, sequence));
            let acknowledged = Acknowledged { up_to: None, orders_up_to, due: None };
            std::iter::from_fn(|| waiting.pop(acknowledged)).count()
        };
        assert_eq!([stored(10), stored(11)], [1, 1]);
    }

    #[test]
    fn batches_of_a_session_that_ended_are_never_answered() {
        let mut waiting = WaitingAnswers::default();
        waiting.push(version(5, 10), batch(1));
        waiting.push(version(6, 11), batch(2));
        assert_eq!(waiting.drop_before(version(6, 0)), 1);
        assert_eq!(popped(&mut waiting, None), [2]);
    }
}
