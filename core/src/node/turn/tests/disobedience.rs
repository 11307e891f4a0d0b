//! Runners that are not heard, or do not obey.

use super::*;
use crate::run::Disobedience;

/// A run of an earlier agent whose runner does not answer.
fn silent() -> Node {
    let mut before = node();
    wants(&mut before, vec![running("a", 1)]);
    hears(&mut before, "a", 1, GroupPhase::Holding);
    let mut node = Node::new(before.ledger.clone());
    let found = Found {
        run: run("a", 1),
        term: Term(1),
        gpus: Vec::new(),
        state: FoundState::Silent,
    };
    node.turn(NOW, Input::Restarted(vec![found]));
    node
}

#[test]
fn a_runner_that_was_not_heard_yet_is_stopped_too() {
    let mut node = silent();
    let stopped = DesiredRun {
        run: run("a", 1),
        target: Target::Stopped {
            grace: Duration::from_secs(30),
            reason: "cancelled".into(),
        },
    };
    let effects = wants(&mut node, vec![stopped.clone()]);
    assert_eq!(effects, vec![stop("a", 1, 30, "cancelled")]);
    assert_eq!(wants(&mut node, vec![stopped]), vec![], "once");
    // It is heard at last, and does what its link has told it.
    assert_eq!(hears(&mut node, "a", 1, GroupPhase::Stopping), vec![]);
    hears(&mut node, "a", 1, GroupPhase::Dead);
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Dead));
}

#[test]
fn a_newer_generation_does_not_wait_for_a_silent_runner_without_stopping_it() {
    let mut node = silent();
    let effects = wants(&mut node, vec![running("a", 2)]);
    assert!(
        effects.iter().any(
            |effect| matches!(effect, Effect::Stop { run: stopped, .. } if *stopped == run("a", 1))
        ),
        "{effects:?}"
    );
}

#[test]
fn that_a_runner_is_killed_is_reported_until_the_run_is_forgotten() {
    let mut node = silent();
    let disobedience = Disobedience {
        grace: Duration::from_secs(30),
        late: Duration::from_secs(20),
        answered: false,
    };
    let told = |node: &Node| node.reports()[0].disobedience.clone();
    assert_eq!(told(&node), None);
    node.turn(
        NOW,
        Input::Disobeyed {
            run: run("a", 1),
            disobedience: disobedience.clone(),
        },
    );
    assert_eq!(told(&node), Some(disobedience.clone()));
    node.turn(
        NOW,
        Input::RunnerLost {
            run: run("a", 1),
            exits: Vec::new(),
            at: NOW,
        },
    );
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Dead));
    assert_eq!(told(&node), Some(disobedience));
}
