//! The manifests ask for nothing that a stranger would not grant, and name only what exists: flags,
//! images, the service account and the audience that the coordinator expects.

use std::{collections::BTreeSet, fs};

use muster_architecture::root;
use serde_json::{Value, json};

/// The objects of a file.
fn objects(file: &str) -> Vec<Value> {
    let path = root().join("manifests").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn of_kind(kind: &str) -> Value {
    let mut found = ["base/agent.yaml", "base/coordinator.yaml"]
        .into_iter()
        .flat_map(objects)
        .filter(|object| object["kind"] == kind);
    found.next().unwrap_or_else(|| panic!("there is no {kind}"))
}

fn pod(workload: &Value) -> &Value {
    &workload["spec"]["template"]["spec"]
}

fn containers(pod: &Value) -> Vec<&Value> {
    let of = |list: &str| pod[list].as_array().map(Vec::as_slice).unwrap_or_default();
    of("initContainers")
        .iter()
        .chain(of("containers"))
        .collect()
}

fn source(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

#[test]
fn no_pod_asks_for_a_privilege() {
    for kind in ["DaemonSet", "StatefulSet"] {
        let workload = of_kind(kind);
        let pod = pod(&workload);
        for field in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"] {
            assert!(pod[field].is_null(), "{kind}: {field}");
        }
        assert_eq!(
            pod["enableServiceLinks"], false,
            "{kind}: a Service would set MUSTER_ variables"
        );
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{kind}");
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
            "{kind}"
        );
        for volume in pod["volumes"].as_array().into_iter().flatten() {
            assert!(volume["hostPath"].is_null(), "{kind}: {volume}");
        }
        for container in containers(pod) {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{container}");
            assert_eq!(
                context["capabilities"],
                json!({"drop": ["ALL"]}),
                "{container}"
            );
            assert!(
                context["privileged"].is_null() && context["runAsUser"].is_null(),
                "{container}"
            );
            assert!(
                container["ports"]
                    .as_array()
                    .is_none_or(|_| kind == "StatefulSet"),
                "{container}"
            );
        }
    }
}

