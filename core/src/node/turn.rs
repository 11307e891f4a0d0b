//! Compares desired with actual state: the rules by which a node obeys.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    id::{NodeEpoch, NodeName, Term},
    node::{
        Found, GroupPhase, GroupStatus, Ledger, Objection, SeenExit,
        group::{Run, State, older_than},
        unsaved::{Unsaved, Untold},
    },
    node_report::labels::Labels,
    run::{self, Assignment, Desired, Disobedience, Endpoint, RunId, RunReport, Target},
    time::Timestamp,
};

mod overtaken;

/// One fact that the agent has learnt.
#[derive(Clone, Debug)]
pub enum Input {
    /// The agent has just started and found these runs. It is the first input, and comes once.
    Restarted(Vec<Found>),
    /// The coordinator accepted the session.
    Welcome {
        term: Term,
        epoch: NodeEpoch,
    },
    Desired(Desired),
    /// A runner has reported the status of its group.
    Runner {
        run: RunId,
        status: GroupStatus,
    },
    /// A runner is gone without a record of its group's end. At `at` nothing that it had started
    /// was left.
    RunnerLost {
        run: RunId,
        exits: Vec<SeenExit>,
        at: Timestamp,
    },
    /// The runner of a run does not do what it was ordered to, so the agent kills it. What it held is
    /// proven dead as if the runner had been lost.
    Disobeyed {
        run: RunId,
        disobedience: Disobedience,
    },
    /// The run cannot be started here; the reason is for the user.
    Refused {
        run: RunId,
        reason: String,
    },
    /// The ledger of [`Effect::SaveLedger`] is on disk.
    Saved,
}

/// One action for the agent. It executes all effects of a turn in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Persist this ledger, and send [`Input::Saved`] when it is on disk. If it cannot be written,
    /// try again. The effects that depend on it come after that input.
    SaveLedger(Box<Ledger>),
    /// Bring the runner up, with a TCPStore if the assignment hosts it.
    Hold {
        assignment: Box<Assignment>,
        term: Term,
    },
    /// Start the workers. The agent keeps this order until the runner has it. After a restart of
    /// the agent the order comes again.
    Start {
        assignment: Box<Assignment>,
        start: run::Start,
    },
    /// Start a rank again that has failed, while the others of the group go on. It may come more than
    /// once.
    Restart { run: RunId, rank: u32, attempt: u32 },
    /// End the group. Another stop with a shorter grace period may follow.
    Stop {
        run: RunId,
        grace: Duration,
        reason: String,
    },
    /// The coordinator has recorded the end, so the runner may go.
    Release { run: RunId },
    /// Remove what runs of this job, up to this generation, have left on disk.
    Purge { run: RunId },
    /// Let the workers' container end with these last words. Its pod is of no use any more.
    Retire { last_words: String },
    /// End the session: the coordinator knows less than this node has obeyed.
    EndSession(Alarm),
    /// Tell a person that something happened that must not happen. It was not obeyed.
    Alarm(Alarm),
}

/// A message that was not obeyed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The run that the message is about. `None`: it is not about a single run.
    pub run: Option<RunId>,
    pub why: Objection,
}

/// The result of one input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnOutput {
    pub effects: Vec<Effect>,
}

/// One node, as its agent knows it.
#[derive(Clone, Debug)]
pub struct Node {
    ledger: Ledger,
    runs: BTreeMap<RunId, Run>,
    desired: Option<Desired>,
    /// Runs of the current desired state that this node does not obey.
    objected: BTreeSet<RunId>,
    unsaved: Unsaved,
}

