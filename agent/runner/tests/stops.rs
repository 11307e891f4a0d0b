//! Planned stops of real processes: SIGTERM goes to the rank and not to its helpers, behind whatever
//! the rank stands; who had to be killed is told; what ranks leave behind has its grace.
#![allow(clippy::unwrap_used)]

mod rig;

use std::time::{Duration, Instant};

use muster_runner::wire::{Exit, Phase, StartSpec, Status};
use rig::{Client, Living, PATIENCE, Rig, until_written};

const LONG: Duration = Duration::from_secs(600);

/// A trainer with a helper, as a script with a DataLoader: the helper dies of a SIGTERM, and without
/// it nothing is saved. What it does takes a moment.
const TRAINER: &str = r#"#!/bin/bash
sleep 1000 & helper=$!
# Until then it is a copy of this shell.
while read name < /proc/$helper/comm; [ $name != sleep ]; do :; done
trap 'told=1' TERM
echo step 1
# A signal right before `wait` would not end it.
while [ -z "$told" ]; do sleep 0.02; done
for i in 1 2 3 4 5; do sleep 0.05; done
kill -0 $helper && touch $DIR/saved.$RANK
kill -KILL $helper
exit 0
"#;

/// Puts a program where ranks find it. Bash would start it as one that it waits for.
fn program(rig: &Rig, name: &str, text: &str) -> String {
    let path = rig.dir.join(name);
    std::fs::write(&path, text).unwrap();
    let mut mode = std::fs::metadata(&path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The direct lane with this many ranks, which run a script in bash.
fn direct(rig: &Rig, ranks: u32, script: &str) -> StartSpec {
    let mut spec = rig.direct(&["/bin/bash", "-c", script]);
    spec.ranks = ranks;
    spec
}

fn saved(rig: &Rig, rank: u32) -> bool {
    rig.dir.join(format!("saved.{rank}")).exists()
}

/// In the lane with a torchrun and in the one without.
fn in_both_lanes(script: &str, check: impl Fn(&Rig, &mut Client)) {
    for lane in ["cold", "direct"] {
        let rig = Rig::new();
        let trainer = program(&rig, "trainer", TRAINER);
        let script = script.replace("TRAINER", &trainer);
        let mut client = rig.ready();
        let mut spec = match lane {
            "cold" => rig.ranks(2, &script),
            _ => direct(&rig, 2, &script),
        };
        spec.env.insert("TRAINER".into(), trainer);
        client.start(spec);
        client.until_stepping(2);
        check(&rig, &mut client);
    }
}

#[test]
fn a_rank_saves_with_its_helpers_behind_whatever_it_stands() {
    for script in [
        "exec TRAINER",
        // A shell that dies of it.
        "TRAINER; exit 3",
        // One that waits for its command before its trap runs.
        "trap 'echo cleaned' TERM; TRAINER; exit 3",
        "trap '' TERM; (trap - TERM; TRAINER); exit 3",
        // What it starts trains, and it dies of it itself.
        "env --default-signal=INT,QUIT TRAINER & sleep 1000; wait",
        // Shells below shells.
        "bash -c 'trap : TERM; TRAINER; :'; exit 3",
        // A reader that dies of it would take the trainer's output away.
        "TRAINER 2>&1 | tee $DIR/log.$RANK; exit 3",
        "trap : TERM; TRAINER 2>&1 | tee $DIR/log.$RANK; exit 3",
        // A trap that passes it on, and only once.
        "trap 'kill -TERM $child' TERM; TRAINER & child=$!; wait $child; wait $child",
        // It would signal its whole group.
        "timeout 500 TRAINER; exit 3",
    ] {
        in_both_lanes(script, |rig, client| {
            client.stop(LONG);
            let begun = Instant::now();
            let status = client.until_dead();
            for rank in 0..2 {
                assert!(saved(rig, rank), "{script}: {status:?}");
            }
            assert!(begun.elapsed() < PATIENCE);
            assert_eq!(status.leftovers, [], "{script}");
            let killed = status.ranks.iter().filter_map(|r| r.killed_after_ms);
            assert_eq!(killed.count(), 0, "{script}");
        });
    }
}

#[test]
fn a_second_rank_has_the_whole_grace_after_the_first_has_ended() {
    // torchrun would end the other one after its own grace when it sees the first one's end.
    let script = r#"trap 'if [ $RANK = 1 ]; then until [ -e $DIR/go ]; do sleep 0.01; done; touch $DIR/saved.1; fi; exit 7' TERM
        echo step 1; while :; do sleep 0.01; done"#;
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(2, script));
    client.until_stepping(2);
    client.stop(LONG);
    let ended = client.until(|s| s.ranks.iter().any(|r| r.exit.is_some()));
    assert_eq!(ended.ranks[1].exit, None);
    // The end is on disk, and torchrun has not seen it.
    assert!(!rig.log("launcher.log").contains("ended as"));
    assert!(!rig.dir.join("termed").exists());
    std::fs::write(rig.dir.join("go"), "").unwrap();
    client.until_dead();
    assert!(saved(&rig, 1));
}

/// The first rank dies of SIGTERM, which is no failure in a stop.
#[test]
fn without_torchrun_a_rank_may_save_for_longer_than_torchruns_grace() {
    let script = r#"echo step 1; [ $RANK = 0 ] && exec sleep 1000
        trap 'sleep 33; touch $DIR/saved.1; exit 7' TERM; while :; do sleep 0.01; done"#;
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(direct(&rig, 2, script));
    client.until_stepping(2);
    client.stop(LONG);
    let status = client.until_dead();
    assert_eq!(status.ranks[1].exit, Some(Exit::Code { code: 7 }));
    assert!(saved(&rig, 1));
}

fn killed_after(status: &Status) -> Vec<Option<u64>> {
    status.ranks.iter().map(|r| r.killed_after_ms).collect()
}

#[test]
fn who_is_killed_when_its_grace_is_over_is_told() {
    let script =
        "if [ $RANK = 1 ]; then trap '' TERM; fi; echo step 1; while :; do sleep 1000; done";
    in_both_lanes(script, |rig, client| {
        client.stop(Duration::from_millis(700));
        let status = client.until_dead();
        assert_eq!(killed_after(&status), [None, Some(700)]);
        let outcome = rig.record().outcome.unwrap();
        assert_eq!(killed_after(&outcome), [None, Some(700)]);
    });
}

#[test]
fn who_was_promised_nothing_is_not_said_to_have_had_a_grace() {
    let script = "trap '' TERM; echo step 1; while :; do sleep 1000; done";
    in_both_lanes(script, |_, client| {
        client.stop(Duration::ZERO);
        assert_eq!(killed_after(&client.until_dead()), [None, None]);
    });
    in_both_lanes(script, |_, client| {
        client.stop(LONG);
        client.stop(Duration::ZERO);
        assert_eq!(killed_after(&client.until_dead()), [None, None]);
    });
}

#[test]
fn what_was_behind_a_shell_and_is_killed_when_the_grace_is_over_is_named() {
    let script = "bash -c 'trap : TERM; touch $DIR/begun.$RANK; while :; do sleep 0.01; done' secret & echo step 1; wait";
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(direct(&rig, 1, script));
    client.until_stepping(1);
    let begun = rig.dir.join("begun.0");
    let until = Instant::now() + PATIENCE;
    while !begun.exists() {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    client.stop(Duration::from_millis(700));
    let status = client.until_dead();
    let left: Vec<(&str, bool)> = status
        .leftovers
        .iter()
        .map(|left| (left.program.as_str(), left.killed))
        .collect();
    assert_eq!(left, [("bash -c", true)]);
}

/// Leaves a process behind and ends well. It ends by itself when `$DIR/go` is there.
const LEAVES: &str = r#"
bash -c 'trap "echo told > $DIR/told" TERM; echo $$ > $DIR/left; until [ -e $DIR/go ]; do sleep 0.01; done; echo copied > $DIR/copied' secret &
until [ -s $DIR/left ]; do sleep 0.01; done
echo step 1; exit 0"#;

#[test]
fn what_is_left_behind_at_a_good_end_is_named_and_has_its_grace() {
    for lane in ["cold", "direct"] {
        let mut rig = Rig::new();
        rig.hold.term_grace_ms = LONG.as_millis() as u64;
        let mut client = rig.ready();
        client.start(match lane {
            "cold" => rig.ranks(1, LEAVES),
            _ => direct(&rig, 1, LEAVES),
        });
        let status = client.until(|s| !s.leftovers.is_empty());
        until_written(&rig.dir.join("told"));
        assert_eq!(status.phase, Phase::Running, "{lane}");
        assert_eq!(status.ranks[0].exit, Some(Exit::Code { code: 0 }));
        let [left] = &status.leftovers[..] else {
            panic!("{lane}: {status:?}");
        };
        assert_eq!(
            (left.pid, left.program.as_str()),
            (rig.pid_in("left"), "bash -c")
        );
        std::fs::write(rig.dir.join("go"), "").unwrap();
        let status = client.until_dead();
        assert!(rig.dir.join("copied").exists(), "{lane}");
        assert!(
            !status.leftovers[0].killed && status.stop.is_none(),
            "{lane}: {status:?}"
        );
    }
}

#[test]
fn what_is_left_behind_is_killed_when_its_grace_is_over_and_named_so() {
    let mut rig = Rig::new();
    rig.hold.term_grace_ms = 300;
    let mut client = rig.ready();
    client.start(direct(&rig, 1, LEAVES));
    client.until_stepping(1);
    let left = Living::find(rig.pid_in("left"));
    let status = client.until_dead();
    assert!(left.is_none_or(|left| left.is_gone()));
    assert!(status.leftovers[0].killed, "{status:?}");
    assert_eq!(status.ranks[0].killed_after_ms, None);
    assert_eq!(status.launcher.unwrap().exit, Some(Exit::Code { code: 0 }));
}

#[test]
fn nobody_waits_for_what_a_failed_rank_has_left_behind() {
    let mut rig = Rig::new();
    rig.hold.term_grace_ms = LONG.as_millis() as u64;
    let mut client = rig.ready();
    client.start(direct(&rig, 1, &LEAVES.replace("exit 0", "exit 1")));
    let status = client.until_dead();
    assert_eq!(status.leftovers, []);
    assert!(!rig.dir.join("told").exists());
}

#[test]
fn a_stop_without_a_grace_ends_what_is_left_behind_at_once() {
    let mut rig = Rig::new();
    rig.hold.term_grace_ms = LONG.as_millis() as u64;
    let mut client = rig.ready();
    client.start(direct(&rig, 1, LEAVES));
    client.until(|s| !s.leftovers.is_empty());
    client.stop(Duration::ZERO);
    client.until_dead();
    assert!(!rig.dir.join("copied").exists());
}
