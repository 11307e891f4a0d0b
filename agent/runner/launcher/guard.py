# Watches imports that are made ahead, module by module, for what a rank could tell from an import of its own.


class Guard:
    """A finder in front of the others while modules are imported ahead. It knows which modules are being executed, so it blames the module that does
    something unfit, and those that import it; not the rest of their package. A module that is blamed is taken out again, so that whoever else
    imports it is found too. This process then serves no forks: another copy is made without these modules."""

    def __init__(self, recorded, without):
        self.recorded, self.without = recorded, without
        # Modules that must not be imported before a rank exists: for each the module that is to blame, itself or one that it imports, and the reason.
        self.wrong = {}
        self.failed = set()  # modules whose import has failed, as it did in the script
        self.entry = None  # the module that is imported now, as the record names it
        self.loading = []  # the modules that are being executed, outermost first
        self.calm = 0  # threads that an earlier module has left
        self.stages = [Stage()]
        self.changed = {}  # what the script has changed in the environment before the next import: the values, or UNKNOWN
        self.identifiers = []
        self.opened = False  # an earlier module has opened a GPU
        self.stand_ins = ()
        self.folders = []  # finalizers of temporary folders that modules have made

    def find_spec(self, name, path=None, target=None):
        spec = spec_behind(self, name, path, target)
        if spec is None or not is_import(sys._getframe(1).f_back):
            return spec
        if name not in self.wrong and name not in self.without and spec.has_location and not self.recorded.allows(name, spec.origin):
            self.wrong[name] = (name, f"was imported by no run of this job from {spec.origin}")
        blamed = self.wrong.get(name) or self.without.get(name)
        if blamed:
            self.blame(*blamed)
            raise ModuleNotFoundError(f"{name} is not imported ahead", name=name)
        instead_of_execution(spec, self.execute)
        return spec

    def execute(self, name, execute, module):
        self.check()
        self.loading.append(name)
        try:
            execute(module)
            self.check(module)
        finally:
            self.loading.pop()
        if name in self.wrong:
            raise ImportError(f"{name} is not imported ahead", name=name)

    def check(self, module=None):
        """Looks for what the modules that are being executed have done since the last look."""
        why = None
        if not self.opened and touched_gpu():
            why, self.opened = "opens a GPU", True
        elif threads() > 1 + self.calm and end_threads() > self.calm:
            why, self.calm = "starts threads, which a fork would lose", threads() - 1
        elif new_generators():
            why = "makes a generator of random numbers, which all ranks would share"
        elif any(value is one for value in list(getattr(module, "__dict__", {}).values()) for one in self.stand_ins):
            why = "keeps the main module or the command line"
        elif module is not None:
            why = next((why for one in self.identifiers if (why := one.misfit(module, self.loading[-1]))), None)
        if why:
            self.blame(None, why)

    def blame(self, module, why):
        """Notes that what is being imported must not be imported before a rank exists, because of this module or the innermost one."""
        importing = [*self.loading, *([self.entry] if self.entry and not self.loading else [])]
        for name in importing:
            self.wrong.setdefault(name, (module or importing[-1], why))

    def reads(self, name):
        """A variable of the environment is read."""
        if name in RANKS_OWN:
            self.blame(None, f"asks for {name}, which may be another in the next rank")
        elif name in self.changed:
            if self.changed[name] is UNKNOWN:
                self.blame(None, f"asks for {name}, which the script sets")
            else:
                self.stages[-1].assumed[name] = self.changed[name]

    def lists(self):
        """The names of all variables are read, and so whether these are set."""
        for name in list(self.changed):
            self.reads(name)

    def asks(self, what):
        """Something is asked for that differs between ranks, or that differs from a plain start. torch is exempt because the compatibility suite
        compares what its import does."""
        asking = self.loading[-1] if self.loading else self.entry
        if asking is not None and asking.partition(".")[0] != "torch" and asking not in SEEDED_AGAIN:
            self.blame(None, f"asks for {what}")

    def identifier(self, drawn):
        """`uuid.uuid4` is called, which gets these bytes. Each rank puts another identifier in the place of this one."""
        if self.loading and self.loading[-1].partition(".")[0] != "torch":
            self.identifiers.append(Identifier(drawn, self.loading[-1]))

    def change(self, name, value):
        """Does to the environment what the script did before its next import."""
        if self.stages[-1].modules:
            self.stages.append(Stage())
        self.changed[name] = UNKNOWN if name in self.recorded.differs else value
        if value is None:
            os.environ.pop(name, None)
        elif value is not UNKNOWN:
            os.environ[name] = value


UNKNOWN = object()
# Modules whose random bytes each rank draws again (see `reseed`).
SEEDED_AGAIN = ("multiprocess.process",)
LOADERS = (importlib.machinery.SourceFileLoader, importlib.machinery.SourcelessFileLoader, importlib.machinery.ExtensionFileLoader)


class Stage:
    """Modules that the script imports between two changes that it makes to the environment, and the values that their imports have read."""

    def __init__(self):
        self.modules, self.assumed = {}, {}


