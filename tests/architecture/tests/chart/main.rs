//! The Helm chart says what `manifests/base` says, and with the values for them what the components
//! add. Its templates are made from both (`MUSTER_BLESS=1` writes them), and render to the same
//! objects. Where there is a Helm, `helm` on PATH or `$MUSTER_HELM`, it renders them too.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

mod edits;
mod generate;
mod helm;
mod schema;
mod template;

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use muster_architecture::{
    kustomize::{by_name, is_namespaced},
    patch, root,
};
use serde_json::{Value, json};

use generate::{COMPONENTS, Component, NAMESPACE, base, templates};

fn chart() -> PathBuf {
    root().join("manifests/chart/muster")
}

fn values() -> Value {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// What kustomize makes of the base: its objects, in its namespace. The namespace itself is left
/// out, because Helm makes it.
fn of_the_base() -> BTreeMap<String, Value> {
    of_the_base_and(&[])
}

/// The same with components.
fn of_the_base_and(components: &[&Component]) -> BTreeMap<String, Value> {
    let mut objects = BTreeMap::new();
    for (_, text) in base() {
        objects.append(&mut by_name(&text));
    }
    for object in objects.values_mut() {
        if is_namespaced(object["kind"].as_str().unwrap()) {
            object["metadata"]["namespace"] = json!(NAMESPACE);
        }
    }
    for component in components {
        objects.append(&mut by_name(&component.objects()));
        let kustomization = component.kustomization();
        let patches = kustomization["patches"].as_array().unwrap();
        patches
            .iter()
            .for_each(|patch| patch::apply(patch, &mut objects));
    }
    objects.retain(|_, object| object["kind"] != "Namespace");
    for object in objects.values_mut() {
        if object["kind"] == "CustomResourceDefinition" {
            object["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
        }
    }
    objects
}

/// What our own reader makes of the chart.
fn rendered(values: &Value, namespace: &str) -> BTreeMap<String, Value> {
    let root = json!({"Values": values, "Release": {"Namespace": namespace}});
    let mut objects = BTreeMap::new();
    for (name, template) in templates(&base()).unwrap() {
        let text = template::render(&template, &root).unwrap_or_else(|e| panic!("{name}: {e}"));
        objects.append(&mut by_name(&text));
    }
    objects
}

fn expect_equal(left: &BTreeMap<String, Value>, right: &BTreeMap<String, Value>) {
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(left), names(right));
    for (name, object) in left {
        assert_eq!(object, &right[name], "{name}");
    }
}

/// Sets `path`, as `--set-json` of Helm does.
fn set(values: &mut Value, path: &str, value: Value) {
    let pointer = format!("/{}", path.replace('.', "/"));
    *values.pointer_mut(&pointer).expect("values.yaml has it") = value;
}

fn with(path: &str, value: Value) -> Value {
    let mut values = values();
    set(&mut values, path, value);
    values
}

fn with_components(components: &[&Component]) -> Value {
    let mut values = values();
    for component in components {
        set(&mut values, component.value, json!(true));
    }
    values
}

/// None, each one, and all of them.
fn choices() -> Vec<Vec<&'static Component>> {
    let each = COMPONENTS.iter().map(|component| vec![component]);
    let ends = [vec![], COMPONENTS.iter().collect()];
    each.chain(ends).collect()
}

#[test]
fn the_templates_are_made_from_the_base() {
    let made = templates(&base()).unwrap_or_else(|lost| {
        panic!(
            "the base has changed. Change the edits in tests/architecture/tests/chart/edits.rs:\n\n{}",
            lost.join("\n")
        )
    });
    let folder = chart().join("templates");
    if env::var_os("MUSTER_BLESS").is_some() {
        for (name, text) in &made {
            fs::write(folder.join(name), text).unwrap();
        }
    }
    let there = fs::read_dir(&folder).unwrap();
    let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut there: Vec<String> = there.filter(|name| name.ends_with(".yaml")).collect();
    there.sort();
    let mut names: Vec<String> = made.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    assert_eq!(there, names, "files in {}", folder.display());
    for (name, text) in made {
        let committed = fs::read_to_string(folder.join(&name)).unwrap();
        assert_eq!(
            committed, text,
            "templates/{name} is older than the base: MUSTER_BLESS=1 cargo test -p muster-architecture --test chart"
        );
    }
}

