//! The rules with a clock that the test moves by hand, then random histories with crashes on a
//! simulated machine.

use proptest::{collection, prelude::*};

use super::*;
use crate::{
    id::{Generation, JobName, JobUid},
    nccl::profile::Profile,
    node::{FoundState, GroupPhase},
    node_report::labels::Labels,
    run::{DesiredRun, RunPhase},
    spec::Launch,
};

mod disobedience;
mod fixture;
mod given_up;
mod retire;
mod settles;
mod unsaved;
pub(crate) use fixture::assignment;
use fixture::wanted;

pub(super) const NOW: Timestamp = Timestamp(1_000_000);

pub(super) fn run(job: &str, generation: u64) -> RunId {
    RunId {
        job: JobUid::from(job),
        generation: Generation(generation),
    }
}

fn store(port: u16) -> Endpoint {
    Endpoint {
        host: "127.0.0.1".into(),
        port,
    }
}

fn ready(job: &str, generation: u64) -> DesiredRun {
    DesiredRun {
        run: run(job, generation),
        target: Target::Ready(Box::new(assignment(job, generation))),
    }
}

pub(super) fn running(job: &str, generation: u64) -> DesiredRun {
    DesiredRun {
        run: run(job, generation),
        target: Target::Running(Box::new(assignment(job, generation)), store(7).into()),
    }
}

pub(super) fn stopped(job: &str, generation: u64, grace: u64) -> DesiredRun {
    let target = Target::Stopped {
        grace: Duration::from_secs(grace),
        reason: "scaled".into(),
    };
    DesiredRun {
        run: run(job, generation),
        target,
    }
}

fn gone(job: &str, generation: u64, purge: bool) -> DesiredRun {
    DesiredRun {
        run: run(job, generation),
        target: Target::Gone { purge },
    }
}

pub(super) fn status(phase: GroupPhase) -> GroupStatus {
    GroupStatus {
        phase,
        store: Some(store(7)),
        ..GroupStatus::holding()
    }
}

/// A node in a session of term 1, epoch 1.
pub(super) fn node() -> Node {
    let mut node = Node::new(Ledger::new("n1".into()));
    node.turn(NOW, Input::Restarted(Vec::new()));
    told(
        &mut node,
        Input::Welcome {
            term: Term(1),
            epoch: NodeEpoch(1),
        },
    );
    node
}

/// The effects of an input if every write of the ledger succeeds at once, without the one write.
pub(super) fn told(node: &mut Node, input: Input) -> Vec<Effect> {
    let is_save = |effect: &Effect| matches!(effect, Effect::SaveLedger(_));
    let mut effects = node.turn(NOW, input).effects;
    if let Some(at) = effects.iter().position(is_save) {
        effects.remove(at);
        effects.extend(node.turn(NOW, Input::Saved).effects);
    }
    assert!(!effects.iter().any(is_save), "saved twice: {effects:?}");
    effects
}

fn wants(node: &mut Node, runs: Vec<DesiredRun>) -> Vec<Effect> {
    let desired = Desired {
        term: node.ledger.term,
        epoch: node.ledger.epoch,
        runs,
        labels: Labels::default(),
        retire: None,
        prewarm: Vec::new(),
    };
    told(node, Input::Desired(desired))
}

fn hears(node: &mut Node, job: &str, generation: u64, phase: GroupPhase) -> Vec<Effect> {
    told(
        node,
        Input::Runner {
            run: run(job, generation),
            status: status(phase),
        },
    )
}

fn hold(job: &str, generation: u64, term: u64) -> Effect {
    Effect::Hold {
        assignment: Box::new(assignment(job, generation)),
        term: Term(term),
    }
}

fn start(job: &str, generation: u64) -> Effect {
    Effect::Start {
        assignment: Box::new(assignment(job, generation)),
        start: store(7).into(),
    }
}

fn stop(job: &str, generation: u64, grace: u64, reason: &str) -> Effect {
    Effect::Stop {
        run: run(job, generation),
        grace: Duration::from_secs(grace),
        reason: reason.into(),
    }
}

