//! `--sort-by`: the order of a list, by what its table shows.

use std::cmp::Reverse;

use muster_proto::v1::{Job, JobStatus, Node};

use crate::fail::Failure;

const JOBS: &str = "name, age, state, nodes, restarts, step or priority";
const NODES: &str = "name, age, state, slots, gpus or cpus";

/// The name of a column, also as kubectl's users write it: `.metadata.name`, `{.metadata.creationTimestamp}`.
fn column(text: &str) -> String {
    let path = text.trim_start_matches('{').trim_end_matches('}');
    match path {
        ".metadata.name" => "name".into(),
        ".metadata.creationTimestamp" => "age".into(),
        _ => path.to_ascii_lowercase(),
    }
}

fn unknown(kind: &str, text: &str, known: &str) -> Failure {
    Failure::usage(format!("--sort-by {text}: {kind} are sorted by {known}"))
}

/// Sorts jobs. Numbers go up, and the oldest comes first, as with kubectl. Equal ones keep their order.
pub(super) fn jobs(jobs: &mut [Job], by: &str) -> Result<(), Failure> {
    let count = |of: fn(&JobStatus) -> u64| move |job: &Job| job.status.as_ref().map_or(0, of);
    match column(by).as_str() {
        "name" => jobs.sort_by_cached_key(|job| {
            let named = job.r#ref.clone().unwrap_or_default();
            (named.name, named.namespace)
        }),
        "age" => jobs.sort_by_key(|job| job.created_unix_us),
        "state" => jobs.sort_by_key(count(|status| status.phase as u64)),
        "nodes" => jobs.sort_by_key(count(|status| status.nodes_running.into())),
        "restarts" => jobs.sort_by_key(count(|status| status.restarts.into())),
        "step" => jobs.sort_by_key(count(|status| status.last_step.unwrap_or_default())),
        // The job with the highest priority comes first.
        "priority" => {
            jobs.sort_by_key(|job| {
                Reverse(
                    job.spec
                        .as_ref()
                        .and_then(|spec| spec.priority)
                        .unwrap_or(0),
                )
            });
        }
        _ => return Err(unknown("jobs", by, JOBS)),
    }
    Ok(())
}

/// Sorts nodes, in the same way.
pub(super) fn nodes(nodes: &mut [Node], by: &str) -> Result<(), Failure> {
    match column(by).as_str() {
        "name" => nodes.sort_by(|one, other| one.name.cmp(&other.name)),
        "age" => nodes.sort_by_key(|node| node.first_seen_unix_us),
        "state" => nodes.sort_by_key(|node| node.state),
        "slots" => nodes.sort_by_key(|node| node.slots_free),
        "gpus" => nodes.sort_by_key(|node| node.gpus.len()),
        "cpus" => nodes.sort_by_key(|node| node.cpus),
        _ => return Err(unknown("nodes", by, NODES)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::JobRef;

    use super::*;

    fn job(name: &str, created_unix_us: u64, restarts: u32) -> Job {
        Job {
            r#ref: Some(JobRef {
                namespace: "default".into(),
                name: name.into(),
            }),
            created_unix_us,
            status: Some(JobStatus {
                restarts,
                ..JobStatus::default()
            }),
            ..Job::default()
        }
    }

    #[test]
    fn lists_are_sorted_by_their_columns() {
        let sorted = |by: &str| {
            let mut all = [job("b", 1, 7), job("c", 3, 0), job("a", 2, 7)];
            jobs(&mut all, by).unwrap();
            all.map(|job| job.r#ref.unwrap_or_default().name).concat()
        };
        for (by, expected) in [
            ("name", "abc"),
            ("NAME", "abc"),
            (".metadata.name", "abc"),
            ("age", "bac"),
            ("{.metadata.creationTimestamp}", "bac"),
            ("restarts", "cba"),
            ("priority", "bca"),
        ] {
            assert_eq!(sorted(by), expected, "{by}");
        }
        let refused = jobs(&mut [], "size").unwrap_err().to_string();
        assert!(refused.contains("sorted by name"), "{refused}");
        let mut all = [("b", 1), ("a", 2)].map(|(name, cpus)| Node {
            name: name.into(),
            cpus,
            ..Node::default()
        });
        nodes(&mut all, "name").unwrap();
        assert_eq!(all[0].name, "a");
        nodes(&mut all, "cpus").unwrap();
        assert_eq!(all[0].name, "b");
        assert!(nodes(&mut all, "restarts").is_err());
    }
}
