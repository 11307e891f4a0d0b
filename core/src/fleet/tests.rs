//! Tests that drive the brain by hand: a fleet, agents that answer at once, and a clock that the
//! test moves.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::*;
use crate::{
    exit::Exit,
    fleet::{
        capacity::Capacity,
        history::HistoryRecord,
        job::{GenerationRecord, JobRecord, Phase, Reason},
        notify::Outbox,
        receipt::{Cause, Charged},
        view::{Liveness, NodeView},
    },
    hello::Hello,
    id::{Generation, JobName, JobUid, NodeEpoch, NodeName, SessionId, Term},
    nccl::stack::Stack,
    node_report::NodeReport,
    protocol::Speaks,
    run::{Desired, LauncherReport, Obeyed, RankReport, RunId, RunPhase, RunReport},
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
    time::Timestamp,
};

mod absent;
mod addresses;
mod agent;
mod audit;
mod backoff;
mod bursts;
mod chosen_nodes;
mod default_gpus;
mod deterministic;
mod eligible;
mod equal_asks;
mod fair_share;
mod fences;
mod foresee;
mod history;
mod images;
mod joining;
mod known;
mod lifecycle;
mod lifetime;
mod limits;
mod limits_of_users;
mod listening;
mod member_restart;
mod memory;
mod mixture;
mod mpi;
mod multiples;
mod namesakes;
mod node_mix;
mod node_objects;
mod node_views;
mod notify;
mod notify_by_jobs;
mod objects;
mod phases;
mod pod_gpus;
mod preempt;
mod prewarm;
mod queues;
mod refusals;
mod regressions;
mod requests;
mod reservations;
mod restarts;
mod roles;
mod rollback;
mod rules;
mod selection;
mod shared;
mod shortage;
mod slow;
mod stalled;
mod stops;
mod suspend;
mod time_account;
mod too_large;
mod unhealthy;
mod voluntary;
mod word;
pub(super) mod worker_pods;
mod worlds;

use agent::{Agent, obey};

/// The job, the number of the question, and the ranks by node.
type Look = (JobUid, u64, Vec<(NodeName, Vec<u32>)>);

/// Agents that obey at once, and a coordinator that can be restarted from what it committed.
struct Bench {
    fleet: Fleet,
    now: Timestamp,
    stored_jobs: BTreeMap<JobUid, JobRecord>,
    stored_nodes: BTreeMap<NodeName, NodeRecord>,
    stored_tombstones: BTreeMap<JobUid, Tombstone>,
    stored_history: BTreeMap<u64, Arc<HistoryRecord>>,
    stored_outbox: Arc<Outbox>,
    agents: BTreeMap<NodeName, Agent>,
    term: u64,
    next: u64,
    events: Vec<Event>,
    /// Ranks that are to be looked at, and that nobody has looked at yet.
    looks: Vec<Look>,
    /// Who asks.
    actor: Actor,
}

fn document(min: i64, replicas: i64, max: i64) -> SpecDocument {
    SpecDocument {
        replicas: Some(replicas),
        min_replicas: Some(min),
        max_replicas: Some(max),
        args: vec!["train.py".into()],
        scale_up_cooldown: Some("5s".into()),
        ..SpecDocument::default()
    }
}

impl Bench {
    fn new(nodes: &[&str]) -> Self {
        let now = Timestamp(1_000_000_000);
        let fleet = Fleet::new(Policy::default(), Term(1), Stored::default(), now);
        let mut bench = Self {
            fleet,
            now,
            stored_jobs: BTreeMap::new(),
            stored_nodes: BTreeMap::new(),
            stored_tombstones: BTreeMap::new(),
            stored_history: BTreeMap::new(),
            stored_outbox: Arc::default(),
            agents: BTreeMap::new(),
            term: 1,
            next: 0,
            events: Vec::new(),
            looks: Vec::new(),
            actor: Actor::Local { uid: 0 },
        };
        nodes.iter().for_each(|node| bench.connect(node));
        bench
    }

    /// What is kept from turn to turn is what a new count finds.
    fn capacity_is_as_counted(&self) {
        let Fleet {
            nodes, jobs, pods, ..
        } = &self.fleet;
        let counted = Capacity::of(nodes, |uid| jobs.get(uid), pods);
        let kept = &self.fleet.capacity;
        let differ: Vec<&NodeName> = kept.differences(&counted).collect();
        assert!(
            *kept == counted,
            "{differ:?}: {kept:#?} is not {counted:#?}"
        );
    }

    fn input(&mut self, input: Input) -> Vec<Effect> {
        self.inputs([input])
    }

