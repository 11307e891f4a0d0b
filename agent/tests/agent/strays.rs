//! A worker's child that cannot be found in the usual ways: it has left its parent, its session and
//! its environment, and there is no cgroup.

use std::{fs, time::Instant};

use muster_core::run::RunPhase;
use muster_runner::{Descendants, RunnerIdentity, procfs, record::DESCENDANTS};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Coordinator, Node, PATIENCE, Session, alive, node::run, wait_gone};

/// Starts the stray, then works until it is stopped.
const TRAIN: &str = r#"setsid env -i /bin/sh -c "sleep 1000000 & echo \$! > $OUT/stray"
echo "step 1"
exec sleep 1000000
"#;

fn kill(pid: u32, signal: Signal) {
    // A process that has just ended by itself needs no signal.
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
}

struct Training {
    node: Node,
    session: Session,
    _coordinator: Coordinator,
    runner: RunnerIdentity,
    stray: u32,
    /// The process between torchrun and the worker.
    shim: u32,
}

async fn training() -> Training {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.no_cgroup = true;
    node.script("train.py", TRAIN);
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let id = run("job-a", 1);
    session.desire(vec![node.running("job-a", 1)]).await;
    session
        .until("its step", |s| {
            s.run(&id)
                .is_some_and(|r| r.ranks.iter().any(|rank| rank.first_step.is_some()))
        })
        .await;
    let stray = fs::read_to_string(node.path("out/stray"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let worker = session.run(&id).unwrap().ranks[0].pid;
    let shim = procfs::Stat::of(worker as i32).unwrap().ppid as u32;
    let runner = RunnerIdentity::read(&node.run_dir(&id)).unwrap().unwrap();
    assert!(runner.cgroup.is_none() && alive(stray));
    let environment = procfs::environment(stray as i32).unwrap();
    assert!(
        !String::from_utf8_lossy(&environment).contains("MUSTER"),
        "it has cleared its environment"
    );
    Training {
        node,
        session,
        _coordinator: coordinator,
        runner,
        stray,
        shim,
    }
}

impl Training {
    /// Waits until the runner has listed the stray.
    fn listed(&self) {
        let (dir, start) = (self.node.run_dir(&run("job-a", 1)), Instant::now());
        let is_listed = || {
            Descendants::read(&dir)
                .unwrap()
                .unwrap()
                .processes
                .iter()
                .any(|p| p.pid == self.stray as i32)
        };
        while !is_listed() {
            assert!(start.elapsed() < PATIENCE, "never listed");
            std::thread::yield_now();
        }
    }

    /// Kills the runner and every process that would clean up after it.
    fn kill_all_that_hold_it(&self, keeper_too: bool) {
        let runner = self.runner.pid as u32;
        // A stopped runner cannot see its shim die.
        kill(runner, Signal::STOP);
        let keeper = self
            .runner
            .keeper
            .as_ref()
            .expect("a runner in the background has a keeper")
            .pid as u32;
        if keeper_too {
            kill(keeper, Signal::KILL);
            wait_gone(keeper);
        }
        kill(self.shim, Signal::KILL);
        kill(runner, Signal::KILL);
        wait_gone(runner);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keeper_ends_what_a_killed_runner_leaves() {
    let mut training = training().await;
    training.kill_all_that_hold_it(false);
    training
        .session
        .until_phase(&run("job-a", 1), RunPhase::Dead)
        .await;
    assert!(!alive(training.stray), "dead is proven");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_keeper_the_list_of_descendants_tells_who_must_end() {
    let mut training = training().await;
    training.listed();
    training.kill_all_that_hold_it(true);
    training
        .session
        .until_phase(&run("job-a", 1), RunPhase::Dead)
        .await;
    assert!(!alive(training.stray), "dead is proven");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_both_its_death_is_not_proven_and_the_node_says_so() {
    let mut training = training().await;
    let id = run("job-a", 1);
    training.listed();
    let dir = training.node.run_dir(&id);
    kill(training.runner.pid as u32, Signal::STOP);
    fs::remove_file(dir.join(DESCENDANTS)).unwrap();
    training.kill_all_that_hold_it(true);
    let unproven = "cannot prove that nothing of job-a-g1 lives: its runner left no list of its processes; \
                    reboot the node, or make sure of it and move the run's directory away";
    let session = &mut training.session;
    session
        .until("a finding", |s| {
            s.findings.iter().any(|f| f.reason == unproven)
        })
        .await;
    assert_ne!(session.phase(&id), Some(&RunPhase::Dead));
    assert!(alive(training.stray));
    // An operator checks the node and moves the directory away.
    kill(training.stray, Signal::KILL);
    fs::rename(&dir, training.node.path("looked-at")).unwrap();
    session.until_phase(&id, RunPhase::Dead).await;
}
