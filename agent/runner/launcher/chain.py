# The chain of a generation: its keeper, its runner below that, and a copy of the launcher below the runner. Each fork of an interpreter with torch
# takes 10 to 30 ms of processor time, so the chain of the next generation is forked ahead and stands by.


class Chain:
    """A chain that belongs to no generation yet, as the launcher sees it.

    Keeper and runner have executed the runner's binary, as `standby.rs` describes it. All three name the launcher's folder in their environment, and
    all three end when the launcher closes its sockets, which it also does by ending."""

    def __init__(self, keeper, runner, copy, told):
        self.keeper, self.runner, self.copy = self.sockets = (keeper, runner, copy)
        self.told = told

    def tell(self, message):
        """Tells the copy which standbys to make. A chain that has lost a part makes none."""
        try:
            send(self.copy, message)
        except OSError:
            pass  # the launcher sees that it has ended

    def begin(self, message):
        """Gives the chain to a generation, and returns what its runner says about its start. None if a part of the chain has ended. The rest of it
        then ends too, and the generation may get another chain."""
        try:
            # The copy shows the generation's folder before the runner can send an order. The keeper comes before what it keeps.
            send(self.copy, {"dir": message["dir"]})
            self.keeper.sendall(line(["muster-keeper", message["dir"]]))
            self.runner.sendall(line(message["runner"]))
        except OSError:  # nobody hears it
            os.close(self.told)
            return None
        finally:
            self.close()
        return read_all(self.told, RUNNER_TIMEOUT)

    def end(self):
        os.close(self.told)
        self.close()

    def close(self):
        for stream in self.sockets:
            stream.close()


def fork_chain(launcher, ahead):
    """Forks a chain and returns it. Returns None in the copy, once that belongs to a generation, and in a standby that has become a rank.

    The process in between ends at once, so its child is no child of this process and outlives it. That child forks the runner and becomes the
    runner's keeper."""
    (keeper, keepers), (runner, runners), (copy, copys) = (socket.socketpair() for _ in range(3))
    (told, tell), (out, stdout), (err, stderr) = (os.pipe() for _ in range(3))
    chain = Chain(keeper, runner, copy, told)

    def close_theirs():
        for stream in (keepers, runners, copys):
            stream.close()
        for fd in (tell, out, stdout, err, stderr):
            os.close(fd)

    with launcher.low_priority(ahead):
        try:
            between = os.fork()
        except OSError:  # as at a limit of processes
            close_theirs()
            chain.end()
            raise
        if between != 0:
            close_theirs()
            os.waitpid(between, 0)
            return chain
        try:
            if os.fork() != 0:
                os._exit(0)
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # before the fork, so that the runner is never without it
            keepers_pid = os.getpid()
            if os.fork() != 0:
                stand_by(launcher, [keepers.fileno()])
            runners_pid = os.getpid()
            pid = os.fork()
            if pid != 0:
                handed = [copy.fileno(), out, err, tell, runners.fileno()]
                stand_by(launcher, handed, "--launcher", str(pid), "--keeper", str(keepers_pid))
            die_with(runners_pid)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            chain.end()
            launcher.close()
            launcher.control = copys.dup()
            close_theirs()
        except BaseException as error:
            print(f"no chain for a generation: {error}", file=sys.stderr)
            os._exit(1)
    launcher.standbys = Standbys(launcher)
    message = launcher.standbys.await_generation()
    if launcher.plan:
        return None
    if message is None:
        os._exit(0)  # this chain is not needed
    os.setsid()
    launcher.folder = message["dir"]
    launcher.standbys.moves(launcher.folder)
    mark_environment(launcher.folder)
    return None


def stand_by(launcher, handed, *arguments):
    """Executes the runner's binary as `standby.rs` describes it, with these descriptors as 3 and the following ones. Further arguments come through
    the last of them."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in handed]
    for place, fd in enumerate(high, start=3):
        os.dup2(fd, place)
    command = ["muster-standby", launcher.folder, str(2 + len(high)), str(launcher.nice), *arguments]
    os.execve(f"{launcher.folder}/muster-ranks", command, {"MUSTER_RUN_DIR": launcher.folder})


def send(stream, message):
    """Sends a message in the form that `receive` reads."""
    memory = os.memfd_create("muster-order")
    try:
        os.write(memory, json.dumps(message).encode())
        socket.send_fds(stream, [b"o"], [memory])
    finally:
        os.close(memory)


def die_with(parent):
    """Makes the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
