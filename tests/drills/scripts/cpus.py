"""Writes the CPUs that its rank may use into the named folder, and ends."""

import os
import sys

with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    print(*sorted(os.sched_getaffinity(0)), file=file)
