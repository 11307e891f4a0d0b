//! The coordinator's shell: one process at a time around the real brain. Commits first and acts afterwards, unless the world kills
//! it in between; comes back under a higher term with what it committed.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    fleet::{Change, Effect, Fleet, Input, Policy, Turn},
    id::{SessionId, Term},
    time::Timestamp,
};

use crate::{
    event::{Down, Event, Up},
    fault::Fault,
    invariants,
    network::KEEPALIVE,
    planted::Planted,
    store::Store,
    trace::note,
    world::World,
};

#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    pub(crate) process: Option<Process>,
    pub(crate) started: u64,
    pub(crate) paused_until: Timestamp,
    /// The kind of death the next decision meets.
    pub(crate) armed: Option<Fault>,
    /// The store before the last few commits; only for a planted mistake.
    pub(crate) undurable: Option<Box<Store>>,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) fleet: Fleet,
    pub(crate) sessions: BTreeMap<SessionId, u64>,
    next_session: u64,
    next_tick: Timestamp,
}

impl Coordinator {
    pub(crate) fn is(&self, process: u64) -> bool {
        self.process.as_ref().is_some_and(|p| p.id == process)
    }
}

impl World {
    pub(crate) fn coordinator_starts(&mut self) {
        if self.coordinator.process.is_some() {
            return;
        }
        self.coordinator.started += 1;
        if self.planted != Some(Planted::TermNotRaised) || self.store.term == Term(0) {
            self.store.term = self.store.term.next();
        }
        let (id, term) = (self.coordinator.started, self.store.term);
        note!(self, "coordinator starts under term {term}");
        let fleet = Fleet::new(Policy::default(), term, self.store.read(), self.now);
        let process = Process { id, fleet, sessions: BTreeMap::new(), next_session: 0, next_tick: Timestamp(u64::MAX) };
        self.coordinator.process = Some(process);
        invariants::term_goes_up(self, term);
        self.plan_tick(self.now + Policy::default().tick);
    }

