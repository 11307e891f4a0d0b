//! The flags of `muster run` by the fields that they fill.

use muster_core::spec::FieldError;

/// Names the flag that caused an error of the document.
pub(super) fn flag_of(error: &FieldError) -> String {
    let flag = match error.path.as_str() {
        "metadata.name" => "--name",
        "metadata.namespace" => "--namespace",
        "spec.replicas" | "spec.minReplicas" | "spec.maxReplicas" => "--nnodes",
        "spec.multipleOf" => "--multiple-of",
        "spec.procPerNode" => "--nproc-per-node",
        "spec.gpusPerNode" => "--gpus-per-node",
        "spec.workingDir" => "--workdir",
        "spec.image" => "--image",
        "spec.priority" => "--priority",
        "spec.preemption" => "--preemption",
        "spec.nodeMix" => "--node-mix",
        "spec.placement" => "--placement",
        "spec.requiredTopology" => "--required-topology",
        "spec.preferredTopology" => "--preferred-topology",
        path if path.starts_with("spec.nodeSelector") => "--node-selector",
        path if path.starts_with("spec.affinity") => "--node-selector",
        path if path.starts_with("spec.nodeList") => "--nodelist",
        path if path.starts_with("spec.excludeNodes") => "--exclude",
        path if path.starts_with("spec.tolerations") => "--toleration",
        "spec.fenceAfter" => "--fence-after",
        "spec.launch" => "--launch",
        "spec.standbys" => "--standbys",
        "spec.inspect" => "--inspect",
        "spec.onStall" => "--on-stall",
        "spec.stallAfter" => "--stall-after",
        "spec.onSlowRank" => "--on-slow-rank",
        "spec.stepPattern" => "--step-pattern",
        "spec.checkpointPattern" => "--checkpoint-pattern",
        "spec.stopGracePeriod" => "--stop-grace-period",
        "spec.scaleUpCooldown" => "--scale-up-cooldown",
        "spec.restartPolicy.maxRestarts" => "--max-restarts",
        "spec.restartPolicy.maxSameFailures" => "--max-same-failures",
        "spec.activeDeadlineSeconds" => "--active-deadline",
        "spec.startDeadlineSeconds" => "--start-deadline",
        "spec.ttlSecondsAfterFinished" => "--ttl",
        "spec.startAfter" => "--start-after",
        "spec.queue" => "--queue",
        path if path.starts_with("spec.notify") => "--notify",
        path if path.starts_with("spec.after") => "--after",
        path if path.starts_with("spec.rules") => "--rule",
        path if path.starts_with("spec.env") => "--env",
        path if path.starts_with("spec.command") => "--python",
        path if path.starts_with("spec.args") => "SCRIPT",
        path => path,
    };
    format!("{flag}: {}", error.message)
}
