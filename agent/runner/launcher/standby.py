# Standbys: one process for each rank of the next generation, with its GPU open. The copy that waits in a chain forks them as it forks ranks, only
# earlier, so they belong to the tree of the generation whose ranks they become. A process cannot be forked any more once it has opened a GPU.
#
# A standby opens its GPU, runs one small step for each type of number, makes and destroys one communicator, and then waits. At the order it takes
# the place of a fork: it gets the output, the environment and the script, and runs it as a forked rank does. It is used once. Nothing depends on
# it: a rank whose standby is missing, not ready, or was opened in another environment is forked as always.
#
# A parked standby has given its GPU's memory back by the driver's checkpoint calls. A process of its own makes those calls, because they open the
# driver, and the copy must stay a process that can be forked.

# Seconds that a standby may take to open its GPU. 12 to 17 s were measured with imports, beside nothing else.
OPEN_MAX = 120.0
# Seconds that the driver may take to park one. 1.0 s was measured with 1 GiB.
PARK_MAX = 30.0
# Seconds that the driver may take to bring all standbys of a node back. 0.4 s was measured. A rank that is forked needs 1 to 3 s for the same.
RESTORE_MAX = 3.0
# Variables that the driver, NCCL, cuBLAS, cuDNN and torch read when a GPU is opened, or when the first communicator is made.
READ_AT_OPENING = ("CUDA_", "NCCL_", "NVIDIA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "PYTORCH_", "TORCH_", "HIP_", "HSA_", "ROCR_", "GPU_DEVICE_ORDINAL")
# These say only where and how much is printed. Muster itself sets them for each generation.
PRINTING = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
STANDBYS_FILE = "standbys.json"
# Bytes of the machine's memory that a parked standby takes: 1.6 GiB were seen. Twice as much must be left.
MEMORY_NEED = 2 << 30
# cuda.h: CUcheckpointLockArgs is the time in milliseconds and 60 bytes of zeros.
LOCK_MS = 5_000


def read_at_opening(env):
    """What of an environment is read when a GPU is opened."""
    return {name: value for name, value in env.items() if name.startswith(READ_AT_OPENING) and name not in PRINTING}


class Standbys:
    """All standbys of a chain, as the copy sees them that will fork the chain's ranks."""

    def __init__(self, launcher):
        self.launcher = launcher
        self.mode, self.opened_in, self.all, self.parker, self.why = "off", {}, [], None, None

    def await_generation(self):
        """Waits for the message that gives the chain to a generation. None if the chain is not needed. Meanwhile it makes the standbys that it is
        told to make, and returns in each of them as well, once that is a rank and `launcher.plan` is set."""
        while True:
            listened = [self.launcher.control, *(standby.socket for standby in self.all), *([self.parker.socket] if self.parker else [])]
            ready = select.select(listened, [], [], self.patience())[0]
            self.attend(ready)
            if self.launcher.control not in ready:
                continue
            message = receive(self.launcher.control)
            if message is None or "dir" in message:
                return message
            self.make(message)
            if self.launcher.plan:
                return None

    def make(self, message):
        """Makes what a message asks for, in place of what there is. In a standby it returns when that has become a rank."""
        self.end()
        self.mode, self.why = message["mode"], None
        if self.mode == "off":
            return self.show()
        try:
            self.why = self.why_not(message)
        except Exception as error:  # whatever it is, nobody may wait for standbys that do not come
            self.why = f"{type(error).__name__}: {error}"
        if self.why:
            return self.show()
        self.opened_in = read_at_opening(message["env"])
        try:
            if self.mode == "parked":
                self.parker = Parker(self.launcher)
            for local in range(len(message["ranks"])):
                standby = Standby(local)
                self.all.append(standby)
                if standby.fork(self):
                    return None
        except OSError as error:  # as at a limit of processes
            self.end(f"fork: {error}")
        self.show()

    def why_not(self, message):
        """Why no rank of this job can be forked with an open GPU. None if it can."""
        if self.launcher.crowd:
            return f"{self.launcher.crowd} threads would be lost in a fork"
        if self.launcher.afresh:
            return "the script sets variables of the environment that torch reads when it is loaded"
        if touched_gpu():
            return "a GPU is open in the launcher"
        idle = [str(pid) for pid in message["ranks"] if not has_driver(pid)]
        if idle:
            return f"the rank with pid {idle[0]} has not opened a GPU itself"
        left, least = memory_left(), 2 * MEMORY_NEED * len(message["ranks"])
        if left is not None and left < least:
            return f"the cgroup of the ranks leaves {left >> 20} MiB of memory, and {least >> 20} MiB are the least"
        return None

    def attend(self, ready):
        """Hears the standbys and their parker, and ends what is late."""
        before = self.states()
        for standby in [one for one in self.all if one.socket in ready]:
            standby.hear()
            if standby.state == "open" and self.parker:
                standby.state, standby.until = "parking", time.monotonic() + PARK_MAX
                self.parker.ask("park", standby.pid)
        if self.parker and self.parker.socket in ready:
            self.parked(self.parker.hear())
        now = time.monotonic()
        for standby in self.all:
            if standby.until is not None and standby.until <= now:
                standby.fail(f"it was still {standby.state} after {OPEN_MAX if standby.state == 'opening' else PARK_MAX:.0f} s")
        failed = [standby for standby in self.all if standby.why]
        if failed:
            self.why = self.why or failed[0].why
            print(f"no standby for local rank {failed[0].local}: {failed[0].why}", file=sys.stderr)
            self.end(self.why)
        if self.states() != before:
            self.show()

    def parked(self, said):
        for standby in self.all:
            if said["pid"] is None:
                standby.fail(said["error"])
            elif standby.pid == said["pid"] and standby.state == "parking":
                standby.state, standby.until = "parked", None
                if said["error"]:
                    standby.fail(said["error"])

    def patience(self):
        """Seconds until something is late."""
        due = [standby.until for standby in self.all if standby.until is not None]
        return max(0, min(due) - time.monotonic()) if due else None

    def states(self):
        return [(standby.pid, standby.state) for standby in self.all]

    def show(self):
        """Writes for the agent what there is. The file is left out if it cannot be written."""
        ranks = [{"local": standby.local, "pid": standby.pid, "state": standby.state} for standby in self.all]
        show_standbys(self.launcher.folder, {"mode": self.mode, "ranks": ranks, "why": self.why})

    def moves(self, folder):
        """The chain belongs to a generation now, so its standbys show that generation's folder."""
        for standby in self.all:
            standby.tell({"dir": folder}, [])

    def take(self, order, why):
        """The standbys that become ranks by this order, by their local rank. The others are ended. `why`: no rank may be forked at all."""
        if not self.all:
            return {}
        why = why or self.why_not_taken(order)
        taken = {} if why else self.brought_back(range(len(order["envs"])))
        if not why and len(taken) < len(self.all):
            why = next((standby.why or f"it was still {standby.state}" for standby in self.all if standby.local not in taken), None)
        if why:
            print(f"standbys are not taken: {why}", file=sys.stderr)
        for standby in self.all:
            if standby.local not in taken:
                standby.end()
        if self.parker:
            self.parker.end()
        self.all, self.parker = list(taken.values()), None
        used = {"used": sorted(taken), "mode": self.mode, "why": why}
        show_standbys(self.launcher.folder, used)
        return taken

    def why_not_taken(self, order):
        if len(order["envs"]) != len(self.all):
            return "the generation has another number of ranks here"
        for env in order["envs"]:
            wanted = read_at_opening(env)
            other = sorted(name for name in wanted.keys() | self.opened_in.keys() if wanted.get(name) != self.opened_in.get(name))
            if other:
                return f"they were opened with another {other[0]}"
        if order["argv"][0] != "-m":
            names = (name for node in ast.walk(tree_of(order["argv"][0])) for name in environment_names_set(node))
            set_by_script = next((name for name in names if name.startswith(READ_AT_OPENING)), None)
            if set_by_script:
                return f"the script sets {set_by_script}, which is read when a GPU is opened"
        return None

    def brought_back(self, locals_):
        """The standbys that are ready now, after those that were parked have their memory again."""
        waiting = {standby.pid: standby for standby in self.all if standby.state == "parked"}
        for pid in waiting:
            self.parker.ask("restore", pid)
        until = time.monotonic() + RESTORE_MAX
        while waiting and select.select([self.parker.socket], [], [], max(0, until - time.monotonic()))[0]:
            said = self.parker.hear()
            if said["pid"] is None:
                break
            standby = waiting.pop(said["pid"], None)
            if standby and said["error"]:
                standby.fail(said["error"])
            elif standby:
                standby.state = "open"
        for standby in waiting.values():
            standby.fail(f"the driver did not bring it back within {RESTORE_MAX:.0f} s")
        return {standby.local: standby for standby in self.all if standby.state == "open" and standby.local in locals_}

    def end(self, why=None):
        for standby in self.all:
            standby.end()
        if self.parker:
            self.parker.end()
        self.all, self.parker, self.why = [], None, why

    def close(self):
        """Closes, in a forked process, what belongs to the copy."""
        for standby in self.all:
            standby.socket.close()
        if self.parker:
            self.parker.socket.close()
        self.all, self.parker = [], None


class Standby:
    """One standby, as the copy sees it. `opening`, then `open`, or `parking` and `parked`; `why` says that it failed."""

    def __init__(self, local):
        self.local, self.pid, self.state, self.why = local, 0, "opening", None
        self.until = time.monotonic() + OPEN_MAX
        self.socket, self.theirs = socket.socketpair()

    def fork(self, standbys):
        """True in the standby itself, once it has become a rank."""
        launcher, copy = standbys.launcher, os.getpid()
        self.pid = os.fork()
        if self.pid != 0:
            self.theirs.close()
            return False
        stream, opened_in = self.theirs, standbys.opened_in
        try:
            os.setsid()
            die_with(copy)
            standbys.close()
            launcher.control.close()
            wait_as_standby(launcher, self.local, stream, opened_in)
        except BaseException as error:
            give_up(stream, f"{type(error).__name__}: {error}")
        return True

    def hear(self):
        said = read_line(self.socket)
        if said is None:
            self.fail("it has ended: its log in the launcher's folder says why")
        elif said["error"]:
            self.fail(said["error"])
        else:
            self.state, self.until = "open", None

    def fail(self, why):
        self.state, self.until, self.why = "failed", None, why

    def tell(self, message, fds):
        """True: it is in the standby's socket. A standby that has died makes no rank."""
        memory = os.memfd_create("muster-order")
        try:
            os.write(memory, json.dumps(message).encode())
            socket.send_fds(self.socket, [b"o"], [memory, *fds])
            return True
        except OSError:
            return False
        finally:
            os.close(memory)

    def become(self, order, rank, journal):
        """Gives it the rank that a fork would become. False if it has ended."""
        if ended(self.pid):
            return False
        own = dict(order, envs=[env if local == self.local else {} for local, env in enumerate(order["envs"])])
        return self.tell({"order": own}, [rank.stdout, rank.stderr, *([journal] if self.local == 0 else [])])

    def end(self):
        self.socket.close()
        end_child(self.pid)


class Parker:
    """The process that makes the driver's checkpoint calls, as the copy sees it. One for all standbys of a node, so that the driver is open already
    when a generation waits."""

    def __init__(self, launcher):
        self.socket, theirs = socket.socketpair()
        copy = os.getpid()
        self.pid = os.fork()
        if self.pid != 0:
            theirs.close()
            return
        try:
            die_with(copy)
            self.socket.close()
            launcher.standbys.close()
            launcher.control.close()
            set_command_line(["muster-standby-parker", launcher.folder])
            serve_parker(theirs)
        except BaseException as error:
            print(f"the parker of standbys: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(0)

    def ask(self, do, pid):
        try:
            self.socket.sendall(line({"do": do, "pid": pid}))
        except OSError:
            pass  # its end is heard

    def hear(self):
        """One thing that it has done. It has none for a process if it cannot do anything."""
        return read_line(self.socket) or {"pid": None, "error": "the process that makes the driver's checkpoint calls has ended"}

    def end(self):
        self.socket.close()
        end_child(self.pid)


def wait_as_standby(launcher, local, stream, opened_in):
    """Opens the GPU and waits for the order. `launcher.plan` is set when this returns."""
    log = os.open(f"{launcher.folder}/logs/standby-{local}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    set_command_line(["muster-standby-rank", launcher.folder, str(local)])
    for name in read_at_opening(os.environ).keys() - opened_in.keys():
        del os.environ[name]
    os.environ.update(opened_in)
    with launcher.low_priority(True):
        in_a_thread(lambda: open_gpu(local))
    gc.collect()
    gc.freeze()
    for_all_threads(lambda thread: os.setpriority(os.PRIO_PROCESS, thread, launcher.nice))
    stream.sendall(line({"error": None}))
    while True:
        message, fds = receive_with_fds(stream)
        if message is None:
            os._exit(0)
        if "order" in message:
            break
        launcher.folder = message["dir"]
        mark_environment(launcher.folder)
    order, (stdout, stderr, *journal) = message["order"], fds
    stream.close()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    os.chdir(order["cwd"])
    cpus = order["cpus"][local]
    pin(cpus)
    if cpus:
        for_all_threads(lambda thread: os.sched_setaffinity(thread, cpus))
    far = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200) for fd in journal]
    for fd in journal:
        os.close(fd)
    launcher.plan = Script(launcher, order, local, False, far[0] if far else None)


def give_up(stream, why):
    print(why, file=sys.stderr)
    try:
        sys.stderr.flush()
        stream.sendall(line({"error": why[:NOTE_TEXT]}))
    finally:
        os._exit(1)


def in_a_thread(work):
    """Runs this in a thread that ends. The current GPU belongs to a thread, so the main thread, which runs the script, has chosen none."""
    import _thread
    import threading

    done, wrong = _thread.allocate_lock(), []

    def run_it():
        try:
            work()
        except BaseException as error:
            wrong.append(error)
        finally:
            # Libraries that ask for the current thread have given it a name.
            getattr(threading, "_active", {}).pop(_thread.get_ident(), None)
            done.release()

    done.acquire()
    _thread.start_new_thread(run_it, ())
    done.acquire()
    if wrong:
        raise wrong[0]


def open_gpu(local):
    """What a rank does in its first seconds on a GPU, once. Afterwards torch is as it was, except that the GPU is open."""
    torch = sys.modules["torch"]
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
        place = torch.device("cuda", local)
    else:
        open_driver(local)
        place = torch.device("cpu")
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        try:
            one_step(torch, place, kind)
        except (RuntimeError, NotImplementedError) as error:  # not every GPU has every type
            print(f"{kind}: {error}", file=sys.stderr)
    one_communicator(torch, place)
    if place.type == "cuda":
        leave_no_trace(torch)


def open_driver(local):
    """Opens a GPU for a program that does not use torch for it."""
    driver = load_driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call(driver, "cuDeviceGet", ctypes.byref(device), local)
    call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)


