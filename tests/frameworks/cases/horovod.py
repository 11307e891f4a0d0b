"""Horovod: an MPIJob with four ranks on two workers. They are started by mpirun as in Kubeflow's example, by horovodrun, which calls mpirun or
starts the ranks itself, and by horovodrun in elastic mode, which also gets a third worker."""

from case import BELOW, CUT, KILL, SCALE, Case, Strike

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


FAULTS = (Strike(BELOW, 2), Strike(KILL, 0), Strike(CUT, 1), Strike(CUT, 0))


def case(name, command, program="horovod_line.py", strikes=FAULTS):
    return Case(name=name, package="horovod", packages="horovod.txt", program=program, prepare="horovod_prepare.py",
                job=JOB.replace("COMMAND", command), members=3, stepping=(0,), strikes=strikes, tolerance=1e-9)


CASES = [
    case("Horovod, mpirun, MPIJob", 'mpirun, -np, "4"'),
    # Several hosts on one machine have only the loopback interface in common.
    case("Horovod, horovodrun, MPIJob", 'horovodrun, --mpi, --network-interfaces, lo, --hostfile, /etc/mpi/hostfile, -np, "4"'),
    case("Horovod, horovodrun --gloo, MPIJob", 'horovodrun, --gloo, --network-interfaces, lo, --hostfile, /etc/mpi/hostfile, -np, "4"'),
    # Two ranks are enough to begin, so one worker is. Muster has two, and later three.
    case("Horovod, elastic, MPIJob", 'horovodrun, --gloo, --network-interfaces, lo, --host-discovery-script, /etc/mpi/discover_hosts.sh, -np, "2", --min-np, "2", --max-np, "6"',
         "horovod_elastic.py", (*FAULTS, Strike(SCALE, 4))),
]
