//! A good file of each kind, and mistakes of one line in it.

/// A good file, and lines in it with what they are replaced by.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) good: &'static str,
    pub(super) mistakes: &'static [(&'static str, &'static str)],
}

const PYTORCH: Case = Case {
    name: "PyTorchJob",
    good: "\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: train
  namespace: team
spec:
  nprocPerNode: \"2\"
  runPolicy:
    backoffLimit: 3
    ttlSecondsAfterFinished: 60
    cleanPodPolicy: None
    suspend: false
    schedulingPolicy: {queue: q}
  elasticPolicy:
    minReplicas: 1
    maxReplicas: 4
    rdzvBackend: c10d
    maxRestarts: 3
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          nodeSelector: {}
          affinity: {}
          initContainers: []
          terminationGracePeriodSeconds: 30
          containers:
          - name: pytorch
            image: x
            command: [torchrun, --max-restarts=3, train.py]
            workingDir: /x
            env:
            - {name: A, value: b}
            - {name: B, value: b}
            resources: {limits: {nvidia.com/gpu: 2}}
            volumeMounts: []
            securityContext: {}
          volumes: []
",
    mistakes: &[
        ("  name: train", "  name: Train_1"),
        ("  name: train", "  nmae: train"),
        ("  namespace: team", "  namespace: 1.10"),
        ("  nprocPerNode: \"2\"", "  nprocPerNode: 2"),
        ("  nprocPerNode: \"2\"", "  nprocPerNodes: \"2\""),
        ("    backoffLimit: 3", "    backoffLimit: -1"),
        (
            "    ttlSecondsAfterFinished: 60",
            "    ttlSecondsAfterFinished: \"60\"",
        ),
        ("    cleanPodPolicy: None", "    cleanPodPolicy: Some"),
        ("    suspend: false", "    suspend: \"false\""),
        (
            "    schedulingPolicy: {queue: q}",
            "    schedulingPolicy: {kueue: q}",
        ),
        ("    minReplicas: 1", "    minReplicas: 3"),
        ("    maxReplicas: 4", "    maxReplicas: 4.5"),
        ("    rdzvBackend: c10d", "    rdzvBackend: zookeeper"),
        ("    maxRestarts: 3", "    maxRestart: 3"),
        ("    Worker:", "    Wroker:"),
        ("      replicas: 2", "      replicas: two"),
        ("      replicas: 2", "      replica: 2"),
        ("      replicas: 2", "      replicas: 0"),
        (
            "      restartPolicy: OnFailure",
            "      restartPolicy: onFailure",
        ),
        (
            "          nodeSelector: {}",
            "          nodeSelector: {gpu: 3}",
        ),
        (
            "          affinity: {}",
            "          affinity: {nodeAffinity: {required: {}}}",
        ),
        (
            "          initContainers: []",
            "          initContainers: [{name: a, image: b}]",
        ),
        (
            "          terminationGracePeriodSeconds: 30",
            "          terminationGracePeriodSeconds: 0030",
        ),
        ("          containers:", "          contianers:"),
        ("          - name: pytorch", "          - name: torch"),
        (
            "            command: [torchrun, --max-restarts=3, train.py]",
            "            command: [torchrun, --max-restart=3, train.py]",
        ),
        (
            "            command: [torchrun, --max-restarts=3, train.py]",
            "            command: [torchrun, --max-restarts=x, --nnodes=y, train.py]",
        ),
        (
            "            command: [torchrun, --max-restarts=3, train.py]",
            "            command: [torchrun, \"s3://a/train.py\"]",
        ),
        (
            "            command: [torchrun, --max-restarts=3, train.py]",
            "            command: [mpirun, -np, \"2\", train.py]",
        ),
        (
            "            command: [torchrun, --max-restarts=3, train.py]",
            "            command: torchrun train.py",
        ),
        (
            "            command: [torchrun, --max-restarts=3, train.py]",
            "            comand: [torchrun, train.py]",
        ),
        (
            "            command: [torchrun, --max-restarts=3, train.py]",
            "            command: [torchrun, train.py, 1.10]",
        ),
        ("            workingDir: /x", "            workingDir: yes"),
        (
            "            - {name: A, value: b}",
            "            - {nam: A, value: b}",
        ),
        (
            "            - {name: B, value: b}",
            "            - {name: RANK, value: \"0\"}",
        ),
        (
            "            resources: {limits: {nvidia.com/gpu: 2}}",
            "            resources: {limits: {nvidia.com/gpu: two}}",
        ),
        (
            "            volumeMounts: []",
            "            volumeMounts: [{name: a, mountPath: /a}]",
        ),
        (
            "            securityContext: {}",
            "            securityContext: {runAsUsr: 1}",
        ),
        ("          volumes: []", "          volume: []"),
    ],
};

