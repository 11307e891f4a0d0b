"""Notes which CPUs its rank may use, in the folder named, and ends."""

import os
import sys

with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    print(*sorted(os.sched_getaffinity(0)), file=file)
