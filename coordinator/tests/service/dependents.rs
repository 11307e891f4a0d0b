//! What a MusterJob object owns besides its pods: a NetworkPolicy, a PodDisruptionBudget. They are there
//! before the first pod, follow the spec, and whatever cannot be kept is said.

use serde_json::{Value, json};

use crate::{
    access::Secure,
    cluster::{Cluster, Fault, State},
    kubectl::{Kubectl, NAMESPACE, condition, holding, in_phase, job_of_two},
    tokens::changed,
};

const POLICIES: &str = "networkpolicies";
const BUDGETS: &str = "poddisruptionbudgets";
const GROUPS: &str = "podgroups";

struct World {
    cluster: Cluster,
    kubectl: Kubectl,
    _secure: Secure,
}

/// A job of two nodes, of one to two, that asks for both.
fn job() -> Value {
    let mut job = job_of_two();
    job["replicas"] = json!(2);
    job["template"] =
        json!({ "spec": { "containers": [{ "name": "train", "image": "me/train:1" }] } });
    (job["networkPolicy"], job["disruptionBudget"]) = (json!("Job"), json!("Minimum"));
    job
}

fn pods(state: &State) -> usize {
    state.pods.len()
}

impl World {
    /// `before`: what is so when the coordinator starts.
    async fn start(before: impl FnOnce(&mut State)) -> Self {
        Self::start_with(true, before).await
    }

    /// `pod_groups`: jobs may ask for PodGroups.
    async fn start_with(pod_groups: bool, before: impl FnOnce(&mut State)) -> Self {
        let cluster = Cluster::start().await;
        cluster.change(before);
        let mut settings = cluster.pods();
        settings.pod_groups = pod_groups;
        let secure = Box::pin(changed(&cluster, |asked| *asked = settings)).await;
        Self {
            kubectl: Kubectl::new(cluster.configuration()),
            cluster,
            _secure: secure,
        }
    }

    async fn until(&self, wanted: impl Fn(&State) -> bool) {
        self.cluster.until(wanted).await;
    }

    async fn edit(&self, spec: Value) {
        let patch = json!({ "spec": spec });
        self.kubectl.patch("digits", "", patch).await.unwrap();
    }
}

fn says(reason: &'static str, text: &'static str) -> impl Fn(&Value) -> bool {
    move |object| {
        let accepted = condition(object, "Accepted");
        let message = accepted["message"].as_str().unwrap_or_default();
        accepted["reason"] == reason && message.contains(text)
    }
}

#[tokio::test]
async fn they_are_there_before_the_first_pod_and_are_the_object_s() {
    let world = World::start(|state| {
        state.faults.insert("pods", Fault::Away);
    })
    .await;
    world.kubectl.apply("digits", job()).await.unwrap();
    let both = |state: &State| state.only(POLICIES).is_some() && state.only(BUDGETS).is_some();
    world.until(both).await;
    let object = world.kubectl.get("digits").await.unwrap();
    let uid = &object["metadata"]["uid"];
    let (policy, budget) = world.cluster.change(|state| {
        assert_eq!(pods(state), 0);
        (state.only(POLICIES).unwrap(), state.only(BUDGETS).unwrap())
    });
    for owned in [&policy, &budget] {
        let metadata = &owned["metadata"];
        assert_eq!(metadata["namespace"], NAMESPACE);
        assert_eq!(metadata["ownerReferences"][0]["uid"], *uid);
        assert_eq!(metadata["ownerReferences"][0]["controller"], true);
    }
    let of_job = json!({ "matchLabels": { "muster.dev/job-uid": uid } });
    assert_eq!(budget["spec"]["selector"], of_job);
    assert_eq!(budget["spec"]["minAvailable"], 1, "{budget:#}");
    assert_eq!(policy["spec"]["podSelector"], of_job);
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
    let from = json!([{ "from": [{ "podSelector": of_job }] }]);
    assert_eq!(policy["spec"]["ingress"], from);
    // The pods have the label by which they are selected.
    world.cluster.change(|state| state.faults.clear());
    world.until(|state| pods(state) == 2).await;
    world.cluster.change(|state| {
        let mut all = state.pods.values();
        assert!(all.all(|pod| pod["metadata"]["labels"]["muster.dev/job-uid"] == *uid));
    });
}

