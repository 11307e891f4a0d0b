//! Several members of a generation in one worker group: each runs what it is told, as the ranks that it
//! has.

#![allow(clippy::unwrap_used)]

use muster_runner::record::rank_log;
use muster_runner::wire::{Command, Exit, RefusalKind, StartSpec};

mod rig;

use rig::Rig;

/// The variables by which a rank knows its place.
const WHO: &str = r#"echo "$0 $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK in $(basename "$PWD") errors $(basename "$(dirname "$TORCHELASTIC_ERROR_FILE")")""#;

fn said(rig: &Rig, rank: u32) -> String {
    let log = rig.log(&rank_log(rank));
    let text = log.lines().next().unwrap_or_default();
    text.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()
}

/// The ranks of an older torch get no variable that its torchrun does not set.
#[test]
fn a_rank_gets_what_its_torchrun_sets_and_no_more() {
    let signals = "TORCHELASTIC_SIGNALS_TO_HANDLE";
    for (lacks, must) in [
        (&[][..], "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
        (&[signals][..], "none"),
    ] {
        let rig = Rig::new();
        let mut client = rig.ready();
        let say = format!("echo ${{{signals}-none}} $TORCHELASTIC_USE_AGENT_STORE");
        let mut spec = rig.direct(&["/bin/sh", "-c", &say]);
        if let Some(order) = &mut spec.order {
            order.lacks = lacks.iter().map(|name| (*name).to_owned()).collect();
        }
        client.start(spec);
        client.until_dead();
        assert_eq!(said(&rig, 0), format!("{must} True"));
    }
}

#[test]
fn each_member_has_its_program_its_directory_and_its_ranks() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let members = vec![rig.member(0, 0, 1, WHO), rig.member(3, 5, 2, WHO)];
    client.start(rig.members(members));
    let status = client.until_dead();
    let ranks: Vec<(u32, u32)> = status
        .ranks
        .iter()
        .map(|r| (r.rank, r.local_rank))
        .collect();
    assert_eq!(ranks, [(0, 0), (5, 0), (6, 1)]);
    assert!(status.launcher.unwrap().exit.unwrap().success());
    let all = [
        (0, "member-0 0/8 0/1 0 in of-0 errors 0"),
        (5, "member-3 5/8 0/2 3 in of-3 errors 1"),
        (6, "member-3 6/8 1/2 3 in of-3 errors 2"),
    ];
    for (rank, must) in all {
        assert_eq!(said(&rig, rank), must);
    }
}

#[test]
fn one_member_that_fails_ends_the_others_of_its_node() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let fails = "while [ ! -e ../of-1/up ]; do sleep 0.01; done; kill -SEGV $$";
    let waits = "touch up; exec sleep 1000";
    let members = vec![rig.member(0, 0, 1, fails), rig.member(1, 1, 1, waits)];
    client.start(rig.members(members));
    let status = client.until_dead();
    let exits: Vec<Exit> = status.ranks.iter().map(|rank| rank.exit.unwrap()).collect();
    assert!(
        matches!(exits[0], Exit::Signal { signal: 11, .. }),
        "{exits:?}"
    );
    assert!(
        matches!(exits[1], Exit::Signal { signal: 15, .. }),
        "{exits:?}"
    );
}

/// It may be the cause and about to say so.
#[test]
fn who_fails_after_the_first_may_end_by_itself() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let first = "touch up; exit 1";
    let cause = "while [ ! -e ../of-0/up ]; do sleep 0.01; done; sleep 0.5; echo 'ValueError: bad' >&2; exit 3";
    let members = vec![rig.member(0, 0, 1, first), rig.member(1, 1, 1, cause)];
    client.start(rig.members(members));
    let status = client.until_dead();
    let exits: Vec<Exit> = status.ranks.iter().map(|rank| rank.exit.unwrap()).collect();
    assert_eq!(exits, [Exit::Code { code: 1 }, Exit::Code { code: 3 }]);
}

#[test]
fn members_that_do_not_fit_are_refused() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let of = |number, first, ranks| rig.member(number, first, ranks, "true");
    let mut without_lane = rig.members(vec![of(0, 0, 1), of(1, 1, 1)]);
    without_lane.order = None;
    let cases = [
        (
            rig.members(vec![of(0, 0, 2), of(1, 1, 1)]),
            "members: 1 has a rank that is not free below 8",
        ),
        (
            rig.members(vec![of(0, 0, 2), of(1, 7, 2)]),
            "members: 1 has a rank that is not free below 8",
        ),
        (
            StartSpec {
                ranks: 3,
                ..rig.members(vec![of(0, 0, 1), of(1, 1, 1)])
            },
            "members: have 2 ranks, not 3",
        ),
        (
            without_lane,
            "members: are only started in the direct lane, and not of MPI",
        ),
    ];
    for (spec, why) in cases {
        let refusal = client.refused(Command::Start(Box::new(spec)));
        assert_eq!(
            (refusal.kind, refusal.text.as_str()),
            (RefusalKind::Invalid, why)
        );
    }
}
