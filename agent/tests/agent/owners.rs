//! Jobs that run as their owners, on an agent of root. The users have numbers that no machine has, so
//! nothing is left on it.
//!
//! Only root can become somebody else. Without root these tests say so, and test nothing.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

use muster_core::{
    run::{Assignment, DueTo, LauncherState, Owner, RunPhase},
    spec::Launch,
};
use muster_proto::v1::{LogRead, coordinator_message::Message as Down};
use muster_runner::{RunnerIdentity, procfs};

use crate::rig::{
    Coordinator, Node, Session, alive,
    node::{gone, ready, run, running, stopped},
    wait_gone,
};

const ANN: u32 = 71_001;
const BOB: u32 = 71_002;
const USERS: &str = "ann 71001:71001:71010:/tmp:/bin/bash\nbob 71002:71002\ncid 71003:71003\n";

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("NOT TESTED: only root can start a job as another user");
    }
    root
}

fn of(owner: &str, assignment: Assignment) -> Assignment {
    Assignment {
        owner: Some(Owner::User(owner.into())),
        ..assignment
    }
}

async fn node() -> (Coordinator, Node, Session) {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::of_owners("n1", USERS);
    node.start(&coordinator.url());
    let session = coordinator.welcome(1, 1).await;
    (coordinator, node, session)
}

async fn until_stepped(session: &mut Session, job: &str) {
    let id = run(job, 1);
    let stepped = |s: &Session| {
        { s.run(&id) }.is_some_and(|r| r.ranks.iter().any(|rank| rank.first_step.is_some()))
    };
    session.until(&format!("a step of {job}"), stepped).await;
}

