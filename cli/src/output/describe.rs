//! `muster describe`: everything about one object, for a person.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{
    nccl::stack::Stack,
    period,
    spec::{EnvVar, Framework, SpecDocument},
};
use muster_proto::{convert::jobs, v1};

use super::{
    after, chosen,
    document::severity,
    gpu_use, hardware, holders, imports, raised, roles, stall, steps,
    table::{Table, plain},
    time_account, usage, words,
};

/// How many of the newest events are shown. `muster events` shows the others.
pub(crate) const EVENTS_SHOWN: usize = 20;

/// How many ranks that have not joined are named: enough to see one node, or one rank of each node.
const JOINING_SHOWN: usize = 8;

#[derive(Default)]
struct Page(String);

impl Page {
    fn field(&mut self, name: &str, value: impl AsRef<str>) {
        let value = value.as_ref();
        if !value.is_empty() {
            self.0
                .push_str(&format!("{:20}{}\n", format!("{name}:"), plain(value)));
        }
    }

    /// A table under a heading, or the word "none".
    fn table(&mut self, name: &str, heads: Vec<&'static str>, rows: &[Vec<String>]) {
        if rows.is_empty() {
            return self.field(name, "none");
        }
        self.0.push_str(&format!("{name}:\n"));
        for line in Table::new(heads).render(rows, true).lines() {
            self.0.push_str(&format!("  {line}\n"));
        }
    }
}

/// `show_env`: also show the values of environment variables.
pub(crate) fn job(job: &v1::Job, events: &[v1::Event], now_us: u64, show_env: bool) -> String {
    let named = job.r#ref.clone().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let spec = jobs::spec_document(job.spec.clone().unwrap_or_default());
    let mut page = Page::default();
    page.field("Name", &named.name);
    page.field("Namespace", &named.namespace);
    page.field("UID", &job.uid);
    page.field("Submitted", words::utc_seconds(job.created_unix_us));
    page.field("Owner", &job.owner);
    if status.finished_unix_us != 0 {
        page.field("Finished", words::utc_seconds(status.finished_unix_us));
    }
    page.field("State", words::phase(status.phase));
    page.field("Reason", &status.reason);
    page.field("Message", &status.message);
    page.field(
        "Nodes",
        format!(
            "{} running of {} in generation {}, {} wanted",
            status.nodes_running, status.nodes, status.generation, status.replicas
        ),
    );
    page.field("Multiple of", words::multiple_of(&spec));
    page.field("World size", status.world_size.to_string());
    page.field("Restarts", restarts(status.restarts));
    page.field("Progress", super::restarts::in_vain(&status));
    page.field("Joining", joining(&status.ranks));
    page.field("Step", steps::step(&named.name, &status));
    if spec.checkpoint_pattern.is_some() {
        page.field("Saved", steps::saved(&status, now_us));
    }
    if let Some(stall) = &status.stall {
        page.field("Stalled", stall::sentence(stall, now_us));
        stall::places(stall).for_each(|place| page.field("  at", place));
    }
    stall::slow(&status, now_us).for_each(|slow| page.field("Slow", slow));
    if !status.store_node.is_empty() {
        page.field(
            "Store",
            format!("{} on {}", status.store_address, status.store_node),
        );
        if !status.store_open.is_empty() {
            page.field(
                "Store access",
                format!("anyone in its network: {}", status.store_open),
            );
        }
    }
    job_spec(&mut page, &spec, show_env);
    for (name, text) in after::rows(&spec, &status, now_us) {
        page.field(name, text);
    }
    life(&mut page, &spec, &status);
    let lanes: BTreeSet<_> = status
        .members
        .iter()
        .filter(|member| !member.lane.is_empty())
        .map(|m| (&m.lane, &m.lane_reason))
        .collect();
    for (lane, reason) in lanes {
        page.field("Lane", format!("{lane}: {reason}"));
    }
    page.field("Imports", imports::of(&status.members).unwrap_or_default());
    software(&mut page, &status.members);
    let with_roles = status.members.iter().any(|member| !member.role.is_empty());
    let mut heads = vec!["NODE RANK", "NODE", "PHASE", "LANE", "LAUNCHER"];
    if with_roles {
        heads.insert(1, "ROLE");
    }
    let pods = status.members.iter().any(|member| !member.host.is_empty());
    if pods {
        heads.extend(["HOST", "GPUS"]);
    }
    let of = |one: &v1::MemberStatus| {
        [
            member(one, with_roles),
            if pods { place(one) } else { vec![] },
        ]
        .concat()
    };
    let members: Vec<_> = status.members.iter().map(of).collect();
    page.table("Members", heads, &members);
    let number = |step: Option<u64>| step.map(|step| step.to_string()).unwrap_or_default();
    let ranks: Vec<_> = status
        .ranks
        .iter()
        .map(|rank| {
            let (pid, step) = (rank.pid.to_string(), number(rank.last_step));
            let [memory, cpu] = usage::rank_cells(rank);
            vec![
                rank.rank.to_string(),
                rank.local_rank.to_string(),
                rank.node.clone(),
                pid,
                rank.state.clone(),
                step,
                memory,
                cpu,
                rank.first_error.clone(),
            ]
        })
        .collect();
    page.field("Rank usage", usage::age_of_ranks(&status.ranks, now_us));
    page.table(
        "Ranks",
        vec![
            "RANK",
            "LOCAL RANK",
            "NODE",
            "PID",
            "STATE",
            "STEP",
            "MEMORY",
            "CPUS",
            "FIRST ERROR",
        ],
        &ranks,
    );
    if let Some((name, frames)) = raised::table(&status.ranks) {
        page.table(&name, vec![raised::HEAD], &frames);
    }
    if let Some(account) = &status.time {
        page.field("Goodput", time_account::goodput(account));
        page.field("Time", time_account::since(account, job.created_unix_us));
        let rows = time_account::rows(account);
        page.table("Time spent", time_account::HEADS.into(), &rows);
    }
    events_of(&mut page, events, now_us);
    page.0
}

