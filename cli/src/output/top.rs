//! `muster top`: what nodes, jobs and ranks use now, and how fast they train. What is not known is a dash, never 0.

use std::cmp::Reverse;

use muster_proto::v1::{Job, Node, RankStatus};

use super::words::{self, cpus, or_dash};

/// Rows of a table with the columns' heads.
pub(crate) struct Use {
    pub(crate) heads: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Sums of what some GPUs use.
#[derive(Default)]
struct Gpus {
    busy: u64,
    seen: u64,
    used: u64,
    total: u64,
}

impl Gpus {
    fn add(&mut self, gpu: &muster_proto::v1::GpuUsage) {
        if let Some(percent) = gpu.busy_percent {
            (self.busy, self.seen) = (self.busy + u64::from(percent), self.seen + 1);
        }
        if let Some(space) = gpu.memory {
            self.used += words::in_use(&space);
            self.total += space.total;
        }
    }

    fn busy(&self) -> String {
        or_dash(
            self.busy
                .checked_div(self.seen)
                .map(|percent| format!("{percent}%")),
        )
    }

    fn memory(&self) -> String {
        used(self.used, self.total)
    }
}

fn used(used: u64, total: u64) -> String {
    match total {
        0 => "-".to_owned(),
        _ => format!("{}/{}", words::bytes(used), words::bytes(total)),
    }
}

/// The nodes, those with the busiest CPUs first.
pub(crate) fn nodes(nodes: &[Node], now_us: u64) -> Use {
    let mut nodes: Vec<&Node> = nodes.iter().collect();
    let load = |node: &&Node| {
        let cpu = node.usage.as_ref().and_then(|usage| usage.cpu);
        cpu.map(|cpu| cpu.all_milli)
    };
    nodes.sort_by_key(|node| (Reverse(load(node)), node.name.clone()));
    let row = |node: &&Node| {
        let usage = node.usage.clone().unwrap_or_default();
        let mut gpus = Gpus::default();
        usage.gpus.iter().for_each(|gpu| gpus.add(gpu));
        let held: usize = node.runs.iter().map(|run| run.gpus.len()).sum();
        vec![
            node.name.clone(),
            words::node_state(node.state).to_owned(),
            or_dash(
                usage
                    .cpu
                    .map(|cpu| format!("{}/{}", cpus(cpu.all_milli.into()), cpu.cpus)),
            ),
            or_dash(
                usage
                    .memory
                    .map(|space| used(words::in_use(&space), space.total)),
            ),
            match node.gpus.len() {
                0 => "-".to_owned(),
                all => format!("{held}/{all}"),
            },
            gpus.busy(),
            gpus.memory(),
            words::age(node.usage_unix_us, now_us),
        ]
    };
    Use {
        heads: vec![
            "NODE",
            "STATE",
            "CPUS",
            "MEMORY",
            "GPUS HELD",
            "GPU BUSY",
            "GPU MEMORY",
            "READ",
        ],
        rows: nodes.iter().map(row).collect(),
    }
}

/// The jobs that are not over, those with most GPUs first. Their GPUs' use is that of the nodes.
pub(crate) fn jobs(jobs: &[Job], nodes: &[Node]) -> Use {
    let gpus_of = |job: &Job| -> Vec<String> {
        let status = job.status.clone().unwrap_or_default();
        status
            .members
            .into_iter()
            .flat_map(|member| member.gpus)
            .collect()
    };
    let live = jobs.iter().filter(|job| {
        job.status
            .as_ref()
            .is_none_or(|status| status.finished_unix_us == 0)
    });
    let mut live: Vec<(&Job, Vec<String>)> = live.map(|job| (job, gpus_of(job))).collect();
    live.sort_by_key(|(job, gpus)| (Reverse(gpus.len()), job.created_unix_us));
    let row = |(job, held): &(&Job, Vec<String>)| {
        let named = job.r#ref.clone().unwrap_or_default();
        let status = job.status.clone().unwrap_or_default();
        let mut gpus = Gpus::default();
        let all = nodes
            .iter()
            .flat_map(|node| &node.usage)
            .flat_map(|usage| &usage.gpus);
        all.filter(|gpu| held.contains(&gpu.uuid))
            .for_each(|gpu| gpus.add(gpu));
        vec![
            named.namespace,
            named.name,
            words::phase(status.phase).to_owned(),
            format!("{}/{}", status.nodes_running, status.replicas),
            held.len().to_string(),
            gpus.busy(),
            gpus.memory(),
            or_dash(sum(&status.ranks, |rank| rank.cpu_milli.map(u64::from)).map(cpus)),
            or_dash(sum(&status.ranks, |rank| rank.memory_bytes).map(words::bytes)),
            or_dash(status.last_step.map(|step| step.to_string())),
            or_dash(status.step_time_us.map(words::span)),
            or_dash(
                status
                    .time
                    .and_then(|time| time.goodput)
                    .map(words::percent),
            ),
        ]
    };
    Use {
        heads: vec![
            "NAMESPACE",
            "NAME",
            "STATE",
            "NODES",
            "GPUS",
            "GPU BUSY",
            "GPU MEMORY",
            "CPUS",
            "MEMORY",
            "STEP",
            "STEP TIME",
            "GOODPUT",
        ],
        rows: live.iter().map(row).collect(),
    }
}

/// `None`: none of them is known.
fn sum(ranks: &[RankStatus], of: impl Fn(&RankStatus) -> Option<u64>) -> Option<u64> {
    ranks.iter().filter_map(of).reduce(u64::saturating_add)
}

/// The ranks of a job, those that are furthest behind first.
pub(crate) fn ranks(job: &Job, now_us: u64) -> Use {
    let status = job.status.clone().unwrap_or_default();
    let most = status.ranks.iter().filter_map(|rank| rank.last_step).max();
    let mut ranks = status.ranks;
    ranks.sort_by_key(|rank| (rank.last_step.is_none(), rank.last_step, rank.rank));
    let row = |rank: &RankStatus| {
        let behind = rank
            .last_step
            .zip(most)
            .map(|(step, most)| (most - step).to_string());
        vec![
            rank.rank.to_string(),
            rank.node.clone(),
            rank.state.clone(),
            or_dash(rank.cpu_milli.map(|milli| cpus(milli.into()))),
            or_dash(rank.memory_bytes.map(words::bytes)),
            or_dash(rank.last_step.map(|step| step.to_string())),
            or_dash(behind),
            words::age(rank.usage_unix_us, now_us),
        ]
    };
    Use {
        heads: vec![
            "RANK", "NODE", "STATE", "CPUS", "MEMORY", "STEP", "BEHIND", "READ",
        ],
        rows: ranks.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::*;

    use super::*;

    fn space(used: u64, total: u64) -> Option<Space> {
        Some(Space {
            available: (total - used) << 30,
            total: total << 30,
        })
    }

    fn node(name: &str, all_milli: u32, gpus: &[(&str, u32)]) -> Node {
        let gpu = |(uuid, percent): &(&str, u32)| GpuUsage {
            uuid: (*uuid).into(),
            memory: space(40, 80),
            busy_percent: Some(*percent),
        };
        Node {
            name: name.into(),
            gpus: vec![Gpu::default(); gpus.len()],
            usage: Some(Usage {
                cpu: Some(CpuUsage {
                    cpus: 8,
                    all_milli,
                    ..CpuUsage::default()
                }),
                memory: space(16, 64),
                gpus: gpus.iter().map(gpu).collect(),
                ..Usage::default()
            }),
            usage_unix_us: 1_000_000,
            ..Node::default()
        }
    }

    #[test]
    fn the_busiest_node_is_first_and_one_that_says_nothing_last() {
        let silent = Node {
            name: "silent".into(),
            ..Node::default()
        };
        let all = [
            silent,
            node("calm", 500, &[]),
            node("busy", 7_300, &[("a", 90), ("b", 100)]),
        ];
        let shown = nodes(&all, 4_000_000);
        assert_eq!(
            shown.rows,
            [
                [
                    "busy",
                    "Unknown",
                    "7.3/8",
                    "16.0 GiB/64.0 GiB",
                    "0/2",
                    "95%",
                    "80.0 GiB/160.0 GiB",
                    "3s"
                ],
                [
                    "calm",
                    "Unknown",
                    "0.5/8",
                    "16.0 GiB/64.0 GiB",
                    "-",
                    "-",
                    "-",
                    "3s"
                ],
                ["silent", "Unknown", "-", "-", "-", "-", "-", "-"],
            ]
        );
    }

    #[test]
    fn a_job_is_told_by_the_gpus_that_it_holds_and_what_its_ranks_use() {
        let rank = |rank, last_step, cpu_milli| RankStatus {
            rank,
            last_step,
            cpu_milli,
            memory_bytes: cpu_milli.map(|_| 1 << 30),
            ..RankStatus::default()
        };
        let job = Job {
            r#ref: Some(JobRef {
                namespace: "team".into(),
                name: "pretrain".into(),
            }),
            status: Some(JobStatus {
                replicas: 2,
                members: vec![MemberStatus {
                    gpus: vec!["a".into()],
                    ..MemberStatus::default()
                }],
                ranks: vec![
                    rank(0, Some(70), Some(1_000)),
                    rank(1, Some(68), Some(250)),
                    rank(2, None, None),
                ],
                last_step: Some(70),
                step_time_us: Some(431_000),
                ..JobStatus::default()
            }),
            ..Job::default()
        };
        let over = Job {
            status: Some(JobStatus {
                finished_unix_us: 1,
                ..JobStatus::default()
            }),
            ..Job::default()
        };
        let all = [node("n", 0, &[("a", 90), ("b", 10)])];
        let shown = jobs(&[over, job.clone()], &all);
        assert_eq!(
            shown.rows,
            [[
                "team",
                "pretrain",
                "Unknown",
                "0/2",
                "1",
                "90%",
                "40.0 GiB/80.0 GiB",
                "1.2",
                "2.0 GiB",
                "70",
                "431ms",
                "-"
            ]]
        );
        let shown = ranks(&job, 0);
        let behind: Vec<_> = shown.rows.iter().map(|row| (&*row[0], &*row[6])).collect();
        assert_eq!(behind, [("1", "2"), ("0", "0"), ("2", "-")]);
    }
}
