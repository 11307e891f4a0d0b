"""LightGBM on several processes: each has a part of the rows. Who they are is read as the XGBoostJob examples of Kubeflow read it."""

import os
import sys
import time

import lightgbm
import numpy

folder, steps = sys.argv[1], int(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master, workers = os.environ["MASTER_ADDR"], os.environ["WORKER_ADDRS"].split(",")
port = int(os.environ["MASTER_PORT"] if rank == 0 else os.environ["WORKER_PORT"])
machines = [f"{master}:{os.environ['MASTER_PORT']}", *(f"{worker}:{os.environ['WORKER_PORT']}" for worker in workers)]
generator = numpy.random.default_rng(7)
x = generator.random((512, 4))
y = x @ [1.0, 2.0, 3.0, 4.0]
own = slice(rank, None, world)
settings = {
    "objective": "regression", "tree_learner": "data", "num_machines": world, "machines": ",".join(machines), "local_listen_port": port,
    "pre_partition": True, "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5, "num_leaves": 7,
}  # fmt: skip
saved = os.path.join(folder, "model.txt")
before = lightgbm.Booster(model_file=saved) if os.path.exists(saved) else None
step = before.current_iteration() if before else 0


def told(state):
    print(f"step {state.iteration + 1} world {world}", flush=True)
    if (state.iteration + 1) % 5 == 0 and rank == 0:
        state.model.save_model(saved + ".part")
        os.replace(saved + ".part", saved)
    time.sleep(0.1)


rows = lightgbm.Dataset(x[own], y[own], free_raw_data=False)
# Rounds are counted from the loaded model on, so that an interrupted run makes the same trees as an undisturbed one.
model = lightgbm.train(settings, rows, num_boost_round=steps - step, init_model=before, callbacks=[told])
print("end", f"{float(numpy.abs(model.predict(x) - y).mean()):.9f}", flush=True)
