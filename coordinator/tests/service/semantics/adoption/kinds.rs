//! Each kind that can be adopted: created, run, suspended, resumed, succeeded, failed and deleted, in the words
//! that its own operator writes.
//!
//! Sources of the words: training-operator 1.9 (`pkg/controller.v1`, and `pkg/common/util` for suspension),
//! mpi-operator 0.8 (`pkg/controller/mpi_job_controller.go`), and torchelastic's controller in pytorch/elastic.

use muster_core::exit::Exit;
use muster_foreign::adopt::{Adoptable, adoptable};
use serde_json::{Map, Value, json};

use super::team::{LOOK, Team, definition};
use crate::{
    agent::Order,
    cluster::Cluster,
    kubectl::{condition, holding},
    semantics::{World, real},
    server::within,
};

/// A kind, with one job of it and what its operator says about that.
struct Case {
    /// As `--adopt` names it.
    word: &'static str,
    /// Where the groups stand, below `spec`.
    groups_at: &'static str,
    container: &'static str,
    /// Each group with its replicas and its command. The first one decides when the job is over.
    groups: &'static [(&'static str, u32, &'static [&'static str])],
    /// Where `suspend` stands in `spec`. `None`: the kind has none.
    suspend_at: Option<&'static str>,
    /// Messages. `NAME` is the name of the job.
    created: &'static str,
    running: &'static str,
    /// The message of the condition that tells, and of the condition Running.
    suspended: [&'static str; 2],
    resumed: &'static str,
    succeeded: &'static str,
    failed: &'static str,
    /// The reason of a failure.
    why: &'static str,
}

const PYTHON: &[&str] = &["python", "train.py"];

const CASES: [Case; 8] = [
    Case {
        word: "pytorchjobs",
        groups_at: "pytorchReplicaSpecs",
        container: "pytorch",
        groups: &[("Master", 1, PYTHON), ("Worker", 1, PYTHON)],
        suspend_at: Some("/runPolicy/suspend"),
        created: "PyTorchJob NAME is created.",
        running: "PyTorchJob NAME is running.",
        suspended: ["PyTorchJob NAME is suspended."; 2],
        resumed: "PyTorchJob NAME is resumed.",
        succeeded: "PyTorchJob NAME is successfully completed.",
        failed: "PyTorchJob NAME is failed because 1 Master replica(s) failed.",
        why: "PyTorchJobFailed",
    },
    Case {
        word: "tfjobs",
        groups_at: "tfReplicaSpecs",
        container: "tensorflow",
        groups: &[("Chief", 1, PYTHON), ("Worker", 1, PYTHON)],
        suspend_at: Some("/runPolicy/suspend"),
        created: "TFJob NAME is created.",
        running: "TFJob team-a/NAME is running.",
        suspended: ["TFJob NAME is suspended."; 2],
        resumed: "TFJob NAME is resumed.",
        succeeded: "TFJob team-a/NAME successfully completed.",
        failed: "TFJob team-a/NAME has failed because 1 Chief replica(s) failed.",
        why: "TFJobFailed",
    },
    Case {
        word: "jaxjobs",
        groups_at: "jaxReplicaSpecs",
        container: "jax",
        groups: &[("Worker", 2, PYTHON)],
        suspend_at: Some("/runPolicy/suspend"),
        created: "JAXJob NAME is created.",
        running: "JAXJob team-a/NAME is running.",
        suspended: ["JAXJob NAME is suspended."; 2],
        resumed: "JAXJob NAME is resumed.",
        succeeded: "JAXJob team-a/NAME successfully completed.",
        failed: "JAXJob NAME is failed because 1 Worker replica(s) failed.",
        why: "JAXJobFailed",
    },
    Case {
        word: "xgboostjobs",
        groups_at: "xgbReplicaSpecs",
        container: "xgboost",
        groups: &[("Master", 1, PYTHON), ("Worker", 1, PYTHON)],
        suspend_at: Some("/runPolicy/suspend"),
        created: "XGBoostJob NAME is created.",
        running: "XGBoostJob NAME is running.",
        suspended: ["XGBoostJob NAME is suspended."; 2],
        resumed: "XGBoostJob NAME is resumed.",
        succeeded: "XGBoostJob NAME is successfully completed.",
        failed: "XGBoostJob NAME is failed because 1 Master replica(s) failed.",
        why: "XGBoostJobFailed",
    },
    Case {
        word: "paddlejobs",
        groups_at: "paddleReplicaSpecs",
        container: "paddle",
        // One process is all that Muster runs of this kind.
        groups: &[("Worker", 1, PYTHON)],
        suspend_at: Some("/runPolicy/suspend"),
        created: "PaddleJob NAME is created.",
        running: "PaddleJob team-a/NAME is running.",
        suspended: ["PaddleJob NAME is suspended."; 2],
        resumed: "PaddleJob NAME is resumed.",
        succeeded: "PaddleJob team-a/NAME successfully completed.",
        failed: "PaddleJob NAME is failed because 1 Worker replica(s) failed.",
        why: "PaddleJobFailed",
    },
    Case {
        word: "mpijobs.v1.kubeflow.org",
        groups_at: "mpiReplicaSpecs",
        container: "mpi",
        groups: &[
            ("Launcher", 1, &["mpirun", "-n", "2", "/opt/pi"]),
            ("Worker", 2, &[]),
        ],
        suspend_at: Some("/runPolicy/suspend"),
        created: "MPIJob NAME is created.",
        running: "MPIJob team-a/NAME is running.",
        suspended: ["MPIJob NAME is suspended."; 2],
        resumed: "MPIJob NAME is resumed.",
        succeeded: "MPIJob team-a/NAME successfully completed.",
        failed: "MPIJob team-a/NAME has failed",
        why: "MPIJobFailed",
    },
    Case {
        word: "elasticjobs",
        groups_at: "replicaSpecs",
        container: "elasticjob-worker",
        // Its images start torchelastic's launcher, which takes arguments.
        groups: &[("Worker", 2, &[])],
        suspend_at: None,
        created: "ElasticJob NAME is created.",
        running: "ElasticJob NAME is running.",
        suspended: [""; 2],
        resumed: "",
        succeeded: "ElasticJob NAME is successfully completed.",
        failed: "ElasticJob NAME is failed because 1 Worker replica(s) failed.",
        why: "ElasticJobFailed",
    },
    // A cluster has one of the two kinds of this name, so this one comes after all others.
    Case {
        word: "mpijobs.v2beta1.kubeflow.org",
        groups_at: "mpiReplicaSpecs",
        container: "mpi",
        groups: &[
            ("Launcher", 1, &["mpirun", "-n", "2", "/opt/pi"]),
            ("Worker", 2, &[]),
        ],
        suspend_at: Some("/runPolicy/suspend"),
        created: "MPIJob team-a/NAME is created.",
        running: "MPIJob team-a/NAME is running.",
        suspended: ["MPIJob suspended", "MPIJob team-a/NAME is suspended."],
        resumed: "MPIJob resumed",
        succeeded: "MPIJob team-a/NAME successfully completed.",
        failed: "Job has reached the specified backoff limit",
        why: "BackoffLimitExceeded",
    },
];