fn restarts(count: u32) -> String {
    match count {
        0 => "0".into(),
        count => format!("{count} (new starts of its workers: failures, lost nodes, resizes)"),
    }
}

/// The ranks that the others wait for before the first step. If a start hangs, one of them is the
/// cause.
fn joining(ranks: &[v1::RankStatus]) -> String {
    let missing: Vec<_> = ranks
        .iter()
        .filter(|rank| rank.state == "joining")
        .collect();
    if missing.is_empty() {
        return String::new();
    }
    let named: Vec<_> = missing
        .iter()
        .take(JOINING_SHOWN)
        .map(|rank| format!("rank {} on {}", rank.rank, rank.node))
        .collect();
    let more = missing.len() - named.len();
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more")
    };
    format!(
        "{} of {} ranks are there and wait for {}{more}",
        ranks.len() - missing.len(),
        ranks.len(),
        named.join(", ")
    )
}

fn job_spec(page: &mut Page, spec: &SpecDocument, show_env: bool) {
    let number = |value: Option<i64>| value.map(|value| value.to_string()).unwrap_or_default();
    let (min, max) = words::bounds(spec);
    page.field("Range", words::range(min, max));
    let framework = spec.framework.as_deref().unwrap_or_default();
    if ![Framework::Torch.name(), ""].contains(&framework) {
        page.field("Framework", framework);
    }
    if !spec.roles.is_empty() {
        let rows: Vec<_> = spec.roles.iter().map(roles::row).collect();
        page.table("Roles", roles::HEADS.into(), &rows);
    }
    page.field("Processes/node", number(spec.proc_per_node));
    page.field("GPUs/node", number(spec.gpus_per_node));
    page.field(
        "Command",
        spec.command
            .iter()
            .chain(&spec.args)
            .map(|word| words::quoted(word))
            .collect::<Vec<_>>()
            .join(" "),
    );
    page.field(
        "Working dir",
        spec.working_dir.as_deref().unwrap_or_default(),
    );
    page.field("Image", spec.image.as_deref().unwrap_or_default());
    // A value may be a secret, so it is shown only if the user asks for it.
    let shown = |var: &EnvVar| {
        if let Some(from) = &var.value_from {
            format!("{} (file {})", var.name, from.file)
        } else if show_env {
            format!("{}={}", var.name, var.value)
        } else {
            var.name.clone()
        }
    };
    page.field(
        "Environment",
        spec.env.iter().map(shown).collect::<Vec<_>>().join(", "),
    );
    page.field("Priority", number(spec.priority));
    for (name, said) in [("Queue", &spec.queue), ("Preemption", &spec.preemption)] {
        page.field(name, said.as_deref().unwrap_or_default());
    }
    page.field("Tells", chosen::told(&spec.notify));
    if let Some(policy) = &spec.restart_policy {
        page.field("Restart policy", super::restarts::policy(policy));
    }
    page.field(
        "Stop grace",
        spec.stop_grace_period.as_deref().unwrap_or_default(),
    );
    page.field(
        "Scale-up cool-down",
        spec.scale_up_cooldown.as_deref().unwrap_or_default(),
    );
    let said = [
        ("Fence after", &spec.fence_after),
        ("Progress", &spec.progress),
        ("Launch", &spec.launch),
        ("Standbys", &spec.standbys),
        ("Inspect", &spec.inspect),
        ("On stall", &spec.on_stall),
        ("Stall after", &spec.stall_after),
        ("On slow rank", &spec.on_slow_rank),
    ];
    for (name, word) in said {
        page.field(name, word.as_deref().unwrap_or_default());
    }
    page.field("Node mix", spec.node_mix.as_deref().unwrap_or_default());
    page.field("Placement", spec.placement.as_deref().unwrap_or_default());
    for (name, text) in chosen::rows(spec) {
        page.field(name, text);
    }
    page.field(
        "Step pattern",
        spec.step_pattern.as_deref().unwrap_or_default(),
    );
    page.field(
        "Checkpoint pattern",
        spec.checkpoint_pattern.as_deref().unwrap_or_default(),
    );
}

