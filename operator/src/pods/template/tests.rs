use muster_core::{
    fleet::job::JobRecord,
    id::{JobName, JobUid},
    spec::{JobDocument, JobSpec, Metadata, SpecDocument},
    time::Timestamp,
};

use super::*;

fn site() -> Site {
    Site {
        image: "registry/muster-agent:1".into(),
        pull_policy: Some("IfNotPresent".into()),
        coordinator: "https://muster:7070".into(),
        hosts: vec![json!({ "ip": "10.0.0.7", "hostnames": ["muster"] })],
        audience: "muster".into(),
    }
}

fn minimal() -> Value {
    json!({ "spec": { "containers": [{ "name": "train", "image": "me/train:1" }] } })
}

fn job(gpus: i64) -> JobRecord {
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: "digits".into(),
            namespace: Some("team-a".into()),
        },
        spec: SpecDocument {
            gpus_per_node: Some(gpus),
            args: vec!["train.py".into()],
            stop_grace_period: Some("40s".into()),
            ..SpecDocument::default()
        },
    };
    let (name, spec): (JobName, JobSpec) = document.check().unwrap();
    let uid = JobUid::from("0b4e-11");
    JobRecord::submitted(uid, name, spec, String::new(), Timestamp(0))
}

fn made(template: &Value, gpus: i64) -> Value {
    let avoided = ["bad-1".into(), "bad-2".into()];
    pod(&job(gpus), template, "digits-x7k2p", &site(), &avoided)
}

fn names(list: &Value) -> Vec<&str> {
    let items = list.as_array().unwrap().iter();
    items.map(|item| item["name"].as_str().unwrap()).collect()
}

