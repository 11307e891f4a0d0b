//! A Node object as it comes from the API server, and what is kept of it. Everything else is dropped
//! as it is read: images, addresses, and who changed which field. These are nine tenths of an object, so
//! it is never read into the type that has them all.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    ClusterResourceScope, api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use muster_core::{
    id::{NodeName, node_name_error},
    node_object::{Condition, NodeObject, Raw, Status},
    node_report::{self, taint::Effect},
    time::Timestamp,
};
use serde::{Deserialize, Deserializer};

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Object {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: bool,
    taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    value: String,
    effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    conditions: Option<Vec<Stated>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Stated {
    r#type: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: Option<String>,
}

fn metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    let Metadata {
        name,
        uid,
        resource_version,
        labels,
        annotations,
    } = Metadata::deserialize(from)?;
    Ok(ObjectMeta {
        name,
        uid,
        resource_version,
        labels,
        annotations,
        ..ObjectMeta::default()
    })
}

/// To kube it is a Node, of which we read less.
impl Resource for Object {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Node::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Node::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Node::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Node::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Object {
    pub(super) fn version(&self) -> &str {
        self.metadata
            .resource_version
            .as_deref()
            .unwrap_or_default()
    }

    pub(super) fn raw(self) -> Raw {
        let taints = self.spec.taints.unwrap_or_default();
        let conditions = self.status.conditions.unwrap_or_default();
        Raw {
            uid: self.metadata.uid.unwrap_or_default(),
            labels: self.metadata.labels.unwrap_or_default(),
            annotations: self.metadata.annotations.unwrap_or_default(),
            unschedulable: self.spec.unschedulable,
            taints: taints.into_iter().map(taint).collect(),
            conditions: conditions.into_iter().map(condition).collect(),
        }
    }
}

/// An effect that is not known keeps jobs away.
fn taint(Taint { key, value, effect }: Taint) -> node_report::taint::Taint {
    node_report::taint::Taint {
        key,
        value,
        effect: Effect::of(&effect).unwrap_or(Effect::NoSchedule),
    }
}

/// The node that an object is of, and what is kept. `None`: no agent can have the object's name.
pub(super) fn kept(object: Object) -> Option<(NodeName, Arc<NodeObject>)> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let name: NodeName = node_name_error(name).is_none().then(|| name.into())?;
    Some((name, Arc::new(NodeObject::read(object.raw()))))
}

fn condition(stated: Stated) -> Condition {
    let since = stated.last_transition_time;
    Condition {
        kind: stated.r#type,
        status: match stated.status.as_str() {
            "True" => Status::True,
            "False" => Status::False,
            _ => Status::Unknown,
        },
        reason: stated.reason,
        message: stated.message,
        since: since.and_then(|text| Timestamp::from_rfc3339(&text)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(object: Value) -> Object {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn what_matters_is_kept_of_an_object() {
        let object = read(json!({
            "metadata": { "name": "n1", "uid": "u", "resourceVersion": "7", "labels": { "zone": "a" },
                "annotations": { "muster.dev/cordoned-by": "ann" }, "managedFields": [{ "fieldsV1": { "f:x": {} } }] },
            "spec": { "unschedulable": true, "podCIDR": "10.0.0.0/24", "taints": [
                { "key": "karpenter.sh/disrupted", "effect": "NoSchedule" },
                { "key": "aiinfra/nccl-healthcheck", "value": "failed", "effect": "NoSchedule" },
                { "key": "dedicated", "value": "team-a", "effect": "PreferNoSchedule" } ] },
            "status": { "images": [{}], "conditions": [
                { "type": "GPUMissing", "status": "True", "reason": "R", "message": "m",
                  "lastHeartbeatTime": "2026-11-23T17:00:36Z", "lastTransitionTime": "1970-01-01T00:00:07Z" },
                { "type": "Ready", "status": "odd" } ] },
        }));
        assert_eq!(object.version(), "7");
        let raw = object.clone().raw();
        let taints = raw.taints.iter().map(ToString::to_string);
        assert_eq!(
            taints.collect::<Vec<_>>(),
            [
                "karpenter.sh/disrupted:NoSchedule",
                "aiinfra/nccl-healthcheck=failed:NoSchedule",
                "dedicated=team-a:PreferNoSchedule"
            ]
        );
        assert_eq!(raw.conditions[0].since, Some(Timestamp(7_000_000)));
        assert_eq!(raw.conditions[1].status, Status::Unknown);
        let kept = NodeObject::read(object.raw());
        assert_eq!(kept.uid, "u");
        assert!(kept.unschedulable && kept.leaving.is_some());
        assert_eq!(kept.marking.cordon.as_ref().unwrap().by, "ann");
    }

    #[test]
    fn an_object_may_lack_everything_but_no_agent_has_no_name() {
        let of = |name: &str| {
            let node = json!({ "metadata": { "name": name } });
            kept(serde_json::from_value(node).unwrap())
        };
        assert_eq!(*of("n1").unwrap().1, NodeObject::default());
        assert!(of("No Name").is_none());
    }
}
