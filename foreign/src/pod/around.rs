//! What stands around the container that is run: other containers, and the user.

use super::waits::{self, Does};
use crate::{
    fields::{Object, Rule, Rules},
    options::Cluster,
    tree::{Field, Value},
    verdict::Verdicts,
};

/// Characters of a command that are shown. It is enough to find the place.
const PART_MAX: usize = 80;

/// Judges init containers and sidecars.
pub(super) fn others(
    containers: &[Field<'_>],
    run: Option<&Field<'_>>,
    pod: &Object<'_>,
    log: &mut Verdicts,
) {
    let init = pod.get("initContainers").map(|field| field.items(log));
    for container in init.iter().flatten() {
        let name = container.node.text_at(&["name"]).unwrap_or_default();
        let command = waits::texts(container, "command");
        let runs = match waits::does(&command, &waits::texts(container, "args")) {
            Does::Waits => {
                log.note(
                    container,
                    format!("{name} only waits, which is not needed: all ranks start when all nodes are ready"),
                );
                continue;
            }
            Does::WaitsFor(file) => {
                log.warn(
                    container,
                    format!("{name} only waits for {file}, and Muster does not: have it on the nodes before the job starts"),
                );
                continue;
            }
            Does::Works(part) => {
                let part: String = part.chars().take(PART_MAX).collect();
                format!("may do more than wait ({part:?})")
            }
            Does::Image => "runs what its image starts".to_owned(),
        };
        log.refuse(
            container,
            format!("{name} {runs} before the training, and Muster runs nothing before it; do its work in the script, or on the nodes"),
        );
    }
    // Without the one that is run, what the others are is not known.
    let Some(run) = run else { return };
    let ours = mounted(run);
    for container in containers.iter().filter(|other| other.path != run.path) {
        let name = container.node.text_at(&["name"]).unwrap_or_default();
        match mounted(container).into_iter().find(|volume| ours.contains(volume)) {
            Some(volume) => log.refuse(
                container,
                format!("{name} shares the volume {volume} with the training, and Muster runs one container only"),
            ),
            None => log.warn(container, format!("{name} is not started: Muster runs one container only")),
        }
    }
}

/// The names of the volumes that a container mounts, without those for shared memory.
fn mounted<'t>(container: &Field<'t>) -> Vec<&'t str> {
    let Some(mounts) = container.node.entry("volumeMounts") else {
        return Vec::new();
    };
    let Value::List(mounts) = &mounts.node.value else {
        return Vec::new();
    };
    let shared = |path: Option<&str>| path.is_none_or(|path| path != "/dev/shm");
    mounts
        .iter()
        .filter(|mount| shared(mount.text_at(&["mountPath"])))
        .filter_map(|mount| mount.text_at(&["name"]))
        .collect()
}

const NO_CONTAINER: Rule = Rule::Note("has no effect: there are no containers here");

const SECURITY: Rules = &[
    ("runAsUser", Rule::Read),
    (
        "runAsGroup",
        Rule::Warn("has no effect: processes have the groups of the agents' user"),
    ),
    (
        "fsGroup",
        Rule::Warn("has no effect: processes have the groups of the agents' user"),
    ),
    ("fsGroupChangePolicy", NO_CONTAINER),
    (
        "supplementalGroups",
        Rule::Warn("has no effect: processes have the groups of the agents' user"),
    ),
    ("supplementalGroupsPolicy", NO_CONTAINER),
    ("runAsNonRoot", NO_CONTAINER),
    ("allowPrivilegeEscalation", NO_CONTAINER),
    ("readOnlyRootFilesystem", NO_CONTAINER),
    ("seccompProfile", NO_CONTAINER),
    ("appArmorProfile", NO_CONTAINER),
    ("seLinuxOptions", NO_CONTAINER),
    ("seLinuxChangePolicy", NO_CONTAINER),
    ("procMount", NO_CONTAINER),
    ("windowsOptions", NO_CONTAINER),
    (
        "capabilities",
        Rule::Warn("are not given: processes have the rights of the agents' user"),
    ),
    ("privileged", Rule::Read),
    (
        "sysctls",
        Rule::Warn("are not set: they are the nodes' own"),
    ),
];

/// Judges as whom the processes run.
pub(super) fn user(security: Option<&Field<'_>>, cluster: &Cluster<'_>, log: &mut Verdicts) {
    let Some(security) = security else { return };
    let security = Object::walk(security, SECURITY, log);
    if let Some((at, user)) = security.whole("runAsUser", log) {
        match cluster.site.user {
            Some(ours) if ours == user => log.note(at, "is the agents' user, says the site map"),
            Some(ours) => log.refuse(
                at,
                format!("is {user}, but all jobs run as the agents' user, which is {ours}"),
            ),
            None => log.warn(at, "has no effect: processes run as the agents' user"),
        }
    }
    if let Some((at, privileged)) = security.flag("privileged", log) {
        match privileged {
            true => log.warn(
                at,
                "is not given: processes have the rights of the agents' user",
            ),
            false => log.note(at, "is so here"),
        }
    }
}