fn phase_of(node: &Node, job: &str, generation: u64) -> Option<RunPhase> {
    node.reports()
        .into_iter()
        .find(|report| report.run == run(job, generation))
        .map(|report| report.phase)
}

#[test]
fn a_run_from_nothing_to_gone() {
    let mut node = node();
    assert_eq!(wants(&mut node, vec![ready("a", 1)]), vec![hold("a", 1, 1)]);
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Preparing));
    assert_eq!(
        wants(&mut node, vec![ready("a", 1)]),
        vec![],
        "the same again is nothing new"
    );
    assert_eq!(hears(&mut node, "a", 1, GroupPhase::Holding), vec![]);
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Ready));
    assert_eq!(wants(&mut node, vec![running("a", 1)]), vec![start("a", 1)]);
    assert_eq!(
        hears(&mut node, "a", 1, GroupPhase::Holding),
        vec![],
        "a status on its way does not start twice"
    );
    hears(&mut node, "a", 1, GroupPhase::Running);
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Running));
    assert_eq!(
        wants(&mut node, vec![]),
        vec![],
        "not mentioned is left alone"
    );
    assert_eq!(
        wants(&mut node, vec![gone("a", 1, true)]),
        vec![],
        "what lives is not let go of"
    );
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Running));
    assert_eq!(
        wants(&mut node, vec![stopped("a", 1, 10)]),
        vec![stop("a", 1, 10, "scaled")]
    );
    assert_eq!(
        wants(&mut node, vec![stopped("a", 1, 20)]),
        vec![],
        "a longer grace does not follow"
    );
    assert_eq!(
        wants(&mut node, vec![stopped("a", 1, 0)]),
        vec![stop("a", 1, 0, "scaled")]
    );
    hears(&mut node, "a", 1, GroupPhase::Dead);
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Dead));
    hears(&mut node, "a", 1, GroupPhase::Running);
    assert_eq!(
        phase_of(&node, "a", 1),
        Some(RunPhase::Dead),
        "death is final"
    );
    let last = wants(&mut node, vec![gone("a", 1, true)]);
    assert_eq!(
        last,
        vec![
            Effect::Release { run: run("a", 1) },
            Effect::Purge { run: run("a", 1) }
        ]
    );
    assert_eq!(phase_of(&node, "a", 1), None);
    wants(&mut node, vec![running("a", 1)]);
    let over = "generation 1 has ended on this node and is not started twice".to_owned();
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Refused(over)));
}

#[test]
fn a_store_that_is_not_bound_is_not_ready() {
    let mut node = node();
    wants(&mut node, vec![running("a", 1)]);
    let unbound = GroupStatus {
        store: None,
        ..GroupStatus::holding()
    };
    assert_eq!(
        told(
            &mut node,
            Input::Runner {
                run: run("a", 1),
                status: unbound
            }
        ),
        vec![]
    );
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Preparing));
    assert_eq!(
        hears(&mut node, "a", 1, GroupPhase::Holding),
        vec![start("a", 1)]
    );
}

#[test]
fn a_newer_generation_waits_until_the_older_is_dead() {
    let mut node = node();
    wants(&mut node, vec![running("a", 1)]);
    hears(&mut node, "a", 1, GroupPhase::Holding);
    hears(&mut node, "a", 1, GroupPhase::Running);
    let effects = wants(&mut node, vec![running("a", 2)]);
    assert_eq!(
        effects,
        vec![
            stop("a", 1, 10, "replaced by generation 2"),
            hold("a", 2, 1)
        ]
    );
    assert_eq!(hears(&mut node, "a", 2, GroupPhase::Holding), vec![]);
    assert_eq!(
        phase_of(&node, "a", 2),
        Some(RunPhase::Preparing),
        "ready means that nothing is in the way"
    );
    assert_eq!(hears(&mut node, "a", 1, GroupPhase::Stopping), vec![]);
    assert_eq!(
        hears(&mut node, "a", 1, GroupPhase::Dead),
        vec![start("a", 2)]
    );
}

