"""A job that fails in its first generation and succeeds in its second, so that there is an incident to read. It needs no package."""

import os
import sys
import time

RESTARTS = int(os.environ["TORCHELASTIC_RESTART_COUNT"])  # as under torchrun; Muster counts all generations of the job

for step in range(1, 6):
    print(f"step={step} loss={1 / step:.3f}", flush=True)
    if step == 3 and RESTARTS == 0:
        sys.exit("ValueError: asked to fail once")
    time.sleep(0.1)
print(f"done after {RESTARTS} restart", flush=True)
