"""Muster's launcher: an interpreter that has imported torch, and from which ranks are forked.

The runner's binary joins eight files into one program: this one (messages), `chain.py` (keeper, runner and copy of a generation), `standby.py`
(ranks that have their GPU open before they are needed), `preload.py` (imports before they are needed), `guard.py` (which of them would change what a
rank sees), `marks.py` (what a rank notes of its start), `worker_server.py` (how a rank says where it is) and `rank.py` (what a forked rank becomes). The program uses only the standard library and torch.

    python [options] -u launcher.py DIR CONTROL [stay] [background]

DIR is the folder of the runner that started it. CONTROL is the number of an inherited socket. Every message on that socket is one byte and a
file descriptor, which holds a JSON object.

With `stay` it lives as long as its job is on this node, and is never a member of a world itself. It answers each message with a line of JSON
that repeats the message's token. The token 0 belongs to its own start.

- {"do": "fork", "token": T, "dir": D, "runner": [program, arguments...]}: makes a runner for the folder D, and a copy of itself as that
  runner's child. The copy waits for its order as described below. Both were forked ahead if the launcher had time since the last message.
- {"do": "preload", "token": T}: imports what the job's ranks have imported (`preload.txt` in DIR). A copy of this process does that, and serves
  the next forks. A module that would change what a rank sees spoils only the copy, and another copy is made without that module.
- {"do": "standbys", "token": T, "mode": "open", "parked" or "off", "env": E, "ranks": [pids]}: makes a standby for each rank of the next
  generation, or ends those that there are. They wait in the chain that is forked ahead, and end with it. E is what the next ranks will have as
  environment, and the pids are those of the ranks that train now. The answer comes at once; `standbys.json` in DIR says what became of it.
- {"do": "adopt", "token": T, "cwd": C, "env": E}: gives a launcher that belongs to no job to a job. The launcher goes on as if it had been
  started with this folder and this environment. It refuses if torch read a variable during its import whose value differs now.

Without `stay`, and in a copy, it waits for one order, which names a lane:

- parked: torchrun runs in this process, as if it had just been started.
- fork, direct: this process forks the ranks of this node, without torchrun. Each rank gets the environment that torchrun would give it and a
  session of its own. The kernel kills it if this process dies. This process then becomes `muster-ranks`, which attends to the ranks.

A forked rank returns to the top level of this program and goes on as `python script.py` would. A process that forks ranks has opened no GPU.
If it has threads that a fork would lose, the ranks start new interpreters.
"""

import sys

STARTUP = frozenset(sys.modules)  # what every interpreter has loaded before a script begins

import ast  # noqa: E402
import atexit  # noqa: E402
import builtins  # noqa: E402
import contextlib  # noqa: E402
import ctypes  # noqa: E402
import faulthandler  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import importlib.machinery  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import runpy  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import site  # noqa: E402
import socket  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import types  # noqa: E402
import weakref  # noqa: E402

PROTOCOL = 1
# Seconds before a copy that has forked ranks frees its memory. Freeing 500 MB takes 20 to 60 ms of processor time, so it waits until the ranks have
# started.
REST = 3.0
# Seconds without a message before the next chain is forked. The ranks of the last generation have started by then, so it takes no time from them.
REST_BEFORE_CHAIN = 1.0
# Seconds that a forked runner may take to answer. It needs milliseconds; a disk that takes this long to sync two small files is broken.
RUNNER_TIMEOUT = 15.0
# The most copies that are made, each with fewer modules, before the launcher imports nothing ahead. Real jobs need one to four.
COPIES_MAX = 12
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TORCH_SEED = 67280421310721  # c10/core/GeneratorImpl.h: default_rng_seed_val
NOTE_TEXT = 4000  # characters of an exception's text that are written down
NOTE_FILE = 200  # and of the name of each file in its traceback
NOTE_FRAMES = 40
NOTE_CHAIN = 50  # exceptions of a chain that are followed
NOTE_PARTS = 4
GROUP = getattr(builtins, "BaseExceptionGroup", ())  # of CPython 3.11 and later
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
COERCED = os.environ.get("LC_CTYPE")  # in a C locale an interpreter sets it for all its children (PEP 538)


