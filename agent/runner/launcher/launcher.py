"""Muster's launcher: an interpreter that has imported torch and waits for one order.

Run by muster-runner as `python [options] -u launcher.py DIR CONTROL [spare] [without=PACKAGE]...`: DIR is the runner's directory, CONTROL
the number of an inherited socket. The order is JSON in a file descriptor that arrives there. It names a lane:

- parked: torchrun runs in this process, as if it had just been started.
- fork, direct: the ranks of this node are forked from here. Nothing is left to import; there is no torchrun. Each gets the environment that
  torchrun would give it, a session of its own, and is killed if this process dies. This process then becomes `muster-ranks`, which
  attends to them: what was imported here is given back, and is not in the way when the ranks are to be replaced in their turn.

A forked rank returns to the top level of this file and goes on as `python script.py` would: fresh `__main__`, default signal handlers,
plain tracebacks, the interpreter's own end unless a lost peer ended it. This process never touches a GPU, and has no threads when it forks.
Only the standard library and torch are used.
"""

import sys

STARTUP = frozenset(sys.modules)  # what every interpreter has loaded before a script begins

import atexit  # noqa: E402
import ctypes  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import importlib.machinery  # noqa: E402
import io  # noqa: E402
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
# Until the ranks are at work; giving 500 MB back takes 20 to 60 ms, which they may need before.
REST = 3.0
PR_SET_PDEATHSIG = 1
TORCH_SEED = 67280421310721  # c10/core/GeneratorImpl.h: default_rng_seed_val
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# What differs between ranks or generations. A package that asks for it while it is imported is not imported ahead.
RANKS_OWN = frozenset(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT "
    "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE MUSTER_GENERATION MUSTER_RESTART_COUNT".split()
)
COERCED = os.environ.get("LC_CTYPE")  # an interpreter sets it in a C locale (PEP 538), for all its children


def main():
    """Returns in a forked rank only, with what it shall run."""
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    leave_coerced_locale(control)
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
    crowd = end_threads()
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
    return fork_ranks(order, here, loaded, seed, crowd)


def leave_coerced_locale(control):
    """Starts this interpreter once more where it has changed its own locale. In a C locale CPython sets LC_CTYPE to a UTF-8 one (PEP 538)
    and turns on its UTF-8 mode (PEP 540). torchrun does so too, and its ranks then start in that locale, without the mode. A forked rank
    keeps the mode of this process, so this process must start as a rank does. The second start finds LC_CTYPE in the environment and
    changes nothing."""
    with open("/proc/self/environ", "rb") as file:
        given = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
    if os.environb.get(b"LC_CTYPE") != given.get(b"LC_CTYPE"):
        control.set_inheritable(True)
        os.execv(sys.executable, sys.orig_argv)


def preload(here, control, flags):
    """Imports what the job's script imported in its last generation, as far as it belongs to the interpreter."""
    without = {flag.partition("=")[2] for flag in flags if flag.startswith("without=")}
    calm = threads()
    loaded = []
    for name in RANKS_OWN:
        os.environ.pop(name, None)
    plain, os.environ.__class__ = os.environ.__class__, Asked
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
        wrong = misfit(calm)
        if wrong:
            print(f"{top}, when it is imported, {wrong}: starting again without it", file=sys.stderr)
            control.set_inheritable(True)
            os.execv(sys.executable, [*sys.orig_argv, f"without={top}"])
        loaded.append(name)
    os.environ.__class__ = plain
    return loaded


class Asked(type(os.environ)):
    """The environment, while packages are imported: notes who asks for what belongs to one rank."""

    names = []

    def __getitem__(self, name):
        if name in RANKS_OWN:
            Asked.names.append(name)
        return super().__getitem__(name)


def misfit(calm):
    """Why what was just imported must not be there before a rank is; None if it may."""
    if Asked.names:
        return f"asks for {Asked.names[0]}"
    if touched_gpu():
        return "touches a GPU"
    if threads() > calm:
        return "starts threads"
    return None