impl Case {
    fn kind(&self) -> Adoptable {
        adoptable(self.word).unwrap()
    }

    /// `ends`: a failure of its is final.
    fn object(&self, name: &str, ends: bool) -> Value {
        let kind = self.kind();
        let mut groups = Map::new();
        for (group, replicas, command) in self.groups {
            let mut container =
                json!({ "name": self.container, "image": "me/train:1", "workingDir": "/" });
            match kind.kind {
                // The launcher restarts workers by itself unless it is told.
                "ElasticJob" if ends => {
                    container["args"] = json!(["--max_restarts=0", "train.py"]);
                }
                "ElasticJob" => container["args"] = json!(["train.py"]),
                _ if command.is_empty() => {}
                _ => container["command"] = json!(command),
            }
            let pod = json!({ "containers": [container], "terminationGracePeriodSeconds": 0 });
            let policy = if ends { "Never" } else { "OnFailure" };
            let of_group = json!({ "replicas": replicas, "restartPolicy": policy, "template": { "spec": pod } });
            groups.insert((*group).to_owned(), of_group);
        }
        let mut spec = json!({ self.groups_at: groups });
        match kind.kind {
            "ElasticJob" => {
                spec["rdzvEndpoint"] = json!("etcd-service:2379");
                spec["minReplicas"] = json!(1);
                spec["maxReplicas"] = json!(2);
            }
            "MPIJob" if ends => spec["runPolicy"] = json!({ "backoffLimit": 0 }),
            _ => {}
        }
        json!({
            "apiVersion": format!("{}/{}", kind.group, kind.version), "kind": kind.kind,
            "metadata": { "name": name, "labels": { "muster.dev/adopt": "true" } },
            "spec": spec,
        })
    }

    fn pods(&self) -> usize {
        let all = self
            .groups
            .iter()
            .map(|(_, replicas, _)| *replicas as usize);
        all.sum()
    }

    fn reason(&self, what: &str) -> String {
        format!("{}{what}", self.kind().kind)
    }

