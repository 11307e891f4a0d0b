//! Every overlay can be applied, as it is shipped and with each component that the guide adds to it:
//! kustomize renders it, all objects of the base are in it, every object and every right is where it
//! belongs, and the overlay differs from the base where its name says.
//!
//! Our own reader renders them, on every machine. Where there is a kubectl, it must say the same.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
};

use muster_architecture::{
    kustomize::{Objects, by_name, is_namespaced, render},
    root,
};
use serde_json::Value;

const NAMESPACE: &str = "muster-system";

/// Components that ask for what an overlay lacks, with what an installation then has.
struct Choice {
    overlay: String,
    components: Vec<String>,
}

fn folders(of: &str) -> Vec<String> {
    let folders = fs::read_dir(root().join("manifests").join(of)).unwrap();
    let names = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The line in a component's file that says what to write into an overlay.
fn documented(component: &str) -> Vec<String> {
    let file = root().join(format!(
        "manifests/components/{component}/kustomization.yaml"
    ));
    let text = fs::read_to_string(file).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("#   components: ["));
    let line = line.unwrap_or_else(|| panic!("{component} does not say how it is added"));
    let names = line.trim_end_matches(']').split(", ");
    let names: Vec<String> = names
        .map(|path| path.strip_prefix("../../components/").unwrap().to_owned())
        .collect();
    assert!(
        names.iter().any(|name| name == component),
        "{component}: {line}"
    );
    names
}

/// Each overlay as it is, with each component as documented, and with all that go together.
fn choices() -> Vec<Choice> {
    let components = folders("components");
    assert!(components.len() >= 8, "{components:?}");
    let mut choices = Vec::new();
    for overlay in folders("overlays") {
        let choice = |components| Choice {
            overlay: overlay.clone(),
            components,
        };
        choices.push(choice(Vec::new()));
        choices.extend(components.iter().map(|one| choice(documented(one))));
        let no_senses = components.iter().filter(|name| *name != "senses-only");
        choices.push(choice(no_senses.cloned().collect()));
    }
    choices
}

/// A copy of the manifests in which the overlay has these components, too.
fn with_components(choice: &Choice, manifests: &Path) {
    let from = root().join("manifests");
    for folder in ["base", "components", "overlays"] {
        copy(&from.join(folder), &manifests.join(folder));
    }
    let file = manifests.join(format!("overlays/{}/kustomization.yaml", choice.overlay));
    let mut text = fs::read_to_string(&file).unwrap();
    let paths = choice.components.iter();
    let lines = paths.map(|name| format!("- ../../components/{name}\n"));
    // The guide says to leave out what is there.
    let lines: String = lines.filter(|line| !text.contains(&**line)).collect();
    match text.split_once("\ncomponents:\n") {
        Some((before, after)) => text = format!("{before}\ncomponents:\n{lines}{after}"),
        None if lines.is_empty() => {}
        None => text = format!("{text}components:\n{lines}"),
    }
    fs::write(&file, text).unwrap();
}

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

/// What kubectl makes of it. `None`: there is no kubectl.
fn by_kubectl(folder: &Path) -> Option<Objects> {
    let mut command = Command::new("kubectl");
    let command = command.arg("kustomize").arg(folder).stdin(Stdio::null());
    let output = command.output().ok()?;
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {why}", folder.display());
    Some(by_name(&String::from_utf8(output.stdout).unwrap()))
}

fn same(ours: &Objects, theirs: &Objects, what: &str) {
    assert!(ours.keys().eq(theirs.keys()), "{what}: other objects");
    for (name, ours) in ours {
        let text = |object| serde_json::to_string_pretty(object).unwrap();
        let (ours, theirs) = (text(ours), text(&theirs[name]));
        let both = ours.lines().zip(theirs.lines());
        let mut differ = both.filter(|(ours, theirs)| ours != theirs);
        assert_eq!(differ.next(), None, "{what}: {name}");
        assert_eq!(ours.len(), theirs.len(), "{what}: {name}");
    }
}

fn texts<'a>(of: &'a Value, list: &str, field: &str) -> BTreeSet<&'a str> {
    let items = of[list].as_array().into_iter().flatten();
    items.filter_map(|item| item[field].as_str()).collect()
}