impl Node {
    /// A node that has just read its ledger and holds no runs yet.
    pub fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            runs: BTreeMap::new(),
            desired: None,
            objected: BTreeSet::new(),
            unsaved: Unsaved::default(),
        }
    }

    pub fn name(&self) -> &NodeName {
        &self.ledger.node
    }

    /// The promises of this node. Some of them may still be on their way to the disk, but a hello
    /// names them all. If the coordinator knows less, its store is an old copy, and it would
    /// otherwise give out numbers again that this node has promised to.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes one input and returns the actions that follow.
    pub fn turn(&mut self, now: Timestamp, input: Input) -> TurnOutput {
        let mut work = Work::default();
        let saved = matches!(input, Input::Saved);
        match input {
            Input::Saved => {}
            Input::Restarted(found) => {
                for found in found {
                    self.runs.insert(found.run.clone(), Run::found(found));
                }
            }
            Input::Welcome { term, epoch } => {
                self.accept_stamp(term, epoch, &mut work);
            }
            Input::Desired(desired) => {
                if self.accept_stamp(desired.term, desired.epoch, &mut work) {
                    self.accept(desired, now, &mut work);
                }
            }
            Input::Runner { run, status } => {
                if let Some(run) = self.runs.get_mut(&run) {
                    run.hear(status);
                }
            }
            Input::RunnerLost { run, exits, at } => {
                if let Some(run) = self.runs.get_mut(&run).filter(|run| !run.is_over()) {
                    run.lose(&exits, at);
                }
            }
            Input::Disobeyed { run, disobedience } => {
                if let Some(run) = self.runs.get_mut(&run).filter(|run| !run.is_over()) {
                    run.disobedience = Some(disobedience);
                }
            }
            Input::Refused { run: id, reason } => {
                let told = self.report(&id);
                if let Some(run) = self.runs.get_mut(&id).filter(|run| !run.is_over()) {
                    if run.has_runner() {
                        work.stop(&id, Duration::ZERO, "it cannot be started");
                    }
                    run.state = State::Refused(reason);
                    work.save_if(self.ledger.end(&id), &id, told);
                }
            }
        }
        let released = if saved {
            self.unsaved.saved()
        } else {
            Vec::new()
        };
        let mut effects = self.not_overtaken(released, now);
        self.reconcile(&mut work);
        let untold = work.save.then_some(work.untold);
        effects.extend(self.unsaved.queue(work.effects, &self.ledger, untold));
        TurnOutput { effects }
    }

    /// The labels of this node's Kubernetes object that the coordinator has sent.
    pub fn object_labels(&self) -> Labels {
        self.desired
            .as_ref()
            .map(|desired| desired.labels.clone())
            .unwrap_or_default()
    }

    /// Reports of every run that this node holds, alive or not. A report that follows from a
    /// promise is withheld until the promise is on disk.
    pub fn reports(&self) -> Vec<RunReport> {
        let report = |id: &RunId| match self.unsaved.in_place_of(id) {
            Some(told) => told.clone(),
            None => self.report(id),
        };
        self.runs.keys().filter_map(report).collect()
    }

    fn report(&self, id: &RunId) -> Option<RunReport> {
        self.runs
            .get(id)
            .map(|run| run.report(id, self.in_the_way(id, run).is_empty()))
    }

    /// The runs that this node reports as over.
    pub fn runs_over(&self) -> impl Iterator<Item = &RunId> {
        let over =
            |(id, run): &(&RunId, &Run)| run.is_over() && self.unsaved.in_place_of(id).is_none();
        self.runs.iter().filter(over).map(|(id, _)| id)
    }

    fn accept_stamp(&mut self, term: Term, epoch: NodeEpoch, work: &mut Work) -> bool {
        match self.ledger.accept_stamp(term, epoch) {
            Ok(new) => {
                work.save |= new;
                true
            }
            Err(why) => {
                work.effects
                    .push(Effect::EndSession(Alarm { run: None, why }));
                false
            }
        }
    }

    /// Accepts a desired state, run by run. A run that is older than, or contradicts, what was
    /// obeyed is skipped with its reason.
    fn accept(&mut self, mut desired: Desired, now: Timestamp, work: &mut Work) {
        // In ascending order of generations, so that of two contradicting ones the newer wins.
        desired.runs.sort_by(|a, b| a.run.cmp(&b.run));
        self.objected.clear();
        for wanted in &desired.runs {
            let verdict = match &wanted.target {
                Target::Ready(assignment) => self.accept_assignment(assignment, None, work),
                Target::Running(assignment, start) => {
                    self.accept_assignment(assignment, Some(&start.store), work)
                }
                Target::Stopped { .. } if !self.runs.contains_key(&wanted.run) => {
                    // The run never came here, or its start was lost on the way. It can never start
                    // from now on, so it is dead.
                    work.save_if(self.ledger.end(&wanted.run), &wanted.run, None);
                    let dead = GroupStatus {
                        phase: GroupPhase::Dead,
                        dead_at: Some(now),
                        ..GroupStatus::holding()
                    };
                    let run = Run::new(self.ledger.term, Vec::new(), false, State::Up(dead));
                    self.runs.insert(wanted.run.clone(), run);
                    Ok(())
                }
                Target::Gone { purge: true } if !self.runs.contains_key(&wanted.run) => {
                    self.purge(&wanted.run, work);
                    Ok(())
                }
                Target::Stopped { .. } | Target::Gone { .. } => Ok(()),
            };
            if let Err(why) = verdict {
                self.objected.insert(wanted.run.clone());
                // After a reconnect the coordinator usually has not heard of an end yet. That is
                // not an alarm.
                if !matches!(why, Objection::Over(_)) {
                    work.effects.push(Effect::Alarm(Alarm {
                        run: Some(wanted.run.clone()),
                        why,
                    }));
                }
            }
        }
        let last_words = desired.retire.clone();
        if let Some(last_words) =
            last_words.filter(|_| desired.runs.is_empty() && self.runs.is_empty())
        {
            work.effects.push(Effect::Retire { last_words });
        }
        self.desired = Some(desired);
    }

    fn accept_assignment(
        &mut self,
        assignment: &Assignment,
        store: Option<&Endpoint>,
        work: &mut Work,
    ) -> Result<(), Objection> {
        let run = &assignment.run;
        let verdict = self.ledger.accept(assignment);
        if let Err(Objection::Over(generation)) = verdict
            && !self.runs.contains_key(run)
        {
            self.refuse(
                run,
                format!("generation {generation} has ended on this node and is not started twice"),
            );
        }
        // A run that is here already, although the ledger does not know it, has been reported
        // before.
        let told = self.report(run);
        work.save_if(verdict?, run, told);
        if self.ledger.was_started(run) && !self.runs.contains_key(run) {
            self.refuse(
                run,
                "its workers were started on this node, but its records are gone".into(),
            );
        }
        match store {
            Some(store) => self.ledger.accept_store(run, store),
            None => Ok(()),
        }
    }

    fn refuse(&mut self, run: &RunId, why: String) {
        let refused = Run::new(self.ledger.term, Vec::new(), false, State::Refused(why));
        self.runs.insert(run.clone(), refused);
    }

    /// Emits the effects that are missing between desired and actual state.
    fn reconcile(&mut self, work: &mut Work) {
        let Some(desired) = self.desired.take() else {
            return;
        };
        for wanted in &desired.runs {
            if self.objected.contains(&wanted.run) {
                self.carry_through(&wanted.run, work);
                continue;
            }
            match &wanted.target {
                Target::Ready(assignment) => self.prepare(assignment, &desired, work),
                Target::Running(assignment, start) => {
                    self.prepare(assignment, &desired, work);
                    self.start(assignment, start, work);
                    self.restart(&wanted.run, &start.attempts, work);
                }
                Target::Stopped { grace, reason } => self.stop(&wanted.run, *grace, reason, work),
                Target::Gone { purge } => self.forget(&wanted.run, *purge, work),
            }
        }
        self.desired = Some(desired);
    }

    /// Ends a run that the node still holds although the ledger says that it is over. The agent
    /// died after it had written that and before it had ended the run. Nobody would start the run
    /// any more, and the coordinator must hear that.
    fn carry_through(&mut self, id: &RunId, work: &mut Work) {
        let Some(run) = self.runs.get_mut(id).filter(|_| self.ledger.is_ended(id)) else {
            return;
        };
        if !run.has_runner() || run.stop_asked.is_some() || run.is_over() {
            return;
        }
        let why = "it was given up on this node before its agent was started anew";
        run.stop_asked = Some(Duration::ZERO);
        work.stop(id, Duration::ZERO, why);
        if matches!(&run.state, State::Up(status) if status.phase == GroupPhase::Holding) {
            run.state = State::Refused(why.to_owned());
        }
    }

    /// Has the runner of a job's newest generation brought up, and every older run of that job
    /// stopped.
    fn prepare(&mut self, assignment: &Assignment, desired: &Desired, work: &mut Work) {
        let id = &assignment.run;
        if !self.ledger.is_newest(id) {
            return;
        }
        for (older, run) in self.runs.range_mut(older_than(id)) {
            let told = desired
                .runs
                .iter()
                .any(|w| w.run == *older && matches!(w.target, Target::Stopped { .. }));
            if !told && !run.is_over() && run.stop_asked.is_none() && run.has_runner() {
                run.stop_asked = Some(assignment.stop_grace);
                work.stop(
                    older,
                    assignment.stop_grace,
                    &format!("replaced by generation {}", id.generation),
                );
            }
        }
        match self.runs.get_mut(id) {
            Some(run) => run.hosts_store |= assignment.hosts_store,
            None => {
                let state = State::Waiting { alive: false };
                let run = Run::new(
                    self.ledger.term,
                    assignment.gpus.clone(),
                    assignment.hosts_store,
                    state,
                );
                self.runs.insert(id.clone(), run);
                work.effects.push(Effect::Hold {
                    assignment: Box::new(assignment.clone()),
                    term: self.ledger.term,
                });
            }
        }
    }

    /// Starts the workers once no other run prevents it, and never twice: a runner that has started
    /// its group reports that it does not hold.
    fn start(&mut self, assignment: &Assignment, start: &run::Start, work: &mut Work) {
        let id = &assignment.run;
        let Some(run) = self.runs.get(id) else { return };
        let asked = run.start_asked || run.stop_asked.is_some();
        if asked
            || !run.holds()
            || !self.ledger.is_newest(id)
            || !self.in_the_way(id, run).is_empty()
        {
            return;
        }
        work.save |= self.ledger.started(id, &start.store);
        work.effects.push(Effect::Start {
            assignment: Box::new(assignment.clone()),
            start: start.clone(),
        });
        self.runs
            .get_mut(id)
            .expect("it was found above")
            .start_asked = true;
    }

    /// Orders the next attempt of ranks that have failed, each once until its runner has spoken. A
    /// rank that lives is left alone, and so is a group that is being ended.
    fn restart(&mut self, id: &RunId, attempts: &BTreeMap<u32, u32>, work: &mut Work) {
        let Some(run) = self.runs.get_mut(id) else {
            return;
        };
        for (number, attempt) in attempts {
            let awaited = run.awaits(*number, *attempt);
            if awaited && run.restart_asked.insert(*number, *attempt) != Some(*attempt) {
                work.effects.push(Effect::Restart {
                    run: id.clone(),
                    rank: *number,
                    attempt: *attempt,
                });
            }
        }
    }

    fn stop(&mut self, id: &RunId, grace: Duration, reason: &str, work: &mut Work) {
        let Some(run) = self.runs.get_mut(id) else {
            return;
        };
        match &run.state {
            // Nothing is up yet. A runner that still comes up holds, and is stopped when it
            // reports.
            State::Waiting { alive: false } | State::Refused(_) => {}
            State::Up(_) if run.is_over() => {}
            // A runner that has not been heard since the agent was started gets the order too.
            State::Up(_) | State::Waiting { alive: true } => {
                if run.stop_asked.is_none_or(|asked| grace < asked) {
                    run.stop_asked = Some(grace);
                    work.stop(id, grace, reason);
                }
            }
        }
    }

    /// Lets go of a run whose end is recorded. A run that lives is kept, whatever the coordinator
    /// believes.
    fn forget(&mut self, id: &RunId, purge: bool, work: &mut Work) {
        if !self.runs.get(id).is_some_and(Run::is_over) {
            return;
        }
        self.runs.remove(id);
        work.save_if(self.ledger.end(id), id, None);
        work.effects.push(Effect::Release { run: id.clone() });
        if purge {
            self.purge(id, work);
        }
    }

    /// Has the rest of a job removed, unless a run of it still lives here. The end of that run is
    /// the next occasion.
    fn purge(&self, id: &RunId, work: &mut Work) {
        let of_job = |(other, run): (&RunId, &Run)| {
            other.job == id.job && other.generation <= id.generation && !run.is_over()
        };
        if !self.runs.iter().any(of_job) {
            work.effects.push(Effect::Purge { run: id.clone() });
        }
    }

    /// Runs that must be dead before this one may start: older ones of its job, and those that hold
    /// one of its GPUs.
    fn in_the_way(&self, id: &RunId, run: &Run) -> Vec<RunId> {
        let stands = |other: &RunId, theirs: &Run| {
            let older = other.job == id.job && other.generation < id.generation;
            !theirs.is_over()
                && other != id
                && (older
                    || theirs.gpus.iter().any(|gpu| run.gpus.contains(gpu)) && theirs.may_run())
        };
        self.runs
            .iter()
            .filter(|(other, theirs)| stands(other, theirs))
            .map(|(other, _)| other.clone())
            .collect()
    }
}

