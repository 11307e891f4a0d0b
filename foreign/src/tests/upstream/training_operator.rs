//! The rules of the webhooks of training-operator 1.9 (`pkg/webhooks`), but those of MPIJob.

use super::{Here::Refused, Kind, NO_IMAGE};

pub(super) const PYTORCH: Kind = Kind {
    name: "PyTorchJob",
    good: "\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: a}
spec:
  nprocPerNode: auto
  runPolicy: {managedBy: kubeflow.org/training-operator}
  elasticPolicy: {minReplicas: 1, maxReplicas: 4}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pytorch, image: x, command: [python, a.py]}]}}
",
    rules: &[
        (
            "the name is a DNS-1035 label",
            "{name: a}",
            "{name: 1a}",
            Refused("must start with a letter"),
        ),
        (
            "the name is a DNS-1035 label",
            "{name: a}",
            "{name: a.b}",
            Refused("only lower-case letters"),
        ),
        (
            "managedBy is known",
            "managedBy: kubeflow.org/training-operator",
            "managedBy: mine",
            Refused("hands the job to mine"),
        ),
        (
            "an elasticPolicy needs a Worker",
            "    Worker:",
            "    Master:",
            Refused("needs a Worker, upstream as well"),
        ),
        (
            "nProcPerNode is not beside nprocPerNode",
            "minReplicas: 1",
            "minReplicas: 1, nProcPerNode: 2",
            Refused("is given beside nprocPerNode"),
        ),
        (
            "there are replica specs",
            "  pytorchReplicaSpecs:",
            "  replicaSpecs:",
            Refused("unknown field"),
        ),
        (
            "the roles are Master and Worker",
            "    Worker:",
            "    PS:",
            Refused("is no role of this kind"),
        ),
        (
            "a role has containers",
            "containers: [{name: pytorch, image: x, command: [python, a.py]}]",
            "containers: []",
            Refused("has no container"),
        ),
        ("a container has an image", "image: x, ", "", NO_IMAGE),
        (
            "a container is called pytorch",
            "name: pytorch",
            "name: torch",
            Refused("has no container named pytorch"),
        ),
        (
            "a master has one replica",
            "    Worker:",
            "    Master:",
            Refused("is 2, must be 1"),
        ),
        (
            "other roles have one replica at least",
            "replicas: 2",
            "replicas: 0",
            Refused("is 0, must be at least 1"),
        ),
    ],
    stricter: &[
        (
            "a command of a restartPolicy that nobody knows would be as Never",
            "replicas: 2",
            "replicas: 2\n      restartPolicy: Sometimes",
            Refused("must be one of Never"),
        ),
        (
            "a field that the kind does not have is dropped there without a word",
            "nprocPerNode: auto",
            "nprocPerNodes: auto",
            Refused("did you mean nprocPerNode?"),
        ),
        (
            "torchrun fails with it",
            "minReplicas: 1",
            "minReplicas: 1, rdzvBackend: zookeeper",
            Refused("must be c10d, etcd or etcd-v2"),
        ),
        (
            "pods beyond the most never train",
            "maxReplicas: 4",
            "maxReplicas: 1",
            Refused("must not be more than maxReplicas"),
        ),
    ],
};

pub(super) const TENSORFLOW: Kind = Kind {
    name: "TFJob",
    good: "\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: a}
spec:
  runPolicy: {managedBy: kubeflow.org/training-operator}
  tfReplicaSpecs:
    Chief:
      replicas: 1
      template: {spec: {containers: [{name: tensorflow, image: x, command: [python, a.py]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: tensorflow, image: z, command: [python, a.py]}]}}
",
    rules: &[
        (
            "the name is a DNS-1035 label",
            "{name: a}",
            "{name: A}",
            Refused("only lower-case letters"),
        ),
        (
            "managedBy is known",
            "managedBy: kubeflow.org/training-operator",
            "managedBy: mine",
            Refused("hands the job to mine"),
        ),
        (
            "there are replica specs",
            "  tfReplicaSpecs:",
            "  xgbReplicaSpecs:",
            Refused("did you mean tfReplicaSpecs?"),
        ),
        (
            "a role has containers",
            "containers: [{name: tensorflow, image: x, command: [python, a.py]}]",
            "containers: []",
            Refused("has no container"),
        ),
        ("a container has an image", "image: x, ", "", NO_IMAGE),
        (
            "a container is called tensorflow",
            "name: tensorflow, image: x",
            "name: tf, image: x",
            Refused("has no container named tensorflow"),
        ),
        (
            "there is a Chief or a Master, not both",
            "    Worker:",
            "    Master:",
            Refused("is a Master beside the Chief"),
        ),
    ],
    stricter: &[
        (
            "TensorFlow refuses a cluster with two chiefs",
            "replicas: 1",
            "replicas: 2",
            Refused("is 2, must be 1"),
        ),
        (
            "a Chief and a chief are one role",
            "    Worker:",
            "    chief:",
            Refused("Chief is there twice"),
        ),
        (
            "TensorFlow knows no other task",
            "    Worker:",
            "    Server:",
            Refused("is no role of this kind"),
        ),
    ],
};

