//! The brain by hand: a fleet, agents that answer at once, and a clock that tests move.

use std::{collections::BTreeMap, time::Duration};

use super::*;
use crate::{
    exit::Exit,
    fleet::{
        job::{GenerationRecord, Phase},
        receipt::{Cause, Charged},
        view::Liveness,
    },
    nccl::stack::Stack,
    node_report::NodeReport,
    protocol::Speaks,
    run::{RankReport, RunId, RunPhase},
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
};

mod agent;
mod backoff;
mod bursts;
mod fences;
mod joining;
mod known;
mod listening;
mod mixture;
mod namesakes;
mod objects;
mod prewarm;
mod regressions;
mod requests;
mod restarts;
mod rollback;
mod software_mismatch;
mod unhealthy;

use agent::{Agent, obey};

/// Agents that do what they are told, at once, and a coordinator that can be restarted from what it
/// committed.
struct Bench {
    fleet: Fleet,
    now: Timestamp,
    stored_jobs: BTreeMap<JobUid, JobRecord>,
    stored_nodes: BTreeMap<NodeName, NodeRecord>,
    agents: BTreeMap<NodeName, Agent>,
    term: u64,
    next: u64,
    events: Vec<Event>,
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
            agents: BTreeMap::new(),
            term: 1,
            next: 0,
            events: Vec::new(),
        };
        nodes.iter().for_each(|node| bench.connect(node));
        bench
    }

    fn input(&mut self, input: Input) -> Vec<Effect> {
        let turn = self.fleet.turn(self.now, input);
        for change in turn.changes {
            match change {
                Change::PutJob(job) => drop(self.stored_jobs.insert(job.uid.clone(), *job)),
                Change::DeleteJob(uid) => drop(self.stored_jobs.remove(&uid)),
                Change::PutNode(node) => drop(self.stored_nodes.insert(node.name.clone(), *node)),
                Change::DeleteNode(name) => drop(self.stored_nodes.remove(&name)),
                Change::Event(event) => self.events.push(*event),
            }
        }
        for effect in &turn.effects {
            match effect {
                Effect::Publish { session, desired } => {
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
                _ => {}
            }
        }
        turn.effects
    }

    fn connect(&mut self, node: &str) {
        self.next += 1;
        let session = SessionId(self.next);
        let agent = self.agents.entry(node.into()).or_default();
        // Of spares it says everything again.
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

    /// Lets agents do what they are told until nothing changes.
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
                agent.asked = desired.warm.iter().map(|job| job.run.job.clone()).collect();
                let (before, spares) = (agent.runs.clone(), agent.spares());
                for run in desired.runs {
                    obey(&mut agent.runs, run, desired.term, self.now, agent.imports);
                }
                let ready = agent
                    .runs
                    .values_mut()
                    .filter(|run| run.phase == RunPhase::Ready);
                ready.for_each(|run| run.stack = agent.stack.clone());
                let runs = (agent.runs != before).then(|| agent.runs.values().cloned().collect());
                quiet &= runs.is_none() && spares.is_none();
                if let Some(runs) = runs {
                    self.input(Input::Runs { session, runs });
                }
                if let Some(spares) = spares {
                    self.input(Input::Spares { session, spares });
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
        let effects = self.input(Input::Request { id, request });
        self.obey();
        let answer = effects.into_iter().find_map(|effect| match effect {
            Effect::Answer { id: to, answer } if to == id => Some(answer),
            _ => None,
        });
        answer.expect("every request is answered in its turn")
    }

    fn submit(&mut self, name: &str, spec: SpecDocument) -> Answer {
        self.next += 1;
        let metadata = Metadata {
            name: name.into(),
            namespace: None,
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

    /// A rank of the current generation ends; its node's torchrun follows.
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
        let uid = self.job(job).uid.clone();
        let node = generation.node_of(rank).unwrap().clone();
        let now = self.now;
        let agent = self.agents.get_mut(&node).unwrap();
        let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
        let report = run.ranks.iter_mut().find(|r| r.rank == rank).unwrap();
        (report.exit, report.exited_at, report.first_error) =
            (Some(exit), Some(now), error.map(str::to_owned));
        run.phase = RunPhase::Dead;
        run.launcher_exit = Some(if exit.is_success() {
            Exit::Code(0)
        } else {
            Exit::Code(1)
        });
        run.dead_at = Some(now);
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        self.input(Input::Runs { session, runs });
        self.obey();
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
                rank.last_step = Some(step);
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

#[test]
fn a_job_starts_as_soon_as_the_minimum_is_there_and_says_what_it_waits_for() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(2, 3, 3));
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason.as_str()),
        (Phase::Pending, "BelowMinimum")
    );
    assert_eq!(job.message, "1 of at least 2 nodes available");
    bench.connect("b");
    assert_eq!(bench.job("digits").phase, Phase::Running);
    assert_eq!(bench.members("digits"), ["a", "b"]);
}