const MPI: Case = Case {
    name: "MPIJob",
    good: "\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: reduce
spec:
  slotsPerWorker: 2
  mpiImplementation: OpenMPI
  runPolicy:
    activeDeadlineSeconds: 60
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: l
            command: [mpirun, -np, \"4\", ./sum]
            env: []
    Worker:
      replicas: 2
      template:
        spec:
          hostname: \"\"
          containers:
          - name: w
            command: [sleep, infinity]
",
    mistakes: &[
        ("  name: reduce", "  name: -x"),
        ("  slotsPerWorker: 2", "  slotPerWorker: 2"),
        ("  slotsPerWorker: 2", "  slotsPerWorker: \"2\""),
        ("  mpiImplementation: OpenMPI", "  mpiImplementation: LAM"),
        (
            "    activeDeadlineSeconds: 60",
            "    activeDeadlineSeconds: -60",
        ),
        ("    Launcher:", "    Laucher:"),
        ("      replicas: 1", "      replicas: 2"),
        ("      replicas: 1", "      repicas: 1"),
        (
            "      restartPolicy: OnFailure",
            "      restartPolicy: ExitCode",
        ),
        (
            "            command: [mpirun, -np, \"4\", ./sum]",
            "            command: [mpirun, -np, \"9\", ./sum]",
        ),
        (
            "            command: [mpirun, -np, \"4\", ./sum]",
            "            command: [\"s3://a/b\"]",
        ),
        (
            "            env: []",
            "            env: [{name: A, value: 1}]",
        ),
        ("    Worker:", "    Workers:"),
        ("      replicas: 2", "      replicas: 0"),
        ("      replicas: 2", "      replicas: -1"),
        ("          hostname: \"\"", "          nodeName: n1"),
        (
            "            command: [sleep, infinity]",
            "            command: [python, serve.py]",
        ),
    ],
};

const TENSORFLOW: Case = Case {
    name: "TFJob",
    good: "\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: tf
spec:
  successPolicy: \"\"
  tfReplicaSpecs:
    Chief:
      replicas: 1
      template:
        spec:
          containers:
          - name: tensorflow
            command: [python, a.py]
    Worker:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
          - name: tensorflow
            command: [python, b.py]
    Evaluator:
      replicas: 1
      template: {spec: {containers: [{name: tensorflow, command: [python, c.py]}]}}
",
    mistakes: &[
        ("  name: tf", "  name: \"\""),
        ("  successPolicy: \"\"", "  successPolicy: Some"),
        ("    Chief:", "    Chef:"),
        ("      replicas: 1", "      replicas: 2"),
        (
            "            command: [python, a.py]",
            "            command: [python, \"https://a/a.py\"]",
        ),
        ("    Worker:", "    Master:"),
        ("      replicas: 2", "      replicas: 2.0"),
        ("      restartPolicy: Never", "      restartPolicies: Never"),
        (
            "            command: [python, b.py]",
            "            commands: [python, b.py]",
        ),
        ("    Evaluator:", "    Evalutor:"),
    ],
};

const ELASTIC: Case = Case {
    name: "ElasticJob",
    good: "\
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata:
  name: el
spec:
  minReplicas: 1
  maxReplicas: 3
  backoffLimit: 2
  replicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template:
        spec:
          containers:
          - name: any
            args: [--nproc_per_node=1, main.py]
            ports: []
",
    mistakes: &[
        ("  name: el", "  name: 1.10"),
        ("  minReplicas: 1", "  minReplica: 1"),
        ("  maxReplicas: 3", "  maxReplicas: 1"),
        ("  backoffLimit: 2", "  backoffLimit: many"),
        ("  replicaSpecs:", "  replicaSpec:"),
        ("    Worker:", "    Master:"),
        (
            "      restartPolicy: ExitCode",
            "      restartPolicy: Sometimes",
        ),
        (
            "            args: [--nproc_per_node=1, main.py]",
            "            args: [--nproc_per_nod=1, main.py]",
        ),
        (
            "            args: [--nproc_per_node=1, main.py]",
            "            args: [--nproc_per_node=1, \"s3://a/main.py\"]",
        ),
        (
            "            args: [--nproc_per_node=1, main.py]",
            "            args: [--nproc_per_node=1]",
        ),
        ("            ports: []", "            envFrom: [{}]"),
    ],
};

const TRAIN: Case = Case {
    name: "TrainJob",
    good: "\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: tj
spec:
  runtimeRef:
    name: torch-distributed
  suspend: false
  trainer:
    numNodes: 2
    numProcPerNode: 2
    command: [torchrun, train.py]
    env: [{name: A, value: b}]
    resourcesPerNode: {}
",
    mistakes: &[
        ("  name: tj", "  name: t.j"),
        ("    name: torch-distributed", "    name: mine"),
        ("    name: torch-distributed", "    nme: torch-distributed"),
        ("  suspend: false", "  initializer: {dataset: {}}"),
        ("    numNodes: 2", "    numNodes: 0"),
        ("    numNodes: 2", "    numNode: 2"),
        ("    numProcPerNode: 2", "    numProcPerNode: auto"),
        (
            "    command: [torchrun, train.py]",
            "    command: [tune, run]",
        ),
        (
            "    command: [torchrun, train.py]",
            "    command: [torchrun, --nnods, \"2\", train.py]",
        ),
        (
            "    env: [{name: A, value: b}]",
            "    env: [{name: A, value: on}, {name: PET_NNODES, value: \"1\"}]",
        ),
        (
            "    resourcesPerNode: {}",
            "    resourcesPerNode: {limits: {nvidia.com/gpu: few}}",
        ),
    ],
};

const XGBOOST: Case = Case {
    name: "XGBoostJob",
    good: "\
apiVersion: kubeflow.org/v1
kind: XGBoostJob
metadata:
  name: xg
spec:
  runPolicy: {backoffLimit: 1}
  xgbReplicaSpecs:
    Master:
      replicas: 1
      template: {spec: {containers: [{name: xgboost, command: [python, a.py]}]}}
    Worker:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
          - name: xgboost
            command: [python, b.py]
",
    mistakes: &[
        ("  name: xg", "  name: x.g"),
        (
            "  runPolicy: {backoffLimit: 1}",
            "  runPolicy: {backofLimit: one}",
        ),
        ("    Master:", "    Mater:"),
        ("      replicas: 1", "      replicas: 2"),
        ("    Worker:", "    Work:"),
        ("      replicas: 2", "      replicas: 0x"),
        ("      restartPolicy: Never", "      restartPolicy: never"),
        ("          - name: xgboost", "          - name: xgb"),
        (
            "            command: [python, b.py]",
            "            command: [python, 7]",
        ),
    ],
};

const AI_TRAINING: Case = Case {
    name: "AITrainingJob",
    good: "\
apiVersion: kongming.cce.baiudbce.com/v1
kind: AITrainingJob
metadata:
  name: ai
spec:
  frameworkType: horovod
  timeLimit: 60
  completePolicy: Any
  restartingExitCode: \"137\"
  replicaSpecs:
    launcher:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: aitj-0
            command: [horovodrun, -np, \"2\", python, a.py]
    trainer:
      replicas: 2
      restartLimit: 3
      template:
        spec:
          containers:
          - name: aitj-0
            command: [sleep, infinity]
            env: []
",
    mistakes: &[
        ("  name: ai", "  name: 9"),
        ("  timeLimit: 60", "  timeLimit: \"60\""),
        ("  completePolicy: Any", "  completePolicy: Some"),
        ("  restartingExitCode: \"137\"", "  restartingExitCode: 137"),
        ("      replicas: 1", "      replicas: 2"),
        (
            "      restartPolicy: OnFailure",
            "      restartPolicy: onFailure",
        ),
        (
            "            command: [horovodrun, -np, \"2\", python, a.py]",
            "            command: [horovodrun, -np, \"9\", python, a.py]",
        ),
        (
            "            command: [horovodrun, -np, \"2\", python, a.py]",
            "            command: [horovodrun, -np, \"2\", num-proc, a.py]",
        ),
        ("      replicas: 2", "      replica: 2"),
        ("      restartLimit: 3", "      restartLimits: three"),
        (
            "            command: [sleep, infinity]",
            "            command: [python, serve.py]",
        ),
        ("            env: []", "            env: [{name: 1}]"),
    ],
};

pub(super) const CASES: [&Case; 7] = [
    &PYTORCH,
    &MPI,
    &TENSORFLOW,
    &ELASTIC,
    &TRAIN,
    &XGBOOST,
    &AI_TRAINING,
];
