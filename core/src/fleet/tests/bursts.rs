//! Which evidence of a burst is judged at once, and which waits for more.

use super::*;

#[test]
fn a_victim_that_is_seen_first_waits_for_its_culprit() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.rank_exits("digits", 2, Exit::Signal(11), None);
    assert_eq!(bench.job("digits").last_generation.0, 1, "more may come");
    bench.pass(SECOND);
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_eq!(
        (incident.culprit.as_deref(), incident.charged),
        (Some("rank 2 on c"), Charged::Job)
    );
    assert_eq!(incident.collateral, ["rank 0 on a"]);
}

#[test]
fn who_was_killed_from_outside_is_replaced_without_waiting_for_more() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    let busy = |bench: &mut Bench, busy| {
        ["a", "c"].map(|node| bench.agents.get_mut(&node.into()).unwrap().frozen = busy)
    };
    busy(&mut bench, true);
    bench.rank_exits("digits", 1, Exit::Signal(9), None);
    let broken = bench.job("digits").retiring[0].clone();
    assert_eq!(
        bench.job("digits").last_generation.0,
        2,
        "no time has passed"
    );
    // What its peers report arrives later, and still belongs on the receipt.
    bench.rank_of_exits("digits", &broken, 0, Exit::Code(1), PEER);
    bench.rank_of_exits("digits", &broken, 2, Exit::Signal(9), None);
    busy(&mut bench, false);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0, job.restarts.len()),
        (Phase::Running, 2, 1)
    );
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.culprit.as_deref()),
        (Cause::WorkerKilled, Some("rank 1 on b"))
    );
    assert_eq!(
        incident.collateral,
        ["rank 0 on a"],
        "who was stopped fell to nobody"
    );
}
