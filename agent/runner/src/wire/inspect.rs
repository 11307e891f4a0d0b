//! Where ranks are, as their runner has found out.

pub use muster_inspect::{Frame, Position, Thread};
use serde::{Deserialize, Serialize};

/// The socket of a rank's worker server, in the runner's directory. The launcher's program has this name, too.
pub fn worker_server(rank: u32) -> String {
    format!("server-{rank}.sock")
}

/// The file into which a rank's interpreter writes its stacks when it gets the signal for that, in the
/// runner's directory. Its first line is the number of the rank's descriptor of it. The second may be `!` and
/// the reason why there is no worker server. The launcher's program has this name, too.
pub fn stacks_file(rank: u32) -> String {
    format!("stacks-{rank}.txt")
}

/// Where one rank is. Whatever could not be found out is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStacks {
    pub rank: u32,
    /// The Python threads, the main thread first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<Thread>,
    /// Where it is in each process group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<Position>,
    /// Why there are no stacks, or no positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// None: it has not started, or has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessLook>,
}

/// What the kernel says of the rank's process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLook {
    pub pid: i32,
    /// The state of its first thread, as in proc(5): `R`, `S`, `D`, `T`, `t`, `Z`.
    pub state: String,
    /// The kernel's function in which that thread waits. Empty: in none, or it may not be known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wchan: String,
    /// The processor time that it has used in the last `over_us`.
    #[serde(default)]
    pub cpu_us: u64,
    #[serde(default)]
    pub over_us: u64,
    #[serde(default)]
    pub threads: u32,
    /// How many children it has.
    #[serde(default)]
    pub children: u32,
}