    /// Whether all groups have all their replicas active.
    fn is_active(&self, object: &Value) -> bool {
        let groups = self.groups.iter();
        groups.into_iter().all(|(group, replicas, _)| {
            object["status"]["replicaStatuses"][group]["active"] == *replicas
        })
    }
}

/// One test for each pair of kinds: a job takes most of its time to wait, so the tests run side by side.
macro_rules! adopted_from_the_api_server_that_is_not_there {
    ($($name:ident: $cases:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let world = World::Fake(Cluster::start().await);
            Box::pin(these(world, &CASES[$cases])).await;
        }
    )*};
}

adopted_from_the_api_server_that_is_not_there! {
    pytorch_jobs_and_tf_jobs_are_adopted: 0..2;
    jax_jobs_and_xgboost_jobs_are_adopted: 2..4;
    paddle_jobs_and_mpi_jobs_are_adopted: 4..6;
    elastic_jobs_and_mpi_jobs_of_the_second_version_are_adopted: 6..;
}

#[tokio::test]
async fn each_kind_is_adopted_from_a_real_api_server() {
    match real::Server::start().await {
        Some(server) => Box::pin(all(World::Real(server))).await,
        None => eprintln!(
            "!!! no kube-apiserver: that objects of each kind are adopted from a REAL API server is NOT SHOWN"
        ),
    }
}

/// Adopts these kinds, one after the other, and returns the coordinator that did.
async fn these(world: World, cases: &[Case]) -> Team {
    for case in cases {
        world.install(&case.kind()).await;
    }
    let kinds: Vec<Adoptable> = cases.iter().map(Case::kind).collect();
    let mut team = Team::start(world, &kinds).await;
    for case in cases {
        Box::pin(one(&mut team, case)).await;
    }
    team
}

async fn all(world: World) {
    let [first @ .., last] = &CASES;
    let mut team = Box::pin(these(world, first)).await;
    // The other operator takes the place of the first.
    let other = last.kind();
    team.restart(&[other], async |team: &Team| {
        if let World::Real(server) = &team.world {
            server.uninstall(&other).await;
        }
        team.world.install(&other).await;
    })
    .await;
    Box::pin(one(&mut team, last)).await;
}

async fn one(team: &mut Team, case: &Case) {
    team.kind = case.kind();
    eprintln!("--- {}", team.kind.full_name());
    let name = team.kind.kind.to_lowercase();
    it_is_created_and_runs(team, case, &name).await;
    if let Some(at) = case.suspend_at {
        it_is_suspended_and_resumed(team, case, &name, at).await;
    }
    it_succeeds_and_goes(team, case, &name).await;
    it_fails(team, case, &format!("{name}-fails")).await;
}