    pub(crate) fn coordinator_dies(&mut self, back_in: Duration) {
        let Some(process) = self.coordinator.process.take() else { return };
        note!(self, "coordinator dies");
        self.coordinator.armed = None;
        // What was sent to it is lost with it.
        self.coordinator.paused_until = self.now;
        if let Some(older) = self.coordinator.undurable.take() {
            let term = self.store.term;
            self.store = Store { term, ..*older };
        }
        let open: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| conn.process == process.id && conn.coordinator_open).map(|(id, _)| *id).collect();
        for id in open {
            self.close_at_coordinator(id);
        }
        self.queue.push(self.now + back_in, Event::CoordinatorStarts);
    }

    fn plan_tick(&mut self, at: Timestamp) {
        // A shell's timer is no finer than this.
        let at = at.max(self.now + Duration::from_millis(1));
        let Some(process) = &mut self.coordinator.process else { return };
        if at < process.next_tick || process.next_tick <= self.now {
            process.next_tick = at;
            let process = process.id;
            self.queue.push(at, Event::Tick { process, at });
        }
    }

    pub(crate) fn tick(&mut self, process: u64, at: Timestamp) {
        let now = self.now;
        if !self.coordinator.process.as_ref().is_some_and(|p| p.id == process && p.next_tick == at) {
            return;
        }
        let silent: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.coordinator_open && conn.process == process && now.since(conn.heard) > KEEPALIVE)
            .map(|(id, _)| *id)
            .collect();
        for id in silent {
            self.close_at_coordinator(id);
            self.stream_ended(id);
        }
        self.decide(Input::Tick);
        self.plan_tick(self.now + Policy::default().tick);
    }

    pub(crate) fn up_closed(&mut self, id: u64) {
        if self.conns.get(&id).is_some_and(|conn| conn.coordinator_open) {
            self.close_at_coordinator(id);
            self.stream_ended(id);
        }
    }

    /// The stream's task tells the engine; so it does for a stream that the engine ended itself.
    pub(crate) fn stream_ended(&mut self, id: u64) {
        let Some(conn) = self.conns.get(&id).filter(|conn| self.coordinator.is(conn.process)) else { return };
        if let Some(session) = conn.session {
            self.decide(Input::Disconnected { session });
        }
    }

    pub(crate) fn heard_from_agent(&mut self, id: u64, message: Up) {
        let now = self.now;
        let Some(conn) = self.conns.get(&id).filter(|conn| self.coordinator.is(conn.process)) else { return };
        let session = conn.session;
        match message {
            Up::Hello { mut hello, sent } => {
                hello.runs.iter_mut().for_each(|run| crate::ages::arrive(run, sent, now));
                let process = self.coordinator.process.as_mut().expect("checked above");
                process.next_session += 1;
                let session = SessionId(process.next_session);
                process.sessions.insert(session, id);
                self.conns.get_mut(&id).expect("found above").session = Some(session);
                note!(
                    self,
                    "{} says hello: term {}, epoch {}, {} runs",
                    hello.node,
                    hello.term_seen,
                    hello.epoch_seen,
                    hello.runs.len()
                );
                self.decide(Input::Connected { session, hello: *hello });
            }
            Up::Report(report) => {
                if let Some(session) = session {
                    self.decide(Input::Report { session, report: *report });
                }
            }
            Up::Runs { mut runs, sent } => {
                runs.iter_mut().for_each(|run| crate::ages::arrive(run, sent, now));
                if let Some(session) = session {
                    self.decide(Input::Runs { session, runs });
                }
            }
            Up::Heartbeat => {
                if let Some(session) = session {
                    self.decide(Input::Heartbeat { session });
                    self.send_down(id, Down::HeartbeatReply);
                }
            }
        }
    }

    /// One turn of the brain: decide, commit, act, and perhaps die in between.
    pub(crate) fn decide(&mut self, input: Input) {
        let now = self.now;
        let Some(process) = &mut self.coordinator.process else { return };
        let Turn { changes, effects, wake_at } = process.fleet.turn(now, input);
        self.trace.mix(changes.len() as u64 * 1_000 + effects.len() as u64);
        let fatal = !changes.iter().all(|change| matches!(change, Change::Event(_)));
        let armed = if fatal { self.coordinator.armed.take() } else { None };
        if let Some(fault) = armed {
            self.count(fault);
        }
        if self.planted == Some(Planted::ActsBeforeCommit) {
            effects.iter().for_each(|effect| self.act(effect.clone()));
        }
        let back_in = self.rng.ms(50, 12_000);
        if armed == Some(Fault::CrashBeforeCommit) {
            note!(self, "it had not committed {} changes", changes.len());
            return self.coordinator_dies(back_in);
        }
        self.commit(changes);
        if armed == Some(Fault::CrashAfterCommit) {
            note!(self, "it had told nobody of {} effects", effects.len());
            return self.coordinator_dies(back_in);
        }
        if self.planted != Some(Planted::ActsBeforeCommit) {
            let until = if armed.is_some() { self.rng.below(effects.len().max(1)) } else { effects.len() };
            for effect in effects.into_iter().take(until) {
                self.act(effect);
            }
            if armed.is_some() {
                return self.coordinator_dies(back_in);
            }
        }
        if let Some(at) = wake_at {
            self.plan_tick(at);
        }
    }

    fn commit(&mut self, changes: Vec<Change>) {
        if self.planted == Some(Planted::CommitNotDurable) && !changes.is_empty() && self.rng.percent(10) {
            self.coordinator.undurable = Some(Box::new(self.store.clone()));
        }
        let cordons = invariants::cordons(self);
        for change in changes {
            if let Change::Event(event) = &change {
                note!(self, "   event {}: {}", event.reason, event.message);
            }
            invariants::change_is_lawful(self, &change);
            self.store.apply(change);
        }
        invariants::cordons_are_capped(self, cordons);
    }

    fn act(&mut self, effect: Effect) {
        invariants::committed_before_commanded(self, &effect);
        match effect {
            Effect::Welcome { session, term, epoch, heartbeat } => {
                if let Some(id) = self.conn_of(session) {
                    self.send_down(id, Down::Welcome { term, epoch, heartbeat });
                }
            }
            Effect::Refuse { session, why } => {
                note!(self, "session refused: {why}");
                if let Some(id) = self.conn_of(session) {
                    self.close_at_coordinator(id);
                    self.queue.push(self.now + Duration::from_millis(1), Event::StreamEnded { conn: id });
                }
            }
            Effect::Publish { session, desired } => {
                if let Some(id) = self.conn_of(session) {
                    self.send_down(id, Down::Desired(desired));
                }
            }
            Effect::Answer { id, answer } => {
                let delay = self.rng.ms(0, 30);
                self.queue.push(self.now + delay, Event::AnswerArrives { id, answer: Box::new(answer) });
            }
            Effect::JobChanged { .. } | Effect::NodeChanged { .. } => {}
        }
    }

    fn conn_of(&self, session: SessionId) -> Option<u64> {
        self.coordinator.process.as_ref()?.sessions.get(&session).copied()
    }
}