    /// All of them in one turn.
    fn inputs(&mut self, inputs: impl IntoIterator<Item = Input>) -> Vec<Effect> {
        let turn = self.fleet.turn_all(self.now, inputs);
        self.capacity_is_as_counted();
        for change in turn.changes {
            match change {
                Change::PutJob(job) => drop(self.stored_jobs.insert(job.uid.clone(), *job)),
                Change::DeleteJob(uid) => drop(self.stored_jobs.remove(&uid)),
                Change::PutNode(node) => drop(self.stored_nodes.insert(node.name.clone(), *node)),
                Change::DeleteNode(name) => drop(self.stored_nodes.remove(&name)),
                Change::PutTombstone(tombstone) => {
                    let job = tombstone.run.job.clone();
                    self.stored_tombstones.insert(job, *tombstone);
                }
                Change::DeleteTombstone(uid) => drop(self.stored_tombstones.remove(&uid)),
                Change::PutHistory(record) => {
                    let again = self.stored_history.insert(record.number, record);
                    assert_eq!(again, None, "it is written once");
                }
                Change::DropHistory(number) => {
                    self.stored_history.retain(|known, _| *known > number);
                }
                Change::PutOutbox(outbox) => self.stored_outbox = outbox,
                Change::Event(event) => self.events.push(*event),
            }
        }
        for effect in &turn.effects {
            match effect {
                Effect::SendDesired { session, desired } => {
                    if let Some(agent) = self
                        .agents
                        .values_mut()
                        .find(|agent| agent.session == Some(*session))
                    {
                        agent.desired = Some(desired.clone());
                    }
                }
                Effect::Welcome { session, epoch, .. } => {
                    if let Some(agent) = self
                        .agents
                        .values_mut()
                        .find(|agent| agent.session == Some(*session))
                    {
                        agent.epoch = *epoch;
                    }
                }
                Effect::LookAtRanks {
                    job, number, ranks, ..
                } => self.looks.push((job.clone(), *number, ranks.clone())),
                _ => {}
            }
        }
        turn.effects
    }

    fn connect(&mut self, node: &str) {
        self.next += 1;
        let session = SessionId(self.next);
        let agent = self.agents.entry(node.into()).or_default();
        // On a new connection the agent reports all its launchers again.
        (agent.session, agent.said) = (Some(session), Vec::new());
        if agent.incarnation == 0 {
            agent.incarnation = self.next;
        }
        let report = NodeReport {
            address: "127.0.0.1".into(),
            slots: 1,
            ..NodeReport::default()
        };
        let hello = Hello {
            node: node.into(),
            boot_id: format!("boot-{}", agent.boot),
            uptime: None,
            incarnation: agent.incarnation,
            speaks: Speaks::OURS,
            term_seen: Term(0),
            epoch_seen: agent.epoch,
            jobs_seen: agent.seen.clone(),
            report,
            runs: agent.runs.values().cloned().collect(),
        };
        self.input(Input::Connected { session, hello });
        self.obey();
    }

    fn cut(&mut self, node: &str) {
        let agent = self.agents.get_mut(&node.into()).unwrap();
        agent.runs.clear();
        (agent.asked, agent.said) = (Vec::new(), Vec::new());
        agent.incarnation = 0;
        let session = agent.session.take().unwrap();
        agent.desired = None;
        self.input(Input::Disconnected { session });
        self.obey();
    }

    /// Lets agents obey until nothing changes.
    fn obey(&mut self) {
        for _ in 0..50 {
            let mut quiet = true;
            for name in self.agents.keys().cloned().collect::<Vec<_>>() {
                let agent = self.agents.get_mut(&name).unwrap();
                if agent.frozen {
                    continue;
                }
                let (Some(session), Some(desired)) = (agent.session, agent.desired.take()) else {
                    continue;
                };
                agent.asked = desired
                    .prewarm
                    .iter()
                    .map(|job| job.run.job.clone())
                    .collect();
                agent.told = desired.runs.clone();
                let (before, launchers) = (agent.runs.clone(), agent.launchers());
                for run in desired.runs {
                    obey(&mut agent.runs, run, desired.term, self.now, agent.imports);
                }
                let ready = agent
                    .runs
                    .values_mut()
                    .filter(|run| run.phase == RunPhase::Ready);
                ready.for_each(|run| {
                    run.stack = agent.stack.clone();
                    run.port = run.port.filter(|_| !agent.keeps_port);
                });
                let runs = (agent.runs != before).then(|| agent.runs.values().cloned().collect());
                quiet &= runs.is_none() && launchers.is_none();
                if let Some(runs) = runs {
                    self.input(Input::Runs { session, runs });
                }
                if let Some(launchers) = launchers {
                    self.input(Input::Launchers { session, launchers });
                }
            }
            if quiet {
                return;
            }
        }
        panic!("agents and coordinator never come to rest");
    }

