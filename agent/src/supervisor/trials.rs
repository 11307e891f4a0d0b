//! The supervisor's part in proving interpreters: it begins a trial while the node is idle, and ends it
//! as soon as work comes.

use std::{collections::BTreeSet, path::PathBuf};

use muster_core::{
    node::{
        account::Account,
        proven::{Standing, standing},
        trial::{Node, NotNow, may_begin},
    },
    time::Timestamp,
};
use muster_runtime::clock::Clock;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Supervisor;
use crate::{
    preflight::Met,
    probe, trial_process,
    trials::{Files, Trials, times},
};

/// What an interpreter was when it was tried: its program, the files that it consists of, and as whom.
type Key = (PathBuf, Files, Option<Account>);

#[derive(Debug)]
pub(super) struct Trying {
    /// Since when the node holds nothing.
    idle_since: Option<Timestamp>,
    /// The trial that goes on, and what ends it.
    current: Option<(Key, CancellationToken)>,
    /// What was tried since this agent has started. What could not be tried is not tried again.
    tried: BTreeSet<Key>,
    /// Of a trial that has ended: whether it came to its end.
    done: (mpsc::Sender<bool>, mpsc::Receiver<bool>),
    /// Why none begins, as it was logged last.
    told: Option<NotNow>,
}

impl Default for Trying {
    fn default() -> Self {
        Self {
            idle_since: None,
            current: None,
            tried: BTreeSet::new(),
            done: mpsc::channel(1),
            told: None,
        }
    }
}

impl Trying {
    /// Waits until the current trial has ended. Cancel safe.
    pub(super) async fn ended(&mut self) {
        // This value has a sender, so there is always another message.
        let came_to_its_end = self.done.1.recv().await.unwrap_or_default();
        if let Some((key, _)) = self.current.take()
            && came_to_its_end
        {
            self.tried.insert(key);
        }
    }
}

impl Supervisor {
    pub(super) fn tend_trials(&mut self) {
        if !self.config.proves {
            return;
        }
        let now = Timestamp(Clock::Boot.now_us());
        let reports = self
            .reports
            .borrow()
            .as_ref()
            .map(|reports| reports.runs.clone())
            .unwrap_or_default();
        let busy = !self.prewarm.is_empty() || reports.iter().any(|run| !run.phase.is_over());
        if busy {
            self.trying.idle_since = None;
            if let Some((_, ends)) = &self.trying.current
                && !ends.is_cancelled()
            {
                info!("the trial of an interpreter is ended: work has come");
                ends.cancel();
            }
            return;
        }
        let idle_since = *self.trying.idle_since.get_or_insert(now);
        if self.trying.current.is_some() {
            return;
        }
        let Some((met, key)) = self.next_trial() else {
            return;
        };
        let node = Node {
            idle_since: Some(idle_since),
            memory: probe::memory().map(|memory| memory.available),
            needed: trial_process::MEMORY_MAX,
        };
        match may_begin(now, node) {
            Ok(()) => self.try_interpreter(met, key),
            Err(why) => {
                if matches!(why, NotNow::Memory { .. }) && self.trying.told.is_none() {
                    info!(python = %met.python.display(), "not proven yet: {why}");
                    self.trying.told = Some(why);
                }
                self.look_again = [self.look_again, why.look_again()]
                    .into_iter()
                    .flatten()
                    .min();
            }
        }
    }

    /// An interpreter of this node's runs of which nobody knows whether it is proven.
    fn next_trial(&self) -> Option<(Met, Key)> {
        let unknown = |met: &Met| standing(&met.answer.interpreter) == Standing::Unknown;
        let keyed = |met: Met| {
            let files = times(met.answer.read_from());
            let key = (met.python.clone(), files, met.account.clone());
            (met, key)
        };
        let met = self.preflight.met().into_iter().filter(unknown).map(keyed);
        { met }.find(|(_, key)| !self.trying.tried.contains(key))
    }

    fn try_interpreter(&mut self, met: Met, key: Key) {
        let ends = CancellationToken::new();
        self.trying.current = Some((key, ends.clone()));
        let host = self.host_as(met.account.clone());
        let config = self.config.clone();
        let done = self.trying.done.0.clone();
        self.scope.spawn_on_thread("trial", async move {
            let trials = Trials::of(&config.state_dir);
            // An earlier agent, or a person, may have tried it.
            let known = trials
                .find(met.answer.read_from(), met.account.as_ref().map(|a| a.uid))
                .is_some();
            let python = met.python.display();
            let ended = if known {
                Some(())
            } else {
                info!(%python, "trying whether its ranks may be forked, while the node is idle");
                let (state, runner) = (&config.state_dir, &config.runner);
                let trial =
                    trial_process::trial(host.as_ref(), &met.python, state, runner, &met.env);
                let outcome = ends.run_until_cancelled(trial).await;
                outcome.map(|outcome| match outcome {
                    Ok(made) => {
                        match made.trial.differs.first() {
                            None => info!(%python, "proven: its ranks may be forked"),
                            Some(first) => warn!(%python, "not proven: {first}"),
                        }
                        if let Err(e) = trials.note(made) {
                            warn!(%python, "its trial cannot be kept: {e}");
                        }
                    }
                    Err(why) => warn!(%python, "not proven: {why}"),
                })
            };
            // Nobody listens any more while the agent shuts down.
            let _ = done.send(ended.is_some()).await;
        });
    }
}
