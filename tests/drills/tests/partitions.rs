//! Partitions and losses between agents and the coordinator, as a table: which nodes are cut off,
//! in which direction, for how long, what happens meanwhile, and how it must end.
//!
//! The daemons are real, and each agent is in a network namespace of its own behind a relay that
//! the test cuts. The workers are stand-ins, because this tests the control plane. Ranks do not
//! talk to each other, so cuts *between* ranks are not in this table: `training.rs` (real gloo) and
//! `sockets` of the TCPStore have those. The short form plays every seventh scenario. `make drill`
//! plays all.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use muster_drills::{
    fleet::{Fleet, LOST, members},
    is_long, lives, pids,
    relay::Way,
};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// Nothing gets through, and connections stay open.
    Both,
    /// The coordinator does not hear the agents.
    Up,
    /// The agents do not hear the coordinator.
    Down,
    /// Connections break, and new ones are refused.
    Reset,
    /// On and off. Each cut is too short to make a node Lost.
    Flaps,
    /// Everything is late.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lasts {
    /// Far too short to make a node Lost.
    Moment,
    /// Until the job goes on without the nodes that are cut off.
    UntilLeftOut,
    /// One and a half times as long as it takes to make a node Lost, or to notice a broken
    /// connection.
    PastLost,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    CoordinatorKilled,
    AgentKilled(usize),
    AgentUpgraded(usize),
    WorkerKilled(usize),
    Cancel,
    Delete,
    ScaleTo(usize),
    SecondJob,
    NodeJoins,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The generation and its workers stay the same.
    Untouched,
    /// A new generation forms without the nodes that are cut off, and the node pays. Their workers
    /// live until the cut is mended. Then the nodes join again.
    LeftOut,
    /// Like `LeftOut`, but a killed worker broke the generation, so the job pays.
    Broken,
    /// The job is over. No worker is left once the cut is mended.
    Over,
}

struct Scenario {
    nodes: usize,
    min: usize,
    who: &'static [usize],
    cut: Cut,
    lasts: Lasts,
    meanwhile: Meanwhile,
    end: End,
}

const fn s(
    (nodes, min): (usize, usize),
    who: &'static [usize],
    cut: Cut,
    lasts: Lasts,
    meanwhile: Meanwhile,
    end: End,
) -> Scenario {
    Scenario {
        nodes,
        min,
        who,
        cut,
        lasts,
        meanwhile,
        end,
    }
}

use Cut::{Both, Down, Flaps, Late, Reset, Up};
use End::{Broken, LeftOut, Over, Untouched};
use Lasts::{Moment, PastLost, UntilLeftOut};
use Meanwhile::{
    AgentKilled, AgentUpgraded, Cancel, CoordinatorKilled, Delete, NodeJoins, Nothing, ScaleTo,
    SecondJob, WorkerKilled,
};