#[test]
fn the_coordinators_grace_for_the_older_one_counts() {
    let mut node = node();
    wants(&mut node, vec![running("a", 1)]);
    hears(&mut node, "a", 1, GroupPhase::Running);
    let effects = wants(&mut node, vec![stopped("a", 1, 0), ready("a", 2)]);
    assert_eq!(effects, vec![stop("a", 1, 0, "scaled"), hold("a", 2, 1)]);
}

#[test]
fn a_gpu_belongs_to_one_run() {
    let mut node = node();
    let on_gpu = |job: &str| {
        let assignment = Assignment {
            gpus: vec!["GPU-1".into()],
            ..assignment(job, 1)
        };
        DesiredRun {
            run: run(job, 1),
            target: Target::Running(Box::new(assignment), store(7).into()),
        }
    };
    wants(&mut node, vec![on_gpu("a")]);
    assert_eq!(hears(&mut node, "a", 1, GroupPhase::Holding).len(), 1);
    wants(&mut node, vec![on_gpu("b")]);
    assert_eq!(hears(&mut node, "b", 1, GroupPhase::Holding), vec![]);
    hears(&mut node, "a", 1, GroupPhase::Running);
    assert_eq!(phase_of(&node, "b", 1), Some(RunPhase::Preparing));
    assert_eq!(
        hears(&mut node, "a", 1, GroupPhase::Dead).len(),
        1,
        "b starts"
    );
}

#[test]
fn older_stamps_end_the_session_and_are_not_obeyed() {
    let mut node = node();
    told(
        &mut node,
        Input::Welcome {
            term: Term(3),
            epoch: NodeEpoch(4),
        },
    );
    let desired = |term, epoch| {
        let runs = vec![running("a", 1)];
        Input::Desired(fixture::desired(term, epoch, runs))
    };
    let end = |why| vec![Effect::EndSession(Alarm { run: None, why })];
    let older = Objection::OlderTerm {
        got: Term(2),
        seen: Term(3),
    };
    assert_eq!(node.turn(NOW, desired(2, 9)).effects, end(older.clone()));
    assert_eq!(
        node.turn(
            NOW,
            Input::Welcome {
                term: Term(2),
                epoch: NodeEpoch(9)
            }
        )
        .effects,
        end(older)
    );
    let older = Objection::OlderEpoch {
        got: NodeEpoch(3),
        seen: NodeEpoch(4),
    };
    assert_eq!(node.turn(NOW, desired(3, 3)).effects, end(older));
    assert_eq!(node.reports(), vec![]);
    assert_eq!(wants(&mut node, vec![ready("a", 1)]), vec![hold("a", 1, 3)]);
}

#[test]
fn same_number_with_other_content_is_an_alarm() {
    let mut node = node();
    wants(&mut node, vec![ready("a", 1)]);
    hears(&mut node, "a", 1, GroupPhase::Holding);
    let other = Assignment {
        args: vec!["evil.py".into()],
        ..assignment("a", 1)
    };
    let target = Target::Running(Box::new(other), store(7).into());
    let why = Objection::OtherContent(Generation(1));
    let alarm = vec![Effect::Alarm(Alarm {
        run: Some(run("a", 1)),
        why,
    })];
    assert_eq!(
        wants(
            &mut node,
            vec![DesiredRun {
                run: run("a", 1),
                target
            }]
        ),
        alarm
    );
    assert_eq!(
        hears(&mut node, "a", 1, GroupPhase::Holding),
        vec![],
        "not obeyed later either"
    );

    assert_eq!(wants(&mut node, vec![running("a", 1)]), vec![start("a", 1)]);
    let target = Target::Running(Box::new(assignment("a", 1)), store(8).into());
    let effects = wants(
        &mut node,
        vec![DesiredRun {
            run: run("a", 1),
            target,
        }],
    );
    let why = Objection::OtherStore {
        generation: Generation(1),
        got: store(8),
        seen: store(7),
    };
    assert_eq!(
        effects,
        vec![Effect::Alarm(Alarm {
            run: Some(run("a", 1)),
            why
        })]
    );

    wants(&mut node, vec![ready("a", 2)]);
    let why = Objection::OlderGeneration {
        got: Generation(1),
        seen: Generation(2),
    };
    assert_eq!(
        wants(&mut node, vec![running("a", 1)]),
        vec![Effect::Alarm(Alarm {
            run: Some(run("a", 1)),
            why
        })]
    );
}

