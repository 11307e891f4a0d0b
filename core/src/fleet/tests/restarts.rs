//! What people see of restarts: their number, how the last members ended, and a job that cannot
//! start.

use super::*;
use crate::spec::RestartPolicyDocument;

impl Bench {
    /// The launcher on this node has done its imports and starts its ranks.
    fn ranks_start(&mut self, node: &str) {
        let now = self.now;
        let agent = self.agents.get_mut(&node.into()).unwrap();
        for run in agent.runs.values_mut() {
            run.ranks = vec![RankReport {
                started_at: Some(now),
                ..RankReport::bare(1, 0)
            }];
        }
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        self.input(Input::Runs { session, runs });
    }
}

fn name(name: &str) -> JobName {
    JobName {
        namespace: "default".into(),
        name: name.into(),
    }
}

fn view(bench: &Bench, job: &str) -> view::JobView {
    bench.fleet.job_view(&bench.job(job).uid).unwrap()
}

fn fails_at_most(most: i64) -> SpecDocument {
    SpecDocument {
        restart_policy: Some(RestartPolicyDocument {
            max_restarts: Some(most),
            window: None,
            max_same_failures: None,
        }),
        ..document(1, 1, 1)
    }
}

#[test]
fn every_new_start_of_the_workers_is_a_restart_and_a_failure_without_one_is_none() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit(
        "digits",
        SpecDocument {
            restart_policy: fails_at_most(1).restart_policy,
            ..document(1, 1, 2)
        },
    );
    let counted = |bench: &Bench| {
        (
            bench.job("digits").restart_count,
            bench.job("digits").last_generation.0,
        )
    };
    assert_eq!(counted(&bench), (0, 1));
    bench.request(Request::Scale {
        name: name("digits"),
        nodes: 2,
    });
    bench.pass(SECOND);
    assert_eq!(counted(&bench), (1, 2), "a resize");
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(SECOND);
    assert_eq!(counted(&bench), (2, 3), "a failure");
    assert_eq!(
        bench.job("digits").current.as_ref().unwrap().restart_count,
        2,
        "what its ranks are told"
    );
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(SECOND);
    assert_eq!(
        (bench.job("digits").phase, counted(&bench)),
        (Phase::Failed, (2, 3)),
        "the last failure was followed by no start"
    );
}

#[test]
fn a_job_that_is_over_still_shows_how_each_rank_ended() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit(
        "digits",
        SpecDocument {
            restart_policy: fails_at_most(0).restart_policy,
            ..document(2, 2, 2)
        },
    );
    bench.step("digits", 7);
    bench.rank_exits("digits", 1, Exit::Code(3), Some("ValueError: no"));
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Failed);
    assert!(
        bench.agents.values().all(|agent| agent.runs.is_empty()),
        "the nodes have forgotten it"
    );
    let shown = view(&bench, "digits");
    let members: Vec<_> = shown
        .members
        .iter()
        .map(|member| (member.node.as_str(), member.phase.clone()))
        .collect();
    assert_eq!(
        members,
        [("a", Some(RunPhase::Dead)), ("b", Some(RunPhase::Dead))]
    );
    let ranks: Vec<_> = shown
        .ranks
        .iter()
        .map(|rank| (rank.rank, rank.node.as_str(), rank.exit, rank.last_step))
        .collect();
    assert_eq!(
        ranks,
        [
            (0, "a", None, Some(7)),
            (1, "b", Some(Exit::Code(3)), Some(7))
        ]
    );
    assert_eq!(
        shown.ranks[1].first_error.as_deref(),
        Some("ValueError: no")
    );
    bench.restart_coordinator();
    assert_eq!(view(&bench, "digits").ranks, shown.ranks, "it is stored");
}

#[test]
fn a_job_cancelled_between_two_generations_shows_the_one_that_ran() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    // Only node a can still get ready for the next generation.
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.rank_exits("digits", 0, Exit::Code(3), Some("ValueError: no"));
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 2);
    assert!(!bench.job("digits").current.as_ref().unwrap().started);
    bench.request(Request::Cancel {
        name: name("digits"),
    });
    bench.agents.get_mut(&"b".into()).unwrap().frozen = false;
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Cancelled);
    let shown = view(&bench, "digits");
    assert_eq!(shown.record.shown().unwrap().number, Generation(1));
    assert_eq!(
        shown.ranks[0].first_error.as_deref(),
        Some("ValueError: no")
    );
}

