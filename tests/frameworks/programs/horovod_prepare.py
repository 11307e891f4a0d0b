"""Builds Horovod with MPI and gloo against the TensorFlow of its environment, which takes minutes."""

import importlib.util
import os
import pathlib
import subprocess
import sys

place = pathlib.Path(sys.prefix)
with_these = {
    "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
    # The wheel of Open MPI does not find its own files by itself.
    "OPAL_PREFIX": str(place),
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "MAKEFLAGS": f"-j{os.cpu_count()}",
}
if importlib.util.find_spec("horovod") is None:
    # It must be built where TensorFlow is, not in an empty environment, as pip would.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "horovod==0.28.1"]
    subprocess.run(install, env={**os.environ, **with_these}, check=True)
