//! I18 and I19: what Muster may do about worker pods.

use super::*;
use muster_core::fleet::worker_pod::is_pod;

/// I18: Muster deletes no pod in which a worker may live. Checked when the request arrives.
pub(crate) fn no_living_pod_is_deleted(world: &mut World, name: &NodeName) {
    let Some(place) = world
        .machine_named(name)
        .map(|machine| &world.machines[machine])
    else {
        return;
    };
    let lives = |(run, group): (&RunId, &Group)| {
        let job = world.store.jobs.get(&run.job)?;
        let is_over = job.phase.is_over() || job.ending.is_some();
        (group.has_process() && !is_over).then(|| words::run(run))
    };
    let alive = place.runs.iter().find_map(lives);
    if let Some(run) = alive {
        world.fail("I18", format!("{name} is deleted, and {run} lives there"));
    }
}

/// I19: a job has no more pods than it may. A pod of which a coordinator could not know does not
/// count: another coordinator made it. Nor does one whose node was lost, as it is replaced.
pub(crate) fn no_pod_too_many(world: &mut World, process: u64, job: &JobUid, most: usize) {
    let stands = world.pods_of(process, job);
    if process != 0 && stands >= most {
        let what = format!("{job} has {stands} pods of at most {most}, and gets another one");
        world.fail("I19", what);
    }
}

/// I9: what a pod says of itself counts against its host only when other jobs, or other hosts,
/// confirm it. No mark is put on the pod.
pub(super) fn marks_of_pods(world: &World, node: &NodeRecord, mark: &Mark) -> Broken {
    let what = match (is_pod(&node.name), mark.standing) {
        (true, _) => format!("{} is a pod and gets a mark of {}", node.name, mark.job),
        // That its GPU is sick is the word of its host.
        (false, muster_core::fleet::Standing::Node) if mark.cause != Cause::NodeUnhealthy => {
            let of_pod = |job: &JobRecord| job.spec.template.is_some();
            let is_word = world.store.jobs.get(&mark.job).is_some_and(of_pod);
            if !is_word {
                return None;
            }
            format!(
                "{} gets a mark of {} on the word of a pod alone",
                node.name, mark.job
            )
        }
        _ => return None,
    };
    Some(("I9", what))
}

/// I14: a pod's word about another job halts nothing. A host that says such a thing is itself halted.
pub(super) fn heard_of_its_own(world: &World, node: &NodeRecord) -> Broken {
    let before = world.store.nodes.get(&node.name);
    let halted = node.halt.is_some() && before.is_none_or(|before| before.halt.is_none());
    let told = world
        .machine_named(&node.name)
        .map(|machine| &world.machines[machine])
        .is_some_and(|place| place.lied && place.pod.is_some());
    (halted && told).then(|| {
        let what = format!("{} is halted for what it says of another job", node.name);
        ("I14", what)
    })
}
