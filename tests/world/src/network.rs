//! Connections between agents and the coordinator. They promise what TCP promises, and no more:
//! within one connection messages come in order and once, or the connection breaks. A cut is
//! silent. Messages that are sent into it wait, and arrive when it heals, if both ends have not
//! given up.

use std::{collections::VecDeque, time::Duration};

use muster_core::{id::SessionId, time::Timestamp};

use crate::{
    event::{Down, Event, Up},
    fault::Fault,
    trace::note,
    troubles::Kind,
    world::World,
};

/// An end that hears nothing for this long gives the connection up (HTTP/2 keep-alive).
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(10);

/// How often, in percent, a level is never sent because a newer one replaces it first.
const SUPERSEDED: u64 = 30;

/// How long a packet may be under way.
const UNDER_WAY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) machine: usize,
    pub(crate) agent: u64,
    /// The coordinator's process that accepted it.
    pub(crate) process: u64,
    pub(crate) session: Option<SessionId>,
    pub(crate) agent_open: bool,
    pub(crate) coordinator_open: bool,
    /// When the agent's machine lost power, and with it all that had not left.
    unplugged: Option<Timestamp>,
    pub(crate) heard: Timestamp,
    /// When one of the ends last gave the connection up.
    closed: Timestamp,
    last_up: Timestamp,
    last_down: Timestamp,
    held_up: VecDeque<(u64, Up)>,
    held_down: VecDeque<(u64, Down)>,
    /// The newest level sent in each direction. An older one that has not left yet need not be
    /// sent.
    newest_up: u64,
    newest_down: u64,
}

impl World {
    pub(crate) fn connect(&mut self, machine: usize, agent: u64, process: u64) -> u64 {
        let id = self.fresh();
        let conn = Conn {
            machine,
            agent,
            process,
            session: None,
            agent_open: true,
            coordinator_open: true,
            unplugged: None,
            heard: self.now,
            closed: self.now,
            last_up: self.now,
            last_down: self.now,
            held_up: VecDeque::new(),
            held_down: VecDeque::new(),
            newest_up: 0,
            newest_down: 0,
        };
        self.conns.insert(id, conn);
        id
    }

    fn delay(&mut self, machine: usize) -> Duration {
        let most = self.plan.delay_ms;
        // Most messages are quick, and a few are not.
        let ms = if self.rng.percent(90) {
            self.rng.ms(0, most / 4 + 1)
        } else {
            self.rng.ms(most / 4, most)
        };
        ms + Duration::from_millis(self.machines[machine].slow_ms)
    }

    fn twice(&mut self) -> bool {
        let twice = self.healed.is_none()
            && self.plan.has(Fault::Duplicate)
            && self.rng.percent(self.plan.duplicate_percent);
        if twice {
            self.count(Fault::Duplicate);
        }
        twice
    }