/// The limits of the job's life, and its own rules about ends.
fn life(page: &mut Page, spec: &SpecDocument, status: &v1::JobStatus) {
    let period = |seconds: Option<i64>| {
        let seconds = u64::try_from(seconds?).ok()?;
        Some(period::format(Duration::from_secs(seconds)))
    };
    if let Some(after) = period(spec.active_deadline_seconds) {
        let at = match status.deadline_unix_us {
            0 => String::new(),
            at => format!(", at {}", words::utc_seconds(at)),
        };
        page.field("Deadline", format!("{after}{at}"));
    }
    if let Some(after) = period(spec.start_deadline_seconds) {
        page.field("Start deadline", after);
    }
    if let Some(after) = period(spec.ttl_seconds_after_finished) {
        page.field("Deleted", format!("{after} after its end"));
    }
    for rule in &status.rules {
        let restarts = match rule.restarts {
            0 => String::new(),
            count => format!("; {} so far", words::count(count.into(), "restart")),
        };
        page.field("Rule", format!("{}{restarts}", rule.text));
    }
}

/// The software of the members' interpreters. If members differ, the names of the nodes follow each
/// version.
fn software(page: &mut Page, members: &[v1::MemberStatus]) {
    let mut nodes_of: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for member in members {
        let stack = Stack {
            torch: member.torch.clone(),
            cuda: member.cuda.clone(),
            nccl: member.nccl.clone(),
            ..Stack::default()
        };
        nodes_of
            .entry(stack.to_string())
            .or_default()
            .push(&member.node);
    }
    let differ = nodes_of.len() > 1;
    for (stack, nodes) in nodes_of.iter().filter(|(stack, _)| !stack.is_empty()) {
        let more = nodes.len() - 1;
        let more = if more == 0 {
            String::new()
        } else {
            format!(" and {more} more")
        };
        page.field(
            "Software",
            if differ {
                format!("{stack} on {}{more}", nodes[0])
            } else {
                stack.clone()
            },
        );
    }
}

fn member(member: &v1::MemberStatus, with_role: bool) -> Vec<String> {
    let launcher = if member.launcher_bytes > 0 {
        words::bytes(member.launcher_bytes)
    } else {
        String::new()
    };
    let mut row = vec![
        member.node_rank.to_string(),
        member.node.clone(),
        member.phase.clone(),
        member.lane.clone(),
        launcher,
    ];
    if with_role {
        row.insert(1, member.role.clone());
    }
    row
}

/// Where a worker pod is, and its GPUs.
fn place(member: &v1::MemberStatus) -> Vec<String> {
    let gpus: Vec<&str> = member.gpus.iter().map(|gpu| holders::short(gpu)).collect();
    vec![member.host.clone(), gpus.join(",")]
}