def one_step(torch, place, kind):
    nn = torch.nn
    model = nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16)).to(place, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    words = torch.arange(32, device=place).view(2, 16) % 16
    loss = nn.functional.cross_entropy(model(words).float().flatten(0, 1), words.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()


def one_communicator(torch, place):
    """The first communicator of a process loads most of NCCL. The group has one rank and a store in this process's memory."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    kept = sys.modules["torch.distributed.distributed_c10d"]
    before = {name: value for name, value in vars(kept).items() if value is None or type(value) in (bool, int, str)}
    backend = "nccl" if place.type == "cuda" and distributed.is_nccl_available() else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(place))
        wrapped(torch.ones(2, 8, device=place)).sum().backward()
        distributed.all_reduce(torch.ones(1, device=place))
        if place.type == "cuda":
            torch.cuda.synchronize()
    finally:
        distributed.destroy_process_group()
        vars(kept).update(before)  # some versions keep the name of the last backend
    for name in ("_reset_fr_recording_nccl", "_reset_fr_recording"):  # what was called here is no call of the job
        getattr(torch._C._distributed_c10d, name, lambda: None)()


def leave_no_trace(torch):
    """Memory, its counters and the random numbers of the GPU as a fresh process has them."""
    gc.collect()
    torch.cuda.synchronize()
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    for generator in torch.cuda.default_generators:
        generator.seed()


def for_all_threads(act):
    for thread in os.listdir("/proc/self/task"):
        try:
            act(int(thread))
        except OSError:
            pass  # it has ended, or its library keeps it where it is


def serve_parker(stream):
    """Answers each request from a thread of its own, because the ranks of a node are brought back at the same time."""
    import _thread

    try:
        driver = load_driver()
    except Exception as error:
        return stream.sendall(line({"pid": None, "error": f"{error}"}))
    parts = {"park": park, "restore": restore}

    def work(asked):
        try:
            parts[asked["do"]](driver, asked["pid"])
            error = None
        except Exception as wrong:
            error = f"{wrong}"
        stream.sendall(line({"pid": asked["pid"], "error": error}))

    while (asked := read_line(stream)) is not None:
        _thread.start_new_thread(work, (asked,))


def park(driver, pid):
    lock = (ctypes.c_uint * 16)(LOCK_MS)
    call(driver, "cuCheckpointProcessLock", pid, ctypes.byref(lock))
    call(driver, "cuCheckpointProcessCheckpoint", pid, None)


def restore(driver, pid):
    call(driver, "cuCheckpointProcessRestore", pid, None)
    call(driver, "cuCheckpointProcessUnlock", pid, None)
    state = ctypes.c_int(-1)
    call(driver, "cuCheckpointProcessGetState", pid, ctypes.byref(state))
    if state.value != 0:  # CU_PROCESS_STATE_RUNNING
        raise RuntimeError(f"after cuCheckpointProcessUnlock the process is in state {state.value} and does not run")


def load_driver():
    """The driver's library, initialised. The calls for checkpoints are missing before 570."""
    driver = ctypes.CDLL("libcuda.so.1")
    call(driver, "cuInit", 0)
    return driver


def call(driver, name, *arguments):
    function = getattr(driver, name, None)
    if function is None:
        raise RuntimeError(f"this driver has no {name}: 570 is the first that has")
    code = function(*arguments)
    if code != 0:
        raise RuntimeError(f"{name}: the driver's error {code}")


def has_driver(pid):
    """Whether a process has loaded the driver itself. A script whose ranks only start others that use the GPU would find it open too early."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            return any("/libcuda.so" in entry for entry in file)
    except OSError:
        return False


def ended(pid):
    """Whether a child has ended. It stays to be waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def end_child(pid):
    """Kills a child. It is not waited for: the kernel takes a tenth of a second for a process with an open GPU, and a generation may be waiting."""
    if not pid:
        return  # it could not be forked
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        pass


def read_line(stream):
    """One line, of which the other side has sent at least a part. None if it has ended."""
    heard = b""
    while not heard.endswith(b"\n"):
        try:
            byte = stream.recv(1)
        except OSError:
            return None
        if not byte:
            return None
        heard += byte
    return json.loads(heard)


def receive_with_fds(stream):
    """The object of one message, and the descriptors that came with it."""
    try:
        message, fds, _, _ = socket.recv_fds(stream, 1, 8)
    except OSError:
        return None, []
    if not message or not fds:
        return None, []
    with open(fds[0], "rb") as file:
        file.seek(0)
        return json.load(file), fds[1:]


def show_standbys(folder, words):
    try:
        path = os.path.join(folder, STANDBYS_FILE)
        with open(f"{path}.new", "w") as file:
            json.dump(words, file)
        os.replace(f"{path}.new", path)
    except OSError as error:
        print(f"{STANDBYS_FILE}: {error}", file=sys.stderr)


def hide_standbys(folder):
    try:
        os.unlink(os.path.join(folder, STANDBYS_FILE))
    except OSError:
        pass  # there are none
