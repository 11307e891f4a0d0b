//! Jobs of MPI: who is told what, and whose end counts.

use std::collections::BTreeSet;

use super::{agent::told, *};
use crate::spec::RoleDocument;

/// A launcher and two workers with four slots each.
fn document() -> SpecDocument {
    let role = |name: &str, replicas, procs| RoleDocument {
        name: name.into(),
        replicas: Some(replicas),
        proc_per_node: procs,
        ..RoleDocument::default()
    };
    SpecDocument {
        framework: Some("mpi".into()),
        command: vec!["mpirun".into()],
        args: vec!["./train".into()],
        roles: vec![role("launcher", 1, None), role("worker", 2, Some(4))],
        ..SpecDocument::default()
    }
}

fn started(nodes: &[&str]) -> Bench {
    let mut bench = Bench::new(nodes);
    bench.submit("pi", document());
    assert_eq!(bench.job("pi").phase, Phase::Running);
    bench
}

#[test]
fn only_the_launcher_has_a_command_and_the_keys() {
    let bench = started(&["a", "b", "c"]);
    let (launcher, start) = told(&bench, "a");
    assert_eq!(
        (launcher.command, launcher.args),
        (vec!["mpirun".to_owned()], vec!["./train".to_owned()])
    );
    assert_eq!((start.peers.len(), start.keys.len()), (3, 3));
    assert_eq!(
        start.keys[0].0, "",
        "nobody starts anything in the launcher"
    );
    let (worker, start) = told(&bench, "b");
    assert!(worker.command.is_empty() && worker.lends());
    assert_eq!((start.peers.len(), start.keys.len()), (3, 0));
    let slots: Vec<(u32, u32)> = worker
        .layout
        .0
        .iter()
        .map(|share| (share.procs, share.slots))
        .collect();
    assert_eq!(slots, [(1, 0), (1, 4)]);
}

#[test]
fn a_killed_rank_is_the_cause_and_what_mpirun_makes_of_it_the_consequence() {
    let mut bench = started(&["a", "b", "c"]);
    bench.rank_exits(
        "pi",
        2,
        Exit::Signal(9),
        Some("muster-lend: MPI rank 5 (pid 7) was killed by signal 9"),
    );
    // mpirun kills the other ranks, and then ends itself, all within one burst.
    bench.now = bench.now + Duration::from_millis(5);
    bench.rank_exits("pi", 1, Exit::Signal(9), None);
    bench.rank_exits(
        "pi",
        0,
        Exit::Code(137),
        Some("mpirun noticed that process rank 5 exited"),
    );
    bench.pass(SECOND);
    let job = bench.job("pi");
    assert_eq!((job.phase, job.last_generation.0), (Phase::Running, 2));
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        incident.culprit.as_deref(),
        Some("rank 2 on c"),
        "{}",
        incident.message
    );
    assert_eq!(incident.cause, Cause::WorkerKilled);
}

#[test]
fn reports_that_come_in_another_order_name_the_same_cause() {
    let mut bench = started(&["a", "b", "c"]);
    let first = bench.now;
    bench.now = first + Duration::from_millis(5);
    bench.rank_exits("pi", 1, Exit::Signal(9), None);
    assert_eq!(
        bench.job("pi").last_generation.0,
        1,
        "one that was killed may not be the first"
    );
    bench.now = first;
    bench.rank_exits("pi", 2, Exit::Signal(9), None);
    bench.pass(SECOND);
    let job = bench.job("pi");
    assert_eq!(
        job.incidents.last().unwrap().culprit.as_deref(),
        Some("rank 2 on c")
    );
}

#[test]
fn a_report_that_comes_after_the_burst_still_names_the_cause() {
    let mut bench = started(&["a", "b", "c"]);
    let first = bench.now;
    bench.now = first + Duration::from_millis(5);
    bench.rank_exits("pi", 1, Exit::Signal(9), None);
    bench.rank_exits("pi", 0, Exit::Code(137), None);
    bench.pass(Duration::from_millis(150));
    assert_eq!(
        bench.job("pi").last_generation.0,
        1,
        "the third member was not heard since"
    );
    let later = bench.now;
    bench.now = first;
    bench.rank_exits("pi", 2, Exit::Signal(9), None);
    bench.now = later;
    bench.pass(SECOND);
    let job = bench.job("pi");
    assert_eq!(
        job.incidents.last().unwrap().culprit.as_deref(),
        Some("rank 2 on c")
    );
}

