//! The real torchrun, on two nodes, against the store that one of their runners serves.

use std::{collections::BTreeMap, time::Duration};

use muster_core::run::{Assignment, DesiredRun, Endpoint, RunPhase, Target};

use crate::rig::{
    Coordinator, Node, Session,
    node::{ready, run, stopped},
};

/// Joins, sums up the ranks, and steps until it is stopped or has made the given number of steps.
const SCRIPT: &str = r#"
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
steps = int(sys.argv[1])
for step in range(1, steps + 1):
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    print(f"step {step} total {int(total.item())} of {dist.get_world_size()}", flush=True)
    if steps > 10:
        time.sleep(0.05)
if os.environ["RANK"] == os.environ.get("FAIL"):
    os._exit(7)
dist.destroy_process_group()
"#;

fn python() -> String {
    std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON must name a Python with torch 2.7 or later; `make test` makes one and sets it")
}

fn share(node: &Node, rank: u32, generation: u64, steps: &str) -> Assignment {
    Assignment {
        node_rank: rank,
        node_count: 2,
        first_rank: rank,
        world_size: 2,
        store_host: "n1".into(),
        hosts_store: rank == 0,
        command: vec![python()],
        args: vec!["sum.py".into(), steps.into()],
        env: BTreeMap::new(),
        ..node.assignment("job-a", generation)
    }
}

struct Pair {
    nodes: [Node; 2],
    sessions: [Session; 2],
    /// Dropped last, because it serves the sessions.
    _coordinator: Coordinator,
}

async fn pair() -> Pair {
    let mut coordinator = Coordinator::start().await;
    let mut nodes = [Node::new("n1"), Node::new("n2")];
    let mut sessions = Vec::new();
    for node in &mut nodes {
        node.script("sum.py", SCRIPT);
        node.start(&coordinator.url());
        sessions.push(coordinator.welcome(1, 1).await);
    }
    let sessions = sessions
        .try_into()
        .unwrap_or_else(|_| unreachable!("two nodes"));
    Pair {
        nodes,
        sessions,
        _coordinator: coordinator,
    }
}

/// Makes both nodes ready, then starts them with the store of the first.
async fn start(pair: &mut Pair, generation: u64, steps: &str, change: impl Fn(&mut Assignment)) {
    let shares: Vec<Assignment> = (0..2)
        .map(|rank| {
            let mut share = share(&pair.nodes[rank], rank as u32, generation, steps);
            change(&mut share);
            share
        })
        .collect();
    let id = run("job-a", generation);
    for (session, share) in pair.sessions.iter_mut().zip(&shares) {
        session.desire(vec![ready(share.clone())]).await;
    }
    for session in &mut pair.sessions {
        session.until_phase(&id, RunPhase::Ready).await;
    }
    let store: Endpoint = pair.sessions[0].run(&id).unwrap().store.clone().unwrap();
    for (session, share) in pair.sessions.iter().zip(shares) {
        let target = Target::Running(Box::new(share), store.clone().into());
        session
            .desire(vec![DesiredRun {
                run: id.clone(),
                target,
            }])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_train_stop_and_train_again_to_the_end() {
    let mut pair = pair().await;
    let first = run("job-a", 1);
    start(&mut pair, 1, "1000000", |_| {}).await;
    for session in &mut pair.sessions {
        session
            .until("steps", |s| {
                s.run(&first)
                    .is_some_and(|r| r.ranks.first().is_some_and(|rank| rank.last_step > Some(2)))
            })
            .await;
    }
    let host = pair.sessions[0].run(&first).unwrap();
    assert_eq!(host.joined_ranks, vec![0, 1], "the store saw them come");
    assert!(host.all_joined_at.is_some());

    for session in &pair.sessions {
        session
            .desire(vec![stopped("job-a", 1, Duration::from_secs(10))])
            .await;
    }
    for session in &mut pair.sessions {
        session.until_phase(&first, RunPhase::Dead).await;
    }

    let second = run("job-a", 2);
    start(&mut pair, 2, "5", |_| {}).await;
    for session in &mut pair.sessions {
        session.until_phase(&second, RunPhase::Dead).await;
        let report = session.run(&second).unwrap();
        assert!(
            report.succeeded() && report.ranks_finished(1),
            "{report:#?}"
        );
        assert_eq!(report.ranks[0].last_step, Some(5));
    }
    for (rank, node) in pair.nodes.iter().enumerate() {
        let log =
            std::fs::read_to_string(node.run_dir(&second).join(format!("logs/rank-{rank}.log")))
                .unwrap();
        assert!(log.contains("F step 5 total 3 of 2"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_true_exit_code_is_told() {
    let mut pair = pair().await;
    let id = run("job-a", 1);
    start(&mut pair, 1, "3", |share| {
        drop(share.env.insert("FAIL".into(), "1".into()))
    })
    .await;
    let failed = &mut pair.sessions[1];
    failed.until_phase(&id, RunPhase::Dead).await;
    let report = failed.run(&id).unwrap();
    assert_eq!(
        report.ranks[0].exit,
        Some(muster_core::exit::Exit::Code(7)),
        "{report:#?}"
    );
    assert!(!report.succeeded());
}

/// Metadata of a package come from the first place on the path. Here torch claims to be 2.6, whose
/// torchrun cannot share a host with the served store. Its back ends are found through the same
/// metadata.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_torch_alone_on_its_node_brings_its_own_store() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.script("sum.py", SCRIPT);
    std::fs::create_dir_all(node.path("older/torch-2.6.0.dist-info")).unwrap();
    node.script(
        "older/torch-2.6.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n",
    );
    const BACK_ENDS: &str = "import importlib.metadata as m; print(m.distribution('torch').read_text('entry_points.txt') or '')";
    let known = std::process::Command::new(python())
        .args(["-c", BACK_ENDS])
        .output()
        .unwrap();
    node.script(
        "older/torch-2.6.0.dist-info/entry_points.txt",
        std::str::from_utf8(&known.stdout).unwrap(),
    );
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    let id = run("job-a", 1);
    let env = BTreeMap::from([(
        "PYTHONPATH".to_owned(),
        node.path("older").to_str().unwrap().to_owned(),
    )]);
    let share = Assignment {
        node_count: 1,
        proc_per_node: 2,
        world_size: 2,
        hosts_store: true,
        env,
        ..share(&node, 0, 1, "3")
    };
    session.desire(vec![ready(share.clone())]).await;
    session.until_phase(&id, RunPhase::Ready).await;
    let store: Endpoint = session.run(&id).unwrap().store.clone().unwrap();
    session
        .desire(vec![DesiredRun {
            run: id.clone(),
            target: Target::Running(Box::new(share), store.into()),
        }])
        .await;
    session.until_phase(&id, RunPhase::Dead).await;
    let report = session.run(&id).unwrap();
    assert!(
        report.succeeded() && report.ranks_finished(2),
        "{report:#?}"
    );
    assert!(
        report.joined_ranks.is_empty(),
        "nobody came to the served store: {report:#?}"
    );
}
