//! The agent's shell: one process at a time around the real brain of its node. It dials, reports,
//! saves the ledger and orders runners. It dies and comes back with what is on disk, while
//! everything that it started goes on.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use muster_core::{
    hello::Hello,
    id::{JobUid, Term},
    node::{Alarm, Effect, Found, Input, Node, Objection, lease::Lease},
    protocol::{self, Speaks},
    run::{LauncherState, RunId, RunReport},
    time::Timestamp,
};
use muster_runtime::backoff::Backoff;

use crate::{
    disk::Write,
    event::{Down, Event, Order, Up},
    fault::Fault,
    invariants,
    machine::{self, Group, Runner},
    planted::{Planted, on},
    trace::note,
    troubles::Kind,
    words,
    world::World,
};

/// An agent that gets no answer to its heartbeats for this long dials anew.
const SILENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) id: u64,
    pub(crate) node: Node,
    pub(crate) conn: Option<u64>,
    welcomed: bool,
    /// When the present connection was begun.
    dialled: Timestamp,
    backoff: Backoff,
    interval: Duration,
    /// When the last answer of any kind came.
    answered: Timestamp,
    sent: Option<Vec<RunReport>>,
    /// How many effects of its next turn it carries out before it dies.
    pub(crate) armed: Option<usize>,
    pub(crate) speaks: Speaks,
    /// What it has asked in this session. `heard`: when the coordinator was certainly heard.
    pub(crate) lease: Lease,
    pub(crate) heard: Option<Timestamp>,
    asked: u64,
    /// The ledger that is not on disk yet.
    pub(crate) writes: Option<Write>,
    /// Jobs that are about to come, and the state of the launcher for each.
    pub(crate) prewarm: BTreeMap<JobUid, Option<LauncherState>>,
}

impl World {
    pub(crate) fn agent_starts(&mut self, machine: usize) {
        let answers: Vec<bool> = self.machines[machine].runs.keys().map(|_| true).collect();
        let answers: VecDeque<bool> = answers.into_iter().map(|_| self.rng.percent(70)).collect();
        let seen_again = self.rng.percent(10);
        let now = self.now;
        let place = &mut self.machines[machine];
        if !place.powered || place.agent.is_some() {
            return;
        }
        if place.ledger_damaged {
            // The agent does not guess what it has promised. A person decides.
            note!(
                self,
                "the agent of n{machine} finds its ledger damaged and ends"
            );
            let comes = self.rng.ms(2_000, 15_000);
            return self.after(comes, Event::OperatorMends { machine });
        }
        self.ends(machine, Kind::AgentDead);
        let place = &mut self.machines[machine];
        place.agents_started += 1;
        let id = place.agents_started;
        note!(
            self,
            "agent {id} of n{machine} starts: term {}, epoch {}",
            place.ledger.term,
            place.ledger.epoch
        );
        place.agent = Some(AgentProcess {
            id,
            node: Node::new(place.ledger.clone()),
            conn: None,
            welcomed: false,
            dialled: now,
            backoff: Backoff::default(),
            interval: Duration::from_secs(1),
            answered: now,
            sent: None,
            armed: None,
            speaks: place.speaks,
            lease: Lease::default(),
            heard: None,
            asked: 0,
            writes: None,
            prewarm: BTreeMap::new(),
        });
        let clock = place.clock(now);
        let found = |((run, group), answers): ((&RunId, &Group), bool)| {
            let state = group.found(answers, clock)?;
            Some(Found {
                run: run.clone(),
                term: group.term,
                gpus: group.assignment.gpus.clone(),
                state,
            })
        };
        let own =
            |group: &Group| group.state_dir == place.state_dir && (!group.released || seen_again);
        let kept = place
            .runs
            .iter()
            .zip(answers)
            .filter(|((_, group), _)| own(group));
        let mut found: Vec<Found> = kept.filter_map(found).collect();
        if on(Planted::InventoryForgotten) {
            found.clear();
        }
        for run in found.iter().map(|found| found.run.clone()) {
            let delay = self.rng.ms(1, 50);
            self.queue.push(now + delay, Event::Speak { machine, run });
        }
        self.was_found(machine, &found);
        self.agent_turn(machine, Input::Restarted(found));
        self.looks_for_what_is_left(machine, id);
        let dial = self.rng.ms(1, 30);
        self.queue
            .push(now + dial, Event::Dial { machine, agent: id });
    }

