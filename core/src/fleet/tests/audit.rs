//! What is reserved is compared with the records, once a minute.

use super::*;

fn told(bench: &Bench) -> Vec<&str> {
    let events = bench.events.iter();
    let told = events.filter(|event| event.reason == "CapacityMismatch");
    told.map(|event| event.message.as_str()).collect()
}

#[test]
fn an_index_that_lost_a_job_is_told_once_and_mended() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.pass(130 * SECOND);
    assert_eq!(told(&bench), [""; 0], "all is as it should be");
    let node = bench.fleet.nodes.get_mut(&"b".into()).unwrap();
    // A run that the node reports counts, too.
    node.runs.clear();
    let job = node.jobs.pop_first().unwrap();
    bench.pass(130 * SECOND);
    let found = told(&bench);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("what is reserved on b for job"),
        "{found:?}"
    );
    let node = bench.fleet.nodes.get(&"b".into()).unwrap();
    assert!(node.jobs.contains(&job));
    bench.pass(130 * SECOND);
    assert_eq!(told(&bench).len(), 1, "and no more");
}

#[test]
fn what_was_not_followed_is_told_and_counted_again() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let uid = bench.fleet.jobs.keys().next().expect("it was taken");
    bench.fleet.capacity.release(&"b".into(), uid);
    bench.fleet.audit = Default::default();
    // Each turn of the bench ends with a comparison, so this one has mended it.
    bench.input(Input::Tick);
    let found = told(&bench);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with("what is free on b is not what was kept of it"),
        "{found:?}"
    );
    assert!(found[1].contains("nothing is reserved for it"), "{found:?}");
}
