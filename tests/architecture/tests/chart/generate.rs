//! Makes the templates of the Helm chart from the files of `manifests/base` and of
//! `manifests/components`: the same text, with places for values in it (`edits`). If the base no longer
//! has the text that an edit replaces, it says so, so a change of the base cannot pass by the chart.
//! What a component adds is in the chart if its value is true.

use std::fs;

use muster_architecture::{kustomize::is_namespaced, root};
use serde_json::Value;

use crate::edits::{COMPONENT_EDITS, EDITS, Edit};

/// The namespace that the base is for. A release has one of its own.
pub(crate) const NAMESPACE: &str = "muster-system";
const RELEASE_NAMESPACE: &str = "{{ .Release.Namespace }}";

/// A folder of `manifests/components`.
pub(crate) struct Component {
    pub(crate) folder: &'static str,
    /// The value that adds it.
    pub(crate) value: &'static str,
}

/// In the order of their folders' names.
pub(crate) const COMPONENTS: [Component; 9] = [
    Component {
        folder: "adopt",
        value: "adopt.enabled",
    },
    Component {
        folder: "cert-manager",
        value: "certManager.enabled",
    },
    Component {
        folder: "cordon",
        value: "cordon.enabled",
    },
    Component {
        folder: "kueue",
        value: "kueue.enabled",
    },
    Component {
        folder: "metrics",
        value: "metrics.enabled",
    },
    Component {
        folder: "pod-groups",
        value: "podGroups.enabled",
    },
    Component {
        folder: SENSES_ONLY,
        value: "sensesOnly.enabled",
    },
    Component {
        folder: "two-coordinators",
        value: "twoCoordinators.enabled",
    },
    Component {
        folder: "worker-pods",
        value: "workerPods.enabled",
    },
];

impl Component {
    pub(crate) fn kustomization(&self) -> Value {
        serde_saphyr::from_str(&self.read("kustomization.yaml")).expect("it is YAML")
    }

    /// The text of all its objects.
    pub(crate) fn objects(&self) -> String {
        let files = names(&self.kustomization());
        let files: Vec<String> = files.iter().map(|name| self.read(name)).collect();
        files.join("---\n")
    }

    fn has_objects(&self) -> bool {
        !names(&self.kustomization()).is_empty()
    }

    fn read(&self, name: &str) -> String {
        read(&format!("components/{}/{name}", self.folder))
    }

    fn template(&self) -> (String, String) {
        let Self { folder, value } = self;
        let mut text = escaped(&self.objects());
        for edit in COMPONENT_EDITS.iter().filter(|edit| edit.file == *folder) {
            assert_eq!(text.matches(edit.find).count(), edit.times, "{}", edit.find);
            text = text.replace(edit.find, edit.put);
        }
        let text = documents(&text);
        let head = format!(
            "# Made from manifests/components/{folder}: change the files there, not this one.\n"
        );
        let text = format!("{head}{{{{- if .Values.{value} }}}}\n{text}{{{{- end }}}}\n");
        (format!("{folder}.yaml"), text)
    }
}

const SENSES_ONLY: &str = "senses-only";
/// Stands for what the component `senses-only` has in place of a list of the pod.
const ITS_CONTAINERS: &str = "@containers@\n";
const ITS_VOLUMES: &str = "@volumes@\n";

/// The text that this component puts in place of a list. Its lines have the indent that the list has in the
/// base.
fn replaced(folder: &str, list: &str) -> String {
    let text = read(&format!("components/{folder}/kustomization.yaml"));
    let head = format!("      path: /spec/template/spec/{list}\n      value:\n");
    let (_, rest) = text.split_once(&head).expect("it replaces the list");
    let list = rest
        .split("    - op: ")
        .next()
        .expect("splits have a first");
    list.to_owned()
}

