//! Generations that stand still.

use super::*;
use crate::{
    stacks::{Frame, Process, RankStack},
    stall::{Still, Why},
};

const TORCH: &str = "/lib/site-packages/torch/distributed/distributed_c10d.py";

fn at(rank: u32, node: &NodeName, frames: &[(&str, u32, &str)]) -> RankStack {
    let frame = |(file, line, function): &(&str, u32, &str)| Frame {
        file: (*file).into(),
        line: *line,
        function: (*function).into(),
    };
    RankStack {
        rank,
        node: node.clone(),
        threads: vec![frames.iter().map(frame).collect()],
        positions: Vec::new(),
        process: Some(Process {
            pid: 1_000 + rank as i32,
            state: "S".into(),
            ..Process::default()
        }),
        error: None,
    }
}

fn waits(rank: u32, node: &NodeName) -> RankStack {
    let main = ("/t/train.py", 88, "<module>");
    at(rank, node, &[(TORCH, 2810, "all_reduce"), main])
}

fn loads(rank: u32, node: &NodeName) -> RankStack {
    let main = ("/t/train.py", 80, "<module>");
    at(rank, node, &[("/t/data.py", 41, "load_batch"), main])
}

fn stopped(rank: u32, node: &NodeName) -> RankStack {
    let mut stopped = at(rank, node, &[]);
    stopped.threads.clear();
    stopped.process.as_mut().unwrap().state = "T".into();
    stopped
}

/// Rank 1 is in its data loader, and the others wait for it.
fn one_loads(rank: u32, node: &NodeName) -> RankStack {
    match rank {
        1 => loads(rank, node),
        _ => waits(rank, node),
    }
}

fn spec(on_stall: &str) -> SpecDocument {
    SpecDocument {
        on_stall: Some(on_stall.into()),
        ..document(2, 2, 2)
    }
}

/// The same, and the job itself says how long nothing may move.
fn said(on_stall: &str) -> SpecDocument {
    SpecDocument {
        stall_after: Some("10s".into()),
        ..spec(on_stall)
    }
}

impl Bench {
    /// A job that has made thirty steps, one a second.
    pub(super) fn trains(&mut self, name: &str, spec: SpecDocument) {
        self.submit(name, spec);
        for step in 0..=30 {
            self.pass(SECOND);
            self.step(name, step);
        }
    }

    /// From now on no rank of the job shows anything. `busy`: those that use a processor.
    fn stands(&mut self, name: &str, busy: &[u32]) {
        let since = self.now;
        self.tell_ranks(name, |rank| {
            rank.still = Some(Still {
                since,
                idle_since: (!busy.contains(&rank.rank)).then_some(since),
            });
        });
    }

    fn moves(&mut self, name: &str) {
        self.tell_ranks(name, |rank| rank.still = None);
    }

    pub(super) fn tell_ranks(&mut self, name: &str, change: impl Fn(&mut RankReport)) {
        let job = self.job(name);
        let run = job.current.as_ref().unwrap().run(&job.uid);
        let mut all = Vec::new();
        for agent in self.agents.values_mut() {
            if let Some(run) = agent.runs.get_mut(&run) {
                run.ranks.iter_mut().for_each(&change);
                let runs = agent.runs.values().cloned().collect();
                all.push((agent.session.unwrap(), runs));
            }
        }
        for (session, runs) in all {
            self.input(Input::Runs { session, runs });
        }
        self.obey();
    }

    /// Time passes, and agents say at once where ranks are. Returns how often they were asked.
    fn watch(&mut self, time: Duration, place: impl Fn(u32, &NodeName) -> RankStack) -> usize {
        let (end, mut asked) = (self.now + time, 0);
        while self.now < end {
            self.pass(Duration::from_millis(500));
            for (job, number, by_node) in std::mem::take(&mut self.looks) {
                asked += 1;
                let ranks = by_node.iter();
                let ranks = ranks
                    .flat_map(|(node, ranks)| ranks.iter().map(|rank| place(*rank, node)))
                    .collect();
                self.input(Input::Looked { job, number, ranks });
                self.obey();
            }
        }
        asked
    }