#[test]
fn it_grows_after_the_cool_down_and_survivors_keep_their_order() {
    let mut bench = Bench::new(&["b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.pass(SECOND);
    bench.connect("a");
    bench.pass(3 * SECOND);
    assert_eq!(
        bench.members("digits"),
        ["b", "c"],
        "not before the cool-down"
    );
    bench.pass(2 * SECOND);
    assert_eq!(bench.members("digits"), ["b", "c", "a"]);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0, job.restarts.len()),
        (Phase::Running, 2, 0)
    );
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeJoined);
}

#[test]
fn a_failed_worker_costs_the_job_one_restart_and_nobody_else() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.step("digits", 41);
    bench.rank_exits("digits", 1, Exit::Signal(11), None);
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0, job.restarts.len()),
        (Phase::Running, 2, 1)
    );
    bench.step("digits", 38);
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.charged),
        (Cause::WorkerFailed, Charged::Job)
    );
    assert_eq!(incident.culprit.as_deref(), Some("rank 1 on b"));
    assert_eq!(incident.collateral, ["rank 0 on a"]);
    assert_eq!(incident.steps_lost(), Some(4));
    assert!(
        incident.decided_at.is_some()
            && incident.stopped_at.is_some()
            && incident.launched_at.is_some()
    );
}

#[test]
fn a_cut_node_whose_peers_die_of_it_is_left_out_at_once() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.cut("a");
    bench.rank_exits("digits", 1, Exit::Code(1), PEER);
    bench.pass(Duration::from_millis(100));
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 2),
        "no timer is waited for: {}",
        job.message
    );
    assert_eq!(bench.members("digits"), ["b", "c"]);
    assert!(
        job.restarts.is_empty(),
        "a node's fault costs the job nothing"
    );
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeLost);
    // It comes back with the old generation still alive: that is stopped, and the world grows
    // again.
    bench.connect("a");
    bench.pass(6 * SECOND);
    assert_eq!(bench.members("digits"), ["b", "c", "a"]);
}

#[test]
fn a_silent_node_is_waited_for_while_nobody_dies() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.agents.get_mut(&"c".into()).unwrap().frozen = true;
    bench.pass(4 * SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "suspect is not lost"
    );
    bench.pass(2 * SECOND);
    assert_eq!(bench.members("digits"), ["a", "b"]);
    assert_eq!(bench.job("digits").phase, Phase::Running);
}

#[test]
fn below_the_minimum_a_silent_node_strands_the_job_but_kills_nothing() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.pass(10 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason.as_str(), job.last_generation.0),
        (Phase::Running, "BelowMinimum", 1)
    );
    bench.agents.get_mut(&"b".into()).unwrap().frozen = false;
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.reason.as_str(), job.last_generation.0),
        ("Running", 1),
        "it goes on where it was"
    );
}

