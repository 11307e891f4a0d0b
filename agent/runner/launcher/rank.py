# What a forked rank becomes. It runs the script as a plain start would, and it ends quickly when others wait for its end.


class Torchrun:
    """The parked lane: torchrun in this process."""

    peer_lost = ()
    note = None

    def __init__(self, order):
        replace_environment(order["envs"][0])
        self.arguments = order["argv"]

    def go(self):
        import torch.distributed.run

        sys.argv = [torch.distributed.run.__file__, *self.arguments]
        sys.orig_argv = [sys.orig_argv[0], "-m", "torch.distributed.run", *self.arguments]
        torch.distributed.run.main(self.arguments)


def fork_ranks(launcher, order, here):
    if touched_gpu():
        raise RuntimeError("a GPU is open in the launcher, so nothing can be forked from it")
    why = needs_fresh_interpreter(launcher, order)
    if why:
        print(f"ranks start a new interpreter: {why}", file=sys.stderr)
    script = order["argv"][0]
    main = [f"!{os.path.abspath(script)}"] if script != "-m" else []
    journal = open_journal(here, [*main, *launcher.noted])
    ranks = [Rank(order["first_rank"] + local, local, here) for local in range(len(order["envs"]))]
    for rank in ranks:
        rank.await_welcome()
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    standbys = launcher.standbys.take(order, why) if launcher.standbys else {}
    for rank in ranks:
        began = boot_us()
        if rank.local in standbys and standbys[rank.local].become(order, rank, journal):
            rank.pid = standbys[rank.local].pid
            rank.started(began)
            continue
        rank.pid = os.fork()
        if rank.pid == 0:
            os.setsid()
            die_with(parent)
            os.dup2(rank.stdout, 1)
            os.dup2(rank.stderr, 2)
            for other in ranks:
                other.close()
            os.close(here)
            if launcher.standbys:
                launcher.standbys.close()
            if rank.local != 0:
                os.close(journal)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            pin(order["cpus"][rank.local])
            return Script(launcher, order, rank.local, bool(why), journal)
        rank.started(began)
    os.close(journal)
    become_attendant(ranks, here)


def needs_fresh_interpreter(launcher, order):
    """Why ranks of this script cannot run in an interpreter that has torch loaded. None if they can."""
    if launcher.crowd:
        return f"{launcher.crowd} threads would be lost in a fork"
    if launcher.afresh:
        return "the script sets variables of the environment that torch reads when it is loaded"
    found = shadows(order)
    if found:
        return f"the script's folder has its own {found}"
    script = order["argv"][0]
    if script != "-m":
        name = sets_before_torch(script, launcher.torch_reads)
        if name:
            return f"the script sets {name}, which torch reads when it is loaded"
    return None


def pin(cpus):
    """Pins this process to its CPUs, if its list has any, as sys.rs does in the other lanes."""
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        print("muster: not pinned: none of the CPUs in MUSTER_RANK_CPUS may be used here", file=sys.stderr)


def become_attendant(ranks, here):
    """Becomes the small program that attends to the ranks, as soon as a signal comes or after REST seconds."""
    heard = signal.sigtimedwait(HANDLED, REST)
    if heard is not None and heard.si_signo != signal.SIGCHLD:
        os.kill(os.getpid(), heard.si_signo)  # the signal is still blocked, so the program will find it pending
    for rank in ranks:
        rank.socket.set_inheritable(True)
    handed = [{"rank": rank.rank, "pid": rank.pid, "fd": rank.socket.fileno()} for rank in ranks]
    os.execve(f"/proc/self/fd/{here}/muster-ranks", ["muster-ranks", "adopt", json.dumps(handed)], os.environ)


def shadows(order):
    """A module loaded here that the script would find in its own folder instead. None if there is none."""
    folder = script_folder(order)
    if folder is None:
        return None
    try:
        names = {entry.partition(".")[0] for entry in os.listdir(folder)}
    except OSError:
        return "files, which cannot be listed,"
    tops = {name.partition(".")[0] for name in sys.modules if name not in STARTUP and name != "__main__"}
    found = [name for name in names & tops if getattr(importlib.machinery.PathFinder.find_spec(name, [folder]), "origin", None)]
    return min(found, default=None)


