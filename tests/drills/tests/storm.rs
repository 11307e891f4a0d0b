//! Every process of a small fleet is killed or stopped, in a seeded order: agents, runners, the
//! coordinator, launchers and workers. Agents are also upgraded under running workers. After each
//! event the fleet must come to rest with every job whole, and nothing else alive.
//!
//! The short form has 30 events, and `make drill` 2,000. The workers are stand-ins. `training.rs`
//! shows what real ones do when a peer dies.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use muster_drills::{fleet::Fleet, is_long, lives, pids, processes_of, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const NODES: usize = 3;
/// Each job's name, the number of nodes it wants, and its minimum.
const JOBS: [(&str, usize, usize); 2] = [("wide", 3, 2), ("small", 2, 1)];

/// The generations and the workers, once the fleet is at rest.
#[derive(Clone, Debug, PartialEq)]
struct Rest {
    generations: BTreeMap<&'static str, u64>,
    workers: BTreeSet<u64>,
}

/// The state at rest: every job is whole, every node ready, and exactly the needed processes live.
/// `None` before that.
fn rest(fleet: &Fleet) -> Option<Rest> {
    let mut rest = Rest {
        generations: BTreeMap::new(),
        workers: BTreeSet::new(),
    };
    let mut members = 0;
    if fleet.ready_nodes() != NODES {
        return None;
    }
    for (job, wanted, _) in JOBS {
        let status = fleet.status(job)?;
        let pids = pids(&status);
        if status["phase"] != "Running" || status["nodesRunning"] != wanted || pids.len() != wanted
        {
            return None;
        }
        rest.generations.insert(job, status["generation"].as_u64()?);
        rest.workers.extend(pids);
        members += wanted;
    }
    let found = Processes::of(fleet);
    let whole = found.workers == rest.workers
        && found.runners.len() == members
        && found.launchers.len() == members;
    whole.then_some(rest)
}

/// The processes of a fleet that are not its daemons, by kind.
#[derive(Debug, Default)]
struct Processes {
    runners: BTreeSet<u64>,
    launchers: BTreeSet<u64>,
    workers: BTreeSet<u64>,
}

impl Processes {
    fn of(fleet: &Fleet) -> Self {
        let mut found = Self::default();
        for (pid, line) in processes_of(fleet.path()) {
            // A keeper has the command line of its runner.
            let is_keeper = fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == "muster-keeper");
            let kind = if line.contains("muster-runner hold") && !is_keeper {
                &mut found.runners
            } else if line.contains("python3 -m") {
                &mut found.launchers
            } else if line.starts_with("sleep 1000000") {
                &mut found.workers
            } else {
                continue;
            };
            kind.insert(pid.into());
        }
        found
    }
}

/// Xorshift (Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn of(&mut self, among: &BTreeSet<u64>) -> Option<u64> {
        let count = among.len() as u64;
        (count > 0).then(|| {
            among
                .iter()
                .copied()
                .nth(self.below(count) as usize)
                .unwrap()
        })
    }
}

/// How long a process may be stopped: long enough to be missed, and sometimes long enough to be
/// lost.
const STOPS: [Duration; 3] = [
    Duration::from_millis(300),
    Duration::from_millis(2_000),
    Duration::from_millis(6_000),
];

struct Storm {
    fleet: Fleet,
    dice: Dice,
}

impl Storm {
    fn begin(seed: u64) -> Storm {
        let fleet = Fleet::start(NODES);
        for (job, wanted, min) in JOBS {
            fleet.submit(
                job,
                wanted,
                min,
                json!({"restartPolicy": {"maxRestarts": 1_000, "window": "1m"}}),
            );
        }
        Storm {
            fleet,
            dice: Dice(seed),
        }
    }

