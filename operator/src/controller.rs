//! The loop of all controllers: what has news waits, each that waits is looked at in its turn, and what was begun
//! is heard when it ends.
//!
//! This is the loop of kube's own `Controller`, but for three things that it lacks: a bound on what is under way
//! for all keys together, news that are of no object (the engine's board), and turns.

use std::future::Future;

use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::work_queue::WorkQueue;

/// Where a controller hears from.
pub(crate) trait Sources: Send {
    type News: Send;

    /// The next news. May be cancelled while it waits. `None`: the coordinator ends.
    fn next(&mut self) -> impl Future<Output = Option<Self::News>> + Send;
}

/// What is done about the objects of some kinds, each known by its key.
pub(crate) trait Controller: Send {
    type Key: Ord + Clone + Send + 'static;
    /// How something that was begun has ended.
    type Done: Send + 'static;
    type News: Send;

    /// What is worked on, for the log.
    const OBJECTS: &'static str;

    fn queue(&mut self) -> &mut WorkQueue<Self::Key, Self::Done>;

    /// Whether anything may be begun yet. What is needed for all that wait is read here.
    fn is_ready(&mut self) -> bool;

    /// Looks at one that waited, and begins what is to be done about it.
    fn look_at(&mut self, key: &Self::Key) -> impl Future<Output = ()> + Send;

    fn hear(&mut self, news: Self::News) -> impl Future<Output = ()> + Send;

    fn done(&mut self, key: Self::Key, done: Self::Done) -> impl Future<Output = ()> + Send;
}

/// Works until the sources end.
pub(crate) async fn run<C: Controller>(
    mut controller: C,
    mut sources: impl Sources<News = C::News>,
) {
    loop {
        if controller.is_ready() {
            while controller.queue().has_room()
                && let Some(key) = controller.queue().next()
            {
                controller.look_at(&key).await;
            }
        }
        let due = controller.queue().next_due();
        tokio::select! {
            news = sources.next() => match news {
                Some(news) => controller.hear(news).await,
                None => return,
            },
            Some(ended) = controller.queue().ended() => match ended {
                Ok((key, done)) => controller.done(key, done).await,
                // A panic was logged. What it was about stays busy, and the rest goes on.
                Err(e) => warn!("work on {}: {e}", C::OBJECTS),
            },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                controller.queue().wake_due(Instant::now());
            }
        }
    }
}
