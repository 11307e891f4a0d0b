# What a forked rank notes of its own start: when its script began, and what the script has imported itself. The runner reads it for the receipt.

MARKS_SIZE = 2048  # bytes of the file, always written whole
MARKS_NAMED = 8  # packages that are named
MARKS_STEP = 0.02  # seconds of imports that are worth a write


class Marks:
    """The file `phases-LOCAL` in the run's folder: one JSON object, padded with blanks, which one write replaces. Only the rank's own process writes
    it, and a write that fails is left out. The functions are kept because a script may replace those of `os` and `time`."""

    def __init__(self, folder, local, left_out):
        self.path = f"{folder}/phases-{local}"
        self.pid = os.getpid()
        self.left_out = left_out  # why packages were not imported ahead
        self.script_us = 0
        self.packages = {}  # seconds by package
        self.imported = self.written = 0.0
        self.open_spec = None  # the spec whose module is being imported
        self.began = 0.0
        self.after_import = None  # called after each import that the script has asked for
        self.now, self.getpid, self.dumps = time.monotonic, os.getpid, json.dumps
        self.open, self.pwrite, self.close = os.open, os.pwrite, os.close

    def script_begins(self):
        self.script_us = boot_us()
        self.write()

    def import_begins(self, spec, asked_by):
        """Follows an import until it has ended. Those that it makes itself are part of it. `asked_by` is the frame that asked the finders, because
        whoever only looks for a module imports nothing."""
        if asked_by is None or asked_by.f_code.co_name != "_find_and_load_unlocked" or type(spec) is not ModuleSpec:
            return
        if self.open_spec is not None:
            if self.open_spec.__dict__.get("_initializing"):
                return
            self.open_spec.__class__ = ModuleSpec  # its module could not be made
        self.open_spec, self.began = spec, self.now()
        spec.marks, spec.__class__ = self, Followed

    def is_idle(self):
        """Whether no import of the script is being followed."""
        return self.open_spec is None or not self.open_spec.__dict__.get("_initializing")

    def import_ends(self, spec):
        if spec is not self.open_spec or self.getpid() != self.pid:
            return
        self.open_spec = None
        if self.after_import:
            self.after_import()
        took = self.now() - self.began
        top = spec.name.partition(".")[0]
        self.packages[top] = self.packages.get(top, 0.0) + took
        self.imported += took
        if self.imported - self.written >= MARKS_STEP:
            self.write()

    def write(self):
        self.written = self.imported
        dearest = sorted(self.packages.items(), key=lambda entry: -entry[1])[:MARKS_NAMED]
        imports = [[name[:100], int(took * 1e6), str(self.left_out.get(name, ""))[:100]] for name, took in dearest]
        words = {"script_us": self.script_us, "imports_us": int(self.imported * 1e6), "imports": imports}
        text = self.dumps(words).encode()
        while len(text) >= MARKS_SIZE and imports:
            imports.pop()
            text = self.dumps(words).encode()
        try:
            fd = self.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                self.pwrite(fd, text.ljust(MARKS_SIZE - 1) + b"\n", 0)
            finally:
                self.close(fd)
        except OSError:
            pass  # the disk is full, or the folder is gone


ModuleSpec = importlib.machinery.ModuleSpec


def followed(spec, value):
    marks = spec.__dict__["marks"] if "marks" in spec.__dict__ else None
    spec.__dict__["_initializing"] = value
    if not value:
        spec.__class__ = ModuleSpec
        if marks is not None:
            del spec.__dict__["marks"]
            marks.import_ends(spec)


# The spec of a module that is being imported. The interpreter itself sets `_initializing`, to True before and to False after it has executed the
# module, so no other part of the import changes. After that the spec is a plain one.
Followed = type(
    "ModuleSpec",
    (ModuleSpec,),
    {
        "__slots__": (),
        "__module__": ModuleSpec.__module__,
        "_initializing": property(lambda spec: spec.__dict__.get("_initializing", False), followed),
    },
)