impl Run {
    fn hear(&mut self, status: GroupStatus) {
        self.restart_asked.clear();
        match &self.state {
            // Death is final, and a refused run keeps its reason.
            State::Refused(_) => {}
            State::Up(known) if known.phase == GroupPhase::Dead => {}
            _ => self.state = State::Up(status),
        }
    }

    fn lose(&mut self, exits: &[SeenExit], at: Timestamp) {
        let mut status = match &self.state {
            State::Up(status) => status.clone(),
            _ => GroupStatus::holding(),
        };
        status.end(exits, at);
        self.state = State::Up(status);
    }

    /// Whether its workers may live: they were started, or nobody can tell.
    fn may_run(&self) -> bool {
        match &self.state {
            State::Waiting { alive } => *alive,
            State::Up(status) => self.start_asked || status.phase != GroupPhase::Holding,
            State::Refused(_) => false,
        }
    }
}

#[derive(Default)]
struct Work {
    effects: Vec<Effect>,
    save: bool,
    untold: Untold,
}

impl Work {
    /// If the ledger has changed about this run, it must be saved before anything new is reported
    /// about the run. `told`: the last report.
    fn save_if(&mut self, changed: bool, run: &RunId, told: Option<RunReport>) {
        if changed {
            self.save = true;
            self.untold.entry(run.clone()).or_insert(told);
        }
    }

    fn stop(&mut self, run: &RunId, grace: Duration, reason: &str) {
        self.effects.push(Effect::Stop {
            run: run.clone(),
            grace,
            reason: reason.to_owned(),
        });
    }
}

#[cfg(test)]
pub(super) mod tests;