class Shelf:
    """Modules that were imported ahead and have read variables that the script sets, with those that came after them. A rank's `sys.modules` does not
    have them until the script imports one. Then its environment must have the values that were assumed; otherwise this rank starts a new
    interpreter, and no later one assumes anything of that variable."""

    def __init__(self, launcher, command):
        self.folder, self.command, self.environment, self.pid = launcher.folder, command, dict(os.environ), os.getpid()
        self.execve = os.execve
        self.environ = os.environ  # a script may put another object in its place
        stages = launcher.stages
        first = next((at for at, stage in enumerate(stages) if stage.assumed), len(stages))
        self.levels = stages[first:]
        self.level_of = {name: level for level, stage in enumerate(self.levels) for name in stage.modules}
        self.children = []  # attributes of packages that are not on the shelf
        for name, module in [(name, module) for stage in self.levels for name, module in stage.modules.items()]:
            if sys.modules.get(name) is module:
                del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules and vars(sys.modules[parent]).get(child) is module:
                delattr(sys.modules[parent], child)
                self.children.append((name, sys.modules[parent], child))

    def take(self, name):
        """A spec for an import of this module that gives back all modules up to its level. None if it is not here."""
        level = self.level_of.get(name)
        if level is None or name in sys.modules:
            return None
        for stage in self.levels[: level + 1]:
            for variable, value in stage.assumed.items():
                if self.environ._data.get(os.fsencode(variable)) != (None if value is None else os.fsencode(value)):
                    self.assume_no_more(variable)
                    if in_a_world():
                        return None  # its peers would wait for ever: the interpreter imports the module anew instead
                    self.start_again(variable)
        for stage in self.levels[: level + 1]:
            for one, module in stage.modules.items():
                sys.modules.setdefault(one, module)
                self.level_of.pop(one, None)
        for one, parent, child in self.children:
            if one in sys.modules and child not in vars(parent):
                setattr(parent, child, sys.modules[one])
        return importlib.machinery.ModuleSpec(name, GivenBack(sys.modules.pop(name)))

    def assume_no_more(self, variable):
        try:
            fd = os.open(f"{self.folder}/modules.txt", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.write(fd, f"~{variable}\n".encode())
        except OSError:
            pass  # the next generation finds it out again

    def start_again(self, variable):
        print(f"muster: {variable} has another value than in the run before, so this rank starts a new interpreter", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        self.execve(sys.executable, self.command, self.environment)


class GivenBack:
    """The loader of a module that has been executed already. The import machinery gives the module another spec; this gives it its own again."""

    def __init__(self, module):
        self.module, self.spec = module, getattr(module, "__spec__", None)

    def create_module(self, _):
        return self.module

    def exec_module(self, module):
        try:
            module.__spec__ = self.spec
        except AttributeError:
            pass  # it took none before either


class Identifier:
    """A random identifier that a module has made of `uuid.uuid4` during its import, as many libraries do for their session."""

    def __init__(self, drawn, module):
        import uuid

        self.uuid, self.module, self.checked, self.places = uuid.UUID(bytes=drawn, version=4), module, False, []
        self.forms = {"itself": self.uuid, "text": str(self.uuid), "hex": self.uuid.hex}

    def misfit(self, module, name):
        """Why it cannot be replaced, once its module has been executed: it must be a global variable, whole."""
        if self.checked or name != self.module:
            return None
        self.checked = True
        found = any(self.form_of(value) for value in list(vars(module).values()))
        return None if found else "makes a random identifier, which all ranks would share"

    def form_of(self, value):
        return next((name for name, form in self.forms.items() if type(value) is type(form) and value == form), None)

    def locate(self):
        """Notes every global variable that holds it. Returns a module that holds a text that was made from it; such a text cannot be replaced."""
        for name, module in list(sys.modules.items()):
            for key, value in list(getattr(module, "__dict__", {}).items()):
                form = self.form_of(value)
                if form:
                    self.places.append((vars(module), key, form))
                elif type(value) is str and (self.uuid.hex in value or str(self.uuid) in value):
                    return name
        return None

    def replace(self):
        import uuid

        new = uuid.uuid4()
        forms = {"itself": new, "text": str(new), "hex": new.hex}
        for variables, key, form in self.places:
            variables[key] = forms[form]


def is_import(frame):
    """Whether a finder that this frame called is asked for an import. Libraries also ask only whether a module exists."""
    return frame is not None and frame.f_code.co_name == "_find_and_load_unlocked"


def spec_behind(finder, name, path, target):
    """What the finders behind this one find, in their order, as the interpreter would."""
    for other in sys.meta_path[sys.meta_path.index(finder) + 1 :]:
        spec = other.find_spec(name, path, target) if hasattr(other, "find_spec") else None
        if spec is not None:
            return spec
    return None


def instead_of_execution(spec, call):
    """Has this function called in the place of the module's execution. When the module runs, its loader is a plain one again."""
    loader = spec.loader
    if type(loader) not in LOADERS:
        return
    plain = loader.exec_module

    def exec_module(module):
        vars(loader).pop("exec_module", None)
        call(spec.name, plain, module)

    loader.exec_module = exec_module


class Watched:
    """Notes which variables of the environment are read while packages are imported, and tells the guard if there is one."""

    def __init__(self, guard=None):
        self.names = set()
        self.guard = guard

    def __enter__(self):
        plain, watched = type(os.environ), self

        class Environment(plain):
            def __getitem__(self, name):
                watched.names.add(name)
                if watched.guard:
                    watched.guard.reads(name)
                return super().__getitem__(name)

            def __iter__(self):
                if watched.guard:
                    watched.guard.lists()
                return super().__iter__()

        self.plain = plain
        os.environ.__class__ = Environment
        return self

    def __exit__(self, *_):
        os.environ.__class__ = self.plain


def environment_now():
    """A copy of the environment. This read is not noted."""
    return {os.fsdecode(name): os.fsdecode(value) for name, value in os.environ._data.items()}


class Outlook:
    """Tells the guard when an import asks for something that differs between ranks, or that differs from a plain start: the command line, the main
    module, random bytes."""

    def __init__(self, script, guard):
        self.script, self.guard = script, guard

    def __enter__(self):
        import secrets
        import uuid

        guard = self.guard

        class CommandLine(list):
            def __getitem__(self, index):
                guard.asks("the command line")
                return super().__getitem__(index)

            def __iter__(self):
                guard.asks("the command line")
                return super().__iter__()

            def __len__(self):
                guard.asks("the command line")
                return super().__len__()

            def __contains__(self, word):
                guard.asks("the command line")
                return super().__contains__(word)

            def copy(self):
                return [*self]

        class Main(types.ModuleType):
            def __getattr__(self, name):
                if name not in ("__spec__", "__path__"):
                    guard.asks("the main module")
                raise AttributeError(name)

        def noting(function):
            def call(*arguments):
                drawn = function(*arguments)
                if sys._getframe(1).f_code is uuid.uuid4.__code__:
                    guard.identifier(drawn)
                else:
                    guard.asks("random bytes")
                return drawn

            return call

        self.plain = [(os, "urandom", os.urandom), (secrets, "token_bytes", secrets.token_bytes), (sys, "argv", sys.argv)]
        self.main = sys.modules["__main__"]
        sys.modules["__main__"] = Main("__main__")
        if self.script:
            sys.modules["__main__"].__file__ = self.script  # most packages look for it, to detect an interactive interpreter
        sys.argv = CommandLine(sys.argv)
        for place, name, function in self.plain[:2]:
            setattr(place, name, noting(function))
        guard.stand_ins = (sys.modules["__main__"], sys.argv)
        return self

    def __exit__(self, *_):
        sys.modules["__main__"] = self.main
        for place, name, value in self.plain:
            setattr(place, name, value)


# Variables that say which GPUs a process has.
WHICH_GPUS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class CountedElsewhere:
    """Has a child count the GPUs while modules are imported ahead. Many libraries ask at their import whether there is one. torch then asks the
    driver or NVML, and a process in which the driver is open can fork nothing that uses a GPU."""

    def __init__(self):
        self.known = {}

    def __enter__(self):
        torch = sys.modules["torch"]
        places = [(torch._C, "_cuda_getDeviceCount"), (torch.cuda, "_device_count_nvml")]
        self.plain = [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
        for place, name, function in self.plain:
            setattr(place, name, self.counted(name, function))

    def __exit__(self, *_):
        for place, name, function in self.plain:
            setattr(place, name, function)

    def counted(self, name, function):
        def count(*arguments):
            key = name, *map(os.environ.get, WHICH_GPUS)  # the guard sees these reads
            if key not in self.known:
                self.known[key] = number_from_a_child(function, arguments)
            return function(*arguments) if self.known[key] is None else self.known[key]

        return count


def number_from_a_child(function, arguments):
    """What a function returns in a forked process. None if that is no number."""
    end, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(theirs, b"%d" % function(*arguments))
        finally:
            os._exit(0)
    os.close(theirs)
    with open(end, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return int(said) if said else None


class Unseeded:
    """The generators of class `random.Random` that packages make without a seed during their import. Each rank seeds them again."""

    def __init__(self):
        self.generators = {}

    def __enter__(self):
        import random

        self.kind, self.plain, noted = random.Random, random.Random.seed, self.generators

        def seed(generator, a=None, version=2):
            if a is None:
                noted[id(generator)] = generator
            else:
                noted.pop(id(generator), None)
            return plain(generator, a, version)

        plain = self.plain
        self.kind.seed = seed
        return self

    def __exit__(self, *_):
        self.kind.seed = self.plain


def new_generators():
    """Whether a random number generator of numpy was made since the last call, as far as Python's garbage collector knows. numpy's global
    generator does not count, because each rank seeds it again (see `reseed`)."""
    numpys = sys.modules.get("numpy.random")
    if not hasattr(numpys, "mtrand") or not hasattr(numpys, "RandomState"):
        return False  # it is not there, or it is being imported
    kinds = (numpys.Generator, numpys.RandomState, numpys.BitGenerator)
    known = (numpys.mtrand._rand, numpys.mtrand._rand._bit_generator)
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds) and not any(thing is one for one in known)]
    gc.freeze()  # frozen objects are not listed again
    return bool(found)