    pub(super) fn told(&self, reason: &str) -> Vec<&str> {
        let told = self.events.iter().filter(|event| event.reason == reason);
        told.map(|event| event.message.as_str()).collect()
    }

    fn generation(&self, name: &str) -> u64 {
        self.job(name).last_generation.0
    }
}

#[test]
fn a_generation_that_stalls_is_told_and_replaced_after_twice_its_limit() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", said("restart"));
    bench.stands("digits", &[]);
    assert_eq!(
        bench.watch(9 * SECOND, one_loads),
        0,
        "ten seconds are its limit"
    );
    assert_eq!(
        bench.watch(5 * SECOND, one_loads),
        2,
        "it is looked at twice"
    );
    let [told] = bench.told("JobStalled")[..] else {
        panic!("once")
    };
    let message = "default/digits: nothing has moved for 12s: rank 1 on b: load_batch at data.py:41; others wait; it is restarted in 8s (muster stacks digits)";
    assert_eq!(told, message);
    let stall = bench.job("digits").current.as_ref().unwrap().stall.clone();
    assert_eq!(stall.unwrap().why, Why::Elsewhere);
    bench.watch(5 * SECOND, one_loads);
    assert_eq!(bench.generation("digits"), 1, "twice its limit is 20 s");
    bench.watch(3 * SECOND, one_loads);
    let job = bench.job("digits");
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (
            incident.cause,
            incident.charged,
            incident.culprit.as_deref()
        ),
        (Cause::Stalled, Charged::Job, Some("rank 1 on b"))
    );
    assert_eq!(
        incident.message,
        "nothing moved any more: rank 1 on b: load_batch at data.py:41; others wait"
    );
    let stacks = &incident.stall.as_ref().unwrap().stacks;
    let ranks: Vec<u32> = stacks.iter().map(|stack| stack.rank).collect();
    assert_eq!(ranks, [1, 0], "they were taken before anything was stopped");
    assert_eq!((bench.generation("digits"), job.restarts.len()), (2, 1));
    // The next one moves.
    bench.step("digits", 31);
    bench.watch(60 * SECOND, one_loads);
    assert_eq!(bench.generation("digits"), 2);
}

#[test]
fn whoever_wants_a_report_gets_that_and_nothing_else() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("report"));
    bench.stands("digits", &[]);
    bench.watch(200 * SECOND, one_loads);
    assert!(bench.told("JobStalled")[0].ends_with("; onStall: report (muster stacks digits)"));
    assert_eq!(
        (bench.told("JobStalled").len(), bench.generation("digits")),
        (1, 1)
    );
    assert!(
        bench
            .job("digits")
            .current
            .as_ref()
            .unwrap()
            .stall
            .is_some()
    );
    // It goes on by itself.
    bench.moves("digits");
    bench.watch(SECOND, one_loads);
    assert_eq!(bench.told("JobMovesAgain").len(), 1);
    assert!(
        bench
            .job("digits")
            .current
            .as_ref()
            .unwrap()
            .stall
            .is_none()
    );
    let learnt = bench.job("digits").longest_pause;
    assert!(learnt >= 200 * SECOND, "{learnt:?}");
    bench.stands("digits", &[]);
    bench.watch(390 * SECOND, one_loads);
    assert_eq!(bench.told("JobStalled").len(), 1, "it may do that again");
    bench.watch(30 * SECOND, one_loads);
    assert_eq!(bench.told("JobStalled").len(), 2);
}

#[test]
fn a_job_that_moves_is_never_called_stalled() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("restart"));
    // One rank still prints or writes, as while it saves.
    bench.tell_ranks("digits", |rank| {
        rank.still = (rank.rank == 0).then_some(Still {
            since: Timestamp(0),
            idle_since: Some(Timestamp(0)),
        });
    });
    assert_eq!(bench.watch(600 * SECOND, one_loads), 0);
    // One rank works, and the other waits for it.
    bench.stands("digits", &[1]);
    let asked = bench.watch(600 * SECOND, one_loads);
    assert!((2..20).contains(&asked), "{asked}");
    // The work is done.
    bench.stands("digits", &[]);
    bench.moves("digits");
    assert!(bench.told("JobStalled").is_empty() && bench.generation("digits") == 1);
}