/// Node 0 has node rank 0, and the last node serves the TCPStore.
#[rustfmt::skip]
const TABLE: [Scenario; 50] = [
    // A moment changes nothing, whichever node it hits.
    s((3, 2), &[1], Both, Moment, Nothing, Untouched),
    s((3, 2), &[1], Up, Moment, Nothing, Untouched),
    s((3, 2), &[1], Down, Moment, Nothing, Untouched),
    s((3, 2), &[1], Reset, Moment, Nothing, Untouched),
    s((3, 2), &[0], Both, Moment, Nothing, Untouched),
    s((3, 2), &[2], Both, Moment, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Both, Moment, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Up, Moment, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Down, Moment, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Reset, Moment, Nothing, Untouched),
    s((3, 2), &[1], Flaps, Moment, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Flaps, Moment, Nothing, Untouched),
    s((3, 2), &[1], Late, PastLost, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Late, PastLost, Nothing, Untouched),
    // The cut is long enough and there are others: the job goes on without the node, and takes it
    // back.
    s((3, 2), &[0], Both, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[1], Both, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[2], Both, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[0], Up, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[1], Up, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[2], Up, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[0], Down, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[1], Down, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[2], Down, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[0], Reset, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[1], Reset, UntilLeftOut, Nothing, LeftOut),
    s((3, 2), &[2], Reset, UntilLeftOut, Nothing, LeftOut),
    s((4, 2), &[0, 3], Both, UntilLeftOut, Nothing, LeftOut),
    s((4, 2), &[1, 2], Reset, UntilLeftOut, Nothing, LeftOut),
    // The cut is long enough, but there are no other nodes: nothing is stopped, and training goes
    // on where it was.
    s((3, 3), &[1], Both, PastLost, Nothing, Untouched),
    s((3, 3), &[0], Up, PastLost, Nothing, Untouched),
    s((3, 3), &[2], Down, PastLost, Nothing, Untouched),
    s((3, 3), &[1], Reset, PastLost, Nothing, Untouched),
    s((3, 2), &[0, 1], Both, PastLost, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Both, PastLost, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Reset, PastLost, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Up, PastLost, Nothing, Untouched),
    s((3, 2), &[0, 1, 2], Down, PastLost, Nothing, Untouched),
    s((1, 1), &[0], Both, PastLost, Nothing, Untouched),
    // Something else happens at the same time.
    s((3, 2), &[1], Both, UntilLeftOut, CoordinatorKilled, LeftOut),
    s((3, 2), &[0, 1, 2], Reset, PastLost, CoordinatorKilled, Untouched),
    s((3, 2), &[0], Both, UntilLeftOut, AgentKilled(0), LeftOut),
    s((3, 3), &[2], Both, PastLost, AgentUpgraded(2), Untouched),
    s((3, 2), &[1], Both, UntilLeftOut, AgentKilled(2), LeftOut),
    s((3, 2), &[1], Both, UntilLeftOut, WorkerKilled(0), Broken),
    s((3, 2), &[2], Both, UntilLeftOut, WorkerKilled(2), LeftOut),
    s((3, 2), &[1], Both, PastLost, Cancel, Over),
    s((3, 2), &[2], Reset, PastLost, Delete, Over),
    s((3, 2), &[1], Both, UntilLeftOut, ScaleTo(2), LeftOut),
    s((3, 2), &[1], Both, UntilLeftOut, SecondJob, LeftOut),
    s((3, 3), &[1], Both, UntilLeftOut, NodeJoins, LeftOut),
];

const JOB: &str = "job";

/// One scenario, on a fleet of its own.
struct Play<'a> {
    scenario: &'a Scenario,
    fleet: Fleet,
    before: Value,
    /// The workers' pids, by node.
    workers: Vec<u64>,
    /// How often the agents had dialled before the cut, by node.
    dialled: Vec<u64>,
}

/// Whether a cut was what its scenario is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    Yes,
    /// The agent hears its coordinator, and gave the connection up before the order to stop could come.
    /// Both take seconds, so on a starved machine either may be first.
    ConnectionFirst,
}

