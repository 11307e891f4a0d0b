//! What would happen to a job if it were submitted now, as text and as a document.

use muster_proto::v1;
use serde::Serialize;
use std::collections::BTreeMap;

use super::{
    start::{self, Estimate},
    table::Table,
};

/// Nodes named for one cause.
const NAMED: usize = 3;

/// The form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    job: String,
    namespace: String,
    /// It would start now.
    starts: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    held_back: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_gpus: Option<u32>,
    nodes: Vec<Share>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<Wait>,
    /// Jobs of lower priority that would make room for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    yields: Vec<Yield>,
    /// When it would start, if not now.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<Estimate>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Yield {
    /// None: it is in another namespace.
    job: Option<String>,
    priority: i64,
    nodes: Vec<String>,
    /// It would wait again. Otherwise it would go on with fewer nodes.
    evicted: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Share {
    node: String,
    members: u32,
    gpus: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Wait {
    need: u32,
    have: u32,
    counts: String,
    reason: String,
    /// It would start when other jobs and pods have ended.
    passes: bool,
    causes: BTreeMap<String, u32>,
    excluded: Vec<Excluded>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Excluded {
    node: String,
    reason: String,
    message: String,
}

pub(crate) fn document(job: &v1::JobRef, plan: &v1::Plan) -> Document {
    let share = |share: &v1::PlannedShare| Share {
        node: share.node.clone(),
        members: share.members,
        gpus: share.gpus.clone(),
    };
    let excluded = |node: &v1::ExcludedNode| Excluded {
        node: node.node.clone(),
        reason: node.reason.clone(),
        message: node.message.clone(),
    };
    let yields = |one: &v1::PlannedYield| Yield {
        job: one.r#ref.as_ref().map(|job| job.name.clone()),
        priority: one.priority,
        nodes: one.nodes.clone(),
        evicted: one.evicted,
    };
    Document {
        yields: plan.yields.iter().map(yields).collect(),
        start: plan.start.as_ref().map(Estimate::of),
        job: job.name.clone(),
        namespace: job.namespace.clone(),
        starts: starts(plan),
        held_back: plan.held_back.clone(),
        default_gpus: plan.default_gpus,
        nodes: plan.shares.iter().map(share).collect(),
        wait: plan.wait.as_ref().map(|wait| Wait {
            need: wait.need,
            have: wait.have,
            counts: wait.counts.clone(),
            reason: wait.reason.clone(),
            passes: wait.passes,
            causes: wait.causes.clone(),
            excluded: wait.excluded.iter().map(excluded).collect(),
        }),
    }
}

/// Whether the job would start now.
pub(crate) fn starts(plan: &v1::Plan) -> bool {
    plan.wait.is_none() && plan.held_back.is_empty()
}

/// One sentence.
pub(crate) fn sentence(plan: &v1::Plan) -> String {
    let of_gpus = match plan.default_gpus {
        Some(0) => {
            ", without GPUs, because it names no number and too few nodes have them".to_owned()
        }
        Some(gpus) => format!(
            ", with {gpus} {} for each (the default, because it names no number)",
            if gpus == 1 { "GPU" } else { "GPUs" }
        ),
        None => String::new(),
    };
    match &plan.wait {
        None => {
            let nodes = plan.shares.len();
            let of_nodes = if nodes == 1 { "node" } else { "nodes" };
            match plan.held_back.as_str() {
                "" => format!("would start now on {nodes} {of_nodes}{of_gpus}"),
                why => format!(
                    "would not start now, because {why}; there is room on {nodes} {of_nodes}{of_gpus}"
                ),
            }
        }
        Some(wait) => {
            let lacks = format!(
                "{} of at least {} {} available ({})",
                wait.have, wait.need, wait.counts, wait.reason
            );
            match plan.held_back.as_str() {
                "" => format!("would wait{of_gpus}: {lacks}"),
                why => {
                    format!("would not start now, because {why}; and there is no room now: {lacks}")
                }
            }
        }
    }
}

/// The sentence, and what stands behind it.
pub(crate) fn text(name: &str, plan: &v1::Plan, with_heads: bool, now_us: u64) -> String {
    let mut text = format!("job/{name} {}\n", sentence(plan));
    let start = plan.start.as_ref();
    let start = start.map(|start| start::sentence(start, now_us) + "\n");
    text.extend(start);
    let Some(wait) = &plan.wait else {
        let shared = plan.shares.iter().any(|share| share.members > 1);
        let gpus = plan.shares.iter().any(|share| !share.gpus.is_empty());
        let mut heads = vec!["NODE"];
        heads.extend(shared.then_some("MEMBERS"));
        heads.extend(gpus.then_some("GPUS"));
        let row = |share: &v1::PlannedShare| {
            let mut row = vec![share.node.clone()];
            row.extend(shared.then(|| share.members.to_string()));
            row.extend(gpus.then(|| share.gpus.len().to_string()));
            row
        };
        let rows: Vec<Vec<String>> = plan.shares.iter().map(row).collect();
        return text + &Table::new(heads).render(&rows, with_heads);
    };
    text.push_str(match (wait.passes, wait.causes.is_empty()) {
        (true, _) => "It would start when other jobs and pods have ended.\n",
        (false, false) => "It would wait also if no other job ran; the reasons are below.\n",
        (false, true) if wait.have > 0 => "All nodes would take it, and they are too few.\n",
        (false, true) => "No node has joined yet.\n",
    });
    plan.yields
        .iter()
        .for_each(|one| text.push_str(&yields(one)));
    if wait.causes.is_empty() {
        return text;
    }
    let row = |(cause, nodes): (&String, &u32)| {
        let named = wait.excluded.iter().filter(|node| node.reason == *cause);
        let named = named.map(|node| format!("{} {}", node.node, node.message));
        let mut named: Vec<String> = named.take(NAMED).collect();
        if *nodes as usize > named.len() {
            named.push(format!("{} more", *nodes as usize - named.len()));
        }
        vec![cause.clone(), nodes.to_string(), named.join(", ")]
    };
    let mut causes: Vec<(&String, &u32)> = wait.causes.iter().collect();
    causes.sort_by_key(|(cause, nodes)| (std::cmp::Reverse(**nodes), *cause));
    let rows: Vec<Vec<String>> = causes.into_iter().map(row).collect();
    text + &Table::new(vec!["REASON", "NODES", "WHICH"]).render(&rows, with_heads)
}

/// The sentence about a job that would make room.
fn yields(one: &v1::PlannedYield) -> String {
    let job = match &one.r#ref {
        Some(job) => format!("job/{}", job.name),
        None => "A job of another namespace".to_owned(),
    };
    let nodes = one.nodes.join(", ");
    match one.evicted {
        true => format!(
            "{job} (priority {}) would be evicted from {nodes} for it, and wait again.\n",
            one.priority
        ),
        false => format!(
            "{job} (priority {}) would give up {nodes} for it, and go on with fewer.\n",
            one.priority
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(excluded: &[(&str, &str, &str)], passes: bool) -> v1::Plan {
        let mut causes: BTreeMap<String, u32> = BTreeMap::new();
        for (_, cause, _) in excluded {
            *causes.entry((*cause).to_owned()).or_default() += 1;
        }
        let excluded = excluded
            .iter()
            .map(|(node, reason, message)| v1::ExcludedNode {
                node: (*node).into(),
                reason: (*reason).into(),
                message: (*message).into(),
            });
        v1::Plan {
            wait: Some(v1::PlannedWait {
                need: 8,
                have: 1,
                counts: "nodes".into(),
                reason: "TooFewGpus".into(),
                passes,
                causes,
                excluded: excluded.collect(),
            }),
            ..v1::Plan::default()
        }
    }

    #[test]
    fn a_plan_that_starts_names_its_nodes() {
        let share = |node: &str, members, gpus: usize| v1::PlannedShare {
            node: node.into(),
            members,
            gpus: vec!["GPU-x".into(); gpus],
        };
        let plain = v1::Plan {
            shares: vec![share("n1", 1, 0), share("n2", 1, 0)],
            ..v1::Plan::default()
        };
        assert_eq!(
            text("a", &plain, true, 0),
            "job/a would start now on 2 nodes\nNODE\nn1\nn2\n"
        );
        let packed = v1::Plan {
            shares: vec![share("n1", 2, 8)],
            default_gpus: Some(4),
            ..v1::Plan::default()
        };
        assert_eq!(
            text("a", &packed, true, 0),
            "job/a would start now on 1 node, with 4 GPUs for each (the default, because it names no number)\nNODE   MEMBERS   GPUS\nn1     2         8\n"
        );
    }

    #[test]
    fn a_plan_that_waits_counts_the_causes_and_names_some_nodes() {
        let plan = wait(
            &[
                ("n1", "TooFewGpus", "2 of 8 GPUs free"),
                ("n2", "TooFewGpus", "0 of 8 GPUs free"),
                ("n3", "TooFewGpus", "0 of 8 GPUs free"),
                ("n4", "TooFewGpus", "0 of 8 GPUs free"),
                ("n5", "NodesCordoned", "cordoned"),
            ],
            true,
        );
        assert_eq!(
            text("a", &plan, true, 0),
            "\
job/a would wait: 1 of at least 8 nodes available (TooFewGpus)
It would start when other jobs and pods have ended.
REASON          NODES   WHICH
TooFewGpus      4       n1 2 of 8 GPUs free, n2 0 of 8 GPUs free, n3 0 of 8 GPUs free, 1 more
NodesCordoned   1       n5 cordoned
"
        );
        let one = |name: &str, evicted| v1::PlannedYield {
            r#ref: (!name.is_empty()).then(|| v1::JobRef {
                name: name.into(),
                ..v1::JobRef::default()
            }),
            priority: -1,
            nodes: vec!["n1".into(), "n2".into()],
            evicted,
        };
        let made = v1::Plan {
            yields: vec![one("low", false), one("", true)],
            start: Some(v1::StartEstimate {
                at_unix_us: 7_200_000_000,
                basis: "after job team-a/b (at its deadline)".into(),
                ..v1::StartEstimate::default()
            }),
            ..wait(&[("n1", "TooFewGpus", "0 of 8 GPUs free")], true)
        };
        let made = text("a", &made, true, 60_000_000);
        for line in [
            "Estimate: it starts ~02:00Z in 119m, after job team-a/b (at its deadline).\n",
            "job/low (priority -1) would give up n1, n2 for it, and go on with fewer.\n",
            "A job of another namespace (priority -1) would be evicted from n1, n2 for it, and wait again.\n",
        ] {
            assert!(made.contains(line), "{made}");
        }
        let never = text(
            "a",
            &wait(&[("n5", "NodesCordoned", "cordoned")], false),
            true,
            0,
        );
        assert!(never.contains("also if no other job ran"), "{never}");
        let few = text("a", &wait(&[], false), true, 0);
        assert!(few.ends_with("they are too few.\n"), "{few}");
        let mut empty = wait(&[], false);
        empty.wait.as_mut().unwrap().have = 0;
        let empty = text("a", &empty, true, 0);
        assert!(empty.ends_with("No node has joined yet.\n"), "{empty}");
        let held = v1::Plan {
            held_back: "it is suspended".into(),
            ..v1::Plan::default()
        };
        assert!(
            !starts(&held)
                && sentence(&held).starts_with("would not start now, because it is suspended")
        );
    }

    #[test]
    fn what_holds_a_job_back_is_said_also_where_there_is_no_room() {
        let plan = v1::Plan {
            held_back: "it waits for job prepare to succeed".into(),
            ..wait(&[("n1", "NodesOccupied", "occupied")], true)
        };
        let said = sentence(&plan);
        assert!(
            said.starts_with(
                "would not start now, because it waits for job prepare to succeed; and there is no room now: "
            ),
            "{said}"
        );
    }
}