/// A condition with its status, reason and message.
fn says(object: &Value, kind: &str) -> (String, String, String) {
    let found = condition(object, kind);
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

/// Asserts what a condition says.
fn expect(case: &Case, object: &Value, kind: &str, holds: bool, reason: &str, message: &str) {
    let name = object["metadata"]["name"].as_str().unwrap();
    let expected = (
        if holds { "True" } else { "False" }.to_owned(),
        reason.to_owned(),
        message.replace("NAME", name),
    );
    assert_eq!(says(object, kind), expected, "{}: {object:#}", case.word);
}

async fn it_runs(team: &mut Team, case: &Case, name: &str) -> Value {
    let pods = team.pods(name, case.pods()).await;
    team.run_all(&pods).await;
    let runs = |object: &Value| holding(object).contains(&"Running") && case.is_active(object);
    team.until(name, runs).await
}

async fn it_is_created_and_runs(team: &mut Team, case: &Case, name: &str) {
    team.create(case.object(name, false)).await;
    let object = team.until(name, |object| !holding(object).is_empty()).await;
    assert_eq!(holding(&object), ["Created"], "{}: {object:#}", case.word);
    let reason = case.reason("Created");
    expect(case, &object, "Created", true, &reason, case.created);
    assert!(object["status"]["startTime"].is_string(), "{object:#}");
    let job = team.kubectl.get(name).await.unwrap();
    let owner = &job["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], team.kind.kind, "{job:#}");
    assert_eq!(owner["uid"], object["metadata"]["uid"], "{job:#}");
    let object = it_runs(team, case, name).await;
    expect(
        case,
        &object,
        "Running",
        true,
        &case.reason("Running"),
        case.running,
    );
}

async fn it_is_suspended_and_resumed(team: &mut Team, case: &Case, name: &str, at: &str) {
    let suspend = |held: bool| {
        let path = at.rsplit('/').filter(|key| !key.is_empty());
        let spec = path.fold(json!(held), |value, key| json!({ key: value }));
        json!({ "spec": spec })
    };
    team.patch(name, suspend(true)).await;
    let held = team
        .until(name, |object| holding(object).contains(&"Suspended"))
        .await;
    let reason = case.reason("Suspended");
    let [tells, runs] = case.suspended;
    expect(case, &held, "Suspended", true, &reason, tells);
    expect(case, &held, "Running", false, &reason, runs);
    team.pods(name, 0).await;
    team.drop_all().await;
    team.patch(name, suspend(false)).await;
    let object = it_runs(team, case, name).await;
    expect(
        case,
        &object,
        "Suspended",
        false,
        &case.reason("Resumed"),
        case.resumed,
    );
}

/// Ends the members of the group that decides, once their pods say who they are.
async fn end(team: &mut Team, case: &Case, name: &str, code: i32, most: usize) {
    let (group, replicas, _) = case.groups[0];
    let mut look = tokio::time::interval(LOOK);
    let pods = within(async {
        loop {
            look.tick().await;
            let mut pods = team.pods(name, case.pods()).await;
            let Some(label) = team.kind.labels.of_group() else {
                return pods;
            };
            pods.retain(|pod| pod["metadata"]["labels"][label] == *group.to_lowercase());
            if pods.len() == replicas as usize {
                return pods;
            }
        }
    })
    .await;
    for pod in pods.iter().take(most) {
        let agent = &team.agents[pod["metadata"]["name"].as_str().unwrap()];
        let order = Order::Exit(Exit::Code(code));
        agent.orders.send(order).await.unwrap();
    }
}

async fn it_succeeds_and_goes(team: &mut Team, case: &Case, name: &str) {
    end(team, case, name, 0, usize::MAX).await;
    let over = |object: &Value| holding(object).contains(&"Succeeded");
    let object = team.until(name, over).await;
    let reason = case.reason("Succeeded");
    expect(case, &object, "Succeeded", true, &reason, case.succeeded);
    expect(
        case,
        &object,
        "Running",
        false,
        &case.reason("Running"),
        case.running,
    );
    for (i, (group, replicas, _)) in case.groups.iter().enumerate() {
        // The operator of v2beta1 counts no workers that it has stopped.
        let counts = i == 0 || team.kind.version != "v2beta1";
        let of_group = &object["status"]["replicaStatuses"][group];
        let number = |field: &str| of_group[field].as_u64().unwrap_or_default();
        assert_eq!(
            (number("active"), number("succeeded"), number("failed")),
            (0, if counts { u64::from(*replicas) } else { 0 }, 0),
            "{group} of {object:#}"
        );
    }
    assert!(object["status"]["completionTime"].is_string(), "{object:#}");
    team.until_told(&object, &reason).await;
    team.delete(name).await;
    team.kubectl.until_gone(name).await;
    team.drop_all().await;
}

async fn it_fails(team: &mut Team, case: &Case, name: &str) {
    team.create(case.object(name, true)).await;
    it_runs(team, case, name).await;
    end(team, case, name, 3, 1).await;
    let failed = |object: &Value| holding(object).contains(&"Failed");
    let object = team.until(name, failed).await;
    expect(case, &object, "Failed", true, case.why, case.failed);
    let (group, ..) = case.groups[0];
    let replicas = &object["status"]["replicaStatuses"];
    assert_eq!(replicas[group]["failed"], 1, "{object:#}");
    let mut all = replicas.as_object().unwrap().values();
    assert!(
        all.all(|of_group| of_group["active"].is_null()),
        "{object:#}"
    );
    assert!(
        !holding(&object).contains(&"Restarting"),
        "nothing restarts after the end: {object:#}"
    );
    assert!(object["status"]["completionTime"].is_string(), "{object:#}");
    assert_eq!(says(&object, "Running").0, "False", "{object:#}");
    team.delete(name).await;
    team.kubectl.until_gone(name).await;
    team.drop_all().await;
}

/// The definitions that this test makes up are those of the kinds. AITrainingJobs and TrainJobs have tests of their
/// own.
#[test]
fn each_kind_that_can_be_adopted_has_a_case() {
    let alike = muster_foreign::adopt::ADOPTABLE.iter();
    let alike = alike.filter(|kind| !kind.words().has_history() && !kind.has_runtime());
    for (kind, case) in alike.map(|kind| {
        let case = CASES.iter().find(|case| case.kind() == *kind);
        (kind, case)
    }) {
        assert!(case.is_some(), "{}", kind.full_name());
        assert_eq!(definition(kind)["spec"]["names"]["kind"], kind.kind);
    }
}
