"""Muster's launcher: an interpreter that has imported torch and waits for one order.

Run by muster-runner as `python [options] -u launcher.py DIR CONTROL [spare] [without=PACKAGE]...`: DIR is the runner's directory, CONTROL
the number of an inherited socket. The order is JSON in a file descriptor that arrives there. It names a lane:

- parked: torchrun runs in this process, as if it had just been started.
- fork: the ranks of this node are forked from here. Nothing is left to import; there is no torchrun. Towards the runner this process
  is the shim of every rank (`ranks.sock`); towards a rank it is torchrun: same environment, a session of its own, killed if this dies.

A forked rank returns to the top level of this file and goes on as `python script.py` would: fresh `__main__`, default signal handlers,
plain tracebacks, the interpreter's own end. This process never touches a GPU and must not have threads when it forks.
Only the standard library and torch are used.
"""

import sys

STARTUP = frozenset(sys.modules)  # what every interpreter has loaded before a script begins

import ctypes  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import importlib.machinery  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import time  # noqa: E402
import types  # noqa: E402

PROTOCOL = 1
# Imports recorded for the next generation. torch with every optional part has about 3,000 modules.
MODULES_MAX = 10_000
# What torchrun gives the other ranks of a node when one has failed.
TERM_GRACE = 30.0
# How long the runner may take to write an exit down: one fsync, even on a busy disk.
ACK = 5.0
PR_SET_PDEATHSIG = 1
TORCH_SEED = 67280421310721  # c10/core/GeneratorImpl.h: default_rng_seed_val
OURS = ("PYTHON_EXEC", "MUSTER_SHIM_DIR", "MUSTER_SHIM_PROGRAM", "MUSTER_SHIM_ARGS")
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main():
    """Returns in a forked rank only, with what it shall run."""
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    here = os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = sys.argv[3:]
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated and sys.path:
        sys.path_importer_cache.pop(sys.path.pop(0), None)  # this file's folder; the script's takes its place
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if "spare" in flags and os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, nice + 10)  # takes no time from the workers; only root may undo it later
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a GPU must not make a CUDA context
    import torch
    import torch.distributed

    loaded = preload(here, control, flags)
    seed = torch.get_rng_state()
    gc.collect()
    gc.freeze()  # forked ranks share these pages, as long as no collection writes to them
    os.close(os.open("parked", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=here))  # for whoever looks
    order = receive(control)
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    os.chdir(order["cwd"])
    control.close()
    if order["lane"] == "parked":
        return Torchrun(order)
    return fork_ranks(order, here, loaded, seed)


