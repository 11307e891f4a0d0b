"""JAX: two processes that know each other from JAXJob's variables, or from nothing that the program reads itself."""

from case import CUT, KILL, Case, Strike

JOB = """
apiVersion: kubeflow.org/v1
kind: JAXJob
metadata: {name: job}
spec:
  jaxReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: jax, image: none, command: [PYTHON, PROGRAM, FOLDER, "STEPS", HOW]}]}}
"""


def case(how, name):
    strikes = (Strike(KILL, 1), Strike(KILL, 0), Strike(CUT, 1), Strike(CUT, 0))
    return Case(
        name=name, package="jax", packages="jax.txt", program="jax_sum.py", job=JOB.replace("HOW", how),
        members=2, stepping=(0, 1), strikes=strikes,
    )  # fmt: skip


CASES = [case("told", "JAX, JAXJob's variables"), case("bare", "JAX, initialize() without arguments")]
