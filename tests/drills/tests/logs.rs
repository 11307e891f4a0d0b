//! Followed logs are complete: everything that the ranks of any generation wrote reaches the
//! terminal, once and in order.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command},
};

use muster_drills::{Cluster, kill, pids, program, python, scripts, until};
use rustix::process::Signal;

/// Lines, by generation and rank.
type Lines = BTreeMap<(u64, u64), Vec<String>>;

/// A `muster` command in the background, with its output in files.
struct Follower {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Follower {
    fn start(cluster: &Cluster, name: &str, args: &[&str]) -> Self {
        let (out, err) = (
            cluster.path(&format!("{name}.out")),
            cluster.path(&format!("{name}.err")),
        );
        let mut command = Command::new(program("muster"));
        command
            .args(args)
            .env("MUSTER_LOCAL_DIR", &cluster.dir)
            .env_remove("MUSTER_SERVER");
        command
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&err).expect("a file"));
        Self {
            child: command.spawn().expect("muster can be executed"),
            out,
            err,
        }
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.out).expect("its output is UTF-8")
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.err).expect("its messages are UTF-8")
    }

    /// Waits for its end, and returns its exit code.
    fn ended(&mut self) -> Option<i32> {
        let status = until(|| self.child.try_wait().expect("it is our child"));
        status
            .unwrap_or_else(|| panic!("it goes on for ever: {}", self.said()))
            .code()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ranks' output, as it is on the nodes' disks.
fn on_disk(dir: &Path) -> Lines {
    let mut lines = Lines::new();
    for node in fs::read_dir(dir.join("nodes"))
        .expect("a local cluster has nodes")
        .flatten()
    {
        for run in fs::read_dir(node.path().join("state/runs"))
            .into_iter()
            .flatten()
            .flatten()
        {
            for log in fs::read_dir(run.path().join("logs"))
                .into_iter()
                .flatten()
                .flatten()
            {
                if log.file_name().to_string_lossy().starts_with("rank-") {
                    let text = fs::read_to_string(log.path()).expect("a log of UTF-8");
                    sort_in(
                        &mut lines,
                        text.lines()
                            .map(|line| line.splitn(4, ' ').nth(3).expect("a CRI line")),
                    );
                }
            }
        }
    }
    lines
}

fn printed(output: &str) -> Lines {
    let mut lines = Lines::new();
    sort_in(
        &mut lines,
        output
            .lines()
            .filter_map(|line| Some(line.split_once("] ")?.1)),
    );
    lines
}

fn sort_in<'a>(lines: &mut Lines, texts: impl Iterator<Item = &'a str>) {
    for text in texts {
        let numbers: Vec<u64> = text
            .split(' ')
            .filter_map(|word| word.split_once('=')?.1.parse().ok())
            .collect();
        let [generation, rank, _] = numbers[..] else {
            panic!("a line of nobody's: {text}")
        };
        lines
            .entry((generation, rank))
            .or_default()
            .push(text.to_owned());
    }
}

/// Checks that the output is complete. It compares the numbers of lines first, because a difference
/// of thousands of lines cannot be read.
fn assert_whole(follower: &Follower, written: &Lines) {
    let printed = printed(&follower.printed());
    let counts = |lines: &Lines| {
        lines
            .iter()
            .map(|(source, lines)| (*source, lines.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(counts(&printed), counts(written), "{}", follower.said());
    // The two streams of a rank are two pipes, so their lines may come in either order.
    assert!(
        printed == *written,
        "out of order: {printed:#?} {written:#?}"
    );
}

fn run<'a>(
    python: &'a str,
    script: &'a str,
    name: &'a str,
    flags: &[&'a str],
    args: &[&'a str],
) -> Vec<&'a str> {
    let head = [
        "run",
        "--name",
        name,
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--python",
        python,
    ];
    [&head, flags, &["--", script], args].concat()
}

#[test]
fn a_follow_goes_on_over_a_killed_coordinator_and_a_killed_rank_without_losing_a_line() {
    let cluster = Cluster::up(2);
    let (python, script) = (python(), scripts().join("lines.py").display().to_string());
    cluster.muster(run(&python, &script, "job", &[], &["--endless"]));
    let mut follower = Follower::start(&cluster, "follow", &["logs", "job", "-f", "--prefix"]);
    let talk = |follower: &Follower, lines: usize| {
        let all = || {
            printed(&follower.printed())
                .values()
                .filter(|printed| printed.len() > lines)
                .count()
                == 4
        };
        assert!(
            until(|| all().then_some(())).is_some(),
            "all four ranks are followed: {}",
            follower.said()
        );
        printed(&follower.printed())
            .values()
            .map(Vec::len)
            .max()
            .unwrap_or(0)
    };
    let before = talk(&follower, 10);
    cluster.muster(["local", "kill-coordinator"]);
    cluster.muster(["local", "start-coordinator"]);
    talk(&follower, before + 10);
    let status = cluster.wait("job", "of four ranks again", |status| {
        pids(status).len() == 4
    });
    kill(pids(&status)[1], Signal::KILL);
    assert_eq!(follower.ended(), Some(0), "{}", follower.said());
    let written = on_disk(&cluster.dir);
    assert_eq!(
        written.keys().map(|(generation, _)| *generation).max(),
        Some(2)
    );
    assert_eq!(written.len(), 8, "both generations of four ranks");
    assert_whole(&follower, &written);
    assert!(
        !follower.said().contains("missing here"),
        "{}",
        follower.said()
    );
}

#[test]
fn every_line_of_a_script_that_is_soon_over_is_followed() {
    let cluster = Cluster::up(2);
    let (python, script) = (python(), scripts().join("lines.py").display().to_string());
    for attempt in 0..6 {
        let name = format!("short-{attempt}");
        let mut follower = Follower::start(
            &cluster,
            &name,
            &run(&python, &script, &name, &["--follow"], &["--lines", "20"]),
        );
        assert_eq!(follower.ended(), Some(0), "{}", follower.said());
        let printed = printed(&follower.printed());
        let counts: Vec<_> = printed
            .iter()
            .map(|(source, lines)| (*source, lines.len()))
            .collect();
        assert_eq!(
            counts,
            [((1, 0), 20), ((1, 1), 20), ((1, 2), 20), ((1, 3), 20)],
            "{name}: {}",
            follower.said()
        );
    }
}

#[test]
fn a_progress_bar_is_seen_while_it_stands_and_what_started_it_can_be_read() {
    let cluster = Cluster::up(1);
    let (python, script) = (python(), scripts().join("lines.py").display().to_string());
    let go = cluster.path("go").display().to_string();
    cluster.muster([
        "run", "--name", "job", "--python", &python, "--", &script, "--bar", &go,
    ]);
    let mut follower = Follower::start(&cluster, "follow", &["logs", "job", "-f"]);
    assert!(
        until(|| (follower.printed() == "\r 10%\r 50%").then_some(())).is_some(),
        "{:?}",
        follower.printed()
    );
    fs::write(&go, "").expect("a file");
    assert_eq!(follower.ended(), Some(0), "{}", follower.said());
    assert_eq!(follower.printed(), "\r 10%\r 50%\r100%\n");
    // In the default lane the launcher writes nothing unless something goes wrong.
    let launcher = cluster.try_muster(["logs", "job", "--launcher", "--node", "node-1"]);
    let said = String::from_utf8_lossy(&launcher.stderr).into_owned();
    assert_eq!(
        (launcher.status.code(), said.as_str()),
        (Some(0), ""),
        "its log is there, be it empty"
    );
}
