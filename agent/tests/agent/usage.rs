//! The usage that an agent with a real run tells its coordinator.

use muster_core::{
    run::RunPhase,
    usage::{DiskRole, RankUsage, Usage},
};

use crate::rig::{
    Coordinator, Node,
    node::{gone, run, stopped},
};

/// Works and holds 64 MiB, far more than a shell needs by itself.
const HOARDER: &str = r#"echo $$ > "$OUT/worker-$RANK"
hoard=$(head -c 67108864 /dev/zero | tr '\0' x)
echo "step 1 of ${#hoard}"
while :; do :; done
"#;
const HOARD: u64 = 64 << 20;

fn rank(usage: &Option<Usage>) -> Option<&RankUsage> {
    usage.as_ref()?.ranks.first()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_s_memory_and_work_are_told_while_it_lives() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    node.flags = vec!["--probe-every=100ms".into()];
    node.script("train.py", HOARDER);
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session
        .until("the usage of an idle node", |s| {
            s.usage.as_ref().is_some_and(|usage| usage.cpu.is_some())
        })
        .await;
    let idle = session.usage.clone().unwrap();
    assert_eq!(
        (
            idle.ranks.len(),
            idle.disks.len(),
            idle.cpu.unwrap().others_milli
        ),
        (0, 1, None)
    );
    assert_eq!(
        (idle.disks[0].role, idle.disks[0].path.as_str()),
        (DiskRole::State, node.path("state").to_str().unwrap())
    );

    let id = run("job-a", 1);
    session.desire(vec![node.running("job-a", 1)]).await;
    session.until_phase(&id, RunPhase::Running).await;
    let at_work = |usage: &Option<Usage>| {
        rank(usage).is_some_and(|rank| {
            rank.memory_bytes > HOARD && rank.cpu_milli.is_some_and(|milli| milli > 0)
        })
    };
    session
        .until("the usage of its rank", |s| at_work(&s.usage))
        .await;
    let busy = session.usage.clone().unwrap();
    let used = rank(&session.usage).unwrap();
    assert_eq!((&used.run, used.rank, busy.ranks.len()), (&id, 0, 1));
    let total = busy.memory.unwrap().total;
    assert!(
        used.memory_bytes < total,
        "{} of {total}",
        used.memory_bytes
    );
    assert!(
        busy.disks
            .iter()
            .any(|disk| disk.role == DiskRole::Work && disk.space.is_some()),
        "{:?}",
        busy.disks
    );
    assert!(busy.cpu.unwrap().others_milli.is_some(), "{:?}", busy.cpu);

    // Reports are compared and stored, and usage changes with every look. So no report contains
    // usage.
    let reports = session.node_reports;
    let before = session.usage.take();
    session
        .until("another look", |s| s.usage.is_some() && s.usage != before)
        .await;
    assert_eq!(session.node_reports, reports);

    session
        .desire(vec![stopped("job-a", 1, std::time::Duration::from_secs(1))])
        .await;
    session.until_phase(&id, RunPhase::Dead).await;
    session
        .until("no usage of the dead", |s| {
            s.usage.as_ref().is_some_and(|usage| usage.ranks.is_empty())
        })
        .await;
    session.desire(vec![gone("job-a", 1, true)]).await;
    session.until("gone", |s| s.runs.is_empty()).await;
}
