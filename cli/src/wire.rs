//! Between the document people write and the message that is sent.

use muster_core::spec::{EnvVar, RestartPolicyDocument, SpecDocument};
use muster_proto::v1;

pub(crate) fn job_spec(spec: SpecDocument) -> v1::JobSpec {
    v1::JobSpec {
        replicas: spec.replicas,
        min_replicas: spec.min_replicas,
        max_replicas: spec.max_replicas,
        proc_per_node: spec.proc_per_node,
        gpus_per_node: spec.gpus_per_node,
        command: spec.command,
        args: spec.args,
        env: spec.env.into_iter().map(|var| v1::EnvVar { name: var.name, value: var.value }).collect(),
        working_dir: spec.working_dir,
        priority: spec.priority,
        restart_policy: spec
            .restart_policy
            .map(|policy| v1::RestartPolicy { max_restarts: policy.max_restarts, window: policy.window }),
        stop_grace_period: spec.stop_grace_period,
        scale_up_cooldown: spec.scale_up_cooldown,
        progress: spec.progress,
        launch: spec.launch,
        step_pattern: spec.step_pattern,
    }
}

pub(crate) fn spec_document(spec: v1::JobSpec) -> SpecDocument {
    SpecDocument {
        replicas: spec.replicas,
        min_replicas: spec.min_replicas,
        max_replicas: spec.max_replicas,
        proc_per_node: spec.proc_per_node,
        gpus_per_node: spec.gpus_per_node,
        command: spec.command,
        args: spec.args,
        env: spec.env.into_iter().map(|var| EnvVar { name: var.name, value: var.value }).collect(),
        working_dir: spec.working_dir,
        priority: spec.priority,
        restart_policy: spec
            .restart_policy
            .map(|policy| RestartPolicyDocument { max_restarts: policy.max_restarts, window: policy.window }),
        stop_grace_period: spec.stop_grace_period,
        scale_up_cooldown: spec.scale_up_cooldown,
        progress: spec.progress,
        launch: spec.launch,
        step_pattern: spec.step_pattern,
    }
}
