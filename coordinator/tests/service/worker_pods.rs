//! Jobs whose workers are in pods of their own. The cluster's part, a scheduler and kubelets, is played
//! by the test; the agents in the pods are real sessions with the pods' own tokens.

use std::collections::BTreeMap;

use muster_coordinator::kubernetes::Settings;
use muster_core::exit::Exit;
use serde_json::{Value, json};

use crate::{
    access::Secure,
    agent::{FakeAgent, Order},
    cluster::{Cluster, Holder, State},
    kubectl::{Kubectl, NAMESPACE, condition, in_phase, job_of_two},
    tokens::{changed, mint, whoami},
};

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) secure: Secure,
    pub(crate) kubectl: Kubectl,
    pub(crate) agents: BTreeMap<String, FakeAgent>,
}

/// The template of a job in somebody's own image.
fn template() -> Value {
    json!({ "spec": { "containers": [{ "name": "train", "image": "me/train:1" }] } })
}

/// A job of two nodes, of one to two.
pub(crate) fn job() -> Value {
    let mut job = job_of_two();
    (job["replicas"], job["template"]) = (json!(2), template());
    job
}

fn names(state: &State) -> Vec<String> {
    let standing = state
        .pods
        .values()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    standing
        .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

impl World {
    pub(crate) async fn start() -> Self {
        let cluster = Cluster::start().await;
        let settings = cluster.pods();
        Self::with(cluster, settings).await
    }

    pub(crate) async fn with(cluster: Cluster, settings: Settings) -> Self {
        let secure = Box::pin(changed(&cluster, |asked| *asked = settings)).await;
        Self {
            kubectl: Kubectl::new(cluster.configuration()),
            cluster,
            secure,
            agents: BTreeMap::new(),
        }
    }

    /// Waits until there are so many pods that stay.
    pub(crate) async fn pods(&self, count: usize) -> Vec<String> {
        self.cluster
            .until(|state| names(state).len() == count)
            .await;
        self.cluster.change(|state| names(state))
    }

    /// The scheduler gives the pod this host, its containers start, and its agent dials.
    pub(crate) async fn runs(&mut self, pod: &str, host: &str) {
        let running = json!({ "spec": { "nodeName": host }, "status": { "phase": "Running" } });
        self.cluster
            .change(|state| state.change_pod(NAMESPACE, pod, running));
        let token = self.token(pod);
        let clients = self.secure.with_token(&token).await;
        let agent = FakeAgent::over(&clients, &format!("{pod}.{NAMESPACE}.pod")).await;
        self.agents.insert(pod.to_owned(), agent);
    }

    fn token(&self, pod: &str) -> String {
        let place = (NAMESPACE.to_owned(), pod.to_owned());
        let pod = self.cluster.change(|state| state.pods[&place].clone());
        mint(&self.cluster, Holder::of_pod(&pod))
    }

    /// The pod's containers end, and it is gone.
    pub(crate) fn goes(&mut self, pod: &str) {
        self.agents.remove(pod);
        self.cluster.change(|state| state.drop_pod(NAMESPACE, pod));
    }

    pub(crate) async fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        self.kubectl.until("digits", wanted).await
    }
}

pub(crate) fn runs_on(nodes: &str) -> impl Fn(&Value) -> bool {
    move |object| in_phase("Running")(object) && object["status"]["nodes"] == *nodes
}

#[tokio::test]
async fn a_job_with_a_template_runs_in_pods_of_its_own() {
    let mut world = World::start().await;
    world.kubectl.apply("digits", job()).await.unwrap();
    let pods = world.pods(2).await;
    let place = (NAMESPACE.to_owned(), pods[0].clone());
    let pod = world.cluster.change(|state| state.pods[&place].clone());
    let object = world.kubectl.get("digits").await.unwrap();
    assert_eq!(
        pod["metadata"]["ownerReferences"][0]["uid"],
        object["metadata"]["uid"]
    );
    assert_eq!(pod["spec"]["initContainers"][1]["image"], "muster-agent:1");
    // Its namespace has what the agents need to know this coordinator.
    let place = (NAMESPACE.to_owned(), "muster-ca-bundle".to_owned());
    let bundle = world
        .cluster
        .change(|state| state.config_maps[&place].clone());
    assert!(
        bundle["data"]["ca.crt"]
            .as_str()
            .unwrap()
            .contains("BEGIN CERTIFICATE")
    );
    // Both pods were made at once, and what they have in common was read once.
    let read = world.cluster.change(|state| state.asked["daemonsets"]);
    assert_eq!(read, 1);

    world.runs(&pods[0], "gpu-1").await;
    world.until(runs_on("1/2")).await;
    world.runs(&pods[1], "gpu-2").await;
    world.until(runs_on("2/2")).await;
    for agent in world.agents.values() {
        agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    }
    world.until(in_phase("Succeeded")).await;
    // The pods stay, so that their logs do.
    assert_eq!(world.pods(2).await, pods);
}

