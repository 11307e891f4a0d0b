//! A node without a coordinator: this agent's own supervisor, on a directory of its own, with desired
//! states that are made here. So a trial starts ranks with the very code that starts those of a job.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use muster_core::{
    exit::Exit,
    id::{Generation, JobName, JobUid, NodeEpoch, NodeName, Term},
    nccl::profile::Profile,
    node::Ledger,
    node_report::NodeReport,
    run::{Assignment, Desired, DesiredRun, RunId, RunPhase, RunReport, Start, Target},
    spec::{Framework, Launch},
};
use muster_runtime::tasks::Scope;

use crate::{
    config::Config,
    host::RunnerHost,
    probe::Facts,
    run_dir::Runs,
    state_disk::StateDisk,
    supervisor::{Handle, Order, Supervisor},
};

const TERM: Term = Term(1);
const EPOCH: NodeEpoch = NodeEpoch(1);
/// Ranks of every script of the suite.
pub(super) const RANKS: u32 = 2;

pub(super) struct Bench {
    handle: Handle,
    node: NodeName,
    runs: Runs,
    /// What the node was last told to hold.
    desired: Vec<DesiredRun>,
}

/// One generation of one script.
pub(super) struct Wanted<'a> {
    pub(super) job: &'a str,
    pub(super) generation: u64,
    pub(super) lane: Launch,
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) dir: PathBuf,
}

/// How a generation ended.
pub(super) struct Ended {
    /// The lane that it was started in, and why.
    pub(super) lane: String,
    pub(super) reason: String,
    /// By rank.
    pub(super) exits: Vec<Option<Exit>>,
    /// What the first failed rank said.
    pub(super) error: String,
}

impl Bench {
    /// `config` is that of an agent with a state directory of its own.
    pub(super) async fn up(
        config: Config,
        host: Arc<dyn RunnerHost>,
        scope: &Scope,
    ) -> Result<Self, String> {
        let trouble = |e: std::io::Error| format!("{}: {e}", config.state_dir.display());
        let (node, runs) = (config.node.clone(), Runs::new(&config.state_dir));
        let facts = Facts::unprobed(NodeReport {
            address: config.address.to_string(),
            ..NodeReport::default()
        });
        let disk =
            StateDisk::start(&config.state_dir, runs.clone(), facts.clone()).map_err(trouble)?;
        let (supervisor, handle) = Supervisor::new(
            Arc::new(config),
            host,
            facts,
            Ledger::new(node.clone()),
            runs.clone(),
            disk,
            scope.shutdown().clone(),
        );
        scope.spawn("supervisor", supervisor.run());
        let mut bench = Self {
            handle,
            node,
            runs,
            desired: Vec::new(),
        };
        bench.reports(|_| Some(())).await?;
        bench
            .order(Order::Welcome {
                term: TERM,
                epoch: EPOCH,
            })
            .await?;
        Ok(bench)
    }

    /// The directories of all runs.
    pub(super) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Starts one generation and waits for its end. Older ones of its job are gone then.
    pub(super) async fn run(&mut self, wanted: Wanted<'_>) -> Result<Ended, String> {
        let run = RunId {
            job: JobUid::from(wanted.job),
            generation: Generation(wanted.generation),
        };
        let assignment = Box::new(self.assignment(&run, wanted));
        self.desire(&run, Target::Ready(assignment.clone())).await?;
        let ready = self.run_until(&run, |phase| *phase != RunPhase::Preparing);
        let ready = ready.await?;
        if let RunPhase::Refused(why) = &ready.phase {
            return Err(why.clone());
        }
        let store = ready.store.ok_or("its runner serves no TCPStore")?;
        self.desire(&run, Target::Running(assignment, Start::from(store)))
            .await?;
        let dead = self.run_until(&run, RunPhase::is_over).await?;
        self.desire(&run, Target::Gone { purge: false }).await?;
        if let RunPhase::Refused(why) = dead.phase {
            return Err(why);
        }
        let error = dead.ranks.iter().find_map(|rank| rank.first_error.clone());
        Ok(Ended {
            lane: dead.lane.name,
            reason: dead.lane.reason,
            exits: dead.ranks.iter().map(|rank| rank.exit).collect(),
            error: error.or(dead.torchrun_error).unwrap_or_default(),
        })
    }

    async fn desire(&mut self, run: &RunId, target: Target) -> Result<(), String> {
        self.desired.retain(|wanted| wanted.run != *run);
        self.desired.push(DesiredRun {
            run: run.clone(),
            target,
        });
        let desired = Desired {
            term: TERM,
            epoch: EPOCH,
            runs: self.desired.clone(),
            labels: Default::default(),
            prewarm: Vec::new(),
            retire: None,
        };
        self.order(Order::Desired(desired)).await
    }

    async fn order(&self, order: Order) -> Result<(), String> {
        let sent = self.handle.orders.send(order).await;
        sent.map_err(|_| ended())
    }

    async fn run_until(
        &mut self,
        run: &RunId,
        reached: impl Fn(&RunPhase) -> bool,
    ) -> Result<RunReport, String> {
        let of = |runs: &[RunReport]| {
            let report = runs.iter().find(|report| report.run == *run)?;
            reached(&report.phase).then(|| report.clone())
        };
        self.reports(of).await
    }

    async fn reports<T>(&mut self, look: impl Fn(&[RunReport]) -> Option<T>) -> Result<T, String> {
        loop {
            let found = {
                let reports = self.handle.reports.borrow_and_update();
                reports.as_ref().and_then(|reports| look(&reports.runs))
            };
            if let Some(found) = found {
                return Ok(found);
            }
            let changed = self.handle.reports.changed().await;
            changed.map_err(|_| ended())?;
        }
    }

    fn assignment(&self, run: &RunId, wanted: Wanted<'_>) -> Assignment {
        let profile = Profile::default();
        Assignment {
            run: run.clone(),
            name: JobName {
                namespace: "default".into(),
                name: wanted.job.into(),
            },
            rendezvous: run.to_string(),
            node_rank: 0,
            node_count: 1,
            proc_per_node: RANKS,
            first_rank: 0,
            world_size: RANKS,
            store_host: self.node.clone(),
            hosts_store: true,
            store_clients: Vec::new(),
            command: wanted.command,
            args: wanted.args,
            env: wanted.env,
            env_files: BTreeMap::new(),
            working_dir: Some(wanted.dir.to_string_lossy().into_owned()),
            image: None,
            gpus: Vec::new(),
            hides_gpus: false,
            launch: wanted.lane,
            standbys: muster_core::spec::Standbys::Off,
            // What is proven is what jobs get.
            inspect: muster_core::spec::Inspect::Stacks,
            // A script that is told to stop does so at once.
            stop_grace: std::time::Duration::from_secs(30),
            step_pattern: None,
            checkpoint_pattern: None,
            restart_count: u32::try_from(wanted.generation - 1).unwrap_or_default(),
            profile_hash: profile.hash(),
            profile,
            fence_after: None,
            framework: Framework::Torch,
            layout: Default::default(),
            members: Vec::new(),
            programs: Vec::new(),
            owner: None,
        }
    }
}

fn ended() -> String {
    "the supervisor of the trial has ended".to_owned()
}
