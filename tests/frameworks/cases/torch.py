"""Libraries on top of PyTorch, with the variables that torchrun sets: accelerate and DeepSpeed, each as a PyTorchJob."""

from case import CUT, KILL, SCALE, Case, Strike

JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: job}
spec:
  pytorchReplicaSpecs:
    Master:
      template: &template {spec: {containers: [{name: pytorch, image: none, command: [PYTHON, PROGRAM, FOLDER, "STEPS"], env: [
        {name: PATH, value: "ENVIRONMENT/bin:/usr/bin:/bin"}, {name: TORCH_EXTENSIONS_DIR, value: ENVIRONMENT/torch_extensions}]}]}}
    Worker: {replicas: 1, template: *template}
"""
ELASTIC = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: job}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 3}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pytorch, image: none, command: [torchrun, PROGRAM, FOLDER, "STEPS"], env: [
        {name: PATH, value: "ENVIRONMENT/bin:/usr/bin:/bin"}]}]}}
"""
STRIKES = (Strike(KILL, 1), Strike(KILL, 0), Strike(CUT, 1), Strike(CUT, 0))


def case(name, package, program, job=JOB, strikes=STRIKES, **more):
    shared = {"packages": "torch.txt", "with_torch": True, "members": 2, "stepping": (0, 1)}
    return Case(name=name, package=package, program=program, job=job, strikes=strikes, **shared, **more)


CASES = [
    case("accelerate, PyTorchJob", "accelerate", "accelerate_line.py"),
    # Sums of other parts of the data are rounded otherwise. The job trains on while a new node imports torch, so it has more steps.
    case("accelerate, elastic PyTorchJob", "accelerate", "accelerate_line.py", ELASTIC, (Strike(SCALE, 3), Strike(KILL, 2), Strike(SCALE, 1)), tolerance=1e-5, steps=400),
    case("DeepSpeed, PyTorchJob", "deepspeed", "deepspeed_line.py", prepare="deepspeed_prepare.py"),
]
