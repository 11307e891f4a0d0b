//! The site map: what a cluster's images, claims and classes are on machines without containers.
//!
//! One file, written by whoever runs the machines, makes all job files of a cluster run on them. It
//! only says where things are; it never changes what a job asks for.

use std::collections::BTreeMap;

use crate::{
    fields::{Object, Rule, Rules},
    tree::{Field, Node, Value},
    verdict::{Remark, Verdict, Verdicts},
};

/// What the machines have in place of what is in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Patterns of image names, in the order of the file. The first that fits is taken.
    images: Vec<(String, Image)>,
    /// Directories of the nodes, by the name of a claim, ConfigMap or Secret, or `SERVER:PATH`.
    pub(crate) claims: BTreeMap<String, String>,
    /// Files of the nodes, by `NAME/KEY` of a Secret or ConfigMap.
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) priorities: BTreeMap<String, i64>,
    /// Labels that every node has, and those that none has (`None`).
    pub(crate) node_labels: BTreeMap<String, Option<String>>,
    /// The labels of nodes that have a feature of Slurm (`--constraint`). None: all nodes have it.
    pub(crate) features: BTreeMap<String, BTreeMap<String, String>>,
    /// The user id of the agents, and so of every job.
    pub(crate) user: Option<i64>,
}

/// What the machines have in place of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    /// The interpreter, in place of any Python that a command names.
    pub(crate) python: Option<String>,
    /// What the image starts, if a job names no command.
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: Option<String>,
}

const SITE: Rules = &[
    ("images", Rule::Read),
    ("claims", Rule::Read),
    ("secrets", Rule::Read),
    ("priorities", Rule::Read),
    ("nodeLabels", Rule::Read),
    ("features", Rule::Read),
    ("user", Rule::Read),
];

const IMAGE: Rules = &[
    ("python", Rule::Read),
    ("command", Rule::Read),
    ("env", Rule::Read),
    ("workingDir", Rule::Read),
];

impl Site {
    /// Reads a site map, or tells everything that is wrong with it.
    pub fn read(node: &Node) -> Result<Site, Vec<Remark>> {
        let mut log = Verdicts::default();
        let map = Object::walk(&Field::root(node), SITE, &mut log);
        let mut site = Site {
            claims: texts(map.get("claims"), &mut log),
            secrets: texts(map.get("secrets"), &mut log),
            node_labels: labels(map.get("nodeLabels"), &mut log),
            user: map.whole("user", &mut log).map(|(_, user)| user),
            ..Site::default()
        };
        if let Some(priorities) = map.get("priorities") {
            for (class, field) in priorities.entries(&mut log) {
                if let Some(priority) = field.whole(&mut log) {
                    site.priorities.insert(class.to_owned(), priority);
                }
            }
        }
        if let Some(features) = map.get("features") {
            for (feature, field) in features.entries(&mut log) {
                let labels = texts(Some(&field), &mut log);
                site.features.insert(feature.to_owned(), labels);
            }
        }
        if let Some(images) = map.get("images") {
            for (pattern, field) in images.entries(&mut log) {
                let image = Image::read(&field, &mut log);
                site.images.push((pattern.to_owned(), image));
            }
        }
        log.remarks
            .retain(|remark| remark.verdict == Verdict::Refusal);
        match log.remarks.is_empty() {
            true => Ok(site),
            false => Err(log.remarks),
        }
    }

    pub(crate) fn image(&self, name: &str) -> Option<&Image> {
        let mut images = self.images.iter();
        let found = images.find(|(pattern, _)| fits(pattern, name))?;
        Some(&found.1)
    }
}

impl Image {
    fn read(field: &Field<'_>, log: &mut Verdicts) -> Image {
        let object = Object::walk(field, IMAGE, log);
        let own = |text: &str| text.to_owned();
        let mut command = Vec::new();
        if let Some(words) = object.get("command") {
            let words = words.items(log);
            command.extend(words.iter().filter_map(|word| word.text(log).map(own)));
        }
        Image {
            python: object.text("python", log).map(|(_, text)| own(text)),
            command,
            env: texts(object.get("env"), log).into_iter().collect(),
            working_dir: object.text("workingDir", log).map(|(_, text)| own(text)),
        }
    }
}

fn labels(field: Option<&Field<'_>>, log: &mut Verdicts) -> BTreeMap<String, Option<String>> {
    let has = texts(field, log).into_iter();
    let mut labels: BTreeMap<String, Option<String>> =
        has.map(|(label, value)| (label, Some(value))).collect();
    if let Some(Value::Object(entries)) = field.map(|field| &field.node.value) {
        let empty = entries
            .iter()
            .filter(|entry| entry.node.value == Value::Null);
        labels.extend(empty.map(|entry| (entry.key.clone(), None)));
    }
    labels
}

fn texts(field: Option<&Field<'_>>, log: &mut Verdicts) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    if let Some(field) = field {
        for (key, value) in field.entries(log) {
            if let Some(text) = value.text(log) {
                texts.insert(key.to_owned(), text.to_owned());
            }
        }
    }
    texts
}

/// Whether a name fits a pattern, in which `*` stands for any part. The pieces between the stars
/// are looked for from left to right, so the time is at most the product of both lengths.
fn fits(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else {
        return rest.is_empty();
    };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::parse_all;

    fn read(text: &str) -> Result<Site, Vec<String>> {
        Site::read(&parse_all(text).unwrap()[0])
            .map_err(|wrong| wrong.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn stars_stand_for_any_part() {
        assert!(fits("kubeflow/*", "kubeflow/mnist:latest"));
        assert!(fits("*/mnist:*", "docker.io/kubeflow/mnist:v1"));
        assert!(fits("mnist", "mnist") && !fits("mnist", "mnist:v1"));
        assert!(!fits("a*b*a", "aba-c") && fits("a*b*a", "abba"));
        assert!(!fits("ab*ba", "aba"), "pieces do not overlap");
        assert!(fits("*", ""));
    }

    #[test]
    fn the_first_image_that_fits_is_taken() {
        let site = read(
            "images:\n  team/*: {python: /opt/a/bin/python, env: {A: b}}\n  '*': {command: [python3, /opt/x.py], workingDir: /w}\nuser: 1000\n",
        )
        .unwrap();
        assert_eq!(
            site.image("team/x").unwrap().python.as_deref(),
            Some("/opt/a/bin/python")
        );
        assert_eq!(
            site.image("other").unwrap().command,
            ["python3", "/opt/x.py"]
        );
        assert_eq!(Site::default().image("team/x"), None);
    }

    #[test]
    fn every_mistake_is_told() {
        assert_eq!(
            read("image: {}\nclaims: {a: 1}\npriorities: {high: x}\n").unwrap_err(),
            [
                "1:1: image: unknown field; did you mean images?",
                "2:13: claims.a: is the number 1, must be a text; write \"1\"",
                "3:20: priorities.high: is the text \"x\", must be a whole number",
            ]
        );
    }
}