#[test]
fn a_launcher_that_ends_well_ends_the_job_once_every_worker_was_heard() {
    let mut bench = started(&["a", "b", "c"]);
    bench.rank_exits("pi", 0, Exit::Code(0), None);
    assert_eq!(
        bench.job("pi").phase,
        Phase::Running,
        "nobody was heard yet"
    );
    bench.pass(2 * SECOND);
    let job = bench.job("pi");
    assert_eq!(job.phase, Phase::Succeeded, "{}", job.message);
}

#[test]
fn mpirun_is_not_believed_if_a_rank_was_killed_before() {
    let mut bench = started(&["a", "b", "c"]);
    bench.rank_exits("pi", 0, Exit::Code(0), None);
    // The report of the worker comes later, and is about an earlier moment.
    let ended = bench.now;
    bench.now = ended + Duration::from_millis(100);
    bench.rank_exits("pi", 2, Exit::Signal(9), None);
    bench.pass(SECOND);
    let job = bench.job("pi");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 2),
        "{}",
        job.message
    );
}

#[test]
fn mpirun_is_not_believed_if_its_connection_broke_above_a_rank_and_nobody_pays() {
    let mut bench = started(&["a", "b", "c"]);
    let broke = "muster-lend: the launcher's connection broke above MPI rank 5 (pid 7)";
    bench.rank_exits("pi", 2, Exit::Signal(1), Some(broke));
    bench.now = bench.now + Duration::from_millis(5);
    bench.rank_exits("pi", 0, Exit::Code(0), None);
    bench.pass(3 * SECOND);
    let job = bench.job("pi");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 2),
        "{}",
        job.message
    );
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (
            incident.cause,
            incident.charged,
            incident.culprit.as_deref()
        ),
        (Cause::PeersLost, Charged::Nobody, None),
        "{}",
        incident.message
    );
}

#[test]
fn a_killed_launcher_is_the_cause_although_its_connections_seem_to_have_broken_before() {
    let mut bench = started(&["a", "b", "c"]);
    let broke = "muster-lend: the launcher's connection broke above MPI rank 5 (pid 7)";
    // The workers' clocks are a little slow.
    bench.rank_exits("pi", 2, Exit::Signal(1), Some(broke));
    bench.now = bench.now + Duration::from_millis(5);
    bench.rank_exits("pi", 0, Exit::Signal(9), None);
    bench.pass(3 * SECOND);
    let job = bench.job("pi");
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        incident.culprit.as_deref(),
        Some("rank 0 on a"),
        "{}",
        incident.message
    );
}

#[test]
fn what_mpirun_does_after_a_connection_broke_is_its_consequence() {
    let rank = "muster-lend: MPI rank 1 (pid 8) was killed by signal 9";
    let broke = "muster-lend: the launcher's connection broke above MPI rank 5 (pid 7)";
    let after = |first: &str, launcher: Exit| {
        let mut bench = started(&["a", "b", "c"]);
        if first == "rank" {
            bench.rank_exits("pi", 1, Exit::Signal(9), Some(rank));
            bench.now = bench.now + Duration::from_millis(5);
        }
        bench.rank_exits("pi", 2, Exit::Signal(1), Some(broke));
        bench.now = bench.now + Duration::from_millis(5);
        if first == "connection" {
            bench.rank_exits("pi", 1, Exit::Signal(9), Some(rank));
        }
        bench.rank_exits("pi", 0, launcher, None);
        bench.pass(3 * SECOND);
        let job = bench.job("pi");
        assert_eq!(job.last_generation.0, 2, "{}", job.message);
        let incident = job.incidents.last().unwrap().clone();
        (incident.culprit, incident.charged)
    };
    let gave_up = Exit::Code(255);
    assert_eq!(after("connection", gave_up), (None, Charged::Nobody));
    // A rank that was killed before is the cause; and so is a launcher that was killed by a signal.
    let of = |name: &str| (Some(name.to_owned()), Charged::Job);
    assert_eq!(after("rank", gave_up), of("rank 1 on b"));
    assert_eq!(after("connection", Exit::Code(137)), of("rank 0 on a"));
    assert_eq!(after("connection", Exit::Signal(9)), of("rank 0 on a"));
}

