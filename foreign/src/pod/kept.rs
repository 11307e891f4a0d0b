//! A template that is kept: the job runs in pods of its own, and only what the job says itself is
//! taken out of their template.

use crate::{
    fields::{KEPT, Object},
    grace::GRACE_MAX,
    options::Cluster,
    tree::{Entry, Field, Node, Value},
    variables::Told,
    verdict::Verdicts,
};

use super::{CONTAINER, METADATA, Main, POD, Pod, found};

/// What is read of a pod, and what must not be in its template.
const READ: [&str; 5] = [
    "containers",
    "terminationGracePeriodSeconds",
    "restartPolicy",
    "hostPID",
    "shareProcessNamespace",
];
const READ_OF_CONTAINER: [&str; 7] = [
    "name",
    "image",
    "command",
    "args",
    "env",
    "workingDir",
    "resources",
];
/// The seconds that the kubelet gives, if a pod does not say.
const GRACE_DEFAULT: i64 = 30;

/// Reads the `spec` of a pod, and keeps it.
pub(super) fn of<'t>(
    spec: &Field<'t>,
    main: Main,
    told: Told,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Pod<'t>> {
    let pod = Object::walk_kept(spec, POD, &READ, log);
    let containers = pod.get("containers").map(|field| field.items(log));
    let all = containers.as_deref().unwrap_or_default();
    let container = found(&pod, spec, all, main, log)?;
    for other in containers.iter().flatten() {
        if other.path != container.path {
            log.note(other, KEPT);
        }
    }
    for name in ["hostPID", "shareProcessNamespace"] {
        if let Some((at, true)) = pod.flag(name, log) {
            log.refuse(
                at,
                "is not possible: the workers need a process tree of their own",
            );
        }
    }
    if let Some(at) = pod.get("restartPolicy") {
        log.note(
            at,
            "is not kept: Muster starts workers anew, and Kubernetes their container",
        );
    }
    let grace = pod.whole("terminationGracePeriodSeconds", log);
    let seconds = match grace {
        Some((at, seconds)) => {
            log.taken(at, format!("spec.stopGracePeriod, and {KEPT}"));
            seconds.min(GRACE_MAX)
        }
        None => GRACE_DEFAULT,
    };
    let walked = Object::walk_kept(container, CONTAINER, &READ_OF_CONTAINER, log);
    let at = grace.map_or(spec, |(at, _)| at).clone();
    let read = Pod::container(container, &walked, told, cluster, log);
    let template = template(spec.node, container.node, &read.variables.dropped);
    Some(Pod {
        grace: Some((format!("{seconds}s"), at)),
        template: Some(template),
        ..read
    })
}

/// Puts labels and annotations of a template where it is kept.
pub(super) fn add_metadata(template: &mut Node, metadata: &Field<'_>, log: &mut Verdicts) {
    const KEEPS: [&str; 2] = ["labels", "annotations"];
    let walked = Object::walk_kept(metadata, METADATA, &[], log);
    drop(walked);
    let Value::Object(all) = &metadata.node.value else {
        return;
    };
    let kept = all.iter().filter(|entry| KEEPS.contains(&&*entry.key));
    let kept: Vec<Entry> = kept.cloned().collect();
    if let Value::Object(entries) = &mut template.value
        && !kept.is_empty()
    {
        let key_place = metadata.place;
        let node = Node::made(key_place, Value::Object(kept));
        entries.insert(
            0,
            Entry {
                key: "metadata".to_owned(),
                key_place,
                node,
            },
        );
    }
}

/// The template of the job: the container that is run comes first, without its command.
fn template(spec: &Node, run: &Node, dropped: &[String]) -> Node {
    let mut spec = spec.clone();
    if let Value::Object(entries) = &mut spec.value {
        entries.retain(|entry| entry.key != "restartPolicy");
        let containers = entries.iter_mut().find(|entry| entry.key == "containers");
        if let Some(Value::List(all)) = containers.map(|entry| &mut entry.node.value) {
            let at = all.iter().position(|one| one == run).unwrap_or(0);
            let mut first = all.remove(at);
            without_command(&mut first, dropped);
            all.insert(0, first);
        }
    }
    let place = spec.place;
    let entry = Entry {
        key: "spec".to_owned(),
        key_place: place,
        node: spec,
    };
    Node::made(place, Value::Object(vec![entry]))
}

fn without_command(container: &mut Node, dropped: &[String]) {
    let Value::Object(entries) = &mut container.value else {
        return;
    };
    entries.retain(|entry| entry.key != "command" && entry.key != "args");
    let env = entries.iter_mut().find(|entry| entry.key == "env");
    if let Some(Value::List(env)) = env.map(|entry| &mut entry.node.value) {
        env.retain(|one| {
            let name = one.text_at(&["name"]);
            name.is_none_or(|name| !dropped.iter().any(|dropped| dropped == name))
        });
    }
}
