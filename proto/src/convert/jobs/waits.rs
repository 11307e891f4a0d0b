//! A job that waits for nodes.

use muster_core::fleet::view::JobView;

use super::unix_us;
use crate::v1;

pub(super) fn waits_for_room(view: &JobView) -> Option<v1::WaitsForRoom> {
    let record = &view.record;
    let spec = &record.spec;
    let of_roles = spec.roles.iter().map(|role| role.gpus_per_node).max();
    record.waits_for_nodes().then(|| v1::WaitsForRoom {
        lacks: view
            .shortage
            .map(|lacks| lacks.to_string())
            .unwrap_or_default(),
        since_unix_us: unix_us(record.waiting_since),
        gpus_per_member: of_roles.unwrap_or(spec.gpus_per_node),
        least: spec.min_replicas,
    })
}