def main():
    """Returns what to run, in a forked rank or in the process that runs torchrun."""
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    leave_coerced_locale(control)
    flags = sys.argv[3:]
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated and sys.path:
        sys.path_importer_cache.pop(sys.path.pop(0), None)  # this file's folder; the script's takes its place
    launcher = Launcher(sys.argv[1], control, "background" in flags)
    if "stay" in flags:
        launcher.answer(token=0)
        launcher.serve()
    return launcher.obey_order()


class Launcher:
    """One process that has imported torch: the first, a copy with more imports, or the copy that a runner got."""

    def __init__(self, folder, control, background):
        self.folder = folder
        self.control = control
        self.nice = os.getpriority(os.PRIO_PROCESS, 0)
        self.copy = None  # the copy that has the job's imports and serves the forks
        self.copy_to_be = None  # the copy that is still importing
        self.without = {}  # modules that must not be imported ahead, and why
        self.left_out = {}  # one reason for each package of these
        self.copies = 0
        self.chain = None  # forked ahead for the next generation
        self.fork_at = None  # when to fork a chain ahead
        self.token = 0  # of the request to import
        self.afresh = False  # ranks start a new interpreter
        self.set_at_import = {}  # variables that this process's imports have set
        self.unseeded = []  # random number generators that each rank seeds again
        self.identifiers = []  # random identifiers that each rank makes again
        self.folders = []  # finalizers of temporary folders, which no rank may run
        self.stages = []  # modules whose import has read variables that the script sets
        self.wish = None  # the standbys that the next chain shall have
        self.standbys = None  # in the copy that a runner gets: those it has
        self.plan = None  # in a standby that has become a rank: what it runs
        prepare_environment()
        with self.low_priority(background), Watched() as watched:
            import torch
            import torch.distributed
        self.torch_reads = frozenset(watched.names)
        self.seed = torch.get_rng_state()
        self.base = frozenset(sys.modules)
        self.noted = []  # what the next generation's record begins with
        self.settle()

    def settle(self):
        """Runs after imports, and brings this process into the state that every fork begins with."""
        self.crowd = end_threads()
        gc.collect()
        gc.freeze()  # forked processes share these pages, as long as no collection writes to them

    def low_priority(self, wanted):
        """Lowers the priority for a while, so that workers lose no time. Only root does it, because only root may undo it."""
        return Priority(self.nice, 10 if wanted and os.geteuid() == 0 else 0)

    def answer(self, **words):
        try:
            self.control.sendall(line(words))
        except OSError:
            os._exit(0)  # the runner that asked is gone, so no launcher is needed

    def serve(self):
        """Returns only in the copy that a forked runner gets. That copy then has another folder and another control socket."""
        while True:
            listened = [self.control, *(copy.socket for copy in (self.copy, self.copy_to_be) if copy), *([self.chain.copy] if self.chain else [])]
            timeout = None if self.fork_at is None else max(0, self.fork_at - time.monotonic())
            ready = select.select(listened, [], [], timeout)[0]
            if not ready and self.fork_ahead():
                return
            if self.chain and self.chain.copy in ready:
                self.end_chain()  # a part of it has died
            self.hear_copies(ready)
            if self.control not in ready:
                continue
            message = receive(self.control)
            if message is None:
                os._exit(0)  # no runner needs this launcher any more
            if message["do"] == "preload":
                if self.copy_to_be:
                    self.answer(token=self.token, error="another list came meanwhile")
                self.copies, self.token, self.without = 0, message["token"], {}
                self.make_copy()  # in the copy, this loop continues with another socket
            elif message["do"] == "adopt":
                self.adopt(message)
            elif message["do"] == "standbys":
                if self.want_standbys(message):
                    return
            elif self.copy:
                gone = {"token": message["token"], "error": "the copy with the job's imports has ended: launcher.log says why"}
                self.answer(**self.copy.ask(message) or gone)
            elif self.fork_runner(message):
                return

    def want_standbys(self, message):
        """Makes standbys for the next generation, now or when its chain is forked. True in a process that has become a copy of a chain or a rank."""
        self.wish = message if message["mode"] != "off" else None
        if self.copy:
            self.copy.ask(message)
        elif self.chain:
            self.chain.tell(message)
        elif self.fork_at is None and self.wish and self.fork_ahead():
            return True
        self.answer(token=message["token"])
        return False

    def adopt(self, message):
        """Makes this the launcher of a job. The agent has already compared what it can compare; this is the last check."""
        self.end_chain()  # it has the former folder and environment
        before = dict(os.environ)
        replace_environment(message["env"])
        prepare_environment()
        changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
        # No rank gets PYTHON_EXEC. It tells torchrun which program to start, and each run has its own.
        changed.discard("PYTHON_EXEC")
        read = sorted(name for name in changed & self.torch_reads if not name.startswith("MUSTER_"))
        if read:
            self.answer(token=message["token"], error=f"torch read {read[0]} when it was imported, and the job has another value")
            return
        try:
            os.chdir(message["cwd"])
        except OSError as error:
            self.answer(token=message["token"], error=f"{message['cwd']}: {error}")
            return
        # Of all the modules that torch imports, only this one keeps the working directory.
        if "multiprocessing.process" in sys.modules:
            sys.modules["multiprocessing.process"].ORIGINAL_DIR = os.getcwd()
        self.answer(token=message["token"])

    def hear_copies(self, ready):
        if self.copy and self.copy.socket in ready:
            self.copy.end()  # it says nothing without a request, so it has died
            self.copy = None
        if not self.copy_to_be or self.copy_to_be.socket not in ready:
            return
        said = self.copy_to_be.read()
        if said and said.get("ok"):
            if self.copy:
                self.copy.end()
            self.copy, self.copy_to_be = self.copy_to_be, None
            self.end_chain()  # the copy makes one that has imported more
            if self.wish:
                self.copy.ask(self.wish)
            with open(os.path.join(self.folder, "preloaded.txt"), "w") as file:
                file.writelines(f"{name}\n" for name in said["names"])
            self.answer(token=self.token)
            return
        self.copy_to_be.end()
        self.copy_to_be = None
        if said and self.copies < COPIES_MAX:
            self.without.update(said["without"])
            self.make_copy()
        else:
            self.rest()
            self.answer(token=self.token, error="no copy could import what the job's ranks have imported: launcher.log says why")

    def make_copy(self):
        """Forks a copy that imports and then serves forks. In the copy this returns too, with another control socket."""
        if self.copy_to_be:
            self.copy_to_be.end()
            self.copy_to_be = None
        ours, theirs = socket.socketpair()
        self.copies += 1
        launcher = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # as at a limit of processes
            print(f"nothing is imported ahead: fork: {error}", file=sys.stderr)
            ours.close()
            theirs.close()
            self.answer(token=self.token, error=f"fork: {error}")
            return
        if pid != 0:
            theirs.close()
            self.copy_to_be = Copy(pid, ours)
            return
        die_with(launcher)
        ours.close()
        self.close()
        self.control = theirs
        with self.low_priority(True):
            recorded = Recorded(self.folder)
            guard, self.unseeded, self.set_at_import = preload(recorded, self.without)
        if guard.wrong:
            for name, why in guard.wrong.items():
                print(f"not imported ahead: {name} {reason(name, *why)}", file=sys.stderr)
            self.answer(without=guard.wrong)
            os._exit(0)
        self.identifiers, self.stages, self.folders = guard.identifiers, guard.stages, guard.folders
        self.noted = recorded.lines(self.base)
        self.left_out = reasons(self.without)
        self.afresh = bool(recorded.changed & self.torch_reads)
        self.settle()
        self.answer(ok=True, names=sorted(located(self.base)))
        self.rest()

    def fork_runner(self, message):
        """Gives the chain that stands by to a generation, or a new one. True in the copy that belongs to the chain."""
        if self.crowd:
            self.answer(token=message["token"], error=f"{self.crowd} threads of the launcher would be lost in a fork")
            return False
        (chain, self.chain), self.wish = (self.chain, None), None
        hide_standbys(self.folder)
        status = chain.begin(message) if chain else None
        if status is None:
            try:
                chain = fork_chain(self, ahead=False)
            except OSError as error:
                self.answer(token=message["token"], error=f"fork: {error}")
                return False
            if chain is None:
                return True
            status = chain.begin(message) or b""
        if status[:1] == b"\0":
            self.answer(token=message["token"])
            self.rest()
        else:
            why = status[1:].decode(errors="replace") or "the forked runner has ended before it was ready, or is not ready in time"
            self.answer(token=message["token"], error=why)
        return False

    def rest(self):
        """Makes this process fork the next chain when it has had no message for a while."""
        self.fork_at = time.monotonic() + REST_BEFORE_CHAIN

    def fork_ahead(self):
        """Forks the chain of the next generation. True in the copy that belongs to it. A chain that cannot be forked is not tried again before
        the next generation, which then needs one."""
        self.fork_at = None
        if self.crowd or self.chain or self.copy or self.copy_to_be:
            return False
        try:
            self.chain = fork_chain(self, ahead=True)
        except OSError as error:
            print(f"nothing is forked ahead: fork: {error}", file=sys.stderr)
            return False
        if self.chain and self.wish:
            self.chain.tell(self.wish)
        return self.chain is None

    def end_chain(self):
        if self.chain:
            self.chain.end()
            hide_standbys(self.folder)
        self.chain = self.fork_at = None

    def close(self):
        """Closes, in a forked process, what belongs to the process that forked it."""
        self.control.close()
        for copy in (self.copy, self.copy_to_be):
            if copy:
                copy.socket.close()
        if self.chain:
            self.chain.end()
        self.copy = self.copy_to_be = self.chain = self.fork_at = None

    def obey_order(self):
        """Waits for the one order of this process. A standby has had it."""
        if self.plan:
            return self.plan
        order = receive(self.control)
        if order is None:
            os._exit(0)  # the runner needs no launcher any more
        os.chdir(order["cwd"])
        self.control.close()
        if order["lane"] == "parked":
            set_command_line([sys.orig_argv[0], "-m", "torch.distributed.run", *order["argv"]])
            return Torchrun(order)
        here = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return fork_ranks(self, order, here)


