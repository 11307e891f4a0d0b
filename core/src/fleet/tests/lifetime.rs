//! Deadlines, and jobs that are deleted by themselves.

use super::*;

fn suspend(bench: &mut Bench, job: &str, suspended: bool) {
    let name = bench.job(job).name.clone();
    bench.request(Request::Suspend { name, suspended });
}

fn exists(bench: &Bench, job: &str) -> bool {
    bench
        .fleet
        .jobs
        .values()
        .any(|known| known.name.name == job)
}

fn with_deadline(seconds: i64) -> SpecDocument {
    SpecDocument {
        active_deadline_seconds: Some(seconds),
        ..document(1, 1, 1)
    }
}

fn with_ttl(seconds: i64) -> SpecDocument {
    SpecDocument {
        ttl_seconds_after_finished: Some(seconds),
        ..document(1, 1, 1)
    }
}

#[test]
fn a_job_that_takes_too_long_fails_and_may_save() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", with_deadline(60));
    bench.pass(59 * SECOND);
    assert_eq!(bench.job("one").phase, Phase::Running);
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    bench.pass(SECOND);
    let job = bench.job("one");
    let stopping = job.retiring[0].stopping.as_ref().unwrap();
    assert_eq!(
        (job.phase, stopping.grace),
        (Phase::Stopping, job.spec.stop_grace_period)
    );
    bench.agents.get_mut(&"a".into()).unwrap().frozen = false;
    bench.pass(SECOND);
    let job = bench.job("one");
    assert_eq!(
        (job.phase, job.reason, job.message.as_str()),
        (
            Phase::Failed,
            Reason::DeadlineExceeded,
            "it has had the 1m of its activeDeadlineSeconds"
        )
    );
}

#[test]
fn time_while_suspended_does_not_count_and_a_restart_changes_nothing() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", with_deadline(60));
    bench.pass(50 * SECOND);
    suspend(&mut bench, "one", true);
    bench.pass(100 * SECOND);
    assert_eq!(bench.job("one").reason, Reason::Suspended);
    suspend(&mut bench, "one", false);
    bench.pass(30 * SECOND);
    bench.restart_coordinator();
    bench.connect("a");
    bench.pass(29 * SECOND);
    assert_eq!(bench.job("one").phase, Phase::Running);
    bench.pass(2 * SECOND);
    assert_eq!(bench.job("one").reason, Reason::DeadlineExceeded);
}

/// A coordinator that was away does not know yet how its jobs are.
#[test]
fn a_coordinator_hears_its_nodes_before_it_ends_a_job() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", with_deadline(60));
    bench.pass(SECOND);
    bench.now = bench.now + 100 * SECOND;
    bench.restart_coordinator();
    bench.pass(SECOND);
    assert_eq!(bench.job("one").phase, Phase::Running, "it may be done");
    // It is.
    let uid = bench.job("one").uid.clone();
    let run = bench.job("one").current.as_ref().unwrap().run(&uid);
    let report = (bench.agents.get_mut(&"a".into()).unwrap().runs).get_mut(&run);
    let report = report.unwrap();
    report.ranks[0].exit = Some(Exit::Code(0));
    (report.phase, report.torchrun_exit) = (RunPhase::Dead, Some(Exit::Code(0)));
    bench.connect("a");
    bench.pass(SECOND);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);
}

#[test]
fn a_job_that_cannot_start_in_time_fails_and_one_that_has_started_may_wait() {
    let mut bench = Bench::new(&["a"]);
    let limited = |nodes| SpecDocument {
        start_deadline_seconds: Some(30),
        ..document(nodes, nodes, nodes)
    };
    bench.submit("two", limited(2));
    bench.submit("one", limited(1));
    bench.cut("a");
    bench.pass(29 * SECOND);
    assert_eq!(bench.job("two").reason, Reason::BelowMinimum);
    bench.pass(2 * SECOND);
    let job = bench.job("two");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Failed, Reason::StartDeadlineExceeded)
    );
    assert!(
        job.message.starts_with(
            "it was not started within the 30s of its startDeadlineSeconds; at last: "
        ),
        "{}",
        job.message
    );
    assert!(!bench.job("one").phase.is_over(), "it had started");
    assert!(bench.job("one").first_started.is_some());
}

#[test]
fn a_job_is_deleted_some_time_after_its_end() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", with_ttl(60));
    bench.rank_exits("one", 0, Exit::Code(0), None);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);
    bench.pass(30 * SECOND);
    bench.restart_coordinator();
    bench.connect("a");
    bench.pass(29 * SECOND);
    assert!(exists(&bench, "one"));
    bench.pass(2 * SECOND);
    assert!(!exists(&bench, "one") && bench.stored_jobs.is_empty());
    assert_eq!(bench.stored_tombstones.len(), 1);
    let told = bench.events.last().unwrap();
    assert_eq!(
        (told.reason.as_str(), told.message.as_str()),
        (
            "Deleted",
            "job default/one deleted: it was over for the 1m of its ttlSecondsAfterFinished"
        )
    );
    bench.submit("one", with_ttl(0));
    bench.rank_exits("one", 0, Exit::Code(0), None);
    bench.pass(2 * SECOND);
    assert!(exists(&bench, "one"), "somebody may wait for its end");
    bench.pass(4 * SECOND);
    assert!(!exists(&bench, "one"));
}

#[test]
fn a_job_whose_workers_may_live_is_not_deleted() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("one", with_ttl(10));
    bench.cut("a");
    cancel(&mut bench, "one");
    bench.pass(60 * SECOND);
    assert_eq!(bench.job("one").phase, Phase::Cancelled);
    bench.connect("a");
    bench.pass(61 * SECOND);
    assert!(!exists(&bench, "one"));
}

#[test]
fn the_job_of_an_object_is_left_to_its_object() {
    let mut bench = Bench::new(&["a"]);
    bench.fleet.policy.follows_jobs = true;
    bench.actor = Actor::Object;
    bench.submit("one", with_ttl(10));
    bench.rank_exits("one", 0, Exit::Code(0), None);
    bench.pass(60 * SECOND);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);
    bench.submit("two", with_deadline(60));
    bench.actor = Actor::Local { uid: 0 };
    let name = bench.job("two").name.clone();
    let refused = bench.request(Request::Suspend {
        name,
        suspended: true,
    });
    let why = "job default/two belongs to a MusterJob object, so change the object: kubectl patch mj/two --type merge -p \
               '{\"spec\":{\"suspend\":true}}' -n default";
    assert!(
        matches!(&refused, Answer::Refused(Refusal::Precondition(told)) if told == why),
        "{refused:?}"
    );
}
