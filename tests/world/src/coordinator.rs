//! The coordinators' shells: at most two processes at a time, each around a real brain. Each
//! commits first and acts afterwards, unless the world kills it in between, and then comes back
//! under a higher term with what was committed. The store takes commits of the newest term only. A
//! deposed coordinator believes that it leads until its next commit, or until it learns the truth.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    fleet::{
        Answer, Change, CordonMode, Effect, Fleet, Input, Policy, TurnOutput, commit::Versions,
    },
    id::{SessionId, Term},
    time::Timestamp,
};

use crate::{
    clock::Clock,
    event::{Down, Event, Up},
    fault::Fault,
    invariants,
    network::KEEPALIVE,
    planted::{Planted, on},
    pods::Shell,
    receivers,
    store::Store,
    trace::note,
    troubles::Kind,
    world::World,
};

/// One place where a coordinator may run.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    pub(crate) process: Option<Process>,
    pub(crate) paused_until: Timestamp,
    /// The kind of death that the next decision meets.
    pub(crate) armed: Option<Fault>,
    /// New callers are not sent here any more. Connections that exist stay.
    pub(crate) unlisted: bool,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) began: Timestamp,
    pub(crate) term: Term,
    pub(crate) fleet: Fleet,
    /// The versions of the records on which it decides.
    pub(crate) versions: Versions,
    pub(crate) sessions: BTreeMap<SessionId, u64>,
    pub(crate) clock: Clock,
    /// The coordinator has lost its term. This is the store as it was then, and all that the
    /// coordinator says must repeat it.
    pub(crate) deposed: Option<Box<Store>>,
    /// The operator has accepted this coordinator's store.
    pub(crate) accepts: bool,
    /// Inputs that wait to be decided together with the next one, each with the machine that sent
    /// it.
    inbox: Vec<(Input, Option<usize>)>,
    pub(crate) next_session: u64,
    next_tick: Timestamp,
    /// When the coordinator last looked for connections that had gone silent.
    swept: Timestamp,
    /// The version of each Node object that it has heard of last. Empty: none was listed yet.
    pub(crate) versions_heard: Vec<u64>,
    pub(crate) shell: Shell,
}

impl World {
    /// Where this process runs, if it runs.
    pub(crate) fn seat_of(&self, process: u64) -> Option<usize> {
        self.seats
            .iter()
            .position(|seat| seat.process.as_ref().is_some_and(|p| p.id == process))
    }

    pub(crate) fn is_coordinator(&self, process: u64) -> bool {
        self.seat_of(process).is_some()
    }

    /// Any living coordinator that answers. A caller cannot tell which one leads.
    pub(crate) fn some_seat(&mut self) -> Option<usize> {
        let now = self.now;
        let answers =
            |seat: &Seat| seat.process.is_some() && now >= seat.paused_until && !seat.unlisted;
        match (answers(&self.seats[0]), answers(&self.seats[1])) {
            (true, true) => Some(self.rng.below(2)),
            (true, false) => Some(0),
            (false, true) => Some(1),
            (false, false) => None,
        }
    }

    /// The coordinator that answers when this machine's agent dials.
    pub(crate) fn coordinator_for(&mut self, machine: usize, cut: bool) -> Option<u64> {
        if cut || self.pod_is_shut_out(machine) {
            return None;
        }
        let seat = self.some_seat()?;
        self.seats[seat].process.as_ref().map(|process| process.id)
    }

    /// The process under the newest term.
    pub(crate) fn leader(&self) -> Option<&Process> {
        self.seats
            .iter()
            .filter_map(|seat| seat.process.as_ref())
            .find(|process| process.deposed.is_none())
    }

    /// A coordinator starts again, unless another has taken over.
    pub(crate) fn coordinator_starts(&mut self, seat: usize) {
        if self.leader().is_none() && self.seats[seat].process.is_none() {
            self.takes_the_term(seat);
        }
    }

    /// A second coordinator takes the term while the first goes on. True if there was exactly one
    /// before.
    pub(crate) fn second_leader(&mut self) -> bool {
        let Some(first) = self.seats.iter().position(|seat| seat.process.is_some()) else {
            return false;
        };
        let second = 1 - first;
        let alone = self.seats[second].process.is_none();
        if !alone
            || self.seats[first]
                .process
                .as_ref()
                .is_some_and(|process| process.deposed.is_some())
        {
            return false;
        }
        let view = Box::new(self.store.clone());
        let deposed = self.seats[first].process.as_mut().expect("found above");
        deposed.deposed = Some(view);
        let process = deposed.id;
        (0..self.machines.len()).for_each(|machine| self.befalls(machine, Kind::OtherCoordinator));
        self.takes_the_term(second);
        // The first notices at its next commit, or when it looks at its lease. If it stands still,
        // it notices later.
        let notices = if self.now < self.lull {
            self.rng.ms(25_000, 45_000)
        } else {
            self.rng.ms(500, 30_000)
        };
        self.after(notices, Event::Deposed { process });
        true
    }

