"""MPI: an MPIJob with four ranks on two workers, by four implementations. A killed rank is one that mpirun started, two generations
below what Muster starts on the worker."""

from case import BELOW, CUT, HOLDER, KILL, SCALE, Case, Strike

JOB = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: job}
spec:
  slotsPerWorker: 2
  mpiImplementation: IMPLEMENTATION
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: mpi, image: none, command: [mpirun, -np, "4", PYTHON, PROGRAM, FOLDER, "STEPS"], env: &env [
        {name: PATH, value: "ENVIRONMENT/bin:/usr/bin:/bin"}VARIABLES]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: mpi, image: none, env: *env}]}}
"""

# No kind of another system has workers that come and go without a program of its own for that.
ELASTIC = """
apiVersion: muster.dev/v1alpha1
kind: MusterJob
metadata: {name: job}
spec:
  framework: mpi
  command: [mpirun]
  args: [PYTHON, PROGRAM, FOLDER, "STEPS"]
  env: [{name: PATH, value: "ENVIRONMENT/bin:/usr/bin:/bin"}]
  roles:
  - {name: launcher}
  - {name: worker, replicas: 2, minReplicas: 1, maxReplicas: 3, procPerNode: 2}
"""

# The wheel of Open MPI 4 does not find its own files on another host by itself.
OPENMPI4 = ", {name: OPAL_PREFIX, value: ENVIRONMENT}, {name: PMIX_INSTALL_PREFIX, value: ENVIRONMENT}"

# A whole installation sets these in its file vars.sh, which the packages do not have.
INTEL = ", {name: I_MPI_ROOT, value: ENVIRONMENT}, {name: FI_PROVIDER_PATH, value: ENVIRONMENT/lib}, {name: FI_PROVIDER, value: tcp}"


def case(name, package, packages, implementation, variables="", more=()):
    # The ranks of Muster: 0 is the launcher, and 1 and 2 are what lends the workers to it.
    strikes = (Strike(BELOW, 2), Strike(KILL, 0), *more, Strike(CUT, 1), Strike(CUT, 0))
    job = JOB.replace("IMPLEMENTATION", implementation).replace("VARIABLES", variables)
    return Case(name=name, package=package, packages=packages, program="mpi_sum.py", job=job, members=3, stepping=(0,), strikes=strikes)


CASES = [
    case("Open MPI 4, MPIJob", "openmpi", "openmpi4.txt", "OpenMPI", OPENMPI4),
    case("Open MPI 5, MPIJob", "openmpi", "openmpi5.txt", "OpenMPI"),
    # hydra holds its daemons over connections. The daemons of Open MPI leave theirs as soon as they run.
    case("MPICH, MPIJob", "mpich", "mpich.txt", "MPICH", more=(Strike(HOLDER, 2),)),
    case("Intel MPI, MPIJob", "impi-rt", "intelmpi.txt", "Intel", INTEL, more=(Strike(HOLDER, 2),)),
    # Sums of other parts of the data are rounded otherwise.
    Case(name="MPICH, elastic", package="mpich", packages="mpich.txt", program="mpi_sum.py", job=ELASTIC, members=3, stepping=(0,),
         strikes=(Strike(SCALE, 4), Strike(BELOW, 3), Strike(SCALE, 2)), tolerance=1e-9),
]