pub(crate) fn node(node: &v1::Node, events: &[v1::Event], now_us: u64) -> String {
    let mut page = Page::default();
    page.field("Name", &node.name);
    page.field("State", hardware::state(node));
    page.field("Host", &node.host);
    if let Some(cordon) = &node.cordon {
        page.field(
            "Cordoned",
            format!(
                "by {} at {}: {}",
                plain(&cordon.by),
                words::utc_seconds(cordon.at_unix_us),
                plain(&cordon.reason)
            ),
        );
    }
    node.conditions
        .iter()
        .for_each(|condition| page.field("Condition", condition));
    page.field(
        "Last heard",
        format!("{} ago", words::age(node.last_heard_unix_us, now_us)),
    );
    page.field("First seen", words::utc_seconds(node.first_seen_unix_us));
    page.field("Address", &node.address);
    page.field("Hostname", &node.hostname);
    page.field("Kernel", &node.kernel);
    page.field("Boot", &node.boot_id);
    page.field("Agent", &node.agent_version);
    page.field("Epoch", node.epoch.to_string());
    page.field("CPUs", node.cpus.to_string());
    page.field("Memory", words::bytes(node.memory_bytes));
    if let Some(host) = node
        .hardware
        .as_ref()
        .and_then(|hardware| hardware.host.as_ref())
    {
        let bytes = |bytes: Option<u64>| {
            bytes.map(|bytes| {
                if bytes == u64::MAX {
                    "unlimited".into()
                } else {
                    words::bytes(bytes)
                }
            })
        };
        page.field("Shared memory", bytes(host.shm_bytes).unwrap_or_default());
        page.field(
            "Lockable memory",
            bytes(host.memlock_bytes).unwrap_or_default(),
        );
    }
    page.field(
        "Slots",
        format!("{} free of {}", node.slots_free, node.slots),
    );
    if node.run_as_owner {
        page.field("Jobs run as", "their owners");
    }
    page.field("Images run by", node.container_runtime.as_str());
    if let Some(pool) = &node.warm_pool {
        let bytes = if pool.bytes > 0 {
            format!(", {}", words::bytes(pool.bytes))
        } else {
            String::new()
        };
        page.field(
            "Warm pool",
            format!("{} of {} launchers ready{bytes}", pool.ready, pool.limit),
        );
    }
    for trial in &node.trials {
        page.field("Interpreter", words::trial(trial));
    }
    let taints: Vec<String> = node.taints.iter().map(words::taint).collect();
    page.field("Taints", taints.join(", "));
    let (of_object, own): (Vec<_>, Vec<_>) = node
        .labels
        .iter()
        .partition(|(key, _)| node.kubernetes_labels.contains(key));
    for (heading, labels) in [("Labels", own), ("From Kubernetes", of_object)] {
        page.field(
            heading,
            labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(", "),
        );
    }
    page.field("GPU error", &node.gpu_error);
    if let Some(driver) = node
        .hardware
        .as_ref()
        .and_then(|hardware| hardware.driver.as_ref())
    {
        page.field(
            "Driver",
            format!("{}, CUDA up to {}", driver.version, driver.cuda),
        );
    }
    let gpus = hardware::gpu_rows(node);
    let (heads, gpus) = gpu_use::with_columns(node, hardware::GPU_HEADS.to_vec(), gpus);
    let (heads, gpus) = holders::with_column(node, heads, gpus);
    page.table("GPUs", heads, &gpus);
    if let Some(used) = &node.usage {
        page.field(
            "Usage",
            format!("{} ago", words::age(node.usage_unix_us, now_us)),
        );
        for (name, text) in usage::lines(used) {
            page.field(name, text);
        }
        page.table("Disks", usage::DISK_HEADS.to_vec(), &usage::disk_rows(used));
    }
    let nics = hardware::nic_rows(node);
    if !nics.is_empty() {
        page.table("NICs", hardware::NIC_HEADS.to_vec(), &nics);
    }
    let findings = hardware::finding_rows(node, now_us);
    if !findings.is_empty() {
        page.table("Health", hardware::FINDING_HEADS.to_vec(), &findings);
    }
    let runs: Vec<_> = node
        .runs
        .iter()
        .map(|run| {
            vec![
                run.namespace.clone(),
                run.job.clone(),
                run.generation.to_string(),
                run.phase.clone(),
            ]
        })
        .collect();
    page.table(
        "Runs",
        vec!["NAMESPACE", "JOB", "GENERATION", "PHASE"],
        &runs,
    );
    let marks: Vec<_> = node
        .marks
        .iter()
        .map(|mark| {
            let lasted = period::format(Duration::from_secs(mark.lasted_us / 1_000_000));
            vec![
                words::age(mark.at_unix_us, now_us),
                mark.job.clone(),
                mark.cause.clone(),
                lasted,
                mark.standing.clone(),
            ]
        })
        .collect();
    if !marks.is_empty() {
        page.table(
            "Failures that began here",
            vec!["AGE", "JOB", "CAUSE", "LASTED", "WHAT IT SAYS"],
            &marks,
        );
    }
    events_of(&mut page, events, now_us);
    page.0
}

fn events_of(page: &mut Page, events: &[v1::Event], now_us: u64) {
    let newest = &events[events.len().saturating_sub(EVENTS_SHOWN)..];
    let rows: Vec<_> = newest
        .iter()
        .map(|event| {
            vec![
                words::age(event.at_unix_us, now_us),
                severity(event).into(),
                event.reason.clone(),
                event.message.clone(),
            ]
        })
        .collect();
    page.table("Events", vec!["AGE", "TYPE", "REASON", "MESSAGE"], &rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_have_not_joined_are_named() {
        let rank = |rank: u32, state: &str| v1::RankStatus {
            rank,
            node: format!("n{rank}"),
            state: state.into(),
            ..Default::default()
        };
        assert_eq!(joining(&[rank(0, "running"), rank(1, "exit code 1")]), "");
        let two = [rank(0, "running"), rank(1, "joining"), rank(2, "joining")];
        assert_eq!(
            joining(&two),
            "1 of 3 ranks are there and wait for rank 1 on n1, rank 2 on n2"
        );
        let many: Vec<_> = (0..20)
            .map(|i| rank(i, if i == 0 { "running" } else { "joining" }))
            .collect();
        assert!(joining(&many).ends_with("rank 8 on n8 and 11 more"));
    }
}