def preload(here, control, flags):
    """Imports what the job's script imported in its last generation, as far as it belongs to the interpreter."""
    without = {flag.partition("=")[2] for flag in flags if flag.startswith("without=")}
    calm = threads()
    loaded = []
    for name in recorded(here):
        if select.select([control], [], [], 0)[0]:
            break  # the order is here: nothing is gained any more
        top = name.partition(".")[0]
        if top in without or not belongs(top):
            continue
        try:
            importlib.import_module(name)
        except BaseException as error:  # what cannot be imported here is imported, or not, by the script
            print(f"not preloaded: {name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if threads() > calm or touched_gpu():
            print(f"{top} starts threads or touches a GPU when it is imported: starting again without it", file=sys.stderr)
            control.set_inheritable(True)
            os.execv(sys.executable, [*sys.orig_argv, f"without={top}"])
        loaded.append(name)
    return loaded


def recorded(here):
    try:
        with open(os.open("preload.txt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=here)) as file:
            return list(dict.fromkeys(file.read().split()))[:MODULES_MAX]
    except FileNotFoundError:
        return []


def belongs(top, known={}):
    """Whether a package is the interpreter's: in its prefix, so never the job's own code."""
    if top not in known:
        try:
            spec = None if top in sys.builtin_module_names else importlib.machinery.PathFinder.find_spec(top)
        except Exception:
            spec = None
        places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
        prefixes = tuple(os.path.join(prefix, "lib") for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
        known[top] = any(isinstance(place, str) and place.startswith(prefixes) for place in places)
    return known[top]


def threads():
    return len(os.listdir("/proc/self/task"))


def touched_gpu():
    torch = sys.modules["torch"]
    return torch.cuda.is_initialized()


def receive(control):
    message, fds, _, _ = socket.recv_fds(control, 1, 1)
    if not message or not fds:
        os._exit(0)  # the runner needs no launcher any more
    with open(fds[0], "rb") as file:
        file.seek(0)
        return json.load(file)


class Torchrun:
    """The parked lane: torchrun in this process."""

    def __init__(self, order):
        replace_environment(order["env"])
        self.arguments = order["argv"]

    def go(self):
        import torch.distributed.run

        sys.argv = [torch.distributed.run.__file__, *self.arguments]
        sys.orig_argv = [sys.orig_argv[0], "-m", "torch.distributed.run", *self.arguments]
        torch.distributed.run.main(self.arguments)


def fork_ranks(order, here, loaded, seed):
    if touched_gpu():
        raise RuntimeError("CUDA is initialized in the launcher, so nothing can be forked from it")
    if threads() > 1:
        # Those of a BLAS library end and begin again around a fork by the library's own means.
        print(f"forking with {threads()} threads", file=sys.stderr)
    shadowed = shadows(order)
    journal = record(here, loaded)
    ranks = [Rank(order, local, here) for local in range(order["ranks"])]
    for rank in ranks:
        rank.await_welcome()
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    sys.stdout.flush()
    sys.stderr.flush()
    launcher = os.getpid()
    for rank in ranks:
        began = boot_us()
        rank.pid = os.fork()
        if rank.pid == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)
            os.dup2(rank.stdout, 1)
            os.dup2(rank.stderr, 2)
            for other in ranks:
                other.close()
            os.close(here)
            if rank.local != 0:
                os.close(journal)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            return Script(order, rank, shadowed, journal, seed)
        rank.started(began)
    os.close(journal)
    end(order, Shims(ranks).attend())


def shadows(order):
    """Modules loaded here that the script would find in its own folder instead: then it must start afresh."""
    folder = script_folder(order)
    if folder is None:
        return False
    try:
        names = {entry.partition(".")[0] for entry in os.listdir(folder)}
    except OSError:
        return True
    tops = {name.partition(".")[0] for name in sys.modules if name not in STARTUP and name != "__main__"}
    found = [name for name in names & tops if getattr(importlib.machinery.PathFinder.find_spec(name, [folder]), "origin", None)]
    for name in found:
        print(f"{folder} has its own {name}: ranks start afresh", file=sys.stderr)
    return bool(found)


def script_folder(order):
    """What `python` puts first on sys.path."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    entry = order["argv"][0]
    if entry == "-m":
        return order["cwd"]
    path = os.path.realpath(entry)
    return path if os.path.isdir(path) or not path.endswith(".py") and is_archive(path) else os.path.dirname(path)


def is_archive(path):
    import zipfile

    return zipfile.is_zipfile(path)


def record(here, loaded):
    """The file in which imports are noted for the next generation, beginning with those that were made ahead of this one."""
    fd = os.open("modules.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=here)
    os.write(fd, "".join(f"{name}\n" for name in loaded).encode())
    # Out of the way: a rank's first file is number 3, as after a plain start.
    far = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(fd)
    return far


class Rank:
    """One rank, as its shim: a connection to the runner, and the pipes of its output."""

    def __init__(self, order, local, here):
        self.local = local
        self.rank = order["first_rank"] + local
        self.pid = 0
        self.exit = None
        self.answers = 0
        self.buffer = b""
        self.error_file = self.make_error_file(here)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(f"/proc/self/fd/{here}/ranks.sock")
        (out, self.stdout), (err, self.stderr) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        hello = {"say": "hello", "v": PROTOCOL, "rank": self.rank, "local_rank": local, "pid": os.getpid()}
        socket.send_fds(self.socket, [line(hello)], [out, err])
        os.close(out)
        os.close(err)

    def make_error_file(self, here):
        """Where `@record` notes an exception; torchrun has such a file for every rank."""
        folder = os.path.join(os.readlink(f"/proc/self/fd/{here}"), "errors", str(self.local))
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, "error.json")

    def await_welcome(self):
        while self.answers == 0:
            for heard in self.hear():
                if heard.get("error") or heard.get("signal"):
                    print(f"refused by the runner: {heard.get('error', 'the worker group is being stopped')}", file=sys.stderr)
                    quit_now(1)

    def hear(self):
        data = self.socket.recv(4096)
        if not data:
            quit_now(1)  # without its runner no rank may live: they are killed with this process
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        heard = [json.loads(text) for text in lines]
        self.answers += sum(bool(word.get("ok")) for word in heard)
        return heard

    def started(self, began):
        os.close(self.stdout)
        os.close(self.stderr)
        with open(f"/proc/{self.pid}/stat", "rb") as file:
            start_time = int(file.read().rpartition(b")")[2].split()[19])
        self.socket.sendall(line({"say": "started", "pid": self.pid, "start_time": start_time, "at_us": began}))

    def ended(self, status):
        if os.WIFSIGNALED(status):
            self.exit = {"signal": os.WTERMSIG(status), "core": os.WCOREDUMP(status)}
        else:
            self.exit = {"code": os.WEXITSTATUS(status)}
        self.socket.sendall(line({"say": "exited", "exit": self.exit, "at_us": boot_us()}))

    def signal(self, number):
        if self.exit is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass

    def close(self):
        self.socket.close()
        for fd in (self.stdout, self.stderr):
            try:
                os.close(fd)
            except OSError:
                pass  # those of a rank that was forked before this one


class Shims:
    """All ranks of this node, from their start to their end."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.told = set()  # signals passed on: the runner's order and the one to the process group are the same
        self.kill_at = None

    def attend(self):
        """Returns whether all ended well."""
        wake, waker = socket.socketpair()
        for end in (wake, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        sockets = {rank.socket.fileno(): rank for rank in self.ranks}
        for fd in sockets:
            poll.register(fd, select.POLLIN)
        self.reap()
        give_up = None
        while any(rank.exit is None for rank in self.ranks) or any(rank.answers < 3 for rank in self.ranks):
            if all(rank.exit is not None for rank in self.ranks):
                give_up = give_up or time.monotonic() + ACK
                if time.monotonic() >= give_up:
                    break
            for fd, _ in poll.poll(self.patience(give_up)):
                if fd == wake.fileno():
                    self.hear_signals(wake.recv(4096))
                else:
                    for word in sockets[fd].hear():
                        if word.get("error"):
                            print(f"refused by the runner: {word['error']}", file=sys.stderr)
                            quit_now(1)
                        if word.get("signal"):
                            self.pass_on(word["signal"])
            if self.kill_at and time.monotonic() >= self.kill_at:
                self.kill_at = None
                for rank in self.ranks:
                    rank.signal(signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        return all(rank.exit == {"code": 0} for rank in self.ranks)

    def patience(self, give_up):
        until = [moment for moment in (self.kill_at, give_up) if moment]
        return max(0.0, min(until) - time.monotonic()) * 1000 + 1 if until else None

    def hear_signals(self, numbers):
        for number in set(numbers):
            if number == signal.SIGCHLD:
                self.reap()
            else:
                self.pass_on(number)

    def pass_on(self, number):
        if number == signal.SIGTERM and number in self.told:
            return
        self.told.add(number)
        for rank in self.ranks:
            rank.signal(number)

    def reap(self):
        by_pid = {rank.pid: rank for rank in self.ranks}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = by_pid.get(pid)
            if rank is None:
                continue
            rank.ended(status)
            if rank.exit != {"code": 0}:
                how = f"exit code {rank.exit['code']}" if "code" in rank.exit else signal.Signals(rank.exit["signal"]).name
                print(f"rank {rank.rank} (local rank {rank.local}, pid {pid}) ended with {how}", file=sys.stderr)
                if self.kill_at is None:
                    self.kill_at = time.monotonic() + TERM_GRACE
                    self.pass_on(signal.SIGTERM)


def end(order, well):
    """As torchrun: 1 for every failure; after success wait until all nodes' ranks have ended."""
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    if well and order["nnodes"] > 1:
        try:
            exit_barrier(order)
        except Exception as error:
            print(f"exit barrier: {type(error).__name__}: {error}", file=sys.stderr)
    quit_now(0 if well else 1)


def exit_barrier(order):
    """torchrun's own, key by key (torch.distributed.elastic.agent.server.api and elastic.utils.store), whose import takes a second."""
    from datetime import timedelta

    import torch.distributed as dist

    env = order["env"]
    key = "torchelastic/agent/terminal_state"
    wait = timedelta(seconds=60)
    store = dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), order["nnodes"], False, wait, wait_for_workers=False)
    store = dist.PrefixStore(order["run_id"], store)
    if store.add(key + "/num_members", 1) == order["nnodes"]:
        store.set(key + "/last_member", "<val_ignored>")
    store.wait([key + "/last_member"], timedelta(seconds=300))


def quit_now(code):
    """Without the interpreter's end: tearing torch down takes a tenth of a second, and nothing here needs it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Script:
    """What a forked rank runs, prepared so that it sees what a plain start would show it."""

    def __init__(self, order, rank, shadowed, journal, seed):
        self.argv = order["argv"]
        replace_environment(rank_environment(order, rank))
        command = [sys.orig_argv[0], *order["options"], "-u", *self.argv]
        if shadowed:
            os.execve(sys.executable, command, os.environ)
        sys.orig_argv = command
        folder = script_folder(order)
        if folder is not None:
            sys.path.insert(0, folder)
        self.main = types.ModuleType("__main__")
        launcher = sys.modules["__main__"]
        # multiprocessing keeps it under a second name.
        for name in [name for name, module in sys.modules.items() if module is launcher]:
            sys.modules[name] = self.main
        vars(self.main).update(__builtins__=__builtins__, __annotations__={})
        reseed(seed)
        if rank.local == 0:
            sys.meta_path.insert(0, Recorder(journal))

    def go(self):
        if self.argv[0] == "-m":
            sys.argv = ["-m", *self.argv[2:]]
            runpy._run_module_as_main(self.argv[1])
            return
        sys.argv = list(self.argv)
        script = self.argv[0]
        if os.path.isdir(script) or not script.endswith(".py") and is_archive(script):
            runpy._run_module_as_main("__main__", False)
            return
        path = os.path.abspath(script)
        main = vars(self.main)
        main.update(__file__=path, __cached__=None)
        main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), main)


def rank_environment(order, rank):
    env = {name: value for name, value in order["env"].items() if name not in OURS}
    ranks, world, nodes = str(order["ranks"]), str(order["world_size"]), str(order["nnodes"])
    env.update(
        RANK=str(rank.rank),
        LOCAL_RANK=str(rank.local),
        GROUP_RANK=str(order["node_rank"]),
        ROLE_RANK=str(rank.rank),
        ROLE_NAME="default",
        LOCAL_WORLD_SIZE=ranks,
        WORLD_SIZE=world,
        GROUP_WORLD_SIZE=nodes,
        ROLE_WORLD_SIZE=world,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID=order["run_id"],
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_SIGNALS_TO_HANDLE="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        TORCHELASTIC_ERROR_FILE=rank.error_file,
    )
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return env


def replace_environment(env):
    os.environ.clear()
    os.environ.update(env)


def reseed(seed):
    """`random` seeds itself anew after a fork; numpy and torch do not. torch began with a constant once and begins by chance now."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    torch = sys.modules["torch"]
    if torch.initial_seed() == TORCH_SEED:
        torch.set_rng_state(seed)
    else:
        torch.default_generator.seed()


class Recorder:
    """Notes what the script imports beyond what is there. Finds nothing itself."""

    def __init__(self, journal):
        self.journal = journal
        self.pid = os.getpid()
        self.left = MODULES_MAX

    def find_spec(self, name, path=None, target=None):
        if self.left > 0 and os.getpid() == self.pid:
            self.left -= 1
            try:
                os.write(self.journal, f"{name}\n".encode())
            except OSError:
                self.left = 0  # a full disk, or a script that closes what it did not open
        return None


def line(word):
    return json.dumps(word).encode() + b"\n"


def boot_us():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def run(plan):
    """Runs it and shows an exception as the interpreter would: without the frames of this file."""
    try:
        plan.go()
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        sys.excepthook = lambda *_: None  # shown already; the interpreter still takes its usual end
        raise


plan = main()
run(plan)
