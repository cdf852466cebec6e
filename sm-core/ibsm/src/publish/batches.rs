//! Batches of messages, as a stream of single messages.
//!
//! The connection sends in one piece all that its stream yields without a pause. Without batches,
//! an update of a few rows would wake it, and be written, three or four times.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

/// The receiving end of a channel of batches, message by message.
pub(super) struct Batches<M> {
    batches: mpsc::Receiver<Result<Vec<M>, Status>>,
    /// The rest of the batch received last.
    current: vec::IntoIter<M>,
}

impl<M> Batches<M> {
    pub(super) fn new(batches: mpsc::Receiver<Result<Vec<M>, Status>>) -> Self {
        Self { batches, current: Vec::new().into_iter() }
    }
}

impl<M> Unpin for Batches<M> {}

impl<M> Stream for Batches<M> {
    type Item = Result<M, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(message) = this.current.next() {
                return Poll::Ready(Some(Ok(message)));
            }
            match this.batches.poll_recv(context) {
                Poll::Ready(Some(Ok(batch))) => this.current = batch.into_iter(),
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Some(Err(status))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    #[test]
    fn messages_come_one_by_one_and_an_error_in_its_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (sender, receiver) = mpsc::channel(4);
            for batch in [Ok(vec![1, 2]), Ok(vec![]), Ok(vec![3]), Err(Status::aborted("over"))] {
                sender.send(batch).await.unwrap();
            }
            drop(sender);
            let mut stream = Batches::new(receiver);
            for expected in [1, 2, 3] {
                assert_eq!(stream.next().await.unwrap().unwrap(), expected);
            }
            assert_eq!(stream.next().await.unwrap().unwrap_err().message(), "over");
            assert!(stream.next().await.is_none());
        });
    }
}
