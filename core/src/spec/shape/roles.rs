//! The fields of a role, and of the file that a job is from.

use super::{ARGUMENTS, LABEL, Shape, Text, VARIABLE, field, names, needed};
use crate::{
    id::LABEL_MAX,
    spec::{
        GROUPS_MAX, ORIGIN_VERSION_MAX, RestartScope,
        limits::{ENV_MAX, NODES_MAX, PROCS_MAX},
    },
};

const ROLE_NODES: Shape = Shape::Whole(0, NODES_MAX);

pub(super) const ROLE: Shape = Shape::Object(&[
    needed("name", LABEL, "The name of the role, as worker or ps."),
    field(
        "replicas",
        ROLE_NODES,
        "How many nodes the role has. 1 if left out.",
    ),
    field(
        "minReplicas",
        ROLE_NODES,
        "With fewer nodes than this the job waits. The same as replicas if left out. Only one role may have another number here.",
    ),
    field(
        "maxReplicas",
        ROLE_NODES,
        "The role can grow up to so many nodes. The same as replicas if left out.",
    ),
    field(
        "multipleOf",
        Shape::Whole(1, NODES_MAX),
        "The role always has a multiple of so many nodes. 1 if left out.",
    ),
    field(
        "procPerNode",
        Shape::Whole(0, PROCS_MAX),
        "Processes on each node of the role. For mpi: the ranks that the launcher may start there, 0 on its own node if left out.",
    ),
    field(
        "gpusPerNode",
        Shape::Whole(0, PROCS_MAX),
        "GPUs that each node of the role must give.",
    ),
    field(
        "command",
        ARGUMENTS,
        "The interpreter and its options, or a program.",
    ),
    field(
        "args",
        ARGUMENTS,
        "The script and its arguments. A role with a command takes no args from the top.",
    ),
    field(
        "env",
        Shape::List(&VARIABLE, ENV_MAX),
        "Environment variables of the role, beside those at the top.",
    ),
    field(
        "workingDir",
        Shape::Text(Text::Path),
        "The directory in which the processes start. An absolute path.",
    ),
    field(
        "service",
        Shape::Choice,
        "true: the role serves the others and never ends by itself; the job is over when the others are. false if left out, but true for ps and evaluator of tensorflow, and all but launcher of mpi.",
    ),
    field(
        "restartScope",
        Shape::Text(Text::OneOf(|| names(&RestartScope::ALL))),
        "What is started again after a process of the role has failed. job: all processes. member: only that process, on its node; for tensorflow and plain. member if left out for worker beside ps, and for evaluator, of tensorflow, else job.",
    ),
]);

pub(super) const ORIGIN: Shape = Shape::Object(&[
    needed(
        "apiVersion",
        Shape::Text(Text::Any(ORIGIN_VERSION_MAX)),
        "The group and version of the file, as kubeflow.org/v1.",
    ),
    needed(
        "kind",
        Shape::Text(Text::Any(LABEL_MAX)),
        "The kind of the file, as PyTorchJob.",
    ),
    field(
        "groups",
        Shape::List(&LABEL, GROUPS_MAX),
        "For a job without roles: the group of the first member, and that of all others if it is another one, as [master, worker].",
    ),
]);
