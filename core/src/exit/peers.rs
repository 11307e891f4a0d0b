//! What the error of a failed rank says about other ranks: that one is lost, that one was awaited in
//! vain, or nothing. A rank that speaks of others is no cause. This file knows texts of torch, gloo,
//! NCCL and other frameworks, and nothing about how a process ended.
//!
//! A text counts only if it comes from a library between ranks. A script's own connection may be
//! refused as well. The texts are those of torch 2.4 to 2.15, NCCL 2.20 to 2.28 and gloo, as they were
//! seen, and as their sources have them.

/// What an error says about other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfPeers {
    /// The connection to one is gone.
    Lost,
    /// One did not come, or did not answer, within the time limit of the one that waited.
    Awaited,
}

/// Texts that gloo, NCCL or torch's store print when a *peer* is lost. A rank that prints one of
/// them is a victim.
pub const PEER_LOST_SIGNS: [&str; 10] = [
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection closed by remote peer",
    "Broken pipe",
    "remote process exited",
    "ncclRemoteError",
    "failed to recv, got 0 bytes",
    "Connection refused",
    "NCCL communicator was aborted",
    "unhandled system error",
];

/// Names of the libraries that connect ranks, as their exceptions and log lines contain them. They
/// are needed because a script's own connection to anything else may be refused as well:
/// `ConnectionRefusedError: [Errno 111] Connection refused` alone says nothing about a peer.
const BETWEEN_RANKS: [&str; 9] = [
    "torch.distributed.",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "gloo/",
    "NCCL",
    "nccl",
    "c10d",
    "TCPStore",
];

/// What a library between ranks says of its own process, its GPU or its arguments. The rank failed by
/// itself, whatever else the text has. NCCL's names of results are in `ncclGetErrorString` and in torch's
/// `getNcclErrorDetailStr`. A system error of NCCL is mostly a connection, but not one about shared memory.
const OWN_FAULTS: [&str; 11] = [
    "invalid usage",
    "ncclInvalidUsage",
    "invalid argument",
    "ncclInvalidArgument",
    "unhandled cuda error",
    "ncclUnhandledCudaError",
    "CUDA error",
    "Cuda failure",
    "out of memory",
    "shared memory segment",
    "No space left on device",
];

/// Texts by which torch and gloo say that a wait for another rank was longer than its limit.
const AWAITED: [&str; 8] = [
    // gloo: an operation of a collective.
    "Timed out waiting",
    // NCCL's watchdog, and torch's own copy of it for other backends.
    "Watchdog caught collective operation timeout",
    // The TCPStore: a key that no rank has set.
    "wait timeout after",
    // The TCPStore's server: `1/2 clients joined`.
    "waiting for clients",
    // The TCPStore's client: nobody answered.
    "Socket Timeout",
    "client socket has timed out",
    // `monitored_barrier`, and each collective under `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
    "failed to pass monitoredBarrier",
    "successfully reached monitoredBarrier",
];

/// Texts by which other frameworks say that a peer is lost. Each of them says it alone. TensorFlow 2.21
/// (`collective_executor_mgr`, and the coordination service that it shares with JAX), JAX 0.10, Open
/// MPI 4.1 and 5.0, and Muster's own programs for MPI print them. The last one is the place from which XGBoost 3.2 raises whatever stopped a
/// collective; the reason, as `Socket error. Broken pipe`, is in later lines. LightGBM 4.7 says nothing
/// and waits.
const OF_FRAMEWORKS: [&str; 6] = [
    "Collective ops is aborted",
    "stopped sending heartbeats",
    "JAX distributed service detected fatal errors",
    "has lost communication with a remote daemon",
    CONNECTION_BROKE,
    "/src/collective/result.cc:",
];

/// What `muster-lend` says if the connection of its launcher broke while a rank of MPI ran.
pub(crate) const CONNECTION_BROKE: &str = "muster-lend: the launcher's connection broke";

/// The word that only `monitored_barrier` prints, in front of and behind the ranks that did not come.
const MONITORED_BARRIER: &str = "failed to pass monitoredBarrier";

/// Ranks that one error may name. A thousand would not help.
const NAMED_MAX: usize = 64;

pub(super) fn of_peers(error: &str) -> Option<OfPeers> {
    let says = |words: &[&str]| words.iter().any(|word| error.contains(word));
    // The program for remote starts names a host of the job.
    let host_is_gone = error.starts_with("muster-rsh: ") && error.contains(" is gone: ");
    if host_is_gone || says(&OF_FRAMEWORKS) {
        return Some(OfPeers::Lost);
    }
    let is_barrier = error.contains("monitoredBarrier");
    if !is_barrier && !says(&BETWEEN_RANKS) || says(&OWN_FAULTS) {
        return None;
    }
    // An aborted communicator and a barrier quote their reason, which may be a wait.
    match (says(&AWAITED), says(&PEER_LOST_SIGNS)) {
        (true, _) => Some(OfPeers::Awaited),
        (false, true) => Some(OfPeers::Lost),
        (false, false) => None,
    }
}