    pub(crate) fn send_up(&mut self, id: u64, message: Up) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.agent_open) else {
            return;
        };
        let machine = conn.machine;
        let level = matches!(message, Up::Runs { .. });
        let times = if level && self.twice() { 2 } else { 1 };
        let serial = self.fresh();
        if level {
            self.conns.get_mut(&id).expect("found above").newest_up = serial;
        }
        for _ in 0..times {
            let at = self.now + self.delay(machine);
            let conn = self.conns.get_mut(&id).expect("found above");
            conn.last_up = at.max(conn.last_up + Duration::from_micros(1));
            let at = conn.last_up;
            self.queue.push(
                at,
                Event::Up {
                    conn: id,
                    serial,
                    message: message.clone(),
                },
            );
        }
    }

    pub(crate) fn send_down(&mut self, id: u64, message: Down) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.coordinator_open) else {
            return;
        };
        let machine = conn.machine;
        let level = matches!(message, Down::Desired(_));
        let times = if level && self.twice() { 2 } else { 1 };
        let serial = self.fresh();
        if level {
            self.conns.get_mut(&id).expect("found above").newest_down = serial;
        }
        for _ in 0..times {
            let at = self.now + self.delay(machine);
            let conn = self.conns.get_mut(&id).expect("found above");
            conn.last_down = at.max(conn.last_down + Duration::from_micros(1));
            let at = conn.last_down;
            self.queue.push(
                at,
                Event::Down {
                    conn: id,
                    serial,
                    message: message.clone(),
                },
            );
        }
    }

    pub(crate) fn up_arrives(&mut self, id: u64, serial: u64, message: Up) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let machine = conn.machine;
        // Nobody sends again what the network loses.
        if { conn.unplugged }.is_some_and(|at| self.now.since(at) > UNDER_WAY) {
            return;
        }
        if matches!(message, Up::Runs { .. })
            && serial < conn.newest_up
            && self.rng.percent(SUPERSEDED)
        {
            return;
        }
        let conn = &self.conns[&id];
        if self.machines[machine].up_cut || !conn.coordinator_open {
            if conn.coordinator_open {
                let conn = self.conns.get_mut(&id).expect("found above");
                if conn.unplugged.is_none() {
                    conn.held_up.push_back((serial, message));
                }
            } else if conn.session.is_some() && self.is_coordinator(conn.process) {
                // What was read from the stream before its end was noticed may still be in the
                // engine's queue.
                self.heard_from_agent(id, message);
            }
            return;
        }
        let conn = self.conns.get_mut(&id).expect("found above");
        conn.heard = self.now;
        let (whole, process) = (conn.agent_open, conn.process);
        if whole && self.leader().is_some_and(|leader| leader.id == process) {
            self.is_heard(machine, matches!(message, Up::Hello { .. }));
        }
        self.heard_from_agent(id, message);
    }

    pub(crate) fn down_arrives(&mut self, id: u64, serial: u64, message: Down) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let machine = conn.machine;
        if matches!(message, Down::Desired(_))
            && serial < conn.newest_down
            && self.rng.percent(SUPERSEDED)
        {
            return;
        }
        let conn = &self.conns[&id];
        if !conn.agent_open {
            let late = self.healed.is_none()
                && self.plan.has(Fault::Stale)
                && !self.machines[machine].down_cut;
            let answers = matches!(message, Down::HeartbeatReply { .. } | Down::Locate { .. });
            if late && !answers {
                let (agent, delay) = (conn.agent, self.rng.ms(0, 3_000));
                self.after(
                    delay,
                    Event::Late {
                        machine,
                        agent,
                        message,
                    },
                );
            }
            return;
        }
        if self.machines[machine].down_cut {
            self.conns
                .get_mut(&id)
                .expect("found above")
                .held_down
                .push_back((serial, message));
            return;
        }
        if let Down::Desired(desired) = &message
            && self.stands_still_before(machine, desired)
        {
            return self.queue.push(
                self.machines[machine].agent_paused_until,
                Event::Down {
                    conn: id,
                    serial,
                    message,
                },
            );
        }
        // These answer questions of this session only. A late message answers nothing.
        match &message {
            Down::Welcome { .. } => self.question_answered(machine, 0),
            Down::HeartbeatReply { number } => self.question_answered(machine, *number),
            Down::Desired(_) | Down::Locate { .. } => {}
        }
        self.heard_from_coordinator(machine, message);
    }

    /// A message of a connection that was given up long ago reaches its agent. It may come from an
    /// older session, or even an older coordinator.
    pub(crate) fn comes_late(&mut self, machine: usize, agent: u64, message: Down) {
        if self.machines[machine]
            .agent
            .as_ref()
            .is_some_and(|living| living.id == agent)
        {
            self.count(Fault::Stale);
            // The agent may end its session because of it.
            self.heard_from_coordinator(machine, message);
        }
    }

    /// Messages that a cut held up are delivered, in order. Those that are under way come later.
    fn flush(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let (up, down) = (
            std::mem::take(&mut conn.held_up),
            std::mem::take(&mut conn.held_down),
        );
        up.into_iter()
            .for_each(|(serial, message)| self.up_arrives(id, serial, message));
        down.into_iter()
            .for_each(|(serial, message)| self.down_arrives(id, serial, message));
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let late = Duration::from_micros(200);
        if !conn.agent_open && conn.coordinator_open {
            self.queue.push(
                conn.last_up.max(self.now) + late,
                Event::UpClosed { conn: id },
            );
        }
        if conn.agent_open && !conn.coordinator_open {
            self.queue.push(
                conn.last_down.max(self.now) + late,
                Event::DownClosed { conn: id },
            );
        }
    }

    pub(crate) fn cut(&mut self, machine: usize, up: bool, down: bool) {
        self.machines[machine].up_cut |= up;
        self.machines[machine].down_cut |= down;
        self.begins(machine, Kind::Cut);
    }

    pub(crate) fn heal_cut(&mut self, machine: usize) {
        let healthy = !self.machines[machine].up_cut && !self.machines[machine].down_cut;
        if healthy {
            return;
        }
        (
            self.machines[machine].up_cut,
            self.machines[machine].down_cut,
        ) = (false, false);
        self.ends(machine, Kind::Cut);
        note!(self, "n{machine} is reached again");
        for id in self.conns_of(machine) {
            self.flush(id);
        }
    }

    /// The machine loses power: nobody sends again what a cut has held up.
    pub(crate) fn unplug(&mut self, machine: usize) {
        for conn in self.conns.values_mut() {
            if conn.machine == machine {
                conn.unplugged = Some(self.now);
                conn.held_up.clear();
            }
        }
    }

    pub(crate) fn conns_of(&self, machine: usize) -> Vec<u64> {
        self.conns
            .iter()
            .filter(|(_, conn)| conn.machine == machine)
            .map(|(id, _)| *id)
            .collect()
    }

    /// The agent gives the connection up. `told`: the other end may hear of it.
    pub(crate) fn close_at_agent(&mut self, id: u64, told: bool) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.agent_open) else {
            return;
        };
        (conn.agent_open, conn.closed) = (false, now);
        let unread = std::mem::take(&mut conn.held_down);
        let machine = &self.machines[conn.machine];
        if told && conn.coordinator_open && !machine.up_cut {
            let at = conn.last_up.max(now) + Duration::from_micros(200);
            self.queue.push(at, Event::UpClosed { conn: id });
        }
        self.forget_conn(id);
        self.unread_come_late(id, unread);
    }

    /// Messages that an agent had not read may still reach it, in any order, before it has another
    /// connection.
    fn unread_come_late(&mut self, id: u64, unread: VecDeque<(u64, Down)>) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let (machine, agent) = (conn.machine, conn.agent);
        if self.healed.is_some() || !self.plan.has(Fault::Stale) {
            return;
        }
        for (_, message) in unread {
            if matches!(message, Down::Desired(_)) {
                let delay = self.rng.ms(0, 3_000);
                let late = Event::Late {
                    machine,
                    agent,
                    message,
                };
                self.after(delay, late);
            }
        }
    }

    /// The coordinator gives the connection up, or dies.
    pub(crate) fn close_at_coordinator(&mut self, id: u64) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.coordinator_open) else {
            return;
        };
        (conn.coordinator_open, conn.closed) = (false, now);
        conn.held_up.clear();
        if conn.agent_open && !self.machines[conn.machine].down_cut {
            let at = conn.last_down.max(now) + Duration::from_micros(200);
            self.queue.push(at, Event::DownClosed { conn: id });
        }
        self.forget_conn(id);
    }

    /// Connections that both ends gave up stay for a while, for late messages. Then they are
    /// removed.
    fn forget_conn(&mut self, id: u64) {
        const KEPT: usize = 64;
        // By then the coordinator knows of its end, and everything under way has arrived.
        const KEPT_FOR: Duration = Duration::from_secs(60);
        let now = self.now;
        if self
            .conns
            .get(&id)
            .is_some_and(|conn| !conn.agent_open && !conn.coordinator_open)
        {
            self.over.push_back(id);
        }
        while self.conns.len() > KEPT + self.machines.len()
            && let Some(oldest) = self.over.front().copied()
            && self
                .conns
                .get(&oldest)
                .is_none_or(|conn| now.since(conn.closed) > KEPT_FOR)
        {
            self.over.pop_front();
            self.conns.remove(&oldest);
        }
    }

    /// Breaks a connection for both ends.
    pub(crate) fn break_session(&mut self, machine: usize) {
        self.befalls(machine, Kind::SessionBroke);
        for id in self.conns_of(machine) {
            let conn = &self.conns[&id];
            if conn.agent_open && conn.coordinator_open {
                let (first, second) = (self.rng.ms(0, 20), self.rng.ms(0, 20));
                self.queue
                    .push(self.now + first, Event::UpClosed { conn: id });
                self.queue
                    .push(self.now + second, Event::DownClosed { conn: id });
            }
        }
    }
}