class Copy:
    """A copy of this launcher, as its parent sees it."""

    def __init__(self, pid, stream):
        self.pid = pid
        self.socket = stream

    def ask(self, message):
        """Passes a message on and waits for the answer. It comes within the time that a forked runner may take. None if the copy has ended."""
        try:
            send(self.socket, message)
            return self.read()
        except OSError:
            return None

    def read(self):
        """One line; None if the copy has ended."""
        heard = b""
        while not heard.endswith(b"\n"):
            try:
                part = self.socket.recv(1 << 16)
            except OSError:
                return None
            if not part:
                return None
            heard += part
        return json.loads(heard)

    def end(self):
        self.socket.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


class Priority:
    """Raises the nice value for a while. Processes that are forked afterwards have the value that this process was started with."""

    def __init__(self, base, more):
        self.base, self.more = base, more

    def __enter__(self):
        if self.more:
            os.setpriority(os.PRIO_PROCESS, 0, self.base + self.more)

    def __exit__(self, *_):
        if self.more:
            os.setpriority(os.PRIO_PROCESS, 0, self.base)


def prepare_environment():
    """Removes the variables that differ between ranks from the job's environment, and adds those that a launcher needs."""
    for name in RANKS_OWN:
        os.environ.pop(name, None)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # looking for a GPU must not make a CUDA context