#[test]
fn the_first_steps_may_take_ten_minutes_and_a_word_of_the_job_changes_that() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", spec("restart"));
    bench.pass(SECOND);
    bench.step("digits", 1);
    bench.stands("digits", &[]);
    assert_eq!(bench.watch(590 * SECOND, one_loads), 0);
    bench.watch(20 * SECOND, one_loads);
    assert_eq!(bench.told("JobStalled").len(), 1);
    let mut bench = Bench::new(&["a", "b"]);
    let said = SpecDocument {
        stall_after: Some("5s".into()),
        ..spec("restart")
    };
    bench.submit("digits", said);
    bench.pass(SECOND);
    bench.stands("digits", &[]);
    bench.watch(9 * SECOND, one_loads);
    assert_eq!(bench.told("JobStalled").len(), 1);
    bench.watch(3 * SECOND, one_loads);
    assert_eq!(bench.generation("digits"), 2);
}

#[test]
fn whoever_saves_has_ten_minutes_although_nothing_is_written() {
    let saves = |rank: u32, node: &NodeName| match rank {
        1 => at(
            rank,
            node,
            &[("/t/io.py", 7, "upload"), ("/t/t.py", 9, "save_checkpoint")],
        ),
        _ => waits(rank, node),
    };
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("restart"));
    bench.stands("digits", &[]);
    bench.watch(590 * SECOND, saves);
    assert!(bench.told("JobStalled").is_empty());
    bench.watch(20 * SECOND, saves);
    assert_eq!(bench.told("JobStalled").len(), 1);
}

#[test]
fn a_stopped_rank_is_its_nodes_fault_and_one_that_a_person_holds_is_nobodys() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.trains("digits", spec("restart"));
    bench.stands("digits", &[]);
    bench.watch(25 * SECOND, |rank, node| match rank {
        1 => stopped(rank, node),
        _ => waits(rank, node),
    });
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.charged),
        (Cause::Stalled, Charged::Node)
    );
    let marked = &bench.fleet.nodes.get(&"b".into()).unwrap().record.marks;
    assert_eq!(marked.len(), 1);
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("restart"));
    bench.stands("digits", &[]);
    bench.watch(600 * SECOND, stopped);
    assert_eq!(
        (bench.told("JobStalled").len(), bench.generation("digits")),
        (1, 1)
    );
}

#[test]
fn a_limit_that_nobody_has_set_is_told_at_once_and_acted_upon_after_ten_minutes() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("restart"));
    bench.stands("digits", &[]);
    bench.watch(590 * SECOND, one_loads);
    assert_eq!(
        (bench.told("JobStalled").len(), bench.generation("digits")),
        (1, 1),
        "rank 1 may wait for a server"
    );
    bench.watch(20 * SECOND, one_loads);
    assert_eq!(bench.generation("digits"), 2);
}

#[test]
fn whoever_keeps_the_others_waiting_at_the_end_is_named_and_not_who_did_at_first() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("restart"));
    bench.stands("digits", &[]);
    bench.watch(60 * SECOND, one_loads);
    assert_eq!(bench.told("JobStalled").len(), 1);
    assert_eq!(
        bench.watch(500 * SECOND, one_loads),
        0,
        "nobody is asked meanwhile"
    );
    // Rank 1 has gone on, and rank 0 has not: nothing that a node can see has moved.
    let other = |rank, node: &NodeName| match rank {
        0 => loads(rank, node),
        _ => waits(rank, node),
    };
    assert_eq!(bench.watch(30 * SECOND, other), 2);
    assert_eq!(bench.told("JobStalled").len(), 2, "the other one is told");
    bench.watch(20 * SECOND, other);
    assert_eq!(bench.generation("digits"), 2);
    let job = bench.job("digits");
    let incident = job.incidents.last().unwrap();
    assert_eq!(incident.culprit.as_deref(), Some("rank 0 on a"));
}

