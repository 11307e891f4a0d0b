//! A stream to one client: a task that produces, a short bounded queue, and an end with a reason.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use muster_runtime::tasks::Scope;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Messages that wait for a client. The task holds the rest back, so a small number is enough to
/// keep the wire busy. The largest message is 4 MiB, so a client that stops reading costs at most
/// 16 MiB.
const QUEUE: usize = 4;

/// The end of a stream's queue into which the task puts messages for its client.
///
/// Items are boxed: a queue has room for 32 items from the start, however low its bound, and each
/// of ten thousand agents has a queue.
#[derive(Debug)]
pub(crate) struct Out<T>(mpsc::Sender<Box<Result<T, Status>>>);

/// The client is gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl<T> Out<T> {
    pub(crate) fn new(queue: usize) -> (Self, mpsc::Receiver<Box<Result<T, Status>>>) {
        let (out, messages) = mpsc::channel(queue);
        (Self(out), messages)
    }

    pub(crate) async fn send(&self, item: Result<T, Status>) -> Result<(), Gone> {
        self.0.send(Box::new(item)).await.map_err(|_| Gone)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The client's end of a stream. It ends when its task does. At a shutdown it ends with
/// UNAVAILABLE, so that clients know to come back.
pub(crate) struct Feed<T> {
    messages: mpsc::Receiver<Box<Result<T, Status>>>,
    shutdown: CancellationToken,
    /// Says why the client may not have the stream any more.
    refused: Option<Pin<Box<dyn Future<Output = Status> + Send>>>,
    told: bool,
}

impl<T> Feed<T> {
    /// Ends the stream with this status, whatever is still in its queue.
    pub(crate) fn until(self, refused: impl Future<Output = Status> + Send + 'static) -> Self {
        Self {
            refused: Some(Box::pin(refused)),
            ..self
        }
    }
}

impl<T> fmt::Debug for Feed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("told", &self.told).finish()
    }
}

/// Starts the task that fills a stream. The task should end when `Out` is closed, because the
/// client is gone then.
pub(crate) fn feed<T, F>(
    scope: &Scope,
    name: &'static str,
    task: impl FnOnce(Out<T>) -> F,
) -> Feed<T>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (out, messages) = Out::new(QUEUE);
    scope.spawn(name, task(out));
    Feed {
        messages,
        shutdown: scope.shutdown().clone(),
        refused: None,
        told: false,
    }
}

pub(crate) fn shutting_down() -> Status {
    Status::unavailable("the coordinator is shutting down")
}

impl<T> Stream for Feed<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(refused) = &mut self.refused
            && let Poll::Ready(status) = refused.as_mut().poll(context)
        {
            // From here on the task finds that its client is gone.
            self.messages.close();
            while self.messages.try_recv().is_ok() {}
            (self.refused, self.told) = (None, true);
            return Poll::Ready(Some(Err(status)));
        }
        match self
            .messages
            .poll_recv(context)
            .map(|item| item.map(|item| *item))
        {
            Poll::Ready(None) if self.shutdown.is_cancelled() && !self.told => {
                self.told = true;
                Poll::Ready(Some(Err(shutting_down())))
            }
            Poll::Ready(Some(Err(status))) => {
                self.told = true;
                Poll::Ready(Some(Err(status)))
            }
            other => other,
        }
    }
}