/// The whole pod of the smallest template: a reader sees what a tenant's namespace gets.
#[test]
fn the_smallest_template_makes_this_pod() {
    let text = serde_saphyr::to_string(&made(&minimal(), 0)).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/pods/template/golden.yaml");
    if std::env::var_os("MUSTER_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    assert_eq!(text, golden, "MUSTER_BLESS=1 writes it anew");
    assert_eq!(check(&minimal(), 0), Ok(()));
}

/// The runner writes its last words where the template says that they are read.
#[test]
fn the_place_of_the_last_words_is_the_templates() {
    let mut template = minimal();
    let worker = &mut template["spec"]["containers"][0];
    worker["terminationMessagePath"] = json!("/tmp/words");
    worker["terminationMessagePolicy"] = json!("File");
    assert_eq!(check(&template, 0), Ok(()));
    let worker = made(&template, 0)["spec"]["containers"][0].clone();
    assert_eq!(worker["terminationMessagePath"], "/tmp/words");
    assert_eq!(worker["terminationMessagePolicy"], "File");
    let place = json!({ "name": "MUSTER_TERMINATION_MESSAGE_PATH", "value": "/tmp/words" });
    assert_eq!(worker["env"], json!([place]));
}

#[test]
fn what_the_template_says_stays() {
    let worker = json!({
        "name": "train", "image": "me/train:1", "workingDir": "/src",
        "env": [{ "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
        "resources": { "limits": { "memory": "64Gi" } },
        "securityContext": { "capabilities": { "add": ["IPC_LOCK"] } },
        "volumeMounts": [{ "name": "data", "mountPath": "/dev/shm" }],
    });
    let template = json!({
        "metadata": {
            "labels": { "team": "a" },
            "annotations": { "karpenter.sh/do-not-disrupt": "false" },
        },
        "spec": {
            "terminationGracePeriodSeconds": 600,
            "enableServiceLinks": true,
            "securityContext": { "runAsUser": 0, "fsGroup": 5 },
            "tolerations": [{ "key": "spot", "operator": "Exists" }],
            "initContainers": [{ "name": "fetch", "image": "me/fetch" }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
            "containers": [worker, { "name": "metrics", "image": "me/metrics" }],
        },
    });
    assert_eq!(check(&template, 8), Ok(()));
    let pod = made(&template, 8);
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    assert_eq!(metadata["labels"]["team"], "a");
    assert_eq!(metadata["labels"][JOB_UID], "0b4e-11");
    let disrupt = &metadata["annotations"]["karpenter.sh/do-not-disrupt"];
    assert_eq!(disrupt, "false");
    assert_eq!(spec["terminationGracePeriodSeconds"], 600);
    assert_eq!(spec["enableServiceLinks"], true);
    let user =
        json!({ "runAsUser": 0, "fsGroup": 5, "seccompProfile": { "type": "RuntimeDefault" } });
    assert_eq!(
        spec["securityContext"], user,
        "root is what the template asks for"
    );
    let init = names(&spec["initContainers"]);
    assert_eq!(init, ["fetch", "muster-install", "muster-agent"]);
    assert_eq!(names(&spec["containers"]), ["train", "metrics"]);
    let worker = &spec["containers"][0];
    let before = &template["spec"]["containers"][0];
    assert_eq!(worker["env"], before["env"]);
    assert_eq!(worker["securityContext"], before["securityContext"]);
    let limits = json!({ "memory": "64Gi", GPU: "8" });
    assert_eq!(worker["resources"]["limits"], limits);
    assert_eq!(worker["terminationMessagePolicy"], "FallbackToLogsOnError");
    // It has its own memory to share.
    assert!(!names(&spec["volumes"]).contains(&"muster-shm"));
    let agent = items(spec, "initContainers").last().unwrap();
    let seen = items(agent, "volumeMounts")
        .any(|mount| mount["name"] == "data" && mount["mountPath"] == SHM);
    assert!(seen, "the agent sees how large it is");
    let tolerated: Vec<&Value> = items(spec, "tolerations").map(|one| &one["key"]).collect();
    let not_ready = "node.kubernetes.io/not-ready";
    assert_eq!(
        tolerated,
        ["spot", not_ready, "node.kubernetes.io/unreachable", GPU]
    );
}

#[test]
fn the_agent_is_the_workers_user_and_takes_no_cpus_from_a_guaranteed_pod() {
    let mut template = minimal();
    let exact = json!({ "cpu": "8", "memory": "64Gi" });
    let worker = &mut template["spec"]["containers"][0];
    worker["resources"] = json!({ "requests": exact, "limits": exact });
    worker["securityContext"] = json!({ "runAsUser": 1_000 });
    let pod = made(&template, 0);
    let spec = &pod["spec"];
    assert_eq!(spec["securityContext"]["runAsUser"], Value::Null);
    for container in items(spec, "initContainers") {
        assert_eq!(container["securityContext"]["runAsUser"], 1_000);
        let resources = &container["resources"];
        assert_eq!(resources["requests"], resources["limits"]);
    }
}

#[test]
fn a_pod_is_kept_from_bad_hosts_in_every_alternative() {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let kept_from = |pod: &Value| {
        let required = &pod["spec"]["affinity"]["nodeAffinity"][REQUIRED];
        let terms = items(required, "nodeSelectorTerms").map(|term| term["matchFields"].clone());
        terms.collect::<Vec<_>>()
    };
    let not_in =
        |host: &str| json!({ "key": "metadata.name", "operator": "NotIn", "values": [host] });
    let both = json!([not_in("bad-1"), not_in("bad-2")]);
    assert_eq!(kept_from(&made(&minimal(), 0)), std::slice::from_ref(&both));
    let mut template = minimal();
    let zone = |zone: &str| {
        let expression = json!({ "key": "zone", "operator": "In", "values": [zone] });
        json!({ "matchExpressions": [expression] })
    };
    template["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] =
        json!([zone("a"), zone("b")]);
    assert_eq!(kept_from(&made(&template, 0)), [both.clone(), both]);
    let pod = pod(&job(0), &minimal(), "x", &site(), &[]);
    assert_eq!(pod["spec"]["affinity"], Value::Null);
}

#[test]
fn what_cannot_work_is_refused_with_its_path() {
    type Change = (&'static str, fn(&mut Value));
    let wrong: [Change; 13] = [
        (".spec.containers: ", |t| {
            t["spec"]["containers"] = json!([]);
        }),
        (".spec.containers: ", |t| *t = json!({})),
        (".spec.containers[0].command: ", |t| {
            t["spec"]["containers"][0]["command"] = json!(["x"]);
        }),
        (".spec.containers[0].args: ", |t| {
            t["spec"]["containers"][0]["args"] = json!(["x"]);
        }),
        (".spec.hostPID: ", |t| t["spec"]["hostPID"] = json!(true)),
        (".spec.shareProcessNamespace: ", |t| {
            t["spec"]["shareProcessNamespace"] = json!(true);
        }),
        (".spec.restartPolicy: ", |t| {
            t["spec"]["restartPolicy"] = json!("Never");
        }),
        (".spec.containers[0].name: ", |t| {
            t["spec"]["containers"][0]["name"] = json!("muster-x");
        }),
        (".spec.volumes[0].name: ", |t| {
            t["spec"]["volumes"] = json!([{ "name": "muster-run" }]);
        }),
        (".spec.containers[0].env: ", |t| {
            t["spec"]["containers"][0]["env"] = json!([{ "name": "MUSTER_POD" }]);
        }),
        (".spec.containers[0].volumeMounts: ", |t| {
            t["spec"]["containers"][0]["volumeMounts"] =
                json!([{ "name": "x", "mountPath": "/muster/run" }]);
        }),
        (".metadata.labels: ", |t| {
            t["metadata"]["labels"] = json!({ JOB_UID: "other" });
        }),
        (".spec.containers[0].resources.limits: ", |t| {
            t["spec"]["containers"][0]["resources"]["limits"] = json!({ GPU: 4 });
        }),
    ];
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut template = minimal();
        change(&mut template);
        check(&template, 0).unwrap_err()
    };
    for (path, change) in wrong {
        let why = refused(&change);
        assert!(why.starts_with(&format!("spec.template{path}")), "{why}");
    }
    let why = refused(&|t| t["metadata"]["annotations"] = json!({ "x": "y".repeat(BYTES_MAX) }));
    assert!(why.contains("bytes"), "{why}");
}
