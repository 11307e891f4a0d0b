//! Where a job's time has gone, while things happen to it.

use super::*;
use crate::fleet::time_account::{State, goodput};

/// The seconds in each state so far. They always add up to the job's life.
fn spent(bench: &Bench, name: &str) -> BTreeMap<&'static str, f64> {
    let view = bench.fleet.job_view(&bench.job(name).uid).unwrap();
    let (record, account) = (&view.record, view.record.time.clone().unwrap());
    let end = record.finished.unwrap_or(bench.now);
    let all = account.until(end, view.doubted_since);
    let total: Duration = all.iter().map(|row| row.time).sum();
    assert_eq!(total, end.since(record.created), "{all:?}");
    let mut states = BTreeMap::new();
    for row in all {
        *states.entry(row.state.name()).or_default() += row.time.as_secs_f64();
    }
    states
}

fn joined(bench: &mut Bench, name: &str) {
    let (uid, now) = (bench.job(name).uid.clone(), bench.now);
    let generation = bench.job(name).current.clone().unwrap();
    let host = bench.agents.get_mut(&generation.store_host).unwrap();
    let run = host.runs.get_mut(&generation.run(&uid)).unwrap();
    run.all_joined_at = Some(now);
    let (session, runs) = (host.session.unwrap(), host.runs.values().cloned().collect());
    bench.input(Input::Runs { session, runs });
}

#[test]
fn a_start_a_failure_and_the_lost_steps_have_their_own_time() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.pass(10 * SECOND);
    bench.step("digits", 1);
    bench.pass(20 * SECOND);
    bench.step("digits", 21);
    assert_eq!(
        spent(&bench, "digits"),
        BTreeMap::from([("starting", 10.0), ("training", 20.0)])
    );

    // One second later a rank ends, and what follows is dated back to that.
    bench.pass(SECOND);
    bench.rank_exits("digits", 0, Exit::Signal(7), None);
    bench.pass(3 * SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 2);
    assert_eq!(
        spent(&bench, "digits"),
        BTreeMap::from([("starting", 10.0), ("training", 21.0), ("recovering", 3.0)])
    );

    // It goes on at step 12 of 21, and makes a step a second: ten of them again.
    bench.step("digits", 12);
    bench.pass(5 * SECOND);
    bench.step("digits", 17);
    assert_eq!(spent(&bench, "digits").get("repeating"), Some(&5.0));
    bench.pass(25 * SECOND);
    bench.step("digits", 42);
    // By the speed so far a look was due long ago.
    bench.pass(SECOND);
    let all = spent(&bench, "digits");
    assert_eq!((all["repeating"], all["recovering"]), (10.0, 3.0));
    assert_eq!(all["training"], 21.0 + 21.0);
    let account = bench.job("digits").time.clone().unwrap();
    let ratio = goodput(&account.until(bench.now, None)).unwrap();
    assert!((ratio - 42.0 / 65.0).abs() < 1e-9, "{ratio}");
    assert_eq!(account.repeats_to, None);
}

#[test]
fn a_coordinator_that_starts_goes_on_with_the_account_of_the_one_before() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.step("digits", 1);
    bench.pass(10 * SECOND);
    let kept = bench.job("digits").time.clone();
    bench.restart_coordinator();
    bench.now = bench.now + 600 * SECOND;
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    assert_eq!(bench.job("digits").time, kept, "nothing has ended");
    assert_eq!(spent(&bench, "digits")["training"], 630.0);
    cancel(&mut bench, "digits");
    let account = bench.job("digits").time.clone().unwrap();
    assert_eq!(
        (account.open, bench.job("digits").phase.is_over()),
        (None, true)
    );
    let over = spent(&bench, "digits");
    bench.pass(60 * SECOND);
    assert_eq!(spent(&bench, "digits"), over);
}

#[test]
fn a_record_without_an_account_gets_one_from_now_on() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.step("digits", 1);
    bench.pass(10 * SECOND);
    for job in bench.stored_jobs.values_mut() {
        let text = serde_json::to_string(job).unwrap();
        let mut fields: serde_json::Map<_, _> = serde_json::from_str(&text).unwrap();
        fields.remove("time").expect("it is stored");
        *job = serde_json::from_value(fields.into()).unwrap();
    }
    bench.restart_coordinator();
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    let began = bench.now;
    bench.pass(5 * SECOND);
    let job = bench.job("digits");
    let account = job.time.clone().unwrap();
    assert!(account.since > job.created && account.since <= began);
    let open = account.open.unwrap();
    assert_eq!((open.state, account.spent), (State::Training, Vec::new()));
}

#[test]
fn a_job_that_shows_no_step_trains_when_its_ranks_have_met() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.pass(4 * SECOND);
    joined(&mut bench, "digits");
    bench.pass(6 * SECOND);
    let named = |bench: &Bench| spent(bench, "digits");
    let both =
        |starting, training| BTreeMap::from([("starting", starting), ("training", training)]);
    assert_eq!(named(&bench), both(4.0, 6.0));
    // It does show one: so it had only been starting.
    bench.step("digits", 1);
    bench.pass(SECOND);
    assert_eq!(named(&bench), both(10.0, 1.0));

    // Nobody sees the ranks of this one meet. When they have run for a while, they do what they are for.
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.pass(70 * SECOND);
    assert_eq!(named(&bench), both(60.0, 10.0));
}

#[test]
fn a_job_waits_and_says_for_what() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(2, 2, 2));
    bench.pass(7 * SECOND);
    assert_eq!(spent(&bench, "digits"), BTreeMap::from([("queued", 7.0)]));
    bench.connect("b");
    bench.step("digits", 1);
    bench.pass(10 * SECOND);
    let suspend = |suspended| Request::Suspend {
        name: JobName {
            namespace: "default".into(),
            name: "digits".into(),
        },
        suspended,
    };
    bench.request(suspend(true));
    bench.pass(30 * SECOND);
    let waits = spent(&bench, "digits");
    assert_eq!((waits["training"], waits["waiting"]), (10.0, 30.0));
    bench.request(suspend(false));
    bench.pass(2 * SECOND);
    bench.step("digits", 2);
    bench.pass(SECOND);
    let again = spent(&bench, "digits");
    assert_eq!((again["waiting"], again["resizing"]), (30.0, 2.0));
    assert_eq!(again["training"], 11.0);
}

#[test]
fn silence_is_doubted_until_it_is_decided() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.step("digits", 1);
    bench.pass(30 * SECOND);
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.pass(30 * SECOND);
    let doubted = spent(&bench, "digits");
    assert!(
        doubted["doubted"] > 20.0 && doubted["training"] < 40.0,
        "{doubted:?}"
    );
    // It is back, and trained all the time.
    bench.agents.get_mut(&"b".into()).unwrap().frozen = false;
    bench.pass(5 * SECOND);
    assert_eq!(spent(&bench, "digits")["training"], 65.0);
}