    /// Moves the clock, with heartbeats and ticks on the way.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + Duration::from_millis(50)).min(end);
            for session in self
                .agents
                .values()
                .filter(|a| !a.frozen)
                .filter_map(|a| a.session)
                .collect::<Vec<_>>()
            {
                self.input(Input::Heartbeat { session });
            }
            self.input(Input::Tick);
            self.obey();
        }
    }

    fn request(&mut self, request: Request) -> Answer {
        self.next += 1;
        let id = RequestId(self.next);
        let actor = self.actor.clone();
        let effects = self.input(Input::Request { id, actor, request });
        self.obey();
        let answer = effects.into_iter().find_map(|effect| match effect {
            Effect::Answer { id: to, answer } if to == id => Some(answer),
            _ => None,
        });
        answer.expect("every request is answered in its turn")
    }

    /// `name` may be `NAMESPACE/NAME`.
    fn submit(&mut self, name: &str, spec: SpecDocument) -> Answer {
        self.next += 1;
        let (namespace, name) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace.into()), name),
            None => (None, name),
        };
        let metadata = Metadata {
            name: name.into(),
            namespace,
        };
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata,
            spec,
        };
        let (name, spec) = document.check().unwrap();
        let uid = JobUid::from(format!("uid-{}", self.next));
        self.request(Request::Submit {
            name,
            spec,
            uid,
            request_id: String::new(),
            validate_only: false,
        })
    }

    fn job(&self, name: &str) -> &JobRecord {
        self.fleet
            .jobs
            .values()
            .find(|job| job.name.name == name)
            .expect("the job exists")
    }

    fn members(&self, name: &str) -> Vec<&str> {
        let generation = self.job(name).current.as_ref().expect("a generation");
        generation.members.iter().map(|m| m.node.as_str()).collect()
    }

    /// A rank of the current generation ends, and so does its node's torchrun.
    fn rank_exits(&mut self, job: &str, rank: u32, exit: Exit, error: Option<&str>) {
        let generation = self.job(job).current.clone().unwrap();
        self.rank_of_exits(job, &generation, rank, exit, error);
    }

    fn rank_of_exits(
        &mut self,
        job: &str,
        generation: &GenerationRecord,
        rank: u32,
        exit: Exit,
        error: Option<&str>,
    ) {
        let node = self.rank_ends(job, generation, rank, exit, error);
        let agent = &self.agents[&node];
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        self.input(Input::Runs { session, runs });
        self.obey();
    }

    /// A rank ends on its node, and nobody is told. Returns the node.
    fn rank_ends(
        &mut self,
        job: &str,
        generation: &GenerationRecord,
        rank: u32,
        exit: Exit,
        error: Option<&str>,
    ) -> NodeName {
        let uid = self.job(job).uid.clone();
        let node = generation.node_of(rank).unwrap().clone();
        let now = self.now;
        let agent = self.agents.get_mut(&node).unwrap();
        let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
        let report = run.ranks.iter_mut().find(|r| r.rank == rank).unwrap();
        (report.exit, report.exited_at, report.first_error) =
            (Some(exit), Some(now), error.map(str::to_owned));
        run.phase = RunPhase::Dead;
        run.torchrun_exit = Some(if exit.is_success() {
            Exit::Code(0)
        } else {
            Exit::Code(1)
        });
        run.dead_at = Some(now);
        node
    }

    fn step(&mut self, job: &str, step: u64) {
        let (uid, generation) = (
            self.job(job).uid.clone(),
            self.job(job).current.clone().unwrap(),
        );
        let now = self.now;
        for member in &generation.members {
            let agent = self.agents.get_mut(&member.node).unwrap();
            let Some(run) = agent.runs.get_mut(&generation.run(&uid)) else {
                continue;
            };
            for rank in &mut run.ranks {
                rank.first_step.get_or_insert(step);
                rank.first_step_at.get_or_insert(now);
                (rank.last_step, rank.last_step_at) = (Some(step), Some(now));
            }
            let (session, runs) = (
                agent.session.unwrap(),
                agent.runs.values().cloned().collect(),
            );
            self.input(Input::Runs { session, runs });
        }
        self.obey();
    }
}

const SECOND: Duration = Duration::from_secs(1);
const PEER: Option<&str> =
    Some("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1");

/// Submits a job of one node and lets its worker fail twice. The third failure is up to the caller.
fn fails_twice(bench: &mut Bench, name: &str) {
    bench.submit(name, document(1, 1, 1));
    for _ in 0..2 {
        bench.pass(10 * SECOND);
        bench.rank_exits(name, 0, Exit::Signal(7), None);
        bench.pass(2 * SECOND);
    }
}

fn cancel(bench: &mut Bench, name: &str) {
    bench.request(Request::Cancel {
        name: JobName {
            namespace: "default".into(),
            name: name.into(),
        },
    });
    bench.pass(SECOND);
}