#[test]
fn told_to_be_dead_before_it_was_heard_of_is_dead_for_ever() {
    let mut node = node();
    assert_eq!(wants(&mut node, vec![stopped("a", 4, 10)]), vec![]);
    assert_eq!(phase_of(&node, "a", 4), Some(RunPhase::Dead));
    assert_eq!(wants(&mut node, vec![running("a", 4)]), vec![]);
    assert_eq!(phase_of(&node, "a", 4), Some(RunPhase::Dead));
    assert_eq!(
        wants(&mut node, vec![running("a", 5)]),
        vec![hold("a", 5, 1)]
    );
}

#[test]
fn a_stop_overtakes_a_runner_that_is_still_coming_up() {
    let mut node = node();
    wants(&mut node, vec![running("a", 1)]);
    assert_eq!(wants(&mut node, vec![stopped("a", 1, 10)]), vec![]);
    assert_eq!(
        phase_of(&node, "a", 1),
        Some(RunPhase::Preparing),
        "not dead: it may be coming up"
    );
    assert_eq!(
        hears(&mut node, "a", 1, GroupPhase::Holding),
        vec![stop("a", 1, 10, "scaled")]
    );
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Stopping));
}

#[test]
fn a_jobs_remains_are_not_removed_under_a_run_that_lives() {
    let mut node = node();
    wants(&mut node, vec![ready("a", 1)]);
    hears(&mut node, "a", 1, GroupPhase::Holding);
    assert_eq!(wants(&mut node, vec![gone("a", 4, true)]), vec![]);
    wants(&mut node, vec![gone("a", 4, true), stopped("a", 1, 0)]);
    hears(&mut node, "a", 1, GroupPhase::Dead);
    let effects = wants(&mut node, vec![gone("a", 4, true), gone("a", 1, true)]);
    assert!(
        effects.contains(&Effect::Purge { run: run("a", 1) }),
        "{effects:?}"
    );
    assert_eq!(
        wants(&mut node, vec![gone("a", 4, true)]),
        vec![Effect::Purge { run: run("a", 4) }]
    );
}

#[test]
fn what_cannot_start_says_why_and_is_not_tried_again() {
    let mut node = node();
    wants(&mut node, vec![running("a", 1)]);
    let refused = Input::Refused {
        run: run("a", 1),
        refusal: "python3 not found".into(),
    };
    assert_eq!(told(&mut node, refused.clone()), vec![]);
    assert_eq!(
        phase_of(&node, "a", 1),
        Some(RunPhase::Refused("python3 not found".into()))
    );
    assert_eq!(wants(&mut node, vec![running("a", 1)]), vec![]);
    hears(&mut node, "a", 1, GroupPhase::Holding);
    assert!(matches!(
        phase_of(&node, "a", 1),
        Some(RunPhase::Refused(_))
    ));

    wants(&mut node, vec![running("b", 1)]);
    hears(&mut node, "b", 1, GroupPhase::Holding);
    let refused = Input::Refused {
        run: run("b", 1),
        refusal: "exec format error".into(),
    };
    assert_eq!(
        told(&mut node, refused),
        vec![stop("b", 1, 0, "it cannot be started")]
    );
}

