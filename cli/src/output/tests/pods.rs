//! What is shown of nodes whose GPUs pods hold, and of members in pods.

use super::*;

#[test]
fn the_pods_that_hold_gpus_are_shown() {
    let holder = |gpu: &str, namespace: &str, pod: &str| GpuHolder {
        gpu: gpu.into(),
        namespace: namespace.into(),
        pod: pod.into(),
    };
    let gpu = |uuid: &str| Gpu {
        uuid: uuid.into(),
        ..Gpu::default()
    };
    let shown = |known: bool, holders: Vec<GpuHolder>| {
        let node = Node {
            gpus: ["GPU-1", "GPU-2", "GPU-3"].map(gpu).into(),
            gpu_holders: Some(GpuHolders { known, holders }),
            senses_only: true,
            ..node()
        };
        let text = describe::node(&node, &[], NOW);
        let table = text.lines().skip_while(|line| *line != "GPUs:");
        let column = |line: &str| line.split_whitespace().nth_back(1).map(str::to_owned);
        let column: Vec<_> = table.skip(2).take(3).filter_map(column).collect();
        (column.join(" "), json(&document::Node::from(node)))
    };
    // The second is of a namespace in which the caller has no role.
    let holders = vec![
        holder("GPU-1", "team-a", "one-bcdfg"),
        holder("GPU-2", "", ""),
    ];
    let (column, json) = shown(true, holders);
    assert_eq!(column, "team-a/one-bcdfg pod) -");
    let listed: serde_json::Value = serde_json::from_str(&json).unwrap();
    let listed = &listed["status"];
    assert_eq!(listed["gpuHolders"][1], serde_json::json!({"gpu": "GPU-2"}));
    assert_eq!(listed["sensesOnly"], true);
    let (column, json) = shown(false, Vec::new());
    assert_eq!(
        (column.as_str(), json.contains("gpuHolders")),
        ("? ? ?", false)
    );
    let state = super::super::hardware::state(&Node {
        senses_only: true,
        ..Node::default()
    });
    assert_eq!(state, "Unknown,SensesOnly");
}

#[test]
fn a_member_in_a_pod_shows_its_host_and_its_gpus() {
    let mut job = job();
    let members = &mut job.status.as_mut().unwrap().members;
    members[0].host = "gpu-17".into();
    members[0].gpus = ["GPU-5a1b2c3d-0000-4000", "MIG-9f8e7d6c-1111"]
        .map(str::to_owned)
        .into();
    let text = describe::job(&job, &[], NOW, false);
    let mut table = text.lines().skip_while(|line| *line != "Members:").skip(1);
    assert!(table.next().unwrap().ends_with("HOST     GPUS"), "{text}");
    let row = table.next().unwrap();
    assert!(row.ends_with("gpu-17   GPU-5a1b2c3d,MIG-9f8e7d6c"), "{row}");
    let json = json(&document::Job::from(job));
    assert!(json.contains("\"host\": \"gpu-17\""), "{json}");
}