def end_threads():
    """Ends the threads that end around a fork by their library's own means, as those of OpenBLAS do (`pthread_atfork`); they begin
    again when they are needed. Returns how many are left beside this one: those a fork would lose."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return threads() - 1


def recorded(here):
    """Names of modules, one a line. A line `@SCRIPT` stands for what that script imports: nobody has seen it run here yet."""
    try:
        with open(os.open("preload.txt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=here)) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    names = (name for line in lines for name in (imports_of(line[1:]) if line.startswith("@") else line.split()))
    return list(dict.fromkeys(names))[:MODULES_MAX]


def imports_of(script):
    """What it names in import statements, wherever they stand; nothing, if it cannot be read: then it says so itself when it is run."""
    import ast

    try:
        with open(script, "rb") as file:
            nodes = list(ast.walk(ast.parse(file.read())))
    except (OSError, SyntaxError, ValueError):
        return []
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]


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

    peer_lost = ()

    def __init__(self, order):
        replace_environment(order["envs"][0])
        self.arguments = order["argv"]

    def go(self):
        import torch.distributed.run

        sys.argv = [torch.distributed.run.__file__, *self.arguments]
        sys.orig_argv = [sys.orig_argv[0], "-m", "torch.distributed.run", *self.arguments]
        torch.distributed.run.main(self.arguments)


def fork_ranks(order, here, loaded, seed, crowd):
    if touched_gpu():
        raise RuntimeError("CUDA is initialized in the launcher, so nothing can be forked from it")
    afresh = shadows(order)
    if crowd:
        print(f"{crowd} threads would be lost in a fork: ranks start afresh", file=sys.stderr)
        afresh = True
    journal = record(here, loaded)
    ranks = [Rank(order["first_rank"] + local, local, here) for local in range(len(order["envs"]))]
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
            pin(order["cpus"][rank.local])
            return Script(order, rank.local, afresh, journal, seed)
        rank.started(began)
    os.close(journal)
    become_attendant(ranks, here)


def pin(cpus):
    """Keeps a rank to its CPUs, if it has any, as sys.rs does in the other lanes."""
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        print("muster: not pinned: none of the CPUs in MUSTER_RANK_CPUS may be used here", file=sys.stderr)


def become_attendant(ranks, here):
    """Goes on as the small program that attends to the ranks: at once if there is something to attend to, else once they are at work."""
    heard = signal.sigtimedwait(HANDLED, REST)
    if heard is not None and heard.si_signo != signal.SIGCHLD:
        os.kill(os.getpid(), heard.si_signo)  # still blocked: the program finds it
    for rank in ranks:
        rank.socket.set_inheritable(True)
    handed = [{"rank": rank.rank, "pid": rank.pid, "fd": rank.socket.fileno()} for rank in ranks]
    os.execve(f"/proc/self/fd/{here}/muster-ranks", ["muster-ranks", "adopt", json.dumps(handed)], os.environ)


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
    """One rank until it is started: a connection to the runner, which takes this process for its shim, and the pipes of its output."""

    def __init__(self, rank, local, here):
        self.rank = rank
        self.local = local
        self.pid = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(f"/proc/self/fd/{here}/ranks.sock")
        (out, self.stdout), (err, self.stderr) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        hello = {"say": "hello", "v": PROTOCOL, "rank": self.rank, "local_rank": local, "pid": os.getpid()}
        socket.send_fds(self.socket, [line(hello)], [out, err])
        os.close(out)
        os.close(err)

    def await_welcome(self):
        """Reads the one answer, and not a byte more: the rest is for the attendant."""
        heard = b""
        while not heard.endswith(b"\n"):
            byte = self.socket.recv(1)
            if not byte:
                quit_now(1)  # without its runner no rank may live
            heard += byte
        heard = json.loads(heard)
        if not heard.get("ok"):
            print(f"refused by the runner: {heard.get('error', 'the worker group is being stopped')}", file=sys.stderr)
            quit_now(1)

    def started(self, began):
        os.close(self.stdout)
        os.close(self.stderr)
        with open(f"/proc/{self.pid}/stat", "rb") as file:
            start_time = int(file.read().rpartition(b")")[2].split()[19])
        self.socket.sendall(line({"say": "started", "pid": self.pid, "start_time": start_time, "at_us": began}))

    def close(self):
        self.socket.close()
        for fd in (self.stdout, self.stderr):
            try:
                os.close(fd)
            except OSError:
                pass  # those of a rank that was forked before this one


def quit_now(code):
    """Without the interpreter's end: tearing torch down takes a tenth of a second, and nothing here needs it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Script:
    """What a forked rank runs, prepared so that it sees what a plain start would show it."""

    def __init__(self, order, local, afresh, journal, seed):
        self.argv = order["argv"]
        self.peer_lost = order["peer_lost"]
        replace_environment(order["envs"][local])
        command = [sys.orig_argv[0], *order["options"], "-u", *self.argv]
        if afresh:
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
        if local == 0:
            sys.meta_path.insert(0, Recorder(journal))

    def go(self):
        main = vars(self.__dict__.pop("main"))  # sys.modules alone keeps it, so that it goes when the interpreter does
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
        main.update(__file__=path, __cached__=None)
        main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), main)


def replace_environment(env):
    os.environ.clear()
    os.environ.update(env)
    if COERCED:
        os.environ["LC_CTYPE"] = COERCED


def reseed(seed):
    """`random` seeds itself anew after a fork; numpy, multiprocessing and torch do not. torch began with a constant once and begins by chance now."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        process = sys.modules["multiprocessing.process"]
        process.current_process().authkey = process.AuthenticationString(os.urandom(32))
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


def names_one_of(signs, error):
    try:
        words = f"{type(error).__name__}: {error}"
    except Exception:
        return False  # one that cannot say what it is
    return any(sign in words for sign in signs)


def end_without_teardown():
    """The end of a rank that fell because a peer was lost. Until its process has ended nobody knows that the world is broken, and to take
    torch apart takes half a second. So: threads, exit handlers and files, in the interpreter's order, and no module's end."""
    try:
        sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        opened = [thing for thing in gc.get_objects() if issubclass(type(thing), io.IOBase)]
        for file in [*opened, sys.stdout, sys.stderr]:
            try:
                file.flush()
            except Exception:
                pass  # closed, or not there
    finally:
        os._exit(1)


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
        if names_one_of(plan.peer_lost, error):
            end_without_teardown()
        # Shown already; the interpreter still takes its usual end, and the script's hook lives as long as it would.
        sys.excepthook = lambda *_, shown=sys.excepthook: None
        raise


plan = main()
run(plan)
