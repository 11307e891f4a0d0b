//! Every task has an owner, a name, and a rule for its end.
//!
//! [`Tasks`] owns the tasks that a process consists of. `main` builds it and waits in
//! [`Tasks::run`]. [`Scope`] owns tasks that come and go with requests. Nothing else spawns tasks,
//! and `clippy.toml` enforces that.
#![allow(clippy::disallowed_methods, reason = "the one place that spawns")]

use std::{
    collections::HashMap,
    future::Future,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, warn};

/// The first and the longest pause before a task begins anew after a panic.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What the end of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The process cannot work without it. If it ends or panics before a shutdown, the process ends
    /// with an error.
    Essential,
    /// It may end at any time. A panic is logged and the process goes on.
    Ordinary,
    /// It stays until everything else has ended, as the task that catches signals does. A shutdown
    /// does not wait for it.
    Standing,
}
pub use Kind::{Essential, Ordinary, Standing};

/// An essential task ended before a shutdown was asked for.
#[derive(Debug, thiserror::Error)]
#[error("task {name} {how}")]
pub struct EssentialEnded {
    pub name: &'static str,
    pub how: String,
}

/// The tasks of one process.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<()>,
    known: HashMap<Id, (&'static str, Kind)>,
    shutdown: CancellationToken,
}

impl Tasks {
    pub fn new(shutdown: CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            known: HashMap::new(),
            shutdown,
        }
    }

    /// The token that asks every task of the process to end.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    pub fn spawn(
        &mut self,
        kind: Kind,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let handle = self.set.spawn(task);
        self.known.insert(handle.id(), (name, kind));
        handle
    }

    /// An ordinary task. After a panic, `make` makes it again. If it returns, it is over. One object that
    /// nobody thought of must not end the work for all others. The pause before it begins anew is
    /// [`PAUSE_FIRST`], and twice as long after each panic, up to [`PAUSE_MAX`]. A longer run than that
    /// resets the pause.
    pub fn spawn_lasting<F>(
        &mut self,
        name: &'static str,
        make: impl Fn() -> F + Send + 'static,
    ) -> AbortHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let shutdown = self.shutdown.clone();
        self.spawn(Ordinary, name, async move {
            let mut pause = PAUSE_FIRST;
            loop {
                let begun = Instant::now();
                let Err(panic) = CatchPanic(Box::pin(make())).await else {
                    return;
                };
                if begun.elapsed() > PAUSE_MAX {
                    pause = PAUSE_FIRST;
                }
                let why = panic_text(&*panic);
                error!(task = name, ?pause, "task panicked and begins anew: {why}");
                if shutdown.run_until_cancelled(sleep(pause)).await.is_none() {
                    return;
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        })
    }

    /// Waits until the shutdown token is cancelled or an essential task ends, which cancels the
    /// token. Then gives the tasks `drain` to end by themselves and aborts the rest. The error
    /// names the essential task that ended first.
    pub async fn run(mut self, drain: Duration) -> Result<(), EssentialEnded> {
        let shutdown = self.shutdown.clone();
        let failure = tokio::select! {
            // A task that ends because of the shutdown has not failed.
            biased;
            () = shutdown.cancelled() => None,
            failure = self.first_failure() => Some(failure),
        };
        shutdown.cancel();
        if tokio::time::timeout(drain, self.all_ended()).await.is_err() {
            let left: Vec<&str> = self
                .known
                .values()
                .filter(|(_, kind)| *kind != Standing)
                .map(|(name, _)| *name)
                .collect();
            warn!(tasks = ?left, ?drain, "tasks did not end in time and are aborted");
        }
        self.set.shutdown().await;
        failure.map_or(Ok(()), Err)
    }

    async fn first_failure(&mut self) -> EssentialEnded {
        loop {
            match self.set.join_next_with_id().await {
                Some(ended) => {
                    let (name, kind, how) = self.describe(ended);
                    if kind == Essential {
                        return EssentialEnded { name, how };
                    }
                }
                // No task is left, and all were ordinary. Only a signal ends the process now.
                None => std::future::pending().await,
            }
        }
    }

    async fn all_ended(&mut self) {
        while self.known.values().any(|(_, kind)| *kind != Standing) {
            match self.set.join_next_with_id().await {
                Some(ended) => drop(self.describe(ended)),
                None => return,
            }
        }
    }

    fn describe(&mut self, ended: Result<(Id, ()), JoinError>) -> (&'static str, Kind, String) {
        let (id, how) = match ended {
            Ok((id, ())) => (id, "ended".to_owned()),
            Err(e) => (e.id(), said(e)),
        };
        let (name, kind) = self
            .known
            .remove(&id)
            .expect("spawn() notes every task before it can end");
        if how != "ended" {
            error!(task = name, "task {how}");
        }
        (name, kind, how)
    }
}

