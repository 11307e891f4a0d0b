//! The tables of a store's file.

use ::redb::TableDefinition;

pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
pub(super) const JOBS: TableDefinition<&str, &[u8]> = TableDefinition::new("jobs");
pub(super) const NODES: TableDefinition<&str, &[u8]> = TableDefinition::new("nodes");
/// Apart from `nodes`: the report of a node with eight GPUs has some 13 KiB, and no decision waits
/// until it is on the disk.
pub(super) const REPORTS: TableDefinition<&str, &[u8]> = TableDefinition::new("reports");
pub(super) const EVENTS: TableDefinition<u64, &[u8]> = TableDefinition::new("events");
/// What is remembered of deleted jobs, by their uid. A file of an older build has none.
pub(super) const TOMBSTONES: TableDefinition<&str, &[u8]> = TableDefinition::new("tombstones");
/// What is left of jobs that are over, by number. A file of an older build has none, and such a build leaves
/// the table alone.
pub(super) const HISTORY: TableDefinition<u64, &[u8]> = TableDefinition::new("history");
/// What waits to be sent to people, in one row. A file of an older build has none, and such a build leaves the table
/// alone.
pub(super) const OUTBOX: TableDefinition<(), &[u8]> = TableDefinition::new("outbox");
/// Term and number of the last write of each record but events and history, by the record's kind and name. A file of
/// an older build has none, and such a build changes records without it. That does no harm: the
/// lock keeps every other writer out.
pub(super) const VERSIONS: TableDefinition<&str, (u64, u64)> = TableDefinition::new("versions");

pub(super) const META_FORMAT: &str = "format";
pub(super) const META_TERM: &str = "term";
pub(super) const META_LAST_EVENT: &str = "last_event";
/// The number of commits so far, to compare with the [`Witness`].
pub(super) const META_COMMITS: &str = "commits";

/// Must grow when a record's shape changes so that an older build would misread it.
pub(super) const FORMAT: u64 = 2;