def leave_coerced_locale(control):
    """Starts this interpreter once more if it has changed its own locale. In a C locale CPython sets LC_CTYPE to a UTF-8 locale (PEP 538) and
    turns on its UTF-8 mode (PEP 540). The same happens in torchrun, and its ranks then start in that locale, without the mode. A forked rank
    keeps the mode of this process, so this process must start as a rank does. The second start finds LC_CTYPE in the environment and changes
    nothing."""
    with open("/proc/self/environ", "rb") as file:
        given = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
    if os.environb.get(b"LC_CTYPE") != given.get(b"LC_CTYPE"):
        control.set_inheritable(True)
        os.execv(sys.executable, sys.orig_argv)


def end_threads():
    """Ends the threads of libraries that end them around a fork, as OpenBLAS does (`pthread_atfork`). They start again when they are needed.
    Returns how many threads are left besides this one. A fork would lose those."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return threads() - 1


def threads():
    """The threads of this process that a fork would lose. jemalloc, which comes with pyarrow, knows how to go on without its own."""
    tasks = os.listdir("/proc/self/task")
    return len(tasks) if len(tasks) == 1 else sum(name_of_thread(task) != "jemalloc_bg_thd" for task in tasks)


def name_of_thread(task):
    try:
        with open(f"/proc/self/task/{task}/comm") as file:
            return file.read().strip()
    except OSError:
        return "jemalloc_bg_thd"  # it has ended, so it is not counted either


def touched_gpu():
    """Whether torch or any other library has opened a GPU in this process. If so, a fork of it could not use one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    devices = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
    for entry in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{entry}").startswith(devices):
                return True
        except OSError:
            pass  # closed since it was listed
    return False


