//! A run that was given up by an agent that died before it had ended the run (found by the world in
//! seed 685149).

use super::*;

const WHY: &str = "it was given up on this node before its agent was started anew";

/// The agent has noted that the run is over here, and then died. The next agent finds the group
/// unchanged.
fn given_up(found: FoundState) -> Node {
    let mut before = node();
    wants(&mut before, vec![running("a", 1)]);
    hears(&mut before, "a", 1, GroupPhase::Holding);
    told(
        &mut before,
        Input::Refused {
            run: run("a", 1),
            refusal: "exec format error".into(),
        },
    );
    let mut node = Node::new(before.ledger.clone());
    let found = Found {
        run: run("a", 1),
        term: Term(1),
        gpus: Vec::new(),
        state: found,
    };
    assert_eq!(
        node.turn(NOW, Input::Restarted(vec![found])).effects,
        vec![]
    );
    node
}

#[test]
fn what_was_given_up_is_ended_by_the_next_agent_and_reported() {
    let mut node = given_up(FoundState::Known(status(GroupPhase::Holding)));
    assert_eq!(
        wants(&mut node, vec![running("a", 1)]),
        vec![stop("a", 1, 0, WHY)]
    );
    assert_eq!(
        phase_of(&node, "a", 1),
        Some(RunPhase::Refused(WHY.into())),
        "it never ran, and never will"
    );
    assert_eq!(wants(&mut node, vec![running("a", 1)]), vec![], "told once");
}

#[test]
fn workers_that_were_up_all_the_same_are_dead_before_it_is_said() {
    let mut node = given_up(FoundState::Silent);
    assert_eq!(
        wants(&mut node, vec![running("a", 1)]),
        vec![stop("a", 1, 0, WHY)],
        "its runner need not be heard for that"
    );
    assert_eq!(hears(&mut node, "a", 1, GroupPhase::Running), vec![]);
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Running));
    hears(&mut node, "a", 1, GroupPhase::Dead);
    assert_eq!(phase_of(&node, "a", 1), Some(RunPhase::Dead));
}
