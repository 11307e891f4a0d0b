//! What workers print. It is kept in bounded logs, is searched for progress, and never delays
//! control.
#![allow(clippy::unwrap_used)]

mod rig;

use std::time::{Duration, Instant};

use rig::Rig;

#[test]
fn logs_are_in_the_format_of_container_runtimes() {
    let rig = Rig::new();
    let mut client = rig.ready();
    client.start(rig.ranks(
        1,
        "echo out; echo err >&2; printf 'no end'; echo launcher >&2",
    ));
    client.until_dead();
    let log = rig.log("rank-0.log");
    let mut lines: Vec<(&str, &str, &str)> = Vec::new();
    for line in log.lines() {
        let mut parts = line.splitn(4, ' ');
        let stamp = parts.next().unwrap();
        assert_eq!(
            (stamp.len(), &stamp[10..11], &stamp[29..]),
            (30, "T", "Z"),
            "{stamp}"
        );
        lines.push((
            parts.next().unwrap(),
            parts.next().unwrap(),
            parts.next().unwrap(),
        ));
    }
    lines.sort_unstable();
    let expected = [
        ("stderr", "F", "err"),
        ("stderr", "F", "launcher"),
        ("stdout", "F", "out"),
        ("stdout", "F:E", "no end"),
    ];
    assert_eq!(lines, expected);
    assert!(rig.log("launcher.log").contains("rank 0 ended as 0"));
}

#[test]
fn a_flood_neither_fills_the_disk_nor_delays_an_answer() {
    let mut rig = Rig::new();
    rig.hold.log_bytes = 1 << 20;
    let mut client = rig.ready();
    client.start(rig.ranks(
        2,
        "echo step 1; exec yes 'a line of output that never ends, step 2 of it'",
    ));
    client.until_stepping(2);
    let flooded = |s: &muster_runner::wire::Status| s.ranks.iter().all(|r| r.log_bytes > 32 << 20);
    client.until(flooded);
    let mut second = rig.client();
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let asked = Instant::now();
        second.status();
        slowest = slowest.max(asked.elapsed());
    }
    let runner = rig.identity().pid;
    let status = std::fs::read_to_string(format!("/proc/{runner}/status")).unwrap();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    let asked = Instant::now();
    client.stop(Duration::ZERO);
    let bytes: u64 = client.until_dead().ranks.iter().map(|r| r.log_bytes).sum();
    println!(
        "slowest of 50 answers {slowest:?}, stop to proof {:?}, peak {peak} KiB, {bytes} bytes",
        asked.elapsed()
    );
    // An idle machine needs milliseconds. The bound only distinguishes "served" from "starved".
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert!(peak < 16 << 10, "{peak} KiB");
    for rank in ["rank-0.log", "rank-1.log"] {
        let files = std::fs::read_dir(rig.dir.join("logs"))
            .unwrap()
            .map(Result::unwrap);
        let parts: Vec<_> = files
            .filter(|file| file.file_name().to_str().unwrap().starts_with(rank))
            .collect();
        assert_eq!(parts.len(), 2, "{parts:?}");
        for part in parts {
            let size = part.metadata().unwrap().len();
            assert!(size <= rig.hold.log_bytes, "{part:?}: {size}");
        }
    }
}

#[test]
fn steps_are_told_first_at_once_and_then_the_latest() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let script = "echo warming up; echo 'step 10/100 loss 1.0'; while [ ! -e $DIR/go ]; do sleep 0.01; done; echo 'global_step=11' >&2; while :; do sleep 1000; done";
    client.start(rig.ranks(1, script));
    let first = client.until_stepping(1).ranks[0].clone();
    assert_eq!((first.first_step, first.last_step), (Some(10), Some(10)));
    assert!(first.first_step_us.unwrap() >= first.started_us);
    std::fs::write(rig.dir.join("go"), "").unwrap();
    let later = client.until(|s| s.ranks[0].last_step == Some(11)).ranks[0].clone();
    assert_eq!(
        (later.first_step, later.first_step_us),
        (Some(10), first.first_step_us)
    );
    assert!(later.last_step_us > first.last_step_us);
}