/// The ranks of which this error says that they did not come, ascending. `[Rank 0]: Ranks 1, 2 failed to
/// pass monitoredBarrier in 4000 ms`. Empty: it names none.
pub(crate) fn awaited_ranks(error: &str) -> Vec<u32> {
    let Some((before, _)) = error.split_once(MONITORED_BARRIER) else {
        return Vec::new();
    };
    // The last word `Rank` before it begins the list; one in front says who speaks.
    let Some(at) = before.rfind("Rank") else {
        return Vec::new();
    };
    let list = before[at..]
        .trim_start_matches("Ranks")
        .trim_start_matches("Rank");
    let number = |word: &str| word.trim().parse::<u32>().ok();
    let mut ranks: Vec<u32> = list.split(',').map_while(number).take(NAMED_MAX).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_peer_is_told_from_an_own_fault() {
        for lost in [
            "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:35093",
            "torch.distributed.DistNetworkError: The client socket has failed to connect: Connection refused",
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.20.5",
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9",
            "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
            "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer",
            "UnavailableError: Collective ops is aborted by: The following tasks are unhealthy (stopped sending heartbeats):",
            "Terminating process because the JAX distributed service detected fatal errors.",
            "xgboost.core.XGBoostError: [23:49:22] /workspace/src/collective/result.cc:83: [histogram.h:197|23:49:22]:",
            "ORTE has lost communication with a remote daemon.",
            "TrainingFailed: at step 7 (from RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4711)",
            "muster-lend: the launcher's connection broke above MPI rank 3 (pid 7)",
            "muster-rsh: pi-worker-0 is gone: it has closed the connection",
        ] {
            assert_eq!(of_peers(lost), Some(OfPeers::Lost), "{lost}");
        }
        for own in [
            "muster-rsh: pi-worker-0 refuses: this member runs a command already",
            "xgboost.core.XGBoostError: [23:49:22] /workspace/src/data/data.cc:513: Check failed: labels.Size() == num_row_",
            "ValueError: bad shape",
            "ConnectionRefusedError: [Errno 111] Connection refused",
            "RuntimeError: the label server: Broken pipe",
            "TimeoutError: Timed out waiting for the label server",
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool: Read timed out.",
            // The same line begins with DistBackendError on an H100 with torch 2.11 and NCCL 2.28.9.
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9",
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3780, invalid argument (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9",
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9",
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, internal error - please report this issue to the NCCL developers, NCCL version 2.20.5",
            "terminate called after throwing an instance of 'c10::DistBackendError' what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered",
            "terminate called after throwing an instance of 'c10::DistBackendError' what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled system error, NCCL version 2.28.9 ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. Last error: Error while creating shared memory segment /dev/shm/nccl-Bq1c2d (size 9637888)",
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=BROADCAST)",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 GiB.",
        ] {
            assert_eq!(of_peers(own), None, "{own}");
        }
    }

    #[test]
    fn who_waited_in_vain_is_no_cause() {
        for waited in [
            "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete",
            "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 4000ms for send operation to complete",
            "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 4000 ms",
            "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
            "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//nope",
            "torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 1/2 clients joined.",
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).",
            "terminate called after throwing an instance of 'c10::DistBackendError' what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=5000) ran for 5047 milliseconds before timing out.",
            "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.  Original reason for failure was: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=5000) ran for 5047 milliseconds before timing out.",
        ] {
            assert_eq!(of_peers(waited), Some(OfPeers::Awaited), "{waited}");
        }
    }

    #[test]
    fn the_ranks_that_did_not_come_are_named() {
        for (error, ranks) in [
            (
                "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms",
                &[1][..],
            ),
            (
                "RuntimeError: [Rank 0]: Ranks 3, 1, 2 failed to pass monitoredBarrier in 4000 ms",
                &[1, 2, 3],
            ),
            (
                "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors",
                &[],
            ),
            ("failed to pass monitoredBarrier", &[]),
            ("Rank x failed to pass monitoredBarrier", &[]),
            (
                "Rank 99999999999 failed to pass monitoredBarrier in 1 ms",
                &[],
            ),
            ("ValueError: Rank 1", &[]),
        ] {
            assert_eq!(awaited_ranks(error), ranks, "{error}");
        }
    }
}
