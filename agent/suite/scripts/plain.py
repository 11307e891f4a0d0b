"""torchrun itself, as a user starts it. The only difference: it writes its verdict on each rank to the file named first."""

import json
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

if __name__ == "__main__":
    verdict = {}
    try:
        run.main(sys.argv[2:])
    except ChildFailedError as error:
        verdict = {rank: [failure.exitcode, failure.message] for rank, failure in error.failures.items()}
    with open(sys.argv[1], "w") as file:
        json.dump(verdict, file)
