//! When a job is formed anew although nothing forces it.

use super::*;
use crate::{
    fleet::voluntary::{PAYS_MAX, SAVE_MAX},
    spec::SCALE_UP_COOLDOWN,
};

/// A job that does not say how long it trains before it grows.
fn unsaid(min: i64, replicas: i64) -> SpecDocument {
    SpecDocument {
        scale_up_cooldown: None,
        ..document(min, replicas, replicas)
    }
}

/// Three nodes of four that train. Their first step came so long after the start.
fn three_of_four(first_step: Duration) -> Bench {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", unsaid(2, 4));
    bench.pass(first_step);
    bench.step("digits", 1);
    bench
}

fn size(bench: &Bench) -> usize {
    bench.members("digits").len()
}

/// Passes so much time, in which the job must keep its size.
#[track_caller]
fn keeps(bench: &mut Bench, time: Duration) {
    let before = size(bench);
    bench.pass(time);
    assert_eq!(size(bench), before, "{}", bench.job("digits").message);
}

#[test]
fn a_growth_waits_until_it_pays_for_what_it_costs() {
    let mut bench = three_of_four(40 * SECOND);
    bench.connect("d");
    // Three nodes stand for 40 s, for one more: 120 s of it.
    keeps(&mut bench, 75 * SECOND);
    let message = bench.job("digits").message.clone();
    assert!(
        message
            .contains("it will grow once that makes up for the 40s in which each change stops it"),
        "{message}"
    );
    bench.pass(6 * SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn what_grows_more_pays_sooner_and_no_growth_waits_for_ever() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", unsaid(2, 6));
    bench.pass(40 * SECOND);
    bench.step("digits", 1);
    ["d", "e", "f"].iter().for_each(|node| bench.connect(node));
    bench.pass(SECOND);
    assert_eq!(size(&bench), 6, "three for three: it has paid after 40 s");

    let mut bench = three_of_four(3600 * SECOND);
    bench.connect("d");
    bench.pass(SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
    bench.pass(1000 * SECOND);
    bench.step("digits", 2);
    bench.cut("d");
    bench.pass(10 * SECOND);
    let began = bench.job("digits").training().unwrap().started_at.unwrap();
    bench.connect("d");
    let left = (began + PAYS_MAX).since(bench.now);
    keeps(&mut bench, left - 2 * SECOND);
    bench.pass(3 * SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn a_planned_change_says_what_the_next_costs() {
    let mut bench = three_of_four(40 * SECOND);
    bench.pass(80 * SECOND);
    bench.connect("d");
    bench.pass(SECOND);
    // Not the 40 s of the first start, but this second.
    bench.step("digits", 2);
    bench.cut("d");
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench), 3);
    bench.step("digits", 3);
    let began = bench.job("digits").training().unwrap().started_at.unwrap();
    bench.connect("d");
    let left = (began + SCALE_UP_COOLDOWN).since(bench.now);
    keeps(&mut bench, left - 2 * SECOND);
    assert!(
        bench
            .job("digits")
            .message
            .contains("it keeps its nodes until"),
        "{}",
        bench.job("digits").message
    );
    bench.pass(3 * SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn what_a_job_or_a_user_says_is_obeyed() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 4, 4));
    bench.pass(40 * SECOND);
    bench.step("digits", 1);
    bench.connect("d");
    bench.pass(SECOND);
    assert_eq!(size(&bench), 4, "its scaleUpCooldown is 5 s");

    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    let spec = SpecDocument {
        max_replicas: Some(4),
        ..unsaid(2, 3)
    };
    bench.submit("digits", spec);
    bench.pass(40 * SECOND);
    bench.step("digits", 1);
    bench.watches("digits", true);
    let name = bench.job("digits").name.clone();
    bench.request(Request::Scale { name, nodes: 4 });
    bench.pass(SECOND);
    assert_eq!(size(&bench), 4, "a user has scaled it");
}

/// A job that may grow, and that has saved.
fn saved() -> Bench {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 4, 4));
    bench.step("digits", 1);
    bench.pass(10 * SECOND);
    bench.watches("digits", true);
    bench.pass(60 * SECOND);
    bench.connect("d");
    bench
}

