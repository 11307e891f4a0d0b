//! What kustomize makes of a folder, as far as the manifests use it: resources, components, a
//! namespace, images, and patches of two kinds. It is not kustomize, and refuses every other field.
//! Where there is a kubectl, the tests compare both.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use crate::patch;

/// The objects by their kind and name.
pub type Objects = BTreeMap<String, Value>;

/// The fields of a kustomization that are known here.
const FIELDS: [&str; 7] = [
    "apiVersion",
    "kind",
    "resources",
    "components",
    "namespace",
    "images",
    "patches",
];

/// Kinds of the manifests whose objects belong to no namespace.
const CLUSTER_SCOPED: [&str; 7] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "FlowSchema",
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Kinds whose objects belong to one.
const NAMESPACED: [&str; 9] = [
    "Certificate",
    "ConfigMap",
    "DaemonSet",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
    "StatefulSet",
];

/// Whether objects of this kind belong to a namespace.
///
/// # Panics
/// The kind is in neither list, so nobody knows.
pub fn is_namespaced(kind: &str) -> bool {
    let is_namespaced = NAMESPACED.contains(&kind);
    assert!(
        is_namespaced || CLUSTER_SCOPED.contains(&kind),
        "does {kind} belong to a namespace? Put it into one of the lists of tests/architecture/src/kustomize.rs"
    );
    is_namespaced
}

/// `KIND NAME` of an object.
pub fn name(object: &Value) -> String {
    let word = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", word("/kind"), word("/metadata/name"))
}

/// The objects of a text.
pub fn by_name(text: &str) -> Objects {
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let objects = objects.into_iter().filter(|object| !object.is_null());
    objects.map(|object| (name(&object), object)).collect()
}

/// What kustomize makes of this folder.
pub fn render(folder: &Path) -> Objects {
    let mut objects = Objects::new();
    add(folder, &mut objects);
    objects
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn items<'a>(of: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    of[list].as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    let text = value.as_str();
    text.unwrap_or_else(|| panic!("{value} is no text"))
}

/// Adds what the folder names, and changes what is there as it says.
fn add(folder: &Path, objects: &mut Objects) {
    let path = folder.join("kustomization.yaml");
    let kustomization: Value =
        serde_saphyr::from_str(&read(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for field in kustomization.as_object().into_iter().flatten() {
        let (field, path) = (field.0, path.display());
        assert!(
            FIELDS.contains(&&**field),
            "{path}: {field} is not known here"
        );
    }
    for resource in items(&kustomization, "resources") {
        let resource = folder.join(text(resource));
        let mut more = Objects::new();
        match resource.is_dir() {
            true => add(&resource, &mut more),
            false => more = by_name(&read(&resource)),
        }
        for (name, object) in more {
            let there = objects.insert(name.clone(), object);
            assert!(there.is_none(), "{}: {name} is there twice", path.display());
        }
    }
    // Its patches are for what is there by now.
    for component in items(&kustomization, "components") {
        add(&folder.join(text(component)), objects);
    }
    for one in items(&kustomization, "patches") {
        patch::apply(one, objects);
    }
    for image in items(&kustomization, "images") {
        objects
            .values_mut()
            .for_each(|object| rename(object, image));
    }
    if let Some(namespace) = kustomization["namespace"].as_str() {
        for object in objects.values_mut() {
            if is_namespaced(text(&object["kind"])) {
                object["metadata"]["namespace"] = json!(namespace);
            }
        }
    }
}

/// Names another image wherever containers have this one.
fn rename(object: &mut Value, image: &Value) {
    let to = format!("{}:{}", text(&image["newName"]), text(&image["newTag"]));
    for list in ["initContainers", "containers"] {
        let containers = object.pointer_mut(&format!("/spec/template/spec/{list}"));
        let containers = containers.and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if container["image"] == image["name"] {
                container["image"] = json!(to);
            }
        }
    }
}