def script_folder(order):
    """The folder that `python` puts first on sys.path. None if it puts none there."""
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


def open_journal(here, loaded):
    """The file in which imports are noted for the next generation. It begins with the imports that were made ahead for this generation."""
    fd = os.open("modules.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=here)
    os.write(fd, "".join(f"{entry}\n" for entry in loaded).encode(errors="surrogateescape"))
    # A high number, so that the first file that a rank opens is number 3, as after a plain start.
    far = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(fd)
    return far


class Rank:
    """One rank until it has started: the pipes of its output, and a connection to the runner, which regards this process as the rank's shim."""

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
        """Reads the one answer and not a byte more, because the attendant must get the rest."""
        heard = b""
        while not heard.endswith(b"\n"):
            byte = self.socket.recv(1)
            if not byte:
                quit_now(1)  # no rank may live without its runner
            heard += byte
        heard = json.loads(heard)
        if not heard.get("ok"):
            print(f"refused by the runner: {heard.get('error', 'the worker group is being stopped')}", file=sys.stderr)
            quit_now(1)

    def started(self, began):
        os.close(self.stdout)
        os.close(self.stderr)
        start_time = int(stat_of(self.pid)[19])
        self.socket.sendall(line({"say": "started", "pid": self.pid, "start_time": start_time, "at_us": began}))

    def close(self):
        self.socket.close()
        for fd in (self.stdout, self.stderr):
            try:
                os.close(fd)
            except OSError:
                pass  # `started` has closed those of ranks that were forked earlier


def quit_now(code):
    """Ends this process without finalizing the interpreter. Finalizing torch takes a tenth of a second, and nothing here needs it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Script:
    """The script of a forked rank, prepared so that it sees what it would see after a plain start."""

    def __init__(self, launcher, order, local, afresh, journal):
        self.argv = order["argv"]
        self.peer_lost = order["peer_lost"]
        self.note = Note(launcher.folder, local)
        self.inspected_as = order["first_rank"] + local if order.get("inspect") else None
        self.collectives = order.get("collectives", False)
        self.folder = launcher.folder
        self.marks = Marks(launcher.folder, local, launcher.left_out)
        replace_environment(order["envs"][local])
        command = [sys.orig_argv[0], *order["options"], "-u", *self.argv]
        if afresh:
            os.execve(sys.executable, command, os.environ)
        set_command_line(command)
        sys.orig_argv = command
        folder = script_folder(order)
        if folder is not None:
            sys.path.insert(0, folder)
        self.main = types.ModuleType("__main__")
        own = sys.modules["__main__"]
        # multiprocessing lists the main module under a second name.
        for name in [name for name, module in sys.modules.items() if module is own]:
            sys.modules[name] = self.main
        vars(self.main).update(__builtins__=__builtins__, __annotations__={})
        reseed(launcher.seed, launcher.unseeded, launcher.identifiers)
        # Only now: what goes on the shelf must have been seeded, and have the rank's own main module.
        self.shelf = Shelf(launcher, command)
        os.environ.update(launcher.set_at_import)
        for finalizer in launcher.folders:
            finalizer.detach()
        # At the end everything is collected, as after a plain start. Some libraries complain about objects that are left.
        atexit.register(gc.unfreeze)
        if local == 0 or self.shelf.levels:
            sys.meta_path.insert(0, Journal(journal if local == 0 else None, self.marks, self.shelf))

    def go(self):
        if self.inspected_as is not None:
            open_to_questions(self.folder, self.inspected_as, self.collectives)
        self.marks.script_begins()
        main = vars(self.__dict__.pop("main"))  # only sys.modules keeps the module, so the interpreter frees it at its end
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


def reseed(seed, unseeded, identifiers):
    """Seeds the generators that a fork would make equal in all ranks, and makes random identifiers again. `random` seeds itself again after a fork;
    numpy, multiprocessing and torch do not. Older versions of torch begin with a constant seed, newer ones with a random seed."""
    for generator in unseeded:
        generator.seed()
    for identifier in identifiers:
        identifier.replace()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    # The second is the first with another pickle, from PyPI.
    for process in [sys.modules[name] for name in ("multiprocessing.process", "multiprocess.process") if name in sys.modules]:
        process.current_process().authkey = process.AuthenticationString(os.urandom(32))
    torch = sys.modules["torch"]
    if torch.initial_seed() == TORCH_SEED:
        torch.set_rng_state(seed)
    else:
        torch.default_generator.seed()


class Journal:
    """Notes which further modules the script imports and from which files, in the form that `Recorded` reads. It finds nothing itself. It asks the
    finders behind it in their order, as the interpreter would, after the shelf."""

    def __init__(self, fd, marks, shelf):
        self.fd = fd
        self.marks = marks
        self.shelf = shelf
        self.pid = os.getpid()
        self.environ = os.environ  # a script may put another object in its place
        self.left = 0
        if fd is not None:
            self.left = MODULES_MAX
            opened = os.fstat(fd)
            self.file = (opened.st_dev, opened.st_ino)
            marks.after_import = self.note_environment
        self.note_environment()

    def note_environment(self):
        """What imports change in the environment is no change of the script: an import ahead does the same."""
        self.environment = dict(self.environ._data)

    def find_spec(self, name, path=None, target=None):
        if os.getpid() != self.pid or self not in sys.meta_path:
            return None  # a library may keep its own list of finders and ask this one directly
        asked_by = sys._getframe(1).f_back
        spec = self.shelf.take(name) if is_import(asked_by) else None
        spec = spec or spec_behind(self, name, path, target)
        if self.left <= 0 or not is_import(asked_by):
            return spec
        entries = self.changes() if self.marks.is_idle() else []
        if spec is not None and spec.has_location:
            self.left -= 1
            entries.append(f"{name}\t{spec.origin}")
        if entries:
            self.write(entries)
        if spec is not None:
            self.marks.import_begins(spec, asked_by)
        return spec

    def changes(self):
        """Variables that the script has set, changed or removed since the last call. No value is written down that may be a secret, or that is set
        when the rank is in a world already: from then on no rank can start again without harm."""
        new, old = dict(self.environ._data), self.environment
        self.environment = new
        if new == old:
            return []
        entries = []
        for key in sorted(key for key in new.keys() | old.keys() if new.get(key) != old.get(key)):
            name, value = os.fsdecode(key), None if key not in new else os.fsdecode(new[key])
            secret = any(word in name.upper() for word in SECRETS) or len(value or "") > VALUE_MAX or in_a_world()
            entries.append(change_line(name, UNKNOWN if secret else value))
        return entries

    def write(self, entries):
        try:
            opened = os.fstat(self.fd)
            if (opened.st_dev, opened.st_ino) != self.file:
                self.left = 0  # the script has closed our file, and the number is one of its own files now
            else:
                os.write(self.fd, "".join(f"{entry}\n" for entry in entries).encode(errors="surrogateescape"))
        except OSError:
            self.left = 0  # the disk is full, or the script has closed the file


# Words in the names of variables whose values are not written into files.
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH")
VALUE_MAX = 4096  # bytes; Linux itself takes 128 KiB


def in_a_world():
    distributed = sys.modules["torch.distributed"]
    return distributed.is_available() and distributed.is_initialized()


def fell_with_a_peer(signs, error):
    """Whether an exception says that a peer was lost. Its type or the library that raised it must show that, besides its text: the text of a
    script's own exception proves nothing."""
    try:
        words = f"{type(error).__name__}: {error}"
    except Exception:
        return False  # its text cannot be made
    if not any(sign in words for sign in signs):
        return False
    distributed = sys.modules["torch.distributed"]
    own = tuple(getattr(distributed, name) for name in ("DistBackendError", "DistNetworkError") if hasattr(distributed, name))
    if isinstance(error, own):
        return True
    if type(error) is not RuntimeError:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return raised_in.partition(".")[0] == "torch" or "gloo/transport/" in words


class Note:
    """Writes the exception that leaves a script into a file of the run's folder, so that the runner need not guess it from what was printed. Only
    the rank's own process does so: a child that was forked from it comes through the same lines. A note that cannot be written is left out, and
    the script does not notice. The functions are kept because a script may replace those of `os`."""

    def __init__(self, folder, local):
        self.path = f"{folder}/errors/{local}/left.json"
        self.pid = os.getpid()
        self.getpid, self.open, self.write, self.close, self.dumps = os.getpid, os.open, os.write, os.close, json.dumps

    def take(self, error):
        try:
            if self.getpid() == self.pid:
                self.put(error)
        except Exception:
            pass  # its text cannot be made, the disk is full, the folder is gone

    def put(self, error):
        words = {"name": type_name(error), "text": text_of(error), "frames": frames_of(error)}
        root = root_of(error)
        if root is not error:
            words["root"] = [type_name(root), text_of(root)]
        if isinstance(error, SystemExit):
            if error.code is None or error.code is False or error.code == 0:
                return
            words["name"] = "SystemExit"
            words["text"] = str(error.code)[:NOTE_TEXT]
            if isinstance(error.code, int):
                words["code"] = int(error.code)
            handled = None if error.__suppress_context__ else error.__context__
            if handled is not None:
                words["handling"] = [type_name(handled), text_of(handled)]
        elif isinstance(error, GROUP):
            words["parts"] = [f"{type_name(part)}: {text_of(part)}" for part in leaves(error)]
        fd = self.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self.write(fd, self.dumps(words, ensure_ascii=False).encode(errors="replace"))
        finally:
            self.close(fd)


def type_name(error):
    """The type as a traceback has it."""
    kind = type(error)
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def text_of(error):
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:
        text = "<exception str() failed>"
    return str(text)[:NOTE_TEXT]


def root_of(error):
    """The first exception of the chain that a traceback shows."""
    seen = {id(error)}
    for _ in range(NOTE_CHAIN):
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        error = cause
    return error


def frames_of(error):
    """The innermost frames, the innermost last."""
    trace, frames = error.__traceback__, []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename != __file__:
            frames.append(f"{code.co_filename[-NOTE_FILE:]}:{trace.tb_lineno} in {code.co_name}")
        frames = frames[-NOTE_FRAMES:]
        trace = trace.tb_next
    return frames


def leaves(group):
    """The first exceptions of a group that are no groups themselves."""
    found, left = [], [group]
    while left and len(found) < NOTE_PARTS:
        error = left.pop(0)
        if isinstance(error, GROUP):
            left[:0] = error.exceptions
        else:
            found.append(error)
    return found


def end_without_teardown():
    """Ends a rank that failed because a peer was lost. Nobody knows that the world is broken until this process has ended, and finalizing torch
    takes half a second. So this ends threads, runs exit handlers and flushes files, in the interpreter's order, and finalizes no module."""
    try:
        sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        opened = [thing for thing in gc.get_objects() if issubclass(type(thing), io.IOBase)]
        for file in [*opened, sys.stdout, sys.stderr]:
            try:
                file.flush()
            except Exception:
                pass  # it is closed or missing
    finally:
        os._exit(1)


def line(word):
    return json.dumps(word).encode() + b"\n"


def boot_us():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def run(plan):
    """Runs the plan and shows an exception as the interpreter would, without the frames of this file."""
    try:
        plan.go()
    except SystemExit as error:
        if plan.note:
            plan.note.take(error)
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        if plan.note:
            plan.note.take(error)
        sys.excepthook(type(error), error, trace)
        if fell_with_a_peer(plan.peer_lost, error):
            end_without_teardown()
        # The exception was shown already. The interpreter still ends in its usual way, and the script's hook lives as long as it would otherwise.
        sys.excepthook = lambda *_, shown=sys.excepthook: None
        raise


plan = main()
run(plan)