#[tokio::test]
async fn they_follow_the_spec_and_are_put_right_again() {
    let world = World::start(|_| {}).await;
    world.kubectl.apply("digits", job()).await.unwrap();
    world.until(|state| pods(state) == 2).await;
    // Somebody opens a way into the pods, and somebody deletes the budget.
    world.cluster.change(|state| {
        let open = json!({ "spec": { "ingress": [{}] } });
        state.change_only(POLICIES, Some(open));
        state.change_only(BUDGETS, None);
    });
    let right = |state: &State| {
        let policy = state.only(POLICIES).unwrap_or_default();
        let closed = policy["spec"]["ingress"][0]["from"].is_array();
        closed && state.only(BUDGETS).is_some()
    };
    world.until(right).await;
    // A job without nodes needs no budget.
    world.edit(json!({ "suspend": true })).await;
    let without = |state: &State| state.all_of(BUDGETS).is_empty();
    world
        .until(|state| without(state) && pods(state) == 0)
        .await;
    world.edit(json!({ "suspend": false })).await;
    let back = |state: &State| !state.all_of(BUDGETS).is_empty() && pods(state) == 2;
    world.until(back).await;
    world.edit(json!({ "networkPolicy": "None" })).await;
    let only_budget = |state: &State| state.all_of(POLICIES).is_empty() && !without(state);
    world.until(only_budget).await;
    world.edit(json!({ "disruptionBudget": null })).await;
    world.until(without).await;
    world.edit(json!({ "networkPolicy": "Job" })).await;
    world
        .until(|state| !state.all_of(POLICIES).is_empty())
        .await;
    let object = world.kubectl.get("digits").await.unwrap();
    assert!(holding(&object).contains(&"Accepted"), "{object:#}");
}

#[tokio::test]
async fn no_pod_is_made_without_them_and_the_reason_is_told() {
    let world = World::start(|state| {
        state.forbidden.insert("create networkpolicies");
    })
    .await;
    world.kubectl.apply("digits", job()).await.unwrap();
    let refused = says("NetworkPolicyMissing", "cannot create networkpolicies");
    let object = world.kubectl.until("digits", refused).await;
    assert_eq!(object["status"]["phase"], "Pending");
    let message = object["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.networkPolicy asks for a NetworkPolicy, which cannot be kept")
            && message.contains("manifests/components/worker-pods"),
        "{message}"
    );
    let told = |state: &State| {
        let mut events = state.events.iter();
        events.any(|event| event["reason"] == "NetworkPolicyMissing")
    };
    world.until(told).await;
    world.cluster.change(|state| {
        assert_eq!(pods(state), 0);
        state.forbidden.clear();
    });
    world.until(|state| pods(state) == 2).await;
    let accepted = |object: &Value| holding(object).contains(&"Accepted");
    world.kubectl.until("digits", accepted).await;
}

/// A right that is missing concerns those that ask for such an object, and a running job goes on.
#[tokio::test]
async fn kinds_that_cannot_be_read_hold_up_only_those_that_ask_for_them() {
    let world = World::start(|state| {
        state.forbidden.insert("list networkpolicies");
        state.forbidden.insert("patch poddisruptionbudgets");
    })
    .await;
    let mut plain = job();
    plain["networkPolicy"] = json!("None");
    world.kubectl.apply("digits", plain).await.unwrap();
    world.until(|state| pods(state) == 2).await;
    world.edit(json!({ "networkPolicy": "Job" })).await;
    let unread = says("NetworkPolicyMissing", "may not list networkpolicies");
    world.kubectl.until("digits", unread).await;
    // Its pods stay.
    world.edit(json!({ "networkPolicy": "None" })).await;
    world.cluster.change(|state| {
        assert_eq!(pods(state), 2);
        let other = json!({ "spec": { "minAvailable": 2 } });
        state.change_only(BUDGETS, Some(other));
    });
    let unwritten = says(
        "DisruptionBudgetMissing",
        "cannot patch poddisruptionbudgets",
    );
    world.kubectl.until("digits", unwritten).await;
    world.cluster.change(|state| state.forbidden.clear());
    let right = |state: &State| state.only(BUDGETS).unwrap()["spec"]["minAvailable"] == 1;
    world.until(right).await;
}

