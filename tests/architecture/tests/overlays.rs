//! Every overlay can be applied: kustomize renders it, all objects of the base are in it, and it
//! differs from the base where its name says. Needs kubectl, and says so where there is none.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
};

use muster_architecture::root;
use serde_json::Value;

/// The objects of a kustomization. `None`: there is no kubectl.
fn rendered(folder: &Path) -> Option<Vec<Value>> {
    let output = Command::new("kubectl")
        .arg("kustomize")
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {why}", folder.display());
    let text = String::from_utf8(output.stdout).unwrap();
    Some(serde_saphyr::from_multiple(&text).unwrap())
}

fn names(objects: &[Value]) -> BTreeSet<String> {
    let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    objects.iter().map(name).collect()
}

/// The pods of the coordinator and of the agents.
fn pods(objects: &[Value]) -> Vec<&Value> {
    let pods = objects
        .iter()
        .map(|object| &object["spec"]["template"]["spec"]);
    pods.filter(|pod| pod.is_object()).collect()
}

#[test]
fn every_overlay_renders_and_keeps_the_objects_of_the_base() {
    let manifests = root().join("manifests");
    let Some(base) = rendered(&manifests.join("base")) else {
        // Not `eprintln!`, which the test runner hides.
        let _ = writeln!(
            io::stderr(),
            "!!! NOT CHECKED: the overlays (there is no kubectl on PATH)"
        );
        return;
    };
    let mut seen = 0;
    for overlay in fs::read_dir(manifests.join("overlays")).unwrap() {
        let overlay = overlay.unwrap();
        let name = overlay.file_name().into_string().unwrap();
        let objects = rendered(&overlay.path()).unwrap();
        let missing: Vec<String> = names(&base).difference(&names(&objects)).cloned().collect();
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
        let pods = pods(&objects);
        assert_eq!(pods.len(), 2, "{name}");
        for pod in pods {
            for list in ["initContainers", "containers"] {
                for container in pod[list].as_array().into_iter().flatten() {
                    let image = container["image"].as_str().unwrap();
                    assert!(
                        image.contains('/') && image.contains(':'),
                        "{name}: {image}"
                    );
                }
            }
            let user = &pod["securityContext"]["runAsUser"];
            assert_eq!(user.is_null(), name == "openshift", "{name}: user {user}");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        }
        let gpus = serde_json::to_string(&objects).unwrap();
        let wants = gpus.contains("\"limits\":{\"nvidia.com/gpu\":8}");
        assert_eq!(
            wants,
            ["gpu", "openshift"].contains(&&*name),
            "{name}: GPUs"
        );
        seen += 1;
    }
    assert!(seen >= 4, "{seen} overlays");
}