    /// One event. Returns whether workers must stay untouched, and what it was.
    fn strike(&mut self) -> (bool, String) {
        let node = self.dice.below(NODES as u64) as usize;
        match self.dice.below(10) {
            0 => {
                self.fleet.nodes[node].kill_agent();
                self.fleet.nodes[node].start_agent();
                (true, format!("agent of node {node} killed"))
            }
            1 => {
                // A new program replaces the agent's under a running fleet.
                let new = self
                    .fleet
                    .path()
                    .join(format!("muster-agent-{}", self.dice.below(u64::MAX)));
                fs::copy(program("muster-agent"), &new).unwrap();
                self.fleet.nodes[node].terminate_agent();
                self.fleet.nodes[node].start_agent_of(&new, &program("muster-runner"));
                // It runs from a file that has no name any more.
                self.fleet.until("the new agent is there", |fleet| {
                    fleet.ready_nodes() == NODES
                });
                fs::remove_file(&new).unwrap();
                (true, format!("agent of node {node} upgraded"))
            }
            2 => {
                self.fleet.kill_coordinator();
                self.fleet.start_coordinator();
                (true, "coordinator killed".into())
            }
            3 => {
                let pid = self.fleet.coordinator_pid().unwrap();
                let time = STOPS[self.dice.below(2) as usize];
                stop(pid.into(), time);
                // Messages that its agents sent meanwhile wait for it.
                (false, format!("coordinator stopped for {time:?}"))
            }
            4 => {
                let pid = self.fleet.nodes[node].agent_pid().unwrap();
                let time = STOPS[self.dice.below(3) as usize];
                stop(pid.into(), time);
                (
                    time == STOPS[0],
                    format!("agent of node {node} stopped for {time:?}"),
                )
            }
            5 => self.one("runner", |found| &found.runners),
            6 => self.one("launcher", |found| &found.launchers),
            7 | 8 => self.one("worker", |found| &found.workers),
            _ => {
                // Several workers die at once.
                let workers = Processes::of(&self.fleet).workers;
                let two: BTreeSet<u64> = (0..2).filter_map(|_| self.dice.of(&workers)).collect();
                two.iter().for_each(|pid| self.kill(*pid, Signal::KILL));
                self.fleet.nodes[node].kill_agent();
                self.fleet.nodes[node].start_agent();
                (
                    false,
                    format!("workers {two:?} and the agent of node {node} killed"),
                )
            }
        }
    }

    fn one(&mut self, what: &str, of: fn(&Processes) -> &BTreeSet<u64>) -> (bool, String) {
        let Some(pid) = self.dice.of(of(&Processes::of(&self.fleet))) else {
            return (true, format!("no {what}"));
        };
        match self.dice.below(4) {
            0 => {
                stop(pid, STOPS[0]);
                (true, format!("{what} {pid} stopped for a moment"))
            }
            1 if what == "worker" => {
                self.kill(pid, Signal::SEGV);
                (false, format!("worker {pid} broke"))
            }
            _ => {
                self.kill(pid, Signal::KILL);
                (false, format!("{what} {pid} killed"))
            }
        }
    }

    /// Returns when the process is gone, and rest is not looked for before that.
    fn kill(&self, pid: u64, how: Signal) {
        signal(pid, how);
        self.fleet.until("what was killed is gone", |_| !lives(pid));
    }
}

fn signal(pid: u64, signal: Signal) {
    // The process may have ended by itself since it was found.
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
}

fn stop(pid: u64, time: Duration) {
    signal(pid, Signal::STOP);
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
    signal(pid, Signal::CONT);
}

fn weather(seed: u64, events: u32) {
    let mut storm = Storm::begin(seed);
    let mut before = storm.fleet.until("the fleet is at rest", rest);
    for number in 0..events {
        let (unnoticed, what) = storm.strike();
        let after = storm.fleet.until(
            &format!("at rest after event {number} of seed {seed}: {what}; was {before:?}"),
            rest,
        );
        if unnoticed {
            assert_eq!(
                after,
                before,
                "event {number} of seed {seed}: {what}\n{}",
                storm.fleet.story()
            );
        }
        if is_long() && number % 50 == 0 {
            eprintln!(
                "seed {seed}, event {number}: {what}; generations {:?}",
                after.generations
            );
        }
        before = after;
    }
    let generations: u64 = before.generations.values().sum();
    eprintln!("seed {seed}: {events} events, {generations} generations, nothing left behind");
    storm.fleet.end();
}

#[test]
fn whatever_is_killed_or_stopped_the_jobs_come_back_whole_and_nothing_is_left() {
    let events = std::env::var("MUSTER_STORM_EVENTS")
        .ok()
        .and_then(|count| count.parse().ok());
    let events = events.unwrap_or(if is_long() { 1_000 } else { 15 });
    let first: u64 = std::env::var("MUSTER_STORM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    // Two fleets run side by side, because each waits most of its time.
    std::thread::scope(|scope| {
        for seed in [first, first + 1] {
            scope.spawn(move || {
                weather(
                    0x9E37_79B9_7F4A_7C15 ^ seed.wrapping_mul(0xD134_2543_DE82_EF95),
                    events,
                )
            });
        }
    });
}