/// The report of a killed rank of Open MPI may come after that of what it has caused.
#[test]
fn a_killed_rank_of_open_mpi_is_the_cause_of_what_seems_to_have_been_before() {
    let broke = "muster-lend: the launcher's connection broke above Open MPI rank 5 (pid 7)";
    let aborted = "muster-lend: Open MPI rank 5 (pid 7) ended with exit code 14";
    let rank = "muster-lend: Open MPI rank 1 (pid 8) was killed by signal 9";
    let culprit = |before: (Exit, &str), exit: Exit, wait: Duration| {
        let mut bench = started(&["a", "b", "c"]);
        let first = bench.now;
        bench.now = first + wait;
        bench.rank_exits("pi", 1, exit, Some(rank));
        bench.now = first;
        bench.rank_exits("pi", 2, before.0, Some(before.1));
        bench.now = first + wait;
        bench.rank_exits("pi", 0, Exit::Code(255), None);
        bench.pass(3 * SECOND);
        let job = bench.job("pi");
        job.incidents.last().unwrap().culprit.clone()
    };
    let soon = Duration::from_millis(20);
    let connection = (Exit::Signal(1), broke);
    let abort = (Exit::Code(14), aborted);
    for before in [connection, abort] {
        let killed = culprit(before, Exit::Signal(9), soon);
        assert_eq!(killed.as_deref(), Some("rank 1 on b"), "{before:?}");
    }
    // Open MPI asks first, and kills a second later.
    assert_eq!(culprit(connection, Exit::Signal(15), soon), None);
    assert_eq!(culprit(connection, Exit::Signal(9), SECOND), None);
    let own = culprit(abort, Exit::Signal(9), SECOND);
    assert_eq!(own.as_deref(), Some("rank 2 on c"));
}

#[test]
fn mpirun_is_not_believed_if_a_node_was_cut_before() {
    let mut bench = started(&["a", "b", "c", "d"]);
    bench.cut("c");
    bench.rank_exits("pi", 0, Exit::Code(0), None);
    bench.pass(30 * SECOND);
    let job = bench.job("pi");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 2),
        "{}",
        job.message
    );
    assert_eq!(bench.members("pi"), ["a", "b", "d"]);
    assert_eq!(job.incidents.last().unwrap().charged, Charged::Node);
}

#[test]
fn a_lost_worker_proves_nothing_when_it_is_fenced_or_deleted() {
    for fence in [None, Some("10s")] {
        let mut bench = Bench::new(&["a", "b", "c"]);
        let document = SpecDocument {
            fence_after: fence.map(str::to_owned),
            ..document()
        };
        bench.submit("pi", document);
        bench.cut("c");
        bench.rank_exits("pi", 0, Exit::Code(0), None);
        bench.pass(20 * SECOND);
        if fence.is_none() {
            bench.request(Request::DeleteNode { node: "c".into() });
        }
        bench.pass(120 * SECOND);
        let job = bench.job("pi");
        assert_ne!(job.phase, Phase::Succeeded, "{fence:?}: {}", job.message);
    }
}

#[test]
fn an_mpirun_that_refuses_its_own_words_is_asked_on_another_node_and_then_final() {
    let refuses = "no rank began: mpirun: Error: unknown option -bind-to";
    // There are no other nodes: the second start is the second sign.
    let mut bench = started(&["a", "b", "c"]);
    bench.rank_exits("pi", 0, Exit::Code(213), Some(refuses));
    bench.pass(5 * SECOND);
    assert_eq!(
        (bench.job("pi").phase, bench.job("pi").last_generation.0),
        (Phase::Running, 2)
    );
    bench.rank_exits("pi", 0, Exit::Code(213), Some(refuses));
    bench.pass(5 * SECOND);
    let job = bench.job("pi");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Failed, Reason::CannotStart),
        "{}",
        job.message
    );
    assert!(job.message.contains(refuses), "{}", job.message);

    // Its own node may be at fault, so others come first.
    let mut bench = started(&["a", "b", "c", "d", "e", "f"]);
    let first: BTreeSet<String> = bench.members("pi").into_iter().map(str::to_owned).collect();
    bench.rank_exits(
        "pi",
        0,
        Exit::Code(1),
        Some("no rank began: [a:1] /tmp is full"),
    );
    bench.pass(5 * SECOND);
    assert!(
        bench
            .members("pi")
            .iter()
            .all(|node| !first.contains(*node)),
        "{:?}",
        bench.members("pi")
    );
    assert_eq!(bench.job("pi").phase, Phase::Running);

    // Any other end goes by the budget.
    let mut bench = started(&["a", "b", "c"]);
    for _ in 0..2 {
        bench.rank_exits(
            "pi",
            0,
            Exit::Code(213),
            Some("mpirun: Error: unknown option -bind-to"),
        );
        bench.pass(5 * SECOND);
    }
    assert_ne!(bench.job("pi").reason, Reason::CannotStart);
}
