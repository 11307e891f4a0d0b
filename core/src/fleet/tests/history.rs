//! What is left of jobs that are over.

use super::*;

/// A job of one node that ends well at once.
fn ends(bench: &mut Bench, name: &str) {
    bench.submit(name, document(1, 1, 1));
    bench.rank_exits(name, 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(bench.job(name).phase, Phase::Succeeded);
}

fn delete(bench: &mut Bench, name: &str) {
    let name = bench.job(name).name.clone();
    let answer = bench.request(Request::Delete { name });
    assert_eq!(answer, Answer::Done);
}

/// The names of the jobs whose records are stored, in their order.
fn left(bench: &Bench) -> Vec<&str> {
    let records = bench.stored_history.values();
    records.map(|record| record.name.name.as_str()).collect()
}

#[test]
fn a_job_that_is_over_leaves_one_record_that_outlives_it() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", document(1, 1, 1));
    bench.pass(10 * SECOND);
    bench.step("one", 1);
    bench.pass(20 * SECOND);
    assert_eq!(left(&bench), [""; 0], "it is not over");
    bench.rank_exits("one", 0, Exit::Code(0), None);
    bench.pass(SECOND);
    let (record, job) = (bench.stored_history[&1].clone(), bench.job("one").clone());
    assert_eq!(
        (&record.uid, record.phase, record.reason),
        (&job.uid, Phase::Succeeded, Reason::Completed)
    );
    assert_eq!(
        (record.created, record.started, record.finished),
        (job.created, job.first_started, job.finished)
    );
    assert_eq!(
        (record.generations, record.members, record.nodes.len()),
        (1, 1, 1)
    );
    let account = job.time.as_ref().unwrap();
    let life: Duration = account.spent.iter().map(|row| row.time).sum();
    assert_eq!(record.life().time, life, "the sums are the account's");
    assert!(record.in_state("training").time >= 20 * SECOND);
    assert_eq!(record.owner, Some(Actor::Local { uid: 0 }));

    bench.restart_coordinator();
    bench.connect("a");
    bench.pass(SECOND);
    delete(&mut bench, "one");
    bench.restart_coordinator();
    bench.connect("a");
    bench.pass(SECOND);
    assert_eq!(
        (left(&bench), &bench.stored_history[&1]),
        (vec!["one"], &record)
    );
    assert!(bench.stored_jobs.is_empty());
}

#[test]
fn a_job_that_is_deleted_by_itself_has_left_its_record() {
    let mut bench = Bench::new(&["a"]);
    let ttl = SpecDocument {
        ttl_seconds_after_finished: Some(0),
        ..document(1, 1, 1)
    };
    bench.submit("one", ttl);
    bench.rank_exits("one", 0, Exit::Code(3), None);
    let name = bench.job("one").name.clone();
    bench.request(Request::Cancel { name });
    bench.pass(60 * SECOND);
    assert!(bench.stored_jobs.is_empty());
    assert_eq!(
        (left(&bench), bench.stored_history[&1].phase),
        (vec!["one"], Phase::Cancelled)
    );
}

/// The coordinator died after it had written the end of the job, and before the record.
#[test]
fn a_record_that_is_missing_is_made_once() {
    let mut bench = Bench::new(&["a"]);
    for name in ["one", "two"] {
        ends(&mut bench, name);
    }
    let two = bench.stored_history.remove(&2).unwrap();
    bench.restart_coordinator();
    bench.input(Input::Tick);
    assert_eq!(bench.stored_history[&2], two, "the same again");
    // It is asked to delete the job in its first turn.
    bench.stored_history.clear();
    bench.restart_coordinator();
    delete(&mut bench, "one");
    assert_eq!(left(&bench), ["one", "two"], "in the order of their ends");
    bench.restart_coordinator();
    bench.pass(SECOND);
    assert_eq!(left(&bench).len(), 2);
}

#[test]
fn records_are_bounded_by_number_and_by_age() {
    let mut bench = Bench::new(&["a"]);
    bench.fleet.policy.history_max = 2;
    for name in ["one", "two", "three"] {
        ends(&mut bench, name);
    }
    assert_eq!(left(&bench), ["two", "three"]);
    bench.fleet.policy.history_for = 60 * SECOND;
    ends(&mut bench, "four");
    bench.pass(58 * SECOND);
    assert_eq!(left(&bench), ["three", "four"]);
    bench.pass(4 * SECOND);
    assert_eq!(left(&bench), [""; 0]);
    // Their jobs are still there, and leave no second record.
    assert_eq!(bench.stored_jobs.len(), 4);
    bench.fleet.fresh = true;
    bench.pass(SECOND);
    assert_eq!(left(&bench), [""; 0]);
}

#[test]
fn a_record_says_which_node_cost_how_much() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(2, 2, 2));
    bench.pass(10 * SECOND);
    bench.step("one", 1);
    bench.pass(20 * SECOND);
    bench.agents.get_mut(&"b".into()).unwrap().boot += 1;
    bench.cut("b");
    bench.connect("b");
    bench.pass(10 * SECOND);
    assert_eq!(bench.job("one").incidents[1].cause, Cause::NodeRebooted);
    bench.step("one", 30);
    bench.pass(5 * SECOND);
    let name = bench.job("one").name.clone();
    bench.request(Request::Cancel { name });
    bench.pass(60 * SECOND);
    let record = &bench.stored_history[&1];
    let culprits: Vec<&str> = record
        .culprits
        .iter()
        .map(|one| one.node.as_str())
        .collect();
    assert_eq!(culprits, ["b"], "{record:?}");
    let (cost, lost) = (record.culprits[0].sum, record.lost());
    assert_eq!(cost, lost, "all that was lost is due to it");
    assert!(
        cost.time > SECOND && cost.time < 30 * SECOND,
        "waiting is not its: {cost:?}"
    );
}
