# The two doors by which the runner asks a rank where it is: torch's worker server on a socket in the run's folder, for its collectives, and CPython's own
# handler, which writes all stacks into a file there at a signal. Both answer while somebody holds the interpreter's lock. They are made in the forked
# rank before its script begins.
#
# The script sees the threads of the server and one more signal that is caught. Whatever cannot be made is left out, and the rank goes on.

# The lowest number of our descriptors: the first file that a script opens is number 3, as after a plain start.
FAR = 200
# SIGSTKFLT: no kernel has sent it since 2.6, and no library uses it.
STACKS_SIGNAL = 16
SIG_IGN = 1  # signal(2)
WARNINGS_OFF = 3  # c10/util/Logging.h: only what is fatal is printed


def open_to_questions(folder, rank, collectives):
    """Makes the doors of this rank; that of its collectives if they are asked for, because the server has threads. What prevents the server is written down where the runner looks for the stacks."""
    low, was, mask, umask = [], None, signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()), os.umask(0o177)
    try:
        was = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir(folder)  # a socket's address has room for 107 bytes, and a folder's name may have more
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        stacks = to_high_number(os.open(f"stacks-{rank}.txt", flags, 0o600))
        # At its end the interpreter gives back what there was before. The default would end the process then, and what is ignored harms nobody.
        ctypes.CDLL(None).signal(STACKS_SIGNAL, ctypes.c_void_p(SIG_IGN))
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True, chain=False)
        os.write(stacks, f"{stacks}\n".encode())  # the runner looks whether the number still is this file
        try:
            if collectives:
                need_room_for(max(8, os.cpu_count() or 1) + 1)
                low = occupy_low_numbers()
                WorkerServer(f"server-{rank}.sock")
            else:
                os.write(stacks, b"!its job does not ask for it (inspect: collectives)\n")
        except Exception as error:
            os.write(stacks, f"!{type(error).__name__}: {error}\n".encode(errors="replace"))
    except OSError:
        pass  # the folder is gone, or the disk is full
    finally:
        for fd in low:
            os.close(fd)
        if was is not None:
            os.fchdir(was)
            os.close(was)
        os.umask(umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def to_high_number(fd):
    """The same file, out of the script's way."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FAR)
    os.close(fd)
    return high


def need_room_for(threads):
    """The server answers with a thread for each processor, and with 8 at least. If the kernel refuses one of them, torch ends the process. So there
    must be room for four times as many: the script and its other ranks need threads, too."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if 0 <= limit < 64 * threads:
        raise OSError(f"no room for {threads} threads: the user may have {limit} (ulimit -u)")
    with open("/proc/self/cgroup") as file:
        paths = [line[3:].strip() for line in file if line.startswith("0::")]
    for path in paths:
        while True:
            folder = "/sys/fs/cgroup" + path.rstrip("/")
            try:
                with open(f"{folder}/pids.max") as most, open(f"{folder}/pids.current") as now:
                    most, now = most.read().strip(), int(now.read())
            except OSError:
                most, now = "max", 0  # the root of all cgroups has no limit
            if most != "max" and int(most) - now < 4 * threads:
                raise OSError(f"no room for {threads} threads: {now} of {most} are in use (pids.max of {path})")
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]


def occupy_low_numbers():
    """Takes all free numbers below FAR, so that the server's socket gets one above."""
    low = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)]
    while low[-1] < FAR:
        low.append(os.dup(low[-1]))
    return low


class WorkerServer:
    """The server, until the interpreter ends. A thread of it must not meet a process that is being taken apart, so the server is shut down before that,
    after all exit handlers of the script. Only questions that need no lock of the interpreter are asked, because this one is held meanwhile. A child
    that is forked has no thread of it and must not shut it down, so nobody ever frees it."""

    def __init__(self, path):
        self.threshold = ctypes.c_int.in_dll(ctypes.CDLL("libc10.so"), "FLAGS_caffe2_log_level")
        self.pid = os.getpid()
        self.path = os.path.abspath(path)
        if os.path.lexists(path):
            os.unlink(path)
        with self:
            self.server = sys.modules["torch._C._distributed_c10d"]._WorkerServer(path)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.server))
        atexit.register(self.shut_down)
        self.await_answer(path)

    def await_answer(self, path):
        """Waits until its threads have started: they open files for a moment."""
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(2)
            stream.connect(path)
            stream.sendall(b"GET / HTTP/1.1\r\nHost: rank\r\nConnection: close\r\n\r\n")
            while stream.recv(4096):
                pass

    def __enter__(self):
        """Keeps it from printing that it listens, or ends."""
        self.before, self.threshold.value = self.threshold.value, WARNINGS_OFF

    def __exit__(self, *_):
        self.threshold.value = self.before

    def shut_down(self):
        if os.getpid() != self.pid:
            return
        with self:
            self.server.shutdown()
        try:
            os.unlink(self.path)
        except OSError:
            pass  # the run's folder is gone
