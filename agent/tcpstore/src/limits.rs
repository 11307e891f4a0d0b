//! What one store may hold. The defaults fit a job of 4,096 members. They equal the limits of
//! torch's own server where it has any (`TCPStoreLibUvBackend.cpp`: 8 KiB keys, 8 MiB values, 128
//! Ki keys in one request).

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Bounds of one [`Store`](crate::Store). A client that would exceed one is refused and closed.
/// Other clients are not affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time. A rank holds two (torchrun gives the worker its store, and
    /// each process group clones it for the NCCL watchdog) and a node's launcher holds one: 4,096
    /// ranks x 3 + 4,096 launchers = 16,384.
    pub clients: usize,
    /// Keys in the table and in the queues together. A process group writes about 4 keys for each
    /// rank (address, barrier, liveness, shutdown): 4,096 ranks x 4 keys x 64 groups = 1,048,576.
    pub keys: usize,
    /// Bytes of one key. This is torch's own limit; real keys are below 300 bytes.
    pub key_bytes: usize,
    /// Bytes of one value in a request. This is torch's own limit.
    pub value_bytes: usize,
    /// Keys named in one request (CHECK, WAIT, MULTI_GET, MULTI_SET). This is torch's own limit.
    pub request_keys: usize,
    /// Bytes of one whole request. torch has no such limit. A MULTI_SET of 4,096 values of 16 KiB
    /// is 64 MiB. torchrun's largest request (one record of about 200 bytes for each rank) is below
    /// 1 MiB.
    pub request_bytes: usize,
    /// Everything that the store holds: keys, values, queues, waiters, half-read requests, unsent
    /// replies. Gloo's full mesh needs the most. Each of n ranks publishes 154 + 8n bytes
    /// (measured, torch 2.15), together 129 MiB for 4,096 ranks. If all of them waited for half of
    /// the others in one request, 4,096 x 2,048 waits of 48 bytes would add 384 MiB. 1 GiB holds
    /// both, with room.
    pub total_bytes: usize,
    /// Unsent reply bytes of one client. The store stops reading from a client that does not read,
    /// so this bounds one reply. Gloo's addresses of all 4,096 ranks in one MULTI_GET are 129 MiB.
    /// Values are shared, not copied, so their memory is counted once.
    pub pending_out_bytes: usize,
    /// Time from accept to validation. A torch client validates in its first packet. 10 s covers
    /// three lost packets (1 + 2 + 4 s) on a bad network.
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
