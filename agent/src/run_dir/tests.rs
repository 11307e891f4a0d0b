use std::{
    fs::{DirBuilder, File, Permissions},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    time::UNIX_EPOCH,
};

use rustix::fs::{FileType, Mode, OFlags};

use super::*;

fn run(job: &str, generation: u64) -> RunId {
    RunId {
        job: JobUid::from(job),
        generation: Generation(generation),
    }
}

fn with(names: &[(&str, u64)]) -> (tempfile::TempDir, Runs) {
    let dir = tempfile::tempdir().unwrap();
    let runs = Runs::new(dir.path());
    for (job, generation) in names {
        fs::create_dir_all(runs.dir(&run(job, *generation))).unwrap();
    }
    (dir, runs)
}

/// Writes the runner's record of a rank that a signal ended, after a stop with this grace, or
/// without a stop.
fn note_end(runs: &Runs, run: &RunId, signal: i32, grace_ms: Option<u64>) {
    let stop = grace_ms
        .map(|grace| format!(r#","stop":{{"reason":"","asked_us":10,"grace_ms":{grace}}}"#))
        .unwrap_or_default();
    let rank = r#""rank":0,"local_rank":0,"pid":1,"start_time":1,"started_us":1,"exited_us":11"#;
    let exit = format!(r#""exit":{{"signal":{signal},"core":false}}"#);
    let outcome = format!(
        r#"{{"v":1,"job":"a","generation":1,"phase":"dead","now_us":12,"ranks":[{{{rank},{exit}}}]{stop}}}"#
    );
    fs::write(
        runs.dir(run).join(record::OUTCOME),
        muster_sealed::seal(outcome.into_bytes()),
    )
    .unwrap();
    fs::write(runs.dir(run).join(record::RUNNER), "").unwrap();
}

#[test]
fn a_name_is_read_back() {
    let (_dir, runs) = with(&[("0a-1b", 12), ("x-g3", 4)]);
    fs::create_dir_all(runs.dir(&run("a", 1)).with_file_name("lost+found")).unwrap();
    assert_eq!(runs.open().unwrap(), vec![run("0a-1b", 12), run("x-g3", 4)]);
}

#[test]
fn released_runs_are_kept_for_their_logs_up_to_a_bound() {
    let names: Vec<(&str, u64)> = (1..=6)
        .map(|generation| ("a", generation))
        .chain([("b", 1)])
        .collect();
    let (_dir, runs) = with(&names);
    for generation in 1..=5 {
        runs.release(&run("a", generation)).unwrap();
    }
    assert_eq!(runs.open().unwrap(), vec![run("a", 6), run("b", 1)]);
    let all = runs.all().unwrap();
    assert_eq!(
        all,
        vec![
            run("a", 2),
            run("a", 3),
            run("a", 4),
            run("a", 5),
            run("a", 6),
            run("b", 1)
        ]
    );
    runs.release(&run("c", 1)).unwrap();
    assert_eq!(
        runs.all().unwrap(),
        all,
        "a run that is not there is nothing"
    );
}

#[test]
fn a_run_that_is_emptied_leaves_a_note_and_no_log() {
    let (_dir, runs) = with(&[("a", 1), ("b", 1), ("b", 2)]);
    for run in [run("a", 1), run("b", 1), run("b", 2)] {
        let logs = runs.dir(&run).join(record::LOGS);
        fs::create_dir_all(&logs).unwrap();
        fs::write(logs.join("rank-0.log"), vec![b'x'; 100 << 10]).unwrap();
    }
    let runs = runs.keeping(150 << 10);
    runs.release(&run("a", 1)).unwrap();
    assert_eq!(runs.emptied(&run("a", 1)), None, "there is room");
    // The two ends must not fall into one tick of the file system's clock.
    let released = runs.dir(&run("a", 1)).join(RELEASED);
    let released = File::options().write(true).open(released).unwrap();
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(1);
    released.set_modified(before).unwrap();
    runs.release(&run("b", 1)).unwrap();
    // Of job b a run goes on, so the run of job a goes first.
    assert_eq!(runs.emptied(&run("a", 1)).unwrap().limit, 150 << 10);
    assert!(!runs.dir(&run("a", 1)).join(record::LOGS).exists());
    assert_eq!(runs.emptied(&run("b", 1)), None);
    assert_eq!(runs.generations(&JobUid::from("a")).unwrap(), []);
    assert_eq!(runs.open().unwrap(), [run("b", 2)]);
    // What is released twice is as much as before, and a run that goes on is never emptied.
    runs.release(&run("b", 1)).unwrap();
    runs.clone().keeping(0).release(&run("b", 1)).unwrap();
    assert_eq!(runs.emptied(&run("b", 1)), None, "it ended last");
    assert!(runs.dir(&run("b", 2)).join(record::LOGS).exists());
    runs.purge(&run("a", 1)).unwrap();
    assert!(!runs.dir(&run("a", 1)).exists());
}

#[test]
fn the_first_generation_that_failed_is_kept_too() {
    let names: Vec<(&str, u64)> = (1..=9).map(|generation| ("a", generation)).collect();
    let (_dir, runs) = with(&names);
    // The generations: resized, failed, broken by another node, failed, failed, ...
    note_end(&runs, &run("a", 1), 15, Some(30_000));
    note_end(&runs, &run("a", 2), 9, None);
    note_end(&runs, &run("a", 3), 9, Some(0));
    (4..=9).for_each(|generation| note_end(&runs, &run("a", generation), 9, None));
    for generation in 1..=9 {
        runs.release(&run("a", generation)).unwrap();
    }
    let kept: Vec<u64> = runs
        .generations(&JobUid::from("a"))
        .unwrap()
        .into_iter()
        .map(|generation| generation.0)
        .collect();
    assert_eq!(kept, [2, 6, 7, 8, 9]);
}

#[test]
fn what_fell_with_another_node_s_rank_failed_and_what_was_stopped_for_a_resize_did_not() {
    let (_dir, runs) = with(&[("a", 1)]);
    let run = run("a", 1);
    for (signal, grace, failed) in [
        (15, Some(30_000), false),
        (9, Some(0), true),
        (9, None, true),
    ] {
        note_end(&runs, &run, signal, grace);
        assert_eq!(runs.has_failed(&run), failed, "{signal} {grace:?}");
    }
    fs::remove_file(runs.dir(&run).join(record::OUTCOME)).unwrap();
    assert!(runs.has_failed(&run), "its runner was lost");
    fs::remove_file(runs.dir(&run).join(record::RUNNER)).unwrap();
    assert!(!runs.has_failed(&run), "nothing was ever started");
}

#[test]
fn a_purge_takes_one_job_up_to_its_generation() {
    let (_dir, runs) = with(&[("a", 1), ("a", 2), ("a", 3), ("ab", 1)]);
    runs.purge(&run("a", 2)).unwrap();
    assert_eq!(runs.all().unwrap(), vec![run("a", 3), run("ab", 1)]);
}

#[test]
fn a_run_is_released_whatever_its_script_has_left() {
    let (_dir, runs) = with(&[("a", 1)]);
    let dir = runs.dir(&run("a", 1));
    fs::write(dir.join("rank-0.log"), vec![b'x'; 64 << 10]).unwrap();
    let name = "d".repeat(200);
    fs::create_dir(dir.join("errors")).unwrap();
    // The path of the last one is longer than the kernel takes, so each is made from above.
    let mut at = rustix::fs::open(dir.join("errors"), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..40 {
        rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let closed = dir.join("closed");
    DirBuilder::new().mode(0o000).create(&closed).unwrap();
    runs.release(&run("a", 1)).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    assert_eq!(runs.open().unwrap(), []);
    let bytes = runs.ended(run("a", 1)).bytes;
    assert!(bytes >= 64 << 10, "{bytes}");
}

#[test]
fn only_so_many_files_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("0"), [b'x'; 4096]).unwrap();
    let one = bytes_below(dir.path());
    assert!(one >= 4096);
    for n in 1..20 {
        fs::hard_link(dir.path().join("0"), dir.path().join(n.to_string())).unwrap();
    }
    assert_eq!(bytes_below(dir.path()), one * 20);
    assert_eq!(bytes_of(dir.path(), 7), one * 7);
}

#[test]
fn the_number_of_bytes_is_read_from_nothing_but_a_small_file() {
    let (outside, runs) = with(&[("a", 1), ("b", 1), ("b", 2)]);
    let (a, b) = (run("a", 1), run("b", 1));
    let (dir, target) = (runs.dir(&a), outside.path().join("target"));
    let released = dir.join(RELEASED);
    fs::write(dir.join("rank-0.log"), vec![b'x'; 64 << 10]).unwrap();
    fs::write(&target, "7").unwrap();
    let bytes = || runs.ended(a.clone()).bytes;

    fs::write(&released, "7\n").unwrap();
    assert_eq!(bytes(), 7);
    fs::remove_file(&released).unwrap();
    std::os::unix::fs::symlink(&target, &released).unwrap();
    assert!(bytes() >= 64 << 10, "a link");
    fs::remove_file(&released).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &released, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(bytes() >= 64 << 10, "a FIFO");
    fs::remove_file(&released).unwrap();
    fs::write(&released, format!("{}7", " ".repeat(32))).unwrap();
    assert!(bytes() >= 64 << 10, "a long file");

    fs::write(&released, u64::MAX.to_string()).unwrap();
    assert_eq!(bytes(), u64::MAX);
    let file = File::options().write(true).open(&released).unwrap();
    file.set_modified(UNIX_EPOCH).unwrap();
    runs.release(&b).unwrap();
    assert!(runs.emptied(&a).is_some());
    assert_eq!(runs.emptied(&b), None);
}

#[test]
fn a_damaged_note_is_none() {
    let (_dir, runs) = with(&[("a", 1)]);
    let (run, path) = (run("a", 1), runs.dir(&run("a", 1)).join(LOST));
    runs.note_lost(
        &run,
        &Lost {
            boot_id: "b".into(),
            at_us: 77,
        },
    )
    .unwrap();
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let flips = (0..8).map(|bit| {
            whole
                .iter()
                .enumerate()
                .map(|(i, byte)| byte ^ u8::from(i == at) << bit)
                .collect()
        });
        for damaged in flips.chain([whole[..at].to_vec()]) {
            fs::write(&path, damaged).unwrap();
            assert_eq!(runs.lost(&run), None, "at {at}");
        }
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(runs.lost(&run).unwrap().at_us, 77);
}

/// A machine or a pod with one run, and a secret outside.
struct Site {
    dir: tempfile::TempDir,
    runs: Runs,
    run: RunId,
}

impl Site {
    fn new(in_pod: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("state")).unwrap();
        fs::create_dir_all(dir.path().join("volume")).unwrap();
        let runs = match in_pod {
            true => Runs::new(&dir.path().join("volume")).noting(&dir.path().join("state")),
            false => Runs::new(&dir.path().join("state")),
        };
        fs::write(dir.path().join("state/ledger.json"), "the ledger").unwrap();
        let run = run("a", 1);
        runs.make(&run, &accepted()).unwrap();
        fs::write(runs.dir(&run).join(record::RUNNER), "").unwrap();
        Self { dir, runs, run }
    }

    fn both() -> [Self; 2] {
        [false, true].map(Self::new)
    }

    fn ledger(&self) -> PathBuf {
        self.dir.path().join("state/ledger.json")
    }

    fn is_whole(&self) -> bool {
        fs::read(self.ledger()).is_ok_and(|text| text == b"the ledger")
    }
}

fn accepted() -> Accepted {
    serde_json::from_str(r#"{"term":3,"gpus":["GPU-1"]}"#).unwrap()
}

#[test]
fn notes_are_read_back_wherever_they_lie() {
    for site in Site::both() {
        let Site { runs, run, .. } = &site;
        assert_eq!(runs.accepted(run), Some(accepted()));
        assert_eq!(runs.open().unwrap(), vec![run.clone()]);
        runs.release(run).unwrap();
        assert!(runs.is_released(run) && runs.open().unwrap().is_empty());
        runs.empty(run).unwrap();
        assert!(runs.emptied(run).is_some() && runs.is_released(run));
        assert_eq!(runs.generations(&run.job).unwrap(), []);
        runs.purge(run).unwrap();
        assert!(runs.all().unwrap().is_empty() && runs.emptied(run).is_none());
    }
}

#[test]
fn links_in_the_place_of_notes_reach_nothing_outside() {
    for site in Site::both() {
        let Site { runs, run, .. } = &site;
        let dir = runs.dir(run);
        // The names that earlier agents wrote first, and those of the notes.
        for name in [ACCEPTED, LOST, RELEASED, EMPTIED] {
            let _ = fs::remove_file(dir.join(name));
            for name in [format!(".{name}.tmp"), format!("{name}.tmp")] {
                std::os::unix::fs::symlink(site.ledger(), dir.join(name)).unwrap();
            }
            std::os::unix::fs::symlink(site.ledger(), dir.join(name)).unwrap();
        }
        let _ = (runs.accepted(run), runs.lost(run), runs.emptied(run));
        runs.note_lane(run, &accepted()).unwrap();
        assert_eq!(runs.accepted(run), Some(accepted()));
        runs.release(run).unwrap();
        runs.empty(run).unwrap();
        runs.purge(run).unwrap();
        assert!(site.is_whole() && !dir.exists());
    }
}

#[test]
fn a_link_in_the_place_of_a_run_takes_nothing_outside_with_it() {
    for site in Site::both() {
        let Site { runs, run, .. } = &site;
        let dir = runs.dir(run);
        fs::rename(&dir, site.dir.path().join("aside")).unwrap();
        std::os::unix::fs::symlink(site.dir.path().join("state"), &dir).unwrap();
        assert!(!runs.had_runner(run));
        assert!(runs.empty(run).is_err());
        assert!(runs.make(run, &accepted()).is_err());
        runs.release(run).unwrap();
        assert!(site.is_whole() && fs::symlink_metadata(&dir).is_err());
    }
}

#[test]
fn in_a_pod_workers_cannot_change_what_the_agent_has_noted() {
    let site = Site::new(true);
    let Site {
        runs, run: first, ..
    } = &site;
    for name in [ACCEPTED, LOST, RELEASED, EMPTIED] {
        fs::write(runs.dir(first).join(name), "0").unwrap();
    }
    assert_eq!(runs.accepted(first), Some(accepted()));
    assert_eq!((runs.lost(first), runs.emptied(first)), (None, None));
    assert_eq!(runs.open().unwrap(), vec![first.clone()]);
    // An earlier agent has left its notes there.
    let old = Runs::new(&site.dir.path().join("volume"));
    let earlier = run("a", 2);
    old.make(&earlier, &accepted()).unwrap();
    assert_eq!(runs.accepted(&earlier), Some(accepted()));
    old.release(&earlier).unwrap();
    assert_eq!(runs.open().unwrap(), vec![first.clone()]);
}

#[test]
fn a_run_that_cannot_be_removed_holds_up_no_other() {
    let names: Vec<(&str, u64)> = (1..=7).map(|generation| ("a", generation)).collect();
    let (dir, runs) = with(&names);
    for generation in 1..=6 {
        fs::write(runs.dir(&run("a", generation)).join(RELEASED), "0").unwrap();
    }
    // Nothing can be removed from a file system that is mounted there.
    let stuck = Mounted::at(&runs.dir(&run("a", 2)).join("mnt"));
    let removed = runs.release(&run("a", 7));
    let left = runs.all().unwrap();
    let left: Vec<u64> = left.iter().map(|run| run.generation.0).collect();
    drop(stuck);
    drop(dir);
    assert!(removed.is_err());
    assert_eq!(left, [2, 4, 5, 6, 7]);
}

/// A file system in memory that ends with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn at(path: &Path) -> Self {
        fs::create_dir(path).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("muster-test", path, "tmpfs", flags, None).unwrap();
        Self(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        rustix::mount::unmount(&self.0, flags).unwrap();
    }
}