#[test]
fn a_base_that_has_lost_what_an_edit_replaces_is_noticed() {
    let mut base = base();
    let agent = base.iter_mut().find(|(name, _)| name == "agent.yaml");
    let (_, text) = agent.unwrap();
    *text = text.replace("image: muster-workers\n", "image: other\n");
    let lost = templates(&base).unwrap_err();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0].contains("agent.yaml has this 0 times in place of 1:\nimage: muster-workers"));
    base.retain(|(name, _)| name != "coordinator.yaml");
    assert!(
        templates(&base)
            .unwrap_err()
            .contains(&"manifests/base has no file coordinator.yaml".to_owned())
    );
}

#[test]
fn with_its_own_values_the_chart_is_the_base() {
    expect_equal(&rendered(&values(), NAMESPACE), &of_the_base());
}

#[test]
fn with_the_values_of_components_it_is_the_base_with_these_components() {
    let folders = fs::read_dir(root().join("manifests/components")).unwrap();
    let folders = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
    let mut folders: Vec<String> = folders.collect();
    folders.sort();
    assert_eq!(folders, COMPONENTS.map(|component| component.folder));
    for chosen in choices() {
        let objects = rendered(&with_components(&chosen), NAMESPACE);
        expect_equal(&objects, &of_the_base_and(&chosen));
    }
    let cordon = COMPONENTS.iter().find(|one| one.folder == "cordon");
    let mut values = with_components(&[cordon.unwrap()]);
    set(&mut values, "cordon.dryRun", json!(true));
    let objects = rendered(&values, NAMESPACE);
    let pod = &objects["StatefulSet muster-coordinator"]["spec"]["template"]["spec"];
    let flags = pod["containers"][0]["args"].as_array().unwrap();
    assert!(flags.contains(&json!("--kubernetes-cordon=dry-run")));
}

#[test]
fn a_release_has_its_own_issuer_and_names() {
    let mut named = COMPONENTS.iter();
    let cert_manager = named.find(|one| one.folder == "cert-manager").unwrap();
    let mut values = with_components(&[cert_manager]);
    let issuer = json!({"kind": "Issuer", "name": "ours"});
    set(&mut values, "certManager.issuerRef", issuer.clone());
    set(
        &mut values,
        "coordinator.serverNames",
        json!(["train.example.org"]),
    );
    let objects = rendered(&values, "elsewhere");
    let certificate = &objects["Certificate muster-coordinator"]["spec"];
    assert_eq!(certificate["issuerRef"], issuer);
    let names = [
        "muster-coordinator.elsewhere.svc",
        "muster-coordinator.elsewhere",
        "muster-coordinator",
        "localhost",
        "train.example.org",
    ];
    assert_eq!(certificate["dnsNames"], json!(names));
    // The Secret is mounted whatever the coordinator's own volume is.
    for (persistent, two, volumes) in [
        (true, false, json!(["tls"])),
        (false, false, json!(["state", "tls"])),
        (false, true, json!(["state", "tls"])),
        (true, true, json!(["state", "tls"])),
    ] {
        set(
            &mut values,
            "coordinator.storage.persistent",
            json!(persistent),
        );
        set(&mut values, "twoCoordinators.enabled", json!(two));
        let objects = rendered(&values, NAMESPACE);
        let pod = &objects["StatefulSet muster-coordinator"]["spec"]["template"]["spec"];
        let there = pod["volumes"].as_array().unwrap().iter();
        let there: Vec<&Value> = there.map(|volume| &volume["name"]).collect();
        assert_eq!(json!(there), volumes, "{persistent} {two}");
    }
}

#[test]
fn worker_pods_are_made_in_the_namespaces_that_are_named() {
    let pods = COMPONENTS.iter().find(|one| one.folder == "worker-pods");
    let mut values = with_components(&[pods.unwrap()]);
    let name = "muster-coordinator-pods";
    let everywhere = format!("ClusterRoleBinding {name}");
    assert!(rendered(&values, "elsewhere").contains_key(&everywhere));
    set(&mut values, "workerPods.namespaces", json!(["team-a"]));
    let objects = rendered(&values, "elsewhere");
    assert!(!objects.contains_key(&everywhere));
    let binding = &objects[&format!("RoleBinding {name}")];
    assert_eq!(binding["metadata"]["namespace"], "team-a");
    assert_eq!(binding["roleRef"]["kind"], "ClusterRole");
    let account = json!([{ "kind": "ServiceAccount", "name": "muster-coordinator", "namespace": "elsewhere" }]);
    assert_eq!(binding["subjects"], account);
}