    pub(crate) fn agent_dies(&mut self, machine: usize, back_in: Option<Duration>) {
        let place = &mut self.machines[machine];
        let Some(mut agent) = place.agent.take() else {
            return;
        };
        self.begins(machine, Kind::AgentDead);
        note!(self, "agent {} of n{machine} dies", agent.id);
        self.write_is_cut_off(machine, agent.writes.take());
        let place = &mut self.machines[machine];
        if on(Planted::LedgerNotSynced)
            && let Some(before) = place.ledger_before.take()
        {
            place.ledger = before;
        }
        let told = place.powered;
        if let Some(conn) = agent.conn {
            self.close_at_agent(conn, told);
        }
        if let Some(back_in) = back_in {
            self.queue
                .push(self.now + back_in, Event::AgentStarts { machine });
        }
    }

    fn agent_is(&self, machine: usize, id: u64) -> bool {
        self.machines[machine]
            .agent
            .as_ref()
            .is_some_and(|agent| agent.id == id)
    }

    pub(crate) fn dial(&mut self, machine: usize, id: u64) {
        if !self.agent_is(machine, id)
            || self.machines[machine]
                .agent
                .as_ref()
                .is_some_and(|agent| agent.conn.is_some())
        {
            return;
        }
        let now = self.now;
        let place = &self.machines[machine];
        let cut = place.up_cut || place.down_cut;
        let Some(process) = self.coordinator_for(machine, cut) else {
            // The connection is refused at once, or there is no answer at all.
            let lost = if cut {
                Duration::from_secs(5)
            } else {
                Duration::ZERO
            };
            return self.dial_again(machine, lost, Duration::ZERO);
        };
        let conn = self.connect(machine, id, process);
        let boot_id = match on(Planted::BootIdPerProcess) {
            true => format!("boot-{machine}-{id}"),
            false => format!("boot-{machine}-{}", self.machines[machine].boot),
        };
        let extra_slots = u32::from(on(Planted::SlotTooMany));
        let place = &mut self.machines[machine];
        let (clock, report) = (place.clock(now), place.report(extra_slots));
        let agent = place.agent.as_mut().expect("checked above");
        (agent.conn, agent.welcomed, agent.dialled, agent.answered) = (Some(conn), false, now, now);
        let mut runs = agent.node.reports();
        machine::tell_ports(machine, &place.runs, &mut runs);
        agent.sent = Some(runs.clone());
        (agent.lease, agent.asked) = (Lease::default(), 0);
        agent.lease.asked(0, clock);
        let ledger = agent.node.ledger();
        let hello = Hello {
            node: place.name.clone(),
            boot_id,
            uptime: Some(clock.since(Timestamp(0))),
            incarnation: id,
            speaks: agent.speaks,
            term_seen: ledger.term,
            epoch_seen: ledger.epoch,
            jobs_seen: if on(Planted::GenerationsUntold) {
                BTreeMap::new()
            } else {
                ledger.jobs_seen()
            },
            report,
            runs,
        };
        let hello = self.perhaps_lies(machine, hello);
        self.send_up(
            conn,
            Up::Hello {
                hello: Box::new(hello),
                sent: clock,
            },
        );
        self.queue
            .push(now + Duration::from_secs(1), Event::Beat { machine, conn });
    }

    fn dial_again(&mut self, machine: usize, lost: Duration, lasted: Duration) {
        let random = self.rng.number();
        let now = self.now;
        let Some(agent) = &mut self.machines[machine].agent else {
            return;
        };
        let wait = agent.backoff.after(lasted, random);
        let id = agent.id;
        self.queue
            .push(now + lost + wait, Event::Dial { machine, agent: id });
    }

