# Imports ahead. Only modules that an earlier run of this job has imported, from the same files, and only if a rank cannot tell the difference.

# The most imports recorded for the next generation. torch with every optional part has about 3,000 modules.
MODULES_MAX = 10_000
# Variables that differ between ranks or generations. A package that reads one during its import is not imported ahead.
RANKS_OWN = frozenset(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT "
    "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE MUSTER_GENERATION MUSTER_RESTART_COUNT".split()
)
# Prefixes of variables that C libraries read when they are loaded, unseen by Python code: OpenMP, MKL, OpenBLAS, torch's own.
READ_IN_C = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "ATEN_")


class Recorded:
    """`preload.txt`, as `Journal` wrote it in an earlier generation of this job.

    A line is NAME<tab>FILE for a module, !FILE for the script itself, or =VARIABLE for a variable of the environment that the script changed
    before an import. A line @SCRIPT names a script that has not run on this node yet. It stands for the imports at the script's top level, which
    every run of it makes."""

    def __init__(self, folder):
        self.modules, self.changed, self.scripts, self.main = {}, set(), [], None
        try:
            with open(os.path.join(folder, "preload.txt"), errors="surrogateescape") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            lines = []
        for entry in lines[:MODULES_MAX]:
            if entry.startswith("="):
                self.changed.add(entry[1:])
            elif entry.startswith("!"):
                self.main = entry[1:]
            elif entry.startswith("@"):
                self.scripts.append(entry[1:])
            else:
                name, _, file = entry.partition("\t")
                self.modules.setdefault(name, file)
        self.files = set(self.modules.values())

    def allows(self, name):
        """Whether the module that is loaded under this name comes from a file that a run of this job has imported."""
        file = file_of(sys.modules.get(name))
        return file is None or file in self.files


def preload(recorded, without):
    """Imports the recorded modules. Returns three things: the packages that must not be imported before a rank exists, each with the reason; the
    random number generators that each rank seeds again; and the variables that the imports have set."""
    wrong, set_here = {}, {}
    calm = 0
    gc.freeze()
    with Watched(recorded.changed) as watched, Unseeded() as unseeded, Outlook(recorded.main) as outlook:
        for name in [*recorded.modules, *(name for script in recorded.scripts for name in sure_imports(script))]:
            top = name.partition(".")[0]
            if name in sys.modules or top in without or top in wrong or not belongs(top, recorded):
                continue
            before, environment = set(sys.modules), watched.copy()
            try:
                importlib.import_module(name)
            except BaseException as error:  # the script will try this import itself
                print(f"not imported ahead: {name}: {type(error).__name__}: {error}", file=sys.stderr)
            why = misfit(watched, calm, recorded, before) or outlook.why(top)
            keeper = outlook.is_kept_by([name for name in sys.modules if name not in before])
            if keeper:
                why = why or f"{keeper} keeps the main module or the command line"
            set_here.update((key, value) for key, value in watched.copy().items() if environment.get(key) != value)
            if environment.keys() - watched.copy().keys():
                why = why or "removes variables of the environment"
            if why:
                wrong[top] = why
                calm = end_threads()
                watched.names.clear()
    return wrong, list(unseeded.generators.values()), set_here


def misfit(watched, calm, recorded, before):
    """Why the package that was just imported must not be imported before a rank exists. None if it may be."""
    asked = sorted(name for name in watched.names if name in RANKS_OWN or name in recorded.changed)
    if asked:
        return f"asks for {asked[0]}, which may be another in the next rank"
    if touched_gpu():
        return "opens a GPU"
    if threads() > 1 + calm and end_threads() > calm:
        return "starts threads, which a fork would lose"
    if new_generators():
        return "makes a generator of random numbers, which all ranks would share"
    if not recorded.scripts:
        for name in [name for name in sys.modules if name not in before]:
            if not recorded.allows(name):
                return f"imports {name}, which no run of this job has imported from {file_of(sys.modules[name])}"
    return None


class Watched:
    """Notes which variables of the environment packages read while they are imported."""

    def __init__(self, changed=frozenset()):
        self.names = set()
        self.changed = changed

    def __enter__(self):
        plain, watched = type(os.environ), self

        class Environment(plain):
            def __getitem__(self, name):
                watched.names.add(name)
                return super().__getitem__(name)

            def __iter__(self):
                watched.names.update(watched.changed)  # reading the whole environment reads these too
                return super().__iter__()

        self.plain = plain
        os.environ.__class__ = Environment
        return self

    def __exit__(self, *_):
        os.environ.__class__ = self.plain

    def copy(self):
        """A copy of the environment. This read is not noted."""
        return {os.fsdecode(name): os.fsdecode(value) for name, value in os.environ._data.items()}


