"""Paddle: trainers that find each other by the variables of an AITrainingJob's role, and may become more; and workers of a PaddleJob, whose
`paddle.distributed.launch` starts the trainer of its node."""

from case import CUT, KILL, SCALE, Case, Strike

TRAINERS = """
apiVersion: kongming.cce.baiudbce.com/v1
kind: AITrainingJob
metadata: {name: job}
spec:
  frameworkType: paddle
  faultTolerant: true
  replicaSpecs:
    trainer:
      replicas: 2
      minReplicas: 2
      maxReplicas: 3
      restartPolicy: OnFailure
      restartLimit: 100
      template: {spec: {containers: [{name: aitj-0, image: none, command: [PYTHON, PROGRAM, FOLDER, "STEPS"]}]}}
"""

# Each launcher writes logs of its own.
LAUNCHERS = """
apiVersion: kubeflow.org/v1
kind: PaddleJob
metadata: {name: job}
spec:
  paddleReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: paddle, image: none, command: [bash, -c, "exec PYTHON -m paddle.distributed.launch --log_dir FOLDER/$$ PROGRAM FOLDER STEPS"]}]}}
"""

FAULTS = (Strike(KILL, 1), Strike(KILL, 0), Strike(CUT, 1), Strike(CUT, 0))


def case(name, job, strikes):
    # More trainers sum the same gradients in another order.
    return Case(
        name=name, package="paddlepaddle", packages="paddle.txt", program="paddle_line.py", job=job,
        members=2, stepping=(0, 1), strikes=strikes, tolerance=1e-4,
    )  # fmt: skip


CASES = [case("Paddle, AITrainingJob", TRAINERS, (*FAULTS, Strike(SCALE, 3))), case("Paddle, PaddleJob", LAUNCHERS, FAULTS)]
