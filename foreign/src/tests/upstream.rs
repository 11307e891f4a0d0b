//! What the operators of the other systems refuse, rule by rule, and what becomes of the same input here.
//!
//! Sources: training-operator 1.9 (`pkg/webhooks`, `pkg/apis/kubeflow.org/v1/mpi_validation.go`), mpi-operator 0.8
//! (`pkg/apis/kubeflow/validation/validation.go` after `v2beta1/default.go`), Trainer 2.3 (`trainjob_types.go`,
//! `pkg/runtime/framework/plugins`), and the definition of ElasticJob (`kubernetes/config/crd`). A rule that says that an
//! object of the cluster must be unchanged is left out: a file has no older version.

mod training_operator;

use self::training_operator::{JAX, PADDLE, PYTORCH, TENSORFLOW, XGBOOST};
use super::read_text;
use crate::{Options, Verdict};

/// What becomes here of an input that upstream refuses.
enum Here {
    /// It is refused, with this text in the reason.
    Refused(&'static str),
    /// It is accepted on purpose. The reason.
    Accepted(&'static str),
}
use Here::{Accepted, Refused};

/// The rule, the text of a good file that is replaced, what takes its place, and what becomes of it.
type Row = (&'static str, &'static str, &'static str, Here);

struct Kind {
    name: &'static str,
    good: &'static str,
    /// What upstream refuses.
    rules: &'static [Row],
    /// What is refused here only, with the reason why upstream's answer is not enough.
    stricter: &'static [Row],
}

const NO_IMAGE: Here =
    Accepted("the image is not used on machines; with --pods the cluster checks the template");
const LONG_NAME: Here = Accepted("names of pods are no names here");

const MPI_1: Kind = Kind {
    name: "MPIJob v1",
    good: "\
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata: {name: a}
spec:
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: ExitCode
      template: {spec: {containers: [{name: l, image: x, command: [mpirun, ./a]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: w, image: z}]}}
",
    rules: &[
        (
            "there are replica specs",
            "  mpiReplicaSpecs:",
            "  specs:",
            Refused("has no mpiReplicaSpecs"),
        ),
        (
            "a role has containers",
            "containers: [{name: l, image: x, command: [mpirun, ./a]}]",
            "containers: []",
            Refused("has no container"),
        ),
        (
            "the roles are Launcher and Worker",
            "    Worker:",
            "    Watcher:",
            Refused("is no role of this kind"),
        ),
        ("a container has an image", "image: x, ", "", NO_IMAGE),
        (
            "a container has a name",
            "name: l, ",
            "",
            Accepted("the launcher is the first container, and needs no name"),
        ),
        (
            "a launcher has one replica",
            "replicas: 1",
            "replicas: 2",
            Refused("is 2, must be 1"),
        ),
        (
            "there is a Launcher",
            "    Launcher:",
            "    Master:",
            Refused("has no Launcher"),
        ),
    ],
    stricter: &[(
        "mpirun fails there",
        "[mpirun, ./a]",
        "[mpirun, -np, \"5\", ./a]",
        Refused("asks mpirun for 5 ranks"),
    )],
};

const MPI_2: Kind = Kind {
    name: "MPIJob v2beta1",
    good: "\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: a}
spec:
  slotsPerWorker: 1
  mpiImplementation: OpenMPI
  runPolicy: {cleanPodPolicy: Running, ttlSecondsAfterFinished: 1, activeDeadlineSeconds: 1, backoffLimit: 1, managedBy: kubeflow.org/mpi-operator}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: l, image: x, command: [mpirun, ./a]}]}}
    Worker:
      replicas: 2
      restartPolicy: Never
      template: {spec: {containers: [{name: w, image: z}]}}