#[test]
fn of_a_large_generation_the_culprit_is_always_kept() {
    let names: Vec<String> = (0..300).map(|at| format!("n{at:03}")).collect();
    let mut bench = Bench::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    bench.submit(
        "digits",
        SpecDocument {
            restart_policy: fails_at_most(0).restart_policy,
            ..document(300, 300, 300)
        },
    );
    // All ranks fall in one turn, so the order of names decides which of them are kept.
    let generation = bench.job("digits").current.clone().unwrap();
    let run = generation.run(&bench.job("digits").uid);
    let now = bench.now;
    let mut inputs = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let agent = bench.agents.get_mut(&name.as_str().into()).unwrap();
        let report = agent.runs.get_mut(&run).unwrap();
        let error = if at == 299 {
            "ValueError: no"
        } else {
            "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer"
        };
        (report.ranks[0].exit, report.ranks[0].exited_at) = (Some(Exit::Code(1)), Some(now));
        report.ranks[0].first_error = Some(error.into());
        (report.phase, report.dead_at, report.torchrun_exit) =
            (RunPhase::Dead, Some(now), Some(Exit::Code(1)));
        inputs.push(Input::Runs {
            session: agent.session.unwrap(),
            runs: agent.runs.values().cloned().collect(),
        });
    }
    bench.fleet.turn_all(bench.now, inputs);
    bench.pass(SECOND);
    let ended = bench.job("digits");
    assert_eq!(ended.phase, Phase::Failed, "{}", ended.message);
    assert!(
        ended.message.contains("rank 299 on n299"),
        "{}",
        ended.message
    );
    let ends = &ended.shown().unwrap().ends;
    assert!(
        ends.contains_key(&"n299".into()) && ends.len() <= 257,
        "{} are kept",
        ends.len()
    );
}

#[test]
fn a_job_that_never_starts_says_so_before_its_budget_is_spent() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("bad", fails_at_most(3));
    let fails = |bench: &mut Bench, error: &str| {
        bench.pass(2 * SECOND);
        bench.rank_exits("bad", 0, Exit::Code(1), Some(error));
        bench.pass(Duration::from_millis(100));
    };
    let told = |bench: &Bench| {
        bench
            .events
            .iter()
            .filter(|event| event.reason == "CrashLoop")
            .count()
    };
    fails(&mut bench, "OSError: port 4711 is taken");
    assert_eq!(told(&bench), 0, "once is chance");
    fails(&mut bench, "OSError: port 4712 is taken");
    assert_eq!(told(&bench), 1);
    let hint = "the last 2 starts failed alike within 3 s, and no step was ever seen: it may not be able to start";
    let job = bench.job("bad");
    assert!(
        job.message.contains(hint)
            && job
                .message
                .ends_with("exit code 1: OSError: port 4712 is taken"),
        "{}",
        job.message
    );
    for _ in 0..2 {
        fails(&mut bench, "OSError: port 4713 is taken");
    }
    let job = bench.job("bad");
    assert_eq!((job.phase, told(&bench)), (Phase::Failed, 1));
    assert!(
        job.message.contains("the last 4 starts failed alike"),
        "{}",
        job.message
    );
}

#[test]
fn a_job_that_has_stepped_or_fails_otherwise_is_not_said_to_be_unable_to_start() {
    let mut bench = Bench::new(&["a"]);
    for (job, steps, errors) in [
        ("steps", true, ["ValueError: no"; 3]),
        ("varies", false, ["one", "two", "three"]),
    ] {
        bench.submit(job, fails_at_most(5));
        for error in errors {
            bench.pass(5 * SECOND);
            if steps {
                bench.step(job, 1);
            }
            bench.rank_exits(job, 0, Exit::Code(1), Some(error));
        }
        bench.request(Request::Cancel { name: name(job) });
        bench.pass(5 * SECOND);
    }
    assert!(!bench.events.iter().any(|event| event.reason == "CrashLoop"));
}

#[test]
fn a_job_runs_once_its_ranks_do() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.agents.get_mut(&"b".into()).unwrap().imports = true;
    bench.submit("digits", document(2, 2, 2));
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Forming, Reason::Launching),
        "{}",
        job.message
    );
    assert_eq!(
        job.message,
        "the ranks of 1 of 2 nodes have not been started yet"
    );
    assert_eq!(view(&bench, "digits").nodes_running, 1);
    bench.agents.get_mut(&"b".into()).unwrap().imports = false;
    bench.ranks_start("b");
    assert_eq!(
        (
            bench.job("digits").phase,
            view(&bench, "digits").nodes_running
        ),
        (Phase::Running, 2)
    );
}
