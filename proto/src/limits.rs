//! Sizes of messages and pages, kept by both ends of every connection.
//!
//! By default tonic receives at most 4 MiB but sends without a limit. An oversized message would then
//! fail at the far end again and again.

/// Bytes of the largest message that either side sends or accepts. The largest report of a node has
/// 4 runs of 256 ranks. With a tail of 20 lines of 500 bytes for each rank it would be 10 MiB, so
/// the agent sends the tails of at most 16 failed ranks of a run: 160 KiB. A list page of 500 jobs
/// with 64 KiB of arguments each would not fit either, so pages are also cut by size.
pub const MESSAGE_MAX: usize = 4 << 20;

/// Items in one page of a list, also for a client that asks for no number.
pub const PAGE_MAX: usize = 500;