pub(super) const XGBOOST: Kind = Kind {
    name: "XGBoostJob",
    good: "\
apiVersion: kubeflow.org/v1
kind: XGBoostJob
metadata: {name: a}
spec:
  runPolicy: {managedBy: kubeflow.org/training-operator}
  xgbReplicaSpecs:
    Master:
      replicas: 1
      template: {spec: {containers: [{name: xgboost, image: x, command: [python, a.py]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: xgboost, image: z, command: [python, a.py]}]}}
",
    rules: &[
        (
            "the name is a DNS-1035 label",
            "{name: a}",
            "{name: -a}",
            Refused("must start with a letter"),
        ),
        (
            "managedBy is known",
            "managedBy: kubeflow.org/training-operator",
            "managedBy: mine",
            Refused("hands the job to mine"),
        ),
        (
            "there are replica specs",
            "  xgbReplicaSpecs:",
            "  specs:",
            Refused("has no xgbReplicaSpecs"),
        ),
        (
            "the roles are Master and Worker",
            "    Worker:",
            "    PS:",
            Refused("is no role of this kind"),
        ),
        (
            "a role has containers",
            "containers: [{name: xgboost, image: x, command: [python, a.py]}]",
            "containers: []",
            Refused("has no container"),
        ),
        ("a container has an image", "image: x, ", "", NO_IMAGE),
        (
            "a container is called xgboost",
            "name: xgboost, image: x",
            "name: xgb, image: x",
            Refused("has no container named xgboost"),
        ),
        (
            "a master has one replica",
            "replicas: 1",
            "replicas: 2",
            Refused("is 2, must be 1"),
        ),
        (
            "a master has one replica",
            "replicas: 1",
            "replicas: 0",
            Refused("is 0, must be 1"),
        ),
        (
            "there is a Master",
            "    Master:",
            "    Chief:",
            Refused("has no Master"),
        ),
    ],
    stricter: &[],
};

pub(super) const PADDLE: Kind = Kind {
    name: "PaddleJob",
    good: "\
apiVersion: kubeflow.org/v1
kind: PaddleJob
metadata: {name: a}
spec:
  runPolicy: {managedBy: kubeflow.org/training-operator}
  paddleReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: paddle, image: x, command: [python, -m, paddle.distributed.launch, a.py]}]}}
",
    rules: &[
        ("the name is a DNS-1035 label", "{name: a}", "{name: a_b}", Refused("only lower-case letters")),
        ("managedBy is known", "managedBy: kubeflow.org/training-operator", "managedBy: mine", Refused("hands the job to mine")),
        ("there are replica specs", "  paddleReplicaSpecs:", "  specs:", Refused("has no paddleReplicaSpecs")),
        ("the roles are Master and Worker", "    Worker:", "    Evaluator:", Refused("is no role of this kind")),
        ("a role has containers", "containers: [{name: paddle, image: x, command: [python, -m, paddle.distributed.launch, a.py]}]", "containers: []", Refused("has no container")),
        ("a container has an image", "image: x, ", "", NO_IMAGE),
        ("a container is called paddle", "name: paddle", "name: pd", Refused("has no container named paddle")),
    ],
    stricter: &[
        ("Muster has no parameter servers of Paddle", "    Worker:", "    Master:", Refused("are parameter servers of Paddle")),
    ],
};

pub(super) const JAX: Kind = Kind {
    name: "JAXJob",
    good: "\
apiVersion: kubeflow.org/v1
kind: JAXJob
metadata: {name: a}
spec:
  jaxReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: jax, image: x, command: [python, a.py]}]}}
",
    rules: &[
        (
            "the name is a DNS-1035 label",
            "{name: a}",
            "{name: a-}",
            Refused("must not end with"),
        ),
        (
            "there are replica specs",
            "  jaxReplicaSpecs:",
            "  specs:",
            Refused("has no jaxReplicaSpecs"),
        ),
        (
            "the only role is Worker",
            "    Worker:",
            "    PS:",
            Refused("is no role of this kind"),
        ),
        (
            "a role has containers",
            "containers: [{name: jax, image: x, command: [python, a.py]}]",
            "containers: []",
            Refused("has no container"),
        ),
        ("a container has an image", "image: x, ", "", NO_IMAGE),
        (
            "a container is called jax",
            "name: jax",
            "name: flax",
            Refused("has no container named jax"),
        ),
    ],
    stricter: &[(
        "no worker does nothing",
        "replicas: 2",
        "replicas: 0",
        Refused("has no process"),
    )],
};