impl Play<'_> {
    fn begin(scenario: &Scenario) -> Play<'_> {
        let fleet = Fleet::start(scenario.nodes);
        fleet.submit(JOB, scenario.nodes, scenario.min, json!({}));
        let all: Vec<usize> = (0..scenario.nodes).collect();
        let before = fleet.runs_on(JOB, 1, &all);
        let workers = all
            .iter()
            .map(|node| worker(&before, &fleet.nodes[*node].name))
            .collect();
        let dialled = fleet.nodes.iter().map(|node| node.relay.dialled());
        Play {
            dialled: dialled.collect(),
            scenario,
            fleet,
            before,
            workers,
        }
    }

    fn cut(&self) {
        let (late, shut) = (Way::Late(Duration::from_millis(400)), Way::Shut);
        for node in self.scenario.who {
            let relay = &self.fleet.nodes[*node].relay;
            match self.scenario.cut {
                Both => relay.set(shut, shut),
                Up => relay.set(shut, Way::Open),
                Down => relay.set(Way::Open, shut),
                Reset => relay.reset(),
                Flaps => {}
                Late => relay.set(late, late),
            }
        }
    }

    fn heal(&self) {
        for node in self.scenario.who {
            self.fleet.nodes[*node].relay.heal();
        }
    }

    fn meanwhile(&mut self) {
        match self.scenario.meanwhile {
            Nothing => {}
            CoordinatorKilled => {
                self.fleet.kill_coordinator();
                self.fleet.start_coordinator();
            }
            AgentKilled(node) => {
                self.fleet.nodes[node].kill_agent();
                self.fleet.nodes[node].start_agent();
            }
            AgentUpgraded(node) => {
                self.fleet.nodes[node].terminate_agent();
                self.fleet.nodes[node].start_agent();
            }
            WorkerKilled(node) => {
                muster_drills::kill(self.workers[node], rustix::process::Signal::KILL)
            }
            Cancel => drop(self.fleet.muster(&["cancel", JOB])),
            Delete => {
                self.fleet.muster(&["cancel", JOB]);
                // The job is not over before its last member is proven dead, and only a job that is
                // over can be deleted.
                assert!(!self.fleet.try_muster(&["delete", JOB]).status.success());
            }
            ScaleTo(replicas) => {
                drop(
                    self.fleet
                        .muster(&["scale", JOB, "--nodes", &replicas.to_string()]),
                )
            }
            SecondJob => self.fleet.submit("second", 2, 2, json!({})),
            NodeJoins => self.fleet.add_node(),
        }
    }

    fn wait_cut(&self) {
        let others = self.others();
        match self.scenario.lasts {
            Moment if self.scenario.cut == Flaps => {
                for round in 0..8 {
                    let way = if round % 2 == 0 { Way::Shut } else { Way::Open };
                    self.scenario
                        .who
                        .iter()
                        .for_each(|node| self.fleet.nodes[*node].relay.set(way, way));
                    pass(LOST / 10);
                }
            }
            Moment => pass(LOST / 10),
            UntilLeftOut => drop(self.fleet.runs_on(JOB, self.generation() + 1, &others)),
            // HTTP/2 pings give up a connection that is deaf in one direction after 8 s.
            PastLost => pass(
                LOST * 3 / 2
                    + if self.scenario.cut == Down {
                        Duration::from_secs(8)
                    } else {
                        Duration::ZERO
                    },
            ),
        }
    }

    fn generation(&self) -> u64 {
        self.before["generation"].as_u64().unwrap()
    }

    /// The nodes on which the job must run while the cut lasts.
    fn others(&self) -> Vec<usize> {
        (0..self.fleet.nodes.len())
            .filter(|node| !self.scenario.who.contains(node))
            .collect()
    }

    /// Checks while the cut lasts that workers behind it go on.
    fn check_cut(&self) -> Shown {
        let mut shown = Shown::Yes;
        for node in self.scenario.who {
            match (self.scenario.meanwhile, self.scenario.cut) {
                // The node cannot be heard, but it hears.
                (_, Up) if self.scenario.end == LeftOut => {
                    let ended = || !lives(self.workers[*node]);
                    let what = "the order to stop arrives, or the agent dials anew";
                    self.fleet.until(what, |fleet| {
                        ended() || fleet.nodes[*node].relay.dialled() > self.dialled[*node]
                    });
                    if !ended() {
                        shown = Shown::ConnectionFirst;
                    }
                }
                (WorkerKilled(killed), _) if killed == *node => {
                    assert!(!lives(self.workers[*node]))
                }
                _ => assert!(
                    lives(self.workers[*node]),
                    "the worker of node {node} behind the cut"
                ),
            }
        }
        if matches!(self.scenario.end, LeftOut | Broken) {
            self.check_blame();
        }
        shown
    }

    fn check_blame(&self) {
        let story = self.fleet.json(&["explain", JOB]).unwrap();
        let broke = |incident: &&Value| incident["fromGeneration"] == self.before["generation"];
        let incident = story["incidents"]
            .as_array()
            .unwrap()
            .iter()
            .find(broke)
            .unwrap()
            .clone();
        if self.scenario.end == Broken {
            assert_eq!(incident["charged"], "job", "{incident:#}");
            return;
        }
        // A scale-down that came first is charged to nobody.
        if matches!(self.scenario.meanwhile, ScaleTo(_)) && incident["cause"] == "Scaled" {
            return;
        }
        let cut: BTreeSet<&str> = self
            .scenario
            .who
            .iter()
            .map(|node| self.fleet.nodes[*node].name.as_str())
            .collect();
        assert_eq!(incident["charged"], "node", "{incident:#}");
        assert!(
            cut.contains(incident["culprit"].as_str().unwrap_or_default()),
            "{incident:#}"
        );
    }

    /// Checks the end, after the cut was mended.
    fn check_end(&self) {
        let all: Vec<usize> = (0..self.scenario.nodes).collect();
        match self.scenario.end {
            Untouched => {
                self.fleet.until("all nodes are ready again", |fleet| {
                    fleet.ready_nodes() == self.fleet.nodes.len()
                });
                let after = self.fleet.runs_on(JOB, 1, &all);
                assert_eq!(
                    after["generation"],
                    self.before["generation"],
                    "{}",
                    self.fleet.story()
                );
                assert_eq!(pids(&after), pids(&self.before));
            }
            LeftOut | Broken => {
                let wanted = match self.scenario.meanwhile {
                    ScaleTo(count) => count,
                    _ => self.scenario.nodes,
                };
                self.fleet.until("the job has its size again", |fleet| {
                    fleet.status(JOB).is_some_and(|status| {
                        members(&status).len() == wanted && status["nodesRunning"] == wanted
                    })
                });
                for node in self.scenario.who {
                    self.fleet
                        .until("the old worker is gone", |_| !lives(self.workers[*node]));
                }
            }
            Over => {
                self.fleet.until("nothing of the job is left", |fleet| {
                    fleet.of_the_jobs().is_empty()
                });
                match self.scenario.meanwhile {
                    Delete => {
                        self.fleet.until("it can be forgotten", |fleet| {
                            fleet.try_muster(&["delete", JOB]).status.success()
                        });
                        assert_eq!(self.fleet.status(JOB), None);
                    }
                    _ => assert_eq!(self.fleet.status(JOB).unwrap()["phase"], "Cancelled"),
                }
            }
        }
        if self.scenario.meanwhile == SecondJob {
            self.fleet.until("the second job runs", |fleet| {
                fleet
                    .status("second")
                    .is_some_and(|s| s["nodesRunning"] == 2)
            });
        }
    }
}

