//! The job file of one check.

use std::time::Duration;

use muster_core::{
    id::NodeName,
    node_report::taint::UNSCHEDULABLE,
    spec::{
        API_VERSION, JobDocument, KIND, Metadata, PRIORITY_MAX, RestartPolicyDocument,
        RuleDocument, SpecDocument, Toleration,
    },
};

/// What each process runs.
const SCRIPT: &str = include_str!("nodes.py");
/// The interpreter gets the script as an argument: the node has no file of ours, and torchrun takes no `python -c`.
const SHELL: &str = r#"exec "$0" -u -c "$1" "$2" "$3""#;
/// A check whose command line was killed is deleted so long after its end.
const TTL_SECONDS: i64 = 600;

pub(super) struct Wish<'a> {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) nodes: &'a [NodeName],
    pub(super) gpus: u32,
    pub(super) python: &'a str,
    pub(super) timeout: Duration,
}

/// Processes on each node.
pub(super) fn procs(gpus: u32) -> u32 {
    gpus.max(1)
}

pub(super) fn document(wish: Wish<'_>) -> JobDocument {
    let seconds = i64::try_from(wish.timeout.as_secs()).unwrap_or(i64::MAX);
    let nodes = i64::try_from(wish.nodes.len()).unwrap_or(i64::MAX);
    // A rank that waits for its partner tells so itself before the job's time is over.
    let limit = (seconds * 3 / 4).to_string();
    let on = if wish.gpus > 0 { "gpu" } else { "cpu" };
    let ends = ["failure", "nodeLost", "evicted"].map(|when| RuleDocument {
        when: when.into(),
        then: "fail".into(),
        ..RuleDocument::default()
    });
    JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: wish.name,
            namespace: wish.namespace,
        },
        spec: SpecDocument {
            replicas: Some(nodes),
            proc_per_node: Some(procs(wish.gpus).into()),
            gpus_per_node: Some(wish.gpus.into()),
            command: ["sh", "-c", SHELL].map(str::to_owned).to_vec(),
            args: [wish.python, SCRIPT, &limit, on]
                .map(str::to_owned)
                .to_vec(),
            working_dir: Some("/".into()),
            node_list: wish.nodes.iter().map(ToString::to_string).collect(),
            priority: Some(-PRIORITY_MAX),
            // Also nodes with cordons, and with taints: the person who asks knows them.
            tolerations: vec![Toleration::of_key(UNSCHEDULABLE), Toleration::of_all()],
            restart_policy: Some(RestartPolicyDocument {
                max_restarts: Some(0),
                ..RestartPolicyDocument::default()
            }),
            rules: ends.to_vec(),
            // Nothing is imported ahead for a job that starts once, and the script says itself that it stands still.
            launch: Some("direct".into()),
            standbys: Some("off".into()),
            inspect: Some("off".into()),
            on_stall: Some("report".into()),
            stop_grace_period: Some("0s".into()),
            active_deadline_seconds: Some(seconds),
            start_deadline_seconds: Some(seconds),
            ttl_seconds_after_finished: Some(TTL_SECONDS),
            ..SpecDocument::default()
        },
    }
}

/// `check-1a2b3-node-1-node-2`: which check, and which nodes, as far as there is room in a name.
pub(super) fn name(check: &str, at: usize, nodes: &[NodeName]) -> String {
    let word = |node: &NodeName| -> String {
        let letters = node.as_str().replace('.', "-");
        letters.chars().take(NODE_MAX).collect()
    };
    let words: Vec<String> = nodes.iter().take(2).map(word).collect();
    let name = format!("check-{check}-{at}-{}", words.join("-"));
    name.trim_end_matches('-').to_owned()
}

/// Two of them, with the rest, fit into a name of 63 letters.
const NODE_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_of_a_check_is_valid() {
        let long: NodeName = "gpu-node-0001.rack-7.example.org".into();
        for (nodes, gpus) in [
            (vec!["node-1".into()], 0),
            (vec!["node-1".into(), "node-2".into()], 8),
            (vec![long.clone(), long], 256),
        ] {
            let document = document(Wish {
                name: name("1a2b3", 123_456, &nodes),
                namespace: None,
                nodes: &nodes[..1],
                gpus,
                python: "/opt/train env/bin/python3",
                timeout: Duration::from_secs(180),
            });
            let (name, spec) = document.check().unwrap();
            assert!(name.name.starts_with("check-1a2b3-"), "{name:?}");
            assert_eq!(spec.gpus_per_node, gpus);
            assert_eq!(spec.proc_per_node, gpus.max(1));
            assert_eq!(spec.restart_policy.max_restarts, 0);
        }
    }
}
