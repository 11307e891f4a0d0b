use super::*;
use crate::run::DueTo;

mod corpus;

fn exit(node: &str, rank: u32, exit: Exit, error: Option<&str>, ms: u64) -> Evidence {
    let at = Timestamp(ms * 1000);
    Evidence::RankExit {
        member: None,
        node: node.into(),
        rank,
        exit,
        class: exit.class(error),
        at,
        error: error.map(str::to_owned),
        exception: None,
    }
}

fn silent(node: &str, lost: bool, ms: u64) -> Evidence {
    let at = Timestamp(ms * 1000);
    Evidence::NodeSilent {
        node: node.into(),
        lost,
        since: at,
        heard: Some(at),
    }
}

const PEER: Option<&str> =
    Some("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1");

#[test]
fn the_rank_that_failed_by_itself_is_to_blame_even_if_a_victim_was_seen_first() {
    let verdict = blame(
        &[
            exit("b", 1, Exit::Code(1), PEER, 1000),
            exit("a", 0, Exit::Signal(11), None, 1003),
        ],
        2,
        false,
    )
    .unwrap();
    assert_eq!(
        (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
        (Cause::WorkerFailed, Charged::Job, Some("rank 0 on a"))
    );
    assert_eq!(verdict.collateral, ["rank 1 on b"]);
}

#[test]
fn a_cut_node_explains_its_peers_deaths_and_costs_the_job_nothing() {
    let evidence = [
        exit("b", 1, Exit::Code(1), PEER, 1000),
        exit("c", 2, Exit::Code(1), None, 1001),
        silent("a", false, 1020),
    ];
    let verdict = blame(&evidence, 3, false).unwrap();
    assert_eq!(
        (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
        (Cause::NodeLost, Charged::Node, Some("a"))
    );
    assert_eq!(verdict.collateral, ["rank 1 on b", "rank 2 on c"]);
}

#[test]
fn who_was_heard_after_the_victims_fell_did_not_fell_them() {
    let victims = [
        exit("b", 1, Exit::Code(1), PEER, 1000),
        exit("c", 2, Exit::Code(1), PEER, 1001),
    ];
    let with = |heard| {
        blame(
            &[victims.as_slice(), &[silent("a", true, heard)]].concat(),
            3,
            false,
        )
        .unwrap()
    };
    let verdict = with(1240);
    assert_eq!(
        (verdict.cause, verdict.culprit.as_deref()),
        (Cause::NodeLost, Some("a"))
    );
    let verdict = with(1260);
    assert_eq!(
        (verdict.cause, verdict.charged, verdict.culprit),
        (Cause::PeersLost, Charged::Nobody, None)
    );
    assert_eq!(verdict.collateral, ["rank 1 on b", "rank 2 on c", "a"]);
    // One node is silent by now. The sentence is about the time when the first victim fell.
    let told = "members lost each other while every node was heard; first rank 1 on b: ";
    assert!(verdict.message.starts_with(told), "{}", verdict.message);
}

#[test]
fn a_failure_long_before_a_silence_is_not_the_silences_fault() {
    let verdict = blame(
        &[
            exit("b", 1, Exit::Code(3), None, 1000),
            silent("a", false, 2000),
        ],
        2,
        false,
    )
    .unwrap();
    assert_eq!(verdict.charged, Charged::Job);
}

#[test]
fn a_group_that_vanished_with_its_runner_costs_the_job_nothing() {
    let vanished = |launched| Evidence::Vanished {
        node: "a".into(),
        at: Timestamp(900_000),
        launched,
    };
    let verdict = blame(
        &[exit("b", 1, Exit::Code(1), PEER, 1000), vanished(true)],
        2,
        false,
    )
    .unwrap();
    assert_eq!(
        (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
        (Cause::WorkerKilled, Charged::Node, Some("a"))
    );
    assert_eq!(
        blame(&[vanished(false)], 1, false).unwrap().cause,
        Cause::StartFailed,
        "it is not tried there again at once"
    );
}

#[test]
fn who_forgot_how_its_group_ended_is_not_blamed_for_that() {
    let forgotten = Evidence::ExitUnknown {
        node: "b".into(),
        at: Timestamp(2_000_000),
    };
    let verdict = blame(std::slice::from_ref(&forgotten), 2, false).unwrap();
    assert_eq!(
        (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
        (Cause::PeersLost, Charged::Nobody, None)
    );
    let told = "the worker group on b is dead, and its node has forgotten how it ended";
    assert_eq!(verdict.message, told);
    let verdict = blame(&[forgotten, silent("a", true, 1000)], 2, false).unwrap();
    assert_eq!(verdict.culprit.as_deref(), Some("a"));
}

#[test]
fn a_node_that_told_what_happened_on_it_was_not_cut_off_before() {
    let vanished = Evidence::Vanished {
        node: "a".into(),
        at: Timestamp(900_000),
        launched: true,
    };
    let nan = Some("ValueError: loss is nan");
    for (told, cause, culprit) in [
        (vanished, Cause::WorkerKilled, "a"),
        (
            exit("a", 0, Exit::Code(1), nan, 900),
            Cause::WorkerFailed,
            "rank 0 on a",
        ),
        (
            exit("a", 0, Exit::Signal(11), None, 900),
            Cause::WorkerFailed,
            "rank 0 on a",
        ),
    ] {
        let evidence = [told, silent("a", false, 1100)];
        let verdict = blame(&evidence, 1, false).unwrap();
        assert_eq!(
            (verdict.cause, verdict.culprit.as_deref()),
            (cause, Some(culprit))
        );
    }
    // Without words of its own it may have fallen because of the cut. A watchdog aborts then.
    for end in [Exit::Code(1), Exit::Signal(6)] {
        let evidence = [exit("a", 0, end, None, 900), silent("a", false, 1100)];
        let verdict = blame(&evidence, 1, false).unwrap();
        assert_eq!(verdict.cause, Cause::NodeLost);
    }
}

#[test]
fn a_launcher_that_ends_under_its_ranks_did_not_fail_to_start() {
    let failed = |exit, launched| {
        let evidence = Evidence::TorchrunFailed {
            node: "a".into(),
            exit,
            at: Timestamp(900_000),
            error: None,
            launched,
        };
        blame(&[evidence], 2, false).unwrap()
    };
    assert_eq!(failed(Exit::Code(1), false).cause, Cause::StartFailed);
    assert_eq!(failed(Exit::Code(1), true).cause, Cause::WorkerFailed);
    assert_eq!(
        failed(Exit::Signal(SIGKILL), true).cause,
        Cause::WorkerKilled
    );
    assert_eq!(
        failed(Exit::Signal(SIGKILL), false).cause,
        Cause::StartFailed
    );
}

#[test]
fn victims_of_each_other_name_nobody_and_pay_only_if_it_repeats() {
    let evidence = [
        exit("a", 0, Exit::Code(1), PEER, 1000),
        exit("b", 1, Exit::Code(1), PEER, 1001),
    ];
    let verdict = blame(&evidence, 2, false).unwrap();
    assert_eq!(
        (
            verdict.cause,
            verdict.charged,
            verdict.culprit,
            verdict.node
        ),
        (Cause::PeersLost, Charged::Nobody, None, None)
    );
    assert_eq!(verdict.collateral, ["rank 0 on a", "rank 1 on b"]);
    assert_eq!(blame(&evidence, 2, true).unwrap().charged, Charged::Job);
}

#[test]
fn a_refusal_everywhere_is_the_jobs_fault_elsewhere_the_nodes() {
    let refused = |node: &str, due_to| Evidence::StartRefused {
        node: node.into(),
        reason: "no such script".into(),
        due_to,
    };
    let charged = |due_to, nodes: &[&str], members| {
        let evidence: Vec<_> = nodes.iter().map(|node| refused(node, due_to)).collect();
        let blame = blame(&evidence, members, false).unwrap();
        (blame.charged, blame.culprit)
    };
    let a = || Some("a".to_owned());
    for due_to in [DueTo::Job, DueTo::Unknown] {
        assert_eq!(charged(due_to, &["a", "b"], 2), (Charged::Job, a()));
        assert_eq!(charged(due_to, &["a"], 2), (Charged::Node, a()));
    }
    // Of a fault of its own a node says so, however few nodes there are. A process that no job started
    // is neither's.
    assert_eq!(charged(DueTo::Node, &["a"], 1), (Charged::Node, a()));
    assert_eq!(charged(DueTo::Node, &["a", "b"], 2), (Charged::Node, a()));
    assert_eq!(charged(DueTo::Stranger, &["a"], 1), (Charged::Nobody, None));
    // That the owner has no account here is not the node's doing. Where he has one nowhere, the job pays.
    assert_eq!(charged(DueTo::Account, &["a"], 2), (Charged::Nobody, None));
    let nowhere = charged(DueTo::Account, &["a", "b"], 2);
    assert_eq!(nowhere, (Charged::Job, None));
}

#[test]
fn only_a_kill_from_outside_needs_nothing_more_to_be_judged() {
    let (killed, victim) = (
        exit("a", 0, Exit::Signal(9), None, 1000),
        exit("b", 1, Exit::Code(1), PEER, 1001),
    );
    assert!(
        is_conclusive(std::slice::from_ref(&killed))
            && is_conclusive(&[victim.clone(), killed.clone()])
    );
    assert!(!is_conclusive(&[victim]), "of whom is yet to come");
    assert!(
        !is_conclusive(&[killed.clone(), silent("c", false, 1000)]),
        "its node may have fallen before"
    );
    for may_be_a_victim in [Exit::Code(1), Exit::Signal(11), Exit::Signal(15)] {
        assert!(
            !is_conclusive(&[exit("a", 0, may_be_a_victim, None, 1000)]),
            "{may_be_a_victim}: its last words may say nothing"
        );
    }
    assert!(
        !is_conclusive(&[killed, exit("b", 1, Exit::Code(1), None, 999)]),
        "that one fell first"
    );
}

#[test]
fn a_suspicion_alone_breaks_nothing() {
    assert!(!silent("a", false, 1).breaks());
    assert!(silent("a", true, 1).breaks());
}

/// Whoever deletes a pod ends what runs in it.
#[test]
fn what_is_killed_on_a_node_that_is_leaving_costs_the_job_nothing() {
    let vanished = Evidence::Vanished {
        node: "a".into(),
        at: Timestamp(1_000_000),
        launched: true,
    };
    for killed in [
        exit("a", 0, Exit::Signal(15), None, 1000),
        exit("a", 0, Exit::Signal(9), None, 1000),
        vanished,
    ] {
        let evidence = [
            killed.on_leaving("the pod is being deleted or evicted", false),
            exit("b", 1, Exit::Code(1), PEER, 1010),
        ];
        let verdict = blame(&evidence, 2, true).unwrap();
        assert_eq!(
            (verdict.cause, verdict.charged, verdict.node),
            (Cause::NodeLeaving, Charged::Nobody, Some("a".into()))
        );
    }
    // Its program may also fail by itself, before.
    let own = exit("a", 0, Exit::Code(1), Some("ValueError: nan"), 900);
    let verdict = blame(&[own.on_leaving("spot", false)], 2, false).unwrap();
    assert_eq!(verdict.charged, Charged::Job);
}