fn said(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => format!("panicked: {}", panic_text(&*panic)),
        Err(_) => "was aborted".into(),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Owner of tasks that live as long as a request or a connection. Clones own the same tasks.
#[derive(Clone, Debug)]
pub struct Scope {
    tracker: TaskTracker,
    shutdown: CancellationToken,
}

impl Scope {
    pub fn new(shutdown: CancellationToken) -> Self {
        Self {
            tracker: TaskTracker::new(),
            shutdown,
        }
    }

    pub fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// Runs `task` until it ends or the scope is shut down, which drops the task where it waits. A
    /// panic is logged and ends only this task.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        // Boxed outside the block: otherwise the block would keep room for the moved task.
        let guarded = CatchPanic(Box::pin(task));
        self.tracker.spawn(async move {
            tokio::select! {
                biased;
                ended = guarded => if let Err(panic) = ended {
                    error!(task = name, "task panicked: {}", panic_text(&*panic));
                },
                () = shutdown.cancelled() => {}
            }
        });
    }

    /// Like [`Scope::spawn`], for a task that also blocks, for example on a disk. It has its own
    /// thread, so that it delays no other task.
    pub fn spawn_on_thread(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let (runtime, shutdown) = (Handle::current(), self.shutdown.clone());
        self.spawn(name, async move {
            let work = move || runtime.block_on(shutdown.run_until_cancelled(task));
            if let Err(ended) = tokio::task::spawn_blocking(work).await
                && let Ok(panic) = ended.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// Waits until no task is left. Spawn nothing after this call.
    pub async fn closed(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Turns a panic inside a future into an error (what `futures::FutureExt::catch_unwind` does).
struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future<Output = ()>> Future for CatchPanic<F> {
    type Output = Result<(), Box<dyn std::any::Any + Send>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = pin!(self.0.as_mut());
        match std::panic::catch_unwind(AssertUnwindSafe(|| task.poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const DRAIN: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_essential_task_ends_the_process() {
        let mut tasks = Tasks::new(CancellationToken::new());
        let told = tasks.shutdown();
        tasks.spawn(Essential, "engine", async {});
        tasks.spawn(Essential, "server", async move { told.cancelled().await });
        assert_eq!(
            tasks.run(DRAIN).await.unwrap_err().to_string(),
            "task engine ended"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_task_begins_anew_after_a_panic_and_not_at_once() {
        let shutdown = CancellationToken::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let begun = Instant::now();
        tasks.spawn_lasting("reader", move || {
            let tell = tell.clone();
            async move {
                tell.send(begun.elapsed().as_secs()).unwrap();
                assert_eq!(begun.elapsed().as_secs(), 7, "poison");
            }
        });
        // It ends by itself the fourth time.
        let mut times = Vec::new();
        while let Some(at) = told.recv().await {
            times.push(at);
        }
        assert_eq!(times, [0, 1, 3, 7]);

        tasks.spawn_lasting("poisoned", || async { panic!("poison") });
        shutdown.cancel();
        tasks.run(DRAIN).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn so_does_its_panic() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn(Essential, "engine", async { panic!("no room for {}", 7) });
        assert_eq!(
            tasks.run(DRAIN).await.unwrap_err().to_string(),
            "task engine panicked: no room for 7"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_ordinary_task_may_end_or_panic() {
        let token = CancellationToken::new();
        let mut tasks = Tasks::new(token.clone());
        tasks.spawn(Ordinary, "one", async {});
        tasks.spawn(Ordinary, "two", async { panic!("oh") });
        tasks.spawn(Ordinary, "three", async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            token.cancel();
        });
        let start = tokio::time::Instant::now();
        tasks.run(DRAIN).await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ignores_the_shutdown_is_aborted() {
        let token = CancellationToken::new();
        let mut tasks = Tasks::new(token.clone());
        tasks.spawn(Essential, "stuck", pending());
        token.cancel();
        let start = tokio::time::Instant::now();
        tasks.run(DRAIN).await.unwrap();
        assert_eq!(start.elapsed(), DRAIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_standing_task_is_not_waited_for() {
        let token = CancellationToken::new();
        let mut tasks = Tasks::new(token.clone());
        tasks.spawn(Standing, "signals", pending());
        tasks.spawn(Essential, "server", async move { token.cancel() });
        let start = tokio::time::Instant::now();
        let _ = tasks.run(DRAIN).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_scope_ends_with_its_token_and_survives_panics() {
        let token = CancellationToken::new();
        let scope = Scope::new(token.clone());
        scope.spawn("panics", async { panic!("oh") });
        scope.spawn("waits", pending());
        token.cancel();
        scope.closed().await;
    }
}