#[test]
fn a_rank_that_does_not_answer_any_more_is_no_reason_to_wait_longer() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("restart"));
    bench.stands("digits", &[]);
    bench.watch(560 * SECOND, one_loads);
    let silent = |rank, node: &NodeName| match rank {
        1 => RankStack {
            process: None,
            ..loads(rank, node)
        },
        _ => waits(rank, node),
    };
    assert!(bench.watch(50 * SECOND, silent) >= 2, "it is asked again");
    assert_eq!(bench.told("JobMovesAgain").len(), 0);
    assert_eq!(
        bench.generation("digits"),
        2,
        "what was found before counts"
    );
}

#[test]
fn a_node_on_which_two_jobs_stall_pays_for_the_second() {
    let mut bench = Bench::new(&["a", "b"]);
    for job in ["first", "second"] {
        bench.trains(job, said("restart"));
        bench.stands(job, &[]);
        bench.watch(25 * SECOND, one_loads);
        cancel(&mut bench, job);
    }
    let charged = |job: &str| bench.job(job).incidents.last().unwrap().charged;
    assert_eq!(
        (charged("first"), charged("second")),
        (Charged::Job, Charged::Node)
    );
}

#[test]
fn the_next_coordinator_goes_on_with_what_was_found() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", said("restart"));
    bench.stands("digits", &[]);
    bench.watch(14 * SECOND, one_loads);
    assert_eq!(bench.told("JobStalled").len(), 1);
    bench.restart_coordinator();
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    bench.watch(20 * SECOND, one_loads);
    assert_eq!(
        (bench.told("JobStalled").len(), bench.generation("digits")),
        (1, 2)
    );
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_eq!(incident.culprit.as_deref(), Some("rank 1 on b"));
}

#[test]
fn what_ends_the_generation_first_says_what_had_stalled() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("report"));
    bench.stands("digits", &[]);
    bench.watch(14 * SECOND, one_loads);
    bench.rank_exits(
        "digits",
        0,
        Exit::Signal(6),
        Some("Watchdog caught collective operation timeout"),
    );
    bench.pass(SECOND);
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_ne!(incident.cause, Cause::Stalled);
    let stall = incident.stall.as_ref().unwrap();
    assert_eq!(stall.named[0].place, "load_batch at data.py:41");
}

#[test]
fn nothing_is_said_of_what_is_not_known() {
    // An older agent tells nothing.
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", spec("restart"));
    assert_eq!(bench.watch(900 * SECOND, one_loads), 0);
    // One node does not answer.
    bench.stands("digits", &[]);
    bench.watch(300 * SECOND, |rank, node| match rank {
        1 => RankStack {
            process: None,
            threads: Vec::new(),
            error: Some("the agent on b did not answer".into()),
            ..waits(rank, node)
        },
        _ => waits(rank, node),
    });
    assert!(bench.told("JobStalled").is_empty());
}

#[test]
fn a_program_that_may_sleep_on_purpose_is_left_alone() {
    let sleeps = |rank: u32, node: &NodeName| at(rank, node, &[("/t/serve.py", 9, "serve")]);
    let mut bench = Bench::new(&["a", "b"]);
    let plain = SpecDocument {
        framework: Some("plain".into()),
        command: vec!["serve".into()],
        ..spec("restart")
    };
    bench.submit("server", plain);
    bench.pass(SECOND);
    bench.stands("server", &[]);
    bench.watch(1_300 * SECOND, sleeps);
    assert!(bench.told("JobStalled").is_empty());
    // Of a job of torch it is told, and nothing is done.
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", spec("restart"));
    bench.pass(SECOND);
    bench.stands("digits", &[]);
    bench.watch(1_300 * SECOND, sleeps);
    assert!(bench.told("JobStalled")[0].contains("it may wait on purpose, so nothing is done"));
    assert_eq!(bench.generation("digits"), 1);
}

