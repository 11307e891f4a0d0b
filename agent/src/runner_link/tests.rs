#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};

use muster_core::{
    id::{Generation, JobUid},
    node::obedience,
};
use muster_runner::record;

use super::*;
use crate::host::tests::Elsewhere;

pub(super) fn a_link() -> (Link, mpsc::Receiver<(RunId, LinkEvent)>) {
    // Has room for a link that repeats its events.
    let (events, told) = mpsc::channel(1_000);
    let run = RunId {
        job: JobUid::from("a"),
        generation: Generation(1),
    };
    let runs = Runs::new(Path::new("/no/such"));
    (
        Link {
            run,
            runs,
            host: Arc::new(Elsewhere::default()),
            events,
        },
        told,
    )
}

fn left_until(end: Instant) -> Left {
    if Instant::now() < end {
        Left::Living(vec![4711])
    } else {
        Left::Nothing
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_runner_leaves_and_nothing_kills_is_told_once_and_looked_for_on() {
    let (mut link, mut told) = a_link();
    let (begun, looks) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let remains = Remains {
        dir: Path::new("/no/such"),
        was: None,
        runner: None,
        with_runner: false,
    };
    let counted = looks.clone();
    let lives_for = Duration::from_secs(200);
    link.host = Arc::new(Elsewhere {
        sweep: Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(left_until(begun + lives_for))
        }),
        ..Elsewhere::default()
    });
    link.until_nothing_lives(&remains).await;
    assert!(
        (lives_for..lives_for + SWEEP_MAX * 2).contains(&begun.elapsed()),
        "as soon as it is gone: {:?}",
        begun.elapsed()
    );
    let looks = looks.load(Ordering::Relaxed);
    assert!(looks < 300, "{looks} looks");
    drop(link);
    let Some((_, LinkEvent::Unkillable(pids))) = told.recv().await else {
        panic!("nothing was told")
    };
    assert_eq!(pids, [4711]);
    assert!(told.recv().await.is_none(), "told again");
    // A process that dies when it is killed, or within a minute, is not reported.
    let (mut link, mut told) = a_link();
    let until = Instant::now() + Duration::from_secs(50);
    link.host = Arc::new(Elsewhere {
        sweep: Box::new(move || Ok(left_until(until))),
        ..Elsewhere::default()
    });
    link.until_nothing_lives(&remains).await;
    drop(link);
    assert!(told.recv().await.is_none());
}

/// A run's directory, as a runner leaves it after an orderly end.
fn left_behind() -> (tempfile::TempDir, Link, Status) {
    let root = tempfile::tempdir().unwrap();
    let (mut link, _) = a_link();
    link.runs = Runs::new(root.path());
    let dir = link.runs.dir(&link.run);
    std::fs::create_dir_all(&dir).unwrap();
    let hold = serde_json::json!({
        "v": 1, "job": "a", "name": "a", "namespace": "d", "generation": 1, "node": "n", "node_rank": 0, "nnodes": 1, "world_size": 1,
    });
    record::write_atomic(&dir, record::HOLD, &hold).unwrap();
    record::write_atomic(
        &dir,
        record::RUNNER,
        &RunnerIdentity::own("test".into()).unwrap(),
    )
    .unwrap();
    let outcome = serde_json::json!({
        "v": 1, "job": "a", "generation": 1, "phase": "dead", "now_us": 9, "launcher": null, "ranks": [],
        "dead": { "at_us": 8, "how": "reaped", "survivors": 0 },
    });
    (root, link, serde_json::from_value(outcome).unwrap())
}

#[tokio::test]
async fn an_outcome_written_while_it_is_looked_for_is_found() {
    let (_root, mut link, outcome) = left_behind();
    let dir = link.runs.dir(&link.run);
    link.host = Arc::new(Elsewhere {
        lives: Box::new(move |dir| {
            record::write_atomic(dir, record::OUTCOME, &outcome).unwrap();
            false
        }),
        ..Elsewhere::default()
    });
    assert!(matches!(link.fate(&dir).await, Fate::Over(_)));
}

