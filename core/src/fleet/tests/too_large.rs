//! The store takes no record of a job as large as it is.

use super::*;

fn refuse(bench: &mut Bench, uid: &JobUid) {
    bench.input(Input::RecordTooLarge {
        job: uid.clone(),
        why: "request is too large".into(),
    });
    bench.obey();
}

#[test]
fn its_job_ends_and_keeps_only_what_may_live() {
    let mut bench = Bench::new(&["h1", "h2"]);
    bench.submit("one", document(1, 1, 1));
    bench.submit("two", document(1, 1, 1));
    bench.pass(2 * SECOND);
    let on = bench.members("one")[0].to_owned();
    // A generation of it is over already.
    bench.agents.get_mut(&on.as_str().into()).unwrap().boot += 1;
    bench.cut(&on);
    bench.connect(&on);
    bench.pass(40 * SECOND);
    let job = bench.job("one");
    assert_eq!((job.phase, job.history.len()), (Phase::Running, 1));
    assert!(!job.incidents.is_empty());
    let (uid, before) = (job.uid.clone(), serde_json::to_vec(job).unwrap().len());

    bench.input(Input::RecordTooLarge {
        job: uid.clone(),
        why: "request is too large".into(),
    });
    let job = bench.job("one");
    assert_eq!((job.history.len(), job.incidents.len()), (0, 0));
    assert_eq!(job.unproven_generations().count(), 1, "it may live");
    assert!(serde_json::to_vec(job).unwrap().len() < before);
    bench.obey();
    bench.pass(10 * SECOND);
    let job = bench.job("one");
    let end = (Phase::Failed, Reason::RecordTooLarge);
    assert_eq!((job.phase, job.reason), end);
    assert!(
        job.message.contains("request is too large"),
        "{}",
        job.message
    );
    assert_eq!(bench.job("two").phase, Phase::Running);
    // A second refusal changes nothing, nor does one of a job that is gone.
    refuse(&mut bench, &uid);
    refuse(&mut bench, &JobUid::from("nobody"));
    let job = bench.job("one");
    assert_eq!((job.phase, job.reason), end);
}