#[test]
fn a_growth_comes_right_after_a_save() {
    let mut bench = saved();
    keeps(&mut bench, 100 * SECOND);
    let message = bench.job("digits").message.clone();
    assert!(
        message.contains("it will change its nodes after the next save"),
        "{message}"
    );
    let prewarmed = &bench.fleet.nodes.get(&"d".into()).unwrap().prewarm;
    assert_eq!(prewarmed.len(), 1, "it stays ready meanwhile");
    bench.watches("digits", true);
    bench.obey();
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn a_save_is_waited_for_so_long() {
    let mut bench = saved();
    keeps(&mut bench, SAVE_MAX - 2 * SECOND);
    bench.pass(3 * SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn a_save_that_was_just_made_is_as_good_as_the_next() {
    let mut bench = saved();
    bench.cut("d");
    bench.pass(100 * SECOND);
    bench.watches("digits", true);
    bench.pass(10 * SECOND);
    bench.connect("d");
    bench.pass(SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn a_save_that_is_told_again_is_no_other() {
    let mut bench = saved();
    keeps(&mut bench, 10 * SECOND);
    // Its time is reckoned anew in each report.
    let session = bench.agents[&NodeName::from("a")].session.unwrap();
    let agent = bench.agents.get_mut(&NodeName::from("a")).unwrap();
    for run in agent.runs.values_mut() {
        let saved = run.checkpoint.as_mut().unwrap();
        saved.saved_at = saved.saved_at.map(|at| at + Duration::from_millis(20));
    }
    let runs = agent.runs.values().cloned().collect();
    bench.input(Input::Runs { session, runs });
    keeps(&mut bench, 10 * SECOND);
}

#[test]
fn a_save_that_comes_too_late_is_not_waited_for() {
    let mut bench = saved();
    bench.cut("d");
    bench.pass(3600 * SECOND);
    bench.watches("digits", true);
    bench.pass(60 * SECOND);
    bench.connect("d");
    bench.pass(SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn each_change_has_the_whole_time_for_a_save() {
    let mut bench = saved();
    keeps(&mut bench, SAVE_MAX - 60 * SECOND);
    bench.cut("d");
    bench.pass(100 * SECOND);
    bench.connect("d");
    keeps(&mut bench, SAVE_MAX - 2 * SECOND);
}

#[test]
fn while_one_waits_for_a_save_another_may_grow_there() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 4, 4));
    bench.submit("other", document(1, 2, 2));
    bench.step("digits", 1);
    bench.connect("e");
    bench.pass(10 * SECOND);
    assert_eq!(bench.members("other"), ["e"]);
    bench.watches("digits", true);
    bench.pass(60 * SECOND);
    bench.connect("d");
    bench.pass(6 * SECOND);
    assert_eq!(size(&bench), 3, "{}", bench.job("digits").message);
    assert_eq!(bench.members("other"), ["e", "d"]);
}

#[test]
fn what_a_first_start_waited_for_is_no_cost() {
    let mut bench = Bench::new(&[]);
    bench.submit("digits", unsaid(2, 4));
    bench.pass(3600 * SECOND);
    ["a", "b", "c"].iter().for_each(|node| bench.connect(node));
    bench.pass(5 * SECOND);
    bench.step("digits", 1);
    bench.connect("d");
    bench.pass(SCALE_UP_COOLDOWN);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn a_generation_that_has_saved_nothing_has_little_to_lose() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 4, 4));
    bench.pass(10 * SECOND);
    bench.watches("digits", false);
    bench.connect("d");
    bench.pass(SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}

#[test]
fn the_first_save_of_a_generation_is_one() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 4, 4));
    bench.pass(10 * SECOND);
    bench.watches("digits", false);
    bench.pass(100 * SECOND);
    bench.watches("digits", true);
    bench.connect("d");
    bench.pass(SECOND);
    assert_eq!(size(&bench), 4, "{}", bench.job("digits").message);
}
