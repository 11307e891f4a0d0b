//! What happens while the ledger is on its way to the disk.

use super::*;

fn desired(node: &Node, runs: Vec<DesiredRun>) -> Input {
    Input::Desired(Desired {
        term: node.ledger.term,
        epoch: node.ledger.epoch,
        runs,
        labels: Labels::default(),
        retire: None,
        prewarm: Vec::new(),
    })
}

fn saves(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::SaveLedger(_)])
}

/// A node that runs `a`, with `b` on its way to the disk.
fn busy_disk() -> Node {
    let mut node = node();
    wants(&mut node, vec![running("a", 1)]);
    hears(&mut node, "a", 1, GroupPhase::Holding);
    hears(&mut node, "a", 1, GroupPhase::Running);
    let both = desired(&node, vec![running("a", 1), running("b", 1)]);
    assert!(
        saves(&node.turn(NOW, both).effects),
        "nothing follows before the ledger is on disk"
    );
    node
}

#[test]
fn what_follows_waits_and_is_not_told_and_the_rest_goes_on() {
    let mut node = busy_disk();
    assert_eq!(phase_of(&node, "b", 1), None);
    hears(&mut node, "a", 1, GroupPhase::Stopping);
    assert_eq!(
        phase_of(&node, "a", 1),
        Some(RunPhase::Stopping),
        "what others do is told at once"
    );
    let stop_a = desired(&node, vec![stopped("a", 1, 0), running("b", 1)]);
    assert_eq!(
        node.turn(NOW, stop_a).effects,
        [stop("a", 1, 0, "scaled")],
        "a stop needs no memory"
    );
    assert_eq!(node.turn(NOW, Input::Saved).effects, [hold("b", 1, 1)]);
    assert_eq!(phase_of(&node, "b", 1), Some(RunPhase::Preparing));
    assert_eq!(
        node.turn(NOW, Input::Saved).effects,
        [],
        "said twice, it is nothing new"
    );
}

#[test]
fn what_comes_while_it_is_written_needs_one_more_write() {
    let mut node = busy_disk();
    for more in ["c", "d"] {
        let wanted = ["b", "c", "d"]
            .into_iter()
            .take_while(|job| *job <= more)
            .map(|job| running(job, 1))
            .collect();
        let more = desired(&node, wanted);
        assert_eq!(node.turn(NOW, more).effects, []);
    }
    let effects = node.turn(NOW, Input::Saved).effects;
    let [first, Effect::SaveLedger(ledger)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(*first, hold("b", 1, 1));
    assert_eq!(ledger.jobs.len(), 4);
    assert_eq!(
        node.turn(NOW, Input::Saved).effects,
        [hold("c", 1, 1), hold("d", 1, 1)],
        "in their order"
    );
}

#[test]
fn a_refusal_is_told_when_the_node_cannot_forget_it() {
    let mut node = node();
    wants(&mut node, vec![ready("a", 1)]);
    hears(&mut node, "a", 1, GroupPhase::Holding);
    let refused = Input::Refused {
        run: run("a", 1),
        refusal: "exec format error".into(),
    };
    assert!(saves(&node.turn(NOW, refused).effects));
    assert_eq!(
        phase_of(&node, "a", 1),
        Some(RunPhase::Ready),
        "as it was told before"
    );
    assert_eq!(node.runs_over().count(), 0);
    assert_eq!(
        node.turn(NOW, Input::Saved).effects,
        [stop("a", 1, 0, "it cannot be started")]
    );
    assert_eq!(
        phase_of(&node, "a", 1),
        Some(RunPhase::Refused("exec format error".into()))
    );
    assert_eq!(node.runs_over().count(), 1);
}

#[test]
fn a_stop_does_not_overtake_what_it_stops() {
    let mut node = node();
    wants(&mut node, vec![ready("a", 1)]);
    hears(&mut node, "a", 1, GroupPhase::Holding);
    let start_a = desired(&node, vec![running("a", 1)]);
    assert!(saves(&node.turn(NOW, start_a).effects));
    let stop_a = desired(&node, vec![stopped("a", 1, 0)]);
    assert_eq!(node.turn(NOW, stop_a).effects, []);
    assert_eq!(
        node.turn(NOW, Input::Saved).effects,
        [start("a", 1), stop("a", 1, 0, "scaled")]
    );
}

#[test]
fn an_older_coordinator_is_refused_however_slow_the_disk_is() {
    let mut node = busy_disk();
    let why = Objection::OlderTerm {
        got: Term(0),
        seen: Term(1),
    };
    let older = Input::Welcome {
        term: Term(0),
        epoch: NodeEpoch(9),
    };
    assert_eq!(
        node.turn(NOW, older).effects,
        [Effect::EndSession(Alarm { run: None, why })]
    );
}

/// Found by the world: both generations were on their way to the disk, and when both were there,
/// the older one was brought up.
#[test]
fn what_was_overtaken_on_its_way_is_not_brought_up() {
    let mut node = busy_disk();
    let newer = desired(&node, vec![running("a", 1), running("b", 2)]);
    assert_eq!(node.turn(NOW, newer).effects, []);
    assert!(
        saves(&node.turn(NOW, Input::Saved).effects),
        "the first generation of b is overtaken"
    );
    assert_eq!(
        phase_of(&node, "b", 1),
        Some(RunPhase::Preparing),
        "as it was told: what overtook it is not on disk"
    );
    assert_eq!(node.turn(NOW, Input::Saved).effects, [hold("b", 2, 1)]);
    assert_eq!(phase_of(&node, "b", 1), Some(RunPhase::Dead));
    let mut node = node_that_starts("c", 1);
    let newer = desired(&node, vec![running("c", 2)]);
    assert_eq!(node.turn(NOW, newer).effects, []);
    let effects = node.turn(NOW, Input::Saved).effects;
    assert!(saves(&effects), "it is not started: {effects:?}");
    let replaced = stop("c", 1, 10, "replaced by generation 2");
    assert_eq!(
        node.turn(NOW, Input::Saved).effects,
        [replaced, hold("c", 2, 1)]
    );
}

fn node_that_starts(job: &str, generation: u64) -> Node {
    let mut node = node();
    wants(&mut node, vec![ready(job, generation)]);
    hears(&mut node, job, generation, GroupPhase::Holding);
    let start = desired(&node, vec![running(job, generation)]);
    assert!(saves(&node.turn(NOW, start).effects));
    node
}

/// Found by the world: while the disk was slow, the store was replaced by an old copy, and nobody
/// noticed.
#[test]
fn a_hello_says_what_was_promised_however_slow_the_disk_is() {
    let mut node = busy_disk();
    node.turn(
        NOW,
        Input::Welcome {
            term: Term(1),
            epoch: NodeEpoch(7),
        },
    );
    let hello = node.ledger();
    assert_eq!(hello.epoch, NodeEpoch(7));
    assert!(hello.jobs_seen().contains_key(&JobUid::from("b")));
}
