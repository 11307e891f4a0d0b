"""XGBoost and LightGBM, both as an XGBoostJob of Kubeflow."""

from case import CUT, KILL, Case, Strike

JOB = """
apiVersion: kubeflow.org/v1
kind: XGBoostJob
metadata: {name: job}
spec:
  xgbReplicaSpecs:
    Master:
      restartPolicy: OnFailure
      template: &same {spec: {containers: [{name: xgboost, image: none, command: [PYTHON, PROGRAM, FOLDER, "STEPS"]}]}}
    Worker:
      restartPolicy: OnFailure
      template: *same
"""


def case(name, package, program):
    strikes = (Strike(KILL, 1), Strike(KILL, 0), Strike(CUT, 1), Strike(CUT, 0))
    # Trees that are added to a loaded model sum the same numbers in another order.
    return Case(
        name=name, package=package, packages="boosting.txt", program=program, job=JOB,
        members=2, stepping=(0, 1), strikes=strikes, tolerance=1e-3,
    )  # fmt: skip


CASES = [case("XGBoost", "xgboost-cpu", "xgboost_line.py"), case("LightGBM", "lightgbm", "lightgbm_line.py")]