class Outlook:
    """Notes when an import asks for something that differs between ranks, or that differs from a plain start: the command line, the main module,
    random bytes."""

    def __init__(self, script):
        self.asked = []
        self.script = script

    def __enter__(self):
        import secrets

        asked = self.asked

        class CommandLine(list):
            def __getitem__(self, index):
                asked.append("the command line")
                return super().__getitem__(index)

            def __iter__(self):
                asked.append("the command line")
                return super().__iter__()

            def __len__(self):
                asked.append("the command line")
                return super().__len__()

            def __contains__(self, word):
                asked.append("the command line")
                return super().__contains__(word)

            def copy(self):
                return [*self]

        class Main(types.ModuleType):
            def __getattr__(self, name):
                if name not in ("__spec__", "__path__"):
                    asked.append("the main module")
                raise AttributeError(name)

        def noting(function):
            def call(*arguments):
                asked.append("random bytes")
                return function(*arguments)

            return call

        self.plain = [(os, "urandom", os.urandom), (secrets, "token_bytes", secrets.token_bytes), (sys, "argv", sys.argv)]
        self.main = sys.modules["__main__"]
        sys.modules["__main__"] = Main("__main__")
        if self.script:
            sys.modules["__main__"].__file__ = self.script  # most packages look for it, to detect an interactive interpreter
        sys.argv = CommandLine(sys.argv)
        for place, name, function in self.plain[:2]:
            setattr(place, name, noting(function))
        self.stand_ins = (sys.modules["__main__"], sys.argv)
        return self

    def is_kept_by(self, names):
        """The first of these modules that keeps a stand-in for the main module or for the command line. No rank has these stand-ins."""
        values = ((name, getattr(sys.modules[name], "__dict__", {}).values()) for name in names)
        return next((name for name, kept in values if any(value is one for value in kept for one in self.stand_ins)), None)

    def __exit__(self, *_):
        sys.modules["__main__"] = self.main
        for place, name, value in self.plain:
            setattr(place, name, value)

    def why(self, top):
        """Why the package that was just imported must not be imported before a rank exists. None if it may be. Forgets what it has noted. torch is
        exempt because the compatibility suite compares what its import does."""
        what = next(iter(self.asked), None)
        self.asked.clear()
        return f"asks for {what}" if what and top != "torch" else None


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
    if numpys is None:
        return False
    kinds = (numpys.Generator, numpys.RandomState, numpys.BitGenerator)
    known = (numpys.mtrand._rand, numpys.mtrand._rand._bit_generator)
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds) and not any(thing is one for one in known)]
    gc.freeze()  # frozen objects are not listed again
    return bool(found)


def belongs(top, recorded, known={}):
    """Whether a package is installed with the interpreter, so that it is never the job's own code, and is the one that the job imported.

    Debian's and Ubuntu's Python has what pip installs outside of its prefix: in /usr/local/lib, while the prefix is /usr."""
    if top not in known:
        try:
            spec = None if top in sys.builtin_module_names else importlib.machinery.PathFinder.find_spec(top)
        except Exception:
            spec = None
        places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
        prefixes = [os.path.join(prefix, "lib") for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}]
        installed = tuple(os.path.join(folder, "") for folder in [*prefixes, *site.getsitepackages()])
        known[top] = any(isinstance(place, str) and place.startswith(installed) for place in places) and spec
    spec = known[top]
    return bool(spec) and (top not in recorded.modules or not spec.has_location or recorded.modules[top] == spec.origin)


def file_of(module):
    """The file that a module was loaded from. None if it came from no file."""
    spec = getattr(module, "__spec__", None)
    return spec.origin if spec is not None and spec.has_location and isinstance(spec.origin, str) else None


def located(base):
    """Lines of `Journal` for all modules that are loaded beyond `base`."""
    return [f"{name}\t{file_of(module)}" for name, module in list(sys.modules.items()) if name not in base and file_of(module)]


def tree_of(script):
    """The script's syntax tree. It is empty if the script cannot be read; running the script will then report the error."""
    try:
        with open(script, "rb") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ast.parse("")


def sure_imports(script):
    """The imports that every run of a script makes: the plain statements of its top level, up to the first one that changes where modules are
    found. A script that uses DistributedDataParallel also imports torch._dynamo, when it wraps the first model."""
    tree = tree_of(script)
    names = []
    for statement in tree.body:
        if any(isinstance(node, ast.Attribute) and node.attr == "path" and is_name(node.value, "sys") for node in ast.walk(statement)):
            break
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names.append(statement.module)
    wraps = any(getattr(node, "attr", getattr(node, "id", getattr(node, "name", None))) == "DistributedDataParallel" for node in ast.walk(tree))
    return names + ["torch._dynamo"] * wraps


def is_name(node, name):
    return isinstance(node, ast.Name) and node.id == name


def sets_before_torch(script, torch_reads):
    """A variable that a script sets before its first import of a package, and that torch reads when it is loaded. None if there is none. A fork
    has torch loaded already, so a rank of such a script must start a new interpreter."""
    tree = tree_of(script)
    before = min((node.lineno for node in ast.walk(tree) if imports_a_package(node)), default=0)
    for node in ast.walk(tree):
        if getattr(node, "lineno", before) >= before:
            continue
        for name in environment_names_set(node):
            if name in torch_reads or name.startswith(READ_IN_C):
                return name
    return None


def imports_a_package(node):
    """Whether one node of a syntax tree imports something outside the standard library."""
    if isinstance(node, ast.ImportFrom):
        names = [node.module] if node.module else []
    else:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return any(name.partition(".")[0] not in sys.stdlib_module_names for name in names)


def environment_names_set(node):
    """Names of variables that one node of a syntax tree sets in `os.environ`, where the name is a literal."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)) and ends_with(node.value, "environ"):
        names = [node.slice]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = node.func
        names = []
        if called.attr == "putenv" or called.attr in ("setdefault", "pop") and ends_with(called.value, "environ"):
            names = node.args[:1]
        elif called.attr == "update" and ends_with(called.value, "environ"):
            names = [key for argument in node.args if isinstance(argument, ast.Dict) for key in argument.keys if key]
            names += [ast.Constant(keyword.arg) for keyword in node.keywords if keyword.arg]
    else:
        names = []
    return [name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)]


def ends_with(node, name):
    return getattr(node, "attr", getattr(node, "id", None)) == name
