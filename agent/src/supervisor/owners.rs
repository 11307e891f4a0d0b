//! The supervisor's part in jobs that run as their owners: it finds out who an owner is here before
//! anything of his job is touched.
//!
//! Each generation asks anew, so an account that is changed or removed counts from the next one on. What
//! goes on keeps the account that it was started with, which is noted with its run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_core::{
    id::{JobUid, Term},
    node::{
        Input,
        account::Account,
        torchrun::{EnvIs, Site},
    },
    node_report::NodeReport,
    run::{Assignment, Refusal, RunId},
};
use tokio::sync::mpsc;

use super::{LINK_EVENTS_MAX, Supervisor};
use crate::{
    accounts,
    config::Users,
    host::{OwnedHost, RunnerHost},
    launchers::{Made, Outcome},
};

/// Who an owner is, and what waits for that.
#[derive(Debug)]
pub(super) struct Found {
    assignment: Box<Assignment>,
    waits: Waits,
    account: Result<Account, Refusal>,
}

#[derive(Clone, Copy, Debug)]
enum Waits {
    /// A run that is to be held.
    Run(Term),
    /// A launcher, ahead of the job's first run here.
    Launcher,
}

#[derive(Debug)]
pub(super) struct Owners {
    /// Of the jobs that are here or about to come.
    accounts: BTreeMap<JobUid, Account>,
    /// The jobs for whose launchers somebody is being looked up.
    asking: BTreeSet<JobUid>,
    found: (mpsc::Sender<Found>, mpsc::Receiver<Found>),
}

impl Default for Owners {
    fn default() -> Self {
        Self {
            accounts: BTreeMap::new(),
            asking: BTreeSet::new(),
            found: mpsc::channel(LINK_EVENTS_MAX),
        }
    }
}

impl Owners {
    /// Waits until it is known who an owner is. Cancel safe.
    pub(super) async fn found(&mut self) -> Found {
        let found = self.found.1.recv().await;
        found.expect("this value has a sender, so there is always another message")
    }
}

impl Supervisor {
    /// Holds a run, once it is known as whom.
    pub(super) fn hold_as_owner(&mut self, assignment: Assignment, term: Term) {
        match &self.config.users {
            Users::Agents => self.hold(assignment, term),
            Users::Owners(_) => self.look_up(assignment, Waits::Run(term)),
        }
    }

    fn look_up(&mut self, assignment: Assignment, waits: Waits) {
        let (config, done) = (self.config.clone(), self.owners.found.0.clone());
        self.scope.spawn("account", async move {
            let Users::Owners(map) = &config.users else {
                return;
            };
            let account = accounts::find(&assignment, map.as_ref()).await;
            let account = account.map_err(|refusal| {
                let why = format!("{} on {}", refusal.reason, config.node);
                refusal.due_to.because(why)
            });
            let assignment = Box::new(assignment);
            // Nobody listens any more while the agent shuts down.
            let _ = done
                .send(Found {
                    assignment,
                    waits,
                    account,
                })
                .await;
        });
    }

    /// Goes on with what has waited for this. Returns what the brain must know.
    pub(super) fn go_on_as(&mut self, found: Found) -> Option<Input> {
        let Found {
            assignment,
            waits,
            account,
        } = found;
        let job = assignment.run.job.clone();
        self.owners.asking.remove(&job);
        match (account, waits) {
            (Ok(account), Waits::Run(term)) => {
                self.owners.accounts.insert(job, account);
                self.hold(*assignment, term);
                None
            }
            (Err(refusal), Waits::Run(_)) => {
                self.owners.accounts.remove(&job);
                let run = assignment.run.clone();
                Some(Input::Refused { run, refusal })
            }
            // The launcher is started when they are looked at next, which is now.
            (Ok(account), Waits::Launcher) => {
                self.owners.accounts.insert(job, account);
                None
            }
            (Err(refusal), Waits::Launcher) => {
                let number = self.launchers.begin(&job);
                let made = Made {
                    job: Some(job),
                    number,
                    outcome: Outcome::Refused(refusal.reason),
                };
                // It is not ready, so there is nothing to end.
                let _ = self.launchers.made(made, None);
                None
            }
        }
    }

    /// Whether a launcher for this job may be started now. If it is not known as whom, that is looked up.
    pub(super) fn may_start_launcher(&mut self, assignment: &Assignment) -> bool {
        let job = &assignment.run.job;
        match self.config.users {
            Users::Agents => true,
            Users::Owners(_) if self.account(&assignment.run).is_some() => true,
            Users::Owners(_) => {
                if self.owners.asking.insert(job.clone()) {
                    self.look_up(assignment.clone(), Waits::Launcher);
                }
                false
            }
        }
    }

    /// As whom a run was started, or is about to be. `None`: as the agent's user.
    pub(super) fn account(&self, run: &RunId) -> Option<&Account> {
        let known = self.held.get(run).and_then(|held| held.accepted.as_ref());
        let noted = known.and_then(|known| known.account.as_ref());
        noted.or_else(|| self.owners.accounts.get(&run.job))
    }

    /// The host in which this run's job is at home.
    pub(super) fn host_of(&self, run: &RunId) -> Arc<dyn RunnerHost> {
        if let Some(container) = self.container(run) {
            return container.host.clone();
        }
        self.host_as(self.account(run).cloned())
    }

    pub(super) fn host_as(&self, account: Option<Account>) -> Arc<dyn RunnerHost> {
        match (&self.config.users, account) {
            (Users::Owners(_), Some(account)) => {
                Arc::new(OwnedHost::of(self.config.runner.clone(), account))
            }
            // The node's own host starts nothing where jobs run as their owners.
            _ => self.host.clone(),
        }
    }

    pub(super) fn site(&mut self, run: &RunId) -> Site {
        Site {
            node: self.config.node.clone(),
            report: NodeReport {
                object_labels: self.node.object_labels(),
                ..self.facts.report()
            },
            run_dir: self
                .runs
                .dir(run)
                .to_str()
                .expect("the state directory was checked to be UTF-8")
                .to_owned(),
            env: match self.container(run) {
                None => self.facts.base_env(),
                Some(container) => container.env.clone(),
            },
            env_is: match (&self.config.pod, self.container(run)) {
                (None, None) => EnvIs::Agents,
                (Some(_), _) | (_, Some(_)) => EnvIs::Images,
            },
            account: self.account(run).cloned(),
        }
    }

    /// Forgets the accounts of jobs that have left.
    pub(super) fn forget_owners(&mut self) {
        let (wanted, prewarm) = (&self.wanted, &self.prewarm);
        let (launchers, held) = (self.launchers.jobs(), &self.held);
        self.owners.accounts.retain(|job, _| {
            wanted.contains_key(job)
                || prewarm.contains_key(job)
                || launchers.contains_key(job)
                || held.keys().any(|run| run.job == *job)
        });
    }
}