/// What the Trainer of transformers writes: a bar on stderr, and on stdout what says that it trains.
#[test]
fn a_bar_is_a_step_as_soon_as_it_is_known_to_be_one_of_training() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let bar = |step| format!("printf '\\r 17%%|#  | {step}/24 [00:00<00:04,  5.00it/s]' >&2");
    let script = format!(
        "printf '\\rLoading weights:  50%%|#  | 1/2 [00:09<00:09,  9.00s/it]\\n' >&2; {}; sleep 0.4; while [ ! -e $DIR/go ]; do sleep 0.01; done; echo \"{{'loss': '3.9', 'epoch': '0.3'}}\"; {}; sleep 1000",
        bar(3),
        bar(4)
    );
    client.start(rig.ranks(1, &script));
    let before = client.until(|s| s.ranks.first().is_some_and(|rank| rank.stepless_lines > 1));
    assert_eq!(before.ranks[0].last_step, None);
    std::fs::write(rig.dir.join("go"), "").unwrap();
    let rank = client.until_stepping(1).ranks[0].clone();
    assert_eq!((rank.first_step, rank.total_steps), (Some(4), Some(24)));
    assert_eq!(rank.step_format.as_deref(), Some("tqdm"));
    assert_eq!(
        (rank.loss.as_deref(), rank.rate.as_deref()),
        (Some("3.9"), Some("5.00 it/s"))
    );
}

#[test]
fn an_operator_may_bring_formats() {
    let mut rig = Rig::new();
    rig.hold.step_formats = Some("ours  tick {step} of {total}\n".into());
    let mut client = rig.ready();
    client.start(rig.ranks(1, "echo tick 3 of 9"));
    let rank = client.until_dead().ranks[0].clone();
    assert_eq!((rank.first_step, rank.total_steps), (Some(3), Some(9)));
    assert_eq!(rank.step_format.as_deref(), Some("ours"));
}

#[test]
fn a_job_may_bring_its_own_step_pattern() {
    let mut rig = Rig::new();
    rig.hold.step_pattern = Some(r"iter\((\d+)\)".into());
    let mut client = rig.ready();
    client.start(rig.ranks(1, "echo step 3; echo 'iter(41)'"));
    let rank = client.until_dead().ranks[0].clone();
    assert_eq!((rank.first_step, rank.last_step), (Some(41), Some(41)));
}

#[test]
fn what_a_rank_leaves_behind_keeps_its_log_open_until_the_end() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let script = "setsid sh -c 'while [ ! -e $DIR/go ]; do sleep 0.01; done; echo late; touch $DIR/said; sleep 1000' & [ $RANK = 0 ] || while :; do sleep 1000; done";
    client.start(rig.ranks(2, script));
    client.until(|s| s.ranks.len() == 2 && s.ranks[0].exit.is_some());
    std::fs::write(rig.dir.join("go"), "").unwrap();
    client.until(|s| s.ranks[0].log_bytes > 0);
    assert!(rig.log("rank-0.log").contains("stdout F late"));
}

#[test]
fn a_log_that_cannot_be_written_does_not_stop_the_worker() {
    let rig = Rig::new();
    let mut client = rig.ready();
    // A link in place of the log is refused. The shim says why where torchrun's own output goes.
    std::os::unix::fs::symlink("/etc/passwd", rig.dir.join("logs/rank-0.log")).unwrap();
    client.start(rig.ranks(1, "echo hello"));
    client.until_dead();
    let log = rig.log("launcher.log");
    assert!(
        log.contains("muster-shim: refused by the runner: rank-0.log: it is a link"),
        "{log}"
    );
}

#[test]
fn the_beginning_of_a_line_is_in_the_log_before_its_end() {
    let rig = Rig::new();
    let mut client = rig.ready();
    let script = "printf '\\rstep 1/9'; printf '\\rstep 2/9'; while [ ! -e $DIR/go ]; do sleep 0.01; done; printf '\\rstep 9/9\\n'";
    client.start(rig.ranks(1, script));
    // Only a step that is followed by another is certainly complete.
    client.until(|s| {
        s.ranks
            .first()
            .is_some_and(|rank| rank.last_step == Some(1))
    });
    let log = rig.log("rank-0.log");
    assert!(log.ends_with(" stdout P \rstep 1/9\rstep 2/9\n"), "{log:?}");
    std::fs::write(rig.dir.join("go"), "").unwrap();
    let rank = client.until_dead().ranks[0].clone();
    assert_eq!((rank.first_step, rank.last_step), (Some(1), Some(9)));
    assert!(rig.log("rank-0.log").ends_with(" stdout F \rstep 9/9\n"));
}
