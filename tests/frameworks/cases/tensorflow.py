"""TensorFlow: workers that mirror each other, and parameter servers."""

from case import ALONE, CUT, KILL, Case, Strike

HEAD = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: job}
spec:
  tfReplicaSpecs:
"""
GROUP = """
    NAME:
      replicas: COUNT
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: tensorflow, image: none, command: [PYTHON, PROGRAM, FOLDER, "STEPS"]}]}}
"""


def job(**groups):
    return HEAD + "".join(GROUP.replace("NAME", name).replace("COUNT", str(count)) for name, count in groups.items())


def case(name, program, stepping, strikes, **groups):
    return Case(
        name=name, package="tensorflow-cpu", packages="tensorflow.txt", program=program, job=job(**groups),
        members=sum(groups.values()), stepping=stepping, strikes=strikes,
    )  # fmt: skip


CASES = [
    case(
        "TensorFlow, MultiWorkerMirroredStrategy", "tf_workers.py", (0, 1),
        (Strike(KILL, 1), Strike(KILL, 0), Strike(CUT, 1), Strike(CUT, 0)),
        Chief=1, Worker=1,
    ),
    # Ranks are numbered in the order of the roles: chief, workers, parameter server.
    case(
        "TensorFlow, ParameterServerStrategy", "tf_servers.py", (0,),
        (Strike(ALONE, 1), Strike(ALONE, 2), Strike(KILL, 3), Strike(KILL, 0), Strike(CUT, 2), Strike(CUT, 3), Strike(CUT, 0)),
        Chief=1, Worker=2, PS=1,
    ),
]  # fmt: skip
