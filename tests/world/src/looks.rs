//! The looks of a coordinator at the ranks of a job: all their nodes are asked at once, and what they say within six seconds
//! goes back to the brain. An agent may be late, silent, or too old to know the question.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use muster_core::{
    fleet::{Effect, Input},
    id::{Generation, JobUid, NodeName},
    run::RunId,
    stacks::RankStack,
    time::Timestamp,
};

use crate::{
    event::{Down, Event, Up},
    stalls::Sees,
    trace::note,
    world::World,
};

/// As in production.
const ANSWER: Duration = Duration::from_secs(6);
/// So many looks are remembered, for the checks.
const KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct Look {
    process: u64,
    job: JobUid,
    generation: Generation,
    number: u64,
    asked: Timestamp,
    awaited: BTreeMap<NodeName, Vec<u32>>,
    found: Vec<RankStack>,
    failed: bool,
}

/// A look that is over.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    pub(crate) run: RunId,
    pub(crate) process: u64,
    pub(crate) asked: Timestamp,
    pub(crate) answered: Timestamp,
    /// Somebody has not answered.
    pub(crate) failed: bool,
}

impl World {
    pub(crate) fn look_at_ranks(&mut self, seat: usize, effect: Effect) {
        let Effect::LookAtRanks {
            job,
            generation,
            number,
            ranks,
        } = effect
        else {
            return;
        };
        let Some(process) = &self.seats[seat].process else {
            return;
        };
        let (id, look) = (process.id, self.fresh());
        note!(
            self,
            "{job}-g{generation}: its ranks are looked at ({number})"
        );
        let run = RunId {
            job: job.clone(),
            generation,
        };
        let mut asked = Look {
            process: id,
            job,
            generation,
            number,
            asked: self.now,
            awaited: BTreeMap::new(),
            found: Vec::new(),
            failed: false,
        };
        for (node, ranks) in ranks {
            let process = self.seats[seat].process.as_ref().expect("found above");
            let of_node = |conn: &&u64| {
                let conn = self.conns.get(conn);
                conn.is_some_and(|conn| {
                    conn.coordinator_open && self.machines[conn.machine].name == node
                })
            };
            match process.sessions.values().rev().find(of_node).copied() {
                Some(conn) => {
                    let order = Down::Locate {
                        look,
                        run: run.clone(),
                        ranks: ranks.clone(),
                    };
                    self.send_down(conn, order);
                    asked.awaited.insert(node, ranks);
                }
                None => asked.failed(&node, &ranks),
            }
        }
        let patience = match asked.awaited.is_empty() {
            true => Duration::from_millis(1),
            false => ANSWER,
        };
        self.looks.insert(look, asked);
        self.after(patience, Event::LookEnds { process: id, look });
    }

    /// An agent is asked. It may answer late, or never.
    pub(crate) fn asked_where(&mut self, machine: usize, look: u64, run: RunId, ranks: Vec<u32>) {
        let Some(agent) = &self.machines[machine].agent else {
            return;
        };
        let (agent, never) = (agent.id, self.sees(machine) == Sees::Nothing);
        let delay = match self.rng.below(100) {
            0..=4 => return,
            5..=9 => self.rng.ms(6_500, 15_000),
            10..=19 => self.rng.ms(1_000, 4_000),
            _ => self.rng.ms(5, 300),
        };
        if never {
            return;
        }
        let locates = Event::Locates {
            machine,
            agent,
            look,
            run,
            ranks,
        };
        self.after(delay, locates);
    }

    pub(crate) fn locates(
        &mut self,
        machine: usize,
        agent: u64,
        look: u64,
        run: &RunId,
        ranks: &[u32],
    ) {
        let living = self.machines[machine].agent.as_ref();
        let Some(conn) = living
            .filter(|own| own.id == agent)
            .and_then(|own| own.conn)
        else {
            return;
        };
        let ranks = self.rank_stacks(machine, run, ranks);
        self.send_up(conn, Up::Located { look, ranks });
    }

    pub(crate) fn located(&mut self, look: u64, machine: usize, ranks: Vec<RankStack>) {
        let node = self.machines[machine].name.clone();
        let Some(asked) = self.looks.get_mut(&look) else {
            return;
        };
        let Some(wanted) = asked.awaited.remove(&node) else {
            return;
        };
        let missing = |rank: &u32| !ranks.iter().any(|found| found.rank == *rank);
        let missing: Vec<u32> = wanted.into_iter().filter(missing).collect();
        asked.found.extend(ranks);
        asked.failed(&node, &missing);
        if asked.awaited.is_empty() {
            self.look_ends(look);
        }
    }

    /// All have answered, or they have had their time.
    pub(crate) fn look_ends(&mut self, look: u64) {
        let Some(mut asked) = self.looks.remove(&look) else {
            return;
        };
        for (node, ranks) in std::mem::take(&mut asked.awaited) {
            asked.failed(&node, &ranks);
        }
        let Some(seat) = self.seat_of(asked.process) else {
            return;
        };
        asked.found.sort_by_key(|rank| rank.rank);
        let Look {
            job, generation, ..
        } = asked;
        let looked: &mut VecDeque<Looked> = &mut self.truth.looked;
        looked.push_back(Looked {
            run: RunId {
                job: job.clone(),
                generation,
            },
            process: asked.process,
            asked: asked.asked,
            answered: self.now,
            failed: asked.failed,
        });
        if looked.len() > KEPT {
            looked.pop_front();
        }
        let answer = Input::Looked {
            job,
            number: asked.number,
            ranks: asked.found,
        };
        self.decide(seat, answer, None);
    }
}

impl Look {
    /// This node says nothing of these ranks.
    fn failed(&mut self, node: &NodeName, ranks: &[u32]) {
        self.failed |= !ranks.is_empty();
        let nothing = |rank: &u32| RankStack {
            rank: *rank,
            node: node.clone(),
            threads: Vec::new(),
            positions: Vec::new(),
            process: None,
            error: Some(format!("{node} says nothing of it")),
        };
        self.found.extend(ranks.iter().map(nothing));
    }
}
