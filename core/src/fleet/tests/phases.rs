//! What a receipt keeps of the start of a generation.

use super::*;
use crate::run::{Import, Imports, PhasesReport};

/// The run of this node says what its start was spent on.
fn says(bench: &mut Bench, node: &str, phases: PhasesReport) {
    let agent = bench.agents.get_mut(&node.into()).unwrap();
    let run = agent.runs.values_mut().next_back().unwrap();
    run.phases = phases;
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
}

fn phases(script: Timestamp, imports_ms: u64) -> PhasesReport {
    let by = vec![Import {
        name: "scipy".into(),
        time: Duration::from_millis(imports_ms),
        why: String::new(),
    }];
    PhasesReport {
        script_at: Some(script),
        imports: Some(Imports {
            time: Duration::from_millis(imports_ms),
            by,
        }),
        ..PhasesReport::default()
    }
}

fn seen(bench: &Bench) -> PhasesReport {
    bench.job("digits").incidents[0].seen.clone()
}

#[test]
fn a_receipt_has_what_all_nodes_have_seen_until_shortly_after_the_first_step() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let now = bench.now;
    says(&mut bench, "a", phases(now, 300));
    assert_eq!(
        seen(&bench),
        PhasesReport::default(),
        "the other has said nothing"
    );
    says(&mut bench, "b", phases(now, 100));
    assert_eq!(seen(&bench), phases(now, 300));
    bench.step("digits", 1);
    // The step came from a node that was quicker than the other to say the rest.
    bench.pass(SECOND);
    says(
        &mut bench,
        "b",
        PhasesReport {
            gpu_at: Some(now),
            ..phases(now, 400)
        },
    );
    assert_eq!(seen(&bench), phases(now, 400));
    bench.pass(5 * SECOND);
    says(
        &mut bench,
        "a",
        PhasesReport {
            gpu_at: Some(now),
            ..phases(now, 9_000)
        },
    );
    assert_eq!(
        seen(&bench),
        phases(now, 400),
        "that was no part of the start"
    );
}

#[test]
fn what_was_seen_for_the_first_time_is_news_and_more_of_it_is_not() {
    let mut run = RunReport::preparing(
        RunId {
            job: JobUid::from("0a"),
            generation: Generation(1),
        },
        Term(1),
    );
    let before = run.without_progress();
    run.phases = phases(Timestamp(5), 100);
    let first = run.without_progress();
    assert_ne!(before, first);
    run.phases = phases(Timestamp(6), 200);
    assert_eq!(run.without_progress(), first);
}
