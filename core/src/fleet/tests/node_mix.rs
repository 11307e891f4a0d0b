//! Interpreters that do not go together. That is known only when all members are ready to start.

use super::*;

/// Nodes a, b and so on with these releases of torch. A node with an empty release reports none.
fn with(torch: &[&str]) -> Bench {
    let names: Vec<String> = ('a'..).take(torch.len()).map(String::from).collect();
    let mut bench = Bench::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    names
        .iter()
        .zip(torch)
        .for_each(|(node, torch)| has(&mut bench, node, torch));
    bench
}

fn has(bench: &mut Bench, node: &str, torch: &str) {
    bench.agents.get_mut(&node.into()).unwrap().stack.torch = torch.into();
}

fn refusing(min: i64, replicas: i64) -> SpecDocument {
    SpecDocument {
        node_mix: Some("refuse".into()),
        ..document(min, replicas, replicas)
    }
}

fn told<'a>(bench: &'a Bench, reason: &str) -> Vec<&'a str> {
    bench
        .events
        .iter()
        .filter(|event| event.reason == reason)
        .map(|event| event.message.as_str())
        .collect()
}

#[test]
fn a_mixture_is_started_with_one_warning_for_each_generation() {
    let mut bench = with(&["2.15.0", "2.14.1", "2.15.0"]);
    bench.submit("digits", document(2, 3, 3));
    bench.pass(SECOND);
    assert_eq!(
        (
            bench.members("digits"),
            bench.job("digits").last_generation.0
        ),
        (vec!["a", "b", "c"], 1)
    );
    let [warning] = told(&bench, "MixedNodes")[..] else {
        panic!("{:?}", bench.events)
    };
    assert!(
        warning.starts_with(
            "the release of torch differs: torch 2.14 on b, torch 2.15 on a and 1 more; "
        ),
        "{warning}"
    );
    assert!(
        told(&bench, "WorldFormed")[0].ends_with("; torch 2.14.1 / torch 2.15.0"),
        "{:?}",
        told(&bench, "WorldFormed")
    );
}

#[test]
fn a_job_that_refuses_it_goes_on_without_the_mismatched() {
    let mut bench = with(&["2.15.0", "2.14.1", "2.15.0"]);
    bench.submit("digits", refusing(2, 3));
    bench.pass(60 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (bench.members("digits"), job.last_generation.0),
        (vec!["a", "c"], 2),
        "one that trains is not disturbed for it"
    );
    assert!(!job.history[0].started, "the mixture never was");
    assert_eq!(
        (job.phase, job.message.as_str()),
        (Phase::Running, "2 of 3 wanted nodes")
    );
    assert_eq!(
        (job.restarts.len(), job.restart_count),
        (0, 0),
        "nothing had been started"
    );
    let receipt = job.incidents.last().unwrap();
    assert_eq!(
        (receipt.cause, receipt.charged, receipt.culprit.as_deref()),
        (Cause::MixedNodes, Charged::Nobody, Some("b"))
    );
    assert_eq!(
        receipt.message,
        "1 of 3 nodes not taken, as they do not go with the others: b (torch 2.14, not torch 2.15)"
    );
    assert_eq!(
        (receipt.collateral.len(), told(&bench, "MixedNodes")),
        (0, vec![receipt.message.as_str()])
    );
    assert!(
        bench
            .stored_nodes
            .values()
            .all(|node| node.marks.is_empty()),
        "no fault of the node's"
    );
    // A restarted coordinator still knows it.
    bench.restart_coordinator();
    ["a", "b", "c"].iter().for_each(|node| bench.connect(node));
    bench.pass(60 * SECOND);
    assert_eq!(
        (
            bench.members("digits"),
            bench.job("digits").last_generation.0
        ),
        (vec!["a", "c"], 2)
    );
    // The node is mended, and a user who scales the job makes it ask again.
    has(&mut bench, "b", "2.15.2");
    let name = bench.job("digits").name.clone();
    bench.request(Request::Scale { name, nodes: 3 });
    bench.pass(10 * SECOND);
    assert_eq!(bench.members("digits"), ["a", "c", "b"]);
}

#[test]
fn an_agent_that_starts_anew_is_asked_anew() {
    let mut bench = with(&["2.15.0", "2.14.1", "2.15.0"]);
    bench.submit("digits", refusing(2, 3));
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["a", "c"]);
    bench.cut("b");
    has(&mut bench, "b", "2.15.0");
    bench.connect("b");
    bench.pass(10 * SECOND);
    assert_eq!(bench.members("digits"), ["a", "c", "b"]);
    assert!(
        bench.job("digits").stacks.is_empty(),
        "{:?}",
        bench.job("digits").stacks
    );
}