#[test]
fn each_value_changes_what_it_names() {
    let set = |path: &str, value: Value, object: &str, pointer: &str, expected: Value| {
        let objects = rendered(&with(path, value), NAMESPACE);
        let found = objects[object].pointer(pointer).cloned();
        assert_eq!(found, Some(expected), "{path} in {object}");
    };
    let agent = "DaemonSet muster-agent";
    let coordinator = "StatefulSet muster-coordinator";
    let pod = |field: &str| format!("/spec/template/spec/{field}");
    let gpus = json!({"limits": {"nvidia.com/gpu": 8}});
    let disk = json!({"name": "data", "hostPath": {"path": "/data"}});
    let mount = json!({"name": "data", "mountPath": "/data"});
    let variable = json!({"name": "A", "value": "b: \"c\""});
    let gpu_nodes = json!({"nvidia.com/gpu.present": "true"});
    let taint = json!({"key": "a", "operator": "Exists"});
    let user = json!({"runAsNonRoot": true});
    let secret = json!([{"name": "pull"}]);
    for (path, value, object, at, expected) in [
        (
            "images.agent",
            json!("r/a:1"),
            agent,
            "initContainers/0/image",
            None,
        ),
        (
            "images.agent",
            json!("r/a:1"),
            agent,
            "initContainers/1/image",
            None,
        ),
        (
            "images.workers",
            json!("r/w:1"),
            agent,
            "containers/0/image",
            None,
        ),
        (
            "images.coordinator",
            json!("r/c:1"),
            coordinator,
            "containers/0/image",
            None,
        ),
        (
            "imagePullSecrets",
            secret.clone(),
            agent,
            "imagePullSecrets",
            None,
        ),
        (
            "imagePullSecrets",
            secret,
            coordinator,
            "imagePullSecrets",
            None,
        ),
        (
            "workers.resources",
            gpus,
            agent,
            "containers/0/resources",
            None,
        ),
        (
            "workers.env",
            json!([variable]),
            agent,
            "containers/0/env/0",
            Some(variable.clone()),
        ),
        (
            "workers.volumes",
            json!([disk]),
            agent,
            "volumes/6",
            Some(disk.clone()),
        ),
        (
            "workers.volumeMounts",
            json!([mount]),
            agent,
            "containers/0/volumeMounts/3",
            Some(mount.clone()),
        ),
        (
            "agent.nodeSelector",
            gpu_nodes.clone(),
            agent,
            "nodeSelector",
            None,
        ),
        (
            "agent.runtimeClassName",
            json!("nvidia"),
            agent,
            "runtimeClassName",
            None,
        ),
        (
            "agent.priorityClassName",
            json!("high"),
            agent,
            "priorityClassName",
            None,
        ),
        ("agent.hostNetwork", json!(true), agent, "hostNetwork", None),
        (
            "agent.tolerations",
            json!([taint]),
            agent,
            "tolerations/3",
            Some(taint.clone()),
        ),
        (
            "agent.podSecurityContext",
            user.clone(),
            agent,
            "securityContext",
            None,
        ),
        (
            "agent.env",
            json!([variable]),
            agent,
            "initContainers/1/env/9",
            Some(variable.clone()),
        ),
        (
            "agent.resources",
            json!({"limits": {"memory": "1Gi"}}),
            agent,
            "initContainers/1/resources",
            None,
        ),
        (
            "coordinator.nodeSelector",
            gpu_nodes,
            coordinator,
            "nodeSelector",
            None,
        ),
        (
            "coordinator.tolerations",
            json!([taint]),
            coordinator,
            "tolerations/0",
            Some(taint.clone()),
        ),
        (
            "coordinator.affinity",
            json!({"nodeAffinity": {}}),
            coordinator,
            "affinity",
            None,
        ),
        (
            "coordinator.priorityClassName",
            json!("high"),
            coordinator,
            "priorityClassName",
            None,
        ),
        (
            "coordinator.podSecurityContext",
            user,
            coordinator,
            "securityContext",
            None,
        ),
        (
            "coordinator.env",
            json!([variable]),
            coordinator,
            "containers/0/env/1",
            Some(variable.clone()),
        ),
        (
            "coordinator.resources",
            json!({}),
            coordinator,
            "containers/0/resources",
            None,
        ),
    ] {
        let expected = expected.unwrap_or_else(|| value.clone());
        set(path, value, object, &pod(at), expected);
    }
    let rolling = "/spec/updateStrategy/rollingUpdate/maxUnavailable";
    set(
        "agent.maxUnavailable",
        json!("10%"),
        agent,
        rolling,
        json!("10%"),
    );
    let claim = "/spec/volumeClaimTemplates/0/spec";
    let of_claim = |field: &str| format!("{claim}/{field}");
    set(
        "coordinator.storage.className",
        json!("fast"),
        coordinator,
        &of_claim("storageClassName"),
        json!("fast"),
    );
    set(
        "coordinator.storage.accessModes",
        json!(["ReadWriteOnce"]),
        coordinator,
        &of_claim("accessModes/0"),
        json!("ReadWriteOnce"),
    );
    set(
        "coordinator.storage.size",
        json!("9Gi"),
        coordinator,
        &of_claim("resources/requests/storage"),
        json!("9Gi"),
    );
    let service = "Service muster-coordinator";
    set(
        "service.type",
        json!("LoadBalancer"),
        service,
        "/spec/type",
        json!("LoadBalancer"),
    );
    set(
        "service.annotations",
        json!({"a": "b"}),
        service,
        "/metadata/annotations",
        json!({"a": "b"}),
    );
}