#[test]
fn a_lone_node_that_vanishes_is_not_replaced_without_proof() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("solo", document(1, 1, 1));
    assert_eq!(bench.members("solo"), ["a"]);
    bench.cut("a");
    bench.pass(10 * SECOND);
    let job = bench.job("solo");
    assert_eq!(
        (job.phase, job.reason.as_str()),
        (Phase::Recovering, "Unreachable")
    );
    assert!(
        job.message.contains("muster delete node a"),
        "{}",
        job.message
    );
    bench.request(Request::DeleteNode { node: "a".into() });
    let job = bench.job("solo");
    assert_eq!(job.phase, Phase::Running, "{}: {}", job.reason, job.message);
    assert_eq!(bench.members("solo"), ["b"]);
}

#[test]
fn a_reboot_is_proof_of_death() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("solo", document(1, 1, 1));
    bench.cut("a");
    bench.agents.get_mut(&"a".into()).unwrap().boot = 1;
    bench.connect("a");
    bench.pass(SECOND);
    let job = bench.job("solo");
    assert_eq!((job.phase, job.last_generation.0), (Phase::Running, 2));
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeRebooted);
}

#[test]
fn a_crash_loop_backs_off_and_then_fails_with_its_last_error() {
    let mut bench = Bench::new(&["a"]);
    bench.submit(
        "bad",
        SpecDocument {
            restart_policy: None,
            ..document(1, 1, 1)
        },
    );
    for _ in 0..4 {
        assert_eq!(bench.job("bad").phase, Phase::Running);
        bench.rank_exits("bad", 0, Exit::Code(7), Some("ValueError: no"));
        bench.pass(5 * SECOND);
    }
    let job = bench.job("bad");
    assert_eq!(
        (job.phase, job.reason.as_str()),
        (Phase::Failed, "RestartBudgetSpent")
    );
    assert!(
        job.message.contains("exit code 7: ValueError: no"),
        "{}",
        job.message
    );
    assert!(
        bench.fleet.nodes.nodes[&"a".into()].record.cordon.is_none(),
        "one bad job cordons nobody"
    );
}

/// Submits a job of one node and lets its worker fail until the third failure is due.
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

#[test]
fn a_node_is_cordoned_when_two_jobs_last_longer_without_it() {
    let mut bench = Bench::new(&["a", "b"]);
    for (name, cordoned) in [("one", false), ("two", true)] {
        fails_twice(&mut bench, name);
        assert_eq!(bench.members(name), ["b"], "it is tried elsewhere");
        bench.pass(50 * SECOND);
        assert!(
            bench.fleet.nodes.nodes[&"a".into()].record.cordon.is_none(),
            "not proven yet"
        );
        bench.pass(20 * SECOND);
        assert_eq!(
            bench.fleet.nodes.nodes[&"a".into()].record.cordon.is_some(),
            cordoned,
            "{name}"
        );
        cancel(&mut bench, name);
    }
    let cordon = bench.stored_nodes[&"a".into()].cordon.clone().unwrap();
    assert_eq!(cordon.by, MUSTER);
    assert!(
        cordon
            .reason
            .contains("4 failures of 2 jobs count against it"),
        "{}",
        cordon.reason
    );
}

#[test]
fn two_faulty_jobs_cordon_no_healthy_node() {
    let mut bench = Bench::new(&["a", "b"]);
    for name in ["one", "two"] {
        fails_twice(&mut bench, name);
        assert_eq!(bench.members(name), ["b"]);
        bench.pass(5 * SECOND);
        bench.rank_exits(name, 0, Exit::Signal(7), None);
        bench.pass(5 * SECOND);
        let standings = |bench: &Bench, node: &str| -> Vec<Standing> {
            let marks = &bench.stored_nodes[&node.into()].marks;
            marks
                .iter()
                .filter(|mark| mark.name.name == name)
                .map(|mark| mark.standing)
                .collect()
        };
        assert_eq!(standings(&bench, "a"), [Standing::Acquitted; 2]);
        assert_eq!(standings(&bench, "b"), [Standing::Acquitted; 1]);
        bench.pass(200 * SECOND);
        bench.rank_exits(name, 0, Exit::Signal(7), None);
        bench.pass(SECOND);
        let job = bench.job(name);
        assert!(
            job.message
                .contains("its failures began on 2 different nodes"),
            "{}",
            job.message
        );
    }
    assert!(
        bench
            .stored_nodes
            .values()
            .all(|node| node.cordon.is_none())
    );
}

