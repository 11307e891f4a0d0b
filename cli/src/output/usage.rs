//! How much of a node is in use, and how much each rank uses. An unknown value is a dash, never 0.

use muster_proto::v1::{self, DiskRole};

use super::words::{self, cpus, or_dash};

/// Columns of a wide list: busy CPUs, available memory, the load of the last minute, and free space
/// for the agent's state.
pub(crate) const NODE_HEADS: [&str; 4] = ["CPU%", "AVAILABLE", "LOAD", "DISK FREE"];

pub(crate) fn node_row(usage: Option<&v1::Usage>) -> [String; 4] {
    let state = usage.and_then(|usage| {
        usage
            .disks
            .iter()
            .find(|disk| disk.role() == DiskRole::State)?
            .space
    });
    [
        or_dash(
            usage
                .and_then(|usage| usage.cpu)
                .map(|cpu| percent(cpu.all_milli.into(), u64::from(cpu.cpus) * 1_000)),
        ),
        or_dash(
            usage
                .and_then(|usage| usage.memory)
                .map(|memory| words::bytes(memory.available)),
        ),
        or_dash(
            usage
                .and_then(|usage| usage.load)
                .map(|load| hundredths(load.one_milli)),
        ),
        or_dash(state.map(|space| words::bytes(space.available))),
    ]
}

/// One line with a name for each known value.
pub(crate) fn lines(usage: &v1::Usage) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(cpu) = usage.cpu {
        let others = cpu
            .others_milli
            .map(|milli| format!(", {} of them not by Muster", cpus(milli.into())))
            .unwrap_or_default();
        lines.push((
            "CPU use",
            format!(
                "{} of {} CPUs{others}",
                cpus(cpu.all_milli.into()),
                cpu.cpus
            ),
        ));
    }
    if let Some(load) = usage.load {
        let means = [load.one_milli, load.five_milli, load.fifteen_milli]
            .map(hundredths)
            .join(", ");
        lines.push(("Load", format!("{means} (1, 5 and 15 minutes)")));
    }
    if let Some(memory) = usage.memory {
        lines.push((
            "Memory available",
            format!(
                "{} of {}",
                words::bytes(memory.available),
                words::bytes(memory.total)
            ),
        ));
    }
    if let Some(swap) = usage.swap {
        let used = words::in_use(&swap);
        let text = if swap.total == 0 {
            "none".into()
        } else {
            format!("{} of {}", words::bytes(used), words::bytes(swap.total))
        };
        lines.push(("Swap used", text));
    }
    if let Some(traffic) = usage.network {
        let (received, sent) = (
            words::bytes(traffic.received_bytes),
            words::bytes(traffic.sent_bytes),
        );
        lines.push((
            "Network",
            format!("{received} received, {sent} sent since boot"),
        ));
    }
    if let Some(processes) = usage.processes {
        lines.push(("Processes", processes.to_string()));
    }
    lines
}

pub(crate) const DISK_HEADS: [&str; 5] = ["PATH", "HOLDS", "FREE", "SIZE", "USED"];

pub(crate) fn disk_rows(usage: &v1::Usage) -> Vec<Vec<String>> {
    let row = |disk: &v1::DiskUsage| {
        let used = |space: v1::Space| percent(words::in_use(&space), space.total) + " %";
        vec![
            disk.path.clone(),
            holds(disk.role()).into(),
            disk.space
                .map_or("no answer".into(), |space| words::bytes(space.available)),
            or_dash(disk.space.map(|space| words::bytes(space.total))),
            or_dash(disk.space.map(used)),
        ]
    };
    usage.disks.iter().map(row).collect()
}

pub(crate) fn holds(role: DiskRole) -> &'static str {
    match role {
        DiskRole::State => "state",
        DiskRole::Work => "work",
        DiskRole::Unspecified => "unknown",
    }
}

/// Memory and CPUs of a rank.
pub(crate) fn rank_cells(rank: &v1::RankStatus) -> [String; 2] {
    [
        or_dash(rank.memory_bytes.map(words::bytes)),
        or_dash(rank.cpu_milli.map(|milli| cpus(milli.into()))),
    ]
}

/// The age of the oldest rank usage that is shown. Empty: none is shown.
pub(crate) fn age_of_ranks(ranks: &[v1::RankStatus], now_us: u64) -> String {
    let oldest = ranks
        .iter()
        .map(|rank| rank.usage_unix_us)
        .filter(|at| *at != 0)
        .min();
    oldest
        .map(|at| format!("up to {} old", words::age(at, now_us)))
        .unwrap_or_default()
}

fn percent(part: u64, of: u64) -> String {
    (u128::from(part) * 100 / u128::from(of.max(1))).to_string()
}

fn hundredths(milli: u32) -> String {
    format!("{:.2}", f64::from(milli) / 1_000.0)
}
