//! Which ranks move: real processes that sleep, print, write and work.
#![allow(clippy::unwrap_used)]

mod rig;

use muster_runner::wire::{RankStatus, Status, StillStatus};
use rig::Rig;

/// Each rank does one thing. Rank 1 writes by a new process each time.
const SCRIPT: &str = r#"case $RANK in
0) until [ -e $DIR/go ]; do sleep 0.5; done; echo again; sleep 1000 ;;
1) while :; do head -c 400000 /dev/zero > $DIR/file; sleep 1; done ;;
2) while :; do echo still here; sleep 1; done ;;
3) while :; do :; done ;;
esac"#;

fn still(status: &Status, rank: usize) -> Option<&StillStatus> {
    let rank: Option<&RankStatus> = status.ranks.get(rank);
    rank.and_then(|rank| rank.still.as_ref())
}

#[test]
fn a_rank_is_still_if_it_neither_prints_nor_writes_and_idle_if_it_sleeps() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(4, SCRIPT));
    let status = client.until(|status| {
        let sleeps = still(status, 0).is_some_and(|still| still.idle_since_us.is_some());
        let works = still(status, 3).is_some_and(|still| still.idle_since_us.is_none());
        sleeps && works
    });
    assert_eq!((still(&status, 1), still(&status, 2)), (None, None));
    let since = still(&status, 0).unwrap().since_us;
    assert!(since >= status.ranks[0].started_us && since < status.now_us);
    std::fs::write(rig.dir.join("go"), "").unwrap();
    client.until(|status| still(status, 0).is_none());
}
