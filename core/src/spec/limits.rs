//! Bounds and defaults of a job. Everything that a stranger can send has a bound, and every bound
//! has its reason.

use std::time::Duration;

/// Members of one generation. The rendezvous, the TCPStore's limits and the message limit are sized
/// for it.
pub const NODES_MAX: i64 = 4_096;
/// Ranks on one node. The largest machines have 16 GPUs, and CPU nodes run one rank per core.
pub const PROCS_MAX: i64 = 256;
/// Items of `command` and of `args`.
pub const ARGS_MAX: usize = 256;
/// Bytes of one item of `command` or `args`: all of them may be one program, as notebooks submit it
/// (`bash -c` and one text).
pub const ARG_BYTES_MAX: usize = ARGS_BYTES_MAX;
/// Bytes of `command` and `args` together: half of the 128 KiB that Linux always allows for
/// arguments and environment.
pub const ARGS_BYTES_MAX: usize = 64 << 10;
/// Variables in `env`.
pub const ENV_MAX: usize = 256;
/// Bytes of all names and values of `env`. It leaves room for the arguments and for Muster's own
/// variables.
pub const ENV_BYTES_MAX: usize = 32 << 10;
/// Bytes of `stepPattern`.
pub const STEP_PATTERN_MAX: usize = 256;
/// Bytes of `checkpointPattern`.
pub const CHECKPOINT_PATTERN_MAX: usize = 256;
/// Highest `priority`; the lowest is its negative.
pub const PRIORITY_MAX: i64 = 1_000_000;
pub const RESTARTS_MAX: i64 = 1_000_000;
/// Default of `restartPolicy.maxSameFailures` (decision 129): once may be chance and twice a coincidence. It is
/// one failure before the default budget of restarts ends the job anyway.
pub const SAME_FAILURES: u32 = 3;
/// torchrun's users count restarts per run. With a window, a job that fails once a week stays alive
/// for ever.
pub const RESTART_WINDOW: Duration = Duration::from_secs(3600);
/// Default of `stopGracePeriod`: what torchrun gives (`shutdown_timeout`), and Kubernetes.
pub const STOP_GRACE: Duration = Duration::from_secs(30);
/// The default that coordinators before 2026-11-26 had. A job that was accepted with it keeps it.
pub const STOP_GRACE_BEFORE: Duration = Duration::from_secs(10);
/// The longest wait for a checkpoint at a stop. Users of Slurm are used to ten minutes
/// (`--signal=TERM@600`). The agent's pods have a grace that covers it.
pub const STOP_GRACE_MAX: Duration = Duration::from_secs(900);
/// Twice the silence after which a node is lost. With a shorter fence, a mere restart of the
/// coordinator would cost every such job its workers.
pub const FENCE_MIN: Duration = Duration::from_secs(10);
/// A job that can wait longer can wait for a person.
pub const FENCE_MAX: Duration = Duration::from_secs(3600);
/// The least `stallAfter`. A node tells after four seconds that a rank does not move.
pub const STALL_MIN: Duration = Duration::from_secs(5);
/// Who waits longer needs no limit.
pub const STALL_MAX: Duration = Duration::from_secs(24 * 3600);
/// A re-formation costs seconds. A generation that trained for less than this seldom earns them
/// back by growing.
pub const SCALE_UP_COOLDOWN: Duration = Duration::from_secs(30);
/// The longest time in seconds that a job's life may have a limit of: ten years.
pub const SECONDS_MAX: i64 = 10 * 365 * 24 * 3_600;
/// Entries of `rules`. The rules of a batch/v1 Job have the same bound.
pub const RULES_MAX: usize = 20;
/// Bytes of the exit codes of a rule. All codes from 1 to 255, one by one, need 912.
pub const CODES_BYTES_MAX: usize = 1_024;
/// Signals of a rule. Linux has 64.
pub const SIGNALS_MAX: usize = 64;
/// Highest `limit` of a rule that has a window: the moments of that many restarts are in the record,
/// at 17 bytes each.
pub const RULE_LIMIT_IN_WINDOW_MAX: i64 = 1_000;
/// Jobs that one waits for. Each is about 150 bytes of the waiting job's record, so all are below 20 KiB.
pub const AFTER_MAX: usize = 128;