",
    rules: &[
        ("the name of the last worker is a DNS-1035 label", "{name: a}", "{name: 1a}", Refused("must start with a letter")),
        ("the name of the last worker is a DNS-1035 label", "{name: a}", "{name: a23456789-123456789-123456789-123456789-123456789-123456}", LONG_NAME),
        ("there are replica specs", "  mpiReplicaSpecs:", "  specs:", Refused("has no mpiReplicaSpecs")),
        ("slotsPerWorker is not negative", "slotsPerWorker: 1", "slotsPerWorker: -1", Refused("must be between 1 and 256")),
        ("cleanPodPolicy is known", "cleanPodPolicy: Running", "cleanPodPolicy: Some", Refused("must be None, Running or All")),
        ("ttlSecondsAfterFinished is not negative", "ttlSecondsAfterFinished: 1", "ttlSecondsAfterFinished: -1", Refused("is -1, must be")),
        ("activeDeadlineSeconds is not negative", "activeDeadlineSeconds: 1", "activeDeadlineSeconds: -1", Refused("is -1, must be")),
        ("backoffLimit is not negative", "backoffLimit: 1", "backoffLimit: -1", Refused("is -1, must be")),
        ("managedBy is known", "managedBy: kubeflow.org/mpi-operator", "managedBy: mine", Refused("hands the job to mine")),
        ("mpiImplementation is known", "mpiImplementation: OpenMPI", "mpiImplementation: LAM", Refused("must be OpenMPI, Intel or MPICH")),
        ("there is a Launcher", "    Launcher:", "    Master:", Refused("has no Launcher")),
        ("a launcher has one replica", "replicas: 1", "replicas: 2", Refused("is 2, must be 1")),
        ("workers are one at least", "replicas: 2", "replicas: 0", Refused("is 0, must be at least 1")),
        ("workers are one at least", "replicas: 2", "replicas: -1", Refused("is -1, must be at least 1")),
        ("workers that nobody counts are 0", "      replicas: 2\n", "", Refused("has no replicas")),
        ("restartPolicy is Never or OnFailure", "restartPolicy: OnFailure", "restartPolicy: ExitCode", Refused("must be Never or OnFailure")),
        ("restartPolicy is Never or OnFailure", "restartPolicy: OnFailure", "restartPolicy: Always", Refused("must be Never or OnFailure")),
        ("restartPolicy is Never or OnFailure", "restartPolicy: Never", "restartPolicy: ExitCode", Refused("must be Never or OnFailure")),
        ("a role has containers", "containers: [{name: l, image: x, command: [mpirun, ./a]}]", "containers: []", Refused("has no container")),
        ("a role has containers", "containers: [{name: w, image: z}]", "containers: []", Refused("has no container")),
    ],
    stricter: &[
        ("a worker without slots gets no rank", "slotsPerWorker: 1", "slotsPerWorker: 0", Refused("must be between 1 and 256")),
        ("a role that nobody reads is dropped there without a word", "    Worker:", "    Watcher:", Refused("is no role of this kind")),
    ],
};

const ELASTIC: Kind = Kind {
    name: "ElasticJob",
    good: "\
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata: {name: a}
spec:
  rdzvEndpoint: etcd:2379
  minReplicas: 1
  maxReplicas: 3
  replicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: w, image: x, args: [--nproc_per_node=1, a.py]}]}}
",
    rules: &[
        (
            "minReplicas is 1 at least",
            "minReplicas: 1",
            "minReplicas: 0",
            Refused("is 0, must be between 1"),
        ),
        (
            "rdzvEndpoint is there",
            "  rdzvEndpoint: etcd:2379\n",
            "",
            Accepted("no etcd is needed: Muster brings the nodes together"),
        ),
        (
            "replicaSpecs is there",
            "  replicaSpecs:",
            "  specs:",
            Refused("has no replicaSpecs"),
        ),
        (
            "the controller wants a Worker",
            "    Worker:",
            "    Chief:",
            Refused("did you mean Worker?"),
        ),
    ],
    stricter: &[
        (
            "pods beyond the most never train",
            "maxReplicas: 3",
            "maxReplicas: 1",
            Refused("must not be more than maxReplicas"),
        ),
        (
            "its launcher knows no such flag",
            "--nproc_per_node=1",
            "--nproc_per_nod=1",
            Refused("did you mean --nproc-per-node?"),
        ),
    ],
};