/// The user and the group of a process, each real, effective, saved and of the file system.
fn ids(pid: u32) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let is_id = |line: &&str| {
        ["Uid:", "Gid:", "Groups:"]
            .iter()
            .any(|name| line.starts_with(name))
    };
    let lines = status.lines().filter(is_id);
    lines
        .map(|line| {
            line.split_whitespace()
                .skip(1)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

async fn end(session: &mut Session, jobs: &[&str]) {
    let stop = |job: &&str| stopped(job, 1, std::time::Duration::ZERO);
    session.desire(jobs.iter().map(stop).collect()).await;
    for job in jobs {
        session.until_phase(&run(job, 1), RunPhase::Dead).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_a_job_is_its_owner_and_the_agent_finds_and_reads_it_again() {
    if !is_root() {
        return;
    }
    let (mut coordinator, mut node, mut session) = node().await;
    // A folder that nobody but its owner can enter, as root cannot on a file server that squashes it.
    let home = node.path("home");
    fs::create_dir(&home).unwrap();
    fs::rename(node.path("train.py"), home.join("train.py")).unwrap();
    chown(&home, Some(ANN), Some(ANN)).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    let job = Assignment {
        working_dir: Some(home.display().to_string()),
        ..of("ann", node.assignment("job-a", 1))
    };
    session.desire(vec![running(job)]).await;
    until_stepped(&mut session, "job-a").await;
    let id = run("job-a", 1);
    let rank = session.run(&id).unwrap().ranks[0].pid;
    let runner = RunnerIdentity::read(&node.run_dir(&id)).unwrap().unwrap();
    let keeper = runner.keeper.as_ref().unwrap().pid as u32;
    let four = |id: u32| vec![id.to_string(); 4].join(" ");
    for pid in [rank, runner.pid as u32, keeper] {
        assert_eq!(
            ids(pid),
            [four(ANN), four(ANN), "71010".into()],
            "process {pid}"
        );
    }
    let environment = fs::read_to_string(node.path("out/environment-0")).unwrap();
    for line in ["HOME=/tmp", "USER=ann", "LOGNAME=ann", "SHELL=/bin/bash"] {
        assert!(
            environment.lines().any(|known| known == line),
            "{line}: {environment}"
        );
    }
    let about = fs::metadata(node.run_dir(&id)).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o777), (ANN, 0o700));

    // The next agent finds the run, its log, and how to end it.
    node.kill_agent();
    session.until_ended().await;
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session.until_phase(&id, RunPhase::Running).await;
    assert!(alive(rank), "a restart of the agent ends nothing");
    let read = LogRead {
        id: 1,
        job_uid: "job-a".into(),
        generation: 1,
        rank: 0,
        window: 64,
        ..LogRead::default()
    };
    session.say(Down::LogRead(read)).await;
    session
        .until("the log", |s| s.chunks.iter().any(|chunk| chunk.end))
        .await;
    let lines = session.chunks.iter().flat_map(|chunk| &chunk.lines);
    assert!(
        lines
            .clone()
            .any(|line| line.ends_with("step 1 of generation 1")),
        "{:?}",
        session.chunks
    );
    end(&mut session, &["job-a"]).await;
    assert!(!alive(rank));
    session.desire(vec![gone("job-a", 1, true)]).await;
    session.until("gone", |s| s.run(&id).is_none()).await;
    session.settle().await;
    wait_gone(keeper);
    while node.run_dir(&id).exists() {
        session.settle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_account_here_is_told_so_and_nothing_is_started() {
    if !is_root() {
        return;
    }
    let (_coordinator, node, mut session) = node().await;
    let cases = [
        (
            Some(Owner::User("eve".into())),
            "the job's owner eve is not in the list of users (--user-map) on n1",
        ),
        (
            Some(Owner::Local(0)),
            "the job's owner user 0 is not in the list of users (--user-map) on n1",
        ),
        (None, "the job has no owner whose name is proven"),
    ];
    for (i, (owner, why)) in cases.into_iter().enumerate() {
        let id = run(&format!("job-{i}"), 1);
        let job = Assignment {
            owner,
            ..node.assignment(id.job.as_str(), 1)
        };
        session.desire(vec![running(job.clone())]).await;
        let refused = |s: &Session| matches!(s.phase(&id), Some(RunPhase::Refused(_)));
        session.until("refused", refused).await;
        let report = session.run(&id).unwrap();
        let Some(RunPhase::Refused(said)) = session.phase(&id) else {
            unreachable!("it was awaited")
        };
        assert!(said.starts_with(why), "{said}");
        assert_eq!(report.refused_due_to, DueTo::Account);
        assert!(!node.run_dir(&id).exists());
        // Nor does a launcher that is asked for ahead.
        session.desire(vec![gone(id.job.as_str(), 1, false)]).await;
        let coming = Assignment {
            run: run(id.job.as_str(), 2),
            launch: Launch::Fork,
            ..job
        };
        session.prewarm(vec![coming]).await;
        let told = |s: &Session| {
            let of_job = |l: &&muster_core::run::LauncherReport| l.job == id.job;
            matches!(
                s.launchers.iter().find(of_job).map(|l| &l.state),
                Some(LauncherState::Refused(_))
            )
        };
        session.until("a refused launcher", told).await;
    }
    let map = node.path("users");
    fs::set_permissions(&map, fs::Permissions::from_mode(0o666)).unwrap();
    let (code, said) = node.fail("http://127.0.0.1:1");
    assert!(
        code == 2 && said.contains("others can write it"),
        "{code} {said}"
    );
}

/// Tries what a neighbour must not do, and says what could be done.
const NEIGHBOUR: &str = r#"try() { what=$1; shift; if "$@" > /dev/null 2>&1; then echo "$what" >> "$OUT/done-$ME"; fi; }
: > "$OUT/done-$ME"
try log cat "$DIR/logs/rank-0.log"
try folder ls "$DIR"
try socket cd "$DIR"
try environment grep -q . "/proc/$PID/environ"
try files ls "/proc/$PID/fd/0"
try rank kill -0 "$PID"
try runner kill -0 "$RUNNER"
try runs ls "$STATE/runs"
try ledger cat "$STATE/ledger.json"
try notes ls "$STATE/notes/runs"
try write touch "$STATE/runs/new"
echo "step 1"
exec sleep 1000000
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_reads_signals_and_reaches_nothing_of_another_user() {
    if !is_root() {
        return;
    }
    let (_coordinator, node, mut session) = node().await;
    let first = running(of("ann", node.assignment("job-a", 1)));
    session.desire(vec![first.clone()]).await;
    until_stepped(&mut session, "job-a").await;
    let id = run("job-a", 1);
    let rank = session.run(&id).unwrap().ranks[0].pid;
    let runner = RunnerIdentity::read(&node.run_dir(&id)).unwrap().unwrap();
    node.script("neighbour.py", NEIGHBOUR);
    let neighbour = |me: &str, job: &str| {
        let mut assignment = of(me, node.assignment(job, 1));
        assignment.args = vec!["neighbour.py".into()];
        let told = [
            ("ME", me.to_owned()),
            ("DIR", node.run_dir(&id).display().to_string()),
            ("PID", rank.to_string()),
            ("RUNNER", runner.pid.to_string()),
            ("STATE", node.path("state").display().to_string()),
        ];
        assignment
            .env
            .extend(told.map(|(name, value)| (name.to_owned(), value)));
        running(assignment)
    };
    session
        .desire(vec![
            first,
            neighbour("bob", "job-b"),
            neighbour("ann", "job-c"),
        ])
        .await;
    until_stepped(&mut session, "job-b").await;
    until_stepped(&mut session, "job-c").await;
    let done = |me: &str| fs::read_to_string(node.path(&format!("out/done-{me}"))).unwrap();
    assert_eq!(done("bob"), "", "another user");
    // The same things can be done: her own other job does them.
    let own = [
        "log",
        "folder",
        "socket",
        "environment",
        "files",
        "rank",
        "runner",
    ];
    assert_eq!(done("ann").lines().collect::<Vec<_>>(), own);
    assert_eq!(
        ids(session.run(&run("job-b", 1)).unwrap().ranks[0].pid)[0]
            .split(' ')
            .next(),
        Some(BOB.to_string().as_str())
    );
    end(&mut session, &["job-a", "job-b", "job-c"]).await;
}

/// Whether everybody can enter all folders on the way to a file, and read it.
fn is_for_all(path: &Path) -> bool {
    let Ok(path) = fs::canonicalize(path) else {
        return false;
    };
    let mode = |path: &Path| fs::metadata(path).map_or(0, |about| about.mode());
    path.ancestors().all(|at| mode(at) & 0o001 != 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_and_what_is_forked_from_it_are_the_owner() {
    if !is_root() {
        return;
    }
    let python = std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON must name a Python with torch; `make test` sets it");
    if !is_for_all(Path::new(&python)) || !Path::new(&python).ancestors().skip(1).all(is_for_all) {
        eprintln!("NOT TESTED: {python} is where other users cannot enter");
        return;
    }
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::of_owners("n1", USERS);
    node.flags.extend(["--warm-pool", "2"].map(str::to_owned));
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    node.script(
        "train.py",
        "import time\nprint('step 1', flush=True)\ntime.sleep(1000000)",
    );
    let job = |owner: &str, name: &str| Assignment {
        command: vec![python.clone()],
        launch: Launch::Fork,
        // What a job sets itself, no launcher of the pool has.
        env: Default::default(),
        ..of(owner, node.assignment(name, 1))
    };
    session
        .desire(vec![ready(job("ann", "job-a")), ready(job("bob", "job-b"))])
        .await;
    for name in ["job-a", "job-b"] {
        session.until_phase(&run(name, 1), RunPhase::Ready).await;
    }
    session
        .desire(vec![
            running(job("ann", "job-a")),
            running(job("bob", "job-b")),
        ])
        .await;
    for (name, uid) in [("job-a", ANN), ("job-b", BOB)] {
        until_stepped(&mut session, name).await;
        let report = session.run(&run(name, 1)).unwrap();
        assert_eq!(report.lane.name, "fork", "{}", report.lane.reason);
        // Everything that has a directory of the job in its arguments or environment: the launcher with
        // its runner and keeper, the forked runner, and the rank.
        let mark = format!("{}/{name}-", node.path("state/runs").display());
        let of_job = |stat: &procfs::Stat| {
            let text =
                |file: &str| fs::read(format!("/proc/{}/{file}", stat.pid)).unwrap_or_default();
            let all = [text("cmdline"), text("environ")].concat();
            !stat.is_dead() && all.windows(mark.len()).any(|part| part == mark.as_bytes())
        };
        let all: Vec<u32> = { procfs::all().unwrap().into_iter() }
            .filter(of_job)
            .map(|stat| stat.pid as u32)
            .filter(|pid| *pid != node.pid())
            .collect();
        assert!(all.len() >= 4, "{all:?}");
        for pid in all {
            assert!(
                ids(pid)[0].starts_with(&format!("{uid} {uid} {uid} ")),
                "process {pid}: {:?}",
                ids(pid)
            );
        }
    }
    end(&mut session, &["job-a", "job-b"]).await;

    // The pool has a launcher for each of them by now, and a third user takes neither.
    session.until("the pool", |s| s.pool_ready == 2).await;
    let reason = |s: &Session, name: &str| s.run(&run(name, 1)).unwrap().lane.reason.clone();
    session.desire(vec![ready(job("cid", "job-c"))]).await;
    session.until_phase(&run("job-c", 1), RunPhase::Ready).await;
    let of_cid = reason(&session, "job-c");
    assert!(
        of_cid.ends_with("its launcher imported torch first"),
        "{of_cid}"
    );
    session
        .desire(vec![ready(job("cid", "job-c")), ready(job("ann", "job-d"))])
        .await;
    session.until_phase(&run("job-d", 1), RunPhase::Ready).await;
    let of_ann = reason(&session, "job-d");
    assert!(
        of_ann.ends_with("its launcher came from the warm pool"),
        "{of_ann}"
    );
    end(&mut session, &["job-c", "job-d"]).await;
}
