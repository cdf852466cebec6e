//! Questions of an operator about paths, which an SM forwards between its updates.

use std::sync::Arc;

use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::explained::Outcome;
use sa_proto::proto::snapshot::from_responder::Message as Reply;
use tokio::task::JoinSet;

use super::machine;

/// Explain requests in progress at a time; more are refused.
const IN_WORK_MAX: usize = 4;

/// Explains a path, or lists paths, by the tables of a lane.
pub type Explain = Arc<dyn Fn(usize, &proto::Explain) -> Outcome + Send + Sync>;

/// The questions in work, each on a thread for what takes long.
pub(super) struct Asked {
    explain: Option<Explain>,
    in_work: JoinSet<(usize, proto::Explained)>,
}

impl Asked {
    pub(super) fn new(explain: Option<Explain>) -> Self {
        Self { explain, in_work: JoinSet::new() }
    }

    /// Handles an explain request from the SM at `link`, whose clients are answered from `lane`;
    /// returns an immediate answer, if any.
    pub(super) fn take(
        &mut self,
        (link, lane): (usize, usize),
        question: proto::Explain,
    ) -> Option<proto::FromResponder> {
        let id = question.id;
        let Some(explain) = self.explain.clone() else {
            return Some(refusal(id, "this responder does not support explain"));
        };
        if self.in_work.len() >= IN_WORK_MAX {
            return Some(refusal(id, "too many explain requests at once; retry"));
        }
        self.in_work.spawn_blocking(move || (link, explained(id, explain(lane, &question))));
        None
    }

    /// The next answer and its link. Never completes if no request is in progress.
    pub(super) async fn next(&mut self) -> (usize, proto::FromResponder) {
        loop {
            match self.in_work.join_next().await {
                Some(Ok((link, explained))) => {
                    return (link, machine::message(Reply::Explained(explained)));
                }
                // It panicked and was logged; the SM reports a timeout to the operator.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

fn refusal(id: u64, reason: &str) -> proto::FromResponder {
    machine::message(Reply::Explained(explained(id, Outcome::Failure(reason.to_owned()))))
}

fn explained(id: u64, outcome: Outcome) -> proto::Explained {
    proto::Explained { id, outcome: Some(outcome) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(id: u64) -> proto::Explain {
        proto::Explain { id, source: "a".into(), ..proto::Explain::default() }
    }

    fn outcome(message: proto::FromResponder) -> (u64, Outcome) {
        let Some(Reply::Explained(explained)) = message.message else { panic!("{message:?}") };
        (explained.id, explained.outcome.unwrap())
    }

    #[tokio::test]
    async fn an_answer_goes_back_where_the_question_came_from() {
        let explain: Explain = Arc::new(|lane, question| match question.id {
            _ if lane != 2 => Outcome::Failure("another lane".to_owned()),
            1 => Outcome::Json(format!("about {}", question.source)),
            _ => Outcome::Failure("no such port".to_owned()),
        });
        let mut asked = Asked::new(Some(explain));
        assert!(asked.take((3, 2), question(1)).is_none());
        let (link, message) = asked.next().await;
        assert_eq!((link, outcome(message)), (3, (1, Outcome::Json("about a".into()))));
        asked.take((0, 2), question(2));
        let (_, message) = asked.next().await;
        assert_eq!(outcome(message), (2, Outcome::Failure("no such port".into())));
    }

    #[tokio::test]
    async fn requests_over_the_limit_are_refused_at_once() {
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        let explain: Explain = Arc::new(move |_, _| {
            let _ = gate.lock().unwrap().recv();
            Outcome::Json(String::new())
        });
        let mut asked = Asked::new(Some(explain));
        for id in 0..IN_WORK_MAX as u64 {
            assert!(asked.take((0, 0), question(id)).is_none());
        }
        let refusal = asked.take((0, 0), question(9)).expect("an answer at once");
        assert!(matches!(outcome(refusal), (9, Outcome::Failure(_))));
        drop(open);
        asked.next().await;
        assert!(asked.take((0, 0), question(10)).is_none());
    }
}