#[test]
fn every_object_and_every_right_is_where_it_belongs() {
    let mut kubectl = true;
    for choice in choices() {
        let Choice {
            overlay,
            components,
        } = &choice;
        let what = format!("{overlay} with {components:?}");
        let folder = tempfile::tempdir().unwrap();
        with_components(&choice, folder.path());
        let overlay = folder.path().join("overlays").join(overlay);
        let objects = render(&overlay);
        for (name, object) in &objects {
            placed(object, &objects).unwrap_or_else(|why| panic!("{what}: {name}: {why}"));
        }
        if kubectl {
            match by_kubectl(&overlay) {
                Some(theirs) => same(&objects, &theirs, &what),
                None => kubectl = false,
            }
        }
    }
    if !kubectl {
        // Not `eprintln!`, which the test runner hides.
        let _ = writeln!(
            io::stderr(),
            "!!! NOT CHECKED: that kubectl renders the overlays as our own reader does (there is no kubectl on PATH)"
        );
    }
}

/// What is wrong with the place of an object, with those whom it gives rights, or with what it mounts.
fn placed(object: &Value, all: &Objects) -> Result<(), String> {
    let kind = object["kind"].as_str().unwrap();
    let own = &object["metadata"]["namespace"];
    match is_namespaced(kind) {
        true if own != NAMESPACE => return Err(format!("it is in the namespace {own}")),
        false if !own.is_null() => return Err(format!("it is in a namespace, {own}")),
        _ => {}
    }
    for subject in object["subjects"].as_array().into_iter().flatten() {
        let (namespace, name) = (&subject["namespace"], subject["name"].as_str().unwrap());
        if subject["kind"] != "ServiceAccount" {
            continue;
        }
        // Kueue's account is Kueue's.
        let is_ours = namespace == NAMESPACE && all.contains_key(&format!("ServiceAccount {name}"));
        if !is_ours && namespace != "kueue-system" {
            return Err(format!("nobody is {namespace}/{name}"));
        }
    }
    let role = &object["roleRef"];
    if let (Some(kind), Some(name)) = (role["kind"].as_str(), role["name"].as_str())
        && !all.contains_key(&format!("{kind} {name}"))
        && !name.starts_with("system:")
    {
        return Err(format!("there is no {kind} {name}"));
    }
    let pod = &object["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str();
    if let Some(account) = account
        && !all.contains_key(&format!("ServiceAccount {account}"))
    {
        return Err(format!("there is no account {account}"));
    }
    let mut there = texts(pod, "volumes", "name");
    for claim in object["spec"]["volumeClaimTemplates"]
        .as_array()
        .into_iter()
        .flatten()
    {
        there.insert(claim["metadata"]["name"].as_str().unwrap());
    }
    for list in ["initContainers", "containers"] {
        for container in pod[list].as_array().into_iter().flatten() {
            let mounted = texts(container, "volumeMounts", "name");
            if let Some(lost) = mounted.difference(&there).next() {
                return Err(format!("it mounts {lost}, which is no volume of it"));
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_elsewhere_is_noticed() {
    let objects = by_name(
        "kind: Role\nmetadata: {name: r}\n---\nkind: RoleBinding\nmetadata: {name: b, namespace: muster-system}\n\
         roleRef: {kind: Role, name: r}\nsubjects: [{kind: ServiceAccount, name: a, namespace: muster-system}]\n---\n\
         kind: DaemonSet\nmetadata: {name: d, namespace: muster-system}\nspec: {template: {spec: {containers: [{volumeMounts: [{name: v}]}]}}}\n",
    );
    let why = |name: &str| placed(&objects[name], &objects).unwrap_err();
    assert_eq!(why("Role r"), "it is in the namespace null");
    assert_eq!(why("RoleBinding b"), "nobody is \"muster-system\"/a");
    assert_eq!(why("DaemonSet d"), "it mounts v, which is no volume of it");
}

/// The pods of the coordinator and of the agents.
fn pods(objects: &Objects) -> Vec<&Value> {
    let pods = objects
        .values()
        .map(|object| &object["spec"]["template"]["spec"]);
    pods.filter(|pod| pod.is_object()).collect()
}

#[test]
fn every_overlay_keeps_the_objects_of_the_base() {
    let manifests = root().join("manifests");
    let base = render(&manifests.join("base"));
    let mut seen = 0;
    for name in folders("overlays") {
        let objects = render(&manifests.join("overlays").join(&name));
        let lacks: Vec<&String> = base
            .keys()
            .filter(|one| !objects.contains_key(*one))
            .collect();
        assert!(lacks.is_empty(), "{name} lacks {lacks:?}");
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
    assert!(seen >= 5, "{seen} overlays");
}