/// The pods that only look have two privileges, and what each is for stands above it.
#[test]
fn the_component_that_only_looks_asks_for_two_privileges() {
    let file = "components/senses-only/kustomization.yaml";
    let kustomization = objects(file).remove(0);
    let mut steps: Vec<Value> = Vec::new();
    for patch in kustomization["patches"].as_array().into_iter().flatten() {
        let text = patch["patch"].as_str().expect("a text");
        let all: Vec<Value> = serde_saphyr::from_str(text).expect("it is YAML");
        steps.extend(all);
    }
    let put = |path: &str| {
        let step = steps.iter().find(|step| step["path"] == path);
        step.unwrap_or_else(|| panic!("nothing replaces {path}"))["value"].clone()
    };
    let list = |name: &str| {
        let list = put(&format!("/spec/template/spec/{name}"));
        list.as_array().cloned().expect("a list")
    };
    assert!(list("initContainers").is_empty());
    let containers = list("containers");
    assert_eq!(
        (containers.len(), &containers[0]["name"]),
        (1, &json!("agent"))
    );
    let agent = &containers[0];
    let context = json!({
        "runAsUser": 0,
        "runAsNonRoot": false,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(agent["securityContext"], context);
    let limits = agent["resources"]["limits"].to_string();
    assert!(!limits.contains("gpu"), "it takes no GPU: {limits}");
    let of_host: Vec<Value> = list("volumes")
        .into_iter()
        .filter(|volume| !volume["hostPath"].is_null())
        .collect();
    assert_eq!(of_host.len(), 1, "{of_host:?}");
    assert_eq!(
        of_host[0]["hostPath"]["path"],
        "/var/lib/kubelet/pod-resources"
    );
    let mut mounts = agent["volumeMounts"].as_array().into_iter().flatten();
    let mount = mounts.find(|mount| mount["name"] == of_host[0]["name"]);
    assert_eq!(mount.expect("it is mounted")["readOnly"], true);
    let touched: BTreeSet<&str> = steps
        .iter()
        .filter_map(|step| step["path"].as_str())
        .collect();
    let expected = [
        "/metadata/labels/pod-security.kubernetes.io~1enforce",
        "/spec/template/metadata/annotations/kubectl.kubernetes.io~1default-container",
        "/spec/template/spec/containers",
        "/spec/template/spec/initContainers",
        "/spec/template/spec/volumes",
    ];
    assert_eq!(touched, expected.into(), "a namespace, a user and a path");

    let text = source(&format!("manifests/{file}"));
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let privileges = [
        "runAsUser: 0",
        "runAsNonRoot: false",
        "hostPath:",
        "value: privileged",
    ];
    for privilege in privileges {
        let at = lines.iter().position(|line| *line == privilege);
        let at = at.unwrap_or_else(|| panic!("{file} has no {privilege}"));
        // Above it, or above the item or the step that it belongs to.
        let above = lines[at.saturating_sub(3)..at].iter();
        let explained = above.clone().any(|line| line.starts_with('#'));
        assert!(explained, "{file}: what is {privilege} for?");
    }
    let flags = source("agent/src/config.rs") + &source("agent/src/config/proof.rs");
    for variable in agent["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default();
        let known = !name.starts_with("MUSTER_") || flags.contains(&format!("env = \"{name}\""));
        assert!(known, "no flag takes {name}");
    }
}

#[test]
fn the_agents_pods_have_no_right_and_one_token() {
    let workload = of_kind("DaemonSet");
    let pod = pod(&workload);
    assert_eq!(pod["automountServiceAccountToken"], false);
    let account = pod["serviceAccountName"].as_str().expect("it has one");
    let bound: Vec<Value> = objects("base/coordinator.yaml")
        .into_iter()
        .chain(objects("base/agent.yaml"))
        .filter(|object| object["subjects"].to_string().contains(account))
        .collect();
    assert!(bound.is_empty(), "{bound:#?}");
    let coordinator = source("manifests/base/coordinator.yaml");
    assert!(coordinator.contains(&format!("--kubernetes-agents=muster-system/{account}")));
    // Only the agent's container sees the token; the code of users runs in the other.
    let tokens = |container: &&Value| container["volumeMounts"].to_string().contains("\"token\"");
    let with: Vec<&Value> = containers(pod).into_iter().filter(tokens).collect();
    assert!(with.len() == 1 && with[0]["name"] == "agent", "{with:#?}");
    let volumes = pod["volumes"].to_string();
    assert!(
        volumes.contains("\"audience\":\"muster-coordinator.muster-system\""),
        "{volumes}"
    );
    let bundle = source("operator/src/bundle.rs");
    assert!(volumes.contains("muster-ca-bundle") && bundle.contains("\"muster-ca-bundle\""));
    assert!(
        bundle.contains("\"ca.crt\"")
            && source("manifests/base/agent.yaml").contains("/muster/ca/ca.crt")
    );
}

#[test]
fn the_containers_share_what_they_must() {
    let workload = of_kind("DaemonSet");
    let pod = pod(&workload);
    let at = |name: &str, volume: &str| {
        let container = containers(pod).into_iter().find(|c| c["name"] == name);
        let mounts = container.expect("it is there")["volumeMounts"].clone();
        let mount = mounts
            .as_array()
            .into_iter()
            .flatten()
            .find(|m| m["name"] == volume)
            .cloned();
        mount.map(|mount| mount["mountPath"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(
        at("agent", "run"),
        at("workers", "run"),
        "paths of runs are the same in both"
    );
    assert_eq!(at("install", "bin"), at("workers", "bin"));
    assert_eq!(
        at("workers", "state"),
        None,
        "the agent's ledger is its own"
    );
    let agent = containers(pod)
        .into_iter()
        .find(|c| c["name"] == "agent")
        .cloned()
        .expect("it is there");
    let pod_dir = agent["env"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|v| v["name"] == "MUSTER_POD");
    assert_eq!(
        pod_dir.and_then(|v| v["value"].as_str()).map(str::to_owned),
        at("agent", "run")
    );
    assert_eq!(
        agent["restartPolicy"], "Always",
        "it ends after the workers"
    );
}

/// `KIND VERB RESOURCE` of every right in a file.
fn rights(file: &str) -> BTreeSet<String> {
    let mut rights = BTreeSet::new();
    for object in objects(file) {
        for rule in object["rules"].as_array().into_iter().flatten() {
            for resource in rule["resources"].as_array().into_iter().flatten() {
                for verb in rule["verbs"].as_array().into_iter().flatten() {
                    let words = [&object["kind"], verb, resource]
                        .map(|w| w.as_str().unwrap_or_default().to_owned());
                    rights.insert(words.join(" "));
                }
            }
        }
    }
    rights
}

#[test]
fn every_flag_and_variable_exists() {
    let agent = source("agent/src/config.rs") + &source("agent/src/config/proof.rs");
    let coordinator: String = [
        "coordinator/src/options.rs",
        "coordinator/src/options/kubernetes.rs",
        "coordinator/src/options/site.rs",
    ]
    .map(source)
    .concat();
    for component in [
        "adopt",
        "cert-manager",
        "cordon",
        "kueue",
        "metrics",
        "pod-groups",
        "worker-pods",
    ] {
        let file = format!("manifests/components/{component}/kustomization.yaml");
        let text = source(&file);
        let variables = text
            .split_whitespace()
            .filter(|word| word.starts_with("MUSTER_"));
        let flags = text
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("--"));
        for name in variables {
            let known = coordinator.contains(&format!("env = \"{name}\""));
            assert!(known, "{file}: no flag takes {name}");
        }
        for flag in flags {
            let field = flag.split('=').next().unwrap_or_default().replace('-', "_");
            let known = coordinator.contains(&format!("pub {field}:"));
            assert!(known, "{file}: there is no flag --{flag}");
        }
    }
    let mut named = BTreeSet::new();
    for (kind, flags) in [("DaemonSet", &agent), ("StatefulSet", &coordinator)] {
        let workload = of_kind(kind);
        for container in containers(pod(&workload)) {
            for variable in container["env"].as_array().into_iter().flatten() {
                let name = variable["name"].as_str().unwrap_or_default();
                let known =
                    !name.starts_with("MUSTER_") || flags.contains(&format!("env = \"{name}\""));
                assert!(known, "{kind}: no flag takes {name}");
                named.insert(name.to_owned());
            }
            for argument in container["args"].as_array().into_iter().flatten() {
                let flag = argument
                    .as_str()
                    .unwrap_or_default()
                    .split('=')
                    .next()
                    .unwrap_or_default();
                let field = flag.trim_start_matches("--").replace('-', "_");
                let known = flags.contains(&format!("pub {field}:"));
                assert!(known, "{kind}: there is no flag {flag}");
                named.insert(flag.to_owned());
            }
        }
    }
    assert!(named.len() > 10, "{named:?}");
}

#[test]
fn the_coordinator_asks_for_these_rights_and_no_others() {
    let expected = [
        "ClusterRole create events",
        "ClusterRole delete musterjobs",
        "ClusterRole get nodes",
        "ClusterRole list musterjobs",
        "ClusterRole list nodes",
        "ClusterRole patch musterjobs",
        "ClusterRole patch musterjobs/status",
        "ClusterRole watch musterjobs",
        "ClusterRole watch nodes",
        "Role create configmaps",
        "Role get configmaps",
        "Role get pods",
        "Role patch configmaps",
    ];
    assert_eq!(
        rights("base/coordinator.yaml"),
        expected.map(str::to_owned).into()
    );
    let expected = [
        "ClusterRole create events",
        "ClusterRole patch nodes",
        "ClusterRole patch nodes/status",
    ];
    assert_eq!(
        rights("components/cordon/rights.yaml"),
        expected.map(str::to_owned).into()
    );
    let expected = [
        "ClusterRole create configmaps",
        "ClusterRole create networkpolicies",
        "ClusterRole create poddisruptionbudgets",
        "ClusterRole create pods",
        "ClusterRole delete networkpolicies",
        "ClusterRole delete poddisruptionbudgets",
        "ClusterRole delete pods",
        "ClusterRole get pods",
        "ClusterRole list networkpolicies",
        "ClusterRole list poddisruptionbudgets",
        "ClusterRole list pods",
        "ClusterRole patch configmaps",
        "ClusterRole patch networkpolicies",
        "ClusterRole patch poddisruptionbudgets",
        "ClusterRole watch networkpolicies",
        "ClusterRole watch poddisruptionbudgets",
        "ClusterRole watch pods",
        "Role get daemonsets",
    ];
    assert_eq!(
        rights("components/worker-pods/rights.yaml"),
        expected.map(str::to_owned).into()
    );
}

#[test]
fn kueue_is_asked_for_what_is_written_on_workloads_and_may_read_jobs() {
    let expected = [
        "ClusterRole create workloads",
        "ClusterRole delete workloads",
        "ClusterRole get musterjobs",
        "ClusterRole get resourceflavors",
        "ClusterRole list musterjobs",
        "ClusterRole list workloads",
        "ClusterRole patch workloads",
        "ClusterRole patch workloads/status",
        "ClusterRole watch musterjobs",
        "ClusterRole watch workloads",
    ];
    assert_eq!(
        rights("components/kueue/rights.yaml"),
        expected.map(str::to_owned).into()
    );
    let kustomization = source("manifests/components/kueue/kustomization.yaml");
    assert!(kustomization.contains("value: --kubernetes-kueue"));
}

#[test]
fn pod_groups_are_the_only_objects_of_schedulers_that_are_written() {
    let expected = ["create", "delete", "list", "patch", "watch"]
        .map(|verb| format!("ClusterRole {verb} podgroups"));
    assert_eq!(rights("components/pod-groups/rights.yaml"), expected.into());
    let kustomization = source("manifests/components/pod-groups/kustomization.yaml");
    assert!(kustomization.contains("value: --kubernetes-pod-groups"));
}

#[test]
fn adoption_has_rights_for_the_kinds_that_its_flag_names_and_no_others() {
    let expected = [
        "ClusterRole create musterjobs",
        "ClusterRole delete pytorchjobs",
        "ClusterRole get musterjobs",
        "ClusterRole get pytorchjobs",
        "ClusterRole list pytorchjobs",
        "ClusterRole patch pods",
        "ClusterRole patch pytorchjobs/status",
        "ClusterRole update pytorchjobs/finalizers",
        "ClusterRole watch pytorchjobs",
    ];
    assert_eq!(
        rights("components/adopt/rights.yaml"),
        expected.map(str::to_owned).into()
    );
    let kustomization = source("manifests/components/adopt/kustomization.yaml");
    assert!(kustomization.contains("value: --adopt=pytorchjobs\n"));
    assert!(source("coordinator/src/options/kubernetes.rs").contains("pub adopt:"));
}

/// The flag names the DaemonSet whose reading it is given, and that has what worker pods take from
/// it.
#[test]
fn the_component_for_worker_pods_names_the_agents() {
    let kustomization = source("manifests/components/worker-pods/kustomization.yaml");
    assert!(kustomization.contains("value: --kubernetes-pods=muster-system/muster-agent"));
    let set = objects("base/agent.yaml");
    let set = set.iter().find(|object| object["kind"] == "DaemonSet");
    let set = set.expect("the agents are a DaemonSet");
    assert_eq!(set["metadata"]["name"], "muster-agent");
    let containers = &set["spec"]["template"]["spec"]["initContainers"];
    let mut containers = containers.as_array().into_iter().flatten();
    let agent = containers.find(|container| container["name"] == "agent");
    let agent = agent.expect("the agent is a container of that name");
    assert!(agent["image"].is_string());
    let mut variables = agent["env"].as_array().into_iter().flatten();
    assert!(variables.any(|one| one["name"] == "MUSTER_COORDINATOR" && one["value"].is_string()));
}

/// Rights to write nodes come with a policy for the same account, and a flag that exists.
#[test]
fn the_component_for_cordons_binds_whom_it_gives_rights() {
    let folder = "components/cordon";
    let policies = objects(&format!("{folder}/policy.yaml"));
    let policy = &policies[0];
    let rules = &policy["spec"]["matchConstraints"]["resourceRules"][0];
    assert_eq!(rules["resources"], json!(["nodes", "nodes/status"]));
    assert_eq!(policy["spec"]["failurePolicy"], "Fail");
    let binding = &policies[1]["spec"];
    assert_eq!(binding["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["validationActions"], json!(["Deny", "Audit"]));
    let bound = objects(&format!("{folder}/rights.yaml"));
    let subject = &bound[1]["subjects"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // In whatever namespace an overlay or Helm puts it.
    let condition = text(&policy["spec"]["matchConditions"][0]["expression"]);
    assert!(!condition.contains(&text(&subject["namespace"])));
    assert_eq!(
        condition,
        format!(
            "request.userInfo.username.startsWith('system:serviceaccount:') && request.userInfo.username.endsWith(':{}')",
            text(&subject["name"])
        )
    );
    // What it writes begins as the policy allows.
    let core = source("core/src/node_object.rs");
    for key in [
        "MUSTER_KEY: &str = \"muster.dev/\"",
        "MUSTER_CONDITION: &str = \"Muster\"",
    ] {
        assert!(core.contains(key), "{key}");
    }
    let keys = core
        .lines()
        .filter(|line| line.contains(": &str = \"muster.dev/"));
    assert!(keys.count() >= 7);
    let kustomization = source(&format!("manifests/{folder}/kustomization.yaml"));
    assert!(kustomization.contains("value: --kubernetes-cordon=on"));
    let flags = source("coordinator/src/options/kubernetes.rs");
    assert!(flags.contains("pub kubernetes_cordon:") && flags.contains("    On,"));
}

/// Every policy that binds the coordinator denies and holds for its account, in whatever namespace an overlay or
/// Helm puts it.
#[test]
fn policies_bind_the_account_that_has_the_rights() {
    let mut bound = 0;
    for file in [
        "components/cordon/policy.yaml",
        "components/worker-pods/policy.yaml",
    ] {
        for pair in objects(file).chunks(2) {
            let [policy, binding] = pair else {
                panic!("{file}: a policy and its binding");
            };
            let name = &policy["metadata"]["name"];
            assert_eq!(policy["kind"], "ValidatingAdmissionPolicy");
            assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
            assert_eq!(&binding["spec"]["policyName"], name);
            let actions = &binding["spec"]["validationActions"];
            assert_eq!(actions, &json!(["Deny", "Audit"]), "{name}");
            let who = &policy["spec"]["matchConditions"];
            assert_eq!(who.as_array().map(Vec::len), Some(1), "{name}");
            assert_eq!(
                who[0]["expression"],
                "request.userInfo.username.startsWith('system:serviceaccount:') && request.userInfo.username.endsWith(':muster-coordinator')"
            );
            let params = &policy["spec"]["paramKind"];
            assert_eq!(params.is_null(), binding["spec"]["paramRef"].is_null());
            if !params.is_null() {
                // Without parameters such a binding denies before it asks who it is, so pods of everybody.
                let selector = &policy["spec"]["matchConstraints"]["objectSelector"];
                assert!(selector.is_object(), "{name}");
            }
            for validation in policy["spec"]["validations"]
                .as_array()
                .into_iter()
                .flatten()
            {
                assert!(validation["message"].is_string(), "{validation}");
            }
            bound += 1;
        }
    }
    assert_eq!(bound, 4);
}

/// The guide has the table of the code, row by row.
#[test]
fn the_guide_names_every_sign_of_others() {
    let code = source("core/src/node_object/signs.rs");
    let code = code
        .split("pub const LEFT_ALONE")
        .next()
        .unwrap_or_default();
    let rows: Vec<String> = code.lines().filter_map(row).collect();
    assert!(rows.len() > 40, "{}", rows.len());
    let guide = source("docs/kubernetes-nodes.md");
    let heads = ["| condition `", "| taint `", "| label `", "| annotation `"];
    let is_row = |line: &&str| heads.iter().any(|head| line.starts_with(head));
    let written: Vec<&str> = guide
        .lines()
        .filter(is_row)
        .filter(|line| line.matches('|').count() == 5)
        .collect();
    assert_eq!(written, rows, "docs/kubernetes-nodes.md");
}

/// A line of the code's table as a line of the guide's.
fn row(line: &str) -> Option<String> {
    let fields = line.trim().strip_prefix("sign(")?.strip_suffix("),")?;
    let texts: Vec<&str> = fields.split('"').collect();
    let [place, key, _, value, _, by, meaning, words, ""] = texts[..] else {
        panic!("{line}");
    };
    let place = place.trim_matches([',', ' ']).to_lowercase();
    let meaning = meaning.trim_matches([',', ' ']).to_lowercase();
    let name = match (value, value.strip_prefix('!')) {
        ("", _) => format!("{place} `{key}`"),
        (_, Some(not)) => format!("{place} `{key}` is not {not}"),
        _ => format!("{place} `{key}={value}`"),
    };
    Some(format!("| {name} | {by} | {meaning} | {words} |"))
}