#[test]
fn a_restarted_agent_shows_what_is_there_and_touches_nothing() {
    let mut before = node();
    wants(&mut before, vec![running("a", 1), running("b", 1)]);
    let mut node = Node::new(before.ledger.clone());
    let found = |job: &str, state| Found {
        run: run(job, 1),
        term: Term(1),
        gpus: Vec::new(),
        state,
    };
    let exit = SeenExit {
        attempt: 1,
        rank: Some(3),
        pid: 9,
        started_at: Timestamp(1),
        exit: crate::exit::Exit::Signal(9),
        exited_at: Timestamp(2),
    };
    let inventory = vec![
        found("a", FoundState::Known(status(GroupPhase::Running))),
        found(
            "b",
            FoundState::Lost {
                exits: vec![exit],
                at: Timestamp(4),
            },
        ),
        found("c", FoundState::Silent),
    ];
    assert_eq!(node.turn(NOW, Input::Restarted(inventory)).effects, vec![]);
    let phases: Vec<RunPhase> = node
        .reports()
        .into_iter()
        .map(|report| report.phase)
        .collect();
    assert_eq!(
        phases,
        vec![RunPhase::Running, RunPhase::Dead, RunPhase::Running]
    );
    let dead = &node.reports()[1];
    assert_eq!(
        (dead.dead_at, dead.ranks[0].rank, dead.ranks[0].exit),
        (Some(Timestamp(4)), 3, Some(crate::exit::Exit::Signal(9)))
    );
    assert_eq!(
        wants(&mut node, vec![running("a", 1), running("b", 1)]),
        vec![]
    );
}

#[test]
fn started_once_and_its_records_gone_is_not_started_again() {
    let mut before = node();
    wants(&mut before, vec![running("a", 1)]);
    hears(&mut before, "a", 1, GroupPhase::Holding);
    let mut node = Node::new(before.ledger.clone());
    node.turn(NOW, Input::Restarted(Vec::new()));
    assert_eq!(wants(&mut node, vec![running("a", 1)]), vec![]);
    let reason = "its workers were started on this node, but its records are gone".to_owned();
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Refused(reason)));
}

#[test]
fn a_lost_runner_leaves_its_last_words() {
    let mut node = node();
    wants(&mut node, vec![running("a", 1)]);
    hears(&mut node, "a", 1, GroupPhase::Holding);
    let exit = SeenExit {
        attempt: 1,
        rank: None,
        pid: 9,
        started_at: Timestamp(1),
        exit: crate::exit::Exit::Code(1),
        exited_at: Timestamp(2),
    };
    node.turn(
        NOW,
        Input::RunnerLost {
            run: run("a", 1),
            exits: vec![exit],
            at: Timestamp(5),
        },
    );
    let report = &node.reports()[0];
    assert_eq!(
        (&report.phase, report.dead_at, report.store.as_ref()),
        (&RunPhase::Dead, Some(Timestamp(5)), None)
    );
    assert_eq!(
        (report.launched_at, report.torchrun_exit),
        (Some(Timestamp(1)), Some(crate::exit::Exit::Code(1)))
    );
}

/// One machine with its runners, and an agent that may be killed between any two effects.
struct Machine {
    node: Node,
    disk: Ledger,
    groups: BTreeMap<RunId, Group>,
    /// The assignment with which each run was first held.
    content: BTreeMap<RunId, Assignment>,
}

struct Group {
    phase: GroupPhase,
    launched: bool,
}

impl Group {
    fn works(&self) -> bool {
        matches!(self.phase, GroupPhase::Running | GroupPhase::Stopping) && self.launched
    }
}

#[derive(Clone, Debug)]
enum Event {
    Welcome(u64, u64),
    Desired(u64, u64, Vec<(u8, u64, u8)>),
    /// The runner of a run reports its status.
    Speak(u8, u64),
    /// A group goes on by itself: a stopping one dies, a running one may fail.
    Progress(u8, u64),
    Vanish(u8, u64),
    RefuseStart(u8, u64),
    Crash,
}