/// How often a scenario may not show what it is about, before that is no chance any more.
const TRIES: u32 = 5;

fn play(scenario: &Scenario) {
    for _ in 0..TRIES {
        let mut play = Play::begin(scenario);
        play.cut();
        play.meanwhile();
        play.wait_cut();
        let shown = play.check_cut();
        play.heal();
        play.check_end();
        play.fleet.end();
        if shown == Shown::Yes {
            return;
        }
    }
    panic!("in {TRIES} plays the order to stop never came while the agent was connected");
}

fn worker(status: &Value, node: &str) -> u64 {
    let rank = status["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|rank| rank["node"] == node)
        .unwrap();
    rank["pid"].as_u64().unwrap()
}

/// Waits for this time, because the length of a cut is what a scenario tests.
fn pass(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        thread::park_timeout(left);
    }
}

/// How many fleets run at a time. They wait for silence most of the time.
const AT_A_TIME: usize = 5;

#[test]
fn every_partition_ends_as_the_table_says() {
    // The step is prime, so that the short form has some scenarios of every kind.
    let only = std::env::var("MUSTER_SCENARIO")
        .ok()
        .and_then(|number| number.parse::<usize>().ok());
    let chosen: Vec<usize> = match only {
        Some(number) => vec![number],
        None => (0..TABLE.len())
            .filter(|number| is_long() || number % 7 == 3)
            .collect(),
    };
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(number) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Scenario {
                nodes,
                min,
                who,
                cut,
                lasts,
                meanwhile,
                end,
            } = &TABLE[*number];
            let row = format!(
                "{number:2}: {nodes} nodes, at least {min}; {cut:?} of {who:?}, {lasts:?}; {meanwhile:?} -> {end:?}"
            );
            let began = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| play(&TABLE[*number])));
            let verdict = if outcome.is_ok() {
                "as expected"
            } else {
                "FAILED"
            };
            eprintln!(
                "{row}: {verdict} after {:.1} s",
                began.elapsed().as_secs_f64()
            );
            failed.fetch_add(usize::from(outcome.is_err()), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work)));
    });
    assert_eq!(
        failed.into_inner(),
        0,
        "scenarios failed; MUSTER_SCENARIO=NUMBER plays one"
    );
}