#[tokio::test]
async fn a_pod_that_is_gone_is_made_anew_and_the_job_goes_on_meanwhile() {
    let mut world = World::start().await;
    world.kubectl.apply("digits", job()).await.unwrap();
    let pods = world.pods(2).await;
    for pod in &pods {
        world.runs(pod, "gpu-1").await;
    }
    world.until(runs_on("2/2")).await;
    world.goes(&pods[0]);
    let now = world.pods(2).await;
    assert!(now.contains(&pods[1]) && !now.contains(&pods[0]));
    world.until(runs_on("1/2")).await;
    let new = now.iter().find(|pod| !pods.contains(pod)).unwrap().clone();
    world.runs(&new, "gpu-2").await;
    world.until(runs_on("2/2")).await;
}

#[tokio::test]
async fn a_smaller_job_gives_a_pod_back() {
    let mut world = World::start().await;
    world.kubectl.apply("digits", job()).await.unwrap();
    for pod in world.pods(2).await {
        world.runs(&pod, "gpu-1").await;
    }
    world.until(runs_on("2/2")).await;
    world.kubectl.scale("digits", 1).await.unwrap();
    world.until(runs_on("1/1")).await;
    world.pods(1).await;
}

#[tokio::test]
async fn it_says_why_pods_cannot_be_made_or_do_not_run() {
    let world = World::start().await;
    let why = "pods \"digits-x\" is forbidden: exceeded quota: gpus";
    world
        .cluster
        .change(|state| state.no_pods = Some(why.into()));
    world.kubectl.apply("digits", job()).await.unwrap();
    let says = |text: &'static str| {
        move |object: &Value| {
            let message = object["status"]["message"].as_str();
            message.is_some_and(|message| message.contains(text))
        }
    };
    world.until(says("exceeded quota: gpus")).await;
    world.cluster.change(|state| state.no_pods = None);
    let pods = world.pods(2).await;
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available" });
    let waits = json!({ "status": { "conditions": [condition] } });
    world
        .cluster
        .change(|state| state.change_pod(NAMESPACE, &pods[0], waits));
    let object = world
        .until(says("Unschedulable: 0/3 nodes are available"))
        .await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(!message.contains("quota"), "{message}");
}

#[tokio::test]
async fn a_template_is_checked_and_cannot_change() {
    let world = World::start().await;
    let mut wrong = job();
    wrong["template"]["spec"]["hostPID"] = json!(true);
    world.kubectl.apply("wrong", wrong).await.unwrap();
    let object = world.kubectl.until("wrong", in_phase("Rejected")).await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.template.spec.hostPID: "),
        "{message}"
    );

    world.kubectl.apply("digits", job()).await.unwrap();
    let pods = world.pods(2).await;
    let mut other = template();
    other["spec"]["containers"][0]["image"] = json!("me/train:2");
    let patch = json!({ "spec": { "template": other } });
    world.kubectl.patch("digits", "", patch).await.unwrap();
    let rejected = |object: &Value| condition(object, "Accepted")["reason"] == "FixedFields";
    let object = world.until(rejected).await;
    let message = condition(&object, "Accepted")["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.template cannot change"),
        "{message}"
    );
    assert_eq!(world.pods(2).await, pods);
}

