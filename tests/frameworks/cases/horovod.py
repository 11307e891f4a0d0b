"""Horovod of a fixed size: an MPIJob with four ranks on two workers, started by mpirun as in Kubeflow's example, and by horovodrun, which then
calls mpirun."""

from case import BELOW, CUT, KILL, Case, Strike

JOB = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: job}
spec:
  slotsPerWorker: 2
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: horovod, image: none, command: [COMMAND, PYTHON, PROGRAM, FOLDER, "STEPS"], env: &env [
        {name: PATH, value: "ENVIRONMENT/bin:/usr/bin:/bin"}, {name: OPAL_PREFIX, value: ENVIRONMENT}, {name: PMIX_INSTALL_PREFIX, value: ENVIRONMENT}]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: horovod, image: none, env: *env}]}}
"""


def case(name, command):
    strikes = (Strike(BELOW, 2), Strike(KILL, 0), Strike(CUT, 1), Strike(CUT, 0))
    return Case(name=name, package="horovod", packages="horovod.txt", program="horovod_line.py", prepare="horovod_prepare.py",
                job=JOB.replace("COMMAND", command), members=3, stepping=(0,), strikes=strikes, tolerance=1e-9)


CASES = [
    case("Horovod, mpirun, MPIJob", 'mpirun, -np, "4"'),
    # Several hosts on one machine have only the loopback interface in common.
    case("Horovod, horovodrun, MPIJob", 'horovodrun, --mpi, --network-interfaces, lo, --hostfile, /etc/mpi/hostfile, -np, "4"'),
]
