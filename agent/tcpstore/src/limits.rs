//! What one store may hold. The defaults fit a job of 4,096 members and are the ones torch's own
//! server has, where it has any (`TCPStoreLibUvBackend.cpp`: 8 KiB keys, 8 MiB values, 128 Ki keys
//! in one request).

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Bounds of one [`Store`](crate::Store). A client that would cross one is refused and closed; the
/// others go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time. A rank holds two (torchrun hands the worker its store, each
    /// process group clones it for the NCCL watchdog), a node's launcher one: 4,096 ranks x 3 +
    /// 4,096 launchers = 16,384.
    pub clients: usize,
    /// Keys in the table and queues together. A process group writes about 4 keys for each rank
    /// (address, barrier, liveness, shutdown): 4,096 ranks x 4 keys x 64 groups = 1,048,576.
    pub keys: usize,
    /// Bytes of one key; torch's own limit. Real keys are below 300 bytes.
    pub key_bytes: usize,
    /// Bytes of one value in a request; torch's own limit.
    pub value_bytes: usize,
    /// Keys named in one request (CHECK, WAIT, MULTI_GET, MULTI_SET); torch's own limit.
    pub request_keys: usize,
    /// Bytes of one whole request. Torch has no such limit. A MULTI_SET of 4,096 values of 16 KiB
    /// is 64 MiB; torchrun's largest (one record of some 200 bytes for each rank) is below 1 MiB.
    pub request_bytes: usize,
    /// Everything the store holds: keys, values, queues, waiters, half-read requests, unsent
    /// replies. Gloo's full mesh is the greediest user: each of n ranks publishes 154 + 8n bytes
    /// (measured, torch 2.15), at 4,096 ranks 129 MiB together; were all of them to wait for half
    /// of the others in one request, 4,096 x 2,048 waits of 48 bytes are 384 MiB more. 1 GiB holds
    /// both, with room.
    pub total_bytes: usize,
    /// Unsent reply bytes of one client. The store stops reading from a client that does not read,
    /// so this bounds one single reply: gloo's addresses of all 4,096 ranks in one MULTI_GET are
    /// 129 MiB. Values are shared, not copied, so the memory behind them is counted once.
    pub pending_out_bytes: usize,
    /// Time from accepted to validated. A torch client validates in its first packet; 10 s is three
    /// lost SYN-sized packets (1 + 2 + 4 s) on a bad network.
    pub handshake: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 16 * KIB,
            keys: 1024 * KIB,
            key_bytes: 8 * KIB,
            value_bytes: 8 * MIB,
            request_keys: 128 * KIB,
            request_bytes: 64 * MIB,
            total_bytes: 1024 * MIB,
            pending_out_bytes: 256 * MIB,
            handshake: Duration::from_secs(10),
        }
    }
}