#[test]
fn where_too_few_go_together_it_waits_says_who_and_asks_again() {
    let mut bench = with(&["2.15.0", "2.14.1"]);
    bench.submit("digits", refusing(2, 2));
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason, job.last_generation.0),
        (Phase::Pending, Reason::BelowMinimum, 1)
    );
    let message = "1 of at least 2 nodes available: b does not go with the others (torch 2.14, not torch 2.15)";
    assert_eq!(job.message, message);
    bench.pass(290 * SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 1);
    has(&mut bench, "b", "2.15.0");
    bench.pass(15 * SECOND);
    assert_eq!(
        (
            bench.members("digits"),
            bench.job("digits").last_generation.0
        ),
        (vec!["a", "b"], 2)
    );
}

#[test]
fn what_was_learnt_is_put_together() {
    // The first two nodes do not go together, and neither do the last two. Both facts together say
    // which nodes do.
    let mut bench = with(&["2.14.0", "2.15.0", "2.14.0"]);
    bench.submit("digits", refusing(2, 2));
    bench.pass(2 * SECOND);
    assert_eq!(
        bench.members("digits"),
        ["c", "a"],
        "{}",
        bench.job("digits").message
    );
    assert_eq!(bench.job("digits").last_generation.0, 3);
}

#[test]
fn who_trains_stays_and_mismatched_ones_of_whom_the_world_then_consists_are_taken() {
    let mut bench = with(&["2.14.0"]);
    bench.submit("digits", refusing(1, 3));
    bench.pass(SECOND);
    bench.connect("b");
    bench.connect("c");
    ["b", "c"]
        .iter()
        .for_each(|node| has(&mut bench, node, "2.15.0"));
    bench.pass(60 * SECOND);
    assert_eq!(
        bench.members("digits"),
        ["a"],
        "the one that trains, although the others are more"
    );
    bench.cut("a");
    bench.request(Request::DeleteNode { node: "a".into() });
    bench.pass(130 * SECOND);
    assert_eq!(bench.members("digits"), ["b", "c"]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]

    /// Whatever nodes have, and whatever happens to them, a mixture never starts. In the end the
    /// job trains undisturbed if enough nodes go together.
    #[test]
    fn a_mixture_never_starts_and_whoever_can_trains(
        releases in proptest::collection::vec(0u32..4, 1..6),
        (min, more) in (1i64..4, 0i64..3),
        happenings in proptest::collection::vec((0usize..6, 0u32..4, 0u8..5), 0..8),
    ) {
        // 0: the node does not report its release.
        let release = |number: u32| if number == 0 { String::new() } else { format!("2.{}.0", 12 + number) };
        let said: Vec<String> = releases.iter().map(|number| release(*number)).collect();
        let names: Vec<String> = ('a'..).take(said.len()).map(String::from).collect();
        let mut bench = with(&said.iter().map(String::as_str).collect::<Vec<_>>());
        bench.submit("digits", refusing(min, min + more));
        for (node, number, what) in happenings {
            let name = &names[node % names.len()];
            let here = bench.agents[&name.as_str().into()].session.is_some();
            match what {
                0 if here => bench.cut(name),
                0 | 1 if !here => bench.connect(name),
                2 => has(&mut bench, name, &release(number)),
                3 => {
                    let name = bench.job("digits").name.clone();
                    bench.request(Request::Scale { name, nodes: (min + i64::from(number) % (more + 1)) as u32 });
                }
                _ => bench.pass(7 * SECOND),
            }
            bench.pass(SECOND);
        }
        for name in &names {
            if bench.agents[&name.as_str().into()].session.is_none() {
                bench.connect(name);
            }
        }
        // This is long enough to ask again about remembered releases that have changed since.
        bench.pass(700 * SECOND);
        let job = bench.job("digits").clone();
        for generation in job.unproven_generations().chain(&job.history).filter(|generation| generation.started) {
            let event = bench.events.iter().find(|e| e.reason == "WorldFormed" && e.generation == Some(generation.number)).unwrap();
            let torches = event.message.matches("torch ").count();
            proptest::prop_assert!(torches <= 1, "{}", event.message);
        }
        let has = |name: &String| bench.agents[&name.as_str().into()].stack.torch.clone();
        let silent = names.iter().filter(|name| has(name).is_empty()).count();
        let most = (1..4).map(|number| names.iter().filter(|name| has(name) == release(number)).count()).max().unwrap_or(0);
        let (trains, waits) = (job.phase == Phase::Running, job.reason == Reason::BelowMinimum);
        // A job that already trains is not ended because of what its nodes have become.
        proptest::prop_assert!(trains || waits && ((silent + most) as i64) < min, "{:?}: {}: {}", job.phase, &job.reason, &job.message);
        let number = job.last_generation;
        bench.pass(400 * SECOND);
        proptest::prop_assert!(!trains || bench.job("digits").last_generation == number, "one that trains is not disturbed");
    }
}
