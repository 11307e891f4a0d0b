//! The real thing as an oracle: jobs end exactly when they are expected to, and each that waits starts in the turn
//! that was foretold, or in none.
//!
//! Fleets are small, of equal and unequal nodes, with and without queues and limits; jobs have several priorities, some
//! are elastic, some have deadlines, some wait for a time, and of some nobody knows how long they run. Left out is what an
//! estimate leaves out: new jobs, failures, jobs that give up nodes for others, and jobs that wait for the end of others. A
//! job that its deadline ends has one node: those of a larger one stop one after the other, and are given out so. (So are ends
//! at one moment of which only one is by a deadline; none of these seeds shows it.)

use super::*;
use crate::fleet::queues::{Queue, Queues};

/// So many numbers below `below`, always the same of one seed.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        // Numbers of Knuth's MMIX.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// Jobs by name, and how long each has nodes.
type Lengths = BTreeMap<String, u64>;

fn policy(bench: &mut Bench, random: &mut Random) {
    let policy = &mut bench.fleet.policy;
    policy.reserve_after = [0, 8, 600][random.below(3) as usize] * SECOND;
    policy.submits_burst = 1_000;
    if random.one_in(4) {
        policy.gpus_max = GpusMax::each(Some(2 + random.below(3) as u32));
    }
    if random.one_in(3) {
        let queue = |name: &str, parent, quota: u64| Queue {
            name: name.into(),
            parent,
            quota: parent.map(|_| quota as u32),
            namespaces: parent.map(|_: usize| name.to_owned()).into_iter().collect(),
            ..Queue::default()
        };
        let queues = vec![
            queue("all", None, 0),
            queue("x", Some(0), 1 + random.below(4)),
            queue("y", Some(0), 1 + random.below(4)),
        ];
        policy.queues = Queues::new(queues).unwrap();
    }
}

fn job(bench: &Bench, random: &mut Random) -> SpecDocument {
    let least = 1 + random.below(3) as i64;
    let most = least + if random.one_in(3) { 1 } else { 0 };
    let mut spec = SpecDocument {
        gpus_per_node: Some(1 + i64::from(random.one_in(3))),
        priority: Some([0, 0, 0, 1, 5][random.below(5) as usize]),
        // Nobody gives up nodes.
        preemption: Some("never".into()),
        scale_up_cooldown: Some(["0s", "7s"][random.below(2) as usize].into()),
        ..document(least, most, most)
    };
    if most == 1 && random.one_in(2) {
        spec.active_deadline_seconds = Some(20 + random.below(100) as i64);
    }
    if random.one_in(8) {
        spec.start_deadline_seconds = Some(20 + random.below(60) as i64);
    }
    if random.one_in(6) {
        let at = bench.now + Duration::from_secs(20 + random.below(60));
        spec.start_after = Some(at.rfc3339_seconds());
    }
    spec
}

fn fleet_of(random: &mut Random) -> Bench {
    let names = ["a", "b", "c", "d", "e"];
    let some = 2 + random.below(4) as usize;
    let nodes: Vec<(&str, &str, u32)> = names[..some]
        .iter()
        .map(|name| (*name, "x", 1 + random.below(3) as u32))
        .collect();
    fleet(&nodes)
}

/// A second passes, and jobs end whose time has come. Notes who has got nodes.
fn second(bench: &mut Bench, lengths: &Lengths, began: &mut BTreeMap<String, Timestamp>) {
    bench.now = bench.now + SECOND;
    let sessions: Vec<SessionId> = bench.agents.values().filter_map(|a| a.session).collect();
    for session in sessions {
        bench.input(Input::Heartbeat { session });
    }
    // All ends of one moment, before anybody is asked: an estimate knows no order among them.
    let mut told = std::collections::BTreeSet::new();
    for (name, at) in began.iter() {
        let Some(length) = lengths.get(name) else {
            continue;
        };
        let job = bench.job(name).clone();
        let training = job
            .training()
            .filter(|_| *at + *length as u32 * SECOND <= bench.now);
        if let Some(generation) = training {
            let ranks = (0..).take_while(|rank| generation.node_of(*rank).is_some());
            for rank in ranks {
                told.insert(bench.rank_ends(name, generation, rank, Exit::Code(0), None));
            }
        }
    }
    let mut inputs = Vec::new();
    for node in told {
        let agent = &bench.agents[&node];
        let session = agent.session.unwrap();
        let runs = agent.runs.values().cloned().collect();
        inputs.push(Input::Runs { session, runs });
    }
    inputs.push(Input::Tick);
    bench.inputs(inputs);
    bench.obey();
    note(bench, began);
}

