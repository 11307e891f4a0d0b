"""Paddle: trainers that find each other by the variables of an AITrainingJob's role, and may become more."""

from case import CUT, KILL, SCALE, Case, Strike

JOB = """
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

STRIKES = (Strike(KILL, 1), Strike(KILL, 0), Strike(CUT, 1), Strike(CUT, 0), Strike(SCALE, 3))

# The sum of the same gradients in another order.
CASES = [
    Case(
        name="Paddle, AITrainingJob's variables", package="paddlepaddle", packages="paddle.txt", program="paddle_line.py", job=JOB,
        members=2, stepping=(0, 1), strikes=STRIKES, tolerance=1e-4,
    ),
]  # fmt: skip
