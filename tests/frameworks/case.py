"""What a case is: a job file of some system, its program, and what is done to it.

A case is a file in `cases/` with a list `CASES`. Its program prints `step N` for each step, saves its state, goes on from there when it
starts, and prints `end NUMBER` when it has made all steps. The number must not depend on how often it was started.
"""

import dataclasses
import os
import pathlib
import signal

# A rank is killed, a rank of MPI below it, or the launcher's program that holds MPI's daemon there over a connection; or its node is cut.
KILL, BELOW, HOLDER, CUT = "kill", "below", "holder", "cut"
# A rank is killed whose framework takes it back: it is started again, and nobody else is.
ALONE = "alone"
ALONE_PROGRESS = 9
# Nothing breaks: the job is given another number of nodes.
SCALE = "scale"


@dataclasses.dataclass(frozen=True)
class Strike:
    """One thing that is done to a job that trains. `rank` is a global rank, or the new number of nodes."""

    what: str
    rank: int

    def named(self, status):
        """In words, with the member's role if it has one."""
        if self.what == SCALE:
            return f"scaled to {self.rank} node{'s' * (self.rank > 1)}"
        member = next(member for member in status["members"] if member["node"] == self.node(status))
        name = member.get("role") or f"rank {self.rank}"
        words = {KILL: "{} killed", ALONE: "{} killed, started again alone", BELOW: "rank of MPI on {} killed", HOLDER: "muster-rsh to {} killed", CUT: "node of {} cut"}
        return words[self.what].format(name)

    @property
    def alone(self):
        """The ranks that must be started again while the others go on."""
        return [self.rank] if self.what == ALONE else []

    def is_answered(self, before, now):
        """Whether the rank that was started again alone runs, and the others have made some steps meanwhile."""
        old, new = self._rank(before, self.rank)["pid"], self._rank(now, self.rank)["pid"]
        made = max(rank["lastStep"] or 0 for rank in now["ranks"]) - max(rank["lastStep"] or 0 for rank in before["ranks"])
        return new not in (0, old) and made >= ALONE_PROGRESS

    def node(self, status):
        return self._rank(status, self.rank)["node"]

    def _rank(self, status, number):
        return next(rank for rank in status["ranks"] if rank["rank"] == number)

    def members(self, before):
        """How many members the job has afterwards."""
        return self.rank if self.what == SCALE else before

    def strike(self, status, muster):
        if self.what == SCALE:
            muster("scale", "job", "--nodes", str(self.rank))
            return
        pid = self._rank(status, self.rank)["pid"]
        if self.what in (KILL, ALONE):
            os.kill(pid, signal.SIGKILL)
        elif self.what == BELOW:
            os.kill(next(below for below in descendants(pid) if is_of_mpi(below)), signal.SIGKILL)
        elif self.what == HOLDER:
            host = next(f"job-{member['role']}" for member in status["members"] if member["node"] == self.node(status))
            launcher = self._rank(status, 0)["pid"]
            os.kill(next(below for below in descendants(launcher) if is_remote_start(below, host)), signal.SIGKILL)
        else:
            # The power is gone: agent, runner and workers are killed at once.
            muster("local", "kill-node", self.node(status))

    def expected(self, status):
        """The cause, the culprit, and the one to be charged, as `muster explain` must say."""
        if self.what == SCALE:
            return ("Scaled", None, "nobody")
        node = self.node(status)
        if self.what == CUT:
            return ("NodeLost", node, "node")
        if self.what == HOLDER:
            # A connection broke. mpirun gives up then, and kills the ranks on the other worker.
            return ("PeersLost", None, "nobody")
        return ("WorkerKilled", f"rank {self.rank} on {node}", "job")


def descendants(pid):
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            yield child
            yield from descendants(child)


def is_of_mpi(pid):
    """Whether MPI or horovodrun has given the process a number."""
    environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(variable.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=", b"HOROVOD_RANK=")) for variable in environment)


def is_remote_start(pid, host):
    """Whether the process is a program for remote starts, with a command on this host."""
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return words[0].endswith("/muster-rsh") and host in words


@dataclasses.dataclass(frozen=True)
class Case:
    """One job, and what is done to it."""

    # The first two columns of the table: what runs, and the package whose version is shown.
    name: str
    package: str
    # A file in `packages/`. The case has an environment with exactly these packages, and with those of the tests' PyTorch if it wants them.
    packages: str
    # A file in `programs/`, and the job file that runs it. In the job file PYTHON, its folder ENVIRONMENT, PROGRAM, FOLDER and
    # STEPS are replaced.
    program: str
    job: str
    # Its members at first, and the ranks that print steps.
    members: int
    stepping: tuple
    strikes: tuple
    steps: int = 120
    with_torch: bool = False
    # A file in `programs/` that is run once before.
    prepare: str = ""
    # The rank that prints `end NUMBER`, and how far that number may be from that of the undisturbed run.
    ends: int = 0
    tolerance: float = 0.0

    @property
    def nodes(self):
        """A cut node does not come back, so there is a spare one for each. Others are there for a job that grows."""
        most = max([self.members, *(strike.members(0) for strike in self.strikes)])
        return most + sum(strike.what == CUT for strike in self.strikes)