fn note(bench: &Bench, began: &mut BTreeMap<String, Timestamp>) {
    for job in bench.fleet.jobs.values() {
        if job.current.is_some() {
            began.entry(job.name.name.clone()).or_insert(bench.now);
        }
    }
}

/// All jobs, for whoever reads why a test fails.
fn story(
    bench: &Bench,
    lengths: &Lengths,
    began: &BTreeMap<String, Timestamp>,
    asked: Timestamp,
) -> String {
    let ago = |at: Timestamp| at.0 as i64 / 1_000_000 - asked.0 as i64 / 1_000_000;
    let line = |job: &JobRecord| -> String {
        let (spec, name) = (&job.spec, &job.name.name);
        format!(
            "\n{} {}-{} of {}, priority {}, deadlines {:?} {:?}, after {:?}: came {}, began {:?}, for {:?}, over {:?}: {}",
            job.name,
            spec.min_replicas,
            spec.max_replicas,
            spec.gpus_max(),
            spec.priority,
            spec.lifetime.active_deadline_seconds,
            spec.lifetime.start_deadline_seconds,
            spec.start.start_after.map(ago),
            ago(job.created),
            began.get(name).copied().map(ago),
            lengths.get(name),
            job.finished.map(ago),
            job.message,
        )
    };
    bench.fleet.jobs.values().map(line).collect()
}

/// What was asked of one fleet: how many starts were foretold, and of how many jobs it was said that they have none.
fn check(seed: u64) -> (usize, usize) {
    let mut random = Random(seed);
    random.below(2);
    let mut bench = fleet_of(&mut random);
    policy(&mut bench, &mut random);
    let (mut lengths, mut began) = (Lengths::new(), BTreeMap::new());
    for number in 0..3 + random.below(6) {
        let name = format!("job-{number}");
        if !random.one_in(6) {
            let length = 5 + random.below(90);
            for namespace in ["x", "y"] {
                took_in(&mut bench, namespace, &name, length);
            }
            lengths.insert(name.clone(), length);
        }
        let namespace = ["x", "y"][random.below(2) as usize];
        let spec = job(&bench, &mut random);
        bench.submit(&format!("{namespace}/{name}"), spec);
        note(&bench, &mut began);
        for _ in 0..random.below(4) {
            second(&mut bench, &lengths, &mut began);
        }
    }
    let asked = bench.now;
    let before = began.clone();
    let foretold = starts(&mut bench);
    for job in bench.fleet.jobs.values() {
        let waits = !job.is_over() && !began.contains_key(&job.name.name);
        assert_eq!(
            waits,
            foretold.contains_key(&job.name.name),
            "seed {seed}: {} {}",
            job.name,
            job.message
        );
    }
    while bench.now.since(asked) < 1_000 * SECOND {
        second(&mut bench, &lengths, &mut began);
    }
    let (mut expected, mut unknown) = (0, 0);
    let story = story(&bench, &lengths, &began, asked);
    for (name, start) in &foretold {
        let real = began.get(name).filter(|_| !before.contains_key(name));
        let ago = |at: &Timestamp| at.since(asked).as_secs();
        assert_eq!(
            start.at().as_ref().map(ago),
            real.map(ago),
            "seed {seed}, in how many seconds does {name} start? {start:?}{story}"
        );
        match start {
            Start::Expected(_) => expected += 1,
            Start::Unknown(_) => unknown += 1,
        }
    }
    (expected, unknown)
}

#[test]
fn jobs_that_end_as_expected_let_others_start_as_foretold() {
    let (mut expected, mut unknown) = (0, 0);
    // In 414 and 886 jobs once kept room from each other, or by a limit that did not hold them back.
    for seed in (0..100).chain([414, 886]) {
        let (some, none) = check(seed);
        (expected, unknown) = (expected + some, unknown + none);
    }
    assert!(
        expected > 60 && unknown > 20,
        "{expected} were foretold, and of {unknown} it was said that nobody knows"
    );
}
