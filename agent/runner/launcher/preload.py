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

# The module that a job has imported if it compiles with inductor, and functions that return a digest of installed files. In some versions of torch
# and Triton a function is elsewhere, or the second calls the third.
COMPILES = "torch._inductor.compile_fx"
DIGESTS = (
    ("torch._inductor.codecache", "torch_key"),
    ("torch._inductor.codecache", "triton_key"),
    ("triton.runtime.cache", "triton_key"),
    ("triton.compiler.compiler", "triton_key"),
)


class Recorded:
    """`preload.txt`, as `Journal` wrote it in an earlier generation of this job, in the order in which things happened.

    A line is NAME<tab>FILE for a module, !FILE for the script itself, or =VARIABLE<tab>VALUE for a variable of the environment that the script
    changed before an import: a text or null in JSON, or nothing if the value may not be assumed. ~VARIABLE names one that had another value in
    the run after. A line @SCRIPT names a script that has not run on this node yet. It stands for the imports at the script's top level, which
    every run of it makes."""

    def __init__(self, folder):
        self.entries, self.modules, self.changed, self.differs, self.scripts, self.main = [], {}, set(), set(), [], None
        try:
            with open(os.path.join(folder, "preload.txt"), errors="surrogateescape") as file:
                lines = file.read().split("\n")
        except FileNotFoundError:
            lines = []
        for entry in lines[:MODULES_MAX]:
            name, _, rest = entry[1:].partition("\t")
            if entry.startswith("="):
                self.entries.append((name, assumed_value(rest)))
                self.changed.add(name)
            elif entry.startswith("~"):
                self.differs.add(name)
            elif entry.startswith("!"):
                self.main = entry[1:]
            elif entry.startswith("@"):
                self.scripts.append(entry[1:])
                self.entries += sure_steps(entry[1:])
            elif entry:
                name, _, file = entry.partition("\t")
                self.modules.setdefault(name, file)
                self.entries.append(name)
        self.files = set(self.modules.values())

    def allows(self, name, file):
        """Whether a run of this job has imported this file, or the job is new here. Some libraries write modules into a folder of their own at each
        import: torch up to 2.8 does."""
        if self.scripts or file in self.files:
            return True
        passing = os.path.join(tempfile.gettempdir(), "")
        known = self.modules.get(name, "")
        return file.startswith(passing) and known.startswith(passing) and os.path.basename(file) == os.path.basename(known)

    def lines(self, base):
        """What of it the next generation knows without noting it again: the changes, and the modules that are loaded. Then all others that are
        loaded beyond `base`."""
        loaded = dict(line.split("\t", 1) for line in located(base))
        known = [entry for entry in self.entries if isinstance(entry, tuple) or loaded.pop(entry, None) is not None]
        changes = {entry: change_line(*entry) for entry in known if isinstance(entry, tuple)}
        return [
            *(f"~{name}" for name in sorted(self.differs)),
            *(changes.get(entry) or f"{entry}\t{self.modules.get(entry) or file_of(sys.modules[entry])}" for entry in known),
            *(f"{name}\t{file}" for name, file in loaded.items()),
        ]


def assumed_value(text):
    try:
        value = json.loads(text) if text else UNKNOWN
    except ValueError:
        return UNKNOWN
    return value if value is None or isinstance(value, str) else UNKNOWN


def change_line(name, value):
    return f"={name}" if value is UNKNOWN else f"={name}\t{json.dumps(value)}"


def preload(recorded, without):
    """Imports the recorded modules, in the environment that the script had made for them. Returns the guard, the random number generators that each
    rank seeds again, and the variables that the imports have set."""
    set_here, finalizers = {}, set(weakref.finalize._registry)
    guard = Guard(recorded, without)
    before = environment_now()
    gc.freeze()
    with Watched(guard), Unseeded() as unseeded, Outlook(recorded.main, guard), CountedElsewhere():
        sys.meta_path.insert(0, guard)
        for entry in recorded.entries:
            if isinstance(entry, tuple):
                guard.change(*entry)
            else:
                import_ahead(entry, guard, set_here)
        read_digests(guard)
        sys.meta_path.remove(guard)
    for identifier in guard.identifiers:
        name = identifier.locate()
        if name:
            guard.wrong.setdefault(identifier.module, (identifier.module, f"makes a random identifier, which {name} has in a text"))
    for name in guard.changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)
    # A rank must not remove at its end what all ranks and later generations use.
    guard.folders = [one for one in weakref.finalize._registry if one not in finalizers and one.peek()[1] == tempfile.TemporaryDirectory._cleanup]
    return guard, list(unseeded.generators.values()), set_here


