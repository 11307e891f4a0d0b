//! Jobs that run on even numbers of nodes. Nothing is drawn for them, so the rest of a history does not depend on it.

use muster_core::spec::SpecDocument;

/// The same job on pairs of nodes: all of it, or the role that may change its size.
pub(crate) fn in_pairs(mut spec: SpecDocument) -> SpecDocument {
    let even = |nodes: Option<i64>, least: i64| nodes.map(|nodes| (nodes / 2 * 2).max(least));
    let Some(role) = spec.roles.last_mut() else {
        let sizes = [spec.replicas, spec.min_replicas, spec.max_replicas];
        let sizes = sizes.map(|nodes| even(nodes, 2));
        [spec.replicas, spec.min_replicas, spec.max_replicas] = sizes;
        spec.multiple_of = Some(2);
        return spec;
    };
    let sizes = [role.replicas, role.min_replicas, role.max_replicas];
    let sizes = sizes.map(|nodes| even(nodes, 0));
    [role.replicas, role.min_replicas, role.max_replicas] = sizes;
    role.multiple_of = Some(2);
    // The roles say how many.
    spec.replicas = None;
    spec
}
