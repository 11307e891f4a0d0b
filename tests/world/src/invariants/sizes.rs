//! I15 in bytes: what is stored of a job and of a node. Looked at when a history ends, since to write
//! every record at every change would cost more than the history.

use super::*;

/// What may be stored of a job as JSON, and more for each member that it may have.
const JOB_BYTES_MAX: usize = 96 << 10;
const MEMBER_BYTES_MAX: usize = 8 << 10;
const NODE_BYTES_MAX: usize = 64 << 10;

pub(crate) fn records_are_small(world: &mut World) {
    let bytes =
        |record: serde_json::Result<String>| record.expect("a record has a JSON form").len();
    let jobs = world.store.jobs.values().map(|job| {
        let most = JOB_BYTES_MAX + MEMBER_BYTES_MAX * job.spec.max_replicas as usize;
        (job.uid.to_string(), bytes(serde_json::to_string(job)), most)
    });
    let nodes = world.store.nodes.values();
    let nodes = nodes.map(|node| {
        (
            node.name.to_string(),
            bytes(serde_json::to_string(node)),
            NODE_BYTES_MAX,
        )
    });
    let large = jobs.chain(nodes).find(|(_, bytes, most)| bytes > most);
    if let Some((whose, bytes, most)) = large {
        let what = format!("the record of {whose} has {bytes} bytes, and {most} are the most");
        world.fail("I15", what);
    }
}
