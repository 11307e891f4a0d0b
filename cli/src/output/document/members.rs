//! The members of a job's generation, as its status shows them.

use muster_proto::v1;
use serde::Serialize;

use super::{ms, some, start::Import, time};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Member {
    node: String,
    node_rank: u32,
    /// Its role and its number there, as `worker-1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lane_reason: Option<String>,
    /// Memory of the launcher that waits for the next generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    launcher_bytes: Option<u64>,
    /// Versions in the interpreter that starts the member's ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    torch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cuda: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nccl: Option<String>,
    /// The host of a worker pod, and the GPUs that it holds there.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<String>,
    /// What its ranks imported themselves at their start.
    #[serde(skip_serializing_if = "Option::is_none")]
    imports: Option<Imports>,
}

#[derive(Debug, Serialize)]
struct Imports {
    ms: Option<f64>,
    /// The packages that cost most.
    by: Vec<Import>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rank {
    rank: u32,
    local_rank: u32,
    node: String,
    pid: u32,
    state: String,
    first_step: Option<u64>,
    last_step: Option<u64>,
    first_error: Option<String>,
    /// Where the exception was raised, the innermost frame last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    frames: Vec<String>,
    /// Resident memory of the rank's process and all its descendants.
    memory_bytes: Option<u64>,
    /// Thousandths of one CPU.
    cpu_milli: Option<u32>,
    /// When the coordinator received these two values.
    usage_at: Option<String>,
}

impl From<v1::MemberStatus> for Member {
    fn from(member: v1::MemberStatus) -> Self {
        Member {
            node: member.node,
            node_rank: member.node_rank,
            role: some(member.role),
            phase: member.phase,
            lane: some(member.lane),
            lane_reason: some(member.lane_reason),
            launcher_bytes: (member.launcher_bytes > 0).then_some(member.launcher_bytes),
            torch: some(member.torch),
            cuda: some(member.cuda),
            nccl: some(member.nccl),
            host: some(member.host),
            gpus: member.gpus,
            imports: member.imports.map(|imports| Imports {
                ms: ms(Some(imports.us)),
                by: imports.by.into_iter().map(Import::from).collect(),
            }),
        }
    }
}

impl From<v1::RankStatus> for Rank {
    fn from(rank: v1::RankStatus) -> Self {
        Rank {
            rank: rank.rank,
            local_rank: rank.local_rank,
            node: rank.node,
            pid: rank.pid,
            state: rank.state,
            first_step: rank.first_step,
            last_step: rank.last_step,
            first_error: some(rank.first_error),
            frames: rank.frames,
            memory_bytes: rank.memory_bytes,
            cpu_milli: rank.cpu_milli,
            usage_at: time(rank.usage_unix_us),
        }
    }
}
