//! Bounds and defaults of a job. Everything a stranger can send has a bound; every bound has its
//! reason.

use std::time::Duration;

/// Members of one generation: the largest gang the rendezvous, the store's limits and the message
/// limit are sized for.
pub const NODES_MAX: i64 = 4_096;
/// Ranks on one node; the largest boxes have 16 GPUs, CPU nodes run a rank per core.
pub const PROCS_MAX: i64 = 256;
/// Items of `command` and of `args`.
pub const ARGS_MAX: usize = 256;
pub const ARG_BYTES_MAX: usize = 4 << 10;
/// All of `command` and `args`: half of what Linux always allows for arguments and environment
/// together (128 KiB).
pub const ARGS_BYTES_MAX: usize = 64 << 10;
pub const ENV_MAX: usize = 256;
/// All names and values of `env`; leaves room beside the arguments and what Muster adds.
pub const ENV_BYTES_MAX: usize = 32 << 10;
pub const STEP_PATTERN_MAX: usize = 256;
pub const PRIORITY_MAX: i64 = 1_000_000;
pub const RESTARTS_MAX: i64 = 1_000_000;
/// torchrun's users think in restarts per run; a window keeps a job that fails once a week alive
/// for ever.
pub const RESTART_WINDOW: Duration = Duration::from_secs(3600);
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// Longest wait for a checkpoint at a stop.
pub const STOP_GRACE_MAX: Duration = Duration::from_secs(300);
/// Twice the silence after which a node is lost: sooner, a coordinator that is merely restarted
/// would cost every such job its workers.
pub const FENCE_MIN: Duration = Duration::from_secs(10);
/// Whoever can wait longer can wait for a person.
pub const FENCE_MAX: Duration = Duration::from_secs(3600);
/// A re-form costs seconds; growing sooner than this after the last one seldom pays it back.
pub const SCALE_UP_COOLDOWN: Duration = Duration::from_secs(30);