#[test]
fn every_value_is_used() {
    fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
        // Deeper down are Kubernetes' own names.
        let deep = path.matches('.').count() == 2 && !path.ends_with(".storage");
        match value
            .as_object()
            .filter(|fields| !deep && !fields.is_empty())
        {
            Some(fields) => {
                for (name, value) in fields {
                    leaves(value, &format!("{path}.{name}"), found);
                }
            }
            None => found.push(path.to_owned()),
        }
    }
    let mut paths = Vec::new();
    leaves(&values(), "", &mut paths);
    let used: String = templates(&base())
        .unwrap()
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    let is_used = |path: &String| used.contains(&format!(".Values{path} }}}}"));
    let unused: Vec<&String> = paths.iter().filter(|path| !is_used(path)).collect();
    assert!(paths.len() > 25 && unused.is_empty(), "{unused:?}");
}

#[test]
fn flags_names_and_storage_of_the_coordinator() {
    let name = "StatefulSet muster-coordinator";
    let args = |values: &Value| {
        let objects = rendered(values, NAMESPACE);
        let args = &objects[name]["spec"]["template"]["spec"]["containers"][0]["args"];
        args.as_array().unwrap().clone()
    };
    let flags = args(&with(
        "coordinator.extraArgs",
        json!(["--jobs-max=5", "--heartbeat=2s"]),
    ));
    let expected = [
        args(&values()),
        vec![json!("--jobs-max=5"), json!("--heartbeat=2s")],
    ]
    .concat();
    assert_eq!(flags, expected);
    let names = args(&with(
        "coordinator.serverNames",
        json!(["train.example.org", "10.0.0.1"]),
    ));
    let names = names.iter().filter_map(Value::as_str);
    let named: Vec<&str> = names
        .filter(|flag| flag.starts_with("--server-names="))
        .collect();
    assert!(
        named.len() == 1 && named[0].ends_with(",localhost,train.example.org,10.0.0.1"),
        "{named:?}"
    );

    let objects = rendered(
        &with("coordinator.storage.persistent", json!(false)),
        NAMESPACE,
    );
    let without = &objects[name]["spec"];
    assert!(without["volumeClaimTemplates"].is_null(), "{without}");
    let volumes = &without["template"]["spec"]["volumes"];
    assert_eq!(volumes, &json!([{"name": "state", "emptyDir": {}}]));
}

#[test]
fn another_namespace_is_named_wherever_the_base_names_its_own() {
    let all: Vec<&Component> = COMPONENTS.iter().collect();
    // A word that no text of the base has by chance.
    let objects = rendered(&with_components(&all), "ns-of-a-release");
    let here = serde_json::to_string(&of_the_base_and(&all)).unwrap();
    let there = serde_json::to_string(&objects).unwrap();
    assert!(here.matches(NAMESPACE).count() > 10 && !there.contains(NAMESPACE));
    assert_eq!(
        here.matches(NAMESPACE).count(),
        there.matches("ns-of-a-release").count()
    );
}

#[test]
fn a_template_that_our_reader_does_not_know_is_refused() {
    let root = json!({"Values": {"a": [], "b": "x"}, "Release": {}});
    let refused = |template: &str| template::render(template, &root).unwrap_err();
    assert!(refused("{{ include \"x\" . }}").contains("is not known here"));
    assert!(refused("{{ toJson .Values.c }}").contains("there is no value .Values.c"));
    assert!(refused("{{ if .Values.a }}").contains("no end"));
    assert!(refused("x {{ end }}").contains("an end without a beginning"));
    let so = "a\n  {{- if not .Values.a }}\nb: {{ .Values.b }}\n  {{- end }}\nc {{ \"{{\" }}\n";
    assert_eq!(template::render(so, &root).unwrap(), "a\nb: x\nc {{\n");
}