    fn takes_the_term(&mut self, seat: usize) {
        let needed = self.store.min_term;
        if !on(Planted::TermNotRaised) || self.store.term == Term(0) {
            self.store.term = self.store.term.next().max(needed);
        }
        let (id, term) = (self.fresh(), self.store.term);
        note!(self, "coordinator {id} starts under term {term}");
        let clock = self.coordinator_clock();
        let accepts = self.store.accept;
        let policy = Policy {
            accept_store: accepts,
            kubernetes_cordon: match self.cluster {
                Some(_) => CordonMode::On,
                None => CordonMode::Off,
            },
            // Every turn, so that a mistake is seen where it is made.
            audit_every: Duration::ZERO,
            notify: receivers::of_all(),
            ..self.plan.policy()
        };
        let fleet = Fleet::new(policy, term, self.store.read(), clock.at(self.now));
        let (sessions, next_tick) = (BTreeMap::new(), Timestamp(u64::MAX));
        let process = Process {
            began: self.now,
            id,
            term,
            fleet,
            versions: self.store.versions(term),
            sessions,
            clock,
            deposed: None,
            accepts,
            inbox: Vec::new(),
            next_session: 0,
            next_tick,
            swept: self.now,
            versions_heard: Vec::new(),
            shell: Shell::default(),
        };
        self.seats[seat] = Seat {
            process: Some(process),
            paused_until: self.now,
            ..Seat::default()
        };
        invariants::term_goes_up(self, term);
        self.cluster_is_listed(id);
        self.pods_are_listed(id);
        self.plan_tick(seat, self.now + Policy::default().tick);
    }

    /// The lease of this coordinator is gone, so it ends.
    pub(crate) fn deposed(&mut self, process: u64) {
        if let Some(seat) = self.seat_of(process) {
            note!(self, "coordinator {process} sees that it has been deposed");
            self.coordinator_dies(seat, None);
        }
    }

    pub(crate) fn coordinator_dies(&mut self, seat: usize, back_in: Option<Duration>) {
        // Messages that were sent to it are lost with it.
        let Some(process) = std::mem::take(&mut self.seats[seat]).process else {
            return;
        };
        note!(self, "coordinator {} dies", process.id);
        if let Some(older) = self.undurable.take() {
            let term = self.store.term;
            self.store = Store { term, ..*older };
        }
        let of_it = |(_, conn): &(&u64, &crate::network::Conn)| {
            conn.process == process.id && conn.coordinator_open
        };
        let open: Vec<u64> = self.conns.iter().filter(of_it).map(|(id, _)| *id).collect();
        for id in open {
            self.close_at_coordinator(id);
        }
        if let Some(back_in) = back_in {
            self.after(back_in, Event::CoordinatorStarts { seat });
        }
    }

    fn plan_tick(&mut self, seat: usize, at: Timestamp) {
        // The timer of a shell is no finer than this.
        let at = at.max(self.now + Duration::from_millis(1));
        let now = self.now;
        let Some(process) = &mut self.seats[seat].process else {
            return;
        };
        if at < process.next_tick || process.next_tick <= now {
            process.next_tick = at;
            let process = process.id;
            self.queue.push(at, Event::Tick { process, at });
        }
    }

    pub(crate) fn tick(&mut self, process: u64, at: Timestamp) {
        let now = self.now;
        let Some(seat) = self.seat_of(process) else {
            return;
        };
        if self.seats[seat]
            .process
            .as_ref()
            .is_none_or(|p| p.next_tick != at)
        {
            return;
        }
        // Broken connections are looked for once a second, in large worlds too.
        if self.every_second(process) {
            let silent = |conn: &crate::network::Conn| {
                conn.coordinator_open
                    && conn.process == process
                    && now.since(conn.heard) > KEEPALIVE
            };
            let silent: Vec<u64> = self
                .conns
                .iter()
                .filter(|(_, conn)| silent(conn))
                .map(|(id, _)| *id)
                .collect();
            for id in silent {
                self.close_at_coordinator(id);
                self.stream_ended(id);
            }
        }
        self.decide(seat, Input::Tick, None);
        self.plan_tick(seat, self.now + Policy::default().tick);
    }