def memory_left(groups="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """Bytes of memory that the limits of this process's cgroups leave. File cache that is not in use counts as left. None: there is no limit that can
    be read."""
    left = []
    for controllers, path in [line.split(":", 2)[1:] for line in content_of(groups).splitlines()]:
        if controllers == "":  # version 2
            place, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            place, names = os.path.join(root, "memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be that of the host, which is not there. Its own group is then the root.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts) + 1):
            folder = os.path.join(place, *parts[:length])
            limit, used = (content_of(os.path.join(folder, name)).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit():
                counts = dict(line.split(" ", 1) for line in content_of(os.path.join(folder, "memory.stat")).splitlines())
                left.append(int(limit) - int(used) + int(counts.get(names[2], 0)))
    return max(0, min(left)) if left else None


def content_of(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def receive(control):
    """The object of one message; None if the other side is gone."""
    try:
        message, fds, _, _ = socket.recv_fds(control, 1, 1)
    except OSError:
        return None
    if not message or not fds:
        return None
    with open(fds[0], "rb") as file:
        file.seek(0)
        return json.load(file)


def read_all(fd, timeout):
    """Everything until the end of a pipe, or what has come when the time is over."""
    until = time.monotonic() + timeout
    heard = b""
    while select.select([fd], [], [], max(0, until - time.monotonic()))[0]:
        part = os.read(fd, 4096)
        if not part:
            break
        heard += part
    os.close(fd)
    return heard


def mark_environment(folder):
    """Replaces the launcher's folder by this copy's folder in the environment that `/proc` shows. By that folder an agent finds the processes
    that a killed runner has left."""
    begin, end = (int(field) for field in stat_of("self")[47:49])  # env_start, env_end
    shown = ctypes.string_at(begin, end - begin) if begin else b""
    entry = b"MUSTER_RUN_DIR="
    at = 0 if shown.startswith(entry) else shown.find(b"\0" + entry) + 1
    room = len(shown[at:].split(b"\0", 1)[0])
    new = entry + os.fsencode(folder)
    if not shown[at:].startswith(entry) or room < len(new):
        print(f"the folder {folder} cannot be shown as this process's own", file=sys.stderr)
        os._exit(1)
    ctypes.memmove(begin + at, new.ljust(room, b"\0"), room)


def set_command_line(words):
    """Makes `ps`, `pgrep -f` and py-spy show the user's command for this process. A kernel without CONFIG_CHECKPOINT_RESTORE does not let a
    process move these bytes; the command is then cut to the room there is."""
    text = b"\0".join(os.fsencode(word) for word in words) + b"\0"
    # The text must live as long as the process: the kernel reads it whenever somebody asks.
    set_command_line.text = ctypes.create_string_buffer(text, len(text))
    at = ctypes.addressof(set_command_line.text)
    fields = [int(field) for field in stat_of("self")[23:49]]  # proc(5), from startcode to env_end
    (code_start, code_end, stack), (data_start, data_end, heap, arg_start, arg_end, env_start, env_end) = fields[:3], fields[19:]
    words = [code_start, code_end, data_start, data_end, heap, end_of_heap(), stack, at, at + len(text), env_start, env_end, 0]
    layout = (ctypes.c_uint64 * 13)(*words, 0xFFFFFFFF << 32)  # struct prctl_mm_map: no auxv, exe_fd -1
    if ctypes.CDLL(None).prctl(35, 14, ctypes.byref(layout), ctypes.sizeof(layout), 0) != 0:  # PR_SET_MM, PR_SET_MM_MAP
        room = arg_end - arg_start
        ctypes.memmove(arg_start, text[: room - 1].ljust(room, b"\0"), room)


def end_of_heap():
    sbrk = ctypes.CDLL(None).sbrk
    sbrk.restype = ctypes.c_void_p
    return sbrk(0) or 0


def stat_of(pid):
    """The fields of `/proc/PID/stat` from the third on (proc(5)): the first is at index 0."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