#[test]
fn old_stalls_keep_their_names_and_lose_their_stacks() {
    let mut job = crate::fleet::job::tests::record();
    let stall = || {
        let asked = [waits(0, &"a".into()), loads(1, &"b".into())];
        let verdict = crate::stall::verdict(crate::stall::Asked {
            first: &asked,
            second: &asked,
            busy: &Default::default(),
            ended: &[],
            trained: true,
            since: Timestamp(0),
            now: Timestamp(1),
        });
        match verdict {
            crate::stall::Verdict::Stalls(stall) => stall,
            crate::stall::Verdict::Moves(why) | crate::stall::Verdict::Unseen(why) => {
                panic!("{why}")
            }
        }
    };
    for at in 0..6 {
        job.open_incident(crate::fleet::receipt::Incident {
            stall: Some(stall()),
            ..crate::fleet::receipt::Incident::at(Timestamp(at))
        });
    }
    let whole =
        |one: &crate::fleet::receipt::Incident| !one.stall.as_ref().unwrap().stacks.is_empty();
    let kept: Vec<bool> = job.incidents.iter().map(whole).collect();
    assert_eq!(kept, [false, false, false, true, true, true]);
    assert!(
        job.incidents
            .iter()
            .all(|one| one.stall.as_ref().unwrap().named.len() == 1)
    );
}

#[test]
fn people_are_told_once_of_a_job_that_stands_still() {
    use crate::fleet::notify::{Kind, Rule, Rules};
    let mut bench = Bench::new(&["a", "b"]);
    let names = |name: &str| [name.to_owned()].into();
    bench.fleet.policy.notify = Rules {
        receivers: names("chat"),
        rules: vec![Rule {
            on: [Kind::JobStalled].into(),
            namespaces: Default::default(),
            receivers: names("chat"),
        }],
        ..Rules::default()
    };
    bench.trains("digits", said("report"));
    bench.stands("digits", &[]);
    bench.watch(60 * SECOND, one_loads);
    let messages = &bench.stored_outbox.messages;
    assert_eq!(messages.len(), 1, "{messages:?}");
    let notice = &messages[0].notices[0];
    let node = bench.job("digits").current.as_ref().unwrap();
    let culprit = format!("rank 1 on {}", node.node_of(1).unwrap());
    assert_eq!(notice.culprit.as_deref(), Some(culprit.as_str()));
    assert!(notice.message.contains("load_batch"), "{notice:?}");
}

/// Seen by the world: a restart at twice the limit counted from the last output, however long a rank had computed since.
#[test]
fn a_processor_that_was_used_until_a_moment_ago_is_movement() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", said("restart"));
    let since = bench.now;
    bench.stands("digits", &[1]);
    bench.watch(100 * SECOND, one_loads);
    assert!(bench.told("JobStalled").is_empty(), "rank 1 works");
    let idle = bench.now;
    bench.tell_ranks("digits", |rank| {
        let idle_since = Some(if rank.rank == 1 { idle } else { since });
        rank.still = Some(Still { since, idle_since });
    });
    // The looks before have found work, so the next one comes late.
    let asked = bench.watch(9 * SECOND, one_loads);
    assert_eq!((asked, bench.generation("digits")), (0, 1));
    while bench.told("JobStalled").is_empty() {
        bench.watch(SECOND, one_loads);
    }
    let told = bench.now;
    bench.watch(3 * SECOND, one_loads);
    assert_eq!(
        bench.generation("digits"),
        1,
        "what has just gone on is heard first"
    );
    bench.watch(20 * SECOND, one_loads);
    assert_eq!(bench.generation("digits"), 2);
    let broke = bench.job("digits").incidents.last().unwrap().detected_at;
    assert!(broke >= idle + 20 * SECOND && broke >= told + 3 * SECOND);
}

/// Seen by the world: until something else happened, a job was told to stand still in which a rank had begun to compute.
#[test]
fn a_rank_that_begins_to_compute_ends_a_stall() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", said("report"));
    bench.stands("digits", &[]);
    bench.watch(30 * SECOND, one_loads);
    assert_eq!(bench.told("JobStalled").len(), 1);
    bench.tell_ranks("digits", |rank| {
        let still = rank.still.as_mut().expect("it stands");
        still.idle_since = still.idle_since.filter(|_| rank.rank != 1);
    });
    assert_eq!(bench.told("JobMovesAgain").len(), 1);
}