    fn every_second(&mut self, process: u64) -> bool {
        let now = self.now;
        let process = self
            .seat_of(process)
            .and_then(|seat| self.seats[seat].process.as_mut());
        process.is_some_and(|process| {
            let due = now.since(process.swept) >= Duration::from_secs(1);
            if due {
                process.swept = now;
            }
            due
        })
    }

    pub(crate) fn up_closed(&mut self, id: u64) {
        if self
            .conns
            .get(&id)
            .is_some_and(|conn| conn.coordinator_open)
        {
            self.close_at_coordinator(id);
            self.stream_ended(id);
        }
    }

    /// The stream's task reports the end to the engine, even if the engine itself ended the stream.
    pub(crate) fn stream_ended(&mut self, id: u64) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        if let (Some(seat), Some(session)) = (self.seat_of(conn.process), conn.session) {
            self.decide(seat, Input::Disconnected { session }, None);
        }
    }

    pub(crate) fn heard_from_agent(&mut self, id: u64, message: Up) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let (machine, session) = (conn.machine, conn.session);
        let Some(seat) = self.seat_of(conn.process) else {
            return;
        };
        let process = self.seats[seat]
            .process
            .as_mut()
            .expect("the seat is taken");
        let now = process.clock.at(self.now);
        match message {
            Up::Hello { mut hello, sent } => {
                hello
                    .runs
                    .iter_mut()
                    .for_each(|run| crate::ages::arrive(run, sent, now));
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
                self.decide(
                    seat,
                    Input::Connected {
                        session,
                        hello: *hello,
                    },
                    Some(machine),
                );
            }
            Up::Report(report) => {
                if let Some(session) = session {
                    self.decide(
                        seat,
                        Input::Report {
                            session,
                            report: *report,
                        },
                        Some(machine),
                    );
                }
            }
            Up::Runs { mut runs, sent } => {
                runs.iter_mut()
                    .for_each(|run| crate::ages::arrive(run, sent, now));
                if let Some(session) = session {
                    self.decide(seat, Input::Runs { session, runs }, Some(machine));
                }
            }
            Up::Launchers(launchers) => {
                if let Some(session) = session {
                    self.decide(seat, Input::Launchers { session, launchers }, Some(machine));
                }
            }
            Up::Located { look, ranks } => self.located(look, machine, ranks),
            Up::Heartbeat { number } => {
                if let Some(session) = session {
                    // Workers live by the answer, so only a coordinator that still has the lease at
                    // this moment gives it.
                    let leads = process.deposed.is_none()
                        || !self.plan.fences
                        || on(Planted::DeposedAnswers);
                    self.decide(seat, Input::Heartbeat { session }, Some(machine));
                    if leads {
                        self.send_down(id, Down::HeartbeatReply { number });
                    }
                }
            }
        }
    }

    /// Hands an input to a brain, together with those that wait, or lets it wait for the next.
    /// `speaker`: the machine that sent it.
    pub(crate) fn decide(&mut self, seat: usize, input: Input, speaker: Option<usize>) {
        let waits = !matches!(input, Input::Request { .. } | Input::Tick)
            && self.rng.percent(self.plan.gathered_percent);
        let delay = self.rng.ms(0, self.plan.gather_ms);
        let Some(process) = &mut self.seats[seat].process else {
            return;
        };
        let (first, process_id) = (process.inbox.is_empty(), process.id);
        process.inbox.push((input, speaker));
        if waits && first {
            self.after(
                delay,
                Event::Drain {
                    process: process_id,
                },
            );
        } else if !waits {
            self.drain(process_id);
        }
    }

    /// One turn of a brain: it decides, commits and acts, and perhaps dies in between.
    pub(crate) fn drain(&mut self, process: u64) {
        let process_id = process;
        let Some(seat) = self.seat_of(process) else {
            return;
        };
        let Some(process) = &mut self.seats[seat].process else {
            return;
        };
        let (inputs, speakers): (Vec<Input>, Vec<Option<usize>>) =
            std::mem::take(&mut process.inbox).into_iter().unzip();
        if inputs.is_empty() {
            return;
        }
        let speakers: Vec<usize> = speakers.into_iter().flatten().collect();
        let now = process.clock.at(self.now);
        let TurnOutput {
            changes,
            effects,
            wake_at,
        } = process.fleet.turn_all(now, inputs);
        let wake_at = wake_at.map(|at| process.clock.when(at));
        self.trace
            .mix(changes.len() as u64 * 1_000 + effects.len() as u64);
        let records = changes
            .iter()
            .filter(|change| !matches!(change, Change::Event(_)))
            .count();
        // Few commits have more than one record, so this fault mostly waits for one of them.
        let waits = self.seats[seat].armed == Some(Fault::CommitTorn)
            && (changes.len() < 2 || records < 2 && self.rng.percent(80));
        let armed = if records > 0 && !waits {
            self.seats[seat].armed.take()
        } else {
            None
        };
        if let Some(fault) = armed {
            self.count(fault);
        }
        if on(Planted::ActsBeforeCommit) {
            effects
                .iter()
                .for_each(|effect| self.act(seat, effect.clone()));
        }
        let back_in = self.rng.ms(50, 12_000);
        if armed == Some(Fault::CrashBeforeCommit) {
            note!(self, "it had not committed {} changes", changes.len());
            return self.coordinator_dies(seat, Some(back_in));
        }
        let fails = armed == Some(Fault::StoreWriteFails);
        if fails && self.rng.percent(50) {
            note!(self, "the store cannot be written");
            return self.coordinator_dies(seat, Some(back_in));
        }
        let speakers = speakers
            .into_iter()
            .map(|machine| self.machines[machine].name.clone())
            .collect();
        let torn = (armed == Some(Fault::CommitTorn))
            .then(|| 1 + self.rng.below(records.min(changes.len() - 1)));
        self.shell_hears(process_id, &changes);
        if !self.commit(seat, changes, torn, speakers) {
            return self.coordinator_dies(seat, None);
        }
        invariants::brake_is_let_go(self, process_id, now);
        if torn.is_some() {
            return self.coordinator_dies(seat, Some(back_in));
        }
        if fails || armed == Some(Fault::CrashAfterCommit) {
            note!(self, "it had told nobody of {} effects", effects.len());
            return self.coordinator_dies(seat, Some(back_in));
        }
        if !on(Planted::ActsBeforeCommit) {
            let until = if armed.is_some() {
                self.rng.below(effects.len().max(1))
            } else {
                effects.len()
            };
            for effect in effects.into_iter().take(until) {
                self.act(seat, effect);
            }
            if armed.is_some() {
                return self.coordinator_dies(seat, Some(back_in));
            }
        }
        if let Some(at) = wake_at {
            self.plan_tick(seat, at);
        }
    }

    fn act(&mut self, seat: usize, effect: Effect) {
        invariants::committed_before_commanded(self, seat, &effect);
        match effect {
            Effect::Welcome {
                session,
                term,
                epoch,
                heartbeat,
                ..
            } => {
                if let Some(id) = self.conn_of(seat, session) {
                    self.send_down(
                        id,
                        Down::Welcome {
                            term,
                            epoch,
                            heartbeat,
                        },
                    );
                }
            }
            Effect::Refuse { session, why } => {
                note!(self, "session refused: {why}");
                if let Some(id) = self.conn_of(seat, session) {
                    if let Some(machine) = self.conns.get(&id).map(|conn| conn.machine) {
                        self.befalls(machine, Kind::SessionRefused);
                        self.refused_session(machine, &why);
                    }
                    self.close_at_coordinator(id);
                    self.queue.push(
                        self.now + Duration::from_millis(1),
                        Event::StreamEnded { conn: id },
                    );
                }
            }
            Effect::SendDesired { session, desired } => {
                if let Some(id) = self.conn_of(seat, session) {
                    self.send_down(id, Down::Desired(desired));
                }
            }
            // A deposed coordinator may refuse wrongly. Its refusal changes nothing, and the caller
            // asks another coordinator.
            Effect::Answer {
                answer: Answer::Refused(_),
                ..
            } if self.seats[seat]
                .process
                .as_ref()
                .is_some_and(|process| process.deposed.is_some()) => {}
            Effect::Answer { id, answer } => {
                let delay = self.rng.ms(0, 30);
                self.queue.push(
                    self.now + delay,
                    Event::AnswerArrives {
                        id,
                        answer: Box::new(answer),
                    },
                );
            }
            effect @ Effect::LookAtRanks { .. } => self.look_at_ranks(seat, effect),
            Effect::JobChanged(_) | Effect::NodeChanged(_) => {}
        }
    }

    fn conn_of(&self, seat: usize, session: SessionId) -> Option<u64> {
        self.seats[seat]
            .process
            .as_ref()?
            .sessions
            .get(&session)
            .copied()
    }
}