/// There are few jobs, generations and stamps, so that they meet often.
fn event() -> impl Strategy<Value = (Event, usize)> {
    let id = || (0..2u8, 1..4u64);
    let desired = (
        1..4u64,
        1..4u64,
        collection::vec((0..2u8, 1..4u64, 0..6u8), 0..4),
    );
    let event = prop_oneof![
        1 => (1..4u64, 1..4u64).prop_map(|(term, epoch)| Event::Welcome(term, epoch)),
        6 => desired.prop_map(|(term, epoch, runs)| Event::Desired(term, epoch, runs)),
        8 => id().prop_map(|(job, generation)| Event::Speak(job, generation)),
        4 => id().prop_map(|(job, generation)| Event::Progress(job, generation)),
        1 => id().prop_map(|(job, generation)| Event::Vanish(job, generation)),
        1 => id().prop_map(|(job, generation)| Event::RefuseStart(job, generation)),
        1 => Just(Event::Crash),
    ];
    // The number of effects that are executed before the agent is killed. Mostly all of them.
    (event, prop_oneof![9 => Just(usize::MAX), 1 => 0..4usize])
}

fn job(number: u8) -> &'static str {
    ["a", "b"][usize::from(number)]
}

impl Machine {
    fn new() -> Self {
        let disk = Ledger::new("n1".into());
        Self {
            node: Node::new(disk.clone()),
            disk,
            groups: BTreeMap::new(),
            content: BTreeMap::new(),
        }
    }

    fn happen(&mut self, event: Event, lives_for: usize) {
        let input = match event {
            Event::Welcome(term, epoch) => Input::Welcome {
                term: Term(term),
                epoch: NodeEpoch(epoch),
            },
            Event::Desired(term, epoch, runs) => {
                let mut runs: Vec<DesiredRun> = runs
                    .into_iter()
                    .map(|(job, generation, kind)| wanted(job, generation, kind))
                    .collect();
                runs.sort_by(|a, b| a.run.cmp(&b.run));
                runs.dedup_by(|a, b| a.run == b.run);
                Input::Desired(fixture::desired(term, epoch, runs))
            }
            Event::Speak(number, generation) => {
                match self.groups.get(&run(job(number), generation)) {
                    Some(group) => Input::Runner {
                        run: run(job(number), generation),
                        status: status(group.phase),
                    },
                    None => return,
                }
            }
            Event::Progress(number, generation) => {
                if let Some(group) = self.groups.get_mut(&run(job(number), generation)) {
                    group.phase = match group.phase {
                        GroupPhase::Holding => GroupPhase::Holding,
                        GroupPhase::Running => GroupPhase::Stopping,
                        GroupPhase::Stopping | GroupPhase::Dead => GroupPhase::Dead,
                    };
                }
                return;
            }
            Event::Vanish(number, generation) => {
                match self.groups.get_mut(&run(job(number), generation)) {
                    Some(group) => {
                        group.phase = GroupPhase::Dead;
                        Input::RunnerLost {
                            run: run(job(number), generation),
                            exits: Vec::new(),
                            at: NOW,
                        }
                    }
                    None => return,
                }
            }
            Event::RefuseStart(number, generation) => {
                match self.groups.get(&run(job(number), generation)) {
                    Some(group) if !group.launched => Input::Refused {
                        run: run(job(number), generation),
                        refusal: "no".into(),
                    },
                    _ => return,
                }
            }
            Event::Crash => return self.crash(),
        };
        self.obey(input, lives_for);
    }