#[test]
fn a_good_end_without_a_node_counts_against_it_too() {
    let mut bench = Bench::new(&["a", "b"]);
    fails_twice(&mut bench, "one");
    bench.pass(SECOND);
    bench.rank_exits("one", 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);
    assert!(
        bench.stored_nodes[&"a".into()]
            .marks
            .iter()
            .all(|mark| mark.standing == Standing::Accused)
    );
}

#[test]
fn scale_is_obeyed_without_cool_down_and_kept_within_bounds() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(1, 1, 3));
    let name = JobName {
        namespace: "default".into(),
        name: "digits".into(),
    };
    bench.request(Request::Scale {
        name: name.clone(),
        nodes: 3,
    });
    assert_eq!(bench.members("digits"), ["a", "b", "c"]);
    bench.request(Request::Scale {
        name: name.clone(),
        nodes: 2,
    });
    assert_eq!(bench.members("digits"), ["a", "b"]);
    let refused = bench.request(Request::Scale { name, nodes: 4 });
    assert!(
        matches!(refused, Answer::Refused(Refusal::Invalid { .. })),
        "{refused:?}"
    );
}

#[test]
fn it_ends_well_when_all_ranks_do_and_frees_its_nodes() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(2, 2, 2));
    bench.submit("two", document(2, 2, 2));
    assert_eq!(bench.job("two").reason, "BelowMinimum");
    bench.rank_exits("one", 0, Exit::Code(0), None);
    assert_eq!(
        bench.job("one").phase,
        Phase::Running,
        "one of two has ended"
    );
    bench.rank_exits("one", 1, Exit::Code(0), None);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);
    assert_eq!(bench.job("two").phase, Phase::Running);
    let name = JobName {
        namespace: "default".into(),
        name: "one".into(),
    };
    assert_eq!(
        bench.request(Request::Delete { name: name.clone() }),
        Answer::Done
    );
    assert!(!bench.stored_jobs.values().any(|job| job.name == name));
}

#[test]
fn a_node_lost_after_its_workers_finished_does_not_cost_the_job() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    for node in ["a", "b"] {
        let agent = bench.agents.get_mut(&node.into()).unwrap();
        for run in agent.runs.values_mut() {
            run.ranks
                .iter_mut()
                .for_each(|rank| rank.exit = Some(Exit::Code(0)));
        }
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        bench.input(Input::Runs { session, runs });
    }
    let session = bench
        .agents
        .get_mut(&"a".into())
        .unwrap()
        .session
        .take()
        .unwrap();
    bench.input(Input::Disconnected { session });
    bench.obey();
    assert_eq!(bench.job("digits").phase, Phase::Succeeded);
}

#[test]
fn a_launcher_ended_after_its_ranks_finished_is_no_failure() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    let run = bench
        .agents
        .get_mut(&"a".into())
        .unwrap()
        .runs
        .values_mut()
        .next()
        .unwrap();
    run.launcher_exit = Some(Exit::Signal(9));
    let (session, runs) = (
        bench.agents[&"a".into()].session.unwrap(),
        bench.agents[&"a".into()].runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.pass(SECOND);
    assert_eq!(
        (
            bench.job("digits").phase,
            bench.job("digits").last_generation.0
        ),
        (Phase::Running, 1)
    );
    bench.rank_exits("digits", 1, Exit::Code(0), None);
    assert_eq!(bench.job("digits").phase, Phase::Succeeded);
}