def import_ahead(name, guard, set_here):
    if name in sys.modules or not belongs(name.partition(".")[0], guard.recorded):
        return
    parts = name.split(".")
    if any(".".join(parts[:length]) in names for length in range(1, len(parts) + 1) for names in (guard.wrong, guard.without, guard.failed)):
        return
    modules, environment = set(sys.modules), environment_now()
    guard.entry = name
    try:
        importlib.import_module(name)
    except BaseException as error:  # the script will try this import itself
        guard.failed.add(name)
        if name not in guard.wrong:
            print(f"not imported ahead: {name}: {type(error).__name__}: {error}", file=sys.stderr)
    guard.check()  # what no loader of Python's own has executed
    new = environment_now()
    set_here.update((key, value) for key, value in new.items() if environment.get(key) != value)
    if environment.keys() - new.keys():
        guard.blame(None, "removes variables of the environment")
    guard.entry = None
    guard.stages[-1].modules.update((name, module) for name, module in list(sys.modules.items()) if name not in modules)


def read_digests(guard):
    """Has torch and Triton read their own files, if the job compiles. Both put a digest of them into the key of all that they look up in a cache,
    and it is the same for each rank. The functions keep what they have found. Nothing else of a compilation is done. Timing
    makes a random identifier, which forked ranks would share, so it is off meanwhile."""
    if COMPILES not in guard.recorded.modules or not {COMPILES, "torch._inductor.codecache"} <= sys.modules.keys():
        return
    codecache = vars(sys.modules["torch._inductor.codecache"])
    timed = codecache.get("dynamo_timed")
    if timed:
        codecache["dynamo_timed"] = lambda *_, **__: contextlib.nullcontext()
    try:
        for module, name in DIGESTS:
            function = getattr(sys.modules.get(module), name, None)
            if function:
                function()
    except BaseException as error:  # the rank will find the same
        print(f"not read ahead: {module}.{name}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        if timed:
            codecache["dynamo_timed"] = timed
    guard.check()


def reason(name, blamed, why):
    """Why one module is not imported ahead."""
    return why if name == blamed else f"imports {blamed}, which {why}"


def reasons(without):
    """One reason for each package: that of a module of its own rather than of one that it imports."""
    found = {}
    for name, (blamed, why) in sorted(without.items(), key=lambda entry: (entry[0] != entry[1][0], entry[0])):
        top = name.partition(".")[0]
        found.setdefault(top, reason(top, blamed, why))
    return found


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


def sure_steps(script):
    """The imports that every run of a script makes, and what it sets in the environment before them: the plain statements of its top level, up to
    the first one that changes where modules are found, or the environment in a way that cannot be read off. A script that uses
    DistributedDataParallel also imports torch._dynamo, when it wraps the first model."""
    tree = tree_of(script)
    steps = []
    for statement in tree.body:
        nodes = list(ast.walk(statement))
        if any(isinstance(node, ast.Attribute) and node.attr == "path" and is_name(node.value, "sys") for node in nodes):
            break
        if isinstance(statement, ast.Import):
            steps += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            steps.append(statement.module)
        elif any(ends_with(node, "environ") or ends_with(node, "putenv") for node in nodes) and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            value = statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
            names = environment_names_set(statement.targets[0]) if value is not None else []
            if not names or not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                break
            steps.append((names[0], value.value))
    wraps = any(getattr(node, "attr", getattr(node, "id", getattr(node, "name", None))) == "DistributedDataParallel" for node in ast.walk(tree))
    return steps + ["torch._dynamo"] * wraps


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