fn read(name: &str) -> String {
    let path = root().join("manifests").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The files that a kustomization names.
fn names(kustomization: &Value) -> Vec<String> {
    let names = kustomization["resources"].as_array().expect("it has files");
    let names = names.iter().map(|name| name.as_str().expect("a name"));
    names.map(str::to_owned).collect()
}

/// The files of the base, in the order of its kustomization.
pub(crate) fn base() -> Vec<(String, String)> {
    let kustomization =
        serde_saphyr::from_str(&read("base/kustomization.yaml")).expect("it is YAML");
    let names = names(&kustomization).into_iter();
    names
        .map(|name| (name.clone(), read(&format!("base/{name}"))))
        .collect()
}

/// The templates of the chart, or the edits that found no place.
pub(crate) fn templates(base: &[(String, String)]) -> Result<Vec<(String, String)>, Vec<String>> {
    let mut lost: Vec<String> = EDITS
        .iter()
        .filter(|edit| base.iter().all(|(name, _)| name != edit.file))
        .map(|edit| format!("manifests/base has no file {}", edit.file))
        .collect();
    let mut made = Vec::new();
    // Helm makes the release's namespace before it applies anything.
    for (name, text) in base.iter().filter(|(name, _)| name != "namespace.yaml") {
        let mut text = escaped(text);
        for edit in EDITS.iter().filter(|edit| edit.file == name) {
            let there = text.matches(edit.find).count();
            if there != edit.times {
                let Edit { times, find, .. } = edit;
                lost.push(format!(
                    "{name} has this {there} times in place of {times}:\n{find}"
                ));
            }
            text = text.replace(edit.find, edit.put);
        }
        for (place, list) in [(ITS_CONTAINERS, "containers"), (ITS_VOLUMES, "volumes")] {
            let mut own = escaped(&replaced(SENSES_ONLY, list));
            // The agent is configured by the same values there.
            let of_agent = |edit: &&Edit| {
                let values = [".Values.agent.", ".Values.images.agent"];
                edit.file == name && values.iter().any(|value| edit.put.contains(value))
            };
            for edit in EDITS.iter().filter(of_agent) {
                own = own.replace(edit.find, edit.put);
            }
            text = text.replace(place, &own);
        }
        let head = format!(
            "# Made from manifests/base/{name}: change that file, or tests/architecture/tests/chart/edits.rs, not this one.\n"
        );
        made.push((name.clone(), head + &documents(&text)));
    }
    let with_objects = COMPONENTS.iter().filter(|one| one.has_objects());
    made.extend(with_objects.map(Component::template));
    if lost.is_empty() { Ok(made) } else { Err(lost) }
}

/// What Helm would take for a place for a value.
fn escaped(text: &str) -> String {
    text.replace("{{", "{{ \"{{\" }}")
}

fn documents(text: &str) -> String {
    let documents: Vec<String> = text.split("---\n").map(document).collect();
    documents.join("---\n")
}

fn says_namespace(text: &str) -> bool {
    let metadata = text
        .split_once("\nmetadata:\n")
        .map_or("", |(_, rest)| rest);
    let mut lines = metadata.lines().take_while(|line| line.starts_with("  "));
    lines.any(|line| line.starts_with("  namespace: "))
}

/// One object: in the release's namespace if it is in any, and kept if it is a definition.
fn document(text: &str) -> String {
    let kind = text.lines().find_map(|line| line.strip_prefix("kind: "));
    let text = text.replace(NAMESPACE, RELEASE_NAMESPACE);
    match kind {
        // To delete it would delete all objects of its kind.
        Some("CustomResourceDefinition") => {
            let keep = "\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n";
            let kept = text.replacen("\nmetadata:\n", keep, 1);
            format!("{{{{- if .Values.crds.enabled }}}}\n{kept}{{{{- end }}}}\n")
        }
        // The base leaves it to kustomize. What components add must say it itself.
        Some(kind) if is_namespaced(kind) && !says_namespace(&text) => {
            let own = format!("\nmetadata:\n  namespace: {RELEASE_NAMESPACE}\n");
            text.replacen("\nmetadata:\n", &own, 1)
        }
        _ => text,
    }
}
