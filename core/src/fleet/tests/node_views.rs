//! What a node's view shows of its runs.

use super::*;

#[test]
fn a_node_is_shown_anew_whenever_a_phase_of_its_runs_changes() {
    let mut bench = Bench::new(&["a"]);
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    bench.submit("digits", document(1, 1, 1));
    let job = bench.job("digits");
    let run = job.current.as_ref().unwrap().run(&job.uid);
    let session = bench.agents[&"a".into()].session.unwrap();
    let mut shown = Vec::new();
    for phase in [
        RunPhase::Preparing,
        RunPhase::Ready,
        RunPhase::Running,
        RunPhase::Stopping,
        RunPhase::Dead,
    ] {
        let report = RunReport {
            phase: phase.clone(),
            ..RunReport::preparing(run.clone(), Term(1))
        };
        let runs = vec![report];
        let effects = bench.input(Input::Runs { session, runs });
        if effects.contains(&Effect::NodeChanged("a".into())) {
            shown.push(
                bench.fleet.node_view(&"a".into()).unwrap().runs[0]
                    .phase
                    .clone(),
            );
        }
    }
    assert_eq!(
        shown,
        [
            RunPhase::Preparing,
            RunPhase::Ready,
            RunPhase::Running,
            RunPhase::Stopping,
            RunPhase::Dead
        ]
    );
}