    /// The agent gives its session up and will dial again.
    pub(crate) fn hang_up(&mut self, machine: usize, told: bool) {
        let now = self.now;
        let Some(agent) = &mut self.machines[machine].agent else {
            return;
        };
        let Some(conn) = agent.conn.take() else {
            return;
        };
        let lasted = if agent.welcomed {
            now.since(agent.dialled)
        } else {
            Duration::ZERO
        };
        self.close_at_agent(conn, told);
        if on(Planted::SilenceKills) {
            let living: Vec<RunId> = self.machines[machine]
                .working()
                .map(|(run, _)| run.clone())
                .collect();
            living.into_iter().for_each(|run| {
                self.tell_runner(
                    machine,
                    &run,
                    Order::Stop {
                        grace: Duration::ZERO,
                    },
                )
            });
        }
        self.dial_again(machine, Duration::ZERO, lasted);
    }

    pub(crate) fn down_closed(&mut self, id: u64) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let (machine, agent) = (conn.machine, conn.agent);
        if conn.agent_open && self.agent_is(machine, agent) {
            self.hang_up(machine, true);
        }
    }

    pub(crate) fn beat(&mut self, machine: usize, conn: u64) {
        let now = self.now;
        let Some(agent) = self.machines[machine]
            .agent
            .as_ref()
            .filter(|agent| agent.conn == Some(conn))
        else {
            return;
        };
        if now.since(agent.answered) > SILENCE {
            note!(self, "n{machine} hears nothing and dials anew");
            return self.hang_up(machine, true);
        }
        let next = now + agent.interval;
        self.queue.push(next, Event::Beat { machine, conn });
        self.ask(machine);
    }

    /// Sends a heartbeat.
    pub(crate) fn ask(&mut self, machine: usize) {
        let clock = self.machines[machine].clock(self.now);
        let Some(agent) = &mut self.machines[machine].agent else {
            return;
        };
        let Some(conn) = agent.conn else { return };
        agent.asked += 1;
        let number = agent.asked;
        agent.lease.asked(number, clock);
        self.send_up(conn, Up::Heartbeat { number });
    }

    pub(crate) fn heard_from_coordinator(&mut self, machine: usize, message: Down) {
        let now = self.now;
        let Some(agent) = &mut self.machines[machine].agent else {
            return;
        };
        agent.answered = now;
        let known = (agent.node.ledger().term, agent.node.ledger().epoch);
        match message {
            Down::Welcome {
                term,
                epoch,
                heartbeat,
            } => {
                (agent.welcomed, agent.interval) = (true, heartbeat);
                note!(self, "n{machine} is welcomed: term {term}, epoch {epoch}");
                self.machines[machine].struck_off = false;
                if self.machines[machine]
                    .agent
                    .as_ref()
                    .is_some_and(|agent| !agent.prewarm.is_empty())
                {
                    self.tell_launchers(machine);
                }
                self.agent_turn(machine, Input::Welcome { term, epoch });
            }
            Down::Desired(desired) => {
                if agent.speaks.newest < protocol::SHARED {
                    invariants::shares_are_understood(self, machine, &desired);
                }
                note!(self, "n{machine} is to have {}", words::desired(&desired));
                let stale = desired.term < known.0 || desired.epoch < known.1;
                self.asked_to_prewarm(machine, &desired);
                let did = self.agent_turn(machine, Input::Desired(desired));
                if stale && did {
                    self.fail("I6", format!("n{machine} obeys an older term or epoch than {known:?}, which it has met"));
                }
            }
            Down::HeartbeatReply { .. } => {}
            Down::Locate { look, run, ranks } => self.asked_where(machine, look, run, ranks),
        }
    }

    pub(crate) fn tell_agent(&mut self, machine: usize, id: u64, input: Input) {
        if self.agent_is(machine, id) {
            self.agent_turn(machine, input);
        }
    }

    /// One turn of the brain. Its effects are done in order, the ledger first, and the agent may
    /// die in between. True if the turn touches any run.
    pub(crate) fn agent_turn(&mut self, machine: usize, input: Input) -> bool {
        let now = self.now;
        let place = &mut self.machines[machine];
        let clock = place.clock(now);
        let Some(agent) = &mut place.agent else {
            return false;
        };
        let id = agent.id;
        let effects = agent.node.turn(clock, input).effects;
        let touches = |effect: &Effect| {
            !matches!(
                effect,
                Effect::SaveLedger(_) | Effect::EndSession(_) | Effect::Alarm(_)
            )
        };
        let mut did = false;
        self.trace.mix(effects.len() as u64);
        let until = if effects.is_empty() {
            None
        } else {
            agent.armed.take()
        };
        let (mut effects, mut done) = (VecDeque::from(effects), 0);
        while let Some(effect) = effects.pop_front() {
            if until == Some(done) {
                self.count(Fault::AgentCrashAmidEffects);
                let back_in = self.rng.ms(50, 15_000);
                self.agent_dies(machine, Some(back_in));
                return did;
            }
            done += 1;
            did |= touches(&effect);
            let saved = self.carry_out(machine, id, effect);
            if saved && let Some(agent) = &mut self.machines[machine].agent {
                effects.extend(agent.node.turn(clock, Input::Saved).effects);
            }
        }
        invariants::said_over_is_over(self, machine);
        self.speak_up(machine);
        did
    }

    /// Sends the runs to the coordinator if they have changed.
    fn speak_up(&mut self, machine: usize) {
        let now = self.now;
        let muted = on(Planted::ReportsStop) && now > self.trouble_until;
        let place = &mut self.machines[machine];
        let clock = place.clock(now);
        let Some(agent) = &mut place.agent else {
            return;
        };
        let Some(conn) = agent.conn else { return };
        let mut reports = agent.node.reports();
        machine::tell_ports(machine, &place.runs, &mut reports);
        if agent.sent.as_ref() == Some(&reports) || muted {
            return;
        }
        agent.sent = Some(reports.clone());
        self.send_up(
            conn,
            Up::Runs {
                runs: reports,
                sent: clock,
            },
        );
    }

    /// Sends the node's changed facts to the coordinator.
    pub(crate) fn describe_node(&mut self, machine: usize) {
        let extra_slots = u32::from(on(Planted::SlotTooMany));
        let report = self.machines[machine].report(extra_slots);
        let conn = self.machines[machine]
            .agent
            .as_ref()
            .and_then(|agent| agent.conn);
        if let Some(conn) = conn {
            self.send_up(conn, Up::Report(Box::new(report)));
        }
    }

    /// True if the effect was a ledger, and it is on disk now.
    fn carry_out(&mut self, machine: usize, agent: u64, effect: Effect) -> bool {
        match effect {
            Effect::SaveLedger(ledger) => return self.save_ledger(machine, agent, *ledger),
            Effect::Hold { assignment, term } => {
                note!(self, "n{machine} holds {}", words::run(&assignment.run));
                invariants::persisted_before_obeyed(self, machine, &assignment.run);
                self.hold(machine, agent, *assignment, term);
            }
            Effect::Start { assignment, start } => {
                let store = start.store;
                note!(
                    self,
                    "n{machine} starts {} at :{}",
                    words::run(&assignment.run),
                    store.port
                );
                invariants::persisted_before_obeyed(self, machine, &assignment.run);
                let place = &mut self.machines[machine];
                if std::mem::take(&mut place.refuse_start) {
                    self.count(Fault::StartRefused);
                    self.did(machine, &assignment.run, Kind::Refused, None);
                    let refused = Event::Refused {
                        machine,
                        agent,
                        run: assignment.run,
                        reason: "python3 not found",
                    };
                    let delay = self.rng.ms(1, 20);
                    self.queue.push(self.now + delay, refused);
                    return false;
                }
                let heard = self.machines[machine]
                    .agent
                    .as_ref()
                    .and_then(|agent| agent.heard);
                self.tell_runner(machine, &assignment.run, Order::Start { store, heard });
            }
            Effect::Restart { run, rank, attempt } => self.restarts(machine, &run, rank, attempt),
            Effect::Stop { run, grace, reason } => {
                note!(
                    self,
                    "n{machine} stops {} ({grace:?}): {reason}",
                    words::run(&run)
                );
                self.stops(machine, &run, grace);
            }
            Effect::Release { run } => {
                note!(self, "n{machine} lets go of {}", words::run(&run));
                self.tell_runner(machine, &run, Order::Release);
            }
            Effect::Purge { run } => {
                let jobs_runs = |id: &RunId| id.job == run.job && id.generation <= run.generation;
                let dir = self.machines[machine].state_dir;
                invariants::purged_is_dead(self, machine, &run);
                let runs = &mut self.machines[machine].runs;
                runs.retain(|id, group| !jobs_runs(id) || group.state_dir != dir);
            }
            Effect::Retire { .. } => self.pod_retires(machine),
            Effect::EndSession(Alarm { why, .. }) => {
                note!(self, "n{machine} ends the session: {why}");
                self.befalls(machine, Kind::SessionBroke);
                self.hang_up(machine, true);
            }
            Effect::Alarm(alarm) => {
                note!(self, "n{machine} objects: {}", alarm.why);
                if matches!(
                    alarm.why,
                    Objection::OtherContent(_) | Objection::OtherStore { .. }
                ) {
                    self.fail(
                        "I5",
                        format!(
                            "n{machine} was given one generation with two contents: {}",
                            alarm.why
                        ),
                    );
                }
            }
        }
        false
    }

    /// Orders pass over the agent's connection to the runner, and may be lost with the agent.
    pub(crate) fn tell_runner(&mut self, machine: usize, run: &RunId, order: Order) {
        let delay = self.rng.ms(0, 10);
        let Some(group) = self.machines[machine].runs.get(run) else {
            return;
        };
        let agent = self.machines[machine]
            .agent
            .as_ref()
            .map_or(0, |agent| agent.id);
        let event = Event::Order {
            machine,
            agent,
            run: run.clone(),
            line: group.line,
            life: group.life,
            order,
        };
        self.queue.push(self.now + delay, event);
    }

    fn hold(
        &mut self,
        machine: usize,
        agent: u64,
        assignment: muster_core::run::Assignment,
        term: Term,
    ) {
        let run = assignment.run.clone();
        let life = self.fresh();
        let refused = std::mem::take(&mut self.machines[machine].refuse_hold);
        if refused {
            self.count(Fault::HoldRefused);
            self.did(machine, &run, Kind::Refused, None);
            let delay = self.rng.ms(1, 50);
            return self.queue.push(
                self.now + delay,
                Event::Refused {
                    machine,
                    agent,
                    run,
                    reason: "no space left on device",
                },
            );
        }
        let state_dir = self.machines[machine].state_dir;
        if let Some(group) = self.machines[machine].runs.get(&run) {
            if group.state_dir == state_dir {
                if group.runner != Runner::Gone {
                    return self.speak_soon(machine, run);
                }
                // This runner came up after the agent had looked, and was killed unseen. It has
                // started nothing.
                if group.launched_at.is_some() || self.machines[machine].said_over.contains(&run) {
                    self.fail(
                        "R4",
                        format!(
                            "n{machine} holds {} again, which has ended there",
                            words::run(&run)
                        ),
                    );
                }
                // The record of the earlier start prevents another one, and tells this agent too
                // that the run is lost.
                let seen_in = self.rng.ms(1, 200);
                return self.queue.push(
                    self.now + seen_in,
                    Event::RunnerLost {
                        machine,
                        agent,
                        run,
                    },
                );
            }
            // What another agent left of this run has no worker. A runner comes up in this agent's
            // directory as if nothing was there.
            self.held_twice(machine, &run);
        }
        self.changed.push(machine);
        self.machines[machine]
            .runs
            .insert(run.clone(), Group::new(assignment, term, state_dir, life));
        let delay = self.rng.ms(5, 300);
        self.queue
            .push(self.now + delay, Event::RunnerUp { machine, run, life });
    }
}
