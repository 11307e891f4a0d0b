//! The variables of a container: their values as the kubelet makes them, and whose they are.

use muster_core::spec::{ENV_MAX, EnvVar, ValueFrom, is_of_a_launch};

use crate::{
    fields::{KEPT, Object, Rule, Rules},
    grace,
    options::Cluster,
    tree::Field,
    verdict::Verdicts,
    words::{Known, expand},
};

/// The variables that a kind's operator gives every container. They come after the container's own,
/// and win.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) names: &'static [&'static str],
    pub(crate) prefixes: &'static [&'static str],
}

impl Told {
    pub(crate) const NOTHING: Told = Told {
        names: &[],
        prefixes: &[],
    };

    fn has(self, name: &str) -> bool {
        self.names.contains(&name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// The variable that says the same as torchrun's `--shutdown-timeout`, which wins.
const SHUTDOWN_TIMEOUT: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";

/// The variables of one container.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables<'t> {
    /// Each with the field that sets it.
    pub(crate) list: Vec<(EnvVar, Option<Field<'t>>)>,
    /// What `$(NAME)` means in the command.
    pub(crate) known: Known,
    /// Those of the file that the ranks must not get.
    pub(crate) dropped: Vec<String>,
    /// torchrun's grace in seconds, if [`SHUTDOWN_TIMEOUT`] says it.
    pub(crate) shutdown_timeout: Option<i64>,
}

const ENV: Rules = &[
    ("name", Rule::Read),
    ("value", Rule::Read),
    ("valueFrom", Rule::Read),
];

const VALUE_FROM: Rules = &[
    ("fieldRef", Rule::Read),
    ("secretKeyRef", Rule::Read),
    ("configMapKeyRef", Rule::Read),
    (
        "resourceFieldRef",
        Rule::Refuse("is known on the node only, and Muster limits no resource"),
    ),
    ("fileKeyRef", Rule::Refuse("is in a volume of the pod")),
];

const FIELD_REF: Rules = &[("fieldPath", Rule::Read), ("apiVersion", Rule::Read)];

const KEY_REF: Rules = &[
    ("name", Rule::Read),
    ("key", Rule::Read),
    ("optional", Rule::Read),
];

impl<'t> Variables<'t> {
    pub(crate) fn read(
        env: Option<&Field<'t>>,
        told: Told,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) -> Variables<'t> {
        let mut variables = Variables::default();
        // A command may refer to what the operator sets.
        for name in told.names {
            variables.known.insert((*name).to_owned(), None);
        }
        let items = env.map(|env| env.items(log)).unwrap_or_default();
        for item in items.iter().take(ENV_MAX) {
            variables.read_one(item, told, cluster, log);
        }
        if let Some(item) = items.get(ENV_MAX) {
            log.refuse(item, format!("at most {ENV_MAX} variables are allowed"));
        }
        variables
    }

    fn read_one(
        &mut self,
        item: &Field<'t>,
        told: Told,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) {
        let object = Object::walk(item, ENV, log);
        let Some((name_at, name)) = object.text("name", log) else {
            match object.get("name") {
                None => log.lacks(item, "name"),
                // A command may refer to it all the same.
                Some(at) => {
                    let value = item.node.text_at(&["value"]).map(str::to_owned);
                    let written = at.node.written.as_deref();
                    self.known
                        .extend(written.map(|name| (name.to_owned(), value)));
                }
            }
            return;
        };
        let name_at = name_at.clone();
        if told.has(name) {
            self.known.insert(name.to_owned(), None);
            self.dropped.push(name.to_owned());
            log.note(
                item,
                format!(
                    "{name} is not passed on: Muster tells ranks where they meet and who they are"
                ),
            );
            return;
        }
        if name == SHUTDOWN_TIMEOUT {
            match object.text("value", log) {
                Some((at, text)) => match text.parse() {
                    Ok(seconds) if seconds >= 0 => {
                        self.shutdown_timeout = Some(seconds);
                        grace::take(name, seconds, item, log);
                    }
                    _ => log.refuse(
                        at,
                        format!("{name} is {text:?}, must be a whole number of seconds"),
                    ),
                },
                None => log.refuse(item, format!("{name} needs its value here")),
            }
            return;
        }
        // One value of such a name is the user's to choose; the check of the job knows it.
        if is_of_a_launch(name) && name != "MUSTER_RANK_CPUS" {
            log.refuse(
                &name_at,
                format!("{name} is set by Muster for every rank and cannot be set by a job"),
            );
            return;
        }
        if cluster.pods {
            let text = object.text("value", log);
            let known = text.and_then(|(_, text)| expand(text, &self.known).ok());
            self.known.insert(name.to_owned(), known);
            log.note(item, KEPT);
            return;
        }
        let found = match (object.get("value"), object.get("valueFrom")) {
            (Some(value), None) => {
                value
                    .text(log)
                    .and_then(|text| match expand(text, &self.known) {
                        Ok(value) => Some(literal(name, value)),
                        Err(why) => {
                            log.refuse(value, why.message());
                            None
                        }
                    })
            }
            (None, Some(from)) => from_elsewhere(name, from, cluster, log),
            (None, None) => Some(literal(name, String::new())),
            (Some(_), Some(from)) => {
                log.refuse(from, "is given beside a value; give one of them");
                None
            }
        };
        let Some(var) = found else { return };
        if let Some(at) = self.list.iter().position(|(before, _)| before.name == name) {
            let (_, before) = self.list.remove(at);
            if let Some(before) = before {
                log.note(&before, format!("{name} is set again below, which wins"));
            }
        }
        log.taken(item, format!("spec.env: {name}"));
        let known = var.value_from.is_none().then(|| var.value.clone());
        self.known.insert(name.to_owned(), known);
        self.list.push((var, Some(name_at)));
    }

    /// Sets a variable that the file's `env` does not have.
    pub(crate) fn add(&mut self, name: &str, value: &str) {
        if !self.list.iter().any(|(var, _)| var.name == name) {
            self.list.push((literal(name, value.to_owned()), None));
        }
    }

    /// Sets a variable, whatever its value was before.
    pub(crate) fn set(&mut self, name: &str, value: &str, at: &Field<'t>) {
        self.list.retain(|(var, _)| var.name != name);
        let var = literal(name, value.to_owned());
        self.list.push((var, Some(at.clone())));
    }
}

fn literal(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value,
        value_from: None,
    }
}

/// A value that is not in the file.
fn from_elsewhere(
    name: &str,
    from: &Field<'_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<EnvVar> {
    let object = Object::walk(from, VALUE_FROM, log);
    if let Some(field) = object.get("fieldRef") {
        let reference = Object::walk(field, FIELD_REF, log);
        let (at, path) = reference.text("fieldPath", log)?;
        return match path {
            "metadata.namespace" => Some(literal(name, cluster.namespace.to_owned())),
            "spec.nodeName" => {
                log.refuse(
                    at,
                    "is not given by that name here; let the script read MUSTER_NODE",
                );
                None
            }
            path => {
                log.refuse(at, format!("{path} is of the pod, and there is none here"));
                None
            }
        };
    }
    for kind in ["secretKeyRef", "configMapKeyRef"] {
        let Some(field) = object.get(kind) else {
            continue;
        };
        let reference = Object::walk(field, KEY_REF, log);
        let (_, of) = reference.text("name", log)?;
        let (_, key) = reference.text("key", log)?;
        let file = cluster.site.secrets.get(&format!("{of}/{key}"));
        if file.is_none() {
            log.refuse(
                field,
                format!("the value is in the cluster; name a file of the nodes with `secrets: {{{of}/{key}: PATH}}` in the site map"),
            );
        }
        return Some(EnvVar {
            name: name.to_owned(),
            value: String::new(),
            value_from: Some(ValueFrom {
                file: file?.clone(),
            }),
        });
    }
    if from.entries(log).is_empty() {
        log.refuse(from, "says nothing");
    }
    None
}
