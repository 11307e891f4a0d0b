"""Prints what an interpreter has. It does not import torch, which would take seconds.

The first line has torch's version from its metadata, the implementation, the language, the platform, torch's version from its own file, the CUDA it
was built for, its NCCL, and the LC_CTYPE that its children find; "-" stands for an unknown value. Then come the files that this was read from, one a
line. Without torch it ends with PackageNotFoundError.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys

sys.path[:] = [folder for folder in sys.path if folder]  # leaves out the working directory, which a script's ranks do not search
read_from = []


def found(name):
    distribution = importlib.metadata.distribution(name)
    read_from.append(getattr(distribution, "_path", None))
    return distribution


def itself():
    """The plain string assignments of torch/version.py."""
    package = importlib.util.find_spec("torch").submodule_search_locations[0]
    read_from.append(os.path.join(package, "version.py"))
    with open(read_from[-1], encoding="utf-8") as file:
        return {name: value for name, value in re.findall(r"^(\w+)\b[^=\n]*=\s*['\"](.*?)['\"]", file.read(), re.MULTILINE)}


def nccl(torch):
    """The version of the NCCL distribution that torch requires. If it requires none, NCCL is part of torch, or the system's."""
    needed = re.search(r"^nvidia-nccl-\w+", "\n".join(torch.requires or []), re.MULTILINE)
    if needed is None or "nccl" in os.environ.get("LD_PRELOAD", ""):
        return None
    return found(needed.group()).version


def or_none(question, *args):
    try:
        return question(*args)
    except Exception:
        return None


torch = found("torch")
version = or_none(itself) or {}
words = [torch.version, sys.implementation.name, "%d.%d" % sys.version_info[:2], sys.platform]
words += [version.get("__version__") or torch.version, version.get("cuda"), or_none(nccl, torch)]
words.append(os.environ.get("LC_CTYPE"))  # in a C locale an interpreter sets it for its children (PEP 538)
print(*(str(word or "-").replace(" ", "") for word in words))
for path in read_from:
    if path is not None:
        print(os.path.abspath(path))
