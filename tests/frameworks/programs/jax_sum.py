"""JAX on several processes: each has a part of the data, and all fit one line through it."""

import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

folder, steps, initialize = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if initialize == "bare":
    jax.distributed.initialize()
else:
    address = f"{os.environ['COORDINATOR_ADDRESS']}:{os.environ['COORDINATOR_PORT']}"
    jax.distributed.initialize(address, int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"]))
world, own = jax.process_count(), jax.process_index()
mesh = Mesh(numpy.array(jax.devices()), ("data",))
everywhere, parted = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
share = numpy.linspace(own, own + 1, 64, dtype=numpy.float32)
x = jax.make_array_from_process_local_data(parted, share)
y = jax.make_array_from_process_local_data(parted, 3 * share + 1)


@jax.jit
def train(line, x, y):
    loss = lambda line: ((line[0] * x + line[1] - y) ** 2).mean()
    return line - 0.05 * jax.grad(loss)(line)


saved = os.path.join(folder, "line.npz")
state = numpy.load(saved) if os.path.exists(saved) else {"step": 0, "line": numpy.zeros(2, numpy.float32)}
step, line = int(state["step"]), jax.device_put(state["line"], everywhere)
while step < steps:
    line = train(line, x, y)
    step += 1
    jax.block_until_ready(line)
    print(f"step {step} world {world}", flush=True)
    if step % 5 == 0 and own == 0:
        with open(saved + ".part", "wb") as part:
            numpy.savez(part, step=step, line=line.addressable_data(0))
        os.replace(saved + ".part", saved)
    time.sleep(0.1)
print("end", repr(float(line.addressable_data(0).sum())), flush=True)