const TRAIN: Kind = Kind {
    name: "TrainJob",
    good: "\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: a}
spec:
  runtimeRef: {name: torch-distributed}
  managedBy: trainer.kubeflow.org/trainjob-controller
  activeDeadlineSeconds: 1
  trainer:
    numNodes: 2
    numProcPerNode: 2
    command: [torchrun, a.py]
    env: [{name: A, value: b}]
",
    rules: &[
        (
            "the name is a label of RFC 1035",
            "{name: a}",
            "{name: 1a}",
            Refused("must start with a letter"),
        ),
        (
            "the name has 63 characters at most",
            "{name: a}",
            "{name: a23456789-123456789-123456789-123456789-123456789-123456789-1234}",
            Refused("at most 63"),
        ),
        (
            "runtimeRef is there",
            "  runtimeRef: {name: torch-distributed}\n",
            "",
            Refused("has no runtimeRef"),
        ),
        (
            "the runtime has a name",
            "{name: torch-distributed}",
            "{kind: ClusterTrainingRuntime}",
            Refused("has no name"),
        ),
        (
            "the runtime is of a kind that is known",
            "{name: torch-distributed}",
            "{name: torch-distributed, kind: Job}",
            Refused("is a runtime that Muster does not know"),
        ),
        (
            "activeDeadlineSeconds is 1 at least",
            "activeDeadlineSeconds: 1",
            "activeDeadlineSeconds: 0",
            Refused("is 0, must be"),
        ),
        (
            "managedBy is known",
            "managedBy: trainer.kubeflow.org/trainjob-controller",
            "managedBy: mine",
            Refused("hands the job to mine"),
        ),
        (
            "numNodes is not negative",
            "numNodes: 2",
            "numNodes: -1",
            Refused("is -1, must be"),
        ),
        (
            "numProcPerNode is 1 at least",
            "numProcPerNode: 2",
            "numProcPerNode: 0",
            Refused("is 0, must be"),
        ),
        (
            "torchrun's variables are the operator's",
            "name: A,",
            "name: PET_NNODES,",
            Refused("is the operator's to set"),
        ),
        (
            "torchrun's variables are the operator's",
            "name: A,",
            "name: PET_MASTER_ADDR,",
            Refused("is the operator's to set"),
        ),
    ],
    stricter: &[
        (
            "no node does nothing",
            "numNodes: 2",
            "numNodes: 0",
            Refused("is 0, must be"),
        ),
        (
            "only the cluster has it",
            "name: torch-distributed",
            "name: mine",
            Refused("put it into the same file"),
        ),
    ],
};

const KINDS: [&Kind; 9] = [
    &PYTORCH,
    &TENSORFLOW,
    &XGBOOST,
    &PADDLE,
    &JAX,
    &MPI_1,
    &MPI_2,
    &ELASTIC,
    &TRAIN,
];

/// What the file is refused for.
fn refused(text: &str) -> Vec<String> {
    let reading = read_text(text, &Options::default());
    let refused = reading.remarks.iter();
    let refused = refused.filter(|remark| remark.verdict == Verdict::Refusal);
    refused.map(ToString::to_string).collect()
}

#[test]
fn what_upstream_refuses_is_refused_or_accepted_on_purpose() {
    let (mut wrong, mut rules) = (Vec::new(), 0);
    for kind in KINDS {
        assert_eq!(
            refused(kind.good),
            Vec::<String>::new(),
            "{} is good",
            kind.name
        );
        for (rule, good, bad, here) in kind.rules.iter().chain(kind.stricter) {
            assert!(
                kind.good.contains(good),
                "{}: {good:?} is no text of the file",
                kind.name
            );
            let why = refused(&kind.good.replacen(good, bad, 1));
            let (is_right, must) = match here {
                Refused(text) => (why.iter().any(|why| why.contains(text)), text),
                Accepted(reason) => (why.is_empty(), reason),
            };
            if !is_right {
                wrong.push(format!("{}: {rule}: {bad:?}: {must}: {why:?}", kind.name));
            }
            rules += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rules > 80, "{rules}");
}
