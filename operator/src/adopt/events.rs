//! What is told about a foreign object as Kubernetes Events, where `kubectl describe` shows it.

use muster_core::time::Timestamp;
use serde_json::{Value, json};

use super::object::Seen;
use crate::stamp::precise_time;

/// Bytes of the longest note that an API server takes.
const NOTE_MAX: usize = 1_024;

/// The fields that have no effect here, if there are any.
pub(super) fn no_effect(seen: &Seen, warnings: &[String], at: Timestamp) -> Vec<(String, Value)> {
    let told =
        (!warnings.is_empty()).then(|| event(seen, true, "NoEffect", &warnings.join("; "), at));
    told.into_iter().collect()
}

/// An event, and the path where it is created.
pub(super) fn event(
    seen: &Seen,
    warning: bool,
    reason: &str,
    note: &str,
    at: Timestamp,
) -> (String, Value) {
    let (kind, object) = (&seen.kind, &seen.object);
    let (namespace, name) = (&object.name.namespace, &object.name.name);
    let machine = rustix::system::uname();
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": format!("{name}.{:x}.{reason}", at.0).to_lowercase(), "namespace": namespace },
        "eventTime": precise_time(at),
        "reportingController": "muster.dev/coordinator",
        "reportingInstance": machine.nodename().to_string_lossy(),
        "action": reason,
        "reason": reason,
        "type": if warning { "Warning" } else { "Normal" },
        "note": &note[..note.floor_char_boundary(NOTE_MAX)],
        "regarding": {
            "apiVersion": format!("{}/{}", kind.group, kind.version),
            "kind": kind.kind,
            "namespace": namespace,
            "name": name,
            "uid": object.uid,
        },
    });
    (
        format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"),
        event,
    )
}
