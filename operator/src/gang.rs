//! Groups of pods that a scheduler places all at once or not at all: what a PodGroup of each scheduler says,
//! and how a pod names its group. All of it is pure. Which jobs have a group is decided in
//! `rules::dependents`.

use muster_core::spec::GangScheduler;
use serde_json::{Value, json};

use crate::versions::Group;

/// The kind, as paths name it.
pub(super) const PLURAL: &str = "podgroups";

/// Where a scheduler's PodGroups are in the API.
pub(super) fn group(scheduler: GangScheduler) -> Group {
    match scheduler {
        GangScheduler::Kubernetes => Group {
            name: "scheduling.k8s.io",
            owner: "gang scheduling of Kubernetes",
            versions: &["v1beta1", "v1alpha2"],
        },
        GangScheduler::Coscheduling => Group {
            name: "scheduling.x-k8s.io",
            owner: "Coscheduling",
            versions: &["v1alpha1"],
        },
        GangScheduler::Volcano => Group {
            name: "scheduling.volcano.sh",
            owner: "Volcano",
            versions: &["v1beta1"],
        },
    }
}

/// The spec of a PodGroup.
pub(super) fn spec(scheduler: GangScheduler, min_member: u32) -> Value {
    match scheduler {
        GangScheduler::Kubernetes => {
            json!({ "schedulingPolicy": { "gang": { "minCount": min_member } } })
        }
        GangScheduler::Coscheduling | GangScheduler::Volcano => json!({ "minMember": min_member }),
    }
}

/// Puts pods of this template into the group. Which scheduler places them, the template says; only Volcano's
/// has one name everywhere.
pub(super) fn join(template: &mut Value, scheduler: GangScheduler, group: &str) {
    let group = json!(group);
    match scheduler {
        GangScheduler::Kubernetes => {
            put(
                template,
                &["spec", "schedulingGroup", "podGroupName"],
                group,
            );
        }
        GangScheduler::Coscheduling => {
            let label = "scheduling.x-k8s.io/pod-group";
            put(template, &["metadata", "labels", label], group);
        }
        GangScheduler::Volcano => {
            let annotation = "scheduling.k8s.io/group-name";
            put(template, &["metadata", "annotations", annotation], group);
            if template["spec"]["schedulerName"].is_null() {
                put(template, &["spec", "schedulerName"], json!("volcano"));
            }
        }
    }
}

/// Sets a value in an object. If something on the way is no object, the template is wrong, and the API server
/// will say so.
fn put(into: &mut Value, path: &[&str], value: Value) {
    let Some((first, rest)) = path.split_first() else {
        *into = value;
        return;
    };
    if into.is_null() {
        *into = json!({});
    }
    if let Some(fields) = into.as_object_mut() {
        put(fields.entry(*first).or_insert(Value::Null), rest, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_joins_its_group_and_keeps_what_it_says() {
        let template = json!({
            "metadata": { "labels": { "team": "vision" } },
            "spec": { "containers": [{ "name": "train" }] },
        });
        let joined = |scheduler| {
            let mut template = template.clone();
            join(&mut template, scheduler, "digits-0b4e1");
            assert_eq!(template["metadata"]["labels"]["team"], "vision");
            assert_eq!(template["spec"]["containers"][0]["name"], "train");
            template
        };
        let own = joined(GangScheduler::Kubernetes);
        let named = json!({ "podGroupName": "digits-0b4e1" });
        assert_eq!(own["spec"]["schedulingGroup"], named);
        let label = &joined(GangScheduler::Coscheduling)["metadata"]["labels"];
        assert_eq!(label["scheduling.x-k8s.io/pod-group"], "digits-0b4e1");
        let volcano = joined(GangScheduler::Volcano);
        let annotation = &volcano["metadata"]["annotations"]["scheduling.k8s.io/group-name"];
        assert_eq!(*annotation, "digits-0b4e1");
        assert_eq!(volcano["spec"]["schedulerName"], "volcano");
        let mut own = json!({ "spec": { "schedulerName": "volcano-gpu" } });
        join(&mut own, GangScheduler::Volcano, "digits-0b4e1");
        assert_eq!(own["spec"]["schedulerName"], "volcano-gpu");
        let mut wrong = json!({ "metadata": { "labels": "none" } });
        join(&mut wrong, GangScheduler::Coscheduling, "digits-0b4e1");
        assert_eq!(wrong, json!({ "metadata": { "labels": "none" } }));
    }

    #[test]
    fn a_group_says_how_many_pods_begin_together() {
        let own = spec(GangScheduler::Kubernetes, 2);
        assert_eq!(own["schedulingPolicy"]["gang"]["minCount"], 2);
        assert_eq!(spec(GangScheduler::Coscheduling, 2)["minMember"], 2);
        assert_eq!(spec(GangScheduler::Volcano, 2)["minMember"], 2);
    }
}
