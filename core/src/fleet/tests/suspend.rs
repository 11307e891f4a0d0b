//! Jobs that are held back for a while.

use super::*;

fn suspend(bench: &mut Bench, job: &str, suspended: bool) -> Answer {
    let name = bench.job(job).name.clone();
    bench.request(Request::Suspend { name, suspended })
}

#[test]
fn a_suspended_job_gives_its_nodes_away_and_goes_on_when_it_is_resumed() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", document(1, 1, 1));
    suspend(&mut bench, "one", true);
    bench.pass(SECOND);
    let job = bench.job("one");
    assert_eq!(
        (job.phase, job.reason, job.message.as_str()),
        (
            Phase::Pending,
            Reason::Suspended,
            "suspended; it holds no nodes until it is resumed"
        )
    );
    assert!(job.unproven_generations().next().is_none());
    bench.submit("two", document(1, 1, 1));
    assert_eq!(bench.members("two"), ["a"]);

    suspend(&mut bench, "one", false);
    assert_eq!(bench.job("one").reason, Reason::BelowMinimum);
    cancel(&mut bench, "two");
    bench.pass(SECOND);
    assert_eq!(bench.members("one"), ["a"]);
    let job = bench.job("one");
    assert_eq!(job.current.as_ref().unwrap().number, Generation(2));
    assert_eq!(job.failures_in_row, 0, "nothing has failed");
    assert!(job.incidents.iter().any(|i| i.cause == Cause::Suspended));
    let told: Vec<&str> = bench
        .events
        .iter()
        .map(|event| event.reason.as_str())
        .filter(|reason| ["Suspended", "Suspending", "Resumed"].contains(reason))
        .collect();
    assert_eq!(told, ["Suspended", "Suspending", "Resumed"]);
}

/// Nobody knows when the silent node comes back, if it does.
#[test]
fn a_job_that_waits_for_a_silent_node_gives_the_others_away_when_it_is_suspended() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.pass(10 * SECOND);
    assert_eq!(bench.job("digits").reason, Reason::BelowMinimum);
    suspend(&mut bench, "digits", true);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert!(job.current.is_none(), "{}", job.message);
    assert!(job.retiring[0].dead.contains(&"a".into()));
}

#[test]
fn a_job_that_is_submitted_suspended_starts_when_it_is_resumed() {
    let mut bench = Bench::new(&["a", "b"]);
    for (job, uid) in [("one", "u1"), ("two", "u2")] {
        let (name, mut spec) = requests::submission(job);
        spec.suspend = true;
        bench.request(Request::Submit {
            name,
            spec,
            uid: uid.into(),
            request_id: String::new(),
            validate_only: false,
        });
    }
    bench.pass(5 * SECOND);
    assert_eq!(bench.job("one").last_generation, Generation(0));
    bench.restart_coordinator();
    bench.connect("a");
    bench.connect("b");
    bench.pass(20 * SECOND);
    assert_eq!(bench.job("one").reason, Reason::Suspended);
    suspend(&mut bench, "one", false);
    assert_eq!(bench.members("one").len(), 1);

    cancel(&mut bench, "two");
    assert_eq!(bench.job("two").phase, Phase::Cancelled);
    let refused = suspend(&mut bench, "two", false);
    assert!(
        matches!(&refused, Answer::Refused(Refusal::Precondition(why)) if why.ends_with("is Cancelled and cannot be suspended or resumed")),
        "{refused:?}"
    );
}

/// Its nodes that are cut off keep it from the next generation, and not from being suspended.
#[test]
fn a_generation_that_is_being_formed_is_suspended_too() {
    let mut bench = Bench::new(&["a", "b"]);
    let agent = bench.agents.get_mut(&"b".into()).unwrap();
    agent.frozen = true;
    bench.submit("one", document(2, 2, 2));
    assert!(!bench.job("one").current.as_ref().unwrap().started);
    suspend(&mut bench, "one", true);
    assert_eq!(bench.job("one").reason, Reason::Suspended);
    assert!(bench.job("one").current.is_none());
}
