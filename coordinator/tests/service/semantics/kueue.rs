//! Jobs in the queues of Kueue itself: its controller and its webhooks, on a real API server. The tests of
//! `queues` play Kueue's part by hand. Here it decides.
//!
//! TEST_ASSET_KUEUE names its controller, and TEST_ASSET_KUEUE_CRDS the folder `config/components/crd/bases` of
//! its source. Without them a loud line says that Kueue was not asked.

use std::{collections::BTreeMap, env, path::PathBuf, time::Duration};

use muster_core::exit::Exit;
use serde_json::{Value, json};

use super::{Method, World, real};
use crate::{
    access::Secure,
    agent::{FakeAgent, Order},
    kubectl::{Kubectl, NAMESPACE, condition, in_phase, job_of_two},
    server::PATIENCE,
    worker_pods::runs_on,
};

const LOOK: Duration = Duration::from_millis(50);
const API: &str = "/apis/kueue.x-k8s.io/v1beta2";

/// A job of so many nodes. With its agent, each of its pods asks for 1.1 processors.
fn job(replicas: u32, priority: i32) -> Value {
    let mut job = job_of_two();
    (job["replicas"], job["maxReplicas"]) = (json!(replicas), json!(4));
    job["priority"] = json!(priority);
    let requests = json!({ "requests": { "cpu": "1" } });
    let container = json!({ "name": "train", "image": "me/train:1", "resources": requests });
    job["template"] = json!({ "spec": { "containers": [container] } });
    job
}

/// Room for so many pods of such jobs.
fn room(flavor: &str, pods: u32) -> Value {
    let cpu = format!("{}m", 1_100 * pods);
    json!({ "name": flavor, "resources": [
        { "name": "cpu", "nominalQuota": cpu }, { "name": "memory", "nominalQuota": "64Gi" },
    ] })
}

fn shares(flavors: &[Value]) -> Value {
    json!([{ "coveredResources": ["cpu", "memory"], "flavors": flavors }])
}

/// A cluster with Kueue, its users, and the kubelets.
struct Team {
    world: World,
    kueue: Option<real::Kueue>,
    kubectl: Kubectl,
    secure: Secure,
    /// By the name of their pod.
    agents: BTreeMap<String, FakeAgent>,
}

