//! Jobs that do not say how many GPUs they take.

use super::*;
use crate::{node_report::Gpu, spec::GpusSaid};

/// Nodes by their numbers of GPUs.
fn fleet(nodes: &[(&str, u32)]) -> Bench {
    let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
    let mut bench = Bench::new(&names);
    for (name, gpus) in nodes {
        reports(&mut bench, name, *gpus);
    }
    bench
}

fn reports(bench: &mut Bench, name: &str, gpus: u32) {
    let gpu = |index: u32| Gpu {
        uuid: format!("{name}-{index}"),
        index,
        ..Gpu::default()
    };
    let report = NodeReport {
        address: "127.0.0.1".into(),
        slots: 4,
        gpus: (0..gpus).map(gpu).collect(),
        ..NodeReport::default()
    };
    let session = bench.agents[&(*name).into()].session.unwrap();
    bench.input(Input::Report { session, report });
    bench.obey();
}

/// A job with so many processes on each node, that may say how many GPUs it takes.
fn spec(min: i64, procs: i64, gpus: Option<i64>) -> SpecDocument {
    SpecDocument {
        proc_per_node: Some(procs),
        gpus_per_node: gpus,
        ..document(min, min, min)
    }
}

fn gpus_given(bench: &Bench, job: &str) -> Vec<usize> {
    let current = bench.job(job).current.as_ref().expect("a generation");
    current.members.iter().map(|m| m.gpus.len()).collect()
}

fn told(bench: &Bench) -> Vec<&str> {
    let ours = |event: &&Event| event.reason == "DefaultGpus";
    let told = bench.events.iter().filter(ours);
    told.map(|event| event.message.as_str()).collect()
}

#[test]
fn two_jobs_never_have_the_same_gpus() {
    let mut bench = fleet(&[("a", 8)]);
    bench.submit("first", spec(1, 8, None));
    assert_eq!(gpus_given(&bench, "first"), [8]);
    assert_eq!(bench.job("first").spec.gpus, Some(GpusSaid::ByFleet));
    assert!(told(&bench)[0].starts_with("takes one GPU for each process"));
    bench.submit("second", spec(1, 8, Some(8)));
    assert_eq!(bench.job("second").reason, Reason::BelowMinimum);
    // One that says nothing waits too, and is told how to begin without.
    bench.submit("third", spec(1, 1, None));
    let third = bench.job("third");
    assert_eq!(third.reason, Reason::BelowMinimum);
    assert!(
        third.message.contains("a 0 of 1 GPUs free") && third.message.contains("--gpus-per-node 0"),
        "{}",
        third.message
    );
    bench.submit("cpu", spec(1, 1, Some(0)));
    assert_eq!(gpus_given(&bench, "cpu"), [0]);
    assert!(bench.job("cpu").spec.hides_gpus());
}

#[test]
fn without_gpus_a_job_runs_as_ever_and_stays_so() {
    let mut bench = fleet(&[("a", 0)]);
    bench.submit("digits", spec(1, 2, None));
    assert_eq!(gpus_given(&bench, "digits"), [0]);
    assert_eq!(told(&bench), [""; 0]);
    // A node with GPUs joins. The job does not become another one at its next start.
    bench.connect("b");
    reports(&mut bench, "b", 8);
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(60 * SECOND);
    let job = bench.job("digits");
    assert_eq!((job.last_generation.0, job.phase), (2, Phase::Running));
    assert_eq!(gpus_given(&bench, "digits"), [0]);
}

#[test]
fn of_a_mixed_fleet_the_nodes_with_gpus_are_taken() {
    let mut bench = fleet(&[("a", 0), ("b", 2), ("c", 0), ("d", 4)]);
    bench.submit("digits", spec(2, 2, None));
    assert_eq!(bench.members("digits"), ["b", "d"]);
    // One GPU in the fleet is no reason to wait for ever: a laptop of three nodes has its example run.
    let mut bench = fleet(&[("a", 1), ("b", 0), ("c", 0)]);
    bench.submit("digits", spec(2, 1, None));
    assert_eq!(gpus_given(&bench, "digits"), [0, 0]);
    let why = "and the fleet has 1 of at least 2 nodes with 1 GPU,";
    assert!(told(&bench)[0].contains(why), "{:?}", told(&bench));
}

#[test]
fn a_job_that_waits_takes_what_the_fleet_has_when_it_starts() {
    let mut bench = fleet(&[]);
    bench.submit("digits", spec(1, 2, None));
    assert!(bench.job("digits").spec.gpus_are_open());
    bench.connect("a");
    assert_eq!(bench.job("digits").spec.gpus, Some(GpusSaid::ByFleet));
    // The same document again is the same job, and one with another number is not.
    let again = bench.submit("digits", spec(1, 2, None));
    assert!(
        matches!(again, Answer::Job { existed: true, .. }),
        "{again:?}"
    );
    let other = bench.submit("digits", spec(1, 2, Some(2)));
    assert!(matches!(other, Answer::Refused(_)), "{other:?}");
}

#[test]
fn members_that_share_nodes_count_what_fits() {
    let mut bench = fleet(&[("a", 4)]);
    let packed = SpecDocument {
        placement: Some("pack".into()),
        ..spec(2, 2, None)
    };
    bench.submit("digits", packed);
    assert_eq!(gpus_given(&bench, "digits"), [4]);
}

#[test]
fn the_job_of_an_older_coordinator_stays_without() {
    let mut bench = fleet(&[("a", 8)]);
    bench.submit("digits", spec(1, 1, Some(0)));
    let mut old = bench.job("digits").clone();
    old.spec.gpus = None;
    assert!(!old.spec.gpus_are_open() && !old.spec.hides_gpus());
    let stored = serde_json::to_value(&old).unwrap();
    assert_eq!(stored["spec"].get("gpus"), None);
}

#[test]
fn a_job_that_was_placed_and_never_started_is_asked_anew() {
    let mut bench = fleet(&[("a", 0)]);
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    bench.submit("digits", spec(1, 2, None));
    assert_eq!(gpus_given(&bench, "digits"), [0]);
    assert_eq!(bench.job("digits").first_started, None);
    bench.connect("b");
    reports(&mut bench, "b", 2);
    bench.cut("a");
    bench.pass(60 * SECOND);
    let job = bench.job("digits");
    assert_eq!(job.phase, Phase::Running, "{}", job.message);
    assert_eq!(bench.members("digits"), ["b"]);
    assert_eq!(gpus_given(&bench, "digits"), [2]);
    assert_eq!(told(&bench).len(), 1, "{:?}", told(&bench));
}

#[test]
fn a_job_does_not_wait_for_the_gpus_of_a_node_that_is_gone_for_long() {
    let mut bench = fleet(&[("a", 0), ("b", 2)]);
    bench.cut("b");
    bench.pass(300 * SECOND);
    bench.submit("digits", spec(1, 2, None));
    assert_eq!(bench.job("digits").reason, Reason::BelowMinimum);
    bench.pass(290 * SECOND);
    assert_eq!(bench.job("digits").reason, Reason::BelowMinimum);
    bench.pass(20 * SECOND);
    let job = bench.job("digits");
    assert_eq!(job.phase, Phase::Running, "{}", job.message);
    assert_eq!(gpus_given(&bench, "digits"), [0]);
    let why = "and the fleet has 0 of at least 1 nodes with 2 GPUs,";
    assert!(told(&bench)[0].contains(why), "{:?}", told(&bench));
}