    fn obey(&mut self, input: Input, lives_for: usize) {
        let before = self.disk.clone();
        let stale = match &input {
            Input::Welcome { term, epoch } => (*term, *epoch),
            Input::Desired(desired) => (desired.term, desired.epoch),
            _ => (before.term, before.epoch),
        };
        let effects = self.node.turn(NOW, input).effects;
        if stale.0 < before.term || stale.1 < before.epoch {
            let ends = effects
                .iter()
                .filter(|effect| matches!(effect, Effect::EndSession(_)))
                .count();
            assert_eq!(ends, 1, "an older stamp ends the session");
            assert!(
                !effects
                    .iter()
                    .any(|effect| matches!(effect, Effect::SaveLedger(_) | Effect::Hold { .. })),
                "{effects:?}"
            );
        }
        let mut effects = std::collections::VecDeque::from(effects);
        for _ in 0..lives_for {
            let Some(effect) = effects.pop_front() else {
                return;
            };
            let saves = matches!(effect, Effect::SaveLedger(_));
            self.execute(effect);
            if saves {
                effects.extend(self.node.turn(NOW, Input::Saved).effects);
            }
        }
        if !effects.is_empty() {
            self.crash();
        }
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Retire { .. } => {}
            Effect::SaveLedger(ledger) => {
                assert!(
                    ledger.term >= self.disk.term && ledger.epoch >= self.disk.epoch,
                    "the ledger goes up only"
                );
                for (job, seen) in &self.disk.jobs {
                    let now = &ledger.jobs[job];
                    assert!(now.generation >= seen.generation, "the ledger goes up only");
                    assert!(
                        now.generation > seen.generation || now.over >= seen.over,
                        "what has ended stays so"
                    );
                }
                self.disk = *ledger;
            }
            Effect::Hold { assignment, .. } => {
                let seen = &self.disk.jobs[&assignment.run.job];
                assert_eq!(
                    seen.generation, assignment.run.generation,
                    "persisted before obeyed"
                );
                self.content
                    .entry(assignment.run.clone())
                    .or_insert(*assignment.clone());
                let group = Group {
                    phase: GroupPhase::Holding,
                    launched: false,
                };
                self.groups.entry(assignment.run).or_insert(group);
            }
            Effect::Start { assignment, start } => {
                let seen = &self.disk.jobs[&assignment.run.job];
                assert_eq!(
                    (seen.generation, seen.store.as_ref()),
                    (assignment.run.generation, Some(&start.store)),
                    "persisted before obeyed"
                );
                assert_eq!(
                    &self.content[&assignment.run],
                    assignment.as_ref(),
                    "one content per generation"
                );
                let group = self
                    .groups
                    .get_mut(&assignment.run)
                    .expect("held before started");
                if group.phase == GroupPhase::Holding {
                    assert!(!group.launched, "started twice");
                    (group.phase, group.launched) = (GroupPhase::Running, true);
                }
            }
            Effect::Stop { run, .. } => {
                let group = self
                    .groups
                    .get_mut(&run)
                    .expect("only what is held is stopped");
                group.phase = match group.phase {
                    GroupPhase::Holding | GroupPhase::Dead => GroupPhase::Dead,
                    GroupPhase::Running | GroupPhase::Stopping => GroupPhase::Stopping,
                };
            }
            Effect::Release { run } | Effect::Purge { run } => {
                assert!(
                    !self.groups.get(&run).is_some_and(Group::works),
                    "a living group is not let go of"
                );
            }
            Effect::EndSession(_) | Effect::Alarm(_) | Effect::Restart { .. } => {}
        }
    }

    /// The agent dies, and its runners go on. The next agent reads the ledger and looks around.
    fn crash(&mut self) {
        self.node = Node::new(self.disk.clone());
        let found = |(run, group): (&RunId, &Group)| {
            let state = FoundState::Known(status(group.phase));
            Found {
                run: run.clone(),
                term: Term(1),
                gpus: Vec::new(),
                state,
            }
        };
        let inventory = self.groups.iter().map(found).collect();
        self.obey(Input::Restarted(inventory), usize::MAX);
    }

    fn check(&self) {
        for name in ["a", "b"] {
            let working: Vec<u64> = self
                .groups
                .iter()
                .filter(|(id, g)| id.job.as_str() == name && g.works())
                .map(|(id, _)| id.generation.0)
                .collect();
            assert!(
                working.len() <= 1,
                "generations {working:?} of {name} run at once"
            );
        }
        for report in self.node.reports() {
            let works = self.groups.get(&report.run).is_some_and(Group::works);
            assert!(
                !(report.phase.is_over() && works),
                "{:?} is reported over and works",
                report.run
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn no_history_breaks_the_rules(events in collection::vec(event(), 1..60)) {
        let mut machine = Machine::new();
        machine.obey(Input::Restarted(Vec::new()), usize::MAX);
        for (event, lives_for) in events {
            machine.happen(event, lives_for);
            machine.check();
        }
        machine.settles_on_what_it_is_told();
    }
}
