//! The object that a command is about, as kubectl users write it: `job digits`, `job/digits`, `mj
//! digits`, `nodes`.

use muster_foreign::status::{Shown, shown_kinds};

use crate::fail::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Job,
    Node,
    Event,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: Option<String>,
    /// The job was asked for by the kind of the file that it is from.
    pub(crate) origin: Option<&'static Shown>,
}

impl Target {
    /// Whether it is the list of all jobs.
    pub(crate) fn is_all_jobs(&self) -> bool {
        self.kind == Kind::Job && self.name.is_none() && self.origin.is_none()
    }
}

fn kind(word: &str) -> Option<Kind> {
    Some(match word.to_ascii_lowercase().as_str() {
        "job" | "jobs" | "mj" | "musterjob" | "musterjobs" => Kind::Job,
        "node" | "nodes" | "no" | "mn" | "musternode" | "musternodes" => Kind::Node,
        "event" | "events" | "ev" => Kind::Event,
        _ => return None,
    })
}

/// Reads `KIND`, `KIND NAME` or `KIND/NAME`.
pub(crate) fn read(words: &[String]) -> Result<Target, Failure> {
    let (first, name) = match words {
        [only] => match only.split_once('/') {
            Some((kind, name)) => (kind, Some(name.to_owned())),
            None => (only.as_str(), None),
        },
        [kind, name] => (
            kind.as_str(),
            Some(
                name.strip_prefix(&format!("{kind}/"))
                    .unwrap_or(name)
                    .to_owned(),
            ),
        ),
        _ => return Err(Failure::usage("name one object at a time: KIND NAME")),
    };
    if name.as_deref() == Some("") {
        return Err(Failure::usage(format!("{first}/ is missing the name")));
    }
    let origin = shown_kinds().find(|known| known.is_called(first));
    match kind(first).or(origin.map(|_| Kind::Job)) {
        Some(kind) => Ok(Target { kind, name, origin }),
        None => {
            let mut others: Vec<&str> = shown_kinds().map(|known| known.plural).collect();
            // One kind may be of several groups.
            others.dedup();
            Err(Failure::usage(format!(
                "unknown kind {first:?}: there are jobs (mj), nodes (mn) and events (ev), for `get` also queues and shares, and for jobs from files of other systems {}",
                others.join(", ")
            )))
        }
    }
}

/// Like [`read`], but a word that is not a kind is the name of a job.
pub(crate) fn read_or_job(words: &[String]) -> Result<Target, Failure> {
    match words {
        [only] if !only.contains('/') => Ok(Target {
            kind: Kind::Job,
            name: Some(only.clone()),
            origin: None,
        }),
        _ => read(words),
    }
}

/// Words for our kinds, and kinds of Kubernetes that are none of ours.
const KINDS: [&str; 6] = ["job", "jobs", "node", "nodes", "event", "events"];
const OTHER_KINDS: [&str; 6] = ["pod", "pods", "po", "deployment", "service", "queue"];

/// Several objects of one kind: `job a b`, `job/a job/b`, or names of jobs. Never none.
pub(crate) fn read_several(words: &[String]) -> Result<(Kind, Vec<String>), Failure> {
    let (first, rest) = words
        .split_first()
        .ok_or_else(|| Failure::usage("which one? KIND NAME, as in: job digits"))?;
    if rest.iter().any(|word| !word.contains('/')) && !first.contains('/') && kind(first).is_none()
    {
        // A word that is nearly a kind is a slip, and its neighbours would be deleted.
        let near = muster_foreign::spelling::nearest(&first.to_ascii_lowercase(), &KINDS);
        if let Some(meant) = near.or(OTHER_KINDS.contains(&first.as_str()).then_some("job")) {
            return Err(Failure::usage(format!(
                "{first:?} is no kind here: did you mean {meant}? A job of this name is job/{first}"
            )));
        }
    }
    let is_kind = kind(first).is_some() || shown_kinds().any(|known| known.is_called(first));
    // One word alone is a name, also if it is that of a kind.
    let targets: Vec<Target> = match is_kind && !rest.is_empty() {
        true => rest
            .iter()
            .map(|word| match word.contains('/') {
                true => read(std::slice::from_ref(word)),
                false => read(&[first.clone(), word.clone()]),
            })
            .collect::<Result<_, _>>()?,
        false => words
            .iter()
            .map(|word| read_or_job(std::slice::from_ref(word)))
            .collect::<Result<_, _>>()?,
    };
    let of = targets[0].kind;
    if targets.iter().any(|target| target.kind != of) {
        return Err(Failure::usage("jobs and nodes need a command each"));
    }
    let names = targets.into_iter().filter_map(|target| target.name);
    Ok((of, names.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn reads_what_kubectl_users_write() {
        let target = |kind, name: &str| Target {
            kind,
            name: (!name.is_empty()).then(|| name.to_owned()),
            origin: None,
        };
        for (text, expected) in [
            ("jobs", target(Kind::Job, "")),
            ("mj digits", target(Kind::Job, "digits")),
            ("job/digits", target(Kind::Job, "digits")),
            ("job job/digits", target(Kind::Job, "digits")),
            ("MusterJob x", target(Kind::Job, "x")),
            ("no node-1", target(Kind::Node, "node-1")),
            ("ev", target(Kind::Event, "")),
        ] {
            assert_eq!(read(&words(text)).unwrap(), expected, "{text}");
        }
        let foreign = read(&words("tfjob/x")).unwrap();
        assert_eq!(
            (foreign.kind, foreign.name.as_deref()),
            (Kind::Job, Some("x"))
        );
        assert_eq!(foreign.origin.map(|origin| origin.kind), Some("TFJob"));
        for bad in ["pods", "job/", "job a b", "pod/x"] {
            assert_eq!(read(&words(bad)).unwrap_err().code(), 2, "{bad}");
        }
        assert_eq!(
            read_or_job(&words("digits")).unwrap(),
            target(Kind::Job, "digits")
        );
        assert_eq!(
            read_or_job(&words("node n1")).unwrap(),
            target(Kind::Node, "n1")
        );
    }

    #[test]
    fn several_objects_are_of_one_kind() {
        for (text, kind, names) in [
            ("digits", Kind::Job, "digits"),
            ("a b", Kind::Job, "a b"),
            ("job", Kind::Job, "job"),
            ("job a b", Kind::Job, "a b"),
            ("job/a b", Kind::Job, "a b"),
            ("nodes n1 node/n2", Kind::Node, "n1 n2"),
            ("node/n1 node/n2", Kind::Node, "n1 n2"),
        ] {
            let (is, found) = read_several(&words(text)).unwrap();
            assert_eq!((is, found.join(" ").as_str()), (kind, names), "{text}");
        }
        for bad in ["job/a node/b", "pod/a", "pod digits", "nod digits"] {
            assert_eq!(read_several(&words(bad)).unwrap_err().code(), 2, "{bad}");
        }
    }
}