#[tokio::test]
async fn a_damaged_journal_hides_neither_the_outcome_nor_the_other_exits() {
    let (_root, link, outcome) = left_behind();
    let dir = link.runs.dir(&link.run);
    let line = |rank| {
        let exit = muster_runner::wire::Exit::Code { code: 3 };
        let record = muster_runner::wire::ExitRecord {
            v: 1,
            rank: Some(rank),
            pid: 9,
            start_time: 3,
            started_us: 1,
            exit,
            exited_us: 2,
            attempt: 1,
            restarted: false,
        };
        muster_runner::journal::line(&record)
    };
    std::fs::write(dir.join(record::EXITS), line(0) + "damage\n" + &line(1)).unwrap();
    let Fate::Lost {
        exits,
        runner: Some(_),
    } = link.fate(&dir).await
    else {
        panic!("it is lost")
    };
    assert_eq!(
        exits.iter().map(|seen| seen.rank).collect::<Vec<_>>(),
        [Some(0), Some(1)]
    );
    record::write_atomic(&dir, record::OUTCOME, &outcome).unwrap();
    assert!(matches!(link.fate(&dir).await, Fate::Over(_)));
}

/// A runner that lives and answers nothing, until it is killed.
fn deaf() -> (Link, mpsc::Receiver<(RunId, LinkEvent)>, Arc<AtomicUsize>) {
    let (mut link, told) = a_link();
    let killed = Arc::new(AtomicUsize::new(0));
    let (kills, lives) = (killed.clone(), killed.clone());
    link.host = Arc::new(Elsewhere {
        lives: Box::new(move |_| lives.load(Ordering::Relaxed) == 0),
        sweep: Box::new(move || {
            kills.fetch_add(1, Ordering::Relaxed);
            Ok(Left::Nothing)
        }),
    });
    (link, told, killed)
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_is_stopped_in_vain_is_killed_and_proven_dead() {
    let (link, mut told, killed) = deaf();
    let (orders, heard) = watch::channel(RunnerOrders::default());
    let begun = Instant::now();
    let attended = tokio::spawn(link.attend(heard));
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(killed.load(Ordering::Relaxed), 0, "it has no order");
    let (ordered, grace) = (begun.elapsed(), Duration::from_secs(30));
    orders.send_modify(|orders| orders.stop = Some((grace, "cancelled".into())));
    let Some((_, LinkEvent::Disobeyed(why))) = told.recv().await else {
        panic!("it is not told")
    };
    let after = begun.elapsed() - ordered;
    let most = grace + obedience::MARGIN + obedience::ANSWER;
    assert!(
        (most..most + Duration::from_secs(1)).contains(&after),
        "{after:?}"
    );
    assert_eq!((why.grace, why.answered), (grace, false));
    let Some((_, LinkEvent::Lost { .. })) = told.recv().await else {
        panic!("its end is not told")
    };
    attended.await.unwrap();
    assert!(killed.load(Ordering::Relaxed) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_grace_counts_from_its_own_order() {
    let (link, mut told, _) = deaf();
    let (orders, heard) = watch::channel(RunnerOrders::default());
    tokio::spawn(link.attend(heard));
    let long = Duration::from_secs(900);
    orders.send_modify(|orders| orders.stop = Some((long, "replaced".into())));
    tokio::time::sleep(Duration::from_secs(60)).await;
    orders.send_modify(|orders| orders.stop = Some((Duration::ZERO, "cancelled".into())));
    let begun = Instant::now();
    let Some((_, LinkEvent::Disobeyed(why))) = told.recv().await else {
        panic!("it is not told")
    };
    assert_eq!(why.grace, Duration::ZERO);
    assert!(
        begun.elapsed() < Duration::from_secs(21),
        "{:?}",
        begun.elapsed()
    );
}