impl Team {
    async fn start() -> Option<Self> {
        let definitions = PathBuf::from(env::var_os("TEST_ASSET_KUEUE_CRDS")?);
        let server = real::Server::start().await?;
        let kueue = server.start_kueue(&definitions, json!({})).await?;
        for pool in ["spot", "reserved"] {
            let spec = json!({ "nodeLabels": { "pool": pool } });
            server.make_when_served("resourceflavors", pool, spec).await;
        }
        let spec = json!({
            "namespaceSelector": {},
            "preemption": { "withinClusterQueue": "LowerPriority" },
            "resourceGroups": shares(&[room("spot", 2)]),
        });
        server.make_when_served("clusterqueues", "all", spec).await;
        let world = World::Real(server);
        let kubectl = world.kubectl();
        let queue = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": { "name": "gpus" }, "spec": { "clusterQueue": "all" },
        });
        let path = format!("{API}/namespaces/{NAMESPACE}/localqueues");
        kubectl
            .ask(Method::POST, &path, Some(&queue))
            .await
            .unwrap();
        let mut settings = world.makes_pods().await;
        settings.kueue = true;
        let secure = Secure::start_with(|all| all.kubernetes = Some(settings)).await;
        Some(Self {
            world,
            kueue: Some(kueue),
            kubectl,
            secure,
            agents: BTreeMap::new(),
        })
    }

    fn server(&self) -> &real::Server {
        match &self.world {
            World::Real(server) => server,
            World::Fake(_) => unreachable!("it is real"),
        }
    }

    /// Another Kueue comes in place of this one.
    fn restart_kueue(&mut self, further: Value) {
        let before = self.kueue.take().expect("it was started");
        self.kueue = Some(self.server().restart_kueue(before, further));
    }

    async fn all(&self, path: &str, job: &str) -> Vec<Value> {
        let path = format!("{path}?labelSelector=muster.dev%2Fjob-name%3D{job}");
        let mut list = self.kubectl.ask(Method::GET, &path, None).await.unwrap();
        match list["items"].take() {
            Value::Array(items) => items,
            other => panic!("{other}"),
        }
    }

    /// Waits until what is asked is as wanted.
    async fn until<T>(
        &self,
        job: &str,
        ask: impl AsyncFn() -> T,
        wanted: impl Fn(&T) -> bool,
    ) -> T {
        let mut look = tokio::time::interval(LOOK);
        let waiting = async {
            loop {
                look.tick().await;
                let now = ask().await;
                if wanted(&now) {
                    return now;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(now) => now,
            Err(_) => panic!(
                "{job} stays {:#}, its Workload {:#}, its pods {:#?}",
                self.kubectl.get(job).await.unwrap(),
                self.all(&format!("{API}/namespaces/{NAMESPACE}/workloads"), job)
                    .await
                    .into_iter()
                    .map(|mut one| one["status"].take())
                    .collect::<Value>(),
                self.names(job).await,
            ),
        }
    }

    /// Waits until the only Workload of a job is as wanted.
    async fn workload(&self, job: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = format!("{API}/namespaces/{NAMESPACE}/workloads");
        let ask = async || self.all(&path, job).await;
        let one = |all: &Vec<Value>| {
            all.len() == 1 && all[0]["metadata"]["deletionTimestamp"].is_null() && wanted(&all[0])
        };
        self.until(job, ask, one).await.remove(0)
    }

    /// Waits until the Workload of a job asks for so many pods.
    async fn asks(&self, job: &str, count: u32) {
        let wanted = |workload: &Value| workload["spec"]["podSets"][0]["count"] == count;
        self.workload(job, wanted).await;
    }

    async fn is(&self, job: &str, kind: &str, status: &str, reason: &str) -> Value {
        let wanted = |workload: &Value| {
            let one = condition(workload, kind);
            one["status"] == *status && (reason.is_empty() || one["reason"] == *reason)
        };
        self.workload(job, wanted).await
    }

    async fn change(&self, path: &str, patch: Value) {
        let changed = self.kubectl.ask(Method::PATCH, path, Some(&patch));
        changed.await.unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    async fn change_workload(&self, job: &str, patch: Value) {
        let workload = self.workload(job, |_| true).await;
        let name = workload["metadata"]["name"].as_str().unwrap();
        let path = format!("{API}/namespaces/{NAMESPACE}/workloads/{name}");
        self.change(&path, patch).await;
    }

    async fn change_queue(&self, patch: Value) {
        let patch = json!({ "spec": patch });
        self.change(&format!("{API}/clusterqueues/all"), patch)
            .await;
    }

    async fn every_pod(&self, job: &str) -> Vec<Value> {
        self.all(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), job)
            .await
    }

    async fn names(&self, job: &str) -> Vec<String> {
        let pods = self.every_pod(job).await;
        pods.iter().map(name).collect()
    }

    /// Waits until a job has so many pods that stay, and no others.
    async fn pods(&self, job: &str, count: usize) -> Vec<Value> {
        let ask = async || self.every_pod(job).await;
        let wanted = |pods: &Vec<Value>| pods.len() == count && pods.iter().all(stays);
        self.until(job, ask, wanted).await
    }

    /// Waits until this many pods of a job are being deleted. Their kubelets let them go later.
    async fn stops(&self, job: &str, count: usize) {
        let ask = async || self.every_pod(job).await;
        let wanted = |pods: &Vec<Value>| pods.iter().filter(|pod| !stays(pod)).count() == count;
        self.until(job, ask, wanted).await;
    }

    /// The kubelets let the pods of a job go that are to go.
    async fn goes(&mut self, job: &str) {
        for pod in self.every_pod(job).await.iter().filter(|pod| !stays(pod)) {
            self.agents.remove(&name(pod));
            self.server().drop_pod(NAMESPACE, &name(pod)).await;
        }
    }

    /// A job gets so many pods in this pool, and trains in them.
    async fn trains(&mut self, job: &str, count: usize, pool: &str) {
        for pod in self.pods(job, count).await {
            assert_eq!(pod["spec"]["nodeSelector"]["pool"], *pool);
            // Kueue does not hold it back a second time.
            assert!(pod["spec"]["schedulingGates"].is_null(), "{pod:#}");
            if self.agents.contains_key(&name(&pod)) {
                continue;
            }
            let token = self.server().run_pod(NAMESPACE, &pod, "n1").await;
            let clients = self.secure.with_token(&token).await;
            let node = format!("{}.{NAMESPACE}.pod", name(&pod));
            let agent = FakeAgent::over(&clients, &node).await;
            self.agents.insert(name(&pod), agent);
        }
        let nodes = format!("{count}/{count}");
        let ask = async || self.kubectl.get(job).await.unwrap();
        self.until(job, ask, |object| runs_on(&nodes)(object)).await;
        self.is(job, "PodsReady", "True", "").await;
    }

    /// The check of an admission says so.
    async fn decides(&self, job: &str, state: &str, updates: Value) {
        let is_there = |workload: &Value| !workload["status"]["admissionChecks"][0].is_null();
        let workload = self.workload(job, is_there).await;
        let check = json!({
            "name": "budget", "state": state, "message": "as the test says", "podSetUpdates": updates,
            "lastTransitionTime": "2026-11-24T10:00:00Z",
        });
        let path = format!(
            "{API}/namespaces/{NAMESPACE}/workloads/{}/status",
            name(&workload)
        );
        self.change(&path, json!({ "status": { "admissionChecks": [check] } }))
            .await;
    }

    /// All its workers end well.
    async fn succeeds(&mut self, job: &str) {
        for name in self.names(job).await {
            let agent = &self.agents[&name];
            agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
        }
        self.is(job, "Finished", "True", "Succeeded").await;
    }

    async fn says(&self, job: &str, text: &str) -> Value {
        let ask = async || self.kubectl.get(job).await.unwrap();
        let wanted = |object: &Value| {
            let message = object["status"]["message"].as_str().unwrap_or_default();
            message.contains(text)
        };
        self.until(job, ask, wanted).await
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

fn stays(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_null()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kueue_itself() {
    let Some(mut team) = Box::pin(Team::start()).await else {
        eprintln!(
            "!!! no Kueue (TEST_ASSET_KUEUE, TEST_ASSET_KUEUE_CRDS), or no kube-apiserver: that KUEUE ITSELF admits jobs is NOT SHOWN"
        );
        return;
    };
    Box::pin(quota(&mut team)).await;
    Box::pin(evictions(&mut team)).await;
    Box::pin(checks(&mut team)).await;
    Box::pin(slow(&mut team)).await;
    Box::pin(away(&mut team)).await;
}

/// A job waits until there is quota. What another gives back is its own.
async fn quota(team: &mut Team) {
    team.kubectl.queue("first", "gpus", job(2, 0)).await;
    team.trains("first", 2, "spot").await;
    team.kubectl.queue("second", "gpus", job(1, 0)).await;
    team.says("second", "insufficient unused quota").await;
    team.pods("second", 0).await;
    // The Workload asks for more when the job does.
    team.kubectl.scale("second", 2).await.unwrap();
    team.says("second", "2200m more needed").await;
    team.kubectl.scale("second", 1).await.unwrap();
    // Kueue need not look at it again, so what it says may be what it said before.
    team.asks("second", 1).await;

    team.kubectl.scale("first", 1).await.unwrap();
    team.stops("first", 1).await;
    team.goes("first").await;
    team.trains("second", 1, "spot").await;

    // A more important job evicts both. It starts when their pods are gone, not before.
    team.kubectl.queue("urgent", "gpus", job(2, 10)).await;
    team.stops("first", 1).await;
    team.stops("second", 1).await;
    team.says("first", "Preempted to accommodate a workload")
        .await;
    team.pods("urgent", 0).await;
    team.goes("first").await;
    team.pods("urgent", 0).await;
    team.goes("second").await;
    team.trains("urgent", 2, "spot").await;
    team.pods("first", 0).await;
    // It has asked for one node since it has been smaller.
    team.asks("first", 1).await;
    team.succeeds("urgent").await;
    team.trains("first", 1, "spot").await;
    team.trains("second", 1, "spot").await;
    let ended = team.kubectl.get("urgent").await.unwrap();
    assert!(in_phase("Succeeded")(&ended));
    team.succeeds("first").await;
    team.succeeds("second").await;
}

/// A job is evicted for other reasons, and comes back.
async fn evictions(team: &mut Team) {
    team.kubectl.queue("roams", "gpus", job(2, 0)).await;
    team.trains("roams", 2, "spot").await;
    // A person takes it out of its queue, and quota is somewhere else when it comes back.
    team.change_workload("roams", json!({ "spec": { "active": false } }))
        .await;
    team.is("roams", "Evicted", "True", "Deactivated").await;
    team.stops("roams", 2).await;
    // Its quota is free at once for Kueue, though its pods are still there.
    team.kubectl.queue("hasty", "gpus", job(2, 0)).await;
    team.trains("hasty", 2, "spot").await;
    team.succeeds("hasty").await;
    let groups = shares(&[room("spot", 0), room("reserved", 2)]);
    team.change_queue(json!({ "resourceGroups": groups })).await;
    team.goes("roams").await;
    team.is("roams", "QuotaReserved", "False", "").await;
    team.says("roams", "is not active").await;
    team.pods("roams", 0).await;
    team.change_workload("roams", json!({ "spec": { "active": true } }))
        .await;
    team.trains("roams", 2, "reserved").await;

    // The queue is stopped for a while.
    team.change_queue(json!({ "stopPolicy": "HoldAndDrain" }))
        .await;
    team.stops("roams", 2).await;
    team.goes("roams").await;
    team.is("roams", "QuotaReserved", "False", "").await;
    team.pods("roams", 0).await;
    team.change_queue(json!({ "stopPolicy": "None" })).await;
    team.trains("roams", 2, "reserved").await;

    // Somebody deletes the Workload.
    let gone = team.workload("roams", |_| true).await;
    let path = format!("{API}/namespaces/{NAMESPACE}/workloads/{}", name(&gone));
    team.kubectl.ask(Method::DELETE, &path, None).await.unwrap();
    team.stops("roams", 2).await;
    // Here, too.
    team.kubectl.queue("hastier", "gpus", job(2, 0)).await;
    team.trains("hastier", 2, "reserved").await;
    team.succeeds("hastier").await;
    team.goes("roams").await;
    team.trains("roams", 2, "reserved").await;

    // It is suspended, and leaves its quota to another.
    team.kubectl
        .patch("roams", "", json!({ "spec": { "suspend": true } }))
        .await
        .unwrap();
    team.stops("roams", 2).await;
    team.kubectl.queue("other", "gpus", job(2, 0)).await;
    team.says("other", "quota").await;
    team.pods("other", 0).await;
    team.goes("roams").await;
    team.trains("other", 2, "reserved").await;
    team.kubectl
        .patch("roams", "", json!({ "spec": { "suspend": false } }))
        .await
        .unwrap();
    team.says("roams", "quota").await;
    team.succeeds("other").await;
    team.trains("roams", 2, "reserved").await;
    team.succeeds("roams").await;
}

/// A check of an admission adds to its pods, sends the job back to its queue, and refuses it.
async fn checks(team: &mut Team) {
    let check = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck",
        "metadata": { "name": "budget" }, "spec": { "controllerName": "muster.test/budget" },
    });
    let path = format!("{API}/admissionchecks");
    team.kubectl
        .ask(Method::POST, &path, Some(&check))
        .await
        .unwrap();
    let active = json!({ "type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": "2026-11-24T10:00:00Z" });
    team.change(
        &format!("{path}/budget/status"),
        json!({ "status": { "conditions": [active] } }),
    )
    .await;
    let strategy = json!({ "admissionChecks": [{ "name": "budget" }] });
    team.change_queue(json!({ "admissionChecksStrategy": strategy }))
        .await;
    team.kubectl.queue("checked", "gpus", job(2, 0)).await;
    team.says("checked", "budget is Pending").await;
    team.pods("checked", 0).await;
    let update =
        json!({ "name": "main", "labels": { "budget": "a" }, "nodeSelector": { "rack": "7" } });
    team.decides("checked", "Ready", json!([update])).await;
    for pod in team.pods("checked", 2).await {
        assert_eq!(pod["metadata"]["labels"]["budget"], "a");
        assert_eq!(
            pod["spec"]["nodeSelector"],
            json!({ "pool": "reserved", "rack": "7" })
        );
    }
    team.trains("checked", 2, "reserved").await;
    team.decides("checked", "Retry", json!([])).await;
    team.is("checked", "Evicted", "True", "AdmissionCheck")
        .await;
    team.stops("checked", 2).await;
    team.goes("checked").await;
    team.says("checked", "budget is Pending").await;
    team.decides("checked", "Rejected", json!([])).await;
    team.workload("checked", |workload| workload["spec"]["active"] == false)
        .await;
    team.says("checked", "(spec.active is false): The workload is deactivated due to AdmissionCheck in Rejected state")
        .await;
    team.pods("checked", 0).await;
}

/// A job that does not begin in time goes back to its queue, and comes again.
async fn slow(team: &mut Team) {
    team.change_queue(json!({ "admissionChecksStrategy": null }))
        .await;
    let within = |timeout: &str| {
        let again = json!({ "backoffBaseSeconds": 1, "backoffLimitCount": 3 });
        json!({ "waitForPodsReady": { "timeout": timeout, "requeuingStrategy": again } })
    };
    team.restart_kueue(within("1s"));
    team.kubectl.queue("slow", "gpus", job(2, 0)).await;
    team.is("slow", "Evicted", "True", "PodsReadyTimeout").await;
    team.restart_kueue(within("5m"));
    team.is("slow", "Evicted", "False", "").await;
    team.trains("slow", 2, "reserved").await;
}

/// A job ends, and another comes, while Kueue is away.
async fn away(team: &mut Team) {
    team.kueue.as_mut().unwrap().stop();
    for name in team.names("slow").await {
        let agent = &team.agents[&name];
        agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    }
    let ask = async || team.kubectl.get("slow").await.unwrap();
    team.until("slow", ask, in_phase("Succeeded")).await;
    team.kubectl.queue("late", "gpus", job(2, 0)).await;
    team.says("late", "failed calling webhook").await;
    team.restart_kueue(json!({}));
    team.is("slow", "Finished", "True", "Succeeded").await;
    team.trains("late", 2, "reserved").await;
}