/// Whoever has a namespace writes any label and any owner there.
#[tokio::test]
async fn what_a_stranger_makes_in_another_namespace_is_none_of_the_job_s() {
    let world = World::start(|state| {
        state.faults.insert("networkpolicies", Fault::Away);
    })
    .await;
    let made = world.kubectl.apply("digits", job()).await.unwrap();
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let of_job = json!({ "matchLabels": { "muster.dev/job-uid": uid } });
    let owner = json!({ "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "name": "digits", "uid": uid, "controller": true });
    let forged = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": "evil", "namespace": "team-b", "uid": "33333333-0000-4000-8000-000000000001",
            "labels": { "muster.dev/job-uid": uid }, "ownerReferences": [owner],
        },
        "spec": {
            "podSelector": of_job,
            "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": of_job }] }],
        },
    });
    world.cluster.change(|state| {
        state.put_object(POLICIES, forged);
        state.faults.clear();
    });
    world.until(|state| pods(state) == 2).await;
    world.cluster.change(|state| {
        let namespaces = state.all_of(POLICIES).into_iter();
        let namespaces = namespaces.map(|policy| policy["metadata"]["namespace"].clone());
        let namespaces: Vec<Value> = namespaces.collect();
        assert_eq!(namespaces, [json!(NAMESPACE), json!("team-b")]);
    });
    // The stranger's is not changed or deleted either.
    world.edit(json!({ "networkPolicy": "None" })).await;
    world
        .until(|state| {
            state
                .only(POLICIES)
                .is_some_and(|one| one["metadata"]["name"] == "evil")
        })
        .await;
}

#[tokio::test]
async fn only_jobs_with_pods_of_their_own_may_ask_for_them() {
    let world = World::start(|_| {}).await;
    let mut wrong = job_of_two();
    wrong["networkPolicy"] = json!("Job");
    world.kubectl.apply("digits", wrong).await.unwrap();
    let object = world.kubectl.until("digits", in_phase("Rejected")).await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.networkPolicy: needs a template"),
        "{message}"
    );
}

fn grouped(scheduler: &str) -> Value {
    let mut job = job();
    (job["networkPolicy"], job["disruptionBudget"]) = (json!("None"), json!("None"));
    job["podGroup"] = json!(scheduler);
    job
}

#[tokio::test]
async fn a_pod_group_is_there_before_its_pods_and_they_name_it() {
    let world = World::start(|state| {
        let served = [
            ("scheduling.k8s.io", "v1alpha2"),
            ("scheduling.x-k8s.io", "v1alpha1"),
        ];
        state.pod_groups = served.into();
        state.forbidden.insert("create podgroups");
    })
    .await;
    let mut job = grouped("Kubernetes");
    job["minReplicas"] = json!(2);
    world.kubectl.apply("digits", job).await.unwrap();
    let refused = says(
        "PodGroupMissing",
        "manifests/components/pod-groups has the right",
    );
    world.kubectl.until("digits", refused).await;
    world.cluster.change(|state| {
        assert_eq!(pods(state), 0);
        state.forbidden.clear();
    });
    world.until(|state| pods(state) == 2).await;
    world.cluster.change(|state| {
        let group = state.only(GROUPS);
        let group = group.unwrap_or_else(|| panic!("{:?}", state.all_of(GROUPS)));
        assert!(!state.was_deleted(GROUPS), "it is made once");
        assert_eq!(group["apiVersion"], "scheduling.k8s.io/v1alpha2");
        assert_eq!(group["spec"]["schedulingPolicy"]["gang"]["minCount"], 2);
        let name = &group["metadata"]["name"];
        for pod in state.pods.values() {
            assert_eq!(pod["spec"]["schedulingGroup"]["podGroupName"], *name);
        }
    });
    // A job without nodes needs none, and has it again when it goes on.
    world.edit(json!({ "suspend": true })).await;
    world
        .until(|state| state.all_of(GROUPS).is_empty() && pods(state) == 0)
        .await;
    world.edit(json!({ "suspend": false })).await;
    world
        .until(|state| state.only(GROUPS).is_some() && pods(state) == 2)
        .await;
}

#[tokio::test]
async fn a_scheduler_that_is_not_there_holds_up_only_jobs_that_name_it() {
    let world = World::start(|_| {}).await;
    world
        .kubectl
        .apply("digits", grouped("Volcano"))
        .await
        .unwrap();
    let absent = says(
        "PodGroupMissing",
        "the cluster has no Volcano (the API server does not know scheduling.volcano.sh)",
    );
    world.kubectl.until("digits", absent).await;
    world.kubectl.apply("plain", job()).await.unwrap();
    world.until(|state| pods(state) == 2).await;
    world.cluster.change(|state| {
        let mut names = state.pods.keys().map(|(_, name)| name);
        assert!(names.all(|name| name.starts_with("plain-")));
    });
}

#[tokio::test]
async fn a_coordinator_that_keeps_no_pod_groups_says_so() {
    let world = World::start_with(false, |state| {
        state.pod_groups = [("scheduling.volcano.sh", "v1beta1")].into();
    })
    .await;
    world
        .kubectl
        .apply("digits", grouped("Volcano"))
        .await
        .unwrap();
    let flag = says("PodGroupMissing", "without --kubernetes-pod-groups");
    world.kubectl.until("digits", flag).await;
    world.cluster.change(|state| assert_eq!(pods(state), 0));
}