#[tokio::test]
async fn a_coordinator_that_makes_no_pods_says_so() {
    let cluster = Cluster::start().await;
    let settings = cluster.jobs();
    let _secure = changed(&cluster, |asked| asked.jobs = settings.jobs).await;
    let kubectl = Kubectl::new(cluster.configuration());
    kubectl.apply("digits", job()).await.unwrap();
    let object = kubectl.until("digits", in_phase("Rejected")).await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(message.contains("--kubernetes-pods"), "{message}");
}

#[tokio::test]
async fn only_a_worker_pod_is_its_node() {
    let world = World::start().await;
    world.kubectl.apply("digits", job()).await.unwrap();
    let pods = world.pods(2).await;
    let who = async |token: &str| whoami(&world.secure.with_token(token).await).await;
    let own = world.token(&pods[0]);
    assert_eq!(
        who(&own).await.unwrap(),
        format!("host/{}.{NAMESPACE}.pod", pods[0])
    );
    // Another pod of the namespace is nobody here.
    world
        .cluster
        .change(|state| state.put_pod(NAMESPACE, "web-1", "u-1", "gpu-1"));
    let other = who(&world.token("web-1")).await.unwrap_err();
    assert!(
        other.message().contains("are agents of this coordinator"),
        "{other}"
    );
    // So is a pod of the name that came later.
    let place = (NAMESPACE.to_owned(), pods[1].clone());
    let mut gone = world.cluster.change(|state| state.pods[&place].clone());
    gone["metadata"]["uid"] = json!("another");
    let late = mint(&world.cluster, Holder::of_pod(&gone));
    assert!(who(&late).await.is_err());
    // Labels alone say nothing: the object must own the pod.
    world.cluster.change(|state| {
        let pod = state.pods.get_mut(&place).unwrap();
        pod["metadata"]["ownerReferences"] = json!([]);
    });
    assert!(who(&world.token(&pods[1])).await.is_err());
}

/// A user who may make pods in a namespace can label them as those of any job.
#[tokio::test]
async fn a_pod_that_is_labelled_as_another_namespace_s_job_s_is_nobody() {
    let mut world = World::start().await;
    world.kubectl.apply("digits", job()).await.unwrap();
    let pods = world.pods(2).await;
    for pod in &pods {
        world.runs(pod, "gpu-1").await;
    }
    world.until(runs_on("2/2")).await;
    let own = (NAMESPACE.to_owned(), pods[0].clone());
    let forged = world.cluster.change(|state| {
        let mut forged = state.pods[&own].clone();
        forged["metadata"]["namespace"] = json!("team-b");
        forged["metadata"]["name"] = json!("evil");
        forged["metadata"]["uid"] = json!("33333333-0000-4000-8000-000000000001");
        state.add_pod("team-b", "evil", forged.clone());
        forged
    });
    let token = mint(&world.cluster, Holder::of_pod(&forged));
    let refused = whoami(&world.secure.with_token(&token).await).await;
    let refused = refused.unwrap_err();
    assert!(
        refused
            .message()
            .contains("there is no such object in its namespace team-b"),
        "{refused}"
    );
    // It is counted as none of the job's: the job has two pods of its own, and makes one in place of one that goes.
    world.goes(&pods[0]);
    let own = |state: &State| {
        let own = state
            .pods
            .keys()
            .filter(|(namespace, _)| namespace == NAMESPACE);
        own.count()
    };
    world.cluster.until(|state| own(state) == 2).await;
    world.cluster.change(|state| {
        let place = ("team-b".to_owned(), "muster-ca-bundle".to_owned());
        assert!(!state.config_maps.contains_key(&place));
    });
}

#[tokio::test]
async fn a_suspended_job_gives_all_its_pods_back() {
    let mut world = World::start().await;
    world.kubectl.apply("digits", job()).await.unwrap();
    for pod in world.pods(2).await {
        world.runs(&pod, "gpu-1").await;
    }
    world.until(runs_on("2/2")).await;
    let suspend = |suspended: bool| json!({ "spec": { "suspend": suspended } });
    world
        .kubectl
        .patch("digits", "", suspend(true))
        .await
        .unwrap();
    world.pods(0).await;
    world
        .kubectl
        .patch("digits", "", suspend(false))
        .await
        .unwrap();
    world.pods(2).await;
}
